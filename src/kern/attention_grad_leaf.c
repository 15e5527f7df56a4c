/* Why this exists: the gradients of attention, once per instruction set, the same bits in each. The definition is at
 * the top of attention_leaf.c; how tasks follow each other is in attention.c.
 *
 * A task goes through its keys in blocks. It holds the transposed keys and values and the chains of dk and dv of one
 * block, and passes over its query blocks that see those keys, once for each query head of the group.
 *
 * Blocks may start at any multiple of GROUP, which keeps the extent of every chain; those of keys and of queries start
 * at the same places, so that only pairs of blocks with one start (`diagonal`) hold pairs that are not seen. */
#include <sched.h>

#include "kern/attention_tile.h"

void KERN_NAME(attention_row_dot)(const struct attention_task *t, uint64_t begin, uint64_t end)
{
    const struct attention *a = t->a;
    for (uint64_t r = begin; r < end; r++) {
        for (uint64_t h = 0; h < a->heads; h++) {
            const float *o = (const float *)a->o + r * a->ldo + h * a->head_dim, *d_o = t->g->d_o + r * a->ldo + h * a->head_dim;
            struct v16 sum = v16_zero();
            for (uint64_t d = 0; d < a->head_dim; d += 16) {
                uint32_t n = a->head_dim - d < 16 ? (uint32_t)(a->head_dim - d) : 16u;
                sum = v16_fma(v16_load_n(d_o + d, n), v16_load_n(o + d, n), sum);
            }
            t->g->row_dot[h * a->rows + r] = v16_sum(sum);
        }
    }
}

struct backward {
    const struct attention_task *t;
    uint64_t dim, row;  /* row: block_row(dim) */
    uint64_t query;     /* the first one of the task, rounded down to a multiple of GROUP */
    uint64_t key, keys; /* the block of keys */
    uint64_t width;     /* keys up to a multiple of PANEL */
    float *k_columns, *v_columns; /* [2][dim][PANEL]: lanes are keys */
    float *k_rows;                /* block, scaled */
    float *dk, *dv;               /* blocks */
    float *q, *d_o, *dq;          /* blocks of the current step */
    float *p, *ds;                /* [BLOCK][BLOCK]: query, key */
};

/* One query block of one query head. */
struct step {
    uint64_t head, query, rows;
    bool diagonal; /* the block's own keys: a query sees only some */
    struct ahead next_q, next_d_o, next_dq;
};

/* c[i][key] = chain over d of a[i][d] columns[d][key], only where some pair of a group and a panel is seen. */
static void pair_products(const struct backward *b, const struct step *s, const float *a, const float *columns,
                          float *c)
{
    const struct ahead *next = c == b->p ? &s->next_q : &s->next_d_o;
    for (uint64_t n = 0; n < b->width; n += PANEL) {
        for (uint64_t i = s->diagonal ? n : 0; i < s->rows; i += GROUP) {
            fetch_ahead(next, n / PANEL * PANEL + i / 2, GROUP / 2, b->dim);
            struct product x = { .a = a + i * b->row, .a_row = b->row, .b = columns + n * b->dim, .b_k = PANEL,
                                 .c = c + i * BLOCK + n, .c_row = BLOCK, .k = b->dim };
            group_rows(&x, PANEL, START_ZERO);
        }
    }
}

/* Scores become p and d_o v becomes ds. */
static void weights(const struct backward *b, const struct step *s)
{
    const struct attention *a = b->t->a;
    const float *lse = a->lse + s->head * a->rows + s->query, *dot = b->t->g->row_dot + s->head * a->rows + s->query;
    float first[16];
    for (uint32_t l = 0; l < 16; l++) {
        first[l] = (float)l;
    }
    for (uint64_t i = 0; i < round_up(s->rows, GROUP); i++) {
        struct v16 row_lse = v16_set1(i < s->rows ? lse[i] : 0.0f), row_dot_ = v16_set1(i < s->rows ? dot[i] : 0.0f);
        /* one of two constants: an end that the compiler does not know costs a percent of the whole pass */
        uint64_t end = b->width == PANEL || (s->diagonal && i < PANEL) ? PANEL : BLOCK;
        for (uint64_t n = 0; n < end; n += 16) {
            float *p = b->p + i * BLOCK + n, *ds = b->ds + i * BLOCK + n;
            struct v16 weight = v16_exp_low(v16_sub(v16_load(p), row_lse)); /* never much above 1 */
            struct v16 slope = v16_mul(weight, v16_sub(v16_load(ds), row_dot_));
            if (s->diagonal) {
                struct m16 seen = v16_le(v16_add(v16_load(first), v16_set1((float)n)), v16_set1((float)i));
                weight = v16_select(seen, weight, v16_zero());
                slope = v16_select(seen, slope, v16_zero());
            }
            v16_store(p, weight);
            v16_store(ds, slope);
        }
    }
}

