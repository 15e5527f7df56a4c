/* Why this exists: the head is the widest part of the model, so it runs in chunks of rows: logits, loss and - in
 * training - their gradient, which is used up before the next chunk. The ranks of a tensor-parallel group hold a part
 * of the vocabulary each and exchange maxima and sums, never logits.
 *
 * Chunks hold whole head units: min(grad_unit, 256) consecutive tokens of a sequence from its start. */
#include "model/model_int.h"

#include "part/order.h"

void head_layout(struct model *m, struct arena *a)
{
    m->logits = arena_take(a, mem_mul(m->head_rows, m->vocab_padded), sizeof(float));
    m->capped = m->shape.mode == MODEL_TRAIN && m->conf.final_cap > 0.0
                    ? arena_take(a, mem_mul(m->head_rows, m->vocab_padded), sizeof(float)) : NULL;
    m->row_loss = arena_take(a, m->rows, sizeof(float));
    m->ce = m->place.share.tp > 1 ? arena_take(a, mem_mul(3, m->head_rows), sizeof(float)) : NULL;
}

void head_logits(struct model *m, const struct act_set *s, uint64_t first_row, uint64_t rows)
{
    struct linear head = model_head(m);
    struct operand x = kept(m, num_at(s->final_norm, m->kept, first_row * m->conf.hidden));
    linear_forward(m, &head, rows, x, m->logits, NUM_F32, m->vocab_padded, NULL);
    if (m->conf.final_cap > 0.0) {
        kern_softcap_forward(m->k, rows * m->vocab_padded, (float)m->conf.final_cap, m->logits);
    }
}

/* Losses of logits that lie divided over the tensor-parallel ranks. */
static enum err divided_loss(struct model *m, uint64_t rows, const int32_t *target, float *loss, bool backward)
{
    const struct share *s = &m->place.share;
    uint64_t first = s->tp_rank * m->vocab_padded, vocab = m->conf.vocab;
    const struct ce_part part = {
        .rows = rows, .ld = m->vocab_padded, .first = first, .padded = m->vocab_padded,
        .real = first >= vocab ? 0 : vocab - first < m->vocab_padded ? vocab - first : m->vocab_padded,
        .segments = m->grain, .target = target, .logits = m->logits,
    };
    float *max = m->ce, *x_target = m->ce + rows, *sum = m->ce + 2 * rows;
    kern_ce_max(m->k, &part, max, x_target);
    TRY(comm_max_f32(m->place.tp, max, 2 * rows));
    kern_ce_exp(m->k, &part, max, m->window);
    const struct comm_tree tree = { .rows = rows, .cols = 1, .out = sum, .ldo = 1 };
    TRY(comm_tree_sum(m->place.tp, &tree));
    kern_ce_finish(m->k, &part, max, sum, x_target, loss, backward);
    return OK;
}

/* The gradient of the final norm's output, own rows of this chunk, from that of the logits. */
static enum err input_grad(struct model *m, const struct rows *r, uint64_t first, uint64_t rows)
{
    struct linear head = model_head(m);
    struct linear_dy dy = { &head, m->logits, m->vocab_padded };
    uint64_t hidden = m->conf.hidden, bounds[ORDER_SEGMENTS_MAX + 1];
    if (m->place.tp == NULL) {
        linear_backward_input(m, &dy, 1, rows, m->grain, m->dn + first * hidden);
        return OK;
    }
    linear_backward_input(m, &dy, 1, rows, m->grain, m->window);
    own_bounds(m, r, 1, bounds);
    for (uint32_t i = 0; i <= m->place.share.tp; i++) {
        bounds[i] = bounds[i] < first ? 0 : bounds[i] - first > rows ? rows : bounds[i] - first;
    }
    bool divided = m->place.sequence_parallel;
    uint64_t skip = divided ? bounds[m->place.share.tp_rank] : 0;
    const struct comm_tree tree = { .rows = rows, .cols = hidden, .bounds = divided ? bounds : NULL,
                                    .out = m->dn + (first + skip) * hidden, .ldo = hidden };
    return comm_tree_sum(m->place.tp, &tree);
}

static enum err head_chunk(struct model *m, const struct act_set *s, const struct rows *r, struct order_range chunk,
                           const int32_t *target, bool backward)
{
    uint64_t first = chunk.lo, rows = chunk.hi - chunk.lo, unit = head_unit(m);
    bool capped = backward && m->conf.final_cap > 0.0;
    head_logits(m, s, first, rows);
    if (capped) {
        memcpy(m->capped, m->logits, rows * m->vocab_padded * sizeof(float));
    }
    if (m->place.tp == NULL) {
        kern_cross_entropy(m->k, rows, m->conf.vocab, m->vocab_padded, m->vocab_padded, m->grain, target + first,
                           m->logits, m->row_loss + first, backward);
    } else {
        TRY(divided_loss(m, rows, target + first, m->row_loss + first, backward));
    }
    if (!backward) {
        return OK;
    }
    if (capped) {
        kern_softcap_backward(m->k, rows * m->vocab_padded, (float)m->conf.final_cap, m->capped, m->logits);
    }
    TRY(input_grad(m, r, first, rows));
    struct linear head = model_head(m);
    const struct rows here = { .count = rows, .length = rows, .sequences = 1 };
    struct operand x = kept(m, num_at(s->final_norm, m->kept, first * m->conf.hidden));
    linear_backward_weight(m, &head, &here, unit < rows ? unit : rows, x, m->logits, m->vocab_padded);
    return OK;
}

static enum err head_chunks(struct model *m, const struct act_set *s, const struct rows *r, const int32_t *target,
                            bool backward)
{
    uint64_t unit = head_unit(m);
    struct stretches parts = unit_stretches(r, unit);
    uint64_t step = m->head_rows / unit * unit; /* a unit fits: grad_unit is at most the local length */
    for (uint64_t i = 0; i < parts.count && r->count > 0; i++) {
        for (uint64_t row = 0; row < parts.rows; row += step) {
            uint64_t first = i * parts.rows + row, rows = parts.rows - row < step ? parts.rows - row : step;
            TRY(head_chunk(m, s, r, (struct order_range){ first, first + rows }, target, backward));
        }
    }
    return OK;
}

enum err head_all(struct model *m, const struct act_set *s, const struct rows *r, const int32_t *target, bool backward)
{
    uint32_t bucket = model_head_bucket(m);
    TRY(bucket_use(m, bucket, backward));
    TRY(head_chunks(m, s, r, target, backward));
    return bucket_done(m, bucket, backward);
}
