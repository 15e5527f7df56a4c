/* Norms, activations, embeddings, dropout and column sums: against double references and finite differences, and the
 * same bytes for every instruction set, thread count and division of the rows. */
#include "kern_each.h"

#include "base/pool.h"

#define ROWS_MAX 40u
#define COLS_MAX 1000u

static const uint64_t sizes[] = { 1, 15, 16, 17, 63, 65, 129, 1000 };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static float in_x[ROWS_MAX * COLS_MAX], in_dy[ROWS_MAX * COLS_MAX], in_up[ROWS_MAX * COLS_MAX];
static float in_dx[ROWS_MAX * COLS_MAX];
static float in_gain[COLS_MAX], in_bias[COLS_MAX], in_mean[ROWS_MAX], in_rstd[ROWS_MAX];

static void inputs(void)
{
    numbers(in_x, ROWS_MAX * COLS_MAX, 1, 1.5);
    numbers(in_dy, ROWS_MAX * COLS_MAX, 2, 1.0);
    numbers(in_up, ROWS_MAX * COLS_MAX, 3, 1.0);
    numbers(in_dx, ROWS_MAX * COLS_MAX, 4, 1.0);
    numbers(in_gain, COLS_MAX, 5, 1.0);
    numbers(in_bias, COLS_MAX, 6, 1.0);
    numbers(in_mean, ROWS_MAX, 7, 0.5);
    for (size_t t = 0; t < ROWS_MAX; t++) {
        in_rstd[t] = 0.5f + fabsf(in_mean[t]);
    }
}

static uint64_t rows_of_step(const struct shape *s, uint64_t t)
{
    return s->rows - t < s->step ? s->rows - t : s->step;
}

/* ---- norms ---- */

#define EPS 1e-5

/* The sum the contract defines: element i into lane i mod 16, ascending, then the tree 8, 4, 2, 1. */
static float lane_sum(const float *x, uint64_t n)
{
    float lane[16] = { 0 };
    for (uint64_t i = 0; i < n; i++) {
        lane[i % 16] += x[i];
    }
    for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) {
            lane[l] += lane[l + half];
        }
    }
    return lane[0];
}

/* One row of a norm in double; option 1: no mean is subtracted, 2: the gain has an offset, too. */
static void norm_row(const double *x, uint64_t cols, int rms, double *y, double *mean, double *rstd)
{
    double sum = 0, square = 0;
    for (uint64_t c = 0; c < cols; c++) {
        sum += x[c];
    }
    *mean = rms ? 0 : sum / (double)cols;
    for (uint64_t c = 0; c < cols; c++) {
        square += (x[c] - *mean) * (x[c] - *mean);
    }
    *rstd = 1 / sqrt(square / (double)cols + EPS);
    for (uint64_t c = 0; c < cols; c++) {
        y[c] = (x[c] - *mean) * *rstd * ((double)in_gain[c] + (rms == 2)) + (rms ? 0 : (double)in_bias[c]);
    }
}

static float offset_of(const struct shape *s)
{
    return s->option == 2 ? 1.0f : 0.0f;
}

static void norm_forward(struct kern *k, struct outs *o, const struct shape *s)
{
    float *y = outs_take(o, s->rows * s->cols, 4), *mean = outs_take(o, s->rows, 4), *rstd = outs_take(o, s->rows, 4);
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        uint64_t n = rows_of_step(s, t), at = t * s->cols;
        if (s->option) {
            kern_rmsnorm_forward(k, n, s->cols, in_x + at, in_gain, offset_of(s), (float)EPS, y + at, NUM_F32,
                                 rstd + t);
        } else {
            kern_layernorm_forward(k, n, s->cols, in_x + at, in_gain, in_bias, (float)EPS, y + at, NUM_F32, mean + t,
                                   rstd + t);
        }
    }
}

