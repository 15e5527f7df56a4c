/* Why this exists: the collectives that move a model's worth of data between nodes. Each rank sends to each other rank
 * what that one needs, in chunks, the next chunk on its way while the last one is summed; so a number crosses once, and
 * memory beside the caller's buffers is a few chunks.
 *
 * Invariant: the chunks of a stretch are cut in the same way by all ranks, who all know all bounds; a rank that has
 * nothing to send to another in a chunk is not waited for. Sums are of integers, or in rank order. */
#include "base/mem.h"
#include "comm/mpi_far.h"

#define STAGE_BYTES ((uint64_t)4 << 20)  /* operands of all other ranks in one chunk .. */
#define STAGE_LEAST ((uint64_t)64 << 10) /* .. and of one of them at least, or one row */
#define GATHER_BYTES ((uint64_t)8 << 20)

struct move {
    struct comm *c;
    unsigned char *buf;
    uint64_t size;          /* bytes of an element */
    const uint64_t *bounds; /* stretches, in elements */
    uint64_t room;          /* elements of a stretch in a chunk */
    /* Sum chunk elements [at, at + n) of this rank's stretch from f->part; NULL: stretches are gathered. */
    void (*sum)(const struct move *m, uint64_t at, uint64_t n);
    const struct comm_tree *tree;
};

struct bytes {
    unsigned char *at;
    uint64_t count;
};

/* Chunk `chunk` of stretch r, in buf. */
static struct bytes stretch(const struct move *m, uint32_t r, uint64_t chunk)
{
    uint64_t length = m->bounds[r + 1] - m->bounds[r], at = chunk * m->room;
    uint64_t n = at >= length ? 0 : length - at < m->room ? length - at : m->room;
    return (struct bytes){ m->buf + (n > 0 ? (m->bounds[r] + at) * m->size : 0), n * m->size };
}

/* Where the operand of rank r for this rank's chunk is staged. */
static unsigned char *stage(const struct move *m, uint32_t r, uint64_t chunk)
{
    uint32_t slot = r < m->c->rank ? r : r - 1;
    return far_of(m->c)->staging + (chunk % 2 * (m->c->size - 1) + slot) * m->room * m->size;
}

static enum err begin(const struct move *m, uint64_t chunk)
{
    struct comm *c = m->c;
    struct exchange *x = &far_of(c)->x[chunk % 2];
    struct bytes mine = stretch(m, c->rank, chunk);
    for (uint32_t d = 1; d < c->size; d++) {
        uint32_t from = (c->rank + c->size - d) % c->size;
        struct bytes in = stretch(m, from, chunk);
        if (m->sum != NULL) {
            in = (struct bytes){ stage(m, from, chunk), mine.count };
        }
        if (in.count > 0) {
            TRY(far_post_recv(c, x, from, TAG_DATA, in.at, in.count));
        }
    }
    for (uint32_t d = 1; d < c->size; d++) {
        uint32_t to = (c->rank + d) % c->size;
        struct bytes out = m->sum != NULL ? stretch(m, to, chunk) : mine;
        if (out.count > 0) {
            TRY(far_post_send(c, x, to, TAG_DATA, out.at, out.count));
        }
    }
    return OK;
}

static void sum_chunk(const struct move *m, uint64_t chunk)
{
    struct bytes mine = stretch(m, m->c->rank, chunk);
    const void **part = far_of(m->c)->part;
    for (uint32_t r = 0; r < m->c->size; r++) {
        part[r] = r == m->c->rank ? mine.at : stage(m, r, chunk);
    }
    if (mine.count > 0) {
        m->sum(m, chunk * m->room, mine.count / m->size);
    }
}

static enum err move_all(const struct move *m)
{
    struct far *f = far_of(m->c);
    uint64_t chunks = 0;
    for (uint32_t r = 0; r < m->c->size; r++) {
        uint64_t n = (m->bounds[r + 1] - m->bounds[r] + m->room - 1) / m->room;
        chunks = n > chunks ? n : chunks;
    }
    if (chunks > 0) {
        TRY(begin(m, 0));
    }
    for (uint64_t i = 0; i < chunks; i++) {
        TRY(far_wait(m->c, &f->x[i % 2]));
        if (i + 1 < chunks) {
            TRY(begin(m, i + 1));
        }
        if (m->sum != NULL) {
            sum_chunk(m, i);
        }
    }
    return OK;
}

/* As many elements as fit `bytes`, at least one. */
static uint64_t room_for(uint64_t bytes, uint64_t size)
{
    BUG_IF(size > LINK_BYTES_MAX);
    return size < bytes ? bytes / size : 1;
}

