/* The definition of kern/simd.h: plain loops over 16 lanes. The other representations must equal it bit for bit. */
#ifndef KERN_SIMD_SCALAR_H
#define KERN_SIMD_SCALAR_H

#include <math.h>

struct v16 {
    float f[16];
};
struct v16i {
    int32_t i[16];
};
struct m16 {
    int32_t m[16]; /* 0 or -1 */
};

#define V16_EACH(expr)                                                                             \
    struct v16 r;                                                                                  \
    for (int l = 0; l < 16; l++) {                                                                 \
        r.f[l] = (expr);                                                                           \
    }                                                                                              \
    return r
#define V16I_EACH(expr)                                                                            \
    struct v16i r;                                                                                 \
    for (int l = 0; l < 16; l++) {                                                                 \
        r.i[l] = (expr);                                                                           \
    }                                                                                              \
    return r
#define M16_EACH(expr)                                                                             \
    struct m16 r;                                                                                  \
    for (int l = 0; l < 16; l++) {                                                                 \
        r.m[l] = (expr) ? -1 : 0;                                                                  \
    }                                                                                              \
    return r

V16_INLINE struct v16 v16_set1(float x)
{
    V16_EACH(x);
}

V16_INLINE struct v16 v16_zero(void)
{
    return v16_set1(0.0f);
}

V16_INLINE struct v16 v16_load(const float *p)
{
    V16_EACH(p[l]);
}

V16_INLINE void v16_store(float *p, struct v16 v)
{
    memcpy(p, v.f, sizeof(v.f));
}

V16_INLINE struct v16 v16_load_n(const float *p, uint32_t n)
{
    V16_EACH((uint32_t)l < n ? p[l] : 0.0f);
}

V16_INLINE void v16_store_n(float *p, struct v16 v, uint32_t n)
{
    for (uint32_t l = 0; l < n && l < 16; l++) {
        p[l] = v.f[l];
    }
}

V16_INLINE struct v16 v16_add(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[l] + b.f[l]);
}

V16_INLINE struct v16 v16_sub(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[l] - b.f[l]);
}

V16_INLINE struct v16 v16_mul(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[l] * b.f[l]);
}

V16_INLINE struct v16 v16_div(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[l] / b.f[l]);
}

V16_INLINE struct v16 v16_sqrt(struct v16 v)
{
    V16_EACH(sqrtf(v.f[l]));
}

V16_INLINE struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
    V16_EACH(fmaf(a.f[l], b.f[l], c.f[l]));
}

V16_INLINE struct v16 v16_fnma(struct v16 a, struct v16 b, struct v16 c)
{
    V16_EACH(fmaf(-a.f[l], b.f[l], c.f[l]));
}

V16_INLINE struct v16 v16_min(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[l] < b.f[l] ? a.f[l] : b.f[l]);
}

V16_INLINE struct v16 v16_max(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[l] > b.f[l] ? a.f[l] : b.f[l]);
}

V16_INLINE struct m16 v16_lt(struct v16 a, struct v16 b)
{
    M16_EACH(a.f[l] < b.f[l]);
}

V16_INLINE struct m16 v16_le(struct v16 a, struct v16 b)
{
    M16_EACH(a.f[l] <= b.f[l]);
}

V16_INLINE struct m16 v16_eq(struct v16 a, struct v16 b)
{
    M16_EACH(a.f[l] == b.f[l]);
}

V16_INLINE struct v16 v16_select(struct m16 m, struct v16 a, struct v16 b)
{
    V16_EACH(m.m[l] ? a.f[l] : b.f[l]);
}

V16_INLINE struct m16 m16_first(uint32_t n)
{
    M16_EACH((uint32_t)l < n);
}

V16_INLINE struct m16 m16_and(struct m16 a, struct m16 b)
{
    M16_EACH(a.m[l] & b.m[l]);
}

V16_INLINE struct m16 m16_or(struct m16 a, struct m16 b)
{
    M16_EACH(a.m[l] | b.m[l]);
}

V16_INLINE uint32_t m16_bits(struct m16 m)
{
    uint32_t bits = 0;
    for (int l = 0; l < 16; l++) {
        bits |= (m.m[l] ? 1u : 0u) << l;
    }
    return bits;
}

V16_INLINE struct v16i v16_bits(struct v16 v)
{
    struct v16i r;
    memcpy(r.i, v.f, sizeof(r.i));
    return r;
}

V16_INLINE struct v16 v16_from_bits(struct v16i v)
{
    struct v16 r;
    memcpy(r.f, v.i, sizeof(r.f));
    return r;
}

