/* Why this exists: a process joins the job it was started for: an MPI launcher's, or one of its own, which is a world
 * of one rank without MPI, threads or shared memory.
 *
 * Invariant: a process that a launcher started as one of many never takes itself for the whole job. */
#include "comm/comm_int.h"

#include "base/mem.h"
#include "comm/mpi_launch.h"

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

enum err comm_alone(const char *what)
{
    struct launch launch;
    TRY(launch_find(&launch));
    if (launch.by == NULL || launch.size == 1) {
        return OK;
    }
    enum err err = FAIL(ERR_USAGE, "%s is for one process, and %s started %u | start it without the launcher", what,
                        launch.by, launch.size);
    if (launch.rank > 0) {
        err_set_message(""); /* once is enough */
    }
    return err;
}

enum err comm_open(struct comm_world **out)
{
    *out = NULL;
    struct launch launch;
    enum err err = launch_find(&launch);
    if (err == OK) {
        err = launch.by != NULL ? mpi_world_open(out, &launch) : alone_open(out);
    }
    if (err != OK && launch.rank > 0) {
        err_set_message(""); /* once is enough */
    }
    return err;
}
