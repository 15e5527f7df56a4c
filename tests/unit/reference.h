/* The decoder once more, in double and as plainly as it can be written: the judge of model/. It reads whole tensors as
 * Hugging Face stores them and takes of the registry only where in them a slot lies; it knows nothing of kernels,
 * segments or units, and uses libm. One sequence at a time. */
#ifndef TESTS_UNIT_REFERENCE_H
#define TESTS_UNIT_REFERENCE_H

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "model/registry.h"

#define REF_T 16  /* longest sequence */
#define REF_N 128 /* widest row */

struct reference {
    const struct model_conf *c;
    const struct registry *reg;
    const double *w;        /* all logical tensors */
    const uint64_t *offset; /* of each of them in w */
    uint64_t seed, sample;  /* of dropout: the sequence's number in the run */
};

static inline const double *ref_weight(const struct reference *r, uint64_t layer, enum slot slot)
{
    const struct shard *s = registry_find(r->reg, layer, slot);
    return s != NULL ? r->w + r->offset[s->param] : NULL;
}

/* Element i of a tensor's part that fills a slot. */
static inline double ref_element(const struct box_map *m, const double *w, uint64_t i)
{
    return w[m->first + i / m->cols * m->ld + i % m->cols];
}

/* y[out] = W x + b, of the part of a stored matrix that fills the slot; see struct family_desc.in_out. */
static inline void ref_linear(const struct reference *r, uint64_t layer, enum slot slot, enum slot bias, uint64_t in,
                              uint64_t out, const double *x, double *y)
{
    const struct shard *s = registry_find(r->reg, layer, slot), *of_bias = registry_find(r->reg, layer, bias);
    const double *w = ref_weight(r, layer, slot), *b = ref_weight(r, layer, bias);
    const struct box_map map = registry_map(r->reg, s);
    struct box_map bias_map = map;
    if (b != NULL) {
        bias_map = registry_map(r->reg, of_bias);
    }
    bool in_out = family_desc(r->c->family)->in_out;
    for (uint64_t o = 0; o < out; o++) {
        double sum = b != NULL ? ref_element(&bias_map, b, o) : 0.0;
        for (uint64_t i = 0; i < in; i++) {
            sum += x[i] * ref_element(&map, w, in_out ? i * out + o : o * in + i);
        }
        y[o] = sum;
    }
}

/* Norm of n numbers; slot + 1 is the bias where norms are centred. */
static inline void ref_norm(const struct reference *r, uint64_t layer, enum slot gain, uint64_t n, const double *x,
                            double *y)
{
    bool centred = r->c->norm == NORM_LAYER;
    const double *g = ref_weight(r, layer, gain), *b = centred ? ref_weight(r, layer, (enum slot)(gain + 1)) : NULL;
    double mean = 0.0, square = 0.0, offset = r->c->gain_offset ? 1.0 : 0.0;
    for (uint64_t i = 0; centred && i < n; i++) {
        mean += x[i] / (double)n;
    }
    for (uint64_t i = 0; i < n; i++) {
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    }
    double root = sqrt(square + r->c->norm_eps);
    for (uint64_t i = 0; i < n; i++) {
        y[i] = (x[i] - mean) / root * (offset + g[i]) + (b != NULL ? b[i] : 0.0);
    }
}

static inline void ref_rotate(const struct reference *r, uint64_t layer, double *x, uint64_t heads, uint64_t position)
{
    uint64_t d = r->c->head_dim, n = r->c->rotary_dim, half = n / 2;
    bool local = r->c->has_local_rope && model_conf_windowed(r->c, layer);
    double theta = local ? r->c->local_rope.theta : r->c->rope.theta;
    for (uint64_t h = 0; h < heads && model_conf_rotates(r->c, layer); h++) {
        for (uint64_t i = 0; i < half; i++) {
            double angle = (double)position * pow(theta, -2.0 * (double)i / (double)n);
            double a = x[h * d + i], b = x[h * d + half + i];
            x[h * d + i] = a * cos(angle) - b * sin(angle);
            x[h * d + half + i] = b * cos(angle) + a * sin(angle);
        }
    }
}

