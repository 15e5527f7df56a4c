/* A model on its own: pool, kernels, memory. Shared by the tests of model/ and the golden files. Its shards are seen as
 * whole logical tensors, as Hugging Face stores them. */
#ifndef TESTS_UNIT_RIG_H
#define TESTS_UNIT_RIG_H

#include <stdlib.h>

#include "test.h"

#include "model/model.h"
#include "part/order.h"

#define RIG_BUCKETS_MAX 12u
#define RIG_PARAMS_MAX 128u

struct rig {
    struct model_conf conf;
    struct pool *pool;
    struct kern *kern;
    struct model *model;
    const struct registry *reg;
    struct arena arena;
    struct model_lists at; /* where parameters and gradients are */
    float *p[RIG_BUCKETS_MAX];
    int64_t *g[RIG_BUCKETS_MAX];
    uint64_t offset[RIG_PARAMS_MAX]; /* of each logical tensor in an array of all of them, reg->elements long */
};

static inline struct model_shape rig_shape(const struct model_conf *c, enum model_mode mode, uint64_t sequences,
                                           uint64_t length)
{
    return (struct model_shape){
        .mode = mode, .sequences = sequences, .batch = 64, .seq_length = length, /* more than any test adds up */
        .grain = order_default_grain(c->kv_heads, c->ffn, order_pad_vocab(c->vocab)),
        .grad_unit = length, .grad_scale_log2 = order_default_grad_scale_log2(length),
    };
}

static inline void rig_layout(struct rig *r)
{
    model_layout(r->model, &r->arena);
    model_layout_storage(r->model, &r->arena, &r->at);
}

static inline void rig_open(struct rig *r, const struct model_conf *c, const struct model_shape *shape, enum isa isa,
                            uint32_t threads)
{
    const struct model_place place = model_place_single(c);
    *r = (struct rig){ .conf = *c };
    r->at = (struct model_lists){ r->p, r->g };
    assert_ok(pool_new(&r->pool, threads));
    assert_ok(kern_new(&r->kern, isa, r->pool));
    assert_ok(model_new(&r->model, c, shape, &place, r->kern));
    r->reg = model_registry(r->model);
    assert_true(r->reg->bucket_count <= RIG_BUCKETS_MAX && r->reg->count <= RIG_PARAMS_MAX);
    rig_layout(r);
    assert_ok(arena_back(&r->arena));
    rig_layout(r);
    assert_int_equal(r->arena.used, r->arena.capacity); /* the plan is the allocation */
    assert_ok(model_ready(r->model));
    for (uint32_t i = 0; i + 1 < r->reg->count; i++) {
        r->offset[i + 1] = r->offset[i] + r->reg->list[i].elements;
    }
}

static inline void rig_close(struct rig *r)
{
    model_free(r->model);
    arena_release(&r->arena);
    kern_free(r->kern);
    pool_free(r->pool);
}

static inline void rig_init_weights(struct rig *r, uint64_t seed)
{
    for (uint32_t b = 0; b < r->reg->bucket_count; b++) {
        model_init_weights(r->model, b, 0, r->reg->buckets[b].stored, r->at.p[b], seed);
    }
}

/* ---- logical tensors ---- */

/* Element i of a shard is this element of its logical tensor. */
static inline uint64_t rig_element(const struct registry *r, const struct shard *s, uint64_t i)
{
    const struct box_map map = registry_map(r, s);
    return map.first + i / map.cols * map.ld + i % map.cols;
}

/* Parameters of one logical tensor into full[elements]. */
static inline void rig_get(const struct rig *r, uint32_t param, float *full)
{
    for (uint32_t n = 0; n < r->reg->shard_count; n++) {
        const struct shard *s = &r->reg->shards[n];
        for (uint64_t i = 0; s->param == param && i < s->rows * s->cols; i++) {
            full[rig_element(r->reg, s, i)] = r->at.p[s->bucket][s->offset + i];
        }
    }
}

static inline void rig_set(struct rig *r, uint32_t param, const float *full)
{
    for (uint32_t n = 0; n < r->reg->shard_count; n++) {
        const struct shard *s = &r->reg->shards[n];
        for (uint64_t i = 0; s->param == param && i < s->rows * s->cols; i++) {
            r->at.p[s->bucket][s->offset + i] = full[rig_element(r->reg, s, i)];
        }
    }
}

/* Its gradient integers. */
static inline void rig_get_grad(const struct rig *r, uint32_t param, int64_t *full)
{
    for (uint32_t n = 0; n < r->reg->shard_count; n++) {
        const struct shard *s = &r->reg->shards[n];
        for (uint64_t i = 0; s->param == param && i < s->rows * s->cols; i++) {
            full[rig_element(r->reg, s, i)] = r->at.g[s->bucket][s->offset + i];
        }
    }
}

/* All parameters, tensor after tensor (see rig.offset); the caller frees. */
static inline float *rig_weights(const struct rig *r)
{
    float *all = calloc(r->reg->elements, sizeof(float));
    assert_non_null(all);
    for (uint32_t i = 0; i < r->reg->count; i++) {
        rig_get(r, i, all + r->offset[i]);
    }
    return all;
}

/* All gradient integers, likewise. */
static inline int64_t *rig_gradients(const struct rig *r)
{
    int64_t *all = calloc(r->reg->elements, sizeof(int64_t));
    assert_non_null(all);
    for (uint32_t i = 0; i < r->reg->count; i++) {
        rig_get_grad(r, i, all + r->offset[i]);
    }
    return all;
}

static inline enum isa rig_best_isa(void)
{
    enum isa isa;
    assert_ok(kern_choose_isa(&isa));
    return isa;
}

#endif
