#!/bin/sh
# The training step (AdamW and clipping included) of GPT-2 124M and of a Llama of 135M, fp32 and bf16, beside PyTorch's,
# in turns on the same threads, at 1 x 1024 and 4 x 256 tokens. PyTorch runs eager and compiled, and in bf16 with
# autocast and with a model of bf16 numbers: the best of them counts. The fastest step of each side counts: ratios
# survive a busy machine, absolute times do not.
#
#   bench/step.sh [INVAR] [ROUNDS] [THREADS] [PART]      INVAR_PYTHON: a Python with torch; PART: of a line's name,
#                                                        "gpt2 fp32 1 x 1024"
set -eu

here=$(cd "$(dirname "$0")" && pwd)
invar=$(realpath "${1:-$here/../build/invar}")
rounds=${2:-3}
threads=${3:-$(nproc)}
part=${4:-}
python=${INVAR_PYTHON:?names no Python with torch}
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-step.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Tokens do not matter for the time; a text of bytes will do.
"$invar" data build "$here/../examples/tinyshakespeare.txt" --tokenizer bytes --output "$work/data" >"$work/log" 2>&1

number() { # NAME FILE: the largest value of a metric
    sed -n "s/.*\"$1\": *\([0-9.e+]*\).*/\1/p" "$2" | sort -g | tail -n 1
}

# A side's line: what it is, tokens/s, peak memory in GB.
ours() { # MODEL NUMBERS BATCH LENGTH
    config=gpt2_124m bf16=false
    [ "$1" = gpt2 ] || config=llama_135m
    [ "$2" = fp32 ] || bf16=true
    "$invar" train "$here/$config.yaml" --data_path "$work/data" --output_dir "$work/run" --max_steps 6 --bf16 $bf16 \
        --global_batch_size "$3" --micro_batch_size "$3" --seq_length "$4" --threads "$threads" >"$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
    metrics=$work/run/metrics.jsonl
    echo "Invar $(number tokens_per_second "$metrics") $(number memory_bytes "$metrics")" |
        awk '{ printf "%s %.1f %.2f\n", $1, $2, $3 / 1e9 }'
    rm -rf "$work/run"
}

theirs() { # MODEL NUMBERS COMPILE BATCH LENGTH; one that fails is told and does not count
    "$python" "$here/pytorch_step.py" --model "$1" --numbers "$2" --compile "$3" --batch "$4" --length "$5" \
        --threads "$threads" --steps 4 --warmup 1 >"$work/log" 2>&1 ||
        { echo "PyTorch, $2, compile $3: failed: $(tail -n 1 "$work/log")" >&2; return 0; }
    sed -n 's/.* \([0-9.]*\) tokens\/s fastest.*peak \([0-9.]*\) GB, .*/\1 \2/p' "$work/log" |
        sed "s/^/PyTorch-$2-$([ "$3" = 1 ] && echo compiled || echo eager) /"
}

compare() { # MODEL NUMBERS BATCH LENGTH
    kinds=fp32 # also beside our bf16 where no instruction multiplies bf16: PyTorch's is then slower by far
    [ "$2" = bf16 ] && grep -q -e avx512_bf16 -e amx_bf16 /proc/cpuinfo && kinds="autocast bf16"
    : >"$work/lines"
    round=1
    while [ $round -le "$rounds" ]; do
        ours "$1" "$2" "$3" "$4" >>"$work/lines"
        for kind in $kinds; do
            theirs "$1" "$kind" 0 "$3" "$4" >>"$work/lines"
            theirs "$1" "$kind" 1 "$3" "$4" >>"$work/lines"
        done
        round=$((round + 1))
    done
    sed 's/^/    /' "$work/lines"
    awk -v name="$1 $2 $3 x $4" -v threads="$threads" '
        { side = $1 == "Invar" ? "Invar" : "PyTorch" }
        $2 + 0 > best[side] + 0 { best[side] = $2; memory[side] = $3; which[side] = $1 }
        END {
            if (best["PyTorch"] + 0 == 0) { printf "%s, %d threads: no PyTorch to compare with\n", name, threads; exit }
            printf "%s, %d threads: Invar %.1f tokens/s, %s %.1f, ratio %.3f; peak %.2f GB of %.2f GB, ratio %.2f\n",
                name, threads, best["Invar"], which["PyTorch"], best["PyTorch"], best["Invar"] / best["PyTorch"],
                memory["Invar"], memory["PyTorch"], memory["Invar"] / memory["PyTorch"]
        }' "$work/lines"
}

for model in gpt2 llama; do
    for numbers in fp32 bf16; do
        for shape in "1 1024" "4 256"; do
            case "$model $numbers ${shape% *} x ${shape#* }" in
                *"$part"*) compare "$model" "$numbers" ${shape% *} ${shape#* } ;;
            esac
        done
    done
done
