/* Why this exists: the forward pass of the one decoder, in the order a reader expects: embedding, then per layer norm,
 * projections, rotary embedding, attention, output + residual, norm, feed-forward + residual, then the final norm.
 * Row-parallel products (attention output, feed-forward down) sum in tp_grain segments; column-parallel ones in one.
 * Norms and residuals are computed for own rows, products for all. */
#include "model/model_int.h"

/* Norm of own rows into their place in y[R][C], then every rank has all rows of y. */
static enum err norm_forward(struct model *m, const struct rows *r, uint64_t layer, enum slot gain, const float *x,
                             void *y, float *mean, float *rstd)
{
    float eps = (float)m->conf.norm_eps;
    uint64_t own = own_count(r), lo = r->own.lo, hidden = m->conf.hidden;
    const float *gains = model_weight(m, layer, gain);
    void *at = num_at_mut(y, m->kept, lo * hidden);
    if (m->desc->layer_norm) {
        const float *biases = model_weight(m, layer, (enum slot)(gain + 1));
        kern_layernorm_forward(m->k, own, hidden, x, gains, biases, eps, at, m->kept, mean + lo, rstd + lo);
    } else {
        kern_rmsnorm_forward(m->k, own, hidden, x, gains, eps, at, m->kept, rstd + lo);
    }
    return gather_own(m, r, y, m->kept, hidden);
}

/* out = residual + branch, where the branch is a divided product, dropped when there is dropout. */
static enum err branch_forward(struct model *m, const struct rows *r, const struct micro *b, uint32_t site,
                               const struct linear *l, struct operand x, const float *residual, float *out)
{
    double p = m->dropping ? m->conf.resid_dropout : 0.0;
    if (p == 0.0) {
        return linear_forward_divided(m, l, r, x, residual, out);
    }
    TRY(linear_forward_divided(m, l, r, x, NULL, m->branch));
    drop_rows(m, r, b, site, p, m->branch, residual, out);
    return OK;
}

static void rotate(struct model *m, const struct rows *r, void *x, uint64_t ld, uint64_t heads)
{
    if (!m->desc->learned_positions) {
        struct rope rope = { m->rope_cos, m->rope_sin, heads, m->conf.head_dim, r->first, r->length, false };
        kern_rope(m->k, r->count, x, m->kept, ld, &rope);
    }
}

static enum err attention_norm(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a)
{
    return norm_forward(m, r, layer, SLOT_NORM1_GAIN, a->x, a->n1, a->mean1, a->rstd1);
}

/* From the first norm to x1. */
static enum err attention_forward(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                                  const struct layer_act *a)
{
    uint64_t q_cols = m->q_cols, kv_cols = m->kv_cols;
    struct linear q = model_linear(m, layer, SLOT_Q), k = model_linear(m, layer, SLOT_K),
                  v = model_linear(m, layer, SLOT_V), out = model_linear(m, layer, SLOT_OUT);
    struct operand x = kept(m, a->n1);
    /* first is 0 unless a cache is being extended */
    void *keys = num_at_mut(a->kv, m->kept, r->first * 2 * kv_cols), *values = num_at_mut(keys, m->kept, kv_cols);
    TRY(attention_norm(m, r, layer, a));
    linear_forward(m, &q, r->count, x, a->q, m->kept, q_cols);
    linear_forward(m, &k, r->count, x, keys, m->kept, 2 * kv_cols);
    linear_forward(m, &v, r->count, x, values, m->kept, 2 * kv_cols);
    rotate(m, r, a->q, q_cols, m->heads);
    rotate(m, r, keys, 2 * kv_cols, m->kv_heads);
    TRY(attend_forward(m, r, a));
    return branch_forward(m, r, b, 2 * (uint32_t)layer + SITE_ATTENTION, &out, kept(m, a->att), a->x, a->x1);
}

/* From the second norm to what the activation function takes. */
static enum err mlp_forward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a)
{
    struct linear up = model_linear(m, layer, SLOT_UP);
    struct operand x = kept(m, a->n2);
    TRY(norm_forward(m, r, layer, SLOT_NORM2_GAIN, a->x1, a->n2, a->mean2, a->rstd2));
    linear_forward(m, &up, r->count, x, a->up, m->kept, m->ffn);
    if (m->desc->gated) {
        struct linear gate = model_linear(m, layer, SLOT_GATE);
        linear_forward(m, &gate, r->count, x, a->gate, m->kept, m->ffn);
    }
    return OK;
}

