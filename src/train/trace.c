/* Why this exists: "the weights differ after step 3" says nothing about the cause. The sums here are order-free and
 * keyed by logical coordinates, so two layouts can be compared entry by entry in the order in which a step computes
 * them; the first that differs is where the fault is. */
#include "train/trace.h"

#include "train/optimizer.h"

enum err trace_open(struct trace *t, const struct model_conf *c)
{
    struct registry r;
    const struct share all = share_all(c->layers);
    TRY(registry_init(&r, c, &all));
    *t = (struct trace){ .layers = (uint32_t)c->layers, .params = r.count };
    registry_release(&r);
    void *mem;
    TRY(mem_alloc(&mem, t->layers + 1u + 2u * (size_t)t->params, sizeof(uint64_t)));
    t->layer = mem;
    t->gradient = t->layer + t->layers + 1;
    t->weight = t->gradient + t->params;
    return OK;
}

void trace_close(struct trace *t)
{
    free(t->layer);
    *t = (struct trace){ 0 };
}

void trace_clear(struct trace *t)
{
    memset(t->layer, 0, (t->layers + 1u + 2u * (size_t)t->params) * sizeof(uint64_t));
}

void trace_gradients(struct trace *t, const struct holdings *h)
{
    for (uint32_t i = 0; i < h->reg->shard_count; i++) {
        const struct shard *s = &h->reg->shards[i];
        const struct holding *own = &h->of[s->bucket];
        const struct box_map map = registry_map(h->reg, s);
        struct piece at = holdings_piece(s, own->slice);
        if (at.begin < at.end && optimizer_counts(h, s)) {
            t->gradient[s->param] += kern_hash_i64(h->kern, at.end - at.begin,
                                                   own->g + (s->offset + at.begin - own->g_at.lo), &map, at.begin);
        }
    }
}

enum err trace_finish(struct trace *t, const struct holdings *h, const uint64_t *weights)
{
    memcpy(t->weight, weights, t->params * sizeof(uint64_t));
    return comm_sum_i64(h->ranks->all, (int64_t *)t->layer, t->layers + 1u + (uint64_t)t->params);
}

/* Gradients in the order in which the backward pass completes them: last tensors first. */
static bool gradient_differs(const struct trace *a, const struct trace *b, const struct registry *r, char where[256])
{
    for (uint32_t i = a->params; i-- > 0;) {
        if (a->gradient[i] != b->gradient[i]) {
            snprintf(where, 256, "the gradient of %s (backward)", r->list[i].name);
            return true;
        }
    }
    return false;
}

enum trace_part trace_differs(const struct trace *a, const struct trace *b, const struct registry *r, char where[256])
{
    for (uint32_t i = 0; i <= a->layers; i++) {
        if (a->layer[i] != b->layer[i]) {
            if (i == 0) {
                snprintf(where, 256, "the output of the embedding (forward)");
            } else {
                snprintf(where, 256, "the output of layer %u (forward)", i - 1);
            }
            return TRACE_FORWARD;
        }
    }
    if (gradient_differs(a, b, r, where)) {
        return TRACE_BACKWARD;
    }
    for (uint32_t i = 0; i < a->params; i++) {
        if (a->weight[i] != b->weight[i]) {
            snprintf(where, 256, "%s (update)", r->list[i].name);
            return TRACE_UPDATE;
        }
    }
    return TRACE_SAME;
}
