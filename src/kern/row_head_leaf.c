/* Why this exists: the root-mean-square norm of each head's numbers (queries and keys of some families), forward and
 * backward, once per instruction set. Rows may have gaps, numbers may be bf16, and one gain serves all heads. The
 * gradient of the gain is in row_sum_leaf.c.
 *
 * Definition (docs/numerics.md quotes it), D = head_dim, "sum" the row sum of row_norm_leaf.c over the D numbers of a
 * head, G = gain, or offset + gain where the offset is not 0:
 *   rstd = 1 / sqrt(sum(x x) / D + eps);  y = (x rstd) G
 *   backward  n = x rstd;  g = dy G;  b = sum(g n) / D, lanes as fma(g, n, lane);  dx = rstd fma(-n, b, g)
 * A place is read before it is written, so that y may be x and dx may be dy. */
#include "kern/row_leaf.h"

#include <math.h>

/* One head of one row; x and y point to its first number. */
struct head {
    const struct head_job *job;
    const void *x;
    float rstd;
};

V16_INLINE uint32_t columns_left(const struct head_job *j, uint64_t c)
{
    return j->head_dim - c < V16_LANES ? (uint32_t)(j->head_dim - c) : V16_LANES;
}

V16_INLINE struct v16 gain_at(const struct head_job *j, uint64_t c, uint32_t n)
{
    struct v16 gain = v16_load_part(j->gain + c, n);
    return j->offset != 0.0f ? v16_add(v16_set1(j->offset), gain) : gain;
}

V16_INLINE void forward_head(struct head *h, void *y, const enum num type, const enum num y_type)
{
    const struct head_job *j = h->job;
    struct v16 lanes = v16_zero();
    for (uint64_t c = 0; c < j->head_dim; c += V16_LANES) {
        struct v16 x = v16_load_num(h->x, c, columns_left(j, c), type);
        lanes = v16_fma(x, x, lanes);
    }
    h->rstd = 1.0f / sqrtf(v16_sum(lanes) / (float)j->head_dim + j->eps);
    for (uint64_t c = 0; c < j->head_dim; c += V16_LANES) {
        uint32_t n = columns_left(j, c);
        struct v16 v = v16_mul(v16_load_num(h->x, c, n, type), v16_set1(h->rstd));
        v16_store_num(y, c, v16_mul(v, gain_at(j, c, n)), n, y_type);
    }
}

V16_INLINE void forward_row(const struct head_job *j, uint64_t t, const enum num type, const enum num y_type)
{
    for (uint64_t i = 0; i < j->heads; i++) {
        struct head h = { .job = j, .x = num_at(j->x, type, t * j->ldx + i * j->head_dim) };
        forward_head(&h, num_at_mut(j->y, y_type, t * j->ldy + i * j->head_dim), type, y_type);
        j->rstd[t * j->heads + i] = h.rstd;
    }
}

void KERN_NAME(row_headnorm_forward)(const void *job, uint64_t begin, uint64_t end)
{
    const struct head_job *j = job;
    for (uint64_t t = begin; t < end; t++) {
        if (j->type == NUM_F32 && j->y_type == NUM_F32) {
            forward_row(j, t, NUM_F32, NUM_F32);
        } else if (j->type == NUM_F32) {
            forward_row(j, t, NUM_F32, NUM_BF16);
        } else if (j->y_type == NUM_F32) {
            forward_row(j, t, NUM_BF16, NUM_F32);
        } else {
            forward_row(j, t, NUM_BF16, NUM_BF16);
        }
    }
}

/* n and g of the definition for up to 16 columns. */
V16_INLINE void backward_load(const struct head *h, const float *dy, uint64_t c, struct v16 *normed, struct v16 *slope,
                              const enum num type)
{
    uint32_t n = columns_left(h->job, c);
    *normed = v16_mul(v16_load_num(h->x, c, n, type), v16_set1(h->rstd));
    *slope = v16_mul(v16_load_part(dy + c, n), gain_at(h->job, c, n));
}

V16_INLINE void backward_head(const struct head *h, const float *dy, float *dx, const enum num type)
{
    const uint64_t dim = h->job->head_dim;
    struct v16 lanes = v16_zero(), normed, slope;
    for (uint64_t c = 0; c < dim; c += V16_LANES) {
        backward_load(h, dy, c, &normed, &slope, type);
        lanes = v16_fma(slope, normed, lanes);
    }
    struct v16 b = v16_set1(v16_sum(lanes) / (float)dim);
    for (uint64_t c = 0; c < dim; c += V16_LANES) {
        backward_load(h, dy, c, &normed, &slope, type);
        struct v16 v = v16_mul(v16_set1(h->rstd), v16_fnma(normed, b, slope));
        v16_store_part(dx + c, v, columns_left(h->job, c));
    }
}

void KERN_NAME(row_headnorm_backward)(const void *job, uint64_t begin, uint64_t end)
{
    const struct head_job *j = job;
    for (uint64_t t = begin; t < end; t++) {
        for (uint64_t i = 0; i < j->heads; i++) {
            const struct head h = { .job = j, .x = num_at(j->x, j->type, t * j->ldx + i * j->head_dim),
                                    .rstd = j->rstd_in[t * j->heads + i] };
            const float *dy = j->dy + t * j->ldy + i * j->head_dim;
            float *dx = j->dx + t * j->lddx + i * j->head_dim;
            if (j->type == NUM_F32) {
                backward_head(&h, dy, dx, NUM_F32);
            } else {
                backward_head(&h, dy, dx, NUM_BF16);
            }
        }
    }
}