static void norms_forward_match_double(void **state)
{
    (void)state;
    static struct each e;
    static double x[COLS_MAX], y[COLS_MAX];
    each_open(&e);
    inputs();
    for (int rms = 0; rms < 3; rms++) {
        for (size_t i = 0; i < SIZES; i++) {
            struct shape s = { 7, sizes[i], 0, rms };
            const struct outs *o = each_run_split(&e, norm_forward, s);
            const float *got = outs_part(o, 0), *mean = outs_part(o, 1), *rstd = outs_part(o, 2);
            for (uint64_t t = 0; t < s.rows; t++) {
                double m, r;
                for (uint64_t c = 0; c < s.cols; c++) {
                    x[c] = (double)in_x[t * s.cols + c];
                }
                norm_row(x, s.cols, rms, y, &m, &r);
                assert_near("rstd", t, (double)rstd[t], r, 2e-6 * r);
                if (!rms) {
                    assert_near("mean", t, (double)mean[t], m, 1e-6);
                    float sum = lane_sum(in_x + t * s.cols, s.cols);
                    assert_true(mean[t] == sum / (float)s.cols);
                }
                for (uint64_t c = 0; c < s.cols; c++) {
                    assert_near("y", t * s.cols + c, (double)got[t * s.cols + c], y[c], 4e-6 * (1 + fabs(y[c])));
                }
            }
        }
    }
    each_close(&e);
}

static void norm_backward(struct kern *k, struct outs *o, const struct shape *s)
{
    float *dx = outs_take(o, s->rows * s->cols, 4);
    memcpy(dx, in_dx, s->rows * s->cols * 4);
    static float y[ROWS_MAX * COLS_MAX], mean[ROWS_MAX], rstd[ROWS_MAX];
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        uint64_t n = rows_of_step(s, t), at = t * s->cols;
        if (s->option) {
            kern_rmsnorm_forward(k, n, s->cols, in_x + at, in_gain, offset_of(s), (float)EPS, y, NUM_F32, rstd);
            kern_rmsnorm_backward(k, n, s->cols, in_x + at, in_gain, offset_of(s), rstd, in_dy + at, dx + at);
        } else {
            kern_layernorm_forward(k, n, s->cols, in_x + at, in_gain, in_bias, (float)EPS, y, NUM_F32, mean, rstd);
            kern_layernorm_backward(k, n, s->cols, in_x + at, in_gain, mean, rstd, in_dy + at, dx + at);
        }
    }
}

/* sum of dy * y of one row. */
static double norm_loss(const double *x, uint64_t cols, int rms, const float *dy)
{
    static double y[COLS_MAX];
    double mean, rstd, loss = 0;
    norm_row(x, cols, rms, y, &mean, &rstd);
    for (uint64_t c = 0; c < cols; c++) {
        loss += (double)dy[c] * y[c];
    }
    return loss;
}

static void norms_backward_match_finite_differences(void **state)
{
    (void)state;
    static struct each e;
    static double x[COLS_MAX];
    each_open(&e);
    inputs();
    for (int rms = 0; rms < 3; rms++) {
        for (size_t i = 1; i < SIZES; i++) {
            struct shape s = { 3, sizes[i], 0, rms };
            const struct outs *o = each_run_split(&e, norm_backward, s);
            const float *got = outs_part(o, 0);
            for (uint64_t t = 0; t < s.rows; t++) {
                for (uint64_t c = 0; c < s.cols; c++) {
                    x[c] = (double)in_x[t * s.cols + c];
                }
                for (uint64_t c = 0; c < s.cols; c++) {
                    const double h = 1e-4;
                    double at = x[c];
                    x[c] = at + h;
                    double up = norm_loss(x, s.cols, rms, in_dy + t * s.cols);
                    x[c] = at - h;
                    double down = norm_loss(x, s.cols, rms, in_dy + t * s.cols);
                    x[c] = at;
                    double want = (double)in_dx[t * s.cols + c] + (up - down) / (2 * h);
                    assert_near("dx", t * s.cols + c, (double)got[t * s.cols + c], want, 1e-5);
                }
            }
        }
    }
    each_close(&e);
}

/* ---- sums over rows ---- */

#define UNIT 11u
#define SCALE 0x1p40f

