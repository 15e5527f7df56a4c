/* Norms, activations and rotary embedding where arrays are bf16: the function on widened numbers, rounded once where it
 * is stored, and the same bytes for every instruction set, thread count and division of the rows. */
#include "kern_each.h"

#include "base/bf16.h"
#include "base/pool.h"

#define ROWS_MAX 11u
#define COLS_MAX 1000u
#define SIZE_MAX_ELEMENTS (ROWS_MAX * COLS_MAX)
#define EPS 1e-5f

static const uint64_t sizes[] = { 1, 2, 15, 16, 17, 31, 33, 64, 129, 1000 };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static float in_x[SIZE_MAX_ELEMENTS], in_up[SIZE_MAX_ELEMENTS], in_dy[SIZE_MAX_ELEMENTS];
static float in_gain[COLS_MAX], in_bias[COLS_MAX];
static uint16_t half_x[SIZE_MAX_ELEMENTS], half_up[SIZE_MAX_ELEMENTS];

/* in_x and in_up are what half_x and half_up hold, widened. Among them are numbers far out, infinite ones and denormal
 * patterns. */
static void inputs(void)
{
    static const uint16_t odd[] = { 0x8000, 0x0001, 0x807f, 0x0080, 0x7f7f, 0xff7f, 0x7f80, 0xff80 };
    numbers(in_x, SIZE_MAX_ELEMENTS, 1, 3.0);
    numbers(in_up, SIZE_MAX_ELEMENTS, 2, 1.0);
    numbers(in_dy, SIZE_MAX_ELEMENTS, 3, 1.0);
    numbers(in_gain, COLS_MAX, 4, 1.0);
    numbers(in_bias, COLS_MAX, 5, 1.0);
    for (size_t i = 0; i < SIZE_MAX_ELEMENTS; i++) {
        half_x[i] = i % 37 == 0 ? odd[i / 37 % 8] : bf16_from_float(in_x[i]);
        half_up[i] = bf16_from_float(in_up[i]);
        in_x[i] = bf16_to_float(half_x[i]);
        in_up[i] = bf16_to_float(half_up[i]);
    }
}

static uint64_t rows_of_step(const struct shape *s, uint64_t t)
{
    return s->rows - t < s->step ? s->rows - t : s->step;
}

/* The sign and payload of a NaN are no part of the contract. */
static void plain_nans(float *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        p[i] = isnan(p[i]) ? NAN : p[i];
    }
}

static void plain_half_nans(uint16_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        p[i] = (p[i] & 0x7fff) > 0x7f80 ? 0x7fc0 : p[i];
    }
}

/* found[i] is wide[i] rounded. */
static void assert_rounded(uint16_t *found, float *wide, uint64_t n)
{
    plain_half_nans(found, n);
    plain_nans(wide, n);
    for (uint64_t i = 0; i < n; i++) {
        if (found[i] != bf16_from_float(wide[i])) {
            fail_msg("[%u]: %04x, %.9g rounded is %04x", (unsigned)i, found[i], (double)wide[i],
                     bf16_from_float(wide[i]));
        }
    }
}

static void assert_same(float *found, float *expected, uint64_t n)
{
    plain_nans(found, n);
    plain_nans(expected, n);
    assert_memory_equal(found, expected, n * sizeof(float));
}

/* ---- norms ---- */

/* option 1: root mean square; 2, 3: the same, and a row holds a NaN. Statistics are those of the fp32 form. */
static void norm_run(struct kern *k, struct outs *o, const struct shape *s)
{
    static float wide[SIZE_MAX_ELEMENTS], mean32[ROWS_MAX], rstd32[ROWS_MAX];
    uint64_t cols = s->cols, size = s->rows * cols;
    uint16_t *y = outs_take(o, size, 2);
    float *mean = outs_take(o, s->rows, 4), *rstd = outs_take(o, s->rows, 4);
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        uint64_t n = rows_of_step(s, t), at = t * cols;
        if (s->option % 2 == 1) {
            kern_rmsnorm_forward(k, n, cols, in_up + at, in_gain, 0.0f, EPS, y + at, NUM_BF16, rstd + t);
        } else {
            kern_layernorm_forward(k, n, cols, in_up + at, in_gain, in_bias, EPS, y + at, NUM_BF16, mean + t, rstd + t);
        }
    }
    if (s->option % 2 == 1) {
        kern_rmsnorm_forward(k, s->rows, cols, in_up, in_gain, 0.0f, EPS, wide, NUM_F32, rstd32);
    } else {
        kern_layernorm_forward(k, s->rows, cols, in_up, in_gain, in_bias, EPS, wide, NUM_F32, mean32, rstd32);
        assert_same(mean, mean32, s->rows);
    }
    assert_same(rstd, rstd32, s->rows);
    assert_rounded(y, wide, size);
}

static void norms_round_what_they_store(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    for (int option = 0; option < 4; option++) {
        inputs();
        in_up[0] = 1e-41f;
        in_up[2] = option >= 2 ? NAN : 0x1p-70f;
        for (size_t i = 0; i < SIZES; i++) {
            each_run_split(&e, norm_run, (struct shape){ 7, sizes[i], 0, option });
        }
    }
    each_close(&e);
}

