/* Private to model/: the instance, its activations and the view of a weight as a linear map.
 *
 * Sizes. R: rows of a call (sequences x local length). "Own" rows are those between the products that this rank keeps:
 * all of them, or with sequence parallelism its part [own.lo, own.hi) of them. C hidden size; Q, K, F, V: this rank's
 * share of query columns, key columns, feed-forward width and padded vocabulary. */
#ifndef MODEL_MODEL_INT_H
#define MODEL_MODEL_INT_H

#include "model/model.h"

/* Rows of logits computed at once: bounds the buffer to this many rows of the vocabulary; changes no bit. */
#define HEAD_ROWS_MAX 512u

/* The norm behind a branch (NORMS_AFTER, NORMS_BOTH; else NULL). */
struct after_act {
    float *x;    /* [own][C] what the branch gave */
    float *rstd; /* [R], own rows set */
};

/* What one layer's forward leaves for its backward. With RECOMPUTE_SELECTIVE layers share one n1 (which is also n2),
 * gate and up, with RECOMPUTE_FULL everything but x. Arrays without a type are numbers of m->kept. With NORMS_AFTER the
 * branches take x and x1 themselves: n1 and n2 are NULL. */
struct layer_act {
    float *x;             /* [own][C] input of the layer (residual stream) */
    void *n1;             /* [R][C] first norm */
    float *mean1, *rstd1; /* [R], own rows set; mean only with LayerNorm */
    void *q_raw, *k_raw;  /* [R][Q], [R][K] before their norms; NULL: there are none, or no backward pass */
    float *q_rstd, *k_rstd; /* [R][norms of a row]; NULL: there are none */
    void *q;              /* [R][Q] */
    void *kv;             /* [R][2 K]: keys, then values; MODEL_INFER: the cache [positions][2 K] */
    void *att;            /* [R][Q] attention output */
    float *lse;           /* [sequences][chunks][H][rows of a chunk] */
    struct after_act after1;
    float *x1;            /* [own][C] after attention */
    void *n2;             /* [R][C] second norm */
    float *mean2, *rstd2;
    struct after_act after2;
    void *gate;           /* [R][F], gated families */
    void *up;             /* [R][F] */
};

/* One activation set of a model chunk. */
struct act_set {
    struct layer_act *layer; /* [layers of the chunk + 1]; the last has only x: the output */
    float *final_mean, *final_rstd; /* [R], [R]; last virtual stage */
    void *final_norm;               /* [R][C] of m->kept; likewise */
};

struct chunk {
    struct order_range layers;
    bool first, last; /* virtual stage of the whole pipeline */
    uint32_t sets;
    struct act_set *set;
};

/* Buffers of a rank that shares sequences with others: all positions of one sequence. */
struct context {
    void *gathered;          /* [cp][local length][widest] as ranks gave it */
    void *q, *kv;            /* [T][Q], [T][2 K] of m->kept in position order */
    float *d_o;              /* [T][Q] likewise */
    float *lse, *dot;        /* [H][T] */
    float *dq, *dkv;         /* [T][Q], [T][2 K] */
};

/* Cosines and sines of a kind of layers, [local length][rotary_dim / 2]. */
struct rope_table {
    float *cos, *sin;
};

/* Own rows of a call, and whose the others are. */
struct rows {
    uint64_t count, length; /* all rows; those of one sequence */
    struct order_range own;
    uint64_t sequences, first; /* first: position of row 0, MODEL_INFER */
};

struct model {
    struct model_conf conf;
    struct model_shape shape;
    struct model_place place;
    const struct family_desc *desc;
    struct kern *k;
    struct registry reg;
    struct model_storage at;
    /* this rank's shares */
    uint64_t heads, kv_heads, q_cols, kv_cols, ffn, vocab_padded;
    uint32_t grain;      /* segments of a sum here: tp_grain / tp */
    enum num kept;       /* how forward passes keep what products take: bf16 or fp32 */
    uint64_t length;     /* tokens of a sequence here */
    uint32_t chunks_of_sequence;
    float unit_limit, head_limit, token_limit; /* what scaled units must be below: see unit_limit_of in model.c */
    float q_limit, k_limit; /* the same of the norms of queries and keys */
    uint64_t rows, head_rows; /* most rows of one call */
    struct chunk *chunk; /* heap, [pipe.chunks] */
    struct layer_act shared; /* what layers do not have for themselves */
    int32_t *position;   /* [R]; heap */
    bool dropping;
    bool bad;
    float *window;       /* of the tensor-parallel group; without one, none */
    float *logits;       /* [head_rows][V] */
    float *capped;       /* [head_rows][V] logits after their cap, while their gradient replaces them; training */
    float *row_loss;     /* [R] */
    float *act_ffn;      /* [R][F] activation output; in backward also d of it */
    float *branch;       /* [R][C] output of a branch before dropout, or of the norm behind it; the gradient of a
                          * branch; with neither dropout nor such norms nor sequence parallelism NULL */
    float *ce;           /* [3][head_rows] maxima, targets' logits, sums; with tensor parallelism */
    /* backward only */
    float *dx[2];          /* [own][C], used alternately */
    uint32_t turn;
    float *d_out;          /* [own][C] gradient of a layer's output, which both branches of a parallel residual take */
    float *dn;             /* [R][C] */
    float *d_att;          /* [R][Q] */
    float *dq, *dkv;       /* [R][Q], [R][2 K] */
    float *row_dot;        /* [H][T] */
    float *d_gate, *d_up;  /* [R][F] */
    float *full_x, *full_mean, *full_rstd; /* [R][C], [R], [R]; with sequence parallelism */
    struct context ctx;
    struct rope_table rope, local_rope; /* local: of layers with a window where the family has a table for these */
};

