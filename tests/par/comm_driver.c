/* One rank of a job that mpirun or srun starts: runs every call of comm.h on groups of it and compares every bit with
 * the serial definitions, or fails in a way that its argument names. Exits with the code of the error, as invar does.
 *
 *   comm_driver calls              all calls, on the world, on pairs, and on groups that cross pairs
 *   comm_driver big                 a few calls of many chunks
 *   comm_driver threads             three threads of each rank make random calls, each on a group of its own
 *   comm_driver overlap             a large message from rank 0 reaches the last rank while rank 0 computes
 *   comm_driver agreed              all agree on an error of configuration of rank 1: exit 2
 *   comm_driver fails               the last rank fails alone, others wait for it: exit 3
 *   comm_driver mismatch            rank 1 makes another call: exit 5
 *   comm_driver message             rank 1 asks for another number of bytes: exit 5
 *   comm_driver early               rank 1 goes home while others wait for it
 *   comm_driver die                 rank 1 kills itself
 *
 * Rank 0 prints what it is part of: "4 ranks, 2 nodes, 2 ranks on this one". */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pool.h"
#include "comm_cases.h"

#define LENGTHS_SMALL 8

/* Every call on one group, at sizes around the limits of what fits a meeting, and larger ones. */
static enum err calls_on(struct comm *c)
{
    static const uint64_t lengths[] = { 0, 1, 19, 20, 38, 39, 152, 153, 5000, 70001 };
    for (uint64_t check = 0; check < COMM_CHECKS; check++) {
        for (uint64_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            uint64_t seeds = i < LENGTHS_SMALL ? 4 : 2;
            for (uint64_t seed = 0; seed < seeds; seed++) {
                const struct comm_case k = { c, seed * 16 + check, lengths[i] };
                TRY(comm_check_run(&k, check));
            }
        }
    }
    return OK;
}

static enum err calls(struct comm_world *w)
{
    struct comm *all = comm_all(w), *pair, *across, *swapped;
    uint32_t rank = comm_rank(all), size = comm_size(all);
    TRY(calls_on(all));
    TRY(comm_split(all, rank / 2, "pair", &pair));
    TRY(comm_split(all, rank % 2, "across", &across));
    TRY(comm_split(across, comm_rank(across) / 2, "part", &swapped)); /* a group of a group */
    TRY(calls_on(pair));
    TRY(calls_on(across));
    TRY(calls_on(swapped));
    bool right = comm_rank(pair) == rank % 2 && comm_rank(across) == rank / 2 &&
                 comm_size(across) == (size + 1 - rank % 2) / 2;
    return right ? OK : FAIL(ERR_RUN, "rank %u: its groups have other ranks than asked for", rank);
}

static enum err big(struct comm_world *w)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        const struct comm_case k = { comm_all(w), seed, 5000003 };
        TRY(check_sum(&k));
        TRY(check_reduce_scatter(&k));
        TRY(check_all_gather(&k));
        TRY(comm_check_run(&k, COMM_CHECKS - 1));
        TRY(check_messages(&k));
    }
    return OK;
}

/* ---- several threads of a rank ---- */

struct program {
    struct comm *c;
    uint64_t seed;
    pthread_t id;
    enum err err;
    char message[ERR_MESSAGE_BYTES];
};

static void *run_program(void *arg)
{
    struct program *p = arg;
    pool_set_float_mode();
    for (uint64_t i = 0; i < 200 && p->err == OK; i++) {
        uint64_t bits = hash_mix(p->seed + i * 77);
        const struct comm_case k = { p->c, p->seed + i, bits % 9 == 0 ? bits >> 32 & 0xffff : bits >> 32 & 0xff };
        p->err = comm_check_run(&k, (bits >> 16) % COMM_CHECKS);
    }
    snprintf(p->message, sizeof(p->message), "%s", p->err != OK ? err_message() : "");
    return NULL;
}

static enum err threads(struct comm_world *w)
{
    struct comm *all = comm_all(w);
    struct program p[3] = { { .c = all, .seed = 1000 }, { .seed = 2000 }, { .seed = 3000 } };
    TRY(comm_split(all, comm_rank(all) / 2, "pair", &p[1].c));
    TRY(comm_split(all, comm_rank(all) % 2, "across", &p[2].c));
    for (size_t i = 0; i < 3; i++) {
        if (pthread_create(&p[i].id, NULL, run_program, &p[i]) != 0) {
            return FAIL(ERR_RESOURCE, "a thread could not be started");
        }
    }
    enum err err = OK;
    for (size_t i = 0; i < 3; i++) {
        pthread_join(p[i].id, NULL);
        if (p[i].err != OK) {
            err_set_message(p[i].message);
            err = p[i].err;
        }
    }
    return err;
}

