/* Why this exists: groups whose ranks have memory in common: threads of one process, processes of one node. Ranks meet
 * through counters in their call slots and pass data through staging areas of fixed size (shm.h).
 *
 * Invariant: how many meetings a call has depends on nothing but its signature, which the first meeting compares. */
#include "comm/shm.h"

#include "base/mem.h"

static struct shm *state(const struct comm *c)
{
    return c->state;
}

/* What member i has published. All have arrived, so it stays as it is. */
static void read_sig(const struct comm *c, uint32_t i, uint64_t *words, size_t bytes)
{
    const _Atomic uint64_t *theirs = c->peer[i]->sig[c->sig.number % 2 == 0 ? CALL_EVEN - 1 : CALL_ODD - 1];
    for (size_t k = 0; k < bytes / 8; k++) {
        words[k] = atomic_load_explicit(&theirs[k], memory_order_relaxed);
    }
}

static enum err compare(struct comm *c)
{
    bool same = true;
    for (uint32_t i = 0; i < c->size; i++) {
        uint64_t words[COMM_SIG_EQUAL_BYTES / 8];
        read_sig(c, i, words, sizeof(words));
        same &= memcmp(words, &c->sig, sizeof(words)) == 0;
    }
    if (same) {
        return OK;
    }
    void *mem;
    enum err err = mem_alloc(&mem, c->size, sizeof(struct comm_sig));
    if (err != OK) {
        return comm_fail(c->world, err);
    }
    struct comm_sig *sigs = mem;
    for (uint32_t i = 0; i < c->size; i++) {
        uint64_t words[COMM_SIG_WORDS];
        read_sig(c, i, words, sizeof(words));
        memcpy(&sigs[i], words, sizeof(words));
    }
    err = call_mismatch(c, sigs);
    free(sigs);
    return err;
}

enum err shm_meet(struct comm *c)
{
    (void)shm_disturb(c);
    futex_post(&c->own->step);
    uint32_t now = atomic_load_explicit(&c->own->step.value, memory_order_relaxed);
    for (uint32_t k = 1; k < c->size; k++) {
        uint32_t i = c->rank + k < c->size ? c->rank + k : c->rank + k - c->size;
        TRY(futex_wait(c, &c->peer[i]->step, now, i));
    }
    (void)shm_disturb(c);
    if (c->fresh) {
        c->fresh = false;
        return compare(c);
    }
    return OK;
}

unsigned char *shm_half(const struct comm *c, uint32_t member)
{
    return c->region.base + (2 * member + state(c)->stage % 2) * SHM_HALF;
}

void shm_next(struct comm *c)
{
    state(c)->stage++;
}

uint64_t shm_group_bytes(uint32_t size)
{
    return size * 2 * SHM_HALF + mail_bytes(size);
}

static void shm_close(struct comm *c)
{
    struct shm *s = state(c);
    if (s->window.bytes > 0) {
        c->world->transport->region_free(c->world, &s->window);
    }
    mail_close(s->mail, c);
    free(s->bounds);
    free(s);
    c->state = NULL;
}

static enum err shm_open(struct comm *c, struct comm *parent)
{
    (void)parent; /* the region is all that a group needs */
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct shm)));
    struct shm *s = mem;
    c->state = s;
    enum err err = mem_alloc(&mem, c->size + 1, sizeof(*s->bounds));
    s->bounds = mem;
    err = err != OK ? err : mail_open(&s->mail, c, c->region.base + c->size * 2 * SHM_HALF);
    if (err != OK) {
        shm_close(c);
    }
    return err;
}

