/* Why this exists: layers dealt out evenly are not work dealt out evenly: the head of a small model costs as much as
 * several layers, and the pipeline runs at the pace of its busiest stage. */
#include "train/balance.h"

static double stage_work(const struct pipe *p, uint32_t stage, double head)
{
    double work = stage + 1 == p->stages ? head : 0.0;
    for (uint32_t chunk = 0; chunk < p->chunks; chunk++) {
        struct order_range layers = pipe_layers(p, stage, chunk);
        work += (double)(layers.hi - layers.lo);
    }
    return work;
}

/* The busiest stage over the mean; work in units of one layer. */
static double worst_of(const struct pipe *p, double head)
{
    double worst = 0.0;
    for (uint32_t s = 0; s < p->stages; s++) {
        double work = stage_work(p, s, head);
        worst = work > worst ? work : worst;
    }
    return worst * (double)p->stages / ((double)p->layers + head);
}

bool balance_pipe(const struct pipe *p, const struct model_conf *c, uint64_t seq_length, struct balance *out)
{
    double head = model_head_flops(c) / model_layer_flops(c, seq_length);
    if (p->stages < 2 || p->chunks > 1 || p->stages > sizeof(out->counts) / sizeof(out->counts[0])) {
        return false;
    }
    out->worst = out->best_worst = worst_of(p, head);
    for (uint64_t last = 1; last + p->stages - 1 <= p->layers; last++) { /* the others share the rest evenly */
        uint64_t counts[sizeof(out->counts) / sizeof(out->counts[0])];
        for (uint32_t s = 0; s + 1 < p->stages; s++) {
            struct order_range part = part_range(p->layers - last, p->stages - 1, s);
            counts[s] = part.hi - part.lo;
        }
        counts[p->stages - 1] = last;
        struct pipe other = *p;
        other.counts = counts;
        double worst = worst_of(&other, head);
        if (worst < out->best_worst) {
            out->best_worst = worst;
            memcpy(out->counts, counts, p->stages * sizeof(counts[0]));
        }
    }
    return out->best_worst < out->worst;
}
