/* Private to kern/: what the matrix product needs from an instruction set. One table per set (gemm_leaf.c).
 *
 * Packed operands: a panel of `mr` rows of C is a[k][mr], a panel of `nr` columns is b[k][nr], padded with zeros. A
 * tile is mr x nr floats, row-major and contiguous: one output tile of C, a partial chain, or a finished segment of
 * the tree. */
#ifndef KERN_GEMM_LEAF_H
#define KERN_GEMM_LEAF_H

#include "kern/kern_int.h"

/* Bounds of mr, nr and mr * nr over all instruction sets. */
#define GEMM_MR_MAX 8u
#define GEMM_NR_MAX 48u
#define GEMM_TILE_MAX (GEMM_MR_MAX * GEMM_NR_MAX)

#define GEMM_AHEAD 3

/* `rows` (at most mr) stretches of `bytes`, `ld_bytes` apart. */
struct gemm_ahead {
    const void *p;
    uint64_t rows, bytes, ld_bytes;
};

/* One stretch of one tile's chain: acc = in or +0; acc = fma(a[k], b[k], acc) for k ascending; then the finished left
 * neighbours are added, tree level by tree level: acc = fold[0] + acc, acc = fold[1] + acc, ... */
struct gemm_tile {
    const float *a, *b;
    uint64_t b_ld; /* between rows of b: nr for a panel; more where b is used where it lies */
    uint64_t k;
    const float *in;   /* tile, or NULL for +0 */
    const float *fold; /* `folds` tiles, one after another */
    uint32_t folds;
    uint32_t rows; /* rows that matter; others may be left unset */
    float *out;    /* tile; may be in or one of fold */
    /* What will be read or written next, fetched into the cache bit by bit while the chain runs (not
     * where b is used as it lies). */
    struct gemm_ahead ahead[GEMM_AHEAD];
};

/* Copy elements [i0, i0 + count) x [k0, k0 + k) of an operand into panels: element (i0 + p * width + r, k0 + j) goes
 * to dst[p * panel_stride + j * width + r]. The last panel is filled up with zeros. */
struct gemm_pack {
    const struct gemm_mat *mat;
    uint64_t i0, count, k0, k;
    float *dst;
    uint64_t panel_stride;
};

struct gemm_leaves {
    uint32_t mr, nr;
    void (*tile)(const struct gemm_tile *t);
    void (*pack_a)(const struct gemm_pack *p); /* width mr */
    void (*pack_b)(const struct gemm_pack *p); /* width nr */
    /* The epilogues of gemm_job for rows x cols of a finished tile whose first element is C[i][j]; nothing outside is
     * touched. store_grad returns true when an element overflowed; such elements add nothing. */
    void (*store)(const float *tile, const struct gemm_job *job, uint64_t i, uint64_t j, uint32_t rows, uint32_t cols);
    bool (*store_grad)(const float *tile, const struct gemm_job *job, uint64_t i, uint64_t j, uint32_t rows,
                       uint32_t cols);
    /* `rounds` rounds of independent fused multiply-adds in registers; returns the floating-point operations done. */
    double (*fma_loop)(uint64_t rounds);
};

extern const struct gemm_leaves gemm_leaves_scalar, gemm_leaves_vector, gemm_leaves_avx2, gemm_leaves_avx512,
    gemm_leaves_avx512bf16;

#endif
