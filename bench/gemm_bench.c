/* How fast the matrix products of GPT-2 124M and of a Llama of 135M are beside those of oneDNN, OpenBLAS and PyTorch:
 * the same products on one machine, taken in turns, the best of several repetitions each. Ratios survive a busy
 * machine, absolute times do not. bench/compare runs it in several processes.
 *
 *   bench_gemm [repetitions [threads [part of a name]]]      INVAR_PYTHON: a Python that has torch
 *
 * Without a thread count the program runs itself once for 1 thread and once for all cores, because OpenMP takes its
 * count from the environment. Threads of the side that waits may spin for a while, so each timed call comes after a
 * pause and a small product of its own side that wakes its threads. */
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fmath.h"
#include "base/log.h"
#include "base/mem.h"
#include "kern/kern.h"
#include "peers.h"

#define REPETITIONS 9
#define PAUSE_NS 4000000
#define CASES_MAX 160u

enum kind { FORWARD, TREE, DX, DW, GRAD, KINDS };
static const char *const kind_names[KINDS] = { "forward", "forward, 4 segments", "dx", "dw", "dw, int64 gradient" };

struct test_case {
    struct product product;
    enum kind kind;
};

struct bench {
    struct kern *kern;
    struct operands o;
    int64_t *grad;
    uint32_t threads, repetitions;
    struct peer peer[PEERS];
};

/* A linear map of x[rows][in]: its weight is stored [in][out], or [out][in] where `rows_out` (the head, tied to the
 * embedding, and every map of a Llama). */
struct map {
    const char *name;
    uint64_t in, out;
    bool rows_out, splits; /* splits: its sum has segments */
};

static const struct map gpt2[] = {
    { "qkv", 768, 2304, false, false }, { "proj", 768, 768, false, true },    { "fc1", 768, 3072, false, false },
    { "fc2", 3072, 768, false, true },  { "head", 768, 50304, true, false },
};
static const struct map llama[] = {
    { "llama q", 576, 576, true, false },         { "llama k, v", 576, 192, true, false },
    { "llama proj", 576, 576, true, true },       { "llama gate, up", 576, 1536, true, false },
    { "llama down", 1536, 576, true, true },      { "llama head", 576, 49152, true, false },
};

static struct test_case make(const struct map *l, enum kind kind, uint64_t rows)
{
    struct test_case c = { .kind = kind };
    struct product *p = &c.product;
    if (kind == FORWARD || kind == TREE) {
        p->m = rows, p->n = l->out, p->k = l->in, p->b_trans = !l->rows_out;
    } else if (kind == DX) {
        p->m = rows, p->n = l->in, p->k = l->out, p->b_trans = l->rows_out;
    } else {
        p->m = l->rows_out ? l->out : l->in, p->n = l->rows_out ? l->in : l->out, p->k = rows;
        p->a_trans = p->b_trans = true;
    }
    snprintf(p->name, sizeof(p->name), "%s %s, M=%u", l->name, kind_names[kind], (unsigned)rows);
    return c;
}

static void add_map(struct test_case *out, uint32_t *count, const struct map *l, uint64_t rows)
{
    bool head = l->out > 40000;
    for (int kind = 0; kind < KINDS && !(head && rows > 1024); kind++) {
        if (kind != TREE || l->splits) {
            out[(*count)++] = make(l, (enum kind)kind, rows);
        }
    }
}

static uint32_t list_cases(struct test_case out[CASES_MAX])
{
    static const uint64_t rows[] = { 512, 1024, 4096 };
    uint32_t count = 0;
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        for (size_t l = 0; l < sizeof(gpt2) / sizeof(gpt2[0]); l++) {
            add_map(out, &count, &gpt2[l], rows[r]);
        }
    }
    for (size_t l = 0; l < sizeof(llama) / sizeof(llama[0]); l++) {
        add_map(out, &count, &llama[l], 1024);
    }
    BUG_IF(count > CASES_MAX);
    return count;
}

/* bf16: the same operands, rounded while they are packed. */
static void run_ours(struct bench *b, const struct test_case *c, bool bf16)
{
    struct gemm_piece piece[4];
    const struct product *p = &c->product;
    uint32_t segments = c->kind == TREE ? 4 : 1;
    for (uint32_t s = 0; s < segments; s++) {
        uint64_t k = p->k / segments, at = k * s;
        piece[s] = (struct gemm_piece){
            .a = { b->o.a + (p->a_trans ? at * p->m : at), p->a_trans ? p->m : p->k, p->a_trans, NUM_F32 },
            .b = { b->o.b + (p->b_trans ? at * p->n : at), p->b_trans ? p->n : p->k, p->b_trans, NUM_F32 },
            .k = k,
            .ends_segment = true,
        };
    }
    bool overflow = false;
    struct gemm_job job = { .m = p->m, .n = p->n, .pieces = piece, .pieces_count = segments, .bf16 = bf16 };
    if (c->kind == GRAD) {
        job.grad = b->grad, job.ldg = p->n, job.unit = 1024, job.grad_scale = 0x1p20f, job.overflow = &overflow;
        job.grad_limit = FIXED_UNIT_LIMIT;
    } else {
        job.c = b->o.c, job.ldc = p->n;
    }
    kern_gemm(b->kern, &job);
}

