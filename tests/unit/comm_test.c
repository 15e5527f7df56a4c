/* Collectives of threads as ranks against plain serial definitions, bit by bit. */
#include <pthread.h>

#include "test.h"

#include "base/mem.h"
#include "base/rng.h"
#include "comm/comm_int.h"

#define RANKS_MAX 8u

/* ---- ranks as threads ---- */

struct job;
typedef enum err rank_fn(struct comm_world *w, void *arg);

struct rank_thread {
    struct comm_world *world;
    rank_fn *fn;
    void *arg;
    enum err err;
    char message[ERR_MESSAGE_BYTES];
    pthread_t id;
};

static void *rank_main(void *arg)
{
    struct rank_thread *r = arg;
    r->err = r->fn(r->world, r->arg);
    snprintf(r->message, sizeof(r->message), "%s", r->err != OK ? err_message() : "");
    comm_close(r->world, r->err);
    return NULL;
}

/* fn on `size` ranks; what they return stays in out[]. */
static void run_ranks(uint32_t size, uint64_t seed, rank_fn *fn, void *arg, struct rank_thread *out)
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

static void run_ok(uint32_t size, uint64_t seed, rank_fn *fn, void *arg)
{
    struct rank_thread ranks[RANKS_MAX];
    run_ranks(size, seed, fn, arg, ranks);
    for (uint32_t r = 0; r < size; r++) {
        if (ranks[r].err != OK) {
            fail_msg("rank %u of %u, seed %llu: %s", r, size, (unsigned long long)seed, ranks[r].message);
        }
    }
}

static enum err barriers(struct comm_world *w, void *arg)
{
    (void)arg;
    for (int i = 0; i < 1000; i++) {
        TRY(comm_barrier(comm_all(w)));
    }
    return OK;
}

static void barrier_works(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= RANKS_MAX; size++) {
        run_ok(size, size, barriers, NULL);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(barrier_works),
};
TEST_MAIN(tests)
