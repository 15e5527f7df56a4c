/* Why this exists: the arithmetic of attention, once per instruction set, the same bits in each.
 *
 * Definition. fma chains start at +0; "scale" is attention.scale; a query at position t of head h sees keys 0..t of
 * key/value head h / group. Every product below is one fused multiply-add.
 *   qs[d] = q[d] * scale (rounded);  s[key] = chain over d ascending of qs[d] k[key][d]
 * Forward, for key blocks b of 64 from position 0 ascending, over the keys of the block that t sees:
 *   m' = max(m, max s);  alpha = exp(m - m');  p[key] = exp(s[key] - m')      (m starts at -inf)
 *   sum: key c of the block goes to lane c mod 16, ascending, then the tree (l, l+8), (l, l+4), (l, l+2), (l, l+1)
 *   l = fma(l, alpha, sum);  o[d] = o[d] * alpha (rounded), then the chain goes on over keys: fma(p[key], v[key][d],
 * o[d]) At the end r = 1 / l;  o[d] = fma(o[d], r, +0);  lse = m + log(l). Backward: dot = 16-lane sum of fused
 * d_o[d] o[d] (element d in lane d mod 16, ascending, the same tree);
 *   p = exp(s - lse);  dp[key] = chain over d of d_o[d] v[key][d];  ds = p * (dp - dot);  ks[d] = k[d] * scale
 *   (rounded)
 *   dq[t][d]   one chain over keys ascending of ds[t][key] ks[key][d]
 *   dk[key][d] one chain over (query head of the group, t) ascending of ds[t][key] qs[t][d]
 *   dv[key][d] one chain in that order of p[t][key] d_o[t][d]
 *
 * Keys a query does not see enter chains of the blocked code as exact zeros: they can change nothing but the sign of a
 * zero. Where it would show (o) the last fma with +0 makes it +; in the gradients the extent of what is computed is
 * fixed: multiples of 8 rows and keys. So no result depends on first, rows, the blocking of queries, or threads.
 *
 * Layout. Vectors lie across query columns in the forward pass (no sum across lanes ever happens) and across keys
 * or d in the backward pass; the other operand of a product is broadcast. Panels are [k][PANEL] floats. Rows of
 * blocks have an odd number of cache lines so that equal columns of different rows do not meet in one cache set. */
#include "kern/attention_leaf.h"

#include <sched.h>

#include "kern/vmath.h"

#define PRAGMA_(text) _Pragma(#text)
#if KERN_ISA == 0
#define UNROLL(n)
#elif defined(__clang__)
#define UNROLL(n) PRAGMA_(clang loop unroll(full))
#else
#define UNROLL(n) PRAGMA_(GCC unroll n)
#endif

#define BLOCK ATTENTION_BLOCK
#define PANEL 32u /* columns of a packed panel */
#define GROUP 8u  /* rows that are computed together: head sizes are multiples of it */

/* The register tile: TILE_ROWS x TILE_VECTORS accumulators, one broadcast and TILE_VECTORS of b. */
#if KERN_ISA == 2
#define TILE_ROWS 8u
#define TILE_VECTORS 2u
#else
#define TILE_ROWS 4u
#define TILE_VECTORS 1u
#endif

/* ---- products ---- */

/* C[i][j] = start + chain over k ascending of a[i * a_row + k * a_k] * b[k * b_k + j]. */
struct product {
    const float *a;
    uint64_t a_row, a_k;
    const float *b;
    uint64_t b_k;
    float *c;
    uint64_t c_row;
    uint64_t k;
    const float *factor; /* [columns], for START_SCALED */
};

enum start {
    START_ZERO,
    START_C,      /* the chain goes on from C */
    START_SCALED, /* from C * factor */
};

V16_INLINE void tile(const struct product *p, uint64_t i, uint64_t j, const uint32_t vectors, const enum start start)
{
    struct v16 acc[TILE_ROWS][2];
    float *c = p->c + i * p->c_row + j;
    UNROLL(8)
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        UNROLL(2)
        for (uint32_t v = 0; v < vectors; v++) {
            acc[r][v] = start == START_ZERO ? v16_zero() : v16_load(c + r * p->c_row + v * 16);
            if (start == START_SCALED) {
                acc[r][v] = v16_mul(acc[r][v], v16_load(p->factor + j + v * 16));
            }
        }
    }
    const float *a = p->a + i * p->a_row, *b = p->b + j;
    for (uint64_t k = p->k; k > 0; k--, a += p->a_k, b += p->b_k) {
        struct v16 row[2];
        UNROLL(2)
        for (uint32_t v = 0; v < vectors; v++) {
            row[v] = v16_load(b + v * 16);
        }
        UNROLL(8)
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            struct v16 x = v16_set1(a[r * p->a_row]);
            UNROLL(2)
            for (uint32_t v = 0; v < vectors; v++) {
                acc[r][v] = v16_fma(x, row[v], acc[r][v]);
            }
        }
    }
    UNROLL(8)
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        UNROLL(2)
        for (uint32_t v = 0; v < vectors; v++) {
            v16_store(c + r * p->c_row + v * 16, acc[r][v]);
        }
    }
}

