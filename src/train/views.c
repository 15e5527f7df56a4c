/* Why this exists: loading, saving and resharding all speak of boxes of logical tensors; this is where a rank's storage
 * becomes such boxes. */
#include "train/views.h"

#define VIEW_NAME_BYTES (REGISTRY_NAME_BYTES + 16)

enum err views_init(struct views *v, const struct registry *r, size_t prefixes)
{
    void *mem;
    *v = (struct views){ 0 };
    TRY(mem_alloc(&mem, prefixes * r->count + 1, sizeof(struct ckpt_tensor)));
    v->list = mem;
    TRY(mem_alloc(&mem, prefixes * r->shard_count, sizeof(struct ckpt_box)));
    v->boxes = mem;
    TRY(mem_alloc(&mem, prefixes * r->count, VIEW_NAME_BYTES));
    v->names = mem;
    return OK;
}

void views_release(struct views *v)
{
    free(v->list);
    free(v->boxes);
    free(v->names);
    *v = (struct views){ 0 };
}

/* Boxes of one tensor: its shards stand together. Returns how many. */
static size_t add_boxes(struct ckpt_box *out, const struct registry *r, uint32_t param, const struct kept *kept,
                        bool (*counts)(const struct holdings *h, const struct shard *s), const struct holdings *h)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->shard_count; i++) {
        const struct shard *s = &r->shards[i];
        if (s->param != param || (counts != NULL && !counts(h, s))) {
            continue;
        }
        const struct kept *k = &kept[s->bucket];
        struct piece at = holdings_piece(s, k->at);
        if (at.begin < at.end) {
            const struct view_box box = registry_box(r, s);
            out[n++] = (struct ckpt_box){
                box.row0, box.rows, box.col0, box.cols, at.begin, at.end, k->data + (s->offset + at.begin - k->at.lo)
            };
        }
    }
    return n;
}

void views_add(struct views *v, const struct registry *r, const char *prefix, const struct kept *kept,
               bool (*counts)(const struct holdings *h, const struct shard *s), const struct holdings *h)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct param *p = &r->list[i];
        char *name = v->names + v->count * VIEW_NAME_BYTES;
        struct ckpt_box *boxes = v->boxes + v->boxes_count;
        size_t n = add_boxes(boxes, r, i, kept, counts, h);
        snprintf(name, VIEW_NAME_BYTES, "%s%s", prefix, p->name);
        v->list[v->count++] = (struct ckpt_tensor){
            .name = name, .rank = p->rank, .shape = { p->shape[0], p->rank == 2 ? p->shape[1] : 0 }, .boxes = boxes,
            .boxes_count = n, .row_length = p->view_cols,
            .by_id = p->slot == SLOT_EMBED || p->slot == SLOT_HEAD,
        };
        v->boxes_count += n;
    }
}

void views_add_tied_head(struct views *v, const struct registry *r)
{
    for (uint32_t i = 0; i < r->count && r->tied_head != NULL; i++) {
        const struct param *p = &r->list[i];
        if (p->slot == SLOT_EMBED) {
            v->list[v->count++] = (struct ckpt_tensor){
                .name = r->tied_head, .rank = p->rank, .shape = { p->shape[0], p->shape[1] }, .optional = true,
                .same_as = p->name, .by_id = true,
            };
        }
    }
}
