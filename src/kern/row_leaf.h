/* Private to kern/: what row.c and cross_entropy.c hand to the leaves of row_*_leaf.c and cross_entropy_leaf.c.
 * A leaf gets one of the jobs below and a range: of rows, of columns (column sums, embedding gradient) or of
 * elements. */
#ifndef KERN_ROW_LEAF_H
#define KERN_ROW_LEAF_H

#include "kern/split.h"

/* Range: rows. */
struct norm_job {
    uint64_t cols;
    const float *x, *gain, *bias;
    float offset; /* root mean square: added to the gain, unless it is 0 */
    float eps;
    void *y;                          /* forward */
    enum num y_type;
    float *mean, *rstd;               /* mean NULL: root mean square */
    const float *mean_in, *rstd_in;   /* backward; mean_in NULL: root mean square */
    const float *dy;
    float *dx;
};

/* Range: rows. */
struct head_job {
    uint64_t heads, head_dim;
    const void *x;
    enum num type, y_type; /* of x and of y */
    uint64_t ldx, ldy, lddx;
    const float *gain;
    float offset, eps;
    void *y; /* forward; ldy */
    float *rstd;
    const float *rstd_in; /* backward: dy has ldy */
    const float *dy;
    float *dx;
};

/* Range: columns, beginning at a multiple of 16. Of several heads side by side: columns of each. */
struct column_job {
    uint64_t rows, heads, head_dim, ldx, ldy;
    const void *x;            /* for the gain gradient */
    enum num x_type;
    const float *mean, *rstd; /* likewise; mean may be NULL; rstd is [rows][heads] */
    const float *dy;
    const struct grad_sink *gain_sink, *bias_sink; /* one of them may be NULL */
};

/* Range: elements. */
struct map_job {
    const void *x, *up; /* x is the gate of SwiGLU and GeGLU */
    enum num type;      /* of x and up */
    const float *dy;
    float *y, *dx, *d_up;
    float factor; /* of a scale; the cap of a soft cap */
};

/* Range: rows. */
struct rope_job {
    void *x;
    enum num type;
    uint64_t ld;
    const struct rope *rope;
};

static inline bool rope_is_sound(const struct rope *r)
{
    return r->rotary > 0 && r->rotary % 2 == 0 && r->rotary <= r->head_dim && r->heads > 0 && r->period > 0;
}

/* Range: rows. The gradient's job is the public struct embed_grad; range: columns beginning at a multiple of 16. */
struct embed_job {
    uint64_t cols;
    const struct lookup *token, *position; /* position may be NULL */
    float *y;
};

/* Range: rows. */
struct dropout_job {
    uint64_t cols;
    const float *x, *residual; /* residual may be NULL */
    float *y;
    const struct dropout *d;
    uint32_t key[2];
    uint32_t threshold; /* words below it drop their element */
    float factor;
};

#define CROSS_ENTROPY_SEGMENTS_MAX 64u

/* Range: rows. kern_cross_entropy is the part that holds all columns. */
struct cross_entropy_job {
    struct ce_part part;
    const float *max_in, *x_target_in, *sum_in; /* of all parts */
    float *max, *x_target, *sum, *loss;
    bool backward;
};

struct row_leaves {
    leaf_fn *layernorm_forward, *layernorm_backward, *rmsnorm_forward, *rmsnorm_backward; /* struct norm_job */
    leaf_fn *headnorm_forward, *headnorm_backward;                                        /* struct head_job */
    leaf_fn *column_sums;                                                                 /* struct column_job */
    leaf_fn *gelu_forward, *gelu_backward, *swiglu_forward, *swiglu_backward;             /* struct map_job */
    leaf_fn *gelu_erf_forward, *gelu_erf_backward, *geglu_forward, *geglu_backward;       /* likewise */
    leaf_fn *softcap_forward, *softcap_backward, *scale;                                  /* likewise, fp32 */
    leaf_fn *rope;                                                                        /* struct rope_job */
    leaf_fn *embed_forward, *embed_grad; /* struct embed_job, struct embed_grad */
    leaf_fn *dropout;                    /* struct dropout_job */
    leaf_fn *cross_entropy, *ce_max, *ce_exp, *ce_finish; /* struct cross_entropy_job */
};

extern const struct row_leaves row_leaves_scalar, row_leaves_vector, row_leaves_avx2, row_leaves_avx512,
    row_leaves_avx512bf16;

#if defined(KERN_ISA)
#include "kern/simd.h"

/* n <= 16 lanes; n is a constant 16 at the calls that matter. */
V16_INLINE struct v16 v16_load_part(const float *p, uint32_t n)
{
    return n == V16_LANES ? v16_load(p) : v16_load_n(p, n);
}

V16_INLINE void v16_store_part(float *p, struct v16 v, uint32_t n)
{
    if (n == V16_LANES) {
        v16_store(p, v);
    } else {
        v16_store_n(p, v, n);
    }
}

/* n <= 16 elements from element i on. The type is a constant where a loop runs: a leaf asks for it once and has two
 * loops. */
V16_INLINE struct v16 v16_load_num(const void *p, uint64_t i, uint32_t n, const enum num type)
{
    if (type == NUM_F32) {
        return v16_load_part((const float *)p + i, n);
    }
    const uint16_t *half = (const uint16_t *)p + i;
    return n == V16_LANES ? v16_load_bf16(half) : v16_load_bf16_n(half, n);
}

V16_INLINE void v16_store_num(void *p, uint64_t i, struct v16 v, uint32_t n, const enum num type)
{
    uint16_t *half = (uint16_t *)p + i;
    if (type == NUM_F32) {
        v16_store_part((float *)p + i, v, n);
    } else if (n == V16_LANES) {
        v16_store_bf16(half, v);
    } else {
        v16_store_bf16_n(half, v, n);
    }
}

/* Leaves of the other files that the table names; the one table is defined in row_norm_leaf.c. */
leaf_fn KERN_NAME(row_column_sums), KERN_NAME(row_embed_grad);
/* Norms of heads, activations and what goes by elements. */
leaf_fn KERN_NAME(row_headnorm_forward), KERN_NAME(row_headnorm_backward);
leaf_fn KERN_NAME(row_gelu_forward), KERN_NAME(row_gelu_backward), KERN_NAME(row_swiglu_forward),
    KERN_NAME(row_swiglu_backward), KERN_NAME(row_gelu_erf_forward), KERN_NAME(row_gelu_erf_backward),
    KERN_NAME(row_geglu_forward), KERN_NAME(row_geglu_backward), KERN_NAME(row_softcap_forward),
    KERN_NAME(row_softcap_backward), KERN_NAME(row_scale), KERN_NAME(row_rope), KERN_NAME(row_embed_forward);
leaf_fn KERN_NAME(row_dropout);
leaf_fn KERN_NAME(row_cross_entropy), KERN_NAME(row_ce_max), KERN_NAME(row_ce_exp), KERN_NAME(row_ce_finish);
#endif

#endif
