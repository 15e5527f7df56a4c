/* For tests of attention: inputs with gaps between rows, places for results with guards around and between them, and an
 * instance of kern/ that has nothing else. */
#ifndef TESTS_UNIT_ATTENTION_PROBLEM_H
#define TESTS_UNIT_ATTENTION_PROBLEM_H

#include "test.h"

#include <math.h>

#include "base/bf16.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"
#include "kern/kern_int.h"

#define GUARD 12345.5f /* in every place no kernel may touch */

struct shape {
    uint64_t rows, heads, kv_heads, dim;
    enum num type; /* of q, k, v and o */
    uint64_t window;
    float cap;
};

/* Data that show the extent of every sum, which plain numbers hide since what is not seen enters as zeros. Tiny:
 * products that vanish leave chains at -0, and a zero more or less at their end turns some of them to +0. Infinite: a
 * query with infinities makes NaN of the dk and dv of later keys that have it in their chains. Great: output gradients
 * that rounding to bf16 makes infinite. */
enum data { PLAIN, TINY, INFINITE, GREAT, DATA_COUNT };
static const char *const data_names[] = { "plain", "tiny", "infinite", "great" };

/* bf16 numbers lie in the first half of the place of as many fp32 numbers. */
struct problem {
    struct shape s;
    uint64_t ldq, ldk, ldo;
    float *q, *k, *v, *d_o;                  /* inputs */
    float *o, *lse, *dq, *dk, *dv, *row_dot; /* results */
    float *memory;
    uint64_t floats, results; /* results start at memory + floats - results */
};

static uint64_t widths(const struct shape *s, uint64_t *kv)
{
    *kv = s->kv_heads * s->dim;
    return s->heads * s->dim;
}

static float *take(float **next, uint64_t n)
{
    float *at = *next + 5;
    *next += n + 16;
    return at;
}

static void lay_out(struct problem *p, float *base)
{
    const struct shape *s = &p->s;
    float *next = base;
    p->q = take(&next, s->rows * p->ldq);
    p->d_o = take(&next, s->rows * p->ldo);
    p->k = take(&next, s->rows * p->ldk);
    p->v = take(&next, s->rows * p->ldk);
    uint64_t inputs = (uint64_t)(next - base);
    p->o = take(&next, s->rows * p->ldo);
    p->dq = take(&next, s->rows * p->ldq);
    p->dk = take(&next, s->rows * p->ldk);
    p->dv = take(&next, s->rows * p->ldk);
    p->lse = take(&next, s->rows * s->heads);
    p->row_dot = take(&next, s->rows * s->heads);
    p->floats = (uint64_t)(next - base);
    p->results = p->floats - inputs;
}

static float uniform(uint64_t i)
{
    const uint32_t counter[4] = { (uint32_t)i, (uint32_t)(i >> 32), 0, 0 }, key[2] = { 11, 7 };
    return (float)rng_philox(counter, key).word[0] * 0x1p-31f - 1.0f;
}

static void clear_results(struct problem *p)
{
    for (uint64_t i = p->floats - p->results; i < p->floats; i++) {
        p->memory[i] = GUARD;
    }
}

static void multiply(float *x, uint64_t n, float factor)
{
    for (uint64_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

static void put_data(struct problem *p, enum data data)
{
    const struct shape *s = &p->s;
    uint64_t row = s->rows > 1 ? s->rows / 2 - 1 : 0;
    if (data == TINY) {
        multiply(p->q, s->rows * p->ldq, 1e-12f);
        multiply(p->k, s->rows * p->ldk, 1e-12f);
        multiply(p->d_o, s->rows * p->ldo, 1e-30f);
    } else if (data == INFINITE) {
        multiply(p->q + row * p->ldq, p->ldq, INFINITY);
        multiply(p->d_o + row * p->ldo, p->ldo, INFINITY);
    } else if (data == GREAT) {
        for (uint64_t e = 0; e < p->ldo; e += 3) {
            p->d_o[row * p->ldo + e] = 0x1.ffp127f; /* rounds to infinity */
        }
    }
}

static void round_places(float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half = bf16_from_float(x[i]);
        memcpy((unsigned char *)x + 2 * i, &half, sizeof(half));
    }
}

static void problem_init_with(struct problem *p, struct shape s, enum data data)
{
    uint64_t kv, hd = widths(&s, &kv);
    *p = (struct problem){ .s = s, .ldq = hd + 24, .ldk = 2 * kv + 8, .ldo = hd + 8 };
    float none[1];
    lay_out(p, none);
    void *memory;
    assert_ok(mem_alloc(&memory, p->floats, sizeof(float)));
    p->memory = memory;
    lay_out(p, p->memory);
    for (uint64_t i = 0; i < p->floats - p->results; i++) {
        p->memory[i] = uniform(i) * 2.0f;
    }
    put_data(p, data);
    if (s.type == NUM_BF16) {
        round_places(p->q, s.rows * p->ldq);
        round_places(p->k, s.rows * p->ldk);
        round_places(p->v, s.rows * p->ldk);
    }
    clear_results(p);
}

static void problem_init(struct problem *p, struct shape s)
{
    problem_init_with(p, s, PLAIN);
}

static void problem_release(struct problem *p)
{
    free(p->memory);
}

static struct attention arguments(const struct problem *p)
{
    return (struct attention){ .heads = p->s.heads, .kv_heads = p->s.kv_heads, .head_dim = p->s.dim, .first = 0,
                               .rows = p->s.rows, .scale = (float)(1.0 / sqrt((double)p->s.dim)), .type = p->s.type,
                               .window = p->s.window, .cap = p->s.cap,
                               .q = p->q, .k = p->k, .v = p->v, .ldq = p->ldq, .ldk = p->ldk, .o = p->o, .ldo = p->ldo,
                               .lse = p->lse };
}

/* An instance with the attention table only: the other modules are not linked into this test. */
struct instance {
    struct kern k;
    uint64_t bytes;
};

static void instance_init(struct instance *n, enum isa isa, uint32_t threads)
{
    n->k = (struct kern){ .isa = isa, .attention = attention_leaves_of[isa] };
    assert_ok(pool_new(&n->k.pool, threads));
    n->bytes = attention_workspace_bytes(threads);
    assert_ok(mem_big_alloc(&n->k.attention_workspace, n->bytes));
    /* nothing may be read before it is written */
    memset(n->k.attention_workspace, 0xff, n->bytes);
}

static void instance_release(struct instance *n)
{
    mem_big_free(n->k.attention_workspace, n->bytes);
    pool_free(n->k.pool);
}

static void run(struct instance *n, struct problem *p)
{
    struct attention a = arguments(p);
    const struct attention_grad g = { p->d_o, p->dq, p->dk, p->dv, p->row_dot };
    kern_attention_forward(&n->k, &a);
    kern_attention_backward(&n->k, &a, &g);
}

#endif
