/* IEEE half precision and bf16 as files hold them, by integer operations: the arithmetic mode flushes denormals, data
 * in files keep theirs (base/bf16.h, which the kernels share, flushes). NaNs stay NaNs. */
#ifndef BASE_F16_H
#define BASE_F16_H

#include <stdint.h>
#include <string.h>

/* The fp32 bits of a half. Exact. */
static inline uint32_t f16_widen(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 1023u;
    if (exponent == 31) {
        return sign | 0x7f800000u | fraction << 13;
    }
    if (exponent == 0) {
        if (fraction == 0) {
            return sign;
        }
        uint32_t shift = (uint32_t)__builtin_clz(fraction) - 21; /* moves the leading one to bit 10 */
        return sign | (113 - shift) << 23 | ((fraction << shift) & 1023u) << 13;
    }
    return sign | (exponent + 112) << 23 | fraction << 13;
}

/* The half nearest to the number with these fp32 bits, ties to even; above 65504 (from 65520) infinite. */
static inline uint16_t f16_narrow(uint32_t bits)
{
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    }
    if (magnitude >= 0x47800000u) { /* 65536 */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x33000000u) { /* below half of the least denormal, 2^-25 */
        return sign;
    }
    if (magnitude < 0x38800000u) { /* a denormal half: units of 2^-24 */
        uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u, drop = 126 - (magnitude >> 23);
        uint32_t kept = fraction >> drop, rest = fraction & ((1u << drop) - 1), middle = 1u << (drop - 1);
        return (uint16_t)(sign | (kept + (rest > middle || (rest == middle && (kept & 1u) != 0))));
    }
    uint32_t rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | rounded >> 13);
}

/* The bf16 nearest to the number with these fp32 bits, ties to even, denormals kept. */
static inline uint16_t bf16_narrow(uint32_t bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