/* GROUP rows of C from row 0, `columns` (a multiple of 16) columns. */
V16_INLINE void group_any(const struct product *p, uint64_t columns, const enum start start)
{
    for (uint64_t i = 0; i < GROUP; i += TILE_ROWS) {
        uint64_t j = 0;
        for (; j + TILE_VECTORS * 16 <= columns; j += TILE_VECTORS * 16) {
            tile(p, i, j, TILE_VECTORS, start);
        }
        for (; j < columns; j += 16) {
            tile(p, i, j, 1, start);
        }
    }
}

/* a is [row][k]: scores and dq. */
static void group_rows(const struct product *given, uint64_t columns, enum start start)
{
    struct product p = *given;
    p.a_k = 1;
    if (start == START_ZERO) {
        group_any(&p, columns, START_ZERO);
    } else {
        group_any(&p, columns, START_C);
    }
}

/* a is [k][row]: outputs, dk and dv. */
static void group_columns(const struct product *given, uint64_t columns, enum start start)
{
    struct product p = *given;
    p.a_row = 1;
    if (start == START_SCALED) {
        group_any(&p, columns, START_SCALED);
    } else if (start == START_C) {
        group_any(&p, columns, START_C);
    } else {
        group_any(&p, columns, START_ZERO);
    }
}

/* ---- packing ---- */

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Row distance of a block of rows with D columns: a multiple of PANEL and one more cache line. */
static uint64_t block_row(uint64_t dim)
{
    return round_up(dim, PANEL) + 16;
}

/* dst[d * PANEL + c] = row[c][d] * scale for 16 columns; NULL rows are zeros. */
static void pack_sixteen(float *dst, const float *const *row, uint64_t dim, float scale)
{
    for (uint64_t d = 0; d < dim; d += 16) {
        uint32_t n = dim - d < 16 ? (uint32_t)(dim - d) : 16u;
        struct v16 r[16];
        for (uint32_t c = 0; c < 16; c++) {
            r[c] = row[c] == NULL ? v16_zero() : v16_mul(v16_load_n(row[c] + d, n), v16_set1(scale));
        }
        v16_transpose(r);
        for (uint32_t e = 0; e < n; e++) {
            v16_store(dst + (d + e) * PANEL, r[e]);
        }
    }
}

/* dst[r * block_row + d] = src[r * ld + d] * scale for `rows` rows; up to a multiple of GROUP rows and of PANEL
 * columns the rest is zeros. */
static void copy_block(float *dst, const float *src, uint64_t ld, uint64_t rows, uint64_t dim, float scale)
{
    uint64_t to = block_row(dim), width = round_up(dim, PANEL);
    struct v16 factor = v16_set1(scale);
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t d = 0;
        for (; d + 16 <= dim; d += 16) {
            v16_store(dst + r * to + d, v16_mul(v16_load(src + r * ld + d), factor));
        }
        for (; d < width; d += 16) {
            uint32_t n = d < dim ? (uint32_t)(dim - d) : 0u;
            v16_store(dst + r * to + d, v16_mul(v16_load_n(src + r * ld + d, n), factor));
        }
    }
    for (uint64_t r = rows; r < round_up(rows, GROUP); r++) {
        for (uint64_t d = 0; d < width; d += 16) {
            v16_store(dst + r * to + d, v16_zero());
        }
    }
}

/* Rows of a matrix that will be copied next. Their distance is often a multiple of a power of two, so that they do
 * not stay in the second cache and nothing fetches them in time unless asked. */
struct ahead {
    const float *p;
    uint64_t ld, rows;
};

static void fetch_ahead(const struct ahead *x, uint64_t first, uint64_t count, uint64_t dim)
{
    uint64_t end = first + count < x->rows ? first + count : x->rows;
    for (uint64_t r = first; r < end; r++) {
        for (uint64_t d = 0; d < dim; d += 16) {
            v16_prefetch(x->p + r * x->ld + d);
        }
    }
}

