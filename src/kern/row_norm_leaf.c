/* Why this exists: layer norm and root-mean-square norm, forward and backward, once per instruction set.
 *
 * Orders and definitions (docs/numerics.md quotes them), all fp32, C = cols; "sum" is a row sum of 16 lanes: element
 * i into lane i mod 16, ascending, from +0 (lanes beyond the row hold 0), then the tree (l, l + 8), (l, l + 4), (l, l
 * + 2), (l, l + 1):
 *   layer norm  mean = sum(x) / C;  d = x - mean;  rstd = 1 / sqrt(sum(d d) / C + eps), lanes as fma(d, d, lane)
 *               y = fma(d rstd, gain, bias)
 *   rms norm    d = x;  rstd likewise;  y = (d rstd) gain, where gain is offset + gain unless the offset is 0
 *   backward    n = d rstd;  g = dy gain;  a = sum(g) / C (0 for rms);  b = sum(g n) / C, lanes as fma(g, n, lane)
 *               dx = fma(rstd, fma(-n, b, g - a), dx)
 * A row is worked on alone: its later passes find it in the first-level cache, and memory is read in one stream (four
 * rows at a time hid the latency of the additions but halved the rate of reading). */
#include "kern/row_leaf.h"

#include <math.h>

/* x - mean, and 0 beyond the row. */
V16_INLINE struct v16 centred(const float *x, struct v16 mean, uint32_t n, const bool rms)
{
    struct v16 v = v16_load_part(x, n);
    if (rms) {
        return v;
    }
    v = v16_sub(v, mean);
    return n == V16_LANES ? v : v16_select(m16_first(n), v, v16_zero());
}

/* The gain of up to 16 columns, with its offset: adding 0 would make -0 another number. */
V16_INLINE struct v16 whole_gain(const struct norm_job *j, uint64_t c, uint32_t n, const bool rms)
{
    struct v16 gain = v16_load_part(j->gain + c, n);
    return rms && j->offset != 0.0f ? v16_add(v16_set1(j->offset), gain) : gain;
}

/* ---- forward ---- */

static float row_mean(const float *x, uint64_t cols)
{
    struct v16 lanes = v16_zero();
    uint64_t c = 0;
    for (; c + V16_LANES <= cols; c += V16_LANES) {
        lanes = v16_add(lanes, v16_load(x + c));
    }
    lanes = v16_add(lanes, v16_load_n(x + c, (uint32_t)(cols - c)));
    return v16_sum(lanes) / (float)cols;
}

V16_INLINE float row_mean_square(const float *x, uint64_t cols, struct v16 mean, const bool rms)
{
    struct v16 lanes = v16_zero();
    uint64_t c = 0;
    for (; c + V16_LANES <= cols; c += V16_LANES) {
        struct v16 d = centred(x + c, mean, V16_LANES, rms);
        lanes = v16_fma(d, d, lanes);
    }
    struct v16 d = centred(x + c, mean, (uint32_t)(cols - c), rms);
    return v16_sum(v16_fma(d, d, lanes)) / (float)cols;
}

V16_INLINE void write_part(const struct norm_job *j, uint64_t t, uint64_t c, uint32_t n, struct v16 mean,
                           const bool rms, const enum num type)
{
    struct v16 v = centred(j->x + t * j->cols + c, mean, n, rms), gain = whole_gain(j, c, n, rms);
    v = v16_mul(v, v16_set1(j->rstd[t]));
    v = rms ? v16_mul(v, gain) : v16_fma(v, gain, v16_load_part(j->bias + c, n));
    v16_store_num(j->y, t * j->cols + c, v, n, type);
}

V16_INLINE void forward_row(const struct norm_job *j, uint64_t t, const bool rms, const enum num type)
{
    const float *x = j->x + t * j->cols;
    struct v16 mean = v16_zero();
    if (!rms) {
        j->mean[t] = row_mean(x, j->cols);
        mean = v16_set1(j->mean[t]);
    }
    j->rstd[t] = 1.0f / sqrtf(row_mean_square(x, j->cols, mean, rms) + j->eps);
    uint64_t c = 0;
    for (; c + V16_LANES <= j->cols; c += V16_LANES) {
        write_part(j, t, c, V16_LANES, mean, rms, type);
    }
    if (c < j->cols) {
        write_part(j, t, c, (uint32_t)(j->cols - c), mean, rms, type);
    }
}

V16_INLINE void forward_rows(const struct norm_job *j, uint64_t begin, uint64_t end, const bool rms)
{
    for (; begin < end; begin++) {
        if (j->y_type == NUM_F32) {
            forward_row(j, begin, rms, NUM_F32);
        } else {
            forward_row(j, begin, rms, NUM_BF16);
        }
    }
}

static void layernorm_forward(const void *job, uint64_t begin, uint64_t end)
{
    forward_rows(job, begin, end, false);
}

