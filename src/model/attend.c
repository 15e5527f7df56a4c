/* Why this exists: attention of every sequence of a call. On a rank that has all positions it is one call of kern/ per
 * sequence. Ranks that share sequences gather keys and values - backward also queries, output gradients and row sums -
 * and each computes the outputs, query gradients and key gradients of its own positions over all others, in the order
 * that one rank would use.
 *
 * Invariant: chunk j of a rank is rows [j n, (j + 1) n) of its part of a sequence; its positions are
 * context_chunk(.., j). */
#include "model/model_int.h"

#include "base/fmath.h"

static uint64_t chunk_rows(const struct model *m)
{
    return m->length / m->chunks_of_sequence;
}

static struct order_range chunk_of(const struct model *m, uint32_t rank, uint32_t j)
{
    return context_chunk(m->shape.seq_length, m->shape.grad_unit, m->place.cp, rank, j);
}

/* Where the configuration says 1 / sqrt(head_dim) it is computed in fp32, each operation rounded. */
static float score_scale(const struct model_conf *c)
{
    double root = fmath_sqrt((double)c->head_dim);
    return c->attention_scale == 1 / root ? 1.0f / __builtin_sqrtf((float)c->head_dim) : (float)c->attention_scale;
}

static struct attention describe(const struct model *m, uint64_t layer, uint64_t rows)
{
    return (struct attention){
        .heads = m->heads, .kv_heads = m->kv_heads, .head_dim = m->conf.head_dim, .rows = rows,
        .scale = score_scale(&m->conf), .cap = (float)m->conf.attention_cap,
        .window = model_conf_windowed(&m->conf, layer) ? m->conf.window : 0, .type = m->kept,
        .ldq = m->q_cols, .ldk = 2 * m->kv_cols, .ldo = m->q_cols,
    };
}

struct rope attend_rope(const struct model *m, const struct rows *r, uint64_t layer, uint64_t heads, bool inverse)
{
    const struct model_conf *c = &m->conf;
    const struct rope_table *t = c->has_local_rope && model_conf_windowed(c, layer) ? &m->local_rope : &m->rope;
    return (struct rope){ .cos_table = t->cos, .sin_table = t->sin, .heads = heads, .head_dim = c->head_dim,
                          .rotary = c->rotary_dim, .first = r->first, .period = r->length, .inverse = inverse };
}

/* Sequence i of the call, all of whose positions are here. */
static struct attention whole(const struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a,
                              uint64_t i)
{
    uint64_t row = i * r->length;
    struct attention at = describe(m, layer, r->length);
    at.first = r->first;
    at.q = num_at(a->q, m->kept, row * m->q_cols);
    at.k = num_at(a->kv, m->kept, row * 2 * m->kv_cols); /* from position 0, also when r->first is not */
    at.v = num_at(at.k, at.type, m->kv_cols);
    at.o = num_at_mut(a->att, m->kept, row * m->q_cols);
    at.lse = a->lse != NULL ? a->lse + row * m->heads : NULL;
    return at;
}

/* ---- ranks that share a sequence ---- */

void attend_layout(struct model *m, struct arena *a)
{
    uint64_t t = m->shape.seq_length, q = m->q_cols, kv = 2 * m->kv_cols, widest = q > kv ? q : kv;
    struct context *x = &m->ctx;
    if (m->place.cp == 1) {
        return;
    }
    x->gathered = arena_take(a, mem_mul(t, widest), sizeof(float));
    x->kv = arena_take(a, mem_mul(t, kv), num_bytes(m->kept));
    if (m->shape.mode == MODEL_TRAIN) {
        x->q = arena_take(a, mem_mul(t, q), num_bytes(m->kept));
        x->d_o = arena_take(a, mem_mul(t, q), sizeof(float));
        x->dq = arena_take(a, mem_mul(t, q), sizeof(float));
        x->dkv = arena_take(a, mem_mul(t, kv), sizeof(float));
        x->lse = arena_take(a, mem_mul(t, m->heads), sizeof(float));
        x->dot = arena_take(a, mem_mul(t, m->heads), sizeof(float));
    }
}

/* Rows of all positions of one sequence, in position order, from every rank's rows [first, first + local length)[cols]
 * of x. */
static enum err gather_rows(struct model *m, struct operand x, uint64_t first, uint64_t cols, void *out)
{
    uint64_t n = chunk_rows(m), row_bytes = cols * num_bytes(x.type);
    TRY(comm_gather(m->place.cp_group, (const char *)x.p + first * row_bytes, m->length * row_bytes, m->ctx.gathered));
    const char *from = m->ctx.gathered;
    for (uint32_t rank = 0; rank < m->place.cp; rank++) {
        for (uint32_t j = 0; j < m->chunks_of_sequence; j++, from += n * row_bytes) {
            memcpy((char *)out + chunk_of(m, rank, j).lo * row_bytes, from, n * row_bytes);
        }
    }
    return OK;
}