/* The inverse of copy_block without scale. */
static void store_block(const float *src, float *dst, uint64_t ld, uint64_t rows, uint64_t dim)
{
    uint64_t from = block_row(dim);
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t d = 0; d < dim; d += 16) {
            v16_store_n(dst + r * ld + d, v16_load(src + r * from + d), dim - d < 16 ? (uint32_t)(dim - d) : 16u);
        }
    }
}

/* Carve `count` floats and an odd cache line, so that buffers do not start in the same cache set. */
static float *carve(float **next, uint64_t count)
{
    float *p = *next;
    *next += round_up(count, 16) + 16;
    return p;
}

/* ---- forward ---- */

/* Up to PANEL query columns and their running state. */
struct panel {
    float *q, *o;             /* [dim][PANEL] */
    float *max, *sum, *alpha; /* [PANEL] */
    int32_t *position;        /* [PANEL] ascending; padding repeats the last */
    uint64_t vectors;         /* of 16 columns in use */
    uint64_t columns;
};

struct forward {
    const struct attention *a;
    uint64_t kv_head, group, dim, first_column;
    float *k, *v;  /* block of keys */
    float *scores; /* [BLOCK][PANEL] */
    struct panel panel[ATTENTION_COLUMNS / PANEL];
    uint64_t panels;
    struct ahead next_k, next_v; /* the next block of keys */
};

static uint64_t column_head(const struct forward *f, uint64_t column)
{
    return f->kv_head * f->group + column % f->group;
}

static void panel_start(const struct forward *f, struct panel *p, uint64_t column)
{
    const struct attention *a = f->a;
    uint64_t left = a->rows * f->group - column;
    p->columns = left < PANEL ? left : PANEL;
    p->vectors = (p->columns + 15) / 16;
    const float *row[PANEL];
    for (uint64_t c = 0; c < PANEL; c++) {
        uint64_t at = column + (c < p->columns ? c : p->columns - 1);
        p->position[c] = (int32_t)(a->first + at / f->group);
        row[c] = c < p->columns ? a->q + at / f->group * a->ldq + column_head(f, at) * f->dim : NULL;
    }
    for (uint64_t v = 0; v < p->vectors; v++) {
        pack_sixteen(p->q + v * 16, row + v * 16, f->dim, a->scale);
        v16_store(p->max + v * 16, v16_set1(-__builtin_inff()));
        v16_store(p->sum + v * 16, v16_zero());
    }
    for (uint64_t e = 0; e < f->dim * PANEL; e += 16) {
        v16_store(p->o + e, v16_zero());
    }
}

/* s and the maximum over `keys` keys of 16 columns; keys a column does not see become -inf. */
static struct v16 mask_and_max(float *s, uint64_t keys, struct v16 last, bool masked)
{
    const struct v16 lowest = v16_set1(-__builtin_inff());
    struct v16 most[4] = { lowest, lowest, lowest, lowest };
    for (uint64_t k = 0; masked && k < keys; k++) {
        struct m16 seen = v16_le(v16_set1((float)k), last);
        v16_store(s + k * PANEL, v16_select(seen, v16_load(s + k * PANEL), lowest));
    }
    for (uint64_t k = 0; k + 4 <= keys; k += 4) {
        UNROLL(4)
        for (uint64_t u = 0; u < 4; u++) {
            most[u] = v16_max(most[u], v16_load(s + (k + u) * PANEL));
        }
    }
    for (uint64_t k = keys / 4 * 4; k < keys; k++) {
        most[0] = v16_max(most[0], v16_load(s + k * PANEL));
    }
    return v16_max(v16_max(most[0], most[1]), v16_max(most[2], most[3]));
}

/* Sum over keys in 16 lanes and the tree; here a lane is a row of vectors. */
static struct v16 lane_sum(const float *p, uint64_t keys)
{
    struct v16 lane[16];
    for (uint64_t l = 0; l < 16; l++) {
        lane[l] = v16_zero();
        for (uint64_t k = l; k < keys; k += 16) {
            lane[l] = v16_add(lane[l], v16_load(p + k * PANEL));
        }
    }
    for (uint64_t half = 8; half > 0; half /= 2) {
        for (uint64_t l = 0; l < half; l++) {
            lane[l] = v16_add(lane[l], lane[l + half]);
        }
    }
    return lane[0];
}

