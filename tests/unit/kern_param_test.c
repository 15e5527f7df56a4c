/* Optimizer, exact norm, hash and initialisation, of whole tensors and of boxes: against exact integer or double
 * references, and the same bytes for every instruction set and thread count. */
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

/* Boxes of [rows][ld] tensors, and where in the box the elements begin. */
struct box_case {
    struct box_map map;
    uint64_t begin;
};
static const struct box_case boxes[] = {
    { { 0xfffffff7u, 40000, 40000 }, 0 }, /* contiguous; keys cross 32 bits */
    { { 3, 16, 16 }, 21 },                /* contiguous, although it has many rows */
    { { 0, 384, 768 }, 0 },  { { 384, 384, 768 }, 384 * 5 }, { { 0xffffff00u, 48, 50 }, 17 }, { { 1, 1, 3 }, 4 },
    { { 7, 15, 40 }, 14 },   { { 1ull << 40, 129, 1000 }, 128 }, { { 0, 17, 18 }, 16 },
};
#define BOXES (sizeof(boxes) / sizeof(boxes[0]))

/* The index of element i of the pointers. */
static uint64_t index_in(const struct box_case *b, uint64_t i)
{
    return b->map.first + (b->begin + i) / b->map.cols * b->map.ld + (b->begin + i) % b->map.cols;
}

static uint64_t hash_of(const struct box_case *b, const float *p, uint64_t n)
{
    uint64_t hash = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &p[i], 4);
        hash += hash_element(index_in(b, i), bits);
    }
    return hash;
}

/* option: which box */
static void adamw_run(struct kern *k, struct outs *o, const struct shape *s)
{
    const struct box_case *b = &boxes[s->option];
    uint64_t n = s->cols;
    float *p = outs_take(o, n, 4), *m = outs_take(o, n, 4), *v = outs_take(o, n, 4);
    int64_t *grad = outs_take(o, n, 8);
    uint64_t *hash = outs_take(o, 2, 8);
    memcpy(p, in_p, n * 4);
    memcpy(m, in_m, n * 4);
    memcpy(v, in_v, n * 4);
    memcpy(grad, in_grad, n * 8);
    kern_adamw(k, n, &adamw, p, m, v, grad, &b->map, b->begin, &hash[0]);
    hash[1] = kern_hash(k, n, p, &b->map, b->begin);
}

