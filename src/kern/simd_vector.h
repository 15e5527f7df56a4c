/* kern/simd.h in the vector types of gcc and clang, for a CPU that has no file of its own. Sixteen lanes are
 * VECTOR_PARTS vectors as wide as a register, and the compiler turns each operation into the instructions it may use.
 * No operator means a fused multiply-add: where the compiler has no builtin for it, it is written lane by lane, which
 * becomes one instruction most of the time, and calls of libm on a CPU that has none - slow, but the same bits. */
#ifndef KERN_SIMD_VECTOR_H
#define KERN_SIMD_VECTOR_H

#include <math.h>

#if defined(__AVX2__) && defined(__FMA__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define VECTOR_LANES (VECTOR_BYTES / 4)
#define VECTOR_PARTS (16 / VECTOR_LANES)
#define VECTOR_OF(count, type, name) typedef type name __attribute__((vector_size((count) * sizeof(type))))
VECTOR_OF(VECTOR_LANES, float, vector);
VECTOR_OF(VECTOR_LANES, int32_t, vector_i32);
VECTOR_OF(VECTOR_LANES, uint32_t, vector_u32);
VECTOR_OF(VECTOR_LANES, uint16_t, vector_u16);
VECTOR_OF(VECTOR_LANES / 2, float, vector_half);
VECTOR_OF(VECTOR_LANES / 2, double, vector_f64);
VECTOR_OF(VECTOR_LANES / 2, int64_t, vector_i64);
VECTOR_OF(VECTOR_LANES / 2, uint64_t, vector_u64);
typedef vector vector_anywhere __attribute__((aligned(4)));
typedef vector_i32 vector_i32_anywhere __attribute__((aligned(4)));
typedef vector_u16 vector_u16_anywhere __attribute__((aligned(2)));
typedef vector_f64 vector_f64_anywhere __attribute__((aligned(8)));
typedef vector_u64 vector_u64_anywhere __attribute__((aligned(8)));

/* f(lane, ...) for each lane of a vector, and of one of doubles. */
#define VECTOR_LIST_2(f, at, ...) f(at, __VA_ARGS__), f(at + 1, __VA_ARGS__)
#define VECTOR_LIST_4(f, at, ...) VECTOR_LIST_2(f, at, __VA_ARGS__), VECTOR_LIST_2(f, at + 2, __VA_ARGS__)
#define VECTOR_LIST_8(f, at, ...) VECTOR_LIST_4(f, at, __VA_ARGS__), VECTOR_LIST_4(f, at + 4, __VA_ARGS__)
#if VECTOR_LANES == 8
#define VECTOR_LIST(f, ...) VECTOR_LIST_8(f, 0, __VA_ARGS__)
#define VECTOR_LIST_F64(f, ...) VECTOR_LIST_4(f, 0, __VA_ARGS__)
#else
#define VECTOR_LIST(f, ...) VECTOR_LIST_4(f, 0, __VA_ARGS__)
#define VECTOR_LIST_F64(f, ...) VECTOR_LIST_2(f, 0, __VA_ARGS__)
#endif
#define VECTOR_EACH(f, ...) { VECTOR_LIST(f, __VA_ARGS__) }
#define VECTOR_EACH_F64(f, ...) { VECTOR_LIST_F64(f, __VA_ARGS__) }

/* Lanes of one or two vectors, in another order. */
#define VECTOR_NEXT(lane, by) ((lane) + (by))
#define VECTOR_TURNED(lane, by) (((lane) + (by)) % VECTOR_LANES)
#define VECTOR_ZIPPED(lane, from) ((from) + (lane) / 2 + (lane) % 2 * VECTOR_LANES)
#define VECTOR_LOW(v) __builtin_shufflevector(v, v, VECTOR_LIST_F64(VECTOR_NEXT, 0))
#define VECTOR_HIGH(v) __builtin_shufflevector(v, v, VECTOR_LIST_F64(VECTOR_NEXT, VECTOR_LANES / 2))
#define VECTOR_JOIN(low, high) __builtin_shufflevector(low, high, VECTOR_LIST(VECTOR_NEXT, 0))
#define VECTOR_TURN(v, by) __builtin_shufflevector(v, v, VECTOR_LIST(VECTOR_TURNED, by))
#define VECTOR_ZIP_LOW(a, b) __builtin_shufflevector(a, b, VECTOR_LIST(VECTOR_ZIPPED, 0))
#define VECTOR_ZIP_HIGH(a, b) __builtin_shufflevector(a, b, VECTOR_LIST(VECTOR_ZIPPED, VECTOR_LANES / 2))

