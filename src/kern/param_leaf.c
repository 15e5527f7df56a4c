/* Why this exists: the passes over all parameters and gradients, once per instruction set.
 *
 * Orders and definitions (docs/numerics.md quotes them):
 *   square sum  f = float(double(grad)), both to nearest even; t = f f is exact in double (48 bits); it is cut into
 *               limbs by t2 = round(t 2^-80), r = t - t2 2^80, t1 = round(r 2^-40), t0 = r - t1 2^40 (round: nearest
 *               even, each step exact), and each limb is summed: t = t0 + t1 2^40 + t2 2^80. |t0|, |t1| <= 2^39 and
 *               t2 <= 2^46, so 128 terms fit a double exactly; after 64 in each of two accumulators the sums
 *               move to 64-bit integers, which carry into the next limb each time: no number of elements can
 *               overflow them. Order-free.
 *   AdamW       g = float(double(grad) grad_factor)
 *               m = fma(beta1, m, (1 - beta1) g)
 *               v = fma(beta2, v, ((1 - beta2) g) g)
 *               p = fma(-(lr weight_decay), p, p)
 *               p = fma(-step_size, m / fma(sqrt(v), rsqrt_correction2, eps), p)
 *               all in fp32 except double(grad) grad_factor; division and square root are IEEE; grad = 0 afterwards.
 *   hash        the sum mod 2^64 of hash_element (base/hash.h). Order-free.
 *   grad_to_float  float(double(grad) factor).
 * A tail of fewer than 16 elements goes through the same code in a small buffer. */
#include "kern/param_leaf.h"

#include "kern/simd_wide.h"

/* ---- exact sum of squares ---- */

#define FLUSH_ELEMENTS 1024u /* 64 terms for each of 16 lanes */

struct limbs {
    struct d8 limb[3];
};

static inline struct d8 round_even(struct d8 v)
{
    const struct d8 magic = d8_set1(0x1.8p52);
    return d8_sub(d8_add(v, magic), magic);
}

V16_INLINE void add_squares(struct limbs *s, const int64_t *grad)
{
    struct d8 f = d8_to_float_and_back(d8_load_fixed(grad));
    struct d8 t = d8_mul(f, f);
    struct d8 t2 = round_even(d8_mul(t, d8_set1(0x1p-80)));
    struct d8 r = d8_fnma(t2, d8_set1(0x1p80), t);
    struct d8 t1 = round_even(d8_mul(r, d8_set1(0x1p-40)));
    s->limb[0] = d8_add(s->limb[0], d8_fnma(t1, d8_set1(0x1p40), r));
    s->limb[1] = d8_add(s->limb[1], t1);
    s->limb[2] = d8_add(s->limb[2], t2);
}

static void flush_limbs(const struct limbs *a, const struct limbs *b, struct fixed_wide *sum)
{
    for (int i = 0; i < 3; i++) {
        double lane[8];
        d8_store(lane, d8_add(a->limb[i], b->limb[i])); /* exact: 2^53 at most */
        for (int l = 0; l < 8; l++) {
            sum->limb[i] += (int64_t)lane[l];
        }
    }
    fixed_wide_carry(sum);
}

static void grad_square_sum(const void *job, uint64_t begin, uint64_t end)
{
    const struct square_job *j = job;
    struct fixed_wide sum = { { 0 } };
    const struct d8 zero = d8_set1(0.0);
    bool wrong = false;
    while (begin < end) {
        struct limbs a = { { zero, zero, zero } }, b = a;
        uint64_t stop = end - begin < FLUSH_ELEMENTS ? end : begin + FLUSH_ELEMENTS;
        for (; begin + 16 <= stop; begin += 16) {
            add_squares(&a, j->grad + begin);
            add_squares(&b, j->grad + begin + 8);
            wrong = fixed_beyond(j->grad + begin, wrong);
            wrong = fixed_beyond(j->grad + begin + 8, wrong);
        }
        if (begin < stop) {
            int64_t tail[16] = { 0 };
            memcpy(tail, j->grad + begin, (stop - begin) * sizeof(tail[0]));
            add_squares(&a, tail);
            add_squares(&b, tail + 8);
            wrong = fixed_beyond(tail, wrong);
            wrong = fixed_beyond(tail + 8, wrong);
            begin = stop;
        }
        flush_limbs(&a, &b, &sum);
    }
    for (int i = 0; i < FIXED_WIDE_LIMBS; i++) {
        __atomic_fetch_add(&j->sum->limb[i], sum.limb[i], __ATOMIC_RELAXED);
    }
    if (wrong) {
        __atomic_store_n(j->overflow, true, __ATOMIC_RELAXED);
    }
}

/* ---- gradients as numbers ---- */

V16_INLINE struct v16 scaled_grads(const int64_t *grad, struct d8 factor)
{
    return v16_from_d8(d8_mul(d8_load_fixed(grad), factor), d8_mul(d8_load_fixed(grad + 8), factor));
}

static void grad_to_float(const void *job, uint64_t begin, uint64_t end)
{
    const struct grad_float_job *j = job;
    struct d8 factor = d8_set1(j->factor);
    for (; begin + 16 <= end; begin += 16) {
        v16_store(j->y + begin, scaled_grads(j->grad + begin, factor));
    }
    if (begin < end) {
        int64_t tail[16] = { 0 };
        memcpy(tail, j->grad + begin, (end - begin) * sizeof(tail[0]));
        v16_store_n(j->y + begin, scaled_grads(tail, factor), (uint32_t)(end - begin));
    }
}

