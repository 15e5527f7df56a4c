/* Private to kern/: what attention needs from an instruction set. One table per set (attention_leaf.c). */
#ifndef KERN_ATTENTION_LEAF_H
#define KERN_ATTENTION_LEAF_H

#include <stdatomic.h>

#include "kern/kern_int.h"

#define ATTENTION_BLOCK 64u    /* keys of one block, and query rows of one backward step */
#define ATTENTION_COLUMNS 128u /* query columns of one forward task */
#define ATTENTION_DIM_MAX 256u

/* Floats of scratch one thread needs; the backward pass takes most: six blocks of rows, two of columns, two of
 * scores. */
#define ATTENTION_SCRATCH_FLOATS                                                                   \
    (6u * ATTENTION_BLOCK * (ATTENTION_DIM_MAX + 16u) + 2u * ATTENTION_BLOCK * ATTENTION_DIM_MAX + \
     2u * ATTENTION_BLOCK * ATTENTION_BLOCK + 2048u)

/* A query column of key/value head g: column c is row c / group of query head g * group + c mod group. */
struct attention_task {
    const struct attention *a;
    const struct attention_grad *g;
    uint64_t kv_head;
    uint64_t block;      /* of ATTENTION_COLUMNS columns (forward) or 64 keys (backward) */
    float *scratch;      /* ATTENTION_SCRATCH_FLOATS, aligned to 64 bytes */
    /* Backward: steps (query head, query block) finished by the key block before this one, NULL for block 0; and
     * ours. */
    const _Atomic uint32_t *before;
    _Atomic uint32_t *mine;
};

struct attention_leaves {
    /* o and lse of one block of columns. */
    void (*forward)(const struct attention_task *t);
    /* row_dot[all heads][begin, end): the sum of d_o * o, 16 lanes. */
    void (*row_dot)(const struct attention_task *t, uint64_t begin, uint64_t end);
    /* dk and dv of one key block, and its term of dq of every query that sees it. */
    void (*backward)(const struct attention_task *t);
};

extern const struct attention_leaves attention_leaves_scalar, attention_leaves_avx2, attention_leaves_avx512;

#endif
