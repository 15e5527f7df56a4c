/* Why this exists: groups whose ranks are on several nodes. MPI's own collectives are not used: a wait inside them
 * cannot end when a rank has failed, their buffers are not ours to bound, and some return success with wrong numbers
 * when ranks make different calls. Every call here is made of messages between two ranks that are polled for.
 *
 * Invariants: no rank uses what another sent before the meeting has shown that both make the same call. When a failure
 * is known no further MPI call is made for the group: what is on its way may still be written to buffers that the
 * caller gives up, so the transport ends the process without letting MPI go on (mpi.c), and nothing here is freed
 * then. */
#include "comm/mpi_far.h"

#include "base/mem.h"

#define BCAST_PIECE ((uint64_t)64 << 20)

/* ---- waiting and meeting ---- */

enum err far_post_recv(struct comm *c, struct exchange *x, uint32_t from, uint32_t tag, void *buf, uint64_t bytes)
{
    BUG_IF(x->receives != x->count);
    enum err err = link_recv(far_of(c)->link, from, tag, buf, bytes, &x->request[x->count]);
    x->count++;
    x->receives++;
    return err == OK ? OK : comm_fail(c->world, err);
}

enum err far_post_send(struct comm *c, struct exchange *x, uint32_t to, uint32_t tag, const void *buf, uint64_t bytes)
{
    enum err err = link_send(far_of(c)->link, to, tag, buf, bytes, &x->request[x->count++]);
    return err == OK ? OK : comm_fail(c->world, err);
}

static enum err poll_all(struct comm *c, struct exchange *x)
{
    struct comm_world *w = c->world;
    struct mpi_pause pause = { 0 };
    for (uint32_t left = 1; left > 0;) {
        left = 0;
        for (uint32_t i = 0; i < x->count; i++) {
            bool done;
            enum err err = link_test(far_of(c)->link, &x->request[i], &done, NULL);
            if (err != OK) {
                return comm_fail(w, err);
            }
            left += !done;
        }
        if (left > 0) {
            TRY(node_failure(w));
            if (pause.rounds % 16 == 0) {
                mpi_hear(w);
            }
            mpi_pause(w, &pause);
        }
    }
    return OK;
}

enum err far_wait(struct comm *c, struct exchange *x)
{
    enum err err = poll_all(c, x);
    for (uint32_t i = 0; err != OK && i < x->receives; i++) {
        link_cancel(far_of(c)->link, &x->request[i]);
    }
    x->count = 0;
    x->receives = 0;
    return err;
}

static struct meet_card *card_of(const struct comm *c, uint32_t rank)
{
    return &far_of(c)->card[rank >= c->rank ? rank - c->rank : rank + c->size - c->rank];
}

const void *far_card(const struct comm *c, uint32_t rank)
{
    return card_of(c, rank)->data;
}

static enum err compare(struct comm *c)
{
    bool same = true;
    for (uint32_t r = 0; r < c->size; r++) {
        far_of(c)->sigs[r] = card_of(c, r)->sig;
        same &= sig_equal(&c->sig, &far_of(c)->sigs[r]);
    }
    return same ? OK : call_mismatch(c, far_of(c)->sigs);
}

enum err far_meet(struct comm *c, const void *data, uint64_t bytes)
{
    struct far *f = far_of(c);
    struct exchange *x = &f->x[0];
    BUG_IF(bytes > MEET_DATA);
    f->card[0].sig = c->sig;
    if (bytes > 0) {
        memcpy(f->card[0].data, data, bytes);
    }
    /* A rank that has the cards of `have` ranks from itself on gets those of as many more from the rank after them. */
    for (uint32_t have = 1; have < c->size; have *= 2) {
        uint32_t count = have < c->size - have ? have : c->size - have;
        uint32_t from = (c->rank + have) % c->size, to = (c->rank + c->size - have) % c->size;
        TRY(far_post_recv(c, x, from, TAG_MEET, &f->card[have], count * sizeof(*f->card)));
        TRY(far_post_send(c, x, to, TAG_MEET, f->card, count * sizeof(*f->card)));
        TRY(far_wait(c, x));
    }
    if (c->fresh) {
        c->fresh = false;
        return compare(c);
    }
    return OK;
}

/* ---- small collectives ---- */

static enum err far_barrier(struct comm *c)
{
    return far_meet(c, NULL, 0);
}

