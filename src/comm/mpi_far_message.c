/* Why this exists: messages between two ranks on different nodes. A send copies and goes at once as a header, the
 * signature of the call, and the bytes; the receiver looks at the header before it takes the bytes, so that two ranks
 * that disagree about a message learn it from each other's words and not from damaged memory.
 *
 * Invariant: header and pieces of a message have one tag and follow each other, and MPI keeps the order of a pair and
 * tag. A copy lives until it has arrived, so a send waits for nobody; records are used again, so a job in its stride
 * makes none. */
#include "base/mem.h"
#include "comm/mpi_far.h"

struct far_send {
    struct far_send *next; /* of f->sends */
    struct comm_sig header;
    unsigned char *bytes;
    uint64_t room;
    struct exchange x; /* header and pieces; empty: the record is free */
    size_t capacity;
};

static uint64_t pieces(uint64_t bytes)
{
    return (bytes + LINK_BYTES_MAX - 1) / LINK_BYTES_MAX;
}

static uint64_t piece_bytes(uint64_t bytes, uint64_t piece)
{
    uint64_t left = bytes - piece * LINK_BYTES_MAX;
    return left < LINK_BYTES_MAX ? left : LINK_BYTES_MAX;
}

static enum err check_tag(const struct comm *c, uint32_t tag)
{
    uint32_t most = link_tag_max(far_of(c)->link) - TAG_MESSAGE;
    if (tag > most) {
        return FAIL(ERR_RESOURCE, "message tag %u: this MPI library allows %u | use fewer micro-batches", tag, most);
    }
    return OK;
}

/* Empties what has arrived in the meantime. */
static enum err reap(struct comm *c, struct far_send *s)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < s->x.count; i++) {
        bool done;
        enum err err = link_test(far_of(c)->link, &s->x.request[i], &done, NULL);
        if (err != OK) {
            return comm_fail(c->world, err);
        }
        left += !done;
    }
    s->x.count = left > 0 ? s->x.count : 0;
    return OK;
}

/* A free record, the one whose room fits best; NULL when there is none. */
static enum err choose(struct comm *c, uint64_t bytes, struct far_send **out)
{
    struct far_send *best = NULL;
    for (struct far_send *s = far_of(c)->sends; s != NULL; s = s->next) {
        TRY(reap(c, s));
        if (s->x.count > 0) {
            continue;
        }
        bool fits = s->room >= bytes, best_fits = best != NULL && best->room >= bytes;
        if (best == NULL || (fits ? !best_fits || s->room < best->room : !best_fits && s->room > best->room)) {
            best = s;
        }
    }
    *out = best;
    return OK;
}

/* A free record with room for a message. */
static enum err send_new(struct comm *c, uint64_t bytes, struct far_send **out)
{
    void *mem;
    TRY(choose(c, bytes, out));
    if (*out == NULL) {
        TRY(mem_alloc(&mem, 1, sizeof(struct far_send)));
        *out = mem;
        (*out)->next = far_of(c)->sends;
        far_of(c)->sends = *out;
    }
    struct far_send *s = *out;
    if (s->room < bytes) {
        TRY(mem_alloc(&mem, bytes, 1));
        free(s->bytes);
        atomic_fetch_add(&c->world->memory_bytes, bytes - s->room);
        s->bytes = mem;
        s->room = bytes;
    }
    void *requests = s->x.request;
    enum err err = mem_grow(&requests, &s->capacity, 1 + pieces(bytes), sizeof(*s->x.request));
    s->x.request = requests;
    return err;
}

void far_sends_free(struct far *f)
{
    for (struct far_send *s = f->sends, *next; s != NULL; s = next) {
        next = s->next;
        for (uint32_t i = 0; i < s->x.count; i++) {
            bool done; /* so that MPI forgets it, too */
            if (link_test(f->link, &s->x.request[i], &done, NULL) != OK) {
                break;
            }
        }
        free(s->bytes);
        free(s->x.request);
        free(s);
    }
    f->sends = NULL;
}

/* Called with the lock; *flies: it is still on its way. */
static enum err send_copy(struct comm *c, uint32_t to, uint32_t tag, const void *buf, uint64_t bytes, bool *flies)
{
    struct far_send *s;
    TRY(send_new(c, bytes, &s));
    s->header = c->sig;
    if (bytes > 0) {
        memcpy(s->bytes, buf, bytes);
    }
    TRY(far_post_send(c, &s->x, to, TAG_MESSAGE + tag, &s->header, sizeof(s->header)));
    for (uint64_t i = 0; i < pieces(bytes); i++) {
        TRY(far_post_send(c, &s->x, to, TAG_MESSAGE + tag, s->bytes + i * LINK_BYTES_MAX, piece_bytes(bytes, i)));
    }
    TRY(reap(c, s));
    *flies = s->x.count > 0;
    return OK;
}

enum err far_send(struct comm *c, uint32_t to, uint32_t tag, const void *buf, uint64_t bytes,
                  struct comm_ticket *ticket)
{
    TRY(check_tag(c, tag));
    bool flies = false;
    pthread_mutex_lock(&far_of(c)->sending);
    enum err err = send_copy(c, to, tag, buf, bytes, &flies);
    pthread_mutex_unlock(&far_of(c)->sending);
    if (flies) {
        mpi_pump_wake(c->world);
    }
    ticket->state = NULL; /* the buffer is free already */
    return err;
}

bool far_sends_fly(struct comm *c)
{
    struct far *f = far_of(c);
    if (pthread_mutex_trylock(&f->sending) != 0) {
        return true;
    }
    bool any = false;
    for (struct far_send *s = f->sends; s != NULL; s = s->next) {
        any |= reap(c, s) == OK && s->x.count > 0;
    }
    pthread_mutex_unlock(&f->sending);
    return any;
}

static enum err fail_size(struct comm *c, uint32_t from)
{
    char mine[COMM_SIG_TEXT], theirs[COMM_SIG_TEXT], text[2 * COMM_SIG_TEXT + 128];
    sig_text(&c->sig, mine);
    sig_text(&far_of(c)->header, theirs);
    snprintf(text, sizeof(text), "rank %u is at %s; rank %u made %s: both must give the same number of bytes",
             c->world->rank, mine, c->member[from], theirs);
    return node_fail_too(c->world, COMM_NOBODY, ERR_PEER, text);
}

enum err far_recv(struct comm *c, uint32_t from, uint32_t tag, void *buf, uint64_t bytes)
{
    struct far *f = far_of(c);
    struct exchange *x = &f->x[0];
    TRY(check_tag(c, tag));
    TRY(far_post_recv(c, x, from, TAG_MESSAGE + tag, &f->header, sizeof(f->header)));
    TRY(far_wait(c, x));
    if (f->header.count != bytes) {
        return fail_size(c, from);
    }
    for (uint64_t i = 0; i < pieces(bytes); i++) {
        unsigned char *piece = (unsigned char *)buf + i * LINK_BYTES_MAX;
        TRY(far_post_recv(c, x, from, TAG_MESSAGE + tag, piece, piece_bytes(bytes, i)));
        TRY(far_wait(c, x));
    }
    return OK;
}
