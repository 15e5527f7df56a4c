/* Why this exists: the ZeRO stages are one idea - who keeps which range of a bucket - and everything else asks for that
 * range, never for the stage.
 *
 * Invariants: slices of a bucket are the same on every data rank, begin at multiples of 16 and cover it; h->p[b] and
 * h->g[b] point at all of bucket b while the model uses it. */
#include "train/holdings.h"

#include "part/order.h"
#include "train/reducer.h"

#define SLICE_ALIGN 16u

static bool sliced_g(const struct holdings *h)
{
    return h->stage >= 2;
}

static bool sliced_p(const struct holdings *h)
{
    return h->stage >= 3;
}

/* ---- who keeps what ---- */

static void set_ranges(struct holdings *h, uint32_t b)
{
    struct holding *own = &h->of[b];
    uint32_t ranks = comm_size(h->ranks->data);
    uint64_t stored = h->reg->buckets[b].stored;
    struct order_range all = { 0, stored };
    own->bounds = h->bounds + (uint64_t)b * (ranks + 1);
    for (uint32_t i = 0; i < ranks; i++) {
        own->bounds[i] = part_range_aligned(stored, SLICE_ALIGN, ranks, i).lo;
    }
    own->bounds[ranks] = stored;
    own->slice = part_range_aligned(stored, SLICE_ALIGN, ranks, comm_rank(h->ranks->data));
    own->m_at = h->stage >= 1 ? own->slice : all;
    own->g_at = sliced_g(h) ? own->slice : all;
    own->p_at = sliced_p(h) ? own->slice : all;
}

enum err holdings_open(struct holdings *h, const struct ranks *r, const struct registry *reg, struct kern *k,
                       const struct conf *c)
{
    void *mem;
    *h = (struct holdings){ .ranks = r, .reg = reg, .kern = k };
    h->stage = comm_size(r->data) > 1 ? (uint32_t)c->zero_stage : 0;
    h->tied_here = c->model.tied && r->layout.pp == 1;
    h->hashing = c->gradient_hashes;
    enum err err;
    TRY_OUT(mem_alloc(&mem, reg->bucket_count, sizeof(struct holding)));
    h->of = mem;
    TRY_OUT(mem_alloc(&mem, reg->bucket_count, (comm_size(r->data) + 1) * sizeof(uint64_t)));
    h->bounds = mem;
    TRY_OUT(mem_alloc(&mem, reg->bucket_count, sizeof(float *)));
    h->p = mem;
    TRY_OUT(mem_alloc(&mem, reg->bucket_count, sizeof(int64_t *)));
    h->g = mem;
    for (uint32_t b = 0; b < reg->bucket_count; b++) {
        set_ranges(h, b);
    }
    return OK;
out:
    holdings_close(h);
    return err;
}

void holdings_close(struct holdings *h)
{
    reducer_free(h->reducer);
    free(h->of);
    free(h->bounds);
    free(h->p);
    free(h->g);
    *h = (struct holdings){ 0 };
}

/* ---- memory ---- */

static uint64_t length(struct order_range r)
{
    return r.hi - r.lo;
}

static uint64_t largest(const struct holdings *h, enum bucket_kind kind)
{
    uint64_t most = 0;
    for (uint32_t b = 0; b < h->reg->bucket_count; b++) {
        const struct bucket *bucket = &h->reg->buckets[b];
        most = bucket->kind == kind && bucket->stored > most ? bucket->stored : most;
    }
    return most;
}

void holdings_layout(struct holdings *h, struct arena *a)
{
    for (uint32_t b = 0; b < h->reg->bucket_count; b++) {
        struct holding *own = &h->of[b];
        own->p = arena_take(a, length(own->p_at), sizeof(float));
        own->g = arena_take(a, length(own->g_at), sizeof(int64_t));
        own->m = arena_take(a, length(own->m_at), sizeof(float));
        own->v = arena_take(a, length(own->m_at), sizeof(float));
        h->p[b] = sliced_p(h) ? NULL : own->p;
        h->g[b] = sliced_g(h) ? NULL : own->g;
    }
    for (int kind = 0; kind < BUCKET_KINDS; kind++) {
        uint64_t most = largest(h, (enum bucket_kind)kind);
        h->work_p[kind] = sliced_p(h) ? arena_take(a, most, sizeof(float)) : NULL;
        for (int i = 0; i < (kind == BUCKET_LAYER ? 2 : 1); i++) {
            h->work_g[kind][i] = sliced_g(h) ? arena_take(a, most, sizeof(int64_t)) : NULL;
        }
    }
}

uint64_t holdings_bytes(const struct holdings *h, uint64_t *work)
{
    uint64_t kept = 0;
    *work = 0;
    for (uint32_t b = 0; b < h->reg->bucket_count; b++) {
        const struct holding *own = &h->of[b];
        kept += length(own->p_at) * sizeof(float) + length(own->g_at) * sizeof(int64_t) +
                length(own->m_at) * 2 * sizeof(float);
    }
    for (int kind = 0; kind < BUCKET_KINDS; kind++) {
        uint64_t most = largest(h, (enum bucket_kind)kind);
        *work += (sliced_p(h) ? most * sizeof(float) : 0) +
                 (sliced_g(h) ? most * sizeof(int64_t) * (kind == BUCKET_LAYER ? 2 : 1) : 0);
    }
    return kept;
}