/* Scores to weights for vector v of a panel; `key` is the first key of the block. */
static void panel_softmax(const struct forward *f, struct panel *p, uint64_t v, uint64_t key, uint64_t keys)
{
    float *s = f->scores + v * 16;
    struct v16i seen = v16i_sub(v16i_load(p->position + v * 16), v16i_set1((int32_t)key));
    bool masked = (uint64_t)p->position[v * 16] < key + keys - 1;
    struct v16 before = v16_load(p->max + v * 16);
    struct v16 now = v16_max(before, mask_and_max(s, keys, v16i_to_float(seen), masked));
    struct v16 alpha = v16_exp_low(v16_sub(before, now));
    for (uint64_t k = 0; k < keys; k++) {
        v16_store(s + k * PANEL, v16_exp_low(v16_sub(v16_load(s + k * PANEL), now)));
    }
    v16_store(p->sum + v * 16, v16_fma(v16_load(p->sum + v * 16), alpha, lane_sum(s, keys)));
    v16_store(p->max + v * 16, now);
    v16_store(p->alpha + v * 16, alpha);
}

/* Keys of [key, key + keys) that the last column of the first `vectors` vectors sees; no column of them sees more. */
static uint64_t keys_seen(const struct panel *p, uint64_t vectors, uint64_t key, uint64_t keys)
{
    uint64_t columns = vectors * 16 < p->columns ? vectors * 16 : p->columns;
    uint64_t last = (uint64_t)p->position[columns - 1];
    return last < key ? 0 : last + 1 - key < keys ? last + 1 - key : keys;
}

/* One block of keys for one panel. The second vector's columns may see keys that the first one's do not. */
static void panel_block(const struct forward *f, struct panel *p, uint64_t key, uint64_t keys)
{
    uint64_t row = block_row(f->dim), share = (GROUP + f->panels - 1) / f->panels;
    uint64_t fetch = (uint64_t)(p - f->panel) * (BLOCK / GROUP) * share;
    uint64_t both = keys_seen(p, 1, key, keys), all = keys_seen(p, p->vectors, key, keys);
    for (uint64_t i = 0; i < all; i += GROUP, fetch += share) {
        fetch_ahead(&f->next_k, fetch, share, f->dim);
        fetch_ahead(&f->next_v, fetch, share, f->dim);
        uint64_t skip = i < both ? 0 : 16;
        struct product s = { .a = f->k + i * row, .a_row = row, .b = p->q + skip, .b_k = PANEL,
                             .c = f->scores + i * PANEL + skip, .c_row = PANEL, .k = f->dim };
        group_rows(&s, p->vectors * 16 - skip, START_ZERO);
    }
    if (both > 0) {
        panel_softmax(f, p, 0, key, both);
    }
    if (p->vectors > 1 && all > 0) {
        panel_softmax(f, p, 1, key, all);
    }
    for (uint64_t i = 0; i < f->dim && all > 0; i += GROUP) {
        struct product o = { .a = f->v + i, .a_k = row, .b = f->scores, .b_k = PANEL, .c = p->o + i * PANEL,
                             .c_row = PANEL, .k = both, .factor = p->alpha };
        if (both > 0) {
            group_columns(&o, p->vectors * 16, START_SCALED);
        }
        if (all > both) {
            o.a += both * row;
            o.b += both * PANEL + 16;
            o.c += 16;
            o.k = all - both;
            o.factor += 16;
            group_columns(&o, 16, both > 0 ? START_C : START_SCALED);
        }
    }
}

static void panel_finish(const struct forward *f, struct panel *p, uint64_t column)
{
    const struct attention *a = f->a;
    for (uint64_t v = 0; v < p->vectors; v++) {
        float lse[16];
        struct v16 sum = v16_load(p->sum + v * 16), inverse = v16_div(v16_set1(1.0f), sum);
        v16_store(lse, v16_add(v16_load(p->max + v * 16), v16_log(sum)));
        uint64_t count = p->columns - v * 16 < 16 ? p->columns - v * 16 : 16;
        for (uint64_t d = 0; d < f->dim; d += 16) {
            uint32_t n = f->dim - d < 16 ? (uint32_t)(f->dim - d) : 16u;
            struct v16 r[16];
            for (uint32_t e = 0; e < 16; e++) {
                r[e] = e < n ? v16_fma(v16_load(p->o + (d + e) * PANEL + v * 16), inverse, v16_zero()) : v16_zero();
            }
            v16_transpose(r);
            for (uint64_t c = 0; c < count; c++) {
                uint64_t at = column + v * 16 + c;
                v16_store_n(a->o + at / f->group * a->ldo + column_head(f, at) * f->dim + d, r[c], n);
            }
        }
        for (uint64_t c = 0; a->lse != NULL && c < count; c++) {
            uint64_t at = column + v * 16 + c;
            a->lse[column_head(f, at) * a->rows + at / f->group] = lse[c];
        }
    }
}

