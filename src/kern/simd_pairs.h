/* Pairs of bf16 numbers in words of 32 bits, as the dot product of bf16 instructions takes them: the one that a chain
 * takes first is in the upper half. For files compiled once per instruction set. Words travel in struct v16; they are
 * moved, never calculated with.
 *   v16_pair(first, second)     word l: lane l of both, rounded to bf16
 *   v16_store_pairs(p, v)       eight words: lanes 2 l and 2 l + 1 of v, rounded to bf16
 *   v16_dot(a, b, c)            word l: fma(upper a, upper b, c), then fma(lower a, lower b, that); no denormals */
#ifndef KERN_SIMD_PAIRS_H
#define KERN_SIMD_PAIRS_H

#include "kern/simd.h"

#if KERN_ISA == 3

V16_INLINE struct v16 v16_pair(struct v16 first, struct v16 second)
{
    static const uint16_t order[32] = { 0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                        8,  24, 9,  25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 };
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(first.v, second.v);
    return (struct v16){ _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both)) };
}

V16_INLINE void v16_store_pairs(float *p, struct v16 v)
{
    __m256i halves = (__m256i)_mm512_cvtneps_pbh(v.v);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_rol_epi32(halves, 16));
}

V16_INLINE struct v16 v16_dot(struct v16 a, struct v16 b, struct v16 c)
{
    return (struct v16){ _mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v) };
}

#else

V16_INLINE struct v16 v16_upper(struct v16 words)
{
    return v16_from_bits(v16i_and(v16_bits(words), v16i_set1((int32_t)0xffff0000)));
}

V16_INLINE struct v16 v16_lower(struct v16 words)
{
    return v16_from_bits(v16i_shl(v16_bits(words), 16));
}

V16_INLINE struct v16 v16_pair(struct v16 first, struct v16 second)
{
    struct v16i low = v16i_and(v16i_sra(v16_bits(v16_round_bf16(second)), 16), v16i_set1(0xffff));
    return v16_from_bits(v16i_or(v16_bits(v16_round_bf16(first)), low));
}

V16_INLINE void v16_store_pairs(float *p, struct v16 v)
{
    uint16_t half[16];
    v16_store_bf16(half, v);
    for (uint32_t l = 0; l < 8; l++) {
        uint32_t word = (uint32_t)half[2 * l] << 16 | half[2 * l + 1];
        memcpy(p + l, &word, sizeof(word));
    }
}

V16_INLINE struct v16 v16_dot(struct v16 a, struct v16 b, struct v16 c)
{
    return v16_fma(v16_lower(a), v16_lower(b), v16_fma(v16_upper(a), v16_upper(b), c));
}

#endif

#endif
