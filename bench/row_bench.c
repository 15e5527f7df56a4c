/* How near the functions that go over rows, parameters and gradients come to the speed of memory, and what the loss
 * costs beside the products of its head. The measure of the first is an in-place stream: half as many bytes as the
 * function moves, each read and written once. Both run in turns in one process: ratios survive a busy machine.
 *
 *   bench_row [repetitions [threads]]      INVAR_ISA chooses the instruction set */
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "kern/kern.h"

#define REPETITIONS 15

/* GPT-2 124M: rows of a micro-batch, and as many parameters as no cache holds. */
#define ROWS 1024u
#define HIDDEN 768u
#define FFN 3072u
#define VOCAB 50257u
#define PADDED 50304u
#define HEAD_ROWS 512u
#define HEAD_UNIT 256u
#define PARAMS ((uint64_t)28 << 20)
#define FLOATS (5 * PARAMS) /* parameters, two moments, gradients; more than the head or a layer needs */

struct bench {
    struct kern *kern;
    struct pool *pool;
    uint32_t threads, repetitions;
    float *at; /* FLOATS */
    int32_t *index; /* ROWS */
    volatile uint64_t seen;
};

/* Processor time is blind to other processes, but not to our own waiting: wall time with several threads. */
static double seconds_now(const struct bench *b)
{
    struct timespec t;
    if (b->threads == 1 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0) {
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return log_seconds();
}

static float *at_floats(const struct bench *b, uint64_t first)
{
    return b->at + first;
}

static int64_t *at_grads(const struct bench *b, uint64_t first)
{
    return (int64_t *)(void *)(b->at + first);
}

/* Numbers of either type that no function finds special. */
static void set_up(struct bench *b)
{
    for (uint64_t i = 0; i < FLOATS; i++) {
        b->at[i] = (float)(i * 7919 % 1021) * 0x1p-9f - 1.0f;
    }
    for (uint32_t t = 0; t < ROWS; t++) {
        b->index[t] = (int32_t)(t * 7919 % VOCAB);
    }
}

/* ---- the measure ---- */

#define STREAM_FLOATS 65536u

struct stream {
    float *p;
    uint64_t n;
};

static void stream_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    const struct stream *s = arg;
    uint64_t begin = task * STREAM_FLOATS, count = s->n - begin < STREAM_FLOATS ? s->n - begin : STREAM_FLOATS;
    float *p = s->p + begin;
    for (uint64_t i = 0; i < count; i++) {
        p[i] *= -1.0f;
    }
}

static void read_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    const struct stream *s = arg;
    uint64_t begin = task * STREAM_FLOATS, count = s->n - begin < STREAM_FLOATS ? s->n - begin : STREAM_FLOATS;
    const uint32_t *p = (const uint32_t *)(const void *)(s->p + begin);
    uint32_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum += p[i];
    }
    if (sum == 1) {
        s->p[begin] = 0.5f; /* the sum is wanted */
    }
}

static void run_stream(const struct bench *b, uint64_t bytes, bool only_read)
{
    struct stream s = { b->at, bytes / sizeof(float) };
    pool_run(b->pool, s.n / STREAM_FLOATS + (s.n % STREAM_FLOATS != 0), only_read ? read_task : stream_task, &s);
}

/* ---- what is measured ---- */

static const struct rope rotary = { NULL, NULL, HIDDEN / 64, 64, 64, 0, ROWS, false };

static void layernorm_forward(struct bench *b)
{
    float *y = at_floats(b, ROWS * HIDDEN), *rest = y + ROWS * HIDDEN;
    kern_layernorm_forward(b->kern, ROWS, HIDDEN, b->at, rest, rest + HIDDEN, 1e-5f, y, NUM_F32, rest + 2 * HIDDEN,
                           rest + 3 * HIDDEN + ROWS);
}

static void rmsnorm_forward_bf16(struct bench *b)
{
    float *y = at_floats(b, ROWS * HIDDEN), *rest = y + ROWS * HIDDEN;
    kern_rmsnorm_forward(b->kern, ROWS, HIDDEN, b->at, rest, 0.0f, 1e-5f, y, NUM_BF16, rest + HIDDEN);
}