/* Stretches of rows that may be one sum over units. Units are counted from the start of a sequence and none straddles
 * two: all rows are one stretch when units tile a sequence, else each sequence is one. */
struct stretches {
    uint64_t count, rows;
};

static inline struct stretches unit_stretches(const struct rows *r, uint64_t unit)
{
    bool tiles = r->length % unit == 0;
    return (struct stretches){ tiles ? 1 : r->sequences, tiles ? r->count : r->length };
}

/* 2^grad_scale_log2, what a unit's sum is multiplied by before it becomes an integer. */
static inline float grad_scale(const struct model *m)
{
    return (float)((int64_t)1 << m->shape.grad_scale_log2);
}

/* Tokens of a unit of the head's weight gradient. */
static inline uint64_t head_unit(const struct model *m)
{
    return m->shape.grad_unit < ORDER_HEAD_UNIT ? m->shape.grad_unit : ORDER_HEAD_UNIT;
}

static inline uint64_t own_count(const struct rows *r)
{
    return r->own.hi - r->own.lo;
}

/* What norms add to their gains. */
static inline float gain_offset(const struct model *m)
{
    return m->conf.gain_offset ? 1.0f : 0.0f;
}

/* Norms of a row of queries or keys that has so many heads here: one a head, or one of all. */
static inline uint64_t qk_norms(const struct model *m, uint64_t heads)
{
    return m->conf.qk_norm == QK_NORM_ALL ? 1 : heads;
}

/* The rows of a call with so many sequences, and which of them are this rank's own. */
struct rows model_rows(const struct model *m, uint64_t sequences);

/* ---- weights as linear maps (linear.c) ---- */

/* y = x W^T + bias, from `in` to `out` numbers, both as held here. in_out: element (o, i) lies at w[i * ld + o], else
 * at w[o * ld + i]. */
struct linear {
    const float *w;
    int64_t *g;
    uint64_t ld, in, out;
    bool in_out;
    const float *bias; /* NULL: none */
    int64_t *bias_grad;
    float limit;   /* of the units of its gradients */
    bool bias_replicated; /* the bias belongs to all tensor-parallel ranks: each sums its columns of the gradient */
};

struct linear model_linear(const struct model *m, uint64_t layer, enum slot slot);
const float *model_weight(const struct model *m, uint64_t layer, enum slot slot); /* NULL: none */
int64_t *model_grad(const struct model *m, uint64_t layer, enum slot slot);
/* The head's weight: lm_head, or the embedding when tied. */
struct linear model_head(const struct model *m);
uint32_t model_head_bucket(const struct model *m);
uint32_t model_bucket(const struct model *m, uint64_t layer, enum slot slot);

/* Rows of numbers that a product takes. */
struct operand {
    const void *p;
    enum num type;
};

static inline struct operand f32(const float *p)
{
    return (struct operand){ p, NUM_F32 };
}

/* What a forward pass kept. */
static inline struct operand kept(const struct model *m, const void *p)
{
    return (struct operand){ p, m->kept };
}

/* What a branch takes: its norm n or, where the norm is behind it, the residual stream x. */
static inline struct operand branch_operand(const struct model *m, const float *x, const void *n)
{
    return m->conf.norms != NORMS_AFTER ? kept(m, n) : f32(x);
}

/* y[rows][ldy] = x W^T + bias, of numbers of y_type; the sum over `in` is one chain. `then`: done to finished rows;
 * NULL: nothing. */
void linear_forward(struct model *m, const struct linear *l, uint64_t rows, struct operand x, void *y,
                    enum num y_type, uint64_t ldy, const struct gemm_then *then);
/* A product whose summed dimension is divided over the tensor-parallel ranks: out[own][C] = residual + (x W^T + bias).
 * `then` only on a rank that has all of it. Collective. */
