/* A model on its own: pool, kernels, memory. Shared by the tests of model/ and the golden files. */
#ifndef TESTS_UNIT_RIG_H
#define TESTS_UNIT_RIG_H

#include "test.h"

#include "model/model.h"
#include "part/order.h"

struct rig {
    struct model_conf conf;
    struct pool *pool;
    struct kern *kern;
    struct model *model;
    struct arena arena;
};

static inline struct model_shape rig_shape(const struct model_conf *c, enum model_mode mode, uint64_t sequences,
                                           uint64_t length)
{
    return (struct model_shape){
        .mode = mode, .sequences = sequences, .seq_length = length,
        .grain = order_default_grain(c->kv_heads, c->ffn, order_pad_vocab(c->vocab)),
        .grad_unit = length, .grad_scale_log2 = order_default_grad_scale_log2(length),
    };
}

static inline void rig_open(struct rig *r, const struct model_conf *c, const struct model_shape *shape, enum isa isa,
                            uint32_t threads)
{
    *r = (struct rig){ .conf = *c };
    assert_ok(pool_new(&r->pool, threads));
    assert_ok(kern_new(&r->kern, isa, r->pool));
    assert_ok(model_new(&r->model, c, shape, r->kern));
    model_layout(r->model, &r->arena);
    assert_ok(arena_back(&r->arena));
    model_layout(r->model, &r->arena);
    assert_int_equal(r->arena.used, r->arena.capacity); /* the plan is the allocation */
    assert_ok(model_ready(r->model));
}

static inline void rig_close(struct rig *r)
{
    model_free(r->model);
    arena_release(&r->arena);
    kern_free(r->kern);
    pool_free(r->pool);
}

static inline enum isa rig_best_isa(void)
{
    enum isa isa;
    assert_ok(kern_choose_isa(&isa));
    return isa;
}

#endif
