/* Why this exists: checkpoints of every layout are the same files, so one rank writes logical tensors. They are
 * gathered one at a time: memory for one tensor, not for the model. */
#include "train/gather.h"

#include "train/cover.h"

#define GATHER_TAG 7u
#define MESSAGE_FLOATS 16384u /* messages are copied on their way, and many may be: keep them small */

struct offer {
    uint64_t count;
    struct cover_part box[COVER_RANK_BOXES_MAX];
};

/* Pieces that are not stretches of the whole tensor come from tensors that are divided by columns of the view in which
 * boxes see them. A rank that is alone puts together fused projections only: tensors of several boxes, which stand
 * together. */
void gather_layout(struct gather *g, const struct registry *r, const struct ranks *ranks, struct arena *a)
{
    uint64_t largest = 0, by_columns = 0, fused = 0;
    bool alone = comm_size(ranks->all) == 1;
    *g = (struct gather){ .ranks = ranks };
    for (uint32_t i = 0; i < r->count; i++) {
        const struct param *p = &r->list[i];
        bool columns = p->split == SPLIT_COLS || p->view_cols != p->shape[1];
        largest = p->elements > largest ? p->elements : largest;
        by_columns = columns && p->elements > by_columns ? p->elements : by_columns;
    }
    for (uint32_t i = 1; i < r->shard_count; i++) {
        uint64_t elements = r->list[r->shards[i].param].elements;
        bool again = r->shards[i].param == r->shards[i - 1].param;
        fused = again && elements > fused ? elements : fused;
    }
    if (ranks_leads(ranks)) {
        g->whole = arena_take(a, alone ? fused : largest, sizeof(float));
        g->piece = alone ? NULL : arena_take(a, by_columns, sizeof(float));
    }
    g->offers = alone ? NULL : arena_take(a, comm_size(ranks->all), sizeof(struct offer));
}

static void announce(const struct ckpt_tensor *t, struct offer *o)
{
    BUG_IF(t->boxes_count > COVER_RANK_BOXES_MAX);
    *o = (struct offer){ .count = t->boxes_count };
    for (size_t i = 0; i < t->boxes_count; i++) {
        const struct ckpt_box *b = &t->boxes[i];
        o->box[i] = (struct cover_part){ b->row0, b->rows, b->col0, b->cols, b->begin, b->end };
    }
}

/* What all ranks offer is the tensor, each element once. The same answer on every rank. */
static enum err check_cover(const struct ckpt_tensor *t, const struct offer *offers, uint32_t ranks)
{
    struct cover c;
    cover_init(&c, ckpt_rows(t), ckpt_row_length(t));
    for (uint32_t r = 0; r < ranks; r++) {
        for (uint64_t i = 0; i < offers[r].count; i++) {
            cover_add(&c, &offers[r].box[i]);
        }
    }
    if (cover_whole(&c)) {
        return OK;
    }
    return FAIL(ERR_RUN, "%s: the ranks give %llu of %llu elements%s: it is not saved | this is a bug of the program: "
                         "please report it with the configuration",
                t->name, (unsigned long long)c.elements, (unsigned long long)(c.rows * c.cols),
                c.bad ? ", some twice or none of the tensor's" : "");
}

static uint64_t message_bytes(uint64_t floats_left)
{
    return (floats_left < MESSAGE_FLOATS ? floats_left : MESSAGE_FLOATS) * sizeof(float);
}

/* Receive what rank `from` offers into its place. */
static enum err take(struct gather *g, const struct ckpt_tensor *t, uint32_t from, const struct offer *o)
{
    uint64_t ld = ckpt_row_length(t);
    for (uint64_t i = 0; i < o->count; i++) {
        struct ckpt_box b = { o->box[i].row0, o->box[i].rows, o->box[i].col0, o->box[i].cols, o->box[i].begin,
                              o->box[i].end, NULL };
        bool stretch = b.cols == ld;
        b.data = stretch ? g->whole + b.row0 * ld + b.begin : g->piece;
        for (uint64_t e = 0; e < b.end - b.begin; e += MESSAGE_FLOATS) {
            TRY(comm_recv(g->ranks->all, from, GATHER_TAG, b.data + e, message_bytes(b.end - b.begin - e)));
        }
        if (!stretch) {
            ckpt_box_store(&b, ld, g->whole);
        }
    }
    return OK;
}

static enum err give(struct gather *g, const struct ckpt_tensor *t)
{
    for (size_t i = 0; i < t->boxes_count; i++) {
        const struct ckpt_box *b = &t->boxes[i];
        for (uint64_t e = 0; e < b->end - b->begin; e += MESSAGE_FLOATS) {
            struct comm_ticket ticket = { 0 };
            TRY(comm_send(g->ranks->all, 0, GATHER_TAG, b->data + e, message_bytes(b->end - b->begin - e), &ticket));
            TRY(comm_sent(g->ranks->all, &ticket));
        }
    }
    return OK;
}

static bool is_whole(const struct ckpt_tensor *t)
{
    return t->boxes_count == 1 && t->boxes[0].end - t->boxes[0].begin == ckpt_rows(t) * ckpt_row_length(t);
}

enum err gather_tensor(struct gather *g, const struct ckpt_tensor *t, const float **values)
{
    uint32_t size = comm_size(g->ranks->all);
    *values = NULL;
    if (size > 1) {
        struct offer mine;
        announce(t, &mine);
        TRY(comm_gather(g->ranks->all, &mine, sizeof(mine), g->offers));
        TRY(check_cover(t, g->offers, size));
    }
    if (!ranks_leads(g->ranks)) {
        return give(g, t);
    }
    *values = is_whole(t) ? t->boxes[0].data : g->whole;
    for (size_t i = 0; i < t->boxes_count && !is_whole(t); i++) {
        ckpt_box_store(&t->boxes[i], ckpt_row_length(t), g->whole);
    }
    for (uint32_t r = 1; r < size; r++) {
        TRY(take(g, t, r, &g->offers[r]));
    }
    return OK;
}
