/* Ranks as threads for tests: run a function on each rank of a world and keep what it returned. */
#ifndef TESTS_UNIT_RANK_THREADS_H
#define TESTS_UNIT_RANK_THREADS_H

#include <pthread.h>

#include "test.h"

#include "base/pool.h"
#include "comm/comm.h"

#define RANKS_MAX 8u

typedef enum err rank_fn(struct comm_world *w, void *arg);

struct rank_thread {
    struct comm_world *world;
    rank_fn *fn;
    void *arg;
    pthread_t id;
    enum err err;
    char message[ERR_MESSAGE_BYTES];
};

static inline void *rank_main(void *arg)
{
    struct rank_thread *r = arg;
    pool_set_float_mode();
    r->err = r->fn(r->world, r->arg);
    snprintf(r->message, sizeof(r->message), "%s", r->err != OK ? err_message() : "");
    comm_close(r->world, r->err);
    return NULL;
}

/* fn on `size` ranks; what each returned stays in out[]. */
static inline void run_ranks(uint32_t size, uint64_t seed, rank_fn *fn, void *arg, struct rank_thread *out)
{
    struct comm_threads *t;
    assert_ok(comm_threads_new(&t, size, seed));
    for (uint32_t r = 0; r < size; r++) {
        out[r] = (struct rank_thread){ .world = comm_threads_world(t, r), .fn = fn, .arg = arg };
        assert_int_equal(pthread_create(&out[r].id, NULL, rank_main, &out[r]), 0);
    }
    for (uint32_t r = 0; r < size; r++) {
        pthread_join(out[r].id, NULL);
    }
    comm_threads_free(t);
}

/* The same; every rank must succeed. */
static inline void run_ranks_ok(uint32_t size, uint64_t seed, rank_fn *fn, void *arg)
{
    struct rank_thread ranks[RANKS_MAX];
    run_ranks(size, seed, fn, arg, ranks);
    for (uint32_t r = 0; r < size; r++) {
        if (ranks[r].err != OK) {
            fail_msg("rank %u of %u, seed %llu: %s", r, size, (unsigned long long)seed, ranks[r].message);
        }
    }
}

#endif
