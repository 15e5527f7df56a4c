/* Private to the attention leaves: products of packed blocks and the packing. Included by files compiled once per
 * instruction set. Every product here is a chain of fused multiply-adds over k ascending.
 *
 * Panels are [k][PANEL] floats. Rows of blocks have an odd number of cache lines so that equal columns of different
 * rows do not meet in one cache set. */
#ifndef KERN_ATTENTION_TILE_H
#define KERN_ATTENTION_TILE_H

#include "kern/attention_leaf.h"
#include "kern/vmath.h"

#define PRAGMA_(text) _Pragma(#text)
#if KERN_ISA == 0
#define UNROLL(n)
#elif defined(__clang__)
#define UNROLL(n) PRAGMA_(clang loop unroll(full))
#else
#define UNROLL(n) PRAGMA_(GCC unroll n)
#endif

#define BLOCK ATTENTION_BLOCK
#define PANEL 32u /* columns of a packed panel */
#define GROUP ATTENTION_GROUP

/* The register tile: TILE_ROWS x TILE_VECTORS accumulators, one broadcast and TILE_VECTORS of b. */
#if KERN_AVX512
#define TILE_ROWS 8u
#define TILE_VECTORS 2u
#else
#define TILE_ROWS 4u
#define TILE_VECTORS 1u
#endif

/* ---- products ---- */

/* C[i][j] = start + chain over k ascending of a[i * a_row + k * a_k] * b[k * b_k + j]. */
struct product {
    const float *a;
    uint64_t a_row, a_k;
    const float *b;
    uint64_t b_k;
    float *c;
    uint64_t c_row;
    uint64_t k;
    const float *factor; /* [columns], for START_SCALED */
};

enum start {
    START_ZERO,
    START_C,      /* the chain goes on from C */
    START_SCALED, /* from C * factor */
};

V16_INLINE void tile(const struct product *p, uint64_t i, uint64_t j, const uint32_t vectors, const enum start start)
{
    struct v16 acc[TILE_ROWS][2];
    float *c = p->c + i * p->c_row + j;
    UNROLL(8)
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        UNROLL(2)
        for (uint32_t v = 0; v < vectors; v++) {
            acc[r][v] = start == START_ZERO ? v16_zero() : v16_load(c + r * p->c_row + v * 16);
            if (start == START_SCALED) {
                acc[r][v] = v16_mul(acc[r][v], v16_load(p->factor + j + v * 16));
            }
        }
    }
    const float *a = p->a + i * p->a_row, *b = p->b + j;
    for (uint64_t k = p->k; k > 0; k--, a += p->a_k, b += p->b_k) {
        struct v16 row[2];
        UNROLL(2)
        for (uint32_t v = 0; v < vectors; v++) {
            row[v] = v16_load(b + v * 16);
        }
        UNROLL(8)
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            struct v16 x = v16_set1(a[r * p->a_row]);
            UNROLL(2)
            for (uint32_t v = 0; v < vectors; v++) {
                acc[r][v] = v16_fma(x, row[v], acc[r][v]);
            }
        }
    }
    UNROLL(8)
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        UNROLL(2)
        for (uint32_t v = 0; v < vectors; v++) {
            v16_store(c + r * p->c_row + v * 16, acc[r][v]);
        }
    }
}

/* GROUP rows of C from row 0, `columns` (a multiple of 16) columns. */
V16_INLINE void group_any(const struct product *p, uint64_t columns, const enum start start)
{
    for (uint64_t i = 0; i < GROUP; i += TILE_ROWS) {
        uint64_t j = 0;
        for (; j + TILE_VECTORS * 16 <= columns; j += TILE_VECTORS * 16) {
            tile(p, i, j, TILE_VECTORS, start);
        }
        for (; j < columns; j += 16) {
            tile(p, i, j, 1, start);
        }
    }
}

