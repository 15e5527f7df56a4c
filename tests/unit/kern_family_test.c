/* What families of models other than GPT-2 and Llama need: the norm of heads, exact GELU, GeGLU, the soft cap and
 * scaling. Against double references and finite differences; the same bytes for every instruction set, thread count and
 * division of the rows; bf16 arrays as widened numbers, rounded once where they are stored. */
#include "kern_each.h"

#include "base/bf16.h"
#include "base/pool.h"

#define FLOATS 20000u
#define EPS 1e-5f
#define GAP 5u /* elements after the heads of a row */

static float in_x[FLOATS], in_dy[FLOATS], in_up[FLOATS], in_gain[512], in_rstd[512];
static uint16_t half_x[FLOATS], half_up[FLOATS];

/* in_x and in_up are what half_x and half_up hold, widened, where `bf16`. */
static void inputs(bool bf16)
{
    numbers(in_x, FLOATS, 1, 1.5);
    numbers(in_dy, FLOATS, 2, 1.0);
    numbers(in_up, FLOATS, 3, 1.0);
    numbers(in_gain, 512, 4, 1.0);
    numbers(in_rstd, 512, 5, 0.3);
    for (size_t i = 0; i < FLOATS; i++) {
        half_x[i] = bf16_from_float(in_x[i]);
        half_up[i] = bf16_from_float(in_up[i]);
        in_x[i] = bf16 ? bf16_to_float(half_x[i]) : in_x[i];
        in_up[i] = bf16 ? bf16_to_float(half_up[i]) : in_up[i];
    }
}

static uint64_t rows_of_step(const struct shape *s, uint64_t t)
{
    return s->rows - t < s->step ? s->rows - t : s->step;
}

/* ---- norm of heads: shape.cols is head_dim, option a sum of these ---- */

enum { BF16_IN = 1, BF16_OUT = 2, WITH_OFFSET = 4, HEADS = 8 /* times their number */ };

struct heads {
    uint64_t count, dim, ld;
    enum num in, out;
    float offset;
    const void *x;
};

static struct heads heads_of(const struct shape *s)
{
    struct heads h = { .count = (uint64_t)s->option / HEADS, .dim = s->cols };
    h.ld = h.count * h.dim + GAP;
    h.in = s->option & BF16_IN ? NUM_BF16 : NUM_F32;
    h.out = s->option & BF16_OUT ? NUM_BF16 : NUM_F32;
    h.offset = s->option & WITH_OFFSET ? 1.0f : 0.0f;
    h.x = h.in == NUM_BF16 ? (const void *)half_x : in_x;
    return h;
}

static void head_forward(struct kern *k, struct outs *o, const struct shape *s)
{
    struct heads h = heads_of(s);
    uint64_t size = s->rows * h.ld;
    void *y = outs_take(o, size, num_bytes(h.out)), *in_place = outs_take(o, size, num_bytes(h.in));
    float *rstd = outs_take(o, s->rows * h.count, 4), *again = outs_take(o, s->rows * h.count, 4);
    memcpy(in_place, h.x, size * num_bytes(h.in));
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        uint64_t n = rows_of_step(s, t), at = t * h.ld;
        kern_headnorm_forward(k, n, h.count, h.dim, num_at(h.x, h.in, at), h.in, h.ld, in_gain, h.offset, EPS,
                              num_at_mut(y, h.out, at), h.out, h.ld, rstd + t * h.count);
        void *same = num_at_mut(in_place, h.in, at);
        kern_headnorm_forward(k, n, h.count, h.dim, same, h.in, h.ld, in_gain, h.offset, EPS, same, h.in, h.ld,
                              again + t * h.count);
    }
    assert_memory_equal(rstd, again, s->rows * h.count * 4);
    for (uint64_t t = 0; t < s->rows && h.in == h.out; t++) {
        uint64_t at = t * h.ld;
        assert_memory_equal(num_at(y, h.in, at), num_at(in_place, h.in, at), h.count * h.dim * num_bytes(h.in));
    }
    for (uint64_t t = 0; t < s->rows; t++) { /* the gap */
        uint64_t at = t * h.ld + h.count * h.dim;
        assert_memory_equal(num_at(h.x, h.in, at), num_at(in_place, h.in, at), GAP * num_bytes(h.in));
    }
}

static double head_rstd(const double *x, uint64_t dim)
{
    double square = 0;
    for (uint64_t d = 0; d < dim; d++) {
        square += x[d] * x[d];
    }
    return 1 / sqrt(square / (double)dim + (double)EPS);
}

static void widen(double *out, const float *in, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        out[i] = (double)in[i];
    }
}

