#!/bin/sh
# Ranks against threads: GPT-2 124M, sequences of 1024 tokens, 2 ranks x 1 thread beside 1 rank x 2 threads, in turns.
# Prints each run's tokens/s, then the median over rounds of the ratio to the run of one rank in the same round; the
# pipeline's beside what its bubble leaves. Leave the machine alone meanwhile.
#
#   bench/parallel.sh INVAR [ROUNDS [BATCH]]      3 rounds, 8 sequences a step
set -eu

invar=$(realpath "$1")
rounds=${2:-3}
batch=${3:-8}
config=$(realpath "$(dirname "$0")/gpt2_124m.yaml")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

text=$(dirname "$config")/../examples/tinyshakespeare.txt
"$invar" data build "$text" --tokenizer bytes --output data >/dev/null 2>&1

# one NAME RANKS THREADS [--key value ...]: tokens/s of the second of two steps, and the peak memory of rank 0
one() {
    name=$1
    ranks=$2
    threads=$3
    shift 3
    rm -rf run
    launch=
    [ "$ranks" = 1 ] || launch="mpirun -n $ranks --oversubscribe --bind-to none"
    $launch "$invar" train "$config" --data_path data --output_dir run --seq_length 1024 --global_batch_size "$batch" \
        --micro_batch_size 1 --max_steps 2 --save_steps 0 --logging_steps 1 --threads "$threads" "$@" >log 2>&1 ||
        { cat log >&2; exit 1; }
    speed=$(sed -n 's/.*"tokens_per_second":\([0-9.]*\).*/\1/p' run/metrics.jsonl | tail -n 1)
    memory=$(sed -n 's/.*peak memory \(.* planned)\).*/\1/p' log)
    printf '%s %s\n' "$name" "$speed" >>all
    printf '%-14s %8.1f tokens/s   %s\n' "$name" "$speed" "$memory"
}

round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    one threads2 1 2
    one dp2 2 1
    one dp2,zero1 2 1 --zero_stage 1
    one tp2 2 1 --tp 2
    one tp2,sp 2 1 --tp 2 --sequence_parallel true
    one pp2 2 1 --pp 2 --pipeline_layers 9,3
done
python3 - "$batch" <<'PY'
import statistics, sys
batch = int(sys.argv[1])
runs = {}
for line in open("all"):
    name, speed = line.split()
    runs.setdefault(name, []).append(float(speed))
for name in runs:
    ratios = [a / b for a, b in zip(runs[name], runs["threads2"])]
    note = ""
    if name == "pp2":
        limit = batch / (batch + 1)
        note = f"   {statistics.median(ratios) / limit:.3f} of {limit:.3f}, what the bubble leaves"
    print(f"{name:14s} median {statistics.median(ratios):.3f} of one rank x 2 threads, best {max(ratios):.3f}{note}")
PY
