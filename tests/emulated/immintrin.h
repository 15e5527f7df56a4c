/* The AVX-512 intrinsics that src/kern uses, for CPUs with no more than AVX2: found in place of the compiler's header
 * when leaf files are compiled for tests (meson.build), so that machines without AVX-512 run their source, too. Slow.
 *
 * Vectors are those of the compiler; two halves of AVX2 where an operation is more than an operator. FTZ and DAZ are
 * those of MXCSR; the instructions of bf16 flush whatever it says, so these tests demand more than the hardware: that
 * float mode is set. What an intrinsic leaves undefined is NaN here. One that is missing does not compile: add it, as
 * the manual of the instruction says. Not emulated: anything about speed. */
#ifndef TESTS_EMULATED_IMMINTRIN_H
#define TESTS_EMULATED_IMMINTRIN_H

/* The parts of the compiler's header without AVX-512; each of them asks whether the whole has been included. */
#define _IMMINTRIN_H_INCLUDED /* gcc */
#define __IMMINTRIN_H         /* clang */
#include <nmmintrin.h>

#include <avxintrin.h>

#include <avx2intrin.h>

#include <fmaintrin.h>

#include <stdint.h>
#include <string.h>

#include "base/bf16.h"

#define EMULATED static inline __attribute__((always_inline, unused))
#define EMULATED_TYPE(type, bytes, name) typedef type name __attribute__((vector_size(bytes), may_alias))
EMULATED_TYPE(float, 64, __m512);
EMULATED_TYPE(double, 64, __m512d);
EMULATED_TYPE(long long, 64, __m512i);
EMULATED_TYPE(short, 64, __m512bh);
EMULATED_TYPE(short, 32, __m256bh);
EMULATED_TYPE(int32_t, 64, emulated_i32);
EMULATED_TYPE(uint32_t, 64, emulated_u32);
EMULATED_TYPE(uint64_t, 64, emulated_u64);
EMULATED_TYPE(uint16_t, 64, emulated_u16);
EMULATED_TYPE(uint16_t, 32, emulated_half_u16);
EMULATED_TYPE(uint32_t, 32, emulated_half_u32);
typedef uint8_t __mmask8;
typedef uint16_t __mmask16;

/* ---- halves, masks ---- */

EMULATED __m256 emulated_half(__m512 v, int half)
{
    __m256 r;
    memcpy(&r, (const char *)&v + 32 * half, sizeof(r));
    return r;
}

EMULATED __m512 emulated_join(__m256 low, __m256 high)
{
    __m512 r;
    memcpy(&r, &low, sizeof(low));
    memcpy((char *)&r + 32, &high, sizeof(high));
    return r;
}

#define EMULATED_1(f, a) emulated_join(f(emulated_half(a, 0)), f(emulated_half(a, 1)))
#define EMULATED_2(f, a, b)                                                                        \
    emulated_join(f(emulated_half(a, 0), emulated_half(b, 0)), f(emulated_half(a, 1), emulated_half(b, 1)))
#define EMULATED_3(f, a, b, c)                                                                     \
    emulated_join(f(emulated_half(a, 0), emulated_half(b, 0), emulated_half(c, 0)),                \
                  f(emulated_half(a, 1), emulated_half(b, 1), emulated_half(c, 1)))

EMULATED __mmask16 emulated_signs(__m256 low, __m256 high)
{
    return (__mmask16)(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}

/* All bits of the lanes of a mask. */
EMULATED emulated_i32 emulated_lanes(__mmask16 mask)
{
    const emulated_i32 bit = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768 };
    return (bit & mask) != 0;
}

EMULATED __m512i emulated_select(__mmask16 mask, __m512i a, __m512i b)
{
    __m512i lanes = (__m512i)emulated_lanes(mask);
    return (lanes & a) | (~lanes & b);
}

/* ---- the same lane of each operand ---- */

#define EMULATED_EACH(name, type, lanes, op)                                                       \
    EMULATED type name(type a, type b)                                                             \
    {                                                                                              \
        return (type)((lanes)a op(lanes) b);                                                       \
    }
