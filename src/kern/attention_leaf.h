/* Private to kern/: what attention needs from an instruction set. One table per set (attention_leaf.c). */
#ifndef KERN_ATTENTION_LEAF_H
#define KERN_ATTENTION_LEAF_H

#include <stdatomic.h>

#include "kern/kern_int.h"

#define ATTENTION_BLOCK 64u    /* keys of one block, and query rows of one backward step */
#define ATTENTION_GROUP 8u     /* rows and keys that are computed together: head sizes are multiples of it */
#define ATTENTION_COLUMNS_MAX 256u
#define ATTENTION_DIM_MAX 256u

/* Query columns of one forward task: as many as leave room in the second cache. */
static inline uint64_t attention_columns(uint64_t head_dim)
{
    return head_dim <= ATTENTION_DIM_MAX / 2 ? ATTENTION_COLUMNS_MAX : ATTENTION_COLUMNS_MAX / 2;
}

/* Floats of scratch one thread needs; the backward pass takes most: six blocks of rows, two of columns, two of
 * scores. */
#define ATTENTION_SCRATCH_FLOATS                                                                   \
    (6u * ATTENTION_BLOCK * (ATTENTION_DIM_MAX + 16u) + 2u * ATTENTION_BLOCK * ATTENTION_DIM_MAX + \
     2u * ATTENTION_BLOCK * ATTENTION_BLOCK + 2048u)

/* The window, 0 where it takes nothing from any query. */
static inline uint64_t attention_window(const struct attention *a)
{
    return a->window < a->first + a->rows ? a->window : 0;
}

/* The first key that the query at a position sees. */
static inline uint64_t attention_first_key(uint64_t window, uint64_t position)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* A query column of key/value head g: column c is row c / group of query head g * group + c mod group. */
struct attention_task {
    const struct attention *a;
    const struct attention_grad *g;
    uint64_t kv_head;
    float *scratch; /* ATTENTION_SCRATCH_FLOATS, aligned to 64 bytes */
    uint64_t block; /* forward: of attention_columns columns */
    /* Backward: the keys and queries, and which of their gradients are wanted. dk and dv: one block of keys, k_lo ==
     * q_lo. dq of a block of queries starts at the first block of keys that it sees, and goes on from what is in memory
     * at others: tasks that follow each other. */
    struct attention_part range;
    bool want_dq, want_keys;
    /* Steps (query head, query block) finished by the task of the key block before this one, and by ours; NULL: there
     * is nobody to wait for, nobody waits. */
    const _Atomic uint32_t *before;
    _Atomic uint32_t *mine;
};

struct attention_leaves {
    /* o and lse of one block of columns. */
    void (*forward)(const struct attention_task *t);
    /* row_dot[all heads][begin, end): the sum of d_o * o, 16 lanes. */
    void (*row_dot)(const struct attention_task *t, uint64_t begin, uint64_t end);
    /* dk and dv of the keys of a range, the keys' terms of dq of its queries. */
    void (*backward)(const struct attention_task *t);
};

extern const struct attention_leaves attention_leaves_scalar, attention_leaves_vector, attention_leaves_avx2,
    attention_leaves_avx512, attention_leaves_avx512bf16;

#endif
