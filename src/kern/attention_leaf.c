/* Why this exists: the arithmetic of attention, once per instruction set, the same bits in each.
 *
 * Definition. A query at position t of head h sees keys 0..t of key/value head h / group; "scale" is
 * attention.scale. A chain starts at +0 and every product in it is one fused multiply-add.
 *   qs[d] = q[d] * scale (rounded);  s[key] = chain over d ascending of qs[d] k[key][d]
 * With a window w it sees keys max(0, t - w + 1)..t. With a cap c, s becomes c tanh(s (1 / c)), 1 / c rounded.
 * Forward, from m = -inf, l = o = 0, for key blocks of 64 from position 0 ascending, over the keys that t sees:
 *   m' = max(m, max s);  alpha = exp(m - m');  p[key] = exp(s[key] - m')
 *   sum: key c of the block goes to lane c mod 16, ascending, then the tree (l, l+8), (l, l+4), (l, l+2), (l, l+1)
 *   l = fma(l, alpha, sum)
 *   o[d] = o[d] * alpha (rounded), then its chain goes on over the keys ascending: fma(p[key], v[key][d], o[d])
 * At the end r = 1 / l;  o[d] = fma(o[d], r, +0);  lse = m + log(l).
 * Backward: dot = sum of fused d_o[d] o[d], element d in lane d mod 16, ascending, then the same tree;
 *   p = exp(s - lse);  dp[key] = chain over d of d_o[d] v[key][d];  ds = p * (dp - dot)
 *   with a cap, z the tanh:  ds = ds * fma(-z, z, 1)
 *   ks[d] = k[d] * scale (rounded)
 *   dq[t][d]   one chain over keys ascending of ds[t][key] ks[key][d]
 *   dk[key][d] one chain over (query head of the group, t) ascending of ds[t][key] qs[t][d]
 *   dv[key][d] one chain in that order of p[t][key] d_o[t][d]
 *
 * Keys a query does not see enter chains of the blocked code as exact zeros: they can change nothing but the sign of a
 * zero. Where it would show (o) the last fma with +0 makes it +; in the gradients the extent of what is computed is
 * fixed: multiples of 8 rows and keys; where there is a window, +0 is added to finished chains instead. A block of keys
 * of which a query sees none does nothing to it (alpha is 1, weights are 0). So no result depends on first, rows, the
 * blocking of queries, or threads.
 *
 * Layout. In this file (the forward pass) vectors lie across query columns and no sum across lanes ever happens; a task
 * of few columns (generation) has its vectors across keys and d instead. In attention_grad_leaf.c they lie across keys
 * or d. The other operand of a product is broadcast. Which layout is used changes no chain. */
