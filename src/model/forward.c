/* Why this exists: the forward pass of the one decoder, in the order a reader expects: embedding, then per layer norm,
 * projections, rotary embedding, attention, output + residual, norm, feed-forward + residual, then the final norm.
 * Row-parallel products (attention output, feed-forward down) sum in tp_grain segments; column-parallel ones in one. */
#include "model/model_int.h"

static void norm_forward(struct model *m, uint64_t rows, const float *gain, const float *bias, const float *x, float *y,
                         float *mean, float *rstd)
{
    float eps = (float)m->conf.norm_eps;
    if (m->desc->layer_norm) {
        kern_layernorm_forward(m->k, rows, m->conf.hidden, x, gain, bias, eps, y, mean, rstd);
    } else {
        kern_rmsnorm_forward(m->k, rows, m->conf.hidden, x, gain, eps, y, rstd);
    }
}

static void rotate(struct model *m, const struct span *s, float *x, uint64_t ld, uint64_t heads)
{
    if (m->desc->learned_positions) {
        return;
    }
    struct rope r = { m->rope_cos, m->rope_sin, heads, m->conf.head_dim, s->first, s->length, false };
    kern_rope(m->k, span_rows(s), x, ld, &r);
}

struct attention sequence_attention(const struct model *m, const struct span *s, const struct layer_act *a, uint64_t i)
{
    const struct model_conf *c = &m->conf;
    uint64_t q_cols = c->heads * c->head_dim, kv_cols = c->kv_heads * c->head_dim, row = i * s->length;
    const float *keys = a->kv + row * 2 * kv_cols; /* from position 0, also when s->first is not */
    return (struct attention){
        .heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->head_dim,
        .first = s->first, .rows = s->length,
        .scale = 1.0f / __builtin_sqrtf((float)c->head_dim),
        .q = a->q + row * q_cols, .k = keys, .v = keys + kv_cols,
        .ldq = q_cols, .ldk = 2 * kv_cols,
        .o = a->att + row * q_cols, .ldo = q_cols,
        .lse = a->lse != NULL ? a->lse + row * c->heads : NULL,
    };
}

static void attention_forward(struct model *m, const struct span *s, uint64_t layer, const struct layer_act *a)
{
    const struct model_conf *c = &m->conf;
    uint64_t q_cols = c->heads * c->head_dim, kv_cols = c->kv_heads * c->head_dim;
    struct linear q = model_linear(m, layer, SLOT_Q), k = model_linear(m, layer, SLOT_K),
                  v = model_linear(m, layer, SLOT_V);
    uint64_t rows = span_rows(s);
    float *kv = a->kv + s->first * 2 * kv_cols; /* first is 0 unless a cache is being extended */
    linear_forward(m, &q, rows, a->n1, 1, a->q, q_cols, NULL);
    linear_forward(m, &k, rows, a->n1, 1, kv, 2 * kv_cols, NULL);
    linear_forward(m, &v, rows, a->n1, 1, kv + kv_cols, 2 * kv_cols, NULL);
    rotate(m, s, a->q, q_cols, c->heads);
    rotate(m, s, kv, 2 * kv_cols, c->kv_heads);
    for (uint64_t i = 0; i < s->sequences; i++) {
        const struct attention att = sequence_attention(m, s, a, i);
        kern_attention_forward(m->k, &att);
    }
}

static void mlp_forward(struct model *m, uint64_t rows, uint64_t layer, const struct layer_act *a, float *out)
{
    uint64_t ffn = m->conf.ffn;
    struct linear up = model_linear(m, layer, SLOT_UP), down = model_linear(m, layer, SLOT_DOWN);
    linear_forward(m, &up, rows, a->n2, 1, a->up, ffn, NULL);
    if (m->desc->gated) {
        struct linear gate = model_linear(m, layer, SLOT_GATE);
        linear_forward(m, &gate, rows, a->n2, 1, a->gate, ffn, NULL);
        kern_swiglu_forward(m->k, rows * ffn, a->gate, a->up, m->act_ffn);
    } else {
        kern_gelu_forward(m->k, rows * ffn, a->up, m->act_ffn);
    }
    linear_forward(m, &down, rows, m->act_ffn, m->shape.grain, out, m->conf.hidden, a->x1);
}

static void layer_forward(struct model *m, const struct span *s, uint64_t layer)
{
    const struct layer_act *a = &m->act[layer];
    uint64_t rows = span_rows(s);
    norm_forward(m, rows, model_weight(m, layer, SLOT_NORM1_GAIN), model_weight(m, layer, SLOT_NORM1_BIAS), a->x, a->n1,
                 a->mean1, a->rstd1);
    attention_forward(m, s, layer, a);
    struct linear out = model_linear(m, layer, SLOT_OUT);
    linear_forward(m, &out, rows, a->att, m->shape.grain, a->x1, m->conf.hidden, a->x);
    norm_forward(m, rows, model_weight(m, layer, SLOT_NORM2_GAIN), model_weight(m, layer, SLOT_NORM2_BIAS), a->x1,
                 a->n2, a->mean2, a->rstd2);
    mlp_forward(m, rows, layer, a, m->act[layer + 1].x);
}

void model_forward(struct model *m, const struct span *s, const int32_t *token)
{
    uint64_t rows = span_rows(s), layers = m->conf.layers;
    kern_embed_forward(m->k, rows, m->conf.hidden, token, model_weight(m, 0, SLOT_EMBED),
                       model_weight(m, 0, SLOT_POSITIONS), s->first, s->length, m->act[0].x);
    for (uint64_t layer = 0; layer < layers; layer++) {
        layer_forward(m, s, layer);
    }
    norm_forward(m, rows, model_weight(m, 0, SLOT_FINAL_GAIN), model_weight(m, 0, SLOT_FINAL_BIAS), m->act[layers].x,
                 m->final_norm, m->final_mean, m->final_rstd);
}

void model_logits(struct model *m, uint64_t first_row, uint64_t rows)
{
    struct linear head = model_head(m);
    linear_forward(m, &head, rows, m->final_norm + first_row * m->conf.hidden, 1, m->logits, m->vocab_padded, NULL);
}
