/* What the environment says about who started this process: launchers of MPI jobs, and shells of a batch system, which
 * are none. */
#include "test.h"

#include "comm/mpi_launch.h"

static const char *const names[] = { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK",
                                     "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_NTASKS",
                                     "SLURM_JOB_ID", "INVAR_TRANSPORT" };

/* Exactly these variables of the above: "NAME=value" and NULL. */
static void environment(const char *const *set)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        unsetenv(names[i]);
    }
    for (; *set != NULL; set++) {
        char name[64];
        size_t n = strcspn(*set, "=");
        snprintf(name, sizeof(name), "%.*s", (int)n, *set);
        setenv(name, *set + n + 1, 1);
    }
}
#define ENVIRONMENT(...) environment((const char *const[]){ __VA_ARGS__, NULL })

static void expect(const char *by, uint32_t size, uint32_t rank)
{
    struct launch l;
    assert_ok(launch_find(&l));
    if (by == NULL) {
        assert_null(l.by);
        return;
    }
    assert_non_null(l.by);
    assert_string_equal(l.by, by);
    assert_int_equal(l.size, size);
    assert_int_equal(l.rank, rank);
}

static void launchers_are_known(void **state)
{
    (void)state;
    ENVIRONMENT("OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=3", "PMIX_RANK=3");
    expect("mpirun of Open MPI", 4, 3);
    ENVIRONMENT("PMI_SIZE=3", "PMI_RANK=2");
    expect("mpiexec of MPICH", 3, 2);
    ENVIRONMENT("PMIX_RANK=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=1");
    expect("srun --mpi=pmix", 2, 1);
    /* mpirun inside a Slurm job starts its daemons with srun. */
    ENVIRONMENT("OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_RANK=0", "PMIX_RANK=0", "SLURM_STEP_NUM_TASKS=2");
    expect("mpirun of Open MPI", 8, 0);
}

static void shells_of_a_batch_system_are_no_launchers(void **state)
{
    (void)state;
    environment((const char *const[]){ NULL });
    expect(NULL, 0, 0);
    ENVIRONMENT("SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_PROCID=0");
    expect(NULL, 0, 0);
    ENVIRONMENT("SLURM_JOB_ID=7", "SLURM_NTASKS=1", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1");
    expect(NULL, 0, 0);
}

static void tasks_without_mpi_are_refused(void **state)
{
    (void)state;
    struct launch l;
    ENVIRONMENT("SLURM_JOB_ID=7", "SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=2");
    assert_fails(ERR_USAGE, "srun started 4 tasks, but without MPI", launch_find(&l));
    assert_int_equal(l.rank, 2);
}

static void broken_numbers_are_refused(void **state)
{
    (void)state;
    struct launch l;
    ENVIRONMENT("OMPI_COMM_WORLD_SIZE=four", "OMPI_COMM_WORLD_RANK=0");
    assert_fails(ERR_USAGE, "OMPI_COMM_WORLD_SIZE: \"four\"", launch_find(&l));
    ENVIRONMENT("PMI_SIZE=4", "PMI_RANK=-1");
    assert_fails(ERR_USAGE, "PMI_RANK: \"-1\"", launch_find(&l));
    ENVIRONMENT("PMI_SIZE=99999999999", "PMI_RANK=0");
    assert_fails(ERR_USAGE, "PMI_SIZE", launch_find(&l));
}

static void a_launcher_of_another_mpi_is_refused(void **state)
{
    (void)state;
    const struct launch four = { "mpiexec of MPICH", 4, 1 }, one = { "mpiexec of MPICH", 1, 0 };
    assert_fails(ERR_USAGE, "mpiexec of MPICH started 4 processes, but each is alone for Open MPI v4.1.4",
                 launch_check(&four, "Open MPI v4.1.4", 1));
    assert_ok(launch_check(&four, "Open MPI v4.1.4", 4));
    assert_ok(launch_check(&one, "Open MPI v4.1.4", 1));
}

static void transport_is_parsed(void **state)
{
    (void)state;
    uint32_t ranks;
    environment((const char *const[]){ NULL });
    assert_ok(launch_node_ranks(&ranks));
    assert_int_equal(ranks, 0);
    ENVIRONMENT("INVAR_TRANSPORT=mpi");
    assert_ok(launch_node_ranks(&ranks));
    assert_int_equal(ranks, 1);
    ENVIRONMENT("INVAR_TRANSPORT=mpi:12");
    assert_ok(launch_node_ranks(&ranks));
    assert_int_equal(ranks, 12);
    static const char *const bad[] = { "INVAR_TRANSPORT=shm", "INVAR_TRANSPORT=mpi:", "INVAR_TRANSPORT=mpi:0",
                                       "INVAR_TRANSPORT=mpi:2x", "INVAR_TRANSPORT=mpi2" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ENVIRONMENT(bad[i]);
        assert_fails(ERR_USAGE, "INVAR_TRANSPORT", launch_node_ranks(&ranks));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(launchers_are_known),
    cmocka_unit_test(shells_of_a_batch_system_are_no_launchers),
    cmocka_unit_test(tasks_without_mpi_are_refused),
    cmocka_unit_test(broken_numbers_are_refused),
    cmocka_unit_test(a_launcher_of_another_mpi_is_refused),
    cmocka_unit_test(transport_is_parsed),
};
TEST_MAIN(tests)