static int64_t start_value(uint64_t c)
{
    return (int64_t)c * 1000003 - 77;
}

/* options: 0 layer norm, 1 root mean square, 2 bias of a linear layer, 3 layer norm; 2 and 3: a slice of the columns */
static uint64_t column_ld(const struct shape *s)
{
    return s->option >= 2 ? COLS_MAX : s->cols;
}

static void column_sums(struct kern *k, struct outs *o, const struct shape *s)
{
    int64_t *gain = outs_take(o, s->cols, 8), *bias = outs_take(o, s->cols, 8);
    bool *overflow = outs_take(o, 2, sizeof(bool));
    overflow[0] = overflow[1] = false;
    for (uint64_t c = 0; c < s->cols; c++) {
        gain[c] = start_value(c);
        bias[c] = -start_value(c);
    }
    struct grad_sink gain_sink = { gain, UNIT, SCALE, FIXED_UNIT_LIMIT, &overflow[0] };
    struct grad_sink bias_sink = { bias, UNIT, SCALE, FIXED_UNIT_LIMIT, &overflow[1] };
    uint64_t ld = column_ld(s);
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        uint64_t n = rows_of_step(s, t);
        const float *dy = in_dy + t * ld, *x = in_x + t * ld;
        if (s->option == 2) {
            kern_bias_grad(k, n, s->cols, dy, ld, &bias_sink);
        } else if (s->option == 1) {
            kern_norm_grad(k, n, s->cols, ld, x, NULL, in_rstd + t, dy, &gain_sink, NULL);
        } else {
            kern_norm_grad(k, n, s->cols, ld, x, in_mean + t, in_rstd + t, dy, &gain_sink, &bias_sink);
        }
    }
}

/* The definition, one column at a time. */
static void column_reference(const struct shape *s, uint64_t c, int64_t *gain, int64_t *bias)
{
    uint64_t ld = column_ld(s);
    *gain = start_value(c);
    *bias = -start_value(c);
    for (uint64_t begin = 0; begin < s->rows; begin += UNIT) {
        float g = 0, b = 0;
        for (uint64_t t = begin; t < begin + UNIT && t < s->rows; t++) {
            float dy = in_dy[t * ld + c];
            float x = in_x[t * ld + c] - (s->option != 1 ? in_mean[t] : 0);
            g = fmaf(dy, x * in_rstd[t], g);
            b += dy;
        }
        *gain += s->option == 2 ? 0 : llrint((double)(g * SCALE));
        *bias += s->option == 1 ? 0 : llrint((double)(b * SCALE));
    }
}

static void sums_over_rows_are_one_chain_for_each_unit(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    inputs();
    for (int option = 0; option < 4; option++) {
        for (size_t i = 0; i < SIZES; i++) {
            for (uint64_t rows = 1; rows <= 29; rows += 7) {
                struct shape s = { rows, sizes[i], rows, option };
                const struct outs *o = each_run(&e, column_sums, &s);
                const int64_t *gain = outs_part(o, 0), *bias = outs_part(o, 1);
                const bool *overflow = outs_part(o, 2);
                assert_true(!overflow[0] && !overflow[1]);
                for (uint64_t c = 0; c < s.cols; c++) {
                    int64_t want_gain, want_bias;
                    column_reference(&s, c, &want_gain, &want_bias);
                    assert_true(gain[c] == want_gain && bias[c] == want_bias);
                }
                memcpy(e.whole.bytes, o->bytes, o->used);
                s.step = UNIT;
                each_run(&e, column_sums, &s);
                assert_memory_equal(e.whole.bytes, o->bytes, o->used);
            }
        }
    }
    each_close(&e);
}

