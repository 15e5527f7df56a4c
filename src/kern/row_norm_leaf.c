/* Why this exists: layer norm and root-mean-square norm, forward and backward, once per instruction set.
 *
 * Orders and definitions (docs/numerics.md quotes them), all fp32, C = cols; "sum" is a row sum of 16 lanes: element
 * i into lane i mod 16, ascending, from +0 (lanes beyond the row hold 0), then the tree (l, l + 8), (l, l + 4), (l, l
 * + 2), (l, l + 1):
 *   layer norm  mean = sum(x) / C;  d = x - mean;  rstd = 1 / sqrt(sum(d d) / C + eps), lanes as fma(d, d, lane)
 *               y = fma(d rstd, gain, bias)
 *   rms norm    d = x;  rstd likewise;  y = (d rstd) gain
 *   backward    n = d rstd;  g = dy gain;  a = sum(g) / C (0 for rms);  b = sum(g n) / C, lanes as fma(g, n, lane)
 *               dx = fma(rstd, fma(-n, b, g - a), dx)
 * Four rows are worked on together to hide the latency of the additions; each row's order is its own. */
#include "kern/row_leaf.h"

#include <math.h>


#define TOGETHER 4

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

/* ---- forward ---- */

V16_INLINE void add_values(struct v16 *acc, const float *x, uint64_t ld, uint32_t n, const int rows)
{
    for (int r = 0; r < rows; r++) {
        acc[r] = v16_add(acc[r], v16_load_part(x + (uint64_t)r * ld, n));
    }
}

V16_INLINE void add_squares(struct v16 *acc, const float *x, const struct v16 *mean, uint64_t ld, uint32_t n,
                            const int rows, const bool rms)
{
    for (int r = 0; r < rows; r++) {
        struct v16 d = centred(x + (uint64_t)r * ld, mean[r], n, rms);
        acc[r] = v16_fma(d, d, acc[r]);
    }
}

V16_INLINE void write_part(const struct norm_job *j, uint64_t t, uint64_t c, uint32_t n, const struct v16 *mean,
                           const struct v16 *rstd, const int rows, const bool rms)
{
    struct v16 gain = v16_load_part(j->gain + c, n), bias = rms ? v16_zero() : v16_load_part(j->bias + c, n);
    for (int r = 0; r < rows; r++) {
        uint64_t at = (t + (uint64_t)r) * j->cols + c;
        struct v16 v = v16_mul(centred(j->x + at, mean[r], n, rms), rstd[r]);
        v16_store_part(j->y + at, rms ? v16_mul(v, gain) : v16_fma(v, gain, bias), n);
    }
}

V16_INLINE void forward_rows(const struct norm_job *j, uint64_t t, const int rows, const bool rms)
{
    const float *x = j->x + t * j->cols;
    uint64_t whole = j->cols / V16_LANES * V16_LANES;
    uint32_t rest = (uint32_t)(j->cols - whole);
    struct v16 acc[TOGETHER], mean[TOGETHER], rstd[TOGETHER];
    for (int r = 0; r < rows; r++) {
        acc[r] = mean[r] = v16_zero();
    }
    if (!rms) {
        for (uint64_t c = 0; c < whole; c += V16_LANES) {
            add_values(acc, x + c, j->cols, V16_LANES, rows);
        }
        if (rest > 0) {
            add_values(acc, x + whole, j->cols, rest, rows);
        }
        for (int r = 0; r < rows; r++) {
            float value = v16_sum(acc[r]) / (float)j->cols;
            j->mean[t + (uint64_t)r] = value;
            mean[r] = v16_set1(value);
            acc[r] = v16_zero();
        }
    }
    for (uint64_t c = 0; c < whole; c += V16_LANES) {
        add_squares(acc, x + c, mean, j->cols, V16_LANES, rows, rms);
    }
    if (rest > 0) {
        add_squares(acc, x + whole, mean, j->cols, rest, rows, rms);
    }
    for (int r = 0; r < rows; r++) {
        float value = 1.0f / sqrtf(v16_sum(acc[r]) / (float)j->cols + j->eps);
        j->rstd[t + (uint64_t)r] = value;
        rstd[r] = v16_set1(value);
    }
    for (uint64_t c = 0; c < whole; c += V16_LANES) {
        write_part(j, t, c, V16_LANES, mean, rstd, rows, rms);
    }
    if (rest > 0) {
        write_part(j, t, whole, rest, mean, rstd, rows, rms);
    }
}

static void layernorm_forward(const void *job, uint64_t begin, uint64_t end)
{
    const struct norm_job *j = job;
    for (; begin + TOGETHER <= end; begin += TOGETHER) {
        forward_rows(j, begin, TOGETHER, false);
    }
    for (; begin < end; begin++) {
        forward_rows(j, begin, 1, false);
    }
}

