/* Why this exists: libm's exp, log, sin and cos differ between machines in the last bit, and a learning rate or an
 * initial weight that differs in one bit breaks the promise. Polynomials are Taylor series on reduced ranges short
 * enough for double precision; __builtin_fma and __builtin_sqrt are single correctly rounded IEEE operations. */
#include "base/fmath.h"

#include <stdint.h>
#include <string.h>

static const double LN2_HI = 0x1.62e42fefa38p-1;      /* ln 2 to 40 bits: exact products with small integers */
static const double LN2_LO = 0x1.ef35793c7673p-45;    /* the rest */
static const double PI_2_HI = 0x1.921fb544p+0;        /* pi / 2 to 33 bits */
static const double PI_2_MID = 0x1.0b4611a6p-34;      /* next 33 bits */
static const double PI_2_LO = 0x1.3198a2e037073p-69;  /* the rest */

double fmath_fma(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}

double fmath_sqrt(double x)
{
    return __builtin_sqrt(x);
}

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint64_t to_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* x to the nearest integer, ties to even, for |x| < 2^51. */
static double round_even(double x)
{
    const double magic = 0x1.8p52;
    volatile double shifted = x + magic; /* volatile: the two additions must stay two */
    return shifted - magic;
}

/* sum coefficient[i] x^i, highest first, by Horner's rule. */
static double poly(const double *coefficient, int count, double x)
{
    double sum = coefficient[count - 1];
    for (int i = count - 2; i >= 0; i--) {
        sum = fmath_fma(sum, x, coefficient[i]);
    }
    return sum;
}

double fmath_exp(double x)
{
    static const double c[] = { 1.0,         1.0,          1.0 / 2,       1.0 / 6,        1.0 / 24,
                                1.0 / 120,   1.0 / 720,    1.0 / 5040,    1.0 / 40320,    1.0 / 362880,
                                1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0 };
    if (x < -700.0) {
        return 0.0;
    }
    if (x > 700.0) {
        return from_bits(0x7ff0000000000000ull);
    }
    double k = round_even(x * 0x1.71547652b82fep+0);
    double r = fmath_fma(-k, LN2_LO, fmath_fma(-k, LN2_HI, x));
    double scale = from_bits((uint64_t)((int64_t)k + 1023) << 52);
    return poly(c, 14, r) * scale;
}

double fmath_log(double x)
{
    uint64_t bits = to_bits(x);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    double m = from_bits((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    /* log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172 */
    static const double c[] = { 1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                                1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21 };
    double s = (m - 1.0) / (m + 1.0);
    double k = (double)exponent;
    double log_m = 2.0 * s * poly(c, 11, s * s);
    return fmath_fma(k, LN2_HI, fmath_fma(k, LN2_LO, log_m));
}

double fmath_pow(double x, double y)
{
    return fmath_exp(y * fmath_log(x));
}

/* sin and cos for |r| <= pi / 4. */
static double sin_core(double r)
{
    static const double c[] = { 1.0,           -1.0 / 6,           1.0 / 120,           -1.0 / 5040,
                                1.0 / 362880,  -1.0 / 39916800,    1.0 / 6227020800.0,  -1.0 / 1307674368000.0 };
    return r * poly(c, 8, r * r);
}

static double cos_core(double r)
{
    static const double c[] = { 1.0,          -1.0 / 2,           1.0 / 24,            -1.0 / 720,
                                1.0 / 40320,  -1.0 / 3628800,     1.0 / 479001600,     -1.0 / 87178291200.0,
                                1.0 / 20922789888000.0 };
    return poly(c, 9, r * r);
}

static void sincos_quadrant(int64_t quadrant, double r, double *sine, double *cosine)
{
    double s = sin_core(r), c = cos_core(r);
    switch (quadrant & 3) {
    case 0: *sine = s; *cosine = c; break;
    case 1: *sine = c; *cosine = -s; break;
    case 2: *sine = -s; *cosine = -c; break;
    default: *sine = -c; *cosine = s; break;
    }
}

static void sincos_radians(double x, double *sine, double *cosine)
{
    double k = round_even(x * 0x1.45f306dc9c883p-1);
    double r = fmath_fma(-k, PI_2_LO, fmath_fma(-k, PI_2_MID, fmath_fma(-k, PI_2_HI, x)));
    sincos_quadrant((int64_t)k, r, sine, cosine);
}

double fmath_cos(double x)
{
    double s, c;
    sincos_radians(x, &s, &c);
    return c;
}

double fmath_sin(double x)
{
    double s, c;
    sincos_radians(x, &s, &c);
    return s;
}

void fmath_sincos_turns(double t, double *sine, double *cosine)
{
    double k = round_even(t * 4.0);
    double r = (t - k * 0.25) * 0x1.921fb54442d18p+2; /* exact difference, times 2 pi */
    sincos_quadrant((int64_t)k, r, sine, cosine);
}