/* ---- one vector ---- */

#define VECTOR_SAME(lane, x) (x)
#define VECTOR_SQRT(lane, v) __builtin_sqrtf((v)[lane])
#if VECTOR_LANES == 8
#define VECTOR_FMA(a, b, c) __builtin_ia32_vfmaddps256(a, b, c)
#define VECTOR_FMA_F64(a, b, c) __builtin_ia32_vfmaddpd256(a, b, c)
#elif __has_builtin(__builtin_aarch64_fmav4sf)
#define VECTOR_FMA(a, b, c) __builtin_aarch64_fmav4sf(a, b, c)
#define VECTOR_FMA_F64(a, b, c) __builtin_aarch64_fmav2df(a, b, c)
#else
#define VECTOR_FMA_LANE(lane, a, b, c) __builtin_fmaf((a)[lane], (b)[lane], (c)[lane])
#define VECTOR_FMA_LANE_F64(lane, a, b, c) __builtin_fma((a)[lane], (b)[lane], (c)[lane])
#define VECTOR_FMA(a, b, c) ((vector)VECTOR_EACH(VECTOR_FMA_LANE, a, b, c))
#define VECTOR_FMA_F64(a, b, c) ((vector_f64)VECTOR_EACH_F64(VECTOR_FMA_LANE_F64, a, b, c))
#endif

V16_INLINE vector vector_set1(float x)
{
    return (vector)VECTOR_EACH(VECTOR_SAME, x);
}

V16_INLINE vector_i32 vector_set1_i32(int32_t x)
{
    return (vector_i32)VECTOR_EACH(VECTOR_SAME, x);
}

V16_INLINE vector vector_load(const float *p)
{
    return *(const vector_anywhere *)(const void *)p;
}

V16_INLINE void vector_store(float *p, vector v)
{
    *(vector_anywhere *)(void *)p = v;
}

V16_INLINE vector vector_fma(vector a, vector b, vector c)
{
    return VECTOR_FMA(a, b, c);
}

V16_INLINE vector_f64 vector_set1_f64(double x)
{
    return (vector_f64)VECTOR_EACH_F64(VECTOR_SAME, x);
}

V16_INLINE vector_f64 vector_fma_f64(vector_f64 a, vector_f64 b, vector_f64 c)
{
    return VECTOR_FMA_F64(a, b, c);
}

V16_INLINE vector vector_sqrt(vector v)
{
    return (vector)VECTOR_EACH(VECTOR_SQRT, v);
}

V16_INLINE vector vector_select(vector_i32 mask, vector a, vector b)
{
    return (vector)((mask & (vector_i32)a) | (~mask & (vector_i32)b));
}

V16_INLINE vector vector_max(vector a, vector b)
{
    return vector_select(a > b, a, b);
}

V16_INLINE vector vector_abs(vector v)
{
    return (vector)((vector_i32)v & 0x7fffffff);
}

/* acc[l] += round(v[l]) for lanes below `limit`; the others' bits are set in the result. 1.5 * 2^52 + x has the rounded
 * integer in its low bits. */
V16_INLINE vector_i32 vector_add_fixed(int64_t *acc, vector v, float limit)
{
    const vector_f64 magic = vector_set1_f64(0x1.8p52);
    vector_i32 good = vector_abs(v) < vector_set1(limit);
    v = (vector)((vector_i32)v & good);
    vector_f64 low = __builtin_convertvector(VECTOR_LOW(v), vector_f64) + magic;
    vector_f64 high = __builtin_convertvector(VECTOR_HIGH(v), vector_f64) + magic;
    vector_u64_anywhere *at = (void *)acc;
    at[0] += (vector_u64)low - (vector_u64)magic;
    at[1] += (vector_u64)high - (vector_u64)magic;
    return ~good;
}

V16_INLINE vector_f64 vector_load_fixed(const int64_t *p)
{
    vector_i64 x = (vector_i64) * (const vector_u64_anywhere *)(const void *)p;
    return __builtin_convertvector(x, vector_f64);
}

V16_INLINE vector vector_from_f64(vector_f64 low, vector_f64 high)
{
    return VECTOR_JOIN(__builtin_convertvector(low, vector_half), __builtin_convertvector(high, vector_half));
}

