/* Private to the attention leaves: products of packed blocks and the packing. Included by files compiled once per
 * instruction set. Every product here is a chain of fused multiply-adds over k ascending.
 *
 * Scratch holds operands in one of two ways. Plain: fp32 numbers, those of bf16 widened. Pairs: bf16 numbers k and
 * k + 1 of a chain in one word (kern/simd_pairs.h), so that a chain of n takes n / 2 steps; n is even, with zeros at
 * its end where it must be. Pairs are for sets that have their dot product, and for the scalar one, which defines it.
 *
 * Panels are [k][PANEL] floats. Rows of blocks have an odd number of cache lines so that equal columns of different
 * rows do not meet in one cache set. */
#ifndef KERN_ATTENTION_TILE_H
#define KERN_ATTENTION_TILE_H

#include "kern/attention_leaf.h"
#include "kern/simd_pairs.h"
#include "kern/vmath.h"

#define PRAGMA_(text) _Pragma(#text)
#if KERN_ISA == 0
#define UNROLL(n)
#define UNROLL_SOME(n)
#elif defined(__clang__)
#define UNROLL(n) PRAGMA_(clang loop unroll(full))
#define UNROLL_SOME(n) PRAGMA_(clang loop unroll_count(n))
#else
#define UNROLL(n) PRAGMA_(GCC unroll n)
#define UNROLL_SOME(n) PRAGMA_(GCC unroll n)
#endif

#define BLOCK ATTENTION_BLOCK
#define PANEL 32u /* columns of a packed panel */
#define GROUP ATTENTION_GROUP

/* The register tile: TILE_ROWS x TILE_VECTORS accumulators, one broadcast and TILE_VECTORS of b. What full tiles leave
 * of a multiple of GROUP rows is cut into tiles of TILE_REST rows. */
#if KERN_AVX512
#define TILE_ROWS 8u
#define TILE_REST 8u
#define TILE_VECTORS 2u
#elif KERN_AVX2 || KERN_VECTOR
#define TILE_ROWS 6u
#define TILE_REST 4u
#define TILE_VECTORS 1u
#else
#define TILE_ROWS 4u
#define TILE_REST 4u
#define TILE_VECTORS 1u
#endif
#define STRIP (TILE_VECTORS * 16) /* columns of a tile */
#define ROWS_AT_ONCE 24u          /* of full tiles and of GROUP a multiple */

#define HAS_PAIRS (KERN_ISA == 0 || KERN_ISA == 3)

/* Numbers of a chain that one word of scratch holds. */
static inline uint64_t numbers_in_word(bool bf16)
{
    return HAS_PAIRS && bf16 ? 2 : 1;
}

/* ---- products ---- */

/* C[i][j] = start + chain over k ascending of a[i * a_row + k * a_k] * b[k * b_k + j]; distances and k in words. */
struct product {
    const float *a;
    uint64_t a_row, a_k;
    const float *b;
    uint64_t b_k;
    float *c;
    uint64_t c_row;
    uint64_t k;
    const float *factor; /* [columns], for START_SCALED */
    bool pairs;
};

enum start {
    START_ZERO,
    START_C,      /* the chain goes on from C */
    START_SCALED, /* from C * factor */
};

V16_INLINE void tile(const struct product *p, uint64_t i, uint64_t j, const uint32_t rows, const uint32_t vectors,
                     const enum start start, const bool pairs)
{
    struct v16 acc[TILE_ROWS][2];
    float *c = p->c + i * p->c_row + j;
    UNROLL(8)
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL(2)
        for (uint32_t v = 0; v < vectors; v++) {
            acc[r][v] = start == START_ZERO ? v16_zero() : v16_load(c + r * p->c_row + v * 16);
            if (start == START_SCALED) {
                acc[r][v] = v16_mul(acc[r][v], v16_load(p->factor + j + v * 16));
            }
        }
    }
    const float *a = p->a + i * p->a_row, *b = p->b + j;
    UNROLL_SOME(4)
    for (uint64_t k = p->k; k > 0; k--, a += p->a_k, b += p->b_k) {
        struct v16 row[2];
        UNROLL(2)
        for (uint32_t v = 0; v < vectors; v++) {
            row[v] = v16_load(b + v * 16);
        }
        UNROLL(8)
        for (uint32_t r = 0; r < rows; r++) {
            struct v16 x = v16_set1(a[r * p->a_row]);
            UNROLL(2)
            for (uint32_t v = 0; v < vectors; v++) {
                acc[r][v] = pairs ? v16_dot(x, row[v], acc[r][v]) : v16_fma(x, row[v], acc[r][v]);
            }
        }
    }
    UNROLL(8)
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL(2)
        for (uint32_t v = 0; v < vectors; v++) {
            v16_store(c + r * p->c_row + v * 16, acc[r][v]);
        }
    }
}