EMULATED_EACH(_mm512_add_ps, __m512, __m512, +)
EMULATED_EACH(_mm512_sub_ps, __m512, __m512, -)
EMULATED_EACH(_mm512_mul_ps, __m512, __m512, *)
EMULATED_EACH(_mm512_div_ps, __m512, __m512, /)
EMULATED_EACH(_mm512_add_pd, __m512d, __m512d, +)
EMULATED_EACH(_mm512_sub_pd, __m512d, __m512d, -)
EMULATED_EACH(_mm512_mul_pd, __m512d, __m512d, *)
EMULATED_EACH(_mm512_add_epi32, __m512i, emulated_u32, +)
EMULATED_EACH(_mm512_sub_epi32, __m512i, emulated_u32, -)
EMULATED_EACH(_mm512_add_epi64, __m512i, emulated_u64, +)
EMULATED_EACH(_mm512_sub_epi64, __m512i, emulated_u64, -)
EMULATED_EACH(_mm512_and_si512, __m512i, __m512i, &)
EMULATED_EACH(_mm512_or_si512, __m512i, __m512i, |)
EMULATED_EACH(_mm512_xor_si512, __m512i, __m512i, ^)

EMULATED __m512i _mm512_mul_epu32(__m512i a, __m512i b)
{
    return (__m512i)(((emulated_u64)a & 0xffffffffu) * ((emulated_u64)b & 0xffffffffu));
}

EMULATED __m512 _mm512_sqrt_ps(__m512 v)
{
    return EMULATED_1(_mm256_sqrt_ps, v);
}

EMULATED __m512 _mm512_abs_ps(__m512 v)
{
    return (__m512)((emulated_i32)v & 0x7fffffff);
}

EMULATED __m512 _mm512_min_ps(__m512 a, __m512 b)
{
    return EMULATED_2(_mm256_min_ps, a, b);
}

EMULATED __m512 _mm512_max_ps(__m512 a, __m512 b)
{
    return EMULATED_2(_mm256_max_ps, a, b);
}

EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    return EMULATED_3(_mm256_fmadd_ps, a, b, c);
}

EMULATED __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c)
{
    return EMULATED_3(_mm256_fnmadd_ps, a, b, c);
}

EMULATED __m256 emulated_fnmadd_pd(__m256 a, __m256 b, __m256 c)
{
    return _mm256_castpd_ps(_mm256_fnmadd_pd(_mm256_castps_pd(a), _mm256_castps_pd(b), _mm256_castps_pd(c)));
}

EMULATED __m512d _mm512_fnmadd_pd(__m512d a, __m512d b, __m512d c)
{
    return (__m512d)EMULATED_3(emulated_fnmadd_pd, (__m512)a, (__m512)b, (__m512)c);
}

#define _mm512_roundscale_ps(v, mode)                                                              \
    emulated_join(_mm256_round_ps(emulated_half(v, 0), mode), _mm256_round_ps(emulated_half(v, 1), mode))

#define EMULATED_SHIFT(name, lanes, most, op)                                                      \
    EMULATED __m512i name(__m512i v, unsigned count)                                               \
    {                                                                                              \
        return count > most ? (__m512i){ 0 } : (__m512i)((lanes)v op count);                       \
    }
EMULATED_SHIFT(_mm512_slli_epi32, emulated_u32, 31, <<)
EMULATED_SHIFT(_mm512_srli_epi32, emulated_u32, 31, >>)
EMULATED_SHIFT(_mm512_srli_epi64, emulated_u64, 63, >>)

EMULATED __m512i _mm512_sllv_epi32(__m512i v, __m512i count)
{
    emulated_u32 n = (emulated_u32)count, inside = (emulated_u32)(n < 32);
    return (__m512i)(((emulated_u32)v << (n & 31)) & inside);
}

EMULATED __m512i _mm512_srav_epi32(__m512i v, __m512i count)
{
    emulated_u32 n = (emulated_u32)count, beyond = (emulated_u32)(n > 31);
    return (__m512i)((emulated_i32)v >> (emulated_i32)((n | beyond) & 31));
}

EMULATED __m256i _mm256_rol_epi32(__m256i v, int count)
{
    return (__m256i)((emulated_half_u32)v << count | (emulated_half_u32)v >> (32 - count));
}

EMULATED __m512i _mm512_rol_epi32(__m512i v, int count)
{
    return (__m512i)((emulated_u32)v << count | (emulated_u32)v >> (32 - count));
}

/* ---- constants, loads, stores, masked operations: lanes outside a mask are not read and not written ---- */

EMULATED __m512 _mm512_set1_ps(float x)
{
    return (__m512){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x };
}

EMULATED __m512d _mm512_set1_pd(double x)
{
    return (__m512d){ x, x, x, x, x, x, x, x };
}

EMULATED __m512i _mm512_set1_epi64(long long x)
{
    return (__m512i){ x, x, x, x, x, x, x, x };
}