static void check_head_forward(struct each *e, struct shape s)
{
    struct heads h = heads_of(&s);
    const struct outs *o = each_run_split(e, head_forward, s);
    const void *y = outs_part(o, 0);
    const float *rstd = outs_part(o, 2);
    static double x[512];
    for (uint64_t i = 0; i < s.rows * h.count; i++) {
        uint64_t at = i / h.count * h.ld + i % h.count * h.dim;
        widen(x, in_x + at, h.dim);
        double want_rstd = head_rstd(x, h.dim);
        assert_near("rstd", i, (double)rstd[i], want_rstd, 2e-6 * want_rstd);
        for (uint64_t d = 0; d < h.dim; d++) {
            double want = x[d] * want_rstd * ((double)h.offset + (double)in_gain[d]);
            float got = h.out == NUM_F32 ? ((const float *)y)[at + d] : bf16_to_float(((const uint16_t *)y)[at + d]);
            double tolerance = h.out == NUM_F32 ? 2e-6 : 0x1.01p-8;
            assert_near("y", at + d, (double)got, want, tolerance * fabs(want) + 1e-12);
        }
    }
}

static void head_backward(struct kern *k, struct outs *o, const struct shape *s)
{
    struct heads h = heads_of(s);
    uint64_t size = s->rows * h.ld, lddx = h.ld + 3;
    float *dx = outs_take(o, s->rows * lddx, 4), *in_place = outs_take(o, size, 4);
    memcpy(in_place, in_dy, size * 4);
    static float y[FLOATS], rstd[FLOATS];
    kern_headnorm_forward(k, s->rows, h.count, h.dim, h.x, h.in, h.ld, in_gain, h.offset, EPS, y, NUM_F32, h.ld, rstd);
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        uint64_t n = rows_of_step(s, t), at = t * h.ld;
        const void *x = num_at(h.x, h.in, at);
        kern_headnorm_backward(k, n, h.count, h.dim, x, h.in, h.ld, in_gain, h.offset, rstd + t * h.count, in_dy + at,
                               h.ld, dx + t * lddx, lddx);
        kern_headnorm_backward(k, n, h.count, h.dim, x, h.in, h.ld, in_gain, h.offset, rstd + t * h.count,
                               in_place + at, h.ld, in_place + at, h.ld);
    }
    for (uint64_t t = 0; t < s->rows; t++) {
        assert_memory_equal(dx + t * lddx, in_place + t * h.ld, h.count * h.dim * 4);
        assert_memory_equal(in_dy + t * h.ld + h.count * h.dim, in_place + t * h.ld + h.count * h.dim, GAP * 4);
    }
}

/* sum of dy * y of one head. */
static double head_loss(const struct heads *h, const double *x, const float *dy)
{
    double rstd = head_rstd(x, h->dim), loss = 0;
    for (uint64_t d = 0; d < h->dim; d++) {
        loss += (double)dy[d] * x[d] * rstd * ((double)h->offset + (double)in_gain[d]);
    }
    return loss;
}

static void check_head_backward(struct each *e, struct shape s)
{
    struct heads h = heads_of(&s);
    const float *dx = outs_part(each_run_split(e, head_backward, s), 0);
    static double x[512];
    for (uint64_t i = 0; i < s.rows * h.count; i++) {
        uint64_t t = i / h.count, head = i % h.count * h.dim, at = t * h.ld + head;
        widen(x, in_x + at, h.dim);
        for (uint64_t d = 0; d < h.dim; d++) {
            const double step = 1e-5;
            double middle = x[d];
            x[d] = middle + step;
            double up = head_loss(&h, x, in_dy + at);
            x[d] = middle - step;
            double down = head_loss(&h, x, in_dy + at);
            x[d] = middle;
            assert_near("dx", at + d, (double)dx[t * (h.ld + 3) + head + d], (up - down) / (2 * step), 2e-5);
        }
    }
}

static void each_head_shape(struct each *e, void (*check)(struct each *e, struct shape s))
{
    const uint64_t dims[] = { 8, 16, 24, 64, 128, 264 }, counts[] = { 1, 2, 3 };
    for (int i = 0; i < 6 * 3 * 8; i++) {
        inputs((i & BF16_IN) != 0);
        check(e, (struct shape){ 5, dims[i / 8 % 6], 0, (int)counts[i / 48] * HEADS + i % 8 });
    }
}

static void norm_of_heads_matches_double(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    each_head_shape(&e, check_head_forward);
    each_head_shape(&e, check_head_backward);
    each_close(&e);
}

#define UNIT 4u
#define SCALE 0x1p40f

