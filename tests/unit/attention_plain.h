/* Attention as docs/numerics.md 6 and 14 define it, one number after the other: what every instruction set must equal
 * bit for bit. Only exp, log and tanh are those of kern/. Runs in a thread of a pool, where denormals are zeros. */
#ifndef TESTS_UNIT_ATTENTION_PLAIN_H
#define TESTS_UNIT_ATTENTION_PLAIN_H

#define KERN_ISA 0
#include "attention_problem.h"
#include "kern/vmath.h"

#define GROUP 8u /* chains of gradients have an extent of whole groups of rows and keys */
#define KEYS 64u /* of a block of the forward pass */
#define PLAIN_ROWS_MAX 512u

static float plain_exp(float x)
{
    return v16_exp(v16_set1(x)).f[0];
}

static float plain_log(float x)
{
    return v16_log(v16_set1(x)).f[0];
}

static float plain_tanh(float x)
{
    return v16_tanh(v16_set1(x)).f[0];
}

static float plain_get(const struct problem *p, const float *x, uint64_t i)
{
    return p->s.type == NUM_BF16 ? bf16_to_float(((const uint16_t *)(const void *)x)[i]) : x[i];
}

static float rounded(const struct problem *p, float x)
{
    return p->s.type == NUM_BF16 ? bf16_to_float(bf16_from_float(x)) : x;
}

/* fp32: the scale goes into an operand. */
static float scaled_before(const struct problem *p, float x, float scale)
{
    return p->s.type == NUM_BF16 ? x : x * scale;
}

/* bf16: into the sum. */
static float scaled_after(const struct problem *p, float sum, float scale)
{
    return p->s.type == NUM_BF16 ? sum * scale : sum;
}

static float lane_tree(float *lane)
{
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t l = 0; l < half; l++) {
            lane[l] += lane[l + half];
        }
    }
    return lane[0];
}

/* Places of row t of query head h and of its key/value head: q, o and d_o, k and v. */
struct plain_row {
    uint64_t q, o, kv;
};

static struct plain_row plain_row(const struct problem *p, uint64_t h, uint64_t t)
{
    const struct shape *s = &p->s;
    uint64_t kv_head = h / (s->heads / s->kv_heads);
    return (struct plain_row){ t * p->ldq + h * s->dim, t * p->ldo + h * s->dim, kv_head * s->dim };
}

static float plain_score(const struct problem *p, struct plain_row at, uint64_t key, float scale)
{
    float sum = 0;
    for (uint64_t d = 0; d < p->s.dim; d++) {
        float q = scaled_before(p, plain_get(p, p->q, at.q + d), scale);
        sum = fmaf(q, plain_get(p, p->k, key * p->ldk + at.kv + d), sum);
    }
    return scaled_after(p, sum, scale);
}

/* The ratio of a capped score to the cap. */
static float plain_ratio(const struct problem *p, float score)
{
    return plain_tanh(score * (1.0f / p->s.cap));
}

static bool plain_sees(const struct problem *p, uint64_t t, uint64_t key)
{
    return key <= t && (p->s.window == 0 || t - key < p->s.window);
}

static void plain_forward_row(struct problem *p, uint64_t h, uint64_t t, float scale)
{
    struct plain_row at = plain_row(p, h, t);
    float most = -INFINITY, sum = 0, o[256] = { 0 };
    for (uint64_t first = 0; first <= t; first += KEYS) {
        float s[KEYS], lane[16] = { 0 }, before = most;
        uint64_t keys = t + 1 - first < KEYS ? t + 1 - first : KEYS;
        if (!plain_sees(p, t, first + keys - 1)) {
            continue;
        }
        for (uint64_t c = 0; c < keys; c++) {
            s[c] = plain_score(p, at, first + c, scale);
            s[c] = p->s.cap > 0 ? p->s.cap * plain_ratio(p, s[c]) : s[c];
            s[c] = plain_sees(p, t, first + c) ? s[c] : -INFINITY;
            most = most > s[c] ? most : s[c];
        }
        float alpha = plain_exp(before - most);
        for (uint64_t d = 0; d < p->s.dim; d++) {
            o[d] *= alpha;
        }
        for (uint64_t c = 0; c < keys; c++) {
            float weight = plain_exp(s[c] - most);
            lane[c % 16] += weight;
            for (uint64_t d = 0; d < p->s.dim; d++) {
                o[d] = fmaf(rounded(p, weight), plain_get(p, p->v, (first + c) * p->ldk + at.kv + d), o[d]);
            }
        }
        sum = fmaf(sum, alpha, lane_tree(lane));
    }
    for (uint64_t d = 0; d < p->s.dim; d++) {
        float x = fmaf(o[d], 1.0f / sum, 0.0f);
        if (p->s.type == NUM_BF16) {
            ((uint16_t *)(void *)p->o)[at.o + d] = bf16_from_float(x);
        } else {
            p->o[at.o + d] = x;
        }
    }
    p->lse[h * p->s.rows + t] = most + plain_log(sum);
}

