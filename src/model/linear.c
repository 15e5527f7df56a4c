/* Why this exists: every product with a weight is one of three (forward, input gradient, weight gradient), and
 * both ways of storing a weight are the same product with other strides. The pieces given to kern_gemm are the
 * contract's orders: segments for a summed dimension that tensor parallelism may split, units for gradients. A rank of
 * a tensor-parallel group holds whole subtrees of the segments' tree; the group finishes the same tree. */
#include "model/model_int.h"

#include "part/order.h"

const float *model_weight(const struct model *m, uint64_t layer, enum slot slot)
{
    const struct shard *s = registry_find(&m->reg, layer, slot);
    return s != NULL ? m->at.p[s->bucket] + s->offset : NULL;
}

int64_t *model_grad(const struct model *m, uint64_t layer, enum slot slot)
{
    const struct shard *s = registry_find(&m->reg, layer, slot);
    return s != NULL && m->at.g != NULL ? m->at.g[s->bucket] + s->offset : NULL;
}

uint32_t model_bucket(const struct model *m, uint64_t layer, enum slot slot)
{
    const struct shard *s = registry_find(&m->reg, layer, slot);
    BUG_IF(s == NULL);
    return s->bucket;
}

static enum slot bias_slot(enum slot slot)
{
    switch (slot) {
    case SLOT_Q: return SLOT_Q_BIAS;
    case SLOT_K: return SLOT_K_BIAS;
    case SLOT_V: return SLOT_V_BIAS;
    case SLOT_OUT: return SLOT_OUT_BIAS;
    case SLOT_GATE: return SLOT_GATE_BIAS;
    case SLOT_UP: return SLOT_UP_BIAS;
    case SLOT_DOWN: return SLOT_DOWN_BIAS;
    default: return SLOT_COUNT;
    }
}

struct linear model_linear(const struct model *m, uint64_t layer, enum slot slot)
{
    const struct shard *s = registry_find(&m->reg, layer, slot);
    BUG_IF(s == NULL);
    bool in_out = m->desc->in_out;
    struct linear l = {
        .w = model_weight(m, layer, slot), .g = model_grad(m, layer, slot), .ld = s->cols,
        .in = in_out ? s->rows : s->cols, .out = in_out ? s->cols : s->rows, .in_out = in_out, .limit = m->unit_limit,
    };
    enum slot bias = bias_slot(slot);
    const struct shard *b = bias != SLOT_COUNT ? registry_find(&m->reg, layer, bias) : NULL;
    if (b != NULL) {
        l.bias = model_weight(m, layer, bias);
        l.bias_grad = model_grad(m, layer, bias);
        l.bias_replicated = b->replicated;
    }
    return l;
}

static enum slot head_slot(const struct model *m)
{
    return m->conf.tied ? SLOT_EMBED : SLOT_HEAD;
}

struct linear model_head(const struct model *m)
{
    return (struct linear){ .w = model_weight(m, 0, head_slot(m)), .g = model_grad(m, 0, head_slot(m)),
                            .ld = m->conf.hidden, .in = m->conf.hidden, .out = m->vocab_padded,
                            .limit = m->head_limit };
}

uint32_t model_head_bucket(const struct model *m)
{
    return model_bucket(m, 0, head_slot(m));
}

/* ---- forward ---- */

static uint32_t forward_pieces(const struct linear *l, struct operand x, uint64_t segments, struct gemm_piece *pieces)
{
    for (uint32_t s = 0; s < segments; s++) {
        struct order_range r = order_segment(l->in, (uint32_t)segments, s);
        pieces[s] = (struct gemm_piece){
            .a = { num_at(x.p, x.type, r.lo), l->in, false, x.type },
            .b = { l->in_out ? l->w + r.lo * l->ld : l->w + r.lo, l->ld, l->in_out, NUM_F32 },
            .k = r.hi - r.lo,
            .ends_segment = true,
        };
    }
    return (uint32_t)segments;
}

void linear_forward(struct model *m, const struct linear *l, uint64_t rows, struct operand x, void *y,
                    enum num y_type, uint64_t ldy, const struct gemm_then *then)
{
    struct gemm_piece piece;
    const struct gemm_job job = {
        .m = rows, .n = l->out, .pieces = &piece, .pieces_count = forward_pieces(l, x, 1, &piece),
        .bf16 = m->shape.bf16, .c = y, .c_type = y_type, .ldc = ldy, .bias = l->bias,
        .then = then,
    };
    kern_gemm(m->k, &job);
}

/* The tree over ranks of what they have put into their windows. */
static enum err finish_tree(struct model *m, const struct rows *r, const float *bias, const float *residual, float *out)
{
    uint64_t bounds[ORDER_SEGMENTS_MAX + 1];
    own_bounds(m, r, 1, bounds);
    const struct comm_tree t = {
        .rows = r->count, .cols = m->conf.hidden, .bounds = m->place.sequence_parallel ? bounds : NULL,
        .bias = bias, .residual = residual, .out = out, .ldo = m->conf.hidden,
    };
    return comm_tree_sum(m->place.tp, &t);
}

