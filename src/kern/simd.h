/* Sixteen fp32 lanes with the same bits on every instruction set: the vocabulary leaf files are written in.
 * Included only by files compiled once per instruction set; KERN_ISA chooses the representation:
 *   0  simd_scalar.h  float[16], the definition   1  simd_avx2.h  two __m256   2, 3  simd_avx512.h  one __m512
 *   4  simd_vector.h  vector types of the compiler, for CPUs without a file of their own
 * Rules that make the bits equal: every operation is one IEEE operation rounded to nearest even (FTZ and DAZ are set in
 * every thread by base/pool.h), fused operations are asked for by name, min and max return the second operand when the
 * operands are equal or one is NaN (what x86 does), and sums over lanes use one tree. NaN payloads are not defined.
 *
 * Types: struct v16 (floats), struct v16i (int32), struct m16 (one truth value for each lane). Each representation
 * gives
 *   v16_zero()  v16_set1(x)  v16_load(p)  v16_store(p, v)          no alignment needed
 *   v16_load_n(p, n)  v16_store_n(p, v, n)                          the first n <= 16 lanes; others are 0 / not touched
 *   v16_add  v16_sub  v16_mul  v16_div  v16_sqrt
 *   v16_fma(a, b, c) = a b + c      v16_fnma(a, b, c) = c - a b     one rounding
 *   v16_min(a, b) = a < b ? a : b   v16_max(a, b) = a > b ? a : b
 *   v16_round(v)                                                    to the nearest integer, ties to even
 *   v16_lt(a, b)  v16_le(a, b)  v16_eq(a, b) -> m16                 false when a lane is NaN
 *   v16_select(m, a, b) = m ? a : b
 *   m16_first(n)  m16_and(a, b)  m16_or(a, b)  m16_bits(m)          bit l of m16_bits is lane l
 *   v16_bits(v)  v16_from_bits(i)                                   the same 32 bits
 *   v16i_set1  v16i_load(p)  v16i_add  v16i_sub  v16i_and  v16i_or  v16i_xor  v16i_shl(v, n)  v16i_sra(v, n)
 *   v16i_to_float(i)                                                int32 to float, nearest even
 *   v16_sum(v)        ((l, l + 8), (l, l + 4), (l, l + 2), (l, l + 1))
 *   v16_max_lanes(v)  the same tree with v16_max
 *   v16_add_fixed(acc, v, limit) -> bits   acc[l] += nearest-even integer of lane l; a lane with |v| >= limit (a
 *                                   float, at most 2^50) or NaN adds nothing and has its bit set in the result
 *   v16_from_fixed(p)               int64 to double to float, each nearest even
 *   v16_load_bf16(p)  v16_load_bf16_n(p, n)                         widened; other lanes are 0
 *   v16_store_bf16(p, v)  v16_store_bf16_n(p, v, n)                 rounded as bf16_from_float (base/bf16.h) does
 *   v16_round_bf16(v)                                               rounded so, as fp32 numbers
 *   v16_transpose(r)                16 vectors in place: lane c of vector l becomes lane l of vector c */
#ifndef KERN_SIMD_H
#define KERN_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/bf16.h"
#include "kern/kern_int.h"

#if !defined(KERN_ISA)
#error "kern/simd.h is for files compiled once per instruction set"
#endif

#if KERN_ISA == 0
/* The definition need not be fast; inlining sixteen-step loops everywhere takes a sanitizing compiler minutes. */
#define V16_INLINE static __attribute__((noinline, unused))
#else
#define V16_INLINE static inline __attribute__((always_inline))
#endif
#define V16_LANES 16u

#if KERN_AVX512
#include "kern/simd_avx512.h"
#elif KERN_AVX2
#include "kern/simd_avx2.h"
#elif KERN_VECTOR
#include "kern/simd_vector.h"
#else
#include "kern/simd_scalar.h"
#endif

/* Ask for the cache line at p to come near; no effect on any result, also when p is not a valid address. */
V16_INLINE void v16_prefetch(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}

V16_INLINE struct v16 v16_abs(struct v16 v)
{
    return v16_from_bits(v16i_and(v16_bits(v), v16i_set1(0x7fffffff)));
}

V16_INLINE struct v16 v16_neg(struct v16 v)
{
    return v16_from_bits(v16i_xor(v16_bits(v), v16i_set1(INT32_MIN)));
}

/* |magnitude| with the sign of `sign`; magnitude must not be negative. */
V16_INLINE struct v16 v16_with_sign(struct v16 magnitude, struct v16 sign)
{
    return v16_from_bits(v16i_or(v16_bits(magnitude), v16i_and(v16_bits(sign), v16i_set1(INT32_MIN))));
}

/* v * 2^n by adding to the exponent, where `shifted` = n + 1.5 * 2^23 as a float (the low bits of its pattern are n).
 * v and the result must be normal numbers. */
V16_INLINE struct v16 v16_scale_exponent(struct v16 v, struct v16 shifted)
{
    return v16_from_bits(v16i_add(v16_bits(v), v16i_shl(v16_bits(shifted), 23)));
}

#endif
