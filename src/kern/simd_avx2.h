/* kern/simd.h on AVX2 and FMA: lanes 0-7 in `lo`, 8-15 in `hi`. */
#ifndef KERN_SIMD_AVX2_H
#define KERN_SIMD_AVX2_H

#include <immintrin.h>

struct v16 {
    __m256 lo, hi;
};
struct v16i {
    __m256i lo, hi;
};
struct m16 {
    __m256 lo, hi; /* all bits of a lane */
};

#define V16_BOTH(type, op, ...) ((struct type){ op(lo, __VA_ARGS__), op(hi, __VA_ARGS__) })
#define V16_1(half, f, a) f((a).half)
#define V16_2(half, f, a, b) f((a).half, (b).half)
#define V16_3(half, f, a, b, c) f((a).half, (b).half, (c).half)

V16_INLINE struct v16 v16_zero(void)
{
    return (struct v16){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}

V16_INLINE struct v16 v16_set1(float x)
{
    return (struct v16){ _mm256_set1_ps(x), _mm256_set1_ps(x) };
}

V16_INLINE struct v16 v16_load(const float *p)
{
    return (struct v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}

V16_INLINE void v16_store(float *p, struct v16 v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

V16_INLINE struct m16 m16_first(uint32_t n)
{
    __m256i limit = _mm256_set1_epi32((int)n);
    __m256i lo = _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i hi = _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
    return (struct m16){ _mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi) };
}

V16_INLINE struct v16 v16_load_n(const float *p, uint32_t n)
{
    struct m16 m = m16_first(n);
    return (struct v16){ _mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
                         _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi)) };
}

V16_INLINE void v16_store_n(float *p, struct v16 v, uint32_t n)
{
    struct m16 m = m16_first(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), v.lo);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), v.hi);
}

V16_INLINE struct v16 v16_add(struct v16 a, struct v16 b)
{
    return V16_BOTH(v16, V16_2, _mm256_add_ps, a, b);
}

V16_INLINE struct v16 v16_sub(struct v16 a, struct v16 b)
{
    return V16_BOTH(v16, V16_2, _mm256_sub_ps, a, b);
}

V16_INLINE struct v16 v16_mul(struct v16 a, struct v16 b)
{
    return V16_BOTH(v16, V16_2, _mm256_mul_ps, a, b);
}

V16_INLINE struct v16 v16_div(struct v16 a, struct v16 b)
{
    return V16_BOTH(v16, V16_2, _mm256_div_ps, a, b);
}

V16_INLINE struct v16 v16_sqrt(struct v16 v)
{
    return V16_BOTH(v16, V16_1, _mm256_sqrt_ps, v);
}

V16_INLINE struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
    return V16_BOTH(v16, V16_3, _mm256_fmadd_ps, a, b, c);
}

V16_INLINE struct v16 v16_fnma(struct v16 a, struct v16 b, struct v16 c)
{
    return V16_BOTH(v16, V16_3, _mm256_fnmadd_ps, a, b, c);
}

V16_INLINE struct v16 v16_min(struct v16 a, struct v16 b)
{
    return V16_BOTH(v16, V16_2, _mm256_min_ps, a, b);
}

V16_INLINE struct v16 v16_max(struct v16 a, struct v16 b)
{
    return V16_BOTH(v16, V16_2, _mm256_max_ps, a, b);
}

V16_INLINE struct v16 v16_round(struct v16 v)
{
    return (struct v16){ _mm256_round_ps(v.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                         _mm256_round_ps(v.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) };
}

V16_INLINE struct m16 v16_lt(struct v16 a, struct v16 b)
{
    return (struct m16){ _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ) };
}

V16_INLINE struct m16 v16_le(struct v16 a, struct v16 b)
{
    return (struct m16){ _mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ) };
}

V16_INLINE struct m16 v16_eq(struct v16 a, struct v16 b)
{
    return (struct m16){ _mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ) };
}

V16_INLINE struct v16 v16_select(struct m16 m, struct v16 a, struct v16 b)
{
    return (struct v16){ _mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi) };
}

V16_INLINE struct m16 m16_and(struct m16 a, struct m16 b)
{
    return V16_BOTH(m16, V16_2, _mm256_and_ps, a, b);
}