static void rmsnorm_forward(const void *job, uint64_t begin, uint64_t end)
{
    forward_rows(job, begin, end, true);
}

/* ---- backward ---- */

/* n and g of the definition for up to 16 columns. */
struct backward_part {
    struct v16 n, g;
};

V16_INLINE struct backward_part backward_load(const struct norm_job *j, uint64_t t, uint64_t c, uint32_t n,
                                              const bool rms)
{
    uint64_t at = t * j->cols + c;
    struct v16 mean = rms ? v16_zero() : v16_set1(j->mean_in[t]);
    return (struct backward_part){
        .n = v16_mul(centred(j->x + at, mean, n, rms), v16_set1(j->rstd_in[t])),
        .g = v16_mul(v16_load_part(j->dy + at, n), whole_gain(j, c, n, rms)),
    };
}

/* The rest of a row past its last whole 16 columns is a part of n = 0 to 15 columns: all lanes 0 for n = 0. */
V16_INLINE void backward_means(const struct norm_job *j, uint64_t t, struct v16 *a, struct v16 *b, const bool rms)
{
    struct v16 sum = v16_zero(), product = v16_zero();
    uint64_t c = 0;
    for (; c + V16_LANES <= j->cols; c += V16_LANES) {
        struct backward_part part = backward_load(j, t, c, V16_LANES, rms);
        sum = v16_add(sum, part.g);
        product = v16_fma(part.g, part.n, product);
    }
    struct backward_part part = backward_load(j, t, c, (uint32_t)(j->cols - c), rms);
    sum = v16_add(sum, part.g);
    product = v16_fma(part.g, part.n, product);
    *a = rms ? v16_zero() : v16_set1(v16_sum(sum) / (float)j->cols);
    *b = v16_set1(v16_sum(product) / (float)j->cols);
}

V16_INLINE void write_gradient(const struct norm_job *j, uint64_t t, uint64_t c, uint32_t n, struct v16 a, struct v16 b,
                               const bool rms)
{
    struct backward_part part = backward_load(j, t, c, n, rms);
    float *dx = j->dx + t * j->cols + c;
    struct v16 v = v16_fnma(part.n, b, rms ? part.g : v16_sub(part.g, a));
    v16_store_part(dx, v16_fma(v16_set1(j->rstd_in[t]), v, v16_load_part(dx, n)), n);
}

V16_INLINE void backward_row(const struct norm_job *j, uint64_t t, const bool rms)
{
    struct v16 a, b;
    backward_means(j, t, &a, &b, rms);
    uint64_t c = 0;
    for (; c + V16_LANES <= j->cols; c += V16_LANES) {
        write_gradient(j, t, c, V16_LANES, a, b, rms);
    }
    if (c < j->cols) {
        write_gradient(j, t, c, (uint32_t)(j->cols - c), a, b, rms);
    }
}

static void layernorm_backward(const void *job, uint64_t begin, uint64_t end)
{
    for (; begin < end; begin++) {
        backward_row(job, begin, false);
    }
}

static void rmsnorm_backward(const void *job, uint64_t begin, uint64_t end)
{
    for (; begin < end; begin++) {
        backward_row(job, begin, true);
    }
}

const struct row_leaves KERN_NAME(row_leaves) = {
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .rmsnorm_forward = rmsnorm_forward,
    .rmsnorm_backward = rmsnorm_backward,
    .headnorm_forward = KERN_NAME(row_headnorm_forward),
    .headnorm_backward = KERN_NAME(row_headnorm_backward),
    .column_sums = KERN_NAME(row_column_sums),
    .gelu_forward = KERN_NAME(row_gelu_forward),
    .gelu_backward = KERN_NAME(row_gelu_backward),
    .swiglu_forward = KERN_NAME(row_swiglu_forward),
    .swiglu_backward = KERN_NAME(row_swiglu_backward),
    .gelu_erf_forward = KERN_NAME(row_gelu_erf_forward),
    .gelu_erf_backward = KERN_NAME(row_gelu_erf_backward),
    .geglu_forward = KERN_NAME(row_geglu_forward),
    .geglu_backward = KERN_NAME(row_geglu_backward),
    .softcap_forward = KERN_NAME(row_softcap_forward),
    .softcap_backward = KERN_NAME(row_softcap_backward),
    .scale = KERN_NAME(row_scale),
    .rope = KERN_NAME(row_rope),
    .embed_forward = KERN_NAME(row_embed_forward),
    .embed_grad = KERN_NAME(row_embed_grad),
    .dropout = KERN_NAME(row_dropout),
    .cross_entropy = KERN_NAME(row_cross_entropy),
    .ce_max = KERN_NAME(row_ce_max),
    .ce_exp = KERN_NAME(row_ce_exp),
    .ce_finish = KERN_NAME(row_ce_finish),
};
