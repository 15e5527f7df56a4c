/* Why this exists: the inner loops of the matrix product, once per instruction set. The scalar build is the
 * definition; the others must equal it bit by bit, which holds because every output element is one chain of fused
 * multiply-adds in ascending k whatever the width of a register.
 *
 * Tile shapes: as many accumulators as fill the FMA pipes, with room for one row of b and a broadcast of a. */
#include "kern/gemm_leaf.h"

#include <math.h>

#if KERN_VECTOR
#include "kern/simd.h"
#elif KERN_ISA > 0
#include <immintrin.h>
#else
#include "base/bf16.h"
#endif

#define PRAGMA_(text) _Pragma(#text)
#if defined(__clang__)
#define UNROLL(n) PRAGMA_(clang loop unroll(full))
#define UNROLL_PART(n) PRAGMA_(clang loop unroll_count(n))
#else
#define UNROLL(n) PRAGMA_(GCC unroll n)
#define UNROLL_PART(n) UNROLL(n)
#endif

/* Measured for each set: K_UNROLL steps of k in one round of the inner loop; b is fetched PREFETCH_K steps ahead.
 * Packing by copies takes COPY_ROWS rows side by side, for long stretches to read and whole lines to write, and
 * fetches what it will write COPY_PANELS_AHEAD panels later. */

#if KERN_AVX512
#define MR 8
#define LANES 16
#define VECS 3 /* vectors in one row of a tile */
#define K_UNROLL 1
#define PREFETCH_K 24
#define COPY_ROWS 16
#define COPY_PANELS_AHEAD 0
typedef __m512 vec;
#define v_zero() _mm512_setzero_ps()
#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, v) _mm512_storeu_ps(p, v)
#define v_broadcast(x) _mm512_set1_ps(x)
#define v_add(x, y) _mm512_add_ps(x, y)
#define v_mul(x, y) _mm512_mul_ps(x, y)
#define v_fma(x, y, z) _mm512_fmadd_ps(x, y, z)
#elif KERN_AVX2
#define MR 6
#define LANES 8
#define VECS 2
#define K_UNROLL 2
#define PREFETCH_K 48
#define COPY_ROWS 8
#define COPY_PANELS_AHEAD 4
typedef __m256 vec;
#define v_zero() _mm256_setzero_ps()
#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, v) _mm256_storeu_ps(p, v)
#define v_broadcast(x) _mm256_set1_ps(x)
#define v_add(x, y) _mm256_add_ps(x, y)
#define v_mul(x, y) _mm256_mul_ps(x, y)
#define v_fma(x, y, z) _mm256_fmadd_ps(x, y, z)
#elif KERN_VECTOR
/* 16 wide registers hold 6 x 16, 32 narrow ones 8 x 12. */
#if VECTOR_LANES == 8
#define MR 6
#define VECS 2
#else
#define MR 8
#define VECS 3
#endif
#define LANES VECTOR_LANES
#define K_UNROLL 1
#define PREFETCH_K 48
#define COPY_ROWS 16
#define COPY_PANELS_AHEAD 0
typedef vector vec;
#define v_zero() vector_set1(0.0f)
#define v_load(p) vector_load(p)
#define v_store(p, v) vector_store(p, v)
#define v_broadcast(x) vector_set1(x)
#define v_add(x, y) ((x) + (y))
#define v_mul(x, y) ((x) * (y))
#define v_fma(x, y, z) vector_fma(x, y, z)
#else
#define MR 4
#define LANES 1
#define VECS 8
typedef float vec;
#define v_add(x, y) ((x) + (y))
#define v_fma(x, y, z) fmaf(x, y, z)
#endif
/* One cell of k. */
#if KERN_ISA == 3
#define v_dot(x, y, z) _mm512_dpbf16_ps(z, (__m512bh)(x), (__m512bh)(y)) /* of pairs */
#endif
#if GEMM_PAIRS
#define v_chain(pairs, x, y, z) ((pairs) ? v_dot(x, y, z) : v_fma(x, y, z))
#else
#define v_chain(pairs, x, y, z) ((void)(pairs), v_fma(x, y, z))
#endif
#define NR (LANES * VECS)
#define TILE (MR * NR)
#define LINE 16 /* floats in a cache line */
#define DIRECT_AHEAD 96 /* where b is not packed, the next panels lie to the right; into L2 as in packing */

