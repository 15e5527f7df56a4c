/* How fast the matrix products of GPT-2 124M are beside oneDNN's, the same products in one process, taken in turns,
 * the best of several repetitions each: ratios survive a busy machine, absolute times do not.
 *
 *   bench_gemm [repetitions [threads [part of a name]]]
 *
 * Without a thread count the program runs itself once for 1 thread and once for all cores, because oneDNN's OpenMP
 * takes its count from the environment. Threads of the side that waits may spin for a while, so each timed call comes
 * after a pause and a small product of its own side that wakes its threads. */
#include <dnnl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fmath.h"
#include "base/log.h"
#include "base/mem.h"
#include "kern/kern.h"

#define REPETITIONS 9
#define PAUSE_NS 4000000
#define CASES_MAX 128u

enum kind { FORWARD, TREE, DX, DW, GRAD, KINDS };
static const char *const kind_names[KINDS] = { "forward", "forward, 4 segments", "dx", "dw", "dw, int64 gradient" };

/* C[m][n] as a product over k; trans as in struct gemm_mat. */
struct product {
    char name[48];
    enum kind kind;
    uint64_t m, n, k;
    bool a_trans, b_trans;
};

struct bench {
    struct kern *kern;
    float *a, *b, *c;
    int64_t *grad;
    uint32_t threads, repetitions;
};

/* x[rows][in] times a weight: stored [in][out], or [out][in] where `rows_out` (the head, tied to the embedding). */
static struct product make(const char *layer, enum kind kind, uint64_t rows, const uint64_t in_out[2], bool rows_out)
{
    uint64_t in = in_out[0], out = in_out[1];
    struct product p = { .kind = kind };
    if (kind == FORWARD || kind == TREE) {
        p.m = rows, p.n = out, p.k = in, p.b_trans = !rows_out;
    } else if (kind == DX) {
        p.m = rows, p.n = in, p.k = out, p.b_trans = rows_out;
    } else {
        p.m = rows_out ? out : in, p.n = rows_out ? in : out, p.k = rows, p.a_trans = true, p.b_trans = true;
    }
    snprintf(p.name, sizeof(p.name), "%s %s, M=%u", layer, kind_names[kind], (unsigned)rows);
    return p;
}

static uint32_t list_products(struct product out[CASES_MAX])
{
    static const char *const layers[] = { "qkv", "proj", "fc1", "fc2", "head" };
    static const uint64_t in_out[][2] = { { 768, 2304 }, { 768, 768 }, { 768, 3072 }, { 3072, 768 }, { 768, 50304 } };
    static const uint64_t rows[] = { 512, 1024, 4096 };
    uint32_t count = 0;
    for (int r = 0; r < 3; r++) {
        for (int l = 0; l < 5; l++) {
            bool head = l == 4, splits = l == 1 || l == 3;
            for (int kind = 0; kind < KINDS && !(head && rows[r] > 1024); kind++) {
                if (kind != TREE || splits) {
                    out[count++] = make(layers[l], (enum kind)kind, rows[r], in_out[l], head);
                }
            }
        }
    }
    return count;
}

static void run_ours(struct bench *b, const struct product *p)
{
    struct gemm_piece piece[4];
    uint32_t segments = p->kind == TREE ? 4 : 1;
    for (uint32_t s = 0; s < segments; s++) {
        uint64_t k = p->k / segments, at = k * s;
        piece[s] = (struct gemm_piece){
            .a = { b->a + (p->a_trans ? at * p->m : at), p->a_trans ? p->m : p->k, p->a_trans },
            .b = { b->b + (p->b_trans ? at * p->n : at), p->b_trans ? p->n : p->k, p->b_trans },
            .k = k,
            .ends_segment = true,
        };
    }
    bool overflow = false;
    struct gemm_job job = { .m = p->m, .n = p->n, .pieces = piece, .pieces_count = segments };
    if (p->kind == GRAD) {
        job.grad = b->grad, job.ldg = p->n, job.unit = 1024, job.grad_scale = 0x1p20f, job.overflow = &overflow;
        job.grad_limit = FIXED_UNIT_LIMIT;
    } else {
        job.c = b->c, job.ldc = p->n;
    }
    kern_gemm(b->kern, &job);
}