/* VECTOR_LANES vectors in place: as many rounds of zips as the number of lanes has bits. */
V16_INLINE void vector_transpose(vector *r)
{
    for (int round = 1; round < VECTOR_LANES; round *= 2) {
        vector t[VECTOR_LANES];
        for (int i = 0; i < VECTOR_LANES / 2; i++) {
            t[2 * i] = VECTOR_ZIP_LOW(r[i], r[i + VECTOR_LANES / 2]);
            t[2 * i + 1] = VECTOR_ZIP_HIGH(r[i], r[i + VECTOR_LANES / 2]);
        }
        memcpy(r, t, sizeof(t));
    }
}

/* ---- sixteen lanes ---- */

struct v16 {
    vector f[VECTOR_PARTS];
};
struct v16i {
    vector_i32 i[VECTOR_PARTS];
};
struct m16 {
    vector_i32 m[VECTOR_PARTS]; /* all bits of a lane */
};

/* A statement for each part p. No loop: it would keep the loops of the leaf files from being unrolled. */
#define VECTOR_PART(n, ...) { enum { p = n }; __VA_ARGS__; }
#if VECTOR_PARTS == 2
#define VECTOR_PARTS_DO(...) VECTOR_PART(0, __VA_ARGS__) VECTOR_PART(1, __VA_ARGS__)
#else
#define VECTOR_PARTS_DO(...)                                                                                      \
    VECTOR_PART(0, __VA_ARGS__) VECTOR_PART(1, __VA_ARGS__) VECTOR_PART(2, __VA_ARGS__) VECTOR_PART(3, __VA_ARGS__)
#endif
#define VECTOR_PARTS_OF(type, member, expr)                                                                       \
    struct type r;                                                                                                \
    VECTOR_PARTS_DO(r.member[p] = (expr))                                                                         \
    return r
#define V16_EACH(expr) VECTOR_PARTS_OF(v16, f, expr)
#define V16I_EACH(expr) VECTOR_PARTS_OF(v16i, i, expr)
#define M16_EACH(expr) VECTOR_PARTS_OF(m16, m, expr)

V16_INLINE struct v16 v16_set1(float x)
{
    V16_EACH(vector_set1(x));
}

V16_INLINE struct v16 v16_zero(void)
{
    return v16_set1(0.0f);
}

V16_INLINE struct v16 v16_load(const float *from)
{
    V16_EACH(vector_load(from + p * VECTOR_LANES));
}

V16_INLINE void v16_store(float *to, struct v16 v)
{
    VECTOR_PARTS_DO(vector_store(to + p * VECTOR_LANES, v.f[p]))
}

V16_INLINE struct v16 v16_load_n(const float *from, uint32_t n)
{
    if (n >= 16) {
        return v16_load(from);
    }
    float all[16] = { 0 };
    for (uint32_t l = 0; l < n; l++) {
        all[l] = from[l];
    }
    return v16_load(all);
}

V16_INLINE void v16_store_n(float *to, struct v16 v, uint32_t n)
{
    if (n >= 16) {
        v16_store(to, v);
        return;
    }
    float all[16];
    v16_store(all, v);
    for (uint32_t l = 0; l < n; l++) {
        to[l] = all[l];
    }
}

V16_INLINE struct v16 v16_add(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[p] + b.f[p]);
}

V16_INLINE struct v16 v16_sub(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[p] - b.f[p]);
}

V16_INLINE struct v16 v16_mul(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[p] * b.f[p]);
}

V16_INLINE struct v16 v16_div(struct v16 a, struct v16 b)
{
    V16_EACH(a.f[p] / b.f[p]);
}

V16_INLINE struct v16 v16_sqrt(struct v16 v)
{
    V16_EACH(vector_sqrt(v.f[p]));
}

V16_INLINE struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
    V16_EACH(vector_fma(a.f[p], b.f[p], c.f[p]));
}

V16_INLINE struct v16 v16_fnma(struct v16 a, struct v16 b, struct v16 c)
{
    V16_EACH(vector_fma(-a.f[p], b.f[p], c.f[p]));
}

V16_INLINE struct v16 v16_min(struct v16 a, struct v16 b)
{
    V16_EACH(vector_select(a.f[p] < b.f[p], a.f[p], b.f[p]));
}

V16_INLINE struct v16 v16_max(struct v16 a, struct v16 b)
{
    V16_EACH(vector_max(a.f[p], b.f[p]));
}

V16_INLINE struct m16 v16_lt(struct v16 a, struct v16 b)
{
    M16_EACH(a.f[p] < b.f[p]);
}

V16_INLINE struct m16 v16_le(struct v16 a, struct v16 b)
{
    M16_EACH(a.f[p] <= b.f[p]);
}

V16_INLINE struct m16 v16_eq(struct v16 a, struct v16 b)
{
    M16_EACH(a.f[p] == b.f[p]);
}