static void overflow_of_a_sum_is_reported(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    inputs();
    struct shape s = { 20, 100, 20, 0 }; /* the second unit is rows 11 to 19 */
    const float bad[] = { 0x1p10f, -0x1p10f, NAN, INFINITY, -INFINITY };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        for (uint64_t t = UNIT; t < 20; t++) { /* times 2^40 the finite ones are at the limit */
            in_dy[t * 100 + 97] = t == 17 ? bad[i] : 0.0f;
        }
        const struct outs *o = each_run(&e, column_sums, &s);
        const bool *overflow = outs_part(o, 2);
        assert_true(overflow[1]);
        inputs();
    }
    for (uint64_t t = UNIT; t < 20; t++) {
        in_dy[t * 100 + 97] = 0.0f;
    }
    in_dy[17 * 100 + 97] = 0x1.fffffep9f; /* the last number below the limit */
    const struct outs *o = each_run(&e, column_sums, &s);
    const bool *overflow = outs_part(o, 2);
    assert_true(!overflow[1]);
    each_close(&e);
}

/* ---- activations ---- */

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double slope(double (*f)(double), double x)
{
    const double h = 1e-5;
    return (f(x + h) - f(x - h)) / (2 * h);
}

/* Element i of a sweep over what activations meet, also far outside. */
static void sweep(float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        double t = (double)i / (double)(n > 1 ? n - 1 : 1) * 2 - 1;
        x[i] = (float)(i % 3 == 0 ? t * 12 : i % 3 == 1 ? t * 3 : t * fabs(t) * 200);
    }
}

static void gelu_both(struct kern *k, struct outs *o, const struct shape *s)
{
    float *y = outs_take(o, s->cols, 4), *dx = outs_take(o, s->cols, 4), *in_place = outs_take(o, s->cols, 4);
    kern_gelu_forward(k, s->cols, in_x, NUM_F32, y);
    kern_gelu_backward(k, s->cols, in_x, NUM_F32, in_dy, dx);
    memcpy(in_place, in_dy, s->cols * 4);
    kern_gelu_backward(k, s->cols, in_x, NUM_F32, in_place, in_place);
    assert_memory_equal(dx, in_place, s->cols * 4);
}

static void gelu_matches_double(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    const uint64_t lengths[] = { 1, 15, 16, 17, 63, 65, 1000, 39999 };
    for (size_t i = 0; i < 8; i++) {
        inputs();
        sweep(in_x, lengths[i]);
        struct shape s = { 1, lengths[i], 1, 0 };
        const struct outs *o = each_run(&e, gelu_both, &s);
        const float *y = outs_part(o, 0), *dx = outs_part(o, 1);
        for (uint64_t c = 0; c < lengths[i]; c++) {
            double x = (double)in_x[c], dy = (double)in_dy[c];
            assert_near("y", c, (double)y[c], gelu(x), 1e-6 * fabs(gelu(x)) + 1e-9);
            assert_near("dx", c, (double)dx[c], dy * slope(gelu, x), 2e-6 * fabs(dy));
        }
    }
    each_close(&e);
}

static void swiglu_both(struct kern *k, struct outs *o, const struct shape *s)
{
    uint64_t n = s->cols;
    float *y = outs_take(o, n, 4), *d_gate = outs_take(o, n, 4), *d_up = outs_take(o, n, 4);
    float *again = outs_take(o, n, 4);
    float *gate_in_place = outs_take(o, n, 4), *up_in_place = outs_take(o, n, 4), *dy_in_place = outs_take(o, n, 4);
    kern_swiglu_forward(k, n, in_x, in_up, NUM_F32, y);
    kern_swiglu_backward(k, n, in_x, in_up, NUM_F32, in_dy, d_gate, d_up, again);
    assert_memory_equal(y, again, n * 4);
    memcpy(gate_in_place, in_x, n * 4);
    memcpy(up_in_place, in_up, n * 4);
    memcpy(dy_in_place, in_dy, n * 4);
    kern_swiglu_backward(k, n, gate_in_place, up_in_place, NUM_F32, dy_in_place, gate_in_place, up_in_place,
                         dy_in_place);
    assert_memory_equal(d_gate, gate_in_place, n * 4);
    assert_memory_equal(d_up, up_in_place, n * 4);
    assert_memory_equal(y, dy_in_place, n * 4);
    kern_swiglu_backward(k, n, in_x, in_up, NUM_F32, in_dy, gate_in_place, up_in_place, NULL);
    assert_memory_equal(d_gate, gate_in_place, n * 4);
}

