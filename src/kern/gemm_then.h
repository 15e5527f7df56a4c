/* Private to kern/: what follows a product on whole rows of C (struct gemm_then of kern.h), and how the driver of the
 * product learns that rows are whole. */
#ifndef KERN_GEMM_THEN_H
#define KERN_GEMM_THEN_H

#include "kern/row_leaf.h"

#define GEMM_THEN_BLOCKS 64u /* blocks of rows in one phase of the product at most */

struct gemm_then_work {
    leaf_fn *leaf; /* NULL: nothing follows */
    const void *job;
    uint64_t per_row; /* of the leaf's range in a row of C: its elements, or 1 */
    union {
        struct map_job map;
        struct rope_job rope;
        struct norm_job norm;
    } u;
    uint32_t finished[GEMM_THEN_BLOCKS]; /* tasks of each block of rows that have run */
};

/* Checks job->then (a wrong one is a bug of the caller). `out` is pointed into: it must stay where it is. */
void gemm_then_prepare(struct gemm_then_work *out, const struct kern *k, const struct gemm_job *job);
/* A phase begins whose tasks complete blocks of rows. */
void gemm_then_begin(struct gemm_then_work *w);
/* One of the `tasks` tasks of a block of rows [begin, end) has run: the last one does what follows. Any thread. */
void gemm_then_task(struct gemm_then_work *w, uint64_t block, uint64_t tasks, uint64_t begin, uint64_t end);
/* What follows, for all rows of a finished product. */
void gemm_then_all(struct kern *k, const struct gemm_then_work *w, uint64_t rows);

#endif
