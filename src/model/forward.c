/* Why this exists: the forward pass of the one decoder, in the order a reader expects: embedding, then per layer norm,
 * projections, norms of queries and keys, rotary embedding, attention, output + residual, norm, feed-forward +
 * residual, then the final norm. Where a family's norms stand, and what it leaves out, is in struct model_conf.
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
    if (m->conf.norm == NORM_LAYER) {
        const float *biases = model_weight(m, layer, (enum slot)(gain + 1));
        kern_layernorm_forward(m->k, own, hidden, x, gains, biases, eps, at, m->kept, mean + lo, rstd + lo);
    } else {
        kern_rmsnorm_forward(m->k, own, hidden, x, gains, gain_offset(m), eps, at, m->kept, rstd + lo);
    }
    return gather_own(m, r, y, m->kept, hidden);
}

/* What a branch takes of x[own][C]: branch_operand(m, x, n). */
static enum err branch_input(struct model *m, const struct rows *r, uint64_t layer, enum slot gain, const float *x,
                             void *n, float *mean, float *rstd)
{
    return m->conf.norms != NORMS_AFTER ? norm_forward(m, r, layer, gain, x, n, mean, rstd) : OK;
}

/* Whether the product in front of the second norm does that norm, too: all of a row is on this rank, and nothing comes
 * between. */
static bool norm_follows(const struct model *m)
{
    return m->place.tp == NULL && m->conf.norms == NORMS_BEFORE && !m->conf.parallel_residual &&
           !(m->dropping && m->conf.resid_dropout > 0.0);
}

static struct gemm_then second_norm(const struct model *m, uint64_t layer, const struct layer_act *a)
{
    return (struct gemm_then){
        .kind = m->conf.norm == NORM_LAYER ? GEMM_THEN_LAYERNORM : GEMM_THEN_RMSNORM, .y = a->n2, .y_type = m->kept,
        .gain = model_weight(m, layer, SLOT_NORM2_GAIN), .offset = gain_offset(m),
        .bias = m->conf.norm == NORM_LAYER ? model_weight(m, layer, SLOT_NORM2_BIAS) : NULL,
        .eps = (float)m->conf.norm_eps, .mean = a->mean2, .rstd = a->rstd2,
    };
}

/* A branch that ends: its last product of x, dropped where there is dropout, is added to the residual stream. */
struct branch {
    uint64_t layer;
    uint32_t site;
    enum slot product, gain; /* gain: of the norm behind it */
    struct operand x;
    const struct after_act *after;
};

/* With a norm behind: the product into after->x, its norm into m->branch, own rows. Collective. */
static enum err normed_branch(struct model *m, const struct rows *r, const struct branch *br)
{
    struct linear l = model_linear(m, br->layer, br->product);
    TRY(linear_forward_divided(m, &l, r, br->x, NULL, br->after->x, NULL));
    kern_rmsnorm_forward(m->k, own_count(r), m->conf.hidden, br->after->x, model_weight(m, br->layer, br->gain),
                         gain_offset(m), (float)m->conf.norm_eps, m->branch, NUM_F32, br->after->rstd + r->own.lo);
    return OK;
}

/* out = residual + branch. */
static enum err branch_forward(struct model *m, const struct rows *r, const struct micro *b, const struct branch *br,
                               const float *residual, float *out, const struct gemm_then *then)
{
    double p = m->dropping ? m->conf.resid_dropout : 0.0;
    bool normed = m->conf.norms != NORMS_BEFORE;
    struct linear l = model_linear(m, br->layer, br->product);
    if (p == 0.0 && !normed) {
        return linear_forward_divided(m, &l, r, br->x, residual, out, then);
    }
    if (normed) {
        TRY(normed_branch(m, r, br));
    } else {
        TRY(linear_forward_divided(m, &l, r, br->x, NULL, m->branch, NULL));
    }
    if (p > 0.0) {
        drop_rows(m, r, b, br->site, p, m->branch, residual, out);
    } else {
        kern_add(m->k, own_count(r) * m->conf.hidden, residual, m->branch, out);
    }
    return OK;
}

static enum err attention_norm(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a)
{
    return branch_input(m, r, layer, SLOT_NORM1_GAIN, a->x, a->n1, a->mean1, a->rstd1);
}

/* Queries or keys: the product, their norm, the rotation. Without a norm between, the product rotates. */
struct turned {
    enum slot product, gain;
    uint64_t heads;
    void *raw, *out; /* raw: where to keep what the product gave; NULL: nowhere */
    uint64_t ld;     /* of out */
    float *rstd;
};

static void project_turned(struct model *m, const struct rows *r, uint64_t layer, struct operand x,
                           const struct turned *t)
{
    struct linear l = model_linear(m, layer, t->product);
    bool turns = model_conf_rotates(&m->conf, layer), normed = m->conf.qk_norm != QK_NORM_NONE;
    uint64_t norms = qk_norms(m, t->heads), cols = t->heads * m->conf.head_dim;
    void *raw = t->raw != NULL ? t->raw : t->out;
    uint64_t ld = t->raw != NULL ? cols : t->ld;
    struct rope rope = { 0 };
    if (turns) {
        rope = attend_rope(m, r, layer, t->heads, false);
    }
    const struct gemm_then then = { .kind = GEMM_THEN_ROPE, .rope = &rope };
    linear_forward(m, &l, r->count, x, raw, m->kept, ld, turns && !normed ? &then : NULL);
    if (normed) {
        kern_headnorm_forward(m->k, r->count, norms, cols / norms, raw, m->kept, ld, model_weight(m, layer, t->gain),
                              gain_offset(m), (float)m->conf.norm_eps, t->out, m->kept, t->ld, t->rstd);
    }
    if (normed && turns) {
        kern_rope(m->k, r->count, t->out, m->kept, t->ld, &rope);
    }
}