static void forward(const struct attention_task *t)
{
    const struct attention *a = t->a;
    struct forward f = { .a = a, .kv_head = t->kv_head, .group = a->heads / a->kv_heads, .dim = a->head_dim };
    uint64_t columns = a->rows * f.group, column = t->block * ATTENTION_COLUMNS;
    uint64_t end = columns - column < ATTENTION_COLUMNS ? columns : column + ATTENTION_COLUMNS;
    float *next = t->scratch;
    f.k = carve(&next, BLOCK * block_row(f.dim));
    f.v = carve(&next, BLOCK * block_row(f.dim));
    f.scores = carve(&next, BLOCK * PANEL);
    for (uint64_t c = column; c < end; c += PANEL, f.panels++) {
        struct panel *p = &f.panel[f.panels];
        p->q = carve(&next, f.dim * PANEL);
        p->o = carve(&next, f.dim * PANEL);
        p->max = carve(&next, PANEL);
        p->sum = carve(&next, PANEL);
        p->alpha = carve(&next, PANEL);
        p->position = (int32_t *)(void *)carve(&next, PANEL);
        panel_start(&f, p, c);
    }
    BUG_IF(next > t->scratch + ATTENTION_SCRATCH_FLOATS);
    uint64_t keys_all = a->first + (end - 1) / f.group + 1;
    for (uint64_t key = 0; key < keys_all; key += BLOCK) {
        uint64_t keys = keys_all - key < BLOCK ? keys_all - key : BLOCK, at = key * a->ldk + t->kv_head * f.dim;
        uint64_t left = keys_all - key - keys, next_at = at + BLOCK * a->ldk;
        copy_block(f.k, a->k + at, a->ldk, keys, f.dim, 1.0f);
        copy_block(f.v, a->v + at, a->ldk, keys, f.dim, 1.0f);
        f.next_k = (struct ahead){ a->k + next_at, a->ldk, left < BLOCK ? left : BLOCK };
        f.next_v = (struct ahead){ a->v + next_at, a->ldk, left < BLOCK ? left : BLOCK };
        for (uint64_t p = 0; p < f.panels; p++) {
            panel_block(&f, &f.panel[p], key, keys);
        }
    }
    for (uint64_t p = 0; p < f.panels; p++) {
        panel_finish(&f, &f.panel[p], column + p * PANEL);
    }
}

/* ---- backward ---- */

