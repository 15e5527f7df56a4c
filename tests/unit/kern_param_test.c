/* Optimizer, exact norm, hash, initialisation and cross entropy: against exact integer or double references, and the
 * same bytes for every instruction set and thread count. */
#include "kern_each.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/fixed.h"
#include "base/hash.h"

#define N_MAX 40000u

static const uint64_t lengths[] = { 1, 15, 16, 17, 63, 65, 1000, 4099, 39999 };
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

static float in_p[N_MAX], in_m[N_MAX], in_v[N_MAX];
static int64_t in_grad[N_MAX];

/* Integers of every magnitude below 2^62, both signs. */
static void inputs(void)
{
    numbers(in_p, N_MAX, 1, 0.02);
    numbers(in_m, N_MAX, 2, 0.001);
    numbers(in_v, N_MAX, 3, 0.001);
    for (size_t i = 0; i < N_MAX; i++) {
        struct rng_block b = rng_at(5, RNG_TEST, i, 0);
        uint64_t magnitude = ((uint64_t)b.word[0] << 32 | b.word[1]) >> (2 + b.word[2] % 62);
        in_grad[i] = b.word[3] & 1 ? (int64_t)magnitude : -(int64_t)magnitude;
        in_v[i] = in_v[i] * in_v[i];
    }
}

/* ---- exact sum of squares ---- */

__extension__ typedef unsigned __int128 uint128;
__extension__ typedef __int128 int128;

/* A number as high * 2^64 + low. */
struct big {
    int128 high;
    uint64_t low;
};

static struct big big_of_limbs(const struct fixed_wide *w)
{
    int128 low = (int128)w->limb[0] + (int128)w->limb[1] * ((int128)1 << 40);
    int128 high = (int128)w->limb[2] + (int128)w->limb[3] * ((int128)1 << 40);
    return (struct big){ (low >> 64) + high * 65536, (uint64_t)low };
}

static struct big big_of_grads(const int64_t *grad, uint64_t n)
{
    uint128 high = 0, low = 0;
    for (uint64_t i = 0; i < n; i++) {
        float f = (float)(double)grad[i];
        int128 v = (int128)f; /* whole, below 2^64 */
        uint128 square = (uint128)(v < 0 ? -v : v) * (uint128)(v < 0 ? -v : v);
        high += square >> 64;
        low += (uint64_t)square;
    }
    return (struct big){ (int128)(high + (low >> 64)), (uint64_t)low };
}

static void square_run(struct kern *k, struct outs *o, const struct shape *s)
{
    struct fixed_wide *sum = outs_take(o, 1, sizeof(*sum));
    int64_t *grad = outs_take(o, s->cols, 8);
    bool *overflow = outs_take(o, 1, sizeof(bool));
    *overflow = false;
    memcpy(grad, in_grad, s->cols * 8);
    kern_grad_square_sum(k, s->cols, grad, sum, overflow);
}

static void check_square_sum(struct each *e, uint64_t n, bool overflow)
{
    struct shape s = { 1, n, 1, 0 };
    const struct outs *o = each_run(e, square_run, &s);
    struct big got = big_of_limbs(outs_part(o, 0)), want = big_of_grads(in_grad, n);
    assert_true(got.high == want.high && got.low == want.low);
    assert_int_equal(*(bool *)outs_part(o, 2), overflow);
}

static void sum_of_squares_equals_a_big_integer(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    inputs();
    for (size_t i = 0; i < LENGTHS; i++) {
        check_square_sum(&e, lengths[i], false);
    }
    const int64_t all[] = { 0, 1, -1, 0xffffff, 0x1000001, -0x1000003, 0x20000000000001, -0x3ffffffffffffff,
                            0x3fffff4000000000, 0x3fffffffffffffff, -0x3fffffffffffffff };
    for (size_t a = 0; a < sizeof(all) / sizeof(all[0]); a++) {
        for (size_t i = 0; i < N_MAX; i++) { /* the same value everywhere: the worst case of each accumulator */
            in_grad[i] = all[a];
        }
        check_square_sum(&e, N_MAX, false);
    }
    each_close(&e);
}

/* As many elements as a large embedding has, in the memory of a few: one file mapped again and again. */
#define MAPPED_BYTES ((size_t)1 << 20)
#define MAPPED_TIMES 256u

