/* Why this exists: the backward pass, the mirror of forward.c. m->dx carries the gradient of the residual stream (own
 * rows) from the last layer to the embedding; m->dn is the gradient of a norm's output, which each norm turns into its
 * share of m->dx. Each layer computes its activation function again, and what enum recompute says; the rest was kept.
 *
 * Orders: input gradients of column-parallel products sum in tp_grain segments (queries, keys, values of a segment
 * in one chain; gate, then up); those of row-parallel products in one. Parameter gradients are sums over units. Of the
 * gradients of replicated parameters a tensor-parallel rank sums its own columns; the others come from the others. */
#include "model/model_int.h"

#include "part/order.h"

/* A norm's input and what its forward pass kept, all rows. */
struct norm_input {
    const float *x, *mean, *rstd;
};

/* Make m->dn, and *out from this rank's rows, of all rows: with sequence parallelism they are gathered, else they are
 * here. Collective. */
static enum err gather_norm(struct model *m, const struct rows *r, const float *x, const float *mean,
                            const float *rstd, struct norm_input *out)
{
    uint64_t hidden = m->conf.hidden, lo = r->own.lo, own = own_count(r);
    *out = (struct norm_input){ x, mean, rstd };
    if (!m->place.sequence_parallel) {
        return OK;
    }
    memcpy(m->full_x + lo * hidden, x, own * hidden * sizeof(float));
    memcpy(m->full_rstd + lo, rstd + lo, own * sizeof(float));
    TRY(gather_own(m, r, m->full_x, NUM_F32, hidden));
    TRY(gather_own(m, r, m->full_rstd, NUM_F32, 1));
    *out = (struct norm_input){ m->full_x, NULL, m->full_rstd };
    if (mean != NULL) {
        memcpy(m->full_mean + lo, mean + lo, own * sizeof(float));
        TRY(gather_own(m, r, m->full_mean, NUM_F32, 1));
        out->mean = m->full_mean;
    }
    return gather_own(m, r, m->dn, NUM_F32, hidden);
}

/* Gradients of gain and bias from all rows, own columns. */
static void norm_grad(struct model *m, const struct rows *r, uint64_t layer, enum slot gain,
                      const struct norm_input *in)
{
    struct order_range cols = own_columns(m);
    uint64_t hidden = m->conf.hidden, unit = m->shape.grad_unit;
    int64_t *bias_grad = m->conf.norm == NORM_LAYER ? model_grad(m, layer, (enum slot)(gain + 1)) : NULL;
    struct grad_sink gain_sink = { model_grad(m, layer, gain) + cols.lo, unit, grad_scale(m), m->unit_limit, &m->bad };
    struct grad_sink bias_sink = gain_sink;
    bias_sink.grad = bias_grad != NULL ? bias_grad + cols.lo : NULL;
    struct stretches parts = unit_stretches(r, unit);
    for (uint64_t i = 0; i < parts.count; i++) {
        uint64_t row = i * parts.rows;
        kern_norm_grad(m->k, parts.rows, cols.hi - cols.lo, hidden, in->x + row * hidden + cols.lo,
                       in->mean != NULL ? in->mean + row : NULL, in->rstd + row, m->dn + row * hidden + cols.lo,
                       &gain_sink, bias_grad != NULL ? &bias_sink : NULL);
    }
}

/* Through one norm of input x[own][C]: from m->dn, whose own rows are set, adds the gradients of gain and bias and adds
 * that of x to dx[own][C]. */
static enum err norm_backward(struct model *m, const struct rows *r, uint64_t layer, enum slot gain, const float *x,
                              const float *mean, const float *rstd, float *dx)
{
    struct norm_input in;
    uint64_t own = own_count(r), lo = r->own.lo, hidden = m->conf.hidden;
    const float *gains = model_weight(m, layer, gain);
    TRY(gather_norm(m, r, x, mean, rstd, &in));
    norm_grad(m, r, layer, gain, &in);
    if (m->conf.norm == NORM_LAYER) {
        kern_layernorm_backward(m->k, own, hidden, x, gains, mean + lo, rstd + lo, m->dn + lo * hidden, dx);
    } else {
        kern_rmsnorm_backward(m->k, own, hidden, x, gains, gain_offset(m), rstd + lo, m->dn + lo * hidden, dx);
    }
    return OK;
}