/* ---- while the model runs ---- */

/* Stage 3: all of the bucket's parameters from the slices. */
static enum err gather_parameters(struct holdings *h, uint32_t b)
{
    const struct holding *own = &h->of[b];
    float *all = h->work_p[h->reg->buckets[b].kind];
    memcpy(all + own->slice.lo, own->p, length(own->slice) * sizeof(float));
    TRY(comm_all_gather(h->ranks->data, all, sizeof(float), own->bounds));
    h->p[b] = all;
    return OK;
}

/* Stages 2, 3: an empty buffer for the bucket's gradients. */
static enum err empty_buffer(struct holdings *h, uint32_t b)
{
    enum bucket_kind kind = h->reg->buckets[b].kind;
    if (kind == BUCKET_LAYER) {
        h->turn = 1 - h->turn;
    }
    int64_t *buf = h->work_g[kind][kind == BUCKET_LAYER ? h->turn : 0];
    TRY(reducer_wait_for(h->reducer, buf));
    memset(buf, 0, h->reg->buckets[b].stored * sizeof(int64_t));
    h->g[b] = buf;
    return OK;
}

static enum err use(void *arg, uint32_t bucket, bool grad)
{
    struct holdings *h = arg;
    if (sliced_p(h)) {
        TRY(gather_parameters(h, bucket));
    }
    return grad && sliced_g(h) ? empty_buffer(h, bucket) : OK;
}

/* Whether the gradients of a bucket that is done with are complete: after the last micro-batch, and those of a tied
 * embedding after its second use in it. */
static bool complete(struct holdings *h, uint32_t bucket)
{
    if (!h->last_micro) {
        return false;
    }
    return !h->tied_here || h->reg->buckets[bucket].kind != BUCKET_VOCAB || ++h->embed_uses == 2;
}

static enum err done(void *arg, uint32_t bucket, bool grad)
{
    struct holdings *h = arg;
    if (grad && h->reducer != NULL && (sliced_g(h) || complete(h, bucket))) {
        reducer_post(h->reducer, bucket, h->g[bucket]);
    }
    if (sliced_p(h)) {
        h->p[bucket] = NULL;
    }
    return OK;
}

enum err holdings_start(struct holdings *h, struct model *m)
{
    const struct model_storage storage = { .p = h->p, .g = h->g, .use = use, .done = done, .arg = h };
    model_set_storage(m, &storage);
    bool alone = comm_size(h->ranks->data) == 1 && comm_size(h->ranks->tp) == 1;
    return alone ? OK : reducer_new(&h->reducer, h);
}

void holdings_expect(struct holdings *h, bool last_micro)
{
    h->last_micro = last_micro;
    h->embed_uses = 0;
}

/* ---- between backward and update ---- */

void holdings_hash(struct holdings *h, uint32_t bucket, const int64_t *g)
{
    const struct bucket *b = &h->reg->buckets[bucket];
    h->given += kern_checksum_i64(b->stored, g, b->offset);
}

enum err holdings_finish(struct holdings *h)
{
    if (h->reducer != NULL) {
        TRY(reducer_wait_for(h->reducer, NULL));
    }
    for (uint32_t b = 0; b < h->reg->bucket_count && h->hashing && h->reducer == NULL; b++) {
        holdings_hash(h, b, h->of[b].g);
    }
    uint32_t tied = h->reg->embed_bucket;
    if (tied != REGISTRY_NONE) {
        const struct holding *own = &h->of[tied];
        TRY(comm_sum_i64(h->ranks->embed, own->g + (own->slice.lo - own->g_at.lo), length(own->slice)));
    }
    return OK;
}

enum err holdings_spread_gradients(struct holdings *h)
{
    for (uint32_t b = 0; b < h->reg->bucket_count && h->stage == 0 && comm_size(h->ranks->data) > 1; b++) {
        TRY(comm_all_gather(h->ranks->data, h->of[b].g, sizeof(int64_t), h->of[b].bounds));
    }
    return OK;
}

enum err holdings_spread_parameters(struct holdings *h)
{
    for (uint32_t b = 0; b < h->reg->bucket_count && (h->stage == 1 || h->stage == 2); b++) {
        TRY(comm_all_gather(h->ranks->data, h->of[b].p, sizeof(float), h->of[b].bounds));
    }
    return OK;
}

void holdings_zero_gradients(struct holdings *h)
{
    for (uint32_t b = 0; b < h->reg->bucket_count; b++) {
        memset(h->of[b].g, 0, length(h->of[b].g_at) * sizeof(int64_t));
    }
}

struct piece holdings_piece(const struct shard *s, struct order_range at)
{
    uint64_t end = s->offset + s->rows * s->cols;
    uint64_t lo = at.lo > s->offset ? at.lo : s->offset, hi = at.hi < end ? at.hi : end;
    return lo < hi ? (struct piece){ lo - s->offset, hi - s->offset } : (struct piece){ 0, 0 };
}
