/* Why this exists: a process must know whether it is alone before it touches MPI, and a job of N processes that each
 * believe they are alone must never start: they would write over each other's files.
 *
 * Invariant: reads the environment only; the same variables give the same answer. */
#include "comm/mpi_launch.h"

#include <errno.h>

/* A launcher tells number and rank in these. The first row whose `sign` is set counts: launchers run inside each other
 * (mpirun inside a Slurm job), the inner ones come first. */
static const struct launcher {
    const char *sign, *size, *rank, *name;
} launchers[] = {
    { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun of Open MPI" },
    { "PMI_RANK", "PMI_SIZE", "PMI_RANK", "mpiexec of MPICH" },
    { "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "PMIX_RANK", "srun --mpi=pmix" },
};
/* Set in srun's tasks, not in the shells of sbatch and salloc. */
static const char slurm_tasks[] = "SLURM_STEP_NUM_TASKS", slurm_rank[] = "SLURM_PROCID";

/* A number of the environment: 0 when it is not set. */
static enum err read_number(const char *name, uint32_t *out)
{
    *out = 0;
    const char *text = getenv(name);
    if (text == NULL) {
        return OK;
    }
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value >= UINT32_MAX) {
        return FAIL(ERR_USAGE, "environment variable %s: \"%.64s\", expected a number as a launcher sets it", name,
                    text);
    }
    *out = (uint32_t)value;
    return OK;
}

enum err launch_find(struct launch *out)
{
    *out = (struct launch){ .by = NULL };
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        const struct launcher *l = &launchers[i];
        if (getenv(l->sign) == NULL) {
            continue;
        }
        struct launch found = { .by = l->name };
        TRY(read_number(l->size, &found.size));
        TRY(read_number(l->rank, &found.rank));
        *out = found;
        return OK;
    }
    uint32_t tasks, rank;
    TRY(read_number(slurm_tasks, &tasks));
    TRY(read_number(slurm_rank, &rank));
    if (tasks > 1) {
        out->rank = rank; /* still no launcher */
        return FAIL(ERR_USAGE,
                    "srun started %u tasks, but without MPI: each would be a job of its own | use `srun --mpi=pmix`; "
                    "if they are meant to be separate jobs, unset %s in each",
                    tasks, slurm_tasks);
    }
    return OK;
}

enum err launch_check(const struct launch *l, const char *library, uint32_t size)
{
    if (l->size <= 1 || size > 1) {
        return OK;
    }
    return FAIL(ERR_USAGE,
                "%s started %u processes, but each is alone for %s, the MPI that this invar is built with | start it "
                "with the mpirun or mpiexec of that MPI (on Debian: mpirun.openmpi, mpiexec.hydra), or with `srun "
                "--mpi=pmix` for Open MPI; or build with -Dmpi=openmpi or -Dmpi=mpich to match",
                l->by, l->size, library);
}

enum err launch_node_ranks(uint32_t *ranks)
{
    *ranks = 0;
    const char *text = getenv("INVAR_TRANSPORT");
    if (text == NULL || *text == '\0') {
        return OK;
    }
    if (strcmp(text, "mpi") == 0) {
        *ranks = 1;
        return OK;
    }
    char *end = NULL;
    unsigned long value = strncmp(text, "mpi:", 4) == 0 ? strtoul(text + 4, &end, 10) : 0;
    if (end == NULL || *end != '\0' || text[4] < '1' || text[4] > '9' || value > 65536) {
        return FAIL(ERR_USAGE, "environment variable INVAR_TRANSPORT: \"%.64s\", expected mpi, or mpi:N with the ranks "
                               "of a node | unset it unless you are testing",
                    text);
    }
    *ranks = (uint32_t)value;
    return OK;
}
