/* Why this exists: kernels need one thread pool whose workers have the contract's floating-point mode, that costs
 * microseconds per call and that thread sanitizers understand; OpenMP runtimes give none of these for ranks that are
 * threads. Workers spin briefly for the next job, then sleep on a condition variable.
 *
 * Invariants: `job` is the number of jobs started; a worker runs job j exactly once; `done` counts the workers
 * that have finished the current job; tasks are taken from `next` in ascending order. */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/cgroup.h"
#include "base/mem.h"
#include "base/topology.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SPIN_ROUNDS 20000

struct pool {
    uint32_t threads; /* including the caller */
    pthread_t *ids;   /* threads - 1 */
    uint32_t started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    _Atomic uint64_t job;
    _Atomic uint32_t done;
    _Atomic uint64_t next;
    _Atomic bool stop;
    uint64_t tasks;
    bool each;
    _Atomic bool spin; /* only when every thread can have a core of its own */
    bool bound;
    struct cores before; /* of the caller, when bound */
    uint64_t nodes;
    pool_fn *fn;
    void *arg;
    struct profile *profile;
    const char *label; /* of the open span */
};

struct worker_start {
    struct pool *pool;
    uint32_t worker;
};

void pool_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void pool_set_float_mode(void)
{
#if defined(__x86_64__)
    _mm_setcsr((_mm_getcsr() & ~0x6000u) | 0x8040u); /* RNE; FTZ | DAZ */
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    fpcr = (fpcr & ~(3ull << 22)) | (1ull << 24); /* RNE; FZ */
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
#endif
}

uint32_t pool_cores(void)
{
    struct topology t;
    struct cores mine, whole;
    cores_mine(&mine);
    topology_load(&t, NULL);
    topology_cores(&t, &mine, &whole);
    uint32_t cores = cores_count(&whole), quota = cgroup_cores("");
    cores = cores < quota ? cores : quota;
    return cores < 1 ? 1 : cores > POOL_THREADS_MAX ? POOL_THREADS_MAX : cores;
}

static void take_tasks(struct pool *p, uint32_t worker)
{
    if (p->each) {
        p->fn(p->arg, worker, worker);
        return;
    }
    for (;;) {
        uint64_t t = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (t >= p->tasks) {
            return;
        }
        p->fn(p->arg, t, worker);
    }
}

static void run_tasks(struct pool *p, uint32_t worker)
{
    uint64_t begin = worker > 0 ? profile_now(p->profile) : 0; /* the caller's share lies inside the span itself */
    take_tasks(p, worker);
    if (begin != 0) {
        char row[PROFILE_TEXT];
        snprintf(row, sizeof(row), "thread %u", worker);
        profile_add(p->profile, begin, row, p->label, NULL);
    }
}

