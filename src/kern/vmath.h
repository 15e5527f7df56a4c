/* Elementary functions on 16 lanes: polynomials of fused multiply-adds, no libm, the same bits on every
 * instruction set. Coefficients are minimax fits (Remez, relative error of the whole function) rounded to fp32.
 * Not defined: NaN payloads. */
#ifndef KERN_VMATH_H
#define KERN_VMATH_H

#include "kern/simd.h"

#define VMATH_LN2_HI 0x1.62e430p-1f   /* ln 2 rounded to fp32 */
#define VMATH_LN2_LO -0x1.05c610p-29f /* what is missing */

/* e^r for the r of x = n ln 2 + r, |r| <= ln 2 / 2; *shifted = n + 1.5 * 2^23 for v16_scale_exponent. n = round(x
 * / ln 2) by the magic addend, r in two steps (the first is exact), e^r = 1 + r + r^2 Q(r). */
V16_INLINE struct v16 vmath_exp_fraction(struct v16 x, struct v16 *shifted)
{
    const struct v16 magic = v16_set1(0x1.8p23f), one = v16_set1(1.0f);
    *shifted = v16_fma(x, v16_set1(0x1.715476p0f), magic);
    struct v16 n = v16_sub(*shifted, magic);
    struct v16 r = v16_fnma(n, v16_set1(VMATH_LN2_HI), x);
    r = v16_fnma(n, v16_set1(VMATH_LN2_LO), r);
    struct v16 p = v16_set1(0x1.6a242cp-10f);
    p = v16_fma(p, r, v16_set1(0x1.1239e2p-7f));
    p = v16_fma(p, r, v16_set1(0x1.5558f2p-5f));
    p = v16_fma(p, r, v16_set1(0x1.555492p-3f));
    p = v16_fma(p, r, v16_set1(0x1.fffffcp-2f));
    p = v16_fma(p, r, one);
    return v16_fma(p, r, one);
}

/* e^x, at most 1 ulp. x < -87.3 gives 0 (the result would be close to denormal), x > 88.72283 gives +inf, exp(+-0)
 * = 1. */
V16_INLINE struct v16 v16_exp(struct v16 x)
{
    struct v16 shifted, p = vmath_exp_fraction(x, &shifted);
    p = v16_scale_exponent(p, shifted);
    p = v16_select(v16_lt(x, v16_set1(-87.3f)), v16_zero(), p);
    p = v16_select(v16_lt(v16_set1(88.72283f), x), v16_set1(__builtin_inff()), p);
    return v16_select(v16_eq(x, x), p, x);
}

/* The same bits as v16_exp for x <= 88 and NaN, for less; not defined above. A product keeps NaN what it is. */
V16_INLINE struct v16 v16_exp_low(struct v16 x)
{
    struct v16 shifted, p = vmath_exp_fraction(x, &shifted);
    p = v16_mul(p, v16_scale_exponent(v16_set1(1.0f), shifted));
    return v16_select(v16_lt(x, v16_set1(-87.3f)), v16_zero(), p);
}

/* Natural logarithm, at most 1 ulp for normal x > 0; 0 (and denormals) give -inf, +inf gives +inf, x < 0 gives NaN.
 * x = 2^k m with m in [1/sqrt 2, sqrt 2), f = m - 1: k ln 2 + f - f^2 / 2 + f^3 P(f). */
V16_INLINE struct v16 v16_log(struct v16 x)
{
    /* Subtracting the pattern of 1/sqrt 2 makes the exponent field count from there. */
    const struct v16i offset = v16i_set1(0x3f3504f3);
    struct v16i above = v16i_sub(v16_bits(x), offset);
    struct v16 k = v16i_to_float(v16i_sra(above, 23));
    struct v16 m = v16_from_bits(v16i_add(v16i_and(above, v16i_set1(0x007fffff)), offset));
    struct v16 f = v16_sub(m, v16_set1(1.0f));
    struct v16 p = v16_set1(0x1.1457e4p-4f);
    p = v16_fma(p, f, v16_set1(-0x1.de3bf6p-4f));
    p = v16_fma(p, f, v16_set1(0x1.e6f03cp-4f));
    p = v16_fma(p, f, v16_set1(-0x1.fc2208p-4f));
    p = v16_fma(p, f, v16_set1(0x1.23376cp-3f));
    p = v16_fma(p, f, v16_set1(-0x1.555c4ep-3f));
    p = v16_fma(p, f, v16_set1(0x1.99a4b6p-3f));
    p = v16_fma(p, f, v16_set1(-0x1.000006p-2f));
    p = v16_fma(p, f, v16_set1(0x1.555548p-2f));
    struct v16 square = v16_mul(f, f);
    p = v16_mul(p, f);
    p = v16_sub(p, v16_set1(0.5f));              /* f P - 1/2 */
    p = v16_fma(p, square, v16_mul(k, v16_set1(VMATH_LN2_LO)));
    struct v16 y = v16_fma(k, v16_set1(VMATH_LN2_HI), v16_add(f, p));
    y = v16_select(v16_lt(x, v16_set1(0x1p-126f)), v16_set1(-__builtin_inff()), y);
    y = v16_select(v16_lt(x, v16_zero()), v16_set1(__builtin_nanf("")), y);
    /* +inf and NaN are their own logarithm */
    return v16_select(v16_lt(x, v16_set1(__builtin_inff())), y, x);
}

