#!/bin/sh
# What the contract of arithmetic costs: the training step of GPT-2 124M beside the same code with the rules switched
# off (bench/contract_off.py: fp32 gradients, plain norm, no hashes; and tp_grain 1: no segments), in turns.
#
#   bench/contract.sh [INVAR] [ROUNDS]      the fastest of each side's steps counts
set -eu

here=$(cd "$(dirname "$0")" && pwd)
invar=$(realpath "${1:-$here/../build/invar}")
rounds=${2:-3}
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-contract.XXXXXX")
trap 'rm -rf "$work"' EXIT
python3 "$here/contract_off.py" "$here/.." "$work/off"
meson setup "$work/off/build" "$work/off" -Dwerror=false >"$work/log"
ninja -C "$work/off/build" invar >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
text=$here/../examples/tinyshakespeare.txt
"$invar" data build "$text" --tokenizer bytes --output "$work/data" >"$work/log" 2>&1

run() { # NAME BINARY BATCH GRAIN
    rm -rf "$work/run"
    "$2" train "$here/gpt2_124m.yaml" --data_path "$work/data" --output_dir "$work/run" --max_steps 4 \
        --seq_length 1024 --global_batch_size "$3" --micro_batch_size 1 --threads 2 --learning_rate 1e-9 $4 \
        >"$work/log" 2>&1 || true
    # Without hashes the last save is refused, so only the steps are looked at.
    [ "$(grep -c tokens_per_second "$work/run/metrics.jsonl")" = 4 ] || { cat "$work/log"; exit 1; }
    sed -n 's/.*"tokens_per_second":\([0-9.]*\).*/\1/p' "$work/run/metrics.jsonl" | sort -n | tail -n 1 |
        tee -a "$work/$1-$3"
}

for batch in 1 4; do
    round=0
    while [ $round -lt "$rounds" ]; do
        round=$((round + 1))
        run on "$invar" $batch ""
        run off "$work/off/build/invar" $batch "--tp_grain 1"
    done >/dev/null
    echo "$(sort -n "$work/on-$batch" | tail -n 1) $(sort -n "$work/off-$batch" | tail -n 1)" |
        awk -v batch=$batch '
            { printf "%d x 1024 tokens a step: with the contract %.1f tokens/s, without %.1f: it costs %.1f %%\n",
                  batch, $1, $2, 100 * ($2 / $1 - 1) }'
done