static void project(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a)
{
    uint64_t kv_cols = m->kv_cols;
    struct linear v = model_linear(m, layer, SLOT_V);
    struct operand x = branch_operand(m, a->x, a->n1);
    /* first is 0 unless a cache is being extended */
    void *keys = num_at_mut(a->kv, m->kept, r->first * 2 * kv_cols), *values = num_at_mut(keys, m->kept, kv_cols);
    project_turned(m, r, layer, x,
                   &(struct turned){ SLOT_Q, SLOT_Q_GAIN, m->heads, a->q_raw, a->q, m->q_cols, a->q_rstd });
    project_turned(m, r, layer, x,
                   &(struct turned){ SLOT_K, SLOT_K_GAIN, m->kv_heads, a->k_raw, keys, 2 * kv_cols, a->k_rstd });
    linear_forward(m, &v, r->count, x, values, m->kept, 2 * kv_cols, NULL);
}

/* From the first norm to x1, and where it can be to the second norm. */
static enum err attention_forward(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                                  const struct layer_act *a)
{
    const struct branch branch = { layer, 2 * (uint32_t)layer + SITE_ATTENTION, SLOT_OUT, SLOT_AFTER1_GAIN,
                                   kept(m, a->att), &a->after1 };
    const struct gemm_then norm = second_norm(m, layer, a);
    TRY(attention_norm(m, r, layer, a));
    project(m, r, layer, a);
    TRY(attend_forward(m, r, layer, a));
    return branch_forward(m, r, b, &branch, a->x, a->x1, norm_follows(m) ? &norm : NULL);
}

static enum gemm_then_kind activation_kind(const struct model *m)
{
    bool gated = m->conf.gated;
    switch (m->conf.activation) {
    case ACTIVATION_GELU_TANH: return gated ? GEMM_THEN_GEGLU : GEMM_THEN_GELU;
    case ACTIVATION_GELU: BUG_IF(gated); return GEMM_THEN_GELU_ERF;
    case ACTIVATION_SILU: break;
    }
    BUG_IF(!gated);
    return GEMM_THEN_SWIGLU;
}

/* From x1 (of a parallel residual: x) to what the activation function takes and, with `act`, gives; normed: n2 is
 * there. */
static enum err mlp_forward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a,
                            bool normed, bool act)
{
    struct linear up = model_linear(m, layer, SLOT_UP);
    const float *from = m->conf.parallel_residual ? a->x : a->x1;
    struct operand x = branch_operand(m, from, a->n2);
    const struct gemm_then activation = { .kind = activation_kind(m), .y = m->act_ffn, .gate = a->gate };
    if (!normed) {
        TRY(branch_input(m, r, layer, SLOT_NORM2_GAIN, from, a->n2, a->mean2, a->rstd2));
    }
    if (m->conf.gated) {
        struct linear gate = model_linear(m, layer, SLOT_GATE);
        linear_forward(m, &gate, r->count, x, a->gate, m->kept, m->ffn, NULL);
    }
    linear_forward(m, &up, r->count, x, a->up, m->kept, m->ffn, act ? &activation : NULL);
    return OK;
}

static struct branch mlp_branch(const struct model *m, uint64_t layer, const struct layer_act *a)
{
    return (struct branch){ layer, 2 * (uint32_t)layer + SITE_MLP, SLOT_DOWN, SLOT_AFTER2_GAIN, f32(m->act_ffn),
                            &a->after2 };
}

static enum err layer_forward(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                              const struct layer_act *a)
{
    const struct branch branch = mlp_branch(m, layer, a);
    TRY(attention_forward(m, r, b, layer, a));
    TRY(mlp_forward(m, r, layer, a, norm_follows(m), true));
    return branch_forward(m, r, b, &branch, a->x1, a[1].x, NULL);
}

enum err recompute_mlp(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                       const struct layer_act *a)
{
    bool all = m->shape.recompute == RECOMPUTE_FULL, after = all && m->conf.norms != NORMS_BEFORE;
    const struct branch branch = mlp_branch(m, layer, a);
    if (all) {
        TRY(attention_forward(m, r, b, layer, a));
    }
    if (m->shape.recompute != RECOMPUTE_NONE) {
        TRY(mlp_forward(m, r, layer, a, all && norm_follows(m), after));
    }
    return after ? normed_branch(m, r, &branch) : OK;
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
    if (m->conf.embed_scale != 1.0) {
        kern_scale(m->k, own_count(r) * hidden, x, (float)m->conf.embed_scale);
    }
    if (m->dropping && m->conf.embd_dropout > 0.0) {
        drop_rows(m, r, b, SITE_EMBED, m->conf.embd_dropout, x, NULL, x);
    }
    return OK;
}

static enum err embedding(struct model *m, const struct rows *r, const struct micro *b, float *x)
{
    uint32_t token = model_bucket(m, 0, SLOT_EMBED);
    uint32_t position = m->conf.learned_positions ? model_bucket(m, 0, SLOT_POSITIONS) : token;
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
