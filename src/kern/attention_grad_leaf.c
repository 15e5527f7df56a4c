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
            const struct matrix o = matrix_at(a, a->o, a->ldo, r, h * a->head_dim, 1.0f);
            const float *d_o = t->g->d_o + r * a->ldo + h * a->head_dim;
            struct v16 sum = v16_zero();
            for (uint64_t d = 0; d < a->head_dim; d += 16) {
                uint32_t n = vector_part(d, a->head_dim);
                sum = v16_fma(v16_load_n(d_o + d, n), matrix_load(&o, 0, d, n), sum);
            }
            t->g->row_dot[h * a->rows + r] = v16_sum(sum);
        }
    }
}

struct backward {
    const struct attention_task *t;
    uint64_t dim;
    bool bf16;
    uint64_t window;
    uint64_t words;           /* numbers_in_word(bf16) */
    uint64_t row, along;      /* row distances: block_row(dim), block_row(dim / words) */
    uint64_t query;           /* the first one of the task, rounded down to a multiple of GROUP */
    uint64_t key, keys;       /* the block of keys */
    uint64_t width;           /* keys up to a multiple of PANEL */
    float *dk, *dv, *dq;      /* blocks of `row` */
    float *k_columns, *v_columns; /* [2][dim / words][PANEL]: lanes are keys */
    /* Operands in words for chains across keys: k (fp32: scaled); across queries: q, d_o [rows / words][row], p, ds
     * [rows / words][BLOCK]; along d: q, d_o [rows][along]; along keys: ds [rows][BLOCK / words]. Where a word holds
     * one number, `along` and `across` are one place. */
    float *k_across, *q_across, *d_o_across, *p, *ds, *q_along, *d_o_along, *ds_along;
    float *lane; /* 0, 1, .. 15 */
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
        for (uint64_t i = s->diagonal ? n : 0, count; i < s->rows; i += count) {
            count = rows_at_once(round_up(s->rows - i, GROUP));
            fetch_ahead(next, n / PANEL * PANEL + i / 2, count / 2);
            struct product x = { .a = a + i * b->along, .a_row = b->along, .b = columns + n * (b->dim / b->words),
                                 .b_k = PANEL, .c = c + i * BLOCK + n, .c_row = BLOCK, .k = b->dim / b->words,
                                 .pairs = b->words == 2 };
            product_rows(&x, count, PANEL, START_ZERO);
        }
    }
}

/* Keys from n on that row i sees within its window. */
V16_INLINE struct m16 in_window(const struct backward *b, const struct step *s, uint64_t i, uint64_t n)
{
    int64_t first = (int64_t)(s->query + i) - (int64_t)(b->key + b->window) + 1;
    return v16_le(v16_set1((float)first), v16_add(v16_load(b->lane), v16_set1((float)n)));
}

/* A vector of scores and of d_o v: p and ds of row i, keys from n on. Rows behind the last are zeros where chains of
 * bf16 take an even number of rows. special: there is a window or a cap. */
V16_INLINE void weigh(const struct backward *b, const struct step *s, uint64_t i, uint64_t n, struct v16 *p,
                      struct v16 *ds, const bool bf16, const bool special)
{
    const struct attention *a = b->t->a;
    bool real = i < s->rows;
    uint64_t at = s->head * a->rows + s->query + i;
    struct v16 lse = v16_set1(real ? a->lse[at] : 0.0f), dot = v16_set1(real ? b->t->g->row_dot[at] : 0.0f);
    struct v16 score = v16_load(b->p + i * BLOCK + n);
    score = bf16 ? v16_mul(score, v16_set1(a->scale)) : score;
    struct v16 slope = v16_set1(1.0f);
    if (special && a->cap > 0.0f) {
        struct v16 ratio = cap_ratio(score, a->cap);
        score = v16_mul(v16_set1(a->cap), ratio);
        slope = v16_fnma(ratio, ratio, slope);
    }
    *p = v16_exp_low(v16_sub(score, lse)); /* never much above 1 */
    *ds = v16_mul(*p, v16_sub(v16_load(b->ds + i * BLOCK + n), dot));
    *ds = special ? v16_mul(*ds, slope) : *ds;
    if (s->diagonal) {
        struct m16 seen = v16_le(v16_add(v16_load(b->lane), v16_set1((float)n)), v16_set1((float)i));
        *p = v16_select(seen, *p, v16_zero());
        *ds = v16_select(seen, *ds, v16_zero());
    }
    if (special && b->window > 0) {
        struct m16 seen = in_window(b, s, i, n);
        *p = v16_select(seen, *p, v16_zero());
        *ds = v16_select(seen, *ds, v16_zero());
    }
    if (bf16 && !real) {
        *p = v16_zero();
        *ds = v16_zero();
    }
}

