/* Why this exists: attention without a T x T buffer whose bits depend on nothing but its inputs. This file checks the
 * arguments and divides outputs over the pool; attention_leaf.c has the arithmetic and its definition.
 *
 * Division. Forward: (key/value head, block of query columns), the longest first. Backward: (key block, key/value
 * head), in which one task owns dk and dv of its keys and adds its term to dq of every later query. Those terms must
 * be added in ascending order of key blocks, so task (j, g) follows task (j - 1, g) at a distance: before touching dq
 * of step s it waits until the other has finished step s. Scores are therefore computed once, on any number of
 * threads. No deadlock: the pool hands out tasks in ascending order and (j - 1, g) comes before (j, g), so the first
 * unfinished task never waits. Key/value heads are taken side by side, so that with as many heads as threads nobody
 * waits at all.
 *
 * Invariant: progress counters of a task are 0 before the pool starts and are written by that task only. */
#include "kern/attention_leaf.h"

const struct attention_leaves *const attention_leaves_of[ISA_COUNT] = {
    [ISA_SCALAR] = &attention_leaves_scalar,
    [ISA_AVX2] = &attention_leaves_avx2,
    [ISA_AVX512] = &attention_leaves_avx512,
};

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

static void check(const struct attention *a)
{
    BUG_IF(a->head_dim == 0 || a->head_dim % 8 != 0 || a->head_dim > ATTENTION_DIM_MAX);
    BUG_IF(a->kv_heads == 0 || a->heads % a->kv_heads != 0);
}

struct division {
    struct kern *k;
    const struct attention *a;
    const struct attention_grad *g;
    uint64_t blocks;
    uint64_t first_head, heads; /* key/value heads of this round (backward) */
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
    check(a);
    uint64_t columns = a->rows * (a->heads / a->kv_heads);
    struct division d = { .k = k, .a = a, .blocks = blocks_of(columns, ATTENTION_COLUMNS) };
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

static void backward_task(void *arg, uint64_t task, uint32_t worker)
{
    const struct division *d = arg;
    uint64_t head = task % d->heads, block = task / d->heads;
    _Atomic uint32_t *progress = progress_of(d->k) + head * d->blocks;
    struct attention_task t = { .a = d->a,
                                .g = d->g,
                                .kv_head = d->first_head + head,
                                .block = block,
                                .scratch = scratch_of(d->k, worker),
                                .before = block > 0 ? progress + block - 1 : NULL,
                                .mine = progress + block };
    d->k->attention->backward(&t);
}

void kern_attention_backward(struct kern *k, const struct attention *a, const struct attention_grad *g)
{
    check(a);
    BUG_IF(a->first != 0 || a->lse == NULL);
    struct division d = { .k = k, .a = a, .g = g, .blocks = blocks_of(a->rows, ATTENTION_BLOCK) };
    BUG_IF(d.blocks > PROGRESS_MAX);
    if (a->rows == 0) {
        return;
    }
    pool_run(k->pool, blocks_of(a->rows, DOT_ROWS), dot_task, &d);
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