/* Down a binomial tree with its root at rank `root`. */
static enum err spread(struct comm *c, uint32_t root, void *buf, uint64_t bytes)
{
    struct exchange *x = &far_of(c)->x[0];
    uint32_t place = (c->rank + c->size - root) % c->size; /* in the tree */
    uint32_t span = place & (~place + 1); /* its subtree: places place .. place + span - 1; 0: the root's, all */
    for (uint64_t at = 0; at < bytes; at += BCAST_PIECE) {
        unsigned char *piece = (unsigned char *)buf + at;
        uint64_t n = bytes - at < BCAST_PIECE ? bytes - at : BCAST_PIECE;
        if (place > 0) {
            TRY(far_post_recv(c, x, (place - span + root) % c->size, TAG_DATA, piece, n));
            TRY(far_wait(c, x));
        }
        for (uint32_t child = 1; child < c->size - place && (span == 0 || child < span); child *= 2) {
            TRY(far_post_send(c, x, (place + child + root) % c->size, TAG_DATA, piece, n));
        }
        TRY(far_wait(c, x));
    }
    return OK;
}

static enum err far_agree(struct comm *c, enum err mine)
{
    const uint32_t verdict = mine;
    TRY(far_meet(c, &verdict, sizeof(verdict)));
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t theirs;
        memcpy(&theirs, far_card(c, r), sizeof(theirs));
        if (theirs == OK) {
            continue;
        }
        char message[ERR_MESSAGE_BYTES];
        snprintf(message, sizeof(message), "%s", err_message());
        TRY(spread(c, r, message, sizeof(message)));
        return r == c->rank ? mine : FAIL((enum err)theirs, "rank %u: %s", c->member[r], message);
    }
    return OK;
}

static enum err far_bcast(struct comm *c, uint32_t root, void *buf, uint64_t bytes)
{
    bool small = bytes <= MEET_DATA;
    TRY(far_meet(c, buf, small && c->rank == root ? bytes : 0));
    if (!small) {
        return spread(c, root, buf, bytes);
    }
    if (c->rank != root && bytes > 0) {
        memcpy(buf, far_card(c, root), bytes);
    }
    return OK;
}

static enum err far_gather(struct comm *c, const void *in, uint64_t bytes, void *out)
{
    unsigned char *to = out;
    bool small = bytes <= MEET_DATA;
    TRY(far_meet(c, in, small ? bytes : 0));
    if (small) {
        for (uint32_t r = 0; r < c->size && bytes > 0; r++) {
            memcpy(to + r * bytes, far_card(c, r), bytes);
        }
        return OK;
    }
    if (in != to + c->rank * bytes) {
        memcpy(to + c->rank * bytes, in, bytes);
    }
    for (uint32_t r = 0; r <= c->size; r++) {
        far_of(c)->bounds[r] = r * bytes;
    }
    return far_all_gather(c, out, 1, far_of(c)->bounds);
}

/* [0, n) in parts of nearly equal length, one for each rank. */
static const uint64_t *even_bounds(const struct comm *c, uint64_t n)
{
    uint64_t *bounds = far_of(c)->bounds;
    for (uint32_t r = 0; r <= c->size; r++) {
        bounds[r] = n / c->size * r + (r < n % c->size ? r : n % c->size);
    }
    return bounds;
}

static enum err far_sum_i64(struct comm *c, int64_t *buf, uint64_t n)
{
    bool small = n <= MEET_DATA / sizeof(*buf);
    TRY(far_meet(c, buf, small ? n * sizeof(*buf) : 0));
    if (!small) {
        const uint64_t *bounds = even_bounds(c, n);
        TRY(far_reduce_scatter_i64(c, buf, bounds));
        return far_all_gather(c, buf, sizeof(*buf), bounds);
    }
    for (uint32_t r = 0; r < c->size; r++) {
        int64_t theirs[MEET_DATA / sizeof(*buf)];
        memcpy(theirs, far_card(c, r), sizeof(theirs));
        for (uint64_t i = 0; i < n && r != c->rank; i++) {
            buf[i] = (int64_t)((uint64_t)buf[i] + (uint64_t)theirs[i]);
        }
    }
    return OK;
}

