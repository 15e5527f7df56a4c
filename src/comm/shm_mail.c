/* Why this exists: messages between two ranks that share memory. A send copies into a block that the receiver can map
 * and is done: the sender computes on, and its buffer is free at once. Blocks are made when none is free that fits and
 * used again, so a job in its stride makes none. A sender that runs far ahead waits, so memory is bounded.
 *
 * A channel goes from one rank to another and has one entry for each block. Invariants: an entry belongs to the sender
 * while it is not full and to the receiver while it is; `order` counts the channel's messages, and the receiver takes
 * the one with the lowest order among those with the tag it asks for. */
#include "comm/shm.h"

#include <time.h>

#include "base/mem.h"

#define ENTRIES COMM_MESSAGES_MAX
#define BLOCK_LEAST 4096u    /* bytes */
#define BLOCK_WASTE_MOST 4u  /* a block this many times too large is kept for larger messages */

struct entry {
    _Atomic uint32_t full;
    uint32_t tag;
    uint64_t bytes, order;
    uint64_t hold_until_ns;    /* seeded disturbance; 0: none */
    uint64_t generation;       /* of the block: changes when it is made anew */
    struct comm_handle handle; /* of the block .. */
    uint64_t capacity;         /* .. and its bytes */
    struct comm_sig sent_by;
};

struct channel {
    _Alignas(64) struct comm_futex sent;  /* messages */
    _Alignas(64) struct comm_futex taken; /* of them */
    _Atomic uint32_t used;                /* entries that have a block */
    struct entry entry[ENTRIES];
};

/* This rank's view of a block. */
struct block {
    struct comm_region region;
    uint64_t generation;
    bool found; /* sender: the receiver has mapped it */
};

struct mail {
    struct channel *channel; /* [from * size + to] */
    struct block **out, **in; /* [rank][entry], NULL until the first message */
    uint64_t *order;          /* messages sent to each rank */
};

uint64_t mail_bytes(uint32_t size)
{
    return (uint64_t)size * size * sizeof(struct channel);
}

enum err mail_open(struct mail **out, struct comm *c, unsigned char *channels)
{
    void *mem;
    *out = NULL;
    TRY(mem_alloc(&mem, 1, sizeof(struct mail)));
    struct mail *m = mem;
    *out = m;
    m->channel = (struct channel *)channels;
    TRY(mem_alloc(&mem, c->size, sizeof(struct block *)));
    m->out = mem;
    TRY(mem_alloc(&mem, c->size, sizeof(struct block *)));
    m->in = mem;
    TRY(mem_alloc(&mem, c->size, sizeof(*m->order)));
    m->order = mem;
    return OK;
}

static void free_blocks(struct block **blocks, struct comm *c)
{
    for (uint32_t r = 0; blocks != NULL && r < c->size; r++) {
        for (uint32_t i = 0; blocks[r] != NULL && i < ENTRIES; i++) {
            if (blocks[r][i].region.bytes > 0) {
                c->world->transport->region_free(c->world, &blocks[r][i].region);
            }
        }
        free(blocks[r]);
    }
    free(blocks);
}

void mail_close(struct mail *m, struct comm *c)
{
    if (m == NULL) {
        return;
    }
    free_blocks(m->out, c);
    free_blocks(m->in, c);
    free(m->order);
    free(m);
}

static struct mail *mail_of(const struct comm *c)
{
    return ((struct shm *)c->state)->mail;
}

static enum err blocks_of(struct block **blocks, uint32_t other)
{
    if (blocks[other] == NULL) {
        void *mem;
        TRY(mem_alloc(&mem, ENTRIES, sizeof(struct block)));
        blocks[other] = mem;
    }
    return OK;
}

static bool is_full(const struct entry *e)
{
    return atomic_load_explicit(&e->full, memory_order_acquire) != 0;
}

/* A free entry whose block fits best; ENTRIES when none does. *spare: a free one whose block does not fit, or a new
 * one; ENTRIES when there is none. */
static uint32_t choose(struct channel *ch, struct block *blocks, uint64_t bytes, uint32_t *spare)
{
    uint32_t used = atomic_load_explicit(&ch->used, memory_order_relaxed), best = ENTRIES;
    *spare = used;
    for (uint32_t i = 0; i < used; i++) {
        uint64_t capacity = blocks[i].region.bytes;
        if (is_full(&ch->entry[i])) {
            continue;
        }
        *spare = *spare == ENTRIES ? i : *spare;
        if (capacity >= bytes && capacity / BLOCK_WASTE_MOST <= (bytes > BLOCK_LEAST ? bytes : BLOCK_LEAST) &&
            (best == ENTRIES || capacity < blocks[best].region.bytes)) {
            best = i;
        }
    }
    return best;
}

