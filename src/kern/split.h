/* Private to kern/: dividing a range of rows, columns or elements over the pool. Threads divide outputs, never sums,
 * so the division cannot change a bit; it only has to be balanced and to keep each piece long enough to stream. */
#ifndef KERN_SPLIT_H
#define KERN_SPLIT_H

#include "kern/kern_int.h"

/* A leaf: works on [begin, end) of what its job describes. */
typedef void leaf_fn(const void *job, uint64_t begin, uint64_t end);

struct split {
    leaf_fn *leaf;
    const void *job;
    uint64_t count, per_task;
};

static inline void split_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    const struct split *s = arg;
    uint64_t begin = task * s->per_task;
    uint64_t end = begin + s->per_task;
    s->leaf(s->job, begin, end < s->count ? end : s->count);
}

/* Run `leaf` over [0, count) in tasks of a multiple of `grain`: about eight tasks for each thread, handed out as
 * threads become free, so that a thread held up by another process delays the rest by an eighth of its share
 * at most. */
static inline void split_run(struct kern *k, leaf_fn *leaf, const void *job, uint64_t count, uint64_t grain)
{
    uint32_t threads = pool_threads(k->pool);
    uint64_t share = threads > 1 ? count / ((uint64_t)threads * 8) : count;
    uint64_t per_task = (share / grain + 1) * grain;
    struct split s = { leaf, job, count, per_task };
    pool_run(k->pool, count / per_task + (count % per_task != 0), split_task, &s);
}

/* Rows of `cols` elements in one task at least: some 32 KB. */
static inline uint64_t split_rows_grain(uint64_t cols)
{
    return cols >= 8192 ? 1 : 8192 / cols;
}

#endif
