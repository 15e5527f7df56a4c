#!/bin/sh
# Nothing is allocated after the first step: one process with threads, and two ranks.
#   allocations.sh INVAR_COUNTS
set -u
counts=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
. "$here/mpi_launch.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
number=0
failed=0

# check NAME RANKS [LAUNCHER...]: it ends well, and each rank says that it allocated nothing in 5 steps.
check() {
    name=$1
    ranks=$2
    shift 2
    number=$((number + 1))
    "$@" "$counts" train "$here/gpt2.yaml" --data_path data --output_dir "out$number" --max_steps 6 --logging_steps 1 \
        --gradient_hashes true >log 2>&1
    rc=$?
    if [ $rc = 0 ] && [ "$(grep -c '^allocations: 0 in 5 steps' log)" = "$ranks" ]; then
        echo "ok $number - $name"
    else
        failed=1
        echo "not ok $number - $name"
        tail -n 60 log | sed 's/^/#   /'
    fi
}

"$counts" data build "$here/../../examples/tinyshakespeare.txt" --tokenizer bytes --output data --quiet || exit 1
check "steps of one process allocate nothing" 1
if mpi_find; then
    check "steps of two ranks allocate nothing" 2 launch 2
else
    number=$((number + 1))
    echo "ok $number - steps of two ranks allocate nothing # SKIP $mpi_why"
fi
echo "1..$number"
exit $failed
