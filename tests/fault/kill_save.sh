#!/bin/sh
# Kills a save at its k-th call of every system call that changes or opens a file, for every k until none is left, and
# looks at what is found afterwards: the old or the new checkpoint, whole, never neither. Then saves once more. Likewise
# a save that cannot get its k-th tensor: it must end with the error of whoever holds it and leave everything as before.
# TAP.
#
#   tests/fault/kill_save.sh SAVE_DRIVER
#
# Three saves are tried: a new step with the old one deleted (limit 1), a new step beside it, the same step replaced.
set -u
driver=$1
if ! command -v strace >/dev/null 2>&1 || ! strace -o /dev/null true 2>/dev/null; then
    echo "1..0 # SKIP strace is not installed or may not trace here"
    exit 0
fi
base=/tmp
[ -w /dev/shm ] && base=/dev/shm
work=$(mktemp -d "$base/invar-kill-XXXXXX")
trap 'rm -rf "$work"' EXIT

# Leaks cannot be looked for in a program that strace holds; the saves and checks without it look for them.
traced_options="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"

calls="openat write fsync close rename mkdir unlink rmdir"
test_number=0

# scenario NAME NEW_STEP LIMIT: the old checkpoint is step 1 of seed 1, the new one has seed 2.
scenario() {
    name=$1 step=$2 limit=$3 cases=0 bad=0
    rm -rf "$work/old"
    "$driver" save "$work/old" 1 1 0 || exit 1
    for call in $calls; do
        k=1
        while :; do
            rm -rf "$work/now"
            cp -r "$work/old" "$work/now"
            ASAN_OPTIONS=$traced_options strace -f -qq -o /dev/null -e "trace=$call" \
                -e "inject=$call:signal=KILL:when=$k" "$driver" save "$work/now" "$step" 2 "$limit" >/dev/null 2>&1
            rc=$?
            [ $rc -eq 0 ] && break # there is no k-th call
            cases=$((cases + 1))
            if [ $rc -ne 137 ]; then
                bad=$((bad + 1))
                echo "# $name: $call $k: exit $rc in place of a kill"
                break
            elif ! "$driver" check "$work/now" 1 1 "$step" 2 >/dev/null 2>"$work/log"; then
                bad=$((bad + 1))
                echo "# $name: killed at $call $k: $(cat "$work/log")"
            elif ! "$driver" save "$work/now" "$step" 2 "$limit" >/dev/null 2>"$work/log" ||
                ! "$driver" check "$work/now" "$step" 2 >/dev/null 2>>"$work/log"; then
                bad=$((bad + 1))
                echo "# $name: killed at $call $k, then saved again: $(cat "$work/log")"
            elif [ -n "$(find "$work/now" -name '*.tmp' -o -name '*.old')" ]; then
                bad=$((bad + 1))
                echo "# $name: killed at $call $k, then saved again: left over $(ls "$work/now")"
            fi
            k=$((k + 1))
        done
    done
    test_number=$((test_number + 1))
    if [ $bad -eq 0 ] && [ $cases -ge 40 ]; then
        echo "ok $test_number - $name: $cases kills, the old or the new one each time"
    else
        echo "not ok $test_number - $name: $bad of $cases kills lost something"
    fi
}

# starved NAME NEW_STEP LIMIT: the same saves, for every tensor that may not be had.
starved() {
    name=$1 step=$2 limit=$3 bad=0 k=1
    rm -rf "$work/old"
    "$driver" save "$work/old" 1 1 0 || exit 1
    while :; do
        rm -rf "$work/now"
        cp -r "$work/old" "$work/now"
        "$driver" save "$work/now" "$step" 2 "$limit" "$k" >/dev/null 2>"$work/log"
        rc=$?
        [ $rc -eq 0 ] && break # there is no k-th tensor
        if [ $rc -ne 5 ] || ! grep -q 'the rank that holds it is gone' "$work/log"; then
            bad=$((bad + 1))
            echo "# $name: without tensor $k: exit $rc: $(cat "$work/log")"
        elif ! diff -r "$work/old" "$work/now" >"$work/log"; then
            bad=$((bad + 1))
            echo "# $name: without tensor $k: $(cat "$work/log")"
        fi
        [ $k -ge 20 ] && break
        k=$((k + 1))
    done
    test_number=$((test_number + 1))
    if [ $bad -eq 0 ] && [ $k -eq 4 ]; then # three tensors
        echo "ok $test_number - $name: a tensor that cannot be had leaves the old one"
    else
        echo "not ok $test_number - $name: $bad of $((k - 1)) saves without a tensor left something else"
    fi
}

echo 1..6
for run in scenario starved; do
    $run "new step, old one deleted" 2 1
    $run "new step beside the old one" 2 0
    $run "same step replaced" 1 0
done
