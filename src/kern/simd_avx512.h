/* kern/simd.h on AVX-512 F, DQ, BW, VL. */
#ifndef KERN_SIMD_AVX512_H
#define KERN_SIMD_AVX512_H

#include <immintrin.h>

struct v16 {
    __m512 v;
};
struct v16i {
    __m512i v;
};
struct m16 {
    __mmask16 m;
};

V16_INLINE struct v16 v16_zero(void)
{
    return (struct v16){ _mm512_setzero_ps() };
}

V16_INLINE struct v16 v16_set1(float x)
{
    return (struct v16){ _mm512_set1_ps(x) };
}

V16_INLINE struct v16 v16_load(const float *p)
{
    return (struct v16){ _mm512_loadu_ps(p) };
}

V16_INLINE void v16_store(float *p, struct v16 v)
{
    _mm512_storeu_ps(p, v.v);
}

V16_INLINE struct m16 m16_first(uint32_t n)
{
    return (struct m16){ (__mmask16)((1u << (n < 16 ? n : 16)) - 1u) };
}

V16_INLINE struct v16 v16_load_n(const float *p, uint32_t n)
{
    return (struct v16){ _mm512_maskz_loadu_ps(m16_first(n).m, p) };
}

V16_INLINE void v16_store_n(float *p, struct v16 v, uint32_t n)
{
    _mm512_mask_storeu_ps(p, m16_first(n).m, v.v);
}

V16_INLINE struct v16 v16_add(struct v16 a, struct v16 b)
{
    return (struct v16){ _mm512_add_ps(a.v, b.v) };
}

V16_INLINE struct v16 v16_sub(struct v16 a, struct v16 b)
{
    return (struct v16){ _mm512_sub_ps(a.v, b.v) };
}

V16_INLINE struct v16 v16_mul(struct v16 a, struct v16 b)
{
    return (struct v16){ _mm512_mul_ps(a.v, b.v) };
}

V16_INLINE struct v16 v16_div(struct v16 a, struct v16 b)
{
    return (struct v16){ _mm512_div_ps(a.v, b.v) };
}

V16_INLINE struct v16 v16_sqrt(struct v16 v)
{
    return (struct v16){ _mm512_sqrt_ps(v.v) };
}

V16_INLINE struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
    return (struct v16){ _mm512_fmadd_ps(a.v, b.v, c.v) };
}

V16_INLINE struct v16 v16_fnma(struct v16 a, struct v16 b, struct v16 c)
{
    return (struct v16){ _mm512_fnmadd_ps(a.v, b.v, c.v) };
}

V16_INLINE struct v16 v16_min(struct v16 a, struct v16 b)
{
    return (struct v16){ _mm512_min_ps(a.v, b.v) };
}

V16_INLINE struct v16 v16_max(struct v16 a, struct v16 b)
{
    return (struct v16){ _mm512_max_ps(a.v, b.v) };
}

V16_INLINE struct v16 v16_round(struct v16 v)
{
    return (struct v16){ _mm512_roundscale_ps(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) };
}

V16_INLINE struct m16 v16_lt(struct v16 a, struct v16 b)
{
    return (struct m16){ _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ) };
}

V16_INLINE struct m16 v16_le(struct v16 a, struct v16 b)
{
    return (struct m16){ _mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ) };
}

V16_INLINE struct m16 v16_eq(struct v16 a, struct v16 b)
{
    return (struct m16){ _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ) };
}

V16_INLINE struct v16 v16_select(struct m16 m, struct v16 a, struct v16 b)
{
    return (struct v16){ _mm512_mask_mov_ps(b.v, m.m, a.v) };
}

V16_INLINE struct m16 m16_and(struct m16 a, struct m16 b)
{
    return (struct m16){ (__mmask16)(a.m & b.m) };
}

V16_INLINE struct m16 m16_or(struct m16 a, struct m16 b)
{
    return (struct m16){ (__mmask16)(a.m | b.m) };
}

V16_INLINE uint32_t m16_bits(struct m16 m)
{
    return m.m;
}

V16_INLINE struct v16i v16_bits(struct v16 v)
{
    return (struct v16i){ _mm512_castps_si512(v.v) };
}

V16_INLINE struct v16 v16_from_bits(struct v16i v)
{
    return (struct v16){ _mm512_castsi512_ps(v.v) };
}

V16_INLINE struct v16i v16i_set1(int32_t x)
{
    return (struct v16i){ _mm512_set1_epi32(x) };
}

V16_INLINE struct v16i v16i_load(const int32_t *p)
{
    return (struct v16i){ _mm512_loadu_si512(p) };
}

V16_INLINE struct v16i v16i_add(struct v16i a, struct v16i b)
{
    return (struct v16i){ _mm512_add_epi32(a.v, b.v) };
}

V16_INLINE struct v16i v16i_sub(struct v16i a, struct v16i b)
{
    return (struct v16i){ _mm512_sub_epi32(a.v, b.v) };
}

V16_INLINE struct v16i v16i_and(struct v16i a, struct v16i b)
{
    return (struct v16i){ _mm512_and_si512(a.v, b.v) };
}