V16_INLINE struct m16 m16_or(struct m16 a, struct m16 b)
{
    return V16_BOTH(m16, V16_2, _mm256_or_ps, a, b);
}

V16_INLINE uint32_t m16_bits(struct m16 m)
{
    return (uint32_t)_mm256_movemask_ps(m.lo) | (uint32_t)_mm256_movemask_ps(m.hi) << 8;
}

V16_INLINE struct v16i v16_bits(struct v16 v)
{
    return V16_BOTH(v16i, V16_1, _mm256_castps_si256, v);
}

V16_INLINE struct v16 v16_from_bits(struct v16i v)
{
    return V16_BOTH(v16, V16_1, _mm256_castsi256_ps, v);
}

V16_INLINE struct v16i v16i_set1(int32_t x)
{
    return (struct v16i){ _mm256_set1_epi32(x), _mm256_set1_epi32(x) };
}

V16_INLINE struct v16i v16i_load(const int32_t *p)
{
    return (struct v16i){ _mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8)) };
}

V16_INLINE struct v16i v16i_add(struct v16i a, struct v16i b)
{
    return V16_BOTH(v16i, V16_2, _mm256_add_epi32, a, b);
}

V16_INLINE struct v16i v16i_sub(struct v16i a, struct v16i b)
{
    return V16_BOTH(v16i, V16_2, _mm256_sub_epi32, a, b);
}

V16_INLINE struct v16i v16i_and(struct v16i a, struct v16i b)
{
    return V16_BOTH(v16i, V16_2, _mm256_and_si256, a, b);
}

V16_INLINE struct v16i v16i_or(struct v16i a, struct v16i b)
{
    return V16_BOTH(v16i, V16_2, _mm256_or_si256, a, b);
}

V16_INLINE struct v16i v16i_xor(struct v16i a, struct v16i b)
{
    return V16_BOTH(v16i, V16_2, _mm256_xor_si256, a, b);
}

V16_INLINE struct v16i v16i_shl(struct v16i v, int n)
{
    __m256i count = _mm256_set1_epi32(n);
    return (struct v16i){ _mm256_sllv_epi32(v.lo, count), _mm256_sllv_epi32(v.hi, count) };
}

V16_INLINE struct v16i v16i_sra(struct v16i v, int n)
{
    __m256i count = _mm256_set1_epi32(n);
    return (struct v16i){ _mm256_srav_epi32(v.lo, count), _mm256_srav_epi32(v.hi, count) };
}

V16_INLINE struct v16 v16i_to_float(struct v16i v)
{
    return V16_BOTH(v16, V16_1, _mm256_cvtepi32_ps, v);
}