static void run_theirs(struct bench *b, const struct product *p)
{
    dnnl_dim_t m = (dnnl_dim_t)p->m, n = (dnnl_dim_t)p->n, k = (dnnl_dim_t)p->k;
    /* row-major; our right operand is the transpose of theirs */
    dnnl_sgemm(p->a_trans ? 'T' : 'N', p->b_trans ? 'N' : 'T', m, n, k, 1.0f, b->a, p->a_trans ? m : k, b->b,
               p->b_trans ? n : k, 0.0f, b->c, n);
}

typedef void side_fn(struct bench *b, const struct product *p);

static double seconds_now(const struct bench *b)
{
    struct timespec t;
    if (b->threads == 1 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0) {
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return log_seconds();
}

static double time_side(struct bench *b, const struct product *p, side_fn *run)
{
    nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
    run(b, p); /* not counted: wakes the threads and lets the system put each on a core of its own */
    double start = seconds_now(b);
    run(b, p);
    return seconds_now(b) - start;
}

/* Prints one row; returns the ratio of speeds, ours over theirs. */
static double compare(struct bench *b, const struct product *p)
{
    double ours = 1e30, theirs = 1e30, work = 2e-9 * (double)p->m * (double)p->n * (double)p->k;
    for (uint32_t r = 0; r < b->repetitions; r++) {
        double t = time_side(b, p, run_ours);
        ours = t < ours ? t : ours;
        t = time_side(b, p, run_theirs);
        theirs = t < theirs ? t : theirs;
    }
    printf("%-34s %6u %6u %6u %9.1f %9.1f %7.3f\n", p->name, (unsigned)p->m, (unsigned)p->n, (unsigned)p->k,
           work / ours, work / theirs, theirs / ours);
    fflush(stdout);
    return theirs / ours;
}

static enum err bench_all(struct bench *b, const char *part)
{
    struct product list[CASES_MAX];
    uint32_t count = list_products(list), done = 0;
    double log_sum = 0, least = 1e30;
    printf("%-34s %6s %6s %6s %9s %9s %7s\n", "product", "m", "n", "k", "GFLOP/s", "oneDNN", "ratio");
    for (uint32_t i = 0; i < count; i++) {
        if (strstr(list[i].name, part) != NULL) {
            double ratio = compare(b, &list[i]);
            log_sum += fmath_log(ratio);
            least = ratio < least ? ratio : least;
            done++;
        }
    }
    if (done == 0) {
        return FAIL(ERR_USAGE, "\"%s\": no product has this in its name", part);
    }
    printf("geometric mean %.3f, least %.3f of %u; FMA peak %.1f GFLOP/s\n", fmath_exp(log_sum / done), least, done,
           kern_peak_gflops(b->kern));
    return OK;
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
    b.a = mem;
    b.b = b.a + big;
    b.c = b.b + wide;
    b.grad = (int64_t *)(void *)(b.c + big);
    for (size_t i = 0; i < big; i++) {
        b.a[i] = (float)(i % 1021) * 0x1p-10f - 0.5f;
    }
    for (size_t i = 0; i < (wide > small ? wide : small); i++) {
        b.b[i] = (float)(i % 2039) * 0x1p-12f - 0.25f;
    }
    memset(b.c, 0, big * sizeof(float));
    memset(b.grad, 0, wide * sizeof(int64_t));
    printf("\n%u thread%s, %s, best of %u\n", threads, threads == 1 ? "" : "s", kern_isa_name(isa), repetitions);
    err = bench_all(&b, part);
out:
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
