/* Why this exists: between the products a rank keeps all rows or, with sequence parallelism, its part of them. The row
 * functions work on own rows; what needs all of them gathers first. A row never changes its bits by where it is
 * computed.
 *
 * Invariant: parts are part_range of the rows of the call, the same on every rank. */
#include "model/model_int.h"

#include "part/order.h"

struct rows model_rows(const struct model *m, uint64_t sequences)
{
    struct rows r = { .count = sequences * m->length, .length = m->length, .sequences = sequences };
    const struct share *s = &m->place.share;
    r.own = m->place.sequence_parallel ? part_range(r.count, s->tp, s->tp_rank) : (struct order_range){ 0, r.count };
    return r;
}

void own_bounds(const struct model *m, const struct rows *r, uint64_t cols, uint64_t *bounds)
{
    uint32_t tp = m->place.share.tp;
    for (uint32_t i = 0; i < tp; i++) {
        bounds[i] = part_range(r->count, tp, i).lo * cols;
    }
    bounds[tp] = r->count * cols;
}

enum err gather_own(struct model *m, const struct rows *r, void *buf, enum num type, uint64_t cols)
{
    uint64_t bounds[ORDER_SEGMENTS_MAX + 1];
    if (!m->place.sequence_parallel) {
        return OK;
    }
    own_bounds(m, r, cols, bounds);
    return comm_all_gather(m->place.tp, buf, num_bytes(type), bounds);
}

struct order_range own_columns(const struct model *m)
{
    return part_range(m->conf.hidden, m->place.share.tp, m->place.share.tp_rank);
}

void drop_rows(struct model *m, const struct rows *r, const struct micro *b, uint32_t site, double p, const float *x,
               const float *residual, float *y)
{
    const struct dropout d = {
        .seed = m->shape.seed, .site = site, .p = p, .first_sample = b->first_sample, .period = r->length,
        .first_row = r->own.lo, .position = m->position,
    };
    kern_dropout(m->k, own_count(r), m->conf.hidden, x, residual, y, &d);
}

void trace_rows(struct model *m, const struct rows *r, const struct micro *b, uint64_t entry, const float *x)
{
    const struct share *s = &m->place.share;
    uint64_t cols = m->conf.hidden;
    if (m->place.trace == NULL || (!m->place.sequence_parallel && s->tp_rank != 0)) {
        return;
    }
    for (uint64_t row = r->own.lo; row < r->own.hi; row++) {
        uint64_t sample = b->first_sample + row / r->length, position = (uint64_t)m->position[row];
        const struct box_map map = { (sample * m->shape.seq_length + position) * cols, cols, cols };
        m->place.trace[entry] += kern_hash(m->k, cols, x + (row - r->own.lo) * cols, &map, 0);
    }
}