/* 1 / (1 + e^-x), at most 3 ulp. */
V16_INLINE struct v16 v16_sigmoid(struct v16 x)
{
    const struct v16 one = v16_set1(1.0f);
    return v16_div(one, v16_add(one, v16_exp(v16_neg(x))));
}

/* tanh x, at most 2 ulp. |x| < 0.625: x + x^3 P(x^2); else 1 - 2 / (e^2|x| + 1), which is 1 from 10 on. */
V16_INLINE struct v16 v16_tanh(struct v16 x)
{
    const struct v16 one = v16_set1(1.0f), two = v16_set1(2.0f);
    struct v16 size = v16_abs(x), square = v16_mul(x, x);
    struct v16 p = v16_set1(-0x1.75e1b6p-8f);
    p = v16_fma(p, square, v16_set1(0x1.522696p-6f));
    p = v16_fma(p, square, v16_set1(-0x1.b83c58p-5f));
    p = v16_fma(p, square, v16_set1(0x1.110726p-3f));
    p = v16_fma(p, square, v16_set1(-0x1.555532p-2f));
    struct v16 small = v16_fma(v16_mul(x, square), p, x);
    struct v16 e = v16_exp_low(v16_mul(two, v16_min(v16_set1(10.0f), size))); /* NaN stays NaN */
    struct v16 large = v16_sub(one, v16_div(two, v16_add(e, one)));
    return v16_select(v16_lt(size, v16_set1(0.625f)), small, v16_with_sign(large, x));
}

/* erf x, at most 2 ulp. |x| < 1: x + x P(x^2); else 1 - e^Q(|x|), which is 1 from 4 on. */
V16_INLINE struct v16 v16_erf(struct v16 x)
{
    const struct v16 one = v16_set1(1.0f);
    struct v16 size = v16_abs(x), square = v16_mul(x, x);
    struct v16 p = v16_set1(0x1.496684p-14f);
    p = v16_fma(p, square, v16_set1(-0x1.a3f57ep-11f));
    p = v16_fma(p, square, v16_set1(0x1.540576p-8f));
    p = v16_fma(p, square, v16_set1(-0x1.b7f904p-6f));
    p = v16_fma(p, square, v16_set1(0x1.ce2cf6p-4f));
    p = v16_fma(p, square, v16_set1(-0x1.81273ep-2f));
    p = v16_fma(p, square, v16_set1(0x1.06eba8p-3f));
    struct v16 z = v16_min(v16_set1(4.0f), size); /* NaN stays NaN */
    struct v16 q = v16_set1(-0x1.5ecd66p-16f);
    q = v16_fma(q, z, v16_set1(0x1.c54d20p-12f));
    q = v16_fma(q, z, v16_set1(-0x1.10a9f6p-8f));
    q = v16_fma(q, z, v16_set1(0x1.9b194cp-6f));
    q = v16_fma(q, z, v16_set1(-0x1.bb564cp-4f));
    q = v16_fma(q, z, v16_set1(-0x1.444b42p-1f));
    q = v16_fma(q, z, v16_set1(-0x1.212698p+0f));
    q = v16_fma(q, z, v16_set1(0x1.65ab58p-13f));
    struct v16 large = v16_with_sign(v16_sub(one, v16_exp_low(q)), x);
    return v16_select(v16_lt(size, one), v16_fma(x, p, x), large);
}

#endif
