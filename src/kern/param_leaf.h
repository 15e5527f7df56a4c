/* Private to kern/: what param.c hands to the leaves of param_leaf.c. Every range is of elements and
 * begins at a multiple of 16. */
#ifndef KERN_PARAM_LEAF_H
#define KERN_PARAM_LEAF_H

#include "kern/split.h"

struct square_job {
    const int64_t *grad;
    struct fixed_wide *sum; /* canonical parts, added atomically limb by limb: integers, so any order */
    bool *overflow;
};

struct adamw_job {
    const struct adamw *a;
    float *p, *m, *v;
    int64_t *grad;
    uint64_t first_index;
    uint64_t *hash; /* added to atomically */
};

struct hash_job {
    const float *p;
    uint64_t first_index;
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
    uint64_t seed, tensor_id, first_index;
    double deviation;
};

struct param_leaves {
    leaf_fn *grad_square_sum; /* struct square_job */
    leaf_fn *adamw;           /* struct adamw_job */
    leaf_fn *hash;            /* struct hash_job */
    leaf_fn *fill;            /* struct fill_job */
    leaf_fn *grad_to_float;   /* struct grad_float_job */
};

extern const struct param_leaves param_leaves_scalar, param_leaves_avx2, param_leaves_avx512;

#endif
