/* Why this exists: the life of a model - describe it, lay out its memory (measured first, then backed: the plan is
 * the allocation), start its weights - and its three uses: a training micro-step, an evaluation, and inference
 * with a cache. */
#include "model/model_int.h"

#include "base/fmath.h"
#include "part/order.h"

enum err model_new(struct model **out, const struct model_conf *c, const struct model_shape *shape, struct kern *k)
{
    void *mem;
    *out = NULL;
    BUG_IF(shape->sequences == 0 || shape->grad_unit == 0 || shape->grad_unit > shape->seq_length);
    TRY(mem_alloc(&mem, 1, sizeof(struct model)));
    struct model *m = mem;
    m->conf = *c;
    m->shape = *shape;
    m->desc = family_desc(c->family);
    m->k = k;
    m->vocab_padded = order_pad_vocab(c->vocab);
    m->rows = shape->sequences * shape->seq_length;
    m->head_rows = m->rows < HEAD_ROWS_MAX ? m->rows : HEAD_ROWS_MAX;
    enum err err;
    TRY_OUT(registry_init(&m->reg, c));
    TRY_OUT(mem_alloc(&mem, c->layers + 1, sizeof(struct layer_act)));
    m->act = mem;
    *out = m;
    return OK;
out:
    model_free(m);
    return err;
}

void model_free(struct model *m)
{
    if (m != NULL) {
        registry_release(&m->reg);
        free(m->act);
        free(m);
    }
}

static float *take(struct arena *a, uint64_t rows, uint64_t cols)
{
    return arena_take(a, mem_mul(rows, cols), sizeof(float));
}

/* Activations of one layer; the cache of MODEL_INFER is per layer and laid out apart. */
static void layout_layer(const struct model *m, struct arena *a, struct layer_act *l)
{
    const struct model_conf *c = &m->conf;
    bool train = m->shape.mode == MODEL_TRAIN;
    l->n1 = take(a, m->rows, c->hidden);
    l->mean1 = m->desc->layer_norm ? take(a, m->rows, 1) : NULL;
    l->rstd1 = take(a, m->rows, 1);
    l->q = take(a, m->rows, c->heads * c->head_dim);
    l->kv = m->shape.mode != MODEL_INFER ? take(a, m->rows, 2 * c->kv_heads * c->head_dim) : NULL;
    l->att = take(a, m->rows, c->heads * c->head_dim);
    l->lse = train ? take(a, m->rows, c->heads) : NULL;
    l->x1 = take(a, m->rows, c->hidden);
    l->n2 = train ? take(a, m->rows, c->hidden) : l->n1;
    l->mean2 = m->desc->layer_norm ? take(a, m->rows, 1) : NULL;
    l->rstd2 = take(a, m->rows, 1);
    l->gate = m->desc->gated ? take(a, m->rows, c->ffn) : NULL;
    l->up = take(a, m->rows, c->ffn);
}

static void layout_backward(struct model *m, struct arena *a)
{
    const struct model_conf *c = &m->conf;
    m->dx = take(a, m->rows, c->hidden);
    m->dn = take(a, m->rows, c->hidden);
    m->d_att = take(a, m->rows, c->heads * c->head_dim);
    m->dq = take(a, m->rows, c->heads * c->head_dim);
    m->dkv = take(a, m->rows, 2 * c->kv_heads * c->head_dim);
    m->row_dot = take(a, m->shape.seq_length, c->heads);
    m->d_up = take(a, m->rows, c->ffn);
    m->d_gate = m->desc->gated ? take(a, m->rows, c->ffn) : NULL;
}