V16_INLINE struct v16i v16i_or(struct v16i a, struct v16i b)
{
    return (struct v16i){ _mm512_or_si512(a.v, b.v) };
}

V16_INLINE struct v16i v16i_xor(struct v16i a, struct v16i b)
{
    return (struct v16i){ _mm512_xor_si512(a.v, b.v) };
}

V16_INLINE struct v16i v16i_shl(struct v16i v, int n)
{
    return (struct v16i){ _mm512_sllv_epi32(v.v, _mm512_set1_epi32(n)) };
}

V16_INLINE struct v16i v16i_sra(struct v16i v, int n)
{
    return (struct v16i){ _mm512_srav_epi32(v.v, _mm512_set1_epi32(n)) };
}

V16_INLINE struct v16 v16i_to_float(struct v16i v)
{
    return (struct v16){ _mm512_cvtepi32_ps(v.v) };
}

V16_INLINE float v16_sum(struct v16 v)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v.v), _mm512_extractf32x8_ps(v.v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

V16_INLINE float v16_max_lanes(struct v16 v)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v.v), _mm512_extractf32x8_ps(v.v, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

V16_INLINE uint32_t v16_add_fixed(int64_t *acc, struct v16 v, float limit)
{
    __mmask16 good = _mm512_cmp_ps_mask(_mm512_abs_ps(v.v), _mm512_set1_ps(limit), _CMP_LT_OQ);
    __m512 kept = _mm512_maskz_mov_ps(good, v.v);
    __m512i lo = _mm512_cvtps_epi64(_mm512_castps512_ps256(kept));
    __m512i hi = _mm512_cvtps_epi64(_mm512_extractf32x8_ps(kept, 1));
    _mm512_storeu_si512(acc, _mm512_add_epi64(_mm512_loadu_si512(acc), lo));
    _mm512_storeu_si512(acc + 8, _mm512_add_epi64(_mm512_loadu_si512(acc + 8), hi));
    return ~(uint32_t)good & 0xffffu;
}

V16_INLINE struct v16 v16_from_fixed(const int64_t *p)
{
    __m256 lo = _mm512_cvtpd_ps(_mm512_cvtepi64_pd(_mm512_loadu_si512(p)));
    __m256 hi = _mm512_cvtpd_ps(_mm512_cvtepi64_pd(_mm512_loadu_si512(p + 8)));
    return (struct v16){ _mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1) };
}

/* The upper halves hold the bf16 numbers. Integer operations: a product with 1 would be left out by the compiler. */
V16_INLINE __m512i v16_bf16_bits(__m512 v)
{
    __m512i bits = _mm512_castps_si512(v), size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32(0x7f800000));
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x00400000));
    __mmask16 denormal = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x00800000));
    return _mm512_mask_and_epi32(up, denormal, bits, _mm512_set1_epi32(INT32_MIN));
}

V16_INLINE struct v16 v16_round_bf16(struct v16 v)
{
    __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    return (struct v16){ _mm512_castsi512_ps(_mm512_and_si512(v16_bf16_bits(v.v), upper)) };
}

V16_INLINE void v16_store_bf16_n(uint16_t *p, struct v16 v, uint32_t n)
{
    _mm512_mask_cvtepi32_storeu_epi16(p, m16_first(n).m, _mm512_srli_epi32(v16_bf16_bits(v.v), 16));
}

V16_INLINE void v16_store_bf16(uint16_t *p, struct v16 v)
{
#if KERN_ISA == 3
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v.v));
#else
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(v16_bf16_bits(v.v), 16)));
#endif
}

V16_INLINE struct v16 v16_widen_bf16(__m256i half)
{
    return (struct v16){ _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)) };
}

V16_INLINE struct v16 v16_load_bf16(const uint16_t *p)
{
    return v16_widen_bf16(_mm256_loadu_si256((const __m256i *)p));
}

V16_INLINE struct v16 v16_load_bf16_n(const uint16_t *p, uint32_t n)
{
    return v16_widen_bf16(_mm256_maskz_loadu_epi16(m16_first(n).m, p));
}

/* Pairs, then fours within 128 bits (u[4 i + c] holds columns c, 4 + c, 8 + c, 12 + c of rows 4 i .. 4 i + 3), then the
 * 128-bit parts. */
V16_INLINE void v16_transpose(struct v16 *r)
{
    __m512 t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
        t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int c = 0; c < 4; c++) {
        __m512 even_lo = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88),
               odd_lo = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
        __m512 even_hi = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
        __m512 odd_hi = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
        r[c].v = _mm512_shuffle_f32x4(even_lo, even_hi, 0x88);
        r[4 + c].v = _mm512_shuffle_f32x4(odd_lo, odd_hi, 0x88);
        r[8 + c].v = _mm512_shuffle_f32x4(even_lo, even_hi, 0xdd);
        r[12 + c].v = _mm512_shuffle_f32x4(odd_lo, odd_hi, 0xdd);
    }
}

#endif