/* dk and dv of the block of keys: the chains go on over the queries of this step. */
static void key_gradients(const struct backward *b, const struct step *s)
{
    for (uint64_t i = 0; i < b->keys; i += GROUP) {
        uint64_t from = s->diagonal ? i : 0;
        if (from >= s->rows) {
            return;
        }
        struct product x = { .a = b->p + from * BLOCK + i, .a_k = BLOCK, .b = b->d_o + from * b->row, .b_k = b->row,
                             .c = b->dv + i * b->row, .c_row = b->row, .k = s->rows - from };
        group_columns(&x, b->row - 16, START_C);
        x.a = b->ds + from * BLOCK + i;
        x.b = b->q + from * b->row;
        x.c = b->dk + i * b->row;
        group_columns(&x, b->row - 16, START_C);
    }
}

/* Rows from `first` on that lie before `wanted`: less than GROUP of them, computed but not written. */
static uint64_t rows_before(uint64_t first, uint64_t wanted)
{
    return first < wanted ? wanted - first : 0;
}

/* dq of this step's queries: the chains go on over the block of keys. In place where whole vectors and groups fit. */
static void query_gradients(const struct backward *b, const struct step *s)
{
    const struct attention *a = b->t->a;
    uint64_t skip = rows_before(s->query, b->t->range.q_lo);
    float *dq = b->t->g->dq + s->query * a->ldq + s->head * b->dim;
    float *kept = b->dq + skip * b->row, *wanted = dq + skip * a->ldq;
    bool in_place = b->dim % PANEL == 0 && s->rows % GROUP == 0 && skip == 0;
    if (!in_place && b->key > 0) {
        copy_rows(kept, wanted, a->ldq, s->rows - skip, b->dim, 1.0f); /* more would reach past the block */
    }
    float *c = in_place ? dq : b->dq;
    uint64_t c_row = in_place ? a->ldq : b->row;
    for (uint64_t i = 0; i < s->rows; i += GROUP) {
        fetch_ahead(&s->next_dq, i, GROUP, b->dim);
        uint64_t keys = s->diagonal && i + GROUP < b->keys ? i + GROUP : b->keys;
        struct product x = { .a = b->ds + i * BLOCK, .a_row = BLOCK, .b = b->k_rows, .b_k = b->row, .c = c + i * c_row,
                             .c_row = c_row, .k = keys };
        group_rows(&x, b->row - 16, b->key > 0 ? START_C : START_ZERO);
    }
    if (!in_place) {
        store_block(kept, wanted, a->ldq, s->rows - skip, b->dim);
    }
}

static void wait_until(const _Atomic uint32_t *progress, uint32_t value)
{
    for (uint32_t spins = 0; atomic_load_explicit(progress, memory_order_acquire) < value; spins++) {
        pool_relax();
        if (spins > 1000) {
            sched_yield();
        }
    }
}

static void pack_keys(const struct backward *b)
{
    const struct attention *a = b->t->a;
    const float *k = (const float *)a->k + b->key * a->ldk + b->t->kv_head * b->dim;
    const float *v = (const float *)a->v + b->key * a->ldk + b->t->kv_head * b->dim;
    for (uint64_t n = 0; n < b->width; n += 16) {
        const float *k_row[16], *v_row[16];
        for (uint64_t c = 0; c < 16; c++) {
            k_row[c] = n + c < b->keys ? k + (n + c) * a->ldk : NULL;
            v_row[c] = n + c < b->keys ? v + (n + c) * a->ldk : NULL;
        }
        uint64_t at = n / PANEL * PANEL * b->dim + n % PANEL;
        pack_sixteen(b->k_columns + at, PANEL, k_row, b->dim, 1.0f);
        pack_sixteen(b->v_columns + at, PANEL, v_row, b->dim, 1.0f);
    }
    copy_block(b->k_rows, k, a->ldk, b->keys, b->dim, a->scale);
}

/* The first query of the task that sees a key of the block. */
static uint64_t first_query(const struct backward *b)
{
    return b->query > b->key ? b->query : b->key;
}

/* What to fetch during the last step of a block of keys: the places of dk and dv, or else the next block of keys. */
static void fetch_after(const struct backward *b, struct step *s)
{
    const struct attention *a = b->t->a;
    uint64_t next = b->key + b->keys, at = b->t->kv_head * b->dim;
    if (b->t->want_keys) {
        s->next_q = (struct ahead){ b->t->g->dk + b->key * a->ldk + at, a->ldk, b->keys };
        s->next_d_o = (struct ahead){ b->t->g->dv + b->key * a->ldk + at, a->ldk, b->keys };
    } else if (next < b->t->range.k_hi) {
        uint64_t left = b->t->range.k_hi - next, rows = left < BLOCK ? left : BLOCK;
        s->next_q = (struct ahead){ (const float *)a->k + next * a->ldk + at, a->ldk, rows };
        s->next_d_o = (struct ahead){ (const float *)a->v + next * a->ldk + at, a->ldk, rows };
    }
}