V16_INLINE void tiles(const struct product *p, uint64_t i, uint64_t columns, const uint32_t rows,
                      const enum start start, const bool pairs)
{
    uint64_t j = 0;
    for (; j + STRIP <= columns; j += STRIP) {
        tile(p, i, j, rows, TILE_VECTORS, start, pairs);
    }
    for (; j < columns; j += 16) {
        tile(p, i, j, rows, 1, start, pairs);
    }
}

V16_INLINE void product_of(const struct product *p, uint64_t rows, uint64_t columns, const enum start start,
                           const bool pairs)
{
    uint64_t i = 0;
    for (; rows - i >= TILE_ROWS && rows - i != GROUP; i += TILE_ROWS) {
        tiles(p, i, columns, TILE_ROWS, start, pairs);
    }
    for (; i < rows; i += TILE_REST) {
        tiles(p, i, columns, TILE_REST, start, pairs);
    }
}

V16_INLINE void product_any(const struct product *p, uint64_t rows, uint64_t columns, const enum start start)
{
    if (HAS_PAIRS && p->pairs) {
        product_of(p, rows, columns, start, true);
    } else {
        product_of(p, rows, columns, start, false);
    }
}

/* `rows` (a multiple of GROUP) rows of C and `columns` (of 16) columns; a is [row][k]: scores and dq. */
static inline void product_rows(const struct product *given, uint64_t rows, uint64_t columns, enum start start)
{
    struct product p = *given;
    p.a_k = 1;
    if (start == START_ZERO) {
        product_any(&p, rows, columns, START_ZERO);
    } else {
        product_any(&p, rows, columns, START_C);
    }
}

/* a is [k][row]: outputs, dk and dv. */
static inline void product_columns(const struct product *given, uint64_t rows, uint64_t columns, enum start start)
{
    struct product p = *given;
    p.a_row = 1;
    if (start == START_SCALED) {
        product_any(&p, rows, columns, START_SCALED);
    } else {
        product_any(&p, rows, columns, START_C);
    }
}

static inline uint64_t rows_at_once(uint64_t left)
{
    return left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
}

/* ---- packing ---- */

static inline uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Row distance of a block of rows with D columns: a multiple of PANEL and one more cache line. */
static inline uint64_t block_row(uint64_t dim)
{
    return round_up(dim, PANEL) + 16;
}

/* Rows of numbers somewhere in memory and what they become in scratch: of bf16 numbers nothing else, of fp32 numbers
 * their product with `scale`, for a problem of bf16 numbers (`bf16`; scale is 1) rounded to it. */
struct matrix {
    const void *p;
    enum num type;
    uint64_t ld;
    bool bf16;
    float scale;
};

/* From row `row` and column `column` of q, k or v on; scale is for fp32. */
static inline struct matrix matrix_at(const struct attention *a, const void *p, uint64_t ld, uint64_t row,
                                      uint64_t column, float scale)
{
    bool bf16 = a->type == NUM_BF16;
    return (struct matrix){ num_at(p, a->type, row * ld + column), a->type, ld, bf16, bf16 ? 1.0f : scale };
}

