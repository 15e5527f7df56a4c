#!/bin/sh
# Slurm on one node, under a folder of its own, started and stopped by this script. Needs root, and the packages
# slurm-wlm and munge.
#
#   tests/fault/slurm.sh COMM_DRIVER INVAR  jobs started by srun, and by mpirun in a batch script; what srun without MPI
#                                           starts is refused; a batch shell is no launcher; training. TAP
#   tests/fault/slurm.sh --run COMMAND...   any command with SLURM_CONF set, as in: --run srun --mpi=pmix -n 2 hostname
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../par/mpi_launch.sh"
. "$here/../par/matrix_data.sh"
. "$here/../par/train_same.sh"

unable() {
    if [ "$(id -u)" != 0 ]; then
        echo "Slurm's daemons need root"
        return
    fi
    for name in slurmctld slurmd munged srun sbatch; do
        command -v $name >/dev/null 2>&1 || {
            echo "$name is not installed"
            return
        }
    done
    [ $MPI = openmpi ] && mpi_find || echo "needs Open MPI"
}

why=$(unable)
if [ -n "$why" ]; then
    [ "$1" = --run ] && echo "tests/fault/slurm.sh: $why" >&2 && exit 77
    echo "1..0 # SKIP $why"
    exit 0
fi

mpi_find
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-slurm.XXXXXX")
munged_pid= ctld_pid= slurmd_pid=
clean_up() {
    for pid in $slurmd_pid $ctld_pid $munged_pid; do
        kill $pid 2>/dev/null
        wait $pid 2>/dev/null
    done
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

host=$(hostname -s)
port=$((20000 + $$ % 4000 * 4)) # another one may run beside this
export SLURM_CONF="$work/slurm.conf"
write_conf() {
    mkdir -p "$work/state" "$work/spool" "$work/log" "$work/munge" && chmod 700 "$work/munge" &&
        dd if=/dev/urandom of="$work/munge/key" bs=1 count=1024 2>/dev/null && chmod 400 "$work/munge/key" || return 1
    memory=$(awk '/MemTotal/ { print int($2 / 1024 * 0.9) }' /proc/meminfo)
    cat >"$SLURM_CONF" <<END
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CryptoType=crypto/munge
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/ctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/log/ctld
SlurmdLogFile=$work/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
END
}

start() {
    write_conf || return 1
    munged --force --foreground --key-file "$work/munge/key" --socket "$work/munge/socket" \
        --pid-file "$work/munge/pid" --log-file "$work/log/munged" --seed-file "$work/munge/seed" >/dev/null 2>&1 &
    munged_pid=$!
    while [ ! -S "$work/munge/socket" ] && kill -0 $munged_pid 2>/dev/null; do
        sleep 0.1
    done
    slurmctld -D -i >/dev/null 2>&1 &
    ctld_pid=$!
    slurmd -D -N "$host" >/dev/null 2>&1 &
    slurmd_pid=$!
    tries=0
    until sinfo -h -o %T 2>/dev/null | grep -q idle; do
        tries=$((tries + 1))
        [ $tries -lt 150 ] || return 1
        sleep 0.2
    done
}

if ! start; then
    echo "tests/fault/slurm.sh: Slurm did not come up:" >&2
    tail -n 5 "$work"/log/* >&2
    exit 1
fi
if [ "$1" = --run ]; then
    shift
    "$@"
    exit
fi

driver=$(realpath "$1")
invar=$(realpath "$2")
number=0

# check NAME RC TEXT COMMAND...: it exits with RC and prints TEXT once.
check() {
    name=$1 rc=$2 text=$3
    shift 3
    number=$((number + 1))
    timeout -k 5 120 "$@" >"$work/out" 2>&1
    got=$?
    if [ $got = "$rc" ] && [ "$(grep -cF "$text" "$work/out")" = 1 ]; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        echo "# exit code $got, expected $rc and one line with \"$text\""
        sed 's/^/#   /' "$work/out" | head -n 40
    fi
}

# in_batch LINE: run it in a batch job; its output and its exit status.
cat >"$work/in_batch" <<END
printf '#!/bin/sh\n%s\n' "\$1" >"$work/batch"
sbatch --quiet --wait -n 2 -o "$work/batch.out" "$work/batch"
code=\$?
cat "$work/batch.out"
exit \$code
END

echo 1..8
check "all calls on ranks of srun" 0 "2 ranks, 1 nodes, 2 ranks on this one" srun --mpi=pmix -n 2 "$driver" calls
check "an agreed error keeps its code and is said once" 2 "error: rank 1: key x: 3, expected 4" \
    srun --mpi=pmix -n 2 "$driver" agreed
check "an error of one rank ends the other" 3 "error: rank 1: file f: damaged" srun --mpi=pmix -n 2 "$driver" fails
check "different calls are named" 5 "rank 0 is at #1 all-reduce sum i64 x 4" srun --mpi=pmix -n 2 "$driver" mismatch
check "tasks without MPI are refused" 2 "srun started 2 tasks, but without MPI" \
    srun --mpi=none -n 2 "$driver" agreed
check "a batch shell is no launcher" 0 "1 ranks, 1 nodes, 1 ranks on this one" \
    sh "$work/in_batch" "$driver agreed"
check "mpirun in a batch job" 0 "2 ranks, 1 nodes, 2 ranks on this one" \
    sh "$work/in_batch" "$mpi_run -n 2 $driver calls"
same_start "$invar" "$work"
same_as_one trained "$work/trained.log" srun --mpi=pmix -n 2 "$invar" train "$same_config" --cp 2
if [ -z "$problem" ]; then
    echo "ok 8 - train on two ranks of srun"
else
    echo "not ok 8 - train on two ranks of srun"
    echo "# $problem"
    tail -n 10 "$work/trained.log" | sed 's/^/#   /'
fi
