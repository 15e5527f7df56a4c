/* Why this exists: checks and division of work for everything that goes row by row - norms, activations, rotary and
 * token embeddings, dropout - and for the parameter gradients that are sums over rows.
 *
 * Invariants: forward and backward functions divide rows or elements, sums over rows divide columns and the embedding
 * gradient divides columns too (two rows may hold the same token); so no two threads write the same element and no
 * sum is divided. The orders of the sums are in the leaf files. */
#include "kern/row_leaf.h"

#include "base/rng.h"

const struct row_leaves *const row_leaves_of[ISA_COUNT] = KERN_TABLES(row_leaves);

#define MAP_GRAIN 4096u   /* elements: 16 KB of each array */
#define COLUMN_GRAIN 128u /* columns: 512 bytes of each row */
#define HEAD_COLUMN_GRAIN 16u /* of each head, of which all have the same few columns */

/* ---- norms ---- */

static void run_norm(struct kern *k, leaf_fn *leaf, const struct norm_job *job, uint64_t rows)
{
    BUG_IF(job->cols == 0);
    split_run(k, leaf, job, rows, split_rows_grain(job->cols));
}

void kern_layernorm_forward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain,
                            const float *bias, float eps, void *y, enum num y_type, float *mean, float *rstd)
{
    POOL_SPAN(k->pool, "layer norm", rows, cols, 0);
    struct norm_job job = {
        .cols = cols, .x = x, .gain = gain, .bias = bias, .eps = eps,
        .y = y, .y_type = y_type, .mean = mean, .rstd = rstd,
    };
    run_norm(k, k->row->layernorm_forward, &job, rows);
}

void kern_layernorm_backward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain,
                             const float *mean, const float *rstd, const float *dy, float *dx)
{
    POOL_SPAN(k->pool, "layer norm backward", rows, cols, 0);
    struct norm_job job = {
        .cols = cols, .x = x, .gain = gain, .mean_in = mean, .rstd_in = rstd, .dy = dy, .dx = dx,
    };
    run_norm(k, k->row->layernorm_backward, &job, rows);
}

void kern_rmsnorm_forward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain, float offset,
                          float eps, void *y, enum num y_type, float *rstd)
{
    POOL_SPAN(k->pool, "rms norm", rows, cols, 0);
    struct norm_job job = {
        .cols = cols, .x = x, .gain = gain, .offset = offset, .eps = eps, .y = y, .y_type = y_type, .rstd = rstd,
    };
    run_norm(k, k->row->rmsnorm_forward, &job, rows);
}

void kern_rmsnorm_backward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain,
                           float offset, const float *rstd, const float *dy, float *dx)
{
    POOL_SPAN(k->pool, "rms norm backward", rows, cols, 0);
    struct norm_job job = {
        .cols = cols, .x = x, .gain = gain, .offset = offset, .rstd_in = rstd, .dy = dy, .dx = dx,
    };
    run_norm(k, k->row->rmsnorm_backward, &job, rows);
}

static void check_heads(const struct head_job *job)
{
    BUG_IF(job->heads == 0 || job->head_dim == 0 || job->head_dim % 8 != 0);
    BUG_IF(job->ldx < job->heads * job->head_dim || job->ldy < job->heads * job->head_dim);
}

void kern_headnorm_forward(struct kern *k, uint64_t rows, uint64_t heads, uint64_t head_dim, const void *x,
                           enum num x_type, uint64_t ldx, const float *gain, float offset, float eps, void *y,
                           enum num y_type, uint64_t ldy, float *rstd)
{
    POOL_SPAN(k->pool, "head norm", rows, heads, head_dim);
    struct head_job job = {
        .heads = heads, .head_dim = head_dim, .x = x, .type = x_type, .ldx = ldx, .gain = gain, .offset = offset,
        .eps = eps, .y = y, .y_type = y_type, .ldy = ldy, .rstd = rstd,
    };
    check_heads(&job);
    split_run(k, k->row->headnorm_forward, &job, rows, split_rows_grain(heads * head_dim));
}

void kern_headnorm_backward(struct kern *k, uint64_t rows, uint64_t heads, uint64_t head_dim, const void *x,
                            enum num x_type, uint64_t ldx, const float *gain, float offset, const float *rstd,
                            const float *dy, uint64_t ldy, float *dx, uint64_t lddx)
{
    POOL_SPAN(k->pool, "head norm backward", rows, heads, head_dim);
    struct head_job job = {
        .heads = heads, .head_dim = head_dim, .x = x, .type = x_type, .ldx = ldx, .gain = gain, .offset = offset,
        .rstd_in = rstd, .dy = dy, .ldy = ldy, .dx = dx, .lddx = lddx,
    };
    check_heads(&job);
    BUG_IF(lddx < heads * head_dim);
    split_run(k, k->row->headnorm_backward, &job, rows, split_rows_grain(heads * head_dim));
}

/* ---- sums over rows ---- */

