/* Why this exists: the layout is arithmetic (part/layout.h); here it becomes groups of ranks. Every rank makes the same
 * splits in the same order. */
#include "train/ranks.h"

/* First and last stage together, every other rank alone. */
static uint32_t embed_color(const struct ranks *r)
{
    struct coord at = r->at;
    bool end = at.pp == 0 || at.pp + 1 == r->layout.pp;
    if (!end) {
        return layout_rank(&r->layout, &at) + layout_world(&r->layout);
    }
    at.pp = 0;
    return layout_rank(&r->layout, &at);
}

void ranks_take_part(struct ranks *r, const struct conf *c, uint32_t parts, uint32_t part)
{
    uint64_t most = part_range(c->global_batch_size, parts, 0).hi;
    r->parts = parts;
    r->part = part;
    r->micros = (uint32_t)((most + c->micro_batch_size - 1) / c->micro_batch_size);
}

enum err ranks_open(struct ranks *r, struct comm_world *w, const struct conf *c)
{
    *r = (struct ranks){ .world = w, .layout = conf_layout(c), .pipe = conf_pipe(c), .all = comm_all(w) };
    BUG_IF(layout_world(&r->layout) != comm_size(r->all));
    r->at = layout_coord(&r->layout, comm_rank(r->all));
    ranks_take_part(r, c, r->layout.dp, r->at.dp);

    /* Ranks that differ in the axes of the group alone have the same colour: the rank of those coordinates at 0. */
    const struct coord at = r->at;
    const uint32_t tp = layout_rank(&r->layout, &(struct coord){ at.pp, at.dp, at.cp, 0 });
    const uint32_t cp = layout_rank(&r->layout, &(struct coord){ at.pp, at.dp, 0, at.tp });
    const uint32_t pp = layout_rank(&r->layout, &(struct coord){ 0, at.dp, at.cp, at.tp });
    const uint32_t data = layout_rank(&r->layout, &(struct coord){ at.pp, 0, 0, at.tp });
    TRY(comm_split(r->all, tp, "tp", &r->tp));
    TRY(comm_split(r->all, cp, "cp", &r->cp));
    TRY(comm_split(r->all, pp, "pp", &r->stages));
    TRY(comm_split(r->all, data, "dp", &r->data));
    TRY(comm_split(r->all, embed_color(r), "embed", &r->embed));
    TRY(comm_split(r->all, tp, "tp grad", &r->tp_grad));
    return comm_split(r->all, data, "dp grad", &r->data_grad);
}

static struct comm *group_or_none(struct comm *c)
{
    return comm_size(c) > 1 ? c : NULL;
}

struct model_place ranks_place(const struct ranks *r, const struct conf *c)
{
    struct model_place p = {
        .share = { .tp = r->layout.tp, .tp_rank = r->at.tp, .pipe = r->pipe, .stage = r->at.pp },
        .cp = r->layout.cp, .cp_rank = r->at.cp,
        .sequence_parallel = c->sequence_parallel && r->layout.tp > 1,
        .world = r->world, .tp = group_or_none(r->tp), .cp_group = group_or_none(r->cp),
    };
    for (uint32_t i = 0; i < r->pipe.chunks; i++) {
        p.sets[i] = pipe_sets(&r->pipe, r->at.pp, i, r->micros);
    }
    return p;
}

bool ranks_leads(const struct ranks *r)
{
    return comm_rank(r->all) == 0;
}

struct order_range ranks_samples(const struct ranks *r, const struct conf *c)
{
    return part_range(c->global_batch_size, r->parts, r->part);
}

struct order_range ranks_micro(const struct ranks *r, const struct conf *c, uint32_t k)
{
    struct order_range own = ranks_samples(r, c);
    uint64_t lo = own.lo + k * c->micro_batch_size, hi = lo + c->micro_batch_size;
    return (struct order_range){ lo < own.hi ? lo : own.hi, hi < own.hi ? hi : own.hi };
}