static void rmsnorm_forward(const void *job, uint64_t begin, uint64_t end)
{
    const struct norm_job *j = job;
    for (; begin + TOGETHER <= end; begin += TOGETHER) {
        forward_rows(j, begin, TOGETHER, true);
    }
    for (; begin < end; begin++) {
        forward_rows(j, begin, 1, true);
    }
}

/* ---- backward ---- */

/* What backward_rows knows of each row. */
struct row_state {
    struct v16 mean, rstd;
    struct v16 sum, product; /* lanes, then means over the row */
};

V16_INLINE void add_products(struct row_state *s, const struct norm_job *j, uint64_t t, uint64_t c, uint32_t n,
                             const int rows, const bool rms)
{
    struct v16 gain = v16_load_part(j->gain + c, n);
    for (int r = 0; r < rows; r++) {
        uint64_t at = (t + (uint64_t)r) * j->cols + c;
        struct v16 g = v16_mul(v16_load_part(j->dy + at, n), gain);
        struct v16 v = v16_mul(centred(j->x + at, s[r].mean, n, rms), s[r].rstd);
        s[r].sum = rms ? s[r].sum : v16_add(s[r].sum, g);
        s[r].product = v16_fma(g, v, s[r].product);
    }
}

V16_INLINE void write_gradients(const struct row_state *s, const struct norm_job *j, uint64_t t, uint64_t c, uint32_t n,
                                const int rows, const bool rms)
{
    struct v16 gain = v16_load_part(j->gain + c, n);
    for (int r = 0; r < rows; r++) {
        uint64_t at = (t + (uint64_t)r) * j->cols + c;
        struct v16 g = v16_mul(v16_load_part(j->dy + at, n), gain);
        struct v16 v = v16_mul(centred(j->x + at, s[r].mean, n, rms), s[r].rstd);
        g = v16_fnma(v, s[r].product, rms ? g : v16_sub(g, s[r].sum));
        v16_store_part(j->dx + at, v16_fma(s[r].rstd, g, v16_load_part(j->dx + at, n)), n);
    }
}

V16_INLINE void backward_rows(const struct norm_job *j, uint64_t t, const int rows, const bool rms)
{
    uint64_t whole = j->cols / V16_LANES * V16_LANES;
    uint32_t rest = (uint32_t)(j->cols - whole);
    struct row_state s[TOGETHER];
    for (int r = 0; r < rows; r++) {
        s[r].mean = rms ? v16_zero() : v16_set1(j->mean_in[t + (uint64_t)r]);
        s[r].rstd = v16_set1(j->rstd_in[t + (uint64_t)r]);
        s[r].sum = s[r].product = v16_zero();
    }
    for (uint64_t c = 0; c < whole; c += V16_LANES) {
        add_products(s, j, t, c, V16_LANES, rows, rms);
    }
    if (rest > 0) {
        add_products(s, j, t, whole, rest, rows, rms);
    }
    for (int r = 0; r < rows; r++) {
        s[r].sum = v16_set1(v16_sum(s[r].sum) / (float)j->cols);
        s[r].product = v16_set1(v16_sum(s[r].product) / (float)j->cols);
    }
    for (uint64_t c = 0; c < whole; c += V16_LANES) {
        write_gradients(s, j, t, c, V16_LANES, rows, rms);
    }
    if (rest > 0) {
        write_gradients(s, j, t, whole, rest, rows, rms);
    }
}

static void layernorm_backward(const void *job, uint64_t begin, uint64_t end)
{
    const struct norm_job *j = job;
    for (; begin + TOGETHER <= end; begin += TOGETHER) {
        backward_rows(j, begin, TOGETHER, false);
    }
    for (; begin < end; begin++) {
        backward_rows(j, begin, 1, false);
    }
}

static void rmsnorm_backward(const void *job, uint64_t begin, uint64_t end)
{
    const struct norm_job *j = job;
    for (; begin + TOGETHER <= end; begin += TOGETHER) {
        backward_rows(j, begin, TOGETHER, true);
    }
    for (; begin < end; begin++) {
        backward_rows(j, begin, 1, true);
    }
}

const struct row_leaves KERN_NAME(row_leaves) = {
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .rmsnorm_forward = rmsnorm_forward,
    .rmsnorm_backward = rmsnorm_backward,
    .column_sums = KERN_NAME(row_column_sums),
    .gelu_forward = KERN_NAME(row_gelu_forward),
    .gelu_backward = KERN_NAME(row_gelu_backward),
    .swiglu_forward = KERN_NAME(row_swiglu_forward),
    .swiglu_backward = KERN_NAME(row_swiglu_backward),
    .rope = KERN_NAME(row_rope),
    .embed_forward = KERN_NAME(row_embed_forward),
    .embed_grad = KERN_NAME(row_embed_grad),
    .cross_entropy = KERN_NAME(row_cross_entropy),
};
