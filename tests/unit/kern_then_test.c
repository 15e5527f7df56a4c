/* What follows a product on whole rows of C: the bytes of the product and of the separate function after it, for every
 * instruction set and thread count, however the product is blocked. */
#include "kern_each.h"

#include "base/bf16.h"
#include "base/hash.h"
#include "base/pool.h"

#define EPS 1e-5f
#define HEAD_DIM 6u
#define PERIOD 7u
#define GAP 5u /* elements after each row of a rotated C */

/* Few rows, rows that end a block, several chunks of the summed dimension, a tree, more blocks of rows than are counted
 * at once, and several blocks of columns: that one takes its time, and rotations show what is done too often. */
struct size {
    uint64_t m, n, k, segments;
};
static const struct size sizes[] = {
    { 1, 33, 20, 1 },   { 64, 48, 70, 4 }, { 65, 7, 3, 1 },      { 96, 130, 40, 2 }, { 97, 6, 1200, 4 },
    { 200, 96, 33, 1 }, { 389, 54, 8, 8 }, { 130, 50, 1200, 1 }, { 6200, 6, 2, 1 },  { 66, 2310, 1000, 1 },
};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define A_MAX ((size_t)130 * 1200)
#define B_MAX ((size_t)2310 * 1000)
#define C_MAX ((size_t)66 * (2310 + GAP))
#define ROWS_MAX 6200u

static uint16_t half_gate[C_MAX];
static float a[A_MAX], b[B_MAX], gate[C_MAX], bias[2310], gain[2310], shift[2310], table[2][16 * HEAD_DIM];
/* Of the product with what follows, and of separate calls. */
static struct result {
    float c[C_MAX], y[C_MAX], mean[ROWS_MAX], rstd[ROWS_MAX];
} together, apart;

