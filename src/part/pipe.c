/* Why this exists: stages that wait for each other in different orders hang. All stages take their timetable from here.
 *
 * Every schedule has one shape: `warm` forwards, then forward and backward in turn, then the backwards that are left.
 * Schedules and stages differ in `warm` only. The sequences of forwards and of backwards are the same on all stages:
 * a group of `stages` micro-batches passes through chunk 0, then through chunk 1 and so on, then comes the next group
 * (Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", 2021);
 * backwards take the chunks from the last to the first.
 *
 * When micros is not a multiple of stages, the last group has slots without a micro-batch, and the timetable is that of
 * the full group with these slots left out. What a forward or backward waits for is of its own micro-batch, so an order
 * without circular waits stays one when all operations of a micro-batch are taken out of it; nor can the number of
 * micro-batches in flight grow. */
#include "part/layout.h"

#include "base/err.h"

/* A timetable with its empty slots. */
struct slots {
    uint64_t micros, stages, chunks;
    uint64_t forwards; /* and as many backwards */
    uint64_t warm;
};

static bool has_shape(const struct pipe *p)
{
    bool interleaved = p->schedule == PIPE_INTERLEAVED;
    return p->stages > 0 && (interleaved ? p->chunks >= 2 : p->chunks == 1);
}

bool pipe_fits(const struct pipe *p)
{
    uint64_t parts = (uint64_t)p->stages * p->chunks, sum = 0;
    if (!has_shape(p) || parts > UINT32_MAX) {
        return false;
    }
    if (p->counts == NULL) {
        return p->layers >= parts;
    }
    for (uint64_t v = 0; v < parts; v++) {
        if (__builtin_add_overflow(sum, p->counts[v], &sum)) {
            return false;
        }
    }
    return sum == p->layers;
}

struct order_range pipe_layers(const struct pipe *p, uint32_t stage, uint32_t chunk)
{
    BUG_IF(!pipe_fits(p) || stage >= p->stages || chunk >= p->chunks);
    uint32_t v = chunk * p->stages + stage;
    if (p->counts == NULL) {
        return part_range(p->layers, p->stages * p->chunks, v);
    }
    uint64_t lo = 0;
    for (uint32_t i = 0; i < v; i++) {
        lo += p->counts[i];
    }
    return (struct order_range){ lo, lo + p->counts[v] };
}

uint64_t pipe_ops(const struct pipe *p, uint32_t micros)
{
    BUG_IF(!has_shape(p));
    return 2 * (uint64_t)p->chunks * micros;
}

static struct slots slots_of(const struct pipe *p, uint32_t stage, uint32_t micros)
{
    BUG_IF(!has_shape(p) || stage >= p->stages);
    struct slots s = { .micros = micros, .stages = p->stages, .chunks = p->chunks };
    s.forwards = (s.micros + s.stages - 1) / s.stages * s.stages * s.chunks;
    uint64_t below = s.stages - stage - 1;
    switch (p->schedule) {
    case PIPE_GPIPE: s.warm = s.forwards; break;
    case PIPE_1F1B: s.warm = below; break;
    case PIPE_INTERLEAVED: s.warm = 2 * below + (s.chunks - 1) * s.stages; break;
    }
    if (s.warm > s.forwards) {
        s.warm = s.forwards;
    }
    return s;
}

/* Forwards among the first `slot` slots; the others are backwards. */
static uint64_t forwards_before(const struct slots *s, uint64_t slot)
{
    uint64_t turns = 2 * (s->forwards - s->warm);
    if (slot <= s->warm) {
        return slot;
    }
    return slot - s->warm < turns ? s->warm + (slot - s->warm + 1) / 2 : s->forwards;
}

/* How many of the first k forwards have a micro-batch; of backwards too. */
static uint64_t filled(const struct slots *s, uint64_t k)
{
    uint64_t whole = s->micros / s->stages * s->stages * s->chunks, rest = s->micros % s->stages;
    if (k <= whole) {
        return k;
    }
    uint64_t in_row = (k - whole) % s->stages;
    return whole + (k - whole) / s->stages * rest + (in_row < rest ? in_row : rest);
}

static uint64_t ops_before(const struct slots *s, uint64_t slot)
{
    uint64_t forwards = forwards_before(s, slot);
    return filled(s, forwards) + filled(s, slot - forwards);
}

struct pipe_op pipe_op(const struct pipe *p, uint32_t stage, uint32_t micros, uint64_t i)
{
    BUG_IF(i >= pipe_ops(p, micros));
    const struct slots s = slots_of(p, stage, micros);
    uint64_t slot = 0, end = 2 * s.forwards; /* it is in [slot, end): the last slot that has at most i before it */
    while (end - slot > 1) {
        uint64_t middle = slot + (end - slot) / 2;
        if (ops_before(&s, middle) <= i) {
            slot = middle;
        } else {
            end = middle;
        }
    }
    uint64_t forwards = forwards_before(&s, slot);
    bool forward = forwards_before(&s, slot + 1) > forwards;
    uint64_t k = forward ? forwards : slot - forwards, row = k / s.stages;
    uint32_t chunk = (uint32_t)(row % s.chunks);
    return (struct pipe_op){
        .forward = forward,
        .micro = (uint32_t)(row / s.chunks * s.stages + k % s.stages),
        .chunk = forward ? chunk : p->chunks - 1 - chunk,
    };
}

uint32_t pipe_sets(const struct pipe *p, uint32_t stage, uint32_t chunk, uint32_t micros)
{
    BUG_IF(chunk >= p->chunks);
    uint32_t live = 0, most = 1;
    for (uint64_t i = 0; i < pipe_ops(p, micros); i++) {
        const struct pipe_op op = pipe_op(p, stage, micros, i);
        if (op.chunk == chunk) {
            live = op.forward ? live + 1 : live - 1;
            most = live > most ? live : most;
        }
    }
    return most;
}

double pipe_bubble(const struct pipe *p, uint32_t micros)
{
    BUG_IF(!has_shape(p));
    double work = (double)p->chunks * micros, idle = (double)(p->stages - 1);
    return idle > 0 ? idle / (work + idle) : 0;
}