static enum err far_max_f32(struct comm *c, float *buf, uint64_t n)
{
    bool small = n <= MEET_DATA / sizeof(*buf);
    TRY(far_meet(c, buf, small ? n * sizeof(*buf) : 0));
    if (!small) {
        const uint64_t *bounds = even_bounds(c, n);
        TRY(far_reduce_scatter_max(c, buf, bounds));
        return far_all_gather(c, buf, sizeof(*buf), bounds);
    }
    for (uint32_t r = 0; r < c->size; r++) {
        float theirs[MEET_DATA / sizeof(*buf)];
        memcpy(theirs, far_card(c, r), sizeof(theirs));
        for (uint64_t i = 0; i < n; i++) {
            buf[i] = r == 0 || theirs[i] > buf[i] ? theirs[i] : buf[i];
        }
    }
    return OK;
}

/* ---- large ones: first meet ---- */

static enum err meet_reduce_scatter(struct comm *c, int64_t *buf, const uint64_t *bounds)
{
    TRY(far_meet(c, NULL, 0));
    return far_reduce_scatter_i64(c, buf, bounds);
}

static enum err meet_all_gather(struct comm *c, void *buf, uint64_t size, const uint64_t *bounds)
{
    TRY(far_meet(c, NULL, 0));
    return far_all_gather(c, buf, size, bounds);
}

static enum err meet_tree_sum(struct comm *c, const struct comm_tree *t)
{
    TRY(far_meet(c, NULL, 0));
    return far_tree_sum(c, t);
}

static enum err far_window(struct comm *c, uint64_t bytes)
{
    void *window;
    TRY(far_agree(c, mem_big_alloc(&window, bytes)));
    mem_big_free(c->window[c->rank], c->window_bytes);
    atomic_fetch_add(&c->world->memory_bytes, bytes - c->window_bytes);
    c->window[c->rank] = window;
    c->window_bytes = bytes;
    return OK;
}

/* ---- groups ---- */

static void far_close(struct comm *c)
{
    struct far *f = far_of(c);
    if (node_failed(c->world)) {
        return;
    }
    mem_big_free(c->window[c->rank], c->window_bytes);
    mem_big_free(f->staging, f->staging_bytes);
    far_sends_free(f);
    pthread_mutex_destroy(&f->sending);
    link_close(f->link);
    free(f->card);
    free(f->sigs);
    free(f->x[0].request);
    free(f->x[1].request);
    free(f->part);
    free(f->bounds);
    free(f);
}

static enum err alloc_tables(struct far *f, uint32_t size)
{
    void *mem;
    TRY(mem_alloc(&mem, size, sizeof(*f->card)));
    f->card = mem;
    TRY(mem_alloc(&mem, size, sizeof(*f->sigs)));
    f->sigs = mem;
    TRY(mem_alloc(&mem, size, 2 * sizeof(struct link_request)));
    f->x[0].request = mem;
    TRY(mem_alloc(&mem, size, 2 * sizeof(struct link_request)));
    f->x[1].request = mem;
    TRY(mem_alloc(&mem, size, sizeof(*f->part)));
    f->part = mem;
    TRY(mem_alloc(&mem, size + 1, sizeof(*f->bounds)));
    f->bounds = mem;
    return OK;
}

static enum err far_open(struct comm *c, struct comm *parent)
{
    (void)parent;
    /* First, so that no rank is waited for that has already failed. */
    struct link *link;
    TRY(link_open(mpi_of(c->world)->all, &(struct link_members){ c->member, c->size, c->id }, &link));
    void *mem;
    enum err err = mem_alloc(&mem, 1, sizeof(struct far));
    if (err != OK) {
        link_close(link);
        return err;
    }
    c->state = mem;
    far_of(c)->link = link;
    pthread_mutex_init(&far_of(c)->sending, NULL);
    err = alloc_tables(c->state, c->size);
    if (err != OK) {
        far_close(c);
    }
    return err;
}

const struct comm_engine mpi_far_engine = {
    .name = "MPI",
    .open = far_open,
    .close = far_close,
    .barrier = far_barrier,
    .agree = far_agree,
    .bcast = far_bcast,
    .gather = far_gather,
    .sum_i64 = far_sum_i64,
    .max_f32 = far_max_f32,
    .reduce_scatter_i64 = meet_reduce_scatter,
    .all_gather = meet_all_gather,
    .window = far_window,
    .tree_sum = meet_tree_sum,
    .send = far_send,
    /* no sent: a send has copied */
    .recv = far_recv,
};
