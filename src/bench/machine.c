/* Why this exists: a kernel is fast or slow only beside what the machine gives, and that is known only by measuring:
 * names of processors say little on a shared or virtual machine. Each limit is measured by the simplest loop that can
 * reach it; the best of many short samples counts. */
#include "bench/machine.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "bench/measure.h"
#include "part/layout.h"

#define MEMORY_BYTES ((uint64_t)512 << 20) /* gone over by streams, at most .. */
#define SECOND_BYTES ((uint64_t)64 << 20)  /* .. so much for each second begun */
#define RUN_BYTES ((uint64_t)16 << 20) /* at least, in a run */
#define LEVEL_FIRST_BYTES ((uint64_t)32 << 10)
#define PEAK_SAMPLES 9u
#define PEAK_SAMPLES_MOST 64u
#define PEAK_SHARE 0.2 /* of the time, at least PEAK_SAMPLES samples */

/* ---- streams over memory ---- */

/* Sixteen numbers at once: the compiler makes of it what every processor has. */
typedef float lanes __attribute__((vector_size(64)));
#define LANES_BYTES sizeof(lanes)

enum stream_kind { STREAM_READ, STREAM_COPY, STREAM_UPDATE };

struct stream {
    enum stream_kind kind;
    uint64_t bytes; /* that it goes over */
    uint64_t named; /* that a second is counted in, of one pass */
    uint64_t passes; /* in a run: handing work to threads must not count */
    bool one;       /* thread */
};

struct streams {
    struct pool *pool;
    lanes *memory;
    struct stream list[2 * (3 + MACHINE_LEVELS)];
    uint32_t count;
    const struct stream *now;
    volatile float sink; /* what was read, so that reading is not left out */
};

static float read_lanes(const lanes *p, uint64_t n)
{
    lanes a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
    for (uint64_t i = 0; i + 4 <= n; i += 4) {
        a += p[i];
        b += p[i + 1];
        c += p[i + 2];
        d += p[i + 3];
    }
    a += b + (c + d);
    return a[0];
}

static void update_lanes(lanes *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        p[i] = p[i] * 0.5f + 0.25f;
    }
}

static void stream_pass(struct streams *s, uint64_t half, struct order_range r)
{
    if (s->now->kind == STREAM_COPY) {
        memcpy(s->memory + half + r.lo, s->memory + r.lo, (r.hi - r.lo) * LANES_BYTES);
    } else if (s->now->kind == STREAM_READ) {
        s->sink = read_lanes(s->memory + r.lo, r.hi - r.lo);
    } else {
        update_lanes(s->memory + r.lo, r.hi - r.lo);
    }
}

/* Part `task` of `parts`: every thread goes over its own stretch; a copy has its source in the first half. */
static void stream_part(struct streams *s, uint32_t parts, uint32_t task)
{
    const struct stream *now = s->now;
    uint64_t half = now->bytes / 2 / LANES_BYTES, all = now->bytes / LANES_BYTES;
    struct order_range r = part_range(now->kind == STREAM_COPY ? half : all, parts, task);
    for (uint64_t i = 0; i < now->passes; i++) {
        stream_pass(s, half, r);
    }
}

static void stream_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    struct streams *s = arg;
    stream_part(s, pool_threads(s->pool), (uint32_t)task);
}

static void stream_run(void *arg, uint32_t i)
{
    struct streams *s = arg;
    s->now = &s->list[i];
    if (s->now->one) {
        stream_part(s, 1, 0);
    } else {
        pool_run_each(s->pool, stream_task, s);
    }
}

/* Threads that had to wait for others are no slower than one. */
static struct rate make_rate(double one, double all)
{
    return (struct rate){ one, all > one ? all : one };
}

static void add_streams(struct streams *s, enum stream_kind kind, uint64_t bytes, uint64_t named)
{
    uint64_t passes = bytes < RUN_BYTES ? RUN_BYTES / bytes : 1;
    s->list[s->count++] = (struct stream){ kind, bytes, named, passes, true };
    s->list[s->count++] = (struct stream){ kind, bytes, named, passes, false };
}

static struct rate stream_rate(const struct streams *s, const struct timing *t, uint32_t pair)
{
    const struct stream *one = &s->list[2 * pair];
    double bytes = (double)one->named * (double)one->passes;
    return make_rate(bytes / t[2 * pair].best_s, bytes / t[2 * pair + 1].best_s);
}