static void adamw_follows_its_definition(void **state)
{
    (void)state;
    static struct each e;
    static float want_p[N_MAX], want_m[N_MAX], want_v[N_MAX];
    static const int64_t zero[N_MAX];
    each_open(&e);
    inputs();
    const struct adamw *a = &adamw;
    for (uint64_t i = 0; i < N_MAX; i++) {
        float g = (float)((double)in_grad[i] * a->grad_factor);
        want_m[i] = fmaf(a->beta1, in_m[i], (1.0f - a->beta1) * g);
        want_v[i] = fmaf(a->beta2, in_v[i], ((1.0f - a->beta2) * g) * g);
        float root = fmaf(sqrtf(want_v[i]), a->rsqrt_correction2, a->eps);
        want_p[i] = fmaf(-a->step_size, want_m[i] / root, fmaf(-(a->lr * a->weight_decay), in_p[i], in_p[i]));
    }
    for (size_t b = 0; b < BOXES; b++) {
        for (size_t l = 0; l < LENGTHS; l++) {
            uint64_t n = lengths[l], hash = hash_of(&boxes[b], want_p, n);
            struct shape s = { 1, n, 1, (int)b };
            const struct outs *o = each_run(&e, adamw_run, &s);
            const uint64_t *got_hash = outs_part(o, 4);
            assert_memory_equal(outs_part(o, 0), want_p, n * 4);
            assert_memory_equal(outs_part(o, 1), want_m, n * 4);
            assert_memory_equal(outs_part(o, 2), want_v, n * 4);
            assert_memory_equal(outs_part(o, 3), zero, n * 8);
            assert_true(got_hash[0] == hash && got_hash[1] == hash);
        }
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

/* Rows [0, rows) of columns [lo, hi) of a tensor [][ld], packed. */
static void cut(const float *p, const int64_t *grad, uint64_t rows, uint64_t ld, uint64_t lo, uint64_t hi, float *p_box,
                int64_t *grad_box)
{
    for (uint64_t r = 0; r < rows; r++) {
        memcpy(p_box + r * (hi - lo), p + r * ld + lo, (hi - lo) * sizeof(*p));
        memcpy(grad_box + r * (hi - lo), grad + r * ld + lo, (hi - lo) * sizeof(*grad));
    }
}

static void hashes_of_boxes_add_up(void **state)
{
    (void)state;
    static struct each e;
    static float p[N_MAX];
    static int64_t grad[N_MAX];
    each_open(&e);
    inputs();
    const uint64_t rows = 200, ld = 200, borders[] = { 0, 1, 17, 96, 200 };
    const struct box_map all = { 5, ld, ld };
    for (uint32_t i = 0; i < e.count; i++) {
        struct kern *k = e.variant[i].kern;
        uint64_t whole = kern_hash(k, rows * ld, in_p, &all, 0), sum = 0;
        uint64_t whole_i64 = kern_hash_i64(k, rows * ld, in_grad, &all, 0), sum_i64 = 0;
        for (size_t b = 0; b < 4; b++) {
            uint64_t cols = borders[b + 1] - borders[b], n = rows * cols, part = n / 3;
            const struct box_map map = { 5 + borders[b], cols, ld };
            cut(in_p, in_grad, rows, ld, borders[b], borders[b + 1], p, grad);
            sum += kern_hash(k, part, p, &map, 0) + kern_hash(k, n - part, p + part, &map, part);
            sum_i64 += kern_hash_i64(k, part, grad, &map, 0) + kern_hash_i64(k, n - part, grad + part, &map, part);
        }
        assert_true(sum == whole && sum_i64 == whole_i64);
        const struct box_map moved = { 6, ld, ld };
        assert_true(whole != kern_hash(k, rows * ld, in_p, &moved, 0));
        assert_true(whole_i64 != kern_hash_i64(k, rows * ld, in_grad, &moved, 0));
        assert_true(kern_hash(k, 0, in_p, &all, 0) == 0 && kern_hash_i64(k, 0, in_grad, &all, 0) == 0);
    }
    each_close(&e);
}

/* ---- integers: hash and sum ---- */

static void integers_run(struct kern *k, struct outs *o, const struct shape *s)
{
    const struct box_case *b = &boxes[s->option];
    uint64_t *hash = outs_take(o, 1, 8);
    int64_t *to = outs_take(o, s->cols, 8);
    *hash = kern_hash_i64(k, s->cols, in_grad, &b->map, b->begin);
    for (uint64_t i = 0; i < s->cols; i++) {
        to[i] = i % 3 == 0 ? INT64_MAX : -in_grad[i / 2];
    }
    kern_add_i64(s->cols, in_grad, to);
}

static void integers_are_hashed_and_added_exactly(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    inputs();
    for (size_t b = 0; b < BOXES; b++) {
        for (size_t l = 0; l < LENGTHS; l++) {
            struct shape s = { 1, lengths[l], 1, (int)b };
            const struct outs *o = each_run(&e, integers_run, &s);
            const int64_t *to = outs_part(o, 1);
            uint64_t hash = 0;
            for (uint64_t i = 0; i < s.cols; i++) {
                hash += hash_element_i64(index_in(&boxes[b], i), in_grad[i]);
                uint64_t before = i % 3 == 0 ? (uint64_t)INT64_MAX : (uint64_t)-in_grad[i / 2];
                assert_true((uint64_t)to[i] == before + (uint64_t)in_grad[i]);
            }
            assert_true(*(uint64_t *)outs_part(o, 0) == hash);
        }
    }
    for (uint32_t bit = 0; bit < 64; bit++) {
        int64_t flipped = (int64_t)((uint64_t)in_grad[9] ^ (uint64_t)1 << bit);
        assert_true(hash_element_i64(9, in_grad[9]) != hash_element_i64(9, flipped));
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

/* option: which box */
static void init_run(struct kern *k, struct outs *o, const struct shape *s)
{
    const struct box_case *b = &boxes[s->option];
    float *p = outs_take(o, s->cols, 4);
    for (uint64_t i = 0; i < s->cols; i += s->step) {
        uint64_t n = s->cols - i < s->step ? s->cols - i : s->step;
        kern_init_normal(k, n, p + i, 11, 3, &b->map, b->begin + i, 0.02);
    }
}

static void check_init(struct each *e, size_t box, uint64_t n)
{
    struct shape s = { 1, n, n, (int)box };
    const struct outs *o = each_run(e, init_run, &s);
    const float *p = outs_part(o, 0);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t index = index_in(&boxes[box], i);
        double normal[4];
        rng_normal4(rng_at(11, RNG_INIT, 3, index / 4), normal);
        assert_true(p[i] == (float)(normal[index % 4] * 0.02));
    }
    memcpy(e->whole.bytes, o->bytes, o->used);
    s.step = 999;
    each_run(e, init_run, &s);
    assert_memory_equal(e->whole.bytes, o->bytes, o->used);
}

static void initial_normals_depend_on_the_index_only(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    for (size_t b = 0; b < BOXES; b++) {
        for (size_t l = 0; l + 2 < LENGTHS; l++) {
            check_init(&e, b, lengths[l]);
        }
    }
    const uint64_t n = 39999;
    check_init(&e, 0, n);
    const float *p = outs_part(&e.first, 0);
    double sum = 0, square = 0;
    for (uint64_t i = 0; i < n; i++) {
        sum += (double)p[i];
        square += (double)p[i] * (double)p[i];
    }
    assert_near("mean", 0, sum / (double)n, 0, 4 * 0.02 / 200);
    assert_near("deviation", 0, sqrt(square / (double)n), 0.02, 4 * 0.02 / 283);
    each_close(&e);
}

/* ---- checksum of gradients ---- */

static void checksums_are_linear_and_see_every_bit(void **state)
{
    (void)state;
    static int64_t other[N_MAX], sum[N_MAX];
    const uint64_t n = 4099, first = 977;
    inputs();
    for (uint64_t i = 0; i < n; i++) {
        other[i] = in_grad[n + i];
        sum[i] = in_grad[i];
    }
    kern_add_i64(n, other, sum);
    uint64_t want = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t key = (first + i + 1) * 0x9e3779b97f4a7c15u;
        want += (uint64_t)in_grad[i] * ((key ^ key >> 32) | 1u);
    }
    assert_true(kern_checksum_i64(n, in_grad, first) == want);
    assert_true(kern_checksum_i64(n, sum, first) == want + kern_checksum_i64(n, other, first));
    for (uint64_t at = 0; at <= n; at += 683) {
        assert_true(kern_checksum_i64(at, in_grad, first) + kern_checksum_i64(n - at, in_grad + at, first + at) ==
                    want);
    }
    for (uint32_t bit = 0; bit < 64; bit++) {
        int64_t *one = &in_grad[bit * 61];
        *one = (int64_t)((uint64_t)*one ^ (uint64_t)1 << bit);
        assert_true(kern_checksum_i64(n, in_grad, first) != want);
        *one = (int64_t)((uint64_t)*one ^ (uint64_t)1 << bit);
    }
    in_grad[5]++; /* what a sum without factors, or with rising ones, does not see */
    in_grad[6] -= 2;
    in_grad[7]++;
    assert_true(kern_checksum_i64(n, in_grad, first) != want);
    assert_true(kern_checksum_i64(0, in_grad, first) == 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sum_of_squares_equals_a_big_integer),
    cmocka_unit_test(sum_of_squares_of_a_large_tensor_does_not_overflow),
    cmocka_unit_test(sum_of_squares_reports_large_gradients),
    cmocka_unit_test(adamw_follows_its_definition),
    cmocka_unit_test(adamw_takes_the_step_of_the_paper),
    cmocka_unit_test(hashes_of_boxes_add_up),
    cmocka_unit_test(integers_are_hashed_and_added_exactly),
    cmocka_unit_test(checksums_are_linear_and_see_every_bit),
    cmocka_unit_test(fill_and_conversion_are_exact),
    cmocka_unit_test(initial_normals_depend_on_the_index_only),
};
TEST_MAIN(tests)