static double seconds_now(const struct bench *b)
{
    struct timespec t;
    if (b->threads == 1 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0) {
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return log_seconds();
}

/* Sides after the peers. */
enum { OURS = PEERS, OURS_BF16, SIDES };

/* One side's seconds of a case. */
static double time_side(struct bench *b, const struct test_case *c, uint32_t side)
{
    double start = 0, own = 0;
    nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
    for (int i = 0; i < 2 && own == 0; i++) { /* the first wakes the threads, each on a core of its own: not counted */
        start = seconds_now(b);
        if (side >= PEERS) {
            run_ours(b, c, side == OURS_BF16);
        } else {
            own = b->peer[side].run(&b->peer[side], &c->product, &b->o);
        }
    }
    return own > 0 ? own : seconds_now(b) - start;
}

/* What the ratios of one peer come to. */
struct tally {
    double log_sum, least;
};

static void count_ratio(struct tally *t, double ratio)
{
    t->log_sum += fmath_log(ratio);
    t->least = ratio < t->least ? ratio : t->least;
}

static bool is_there(const struct bench *b, uint32_t side)
{
    return b->peer[side].absent[0] == '\0';
}

/* Prints one row. */
static void compare(struct bench *b, const struct test_case *c, struct tally tally[SIDES])
{
    const struct product *p = &c->product;
    double best[SIDES], work = 2e-9 * (double)p->m * (double)p->n * (double)p->k;
    for (uint32_t s = 0; s < SIDES; s++) {
        best[s] = 1e30;
    }
    for (uint32_t r = 0; r < b->repetitions; r++) {
        for (uint32_t s = 0; s < SIDES; s++) {
            double t = s >= PEERS || is_there(b, s) ? time_side(b, c, s) : 1e30;
            best[s] = t < best[s] ? t : best[s];
        }
    }
    printf("%-38s %6u %6u %6u %9.1f", p->name, (unsigned)p->m, (unsigned)p->n, (unsigned)p->k, work / best[OURS]);
    count_ratio(&tally[OURS_BF16], best[OURS] / best[OURS_BF16]);
    printf(" %9.1f %7.3f", work / best[OURS_BF16], best[OURS] / best[OURS_BF16]);
    for (uint32_t s = 0; s < PEERS; s++) {
        double ratio = best[s] / best[b->peer[s].bf16 ? OURS_BF16 : OURS];
        if (!is_there(b, s)) {
            printf(" %10s %7s", "-", "-");
            continue;
        }
        printf(" %10.1f %7.3f", work / best[s], ratio);
        count_ratio(&tally[s], ratio);
    }
    printf("\n");
    fflush(stdout);
}

static enum err bench_all(struct bench *b, const char *part)
{
    struct test_case list[CASES_MAX];
    struct tally tally[SIDES];
    uint32_t count = list_cases(list), done = 0;
    printf("%-38s %6s %6s %6s %9s %9s %7s", "product", "m", "n", "k", "GFLOP/s", "bf16", "/fp32");
    tally[OURS_BF16] = (struct tally){ 0, 1e30 };
    for (uint32_t s = 0; s < PEERS; s++) {
        tally[s] = (struct tally){ 0, 1e30 };
        printf(" %10s %7s", peers[s].name, "ratio");
    }
    printf("\n");
    for (uint32_t i = 0; i < count; i++) {
        if (strstr(list[i].product.name, part) != NULL) {
            compare(b, &list[i], tally);
            done++;
        }
    }
    if (done == 0) {
        return FAIL(ERR_USAGE, "\"%s\": no product has this in its name", part);
    }
    for (uint32_t s = 0; s < PEERS; s++) {
        if (is_there(b, s)) {
            printf("of %s: geometric mean %.3f, least %.3f of %u\n", b->peer[s].name,
                   fmath_exp(tally[s].log_sum / done), tally[s].least, done);
        } else {
            printf("of %s: absent, %s\n", b->peer[s].name, b->peer[s].absent);
        }
    }
    printf("of fp32 in bf16: geometric mean %.3f, least %.3f of %u\n", fmath_exp(tally[OURS_BF16].log_sum / done),
           tally[OURS_BF16].least, done);
    printf("FMA peak %.1f GFLOP/s, of bf16 %.1f\n", kern_peak_gflops(b->kern), kern_peak_bf16_gflops(b->kern));
    return OK;
}

static void open_peers(struct bench *b)
{
    for (uint32_t s = 0; s < PEERS; s++) {
        b->peer[s] = peers[s];
        if (!b->peer[s].open(&b->peer[s], b->threads) && is_there(b, s)) {
            snprintf(b->peer[s].absent, sizeof(b->peer[s].absent), "it did not start");
        }
    }
}

static void close_peers(struct bench *b)
{
    for (uint32_t s = 0; s < PEERS; s++) {
        if (b->peer[s].close != NULL && is_there(b, s)) {
            b->peer[s].close(&b->peer[s]);
        }
    }
}

static enum err bench_threads(uint32_t threads, uint32_t repetitions, const char *part)
{
    const size_t big = (size_t)50304 * 1024, small = (size_t)4096 * 3072, wide = (size_t)50304 * 768;
    const size_t bytes = (big + wide + big) * sizeof(float) + wide * sizeof(int64_t);
    struct bench b = { .threads = threads, .repetitions = repetitions };
    struct pool *pool = NULL;
    void *mem = NULL;
    enum isa isa;
    enum err err = OK;
    TRY_OUT(kern_choose_isa(&isa));
    TRY_OUT(pool_new(&pool, threads));
    TRY_OUT(kern_new(&b.kern, isa, pool));
    TRY_OUT(mem_big_alloc(&mem, bytes));
    b.o = (struct operands){ mem, (float *)mem + big, (float *)mem + big + wide };
    b.grad = (int64_t *)(void *)(b.o.c + big);
    for (size_t i = 0; i < big; i++) {
        b.o.a[i] = (float)(i % 1021) * 0x1p-10f - 0.5f;
    }
    for (size_t i = 0; i < (wide > small ? wide : small); i++) {
        b.o.b[i] = (float)(i % 2039) * 0x1p-12f - 0.25f;
    }
    memset(b.o.c, 0, big * sizeof(float));
    memset(b.grad, 0, wide * sizeof(int64_t));
    printf("\n%u thread%s, %s, best of %u\n", threads, threads == 1 ? "" : "s", kern_isa_name(isa), repetitions);
    open_peers(&b);
    err = bench_all(&b, part);
out:
    close_peers(&b);
    mem_big_free(mem, bytes);
    kern_free(b.kern);
    pool_free(pool);
    return err;
}

/* Runs this program again with OpenMP's thread count in its environment. */
static enum err run_again(const char *repetitions, uint32_t threads, const char *part)
{
    char count[16];
    snprintf(count, sizeof(count), "%u", threads);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        return FAIL(ERR_RESOURCE, "fork: refused by the system");
    }
    if (child == 0) {
        setenv("OMP_NUM_THREADS", count, 1);
        unsetenv("OPENBLAS_CORETYPE"); /* each peer chooses for this processor */
        unsetenv("OPENBLAS_L2_SIZE");
        execl("/proc/self/exe", "bench_gemm", repetitions, count, part, (char *)NULL);
        _exit(1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return FAIL(ERR_RUN, "the run with %u threads failed", threads);
    }
    return OK;
}

static enum err run(int argc, char **argv)
{
    const char *part = argc > 3 ? argv[3] : "";
    unsigned long repetitions = argc > 1 ? strtoul(argv[1], NULL, 10) : REPETITIONS;
    unsigned long threads = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    char text[32];
    if (repetitions == 0 || repetitions > 1000 || threads > POOL_THREADS_MAX) {
        return FAIL(ERR_USAGE, "bench_gemm: wrong numbers | bench_gemm [repetitions [threads [part of a name]]]");
    }
    snprintf(text, sizeof(text), "%lu", repetitions);
    const char *omp = getenv("OMP_NUM_THREADS");
    if (threads > 0 && omp != NULL && strtoul(omp, NULL, 10) == threads) {
        return bench_threads((uint32_t)threads, (uint32_t)repetitions, part);
    }
    if (threads > 0) {
        return run_again(text, (uint32_t)threads, part);
    }
    TRY(run_again(text, 1, part));
    return pool_cores() > 1 ? run_again(text, pool_cores(), part) : OK;
}

int main(int argc, char **argv)
{
    enum err err = run(argc, argv);
    if (err != OK) {
        err_print();
    }
    return err_exit_code(err);
}
