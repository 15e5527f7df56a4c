/* Eight 64-bit lanes beside the sixteen of kern/simd.h, for what needs more than fp32: integers of gradients, exact
 * sums, hashes. Each operation is one IEEE double operation or one integer operation, so the bits are the same on
 * every instruction set; the scalar form is the definition.
 *
 * Types: struct d8 (doubles), struct hash16 (a running sum of hash_element). Each representation gives
 *   d8_set1(x)  d8_load_fixed(p) (int64, nearest even)  d8_store(p, v)  d8_add  d8_sub  d8_mul
 *   d8_fnma(a, b, c) = c - a b
 *   d8_to_float_and_back(v)             rounded to fp32
 *   v16_from_d8(low, high)              both rounded to fp32, lanes 0-7 and 8-15
 *   fixed_beyond(p, wrong)              true when an integer of the eight is at or beyond +-2^62, or `wrong` is
 *   hash16_begin()  hash16_seek(h, index) (the next element's index)  hash16_add(h, v) (sixteen elements)
 *   hash16_sum(h) */
#ifndef KERN_SIMD_WIDE_H
#define KERN_SIMD_WIDE_H

#include "base/hash.h"
#include "kern/simd.h"

#define HASH_KEY_STEP 0x9e3779b97f4a7c15ull /* of hash_element: keys of neighbours differ by this */
#define HASH_KEYS_EVEN                                                                             \
    {                                                                                              \
        0, 2 * HASH_KEY_STEP, 4 * HASH_KEY_STEP, 6 * HASH_KEY_STEP, 8 * HASH_KEY_STEP,             \
            10 * HASH_KEY_STEP, 12 * HASH_KEY_STEP, 14 * HASH_KEY_STEP                             \
    } /* of elements 0, 2, 4, ... after another */
#define FIXED_EDGE (((int64_t)1 << 62) - 1)

#if KERN_AVX512

struct d8 {
    __m512d v;
};

V16_INLINE struct d8 d8_set1(double x)
{
    return (struct d8){ _mm512_set1_pd(x) };
}

V16_INLINE struct d8 d8_load_fixed(const int64_t *p)
{
    return (struct d8){ _mm512_cvtepi64_pd(_mm512_loadu_si512(p)) };
}

V16_INLINE void d8_store(double *p, struct d8 v)
{
    _mm512_storeu_pd(p, v.v);
}

V16_INLINE struct d8 d8_add(struct d8 a, struct d8 b)
{
    return (struct d8){ _mm512_add_pd(a.v, b.v) };
}

V16_INLINE struct d8 d8_sub(struct d8 a, struct d8 b)
{
    return (struct d8){ _mm512_sub_pd(a.v, b.v) };
}

V16_INLINE struct d8 d8_mul(struct d8 a, struct d8 b)
{
    return (struct d8){ _mm512_mul_pd(a.v, b.v) };
}

V16_INLINE struct d8 d8_fnma(struct d8 a, struct d8 b, struct d8 c)
{
    return (struct d8){ _mm512_fnmadd_pd(a.v, b.v, c.v) };
}

V16_INLINE struct d8 d8_to_float_and_back(struct d8 v)
{
    return (struct d8){ _mm512_cvtps_pd(_mm512_cvtpd_ps(v.v)) };
}

V16_INLINE struct v16 v16_from_d8(struct d8 low, struct d8 high)
{
    __m512 both = _mm512_castps256_ps512(_mm512_cvtpd_ps(low.v));
    return (struct v16){ _mm512_insertf32x8(both, _mm512_cvtpd_ps(high.v), 1) };
}

V16_INLINE bool fixed_beyond(const int64_t *p, bool wrong)
{
    __m512i x = _mm512_loadu_si512(p), edge = _mm512_set1_epi64(FIXED_EDGE);
    __m512i negative = _mm512_or_si512(_mm512_add_epi64(x, edge), _mm512_sub_epi64(edge, x));
    return wrong | (_mm512_movepi64_mask(negative) != 0);
}

struct hash16 {
    __m512i key; /* of elements 0, 2, 4, ... */
    __m512i sum;
};