_Static_assert(MR <= GEMM_MR_MAX && NR <= GEMM_NR_MAX, "a tile fits the buffers");

#if KERN_ISA == 0

/* What VDPBF16PS does: the upper halves of the pairs x and y, then the lower ones. */
static float v_dot(float x, float y, float sum)
{
    uint32_t pair[2];
    memcpy(&pair[0], &x, sizeof(x));
    memcpy(&pair[1], &y, sizeof(y));
    sum = fmaf(bf16_to_float((uint16_t)(pair[0] >> 16)), bf16_to_float((uint16_t)(pair[1] >> 16)), sum);
    return fmaf(bf16_to_float((uint16_t)pair[0]), bf16_to_float((uint16_t)pair[1]), sum);
}

static inline void tile_of(const struct gemm_tile *t, const bool pairs)
{
    for (uint32_t e = 0; e < t->rows * NR; e++) {
        const float *a = t->a + e / NR, *b = t->b + e % NR;
        float acc = t->in != NULL ? t->in[e] : 0.0f;
        for (uint64_t k = 0; k < t->cells; k++) {
            acc = v_chain(pairs, a[k * MR], b[k * t->b_ld], acc);
        }
        for (uint32_t f = 0; f < t->folds; f++) {
            acc = t->fold[f * TILE + e] + acc;
        }
        t->out[e] = acc;
    }
}

static void tile(const struct gemm_tile *t)
{
    tile_of(t, false);
}

static void tile_bf16(const struct gemm_tile *t)
{
    tile_of(t, true);
}

#else

/* One row of each: a few misses at a time leave room for those of the operands. */
static inline void fetch_ahead(const struct gemm_tile *t, uint64_t row)
{
    for (int i = 0; i < GEMM_AHEAD; i++) {
        const struct gemm_ahead *next = &t->ahead[i];
        if (row < next->rows) {
            const char *p = (const char *)next->p + row * next->ld_bytes;
            for (uint64_t x = 0; x < next->bytes; x += LINE * sizeof(float)) {
                __builtin_prefetch(p + x, 1, 3);
            }
            __builtin_prefetch(p + next->bytes - 1, 1, 3);
        }
    }
}

/* `rows` is a constant at each call: the loops over it unroll and the accumulators stay in registers. So are `direct`:
 * b lies in its matrix, far from the cache; and `pairs`: a cell is a pair of bf16 numbers. */
static inline __attribute__((always_inline)) void tile_rows(const struct gemm_tile *t, const int rows,
                                                            const bool direct, const bool pairs)
{
    vec acc[MR][VECS];
    UNROLL(8)
    for (int r = 0; r < rows; r++) {
        UNROLL(4)
        for (int v = 0; v < VECS; v++) {
            acc[r][v] = t->in != NULL ? v_load(t->in + r * NR + v * LANES) : v_zero();
        }
    }
    const float *a = t->a, *b = t->b;
    const uint64_t ld = direct ? t->b_ld : NR, parts = direct ? 1 : MR;
    for (uint64_t part = 0, k = 0; part < parts; part++) {
        if (!direct) {
            fetch_ahead(t, part);
        }
        UNROLL_PART(K_UNROLL)
        for (uint64_t end = t->cells * (part + 1) / parts; k < end; k++, a += MR, b += ld) {
            vec row[VECS];
            UNROLL(4)
            for (int v = 0; v < VECS; v++) {
                row[v] = v_load(b + v * LANES);
            }
            for (int line = 0; line < NR; line += LINE) {
                if (direct) {
                    __builtin_prefetch(b + DIRECT_AHEAD + line, 0, 2);
                } else {
                    __builtin_prefetch(b + PREFETCH_K * NR + line, 0, 3);
                }
            }
            UNROLL(8)
            for (int r = 0; r < rows; r++) {
                vec x = v_broadcast(a[r]);
                UNROLL(4)
                for (int v = 0; v < VECS; v++) {
                    acc[r][v] = v_chain(pairs, x, row[v], acc[r][v]);
                }
            }
        }
    }
    const float *fold = t->fold;
    for (uint32_t f = 0; f < t->folds; f++, fold += TILE) {
        UNROLL(8)
        for (int r = 0; r < rows; r++) {
            UNROLL(4)
            for (int v = 0; v < VECS; v++) {
                acc[r][v] = v_add(v_load(fold + r * NR + v * LANES), acc[r][v]);
            }
        }
    }
    UNROLL(8)
    for (int r = 0; r < rows; r++) {
        UNROLL(4)
        for (int v = 0; v < VECS; v++) {
            v_store(t->out + r * NR + v * LANES, acc[r][v]);
        }
    }
}