void model_layout(struct model *m, struct arena *a)
{
    const struct model_conf *c = &m->conf;
    bool train = m->shape.mode == MODEL_TRAIN;
    m->p = arena_take(a, m->reg.stored, sizeof(float));
    m->g = train ? arena_take(a, m->reg.stored, sizeof(int64_t)) : NULL;
    for (uint64_t l = 0; l < c->layers; l++) {
        if (l == 0 || train) {
            layout_layer(m, a, &m->act[l]);
            m->act[l].x = take(a, m->rows, c->hidden);
        } else {
            m->act[l] = m->act[0];
        }
        if (m->shape.mode == MODEL_INFER) {
            m->act[l].kv = take(a, m->shape.seq_length, 2 * c->kv_heads * c->head_dim);
        }
    }
    m->act[c->layers].x = train ? take(a, m->rows, c->hidden) : m->act[0].x;
    m->final_norm = take(a, m->rows, c->hidden);
    m->final_mean = m->desc->layer_norm ? take(a, m->rows, 1) : NULL;
    m->final_rstd = take(a, m->rows, 1);
    m->logits = take(a, m->head_rows, m->vocab_padded);
    m->row_loss = take(a, m->rows, 1);
    m->act_ffn = take(a, m->rows, c->ffn);
    if (train) {
        layout_backward(m, a);
    }
    if (!m->desc->learned_positions) {
        m->rope_cos = take(a, m->shape.seq_length, c->head_dim / 2);
        m->rope_sin = take(a, m->shape.seq_length, c->head_dim / 2);
    }
}

/* Angle of pair i at position t: t * theta^(-2 i / D), in double, rounded to fp32 once (Su et al., 2021). */
enum err model_ready(struct model *m)
{
    if (m->desc->learned_positions) {
        return OK;
    }
    uint64_t half = m->conf.head_dim / 2;
    for (uint64_t i = 0; i < half; i++) {
        double frequency = fmath_pow(m->conf.rope_theta, -(double)(2 * i) / (double)m->conf.head_dim);
        for (uint64_t t = 0; t < m->shape.seq_length; t++) {
            m->rope_cos[t * half + i] = (float)fmath_cos((double)t * frequency);
            m->rope_sin[t * half + i] = (float)fmath_sin((double)t * frequency);
        }
    }
    return OK;
}

const struct registry *model_registry(const struct model *m)
{
    return &m->reg;
}

const struct model_conf *model_conf(const struct model *m)
{
    return &m->conf;
}

float *model_params(struct model *m)
{
    return m->p;
}

int64_t *model_grads(struct model *m)
{
    return m->g;
}

void model_init_weights(struct model *m, uint64_t seed)
{
    double deviation = m->conf.initializer_range;
    double residual = deviation / fmath_sqrt(2.0 * (double)m->conf.layers);
    for (uint32_t i = 0; i < m->reg.count; i++) {
        const struct param *p = &m->reg.list[i];
        float *w = m->p + p->offset;
        switch (p->init) {
        case INIT_NORMAL: kern_init_normal(m->k, p->elements, w, seed, i, 0, deviation); break;
        case INIT_RESIDUAL: kern_init_normal(m->k, p->elements, w, seed, i, 0, residual); break;
        case INIT_ONES: kern_fill(m->k, p->elements, w, 1.0f); break;
        case INIT_ZEROS: kern_fill(m->k, p->elements, w, 0.0f); break;
        }
    }
}

/* ---- the head, in chunks of rows ---- */

/* Cross entropy of rows [first, first + rows); with `backward` also d of the final norm and the head's gradient. */
static void head_chunk(struct model *m, uint64_t first, uint64_t rows, const int32_t *target, bool backward,
                       uint64_t unit)
{
    model_logits(m, first, rows);
    kern_cross_entropy(m->k, rows, m->conf.vocab, m->vocab_padded, m->vocab_padded, m->shape.grain, target + first,
                       m->logits, m->row_loss + first, backward);
    if (!backward) {
        return;
    }
    struct linear head = model_head(m);
    const struct span chunk = { 1, rows, 0 };
    struct linear_dy dy = { &head, m->logits, m->vocab_padded };
    linear_backward_input(m, &dy, 1, rows, m->shape.grain, m->dn + first * m->conf.hidden);
    linear_backward_weight(m, &head, &chunk, unit < rows ? unit : rows, m->final_norm + first * m->conf.hidden,
                           m->logits, m->vocab_padded);
}