/* p and ds of a query and a key. */
static void plain_pair(const struct problem *p, uint64_t h, uint64_t t, uint64_t key, float scale, float *weight,
                       float *slope)
{
    struct plain_row at = plain_row(p, h, t);
    float dp = 0;
    for (uint64_t d = 0; d < p->s.dim; d++) {
        dp = fmaf(rounded(p, p->d_o[at.o + d]), plain_get(p, p->v, key * p->ldk + at.kv + d), dp);
    }
    float score = plain_score(p, at, key, scale), ratio = p->s.cap > 0 ? plain_ratio(p, score) : 0;
    score = p->s.cap > 0 ? p->s.cap * ratio : score;
    *weight = plain_exp(score - p->lse[h * p->s.rows + t]);
    *slope = *weight * (dp - p->row_dot[h * p->s.rows + t]);
    *slope *= p->s.cap > 0 ? fmaf(-ratio, ratio, 1) : 1;
}

static void plain_dot(struct problem *p, uint64_t h, uint64_t t)
{
    struct plain_row at = plain_row(p, h, t);
    float lane[16] = { 0 };
    for (uint64_t d = 0; d < p->s.dim; d++) {
        lane[d % 16] = fmaf(p->d_o[at.o + d], plain_get(p, p->o, at.o + d), lane[d % 16]);
    }
    p->row_dot[h * p->s.rows + t] = lane_tree(lane);
}

/* A chain of bf16 takes an even number of terms, the last one may be zeros. */
static float plain_end(const struct problem *p, float sum, uint64_t terms)
{
    return p->s.type == NUM_BF16 && terms % 2 == 1 ? fmaf(0.0f, 0.0f, sum) : sum;
}

/* A finished chain: where there is a window zeros are positive. */
static float plain_finish(const struct problem *p, float sum, float scale)
{
    bool window = p->s.window > 0 && p->s.window < p->s.rows;
    float factor = scaled_after(p, 1, scale);
    return window ? fmaf(sum, factor, 0) : sum * factor;
}

/* dq of all rows of a head, dk and dv of its key/value head go on; terms of what is not seen are zeros. */
static void plain_backward_head(struct problem *p, uint64_t h, float scale, bool first, bool last)
{
    static float weight[PLAIN_ROWS_MAX][PLAIN_ROWS_MAX], slope[PLAIN_ROWS_MAX][PLAIN_ROWS_MAX];
    uint64_t rows = p->s.rows;
    for (uint64_t t = 0; t < rows; t++) {
        for (uint64_t key = 0; key < rows; key++) {
            weight[t][key] = 0;
            slope[t][key] = 0;
            if (plain_sees(p, t, key)) {
                plain_pair(p, h, t, key, scale, &weight[t][key], &slope[t][key]);
            }
        }
    }
    for (uint64_t t = 0; t < rows; t++) {
        struct plain_row at = plain_row(p, h, t);
        uint64_t keys = (t / GROUP + 1) * GROUP < rows ? (t / GROUP + 1) * GROUP : rows, start = t / GROUP * GROUP;
        for (uint64_t d = 0; d < p->s.dim; d++) {
            float dq = 0, *dk = p->dk + t * p->ldk + at.kv + d, *dv = p->dv + t * p->ldk + at.kv + d;
            for (uint64_t key = 0; key < keys; key++) {
                float k = scaled_before(p, plain_get(p, p->k, key * p->ldk + at.kv + d), scale);
                dq = fmaf(rounded(p, slope[t][key]), k, dq);
            }
            p->dq[at.q + d] = plain_finish(p, plain_end(p, dq, keys), scale);
            float key_sum = first ? 0 : *dk, value_sum = first ? 0 : *dv;
            for (uint64_t i = start; i < rows; i++) { /* here t is a key */
                struct plain_row query = plain_row(p, h, i);
                float q = scaled_before(p, plain_get(p, p->q, query.q + d), scale);
                key_sum = fmaf(rounded(p, slope[i][t]), q, key_sum);
                value_sum = fmaf(rounded(p, weight[i][t]), rounded(p, p->d_o[query.o + d]), value_sum);
            }
            key_sum = plain_end(p, key_sum, rows);
            value_sum = plain_end(p, value_sum, rows);
            *dk = last ? plain_finish(p, key_sum, scale) : key_sum;
            *dv = last ? plain_finish(p, value_sum, 1) : value_sum;
        }
    }
}

static void plain_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)task;
    (void)worker;
    struct problem *p = arg;
    const float scale = arguments(p).scale;
    uint64_t group = p->s.heads / p->s.kv_heads;
    BUG_IF(p->s.rows > PLAIN_ROWS_MAX);
    for (uint64_t h = 0; h < p->s.heads; h++) {
        for (uint64_t t = 0; t < p->s.rows; t++) {
            plain_forward_row(p, h, t, scale);
            plain_dot(p, h, t);
        }
        plain_backward_head(p, h, scale, h % group == 0, h % group + 1 == group);
    }
}

/* All results of the problem. */
static void plain_attention(struct problem *p)
{
    struct pool *pool;
    assert_ok(pool_new(&pool, 1));
    pool_run(pool, 1, plain_task, p);
    pool_free(pool);
}

/* Payloads of NaN are not defined. */
static void plain_nans(struct problem *p)
{
    if (p->s.type == NUM_BF16) {
        uint16_t *o = (uint16_t *)(void *)p->o;
        for (uint64_t i = 0; i < p->s.rows * p->ldo; i++) {
            o[i] = (o[i] & 0x7fff) > 0x7f80 ? 0x7fc0 : o[i];
        }
    }
    for (uint64_t i = p->floats - p->results; i < p->floats; i++) {
        p->memory[i] = isnan(p->memory[i]) && (p->s.type == NUM_F32 || p->memory + i < p->o || p->memory + i >= p->dq)
                           ? NAN : p->memory[i];
    }
}

#endif