/* Fewer rows cost less: generation multiplies one row. */
static inline __attribute__((always_inline)) void tile_any(const struct gemm_tile *t, const bool direct,
                                                           const bool pairs)
{
    if (t->rows > 4) {
        tile_rows(t, MR, direct, pairs);
    } else if (t->rows > 2) {
        tile_rows(t, 4, direct, pairs);
    } else if (t->rows > 1) {
        tile_rows(t, 2, direct, pairs);
    } else {
        tile_rows(t, 1, direct, pairs);
    }
}

static void tile(const struct gemm_tile *t)
{
    if (t->b_ld != NR) {
        tile_any(t, true, false);
    } else {
        tile_any(t, false, false);
    }
}

#if GEMM_PAIRS
static void tile_bf16(const struct gemm_tile *t)
{
    tile_any(t, false, true);
}
#else
#define tile_bf16 tile /* of the same numbers, widened */
#endif

#endif

/* One panel of `rows` real rows, any width: the definition of packing. */
static inline __attribute__((always_inline)) void pack_panel(const struct gemm_pack *p, uint64_t i, uint64_t rows,
                                                             float *dst, const uint32_t width)
{
    uint64_t ld = p->mat->ld;
    for (uint64_t k = 0; k < p->k; k++, dst += width) {
        const float *from = p->mat->p;
        const float *src = p->mat->trans ? from + (p->k0 + k) * ld + i : from + i * ld + p->k0 + k;
        uint64_t step = p->mat->trans ? 1 : ld;
        for (uint32_t r = 0; r < width; r++) {
            dst[r] = r < rows ? src[r * step] : 0.0f;
        }
    }
}

static inline __attribute__((always_inline)) void pack_plain(const struct gemm_pack *p, const uint32_t width)
{
    float *dst = p->dst;
    for (uint64_t r = 0; r < p->count; r += width, dst += p->panel_stride) {
        uint64_t rows = p->count - r < width ? p->count - r : width;
        pack_panel(p, p->i0 + r, rows, dst, width);
    }
}

#if KERN_ISA > 0

/* Packing waits for memory: fetch this many floats ahead, into L2, whose queue of misses is the longer one. */
#define COPY_AHEAD 96
#define TRANSPOSE_AHEAD 64

/* Operands whose rows of a panel are contiguous: copy. Whole panels only; returns the rows done. */
static inline __attribute__((always_inline)) uint64_t pack_copy(const struct gemm_pack *p, const uint32_t width)
{
    uint64_t ld = p->mat->ld, whole = p->count / width * width;
    for (uint64_t k0 = 0; k0 < p->k; k0 += COPY_ROWS) {
        uint64_t rows = p->k - k0 < COPY_ROWS ? p->k - k0 : COPY_ROWS;
        const float *first = (const float *)p->mat->p + (p->k0 + k0) * ld + p->i0;
        float *panel = p->dst + k0 * width;
        for (uint64_t r = 0; r < whole; r += width, panel += p->panel_stride) {
            const float *src = first + r;
            float *dst = panel;
            for (uint64_t k = 0; k < rows; k++, src += ld, dst += width) {
                for (uint32_t line = 0; line < width; line += LINE) {
                    __builtin_prefetch(src + COPY_AHEAD + line, 0, 2);
                    if (COPY_PANELS_AHEAD > 0) {
                        __builtin_prefetch(dst + COPY_PANELS_AHEAD * p->panel_stride + line, 1, 3);
                    }
                }
                memcpy(dst, src, width * sizeof(float));
            }
        }
    }
    return whole;
}

