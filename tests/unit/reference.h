/* The decoder once more, in double and as plainly as it can be written: the judge of model/. It reads whole tensors as
 * Hugging Face stores them and takes of the registry only which tensor fills a slot; it knows nothing of boxes,
 * kernels, segments or units, and uses libm. One sequence at a time. */
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

/* y[out] += W x for columns [first, first + out) of a stored matrix; see struct family_desc.in_out. */
static inline void ref_linear(const struct reference *r, uint64_t layer, enum slot slot, enum slot bias, uint64_t first,
                              uint64_t in, uint64_t out, const double *x, double *y)
{
    const struct param *p = &r->reg->list[registry_find(r->reg, layer, slot)->param];
    const double *w = ref_weight(r, layer, slot), *b = ref_weight(r, layer, bias);
    bool in_out = family_desc(r->c->family)->in_out;
    for (uint64_t o = 0; o < out; o++) {
        double sum = b != NULL ? b[first + o] : 0.0;
        for (uint64_t i = 0; i < in; i++) {
            sum += x[i] * (in_out ? w[i * p->shape[1] + first + o] : w[(first + o) * p->shape[1] + i]);
        }
        y[o] = sum;
    }
}

static inline void ref_norm(const struct reference *r, uint64_t layer, enum slot gain, enum slot bias, const double *x,
                            double *y)
{
    const double *g = ref_weight(r, layer, gain), *b = ref_weight(r, layer, bias);
    uint64_t n = r->c->hidden;
    bool centred = family_desc(r->c->family)->layer_norm;
    double mean = 0.0, square = 0.0;
    for (uint64_t i = 0; centred && i < n; i++) {
        mean += x[i] / (double)n;
    }
    for (uint64_t i = 0; i < n; i++) {
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    }
    for (uint64_t i = 0; i < n; i++) {
        y[i] = (x[i] - mean) / sqrt(square + r->c->norm_eps) * g[i] + (b != NULL ? b[i] : 0.0);
    }
}

static inline void ref_rotate(const struct reference *r, double *x, uint64_t heads, uint64_t position)
{
    uint64_t d = r->c->head_dim, half = d / 2;
    for (uint64_t h = 0; h < heads; h++) {
        for (uint64_t i = 0; i < half; i++) {
            double angle = (double)position * pow(r->c->rope_theta, -2.0 * (double)i / (double)d);
            double a = x[h * d + i], b = x[h * d + half + i];
            x[h * d + i] = a * cos(angle) - b * sin(angle);
            x[h * d + half + i] = b * cos(angle) + a * sin(angle);
        }
    }
}

static inline void ref_attend(const struct reference *r, uint64_t t, const double *q, double k[][REF_N],
                              double v[][REF_N], double *out)
{
    uint64_t d = r->c->head_dim, group = r->c->heads / r->c->kv_heads;
    for (uint64_t h = 0; h < r->c->heads; h++) {
        double score[REF_T], sum = 0.0;
        uint64_t at = h / group * d;
        for (uint64_t j = 0; j <= t; j++) {
            score[j] = 0.0;
            for (uint64_t i = 0; i < d; i++) {
                score[j] += q[h * d + i] * k[j][at + i];
            }
            score[j] = exp(score[j] / sqrt((double)d));
            sum += score[j];
        }
        for (uint64_t i = 0; i < d; i++) {
            out[h * d + i] = 0.0;
            for (uint64_t j = 0; j <= t; j++) {
                out[h * d + i] += score[j] / sum * v[j][at + i];
            }
        }
    }
}

static inline void ref_mlp(const struct reference *r, uint64_t layer, const double *x, double *out)
{
    double gate[REF_N], up[REF_N];
    uint64_t n = r->c->ffn;
    ref_linear(r, layer, SLOT_UP, SLOT_UP_BIAS, 0, r->c->hidden, n, x, up);
    if (family_desc(r->c->family)->gated) {
        ref_linear(r, layer, SLOT_GATE, SLOT_COUNT - 1, 0, r->c->hidden, n, x, gate);
    }
    for (uint64_t i = 0; i < n; i++) {
        if (family_desc(r->c->family)->gated) {
            up[i] *= gate[i] / (1.0 + exp(-gate[i]));
        } else {
            up[i] = 0.5 * up[i] * (1.0 + tanh(sqrt(2.0 / M_PI) * (up[i] + 0.044715 * up[i] * up[i] * up[i])));
        }
    }
    ref_linear(r, layer, SLOT_DOWN, SLOT_DOWN_BIAS, 0, n, r->c->hidden, up, out);
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

static inline void ref_layer(const struct reference *r, uint64_t layer, uint64_t length, double x[][REF_N])
{
    static double q[REF_T][REF_N], k[REF_T][REF_N], v[REF_T][REF_N];
    uint64_t hidden = r->c->hidden, qn = r->c->heads * r->c->head_dim, kvn = r->c->kv_heads * r->c->head_dim;
    bool fused = ref_weight(r, layer, SLOT_K) == ref_weight(r, layer, SLOT_Q); /* one tensor: queries, keys, values */
    double n[REF_N], att[REF_N], add[REF_N];
    for (uint64_t t = 0; t < length; t++) {
        ref_norm(r, layer, SLOT_NORM1_GAIN, SLOT_NORM1_BIAS, x[t], n);
        ref_linear(r, layer, SLOT_Q, SLOT_Q_BIAS, 0, hidden, qn, n, q[t]);
        ref_linear(r, layer, SLOT_K, SLOT_K_BIAS, fused ? qn : 0, hidden, kvn, n, k[t]);
        ref_linear(r, layer, SLOT_V, SLOT_V_BIAS, fused ? qn + kvn : 0, hidden, kvn, n, v[t]);
        if (!family_desc(r->c->family)->learned_positions) {
            ref_rotate(r, q[t], r->c->heads, t);
            ref_rotate(r, k[t], r->c->kv_heads, t);
        }
    }
    for (uint64_t t = 0; t < length; t++) {
        ref_attend(r, t, q[t], k, v, att);
        ref_linear(r, layer, SLOT_OUT, SLOT_OUT_BIAS, 0, qn, hidden, att, add);
        ref_drop(r, 2 * layer + 1, r->c->resid_dropout, t, add);
        for (uint64_t i = 0; i < hidden; i++) {
            x[t][i] += add[i];
        }
        ref_norm(r, layer, SLOT_NORM2_GAIN, SLOT_NORM2_BIAS, x[t], n);
        ref_mlp(r, layer, n, add);
        ref_drop(r, 2 * layer + 2, r->c->resid_dropout, t, add);
        for (uint64_t i = 0; i < hidden; i++) {
            x[t][i] += add[i];
        }
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
        ref_norm(r, 0, SLOT_FINAL_GAIN, SLOT_FINAL_BIAS, x[t], n);
        for (uint64_t o = 0; o < r->c->vocab; o++) {
            double logit = 0.0;
            for (uint64_t i = 0; i < hidden; i++) {
                logit += n[i] * head[o * hidden + i];
            }
            sum += exp(logit);
            aim = o == (uint64_t)target[t] ? logit : aim;
        }
        total += log(sum) - aim;
        *counted += 1;
    }
    return total;
}

#endif