/* Scores become p and d_o v becomes ds, operands of the products to come. */
V16_INLINE void weights_of(const struct backward *b, const struct step *s, const bool bf16, const bool special)
{
    const uint64_t words = numbers_in_word(bf16);
    for (uint64_t i = 0; i < round_up(s->rows, GROUP); i += words) {
        /* one of two constants: an end that the compiler does not know costs a percent of the whole pass */
        uint64_t end = b->width == PANEL || (s->diagonal && i < PANEL) ? PANEL : BLOCK;
        for (uint64_t n = 0; n < end; n += 16) {
            struct v16 p[2], ds[2];
            UNROLL(2)
            for (uint64_t e = 0; e < words; e++) {
                weigh(b, s, i + e, n, &p[e], &ds[e], bf16, special);
                if (words == 2) {
                    v16_store_pairs(b->ds_along + (i + e) * (BLOCK / 2) + n / 2, ds[e]);
                }
            }
            uint64_t at = i / words * BLOCK + n; /* not behind what was read */
            v16_store(b->p + at, words == 2 ? v16_pair(p[0], p[1]) : bf16 ? v16_round_bf16(p[0]) : p[0]);
            v16_store(b->ds + at, words == 2 ? v16_pair(ds[0], ds[1]) : bf16 ? v16_round_bf16(ds[0]) : ds[0]);
        }
    }
}

static void weights(const struct backward *b, const struct step *s)
{
    bool special = b->window > 0 || b->t->a->cap > 0.0f;
    if (special && b->bf16) {
        weights_of(b, s, true, true);
    } else if (special) {
        weights_of(b, s, false, true);
    } else if (b->bf16) {
        weights_of(b, s, true, false);
    } else {
        weights_of(b, s, false, false);
    }
}

/* Rows or keys that a chain takes. */
static uint64_t extent(const struct backward *b, uint64_t n)
{
    return b->bf16 ? round_up(n, 2) : n;
}

/* dk and dv of the block of keys: the chains go on over the queries of this step. On the diagonal those of GROUP keys
 * start at its first key. */
static void key_gradients(const struct backward *b, const struct step *s)
{
    uint64_t keys = round_up(b->keys, GROUP), at_once = s->diagonal ? GROUP : keys;
    for (uint64_t j = 0; j < b->row - 16; j += STRIP) {
        for (uint64_t i = 0, from; i < keys; i += at_once) {
            from = s->diagonal ? i : 0;
            if (from >= s->rows) {
                break;
            }
            uint64_t first = from / b->words;
            struct product x = { .a = b->p + first * BLOCK + i, .a_k = BLOCK, .b = b->d_o_across + first * b->row + j,
                                 .b_k = b->row, .c = b->dv + i * b->row + j, .c_row = b->row,
                                 .k = extent(b, s->rows - from) / b->words, .pairs = b->words == 2 };
            product_columns(&x, at_once, STRIP, START_C);
            x.a = b->ds + first * BLOCK + i;
            x.b = b->q_across + first * b->row + j;
            x.c = b->dk + i * b->row + j;
            product_columns(&x, at_once, STRIP, START_C);
        }
    }
}

/* Rows from `first` on that lie before `wanted`: less than GROUP of them, computed but not written. */
static uint64_t rows_before(uint64_t first, uint64_t wanted)
{
    return first < wanted ? wanted - first : 0;
}

/* dq of this step's queries: the chains start at the first block of keys that the first query sees, and go on over the
 * others. In place where whole vectors and groups fit, and nothing is left to do: at its end a chain of bf16 numbers is
 * scaled, and +0 added to one that a window cuts. */