#if KERN_VECTOR

static inline __attribute__((always_inline)) void transpose(vec r[LANES])
{
    vector_transpose(r);
}

#elif KERN_AVX512

/* Transpose 16 x 16: rows in, columns out. */
static inline __attribute__((always_inline)) void transpose(vec r[16])
{
    vec t[16];
    UNROLL(16)
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL(16)
    for (int i = 0; i < 16; i += 4) {
        for (int h = 0; h < 2; h++) {
            __m512d x = _mm512_castps_pd(t[i + h]), y = _mm512_castps_pd(t[i + h + 2]);
            r[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            r[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    }
    UNROLL(16)
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL(16)
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#else

/* Transpose 8 x 8: rows in, columns out. */
static inline __attribute__((always_inline)) void transpose(vec r[8])
{
    vec t[8];
    UNROLL(8)
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL(8)
    for (int i = 0; i < 8; i += 4) {
        for (int h = 0; h < 2; h++) {
            __m256d x = _mm256_castps_pd(t[i + h]), y = _mm256_castps_pd(t[i + h + 2]);
            r[i + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
            r[i + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
        }
    }
    UNROLL(8)
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    memcpy(r, t, sizeof(t));
}

#endif

/* The rows that are transposed together: a vector's, or those of a panel that neither divides a vector nor is one or
 * more. */
#define TRANSPOSED_ROWS(width) ((width) % LANES == 0 || LANES % (width) == 0 ? LANES : (int)(width))
_Static_assert(KERN_AVX512 || MR >= LANES || LANES % MR != 0, "put_row divides a vector for two panels of 8 only");

/* One transposed row of packed elements that starts at row `r` of the packed range. A panel narrower than a vector
 * gets a part of it. */
static inline __attribute__((always_inline)) void put_row(const struct gemm_pack *p, uint64_t r, uint64_t k, vec v,
                                                          const uint32_t width)
{
    float *dst = p->dst + r / width * p->panel_stride + k * width + r % width;
    if (width >= LANES) {
        v_store(dst, v);
        return;
    }
#if KERN_AVX512
    _mm256_storeu_ps(dst, _mm512_castps512_ps256(v)); /* width is 8 */
    _mm256_storeu_ps(dst + p->panel_stride, _mm512_extractf32x8_ps(v, 1));
#else
    memcpy(dst, &v, width * sizeof(float));
#endif
}

/* Operands whose k is contiguous: transpose in blocks of LANES x LANES, of which a narrow panel uses fewer rows. Whole
 * panels only; returns the rows done. */
static inline __attribute__((always_inline)) uint64_t pack_transpose(const struct gemm_pack *p, const uint32_t width)
{
    const int used = TRANSPOSED_ROWS(width);
    const uint64_t step = (uint64_t)used, group = width > step ? width : step;
    uint64_t ld = p->mat->ld, whole = p->count / group * group;
    for (uint64_t r = 0; r < whole; r += step) {
        const float *src = (const float *)p->mat->p + (p->i0 + r) * ld + p->k0;
        uint64_t k = 0;
        for (; k + LANES <= p->k; k += LANES) {
            vec block[LANES];
            UNROLL(16)
            for (int i = 0; i < used; i++) {
                __builtin_prefetch(src + (uint64_t)i * ld + k + TRANSPOSE_AHEAD, 0, 2);
                block[i] = v_load(src + (uint64_t)i * ld + k);
            }
            UNROLL(16)
            for (int i = used; i < LANES; i++) {
                block[i] = v_zero();
            }
            transpose(block);
            UNROLL(16)
            for (int i = 0; i < LANES; i++) {
                put_row(p, r, k + (uint64_t)i, block[i], width);
            }
        }
        for (; k < p->k; k++) {
            for (uint64_t i = 0; i < step; i++) {
                p->dst[(r + i) / width * p->panel_stride + k * width + (r + i) % width] = src[i * ld + k];
            }
        }
    }
    return whole;
}

static inline __attribute__((always_inline)) void pack(const struct gemm_pack *p, const uint32_t width)
{
    uint64_t done = p->mat->trans ? pack_copy(p, width) : pack_transpose(p, width);
    struct gemm_pack rest = *p;
    rest.i0 += done;
    rest.count -= done;
    rest.dst += done / width * p->panel_stride;
    pack_plain(&rest, width);
}

#else

static inline void pack(const struct gemm_pack *p, const uint32_t width)
{
    pack_plain(p, width);
}

#endif

static void pack_a(const struct gemm_pack *p)
{
    pack(p, MR);
}

static void pack_b(const struct gemm_pack *p)
{
    pack(p, NR);
}

static void store(const float *tile, const struct gemm_job *job, uint64_t i, uint64_t j, uint32_t rows, uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++, tile += NR) {
        float *c = (float *)job->c + (i + r) * job->ldc + j;
        const float *bias = job->bias != NULL ? job->bias + j : NULL;
        const float *residual = job->residual != NULL ? job->residual + (i + r) * job->ldr + j : NULL;
        uint32_t x = 0;
#if KERN_ISA > 0
        for (; x + LANES <= cols; x += LANES) {
            vec v = v_load(tile + x);
            v = bias != NULL ? v_add(v, v_load(bias + x)) : v;
            v = residual != NULL ? v_add(v_load(residual + x), v) : v;
            v_store(c + x, v);
        }
#endif
        for (; x < cols; x++) {
            float v = tile[x];
            v = bias != NULL ? v + bias[x] : v;
            c[x] = residual != NULL ? residual[x] + v : v;
        }
    }
}

/* 1.5 * 2^52: adding it rounds a double below 2^51 to an integer, to nearest even, in its low mantissa bits. */
#define MAGIC 0x1.8p52

/* Adds round(v) to *grad; false, and nothing added, when it overflows or is not a number. */
static inline bool grad_add(int64_t *grad, float v, float limit)
{
    if (!(fabsf(v) < limit)) {
        return false;
    }
    double shifted = (double)v + MAGIC, magic = MAGIC;
    uint64_t bits, base;
    memcpy(&bits, &shifted, sizeof(bits));
    memcpy(&base, &magic, sizeof(base));
    *grad = (int64_t)((uint64_t)*grad + (bits - base));
    return true;
}

#if KERN_AVX512

/* grad[0..16) += round(v); false when a lane overflows. */
static inline bool grad_add_lanes(int64_t *grad, vec v, float limit)
{
    __mmask16 good = _mm512_cmp_ps_mask(_mm512_abs_ps(v), _mm512_set1_ps(limit), _CMP_LT_OQ);
    v = _mm512_maskz_mov_ps(good, v);
    for (int half = 0; half < 2; half++) {
        __m256 part = half == 0 ? _mm512_castps512_ps256(v) : _mm512_extractf32x8_ps(v, 1);
        __m512i sum = _mm512_add_epi64(_mm512_loadu_si512(grad + half * 8), _mm512_cvtps_epi64(part));
        _mm512_storeu_si512(grad + half * 8, sum);
    }
    return good == UINT16_MAX;
}

#elif KERN_AVX2

static inline bool grad_add_lanes(int64_t *grad, vec v, float limit)
{
    const __m256d magic = _mm256_set1_pd(MAGIC);
    __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
    __m256 good = _mm256_cmp_ps(magnitude, _mm256_set1_ps(limit), _CMP_LT_OQ);
    v = _mm256_and_ps(good, v);
    for (int half = 0; half < 2; half++) {
        __m128 part = half == 0 ? _mm256_castps256_ps128(v) : _mm256_extractf128_ps(v, 1);
        __m256d shifted = _mm256_add_pd(_mm256_cvtps_pd(part), magic);
        __m256i value = _mm256_sub_epi64(_mm256_castpd_si256(shifted), _mm256_castpd_si256(magic));
        __m256i *dst = (__m256i *)(void *)(grad + half * 4);
        _mm256_storeu_si256(dst, _mm256_add_epi64(_mm256_loadu_si256(dst), value));
    }
    return _mm256_movemask_ps(good) == 0xff;
}

#elif KERN_VECTOR

static inline bool grad_add_lanes(int64_t *grad, vec v, float limit)
{
    vector_u64 bad = (vector_u64)vector_add_fixed(grad, v, limit);
    uint64_t any = 0;
    for (int l = 0; l < LANES / 2; l++) {
        any |= bad[l];
    }
    return any == 0;
}

#endif

static bool store_grad(const float *tile, const struct gemm_job *job, uint64_t i, uint64_t j, uint32_t rows,
                       uint32_t cols)
{
    bool good = true;
    for (uint32_t r = 0; r < rows; r++, tile += NR) {
        int64_t *grad = job->grad + (i + r) * job->ldg + j;
        uint32_t x = 0;
#if KERN_ISA > 0
        const vec scale = v_broadcast(job->grad_scale);
        for (; x + LANES <= cols; x += LANES) {
            good &= grad_add_lanes(grad + x, v_mul(v_load(tile + x), scale), job->grad_limit);
        }
#endif
        for (; x < cols; x++) {
            good &= grad_add(grad + x, tile[x] * job->grad_scale, job->grad_limit);
        }
    }
    return !good;
}

#define CHAINS 12 /* latency times throughput of the FMA pipes, with some to spare */

static inline __attribute__((always_inline)) double peak_loop(uint64_t rounds, const bool pairs)
{
    volatile float half = 0.5f; /* unknown to the compiler, so that no chain is folded into another */
#if KERN_ISA > 0
    vec factor = v_broadcast(half), sum[CHAINS];
    UNROLL(12)
    for (int c = 0; c < CHAINS; c++) {
        sum[c] = v_broadcast(half);
    }
#else
    float factor = half, sum[CHAINS];
    for (int c = 0; c < CHAINS; c++) {
        sum[c] = half;
    }
#endif
    for (uint64_t i = 0; i < rounds; i++) {
        UNROLL(12)
        for (int c = 0; c < CHAINS; c++) {
            sum[c] = v_chain(pairs, factor, factor, sum[c]);
        }
    }
    UNROLL(12)
    for (int c = 1; c < CHAINS; c++) {
        sum[0] = v_add(sum[0], sum[c]);
    }
    float lanes[LANES];
    memcpy(lanes, &sum[0], sizeof(lanes));
    half = lanes[0];
    return (pairs ? 4.0 : 2.0) * CHAINS * LANES * (double)rounds;
}

static double fma_loop(uint64_t rounds)
{
    return peak_loop(rounds, false);
}

#if KERN_ISA == 3
static double dot_loop(uint64_t rounds)
{
    return peak_loop(rounds, true);
}
#else
#define dot_loop fma_loop
#endif

const struct gemm_leaves KERN_NAME(gemm_leaves) = {
    .mr = MR,
    .nr = NR,
    .fetch_scratch = !KERN_AVX2,
    .f32 = { 1, tile, pack_a, pack_b, fma_loop },
    .bf16 = { GEMM_PAIRS ? 2 : 1, tile_bf16, KERN_NAME(gemm_pack_bf16_a), KERN_NAME(gemm_pack_bf16_b), dot_loop },
    .store = { [NUM_F32] = store, [NUM_BF16] = KERN_NAME(gemm_store_bf16) },
    .store_grad = store_grad,
};
