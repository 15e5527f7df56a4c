/* Private to kern/: what param.c hands to the leaves of param_leaf.c. Every range is of elements and begins at a
 * multiple of 16. Leaves that need the logical index of an element go over the rows of its box, one run at a time. */
#ifndef KERN_PARAM_LEAF_H
#define KERN_PARAM_LEAF_H

#include "kern/split.h"

/* Element i of the pointers is element begin + i of the box. A contiguous box is one row without an end. */
struct box {
    struct box_map map;
    uint64_t begin;
};

/* Elements [begin, end) of the pointers, all in one row of the box; `index` is that of the first, `next` that of the
 * next row's first. */
struct box_run {
    uint64_t begin, end, index, next;
};

/* The first run of the range [begin, end); empty when the range is. */
static inline struct box_run box_first(const struct box *b, uint64_t begin, uint64_t end)
{
    uint64_t at = b->begin + begin, column = at % b->map.cols, left = b->map.cols - column;
    uint64_t row = b->map.first + at / b->map.cols * b->map.ld;
    return (struct box_run){ begin, end - begin < left ? end : begin + left, row + column, row + b->map.ld };
}

/* The run after it; empty when the range has ended. No division: a row may have few elements. */
static inline void box_next(const struct box *b, uint64_t end, struct box_run *run)
{
    run->begin = run->end;
    run->end = end - run->begin < b->map.cols ? end : run->begin + b->map.cols;
    run->index = run->next;
    run->next += b->map.ld;
}

struct square_job {
    const int64_t *grad;
    struct fixed_wide *sum; /* canonical parts, added atomically limb by limb: integers, so any order */
    bool *overflow;
};

struct adamw_job {
    const struct adamw *a;
    float *p, *m, *v;
    int64_t *grad;
    struct box box;
    uint64_t *hash; /* added to atomically */
};

struct hash_job {
    const float *p;
    struct box box;
    uint64_t *hash; /* added to atomically */
};

struct fill_job {
    float *p;
    float value;
};

struct grad_float_job {
    const int64_t *grad;
    double factor;
    float *y;
};

struct init_job {
    float *p;
    uint64_t seed, tensor_id;
    struct box box;
    double deviation;
};

struct param_leaves {
    leaf_fn *grad_square_sum; /* struct square_job */
    leaf_fn *adamw;           /* struct adamw_job */
    leaf_fn *hash;            /* struct hash_job */
    leaf_fn *fill;            /* struct fill_job */
    leaf_fn *grad_to_float;   /* struct grad_float_job */
};

extern const struct param_leaves param_leaves_scalar, param_leaves_vector, param_leaves_avx2, param_leaves_avx512,
    param_leaves_avx512bf16;

#endif
