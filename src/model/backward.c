/* Why this exists: the backward pass, the mirror of forward.c. m->dx carries the gradient of the residual stream from
 * the last layer to the embedding; m->dn is the gradient of a norm's output, which each norm turns into its share of
 * m->dx. Each layer recomputes only its activation function; everything else was kept.
 *
 * Orders: input gradients of column-parallel products sum in tp_grain segments (queries, keys, values of a segment
 * in one chain; gate, then up); those of row-parallel products in one. Parameter gradients are sums over units. */
#include "model/model_int.h"

/* Through one norm of input x: from m->dn, adds the gradients of gain and bias and adds that of x to m->dx. */
static void norm_backward(struct model *m, const struct span *s, uint64_t layer, enum slot gain, enum slot bias,
                          const float *x, const float *mean, const float *rstd)
{
    uint64_t rows = span_rows(s), hidden = m->conf.hidden, unit = m->shape.grad_unit;
    struct grad_sink gain_sink = { model_grad(m, layer, gain), unit, grad_scale(m), &m->bad };
    struct grad_sink bias_sink = { model_grad(m, layer, bias), unit, grad_scale(m), &m->bad };
    const struct grad_sink *bias_or_none = bias_sink.grad != NULL ? &bias_sink : NULL;
    struct stretches parts = unit_stretches(s, unit);
    for (uint64_t i = 0; i < parts.count; i++) {
        uint64_t r = i * parts.rows;
        kern_norm_grad(m->k, parts.rows, hidden, x + r * hidden, m->desc->layer_norm ? mean + r : NULL, rstd + r,
                       m->dn + r * hidden, &gain_sink, bias_or_none);
    }
    const float *gain_weight = model_weight(m, layer, gain);
    if (m->desc->layer_norm) {
        kern_layernorm_backward(m->k, rows, hidden, x, gain_weight, mean, rstd, m->dn, m->dx);
    } else {
        kern_rmsnorm_backward(m->k, rows, hidden, x, gain_weight, rstd, m->dn, m->dx);
    }
}

/* The feed-forward half of a layer. m->act_ffn holds the gradient of the activation's output first, then that output
 * again, which the down projection's gradient needs. */
static void mlp_backward(struct model *m, const struct span *s, uint64_t layer, const struct layer_act *a)
{
    uint64_t rows = span_rows(s), ffn = m->conf.ffn, hidden = m->conf.hidden, unit = m->shape.grad_unit;
    struct linear up = model_linear(m, layer, SLOT_UP), down = model_linear(m, layer, SLOT_DOWN);
    linear_backward_input(m, &(struct linear_dy){ &down, m->dx, hidden }, 1, rows, 1, m->act_ffn);
    if (m->desc->gated) {
        struct linear gate = model_linear(m, layer, SLOT_GATE);
        kern_swiglu_backward(m->k, rows * ffn, a->gate, a->up, m->act_ffn, m->d_gate, m->d_up, m->act_ffn);
        linear_backward_weight(m, &down, s, unit, m->act_ffn, m->dx, hidden);
        linear_backward_weight(m, &gate, s, unit, a->n2, m->d_gate, ffn);
        linear_backward_weight(m, &up, s, unit, a->n2, m->d_up, ffn);
        const struct linear_dy both[] = { { &gate, m->d_gate, ffn }, { &up, m->d_up, ffn } };
        linear_backward_input(m, both, 2, rows, m->shape.grain, m->dn);
    } else {
        kern_gelu_backward(m->k, rows * ffn, a->up, m->act_ffn, m->d_up);
        kern_gelu_forward(m->k, rows * ffn, a->up, m->act_ffn);
        linear_backward_weight(m, &down, s, unit, m->act_ffn, m->dx, hidden);
        linear_backward_weight(m, &up, s, unit, a->n2, m->d_up, ffn);
        linear_backward_input(m, &(struct linear_dy){ &up, m->d_up, ffn }, 1, rows, m->shape.grain, m->dn);
    }
    norm_backward(m, s, layer, SLOT_NORM2_GAIN, SLOT_NORM2_BIAS, a->x1, a->mean2, a->rstd2);
}

/* Gradients of queries, keys and values of every sequence, rotated back. */
static void attention_core_backward(struct model *m, const struct span *s, const struct layer_act *a)
{
    const struct model_conf *c = &m->conf;
    uint64_t q_cols = c->heads * c->head_dim, kv_cols = c->kv_heads * c->head_dim;
    for (uint64_t i = 0; i < s->sequences; i++) {
        uint64_t row = i * s->length;
        const struct attention att = sequence_attention(m, s, a, i);
        float *dkv = m->dkv + row * 2 * kv_cols;
        const struct attention_grad grad = { m->d_att + row * q_cols, m->dq + row * q_cols, dkv, dkv + kv_cols,
                                             m->row_dot };
        kern_attention_backward(m->k, &att, &grad);
    }
    if (!m->desc->learned_positions) {
        struct rope r = { m->rope_cos, m->rope_sin, c->heads, c->head_dim, 0, s->length, true };
        kern_rope(m->k, span_rows(s), m->dq, q_cols, &r);
        r.heads = c->kv_heads;
        kern_rope(m->k, span_rows(s), m->dkv, 2 * kv_cols, &r);
    }
}

static void attention_backward(struct model *m, const struct span *s, uint64_t layer, const struct layer_act *a)
{
    const struct model_conf *c = &m->conf;
    uint64_t rows = span_rows(s), unit = m->shape.grad_unit;
    uint64_t q_cols = c->heads * c->head_dim, kv_cols = c->kv_heads * c->head_dim;
    struct linear out = model_linear(m, layer, SLOT_OUT);
    linear_backward_weight(m, &out, s, unit, a->att, m->dx, c->hidden);
    linear_backward_input(m, &(struct linear_dy){ &out, m->dx, c->hidden }, 1, rows, 1, m->d_att);
    attention_core_backward(m, s, a);
    struct linear q = model_linear(m, layer, SLOT_Q), k = model_linear(m, layer, SLOT_K),
                  v = model_linear(m, layer, SLOT_V);
    const struct linear_dy parts[] = {
        { &q, m->dq, q_cols },
        { &k, m->dkv, 2 * kv_cols },
        { &v, m->dkv + kv_cols, 2 * kv_cols },
    };
    for (int i = 0; i < 3; i++) {
        linear_backward_weight(m, parts[i].l, s, unit, a->n1, parts[i].dy, parts[i].ldy);
    }
    linear_backward_input(m, parts, 3, rows, m->shape.grain, m->dn);
    norm_backward(m, s, layer, SLOT_NORM1_GAIN, SLOT_NORM1_BIAS, a->x, a->mean1, a->rstd1);
}

void model_backward(struct model *m, const struct span *s, const int32_t *token)
{
    uint64_t rows = span_rows(s), layers = m->conf.layers;
    kern_fill(m->k, rows * m->conf.hidden, m->dx, 0.0f);
    norm_backward(m, s, 0, SLOT_FINAL_GAIN, SLOT_FINAL_BIAS, m->act[layers].x, m->final_mean, m->final_rstd);
    for (uint64_t layer = layers; layer-- > 0;) {
        mlp_backward(m, s, layer, &m->act[layer]);
        attention_backward(m, s, layer, &m->act[layer]);
    }
    kern_embed_grad(m->k, rows, m->conf.hidden, token, m->dx, model_grad(m, 0, SLOT_EMBED),
                    model_grad(m, 0, SLOT_POSITIONS), s->length, grad_scale(m), &m->bad);
}