V16_INLINE struct hash16 hash16_begin(void)
{
    return (struct hash16){ _mm512_setzero_si512(), _mm512_setzero_si512() };
}

V16_INLINE void hash16_seek(struct hash16 *h, uint64_t index)
{
    static const uint64_t lane[8] = HASH_KEYS_EVEN;
    h->key = _mm512_add_epi64(_mm512_set1_epi64((int64_t)((index + 1) * HASH_KEY_STEP)), _mm512_loadu_si512(lane));
}

/* `bits` holds an element in the low half of each lane; the multiplication ignores the high halves. */
V16_INLINE __m512i hash16_term(__m512i key, __m512i bits)
{
    __m512i odd = _mm512_or_si512(_mm512_srli_epi64(key, 32), _mm512_set1_epi64(1));
    __m512i term = _mm512_mul_epu32(_mm512_xor_si512(bits, key), odd);
    return _mm512_xor_si512(term, _mm512_srli_epi64(term, 32));
}

V16_INLINE void hash16_add(struct hash16 *h, struct v16 v)
{
    __m512i bits = _mm512_castps_si512(v.v);
    __m512i even = hash16_term(h->key, bits);
    __m512i next = _mm512_add_epi64(h->key, _mm512_set1_epi64((int64_t)HASH_KEY_STEP));
    __m512i odd = hash16_term(next, _mm512_srli_epi64(bits, 32));
    h->sum = _mm512_add_epi64(h->sum, _mm512_add_epi64(even, odd));
    h->key = _mm512_add_epi64(h->key, _mm512_set1_epi64((int64_t)(HASH_KEY_STEP * 16)));
}

V16_INLINE uint64_t hash16_sum(const struct hash16 *h)
{
    uint64_t part[8], sum = 0;
    _mm512_storeu_si512(part, h->sum);
    for (int l = 0; l < 8; l++) { /* the intrinsic for this adds signed numbers, which may not wrap */
        sum += part[l];
    }
    return sum;
}

#elif KERN_AVX2

struct d8 {
    __m256d lo, hi;
};

V16_INLINE struct d8 d8_set1(double x)
{
    return (struct d8){ _mm256_set1_pd(x), _mm256_set1_pd(x) };
}

/* As v16_from_fixed4: the halves of the integer in the fractions of 2^52 and 2^84; only the last sum rounds. */
V16_INLINE __m256d d4_load_fixed(const int64_t *p)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    __m256i low = _mm256_blend_epi32(_mm256_set1_epi64x(0x4330000000000000), x, 0x55);
    __m256i high = _mm256_xor_si256(_mm256_srli_epi64(x, 32), _mm256_set1_epi64x(0x4530000080000000));
    __m256i shift = _mm256_set1_epi64x(0x4530000080100000);
    __m256d top = _mm256_sub_pd(_mm256_castsi256_pd(high), _mm256_castsi256_pd(shift));
    return _mm256_add_pd(top, _mm256_castsi256_pd(low));
}

V16_INLINE struct d8 d8_load_fixed(const int64_t *p)
{
    return (struct d8){ d4_load_fixed(p), d4_load_fixed(p + 4) };
}

V16_INLINE void d8_store(double *p, struct d8 v)
{
    _mm256_storeu_pd(p, v.lo);
    _mm256_storeu_pd(p + 4, v.hi);
}

V16_INLINE struct d8 d8_add(struct d8 a, struct d8 b)
{
    return (struct d8){ _mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi) };
}

V16_INLINE struct d8 d8_sub(struct d8 a, struct d8 b)
{
    return (struct d8){ _mm256_sub_pd(a.lo, b.lo), _mm256_sub_pd(a.hi, b.hi) };
}

V16_INLINE struct d8 d8_mul(struct d8 a, struct d8 b)
{
    return (struct d8){ _mm256_mul_pd(a.lo, b.lo), _mm256_mul_pd(a.hi, b.hi) };
}

V16_INLINE struct d8 d8_fnma(struct d8 a, struct d8 b, struct d8 c)
{
    return (struct d8){ _mm256_fnmadd_pd(a.lo, b.lo, c.lo), _mm256_fnmadd_pd(a.hi, b.hi, c.hi) };
}

