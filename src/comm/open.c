/* Why this exists: a process joins the job it was started for: an MPI launcher's, or one of its own, which is a world of
 * one rank without MPI, threads or shared memory.
 *
 * Invariant: a process that a launcher started as one of many never takes itself for the whole job. */
#include "comm/comm_int.h"

#include "base/mem.h"

static void alone_close(struct comm_world *w, enum err err)
{
    (void)err; /* there is nobody to tell */
    struct comm_node *ctl = w->ctl;
    world_free(w);
    free(ctl);
}

static const struct comm_transport alone = { .name = "one process", .close = alone_close };

static enum err alone_open(struct comm_world **out)
{
    static const uint32_t zero[1] = { 0 };
    void *ctl;
    TRY(mem_alloc(&ctl, 1, world_region_bytes(1, 1)));
    const struct comm_world def = { .size = 1, .nodes = 1, .node_size = 1, .node_of = zero, .node_rank_of = zero,
                                    .ctl = ctl, .transport = &alone };
    enum err err = world_new(out, &def);
    if (err != OK) {
        free(ctl);
    }
    return err;
}

/* What the launchers of MPI jobs leave in the environment of every process they start. */
static bool started_by_mpi(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE" };
    bool found = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        found |= getenv(names[i]) != NULL;
    }
    return found;
}

enum err comm_open(struct comm_world **out)
{
    *out = NULL;
    if (started_by_mpi()) {
        return mpi_world_open(out);
    }
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    if (tasks != NULL && strtoul(tasks, NULL, 10) > 1) {
        return FAIL(ERR_USAGE, "srun: it started %s tasks without MPI, so each of them would be a job of its own | give "
                               "srun --mpi=pmix, or start with mpirun",
                    tasks);
    }
    return alone_open(out);
}