static bool wait_for_job(struct pool *p, uint64_t seen)
{
    for (int i = 0; atomic_load_explicit(&p->spin, memory_order_relaxed) && i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&p->job, memory_order_acquire) != seen) {
            return !atomic_load(&p->stop);
        }
        pool_relax();
    }
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->job) == seen) {
        pthread_cond_wait(&p->wake, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return !atomic_load(&p->stop);
}

static void *worker_main(void *arg)
{
    struct worker_start start = *(struct worker_start *)arg;
    free(arg);
    pool_set_float_mode();
    struct pool *p = start.pool;
    for (uint64_t seen = 0; wait_for_job(p, seen);) {
        seen++;
        run_tasks(p, start.worker);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
    }
    return NULL;
}

static void announce(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->job, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void run_job(struct pool *p, uint64_t tasks, bool each, pool_fn *fn, void *arg)
{
    p->tasks = tasks;
    p->each = each;
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    if (p->threads == 1 || (!each && tasks == 1)) {
        run_tasks(p, 0);
        return;
    }
    announce(p);
    run_tasks(p, 0);
    for (uint32_t i = 0; atomic_load_explicit(&p->done, memory_order_acquire) < p->threads - 1; i++) {
        pool_relax();
        if (!p->spin || i > SPIN_ROUNDS) {
            sched_yield();
        }
    }
}

void pool_run(struct pool *p, uint64_t tasks, pool_fn *fn, void *arg)
{
    if (tasks > 0) {
        run_job(p, tasks, false, fn, arg);
    }
}

void pool_run_each(struct pool *p, pool_fn *fn, void *arg)
{
    run_job(p, p->threads, true, fn, arg);
}

enum err pool_new(struct pool **out, uint32_t threads)
{
    *out = NULL;
    threads = threads > 0 ? threads : pool_cores();
    if (threads > POOL_THREADS_MAX) {
        return FAIL(ERR_USAGE, "threads: %u, at most %d can be started", threads, POOL_THREADS_MAX);
    }
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct pool)));
    struct pool *p = mem;
    enum err err = mem_alloc(&mem, threads, sizeof(pthread_t));
    if (err != OK) {
        free(p);
        return err;
    }
    p->ids = mem;
    p->threads = threads;
    p->spin = threads <= cores_usable();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pool_set_float_mode();
    for (uint32_t w = 1; w < threads; w++) {
        err = mem_alloc(&mem, 1, sizeof(struct worker_start));
        if (err == OK) {
            *(struct worker_start *)mem = (struct worker_start){ p, w };
            if (pthread_create(&p->ids[w - 1], NULL, worker_main, mem) != 0) {
                free(mem);
                err = FAIL(ERR_RESOURCE, "thread %u of %u could not be started", w, threads);
            }
        }
        if (err != OK) {
            pool_free(p);
            return err;
        }
        p->started++;
    }
    *out = p;
    return OK;
}

void pool_free(struct pool *p)
{
    if (p == NULL) {
        return;
    }
    atomic_store(&p->stop, true);
    announce(p);
    for (uint32_t i = 0; i < p->started; i++) {
        pthread_join(p->ids[i], NULL);
    }
    pool_leave(p);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->ids);
    free(p);
}

void pool_set_profile(struct pool *p, struct profile *profile)
{
    p->profile = profile;
    p->label = "work";
}

struct pool_span pool_span_open(struct pool *p, const char *name, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t begin = profile_now(p->profile);
    if (begin != 0) {
        p->label = name;
    }
    return (struct pool_span){ p, name, begin, { a, b, c } };
}

void pool_span_close(struct pool_span *span)
{
    profile_add(span->pool->profile, span->begin, "thread 0", span->name, span->size);
}

uint32_t pool_threads(const struct pool *p)
{
    return p->threads;
}

struct binding {
    struct cores cores;
    _Atomic bool refused;
};

/* Worker w goes to the w-th of the cores. */
static void bind_task(void *arg, uint64_t task, uint32_t worker)
{
    struct binding *b = arg;
    uint32_t core = 0;
    (void)worker;
    for (uint64_t before = 0; core < CORES_MAX; core++) {
        before += cores_has(&b->cores, core);
        if (before > task) {
            break;
        }
    }
    struct cores one = { { 0 } };
    cores_add(&one, core);
    if (!cores_bind(&one)) {
        atomic_store(&b->refused, true);
    }
}

bool pool_settle(struct pool *p, const struct pool_place *place)
{
    struct binding b = { .cores = place->cores };
    p->spin = !place->crowded;
    p->nodes = place->nodes;
    uint32_t count = cores_count(&b.cores);
    if (count == 0) {
        return true;
    }
    BUG_IF(count != p->threads);
    cores_mine(&p->before);
    p->bound = true;
    pool_run_each(p, bind_task, &b);
    return !atomic_load(&b.refused);
}

void pool_leave(const struct pool *p)
{
    if (p->bound) {
        cores_bind(&p->before);
    }
}

uint64_t pool_nodes(const struct pool *p)
{
    return p->nodes;
}