static int64_t *map_again_and_again(int64_t value)
{
    int fd = memfd_create("grads", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)MAPPED_BYTES) == 0);
    unsigned char *all = mmap(NULL, MAPPED_BYTES * MAPPED_TIMES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    for (size_t i = 0; i < MAPPED_TIMES; i++) {
        void *part = mmap(all + i * MAPPED_BYTES, MAPPED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        assert_true(part != MAP_FAILED);
    }
    close(fd);
    int64_t *grad = (int64_t *)(void *)all;
    for (size_t i = 0; i < MAPPED_BYTES / sizeof(*grad); i++) {
        grad[i] = value;
    }
    return grad;
}

static void sum_of_squares_of_a_large_tensor_does_not_overflow(void **state)
{
    (void)state;
    const uint64_t n = MAPPED_BYTES * MAPPED_TIMES / sizeof(int64_t); /* 2^25 */
    const int64_t value = (int64_t)0xb504f0 << 16; /* its square is just below 2^79: 2^39 in the second limb */
    int64_t *grad = map_again_and_again(value);
    struct pool *pool;
    struct kern *kern;
    enum isa isa;
    assert_int_equal(kern_choose_isa(&isa), OK);
    assert_int_equal(pool_new(&pool, 1), OK);
    assert_int_equal(kern_new(&kern, isa, pool), OK);
    struct fixed_wide sum;
    bool overflow = false;
    kern_grad_square_sum(kern, n, grad, &sum, &overflow);
    assert_false(overflow);
    assert_true(fixed_wide_value(&sum) == (double)value * (double)value * (double)n); /* 48 bits: exact */
    kern_free(kern);
    pool_free(pool);
    munmap(grad, MAPPED_BYTES * MAPPED_TIMES);
}

static void sum_of_squares_reports_large_gradients(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    const int64_t bad[] = { (int64_t)1 << 62, -((int64_t)1 << 62), INT64_MAX, INT64_MIN, INT64_MIN + 1 };
    for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
        inputs();
        in_grad[998] = bad[b];
        check_square_sum(&e, 998, false);
        check_square_sum(&e, 999, true);
        check_square_sum(&e, N_MAX, true);
    }
    const int64_t largest[] = { INT64_MIN, 0x7ffffd0000000000 /* the upper limb of its square is odd */ };
    for (size_t l = 0; l < 2; l++) {
        for (size_t i = 0; i < N_MAX; i++) {
            in_grad[i] = largest[l];
        }
        check_square_sum(&e, N_MAX, true);
    }
    each_close(&e);
}

/* ---- AdamW and hashes ---- */

static const struct adamw adamw = {
    .grad_factor = 0x1p-44 / 1000.0, .lr = 3e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
    .step_size = 3e-4f / 0.271f, .rsqrt_correction2 = 2.6f,
};
#define FIRST_INDEX 0xfffffff7u /* keys cross 32 bits */

static void adamw_run(struct kern *k, struct outs *o, const struct shape *s)
{
    uint64_t n = s->cols;
    float *p = outs_take(o, n, 4), *m = outs_take(o, n, 4), *v = outs_take(o, n, 4);
    int64_t *grad = outs_take(o, n, 8);
    uint64_t *hash = outs_take(o, 2, 8);
    memcpy(p, in_p, n * 4);
    memcpy(m, in_m, n * 4);
    memcpy(v, in_v, n * 4);
    memcpy(grad, in_grad, n * 8);
    kern_adamw(k, n, &adamw, p, m, v, grad, FIRST_INDEX, &hash[0]);
    hash[1] = kern_hash(k, n, p, FIRST_INDEX);
}

