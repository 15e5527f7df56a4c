/* Compiled once per instruction set: makes the inline functions of kern/simd.h and kern/vmath.h callable. */
#include "kern_simd_probe.h"

#include "kern/kern_int.h"
#include "kern/vmath.h"

/* Masks as 0 and 1. */
static struct v16 truth(struct m16 m)
{
    struct v16 r = v16_select(m, v16_set1(1.0f), v16_zero());
    /* both ways to look at a mask must agree */
    return v16_add(r, v16_set1(m16_bits(m) == m16_bits(m16_and(m, m16_or(m, m16_first(3)))) ? 0.0f : 2.0f));
}

static struct v16 shifts(struct v16 a)
{
    struct v16i i = v16_bits(a);
    i = v16i_add(v16i_xor(v16i_shl(i, 9), v16i_sra(i, 9)), v16i_sub(v16i_or(i, v16i_set1(5)), v16i_set1(77)));
    return v16i_to_float(i);
}

static struct v16 apply(enum probe_op op, struct v16 a, struct v16 b, struct v16 c)
{
    switch (op) {
    case PROBE_ADD: return v16_add(a, b);
    case PROBE_SUB: return v16_sub(a, b);
    case PROBE_MUL: return v16_mul(a, b);
    case PROBE_DIV: return v16_div(a, b);
    case PROBE_SQRT: return v16_sqrt(a);
    case PROBE_FMA: return v16_fma(a, b, c);
    case PROBE_FNMA: return v16_fnma(a, b, c);
    case PROBE_MIN: return v16_min(a, b);
    case PROBE_MAX: return v16_max(a, b);
    case PROBE_ROUND: return v16_round(a);
    case PROBE_LT: return truth(v16_lt(a, b));
    case PROBE_LE: return truth(v16_le(a, b));
    case PROBE_EQ: return truth(v16_eq(a, b));
    case PROBE_ABS: return v16_abs(a);
    case PROBE_NEG: return v16_neg(a);
    case PROBE_SUM: return v16_set1(v16_sum(a));
    case PROBE_MAX_LANES: return v16_set1(v16_max_lanes(a));
    case PROBE_SHIFTS: return shifts(a);
    case PROBE_EXP: return v16_exp(a);
    case PROBE_EXP_LOW: return v16_exp_low(v16_min(v16_set1(88.0f), a));
    case PROBE_LOG: return v16_log(a);
    case PROBE_SIGMOID: return v16_sigmoid(a);
    case PROBE_TANH: return v16_tanh(a);
    case PROBE_ERF: return v16_erf(a);
    case PROBE_ROUND_BF16: return v16_round_bf16(a);
    case PROBE_COUNT: break;
    }
    return v16_zero();
}

static void probe_apply(enum probe_op op, const float *a, const float *b, const float *c, float *out)
{
    v16_store(out, apply(op, v16_load(a), v16_load(b), v16_load(c)));
}

static void probe_copy_n(const float *a, float *out, uint32_t n)
{
    v16_store_n(out, v16_load_n(a, n), n);
}

static uint32_t probe_add_fixed(int64_t *acc, const float *a, float limit)
{
    return v16_add_fixed(acc, v16_load(a), limit);
}

static void probe_from_fixed(const int64_t *p, float *out)
{
    v16_store(out, v16_from_fixed(p));
}

static void probe_load_bf16(const uint16_t *p, float *out)
{
    v16_store(out, v16_load_bf16(p));
}

static void probe_load_bf16_n(const uint16_t *p, float *out, uint32_t n)
{
    v16_store(out, v16_load_bf16_n(p, n));
}

static void probe_store_bf16(uint16_t *p, const float *a)
{
    v16_store_bf16(p, v16_load(a));
}

static void probe_store_bf16_n(uint16_t *p, const float *a, uint32_t n)
{
    v16_store_bf16_n(p, v16_load(a), n);
}

static void probe_transpose(float *r)
{
    struct v16 v[16];
    for (int l = 0; l < 16; l++) {
        v[l] = v16_load(r + 16 * l);
    }
    v16_transpose(v);
    for (int l = 0; l < 16; l++) {
        v16_store(r + 16 * l, v[l]);
    }
}

const struct probe KERN_NAME(probe) = {
    probe_apply,     probe_copy_n,      probe_add_fixed,  probe_from_fixed,
    probe_load_bf16, probe_load_bf16_n, probe_store_bf16, probe_store_bf16_n,
    probe_transpose,
};
