/* Why this exists: checks and division of work for everything that goes row by row - norms, activations, rotary and
 * token embeddings - and for the parameter gradients that are sums over rows.
 *
 * Invariants: forward and backward functions divide rows or elements, sums over rows divide columns and the embedding
 * gradient divides columns too (two rows may hold the same token); so no two threads write the same element and no
 * sum is divided. The orders of the sums are in the leaf files. */
#include "kern/row_leaf.h"

const struct row_leaves *const row_leaves_of[ISA_COUNT] = {
    [ISA_SCALAR] = &row_leaves_scalar,
    [ISA_AVX2] = &row_leaves_avx2,
    [ISA_AVX512] = &row_leaves_avx512,
};

#define MAP_GRAIN 4096u   /* elements: 16 KB of each array */
#define COLUMN_GRAIN 128u /* columns: 512 bytes of each row */

/* ---- norms ---- */

static void run_norm(struct kern *k, leaf_fn *leaf, const struct norm_job *job, uint64_t rows)
{
    BUG_IF(job->cols == 0);
    split_run(k, leaf, job, rows, split_rows_grain(job->cols));
}

void kern_layernorm_forward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain,
                            const float *bias, float eps, float *y, float *mean, float *rstd)
{
    struct norm_job job = {
        .cols = cols, .x = x, .gain = gain, .bias = bias, .eps = eps, .y = y, .mean = mean, .rstd = rstd,
    };
    run_norm(k, k->row->layernorm_forward, &job, rows);
}

void kern_layernorm_backward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain,
                             const float *mean, const float *rstd, const float *dy, float *dx)
{
    struct norm_job job = {
        .cols = cols, .x = x, .gain = gain, .mean_in = mean, .rstd_in = rstd, .dy = dy, .dx = dx,
    };
    run_norm(k, k->row->layernorm_backward, &job, rows);
}

void kern_rmsnorm_forward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain, float eps,
                          float *y, float *rstd)
{
    struct norm_job job = { .cols = cols, .x = x, .gain = gain, .eps = eps, .y = y, .rstd = rstd };
    run_norm(k, k->row->rmsnorm_forward, &job, rows);
}

void kern_rmsnorm_backward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain,
                           const float *rstd, const float *dy, float *dx)
{
    struct norm_job job = { .cols = cols, .x = x, .gain = gain, .rstd_in = rstd, .dy = dy, .dx = dx };
    run_norm(k, k->row->rmsnorm_backward, &job, rows);
}

/* ---- sums over rows ---- */

static void check_sink(const struct grad_sink *sink)
{
    BUG_IF(sink != NULL && (sink->unit == 0 || !(sink->scale > 0.0f)));
}

void kern_norm_grad(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *mean, const float *rstd,
                    const float *dy, const struct grad_sink *gain_sink, const struct grad_sink *bias_sink)
{
    check_sink(gain_sink);
    check_sink(bias_sink);
    BUG_IF(bias_sink != NULL && bias_sink->unit != gain_sink->unit);
    struct column_job job = {
        .rows = rows, .ldx = cols, .ldy = cols, .x = x, .mean = mean, .rstd = rstd, .dy = dy,
        .gain_sink = gain_sink, .bias_sink = bias_sink,
    };
    split_run(k, k->row->column_sums, &job, cols, COLUMN_GRAIN);
}

void kern_bias_grad(struct kern *k, uint64_t rows, uint64_t cols, const float *dy, uint64_t ldy,
                    const struct grad_sink *sink)
{
    check_sink(sink);
    BUG_IF(ldy < cols);
    struct column_job job = { .rows = rows, .ldy = ldy, .dy = dy, .bias_sink = sink };
    split_run(k, k->row->column_sums, &job, cols, COLUMN_GRAIN);
}

/* ---- elementwise ---- */

void kern_gelu_forward(struct kern *k, uint64_t n, const float *x, float *y)
{
    struct map_job job = { .x = x, .y = y };
    split_run(k, k->row->gelu_forward, &job, n, MAP_GRAIN);
}

void kern_gelu_backward(struct kern *k, uint64_t n, const float *x, const float *dy, float *dx)
{
    struct map_job job = { .x = x, .dy = dy, .dx = dx };
    split_run(k, k->row->gelu_backward, &job, n, MAP_GRAIN);
}

void kern_swiglu_forward(struct kern *k, uint64_t n, const float *gate, const float *up, float *y)
{
    struct map_job job = { .x = gate, .up = up, .y = y };
    split_run(k, k->row->swiglu_forward, &job, n, MAP_GRAIN);
}

void kern_swiglu_backward(struct kern *k, uint64_t n, const float *gate, const float *up, const float *dy,
                          float *d_gate, float *d_up, float *y)
{
    struct map_job job = { .x = gate, .up = up, .dy = dy, .dx = d_gate, .d_up = d_up, .y = y };
    split_run(k, k->row->swiglu_backward, &job, n, MAP_GRAIN);
}

void kern_rope(struct kern *k, uint64_t rows, float *x, uint64_t ld, const struct rope *r)
{
    BUG_IF(r->head_dim == 0 || r->head_dim % 2 != 0 || r->heads == 0 || r->period == 0);
    BUG_IF(ld < r->heads * r->head_dim);
    struct rope_job job = { .x = x, .ld = ld, .rope = r };
    split_run(k, k->row->rope, &job, rows, split_rows_grain(r->heads * r->head_dim));
}

/* ---- embedding ---- */

void kern_embed_forward(struct kern *k, uint64_t rows, uint64_t cols, const int32_t *token, const float *table,
                        const float *positions, uint64_t first, uint64_t period, float *y)
{
    BUG_IF(cols == 0 || (positions != NULL && period == 0));
    struct embed_job job = {
        .cols = cols, .token = token, .table = table, .positions = positions, .first = first, .period = period, .y = y,
    };
    split_run(k, k->row->embed_forward, &job, rows, split_rows_grain(cols));
}

void kern_embed_grad(struct kern *k, uint64_t rows, uint64_t cols, const int32_t *token, const float *dy, int64_t *grad,
                     int64_t *position_grad, uint64_t period, float scale, bool *overflow)
{
    BUG_IF(!(scale > 0.0f) || (position_grad != NULL && period == 0));
    struct embed_job job = {
        .rows = rows, .cols = cols, .token = token, .period = period, .dy = dy, .grad = grad,
        .position_grad = position_grad, .scale = scale, .overflow = overflow,
    };
    split_run(k, k->row->embed_grad, &job, cols, COLUMN_GRAIN);
}