/* All heads in one call, then the first alone and the others: the sums must be the same integers. */
static void head_grad(struct kern *k, struct outs *o, const struct shape *s)
{
    struct heads h = heads_of(s);
    int64_t *whole = outs_take(o, h.dim, 8), *divided = outs_take(o, h.dim, 8);
    bool *overflow = outs_take(o, 1, sizeof(bool));
    *overflow = false;
    for (uint64_t d = 0; d < h.dim; d++) {
        whole[d] = divided[d] = (int64_t)d * 1000003 - 77;
    }
    struct grad_sink sink = { whole, UNIT, SCALE, FIXED_UNIT_LIMIT, overflow };
    kern_headnorm_grad(k, s->rows, h.count, h.dim, h.x, h.in, h.ld, in_rstd, in_dy, h.ld, &sink);
    sink.grad = divided;
    for (uint64_t first = 0; first < h.count; first++) {
        float rstd[64];
        for (uint64_t t = 0; t < s->rows; t++) {
            rstd[t] = in_rstd[t * h.count + first];
        }
        kern_headnorm_grad(k, s->rows, 1, h.dim, num_at(h.x, h.in, first * h.dim), h.in, h.ld, rstd,
                           in_dy + first * h.dim, h.ld, &sink);
    }
    assert_memory_equal(whole, divided, h.dim * 8);
}

static void check_head_grad(struct each *e, struct shape s)
{
    struct heads h = heads_of(&s);
    s.rows = 11;
    const struct outs *o = each_run(e, head_grad, &s);
    const int64_t *got = outs_part(o, 0);
    for (uint64_t d = 0; d < h.dim; d++) {
        int64_t want = (int64_t)d * 1000003 - 77;
        for (uint64_t head = 0; head < h.count; head++) {
            for (uint64_t first = 0; first < s.rows; first += UNIT) {
                float chain = 0;
                for (uint64_t t = first; t < first + UNIT && t < s.rows; t++) {
                    uint64_t at = t * h.ld + head * h.dim + d;
                    chain = fmaf(in_dy[at], in_x[at] * in_rstd[t * h.count + head], chain);
                }
                want += llrint((double)(chain * SCALE));
            }
        }
        assert_true(got[d] == want);
    }
    assert_false(*(const bool *)outs_part(o, 2));
    uint64_t last = 10 * h.ld + h.count * h.dim - 1;
    in_dy[last] = NAN;
    assert_true(*(const bool *)outs_part(each_run(e, head_grad, &s), 2));
}

static void gain_of_heads_has_one_chain_for_each_unit_and_head(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    each_head_shape(&e, check_head_grad);
    each_close(&e);
}

/* ---- activations: shape.cols numbers; option: bf16 ---- */

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_erf(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2));
}

static double slope(double (*f)(double), double x)
{
    const double h = 1e-5;
    return (f(x + h) - f(x - h)) / (2 * h);
}

/* What activations meet, also far outside. */
static void sweep(uint64_t n, bool bf16)
{
    inputs(bf16);
    for (uint64_t i = 0; i < n; i++) {
        double t = (double)i / (double)(n > 1 ? n - 1 : 1) * 2 - 1;
        in_x[i] = (float)(i % 3 == 0 ? t * 12 : i % 3 == 1 ? t * 3 : t * fabs(t) * 200);
        half_x[i] = bf16_from_float(in_x[i]);
        in_x[i] = bf16 ? bf16_to_float(half_x[i]) : in_x[i];
    }
}

static void gelu_both(struct kern *k, struct outs *o, const struct shape *s)
{
    enum num type = s->option ? NUM_BF16 : NUM_F32;
    const void *x = s->option ? (const void *)half_x : in_x;
    float *y = outs_take(o, s->cols, 4), *dx = outs_take(o, s->cols, 4), *in_place = outs_take(o, s->cols, 4);
    kern_gelu_erf_forward(k, s->cols, x, type, y);
    kern_gelu_erf_backward(k, s->cols, x, type, in_dy, dx);
    memcpy(in_place, in_dy, s->cols * 4);
    kern_gelu_erf_backward(k, s->cols, x, type, in_place, in_place);
    assert_memory_equal(dx, in_place, s->cols * 4);
}