static void layernorm_backward(struct bench *b)
{
    float *dy = at_floats(b, ROWS * HIDDEN), *dx = dy + ROWS * HIDDEN, *rest = dx + ROWS * HIDDEN;
    kern_layernorm_backward(b->kern, ROWS, HIDDEN, b->at, rest, rest + HIDDEN, rest + HIDDEN + ROWS, dy, dx);
}

static void gelu_forward(struct bench *b)
{
    kern_gelu_forward(b->kern, ROWS * FFN, b->at, NUM_F32, at_floats(b, ROWS * FFN));
}

static void gelu_forward_bf16(struct bench *b)
{
    kern_gelu_forward(b->kern, ROWS * FFN, b->at, NUM_BF16, at_floats(b, ROWS * FFN));
}

static void gelu_backward(struct bench *b)
{
    float *dy = at_floats(b, ROWS * FFN);
    kern_gelu_backward(b->kern, ROWS * FFN, b->at, NUM_F32, dy, dy);
}

static void swiglu_forward(struct bench *b)
{
    float *up = at_floats(b, ROWS * FFN);
    kern_swiglu_forward(b->kern, ROWS * FFN, b->at, up, NUM_F32, up + ROWS * FFN);
}

static void swiglu_backward(struct bench *b)
{
    float *up = at_floats(b, ROWS * FFN), *dy = up + ROWS * FFN;
    kern_swiglu_backward(b->kern, ROWS * FFN, b->at, up, NUM_F32, dy, b->at, up, dy);
}

static void rope(struct bench *b)
{
    struct rope r = rotary;
    r.cos_table = at_floats(b, ROWS * HIDDEN);
    r.sin_table = r.cos_table + ROWS * 32;
    kern_rope(b->kern, ROWS, b->at, NUM_F32, HIDDEN, &r);
}

static void embedding(struct bench *b)
{
    const struct lookup token = { b->at, b->index, 0, VOCAB };
    kern_embed_forward(b->kern, ROWS, HIDDEN, &token, NULL, at_floats(b, (uint64_t)VOCAB * HIDDEN));
}

static void adamw(struct bench *b)
{
    const struct adamw a = { .grad_factor = 0x1p-70, .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                             .weight_decay = 0.1f, .step_size = 1e-4f, .rsqrt_correction2 = 1.0f };
    const struct box_map map = { 0, PARAMS, PARAMS };
    uint64_t hash;
    kern_adamw(b->kern, PARAMS, &a, b->at, at_floats(b, PARAMS), at_floats(b, 2 * PARAMS), at_grads(b, 3 * PARAMS),
               &map, 0, &hash);
    b->seen += hash;
}

static void square_sum(struct bench *b)
{
    struct fixed_wide sum;
    bool overflow = false;
    kern_grad_square_sum(b->kern, PARAMS, at_grads(b, 0), &sum, &overflow);
    b->seen += (uint64_t)sum.limb[0];
}

static void cross_entropy(struct bench *b)
{
    float *loss = at_floats(b, (uint64_t)HEAD_ROWS * PADDED);
    kern_cross_entropy(b->kern, HEAD_ROWS, VOCAB, PADDED, PADDED, 1, b->index, b->at, loss, true);
}

/* bytes: read and written together */
static const struct line {
    const char *name;
    void (*run)(struct bench *b);
    uint64_t bytes;
    bool only_read;
} lines[] = {
    { "layer norm forward", layernorm_forward, 8 * ROWS * HIDDEN, false },
    { "rms norm forward, bf16", rmsnorm_forward_bf16, 6 * ROWS * HIDDEN, false },
    { "layer norm backward", layernorm_backward, 16 * ROWS * HIDDEN, false },
    { "GELU forward", gelu_forward, 8 * ROWS * FFN, false },
    { "GELU forward, bf16", gelu_forward_bf16, 6 * ROWS * FFN, false },
    { "GELU backward", gelu_backward, 12 * ROWS * FFN, false },
    { "SwiGLU forward", swiglu_forward, 12 * ROWS * FFN, false },
    { "SwiGLU backward", swiglu_backward, 24 * ROWS * FFN, false },
    { "rotary embedding", rope, 8 * ROWS * HIDDEN, false },
    { "embedding", embedding, 8 * ROWS * HIDDEN, false },
    { "loss and gradient", cross_entropy, 8 * (uint64_t)HEAD_ROWS * PADDED, false },
    { "AdamW", adamw, 40 * PARAMS, false },
    { "gradient norm", square_sum, 8 * PARAMS, true },
};