#include "kern/attention_tile.h"

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
    uint64_t kv_head, group, dim;
    bool bf16;
    uint64_t window;
    uint64_t words;           /* numbers_in_word(bf16) */
    float *k, *v;             /* block of keys; in pairs k is [key][d / 2], v [key / 2][d] */
    float *scores, *operands; /* [BLOCK][PANEL]; weights as operands of the product with v: the same place for fp32 */
    struct panel panel[ATTENTION_COLUMNS_MAX / PANEL];
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
    const struct matrix q = matrix_at(a, a->q, a->ldq, 0, 0, a->scale);
    uint64_t element[PANEL];
    for (uint64_t c = 0; c < PANEL; c++) {
        uint64_t at = column + (c < p->columns ? c : p->columns - 1);
        p->position[c] = (int32_t)(a->first + at / f->group);
        element[c] = c < p->columns ? at / f->group * a->ldq + column_head(f, at) * f->dim : NO_ROW;
    }
    for (uint64_t v = 0; v < p->vectors; v++) {
        pack_words(p->q + v * 16, PANEL, &q, element + v * 16, f->dim);
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

/* Scores of 16 columns become weights, operands of the product with v; returns their sum over keys in 16 lanes and the
 * tree. Here a lane is a vector of columns. bf16: weights of scores times `scale`; their sum is of what is not rounded
 * yet. */
V16_INLINE struct v16 weigh(const float *s, float *operands, uint64_t keys, struct v16 most, struct v16 scale,
                            const bool bf16)
{
    const uint64_t words = numbers_in_word(bf16);
    struct v16 lane[16];
    for (uint64_t l = 0; l < 16; l += words) {
        struct v16 sum[2] = { v16_zero(), v16_zero() };
        for (uint64_t k = l; k < keys; k += 16) {
            struct v16 weight[2];
            UNROLL(2)
            for (uint64_t e = 0; e < words; e++) {
                struct v16 score = v16_load(s + (k + e) * PANEL);
                weight[e] = v16_exp_low(v16_sub(bf16 ? v16_mul(score, scale) : score, most));
                sum[e] = v16_add(sum[e], weight[e]);
            }
            struct v16 one = bf16 ? v16_round_bf16(weight[0]) : weight[0];
            v16_store(operands + k / words * PANEL, words == 2 ? v16_pair(weight[0], weight[1]) : one);
        }
        UNROLL(2)
        for (uint64_t e = 0; e < words; e++) {
            lane[l + e] = sum[e];
        }
    }
    for (uint64_t half = 8; half > 0; half /= 2) {
        for (uint64_t l = 0; l < half; l++) {
            lane[l] = v16_add(lane[l], lane[l + half]);
        }
    }
    return lane[0];
}

/* Scores of `keys` keys of 16 columns become scaled and capped ones. */
static void cap_scores(const struct forward *f, float *s, uint64_t keys)
{
    const struct v16 scale = v16_set1(f->bf16 ? f->a->scale : 1.0f), cap = v16_set1(f->a->cap);
    for (uint64_t k = 0; k < keys; k++) {
        v16_store(s + k * PANEL, v16_mul(cap, cap_ratio(v16_mul(v16_load(s + k * PANEL), scale), f->a->cap)));
    }
}

/* Scores of keys before `first`, counted from the first of `keys`, become -inf. */
static void hide_before(float *s, uint64_t keys, struct v16 first)
{
    for (uint64_t k = 0; k < keys; k++) {
        struct m16 seen = v16_le(first, v16_set1((float)k));
        v16_store(s + k * PANEL, v16_select(seen, v16_load(s + k * PANEL), v16_set1(-__builtin_inff())));
    }
}

/* Scores to weights for vector v of a panel; `key` is the first key of the block. The largest of scaled scores is the
 * largest score, scaled. Of a column that has not seen a key yet, since its window starts later, all stays 0. */
static void panel_softmax(const struct forward *f, struct panel *p, uint64_t v, uint64_t key, uint64_t keys)
{
    float *s = f->scores + v * 16, *operands = f->operands + v * 16;
    struct v16i seen = v16i_sub(v16i_load(p->position + v * 16), v16i_set1((int32_t)key));
    bool masked = (uint64_t)p->position[v * 16] < key + keys - 1;
    bool cut = attention_first_key(f->window, (uint64_t)p->position[v * 16 + 15]) > key;
    if (f->a->cap > 0.0f) {
        cap_scores(f, s, keys);
    }
    if (cut) {
        hide_before(s, keys, v16i_to_float(v16i_sub(seen, v16i_set1((int32_t)f->window - 1))));
    }
    const struct v16 scale = v16_set1(f->a->cap > 0.0f ? 1.0f : f->a->scale), lowest = v16_set1(-__builtin_inff());
    struct v16 before = v16_load(p->max + v * 16);
    struct v16 most = mask_and_max(s, keys, v16i_to_float(seen), masked);
    struct v16 now = v16_max(before, f->bf16 ? v16_mul(most, scale) : most);
    struct v16 from = cut ? v16_select(v16_eq(now, lowest), v16_zero(), now) : now;
    struct v16 alpha = v16_exp_low(v16_sub(before, from));
    struct v16 sum = f->bf16 ? weigh(s, operands, keys, from, scale, true)
                             : weigh(s, operands, keys, from, scale, false);
    v16_store(p->sum + v * 16, v16_fma(v16_load(p->sum + v * 16), alpha, sum));
    v16_store(p->max + v * 16, now);
    v16_store(p->alpha + v * 16, alpha);
}

/* Keys of [key, key + keys) that the last column of the first `vectors` vectors sees; no column of them sees more. Of
 * bf16 an even number: of the one too many the weight is 0. */
static uint64_t keys_seen(const struct forward *f, const struct panel *p, uint64_t vectors, uint64_t key, uint64_t keys)
{
    uint64_t columns = vectors * 16 < p->columns ? vectors * 16 : p->columns;
    uint64_t last = (uint64_t)p->position[columns - 1];
    uint64_t seen = last < key ? 0 : last + 1 - key < keys ? last + 1 - key : keys;
    return f->bf16 ? round_up(seen, 2) : seen;
}

/* One block of keys for one panel. The second vector's columns may see keys that the first one's do not. */
static void panel_block(const struct forward *f, struct panel *p, uint64_t key, uint64_t keys)
{
    if (key + keys <= attention_first_key(f->window, (uint64_t)p->position[0])) {
        return;
    }
    uint64_t row = block_row(f->dim), k_row = block_row(f->dim / f->words), share = (GROUP + f->panels - 1) / f->panels;
    uint64_t fetch = (uint64_t)(p - f->panel) * (BLOCK / GROUP) * share;
    uint64_t both = keys_seen(f, p, 1, key, keys), all = keys_seen(f, p, p->vectors, key, keys);
    for (uint64_t i = 0, n; i < all; i += n) {
        n = rows_at_once(round_up((i < both ? both : all) - i, GROUP));
        fetch_ahead(&f->next_k, fetch, share * n / GROUP);
        fetch_ahead(&f->next_v, fetch, share * n / GROUP);
        fetch += share * n / GROUP;
        uint64_t skip = i < both ? 0 : 16;
        struct product s = { .a = f->k + i * k_row, .a_row = k_row, .b = p->q + skip, .b_k = PANEL,
                             .c = f->scores + i * PANEL + skip, .c_row = PANEL, .k = f->dim / f->words,
                             .pairs = f->words == 2 };
        product_rows(&s, n, p->vectors * 16 - skip, START_ZERO);
    }
    if (both > 0) {
        panel_softmax(f, p, 0, key, both);
    }
    if (p->vectors > 1 && all > 0) {
        panel_softmax(f, p, 1, key, all);
    }
    struct product o = { .a = f->v, .a_k = row, .b = f->operands, .b_k = PANEL, .c = p->o, .c_row = PANEL,
                         .k = both / f->words, .factor = p->alpha, .pairs = f->words == 2 };
    if (both > 0) {
        product_columns(&o, f->dim, p->vectors * 16, START_SCALED);
    }
    if (all > both) {
        o.a += o.k * row;
        o.b += o.k * PANEL + 16;
        o.c += 16;
        o.k = (all - both) / f->words;
        o.factor += 16;
        product_columns(&o, f->dim, 16, both > 0 ? START_C : START_SCALED);
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
            uint32_t n = vector_part(d, f->dim);
            struct v16 r[16];
            for (uint32_t e = 0; e < 16; e++) {
                r[e] = e < n ? v16_fma(v16_load(p->o + (d + e) * PANEL + v * 16), inverse, v16_zero()) : v16_zero();
            }
            v16_transpose(r);
            for (uint64_t c = 0; c < count; c++) {
                uint64_t at = column + v * 16 + c;
                store_numbers(a->o, a->type, at / f->group * a->ldo + column_head(f, at) * f->dim + d, r[c], n);
            }
        }
        for (uint64_t c = 0; a->lse != NULL && c < count; c++) {
            uint64_t at = column + v * 16 + c;
            a->lse[column_head(f, at) * a->rows + at / f->group] = lse[c];
        }
    }
}

