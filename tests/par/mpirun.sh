#!/bin/sh
# Jobs of real processes, started by mpirun: every call of comm.h on 1 to 4 ranks against its serial definition, in
# shared memory, over MPI, and mixed; training over MPI; and how a job ends when a rank fails: exit code, one message,
# nothing left. TAP.
#
#   tests/par/mpirun.sh COMM_DRIVER INVAR [NAME-PART]      MPI=mpich for programs that are built with MPICH
set -u
driver=$(realpath "$1")
invar=$(realpath "$2")
only=${3:-}
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-mpirun.XXXXXX")
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work"
. "$(dirname "$0")/mpi_launch.sh"
. "$(dirname "$0")/matrix_data.sh"
. "$(dirname "$0")/train_same.sh"
if ! mpi_find; then
    echo "1..0 # SKIP $mpi_why"
    exit 0
fi
number=0
: >"$work/start"

report() { # PROBLEM NAME: an empty problem is none
    number=$((number + 1))
    if [ -z "$1" ]; then
        echo "ok $number - $2"
    else
        echo "not ok $number - $2"
        echo "# $1"
        sed 's/^/#   /' "$work/log" 2>/dev/null | head -n 30
        echo "# rerun: MPI=$MPI tests/par/mpirun.sh $driver $invar '$2'"
    fi
}

skip() { # NAME WHY
    number=$((number + 1))
    echo "ok $number - $1 # SKIP $2"
}

wanted() {
    case $1 in *"$only"*) return 0 ;; *) return 1 ;; esac
}

# run RC TEXT COMMAND...: sets problem unless the command exits with RC and prints TEXT exactly once.
run() {
    want=$1
    text=$2
    shift 2
    "$@" >"$work/log" 2>&1
    got=$?
    problem=
    [ $got -eq "$want" ] || problem="exit code $got, expected $want"
    [ "$(grep -cF "$text" "$work/log")" = 1 ] || problem="$problem; not exactly one line with \"$text\""
    ! mpi_leak "$work/log" || problem="$problem; a leak, or what else a sanitizer reports"
}

calls() { # TRANSPORT RANKS NODES MODE
    name="$4, $2 ranks on $3 nodes"
    wanted "$name" || return 0
    run 0 "$2 ranks, $3 nodes" launch "$2" env INVAR_TRANSPORT="$1" "$driver" "$4"
    report "$problem" "$name"
}

trains() { # TRANSPORT RANKS [--key value ...]
    transport=$1 ranks=$2
    shift 2
    name="train, $ranks ranks, $transport${*:+, $*}"
    wanted "$name" || return 0
    [ -d "$work/one" ] || same_start "$invar" "$work"
    same_as_one out "$work/log" launch $ranks env INVAR_TRANSPORT=$transport "$invar" train "$same_config" "$@"
    report "$problem" "$name"
}

ends() { # NAME TRANSPORT MODE RC TEXT
    wanted "$1" || return 0
    run "$4" "$5" launch 4 env INVAR_TRANSPORT="$2" "$driver" "$3"
    grep -q "^rank 0 heard of it" "$work/log" || problem="$problem; rank 0 was ended before it heard of it"
    report "$problem" "$1"
}

calls "" 1 1 calls
calls "" 2 1 calls
calls mpi 2 2 calls
calls "" 3 1 calls
calls mpi 3 3 calls
calls mpi:2 3 2 calls
calls "" 4 1 calls
calls mpi 4 4 calls
calls mpi:2 4 2 calls
calls "" 4 1 big
calls mpi 4 4 big
calls mpi 4 4 threads
calls mpi:2 4 2 threads

trains mpi 3 --zero_stage 3
trains mpi 2 --tp 2 --sequence_parallel true
trains mpi:2 4 --pp 2 --cp 2 --micro_batch_size 1

for transport in "" mpi:2 mpi; do
    where="${transport:-one node}"
    ends "an agreed error keeps its code and is said once ($where)" "$transport" agreed 2 \
        "error: rank 1: key x: 3, expected 4"
    ends "an error of one rank ends the others ($where)" "$transport" fails 3 "error: rank 3: file f: damaged"
    ends "different calls are named ($where)" "$transport" mismatch 5 \
        "ranks 0, 2-3 are at #1 all-reduce sum i64 x 4"
    ends "different sizes of a message are named ($where)" "$transport" message 5 "rank 0 made #1 send byte x 64"
done
ends "a rank that goes home early is named" "" early 5 "for rank 1, which has made 0 calls in this group and ended"
# The launcher's own message and code: 128 + 9, or 9.
name="a killed rank ends the job"
if wanted "$name"; then
    launch 4 "$driver" die >"$work/log" 2>&1
    rc=$?
    problem=
    [ $rc = 137 ] || [ $rc = 9 ] || problem="exit code $rc"
    report "$problem" "$name"
fi

# A rank in a container of its own looks at other processes' numbers: it must notice.
name="ranks that cannot share memory use MPI"
if wanted "$name"; then
    if unshare --pid --fork --mount-proc true 2>/dev/null && [ $MPI = openmpi ]; then
        export OMPI_MCA_btl=self,tcp # Open MPI's own shared memory goes by process numbers, too, and breaks here
        run 0 "note: 1 of 2 ranks use MPI with ranks of their own machine" \
            launch 2 unshare --pid --fork --mount-proc "$driver" calls
        unset OMPI_MCA_btl
        report "$problem" "$name"
    else
        skip "$name" "needs Open MPI and the right to make process namespaces"
    fi
fi

name="ranks that mpirun binds to a core are told of it"
if wanted "$name"; then
    if [ $MPI = openmpi ] && [ "$(nproc)" -gt 1 ]; then
        run 0 "warning: mpirun bound each rank to " launch 1 --bind-to core "$driver" agreed
        report "$problem" "$name"
    else
        skip "$name" "needs Open MPI and two cores"
    fi
fi

# A library that could not start: none of it is asked for.
name="a process alone does not start MPI"
if wanted "$name"; then
    run 0 "1 ranks, 1 nodes" env OMPI_MCA_pml=none-such MPIR_CVAR_CH4_NETMOD=none-such "$driver" agreed
    report "$problem" "$name"
fi

name="mpirun of another MPI is refused"
if wanted "$name"; then
    mine=$MPI
    [ $mine = openmpi ] && MPI=mpich || MPI=openmpi
    if mpi_find; then
        run 2 "started 2 processes, but each is alone for" launch 2 "$driver" calls
        report "$problem" "$name"
    else
        skip "$name" "$mpi_why"
    fi
    MPI=$mine
    mpi_find
fi

# In /dev/shm there may be files of other jobs, which somebody uses, and folders of other tests.
name="nothing is left in /dev/shm and TMPDIR"
if wanted "$name"; then
    rm -rf "$work/one" "$work"/data.* "$work/one.log"
    left=$(find "$work" ! -type d ! -name log ! -name start)
    for file in $(find /dev/shm -maxdepth 1 -type f -newer "$work/start"); do
        grep -qF "$file" /proc/[0-9]*/maps 2>/dev/null || left="$left $file"
    done
    report "${left:+left: $left}" "$name"
fi
[ -n "$only" ] && [ $number = 0 ] && echo "no check has \"$only\" in its name" >&2 && exit 2
echo "1..$number"