static void check_sink(const struct grad_sink *sink)
{
    BUG_IF(sink != NULL && (sink->unit == 0 || !(sink->scale > 0.0f)));
    BUG_IF(sink != NULL && !(sink->limit > 0.0f && sink->limit <= FIXED_UNIT_LIMIT));
}

void kern_norm_grad(struct kern *k, uint64_t rows, uint64_t cols, uint64_t ld, const float *x, const float *mean,
                    const float *rstd, const float *dy, const struct grad_sink *gain_sink,
                    const struct grad_sink *bias_sink)
{
    POOL_SPAN(k->pool, "norm gradient", rows, cols, 0);
    BUG_IF(ld < cols);
    check_sink(gain_sink);
    check_sink(bias_sink);
    BUG_IF(bias_sink != NULL && bias_sink->unit != gain_sink->unit);
    struct column_job job = {
        .rows = rows, .heads = 1, .ldx = ld, .ldy = ld, .x = x, .mean = mean, .rstd = rstd, .dy = dy,
        .gain_sink = gain_sink, .bias_sink = bias_sink,
    };
    split_run(k, k->row->column_sums, &job, cols, COLUMN_GRAIN);
}

void kern_headnorm_grad(struct kern *k, uint64_t rows, uint64_t heads, uint64_t head_dim, const void *x,
                        enum num x_type, uint64_t ldx, const float *rstd, const float *dy, uint64_t ldy,
                        const struct grad_sink *sink)
{
    POOL_SPAN(k->pool, "head norm gradient", rows, heads, head_dim);
    BUG_IF(heads == 0 || ldx < heads * head_dim || ldy < heads * head_dim);
    check_sink(sink);
    struct column_job job = {
        .rows = rows, .heads = heads, .head_dim = head_dim, .ldx = ldx, .ldy = ldy, .x = x, .x_type = x_type,
        .rstd = rstd, .dy = dy, .gain_sink = sink,
    };
    split_run(k, k->row->column_sums, &job, head_dim, HEAD_COLUMN_GRAIN);
}

void kern_bias_grad(struct kern *k, uint64_t rows, uint64_t cols, const float *dy, uint64_t ldy,
                    const struct grad_sink *sink)
{
    POOL_SPAN(k->pool, "bias gradient", rows, cols, 0);
    check_sink(sink);
    BUG_IF(ldy < cols);
    struct column_job job = { .rows = rows, .heads = 1, .ldy = ldy, .dy = dy, .bias_sink = sink };
    split_run(k, k->row->column_sums, &job, cols, COLUMN_GRAIN);
}

/* ---- elementwise ---- */

void kern_gelu_forward(struct kern *k, uint64_t n, const void *x, enum num x_type, float *y)
{
    POOL_SPAN(k->pool, "gelu", n, 0, 0);
    struct map_job job = { .x = x, .type = x_type, .y = y };
    split_run(k, k->row->gelu_forward, &job, n, MAP_GRAIN);
}

void kern_gelu_backward(struct kern *k, uint64_t n, const void *x, enum num x_type, const float *dy, float *dx)
{
    POOL_SPAN(k->pool, "gelu backward", n, 0, 0);
    struct map_job job = { .x = x, .type = x_type, .dy = dy, .dx = dx };
    split_run(k, k->row->gelu_backward, &job, n, MAP_GRAIN);
}

void kern_gelu_erf_forward(struct kern *k, uint64_t n, const void *x, enum num x_type, float *y)
{
    POOL_SPAN(k->pool, "gelu", n, 0, 0);
    struct map_job job = { .x = x, .type = x_type, .y = y };
    split_run(k, k->row->gelu_erf_forward, &job, n, MAP_GRAIN);
}

void kern_gelu_erf_backward(struct kern *k, uint64_t n, const void *x, enum num x_type, const float *dy, float *dx)
{
    POOL_SPAN(k->pool, "gelu backward", n, 0, 0);
    struct map_job job = { .x = x, .type = x_type, .dy = dy, .dx = dx };
    split_run(k, k->row->gelu_erf_backward, &job, n, MAP_GRAIN);
}

void kern_swiglu_forward(struct kern *k, uint64_t n, const void *gate, const void *up, enum num type, float *y)
{
    POOL_SPAN(k->pool, "swiglu", n, 0, 0);
    struct map_job job = { .x = gate, .up = up, .type = type, .y = y };
    split_run(k, k->row->swiglu_forward, &job, n, MAP_GRAIN);
}

void kern_swiglu_backward(struct kern *k, uint64_t n, const void *gate, const void *up, enum num type, const float *dy,
                          float *d_gate, float *d_up, float *y)
{
    POOL_SPAN(k->pool, "swiglu backward", n, 0, 0);
    struct map_job job = { .x = gate, .up = up, .type = type, .dy = dy, .dx = d_gate, .d_up = d_up, .y = y };
    split_run(k, k->row->swiglu_backward, &job, n, MAP_GRAIN);
}