V16_INLINE struct v16i v16i_set1(int32_t x)
{
    V16I_EACH(x);
}

V16_INLINE struct v16i v16i_load(const int32_t *p)
{
    V16I_EACH(p[l]);
}

V16_INLINE struct v16i v16i_add(struct v16i a, struct v16i b)
{
    V16I_EACH((int32_t)((uint32_t)a.i[l] + (uint32_t)b.i[l]));
}

V16_INLINE struct v16i v16i_sub(struct v16i a, struct v16i b)
{
    V16I_EACH((int32_t)((uint32_t)a.i[l] - (uint32_t)b.i[l]));
}

V16_INLINE struct v16i v16i_and(struct v16i a, struct v16i b)
{
    V16I_EACH(a.i[l] & b.i[l]);
}

V16_INLINE struct v16i v16i_or(struct v16i a, struct v16i b)
{
    V16I_EACH(a.i[l] | b.i[l]);
}

V16_INLINE struct v16i v16i_xor(struct v16i a, struct v16i b)
{
    V16I_EACH(a.i[l] ^ b.i[l]);
}

V16_INLINE struct v16i v16i_shl(struct v16i v, int n)
{
    V16I_EACH((int32_t)((uint32_t)v.i[l] << n));
}

V16_INLINE struct v16i v16i_sra(struct v16i v, int n)
{
    V16I_EACH(v.i[l] >> n);
}

V16_INLINE struct v16 v16i_to_float(struct v16i v)
{
    V16_EACH((float)v.i[l]);
}

/* Adding and taking away 2^23 rounds a smaller magnitude to an integer; the sign is put back so that -0.2 gives -0. */
V16_INLINE struct v16 v16_round(struct v16 v)
{
    struct v16 r;
    for (int l = 0; l < 16; l++) {
        float x = v.f[l], size = x < 0.0f ? -x : x;
        r.f[l] = size < 0x1p23f ? __builtin_copysignf((size + 0x1p23f) - 0x1p23f, x) : x;
    }
    return r;
}

V16_INLINE float v16_sum(struct v16 v)
{
    for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) {
            v.f[l] += v.f[l + half];
        }
    }
    return v.f[0];
}

V16_INLINE float v16_max_lanes(struct v16 v)
{
    for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) {
            v.f[l] = v.f[l] > v.f[l + half] ? v.f[l] : v.f[l + half];
        }
    }
    return v.f[0];
}

/* 1.5 * 2^52 + x has the rounded integer in its low bits. */
V16_INLINE uint32_t v16_add_fixed(int64_t *acc, struct v16 v, float limit)
{
    uint32_t bad = 0;
    for (int l = 0; l < 16; l++) {
        if (v.f[l] < limit && v.f[l] > -limit) {
            const double magic = 0x1.8p52;
            double shifted = (double)v.f[l] + magic;
            int64_t a, b;
            memcpy(&a, &shifted, sizeof(a));
            memcpy(&b, &magic, sizeof(b));
            acc[l] += a - b;
        } else {
            bad |= 1u << l;
        }
    }
    return bad;
}

V16_INLINE struct v16 v16_from_fixed(const int64_t *p)
{
    V16_EACH((float)(double)p[l]);
}

V16_INLINE struct v16 v16_load_bf16_n(const uint16_t *p, uint32_t n)
{
    V16_EACH((uint32_t)l < n ? bf16_to_float(p[l]) : 0.0f);
}

V16_INLINE struct v16 v16_load_bf16(const uint16_t *p)
{
    V16_EACH(bf16_to_float(p[l]));
}

V16_INLINE void v16_store_bf16_n(uint16_t *p, struct v16 v, uint32_t n)
{
    for (uint32_t l = 0; l < n && l < 16; l++) {
        p[l] = bf16_from_float(v.f[l]);
    }
}

V16_INLINE void v16_store_bf16(uint16_t *p, struct v16 v)
{
    v16_store_bf16_n(p, v, 16);
}

V16_INLINE struct v16 v16_round_bf16(struct v16 v)
{
    V16_EACH(bf16_to_float(bf16_from_float(v.f[l])));
}

V16_INLINE void v16_transpose(struct v16 *r)
{
    for (int l = 0; l < 16; l++) {
        for (int c = 0; c < l; c++) {
            float x = r[l].f[c];
            r[l].f[c] = r[c].f[l];
            r[c].f[l] = x;
        }
    }
}

#undef V16_EACH
#undef V16I_EACH
#undef M16_EACH

#endif