static void swiglu_matches_double(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    const uint64_t lengths[] = { 1, 15, 16, 17, 63, 65, 1000, 30001 };
    for (size_t i = 0; i < 8; i++) {
        inputs();
        sweep(in_x, lengths[i]);
        struct shape s = { 1, lengths[i], 1, 0 };
        const struct outs *o = each_run(&e, swiglu_both, &s);
        const float *y = outs_part(o, 0), *d_gate = outs_part(o, 1), *d_up = outs_part(o, 2);
        for (uint64_t c = 0; c < lengths[i]; c++) {
            double x = (double)in_x[c], up = (double)in_up[c], dy = (double)in_dy[c];
            double tolerance = 1e-6 * fabs(silu(x));
            assert_near("y", c, (double)y[c], silu(x) * up, tolerance * fabs(up) + 1e-30);
            assert_near("d_up", c, (double)d_up[c], silu(x) * dy, tolerance * fabs(dy) + 1e-30);
            assert_near("d_gate", c, (double)d_gate[c], dy * up * slope(silu, x), 2e-6 * fabs(dy * up));
        }
    }
    each_close(&e);
}

/* ---- rotary embedding ---- */

#define POSITIONS 12u
static float table_cos[POSITIONS * 64], table_sin[POSITIONS * 64];

/* option 1: rotate forth and back; 2: only a part of each head */
static uint64_t rotary_of(const struct shape *s)
{
    return s->option & 2 ? (s->cols / 2 + 1) / 2 * 2 : s->cols;
}

static void rope_run(struct kern *k, struct outs *o, const struct shape *s)
{
    uint64_t head_dim = s->cols, heads = 3, ld = heads * head_dim + 5;
    float *x = outs_take(o, s->rows * ld, 4);
    memcpy(x, in_x, s->rows * ld * 4);
    struct rope r = { table_cos, table_sin, heads, head_dim, rotary_of(s), 2, POSITIONS - 2, false };
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        kern_rope(k, rows_of_step(s, t), x + t * ld, NUM_F32, ld, &r);
        r.first = 2 + (t + s->step) % (POSITIONS - 2);
    }
    if (s->option & 1) {
        r.first = 2;
        r.inverse = true;
        kern_rope(k, s->rows, x, NUM_F32, ld, &r);
    }
}

static void rope_tables(uint64_t rotary)
{
    for (uint64_t p = 0; p < POSITIONS; p++) {
        for (uint64_t d = 0; d < rotary / 2; d++) {
            double angle = (double)p * pow(10000, -2.0 * (double)d / (double)rotary);
            table_cos[p * rotary / 2 + d] = (float)cos(angle);
            table_sin[p * rotary / 2 + d] = (float)sin(angle);
        }
    }
}

static void check_rotated_row(const struct shape *s, uint64_t t, const float *x, const float *before)
{
    uint64_t dim = s->cols, rotary = rotary_of(s), half = rotary / 2;
    const float *cosine = table_cos + (2 + t) * half, *sine = table_sin + (2 + t) * half;
    for (uint64_t d = 0; d < 3 * dim; d++) {
        uint64_t in_head = d % dim, pair = in_head % half;
        if (in_head >= rotary) {
            assert_true(x[d] == before[d]);
            continue;
        }
        double low = (double)before[d - in_head + pair], high = (double)before[d - in_head + pair + half];
        double c = (double)cosine[pair], z = (double)sine[pair];
        double want = in_head < half ? low * c - high * z : high * c + low * z;
        assert_near("x", d, (double)x[d], want, 1e-6 * (fabs(low) + fabs(high)));
    }
    assert_memory_equal(x + 3 * dim, before + 3 * dim, 5 * 4);
}