/* ---- AdamW and hashes ---- */

struct adamw_constants {
    struct d8 grad_factor;
    struct v16 beta1, rest1, beta2, rest2, decay, step_size, correction, eps;
};

/* One step of sixteen elements; returns the new parameters. */
V16_INLINE struct v16 adamw_step(const struct adamw_constants *c, float *p, float *m, float *v, int64_t *grad)
{
    struct v16 g = scaled_grads(grad, c->grad_factor);
    struct v16 m_new = v16_fma(c->beta1, v16_load(m), v16_mul(c->rest1, g));
    struct v16 v_new = v16_fma(c->beta2, v16_load(v), v16_mul(v16_mul(c->rest2, g), g));
    struct v16 root = v16_fma(v16_sqrt(v_new), c->correction, c->eps);
    struct v16 p_old = v16_load(p);
    struct v16 p_new = v16_fnma(c->decay, p_old, p_old);
    p_new = v16_fnma(c->step_size, v16_div(m_new, root), p_new);
    v16_store(m, m_new);
    v16_store(v, v_new);
    v16_store(p, p_new);
    memset(grad, 0, 16 * sizeof(*grad));
    return p_new;
}

/* The sum of hash_element over at most 15 elements. */
static uint64_t hash_tail(const float *p, uint64_t count, uint64_t first_index)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &p[i], sizeof(bits));
        sum += hash_element(first_index + i, bits);
    }
    return sum;
}

static uint64_t adamw_tail(const struct adamw_constants *c, const struct adamw_job *j, uint64_t begin, uint64_t count,
                           uint64_t first_index)
{
    float p[16] = { 0 }, m[16] = { 0 }, v[16] = { 0 };
    int64_t grad[16] = { 0 };
    memcpy(p, j->p + begin, count * sizeof(p[0]));
    memcpy(m, j->m + begin, count * sizeof(m[0]));
    memcpy(v, j->v + begin, count * sizeof(v[0]));
    memcpy(grad, j->grad + begin, count * sizeof(grad[0]));
    adamw_step(c, p, m, v, grad);
    memcpy(j->p + begin, p, count * sizeof(p[0]));
    memcpy(j->m + begin, m, count * sizeof(m[0]));
    memcpy(j->v + begin, v, count * sizeof(v[0]));
    memset(j->grad + begin, 0, count * sizeof(grad[0]));
    return hash_tail(p, count, first_index);
}

static void adamw(const void *job, uint64_t begin, uint64_t end)
{
    const struct adamw_job *j = job;
    const struct adamw *a = j->a;
    struct adamw_constants c = {
        .grad_factor = d8_set1(a->grad_factor),
        .beta1 = v16_set1(a->beta1),
        .rest1 = v16_set1(1.0f - a->beta1),
        .beta2 = v16_set1(a->beta2),
        .rest2 = v16_set1(1.0f - a->beta2),
        .decay = v16_set1(a->lr * a->weight_decay),
        .step_size = v16_set1(a->step_size),
        .correction = v16_set1(a->rsqrt_correction2),
        .eps = v16_set1(a->eps),
    };
    struct hash16 hash = hash16_begin();
    uint64_t tails = 0;
    for (struct box_run run = box_first(&j->box, begin, end); run.begin < run.end; box_next(&j->box, end, &run)) {
        hash16_seek(&hash, run.index);
        uint64_t i = run.begin;
        for (; i + 16 <= run.end; i += 16) {
            hash16_add(&hash, adamw_step(&c, j->p + i, j->m + i, j->v + i, j->grad + i));
        }
        if (i < run.end) {
            tails += adamw_tail(&c, j, i, run.end - i, run.index + (i - run.begin));
        }
    }
    __atomic_fetch_add(j->hash, hash16_sum(&hash) + tails, __ATOMIC_RELAXED);
}

static void hash(const void *job, uint64_t begin, uint64_t end)
{
    const struct hash_job *j = job;
    struct hash16 hash = hash16_begin();
    uint64_t tails = 0;
    for (struct box_run run = box_first(&j->box, begin, end); run.begin < run.end; box_next(&j->box, end, &run)) {
        hash16_seek(&hash, run.index);
        uint64_t i = run.begin;
        for (; i + 16 <= run.end; i += 16) {
            hash16_add(&hash, v16_load(j->p + i));
        }
        tails += hash_tail(j->p + i, run.end - i, run.index + (i - run.begin));
    }
    __atomic_fetch_add(j->hash, hash16_sum(&hash) + tails, __ATOMIC_RELAXED);
}

/* ---- fill ---- */

static void fill(const void *job, uint64_t begin, uint64_t end)
{
    const struct fill_job *j = job;
    struct v16 value = v16_set1(j->value);
    for (; begin + 16 <= end; begin += 16) {
        v16_store(j->p + begin, value);
    }
    v16_store_n(j->p + begin, value, (uint32_t)(end - begin));
}

const struct param_leaves KERN_NAME(param_leaves) = {
    .grad_square_sum = grad_square_sum,
    .adamw = adamw,
    .hash = hash,
    .fill = fill,
    .grad_to_float = grad_to_float,
};
