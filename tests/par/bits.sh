#!/bin/sh
# One expected hash for every way of running a job: threads, micro-batch, instruction set, stop and resume at every
# step, a kill in the middle, a second run. Compares `ckpt hash`, and the files with cmp. Emits TAP.
#
#   tests/par/bits.sh INVAR [NAME-PART]     only the checks whose name contains NAME-PART
set -u

invar=$(realpath "$1")
only=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-bits.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
number=0
failed=0

report() { # RESULT NAME [WHY]
    number=$((number + 1))
    if [ "$1" = 0 ]; then
        echo "ok $number - $2"
    else
        failed=$((failed + 1))
        echo "not ok $number - $2"
        echo "# ${3:-}"
        echo "# rerun: tests/par/bits.sh $invar '$2'"
    fi
}

wanted() {
    case $1 in *"$only"*) return 0 ;; *) return 1 ;; esac
}

train() { # FAMILY OUTPUT [--key value ...]
    family=$1
    out=$2
    shift 2
    "$invar" train "$here/$family.yaml" --data_path data --output_dir "$out" "$@" >"$out.log" 2>&1
}

# check NAME FAMILY OUTPUT: the last checkpoint of OUTPUT is the reference's, bit for bit.
check() {
    want=$(cat "$2.hash")
    got=$("$invar" ckpt hash "$3/checkpoints/step-10" 2>&1)
    why=
    [ "$got" = "$want" ] || why="hash $got, expected $want; $(tail -n 3 "$3.log" 2>/dev/null | tr '\n' ' ')"
    for file in model.safetensors optimizer.safetensors; do
        cmp -s "$2-ref/checkpoints/step-10/$file" "$3/checkpoints/step-10/$file" || why="$why $file differs"
    done
    if [ -z "$why" ]; then report 0 "$1"; else report 1 "$1" "$why"; fi
}

variant() { # NAME FAMILY ENVIRONMENT [--key value ...]
    name=$1
    family=$2
    setting=$3
    shift 3
    wanted "$name" || return 0
    dir=$(echo "$name" | tr ' ' '-')
    env $setting "$invar" train "$here/$family.yaml" --data_path data --output_dir "$dir" "$@" >"$dir.log" 2>&1
    check "$name" "$family" "$dir"
}

isas() {
    echo scalar
    grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo && echo vector avx2
    grep -qw avx512f /proc/cpuinfo && grep -qw avx512dq /proc/cpuinfo && grep -qw avx512vl /proc/cpuinfo && echo avx512
}

# A run that is killed without warning while it goes on, then resumed from whatever it had saved.
killed() {
    name="$1 killed and resumed"
    wanted "$name" || return 0
    for attempt in 1 2 3 4 5 6 7 8; do # the kill must come before the end
        rm -rf "$1-killed"
        "$invar" train "$here/$1.yaml" --data_path data --output_dir "$1-killed" --save_steps 1 >"$1-killed.log" 2>&1 &
        pid=$!
        while [ ! -e "$1-killed/checkpoints/step-2" ] && kill -0 $pid 2>/dev/null; do
            sleep 0.01
        done
        kill -9 $pid 2>/dev/null
        wait $pid 2>/dev/null
        [ -e "$1-killed/checkpoints/step-10" ] || break
    done
    if [ -e "$1-killed/checkpoints/step-10" ]; then
        report 1 "$name" "each of $attempt runs ended before it could be killed"
        return
    fi
    train "$1" "$1-killed" --save_steps 1 --resume_from_checkpoint latest
    check "$name" "$1" "$1-killed"
}

head -c 40000 "$here/../../examples/tinyshakespeare.txt" >text.txt
"$invar" data build text.txt --tokenizer bytes --output data >build.log 2>&1 ||
    { cat build.log; echo "Bail out! data build failed"; exit 1; }

for family in gpt2 llama; do
    train $family $family-ref --save_steps 1 --threads 1 ||
        { cat $family-ref.log; echo "Bail out! the reference run failed"; exit 1; }
    "$invar" ckpt hash $family-ref/checkpoints/step-10 >$family.hash
    for threads in 2 3; do
        variant "$family threads $threads" $family A=1 --threads $threads
    done
    for micro in 1 2 4; do
        variant "$family micro-batch $micro" $family A=1 --micro_batch_size $micro
    done
    for isa in $(isas); do
        variant "$family isa $isa" $family INVAR_ISA=$isa
    done
    variant "$family second run" $family A=1 --threads 1
    for step in 1 2 3 4 5 6 7 8 9; do
        variant "$family resumed after step $step" $family A=1 --micro_batch_size 2 \
            --resume_from_checkpoint "$work/$family-ref/checkpoints/step-$step"
    done
    killed $family
    name="$family another seed gives other bits" # the check itself can fail
    if wanted "$name"; then
        train $family $family-seed --seed 8
        [ "$("$invar" ckpt hash $family-seed/checkpoints/step-10)" != "$(cat $family.hash)" ]
        report $? "$name" "a different seed gave the same hash"
    fi
done
echo "1..$number"
[ "$failed" = 0 ]