static void rope_rotates_pairs_of_half_the_rotated_part(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    inputs();
    const uint64_t dims[] = { 2, 8, 16, 24, 32, 40, 64, 128 };
    for (size_t i = 0; i < 16; i++) {
        struct shape s = { 10, dims[i / 2], 0, i % 2 ? 2 : 0 };
        uint64_t ld = 3 * s.cols + 5;
        rope_tables(rotary_of(&s));
        const float *x = outs_part(each_run_split(&e, rope_run, s), 0);
        for (uint64_t t = 0; t < s.rows; t++) {
            check_rotated_row(&s, t, x + t * ld, in_x + t * ld);
        }
        s.rows = 25; /* positions come round after the period */
        s.option |= 1;
        s.step = s.rows;
        x = outs_part(each_run(&e, rope_run, &s), 0);
        for (uint64_t d = 0; d < s.rows * ld; d++) {
            assert_near("back", d, (double)x[d], (double)in_x[d], 2e-6 * (1 + fabs((double)in_x[d])));
        }
    }
    each_close(&e);
}

/* ---- embedding ---- */

#define VOCAB 7u
#define SPAN 9u /* positions from FIRST_POSITION on */
#define FIRST_POSITION 30
static int32_t tokens[ROWS_MAX], positions[ROWS_MAX];

/* Positions are not in order: a rank may hold two stretches of a sequence. */
static void choose_rows(void)
{
    for (size_t t = 0; t < ROWS_MAX; t++) {
        tokens[t] = (int32_t)(t * 3 % VOCAB);
        positions[t] = FIRST_POSITION + (int32_t)(t * 5 % SPAN);
    }
}

/* Which rows of the vocabulary are here, and whether there are positions. */
struct embed_case {
    uint64_t first, count;
    bool with_positions;
};
static const struct embed_case embed_cases[] = { { 0, VOCAB, false }, { 0, VOCAB, true }, { 0, 3, false },
                                                 { 3, 4, false },     { 2, 3, true },     { 9, 5, true } };
#define EMBED_CASES (sizeof(embed_cases) / sizeof(embed_cases[0]))

/* option: which case. in_x is the whole table. */
static void embed_run(struct kern *k, struct outs *o, const struct shape *s)
{
    const struct embed_case *c = &embed_cases[s->option];
    float *y = outs_take(o, s->rows * s->cols, 4);
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        const struct lookup token = { in_x + c->first * s->cols, tokens + t, c->first, c->count };
        const struct lookup position = { in_up, positions + t, FIRST_POSITION, SPAN };
        kern_embed_forward(k, rows_of_step(s, t), s->cols, &token, c->with_positions ? &position : NULL,
                           y + t * s->cols);
    }
}

static float embedded(const struct embed_case *c, uint64_t t, uint64_t cols, uint64_t column)
{
    uint64_t row = (uint64_t)tokens[t];
    bool here = row >= c->first && row < c->first + c->count;
    float v = here ? in_x[row * cols + column] : 0.0f;
    v = v == 0.0f || fabsf(v) < 0x1p-126f ? 0.0f : v; /* -0 and denormal numbers become +0 */
    return c->with_positions ? v + in_up[(uint64_t)(positions[t] - FIRST_POSITION) * cols + column] : v;
}

static void embedding_looks_up_rows_and_adds_positions(void **state)
{
    (void)state;
    static struct each e;
    static float want[ROWS_MAX * COLS_MAX];
    each_open(&e);
    inputs();
    choose_rows();
    for (uint64_t i = 0; i < VOCAB * COLS_MAX; i += 5) {
        in_x[i] = i % 2 == 0 ? -0.0f : -1e-40f;
        in_up[i] = i % 3 == 0 ? -0.0f : in_up[i];
    }
    for (size_t c = 0; c < EMBED_CASES; c++) {
        for (size_t i = 0; i < SIZES; i++) {
            struct shape s = { 13, sizes[i], 13, (int)c };
            const struct outs *o = each_run_split(&e, embed_run, s);
            for (uint64_t j = 0; j < s.rows * s.cols; j++) {
                want[j] = embedded(&embed_cases[c], j / s.cols, s.cols, j % s.cols);
            }
            assert_memory_equal(outs_part(o, 0), want, s.rows * s.cols * 4);
        }
    }
    each_close(&e);
}