enum err linear_forward_divided(struct model *m, const struct linear *l, const struct rows *r, struct operand x,
                                const float *residual, float *out, const struct gemm_then *then)
{
    struct gemm_piece pieces[ORDER_SEGMENTS_MAX];
    bool alone = m->place.tp == NULL;
    BUG_IF(then != NULL && !alone);
    const struct gemm_job job = {
        .m = r->count, .n = l->out, .pieces = pieces, .pieces_count = forward_pieces(l, x, m->grain, pieces),
        .bf16 = m->shape.bf16, .c = alone ? out : m->window, .ldc = l->out,
        .bias = alone ? l->bias : NULL, .residual = alone ? residual : NULL, .ldr = l->out,
        .then = then,
    };
    kern_gemm(m->k, &job);
    return alone ? OK : finish_tree(m, r, l->bias, residual, out);
}

/* ---- backward ---- */

void linear_backward_input(struct model *m, const struct linear_dy *parts, uint32_t count, uint64_t rows,
                           uint64_t segments, float *dx)
{
    struct gemm_piece pieces[GEMM_PIECES_MAX];
    uint32_t n = 0;
    for (uint32_t s = 0; s < segments; s++) {
        for (uint32_t i = 0; i < count; i++) {
            const struct linear *l = parts[i].l;
            struct order_range r = order_segment(l->out, (uint32_t)segments, s);
            BUG_IF(n == GEMM_PIECES_MAX);
            pieces[n++] = (struct gemm_piece){
                .a = { parts[i].dy + r.lo, parts[i].ldy, false, NUM_F32 },
                .b = { l->in_out ? l->w + r.lo : l->w + r.lo * l->ld, l->ld, !l->in_out, NUM_F32 },
                .k = r.hi - r.lo,
                .ends_segment = i + 1 == count,
            };
        }
    }
    const struct gemm_job job = {
        .m = rows, .n = parts[0].l->in, .pieces = pieces, .pieces_count = n, .bf16 = m->shape.bf16, .c = dx,
        .ldc = parts[0].l->in,
    };
    kern_gemm(m->k, &job);
}

enum err linear_backward_divided(struct model *m, const struct linear_dy *parts, uint32_t count, const struct rows *r,
                                 float *dx)
{
    bool alone = m->place.tp == NULL;
    linear_backward_input(m, parts, count, r->count, m->grain, alone ? dx : m->window);
    return alone ? OK : finish_tree(m, r, NULL, NULL, dx);
}

static void bias_grad(struct model *m, const struct linear *l, uint64_t rows, uint64_t unit, const float *dy,
                      uint64_t ldy)
{
    struct order_range cols = l->bias_replicated ? own_columns(m) : (struct order_range){ 0, l->out };
    struct grad_sink sink = { l->bias_grad + cols.lo, unit, grad_scale(m), l->limit, &m->bad };
    kern_bias_grad(m->k, rows, cols.hi - cols.lo, dy + cols.lo, ldy, &sink);
}

/* Weight gradient of `rows` consecutive rows cut into units from their start. */
static void weight_grad(struct model *m, const struct linear *l, uint64_t rows, uint64_t unit, struct operand x,
                        const float *dy, uint64_t ldy)
{
    struct gemm_mat by_in = { x.p, l->in, true, x.type }, by_out = { dy, ldy, true, NUM_F32 };
    struct gemm_piece piece = {
        .a = l->in_out ? by_in : by_out,
        .b = l->in_out ? by_out : by_in,
        .k = rows,
        .ends_segment = true,
    };
    const struct gemm_job job = {
        .m = l->in_out ? l->in : l->out,
        .n = l->in_out ? l->out : l->in,
        .pieces = &piece,
        .pieces_count = 1,
        .bf16 = m->shape.bf16,
        .grad = l->g,
        .ldg = l->ld,
        .unit = unit,
        .grad_scale = grad_scale(m),
        .grad_limit = l->limit,
        .overflow = &m->bad,
    };
    kern_gemm(m->k, &job);
    if (l->bias_grad != NULL) {
        bias_grad(m, l, rows, unit, dy, ldy);
    }
}

void linear_backward_weight(struct model *m, const struct linear *l, const struct rows *r, uint64_t unit,
                            struct operand x, const float *dy, uint64_t ldy)
{
    struct stretches parts = unit_stretches(r, unit);
    for (uint64_t i = 0; i < parts.count; i++) {
        uint64_t row = i * parts.rows;
        struct operand part = { num_at(x.p, x.type, row * l->in), x.type };
        weight_grad(m, l, parts.rows, unit, part, dy + row * ldy, ldy);
    }
}
