#!/bin/sh
# Jobs of real processes that stop on one layout and go on with another after every step: what they leave is, under cmp,
# what one uninterrupted process leaves; and so are checkpoints, losses and evaluations of jobs that stay on one layout.
# Emits TAP.
#
#   tests/par/resume_layouts.sh INVAR [NAME-PART]      MPI=mpich for a program that is built with MPICH
set -u

invar=$(realpath "$1")
only=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-resume.XXXXXX")
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work"
. "$here/mpi_launch.sh"
. "$here/matrix_data.sh"
if ! mpi_find; then
    echo "1..0 # SKIP $mpi_why"
    exit 0
fi
cd "$work" || exit 1
number=0
failed=0
files="model.safetensors optimizer.safetensors config.json trainer_state.json manifest.json"

report() { # PROBLEM NAME LOG: an empty problem is none
    number=$((number + 1))
    if [ -z "$1" ]; then
        echo "ok $number - $2"
        return
    fi
    failed=1
    echo "not ok $number - $2"
    echo "# $1"
    tail -n 5 "$3" | sed 's/^/#   /'
    echo "# rerun: MPI=$MPI tests/par/resume_layouts.sh $invar '$again'"
}

wanted() {
    case $1 in *"$only"*) return 0 ;; *) return 1 ;; esac
}

# The ranks that a layout needs: the product of its axes.
ranks_of() { # --key value ...
    ranks=1
    while [ $# -gt 0 ]; do
        case $1 in --dp | --tp | --pp | --cp) ranks=$((ranks * $2)) ;; esac
        shift 2
    done
    echo $ranks
}

train() { # FAMILY OUTPUT STEPS LAYOUT [--key value ...]
    family=$1
    out=$2
    steps=$3
    layout=$4
    shift 4
    ranks=$(ranks_of $layout)
    set -- "$invar" train "$here/matrix_$family.yaml" --data_path data --eval_data_path eval --eval_steps 1 \
        --output_dir "$out" --report_to none --threads 1 --distributed_timeout 300 --max_steps "$steps" $layout "$@"
    if [ "$ranks" = 1 ]; then
        "$@" >"$out.log" 2>&1
    else
        launch "$ranks" "$@" >"$out.log" 2>&1
    fi
}

# Losses, gradient norms, counted tokens and hashes of a run; without what depends on time and memory.
timeless() {
    sed 's/,"tokens_per_second":.*,"rejected"/,"rejected"/' "$1/metrics.jsonl"
}

# Sets problem unless step STEP of OUTPUT has the FILES of the reference.
compare() { # FAMILY OUTPUT STEP FILES
    for file in $4; do
        cmp -s "$1-ref/checkpoints/step-$3/$file" "$2/checkpoints/step-$3/$file" ||
            problem="$problem step $3: $file differs;"
    done
}

chain() { # FAMILY LAYOUT...: one more step on each layout
    family=$1
    out=$1-chain
    again="$1 chain"
    shift
    step=0
    resume=
    for layout in "$@"; do
        step=$((step + 1))
        name="$family step $step on${layout:- one rank}"
        problem=
        train "$family" "$out" $step "$layout" --save_steps 1 $resume || problem="exit code $?;"
        compare "$family" "$out" $step "model.safetensors optimizer.safetensors config.json"
        report "$problem" "$name" "$out.log"
        resume="--resume_from_checkpoint latest"
    done
    name="$family files and log after a chain of $step layouts"
    problem=
    compare "$family" "$out" $step "$files"
    timeless "$out" >"$out.jsonl"
    cmp -s "$family-ref.jsonl" "$out.jsonl" ||
        problem="$problem metrics.jsonl: $(diff "$family-ref.jsonl" "$out.jsonl" | head -n 3)"
    report "$problem" "$name" "$out.log"
}

stay() { # FAMILY LAYOUT: all steps on one layout
    name="$1 files and log of$2"
    again=$name
    wanted "$name" || return 0
    problem=
    rm -rf stay
    train "$1" stay 10 "$2" --save_steps 5 || problem="exit code $?;"
    compare "$1" stay 5 "$files"
    compare "$1" stay 10 "$files"
    timeless stay >stay.jsonl
    cmp -s "$1-ref.jsonl" stay.jsonl || problem="$problem metrics.jsonl: $(diff "$1-ref.jsonl" stay.jsonl | head -n 3)"
    report "$problem" "$name" stay.log
}

matrix_data "$invar" 0 40000 data && matrix_data "$invar" 50000 700 eval ||
    { echo "Bail out! data build failed"; exit 1; }
zero=--zero_optimization.stage
micro="--micro_batch_size 1"
for family in gpt2 llama; do
    train $family $family-ref 10 "" --save_steps 1 ||
        { cat $family-ref.log; echo "Bail out! the reference run failed"; exit 1; }
    timeless $family-ref >$family-ref.jsonl
done
if wanted "gpt2 chain"; then
    chain gpt2 " --dp 2" " --tp 2 --sequence_parallel true" " --pp 2 $micro" " --cp 2 $zero 2" " --dp 3 $zero 3" \
        " --dp 2 --tp 2" "" " --pp 2 --virtual_pipeline_size 3 $micro" " --dp 2 --pp 2 $zero 1" " --tp 4"
fi
if wanted "llama chain"; then
    chain llama " --cp 4 $zero 3" " --pp 3 --pipeline_schedule gpipe" " --tp 2 --pp 2" "" " --dp 5 $zero 2" \
        " --tp 4 --sequence_parallel true" " --dp 2 --cp 2 $micro" " --dp 3 $zero 1" " --pp 2 --pipeline_layers 1,5" \
        " --tp 2 --cp 2"
fi
stay gpt2 " --dp 3 $zero 3 $micro"
stay gpt2 " --tp 2 --pp 2 --sequence_parallel true"
stay llama " --dp 2 --cp 2 $zero 1"
stay llama " --tp 2 --dp 2 $zero 2"
[ $number = 0 ] && echo "no check has \"$only\" in its name" >&2 && exit 2
echo "1..$number"
exit $failed
