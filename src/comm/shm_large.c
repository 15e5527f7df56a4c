/* Why this exists: the collectives that move a model's worth of data through shared memory: gradients, parameters and
 * the partial sums of tensor parallelism. Each number is read from its owner's memory once and staged in cache; partial
 * sums are read where a product left them.
 *
 * Invariant: a rank's half of a stage holds, in a reduce-scatter, a slot for each other rank; which slot is whose is
 * the distance between the two ranks. */
#include "comm/shm.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t longest(const uint64_t *bounds, uint32_t size)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < size; r++) {
        most = bounds[r + 1] - bounds[r] > most ? bounds[r + 1] - bounds[r] : most;
    }
    return most;
}

/* Elements of stretch r that a stage starting at `at` with room for `room` moves. */
static uint64_t staged(const uint64_t *bounds, uint32_t r, uint64_t at, uint64_t room)
{
    uint64_t length = bounds[r + 1] - bounds[r];
    return at < length ? smaller(length - at, room) : 0;
}

/* Slot, in the half of `source`, of what it has for `dest`. */
static uint64_t slot_of(const struct comm *c, uint32_t source, uint32_t dest)
{
    return (dest > source ? dest - source : dest + c->size - source) - 1;
}

static void add_i64(int64_t *sum, const int64_t *part, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        sum[i] = (int64_t)((uint64_t)sum[i] + (uint64_t)part[i]);
    }
}

enum err shm_reduce_scatter_i64(struct comm *c, int64_t *buf, const uint64_t *bounds)
{
    uint64_t room = SHM_HALF / 8 / (c->size - 1) / 8 * 8; /* elements of a slot, whole cache lines */
    uint64_t most = longest(bounds, c->size), at = 0;
    do {
        int64_t *own = (int64_t *)shm_half(c, c->rank);
        for (uint32_t r = 0; r < c->size; r++) {
            uint64_t n = r != c->rank ? staged(bounds, r, at, room) : 0;
            if (n > 0) {
                memcpy(own + slot_of(c, c->rank, r) * room, buf + bounds[r] + at, n * 8);
            }
        }
        TRY(shm_meet(c));
        uint64_t n = staged(bounds, c->rank, at, room);
        for (uint32_t r = 0; r < c->size && n > 0; r++) {
            if (r != c->rank) {
                const int64_t *part = (const int64_t *)shm_half(c, r) + slot_of(c, r, c->rank) * room;
                add_i64(buf + bounds[c->rank] + at, part, n);
            }
        }
        shm_next(c);
        at += room;
    } while (at < most);
    return OK;
}

enum err shm_all_gather(struct comm *c, void *buf, uint64_t size, const uint64_t *bounds)
{
    uint64_t room = SHM_HALF / size;
    uint64_t most = longest(bounds, c->size), at = 0;
    BUG_IF(room == 0);
    do {
        uint64_t n = staged(bounds, c->rank, at, room);
        if (n > 0) {
            memcpy(shm_half(c, c->rank), (unsigned char *)buf + (bounds[c->rank] + at) * size, n * size);
        }
        TRY(shm_meet(c));
        for (uint32_t r = 0; r < c->size; r++) {
            n = r != c->rank ? staged(bounds, r, at, room) : 0;
            if (n > 0) {
                memcpy((unsigned char *)buf + (bounds[r] + at) * size, shm_half(c, r), n * size);
            }
        }
        shm_next(c);
        at += room;
    } while (at < most);
    return OK;
}

/* More than two ranks: each sums its share of the rows into its own window, where nobody else reads them, and then
 * everybody finishes all rows from there. */
static enum err sum_by_shares(struct comm *c, const struct comm_tree *t)
{
    const float *const *part = (const float *const *)c->window;
    uint64_t share = (t->rows + c->size - 1) / c->size;
    uint64_t lo = smaller(c->rank * share, t->rows), hi = smaller(lo + share, t->rows);
    const struct comm_tree raw = { .rows = t->rows, .cols = t->cols, .ldo = t->cols, .out = c->window[c->rank] };
    tree_sum_rows(&raw, &(struct tree_rows){ part, c->size, lo, hi, 0 });
    TRY(shm_meet(c));
    for (uint32_t k = 0; k < c->size; k++) {
        uint32_t r = c->rank + k < c->size ? c->rank + k : c->rank + k - c->size;
        lo = smaller(r * share, t->rows);
        tree_sum_rows(t, &(struct tree_rows){ &part[r], 1, lo, smaller(lo + share, t->rows), 0 });
    }
    return OK;
}

enum err shm_tree_sum(struct comm *c, const struct comm_tree *t)
{
    TRY(shm_meet(c));
    if (t->bounds == NULL && c->size > 2) {
        TRY(sum_by_shares(c, t));
    } else {
        uint64_t lo = t->bounds != NULL ? t->bounds[c->rank] : 0;
        uint64_t hi = t->bounds != NULL ? t->bounds[c->rank + 1] : t->rows;
        tree_sum_rows(t, &(struct tree_rows){ (const float *const *)c->window, c->size, lo, hi, lo });
    }
    return shm_meet(c); /* all have read all windows */
}