static void adamw_follows_its_definition(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    inputs();
    const struct adamw *a = &adamw;
    for (size_t l = 0; l < LENGTHS; l++) {
        struct shape s = { 1, lengths[l], 1, 0 };
        const struct outs *o = each_run(&e, adamw_run, &s);
        const float *p = outs_part(o, 0), *m = outs_part(o, 1), *v = outs_part(o, 2);
        const int64_t *grad = outs_part(o, 3);
        const uint64_t *got_hash = outs_part(o, 4);
        uint64_t hash = 0;
        for (uint64_t i = 0; i < s.cols; i++) {
            float g = (float)((double)in_grad[i] * a->grad_factor);
            float want_m = fmaf(a->beta1, in_m[i], (1.0f - a->beta1) * g);
            float want_v = fmaf(a->beta2, in_v[i], ((1.0f - a->beta2) * g) * g);
            float decayed = fmaf(-(a->lr * a->weight_decay), in_p[i], in_p[i]);
            float root = fmaf(sqrtf(want_v), a->rsqrt_correction2, a->eps);
            float want_p = fmaf(-a->step_size, want_m / root, decayed);
            assert_true(m[i] == want_m && v[i] == want_v && p[i] == want_p && grad[i] == 0);
            uint32_t bits;
            memcpy(&bits, &want_p, 4);
            hash += hash_element(FIRST_INDEX + i, bits);
        }
        assert_true(got_hash[0] == hash && got_hash[1] == hash);
    }
    each_close(&e);
}

static void adamw_takes_the_step_of_the_paper(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    inputs();
    struct shape s = { 1, 1000, 1, 0 };
    const float *p = outs_part(each_run(&e, adamw_run, &s), 0);
    for (uint64_t i = 0; i < s.cols; i++) {
        double g = (double)in_grad[i] * adamw.grad_factor;
        double m = 0.9 * (double)in_m[i] + 0.1 * g, v = 0.95 * (double)in_v[i] + 0.05 * g * g;
        double step = (double)adamw.step_size * m / (sqrt(v) * (double)adamw.rsqrt_correction2 + 1e-8);
        double want = (double)in_p[i] * (1 - 3e-4 * 0.1) - step;
        assert_near("p", i, (double)p[i], want, 1e-6 * (fabs(want) + fabs(step)));
    }
    each_close(&e);
}

static void hashes_of_parts_add_up(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    inputs();
    for (uint32_t i = 0; i < e.count; i++) {
        struct kern *k = e.variant[i].kern;
        uint64_t whole = kern_hash(k, 1000, in_p, 5);
        assert_true(whole == kern_hash(k, 37, in_p, 5) + kern_hash(k, 963, in_p + 37, 42));
        assert_true(whole != kern_hash(k, 1000, in_p, 6));
        assert_true(kern_hash(k, 0, in_p, 5) == 0);
    }
    each_close(&e);
}

/* ---- fill, conversion, initialisation ---- */

static void fill_run(struct kern *k, struct outs *o, const struct shape *s)
{
    float *filled = outs_take(o, s->cols, 4), *y = outs_take(o, s->cols, 4);
    kern_fill(k, s->cols, filled, -1.25f);
    kern_grad_to_float(k, s->cols, in_grad, 0x1.8p-40, y);
}

static void fill_and_conversion_are_exact(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    inputs();
    in_grad[1] = INT64_MIN;
    in_grad[2] = INT64_MAX;
    in_grad[3] = 0x7ffffffffffffc00; /* a tie of the conversion to double, to even */
    in_grad[4] = 0x7ffffffffffffbff;
    in_grad[5] = -0x0020000000000001; /* ties near 2^53 */
    in_grad[6] = 0x0020000000000003;
    for (size_t l = 0; l < LENGTHS; l++) {
        struct shape s = { 1, lengths[l], 1, 0 };
        const struct outs *o = each_run(&e, fill_run, &s);
        const float *filled = outs_part(o, 0), *y = outs_part(o, 1);
        for (uint64_t i = 0; i < s.cols; i++) {
            assert_true(filled[i] == -1.25f);
            assert_true(y[i] == (float)((double)in_grad[i] * 0x1.8p-40));
        }
    }
    each_close(&e);
}

static void init_run(struct kern *k, struct outs *o, const struct shape *s)
{
    float *p = outs_take(o, s->cols, 4);
    for (uint64_t i = 0; i < s->cols; i += s->step) {
        uint64_t n = s->cols - i < s->step ? s->cols - i : s->step;
        kern_init_normal(k, n, p + i, 11, 3, 8 + i, 0.02);
    }
}

