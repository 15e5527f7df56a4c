/* Why this exists: every product with a weight is one of three (forward, input gradient, weight gradient), and
 * both ways of storing a weight are the same product with other strides. The pieces given to kern_gemm are the
 * contract's orders: segments for a summed dimension that tensor parallelism may split, units for gradients. */
#include "model/model_int.h"

#include "part/order.h"

const float *model_weight(const struct model *m, uint64_t layer, enum slot slot)
{
    const struct param *p = registry_find(&m->reg, layer, slot);
    return p != NULL && m->p != NULL ? m->p + p->offset : NULL;
}

int64_t *model_grad(const struct model *m, uint64_t layer, enum slot slot)
{
    const struct param *p = registry_find(&m->reg, layer, slot);
    return p != NULL && m->g != NULL ? m->g + p->offset : NULL;
}

/* The tensor that holds `slot`, and the first output column of the slot inside it (fused projections). */
static const struct param *holder(const struct model *m, uint64_t layer, enum slot slot, enum slot fused,
                                  uint64_t *first)
{
    const struct param *p = registry_find(&m->reg, layer, slot);
    *first = 0;
    if (p == NULL && fused != slot) {
        p = registry_find(&m->reg, layer, fused);
        uint64_t q = m->conf.heads * m->conf.head_dim, kv = m->conf.kv_heads * m->conf.head_dim;
        bool is_k = slot == SLOT_K || slot == SLOT_K_BIAS;
        *first = p == NULL ? 0 : is_k ? q : q + kv;
    }
    return p;
}

static uint64_t out_size(const struct model *m, enum slot slot)
{
    const struct model_conf *c = &m->conf;
    switch (slot) {
    case SLOT_Q: return c->heads * c->head_dim;
    case SLOT_K:
    case SLOT_V: return c->kv_heads * c->head_dim;
    case SLOT_GATE:
    case SLOT_UP: return c->ffn;
    default: return c->hidden;
    }
}

static enum slot bias_slot(enum slot slot)
{
    switch (slot) {
    case SLOT_Q: return SLOT_Q_BIAS;
    case SLOT_K: return SLOT_K_BIAS;
    case SLOT_V: return SLOT_V_BIAS;
    case SLOT_OUT: return SLOT_OUT_BIAS;
    case SLOT_UP: return SLOT_UP_BIAS;
    case SLOT_DOWN: return SLOT_DOWN_BIAS;
    default: return SLOT_COUNT;
    }
}

struct linear model_linear(const struct model *m, uint64_t layer, enum slot slot)
{
    bool projection = slot == SLOT_K || slot == SLOT_V;
    uint64_t first;
    const struct param *p = holder(m, layer, slot, projection ? SLOT_Q : slot, &first);
    BUG_IF(p == NULL);
    struct linear l = { .ld = p->shape[1], .in_out = m->desc->in_out, .out = out_size(m, slot) };
    l.in = l.in_out ? p->shape[0] : p->shape[1];
    uint64_t offset = p->offset + (l.in_out ? first : first * l.ld);
    l.w = m->p + offset;
    l.g = m->g != NULL ? m->g + offset : NULL;
    enum slot bias = bias_slot(slot);
    if (bias != SLOT_COUNT) {
        const struct param *b = holder(m, layer, bias, projection ? SLOT_Q_BIAS : bias, &first);
        if (b != NULL) {
            l.bias = m->p + b->offset + first;
            l.bias_grad = m->g != NULL ? m->g + b->offset + first : NULL;
        }
    }
    return l;
}

struct linear model_head(const struct model *m)
{
    const struct param *p = registry_find(&m->reg, 0, SLOT_HEAD);
    if (p == NULL) {
        p = registry_find(&m->reg, 0, SLOT_EMBED);
    }
    return (struct linear){ .w = m->p + p->offset,
                            .g = m->g != NULL ? m->g + p->offset : NULL,
                            .ld = m->conf.hidden,
                            .in = m->conf.hidden,
                            .out = m->vocab_padded };
}

void linear_forward(struct model *m, const struct linear *l, uint64_t rows, const float *x, uint64_t segments, float *y,
                    uint64_t ldy, const float *residual)
{
    struct gemm_piece pieces[ORDER_SEGMENTS_MAX];
    for (uint32_t s = 0; s < segments; s++) {
        struct order_range r = order_segment(l->in, (uint32_t)segments, s);
        pieces[s] = (struct gemm_piece){
            .a = { x + r.lo, l->in, false },
            .b = { l->in_out ? l->w + r.lo * l->ld : l->w + r.lo, l->ld, l->in_out },
            .k = r.hi - r.lo,
            .ends_segment = true,
        };
    }
    const struct gemm_job job = {
        .m = rows, .n = l->out, .pieces = pieces, .pieces_count = (uint32_t)segments,
        .c = y, .ldc = ldy, .bias = l->bias, .residual = residual, .ldr = ldy,
    };
    kern_gemm(m->k, &job);
}

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
                .a = { parts[i].dy + r.lo, parts[i].ldy, false },
                .b = { l->in_out ? l->w + r.lo : l->w + r.lo * l->ld, l->ld, !l->in_out },
                .k = r.hi - r.lo,
                .ends_segment = i + 1 == count,
            };
        }
    }
    const struct gemm_job job = {
        .m = rows, .n = parts[0].l->in, .pieces = pieces, .pieces_count = n, .c = dx, .ldc = parts[0].l->in,
    };
    kern_gemm(m->k, &job);
}

/* Weight gradient of `rows` consecutive rows cut into units from their start. */
static void weight_grad(struct model *m, const struct linear *l, uint64_t rows, uint64_t unit, const float *x,
                        const float *dy, uint64_t ldy)
{
    struct gemm_mat by_in = { x, l->in, true }, by_out = { dy, ldy, true };
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
        .grad = l->g,
        .ldg = l->ld,
        .unit = unit,
        .grad_scale = grad_scale(m),
        .overflow = &m->bad,
    };
    kern_gemm(m->k, &job);
    if (l->bias_grad != NULL) {
        struct grad_sink sink = { l->bias_grad, unit, job.grad_scale, &m->bad };
        kern_bias_grad(m->k, rows, l->out, dy, ldy, &sink);
    }
}

void linear_backward_weight(struct model *m, const struct linear *l, const struct span *s, uint64_t unit,
                            const float *x, const float *dy, uint64_t ldy)
{
    struct stretches parts = unit_stretches(s, unit);
    for (uint64_t i = 0; i < parts.count; i++) {
        uint64_t r = i * parts.rows;
        weight_grad(m, l, parts.rows, unit, x + r * l->in, dy + r * ldy, ldy);
    }
}