/* ---- activations ---- */

/* option 1: one gate in three is a NaN. */
static void gelu_run(struct kern *k, struct outs *o, const struct shape *s)
{
    static float want_y[SIZE_MAX_ELEMENTS], want_dx[SIZE_MAX_ELEMENTS];
    uint64_t n = s->cols;
    float *y = outs_take(o, n, 4), *dx = outs_take(o, n, 4), *in_place = outs_take(o, n, 4);
    kern_gelu_forward(k, n, half_x, NUM_BF16, y);
    kern_gelu_backward(k, n, half_x, NUM_BF16, in_dy, dx);
    memcpy(in_place, in_dy, n * 4);
    kern_gelu_backward(k, n, half_x, NUM_BF16, in_place, in_place);
    kern_gelu_forward(k, n, in_x, NUM_F32, want_y);
    kern_gelu_backward(k, n, in_x, NUM_F32, in_dy, want_dx);
    assert_same(y, want_y, n);
    assert_same(dx, want_dx, n);
    assert_same(in_place, want_dx, n);
}

static void swiglu_run(struct kern *k, struct outs *o, const struct shape *s)
{
    static float want[4][SIZE_MAX_ELEMENTS];
    uint64_t n = s->cols;
    float *got[4];
    for (int i = 0; i < 4; i++) {
        got[i] = outs_take(o, n, 4);
    }
    memcpy(got[3], in_dy, n * 4);
    kern_swiglu_forward(k, n, half_x, half_up, NUM_BF16, got[0]);
    kern_swiglu_backward(k, n, half_x, half_up, NUM_BF16, got[3], got[1], got[2], got[3]); /* y over dy */
    kern_swiglu_forward(k, n, in_x, in_up, NUM_F32, want[0]);
    kern_swiglu_backward(k, n, in_x, in_up, NUM_F32, in_dy, want[1], want[2], want[3]);
    for (int i = 0; i < 4; i++) {
        assert_same(got[i], want[i], n);
    }
    kern_swiglu_backward(k, n, half_x, half_up, NUM_BF16, in_dy, got[1], got[2], NULL);
    assert_same(got[1], want[1], n);
    assert_same(got[2], want[2], n);
}

static void activations_widen_what_they_read(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    for (int option = 0; option < 2; option++) {
        inputs();
        for (size_t i = 0; option == 1 && i < SIZE_MAX_ELEMENTS; i += 3) {
            half_x[i] = 0x7fc1;
            in_x[i] = NAN;
        }
        for (size_t i = 0; i <= SIZES; i++) {
            struct shape s = { 1, i < SIZES ? sizes[i] : SIZE_MAX_ELEMENTS - 1, 1, option };
            each_run(&e, gelu_run, &s);
            each_run(&e, swiglu_run, &s);
        }
    }
    each_close(&e);
}

/* ---- rotary embedding ---- */

#define POSITIONS 7u
static float table_cos[POSITIONS * 64], table_sin[POSITIONS * 64];

/* option 1: the inverse. Beside the heads of a row nothing is touched. */
static void rope_run(struct kern *k, struct outs *o, const struct shape *s)
{
    static float wide[SIZE_MAX_ELEMENTS];
    uint64_t head_dim = s->cols, heads = 3, ld = heads * head_dim + 5;
    uint16_t *x = outs_take(o, s->rows * ld, 2);
    memcpy(x, half_x, s->rows * ld * 2);
    memcpy(wide, in_x, s->rows * ld * 4);
    struct rope r = { table_cos, table_sin, heads, head_dim, head_dim, 2, POSITIONS - 2, s->option == 1 };
    kern_rope(k, s->rows, wide, NUM_F32, ld, &r);
    for (uint64_t t = 0; t < s->rows; t += s->step) {
        r.first = 2 + t % (POSITIONS - 2);
        kern_rope(k, rows_of_step(s, t), x + t * ld, NUM_BF16, ld, &r);
    }
    for (uint64_t t = 0; t < s->rows; t++) {
        assert_rounded(x + t * ld, wide + t * ld, heads * head_dim);
        assert_memory_equal(x + t * ld + heads * head_dim, half_x + t * ld + heads * head_dim, 5 * 2);
    }
}

static void rope_rounds_what_it_stores(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    const uint64_t dims[] = { 2, 8, 16, 24, 32, 40, 64, 128 };
    inputs();
    numbers(table_cos, POSITIONS * 64, 6, 0.5);
    numbers(table_sin, POSITIONS * 64, 7, 0.5);
    for (size_t i = 0; i < 8; i++) {
        for (int option = 0; option < 2; option++) {
            struct shape s = { 5, dims[i], 5, option };
            each_run(&e, rope_run, &s);
            s.step = 1;
            each_run(&e, rope_run, &s);
            s.rows = 9; /* positions come round after the period of five */
            s.step = 5;
            each_run(&e, rope_run, &s);
        }
    }
    each_close(&e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(norms_round_what_they_store),
    cmocka_unit_test(activations_widen_what_they_read),
    cmocka_unit_test(rope_rounds_what_it_stores),
};
TEST_MAIN(tests)