static void bench_line(struct bench *b, const struct line *l)
{
    double stream = 1e30, own = 1e30;
    set_up(b);
    for (uint32_t r = 0; r < b->repetitions; r++) {
        double start = seconds_now(b);
        run_stream(b, l->only_read ? l->bytes : l->bytes / 2, l->only_read);
        double middle = seconds_now(b);
        l->run(b);
        double end = seconds_now(b);
        stream = middle - start < stream ? middle - start : stream;
        own = end - middle < own ? end - middle : own;
    }
    printf("%-24s %9.3f %9.1f %9.1f %9.2f\n", l->name, own * 1e3, 1e-9 * (double)l->bytes / own,
           1e-9 * (double)l->bytes / stream, stream / own);
    fflush(stdout);
}

/* ---- the loss beside the products of its head ---- */

static void product(struct bench *b, const struct gemm_mat *left, const struct gemm_mat *right, uint64_t sum,
                    struct gemm_job job)
{
    const struct gemm_piece piece = { *left, *right, sum, true };
    job.pieces = &piece;
    job.pieces_count = 1;
    kern_gemm(b->kern, &job);
}

static void bench_head(struct bench *b)
{
    bool overflow = false;
    float *logits = b->at, *x = logits + (uint64_t)HEAD_ROWS * PADDED, *dx = x + HEAD_ROWS * HIDDEN;
    float *loss = dx + HEAD_ROWS * HIDDEN, *w = loss + HEAD_ROWS;
    int64_t *grad = at_grads(b, FLOATS - 2 * (uint64_t)PADDED * HIDDEN);
    struct gemm_mat rows = { logits, PADDED, false, NUM_F32 }, cols = { logits, PADDED, true, NUM_F32 };
    struct gemm_mat in = { x, HIDDEN, false, NUM_F32 }, in_cols = { x, HIDDEN, true, NUM_F32 };
    struct gemm_mat weight = { w, HIDDEN, false, NUM_F32 }, weight_cols = { w, HIDDEN, true, NUM_F32 };
    struct gemm_job forward = { .m = HEAD_ROWS, .n = PADDED, .c = logits, .ldc = PADDED };
    struct gemm_job back = { .m = HEAD_ROWS, .n = HIDDEN, .c = dx, .ldc = HIDDEN };
    struct gemm_job weight_grad = { .m = PADDED, .n = HIDDEN, .grad = grad, .ldg = HIDDEN, .unit = HEAD_UNIT,
                                    .grad_scale = 0x1p20f, .grad_limit = FIXED_UNIT_LIMIT, .overflow = &overflow };
    double best[4] = { 1e30, 1e30, 1e30, 1e30 };
    set_up(b);
    for (uint32_t r = 0; r < b->repetitions / 4 + 1; r++) {
        double t[5] = { seconds_now(b) };
        product(b, &in, &weight, HIDDEN, forward);
        t[1] = seconds_now(b);
        kern_cross_entropy(b->kern, HEAD_ROWS, VOCAB, PADDED, PADDED, 1, b->index, logits, loss, true);
        t[2] = seconds_now(b);
        product(b, &rows, &weight_cols, PADDED, back);
        t[3] = seconds_now(b);
        product(b, &cols, &in_cols, HEAD_ROWS, weight_grad);
        t[4] = seconds_now(b);
        for (int i = 0; i < 4; i++) {
            best[i] = t[i + 1] - t[i] < best[i] ? t[i + 1] - t[i] : best[i];
        }
    }
    double products = best[0] + best[2] + best[3];
    printf("head, %u rows: logits %.1f ms, loss %.1f, dx %.1f, dw %.1f: %.3f of its products\n", HEAD_ROWS,
           best[0] * 1e3, best[1] * 1e3, best[2] * 1e3, best[3] * 1e3, (products + best[1]) / products);
}

/* ---- what follows a product, done with it and after it ---- */

