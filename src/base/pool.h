/* A pool of threads that divide outputs, never sums. One pool per rank; nothing global.
 * Every thread (also the caller) runs with round-to-nearest-even, flush-to-zero and denormals-are-zero. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/cores.h"
#include "base/profile.h"

struct pool;

#define POOL_THREADS_MAX 256

/* One task: `worker` is in [0, threads) and names the thread that runs it, for per-thread scratch. */
typedef void pool_fn(void *arg, uint64_t task, uint32_t worker);

/* Cores this process may use: those of the affinity mask (hardware threads that share a core count once), cut by the
 * quota of its control groups, at least 1. */
uint32_t pool_cores(void);
/* threads 0 = pool_cores(). The caller is worker 0; threads - 1 are started. */
MUST_USE enum err pool_new(struct pool **out, uint32_t threads);
void pool_free(struct pool *p);
uint32_t pool_threads(const struct pool *p);
/* Run fn(arg, t, worker) for every t in [0, tasks), handed out in ascending order, and wait for all of them. Results
 * must not depend on which worker ran a task. Not re-entrant: a task must not call pool_run. */
void pool_run(struct pool *p, uint64_t tasks, pool_fn *fn, void *arg);
/* As pool_run with exactly one task for each thread: task == worker. */
void pool_run_each(struct pool *p, pool_fn *fn, void *arg);

/* Where a pool's threads run, and so where its memory lies. */
struct pool_place {
    struct cores cores; /* a hardware thread for each thread of the pool; none: the system decides */
    uint64_t nodes;     /* memory nodes near them, a bit each: blocks are spread over these where there are several */
    bool crowded;       /* threads outnumber cores: waiting ones give way at once */
};
/* Threads that are started by the caller later stay where it is, see pool_leave; pool_free lets the caller go again.
 * False where the system refused to bind a thread: it goes on unbound. */
bool pool_settle(struct pool *p, const struct pool_place *place);
/* The calling thread, which no pool owns, may run wherever the pool's caller might before pool_settle. */
void pool_leave(const struct pool *p);
uint64_t pool_nodes(const struct pool *p);
/* What the pool does is recorded in `profile` (NULL: nowhere): the shares of its threads on the rows "thread 1" and up,
 * under the name of the span that is open. */
void pool_set_profile(struct pool *p, struct profile *profile);
/* A named piece of work of the calling thread, on the row "thread 0", with the sizes it works on: what follows
 * POOL_SPAN to the end of its block. `name` lives as long as the pool. Costs nothing without a profile. */
struct pool_span {
    struct pool *pool;
    const char *name;
    uint64_t begin, size[3];
};
struct pool_span pool_span_open(struct pool *p, const char *name, uint64_t a, uint64_t b, uint64_t c);
void pool_span_close(struct pool_span *span);
#define POOL_SPAN(p, name, a, b, c)                                                                \
    __attribute__((cleanup(pool_span_close), unused)) struct pool_span span_ = pool_span_open((p), name, a, b, c)
/* Set the arithmetic mode above for the calling thread; pool threads already have it. */
void pool_set_float_mode(void);
/* What a loop that waits for another thread does between two looks: some ten nanoseconds that spare the core. */
void pool_relax(void);

#endif