V16_INLINE float v16_sum(struct v16 v)
{
    __m256 h = _mm256_add_ps(v.lo, v.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

V16_INLINE float v16_max_lanes(struct v16 v)
{
    __m256 h = _mm256_max_ps(v.lo, v.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* Four lanes: 1.5 * 2^52 + x has the rounded integer in its low bits. */
V16_INLINE void v16_add_fixed4(int64_t *acc, __m128 v)
{
    const __m256d magic = _mm256_set1_pd(0x1.8p52);
    __m256i shifted = _mm256_castpd_si256(_mm256_add_pd(_mm256_cvtps_pd(v), magic));
    __m256i whole = _mm256_sub_epi64(shifted, _mm256_castpd_si256(magic));
    __m256i *at = (__m256i *)acc;
    _mm256_storeu_si256(at, _mm256_add_epi64(_mm256_loadu_si256(at), whole));
}

V16_INLINE uint32_t v16_add_fixed(int64_t *acc, struct v16 v, float limit)
{
    const __m256 most = _mm256_set1_ps(limit), size = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    struct m16 good = { _mm256_cmp_ps(_mm256_and_ps(v.lo, size), most, _CMP_LT_OQ),
                        _mm256_cmp_ps(_mm256_and_ps(v.hi, size), most, _CMP_LT_OQ) };
    v.lo = _mm256_and_ps(v.lo, good.lo);
    v.hi = _mm256_and_ps(v.hi, good.hi);
    v16_add_fixed4(acc, _mm256_castps256_ps128(v.lo));
    v16_add_fixed4(acc + 4, _mm256_extractf128_ps(v.lo, 1));
    v16_add_fixed4(acc + 8, _mm256_castps256_ps128(v.hi));
    v16_add_fixed4(acc + 12, _mm256_extractf128_ps(v.hi, 1));
    return ~m16_bits(good) & 0xffffu;
}

/* int64 to double has no AVX2 instruction. The low word goes into the fraction of 2^52, the high word (sign flipped)
 * into that of 2^84; taking 2^84 + 2^63 + 2^52 from the latter is exact, so the final sum rounds once. */
V16_INLINE __m128 v16_from_fixed4(const int64_t *p)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    __m256i low = _mm256_blend_epi32(_mm256_set1_epi64x(0x4330000000000000), x, 0x55);
    __m256i high = _mm256_xor_si256(_mm256_srli_epi64(x, 32), _mm256_set1_epi64x(0x4530000080000000));
    __m256d top = _mm256_sub_pd(_mm256_castsi256_pd(high), _mm256_castsi256_pd(_mm256_set1_epi64x(0x4530000080100000)));
    return _mm256_cvtpd_ps(_mm256_add_pd(top, _mm256_castsi256_pd(low)));
}

V16_INLINE struct v16 v16_from_fixed(const int64_t *p)
{
    return (struct v16){ _mm256_set_m128(v16_from_fixed4(p + 4), v16_from_fixed4(p)),
                         _mm256_set_m128(v16_from_fixed4(p + 12), v16_from_fixed4(p + 8)) };
}

/* The upper halves hold the bf16 numbers. Integer operations: a product with 1 would be left out by the compiler. */
V16_INLINE __m256i v16_bf16_bits8(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v), size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i denormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), size);
    __m256i nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
    up = _mm256_blendv_epi8(up, _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000)), nan);
    return _mm256_andnot_si256(_mm256_and_si256(denormal, _mm256_set1_epi32(0x7fffffff)), up);
}

V16_INLINE struct v16 v16_round_bf16(struct v16 v)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    return (struct v16){ _mm256_castsi256_ps(_mm256_and_si256(v16_bf16_bits8(v.lo), upper)),
                         _mm256_castsi256_ps(_mm256_and_si256(v16_bf16_bits8(v.hi), upper)) };
}

V16_INLINE void v16_store_bf16(uint16_t *p, struct v16 v)
{
    __m256i lo = _mm256_srli_epi32(v16_bf16_bits8(v.lo), 16), hi = _mm256_srli_epi32(v16_bf16_bits8(v.hi), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
    _mm256_storeu_si256((__m256i *)p, packed);
}

V16_INLINE void v16_store_bf16_n(uint16_t *p, struct v16 v, uint32_t n)
{
    uint16_t all[16];
    v16_store_bf16(all, v);
    for (uint32_t l = 0; l < n && l < 16; l++) {
        p[l] = all[l];
    }
}

V16_INLINE __m256 v16_widen8(__m128i half)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

V16_INLINE struct v16 v16_load_bf16(const uint16_t *p)
{
    return (struct v16){ v16_widen8(_mm_loadu_si128((const __m128i *)p)),
                         v16_widen8(_mm_loadu_si128((const __m128i *)(p + 8))) };
}

V16_INLINE struct v16 v16_load_bf16_n(const uint16_t *p, uint32_t n)
{
    uint16_t all[16] = { 0 };
    for (uint32_t l = 0; l < n && l < 16; l++) {
        all[l] = p[l];
    }
    return v16_load_bf16(all);
}

/* Pairs, then pairs of pairs within 128 bits, then the halves. */
V16_INLINE void v16_transpose8(__m256 *r)
{
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

V16_INLINE void v16_transpose(struct v16 *r)
{
    __m256 a[8], b[8], c[8], d[8];
    for (int i = 0; i < 8; i++) {
        a[i] = r[i].lo;
        b[i] = r[i].hi;
        c[i] = r[i + 8].lo;
        d[i] = r[i + 8].hi;
    }
    v16_transpose8(a);
    v16_transpose8(b);
    v16_transpose8(c);
    v16_transpose8(d);
    for (int i = 0; i < 8; i++) {
        r[i] = (struct v16){ a[i], c[i] };
        r[i + 8] = (struct v16){ b[i], d[i] };
    }
}

#undef V16_BOTH
#undef V16_1
#undef V16_2
#undef V16_3

#endif