MUST_USE enum err linear_forward_divided(struct model *m, const struct linear *l, const struct rows *r,
                                         struct operand x, const float *residual, float *out,
                                         const struct gemm_then *then);
/* A gradient that flows back through several maps with one input: dx = sum over segments of the chains of the parts. */
struct linear_dy {
    const struct linear *l;
    const float *dy;
    uint64_t ldy;
};
void linear_backward_input(struct model *m, const struct linear_dy *parts, uint32_t count, uint64_t rows,
                           uint64_t segments, float *dx);
/* The same when `out` is divided over the tensor-parallel ranks: dx[own][C]. Collective. */
MUST_USE enum err linear_backward_divided(struct model *m, const struct linear_dy *parts, uint32_t count,
                                          const struct rows *r, float *dx);
/* Weight and bias gradients over units of `unit` tokens. */
void linear_backward_weight(struct model *m, const struct linear *l, const struct rows *r, uint64_t unit,
                            struct operand x, const float *dy, uint64_t ldy);

/* ---- rows over the tensor-parallel ranks (rows.c) ---- */

/* Bounds of the ranks' own rows in elements of `cols`, [tp + 1]. */
void own_bounds(const struct model *m, const struct rows *r, uint64_t cols, uint64_t *bounds);
/* With sequence parallelism: every rank's own rows of buf[rows][cols] on every rank. Else nothing. Collective. */
MUST_USE enum err gather_own(struct model *m, const struct rows *r, void *buf, enum num type, uint64_t cols);
/* Columns of the replicated parameters whose gradient this rank sums. */
struct order_range own_columns(const struct model *m);
/* Add own rows of x to place.trace[entry], when there is one. */
void trace_rows(struct model *m, const struct rows *r, const struct micro *b, uint64_t entry, const float *x);
/* Dropout of own rows at one site: y = residual + dropped x (residual NULL: without). */
void drop_rows(struct model *m, const struct rows *r, const struct micro *b, uint32_t site, double p, const float *x,
               const float *residual, float *y);
enum { SITE_EMBED = 0, SITE_ATTENTION = 1, SITE_MLP = 2 }; /* of layer l: 2 l + this */

/* ---- attention (attend.c) ---- */

/* q, kv -> att of every sequence; collective over the context-parallel group. */
MUST_USE enum err attend_forward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a);
/* m->d_att -> m->dq, m->dkv, rotated back. Collective likewise. */
MUST_USE enum err attend_backward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a);
void attend_layout(struct model *m, struct arena *a);
/* How a layer rotates `heads` heads from position r->first on; for layers that do. */
struct rope attend_rope(const struct model *m, const struct rows *r, uint64_t layer, uint64_t heads, bool inverse);

/* ---- the passes ---- */

/* Embedding (first virtual stage), layers, final norm (last). Collective. */
MUST_USE enum err model_forward(struct model *m, struct chunk *c, struct act_set *s, const struct rows *r,
                                const struct micro *b);
/* Compute again what layer `layer` did not keep for its feed-forward half, or for its attention half (both, for the
 * former, with RECOMPUTE_FULL). Collective. */
MUST_USE enum err recompute_mlp(struct model *m, const struct rows *r, const struct micro *b, uint64_t layer,
                                const struct layer_act *a);
MUST_USE enum err recompute_attention(struct model *m, const struct rows *r, uint64_t layer,
                                      const struct layer_act *a);
/* Back through the final norm (last virtual stage; from m->dn), layers, embedding (first). Collective. */
MUST_USE enum err model_backward(struct model *m, struct chunk *c, struct act_set *s, const struct rows *r,
                                 const struct micro *b);

/* ---- the head (head.c) ---- */

void head_layout(struct model *m, struct arena *a);
/* Cross entropy of all rows; with `backward` also m->dn (own rows) and the head's gradient. Collective. */
MUST_USE enum err head_all(struct model *m, const struct act_set *s, const struct rows *r, const int32_t *target,
                           bool backward);
/* Final norm output rows -> m->logits, padded columns included. One rank. */
void head_logits(struct model *m, const struct act_set *s, uint64_t first_row, uint64_t rows);

/* For the flight record: what this rank is at. */
static inline void model_phase(const struct model *m, enum comm_phase phase, const struct micro *b, uint64_t layer)
{
    if (m->place.world != NULL) {
        comm_phase(m->place.world, phase, b->step, (uint32_t)layer);
    }
}

/* Hooks of the storage. */
static inline enum err bucket_use(struct model *m, uint32_t bucket, bool grad)
{
    return m->at.use != NULL ? m->at.use(m->at.arg, bucket, grad) : OK;
}

static inline enum err bucket_done(struct model *m, uint32_t bucket, bool grad)
{
    return m->at.done != NULL ? m->at.done(m->at.arg, bucket, grad) : OK;
}

#endif
