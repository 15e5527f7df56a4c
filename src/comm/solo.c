/* Why this exists: a group of one rank needs no other: its calls do nothing, or are done in place.
 *
 * Invariant: nothing here waits. */
#include "comm/comm_int.h"

#include "base/mem.h"

static void solo_close(struct comm *c)
{
    mem_big_free(c->window[0], c->window_bytes);
    c->window[0] = NULL;
}

static enum err solo_agree(struct comm *c, enum err mine)
{
    (void)c;
    return mine;
}

static enum err solo_gather(struct comm *c, const void *in, uint64_t bytes, void *out)
{
    (void)c;
    if (bytes > 0 && in != out) {
        memcpy(out, in, bytes);
    }
    return OK;
}

static enum err solo_window(struct comm *c, uint64_t bytes)
{
    void *window;
    TRY(mem_big_alloc(&window, bytes));
    mem_big_free(c->window[0], c->window_bytes);
    atomic_fetch_add(&c->world->memory_bytes, bytes - c->window_bytes);
    c->window[0] = window;
    c->window_bytes = bytes;
    return OK;
}

static enum err solo_tree_sum(struct comm *c, const struct comm_tree *t)
{
    tree_sum_rows(t, &(struct tree_rows){ (const float *const *)c->window, 1, 0, t->rows, 0 });
    return OK;
}

const struct comm_engine solo_engine = {
    .name = "one rank",
    .close = solo_close,
    .agree = solo_agree,
    .gather = solo_gather,
    .window = solo_window,
    .tree_sum = solo_tree_sum,
};