/* The gradient of a branch's output, all rows: that of the residual stream, dx[own][C], through dropout. */
static enum err branch_backward(struct model *m, const struct rows *r, const struct micro *b, uint32_t site,
                                const float *dx, const float **dy)
{
    double p = m->dropping ? site == SITE_EMBED ? m->conf.embd_dropout : m->conf.resid_dropout : 0.0;
    float *own = m->branch != NULL ? m->branch + r->own.lo * m->conf.hidden : NULL;
    *dy = dx;
    if (p > 0.0) {
        drop_rows(m, r, b, site, p, dx, NULL, own);
        *dy = m->branch;
    } else if (m->place.sequence_parallel) {
        memcpy(own, dx, own_count(r) * m->conf.hidden * sizeof(float));
        *dy = m->branch;
    }
    return gather_own(m, r, m->branch, NUM_F32, m->conf.hidden);
}

static float *own_dn(struct model *m, const struct rows *r)
{
    return m->dn + r->own.lo * m->conf.hidden;
}

/* The gradient of what the last product of a branch gave, all rows: where a norm stands behind it, through that, too.
 * m->dn is overwritten then. */
static enum err branch_end_backward(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                                    uint32_t site, const struct layer_act *a, const float **dy)
{
    const float *dx = m->conf.parallel_residual ? m->d_out : model_gradient(m);
    const struct after_act *after = site == SITE_MLP ? &a->after2 : &a->after1;
    uint64_t elements = own_count(r) * m->conf.hidden;
    float *own = m->branch != NULL ? m->branch + r->own.lo * m->conf.hidden : NULL;
    double p = m->dropping ? m->conf.resid_dropout : 0.0;
    site += 2 * (uint32_t)layer;
    if (m->conf.norms == NORMS_BEFORE) {
        return branch_backward(m, r, b, site, dx, dy);
    }
    if (p > 0.0) {
        drop_rows(m, r, b, site, p, dx, NULL, own_dn(m, r));
    } else {
        memcpy(own_dn(m, r), dx, elements * sizeof(float));
    }
    kern_fill(m->k, elements, own, 0.0f);
    TRY(norm_backward(m, r, layer, after == &a->after2 ? SLOT_AFTER2_GAIN : SLOT_AFTER1_GAIN, after->x, NULL,
                      after->rstd, own));
    *dy = m->branch;
    return gather_own(m, r, m->branch, NUM_F32, m->conf.hidden);
}

/* From m->dn, own rows, the gradient of what a branch took, to m->dx: through the norm before it, if there is one. */
static enum err branch_start_backward(struct model *m, const struct rows *r, uint64_t layer, enum slot gain,
                                      const float *x, const float *mean, const float *rstd)
{
    float *dx = model_gradient(m);
    if (m->conf.norms == NORMS_AFTER) {
        kern_add(m->k, own_count(r) * m->conf.hidden, dx, own_dn(m, r), dx);
        return OK;
    }
    return norm_backward(m, r, layer, gain, x, mean, rstd, dx);
}

/* The activation function: m->act_ffn is the gradient of its output on entry, that output on return. */
static void activation_backward(struct model *m, uint64_t n, const struct layer_act *a)
{
    float *act = m->act_ffn;
    if (m->conf.activation == ACTIVATION_SILU) {
        kern_swiglu_backward(m->k, n, a->gate, a->up, m->kept, act, m->d_gate, m->d_up, act);
    } else if (m->conf.gated) {
        kern_geglu_backward(m->k, n, a->gate, a->up, m->kept, act, m->d_gate, m->d_up, act);
    } else if (m->conf.activation == ACTIVATION_GELU) {
        kern_gelu_erf_backward(m->k, n, a->up, m->kept, act, m->d_up);
        kern_gelu_erf_forward(m->k, n, a->up, m->kept, act);
    } else {
        kern_gelu_backward(m->k, n, a->up, m->kept, act, m->d_up);
        kern_gelu_forward(m->k, n, a->up, m->kept, act);
    }
}

/* The feed-forward half of a layer. m->act_ffn holds the gradient of the activation's output first, then that output
 * again, which the down projection's gradient needs. */
