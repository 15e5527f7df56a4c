#!/bin/sh
# The training step of GPT-2 124M (fp32, AdamW and clipping included) beside PyTorch's, in turns on the same threads,
# at 1 x 1024 and 4 x 256 tokens. The fastest step of each side counts: ratios survive a busy machine, absolute times
# do not.
#
#   bench/step.sh [INVAR] [ROUNDS] [THREADS]      INVAR_PYTHON: a Python with torch
set -eu

here=$(cd "$(dirname "$0")" && pwd)
invar=$(realpath "${1:-$here/../build/invar}")
rounds=${2:-3}
threads=${3:-$(nproc)}
python=${INVAR_PYTHON:?names no Python with torch}
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-step.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Tokens do not matter for the time; a text of bytes will do.
"$invar" data build "$here/../examples/tinyshakespeare.txt" --tokenizer bytes --output "$work/data" >"$work/log" 2>&1

number() { # NAME FILE: the largest value of a metric
    sed -n "s/.*\"$1\": *\([0-9.e+]*\).*/\1/p" "$2" | sort -g | tail -n 1
}

ours() { # BATCH LENGTH ROUND
    "$invar" train "$here/gpt2_124m.yaml" --data_path "$work/data" --output_dir "$work/run-$1-$3" --max_steps 6 \
        --global_batch_size "$1" --micro_batch_size "$1" --seq_length "$2" --threads "$threads" >"$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
    fastest=$(number tokens_per_second "$work/run-$1-$3/metrics.jsonl")
    peak=$(number memory_bytes "$work/run-$1-$3/metrics.jsonl")
    echo "$peak" | awk -v shape="$1 x $2" -v threads="$threads" -v fastest="$fastest" '
        { printf "Invar, threads %s, batch %s: %.1f tokens/s fastest of 6 steps; peak %.2f GB\n",
              threads, shape, fastest, $1 / 1e9 }' | tee -a "$work/ours-$1"
    rm -rf "$work/run-$1-$3"
}

theirs() { # BATCH LENGTH
    "$python" "$here/pytorch_step.py" --batch "$1" --length "$2" --threads "$threads" --steps 4 --warmup 1 |
        tee -a "$work/theirs-$1"
}

best() { # FILE: the largest number before " tokens/s fastest"
    sed -n 's/.* \([0-9.]*\) tokens\/s fastest.*/\1/p' "$1" | sort -n | tail -n 1
}

for shape in "1 1024" "4 256"; do
    # shellcheck disable=SC2086
    set -- $shape
    round=1
    while [ $round -le "$rounds" ]; do
        ours "$1" "$2" $round
        theirs "$1" "$2"
        round=$((round + 1))
    done
    echo "$(best "$work/ours-$1") $(best "$work/theirs-$1")" | awk -v shape="$1 x $2" -v threads="$threads" '
        { printf "%s tokens, %s threads: Invar %.1f, PyTorch %.1f tokens/s, ratio %.3f\n",
              shape, threads, $1, $2, $1 / $2 }'
done