V16_INLINE struct d8 d8_to_float_and_back(struct d8 v)
{
    return (struct d8){ _mm256_cvtps_pd(_mm256_cvtpd_ps(v.lo)), _mm256_cvtps_pd(_mm256_cvtpd_ps(v.hi)) };
}

V16_INLINE struct v16 v16_from_d8(struct d8 low, struct d8 high)
{
    return (struct v16){ _mm256_set_m128(_mm256_cvtpd_ps(low.hi), _mm256_cvtpd_ps(low.lo)),
                         _mm256_set_m128(_mm256_cvtpd_ps(high.hi), _mm256_cvtpd_ps(high.lo)) };
}

V16_INLINE bool fixed_beyond(const int64_t *p, bool wrong)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)p), b = _mm256_loadu_si256((const __m256i *)(p + 4));
    __m256i edge = _mm256_set1_epi64x(FIXED_EDGE);
    __m256i negative = _mm256_or_si256(_mm256_or_si256(_mm256_add_epi64(a, edge), _mm256_sub_epi64(edge, a)),
                                       _mm256_or_si256(_mm256_add_epi64(b, edge), _mm256_sub_epi64(edge, b)));
    return wrong | (_mm256_movemask_pd(_mm256_castsi256_pd(negative)) != 0);
}

struct hash16 {
    __m256i key[2]; /* of elements 0, 2, 4, 6 and 8, 10, 12, 14 */
    __m256i sum;
};

V16_INLINE struct hash16 hash16_begin(void)
{
    return (struct hash16){ { _mm256_setzero_si256(), _mm256_setzero_si256() }, _mm256_setzero_si256() };
}

V16_INLINE void hash16_seek(struct hash16 *h, uint64_t index)
{
    static const uint64_t lane[8] = HASH_KEYS_EVEN;
    __m256i first = _mm256_set1_epi64x((int64_t)((index + 1) * HASH_KEY_STEP));
    h->key[0] = _mm256_add_epi64(first, _mm256_loadu_si256((const __m256i *)lane));
    h->key[1] = _mm256_add_epi64(first, _mm256_loadu_si256((const __m256i *)lane + 1));
}

/* `bits` holds an element in the low half of each lane; the multiplication ignores the high halves. */
V16_INLINE __m256i hash16_term(__m256i key, __m256i bits)
{
    __m256i odd = _mm256_or_si256(_mm256_srli_epi64(key, 32), _mm256_set1_epi64x(1));
    __m256i term = _mm256_mul_epu32(_mm256_xor_si256(bits, key), odd);
    return _mm256_xor_si256(term, _mm256_srli_epi64(term, 32));
}

V16_INLINE void hash16_half(struct hash16 *h, int half, __m256i bits)
{
    __m256i even = hash16_term(h->key[half], bits);
    __m256i next = _mm256_add_epi64(h->key[half], _mm256_set1_epi64x((int64_t)HASH_KEY_STEP));
    __m256i odd = hash16_term(next, _mm256_srli_epi64(bits, 32));
    h->sum = _mm256_add_epi64(h->sum, _mm256_add_epi64(even, odd));
    h->key[half] = _mm256_add_epi64(h->key[half], _mm256_set1_epi64x((int64_t)(HASH_KEY_STEP * 16)));
}

V16_INLINE void hash16_add(struct hash16 *h, struct v16 v)
{
    hash16_half(h, 0, _mm256_castps_si256(v.lo));
    hash16_half(h, 1, _mm256_castps_si256(v.hi));
}

V16_INLINE uint64_t hash16_sum(const struct hash16 *h)
{
    uint64_t part[4];
    _mm256_storeu_si256((__m256i *)part, h->sum);
    return part[0] + part[1] + part[2] + part[3];
}

#else

#if KERN_VECTOR

struct d8 {
    vector_f64 d[VECTOR_PARTS];
};

#define D8_EACH(expr) VECTOR_PARTS_OF(d8, d, expr)

V16_INLINE struct d8 d8_set1(double x)
{
    D8_EACH(vector_set1_f64(x));
}

V16_INLINE struct d8 d8_load_fixed(const int64_t *from)
{
    D8_EACH(vector_load_fixed(from + p * VECTOR_LANES / 2));
}