/* The step at the query block from `query` of head `head`, and what to fetch meanwhile. */
static struct step step_at(const struct backward *b, uint64_t head, uint64_t query)
{
    const struct attention *a = b->t->a;
    const struct attention_grad *g = b->t->g;
    uint64_t end = b->t->range.q_hi, left = end - query, rows = left < BLOCK ? left : BLOCK;
    struct step s = { .head = head, .query = query, .rows = rows, .diagonal = query == b->key };
    uint64_t group = a->heads / a->kv_heads, next_head = left > rows ? head : head + 1;
    if (next_head == (b->t->kv_head + 1) * group) {
        fetch_after(b, &s);
        return s;
    }
    uint64_t next = left > rows ? query + BLOCK : first_query(b);
    uint64_t next_rows = end - next < BLOCK ? end - next : BLOCK;
    uint64_t q = next * a->ldq + next_head * b->dim, o = next * a->ldo + next_head * b->dim;
    s.next_q = (struct ahead){ (const float *)a->q + q, a->ldq, next_rows };
    s.next_d_o = (struct ahead){ g->d_o + o, a->ldo, next_rows };
    if (b->t->want_dq) {
        s.next_dq = (struct ahead){ g->dq + q, a->ldq, next_rows };
    }
    return s;
}

/* `done` is the number of the step. */
static void step_run(const struct backward *b, const struct step *s, uint32_t done)
{
    const struct attention *a = b->t->a;
    copy_block(b->q, (const float *)a->q + s->query * a->ldq + s->head * b->dim, a->ldq, s->rows, b->dim, a->scale);
    copy_block(b->d_o, b->t->g->d_o + s->query * a->ldo + s->head * b->dim, a->ldo, s->rows, b->dim, 1.0f);
    pair_products(b, s, b->q, b->k_columns, b->p);
    pair_products(b, s, b->d_o, b->v_columns, b->ds);
    weights(b, s);
    if (b->t->want_keys) {
        key_gradients(b, s);
    }
    if (b->t->before != NULL) {
        wait_until(b->t->before, done);
    }
    if (b->t->want_dq) {
        query_gradients(b, s);
    }
    if (b->t->mine != NULL) {
        atomic_store_explicit(b->t->mine, done, memory_order_release);
    }
}

static void key_block(const struct backward *b)
{
    const struct attention *a = b->t->a;
    uint64_t group = a->heads / a->kv_heads, blocks = (a->rows + BLOCK - 1) / BLOCK;
    pack_keys(b);
    for (uint64_t e = 0; e < BLOCK * b->row && b->t->want_keys; e += 16) {
        v16_store(b->dk + e, v16_zero());
        v16_store(b->dv + e, v16_zero());
    }
    for (uint64_t h = 0; h < group; h++) {
        for (uint64_t query = first_query(b); query < b->t->range.q_hi; query += BLOCK) {
            struct step s = step_at(b, b->t->kv_head * group + h, query);
            step_run(b, &s, (uint32_t)(h * blocks + query / BLOCK + 1));
        }
    }
    if (b->t->want_keys) {
        uint64_t skip = rows_before(b->key, b->t->range.k_lo), from = skip * b->row;
        uint64_t to = (b->key + skip) * a->ldk + b->t->kv_head * b->dim;
        store_block(b->dk + from, b->t->g->dk + to, a->ldk, b->keys - skip, b->dim);
        store_block(b->dv + from, b->t->g->dv + to, a->ldk, b->keys - skip, b->dim);
    }
}

void KERN_NAME(attention_backward)(const struct attention_task *t)
{
    uint64_t dim = t->a->head_dim;
    struct backward b = { .t = t, .dim = dim, .row = block_row(dim), .query = t->range.q_lo / GROUP * GROUP };
    float *next = t->scratch;
    float **blocks_of_rows[] = { &b.k_rows, &b.dk, &b.dv, &b.q, &b.d_o, &b.dq };
    for (uint32_t i = 0; i < sizeof(blocks_of_rows) / sizeof(blocks_of_rows[0]); i++) {
        *blocks_of_rows[i] = carve(&next, BLOCK * b.row);
    }
    b.k_columns = carve(&next, BLOCK * dim);
    b.v_columns = carve(&next, BLOCK * dim);
    b.p = carve(&next, BLOCK * BLOCK);
    b.ds = carve(&next, BLOCK * BLOCK);
    BUG_IF(next > t->scratch + ATTENTION_SCRATCH_FLOATS);
    for (b.key = t->range.k_lo / GROUP * GROUP; b.key < t->range.k_hi; b.key += b.keys) {
        uint64_t left = t->range.k_hi - b.key, whole = BLOCK - (b.key - b.query) % BLOCK;
        b.keys = left < whole ? left : whole;
        b.width = round_up(b.keys, PANEL);
        key_block(&b);
    }
}
