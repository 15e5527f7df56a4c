/* Why this exists: what collectives cost beside the memory traffic they cannot do without. Each line is one call on 2
 * ranks (or N), with its time, the bytes each rank must read and write at least, and that rate as a share of memcpy's
 * by the same ranks at the same time: best of 40 short trials, as machines are busy.
 *
 *     bench_comm [RANKS]           ranks are threads
 *     mpirun -n 2 bench_comm       ranks are processes */
#include <pthread.h>
#include <stdio.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "comm/comm.h"

#define RANKS_MAX 64u
#define BIG ((uint64_t)32 << 20) /* bytes */

struct bench {
    struct comm_world *world;
    struct comm *c;
    unsigned char *a, *b; /* BIG each */
    double copy_rate;     /* bytes read and written in a second by each rank, all at once */
    enum err err;
    pthread_t id;
};

struct task {
    const char *name;
    uint64_t bytes; /* least traffic of a rank: read and written */
    int repeats;
    enum err (*run)(struct bench *b);
};

static enum err run_copy(struct bench *b)
{
    memcpy(b->b, b->a, BIG);
    return OK;
}

static enum err run_barrier(struct bench *b)
{
    return comm_barrier(b->c);
}

static enum err run_sum_1(struct bench *b)
{
    return comm_sum_i64(b->c, (int64_t *)b->a, 1);
}

static void even(const struct bench *b, uint64_t n, uint64_t *bounds)
{
    for (uint32_t r = 0; r <= comm_size(b->c); r++) {
        bounds[r] = n * r / comm_size(b->c);
    }
}

static enum err run_reduce_scatter(struct bench *b)
{
    uint64_t bounds[RANKS_MAX + 1];
    even(b, BIG / 8, bounds);
    return comm_reduce_scatter_i64(b->c, (int64_t *)b->a, bounds);
}

static enum err run_all_gather(struct bench *b)
{
    uint64_t bounds[RANKS_MAX + 1];
    even(b, BIG / 4, bounds);
    return comm_all_gather(b->c, b->a, 4, bounds);
}

#define TREE_ROWS 1024u
#define TREE_COLS 768u

static enum err tree(struct bench *b, const uint64_t *bounds)
{
    return comm_tree_sum(b->c, &(struct comm_tree){ .rows = TREE_ROWS, .cols = TREE_COLS, .ldo = TREE_COLS,
                                                    .bounds = bounds, .bias = (const float *)b->b,
                                                    .residual = (const float *)b->a, .out = (float *)b->a });
}

static enum err run_tree(struct bench *b)
{
    return tree(b, NULL);
}

static enum err run_tree_part(struct bench *b)
{
    uint64_t bounds[RANKS_MAX + 1];
    even(b, TREE_ROWS, bounds);
    return tree(b, bounds);
}

static enum err measure(struct bench *b, const struct task *t)
{
    double best = 1e9;
    for (int i = 0; i < 40; i++) {
        TRY(comm_barrier(b->c));
        double start = log_seconds();
        for (int k = 0; k < t->repeats; k++) {
            TRY(t->run(b));
        }
        double took = (log_seconds() - start) / t->repeats;
        best = took < best ? took : best;
    }
    double rate = (double)t->bytes / best;
    b->copy_rate = b->copy_rate > 0 ? b->copy_rate : rate;
    if (comm_rank(b->c) == 0) {
        printf("%-34s %10.2f us", t->name, best * 1e6);
        printf(t->bytes > 0 ? "  %6.2f GB/s  %5.2f of memcpy\n" : "\n", rate * 1e-9, rate / b->copy_rate);
    }
    return OK;
}

static enum err bench(struct bench *b)
{
    pool_set_float_mode();
    b->c = comm_all(b->world);
    uint64_t n = comm_size(b->c), tree_bytes = TREE_ROWS * TREE_COLS * sizeof(float);
    void *mem, *window;
    TRY(mem_big_alloc(&mem, 2 * BIG));
    b->a = mem;
    b->b = b->a + BIG;
    TRY(comm_window(b->c, tree_bytes, &window));
    const struct task tasks[] = {
        { "memcpy 32 MiB, every rank", 2 * BIG, 1, run_copy },
        { "barrier", 0, 1000, run_barrier },
        { "sum of one integer", 0, 1000, run_sum_1 },
        /* its own stretch read and written, the others' read; those of others read from their staging */
        { "reduce-scatter of 32 MiB", 2 * BIG / n + BIG / n * (n - 1), 1, run_reduce_scatter },
        { "all-gather to 32 MiB", BIG + BIG / n * (n - 1), 1, run_all_gather },
        /* windows and residual read, result written */
        { "tree sum 1024 x 768, all rows", tree_bytes * (n + 2), 5, run_tree },
        { "tree sum 1024 x 768, own rows", tree_bytes + tree_bytes / n * 2, 5, run_tree_part },
    };
    for (size_t i = 0; i < sizeof(tasks) / sizeof(tasks[0]); i++) {
        TRY(measure(b, &tasks[i]));
    }
    mem_big_free(mem, 2 * BIG);
    return OK;
}

static void *thread_main(void *arg)
{
    struct bench *b = arg;
    b->err = bench(b);
    if (b->err != OK) {
        err_print();
    }
    comm_close(b->world, b->err);
    return NULL;
}

static enum err bench_threads(uint32_t ranks)
{
    struct comm_threads *t;
    struct bench all[RANKS_MAX] = { { 0 } };
    enum err err = OK;
    TRY(comm_threads_new(&t, ranks, 0));
    for (uint32_t r = 0; r < ranks; r++) {
        all[r].world = comm_threads_world(t, r);
        BUG_IF(pthread_create(&all[r].id, NULL, thread_main, &all[r]) != 0);
    }
    for (uint32_t r = 0; r < ranks; r++) {
        pthread_join(all[r].id, NULL);
        err = err != OK ? err : all[r].err;
    }
    comm_threads_free(t);
    return err;
}

int main(int argc, char **argv)
{
    struct bench one = { 0 };
    enum err err = comm_open(&one.world);
    if (err == OK && comm_size(comm_all(one.world)) > 1) {
        thread_main(&one);
        return err_exit_code(one.err);
    }
    comm_close(one.world, err);
    uint32_t ranks = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    if (err == OK) {
        err = ranks >= 1 && ranks <= RANKS_MAX ? bench_threads(ranks)
                                               : FAIL(ERR_USAGE, "%s: ranks, 1 to %u expected", argv[1], RANKS_MAX);
    }
    if (err != OK) {
        err_print();
    }
    return err_exit_code(err);
}