/* Gives the entry a block of its own, in place of the one it had. */
static enum err make_block(struct comm *c, struct entry *e, struct block *b, uint64_t bytes)
{
    struct comm_world *w = c->world;
    if (b->region.bytes > 0) {
        atomic_fetch_sub(&w->memory_bytes, b->region.bytes);
        w->transport->region_free(w, &b->region);
    }
    uint64_t capacity = (bytes + BLOCK_LEAST - 1) / BLOCK_LEAST * BLOCK_LEAST;
    *b = (struct block){ .generation = b->generation + 1 };
    TRY(w->transport->region_new(w, capacity > 0 ? capacity : BLOCK_LEAST, &b->region));
    atomic_fetch_add(&w->memory_bytes, b->region.bytes);
    e->handle = b->region.handle;
    e->capacity = b->region.bytes;
    e->generation = b->generation;
    return OK;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* An entry whose block holds `bytes`; waits for one to come back when none is left. */
static enum err free_entry(struct comm *c, uint32_t to, uint64_t bytes, struct entry **out)
{
    struct mail *m = mail_of(c);
    struct channel *ch = &m->channel[c->rank * c->size + to];
    uint32_t spare, i, seen;
    TRY(blocks_of(m->out, to));
    for (;;) {
        seen = atomic_load_explicit(&ch->taken.value, memory_order_acquire);
        i = choose(ch, m->out[to], bytes, &spare);
        if (i < ENTRIES || spare < ENTRIES) {
            break;
        }
        TRY(futex_wait(c, &ch->taken, seen + 1, to));
    }
    *out = &ch->entry[i < ENTRIES ? i : spare];
    struct block *b = &m->out[to][*out - ch->entry];
    if (i == ENTRIES) {
        return make_block(c, *out, b, bytes);
    }
    if (!b->found) { /* it came back, so the receiver has it */
        c->world->transport->region_found(c->world, &b->region);
        b->found = true;
    }
    return OK;
}

enum err shm_send(struct comm *c, uint32_t to, uint32_t tag, const void *buf, uint64_t bytes,
                  struct comm_ticket *ticket)
{
    struct mail *m = mail_of(c);
    struct channel *ch = &m->channel[c->rank * c->size + to];
    struct entry *e;
    TRY(free_entry(c, to, bytes, &e));
    if (bytes > 0) {
        memcpy(m->out[to][e - ch->entry].region.base, buf, bytes);
    }
    e->tag = tag;
    e->bytes = bytes;
    e->order = ++m->order[to];
    e->sent_by = c->sig;
    uint64_t hold = shm_disturb(c);
    e->hold_until_ns = hold > 0 ? now_ns() + hold : 0;
    atomic_store_explicit(&e->full, 1, memory_order_release);
    if (e == ch->entry + atomic_load_explicit(&ch->used, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&ch->used, 1, memory_order_release);
    }
    futex_post(&ch->sent);
    ticket->state = NULL;
    return OK;
}

/* The message of a tag that was sent first, among those that one look through the entries meets. */
static struct entry *look(const struct comm *c, struct channel *ch, uint32_t tag)
{
    struct entry *best = NULL;
    uint32_t used = atomic_load_explicit(&ch->used, memory_order_acquire);
    for (uint32_t i = 0; i < used; i++) {
        struct entry *e = &ch->entry[i];
        if (is_full(e) && e->tag == tag && (best == NULL || e->order < best->order)) {
            best = e;
        }
        if (i == 0) {
            (void)shm_disturb(c);
        }
    }
    return best;
}

/* The message of a tag that was sent first. One look may pass an entry just before its message comes and then meet the
 * message after it. But who has met a message sees all that were sent before it: a second look, begun afterwards, meets
 * the first of them. */
static struct entry *oldest(const struct comm *c, struct channel *ch, uint32_t tag)
{
    return look(c, ch, tag) != NULL ? look(c, ch, tag) : NULL;
}

static enum err fail_size(struct comm *c, const struct entry *e)
{
    char mine[COMM_SIG_TEXT], theirs[COMM_SIG_TEXT], text[2 * COMM_SIG_TEXT + 128];
    sig_text(&c->sig, mine);
    sig_text(&e->sent_by, theirs);
    snprintf(text, sizeof(text), "rank %u is at %s; rank %u made %s: both must give the same number of bytes",
             c->world->rank, mine, c->member[c->sig.root], theirs);
    return node_fail_too(c->world, COMM_NOBODY, ERR_PEER, text);
}

/* The message is there: its bytes into buf, its entry back to the sender. */
static enum err take(struct comm *c, struct channel *ch, struct entry *e, void *buf)
{
    struct comm_world *w = c->world;
    struct block *b = &mail_of(c)->in[c->sig.root][e - ch->entry];
    if (b->generation != e->generation) {
        if (b->region.bytes > 0) {
            w->transport->region_free(w, &b->region);
        }
        *b = (struct block){ .generation = 0 };
        struct comm_region region = { .handle = e->handle, .bytes = e->capacity };
        TRY(w->transport->region_map(w, &region));
        *b = (struct block){ .region = region, .generation = e->generation };
    }
    if (e->bytes > 0) {
        memcpy(buf, b->region.base, e->bytes);
    }
    atomic_store_explicit(&e->full, 0, memory_order_release);
    futex_post(&ch->taken);
    return OK;
}

enum err shm_recv(struct comm *c, uint32_t from, uint32_t tag, void *buf, uint64_t bytes)
{
    struct channel *ch = &mail_of(c)->channel[from * c->size + c->rank];
    TRY(blocks_of(mail_of(c)->in, from));
    for (;;) {
        uint32_t seen = atomic_load_explicit(&ch->sent.value, memory_order_acquire);
        struct entry *e = oldest(c, ch, tag);
        if (e == NULL) {
            TRY(futex_wait(c, &ch->sent, seen + 1, from));
        } else if (e->bytes != bytes) {
            return fail_size(c, e);
        } else if (e->hold_until_ns == 0 || e->hold_until_ns <= now_ns()) {
            return take(c, ch, e, buf);
        } else {
            nanosleep(&(struct timespec){ 0, 10000 }, NULL);
        }
    }
}
