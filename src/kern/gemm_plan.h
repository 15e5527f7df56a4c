/* Private to kern/: in which order the summed dimension of one product is walked.
 *
 * A step is a stretch of one piece inside one chain (a segment, or a unit of a gradient). A chunk is a run of steps
 * whose operands are packed together. Cutting a chain into steps and chunks cannot change a bit: the partial sum is
 * stored and loaded again unchanged.
 *
 * Lengths and places inside a chunk are counted in cells of `k_step` elements of k (gemm_leaf.h). A step begins with a
 * cell of its own; its last cell may hold less. */
#ifndef KERN_GEMM_PLAN_H
#define KERN_GEMM_PLAN_H

#include "kern/kern.h"

#define GEMM_CHUNK_STEPS 64u

struct gemm_step {
    const struct gemm_piece *piece;
    uint64_t k0, k; /* elements [k0, k0 + k) of the piece */
    uint64_t at, cells; /* inside the chunk */
    uint32_t folds; /* finished left neighbours to add at the end of the step; also the slot the sum is kept in */
    bool starts;    /* the chain starts from +0 */
    bool ends;      /* a segment or unit is complete */
    bool final;     /* the element of C, or this unit's part of the gradient, is complete */
};

struct gemm_chunk {
    struct gemm_step step[GEMM_CHUNK_STEPS];
    uint32_t steps;
    uint64_t base, cells; /* cells [base, base + cells) of the whole summed dimension */
};

/* Where the walk stands; all zero at the start. */
struct gemm_cursor {
    uint32_t piece, segment;
    uint64_t k;     /* elements of the piece behind us */
    uint64_t chain; /* elements of the open chain behind us */
    uint64_t total; /* cells behind us */
    bool open;      /* inside a chain */
};

struct gemm_plan {
    const struct gemm_job *job;
    uint32_t k_step;
    uint64_t cells_limit; /* of a chunk */
    uint32_t levels;      /* of the tree: log2 of the number of segments */
    uint64_t cells_total;
    uint64_t cells_chunk; /* of the longest chunk */
    uint64_t chunks;
    bool carry; /* partial sums live from one chunk to the next */
};

/* Checks the job (a wrong one is a bug of the caller) and walks it once. */
struct gemm_plan gemm_plan_of(const struct gemm_job *job, uint32_t k_step, uint64_t cells_limit);
/* The next chunk into *out; false at the end. */
bool gemm_plan_next(const struct gemm_plan *plan, struct gemm_cursor *cursor, struct gemm_chunk *out);

#endif