static void geglu_both(struct kern *k, struct outs *o, const struct shape *s)
{
    uint64_t n = s->cols;
    enum num type = s->option ? NUM_BF16 : NUM_F32;
    const void *gate = s->option ? (const void *)half_x : in_x, *up = s->option ? (const void *)half_up : in_up;
    float *y = outs_take(o, n, 4), *d_gate = outs_take(o, n, 4), *d_up = outs_take(o, n, 4);
    float *dy_in_place = outs_take(o, n, 4), *gate_in_place = outs_take(o, n, 4), *up_in_place = outs_take(o, n, 4);
    kern_geglu_forward(k, n, gate, up, type, y);
    memcpy(dy_in_place, in_dy, n * 4);
    kern_geglu_backward(k, n, gate, up, type, dy_in_place, d_gate, d_up, dy_in_place);
    assert_memory_equal(y, dy_in_place, n * 4);
    memcpy(gate_in_place, in_x, n * 4);
    memcpy(up_in_place, in_up, n * 4);
    kern_geglu_backward(k, n, gate_in_place, up_in_place, NUM_F32, in_dy, gate_in_place, up_in_place, NULL);
    assert_memory_equal(d_gate, gate_in_place, n * 4); /* in_x and in_up are the widened numbers */
    assert_memory_equal(d_up, up_in_place, n * 4);
}

static const uint64_t lengths[] = { 1, 15, 16, 17, 65, 1000, 19999 };
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

static void gelu_by_erf_matches_double(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    for (size_t i = 0; i < 2 * LENGTHS; i++) {
        struct shape s = { 1, lengths[i / 2], 1, (int)(i % 2) };
        sweep(s.cols, s.option == 1);
        const struct outs *o = each_run(&e, gelu_both, &s);
        const float *y = outs_part(o, 0), *dx = outs_part(o, 1);
        for (uint64_t c = 0; c < s.cols; c++) {
            double x = (double)in_x[c], dy = (double)in_dy[c];
            assert_near("y", c, (double)y[c], gelu_erf(x), 1.5e-7 * fabs(x) + 1e-9);
            assert_near("dx", c, (double)dx[c], dy * slope(gelu_erf, x), 1e-6 * fabs(dy));
        }
    }
    each_close(&e);
}

static void geglu_matches_double(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    for (size_t i = 0; i < 2 * LENGTHS; i++) {
        struct shape s = { 1, lengths[i / 2], 1, (int)(i % 2) };
        sweep(s.cols, s.option == 1);
        const struct outs *o = each_run(&e, geglu_both, &s);
        const float *y = outs_part(o, 0), *d_gate = outs_part(o, 1), *d_up = outs_part(o, 2);
        for (uint64_t c = 0; c < s.cols; c++) {
            double x = (double)in_x[c], up = (double)in_up[c], dy = (double)in_dy[c];
            double tolerance = 1e-6 * fabs(gelu_tanh(x)) + 1e-9;
            assert_near("y", c, (double)y[c], gelu_tanh(x) * up, tolerance * (fabs(up) + 1));
            assert_near("d_up", c, (double)d_up[c], gelu_tanh(x) * dy, tolerance * (fabs(dy) + 1));
            assert_near("d_gate", c, (double)d_gate[c], dy * up * slope(gelu_tanh, x), 2e-6 * fabs(dy * up));
        }
    }
    each_close(&e);
}

/* ---- soft cap and scale ---- */

#define CAP 30.0f

static void cap_and_scale(struct kern *k, struct outs *o, const struct shape *s)
{
    uint64_t n = s->cols;
    float *y = outs_take(o, n, 4), *dx = outs_take(o, n, 4), *scaled = outs_take(o, n, 4);
    memcpy(y, in_x, n * 4);
    memcpy(dx, in_dy, n * 4);
    memcpy(scaled, in_x, n * 4);
    kern_softcap_forward(k, n, CAP, y);
    kern_softcap_backward(k, n, CAP, y, dx);
    kern_scale(k, n, scaled, 45.25f);
}

static double capped(double x)
{
    return (double)CAP * tanh(x / (double)CAP);
}

static void soft_cap_and_scale_match_double(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    for (size_t i = 0; i < LENGTHS; i++) {
        struct shape s = { 1, lengths[i], 1, 0 };
        sweep(s.cols, false);
        const struct outs *o = each_run(&e, cap_and_scale, &s);
        const float *y = outs_part(o, 0), *dx = outs_part(o, 1), *scaled = outs_part(o, 2);
        for (uint64_t c = 0; c < s.cols; c++) {
            double x = (double)in_x[c], dy = (double)in_dy[c];
            assert_near("y", c, (double)y[c], capped(x), 4e-7 * fabs(capped(x)));
            assert_near("dx", c, (double)dx[c], dy * slope(capped, x), 1e-6 * fabs(dy));
            assert_true(scaled[c] == in_x[c] * 45.25f);
        }
    }
    each_close(&e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(norm_of_heads_matches_double),
    cmocka_unit_test(gain_of_heads_has_one_chain_for_each_unit_and_head),
    cmocka_unit_test(gelu_by_erf_matches_double),
    cmocka_unit_test(geglu_matches_double),
    cmocka_unit_test(soft_cap_and_scale_match_double),
};
TEST_MAIN(tests)