static const struct then_case {
    enum gemm_then_kind kind;
    enum num c_type, y_type;
} cases[] = {
    { GEMM_THEN_ROPE, NUM_F32, NUM_F32 },       { GEMM_THEN_ROPE, NUM_BF16, NUM_F32 },
    { GEMM_THEN_LAYERNORM, NUM_F32, NUM_F32 },  { GEMM_THEN_LAYERNORM, NUM_F32, NUM_BF16 },
    { GEMM_THEN_RMSNORM, NUM_F32, NUM_F32 },    { GEMM_THEN_RMSNORM, NUM_F32, NUM_BF16 },
    { GEMM_THEN_GELU, NUM_F32, NUM_F32 },       { GEMM_THEN_GELU, NUM_BF16, NUM_F32 },
    { GEMM_THEN_SWIGLU, NUM_F32, NUM_F32 },     { GEMM_THEN_SWIGLU, NUM_BF16, NUM_F32 },
    { GEMM_THEN_GELU_ERF, NUM_F32, NUM_F32 },   { GEMM_THEN_GELU_ERF, NUM_BF16, NUM_F32 },
    { GEMM_THEN_GEGLU, NUM_F32, NUM_F32 },      { GEMM_THEN_GEGLU, NUM_BF16, NUM_F32 },
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static struct rope rope_of(const struct size *s)
{
    return (struct rope){ table[0], table[1], s->n / HEAD_DIM, HEAD_DIM, s->m % 2 ? 4 : HEAD_DIM, 2, PERIOD, false };
}

static void apart_after(struct kern *k, const struct gemm_job *job, const struct gemm_then *then)
{
    uint64_t n = job->m * job->n;
    switch (then->kind) {
    case GEMM_THEN_GELU: kern_gelu_forward(k, n, job->c, job->c_type, apart.y); break;
    case GEMM_THEN_SWIGLU: kern_swiglu_forward(k, n, then->gate, job->c, job->c_type, apart.y); break;
    case GEMM_THEN_GELU_ERF: kern_gelu_erf_forward(k, n, job->c, job->c_type, apart.y); break;
    case GEMM_THEN_GEGLU: kern_geglu_forward(k, n, then->gate, job->c, job->c_type, apart.y); break;
    case GEMM_THEN_ROPE: kern_rope(k, job->m, job->c, job->c_type, job->ldc, then->rope); break;
    case GEMM_THEN_LAYERNORM:
        kern_layernorm_forward(k, job->m, job->n, job->c, gain, shift, EPS, apart.y, then->y_type, apart.mean,
                               apart.rstd);
        break;
    case GEMM_THEN_RMSNORM:
        kern_rmsnorm_forward(k, job->m, job->n, job->c, gain, then->offset, EPS, apart.y, then->y_type, apart.rstd);
        break;
    }
}

/* option: the case, and which size. An fp32 C is its own residual, as a residual stream is; a bf16 one is of a product
 * of bf16 numbers. */
static void then_run(struct kern *k, struct outs *o, const struct shape *shape)
{
    const struct then_case *t = &cases[(size_t)shape->option % CASES];
    const struct size *s = &sizes[(size_t)shape->option / CASES];
    const struct rope rope = rope_of(s);
    const bool bf16 = t->c_type == NUM_BF16;
    struct gemm_piece piece[8];
    for (uint64_t p = 0; p < s->segments; p++) {
        uint64_t lo = s->k * p / s->segments, hi = s->k * (p + 1) / s->segments;
        piece[p] = (struct gemm_piece){ { a + lo, s->k, false, NUM_F32 }, { b + lo * s->n, s->n, true, NUM_F32 },
                                        hi - lo, true };
    }
    const struct gemm_then then = {
        .kind = t->kind, .y = together.y, .y_type = t->y_type, .rope = &rope, .gain = gain, .bias = shift, .eps = EPS,
        .offset = s->m % 2 ? 1.0f : 0.0f,
        .gate = bf16 ? (const void *)half_gate : gate, .mean = together.mean, .rstd = together.rstd,
    };
    uint64_t ld = s->n + (t->kind == GEMM_THEN_ROPE ? GAP : 0);
    struct gemm_job job = { .m = s->m, .n = s->n, .pieces = piece, .pieces_count = (uint32_t)s->segments, .bf16 = bf16,
                            .c = together.c, .c_type = t->c_type, .ldc = ld, .bias = bias,
                            .residual = bf16 ? NULL : together.c, .ldr = ld, .then = &then };
    for (uint64_t i = 0; i < C_MAX; i++) {
        together.c[i] = apart.c[i] = gate[C_MAX - 1 - i];
        together.y[i] = apart.y[i] = 0.75f;
    }
    memset(together.mean, 0, sizeof(together.mean) + sizeof(together.rstd));
    memset(apart.mean, 0, sizeof(apart.mean) + sizeof(apart.rstd));
    kern_gemm(k, &job);
    job.c = apart.c;
    job.residual = bf16 ? NULL : apart.c;
    job.then = NULL;
    kern_gemm(k, &job);
    apart_after(k, &job, &then);
    assert_memory_equal(&together, &apart, sizeof(together)); /* to the last byte: nothing beside them is written */
    uint64_t *sum = outs_take(o, 1, sizeof(*sum));
    *sum = hash64(&together, sizeof(together), 0);
}

static void rows_are_finished_as_by_separate_calls(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    numbers(a, A_MAX, 1, 0.3);
    numbers(b, B_MAX, 2, 0.3);
    numbers(gate, C_MAX, 3, 2.0);
    for (size_t i = 0; i < C_MAX; i++) {
        half_gate[i] = bf16_from_float(gate[i]);
    }
    numbers(bias, 2310, 4, 1.0);
    numbers(gain, 2310, 5, 1.0);
    numbers(shift, 2310, 6, 1.0);
    numbers(table[0], 2 * 16 * HEAD_DIM, 7, 0.5);
    for (size_t option = 0; option < CASES * (SIZES - 1) + 1; option++) {
        each_run(&e, then_run, &(struct shape){ .option = (int)option });
    }
    each_close(&e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rows_are_finished_as_by_separate_calls),
};
TEST_MAIN(tests)