static enum err shm_agree(struct comm *c, enum err mine)
{
    struct verdict {
        uint32_t err;
        char message[ERR_MESSAGE_BYTES];
    };
    struct verdict *own = (struct verdict *)shm_half(c, c->rank);
    own->err = mine;
    if (mine != OK) {
        snprintf(own->message, sizeof(own->message), "%s", err_message());
    }
    TRY(shm_meet(c));
    enum err err = OK;
    for (uint32_t i = 0; i < c->size && err == OK; i++) {
        const struct verdict *theirs = (const struct verdict *)shm_half(c, i);
        if (theirs->err != OK) {
            err = i == c->rank ? mine : FAIL((enum err)theirs->err, "rank %u: %s", c->member[i], theirs->message);
        }
    }
    shm_next(c);
    return err;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static enum err shm_bcast(struct comm *c, uint32_t root, void *buf, uint64_t bytes)
{
    uint64_t at = 0;
    do {
        uint64_t n = smaller(bytes - at, SHM_HALF);
        unsigned char *mine = (unsigned char *)buf + at;
        if (c->rank == root && n > 0) {
            memcpy(shm_half(c, root), mine, n);
        }
        TRY(shm_meet(c));
        if (c->rank != root && n > 0) {
            memcpy(mine, shm_half(c, root), n);
        }
        shm_next(c);
        at += n;
    } while (at < bytes);
    return OK;
}

static enum err shm_gather(struct comm *c, const void *in, uint64_t bytes, void *out)
{
    uint64_t at = 0;
    do {
        uint64_t n = smaller(bytes - at, SHM_HALF);
        if (n > 0) {
            memcpy(shm_half(c, c->rank), (const unsigned char *)in + at, n);
        }
        TRY(shm_meet(c));
        for (uint32_t i = 0; i < c->size && n > 0; i++) {
            memcpy((unsigned char *)out + i * bytes + at, shm_half(c, i), n);
        }
        shm_next(c);
        at += n;
    } while (at < bytes);
    return OK;
}

/* Each rank adds everything itself: right for short arrays and for two ranks. */
static enum err sum_directly(struct comm *c, int64_t *buf, uint64_t n)
{
    uint64_t at = 0;
    do {
        uint64_t count = smaller(n - at, SHM_HALF / 8);
        if (count > 0) {
            memcpy(shm_half(c, c->rank), buf + at, count * 8);
        }
        TRY(shm_meet(c));
        for (uint32_t r = 0; r < c->size; r++) {
            const int64_t *part = (const int64_t *)shm_half(c, r);
            for (uint64_t i = 0; r != c->rank && i < count; i++) {
                buf[at + i] = (int64_t)((uint64_t)buf[at + i] + (uint64_t)part[i]);
            }
        }
        shm_next(c);
        at += count;
    } while (at < n);
    return OK;
}

static enum err shm_sum_i64(struct comm *c, int64_t *buf, uint64_t n)
{
    if (c->size == 2 || n <= SHM_HALF / 8) {
        return sum_directly(c, buf, n);
    }
    uint64_t *bounds = state(c)->bounds;
    for (uint32_t r = 0; r <= c->size; r++) {
        bounds[r] = n / c->size * r + smaller(r, n % c->size);
    }
    TRY(shm_reduce_scatter_i64(c, buf, bounds));
    return shm_all_gather(c, buf, sizeof(*buf), bounds);
}

static enum err shm_max_f32(struct comm *c, float *buf, uint64_t n)
{
    uint64_t at = 0;
    do {
        uint64_t count = smaller(n - at, SHM_HALF / 4);
        if (count > 0) {
            memcpy(shm_half(c, c->rank), buf + at, count * 4);
        }
        TRY(shm_meet(c));
        for (uint32_t r = 0; r < c->size; r++) { /* in the same order on every rank, its own numbers too */
            const float *part = (const float *)shm_half(c, r);
            for (uint64_t i = 0; i < count; i++) {
                buf[at + i] = r == 0 || part[i] > buf[at + i] ? part[i] : buf[at + i];
            }
        }
        shm_next(c);
        at += count;
    } while (at < n);
    return OK;
}

static enum err shm_window(struct comm *c, uint64_t bytes)
{
    struct comm_world *w = c->world;
    struct shm *s = state(c);
    uint64_t each = (bytes + 4095) / 4096 * 4096 + 4096; /* 4096 more: no two windows at the same place of the cache */
    struct comm_region region;
    TRY(region_share(c, 0, each * c->size, &region));
    if (s->window.bytes > 0) {
        atomic_fetch_sub(&w->memory_bytes, s->window.bytes / c->size);
        w->transport->region_free(w, &s->window);
    }
    s->window = region;
    atomic_fetch_add(&w->memory_bytes, each);
    for (uint32_t i = 0; i < c->size; i++) {
        c->window[i] = region.base + i * each;
    }
    c->window_bytes = bytes;
    memset(c->window[c->rank], 0, bytes); /* its pages near this rank */
    return OK;
}

const struct comm_engine shm_engine = {
    .name = "shared memory",
    .open = shm_open,
    .close = shm_close,
    .barrier = shm_meet,
    .agree = shm_agree,
    .bcast = shm_bcast,
    .gather = shm_gather,
    .sum_i64 = shm_sum_i64,
    .max_f32 = shm_max_f32,
    .reduce_scatter_i64 = shm_reduce_scatter_i64,
    .all_gather = shm_all_gather,
    .window = shm_window,
    .tree_sum = shm_tree_sum,
    .send = shm_send,
    /* no sent: a send has copied */
    .recv = shm_recv,
};