static void row_dot(const struct attention_task *t, uint64_t begin, uint64_t end)
{
    const struct attention *a = t->a;
    for (uint64_t r = begin; r < end; r++) {
        for (uint64_t h = 0; h < a->heads; h++) {
            const float *o = a->o + r * a->ldo + h * a->head_dim, *d_o = t->g->d_o + r * a->ldo + h * a->head_dim;
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
    uint64_t dim, row; /* row: block_row(dim) */
    uint64_t key, keys;
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
    for (uint64_t n = 0; n < BLOCK; n += PANEL) {
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
        uint64_t end = s->diagonal && i < PANEL ? PANEL : BLOCK;
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

/* dk and dv of the task's keys: the chains go on over the queries of this step. */
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

/* dq of this step's queries: the chains go on over the task's keys. In place where whole vectors and groups fit. */
static void query_gradients(const struct backward *b, const struct step *s)
{
    const struct attention *a = b->t->a;
    float *dq = b->t->g->dq + s->query * a->ldq + s->head * b->dim;
    bool in_place = b->dim % PANEL == 0 && s->rows % GROUP == 0;
    if (!in_place && b->key > 0) {
        copy_block(b->dq, dq, a->ldq, s->rows, b->dim, 1.0f);
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
        store_block(b->dq, dq, a->ldq, s->rows, b->dim);
    }
}

static void wait_until(const _Atomic uint32_t *progress, uint32_t value)
{
    for (uint32_t spins = 0; atomic_load_explicit(progress, memory_order_acquire) < value; spins++) {
#if KERN_ISA > 0
        _mm_pause();
#endif
        if (spins > 1000) {
            sched_yield();
        }
    }
}

static void pack_keys(const struct backward *b)
{
    const struct attention *a = b->t->a;
    const float *k = a->k + b->key * a->ldk + b->t->kv_head * b->dim;
    const float *v = a->v + b->key * a->ldk + b->t->kv_head * b->dim;
    for (uint64_t n = 0; n < BLOCK; n += 16) {
        const float *k_row[16], *v_row[16];
        for (uint64_t c = 0; c < 16; c++) {
            k_row[c] = n + c < b->keys ? k + (n + c) * a->ldk : NULL;
            v_row[c] = n + c < b->keys ? v + (n + c) * a->ldk : NULL;
        }
        uint64_t at = n / PANEL * PANEL * b->dim + n % PANEL;
        pack_sixteen(b->k_columns + at, k_row, b->dim, 1.0f);
        pack_sixteen(b->v_columns + at, v_row, b->dim, 1.0f);
    }
    copy_block(b->k_rows, k, a->ldk, b->keys, b->dim, a->scale);
}

/* The step at query block `block` of head `head`, and what to fetch meanwhile: the rows of the next step, and in
 * the last one the places of dk and dv. */
static struct step step_at(const struct backward *b, uint64_t head, uint64_t block)
{
    const struct attention *a = b->t->a;
    const struct attention_grad *g = b->t->g;
    uint64_t query = block * BLOCK, left = a->rows - query, rows = left < BLOCK ? left : BLOCK;
    struct step s = { .head = head, .query = query, .rows = rows, .diagonal = query == b->key };
    uint64_t group = a->heads / a->kv_heads, next_head = left > rows ? head : head + 1;
    if (next_head < (b->t->kv_head + 1) * group) {
        uint64_t next = left > rows ? query + BLOCK : b->key;
        uint64_t next_rows = a->rows - next < BLOCK ? a->rows - next : BLOCK;
        uint64_t q = next * a->ldq + next_head * b->dim, o = next * a->ldo + next_head * b->dim;
        s.next_q = (struct ahead){ a->q + q, a->ldq, next_rows };
        s.next_d_o = (struct ahead){ g->d_o + o, a->ldo, next_rows };
        s.next_dq = (struct ahead){ g->dq + q, a->ldq, next_rows };
    } else {
        uint64_t at = b->key * a->ldk + b->t->kv_head * b->dim;
        s.next_q = (struct ahead){ g->dk + at, a->ldk, b->keys };
        s.next_d_o = (struct ahead){ g->dv + at, a->ldk, b->keys };
    }
    return s;
}

/* `done` is the number of the step. */
static void step_run(const struct backward *b, const struct step *s, uint32_t done)
{
    const struct attention *a = b->t->a;
    copy_block(b->q, a->q + s->query * a->ldq + s->head * b->dim, a->ldq, s->rows, b->dim, a->scale);
    copy_block(b->d_o, b->t->g->d_o + s->query * a->ldo + s->head * b->dim, a->ldo, s->rows, b->dim, 1.0f);
    pair_products(b, s, b->q, b->k_columns, b->p);
    pair_products(b, s, b->d_o, b->v_columns, b->ds);
    weights(b, s);
    key_gradients(b, s);
    if (b->t->before != NULL) {
        wait_until(b->t->before, done);
    }
    query_gradients(b, s);
    atomic_store_explicit(b->t->mine, done, memory_order_release);
}

static void backward(const struct attention_task *t)
{
    const struct attention *a = t->a;
    uint64_t group = a->heads / a->kv_heads, dim = a->head_dim, blocks = (a->rows + BLOCK - 1) / BLOCK;
    struct backward b = { .t = t, .dim = dim, .row = block_row(dim), .key = t->block * BLOCK };
    b.keys = a->rows - b.key < BLOCK ? a->rows - b.key : BLOCK;
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
    pack_keys(&b);
    for (uint64_t e = 0; e < BLOCK * b.row; e += 16) {
        v16_store(b.dk + e, v16_zero());
        v16_store(b.dv + e, v16_zero());
    }
    for (uint64_t h = 0; h < group; h++) {
        for (uint64_t i = t->block; i < blocks; i++) {
            struct step s = step_at(&b, t->kv_head * group + h, i);
            step_run(&b, &s, (uint32_t)(h * blocks + i + 1));
        }
    }
    store_block(b.dk, t->g->dk + b.key * a->ldk + t->kv_head * dim, a->ldk, b.keys, dim);
    store_block(b.dv, t->g->dv + b.key * a->ldk + t->kv_head * dim, a->ldk, b.keys, dim);
}

const struct attention_leaves KERN_NAME(attention_leaves) = { forward, row_dot, backward };
