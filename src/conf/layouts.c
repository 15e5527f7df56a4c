/* Why this exists: "this cannot be split so" is half an answer; the other half is how it can. Which sizes an axis may
 * have is asked of part/ with the numbers of the configuration, one axis at a time, and the nearest layouts are
 * searched among all factorisations of the number of ranks. Invariants: a layout that is proposed passes every rule
 * about layouts; the search reads the configuration only. */
#include "conf/conf_int.h"

#include "part/order.h"

struct layout conf_layout(const struct conf *c)
{
    return (
        struct layout){ .pp = (uint32_t)c->pp, .dp = (uint32_t)c->dp, .cp = (uint32_t)c->cp, .tp = (uint32_t)c->tp };
}

struct pipe conf_pipe(const struct conf *c)
{
    return (struct pipe){
        .schedule = c->pipe_schedule,
        .stages = (uint32_t)c->pp,
        .chunks = (uint32_t)c->pipe_chunks,
        .layers = c->model.layers,
        .counts = c->pipe_counts_count > 0 ? c->pipe_counts : NULL,
    };
}

static bool is_power_of_two(uint64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

bool conf_tp_fits(const struct conf *c, uint64_t tp)
{
    /* A grain that is no power of two has a rule of its own. */
    bool divides = c->tp_grain == 0 || !is_power_of_two(c->tp_grain) || c->tp_grain % tp == 0;
    bool whole = c->has_model && c->model.qk_norm == QK_NORM_ALL; /* a norm over all heads of a token */
    return is_power_of_two(tp) && tp <= ORDER_SEGMENTS_MAX && divides && (tp == 1 || !whole);
}

/* Model chunks of a stage, were there pp stages; 0: layers do not come out even. */
static uint64_t chunks_of(const struct conf *c, uint64_t pp)
{
    uint64_t part = pp * c->pipe_chunk_layers;
    if (part == 0 || !c->has_model || conf_value(c, "virtual_pipeline_size")->given) {
        return c->pipe_chunks;
    }
    return c->model.layers % part == 0 ? c->model.layers / part : 0;
}

bool conf_pp_fits(const struct conf *c, uint64_t pp)
{
    uint64_t chunks = chunks_of(c, pp);
    bool asked = conf_value(c, "pipeline_schedule")->given;
    bool interleaved = asked ? c->pipe_schedule == PIPE_INTERLEAVED : chunks > 1;
    if (chunks == 0 || interleaved != (chunks > 1) || (interleaved && pp == 1)) {
        return false;
    }
    if (c->pipe_counts_count > 0) {
        return c->pipe_counts_count == pp * chunks;
    }
    return !c->has_model || pp * chunks <= c->model.layers;
}

bool conf_cp_fits(const struct conf *c, uint64_t cp)
{
    return cp == 1 || c->grad_unit == 0 || context_fits(c->seq_length, c->grad_unit, (uint32_t)cp);
}

/* ---- search ---- */

struct candidate {
    struct layout layout;
    unsigned changed; /* of the axes that were given */
    double factor;    /* product of the ratios, each at least 1 */
};

static void change(struct candidate *k, uint64_t now, uint64_t then)
{
    k->changed += now != then;
    k->factor *= now > then ? (double)now / (double)then : (double)then / (double)now;
}

static bool is_nearer(const struct candidate *a, const struct candidate *b)
{
    return a->changed != b->changed ? a->changed < b->changed : a->factor < b->factor;
}

struct search {
    const struct conf *c;
    struct candidate best[8];
    size_t count, most;
};

/* Insert in order; among equals the first stays first. */
static void offer(struct search *s, uint64_t tp, uint64_t pp, uint64_t cp, uint64_t dp)
{
    const struct conf_value *given = conf_value(s->c, "dp");
    struct candidate k = { .layout = { .tp = (uint32_t)tp, .pp = (uint32_t)pp, .cp = (uint32_t)cp, .dp = (uint32_t)dp },
                           .factor = 1 };
    change(&k, tp, s->c->tp);
    change(&k, pp, s->c->pp);
    change(&k, cp, s->c->cp);
    if (given->given && s->c->dp > 0) {
        change(&k, dp, s->c->dp);
    }
    size_t i = s->count < s->most ? s->count++ : s->most;
    for (; i > 0 && is_nearer(&k, &s->best[i - 1]); i--) {
        if (i < s->most) {
            s->best[i] = s->best[i - 1];
        }
    }
    if (i < s->most) {
        s->best[i] = k;
    }
}

size_t conf_layouts_near(const struct conf *c, uint64_t world, struct layout *out, size_t most)
{
    struct search s = { .c = c, .most = most };
    BUG_IF(most > sizeof(s.best) / sizeof(s.best[0]));
    for (uint64_t tp = ORDER_SEGMENTS_MAX; tp > 0; tp /= 2) { /* large first: of equals, keep what splits the model */
        if (world % tp != 0 || !conf_tp_fits(c, tp)) {
            continue;
        }
        for (uint64_t pp = world / tp; pp > 0; pp--) {
            if (world / tp % pp != 0 || !conf_pp_fits(c, pp)) {
                continue;
            }
            for (uint64_t cp = world / tp / pp; cp > 0; cp--) {
                if (world / tp / pp % cp == 0 && conf_cp_fits(c, cp)) {
                    offer(&s, tp, pp, cp, world / tp / pp / cp);
                }
            }
        }
    }
    for (size_t i = 0; i < s.count; i++) {
        out[i] = s.best[i].layout;
    }
    return s.count;
}
