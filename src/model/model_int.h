/* Private to model/: the instance, its activations and the view of a weight as a linear map. */
#ifndef MODEL_MODEL_INT_H
#define MODEL_MODEL_INT_H

#include "model/model.h"

/* Rows of logits computed at once: bounds the buffer to this many rows of the vocabulary; changes no bit. */
#define HEAD_ROWS_MAX 512u

/* What one layer's forward leaves for its backward. R = rows. */
struct layer_act {
    float *x;            /* [R][C] input of the layer (residual stream) */
    float *n1;           /* [R][C] first norm */
    float *mean1, *rstd1; /* [R]; mean only with LayerNorm */
    float *q;            /* [R][H D] */
    float *kv;           /* [R][2 G D]: keys, then values; MODEL_INFER: the cache [positions][2 G D] */
    float *att;          /* [R][H D] attention output */
    float *lse;          /* [sequences][H][T] */
    float *x1;           /* [R][C] after attention */
    float *n2;           /* [R][C] second norm */
    float *mean2, *rstd2;
    float *gate;         /* [R][F], gated families */
    float *up;           /* [R][F] */
};

struct model {
    struct model_conf conf;
    struct model_shape shape;
    const struct family_desc *desc;
    struct kern *k;
    struct registry reg;
    uint64_t vocab_padded;
    uint64_t rows; /* most rows of one call */
    uint64_t head_rows;
    float *p;
    int64_t *g;
    struct layer_act *act; /* heap, [layers + 1]; the last has only x */
    float *final_mean, *final_rstd, *final_norm; /* [R], [R], [R][C] */
    float *logits;                               /* [head_rows][vocab_padded] */
    float *row_loss;                             /* [R] */
    float *act_ffn;                              /* [R][F] activation output; in backward also d of it */
    /* backward only */
    float *dx, *dn;        /* [R][C] */
    float *d_att;          /* [R][H D] */
    float *dq, *dkv;       /* [R][H D], [R][2 G D] */
    float *row_dot;        /* [H][T] */
    float *d_gate, *d_up;  /* [R][F] */
    float *rope_cos, *rope_sin; /* [T][D/2] */
    bool bad;
};

/* Sequences under each other: rows = sequences * length, row r has position first + r mod length. */
struct span {
    uint64_t sequences, length, first;
};

static inline uint64_t span_rows(const struct span *s)
{
    return s->sequences * s->length;
}

/* Stretches of rows that may be one sum over units. Units are counted from the start of a sequence and none straddles
 * two: all rows are one stretch when units tile a sequence, else each sequence is one. */
struct stretches {
    uint64_t count, rows;
};

static inline struct stretches unit_stretches(const struct span *s, uint64_t unit)
{
    bool tiles = s->length % unit == 0;
    return (struct stretches){ tiles ? 1 : s->sequences, tiles ? span_rows(s) : s->length };
}

/* 2^grad_scale_log2, what a unit's sum is multiplied by before it becomes an integer. */
static inline float grad_scale(const struct model *m)
{
    return (float)((int64_t)1 << m->shape.grad_scale_log2);
}

/* A weight as a map from `in` to `out` numbers: y = x W^T + bias. in_out: element (o, i) lies at w[i * ld + o], else at
 * w[o * ld + i]. Parts of a fused projection are linear maps of their own. */
struct linear {
    const float *w;
    int64_t *g;
    uint64_t ld, in, out;
    bool in_out;
    const float *bias; /* NULL: none */
    int64_t *bias_grad;
};

struct linear model_linear(const struct model *m, uint64_t layer, enum slot slot);
const float *model_weight(const struct model *m, uint64_t layer, enum slot slot); /* NULL: none */
int64_t *model_grad(const struct model *m, uint64_t layer, enum slot slot);
/* The head's weight: lm_head, or the embedding when tied. */
struct linear model_head(const struct model *m);

/* y[rows][ldy] = residual + (x W^T + bias); the sum over `in` runs in `segments` equal segments and a tree. */
void linear_forward(struct model *m, const struct linear *l, uint64_t rows, const float *x, uint64_t segments, float *y,
                    uint64_t ldy, const float *residual);
/* A gradient that flows back through several maps with one input: dx = sum over segments of the chains of the parts. */
struct linear_dy {
    const struct linear *l;
    const float *dy;
    uint64_t ldy;
};
void linear_backward_input(struct model *m, const struct linear_dy *parts, uint32_t count, uint64_t rows,
                           uint64_t segments, float *dx);
/* Weight and bias gradients over units of `unit` tokens; rows are sequences of `length` tokens. */
void linear_backward_weight(struct model *m, const struct linear *l, const struct span *s, uint64_t unit,
                            const float *x, const float *dy, uint64_t ldy);

/* What kern/ is told of the attention of sequence i of the span, forward and backward. */
struct attention sequence_attention(const struct model *m, const struct span *s, const struct layer_act *a, uint64_t i);

/* Embedding, all layers and the final norm: leaves m->final_norm [R][C] and what a backward pass needs. */
void model_forward(struct model *m, const struct span *s, const int32_t *token);
/* The final norm's output rows -> logits in m->logits, padded columns included. */
void model_logits(struct model *m, uint64_t first_row, uint64_t rows);
/* Back through the final norm, all layers and the embedding: from m->dn, the gradient of the final norm's output. */
void model_backward(struct model *m, const struct span *s, const int32_t *token);

#endif