/* The block of keys from `key` is next. */
static void forward_ahead(struct forward *f, uint64_t key, uint64_t keys_all)
{
    const struct attention *a = f->a;
    uint64_t rows = keys_all - key < BLOCK ? keys_all - key : BLOCK, at = key * a->ldk + f->kv_head * f->dim;
    f->next_k = ahead_of(num_at(a->k, a->type, at), a->type, a->ldk, rows, f->dim);
    f->next_v = ahead_of(num_at(a->v, a->type, at), a->type, a->ldk, rows, f->dim);
}

/* The first block of keys that columns from `column` on see. */
static uint64_t first_block(const struct forward *f, uint64_t column)
{
    return attention_first_key(f->window, f->a->first + column / f->group) / BLOCK * BLOCK;
}

static void forward_panels(struct forward *f, float *scratch, uint64_t column, uint64_t end)
{
    const struct attention *a = f->a;
    float *next = scratch;
    f->k = carve(&next, BLOCK * block_row(f->dim));
    f->v = carve(&next, BLOCK * block_row(f->dim));
    f->scores = carve(&next, BLOCK * PANEL);
    f->operands = f->bf16 ? carve(&next, BLOCK * PANEL) : f->scores;
    for (uint64_t c = column; c < end; c += PANEL, f->panels++) {
        struct panel *p = &f->panel[f->panels];
        p->q = carve(&next, f->dim * PANEL);
        p->o = carve(&next, f->dim * PANEL);
        p->max = carve(&next, PANEL);
        p->sum = carve(&next, PANEL);
        p->alpha = carve(&next, PANEL);
        p->position = (int32_t *)(void *)carve(&next, PANEL);
        panel_start(f, p, c);
    }
    BUG_IF(next > scratch + ATTENTION_SCRATCH_FLOATS);
    uint64_t keys_all = a->first + (end - 1) / f->group + 1;
    for (uint64_t key = first_block(f, column); key < keys_all; key += BLOCK) {
        uint64_t keys = keys_all - key < BLOCK ? keys_all - key : BLOCK, column_of = f->kv_head * f->dim;
        const struct matrix k = matrix_at(a, a->k, a->ldk, key, column_of, 1.0f);
        const struct matrix v = matrix_at(a, a->v, a->ldk, key, column_of, 1.0f);
        copy_along(f->k, &k, keys, f->dim);
        copy_across(f->v, &v, keys, f->dim);
        forward_ahead(f, key + keys, keys_all);
        for (uint64_t p = 0; p < f->panels; p++) {
            panel_block(f, &f->panel[p], key, keys);
        }
    }
    for (uint64_t p = 0; p < f->panels; p++) {
        panel_finish(f, &f->panel[p], column + p * PANEL);
    }
}

