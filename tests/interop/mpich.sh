#!/bin/sh
# Builds with MPICH in place of Open MPI, in a folder of its own beside BUILD, and runs the tests of jobs of several
# processes with it: on this machine, and on two hosts where root may make them. Exit 77 where MPICH is not installed.
#
#   tests/interop/mpich.sh [BUILD_FOLDER]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build}-mpich
export MPI=mpich
if ! pkg-config --exists mpich || ! command -v mpiexec.mpich >/dev/null; then
    echo "mpich: skipped (the packages mpich and libmpich-dev are not installed)"
    exit 77
fi
test -f "$build/build.ninja" || meson setup -Dmpi=mpich "$build" "$root" >/dev/null
ninja -C "$build" comm_driver invar >/dev/null
log=$build/mpich.log
: >"$log"
for script in tests/par/mpirun.sh tests/fault/netns.sh; do
    "$root/$script" "$build/comm_driver" "$build/invar" | tee -a "$log"
done
passed=$(grep -c '^ok' "$log") || true
failed=$(grep -c '^not ok' "$log") || true
echo "mpich: $passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 20 ]
