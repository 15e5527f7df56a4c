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
        kern_rmsnorm_forward(m->k, own, hidden, x, gains, 0.0f, eps, at, m->kept, rstd + lo);
    }
    return gather_own(m, r, y, m->kept, hidden);
}

/* Whether the product in front of the second norm does that norm, too: all of a row is on this rank, and nothing comes
 * between. */
static bool norm_follows(const struct model *m)
{
    return m->place.tp == NULL && !(m->dropping && m->conf.resid_dropout > 0.0);
}

static struct gemm_then second_norm(const struct model *m, uint64_t layer, const struct layer_act *a)
{
    return (struct gemm_then){
        .kind = m->desc->layer_norm ? GEMM_THEN_LAYERNORM : GEMM_THEN_RMSNORM, .y = a->n2, .y_type = m->kept,
        .gain = model_weight(m, layer, SLOT_NORM2_GAIN),
        .bias = m->desc->layer_norm ? model_weight(m, layer, SLOT_NORM2_BIAS) : NULL,
        .eps = (float)m->conf.norm_eps, .mean = a->mean2, .rstd = a->rstd2,
    };
}

/* out = residual + branch, where the branch is a divided product, dropped when there is dropout. */
static enum err branch_forward(struct model *m, const struct rows *r, const struct micro *b, uint32_t site,
                               const struct linear *l, struct operand x, const float *residual, float *out,
                               const struct gemm_then *then)
{
    double p = m->dropping ? m->conf.resid_dropout : 0.0;
    if (p == 0.0) {
        return linear_forward_divided(m, l, r, x, residual, out, then);
    }
    TRY(linear_forward_divided(m, l, r, x, NULL, m->branch, NULL));
    drop_rows(m, r, b, site, p, m->branch, residual, out);
    return OK;
}

static enum err attention_norm(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a)
{
    return norm_forward(m, r, layer, SLOT_NORM1_GAIN, a->x, a->n1, a->mean1, a->rstd1);
}

/* Queries and keys are rotated by the products that give them, unless positions are learned. */
static void project(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a)
{
    uint64_t q_cols = m->q_cols, kv_cols = m->kv_cols;
    struct linear q = model_linear(m, layer, SLOT_Q), k = model_linear(m, layer, SLOT_K),
                  v = model_linear(m, layer, SLOT_V);
    struct operand x = kept(m, a->n1);
    /* first is 0 unless a cache is being extended */
    void *keys = num_at_mut(a->kv, m->kept, r->first * 2 * kv_cols), *values = num_at_mut(keys, m->kept, kv_cols);
    uint64_t dim = m->conf.head_dim;
    struct rope of_q = { m->rope_cos, m->rope_sin, m->heads, dim, dim, r->first, r->length, false };
    struct rope of_k = of_q;
    of_k.heads = m->kv_heads;
    const struct gemm_then turn_q = { .kind = GEMM_THEN_ROPE, .rope = &of_q },
                           turn_k = { .kind = GEMM_THEN_ROPE, .rope = &of_k };
    bool turns = !m->desc->learned_positions;
    linear_forward(m, &q, r->count, x, a->q, m->kept, q_cols, turns ? &turn_q : NULL);
    linear_forward(m, &k, r->count, x, keys, m->kept, 2 * kv_cols, turns ? &turn_k : NULL);
    linear_forward(m, &v, r->count, x, values, m->kept, 2 * kv_cols, NULL);
}

/* From the first norm to x1, and where it can be to the second norm. */
static enum err attention_forward(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                                  const struct layer_act *a)
{
    struct linear out = model_linear(m, layer, SLOT_OUT);
    const struct gemm_then norm = second_norm(m, layer, a);
    TRY(attention_norm(m, r, layer, a));
    project(m, r, layer, a);
    TRY(attend_forward(m, r, a));
    return branch_forward(m, r, b, 2 * (uint32_t)layer + SITE_ATTENTION, &out, kept(m, a->att), a->x, a->x1,
                          norm_follows(m) ? &norm : NULL);
}

/* From x1 (normed: n2 is there) to what the activation function takes and, with `act`, gives. */
static enum err mlp_forward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a,
                            bool normed, bool act)
{
    struct linear up = model_linear(m, layer, SLOT_UP);
    struct operand x = kept(m, a->n2);
    const struct gemm_then activation = {
        .kind = m->desc->gated ? GEMM_THEN_SWIGLU : GEMM_THEN_GELU, .y = m->act_ffn, .gate = a->gate,
    };
    if (!normed) {
        TRY(norm_forward(m, r, layer, SLOT_NORM2_GAIN, a->x1, a->n2, a->mean2, a->rstd2));
    }
    if (m->desc->gated) {
        struct linear gate = model_linear(m, layer, SLOT_GATE);
        linear_forward(m, &gate, r->count, x, a->gate, m->kept, m->ffn, NULL);
    }
    linear_forward(m, &up, r->count, x, a->up, m->kept, m->ffn, act ? &activation : NULL);
    return OK;
}

static enum err layer_forward(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                              const struct layer_act *a)
{
    struct linear down = model_linear(m, layer, SLOT_DOWN);
    TRY(attention_forward(m, r, b, layer, a));
    TRY(mlp_forward(m, r, layer, a, norm_follows(m), true));
    return branch_forward(m, r, b, 2 * (uint32_t)layer + SITE_MLP, &down, f32(m->act_ffn), a->x1, a[1].x, NULL);
}

enum err recompute_mlp(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                       const struct layer_act *a)
{
    bool all = m->shape.recompute == RECOMPUTE_FULL;
    if (all) {
        TRY(attention_forward(m, r, b, layer, a));
    }
    return m->shape.recompute != RECOMPUTE_NONE ? mlp_forward(m, r, layer, a, all && norm_follows(m), false) : OK;
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