static enum err mlp_backward(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                             const struct layer_act *a)
{
    uint64_t count = r->count, ffn = m->ffn, hidden = m->conf.hidden, unit = m->shape.grad_unit;
    struct linear up = model_linear(m, layer, SLOT_UP), down = model_linear(m, layer, SLOT_DOWN);
    const float *dy, *from = m->conf.parallel_residual ? a->x : a->x1;
    struct operand x = branch_operand(m, from, a->n2);
    TRY(recompute_mlp(m, r, b, layer, a));
    TRY(branch_end_backward(m, r, b, layer, SITE_MLP, a, &dy));
    linear_backward_input(m, &(struct linear_dy){ &down, dy, hidden }, 1, count, 1, m->act_ffn);
    activation_backward(m, count * ffn, a);
    linear_backward_weight(m, &down, r, unit, f32(m->act_ffn), dy, hidden);
    linear_backward_weight(m, &up, r, unit, x, m->d_up, ffn);
    if (m->conf.gated) {
        struct linear gate = model_linear(m, layer, SLOT_GATE);
        linear_backward_weight(m, &gate, r, unit, x, m->d_gate, ffn);
        const struct linear_dy both[] = { { &gate, m->d_gate, ffn }, { &up, m->d_up, ffn } };
        TRY(linear_backward_divided(m, both, 2, r, own_dn(m, r)));
    } else {
        TRY(linear_backward_divided(m, &(struct linear_dy){ &up, m->d_up, ffn }, 1, r, own_dn(m, r)));
    }
    return branch_start_backward(m, r, layer, SLOT_NORM2_GAIN, from, a->mean2, a->rstd2);
}

/* Norms of queries or keys: dy[R][ldy] becomes the gradient of raw[R][heads x head_dim]. */
static void qk_norm_backward(struct model *m, const struct rows *r, uint64_t layer, enum slot gain, uint64_t heads,
                             const void *raw, const float *rstd, float *dy, uint64_t ldy)
{
    uint64_t norms = qk_norms(m, heads), cols = heads * m->conf.head_dim, unit = m->shape.grad_unit;
    const struct grad_sink sink = { model_grad(m, layer, gain), unit, grad_scale(m),
                                    gain == SLOT_Q_GAIN ? m->q_limit : m->k_limit, &m->bad };
    struct stretches parts = unit_stretches(r, unit);
    for (uint64_t i = 0; i < parts.count; i++) {
        uint64_t row = i * parts.rows;
        kern_headnorm_grad(m->k, parts.rows, norms, cols / norms, num_at(raw, m->kept, row * cols), m->kept, cols,
                           rstd + row * norms, dy + row * ldy, ldy, &sink);
    }
    kern_headnorm_backward(m->k, r->count, norms, cols / norms, raw, m->kept, cols, model_weight(m, layer, gain),
                           gain_offset(m), rstd, dy, ldy, dy, ldy);
}

static enum err attention_backward(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                                   const struct layer_act *a)
{
    uint64_t unit = m->shape.grad_unit, q_cols = m->q_cols, kv_cols = m->kv_cols, hidden = m->conf.hidden;
    struct linear out = model_linear(m, layer, SLOT_OUT);
    const float *dy;
    struct operand x = branch_operand(m, a->x, a->n1);
    TRY(recompute_attention(m, r, layer, a));
    TRY(branch_end_backward(m, r, b, layer, SITE_ATTENTION, a, &dy));
    linear_backward_weight(m, &out, r, unit, kept(m, a->att), dy, hidden);
    linear_backward_input(m, &(struct linear_dy){ &out, dy, hidden }, 1, r->count, 1, m->d_att);
    TRY(attend_backward(m, r, layer, a));
    if (m->conf.qk_norm != QK_NORM_NONE) {
        qk_norm_backward(m, r, layer, SLOT_Q_GAIN, m->heads, a->q_raw, a->q_rstd, m->dq, q_cols);
        qk_norm_backward(m, r, layer, SLOT_K_GAIN, m->kv_heads, a->k_raw, a->k_rstd, m->dkv, 2 * kv_cols);
    }
    struct linear q = model_linear(m, layer, SLOT_Q), k = model_linear(m, layer, SLOT_K),
                  v = model_linear(m, layer, SLOT_V);
    const struct linear_dy parts[] = {
        { &q, m->dq, q_cols },
        { &k, m->dkv, 2 * kv_cols },
        { &v, m->dkv + kv_cols, 2 * kv_cols },
    };
    for (int i = 0; i < 3; i++) {
        linear_backward_weight(m, parts[i].l, r, unit, x, parts[i].dy, parts[i].ldy);
    }
    TRY(linear_backward_divided(m, parts, 3, r, own_dn(m, r)));
    return branch_start_backward(m, r, layer, SLOT_NORM1_GAIN, a->x, a->mean1, a->rstd1);
}