/* Queries or keys of a token, ready for attention. */
static inline void ref_turned(const struct reference *r, uint64_t layer, enum slot slot, uint64_t heads, uint64_t t,
                              const double *n, double *out)
{
    uint64_t d = r->c->head_dim;
    enum slot gain = slot == SLOT_Q ? SLOT_Q_GAIN : SLOT_K_GAIN;
    ref_linear(r, layer, slot, slot == SLOT_Q ? SLOT_Q_BIAS : SLOT_K_BIAS, r->c->hidden, heads * d, n, out);
    for (uint64_t h = 0; h < heads && r->c->qk_norm == QK_NORM_HEAD; h++) {
        ref_norm(r, layer, gain, d, out + h * d, out + h * d);
    }
    if (r->c->qk_norm == QK_NORM_ALL) {
        ref_norm(r, layer, gain, heads * d, out, out);
    }
    ref_rotate(r, layer, out, heads, t);
}

static inline double ref_cap(double x, double cap)
{
    return cap > 0.0 ? cap * tanh(x / cap) : x;
}

static inline void ref_attend(const struct reference *r, uint64_t layer, uint64_t t, const double *q,
                              double k[][REF_N], double v[][REF_N], double *out)
{
    uint64_t d = r->c->head_dim, group = r->c->heads / r->c->kv_heads, window = r->c->window;
    uint64_t first = model_conf_windowed(r->c, layer) && t + 1 > window ? t + 1 - window : 0;
    for (uint64_t h = 0; h < r->c->heads; h++) {
        double score[REF_T], sum = 0.0;
        uint64_t at = h / group * d;
        for (uint64_t j = first; j <= t; j++) {
            score[j] = 0.0;
            for (uint64_t i = 0; i < d; i++) {
                score[j] += q[h * d + i] * k[j][at + i];
            }
            score[j] = exp(ref_cap(score[j] * r->c->attention_scale, r->c->attention_cap));
            sum += score[j];
        }
        for (uint64_t i = 0; i < d; i++) {
            out[h * d + i] = 0.0;
            for (uint64_t j = first; j <= t; j++) {
                out[h * d + i] += score[j] / sum * v[j][at + i];
            }
        }
    }
}

static inline double ref_activation(const struct reference *r, double x)
{
    switch (r->c->activation) {
    case ACTIVATION_GELU_TANH: return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACTIVATION_GELU: return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case ACTIVATION_SILU: break;
    }
    return x / (1.0 + exp(-x));
}

static inline void ref_mlp(const struct reference *r, uint64_t layer, const double *x, double *out)
{
    double gate[REF_N], up[REF_N];
    uint64_t n = r->c->ffn;
    ref_linear(r, layer, SLOT_UP, SLOT_UP_BIAS, r->c->hidden, n, x, up);
    if (r->c->gated) {
        ref_linear(r, layer, SLOT_GATE, SLOT_GATE_BIAS, r->c->hidden, n, x, gate);
    }
    for (uint64_t i = 0; i < n; i++) {
        up[i] = r->c->gated ? ref_activation(r, gate[i]) * up[i] : ref_activation(r, up[i]);
    }
    ref_linear(r, layer, SLOT_DOWN, SLOT_DOWN_BIAS, n, r->c->hidden, up, out);
}

/* Dropout of position t's row at one site of the model: 0 for the embedding, 2 l + 1 after the attention of layer l,
 * 2 l + 2 after its feed-forward. */
static inline void ref_drop(const struct reference *r, uint64_t site, double p, uint64_t t, double *x)
{
    struct rng_block block = { { 0 } };
    for (uint64_t i = 0; i < r->c->hidden && p > 0.0; i++) {
        if (i % 4 == 0) {
            block = rng_at(r->seed, RNG_DROPOUT, r->sample * 65536 + site, t * 4294967296u + i / 4);
        }
        x[i] = (double)block.word[i % 4] < floor(p * 4294967296.0) ? 0.0 : x[i] * (double)(float)(1.0 / (1.0 - p));
    }
}

/* What a branch takes of the residual stream. */
static inline void ref_before(const struct reference *r, uint64_t layer, enum slot gain, const double *x, double *n)
{
    if (r->c->norms == NORMS_AFTER) {
        memcpy(n, x, r->c->hidden * sizeof(double));
    } else {
        ref_norm(r, layer, gain, r->c->hidden, x, n);
    }
}