/* ---- a sender that computes ---- */

#define COMPUTE_S 1.5

static enum err overlap(struct comm_world *w)
{
    struct comm *all = comm_all(w);
    uint32_t last = comm_size(all) - 1;
    const uint64_t bytes = 6 << 20;
    void *mem;
    TRY(mem_alloc(&mem, bytes, 1));
    enum err err = comm_barrier(all);
    double start = log_seconds(), took = 0;
    if (comm_rank(all) == 0) {
        struct comm_ticket ticket;
        err = err != OK ? err : comm_send(all, last, 1, mem, bytes, &ticket);
        while (log_seconds() < start + COMPUTE_S) {
        }
        err = err != OK ? err : comm_sent(all, &ticket);
    } else if (comm_rank(all) == last) {
        err = err != OK ? err : comm_recv(all, 0, 1, mem, bytes);
        took = log_seconds() - start;
    }
    free(mem);
    if (err == OK && took > COMPUTE_S / 2) {
        err = FAIL(ERR_RUN, "the message took %.3f s, its sender computed for %.1f s", took, COMPUTE_S);
    }
    return comm_agree(all, err);
}

/* ---- ends ---- */

static enum err agreed(struct comm_world *w)
{
    bool mine = comm_rank(comm_all(w)) == 1;
    return comm_agree(comm_all(w), mine ? FAIL(ERR_USAGE, "key x: 3, expected 4 | write 4") : OK);
}

static enum err fails(struct comm_world *w)
{
    struct comm *all = comm_all(w);
    if (comm_rank(all) + 1 == comm_size(all)) {
        return FAIL(ERR_DATA, "file f: damaged | bring it back");
    }
    return comm_barrier(all);
}

static enum err mismatch(struct comm_world *w)
{
    int64_t n[4] = { 0 };
    return comm_rank(comm_all(w)) == 1 ? comm_barrier(comm_all(w)) : comm_sum_i64(comm_all(w), n, 4);
}

static enum err message(struct comm_world *w)
{
    struct comm *all = comm_all(w);
    char bytes[64] = "";
    if (comm_rank(all) == 1) {
        TRY(comm_recv(all, 0, 3, bytes, 63));
    }
    if (comm_rank(all) == 0) {
        struct comm_ticket ticket;
        TRY(comm_send(all, 1, 3, bytes, 64, &ticket));
        TRY(comm_sent(all, &ticket));
    }
    return comm_barrier(all);
}

static enum err early(struct comm_world *w)
{
    return comm_rank(comm_all(w)) == 1 ? OK : comm_barrier(comm_all(w));
}

static enum err die(struct comm_world *w)
{
    if (comm_rank(comm_all(w)) == 1) {
        kill(getpid(), SIGKILL);
    }
    return comm_barrier(comm_all(w));
}

static const struct mode {
    const char *name;
    enum err (*run)(struct comm_world *w);
} modes[] = {
    { "calls", calls }, { "big", big },           { "threads", threads }, { "agreed", agreed }, { "fails", fails },
    { "overlap", overlap }, { "early", early }, { "mismatch", mismatch }, { "message", message }, { "die", die },
};

static enum err run(struct comm_world *w, int argc, char **argv)
{
    if (comm_rank(comm_all(w)) == 0) {
        printf("%u ranks, %u nodes, %u ranks on this one\n", comm_size(comm_all(w)), comm_nodes(w), comm_node_size(w));
        fflush(stdout);
    }
    for (size_t i = 0; argc == 2 && i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(modes[i].name, argv[1]) == 0) {
            return modes[i].run(w);
        }
    }
    return FAIL(ERR_USAGE, "usage: comm_driver MODE, see the top of its source");
}

int main(int argc, char **argv)
{
    struct comm_world *w;
    pool_set_float_mode();
    enum err err = comm_open(&w);
    if (err != OK) {
        if (err_message()[0] != '\0') {
            err_print();
        }
        return err_exit_code(err);
    }
    err = run(w, argc, argv);
    if (err != OK && comm_rank(comm_all(w)) == 0) {
        err_print();
        fprintf(stderr, "rank 0 heard of it\n");
    }
    comm_close(w, err);
    return err_exit_code(err);
}
