/* Why this exists: the calls of comm.h as every kind of world makes them: check the arguments, say what the call is,
 * hand it to the group's engine.
 *
 * Invariant: what a signature holds decides how often the ranks meet inside the call, so equal signatures mean that no
 * rank waits for a meeting another one does not come to. */
#include "comm/comm_int.h"

#include "base/hash.h"

/* The end of a call: what the engine makes of it. */
#define RUN(c, call, args) call_end((c), (c)->engine->call != NULL ? (c)->engine->call args : OK)

uint32_t comm_rank(const struct comm *c)
{
    return c->rank;
}

uint32_t comm_size(const struct comm *c)
{
    return c->size;
}

const char *comm_name(const struct comm *c)
{
    return c->name;
}

/* A bounds array as one number; also checks that it ascends. */
static uint64_t bounds_hash(const struct comm *c, const uint64_t *bounds)
{
    for (uint32_t r = 0; r < c->size; r++) {
        BUG_IF(bounds[r] > bounds[r + 1]);
    }
    return hash64(bounds, (c->size + 1) * sizeof(*bounds), 1);
}

enum err comm_barrier_at(struct comm *c, struct comm_site site)
{
    TRY(call_begin(c, &(struct comm_sig){ .kind = KIND_BARRIER }, site));
    return RUN(c, barrier, (c));
}

enum err comm_agree_at(struct comm *c, enum err mine, struct comm_site site)
{
    TRY(call_begin(c, &(struct comm_sig){ .kind = KIND_AGREE }, site));
    enum err err = RUN(c, agree, (c, mine));
    if (err != OK && c->size == c->world->size) {
        atomic_store(&c->world->agreed, error_hash(err));
    }
    return err;
}

enum err comm_bcast_at(struct comm *c, uint32_t root, void *buf, uint64_t bytes, struct comm_site site)
{
    BUG_IF(root >= c->size);
    const struct comm_sig sig = { .kind = KIND_BCAST, .type = TYPE_BYTE, .count = bytes, .root = root };
    TRY(call_begin(c, &sig, site));
    return RUN(c, bcast, (c, root, buf, bytes));
}

enum err comm_gather_at(struct comm *c, const void *in, uint64_t bytes, void *out, struct comm_site site)
{
    TRY(call_begin(c, &(struct comm_sig){ .kind = KIND_GATHER, .type = TYPE_BYTE, .count = bytes }, site));
    return RUN(c, gather, (c, in, bytes, out));
}

enum err comm_sum_i64_at(struct comm *c, int64_t *buf, uint64_t n, struct comm_site site)
{
    const struct comm_sig sig = { .kind = KIND_ALL_REDUCE, .type = TYPE_I64, .op = OP_SUM, .count = n };
    TRY(call_begin(c, &sig, site));
    return RUN(c, sum_i64, (c, buf, n));
}

enum err comm_max_f32_at(struct comm *c, float *buf, uint64_t n, struct comm_site site)
{
    const struct comm_sig sig = { .kind = KIND_ALL_REDUCE, .type = TYPE_F32, .op = OP_MAX, .count = n };
    TRY(call_begin(c, &sig, site));
    return RUN(c, max_f32, (c, buf, n));
}

enum err comm_reduce_scatter_i64_at(struct comm *c, int64_t *buf, const uint64_t *bounds, struct comm_site site)
{
    const struct comm_sig sig = { .kind = KIND_REDUCE_SCATTER, .type = TYPE_I64, .op = OP_SUM,
                                  .count = bounds[c->size] - bounds[0], .shape = bounds_hash(c, bounds) };
    TRY(call_begin(c, &sig, site));
    return RUN(c, reduce_scatter_i64, (c, buf, bounds));
}

enum err comm_all_gather_at(struct comm *c, void *buf, uint64_t size, const uint64_t *bounds, struct comm_site site)
{
    const struct comm_sig sig = { .kind = KIND_ALL_GATHER, .type = TYPE_BYTE,
                                  .count = (bounds[c->size] - bounds[0]) * size,
                                  .shape = hash_mix(bounds_hash(c, bounds) + size) };
    TRY(call_begin(c, &sig, site));
    return RUN(c, all_gather, (c, buf, size, bounds));
}

enum err comm_window_at(struct comm *c, uint64_t bytes, void **out, struct comm_site site)
{
    *out = NULL;
    TRY(call_begin(c, &(struct comm_sig){ .kind = KIND_WINDOW, .type = TYPE_BYTE, .count = bytes }, site));
    bool enough = c->window[c->rank] != NULL && bytes <= c->window_bytes;
    enum err err = enough ? RUN(c, barrier, (c)) : RUN(c, window, (c, bytes));
    *out = c->window[c->rank];
    return err;
}

enum err comm_tree_sum_at(struct comm *c, const struct comm_tree *t, struct comm_site site)
{
    BUG_IF((c->size & (c->size - 1)) != 0 || t->ldo < t->cols);
    BUG_IF(c->window[c->rank] == NULL || (t->rows > 0 && t->cols > c->window_bytes / sizeof(float) / t->rows));
    BUG_IF(t->bounds != NULL && (t->bounds[0] != 0 || t->bounds[c->size] != t->rows));
    const struct comm_sig sig = { .kind = KIND_TREE_SUM, .type = TYPE_F32, .op = OP_SUM, .count = t->rows * t->cols,
                                  .shape = hash_mix(t->cols + (t->bounds ? bounds_hash(c, t->bounds) : 0)) };
    TRY(call_begin(c, &sig, site));
    return RUN(c, tree_sum, (c, t));
}

enum err comm_send_at(struct comm *c, uint32_t to, uint32_t tag, const void *buf, uint64_t bytes,
                      struct comm_ticket *ticket, struct comm_site site)
{
    BUG_IF(to >= c->size || to == c->rank);
    const struct comm_sig sig = { .kind = KIND_SEND, .type = TYPE_BYTE, .count = bytes, .root = to, .tag = tag };
    ticket->state = NULL;
    TRY(call_begin(c, &sig, site));
    return RUN(c, send, (c, to, tag, buf, bytes, ticket));
}

enum err comm_sent_at(struct comm *c, struct comm_ticket *ticket, struct comm_site site)
{
    if (ticket->state == NULL) {
        return node_failure(c->world);
    }
    TRY(call_begin(c, &(struct comm_sig){ .kind = KIND_SENT }, site));
    return RUN(c, sent, (c, ticket));
}

enum err comm_recv_at(struct comm *c, uint32_t from, uint32_t tag, void *buf, uint64_t bytes, struct comm_site site)
{
    BUG_IF(from >= c->size || from == c->rank);
    const struct comm_sig sig = { .kind = KIND_RECV, .type = TYPE_BYTE, .count = bytes, .root = from, .tag = tag };
    TRY(call_begin(c, &sig, site));
    return RUN(c, recv, (c, from, tag, buf, bytes));
}
