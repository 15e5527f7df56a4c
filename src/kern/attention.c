/* Why this exists: attention without a T x T buffer whose bits depend on nothing but its inputs. This file checks the
 * arguments and divides outputs over the pool; attention_leaf.c has the arithmetic and its definition.
 *
 * Division. Forward: (key/value head, block of query columns), the longest first. Full backward: (key block, key/value
 * head), in which one task owns dk and dv of its keys and adds its term to dq of every later query. Those terms must
 * be added in ascending order of key blocks, so task (j, g) follows task (j - 1, g) at a distance: before touching dq
 * of step s it waits until the other has finished step s, or all it has of that query head where a window keeps it from
 * later queries. Scores are therefore computed once, on any number of
 * threads. No deadlock: the pool hands out tasks in ascending order and (j - 1, g) comes before (j, g), so the first
 * unfinished task never waits. Key/value heads are taken side by side, so that with as many heads as threads nobody
 * waits at all.
 * Backward of a part: dk and dv of a key block need all later queries and dq of a query block all earlier keys, which
 * are hardly ever the same pairs. So each block is a task of its own that computes the scores it needs (7 products of a
 * pair where the full pass has 5), and nobody waits.
 *
 * Invariant: progress counters of a task are 0 before the pool starts and are written by that task only. */
#include "kern/attention_leaf.h"

const struct attention_leaves *const attention_leaves_of[ISA_COUNT] = KERN_TABLES(attention_leaves);

/* Key blocks whose progress the workspace can hold: 4M tokens of one head. */
#define PROGRESS_MAX 65536u
#define PROGRESS_BYTES (PROGRESS_MAX * sizeof(_Atomic uint32_t))
#define DOT_ROWS 32u /* rows of one row_dot task */

uint64_t attention_workspace_bytes(uint32_t threads)
{
    return PROGRESS_BYTES + (uint64_t)threads * ATTENTION_SCRATCH_FLOATS * sizeof(float);
}

static _Atomic uint32_t *progress_of(struct kern *k)
{
    return k->attention_workspace;
}

static float *scratch_of(struct kern *k, uint32_t worker)
{
    float *first = (float *)((unsigned char *)k->attention_workspace + PROGRESS_BYTES);
    return first + (uint64_t)worker * ATTENTION_SCRATCH_FLOATS;
}

static uint64_t blocks_of(uint64_t count, uint64_t block)
{
    return count / block + (count % block != 0);
}

/* Positions [lo, hi), cut into blocks from lo rounded down to a multiple of ATTENTION_GROUP. */
struct stretch {
    uint64_t lo, hi;
};

static uint64_t blocks_in(struct stretch s)
{
    return s.lo == s.hi ? 0 : blocks_of(s.hi - s.lo / ATTENTION_GROUP * ATTENTION_GROUP, ATTENTION_BLOCK);
}

static struct stretch block_at(struct stretch s, uint64_t i)
{
    uint64_t lo = s.lo / ATTENTION_GROUP * ATTENTION_GROUP + i * ATTENTION_BLOCK, hi = lo + ATTENTION_BLOCK;
    return (struct stretch){ lo > s.lo ? lo : s.lo, hi < s.hi ? hi : s.hi };
}

static void check_dim(const struct attention *a)
{
    BUG_IF(a->head_dim == 0 || a->head_dim % ATTENTION_GROUP != 0 || a->head_dim > ATTENTION_DIM_MAX);
}

static void check(const struct attention *a)
{
    check_dim(a);
    BUG_IF(a->kv_heads == 0 || a->heads % a->kv_heads != 0);
    BUG_IF(!(a->cap >= 0.0f));
}

struct division {
    struct kern *k;
    const struct attention *a;
    const struct attention_grad *g;
    uint64_t blocks;            /* forward, full backward */
    uint64_t first_head, heads; /* full backward: key/value heads of this round */
    /* Backward of a part: its blocks of each kind. */
    struct stretch queries, keys;
    uint64_t query_blocks, key_blocks;
    bool keys_first;
};

static void forward_task(void *arg, uint64_t task, uint32_t worker)
{
    const struct division *d = arg;
    struct attention_task t = { .a = d->a,
                                .kv_head = task % d->a->kv_heads,
                                .block = d->blocks - 1 - task / d->a->kv_heads,
                                .scratch = scratch_of(d->k, worker) };
    d->k->attention->forward(&t);
}

void kern_attention_forward(struct kern *k, const struct attention *a)
{
    POOL_SPAN(k->pool, "attention", a->rows, a->heads, a->head_dim);
    check(a);
    uint64_t columns = a->rows * (a->heads / a->kv_heads);
    struct division d = { .k = k, .a = a, .blocks = blocks_of(columns, attention_columns(a->head_dim)) };
    pool_run(k->pool, d.blocks * a->kv_heads, forward_task, &d);
}

static void dot_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    const struct division *d = arg;
    struct attention_task t = { .a = d->a, .g = d->g };
    uint64_t begin = task * DOT_ROWS, end = begin + DOT_ROWS;
    d->k->attention->row_dot(&t, begin, end < d->a->rows ? end : d->a->rows);
}