static enum err reduce_scatter(struct move *m)
{
    struct far *f = far_of(m->c);
    uint64_t each = STAGE_BYTES / (m->c->size - 1);
    m->room = room_for(each > STAGE_LEAST ? each : STAGE_LEAST, m->size);
    uint64_t bytes = 2 * (m->c->size - 1) * m->room * m->size;
    if (bytes > f->staging_bytes) {
        void *staging;
        enum err err = mem_big_alloc(&staging, bytes);
        if (err != OK) {
            return comm_fail(m->c->world, err); /* the others are past the meeting */
        }
        mem_big_free(f->staging, f->staging_bytes);
        atomic_fetch_add(&m->c->world->memory_bytes, bytes - f->staging_bytes);
        f->staging = staging;
        f->staging_bytes = bytes;
    }
    return move_all(m);
}

static void sum_i64(const struct move *m, uint64_t at, uint64_t n)
{
    const int64_t *const *part = (const int64_t *const *)far_of(m->c)->part;
    int64_t *sum = (int64_t *)m->buf + m->bounds[m->c->rank] + at;
    for (uint32_t r = 0; r < m->c->size; r++) {
        for (uint64_t i = 0; r != m->c->rank && i < n; i++) {
            sum[i] = (int64_t)((uint64_t)sum[i] + (uint64_t)part[r][i]);
        }
    }
}

static void max_f32(const struct move *m, uint64_t at, uint64_t n)
{
    const float *const *part = (const float *const *)far_of(m->c)->part;
    float *out = (float *)m->buf + m->bounds[m->c->rank] + at;
    for (uint64_t i = 0; i < n; i++) {
        float most = part[0][i];
        for (uint32_t r = 1; r < m->c->size; r++) {
            most = part[r][i] > most ? part[r][i] : most;
        }
        out[i] = most;
    }
}

static void sum_rows(const struct move *m, uint64_t at, uint64_t n)
{
    struct comm_tree t = *m->tree;
    t.out += at * t.ldo;
    t.residual = t.residual != NULL ? t.residual + at * t.ldo : NULL;
    const float *const *part = (const float *const *)far_of(m->c)->part;
    tree_sum_rows(&t, &(struct tree_rows){ part, m->c->size, 0, n, 0 });
}

enum err far_reduce_scatter_i64(struct comm *c, int64_t *buf, const uint64_t *bounds)
{
    struct move m = { .c = c, .buf = (unsigned char *)buf, .size = sizeof(*buf), .bounds = bounds, .sum = sum_i64 };
    return reduce_scatter(&m);
}

enum err far_reduce_scatter_max(struct comm *c, float *buf, const uint64_t *bounds)
{
    struct move m = { .c = c, .buf = (unsigned char *)buf, .size = sizeof(*buf), .bounds = bounds, .sum = max_f32 };
    return reduce_scatter(&m);
}

enum err far_all_gather(struct comm *c, void *buf, uint64_t size, const uint64_t *bounds)
{
    const struct move m = { .c = c, .buf = buf, .size = size, .bounds = bounds,
                            .room = room_for(GATHER_BYTES, size) };
    return move_all(&m);
}

enum err far_tree_sum(struct comm *c, const struct comm_tree *t)
{
    float *window = c->window[c->rank];
    uint64_t row = t->cols * sizeof(float);
    struct move m = { .c = c, .buf = (unsigned char *)window, .size = row, .bounds = t->bounds, .sum = sum_rows,
                      .tree = t };
    if (row == 0 || t->rows == 0) {
        return OK;
    }
    if (t->bounds != NULL) {
        return reduce_scatter(&m);
    }
    /* Each sums its share of the rows into its own window, where only the others' shares are still to be sent; the
     * shares are gathered there, and everybody finishes all rows. */
    uint64_t *bounds = far_of(c)->bounds;
    for (uint32_t r = 0; r <= c->size; r++) {
        bounds[r] = t->rows / c->size * r + (r < t->rows % c->size ? r : t->rows % c->size);
    }
    const struct comm_tree raw = { .rows = t->rows, .cols = t->cols, .ldo = t->cols,
                                   .out = window + bounds[c->rank] * t->cols };
    m.bounds = bounds;
    m.tree = &raw;
    TRY(reduce_scatter(&m));
    TRY(far_all_gather(c, window, row, bounds));
    const float *part = window;
    tree_sum_rows(t, &(struct tree_rows){ &part, 1, 0, t->rows, 0 });
    return OK;
}
