/* One rank of a job that goes through the phases of training without training: each phase ends with calls on groups, as
 * in the trainer. Faults come from INVAR_FAULT (fault.c). Exits with the code of its error, as invar does.
 *
 *   fault_driver FOLDER LIMIT_S [STEPS]       records and exit records in FOLDER; rank 0 prints "done" at the end */
#include <unistd.h>

#include "base/pool.h"
#include "comm/comm.h"

#define LAYERS 2u

/* Neighbours in pairs (the last rank alone when their number is odd), as tensor parallelism has them; and one rank of
 * each pair, as data parallelism. */
struct groups {
    struct comm *all, *tp, *dp;
};

static enum err layers(struct comm_world *w, const struct groups *g, uint64_t step)
{
    int64_t sum[4] = { 1, 2, 3, 4 };
    for (uint32_t l = 0; l < LAYERS; l++) {
        comm_phase(w, PHASE_FORWARD, step, l);
        TRY(comm_sum_i64(g->tp, sum, 4));
    }
    for (uint32_t l = LAYERS; l-- > 0;) {
        comm_phase(w, PHASE_BACKWARD, step, l);
        TRY(comm_sum_i64(g->tp, sum, 4));
    }
    return OK;
}

static enum err train_step(struct comm_world *w, const struct groups *g, uint64_t step)
{
    int64_t grads[64] = { 0 };
    uint64_t bytes = step;
    comm_phase(w, PHASE_DATA, step, 0);
    TRY(comm_bcast(g->all, 0, &bytes, sizeof(bytes)));
    TRY(layers(w, g, step));
    comm_phase(w, PHASE_REDUCE, step, 0);
    TRY(comm_sum_i64(g->dp, grads, 64));
    comm_phase(w, PHASE_UPDATE, step, 0);
    TRY(comm_barrier(g->all));
    comm_phase(w, PHASE_EVAL, step, 0);
    TRY(comm_sum_i64(g->all, grads, 1));
    comm_phase(w, PHASE_SAVE, step, 0);
    return comm_agree(g->all, OK);
}

static enum err run(struct comm_world *w, const char *folder, double limit_s, uint64_t steps)
{
    struct groups g = { .all = comm_all(w) };
    uint32_t rank = comm_rank(g.all);
    TRY(comm_watch(w, folder, limit_s));
    TRY(comm_split(g.all, rank / 2, "tp", &g.tp));
    TRY(comm_split(g.all, rank % 2, "dp", &g.dp));
    comm_phase(w, PHASE_LOAD, 0, 0);
    TRY(comm_agree(g.all, OK));
    for (uint64_t step = 1; step <= steps; step++) {
        TRY(train_step(w, &g, step));
        usleep(2000);
    }
    if (rank == 0) {
        printf("done\n");
    }
    return OK;
}

int main(int argc, char **argv)
{
    struct comm_world *w;
    if (argc < 3) {
        fprintf(stderr, "usage: fault_driver FOLDER LIMIT_S [STEPS]\n");
        return 2;
    }
    pool_set_float_mode();
    enum err err = comm_open(&w);
    if (err == OK) {
        err = run(w, argv[1], strtod(argv[2], NULL), argc > 3 ? strtoull(argv[3], NULL, 10) : 5);
        if (err != OK && comm_rank(comm_all(w)) == 0) {
            err_print();
        }
    } else if (err_message()[0] != '\0') {
        err_print();
    }
    int code = err_exit_code(err);
    comm_close(w, err);
    return code;
}