static void initial_normals_depend_on_the_index_only(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    double sum = 0, square = 0;
    for (size_t l = 0; l < LENGTHS; l++) {
        struct shape s = { 1, lengths[l], lengths[l], 0 };
        const struct outs *o = each_run(&e, init_run, &s);
        const float *p = outs_part(o, 0);
        sum = square = 0;
        for (uint64_t i = 0; i < s.cols; i++) {
            double normal[4];
            rng_normal4(rng_at(11, RNG_INIT, 3, (8 + i) / 4), normal);
            assert_true(p[i] == (float)(normal[i % 4] * 0.02));
            sum += (double)p[i];
            square += (double)p[i] * (double)p[i];
        }
        memcpy(e.whole.bytes, o->bytes, o->used);
        s.step = 1000;
        each_run(&e, init_run, &s);
        assert_memory_equal(e.whole.bytes, o->bytes, o->used);
    }
    assert_near("mean", 0, sum / 39999, 0, 4 * 0.02 / 200);
    assert_near("deviation", 0, sqrt(square / 39999), 0.02, 4 * 0.02 / 283);
    each_close(&e);
}

/* ---- cross entropy ---- */

#define CE_ROWS 5u
#define CE_PADDED_MAX 2048u
#define LD_EXTRA 3u

struct ce_case {
    uint64_t vocab, padded;
    uint32_t segments;
};
static const struct ce_case ce_cases[] = {
    { 1, 128, 1 },     { 15, 128, 2 },    { 16, 128, 8 },     { 17, 128, 8 },    { 63, 128, 1 },  { 65, 128, 4 },
    { 128, 128, 8 },   { 1000, 1024, 8 }, { 1000, 1024, 1 },  { 77, 128, 1 },    { 2000, 2048, 4 }, { 100, 1024, 8 },
    { 13, 13, 1 },     { 50, 52, 4 },
};
#define CE_CASES (sizeof(ce_cases) / sizeof(ce_cases[0]))
static float in_logits[CE_ROWS * CE_PADDED_MAX];
static int32_t targets[CE_ROWS];

/* option: 0 loss only, 1 backward, +2 the padding holds NaN; cols: index of the case */
static void ce_run(struct kern *k, struct outs *o, const struct shape *s)
{
    const struct ce_case *c = &ce_cases[s->cols];
    uint64_t ld = c->padded + LD_EXTRA;
    float *loss = outs_take(o, CE_ROWS, 4), *logits = outs_take(o, CE_ROWS * ld, 4);
    for (uint64_t t = 0; t < CE_ROWS; t++) {
        for (uint64_t j = 0; j < ld; j++) {
            float padding = s->option & 2 ? NAN : 1e30f;
            logits[t * ld + j] = j < c->vocab ? in_logits[t * CE_PADDED_MAX + j] : j < c->padded ? padding : 9.5f;
        }
    }
    for (uint64_t t = 0; t < CE_ROWS; t += s->step) {
        uint64_t n = CE_ROWS - t < s->step ? CE_ROWS - t : s->step;
        kern_cross_entropy(k, n, c->vocab, c->padded, ld, c->segments, targets + t, logits + t * ld, loss + t,
                           (s->option & 1) != 0);
    }
}

static void ce_inputs(uint64_t vocab)
{
    numbers(in_logits, CE_ROWS * CE_PADDED_MAX, 21, 4.0);
    in_logits[CE_PADDED_MAX] = 90.0f; /* row 1: one column far above the others */
    for (uint64_t t = 0; t < CE_ROWS; t++) {
        targets[t] = t == 3 ? -1 : (int32_t)(t * 7919 % vocab);
    }
    targets[4] = (int32_t)vocab - 1;
}

static double ce_loss(const double *x, uint64_t vocab, uint64_t target)
{
    double max = x[0], sum = 0;
    for (uint64_t j = 0; j < vocab; j++) {
        max = fmax(max, x[j]);
    }
    for (uint64_t j = 0; j < vocab; j++) {
        sum += exp(x[j] - max);
    }
    return log(sum) + max - x[target];
}