/* What a branch adds to position t of the residual stream. */
static inline void ref_after(const struct reference *r, uint64_t layer, enum slot gain, uint64_t site, uint64_t t,
                             double *add, double *x)
{
    if (r->c->norms != NORMS_BEFORE) {
        ref_norm(r, layer, gain, r->c->hidden, add, add);
    }
    ref_drop(r, site, r->c->resid_dropout, t, add);
    for (uint64_t i = 0; i < r->c->hidden; i++) {
        x[i] += add[i];
    }
}

static inline void ref_layer(const struct reference *r, uint64_t layer, uint64_t length, double x[][REF_N])
{
    static double q[REF_T][REF_N], k[REF_T][REF_N], v[REF_T][REF_N];
    uint64_t hidden = r->c->hidden, qn = r->c->heads * r->c->head_dim, kvn = r->c->kv_heads * r->c->head_dim;
    double n[REF_N], att[REF_N], add[REF_N], entered[REF_N];
    for (uint64_t t = 0; t < length; t++) {
        ref_before(r, layer, SLOT_NORM1_GAIN, x[t], n);
        ref_turned(r, layer, SLOT_Q, r->c->heads, t, n, q[t]);
        ref_turned(r, layer, SLOT_K, r->c->kv_heads, t, n, k[t]);
        ref_linear(r, layer, SLOT_V, SLOT_V_BIAS, hidden, kvn, n, v[t]);
    }
    for (uint64_t t = 0; t < length; t++) {
        memcpy(entered, x[t], sizeof(entered));
        ref_attend(r, layer, t, q[t], k, v, att);
        ref_linear(r, layer, SLOT_OUT, SLOT_OUT_BIAS, qn, hidden, att, add);
        ref_after(r, layer, SLOT_AFTER1_GAIN, 2 * layer + 1, t, add, x[t]);
        ref_before(r, layer, SLOT_NORM2_GAIN, r->c->parallel_residual ? entered : x[t], n);
        ref_mlp(r, layer, n, add);
        ref_after(r, layer, SLOT_AFTER2_GAIN, 2 * layer + 2, t, add, x[t]);
    }
}

/* Sum of the losses of the counted tokens of one sequence; *counted is increased by their number. */
static inline double ref_loss(const struct reference *r, uint64_t length, const int32_t *token, const int32_t *target,
                              uint64_t *counted)
{
    static double x[REF_T][REF_N];
    const double *embed = ref_weight(r, 0, SLOT_EMBED), *positions = ref_weight(r, 0, SLOT_POSITIONS);
    const double *head = ref_weight(r, 0, SLOT_HEAD);
    double n[REF_N], total = 0.0;
    uint64_t hidden = r->c->hidden;
    for (uint64_t t = 0; t < length; t++) {
        for (uint64_t i = 0; i < hidden; i++) {
            x[t][i] = embed[(uint64_t)token[t] * hidden + i] + (positions != NULL ? positions[t * hidden + i] : 0.0);
            x[t][i] *= (double)(float)r->c->embed_scale;
        }
        ref_drop(r, 0, r->c->embd_dropout, t, x[t]);
    }
    for (uint64_t layer = 0; layer < r->c->layers; layer++) {
        ref_layer(r, layer, length, x);
    }
    head = head != NULL ? head : embed;
    for (uint64_t t = 0; t < length; t++) {
        if (target[t] < 0) {
            continue;
        }
        double sum = 0.0, aim = 0.0;
        ref_norm(r, 0, SLOT_FINAL_GAIN, hidden, x[t], n);
        for (uint64_t o = 0; o < r->c->vocab; o++) {
            double logit = 0.0;
            for (uint64_t i = 0; i < hidden; i++) {
                logit += n[i] * head[o * hidden + i];
            }
            logit = ref_cap(logit, r->c->final_cap);
            sum += exp(logit);
            aim = o == (uint64_t)target[t] ? logit : aim;
        }
        total += log(sum) - aim;
        *counted += 1;
    }
    return total;
}

#endif