/* option: which case; tables have a few columns more than are used */
static void embed_grad_run(struct kern *k, struct outs *o, const struct shape *s)
{
    const struct embed_case *c = &embed_cases[s->option];
    uint64_t ld = s->cols + 3;
    int64_t *grad = outs_take(o, c->count * ld, 8), *position_grad = outs_take(o, SPAN * ld, 8);
    bool *overflow = outs_take(o, 1, sizeof(bool));
    *overflow = false;
    for (uint64_t i = 0; i < c->count * ld; i++) {
        grad[i] = start_value(i);
    }
    memset(position_grad, 0, SPAN * ld * 8);
    struct embed_grad g = { s->rows, s->cols, ld, tokens, c->first, c->count, in_dy, grad, SCALE,
                            FIXED_UNIT_LIMIT, overflow };
    kern_embed_grad(k, &g);
    struct embed_grad of_positions = { s->rows, s->cols, ld, positions, FIRST_POSITION, SPAN, in_dy,
                                       position_grad, SCALE, FIXED_UNIT_LIMIT, overflow };
    kern_embed_grad(k, &of_positions);
}

static void check_embed_grad(struct each *e, const struct shape *s)
{
    static int64_t want[VOCAB * (COLS_MAX + 3)], want_position[SPAN * (COLS_MAX + 3)];
    const struct embed_case *c = &embed_cases[s->option];
    const struct outs *o = each_run(e, embed_grad_run, s);
    uint64_t ld = s->cols + 3;
    for (uint64_t i = 0; i < c->count * ld; i++) {
        want[i] = start_value(i);
    }
    memset(want_position, 0, sizeof(want_position));
    for (uint64_t t = 0; t < s->rows; t++) {
        uint64_t row = (uint64_t)tokens[t], position = (uint64_t)(positions[t] - FIRST_POSITION);
        for (uint64_t j = 0; j < s->cols; j++) {
            int64_t v = llrint((double)in_dy[t * ld + j] * (double)SCALE);
            want_position[position * ld + j] += v;
            if (row >= c->first && row < c->first + c->count) {
                want[(row - c->first) * ld + j] += v;
            }
        }
    }
    assert_memory_equal(outs_part(o, 0), want, c->count * ld * 8);
    assert_memory_equal(outs_part(o, 1), want_position, SPAN * ld * 8);
    assert_false(*(bool *)outs_part(o, 2));
}

static void embedding_gradient_is_an_exact_sum(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    choose_rows();
    for (size_t c = 0; c < EMBED_CASES; c++) {
        for (size_t i = 0; i < SIZES; i++) {
            inputs();
            struct shape s = { 23, sizes[i], 23, (int)c };
            check_embed_grad(&e, &s);
            in_dy[22 * (s.cols + 3) + s.cols] = NAN; /* beside the columns in use */
            check_embed_grad(&e, &s);
            in_dy[22 * (s.cols + 3) + s.cols - 1] = -0x1p10f;
            assert_true(*(bool *)outs_part(each_run(&e, embed_grad_run, &s), 2));
        }
    }
    each_close(&e);
}

/* ---- dropout ---- */

#define PERIOD 6u
static const int32_t dropout_positions[PERIOD] = { 0, 1, 70000, 3, 4, INT32_MAX };
static const double rates[] = { 0.1, 0.425, 0x1p-33, 1.0 - 0x1p-40 };
#define RATES ((int)(sizeof(rates) / sizeof(rates[0])))
#define EXACT_RATES 4 /* more: the word of columns 0 to 3 of the first row is just not below p 2^32 */

static uint32_t dropout_word(const struct dropout *d, uint64_t t, uint64_t column)
{
    uint64_t row = d->first_row + t;
    uint64_t a = (d->first_sample + row / PERIOD) * 65536 + d->site;
    uint64_t b = ((uint64_t)d->position[row % PERIOD] << 32) + column / 4;
    return rng_at(d->seed, RNG_DROPOUT, a, b).word[column % 4];
}

