# What scripts that start jobs of several processes share; read with `.`. MPI names the library that the program is
# built with: openmpi (default) or mpich.
#
#   mpi_find || skip           sets mpi_run (the launcher); false and mpi_why where there is none
#   launch N COMMAND...        COMMAND as N ranks on this machine, as many as asked for, whoever asks

MPI=${MPI:-openmpi}

mpi_find() {
    case $MPI in
    openmpi) mpi_names="mpirun.openmpi mpirun" ;;
    mpich) mpi_names="mpiexec.mpich mpiexec.hydra" ;;
    *) echo "MPI=$MPI: expected openmpi or mpich" >&2 && exit 2 ;;
    esac
    for mpi_run in $mpi_names; do
        if command -v "$mpi_run" >/dev/null 2>&1; then
            return 0
        fi
    done
    mpi_why="$MPI: none of $mpi_names is installed"
    return 1
}

# Open MPI: more ranks than cores, threads on all of them, as root in containers too; session files where TMPDIR says.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_orte_tmpdir_base="${TMPDIR:-/tmp}"
# In sanitized builds: MPI libraries leak, and are gone when that is reported, so it cannot be told by their names. The
# report is printed and does not count; mpi_leak LOG tells whether something of ours is in it.
export LSAN_OPTIONS="exitcode=0"

mpi_leak() {
    grep -Eq '^ *#[0-9]+ .*/(src|tests)/(base|comm|par)/[a-z_]*\.[ch]' "$1"
}

launch() {
    mpi_ranks=$1
    shift
    timeout -k 5 "${MPI_SECONDS:-120}" "$mpi_run" -n "$mpi_ranks" "$@"
}