static void query_gradients(const struct backward *b, const struct step *s)
{
    const struct attention *a = b->t->a;
    uint64_t skip = rows_before(s->query, b->t->range.q_lo);
    float *dq = b->t->g->dq + s->query * a->ldq + s->head * b->dim;
    float *kept = b->dq + skip * b->row, *wanted = dq + skip * a->ldq;
    bool starts = b->key <= attention_first_key(b->window, s->query), ends = s->diagonal && (b->bf16 || b->window > 0);
    bool in_place = b->dim % PANEL == 0 && s->rows % GROUP == 0 && skip == 0 && !ends;
    if (!in_place && !starts) {
        const struct matrix before = { .p = wanted, .type = NUM_F32, .ld = a->ldq, .scale = 1.0f };
        copy_rows(kept, &before, s->rows - skip, b->dim); /* more would reach past the block */
    }
    float *c = in_place ? dq : b->dq;
    uint64_t c_row = in_place ? a->ldq : b->row;
    uint64_t rows = round_up(s->rows, GROUP), at_once = s->diagonal ? GROUP : rows, along = BLOCK / b->words;
    for (uint64_t j = 0; j < b->row - 16; j += STRIP) {
        fetch_ahead(&s->next_dq, j / STRIP * BLOCK * STRIP / b->row, BLOCK * STRIP / b->row + 1);
        for (uint64_t i = 0; i < rows; i += at_once) {
            uint64_t keys = s->diagonal && i + GROUP < b->keys ? i + GROUP : b->keys;
            struct product x = { .a = b->ds_along + i * along, .a_row = along, .b = b->k_across + j, .b_k = b->row,
                                 .c = c + i * c_row + j, .c_row = c_row, .k = extent(b, keys) / b->words,
                                 .pairs = b->words == 2 };
            product_rows(&x, at_once, STRIP, starts ? START_ZERO : START_C);
        }
    }
    if (!in_place) {
        float factor = ends && b->bf16 ? a->scale : 1.0f;
        store_block(kept, wanted, a->ldq, s->rows - skip, b->dim, factor, ends && b->window > 0);
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
    const struct matrix k = matrix_at(a, a->k, a->ldk, b->key, b->t->kv_head * b->dim, 1.0f);
    const struct matrix v = matrix_at(a, a->v, a->ldk, b->key, b->t->kv_head * b->dim, 1.0f);
    const struct matrix k_scaled = matrix_at(a, a->k, a->ldk, b->key, b->t->kv_head * b->dim, a->scale);
    for (uint64_t n = 0; n < b->width; n += 16) {
        uint64_t element[16];
        for (uint64_t c = 0; c < 16; c++) {
            element[c] = n + c < b->keys ? (n + c) * a->ldk : NO_ROW;
        }
        uint64_t at = n / PANEL * PANEL * (b->dim / b->words) + n % PANEL;
        pack_words(b->k_columns + at, PANEL, &k, element, b->dim);
        pack_words(b->v_columns + at, PANEL, &v, element, b->dim);
    }
    copy_across(b->k_across, &k_scaled, b->keys, b->dim);
}

/* The first query of the task that sees a key of the block. */
static uint64_t first_query(const struct backward *b)
{
    return b->query > b->key ? b->query : b->key;
}

/* The end of the queries of the task that see a key of the block. */
static uint64_t end_query(const struct backward *b)
{
    uint64_t end = b->t->range.q_hi, seen = b->key + b->keys - 1 + b->window;
    return b->window > 0 && seen < end ? seen : end;
}

/* What to fetch during the last step of a block of keys: the places of dk and dv, or else the next block of keys. */
static void fetch_after(const struct backward *b, struct step *s)
{
    const struct attention *a = b->t->a;
    uint64_t next = b->key + b->keys, at = b->t->kv_head * b->dim;
    if (b->t->want_keys) {
        s->next_q = ahead_of(b->t->g->dk + b->key * a->ldk + at, NUM_F32, a->ldk, b->keys, b->dim);
        s->next_d_o = ahead_of(b->t->g->dv + b->key * a->ldk + at, NUM_F32, a->ldk, b->keys, b->dim);
    } else if (next < b->t->range.k_hi) {
        uint64_t left = b->t->range.k_hi - next, rows = left < BLOCK ? left : BLOCK;
        s->next_q = ahead_of(num_at(a->k, a->type, next * a->ldk + at), a->type, a->ldk, rows, b->dim);
        s->next_d_o = ahead_of(num_at(a->v, a->type, next * a->ldk + at), a->type, a->ldk, rows, b->dim);
    }
}

/* The step at the query block from `query` of head `head`, and what to fetch meanwhile. */
static struct step step_at(const struct backward *b, uint64_t head, uint64_t query)
{
    const struct attention *a = b->t->a;
    const struct attention_grad *g = b->t->g;
    uint64_t end = b->t->range.q_hi, rows = end - query < BLOCK ? end - query : BLOCK;
    bool last = query + BLOCK >= end_query(b);
    struct step s = { .head = head, .query = query, .rows = rows, .diagonal = query == b->key };
    uint64_t group = a->heads / a->kv_heads, next_head = last ? head + 1 : head;
    if (next_head == (b->t->kv_head + 1) * group) {
        fetch_after(b, &s);
        return s;
    }
    uint64_t next = last ? first_query(b) : query + BLOCK;
    uint64_t next_rows = end - next < BLOCK ? end - next : BLOCK;
    uint64_t q = next * a->ldq + next_head * b->dim, o = next * a->ldo + next_head * b->dim;
    s.next_q = ahead_of(num_at(a->q, a->type, q), a->type, a->ldq, next_rows, b->dim);
    s.next_d_o = ahead_of(g->d_o + o, NUM_F32, a->ldo, next_rows, b->dim);
    if (b->t->want_dq) {
        s.next_dq = ahead_of(g->dq + q, NUM_F32, a->ldq, next_rows, b->dim);
    }
    return s;
}

static void copy_queries(const struct backward *b, const struct step *s)
{
    const struct attention *a = b->t->a;
    const struct matrix q = matrix_at(a, a->q, a->ldq, s->query, s->head * b->dim, a->scale);
    const struct matrix d_o = { .p = b->t->g->d_o + s->query * a->ldo + s->head * b->dim, .type = NUM_F32, .ld = a->ldo,
                                .bf16 = b->bf16, .scale = 1.0f };
    copy_along(b->q_along, &q, s->rows, b->dim);
    copy_along(b->d_o_along, &d_o, s->rows, b->dim);
    if (b->words == 2) {
        copy_across(b->q_across, &q, s->rows, b->dim);
        copy_across(b->d_o_across, &d_o, s->rows, b->dim);
    }
}

/* `done` is the number of the step, of the last one for a query head that of the last block of queries. */
static void step_run(const struct backward *b, const struct step *s, uint32_t done)
{
    copy_queries(b, s);
    pair_products(b, s, b->q_along, b->k_columns, b->p);
    pair_products(b, s, b->d_o_along, b->v_columns, b->ds);
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
        for (uint64_t query = first_query(b), end = end_query(b); query < end; query += BLOCK) {
            struct step s = step_at(b, b->t->kv_head * group + h, query);
            uint64_t done = query + BLOCK < end ? query / BLOCK + 1 : blocks;
            step_run(b, &s, (uint32_t)(h * blocks + done));
        }
    }
    if (b->t->want_keys) {
        uint64_t skip = rows_before(b->key, b->t->range.k_lo), from = skip * b->row;
        uint64_t to = (b->key + skip) * a->ldk + b->t->kv_head * b->dim;
        float factor = b->bf16 ? a->scale : 1.0f;
        store_block(b->dk + from, b->t->g->dk + to, a->ldk, b->keys - skip, b->dim, factor, b->window > 0);
        store_block(b->dv + from, b->t->g->dv + to, a->ldk, b->keys - skip, b->dim, 1.0f, b->window > 0);
    }
}