EMULATED __m512i _mm512_set1_epi32(int x)
{
    return (__m512i)(emulated_i32){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x };
}

EMULATED __m512 _mm512_setzero_ps(void)
{
    return (__m512){ 0 };
}

EMULATED __m512i _mm512_setzero_si512(void)
{
    return (__m512i){ 0 };
}

#define EMULATED_MEMORY(suffix, type)                                                              \
    EMULATED type _mm512_loadu_##suffix(const void *p)                                             \
    {                                                                                              \
        type v;                                                                                    \
        memcpy(&v, p, sizeof(v));                                                                  \
        return v;                                                                                  \
    }                                                                                              \
    EMULATED void _mm512_storeu_##suffix(void *p, type v)                                          \
    {                                                                                              \
        memcpy(p, &v, sizeof(v));                                                                  \
    }
EMULATED_MEMORY(ps, __m512)
EMULATED_MEMORY(pd, __m512d)
EMULATED_MEMORY(si512, __m512i)

EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void *p)
{
    __m512 v = { 0 };
    for (uint32_t l = 0; l < 16; l++) {
        if ((mask >> l & 1) != 0) {
            memcpy((char *)&v + 4 * l, (const char *)p + 4 * l, 4);
        }
    }
    return v;
}

EMULATED void _mm512_mask_storeu_ps(void *p, __mmask16 mask, __m512 v)
{
    for (uint32_t l = 0; l < 16; l++) {
        if ((mask >> l & 1) != 0) {
            memcpy((char *)p + 4 * l, (const char *)&v + 4 * l, 4);
        }
    }
}

EMULATED __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void *p)
{
    __m256i v = { 0 };
    for (uint32_t l = 0; l < 16; l++) {
        if ((mask >> l & 1) != 0) {
            memcpy((char *)&v + 2 * l, (const char *)p + 2 * l, 2);
        }
    }
    return v;
}

EMULATED void _mm512_mask_cvtepi32_storeu_epi16(void *p, __mmask16 mask, __m512i v)
{
    for (uint32_t l = 0; l < 16; l++) {
        if ((mask >> l & 1) != 0) {
            memcpy((char *)p + 2 * l, (const char *)&v + 4 * l, 2);
        }
    }
}

EMULATED __m512 _mm512_mask_mov_ps(__m512 rest, __mmask16 mask, __m512 v)
{
    return (__m512)emulated_select(mask, (__m512i)v, (__m512i)rest);
}

EMULATED __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 v)
{
    return _mm512_mask_mov_ps(_mm512_setzero_ps(), mask, v);
}

EMULATED __m512i _mm512_mask_and_epi32(__m512i rest, __mmask16 mask, __m512i a, __m512i b)
{
    return emulated_select(mask, a & b, rest);
}

EMULATED __m512i _mm512_mask_or_epi32(__m512i rest, __mmask16 mask, __m512i a, __m512i b)
{
    return emulated_select(mask, a | b, rest);
}

#define _mm512_cmp_ps_mask(a, b, how)                                                              \
    emulated_signs(_mm256_cmp_ps(emulated_half(a, 0), emulated_half(b, 0), how),                   \
                   _mm256_cmp_ps(emulated_half(a, 1), emulated_half(b, 1), how))

EMULATED __mmask16 _mm512_cmpgt_epi32_mask(__m512i a, __m512i b)
{
    __m512 greater = (__m512)((emulated_i32)a > (emulated_i32)b);
    return emulated_signs(emulated_half(greater, 0), emulated_half(greater, 1));
}

EMULATED __mmask16 _mm512_cmplt_epi32_mask(__m512i a, __m512i b)
{
    return _mm512_cmpgt_epi32_mask(b, a);
}

EMULATED __mmask8 _mm512_movepi64_mask(__m512i v)
{
    uint32_t mask = 0;
    for (uint32_t l = 0; l < 8; l++) {
        mask |= (uint32_t)(v[l] < 0) << l;
    }
    return (__mmask8)mask;
}

/* ---- other types ---- */

#define EMULATED_CAST(name, to, from)                                                              \
    EMULATED to name(from v)                                                                       \
    {                                                                                              \
        return (to)v;                                                                              \
    }
EMULATED_CAST(_mm512_castps_si512, __m512i, __m512)
EMULATED_CAST(_mm512_castsi512_ps, __m512, __m512i)
EMULATED_CAST(_mm512_castps_pd, __m512d, __m512)
EMULATED_CAST(_mm512_castpd_ps, __m512, __m512d)