/* The gradient of one row against finite differences (at most 40 columns of it) and the sum of the row. */
static void check_ce_row(const struct ce_case *c, uint64_t t, const float *grad)
{
    static double x[CE_PADDED_MAX];
    for (uint64_t j = 0; j < c->vocab; j++) {
        x[j] = (double)in_logits[t * CE_PADDED_MAX + j];
    }
    double sum = 0;
    for (uint64_t j = 0; j < c->vocab; j++) {
        sum += (double)grad[j];
        if (targets[t] < 0) {
            assert_true(grad[j] == 0);
        } else if (j % (c->vocab / 40 + 1) == 0 || j == (uint64_t)targets[t]) {
            const double h = 1e-5;
            double at = x[j];
            x[j] = at + h;
            double up = ce_loss(x, c->vocab, (uint64_t)targets[t]);
            x[j] = at - h;
            double down = ce_loss(x, c->vocab, (uint64_t)targets[t]);
            x[j] = at;
            assert_near("gradient", j, (double)grad[j], (up - down) / (2 * h), 1e-6);
        }
    }
    assert_near("sum of gradients", t, sum, 0, 1e-6);
    for (uint64_t j = c->vocab; j < c->padded + LD_EXTRA; j++) {
        assert_true(grad[j] == (j < c->padded ? 0.0f : 9.5f));
    }
}

static void cross_entropy_matches_double(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    for (size_t i = 0; i < CE_CASES; i++) {
        const struct ce_case *c = &ce_cases[i];
        ce_inputs(c->vocab);
        struct shape s = { CE_ROWS, i, CE_ROWS, 1 };
        const struct outs *o = each_run_split(&e, ce_run, s);
        float *loss = outs_part(o, 0), *grad = outs_part(o, 1);
        static double x[CE_PADDED_MAX];
        for (uint64_t t = 0; t < CE_ROWS; t++) {
            for (uint64_t j = 0; j < c->vocab; j++) {
                x[j] = (double)in_logits[t * CE_PADDED_MAX + j];
            }
            double want = targets[t] < 0 ? 0 : ce_loss(x, c->vocab, (uint64_t)targets[t]);
            assert_near("loss", t, (double)loss[t], want, 1e-6 * (1 + want));
            check_ce_row(c, t, grad + t * (c->padded + LD_EXTRA));
        }
        memcpy(e.whole.bytes, o->bytes, o->used);
        s.option = 3;
        s.step = CE_ROWS;
        each_run(&e, ce_run, &s); /* NaN in the padding changes nothing */
        assert_memory_equal(e.whole.bytes, o->bytes, o->used);
        float kept[CE_ROWS];
        memcpy(kept, loss, sizeof(kept));
        s.option = 0;
        each_run(&e, ce_run, &s); /* without backward: the same loss, logits untouched */
        assert_memory_equal(kept, loss, sizeof(kept));
        for (uint64_t t = 0; t < CE_ROWS; t++) {
            assert_memory_equal(grad + t * (c->padded + LD_EXTRA), in_logits + t * CE_PADDED_MAX, c->vocab * 4);
        }
    }
    each_close(&e);
}

static void cross_entropy_of_bad_logits_is_not_a_number(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    const float bad[] = { NAN, INFINITY, -NAN };
    for (size_t b = 0; b < 3; b++) {
        for (uint64_t column = 0; column < 1000; column += 333) {
            ce_inputs(1000);
            in_logits[column] = bad[b];
            struct shape s = { CE_ROWS, 7, CE_ROWS, 1 };
            const float *loss = outs_part(each_run(&e, ce_run, &s), 0);
            assert_true(loss[0] != loss[0] && loss[1] == loss[1]);
        }
    }
    each_close(&e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sum_of_squares_equals_a_big_integer),
    cmocka_unit_test(sum_of_squares_of_a_large_tensor_does_not_overflow),
    cmocka_unit_test(sum_of_squares_reports_large_gradients),
    cmocka_unit_test(adamw_follows_its_definition),
    cmocka_unit_test(adamw_takes_the_step_of_the_paper),
    cmocka_unit_test(hashes_of_parts_add_up),
    cmocka_unit_test(fill_and_conversion_are_exact),
    cmocka_unit_test(initial_normals_depend_on_the_index_only),
    cmocka_unit_test(cross_entropy_matches_double),
    cmocka_unit_test(cross_entropy_of_bad_logits_is_not_a_number),
};
TEST_MAIN(tests)