/* ---- few columns: one vector lane in 16 would be at work above ---- */

#define FEW 8u /* columns up to which this way is faster */

struct few {
    float *q, *o;        /* [dim up to a multiple of 16] */
    struct v16 max, sum; /* the same in all lanes */
    uint64_t position, first_key;
};

/* Scores of one column against BLOCK keys: keys_by_d is [dim][BLOCK]. Four chains at a time hide the latency. */
static void few_scores(const float *q, uint64_t dim, const float *keys_by_d, float *s)
{
    struct v16 a = v16_zero(), b = v16_zero(), c = v16_zero(), d = v16_zero();
    for (uint64_t e = 0; e < dim; e++, keys_by_d += BLOCK) {
        struct v16 x = v16_set1(q[e]);
        a = v16_fma(x, v16_load(keys_by_d), a);
        b = v16_fma(x, v16_load(keys_by_d + 16), b);
        c = v16_fma(x, v16_load(keys_by_d + 32), c);
        d = v16_fma(x, v16_load(keys_by_d + 48), d);
    }
    v16_store(s, a);
    v16_store(s + 16, b);
    v16_store(s + 32, c);
    v16_store(s + 48, d);
}

/* Scores to weights, as operands of the product with v, 0 for keys outside [first, keys); returns alpha. */
static struct v16 few_softmax(const struct forward *f, struct few *x, float *s, uint64_t first, uint64_t keys)
{
    const float cap = f->a->cap;
    const struct v16 lowest = v16_set1(-__builtin_inff()), scale = v16_set1(f->bf16 ? f->a->scale : 1.0f);
    struct v16 most = lowest, lane = v16_zero();
    for (uint64_t n = 0; n < BLOCK; n += 16) {
        struct m16 seen = m16_first(keys > n ? (uint32_t)(keys - n) : 0u);
        struct m16 hidden = m16_first(first > n ? (uint32_t)(first - n < 16 ? first - n : 16) : 0u);
        struct v16 score = v16_mul(v16_load(s + n), scale);
        score = cap > 0.0f ? v16_mul(v16_set1(cap), cap_ratio(score, cap)) : score;
        score = v16_select(hidden, lowest, v16_select(seen, score, lowest));
        v16_store(s + n, score);
        most = v16_max(most, score);
    }
    struct v16 now = v16_max(x->max, v16_set1(v16_max_lanes(most)));
    struct v16 alpha = v16_exp_low(v16_sub(x->max, now));
    for (uint64_t n = 0; n < BLOCK; n += 16) {
        struct v16 weight = v16_exp_low(v16_sub(v16_load(s + n), now));
        v16_store(s + n, f->bf16 ? v16_round_bf16(weight) : weight);
        lane = v16_add(lane, weight);
    }
    x->sum = v16_fma(x->sum, alpha, v16_set1(v16_sum(lane)));
    x->max = now;
    return alpha;
}