void kern_attention_row_dot(struct kern *k, const struct attention *a, const float *d_o, float *row_dot)
{
    POOL_SPAN(k->pool, "attention row dot", a->rows, a->heads, a->head_dim);
    check_dim(a);
    const struct attention_grad g = { .d_o = d_o, .row_dot = row_dot };
    struct division d = { .k = k, .a = a, .g = &g };
    pool_run(k->pool, blocks_of(a->rows, DOT_ROWS), dot_task, &d);
}

static void backward_task(void *arg, uint64_t task, uint32_t worker)
{
    const struct division *d = arg;
    uint64_t head = task % d->heads, block = task / d->heads;
    _Atomic uint32_t *progress = progress_of(d->k) + head * d->blocks;
    struct stretch keys = block_at((struct stretch){ 0, d->a->rows }, block);
    struct attention_task t = { .a = d->a,
                                .g = d->g,
                                .kv_head = d->first_head + head,
                                .scratch = scratch_of(d->k, worker),
                                .range = { keys.lo, d->a->rows, keys.lo, keys.hi },
                                .want_dq = true,
                                .want_keys = true,
                                .before = block > 0 ? progress + block - 1 : NULL,
                                .mine = progress + block };
    d->k->attention->backward(&t);
}

void kern_attention_backward(struct kern *k, const struct attention *a, const struct attention_grad *g)
{
    POOL_SPAN(k->pool, "attention backward", a->rows, a->heads, a->head_dim);
    check(a);
    BUG_IF(a->first != 0 || a->lse == NULL);
    struct division d = { .k = k, .a = a, .g = g, .blocks = blocks_of(a->rows, ATTENTION_BLOCK) };
    BUG_IF(d.blocks > PROGRESS_MAX);
    if (a->rows == 0) {
        return;
    }
    kern_attention_row_dot(k, a, g->d_o, g->row_dot);
    uint64_t at_once = PROGRESS_MAX / d.blocks;
    for (d.first_head = 0; d.first_head < a->kv_heads; d.first_head += d.heads) {
        uint64_t left = a->kv_heads - d.first_head;
        d.heads = left < at_once ? left : at_once;
        for (uint64_t i = 0; i < d.heads * d.blocks; i++) {
            atomic_store_explicit(progress_of(k) + i, 0, memory_order_relaxed);
        }
        pool_run(k->pool, d.heads * d.blocks, backward_task, &d);
    }
}

/* Within a kind the longest first: key blocks ascending, query blocks descending. */
static void part_task(void *arg, uint64_t task, uint32_t worker)
{
    const struct division *d = arg;
    uint64_t i = task / d->a->kv_heads, rows = d->a->rows;
    struct attention_task t = { .a = d->a, .g = d->g, .kv_head = task % d->a->kv_heads,
                                .scratch = scratch_of(d->k, worker) };
    uint64_t first_kind = d->keys_first ? d->key_blocks : d->query_blocks;
    bool of_first = i < first_kind;
    i -= of_first ? 0 : first_kind;
    t.want_keys = of_first == d->keys_first;
    t.want_dq = !t.want_keys;
    if (t.want_keys) {
        struct stretch keys = block_at(d->keys, i);
        t.range = (struct attention_part){ keys.lo, rows, keys.lo, keys.hi };
    } else {
        struct stretch queries = block_at(d->queries, d->query_blocks - 1 - i);
        /* keys of the last group that the last query does not see: they are in its chain as zeros */
        uint64_t keys = blocks_of(queries.hi, ATTENTION_GROUP) * ATTENTION_GROUP;
        uint64_t first = attention_first_key(attention_window(d->a), queries.lo / ATTENTION_GROUP * ATTENTION_GROUP);
        t.range = (struct attention_part){ queries.lo, queries.hi, first, keys < rows ? keys : rows };
    }
    d->k->attention->backward(&t);
}

void kern_attention_backward_part(struct kern *k, const struct attention *a, const struct attention_grad *g,
                                  const struct attention_part *part)
{
    POOL_SPAN(k->pool, "attention backward", a->rows, a->heads, a->head_dim);
    check(a);
    BUG_IF(a->first != 0 || a->lse == NULL);
    BUG_IF(part->q_lo > part->q_hi || part->q_hi > a->rows || part->k_lo > part->k_hi || part->k_hi > a->rows);
    struct division d = { .k = k, .a = a, .g = g, .queries = { part->q_lo, part->q_hi },
                          .keys = { part->k_lo, part->k_hi } };
    d.query_blocks = blocks_in(d.queries);
    d.key_blocks = blocks_in(d.keys);
    /* The kind with the longer tasks goes first: 4 products for each later query, 3 for each earlier key. */
    d.keys_first = 4 * (a->rows - part->k_lo) > 3 * part->q_hi;
    pool_run(k->pool, (d.query_blocks + d.key_blocks) * a->kv_heads, part_task, &d);
}