/* a is [row][k]: scores and dq. */
static inline void group_rows(const struct product *given, uint64_t columns, enum start start)
{
    struct product p = *given;
    p.a_k = 1;
    if (start == START_ZERO) {
        group_any(&p, columns, START_ZERO);
    } else {
        group_any(&p, columns, START_C);
    }
}

/* a is [k][row]: outputs, dk and dv. */
static inline void group_columns(const struct product *given, uint64_t columns, enum start start)
{
    struct product p = *given;
    p.a_row = 1;
    if (start == START_SCALED) {
        group_any(&p, columns, START_SCALED);
    } else if (start == START_C) {
        group_any(&p, columns, START_C);
    } else {
        group_any(&p, columns, START_ZERO);
    }
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

/* dst[d * to + c] = row[c][d] * scale for 16 columns; NULL rows are zeros. */
static inline void pack_sixteen(float *dst, uint64_t to, const float *const *row, uint64_t dim, float scale)
{
    for (uint64_t d = 0; d < dim; d += 16) {
        uint32_t n = dim - d < 16 ? (uint32_t)(dim - d) : 16u;
        struct v16 r[16];
        for (uint32_t c = 0; c < 16; c++) {
            r[c] = row[c] == NULL ? v16_zero() : v16_mul(v16_load_n(row[c] + d, n), v16_set1(scale));
        }
        v16_transpose(r);
        for (uint32_t e = 0; e < n; e++) {
            v16_store(dst + (d + e) * to, r[e]);
        }
    }
}

/* dst[r * block_row + d] = src[r * ld + d] * scale for `rows` rows; up to a multiple of PANEL columns the rest is
 * zeros. */
static inline void copy_rows(float *dst, const float *src, uint64_t ld, uint64_t rows, uint64_t dim, float scale)
{
    uint64_t to = block_row(dim), width = round_up(dim, PANEL);
    struct v16 factor = v16_set1(scale);
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t d = 0;
        for (; d + 16 <= dim; d += 16) {
            v16_store(dst + r * to + d, v16_mul(v16_load(src + r * ld + d), factor));
        }
        for (; d < width; d += 16) {
            uint32_t n = d < dim ? (uint32_t)(dim - d) : 0u;
            v16_store(dst + r * to + d, v16_mul(v16_load_n(src + r * ld + d, n), factor));
        }
    }
}

/* As copy_rows, and rows of zeros up to a multiple of GROUP. */
static inline void copy_block(float *dst, const float *src, uint64_t ld, uint64_t rows, uint64_t dim, float scale)
{
    uint64_t to = block_row(dim), width = round_up(dim, PANEL);
    copy_rows(dst, src, ld, rows, dim, scale);
    for (uint64_t r = rows; r < round_up(rows, GROUP); r++) {
        for (uint64_t d = 0; d < width; d += 16) {
            v16_store(dst + r * to + d, v16_zero());
        }
    }
}

/* Rows of a matrix that will be copied next. Their distance is often a multiple of a power of two, so that they do
 * not stay in the second cache and nothing fetches them in time unless asked. */
struct ahead {
    const float *p;
    uint64_t ld, rows;
};

static inline void fetch_ahead(const struct ahead *x, uint64_t first, uint64_t count, uint64_t dim)
{
    uint64_t end = first + count < x->rows ? first + count : x->rows;
    for (uint64_t r = first; r < end; r++) {
        for (uint64_t d = 0; d < dim; d += 16) {
            v16_prefetch(x->p + r * x->ld + d);
        }
    }
}

/* The inverse of copy_rows without scale. */
static inline void store_block(const float *src, float *dst, uint64_t ld, uint64_t rows, uint64_t dim)
{
    uint64_t from = block_row(dim);
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t d = 0; d < dim; d += 16) {
            v16_store_n(dst + r * ld + d, v16_load(src + r * from + d), dim - d < 16 ? (uint32_t)(dim - d) : 16u);
        }
    }
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