V16_INLINE void d8_store(double *to, struct d8 v)
{
    memcpy(to, v.d, sizeof(v.d));
}

V16_INLINE struct d8 d8_add(struct d8 a, struct d8 b)
{
    D8_EACH(a.d[p] + b.d[p]);
}

V16_INLINE struct d8 d8_sub(struct d8 a, struct d8 b)
{
    D8_EACH(a.d[p] - b.d[p]);
}

V16_INLINE struct d8 d8_mul(struct d8 a, struct d8 b)
{
    D8_EACH(a.d[p] * b.d[p]);
}

V16_INLINE struct d8 d8_fnma(struct d8 a, struct d8 b, struct d8 c)
{
    D8_EACH(vector_fma_f64(-a.d[p], b.d[p], c.d[p]));
}

V16_INLINE struct d8 d8_to_float_and_back(struct d8 v)
{
    D8_EACH(__builtin_convertvector(__builtin_convertvector(v.d[p], vector_half), vector_f64));
}

V16_INLINE struct v16 v16_from_d8(struct d8 low, struct d8 high)
{
    struct v16 r;
    for (int p = 0; p < VECTOR_PARTS / 2; p++) {
        r.f[p] = vector_from_f64(low.d[2 * p], low.d[2 * p + 1]);
        r.f[p + VECTOR_PARTS / 2] = vector_from_f64(high.d[2 * p], high.d[2 * p + 1]);
    }
    return r;
}

#else

struct d8 {
    double d[8];
};

#define D8_EACH(expr)                                                                              \
    struct d8 r;                                                                                   \
    for (int l = 0; l < 8; l++) {                                                                  \
        r.d[l] = (expr);                                                                           \
    }                                                                                              \
    return r

V16_INLINE struct d8 d8_set1(double x)
{
    D8_EACH(x);
}

V16_INLINE struct d8 d8_load_fixed(const int64_t *p)
{
    D8_EACH((double)p[l]);
}

V16_INLINE void d8_store(double *p, struct d8 v)
{
    memcpy(p, v.d, sizeof(v.d));
}

V16_INLINE struct d8 d8_add(struct d8 a, struct d8 b)
{
    D8_EACH(a.d[l] + b.d[l]);
}

V16_INLINE struct d8 d8_sub(struct d8 a, struct d8 b)
{
    D8_EACH(a.d[l] - b.d[l]);
}

V16_INLINE struct d8 d8_mul(struct d8 a, struct d8 b)
{
    D8_EACH(a.d[l] * b.d[l]);
}

V16_INLINE struct d8 d8_fnma(struct d8 a, struct d8 b, struct d8 c)
{
    D8_EACH(fma(-a.d[l], b.d[l], c.d[l]));
}

V16_INLINE struct d8 d8_to_float_and_back(struct d8 v)
{
    D8_EACH((double)(float)v.d[l]);
}

V16_INLINE struct v16 v16_from_d8(struct d8 low, struct d8 high)
{
    struct v16 r;
    for (int l = 0; l < 8; l++) {
        r.f[l] = (float)low.d[l];
        r.f[l + 8] = (float)high.d[l];
    }
    return r;
}

#endif
#undef D8_EACH

V16_INLINE bool fixed_beyond(const int64_t *p, bool wrong)
{
    for (int l = 0; l < 8; l++) {
        wrong |= p[l] > FIXED_EDGE || p[l] < -FIXED_EDGE;
    }
    return wrong;
}

struct hash16 {
    uint64_t index, sum;
};

V16_INLINE struct hash16 hash16_begin(void)
{
    return (struct hash16){ 0, 0 };
}

V16_INLINE void hash16_seek(struct hash16 *h, uint64_t index)
{
    h->index = index;
}

V16_INLINE void hash16_add(struct hash16 *h, struct v16 v)
{
    uint32_t bits[16];
    memcpy(bits, v.f, sizeof(bits));
    for (int l = 0; l < 16; l++) {
        h->sum += hash_element(h->index++, bits[l]);
    }
}

V16_INLINE uint64_t hash16_sum(const struct hash16 *h)
{
    return h->sum;
}

#endif

#endif