void kern_geglu_forward(struct kern *k, uint64_t n, const void *gate, const void *up, enum num type, float *y)
{
    POOL_SPAN(k->pool, "geglu", n, 0, 0);
    struct map_job job = { .x = gate, .up = up, .type = type, .y = y };
    split_run(k, k->row->geglu_forward, &job, n, MAP_GRAIN);
}

void kern_geglu_backward(struct kern *k, uint64_t n, const void *gate, const void *up, enum num type, const float *dy,
                         float *d_gate, float *d_up, float *y)
{
    POOL_SPAN(k->pool, "geglu backward", n, 0, 0);
    struct map_job job = { .x = gate, .up = up, .type = type, .dy = dy, .dx = d_gate, .d_up = d_up, .y = y };
    split_run(k, k->row->geglu_backward, &job, n, MAP_GRAIN);
}

void kern_softcap_forward(struct kern *k, uint64_t n, float cap, float *x)
{
    POOL_SPAN(k->pool, "soft cap", n, 0, 0);
    BUG_IF(!(cap > 0.0f));
    struct map_job job = { .x = x, .y = x, .factor = cap };
    split_run(k, k->row->softcap_forward, &job, n, MAP_GRAIN);
}

void kern_softcap_backward(struct kern *k, uint64_t n, float cap, const float *y, float *dy)
{
    POOL_SPAN(k->pool, "soft cap backward", n, 0, 0);
    BUG_IF(!(cap > 0.0f));
    struct map_job job = { .x = y, .dy = dy, .dx = dy, .factor = cap };
    split_run(k, k->row->softcap_backward, &job, n, MAP_GRAIN);
}

void kern_scale(struct kern *k, uint64_t n, float *x, float factor)
{
    POOL_SPAN(k->pool, "scale", n, 0, 0);
    struct map_job job = { .x = x, .y = x, .factor = factor };
    split_run(k, k->row->scale, &job, n, MAP_GRAIN);
}

void kern_rope(struct kern *k, uint64_t rows, void *x, enum num type, uint64_t ld, const struct rope *r)
{
    POOL_SPAN(k->pool, "rotary", rows, r->heads, r->head_dim);
    BUG_IF(!rope_is_sound(r) || ld < r->heads * r->head_dim);
    struct rope_job job = { .x = x, .type = type, .ld = ld, .rope = r };
    split_run(k, k->row->rope, &job, rows, split_rows_grain(r->heads * r->head_dim));
}

/* ---- embedding ---- */

void kern_embed_forward(struct kern *k, uint64_t rows, uint64_t cols, const struct lookup *token,
                        const struct lookup *position, float *y)
{
    POOL_SPAN(k->pool, "embedding", rows, cols, 0);
    BUG_IF(cols == 0);
    for (uint64_t t = 0; t < rows; t++) {
        BUG_IF(token->index[t] < 0);
        BUG_IF(position != NULL && (uint64_t)position->index[t] - position->first >= position->count);
    }
    struct embed_job job = { .cols = cols, .token = token, .position = position, .y = y };
    split_run(k, k->row->embed_forward, &job, rows, split_rows_grain(cols));
}

void kern_embed_grad(struct kern *k, const struct embed_grad *g)
{
    POOL_SPAN(k->pool, "embedding gradient", g->rows, g->cols, 0);
    BUG_IF(!(g->scale > 0.0f) || !(g->limit > 0.0f && g->limit <= FIXED_UNIT_LIMIT) || g->ld < g->cols);
    split_run(k, k->row->embed_grad, g, g->cols, COLUMN_GRAIN);
}

/* ---- sums of two arrays ---- */

struct add_job {
    const float *x, *y;
    float *out;
};

/* Not a leaf: one correctly rounded operation an element, the same wherever it is compiled. */
static void add_elements(const void *job, uint64_t begin, uint64_t end)
{
    const struct add_job *j = job;
    for (uint64_t i = begin; i < end; i++) {
        j->out[i] = j->x[i] + j->y[i];
    }
}

void kern_add(struct kern *k, uint64_t n, const float *x, const float *y, float *out)
{
    POOL_SPAN(k->pool, "add", n, 0, 0);
    const struct add_job job = { x, y, out };
    split_run(k, add_elements, &job, n, MAP_GRAIN);
}

/* ---- dropout ---- */

void kern_dropout(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *residual, float *y,
                  const struct dropout *d)
{
    POOL_SPAN(k->pool, "dropout", rows, cols, 0);
    BUG_IF(cols == 0 || d->period == 0 || d->site >> 16 != 0 || !(d->p > 0.0 && d->p < 1.0));
    struct dropout_job job = {
        .cols = cols, .x = x, .residual = residual, .y = y, .d = d,
        .threshold = (uint32_t)(d->p * 0x1p32), .factor = (float)(1.0 / (1.0 - d->p)),
    };
    rng_key(d->seed, RNG_DROPOUT, job.key);
    split_run(k, k->row->dropout, &job, rows, split_rows_grain(cols));
}
