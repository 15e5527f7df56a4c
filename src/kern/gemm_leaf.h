/* Private to kern/: what the matrix product needs from an instruction set. One table per set (gemm_leaf.c).
 *
 * Packed operands are made of cells of 4 bytes. A cell is one fp32 number (k_step 1), or a pair of bf16 numbers
 * (k_step 2), that of the smaller k in the upper half: the order in which VDPBF16PS adds them is then the chain's.
 * With n cells of k, a panel of `mr` rows of C is a[n][mr], a panel of `nr` columns is b[n][nr], padded with zeros. An
 * odd stretch ends with half a pair: there a has -0 and b +0, whose product -0 leaves every sum as it is, also one
 * that is -0.
 *
 * A tile is mr x nr floats, row-major and contiguous: one output tile of C, a partial chain, or a finished segment of
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

/* One stretch of one tile's chain: acc = in or +0; acc = fma(a[k], b[k], acc) for `cells` cells of k ascending, of a
 * pair the upper half first; then the finished left neighbours are added, tree level by tree level: acc = fold[0] +
 * acc, acc = fold[1] + acc, ... */
struct gemm_tile {
    const float *a, *b;
    uint64_t b_ld; /* between rows of b: nr for a panel; more where b is used where it lies */
    uint64_t cells;
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
 * to the cell dst[p * panel_stride + j / k_step * width + r]. The last panel is filled up with zeros. For products of
 * bf16 numbers fp32 elements are rounded, and where cells are fp32, bf16 elements widened. */
struct gemm_pack {
    const struct gemm_mat *mat;
    uint64_t i0, count, k0, k;
    float *dst;
    uint64_t panel_stride;
};

/* Products of fp32 numbers, or of bf16 numbers. */
struct gemm_product {
    uint32_t k_step; /* elements of k in a cell */
    void (*tile)(const struct gemm_tile *t);
    void (*pack_a)(const struct gemm_pack *p); /* width mr */
    void (*pack_b)(const struct gemm_pack *p); /* width nr */
    /* `rounds` rounds of independent multiply-adds in registers; returns the floating-point operations done. */
    double (*peak_loop)(uint64_t rounds);
};

struct gemm_leaves {
    uint32_t mr, nr;
    bool fetch_scratch; /* a tile in the thread's own scratch is fetched ahead as those in memory are */
    struct gemm_product f32, bf16;
    /* The epilogues of gemm_job for rows x cols of a finished tile whose first element is C[i][j]; nothing outside is
     * touched; `store` is one for each type of C. store_grad returns true when an element overflowed; such elements
     * add nothing. */
    void (*store[2])(const float *tile, const struct gemm_job *job, uint64_t i, uint64_t j, uint32_t rows,
                     uint32_t cols);
    bool (*store_grad)(const float *tile, const struct gemm_job *job, uint64_t i, uint64_t j, uint32_t rows,
                       uint32_t cols);
};

extern const struct gemm_leaves gemm_leaves_scalar, gemm_leaves_vector, gemm_leaves_avx2, gemm_leaves_avx512,
    gemm_leaves_avx512bf16;

#if defined(KERN_ISA)
/* Where cells of products of bf16 numbers are pairs: in the definition, too, so that they are tested everywhere. */
#define GEMM_PAIRS (KERN_ISA == 0 || KERN_ISA == 3)
/* gemm_bf16_leaf.c */
void KERN_NAME(gemm_pack_bf16_a)(const struct gemm_pack *p);
void KERN_NAME(gemm_pack_bf16_b)(const struct gemm_pack *p);
void KERN_NAME(gemm_store_bf16)(const float *tile, const struct gemm_job *job, uint64_t i, uint64_t j, uint32_t rows,
                                uint32_t cols);
#endif

#endif