void KERN_NAME(attention_backward)(const struct attention_task *t)
{
    bool bf16 = t->a->type == NUM_BF16;
    uint64_t dim = t->a->head_dim, words = numbers_in_word(bf16);
    struct backward b = { .t = t, .dim = dim, .bf16 = bf16, .window = attention_window(t->a), .words = words,
                          .row = block_row(dim), .along = block_row(dim / words),
                          .query = t->range.q_lo / GROUP * GROUP };
    uint64_t across = BLOCK / words * b.row, along = BLOCK * b.along, panels = BLOCK * dim / words;
    struct {
        float **p;
        uint64_t floats;
    } places[] = {
        { &b.dk, BLOCK * b.row }, { &b.dv, BLOCK * b.row }, { &b.dq, BLOCK * b.row }, { &b.k_columns, panels },
        { &b.v_columns, panels }, { &b.k_across, across }, { &b.q_across, across }, { &b.d_o_across, across },
        { &b.p, BLOCK * BLOCK }, { &b.ds, BLOCK * BLOCK }, { &b.lane, 16 }, /* in pairs only: */ { &b.q_along, along },
        { &b.d_o_along, along }, { &b.ds_along, BLOCK * BLOCK / 2 },
    };
    uint64_t count = sizeof(places) / sizeof(places[0]);
    float *next = t->scratch;
    for (uint64_t i = 0; i < (words == 2 ? count : count - 3); i++) {
        *places[i].p = carve(&next, places[i].floats);
    }
    if (words == 1) {
        b.q_along = b.q_across;
        b.d_o_along = b.d_o_across;
        b.ds_along = b.ds;
    }
    BUG_IF(next > t->scratch + ATTENTION_SCRATCH_FLOATS);
    for (uint32_t l = 0; l < 16; l++) {
        b.lane[l] = (float)l;
    }
    for (b.key = t->range.k_lo / GROUP * GROUP; b.key < t->range.k_hi; b.key += b.keys) {
        uint64_t left = t->range.k_hi - b.key, whole = BLOCK - (b.key - b.query) % BLOCK;
        b.keys = left < whole ? left : whole;
        b.width = round_up(b.keys, PANEL);
        key_block(&b);
    }
}