/* [chunks][heads][rows of a chunk] of every rank -> [heads][T]. */
static enum err gather_heads(struct model *m, const float *mine, float *out)
{
    uint64_t n = chunk_rows(m), t = m->shape.seq_length;
    TRY(comm_gather(m->place.cp_group, mine, m->length * m->heads * sizeof(float), m->ctx.gathered));
    const float *from = m->ctx.gathered;
    for (uint32_t rank = 0; rank < m->place.cp; rank++) {
        for (uint32_t j = 0; j < m->chunks_of_sequence; j++) {
            for (uint64_t h = 0; h < m->heads; h++, from += n) {
                memcpy(out + h * t + chunk_of(m, rank, j).lo, from, n * sizeof(float));
            }
        }
    }
    return OK;
}

static enum err shared_forward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a,
                               uint64_t i)
{
    uint64_t n = chunk_rows(m);
    TRY(gather_rows(m, kept(m, a->kv), i * r->length, 2 * m->kv_cols, m->ctx.kv));
    for (uint32_t j = 0; j < m->chunks_of_sequence; j++) {
        uint64_t row = i * r->length + j * n;
        struct attention at = describe(m, layer, n);
        at.first = chunk_of(m, m->place.cp_rank, j).lo;
        at.q = num_at(a->q, m->kept, row * m->q_cols);
        at.k = m->ctx.kv;
        at.v = num_at(at.k, at.type, m->kv_cols);
        at.o = num_at_mut(a->att, m->kept, row * m->q_cols);
        at.lse = a->lse != NULL ? a->lse + row * m->heads : NULL;
        kern_attention_forward(m->k, &at);
    }
    return OK;
}

enum err attend_forward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a)
{
    for (uint64_t i = 0; i < r->sequences; i++) {
        if (m->place.cp > 1) {
            TRY(shared_forward(m, r, layer, a, i));
            continue;
        }
        const struct attention at = whole(m, r, layer, a, i);
        kern_attention_forward(m->k, &at);
    }
    return OK;
}

/* Everything the backward pass of sequence i needs of the other ranks. */
static enum err gather_backward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a,
                                uint64_t i)
{
    uint64_t n = chunk_rows(m), row = i * r->length;
    for (uint32_t j = 0; j < m->chunks_of_sequence; j++) {
        struct attention at = describe(m, layer, n);
        at.o = num_at_mut(a->att, m->kept, (row + j * n) * m->q_cols);
        kern_attention_row_dot(m->k, &at, m->d_att + (row + j * n) * m->q_cols, m->row_dot + j * n * m->heads);
    }
    TRY(gather_heads(m, m->row_dot, m->ctx.dot));
    TRY(gather_heads(m, a->lse + row * m->heads, m->ctx.lse));
    TRY(gather_rows(m, kept(m, a->q), row, m->q_cols, m->ctx.q));
    TRY(gather_rows(m, f32(m->d_att), row, m->q_cols, m->ctx.d_o));
    return gather_rows(m, kept(m, a->kv), row, 2 * m->kv_cols, m->ctx.kv);
}

static enum err shared_backward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a,
                                uint64_t i)
{
    uint64_t n = chunk_rows(m), kv_cols = 2 * m->kv_cols;
    struct context *x = &m->ctx;
    TRY(gather_backward(m, r, layer, a, i));
    struct attention at = describe(m, layer, m->shape.seq_length);
    at.q = x->q;
    at.k = x->kv;
    at.v = num_at(x->kv, m->kept, m->kv_cols);
    at.lse = x->lse;
    const struct attention_grad g = { x->d_o, x->dq, x->dkv, x->dkv + m->kv_cols, x->dot };
    for (uint32_t j = 0; j < m->chunks_of_sequence; j++) {
        struct order_range own = chunk_of(m, m->place.cp_rank, j);
        uint64_t row = i * r->length + j * n;
        const struct attention_part part = { own.lo, own.hi, own.lo, own.hi };
        kern_attention_backward_part(m->k, &at, &g, &part);
        memcpy(m->dq + row * m->q_cols, x->dq + own.lo * m->q_cols, n * m->q_cols * sizeof(float));
        memcpy(m->dkv + row * kv_cols, x->dkv + own.lo * kv_cols, n * kv_cols * sizeof(float));
    }
    return OK;
}

static void rotate_back(struct model *m, const struct rows *r, uint64_t layer)
{
    if (model_conf_rotates(&m->conf, layer)) {
        struct rope rope = attend_rope(m, r, layer, m->heads, true);
        kern_rope(m->k, r->count, m->dq, NUM_F32, m->q_cols, &rope);
        rope.heads = m->kv_heads;
        kern_rope(m->k, r->count, m->dkv, NUM_F32, 2 * m->kv_cols, &rope);
    }
}

enum err attend_backward(struct model *m, const struct rows *r, uint64_t layer, const struct layer_act *a)
{
    for (uint64_t i = 0; i < r->sequences; i++) {
        if (m->place.cp > 1) {
            TRY(shared_backward(m, r, layer, a, i));
            continue;
        }
        uint64_t row = i * r->length;
        const struct attention at = whole(m, r, layer, a, i);
        float *dkv = m->dkv + row * 2 * m->kv_cols;
        const struct attention_grad g = { m->d_att + row * m->q_cols, m->dq + row * m->q_cols, dkv, dkv + m->kv_cols,
                                          m->row_dot };
        kern_attention_backward(m->k, &at, &g);
    }
    rotate_back(m, r, layer);
    return OK;
}