EMULATED __m512 _mm512_castps256_ps512(__m256 low)
{
    return emulated_join(low, _mm256_set1_ps(__builtin_nanf("")));
}

EMULATED __m256 _mm512_castps512_ps256(__m512 v)
{
    return emulated_half(v, 0);
}

EMULATED __m256 _mm512_extractf32x8_ps(__m512 v, int half)
{
    return emulated_half(v, half);
}

EMULATED __m512 _mm512_insertf32x8(__m512 v, __m256 part, int half)
{
    return half == 0 ? emulated_join(part, emulated_half(v, 1)) : emulated_join(emulated_half(v, 0), part);
}

EMULATED __m512 _mm512_cvtepi32_ps(__m512i v)
{
    return __builtin_convertvector((emulated_i32)v, __m512);
}

EMULATED __m512d _mm512_cvtepi64_pd(__m512i v)
{
    return __builtin_convertvector(v, __m512d);
}

EMULATED __m512d _mm512_cvtps_pd(__m256 v)
{
    return __builtin_convertvector(v, __m512d);
}

EMULATED __m256 _mm512_cvtpd_ps(__m512d v)
{
    return __builtin_convertvector(v, __m256);
}

EMULATED __m512i _mm512_cvtps_epi64(__m256 v)
{
    __m512i r;
    for (int l = 0; l < 8; l++) {
        r[l] = _mm_cvtss_si64(_mm_set_ss(v[l])); /* to nearest even; the least integer for what does not fit */
    }
    return r;
}

EMULATED __m512i _mm512_cvtepu16_epi32(__m256i v)
{
    return (__m512i)__builtin_convertvector((emulated_half_u16)v, emulated_u32);
}

EMULATED __m256i _mm512_cvtepi32_epi16(__m512i v)
{
    return (__m256i)__builtin_convertvector((emulated_u32)v, emulated_half_u16);
}

/* ---- lanes that move ---- */

EMULATED __m512 _mm512_unpacklo_ps(__m512 a, __m512 b)
{
    return EMULATED_2(_mm256_unpacklo_ps, a, b);
}

EMULATED __m512 _mm512_unpackhi_ps(__m512 a, __m512 b)
{
    return EMULATED_2(_mm256_unpackhi_ps, a, b);
}

EMULATED __m512d _mm512_unpacklo_pd(__m512d a, __m512d b)
{
    return (__m512d){ a[0], b[0], a[2], b[2], a[4], b[4], a[6], b[6] };
}

EMULATED __m512d _mm512_unpackhi_pd(__m512d a, __m512d b)
{
    return (__m512d){ a[1], b[1], a[3], b[3], a[5], b[5], a[7], b[7] };
}

#define _mm512_shuffle_ps(a, b, which)                                                             \
    emulated_join(_mm256_shuffle_ps(emulated_half(a, 0), emulated_half(b, 0), which),              \
                  _mm256_shuffle_ps(emulated_half(a, 1), emulated_half(b, 1), which))

/* Quarters: two of a, then two of b. */
EMULATED __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int which)
{
    __m512 r;
    for (int q = 0; q < 4; q++) {
        const char *from = q < 2 ? (const char *)&a : (const char *)&b;
        memcpy((char *)&r + 16 * q, from + 16 * (which >> 2 * q & 3), 16);
    }
    return r;
}

EMULATED __m512i _mm512_permutexvar_epi16(__m512i which, __m512i v)
{
    emulated_u16 r, from = (emulated_u16)v, at = (emulated_u16)which;
    for (int l = 0; l < 32; l++) {
        r[l] = from[at[l] & 31];
    }
    return (__m512i)r;
}

/* ---- AVX512-BF16 ---- */

EMULATED __m256bh _mm512_cvtneps_pbh(__m512 v)
{
    emulated_half_u16 r;
    for (int l = 0; l < 16; l++) {
        r[l] = bf16_from_float(v[l]);
    }
    return (__m256bh)r;
}

EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low)
{
    return (__m512bh)emulated_join((__m256)_mm512_cvtneps_pbh(low), (__m256)_mm512_cvtneps_pbh(high));
}

/* The upper halves first: two fused steps, each rounded. */
EMULATED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b)
{
    emulated_u32 x = (emulated_u32)a, y = (emulated_u32)b;
    sum = _mm512_fmadd_ps((__m512)(x & 0xffff0000u), (__m512)(y & 0xffff0000u), sum);
    return _mm512_fmadd_ps((__m512)(x << 16), (__m512)(y << 16), sum);
}

#endif
