/* bf16: the upper half of an fp32 number. The definition that every instruction set must equal: docs/numerics.md 14. */
#ifndef BASE_BF16_H
#define BASE_BF16_H

#include <stdint.h>
#include <string.h>

/* Exact. */
static inline float bf16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* To nearest, ties to even; a denormal becomes a zero of its sign, a NaN a quiet NaN. */
static inline uint16_t bf16_from_float(float x)
{
    uint32_t bits, magnitude;
    memcpy(&bits, &x, sizeof(bits));
    magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    if (magnitude < 0x00800000u) {
        return (uint16_t)(bits >> 16 & 0x8000u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