/* `vectors` of o from element d, at most 4, so that their chains run side by side; the last one may have fewer than 16
 * elements. The block of keys starts at v. */
V16_INLINE void few_output_part(float *o, const struct matrix *v, uint64_t d, const float *p, uint64_t keys,
                                const uint32_t vectors, uint32_t last, struct v16 alpha)
{
    struct v16 acc[4];
    UNROLL(4)
    for (uint32_t e = 0; e < vectors; e++) {
        acc[e] = v16_mul(v16_load(o + d + e * 16), alpha);
    }
    for (uint64_t k = 0; k < keys; k++) {
        struct v16 x = v16_set1(p[k]);
        UNROLL(4)
        for (uint32_t e = 0; e < vectors; e++) {
            acc[e] = v16_fma(x, matrix_load(v, k, d + e * 16, e + 1 < vectors ? 16 : last), acc[e]);
        }
    }
    UNROLL(4)
    for (uint32_t e = 0; e < vectors; e++) {
        v16_store(o + d + e * 16, acc[e]);
    }
}

V16_INLINE void few_output_of(const struct forward *f, const struct few *x, const void *v, const float *p,
                              uint64_t keys, struct v16 alpha, const enum num type)
{
    const struct matrix m = { v, type, f->a->ldk, type == NUM_BF16, 1.0f };
    uint64_t d = 0;
    for (; d + 64 <= f->dim; d += 64) {
        few_output_part(x->o, &m, d, p, keys, 4, 16, alpha);
    }
    for (; d < f->dim; d += 16) {
        few_output_part(x->o, &m, d, p, keys, 1, vector_part(d, f->dim), alpha);
    }
}

static void few_output(const struct forward *f, const struct few *x, uint64_t key, const float *p, uint64_t keys,
                       struct v16 alpha)
{
    const void *v = num_at(f->a->v, f->a->type, key * f->a->ldk + f->kv_head * f->dim);
    if (f->bf16) {
        few_output_of(f, x, v, p, keys, alpha, NUM_BF16);
    } else {
        few_output_of(f, x, v, p, keys, alpha, NUM_F32);
    }
}

/* Keys [key, key + keys) as [dim][BLOCK]; the rows of the next block are asked for meanwhile. */
static void few_keys(const struct forward *f, uint64_t key, uint64_t keys, float *keys_by_d)
{
    const struct matrix k = matrix_at(f->a, f->a->k, f->a->ldk, key, f->kv_head * f->dim, 1.0f);
    for (uint64_t n = 0; n < BLOCK; n += 16) {
        uint64_t element[16];
        for (uint64_t c = 0; c < 16; c++) {
            element[c] = n + c < keys ? (n + c) * k.ld : NO_ROW;
        }
        fetch_ahead(&f->next_k, n, 16);
        fetch_ahead(&f->next_v, n, 16);
        pack_plain(keys_by_d + n, BLOCK, &k, element, f->dim);
    }
}