static const struct follow {
    const char *name;
    enum gemm_then_kind kind;
    uint64_t n, k;
} follows[] = {
    { "up, GELU", GEMM_THEN_GELU, FFN, HIDDEN },
    { "queries, rotary", GEMM_THEN_ROPE, HIDDEN, HIDDEN },
    { "output, layer norm", GEMM_THEN_LAYERNORM, HIDDEN, HIDDEN },
    { "down, layer norm", GEMM_THEN_LAYERNORM, HIDDEN, FFN },
};

static void after(struct bench *b, const struct gemm_job *job, const struct gemm_then *then)
{
    switch (then->kind) {
    case GEMM_THEN_GELU: kern_gelu_forward(b->kern, job->m * job->n, job->c, NUM_F32, then->y); break;
    case GEMM_THEN_ROPE: kern_rope(b->kern, job->m, job->c, NUM_F32, job->ldc, then->rope); break;
    default:
        kern_layernorm_forward(b->kern, job->m, job->n, job->c, then->gain, then->bias, then->eps, then->y, NUM_F32,
                               then->mean, then->rstd);
    }
}

static void bench_follow(struct bench *b, const struct follow *f)
{
    float *c = b->at, *y = c + ROWS * FFN, *x = y + ROWS * FFN, *w = x + ROWS * FFN, *rest = w + FFN * HIDDEN;
    struct rope r = rotary;
    r.cos_table = rest;
    r.sin_table = rest + ROWS * 32;
    struct gemm_then then = { .kind = f->kind, .y = y, .rope = &r, .gain = rest, .bias = rest + HIDDEN, .eps = 1e-5f,
                              .mean = rest + ROWS * 64, .rstd = rest + ROWS * 65 };
    struct gemm_mat left = { x, f->k, false, NUM_F32 }, right = { w, f->n, true, NUM_F32 };
    struct gemm_job job = { .m = ROWS, .n = f->n, .c = c, .ldc = f->n, .bias = rest };
    double with = 1e30, apart = 1e30;
    set_up(b);
    for (uint32_t i = 0; i < b->repetitions; i++) {
        double start = seconds_now(b);
        job.then = &then;
        product(b, &left, &right, f->k, job);
        double middle = seconds_now(b);
        job.then = NULL;
        product(b, &left, &right, f->k, job);
        after(b, &job, &then);
        double end = seconds_now(b);
        with = middle - start < with ? middle - start : with;
        apart = end - middle < apart ? end - middle : apart;
    }
    printf("%-24s with its product %.3f ms, after it %.3f: %.3f\n", f->name, with * 1e3, apart * 1e3, with / apart);
}

static enum err bench_threads(uint32_t threads, uint32_t repetitions)
{
    struct bench b = { .threads = threads, .repetitions = repetitions };
    int32_t index[ROWS];
    enum isa isa;
    enum err err = OK;
    b.index = index;
    TRY_OUT(kern_choose_isa(&isa));
    TRY_OUT(pool_new(&b.pool, threads));
    TRY_OUT(kern_new(&b.kern, isa, b.pool));
    TRY_OUT(mem_big_alloc((void **)&b.at, FLOATS * sizeof(float)));
    printf("\n%u thread%s, %s, best of %u\n", threads, threads == 1 ? "" : "s", kern_isa_name(isa), repetitions);
    printf("%-24s %9s %9s %9s %9s\n", "", "ms", "GB/s", "stream", "ratio");
    for (uint64_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        bench_line(&b, &lines[i]);
    }
    for (uint64_t i = 0; i < sizeof(follows) / sizeof(follows[0]); i++) {
        bench_follow(&b, &follows[i]);
    }
    bench_head(&b);
out:
    mem_big_free(b.at, FLOATS * sizeof(float));
    kern_free(b.kern);
    pool_free(b.pool);
    return err;
}

int main(int argc, char **argv)
{
    uint32_t repetitions = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : REPETITIONS;
    uint32_t threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    enum err err = OK;
    for (uint32_t t = 1; t <= pool_cores() && err == OK; t *= 2) {
        if (threads == 0 || threads == t) {
            err = bench_threads(t, repetitions > 0 ? repetitions : 1);
        }
    }
    if (err != OK) {
        err_print();
    }
    return err_exit_code(err);
}
