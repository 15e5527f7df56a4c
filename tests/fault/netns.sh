#!/bin/sh
# Two hosts on one machine: network namespaces with their own addresses and host names, joined by a cable, so that MPI
# sees two nodes and talks TCP between them. Needs root.
#
#   tests/fault/netns.sh COMM_DRIVER INVAR    every call of comm.h on 2 + 2 ranks against its serial definition, how a
#                                             job on two nodes ends when a rank fails, and training. TAP
#   tests/fault/netns.sh --run N COMMAND...   any command, as N ranks on each host; the launcher's exit status
#
# MPI=mpich for programs that are built with MPICH.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../par/mpi_launch.sh"
. "$here/../par/matrix_data.sh"
. "$here/../par/train_same.sh"

unable() {
    if ! mpi_find; then
        echo "$mpi_why"
    elif [ "$(id -u)" != 0 ]; then
        echo "making network namespaces needs root"
    elif ! command -v ip >/dev/null 2>&1; then
        echo "ip (package iproute2) is not installed"
    elif ! unshare --mount --uts --net true 2>/dev/null; then
        echo "namespaces may not be made here"
    fi
}

why=$(unable)
if [ -n "$why" ]; then
    [ "$1" = --run ] && echo "tests/fault/netns.sh: $why" >&2 && exit 77
    echo "1..0 # SKIP $why"
    exit 0
fi

mpi_find
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-netns.XXXXXX")
export OMPI_MCA_orte_tmpdir_base="$work"
one=invar-a$$ two=invar-b$$
clean_up() {
    ip netns del $one 2>/dev/null
    ip netns del $two 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

# 10.77.0.1 alpha, 10.77.0.2 beta; the addresses exist in the namespaces only.
make_hosts() {
    ip netns add $one && ip netns add $two && ip link add eth0 netns $one type veth peer name eth0 netns $two &&
        ip -n $one addr add 10.77.0.1/24 dev eth0 && ip -n $two addr add 10.77.0.2/24 dev eth0 || return 1
    for host in $one $two; do
        ip -n $host link set lo up && ip -n $host link set eth0 up || return 1
    done
    printf '127.0.0.1 localhost\n10.77.0.1 alpha\n10.77.0.2 beta\n' >"$work/hosts"
    # on HOST COMMAND...: with exactly these words
    cat >"$work/on" <<END
#!/bin/sh
case \$1 in alpha) space=$one ;; beta) space=$two ;; *) echo "no host \$1" >&2; exit 1 ;; esac
exec ip netns exec \$space unshare --mount --uts sh -c '
    mount --bind $work/hosts /etc/hosts && hostname \$1 && shift && exec "\$@"' sh "\$@"
END
    # What the launchers use in place of ssh, which joins its words to one line for a shell: [-x] HOST LINE...
    cat >"$work/ssh" <<END
#!/bin/sh
[ "\$1" = -x ] && shift
host=\$1
shift
exec "$work/on" "\$host" sh -c "\$*"
END
    chmod +x "$work/on" "$work/ssh"
}

# on_both RANKS COMMAND...: RANKS ranks on each host. The launcher runs on alpha.
on_both() {
    hosts=alpha:$1,beta:$1
    ranks=$((2 * $1))
    shift
    if [ $MPI = openmpi ]; then
        set -- "$mpi_run" --mca plm_rsh_agent "$work/ssh" --host $hosts -n $ranks "$@"
    else
        set -- "$mpi_run" -launcher ssh -launcher-exec "$work/ssh" -hosts $hosts -n $ranks "$@"
    fi
    timeout -k 5 "${MPI_SECONDS:-300}" "$work/on" alpha "$@"
}

if ! make_hosts; then
    echo "tests/fault/netns.sh: the hosts could not be made (above)" >&2
    exit 1
fi
if [ "$1" = --run ]; then
    shift
    on_both "$@"
    exit
fi

driver=$(realpath "$1")
invar=$(realpath "$2")
number=0

trains() { # RANKS ON EACH [--key value ...]
    number=$((number + 1))
    each=$1
    shift
    name="train on $each + $each ranks, $*"
    same_as_one out "$work/log" on_both "$each" "$invar" train "$same_config" "$@"
    if [ -z "$problem" ]; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        echo "# $problem"
        tail -n 10 "$work/log" | sed 's/^/#   /'
    fi
}

# check NAME RC TEXT RANKS MODE: it exits with RC and prints TEXT once.
check() {
    number=$((number + 1))
    on_both "$4" "$driver" "$5" >"$work/log" 2>&1
    got=$?
    heard=$(grep -c "^rank 0 heard of it" "$work/log")
    if [ $got = "$2" ] && [ "$(grep -cF "$3" "$work/log")" = 1 ] && [ "$heard" = $((got > 0)) ]; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        echo "# exit code $got, expected $2 and one line with \"$3\"; rank 0 heard of an error: $heard"
        sed 's/^/#   /' "$work/log" | head -n 40
    fi
}

echo 1..12
check "all calls on 2 + 2 ranks" 0 "4 ranks, 2 nodes, 2 ranks on this one" 2 calls
check "large ones on 2 + 2 ranks" 0 "4 ranks, 2 nodes, 2 ranks on this one" 2 big
check "all calls on 1 + 1 ranks" 0 "2 ranks, 2 nodes, 1 ranks on this one" 1 calls
check "a large message arrives while its sender computes" 0 "2 ranks, 2 nodes, 1 ranks on this one" 1 overlap
check "an agreed error keeps its code and is said once" 2 "error: rank 1: key x: 3, expected 4" 2 agreed
check "an error of one rank reaches the other host" 3 "error: rank 3: file f: damaged" 2 fails
check "different calls are named" 5 "ranks 0, 2-3 are at #1 all-reduce sum i64 x 4" 2 mismatch
check "different sizes of a message between hosts are named" 5 "rank 0 made #1 send byte x 64" 1 message
same_start "$invar" "$work"
trains 1 --zero_stage 2
trains 2 --tp 2 --micro_batch_size 1
trains 2 --pp 4
trains 2 --tp 2 --pp 2 --sequence_parallel true