static struct dropout dropout_at(int option, uint64_t first_row)
{
    struct dropout d = {
        .seed = 42, .site = 65535 - (uint32_t)option, .first_sample = ((uint64_t)1 << 33) + 5,
        .period = PERIOD, .first_row = 4, .position = dropout_positions,
    };
    d.p = option < RATES ? rates[option] : dropout_word(&d, 0, (uint64_t)(option - RATES)) * 0x1p-32;
    d.first_row += first_row;
    return d;
}

/* option: which rate. Without a residual, with one, and over each of the inputs. */
static void dropout_run(struct kern *k, struct outs *o, const struct shape *s)
{
    uint64_t size = s->rows * s->cols;
    float *y = outs_take(o, size, 4), *sum = outs_take(o, size, 4), *in_place[2];
    for (int i = 0; i < 2; i++) {
        in_place[i] = outs_take(o, size, 4);
        memcpy(in_place[i], i == 0 ? in_x : in_dx, size * 4);
    }
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        struct dropout d = dropout_at(s->option, t);
        uint64_t n = rows_of_step(s, t), at = t * s->cols;
        kern_dropout(k, n, s->cols, in_x + at, NULL, y + at, &d);
        kern_dropout(k, n, s->cols, in_x + at, in_dx + at, sum + at, &d);
        kern_dropout(k, n, s->cols, in_place[0] + at, in_dx + at, in_place[0] + at, &d);
        kern_dropout(k, n, s->cols, in_x + at, in_place[1] + at, in_place[1] + at, &d);
    }
    assert_memory_equal(sum, in_place[0], size * 4);
    assert_memory_equal(sum, in_place[1], size * 4);
}

/* The definition; *dropped counts. */
static float dropped_or_scaled(const struct dropout *d, float x, uint64_t t, uint64_t column, uint64_t *dropped)
{
    bool drop = dropout_word(d, t, column) < (uint64_t)floor(d->p * 0x1p32);
    *dropped += drop;
    return drop ? 0.0f : x * (float)(1.0 / (1.0 - d->p));
}

static void dropout_depends_on_coordinates_only(void **state)
{
    (void)state;
    static struct each e;
    static float want[ROWS_MAX * COLS_MAX], want_sum[ROWS_MAX * COLS_MAX];
    each_open(&e);
    inputs();
    in_x[3] = -0.0f;
    in_dx[7] = -0.0f;
    in_x[COLS_MAX] = INFINITY;
    for (int option = 0; option < RATES + EXACT_RATES; option++) {
        for (size_t i = 0; i < SIZES; i++) {
            struct shape s = { 13, sizes[i], 13, option };
            uint64_t size = s.rows * s.cols, dropped = 0;
            const struct dropout d = dropout_at(option, 0);
            const struct outs *o = each_run_split(&e, dropout_run, s);
            for (uint64_t j = 0; j < size; j++) {
                want[j] = dropped_or_scaled(&d, in_x[j], j / s.cols, j % s.cols, &dropped);
                want_sum[j] = in_dx[j] + want[j];
            }
            assert_memory_equal(outs_part(o, 0), want, size * 4);
            assert_memory_equal(outs_part(o, 1), want_sum, size * 4);
            double spread = 5 * sqrt((double)size * d.p * (1 - d.p)) + 1e-3;
            assert_near("dropped", size, (double)dropped, (double)size * d.p, spread);
        }
    }
    each_close(&e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(norms_forward_match_double),
    cmocka_unit_test(norms_backward_match_finite_differences),
    cmocka_unit_test(sums_over_rows_are_one_chain_for_each_unit),
    cmocka_unit_test(overflow_of_a_sum_is_reported),
    cmocka_unit_test(gelu_matches_double),
    cmocka_unit_test(swiglu_matches_double),
    cmocka_unit_test(rope_rotates_pairs_of_half_the_rotated_part),
    cmocka_unit_test(embedding_looks_up_rows_and_adds_positions),
    cmocka_unit_test(embedding_gradient_is_an_exact_sum),
    cmocka_unit_test(dropout_depends_on_coordinates_only),
};
TEST_MAIN(tests)