static enum err embed_backward(struct model *m, const struct rows *r, const struct micro *b)
{
    const struct shard *s = registry_find(&m->reg, 0, SLOT_EMBED);
    uint64_t hidden = m->conf.hidden;
    const float *dy;
    if (m->conf.embed_scale != 1.0) { /* nothing takes the gradient of the residual stream after this */
        kern_scale(m->k, own_count(r) * hidden, model_gradient(m), (float)m->conf.embed_scale);
    }
    TRY(branch_backward(m, r, b, SITE_EMBED, model_gradient(m), &dy));
    struct embed_grad token = { r->count, hidden, hidden, b->token, s->row0, s->rows, dy,
                                model_grad(m, 0, SLOT_EMBED), grad_scale(m), m->token_limit, &m->bad };
    kern_embed_grad(m->k, &token);
    if (m->conf.learned_positions) {
        struct order_range cols = own_columns(m);
        struct embed_grad position = { r->count, cols.hi - cols.lo, hidden, m->position, 0, m->conf.positions,
                                       dy + cols.lo, model_grad(m, 0, SLOT_POSITIONS) + cols.lo, grad_scale(m),
                                       m->unit_limit, &m->bad };
        kern_embed_grad(m->k, &position);
    }
    return OK;
}

static enum err embedding(struct model *m, const struct rows *r, const struct micro *b)
{
    uint32_t token = model_bucket(m, 0, SLOT_EMBED);
    uint32_t position = m->conf.learned_positions ? model_bucket(m, 0, SLOT_POSITIONS) : token;
    TRY(bucket_use(m, token, true));
    if (position != token) {
        TRY(bucket_use(m, position, true));
    }
    if (r->count > 0) {
        TRY(embed_backward(m, r, b));
    }
    if (position != token) {
        TRY(bucket_done(m, position, true));
    }
    return bucket_done(m, token, true);
}

static enum err final_norm(struct model *m, const struct rows *r, const struct act_set *s, const float *x)
{
    uint32_t bucket = model_bucket(m, 0, SLOT_FINAL_GAIN);
    TRY(bucket_use(m, bucket, true));
    if (r->count > 0) {
        kern_fill(m->k, own_count(r) * m->conf.hidden, model_gradient(m), 0.0f);
        TRY(norm_backward(m, r, 0, SLOT_FINAL_GAIN, x, s->final_mean, s->final_rstd, model_gradient(m)));
    }
    return bucket_done(m, bucket, true);
}

enum err model_backward(struct model *m, struct chunk *c, struct act_set *s, const struct rows *r,
                        const struct micro *b)
{
    if (c->last) {
        TRY(final_norm(m, r, s, s->layer[c->layers.hi - c->layers.lo].x));
    }
    for (uint64_t layer = c->layers.hi; layer-- > c->layers.lo;) {
        uint32_t bucket = model_bucket(m, layer, SLOT_Q);
        const struct layer_act *a = &s->layer[layer - c->layers.lo];
        model_phase(m, PHASE_BACKWARD, b, layer);
        TRY(bucket_use(m, bucket, true));
        if (r->count > 0) {
            if (m->conf.parallel_residual) {
                memcpy(m->d_out, model_gradient(m), own_count(r) * m->conf.hidden * sizeof(float));
            }
            TRY(mlp_backward(m, r, b, layer, a));
            TRY(attention_backward(m, r, b, layer, a));
        }
        TRY(bucket_done(m, bucket, true));
    }
    return c->first ? embedding(m, r, b) : OK;
}