/* Elements [d, d + n) of a row, n <= 16. */
V16_INLINE struct v16 matrix_load(const struct matrix *m, uint64_t row, uint64_t d, uint32_t n)
{
    const void *p = num_at(m->p, m->type, row * m->ld + d);
    if (m->type == NUM_BF16) {
        return n == 16 ? v16_load_bf16(p) : v16_load_bf16_n(p, n);
    }
    struct v16 x = n == 16 ? v16_load(p) : v16_load_n(p, n);
    return m->bf16 ? v16_round_bf16(x) : v16_mul(x, v16_set1(m->scale));
}

static inline uint32_t vector_part(uint64_t d, uint64_t dim)
{
    return dim <= d ? 0u : dim - d < 16 ? (uint32_t)(dim - d) : 16u;
}

#define NO_ROW UINT64_MAX

V16_INLINE void pack_any(float *dst, uint64_t to, const struct matrix *m, const uint64_t *at, uint64_t dim,
                         const bool pairs)
{
    for (uint64_t d = 0; d < dim; d += 16) {
        uint32_t n = vector_part(d, dim);
        struct v16 r[16];
        for (uint32_t c = 0; c < 16; c++) {
            r[c] = at[c] == NO_ROW ? v16_zero() : matrix_load(m, 0, at[c] + d, n);
        }
        v16_transpose(r);
        for (uint32_t e = 0; e < n; e += pairs ? 2 : 1) {
            if (pairs) {
                v16_store(dst + (d + e) / 2 * to, v16_pair(r[e], r[e + 1]));
            } else {
                v16_store(dst + (d + e) * to, r[e]);
            }
        }
    }
}

/* dst[d * to + c] = element at[c] + d for 16 columns, of NO_ROW 0. */
static inline void pack_plain(float *dst, uint64_t to, const struct matrix *m, const uint64_t *at, uint64_t dim)
{
    pack_any(dst, to, m, at, dim, false);
}

/* The same in words for chains along d: dst[d / words * to + c]. */
static inline void pack_words(float *dst, uint64_t to, const struct matrix *m, const uint64_t *at, uint64_t dim)
{
    if (numbers_in_word(m->bf16) == 2) {
        pack_any(dst, to, m, at, dim, true);
    } else {
        pack_any(dst, to, m, at, dim, false);
    }
}

static inline void zero_rows(float *dst, uint64_t from, uint64_t end, uint64_t to, uint64_t width)
{
    for (uint64_t r = from; r < end; r++) {
        for (uint64_t d = 0; d < width; d += 16) {
            v16_store(dst + r * to + d, v16_zero());
        }
    }
}

V16_INLINE void copy_rows_of(float *dst, const struct matrix *m, uint64_t rows, uint64_t dim, const enum num type,
                             const bool bf16)
{
    const struct matrix known = { m->p, type, m->ld, bf16, m->scale };
    uint64_t to = block_row(dim), width = round_up(dim, PANEL);
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t d = 0;
        for (; d + 16 <= dim; d += 16) {
            v16_store(dst + r * to + d, matrix_load(&known, r, d, 16));
        }
        for (; d < width; d += 16) {
            v16_store(dst + r * to + d, matrix_load(&known, r, d, vector_part(d, dim)));
        }
    }
}

/* dst[r * block_row + d] = element d of row r for `rows` rows; up to a multiple of PANEL columns the rest is zeros. */
static inline void copy_rows(float *dst, const struct matrix *m, uint64_t rows, uint64_t dim)
{
    if (m->type == NUM_BF16) {
        copy_rows_of(dst, m, rows, dim, NUM_BF16, true);
    } else if (m->bf16) {
        copy_rows_of(dst, m, rows, dim, NUM_F32, true);
    } else {
        copy_rows_of(dst, m, rows, dim, NUM_F32, false);
    }
}

/* A block of rows in words for chains along d: dst[r * block_row(dim / words) + d / words], and rows of zeros up to a
 * multiple of GROUP. */