V16_INLINE struct v16 v16_select(struct m16 m, struct v16 a, struct v16 b)
{
    V16_EACH(vector_select(m.m[p], a.f[p], b.f[p]));
}

V16_INLINE struct m16 m16_first(uint32_t n)
{
    static const int32_t lane[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    M16_EACH(*(const vector_i32_anywhere *)(const void *)(lane + p * VECTOR_LANES) < vector_set1_i32((int32_t)n));
}

V16_INLINE struct m16 m16_and(struct m16 a, struct m16 b)
{
    M16_EACH(a.m[p] & b.m[p]);
}

V16_INLINE struct m16 m16_or(struct m16 a, struct m16 b)
{
    M16_EACH(a.m[p] | b.m[p]);
}

/* The bits of the lanes are disjoint: joined by the halves of 64-bit lanes. */
V16_INLINE uint32_t m16_bits(struct m16 m)
{
    static const int32_t bit[16] = { 1,      2,      4,      8,      0x10,   0x20,   0x40,   0x80,
                                     0x100,  0x200,  0x400,  0x800,  0x1000, 0x2000, 0x4000, 0x8000 };
    vector_i32 all = vector_set1_i32(0);
    for (int p = 0; p < VECTOR_PARTS; p++) {
        all |= m.m[p] & *(const vector_i32_anywhere *)(const void *)(bit + p * VECTOR_LANES);
    }
    uint64_t pairs = 0;
    for (int l = 0; l < VECTOR_LANES / 2; l++) {
        pairs |= ((vector_u64)all)[l];
    }
    return (uint32_t)(pairs | pairs >> 32);
}

V16_INLINE struct v16i v16_bits(struct v16 v)
{
    V16I_EACH((vector_i32)v.f[p]);
}

V16_INLINE struct v16 v16_from_bits(struct v16i v)
{
    V16_EACH((vector)v.i[p]);
}

V16_INLINE struct v16i v16i_set1(int32_t x)
{
    V16I_EACH(vector_set1_i32(x));
}

V16_INLINE struct v16i v16i_load(const int32_t *from)
{
    V16I_EACH(*(const vector_i32_anywhere *)(const void *)(from + p * VECTOR_LANES));
}

V16_INLINE struct v16i v16i_add(struct v16i a, struct v16i b)
{
    V16I_EACH((vector_i32)((vector_u32)a.i[p] + (vector_u32)b.i[p]));
}

V16_INLINE struct v16i v16i_sub(struct v16i a, struct v16i b)
{
    V16I_EACH((vector_i32)((vector_u32)a.i[p] - (vector_u32)b.i[p]));
}

V16_INLINE struct v16i v16i_and(struct v16i a, struct v16i b)
{
    V16I_EACH(a.i[p] & b.i[p]);
}

V16_INLINE struct v16i v16i_or(struct v16i a, struct v16i b)
{
    V16I_EACH(a.i[p] | b.i[p]);
}

V16_INLINE struct v16i v16i_xor(struct v16i a, struct v16i b)
{
    V16I_EACH(a.i[p] ^ b.i[p]);
}

V16_INLINE struct v16i v16i_shl(struct v16i v, int n)
{
    V16I_EACH((vector_i32)((vector_u32)v.i[p] << (uint32_t)n));
}

V16_INLINE struct v16i v16i_sra(struct v16i v, int n)
{
    V16I_EACH(v.i[p] >> n);
}

V16_INLINE struct v16 v16i_to_float(struct v16i v)
{
    V16_EACH(__builtin_convertvector(v.i[p], vector));
}

/* As the definition rounds: by adding and taking away 2^23. */
V16_INLINE vector vector_round(vector v)
{
    const vector edge = vector_set1(0x1p23f);
    vector size = vector_abs(v), whole = (size + edge) - edge;
    vector_i32 sign = (vector_i32)v & INT32_MIN;
    return vector_select(size < edge, (vector)((vector_i32)whole | sign), v);
}

V16_INLINE struct v16 v16_round(struct v16 v)
{
    V16_EACH(vector_round(v.f[p]));
}

/* Half the vectors at a time, then half the lanes of the last. */
V16_INLINE float v16_sum(struct v16 v)
{
    for (int parts = VECTOR_PARTS / 2; parts > 0; parts /= 2) {
        for (int p = 0; p < parts; p++) {
            v.f[p] += v.f[p + parts];
        }
    }
    vector x = v.f[0];
#if VECTOR_LANES == 8
    x += VECTOR_TURN(x, 4);
#endif
    x += VECTOR_TURN(x, 2);
    x += VECTOR_TURN(x, 1);
    return x[0];
}

V16_INLINE float v16_max_lanes(struct v16 v)
{
    for (int parts = VECTOR_PARTS / 2; parts > 0; parts /= 2) {
        for (int p = 0; p < parts; p++) {
            v.f[p] = vector_max(v.f[p], v.f[p + parts]);
        }
    }
    vector x = v.f[0];
#if VECTOR_LANES == 8
    x = vector_max(x, VECTOR_TURN(x, 4));
#endif
    x = vector_max(x, VECTOR_TURN(x, 2));
    x = vector_max(x, VECTOR_TURN(x, 1));
    return x[0];
}

V16_INLINE uint32_t v16_add_fixed(int64_t *acc, struct v16 v, float limit)
{
    struct m16 bad;
    for (int p = 0; p < VECTOR_PARTS; p++) {
        bad.m[p] = vector_add_fixed(acc + p * VECTOR_LANES, v.f[p], limit);
    }
    return m16_bits(bad);
}

V16_INLINE vector vector_from_fixed(const int64_t *p)
{
    return vector_from_f64(vector_load_fixed(p), vector_load_fixed(p + VECTOR_LANES / 2));
}

V16_INLINE struct v16 v16_from_fixed(const int64_t *from)
{
    V16_EACH(vector_from_fixed(from + p * VECTOR_LANES));
}

/* The upper halves hold the bf16 numbers. Integer operations: a product with 1 would be left out by the compiler. */
V16_INLINE vector_u32 vector_bf16_bits(vector v)
{
    vector_u32 bits = (vector_u32)v;
    vector_i32 size = (vector_i32)(bits & 0x7fffffffu);
    vector_u32 up = bits + 0x7fffu + (bits >> 16 & 1u);
    vector_u32 nan = (vector_u32)(size > 0x7f800000), denormal = (vector_u32)(size < 0x00800000);
    up = (nan & (bits | 0x00400000u)) | (~nan & up);
    return up & ~(denormal & 0x7fffffffu);
}

V16_INLINE struct v16 v16_round_bf16(struct v16 v)
{
    V16_EACH((vector)(vector_bf16_bits(v.f[p]) & 0xffff0000u));
}

V16_INLINE void v16_store_bf16(uint16_t *to, struct v16 v)
{
    for (int p = 0; p < VECTOR_PARTS; p++) {
        vector_u16 half = __builtin_convertvector(vector_bf16_bits(v.f[p]) >> 16, vector_u16);
        *(vector_u16_anywhere *)(void *)(to + p * VECTOR_LANES) = half;
    }
}

V16_INLINE void v16_store_bf16_n(uint16_t *to, struct v16 v, uint32_t n)
{
    uint16_t all[16];
    v16_store_bf16(all, v);
    for (uint32_t l = 0; l < n && l < 16; l++) {
        to[l] = all[l];
    }
}

V16_INLINE vector vector_load_bf16(const uint16_t *p)
{
    vector_u16 half = *(const vector_u16_anywhere *)(const void *)p;
    return (vector)(__builtin_convertvector(half, vector_u32) << 16);
}

V16_INLINE struct v16 v16_load_bf16(const uint16_t *from)
{
    V16_EACH(vector_load_bf16(from + p * VECTOR_LANES));
}

V16_INLINE struct v16 v16_load_bf16_n(const uint16_t *from, uint32_t n)
{
    uint16_t all[16] = { 0 };
    for (uint32_t l = 0; l < n && l < 16; l++) {
        all[l] = from[l];
    }
    return v16_load_bf16(all);
}

/* Square blocks as large as a vector, each transposed and put where its mirror image was. */
V16_INLINE void v16_transpose(struct v16 *r)
{
    vector block[VECTOR_PARTS][VECTOR_PARTS][VECTOR_LANES];
    for (int y = 0; y < VECTOR_PARTS; y++) {
        for (int x = 0; x < VECTOR_PARTS; x++) {
            for (int l = 0; l < VECTOR_LANES; l++) {
                block[x][y][l] = r[y * VECTOR_LANES + l].f[x];
            }
            vector_transpose(block[x][y]);
        }
    }
    for (int l = 0; l < 16; l++) {
        for (int x = 0; x < VECTOR_PARTS; x++) {
            r[l].f[x] = block[l / VECTOR_LANES][x][l % VECTOR_LANES];
        }
    }
}

#undef V16_EACH
#undef V16I_EACH
#undef M16_EACH

#endif