static void few_start(const struct forward *f, struct few *x, uint64_t column)
{
    const struct matrix q = matrix_at(f->a, f->a->q, f->a->ldq, column / f->group, column_head(f, column) * f->dim,
                                      f->a->scale);
    for (uint64_t d = 0; d < f->dim; d += 16) {
        v16_store(x->q + d, matrix_load(&q, 0, d, vector_part(d, f->dim)));
        v16_store(x->o + d, v16_zero());
    }
    x->max = v16_set1(-__builtin_inff());
    x->sum = v16_zero();
    x->position = f->a->first + column / f->group;
    x->first_key = attention_first_key(f->window, x->position);
}

static void few_finish(const struct forward *f, const struct few *x, uint64_t column)
{
    const struct attention *a = f->a;
    uint64_t at = column / f->group * a->ldo + column_head(f, column) * f->dim;
    float lse[16];
    struct v16 inverse = v16_div(v16_set1(1.0f), x->sum);
    for (uint64_t d = 0; d < f->dim; d += 16) {
        struct v16 o = v16_fma(v16_load(x->o + d), inverse, v16_zero());
        store_numbers(a->o, a->type, at + d, o, vector_part(d, f->dim));
    }
    v16_store(lse, v16_add(x->max, v16_log(x->sum)));
    if (a->lse != NULL) {
        a->lse[column_head(f, column) * a->rows + column / f->group] = lse[0];
    }
}

static void forward_few(struct forward *f, float *scratch, uint64_t column, uint64_t end)
{
    struct few few[FEW];
    float *next = scratch, *keys_by_d = carve(&next, BLOCK * f->dim), *s = carve(&next, BLOCK);
    for (uint64_t c = column; c < end; c++) {
        few[c - column].q = carve(&next, f->dim);
        few[c - column].o = carve(&next, f->dim);
        few_start(f, &few[c - column], c);
    }
    uint64_t keys_all = f->a->first + (end - 1) / f->group + 1;
    for (uint64_t key = first_block(f, column); key < keys_all; key += BLOCK) {
        uint64_t keys = keys_all - key < BLOCK ? keys_all - key : BLOCK;
        forward_ahead(f, key + keys, keys_all);
        few_keys(f, key, keys, keys_by_d);
        for (uint64_t c = 0; c < end - column; c++) {
            if (few[c].position < key || key + keys <= few[c].first_key) {
                continue;
            }
            uint64_t seen = few[c].position + 1 - key < keys ? few[c].position + 1 - key : keys;
            uint64_t from = few[c].first_key > key ? few[c].first_key - key : 0;
            few_scores(few[c].q, f->dim, keys_by_d, s);
            struct v16 alpha = few_softmax(f, &few[c], s, from, seen);
            few_output(f, &few[c], key + from, s + from, seen - from, alpha);
        }
    }
    for (uint64_t c = column; c < end; c++) {
        few_finish(f, &few[c - column], c);
    }
}

static void forward(const struct attention_task *t)
{
    const struct attention *a = t->a;
    struct forward f = { .a = a, .kv_head = t->kv_head, .group = a->heads / a->kv_heads, .dim = a->head_dim,
                         .bf16 = a->type == NUM_BF16, .words = numbers_in_word(a->type == NUM_BF16),
                         .window = attention_window(a) };
    uint64_t columns = a->rows * f.group, at_once = attention_columns(f.dim), column = t->block * at_once;
    uint64_t end = columns - column < at_once ? columns : column + at_once;
    if (end - column <= FEW) {
        forward_few(&f, t->scratch, column, end);
    } else {
        forward_panels(&f, t->scratch, column, end);
    }
}

const struct attention_leaves KERN_NAME(attention_leaves) = {
    forward,
    KERN_NAME(attention_row_dot),
    KERN_NAME(attention_backward),
};