static inline void copy_along(float *dst, const struct matrix *m, uint64_t rows, uint64_t dim)
{
    uint64_t words = numbers_in_word(m->bf16), to = block_row(dim / words);
    if (words == 1) {
        copy_rows(dst, m, rows, dim);
    }
    for (uint64_t r = 0; r < rows && words == 2; r++) {
        for (uint64_t d = 0; d < dim; d += 16) {
            v16_store_pairs(dst + r * to + d / 2, matrix_load(m, r, d, vector_part(d, dim)));
        }
    }
    zero_rows(dst, rows, round_up(rows, GROUP), to, round_up(dim / words, 16));
}

/* The same for chains across rows: dst[r / words * block_row(dim) + d]; up to a multiple of PANEL columns the rest is
 * zeros. */
static inline void copy_across(float *dst, const struct matrix *m, uint64_t rows, uint64_t dim)
{
    uint64_t words = numbers_in_word(m->bf16), to = block_row(dim), width = round_up(dim, PANEL);
    if (words == 1) {
        copy_rows(dst, m, rows, dim);
    }
    for (uint64_t r = 0; r < rows && words == 2; r += 2) {
        for (uint64_t d = 0; d < width; d += 16) {
            uint32_t n = vector_part(d, dim);
            struct v16 second = r + 1 < rows ? matrix_load(m, r + 1, d, n) : v16_zero();
            v16_store(dst + r / 2 * to + d, v16_pair(matrix_load(m, r, d, n), second));
        }
    }
    zero_rows(dst, round_up(rows, words) / words, round_up(rows, GROUP) / words, to, width);
}

/* Rows of a matrix that will be copied next. Their distance is often a multiple of a power of two, so that they do
 * not stay in the second cache and nothing fetches them in time unless asked. */
struct ahead {
    const char *p;
    uint64_t ld_bytes, row_bytes, rows;
};

static inline struct ahead ahead_of(const void *p, enum num type, uint64_t ld, uint64_t rows, uint64_t dim)
{
    return (struct ahead){ p, ld * num_bytes(type), dim * num_bytes(type), rows };
}

static inline void fetch_ahead(const struct ahead *x, uint64_t first, uint64_t count)
{
    uint64_t end = first + count < x->rows ? first + count : x->rows;
    for (uint64_t r = first; r < end; r++) {
        for (uint64_t i = 0; i < x->row_bytes; i += 64) {
            v16_prefetch(x->p + r * x->ld_bytes + i);
        }
    }
}

/* Stores of a part of a vector are slow where they are masked. */
V16_INLINE void store_numbers(void *p, enum num type, uint64_t i, struct v16 v, uint32_t n)
{
    void *at = num_at_mut(p, type, i);
    if (type == NUM_BF16) {
        n < 16 ? v16_store_bf16_n(at, v, n) : v16_store_bf16(at, v);
    } else {
        n < 16 ? v16_store_n(at, v, n) : v16_store(at, v);
    }
}

/* The inverse of copy_rows, times `factor`; positive: zeros become +0. */
static inline void store_block(const float *src, float *dst, uint64_t ld, uint64_t rows, uint64_t dim, float factor,
                               bool positive)
{
    uint64_t from = block_row(dim);
    struct v16 by = v16_set1(factor);
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t d = 0; d < dim; d += 16) {
            struct v16 x = v16_load(src + r * from + d);
            x = positive ? v16_fma(x, by, v16_zero()) : v16_mul(x, by);
            store_numbers(dst, NUM_F32, r * ld + d, x, vector_part(d, dim));
        }
    }
}

/* tanh of scaled scores over the cap: the capped score is the cap times that. */
V16_INLINE struct v16 cap_ratio(struct v16 scaled, float cap)
{
    return v16_tanh(v16_mul(scaled, v16_set1(1.0f / cap)));
}

/* Carve `count` floats and an odd cache line, so that buffers do not start in the same cache set. */
static inline float *carve(float **next, uint64_t count)
{
    float *p = *next;
    *next += round_up(count, 16) + 16;
    return p;
}

/* The backward half of the table (attention_grad_leaf.c). */
void KERN_NAME(attention_row_dot)(const struct attention_task *t, uint64_t begin, uint64_t end);
void KERN_NAME(attention_backward)(const struct attention_task *t);

#endif