static enum err layer_forward(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                              const struct layer_act *a)
{
    struct linear down = model_linear(m, layer, SLOT_DOWN);
    TRY(attention_forward(m, r, b, layer, a));
    TRY(mlp_forward(m, r, layer, a));
    if (m->desc->gated) {
        kern_swiglu_forward(m->k, r->count * m->ffn, a->gate, a->up, m->kept, m->act_ffn);
    } else {
        kern_gelu_forward(m->k, r->count * m->ffn, a->up, m->kept, m->act_ffn);
    }
    return branch_forward(m, r, b, 2 * (uint32_t)layer + SITE_MLP, &down, f32(m->act_ffn), a->x1, a[1].x);
}

enum err recompute_mlp(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                       const struct layer_act *a)
{
    if (m->shape.recompute == RECOMPUTE_FULL) {
        TRY(attention_forward(m, r, b, layer, a));
    }
    return m->shape.recompute != RECOMPUTE_NONE ? mlp_forward(m, r, layer, a) : OK;
}

enum err recompute_attention(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a)
{
    return m->shape.recompute != RECOMPUTE_NONE ? attention_norm(m, r, layer, a) : OK;
}

/* Token rows lie on the rank that holds them; the others add +0. */
static enum err embed_forward(struct model *m, const struct rows *r, const struct micro *b, float *x)
{
    const struct shard *s = registry_find(&m->reg, 0, SLOT_EMBED);
    const struct lookup token = { model_weight(m, 0, SLOT_EMBED), b->token, s->row0, s->rows };
    struct lookup position = { model_weight(m, 0, SLOT_POSITIONS), m->position, 0, m->conf.positions };
    const struct lookup *positions = position.table != NULL ? &position : NULL;
    uint64_t hidden = m->conf.hidden, bounds[ORDER_SEGMENTS_MAX + 1];
    if (m->place.tp == NULL) {
        kern_embed_forward(m->k, r->count, hidden, &token, positions, x);
    } else {
        kern_embed_forward(m->k, r->count, hidden, &token, NULL, m->window);
        if (positions != NULL) {
            position.index += r->own.lo;
            kern_embed_forward(m->k, own_count(r), hidden, &position, NULL, x);
        }
        own_bounds(m, r, 1, bounds);
        const struct comm_tree t = { r->count, hidden, m->place.sequence_parallel ? bounds : NULL, NULL,
                                     positions != NULL ? x : NULL, x, hidden };
        TRY(comm_tree_sum(m->place.tp, &t));
    }
    if (m->dropping && m->conf.embd_dropout > 0.0) {
        drop_rows(m, r, b, SITE_EMBED, m->conf.embd_dropout, x, NULL, x);
    }
    return OK;
}

static enum err embedding(struct model *m, const struct rows *r, const struct micro *b, float *x)
{
    uint32_t token = model_bucket(m, 0, SLOT_EMBED);
    uint32_t position = m->desc->learned_positions ? model_bucket(m, 0, SLOT_POSITIONS) : token;
    TRY(bucket_use(m, token, false));
    if (position != token) {
        TRY(bucket_use(m, position, false));
    }
    if (r->count > 0) {
        TRY(embed_forward(m, r, b, x));
        trace_rows(m, r, b, 0, x);
    }
    if (position != token) {
        TRY(bucket_done(m, position, false));
    }
    return bucket_done(m, token, false);
}

static enum err final_norm(struct model *m, const struct rows *r, struct act_set *s, const float *x)
{
    uint32_t bucket = model_bucket(m, 0, SLOT_FINAL_GAIN);
    TRY(bucket_use(m, bucket, false));
    if (r->count > 0) {
        TRY(norm_forward(m, r, 0, SLOT_FINAL_GAIN, x, s->final_norm, s->final_mean, s->final_rstd));
    }
    return bucket_done(m, bucket, false);
}

enum err model_forward(struct model *m, struct chunk *c, struct act_set *s, const struct rows *r,
                       const struct micro *b)
{
    model_phase(m, PHASE_FORWARD, b, c->layers.lo);
    if (c->first) {
        TRY(embedding(m, r, b, s->layer[0].x));
    }
    for (uint64_t layer = c->layers.lo; layer < c->layers.hi; layer++) {
        uint32_t bucket = model_bucket(m, layer, SLOT_Q);
        model_phase(m, PHASE_FORWARD, b, layer);
        TRY(bucket_use(m, bucket, false));
        if (r->count > 0) {
            TRY(layer_forward(m, r, b, layer, &s->layer[layer - c->layers.lo]));
            trace_rows(m, r, b, layer + 1, s->layer[layer + 1 - c->layers.lo].x);
        }
        TRY(bucket_done(m, bucket, false));
    }
    return c->last ? final_norm(m, r, s, s->layer[c->layers.hi - c->layers.lo].x) : OK;
}