/* Chunks hold whole head units: min(grad_unit, 256) consecutive tokens of a sequence from its start. */
static void head_all(struct model *m, const struct span *s, const int32_t *target, bool backward)
{
    uint64_t unit = m->shape.grad_unit < ORDER_HEAD_UNIT ? m->shape.grad_unit : ORDER_HEAD_UNIT;
    struct stretches parts = unit_stretches(s, unit);
    uint64_t step = m->head_rows / unit * unit; /* a unit fits: grad_unit is at most seq_length */
    for (uint64_t i = 0; i < parts.count; i++) {
        for (uint64_t r = 0; r < parts.rows; r += step) {
            uint64_t rows = parts.rows - r < step ? parts.rows - r : step;
            head_chunk(m, i * parts.rows + r, rows, target, backward, unit);
        }
    }
}

static void add_losses(struct model *m, uint64_t rows, const int32_t *target, struct model_loss *loss)
{
    for (uint64_t r = 0; r < rows; r++) {
        if (target[r] >= 0) {
            loss->sum += fixed_from_loss(m->row_loss[r], &loss->undefined);
            loss->tokens++;
        }
    }
    loss->bad = loss->bad || m->bad || loss->undefined;
    m->bad = false;
}

void model_micro_step(struct model *m, uint64_t sequences, const int32_t *token, const int32_t *target,
                      struct model_loss *loss)
{
    BUG_IF(m->shape.mode != MODEL_TRAIN || sequences > m->shape.sequences);
    const struct span s = { sequences, m->shape.seq_length, 0 };
    model_forward(m, &s, token);
    head_all(m, &s, target, true);
    model_backward(m, &s, token);
    add_losses(m, span_rows(&s), target, loss);
}

void model_eval(struct model *m, uint64_t sequences, const int32_t *token, const int32_t *target,
                struct model_loss *loss, float *token_loss)
{
    BUG_IF(m->shape.mode == MODEL_INFER || sequences > m->shape.sequences);
    const struct span s = { sequences, m->shape.seq_length, 0 };
    model_forward(m, &s, token);
    head_all(m, &s, target, false);
    add_losses(m, span_rows(&s), target, loss);
    if (token_loss != NULL) {
        memcpy(token_loss, m->row_loss, span_rows(&s) * sizeof(float));
    }
}

void model_infer(struct model *m, uint64_t first, uint64_t count, const int32_t *token, bool all_rows, float *logits)
{
    BUG_IF(m->shape.mode != MODEL_INFER || count == 0 || count > m->rows || first + count > m->shape.seq_length);
    const struct span s = { 1, count, first };
    model_forward(m, &s, token);
    uint64_t from = all_rows ? 0 : count - 1;
    for (uint64_t r = from; r < count;) {
        uint64_t rows = count - r < m->head_rows ? count - r : m->head_rows;
        model_logits(m, r, rows);
        for (uint64_t i = 0; i < rows; i++) {
            memcpy(logits + (r - from + i) * m->conf.vocab, m->logits + i * m->vocab_padded,
                   m->conf.vocab * sizeof(float));
        }
        r += rows;
    }
}

double model_train_flops_per_token(const struct model_conf *c, uint64_t seq_length)
{
    double q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim);
    double hidden = (double)c->hidden, ffn = (double)c->ffn;
    double per_layer =
        hidden * (q + 2.0 * kv) + q * hidden + (family_desc(c->family)->gated ? 3.0 : 2.0) * hidden * ffn;
    double matrices = (double)c->layers * per_layer + hidden * (double)c->vocab;
    return 6.0 * matrices + 12.0 * (double)c->layers * q * ((double)seq_length + 1.0) / 2.0;
}