static enum err measure_streams(struct machine *m, struct pool *pool, double seconds)
{
    struct streams s = { .pool = pool };
    struct timing t[sizeof(s.list) / sizeof(s.list[0])];
    void *mem;
    uint64_t room = mem_available_bytes() / 4, bytes = (uint64_t)(seconds + 1) * SECOND_BYTES;
    bytes = bytes < MEMORY_BYTES ? bytes : MEMORY_BYTES;
    bytes = (bytes < room ? bytes : room) / LANES_BYTES * LANES_BYTES;
    TRY(mem_big_alloc(&mem, bytes));
    s.memory = mem;
    memset(mem, 0, bytes);
    add_streams(&s, STREAM_READ, bytes, bytes);
    add_streams(&s, STREAM_COPY, bytes, bytes);
    add_streams(&s, STREAM_UPDATE, bytes, 2 * bytes);
    m->memory_bytes = bytes;
    for (uint64_t b = LEVEL_FIRST_BYTES; b < bytes && m->levels < MACHINE_LEVELS; b *= 4) {
        add_streams(&s, STREAM_COPY, b, b);
        m->level[m->levels++].bytes = b;
    }
    measure(s.count, stream_run, &s, seconds, t);
    m->read = stream_rate(&s, t, 0);
    m->copy = stream_rate(&s, t, 1);
    m->update = stream_rate(&s, t, 2);
    for (uint32_t i = 0; i < m->levels; i++) {
        m->level[i].copy = stream_rate(&s, t, 3 + i);
    }
    mem_big_free(mem, bytes);
    return OK;
}

double machine_copy_rate(const struct machine *m, uint64_t bytes)
{
    for (uint32_t i = 0; i < m->levels; i++) {
        if (bytes <= m->level[i].bytes) {
            return m->level[i].copy.all;
        }
    }
    return m->copy.all > m->update.all ? m->copy.all : m->update.all;
}

/* ---- arithmetic ---- */

static void sort(double *list, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        for (uint32_t j = i; j > 0 && list[j] < list[j - 1]; j--) {
            double swap = list[j];
            list[j] = list[j - 1];
            list[j - 1] = swap;
        }
    }
}

static void peaks_of(struct kern *one, struct kern *all, struct rate *fma, struct rate *bf16)
{
    *fma = (struct rate){ kern_peak_gflops(one) * 1e9, kern_peak_gflops(all) * 1e9 };
    *bf16 = (struct rate){ kern_peak_bf16_gflops(one) * 1e9, kern_peak_bf16_gflops(all) * 1e9 };
}

static void keep_best(struct rate *best, struct rate now)
{
    *best = make_rate(now.one > best->one ? now.one : best->one, now.all > best->all ? now.all : best->all);
}

static enum err measure_peaks(struct machine *m, struct kern *k, double seconds)
{
    struct pool *pool;
    struct kern *one = NULL;
    double sample[PEAK_SAMPLES_MOST], start = log_seconds();
    uint32_t count = 0;
    enum err err;
    TRY(pool_new(&pool, 1));
    TRY_OUT(kern_new(&one, kern_isa(k), pool));
    while (count < PEAK_SAMPLES || (count < PEAK_SAMPLES_MOST && log_seconds() - start < seconds)) {
        struct rate fma, bf16;
        peaks_of(one, k, &fma, &bf16);
        keep_best(&m->fma, fma);
        keep_best(&m->bf16, bf16);
        sample[count++] = fma.all;
    }
    sort(sample, count);
    m->spread = 1.0 - sample[count / 2] / m->fma.all;
out:
    kern_free(one);
    pool_free(pool);
    return err;
}

enum err machine_measure(struct machine *m, struct kern *k, uint32_t threads, double seconds)
{
    struct pool *pool;
    *m = (struct machine){ .isa = kern_isa(k), .threads = threads };
    TRY(measure_peaks(m, k, PEAK_SHARE * seconds));
    TRY(pool_new(&pool, threads));
    enum err err = measure_streams(m, pool, (1.0 - PEAK_SHARE) * seconds);
    pool_free(pool);
    return err;
}

/* ---- others ---- */

static double process_seconds(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) {
        return 0;
    }
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* The first line of /proc/stat: user nice system idle iowait irq softirq steal, in ticks since the start. */
static void machine_seconds(double *busy, double *steal)
{
    char text[256] = "";
    unsigned long long v[8] = { 0 };
    double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    FILE *f = fopen("/proc/stat", "r");
    *busy = *steal = 0;
    if (f == NULL) {
        return;
    }
    if (fgets(text, sizeof(text), f) != NULL &&
        sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6],
               &v[7]) == 8) {
        *busy = tick * (double)(v[0] + v[1] + v[2] + v[5] + v[6]);
        *steal = tick * (double)v[7];
    }
    fclose(f);
}

void noise_begin(struct noise *n)
{
    machine_seconds(&n->busy_s, &n->steal_s);
    n->own_s = process_seconds();
    n->wall_s = log_seconds();
}

struct noise_found noise_end(const struct noise *begin, uint32_t ranks)
{
    struct noise now;
    noise_begin(&now);
    double wall = now.wall_s - begin->wall_s, cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    double busy = now.busy_s - begin->busy_s, own = (now.own_s - begin->own_s) * ranks;
    if (wall <= 0 || cores < 1) {
        return (struct noise_found){ 0 };
    }
    double others = busy > own ? (busy - own) / wall : 0;
    return (struct noise_found){ others, (now.steal_s - begin->steal_s) / (wall * cores) };
}
