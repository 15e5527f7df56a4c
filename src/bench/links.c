/* Why this exists: whether a layout pays is decided by what ranks cost each other; their latency and bandwidth are
 * measured through the same calls that training makes. */
#include "bench/machine.h"

#include "base/log.h"
#include "base/mem.h"

#define ROUNDS 12u
#define PINGS 200u

struct link_job {
    struct comm *all;
    unsigned char *buf; /* LINKS_BYTES */
    uint64_t *bounds;   /* [ranks + 1] of the elements of a collective */
    uint64_t bytes;     /* of a message */
};

typedef enum err link_fn(const struct link_job *j);

static enum err send_to(const struct link_job *j, uint32_t rank)
{
    struct comm_ticket ticket = { 0 };
    TRY(comm_send(j->all, rank, 0, j->buf, j->bytes, &ticket));
    return comm_sent(j->all, &ticket);
}

/* There and back between the first and the last rank. */
static enum err ping_pong(const struct link_job *j)
{
    uint32_t last = comm_size(j->all) - 1, rank = comm_rank(j->all);
    if (rank == 0) {
        TRY(send_to(j, last));
        return comm_recv(j->all, last, 0, j->buf, j->bytes);
    }
    if (rank == last) {
        TRY(comm_recv(j->all, 0, 0, j->buf, j->bytes));
        return send_to(j, 0);
    }
    return OK;
}

static enum err sum_one(const struct link_job *j)
{
    int64_t one = 1;
    return comm_sum_i64(j->all, &one, 1);
}

static void even(const struct link_job *j, uint64_t elements)
{
    uint32_t ranks = comm_size(j->all);
    for (uint32_t r = 0; r <= ranks; r++) {
        j->bounds[r] = elements * r / ranks;
    }
}

static enum err all_gather(const struct link_job *j)
{
    even(j, LINKS_BYTES / sizeof(float));
    return comm_all_gather(j->all, j->buf, sizeof(float), j->bounds);
}

static enum err reduce_scatter(const struct link_job *j)
{
    even(j, LINKS_BYTES / sizeof(int64_t));
    return comm_reduce_scatter_i64(j->all, (int64_t *)(void *)j->buf, j->bounds);
}

/* The least seconds of one call among ROUNDS rounds of `repeats`. */
static enum err best_of(const struct link_job *j, link_fn *run, uint32_t repeats, double *out)
{
    *out = 1e30;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        TRY(comm_barrier(j->all));
        double start = log_seconds();
        for (uint32_t i = 0; i < repeats; i++) {
            TRY(run(j));
        }
        double s = (log_seconds() - start) / repeats;
        *out = s < *out ? s : *out;
    }
    return OK;
}

static enum err measure_all(struct links *l, struct link_job *j)
{
    double s;
    j->bytes = sizeof(uint64_t);
    TRY(best_of(j, ping_pong, PINGS, &s));
    l->latency_s = s / 2;
    j->bytes = LINKS_BYTES;
    TRY(best_of(j, ping_pong, 1, &s));
    l->message = 2 * (double)LINKS_BYTES / s;
    TRY(best_of(j, sum_one, PINGS, &l->sum_s));
    TRY(best_of(j, all_gather, 1, &s));
    l->all_gather = (double)LINKS_BYTES / s;
    TRY(best_of(j, reduce_scatter, 1, &s));
    l->reduce_scatter = (double)LINKS_BYTES / s;
    return OK;
}

enum err links_measure(struct links *l, struct comm_world *w)
{
    struct link_job j = { .all = comm_all(w) };
    void *mem = NULL, *bounds = NULL;
    enum err err;
    *l = (struct links){ .ranks = comm_size(j.all), .nodes = comm_nodes(w) };
    if (l->ranks == 1) {
        return OK;
    }
    err = mem_big_alloc(&mem, LINKS_BYTES);
    err = err == OK ? mem_alloc(&bounds, l->ranks + 1, sizeof(uint64_t)) : err;
    TRY_OUT(comm_agree(j.all, err));
    memset(mem, 0, LINKS_BYTES);
    j.buf = mem;
    j.bounds = bounds;
    err = measure_all(l, &j);
out:
    mem_big_free(mem, LINKS_BYTES);
    free(bounds);
    return err;
}
