/* The registry: logical tensors counted as Hugging Face does, and what the ranks of every layout hold of them - each
 * element once, in buckets, with the same fresh weights. */
#include "rig.h"

#include "base/fmath.h"
#include "base/rng.h"
#include "part/layout.h"

#define LAYERS 6
#define MODELS (2 * FAMILY_COUNT)

/* Every family, tied and not; every divided dimension has 4 parts. Of the vocabulary's rows the last two ranks of 4
 * have 6 and none. */
static struct model_conf divisible(int model)
{
    struct model_conf m;
    model_conf_defaults(&m, (enum family)(model / 2));
    bool grouped = m.family != FAMILY_GPT2 && m.family != FAMILY_NEOX;
    m.layers = LAYERS;
    m.hidden = grouped ? 48 : 64;
    m.heads = 8;
    m.kv_heads = grouped ? 4 : 8;
    m.head_dim = 8;
    m.ffn = 128;
    m.vocab = 70;
    m.positions = 16;
    m.norm_eps = 1e-5;
    m.initializer_range = 0.3;
    m.tied = model % 2 == 0;
    model_conf_complete(&m);
    return m;
}

static const uint64_t uneven[] = { 1, 5, 0 }, uneven_chunks[] = { 2, 1, 0, 3 };
static const struct pipe pipes[] = {
    { .schedule = PIPE_1F1B, .stages = 1, .chunks = 1, .layers = LAYERS },
    { .schedule = PIPE_GPIPE, .stages = 2, .chunks = 1, .layers = LAYERS },
    { .schedule = PIPE_1F1B, .stages = 3, .chunks = 1, .layers = LAYERS, .counts = uneven },
    { .schedule = PIPE_INTERLEAVED, .stages = 2, .chunks = 3, .layers = LAYERS },
    { .schedule = PIPE_INTERLEAVED, .stages = 2, .chunks = 2, .layers = LAYERS, .counts = uneven_chunks },
};

static void parameters_are_counted_as_hugging_face_does(void **state)
{
    (void)state;
    struct model_conf gpt2;
    model_conf_defaults(&gpt2, FAMILY_GPT2);
    gpt2.layers = 12;
    gpt2.hidden = 768;
    gpt2.heads = 12;
    gpt2.vocab = 50257;
    gpt2.positions = 1024;
    model_conf_complete(&gpt2);
    assert_int_equal(model_conf_parameters(&gpt2), 124439808);
    for (int model = 0; model <= MODELS; model++) {
        struct registry reg;
        const struct model_conf c = model < MODELS ? divisible(model) : gpt2;
        const struct share all = share_all(c.layers);
        assert_ok(registry_init(&reg, &c, &all));
        assert_int_equal(reg.elements, model_conf_parameters(&c));
        registry_release(&reg);
    }
}

static void check_buckets(const struct registry *r)
{
    uint64_t stored = 0;
    uint32_t shards = 0;
    for (uint32_t i = 0; i < r->bucket_count; i++) {
        const struct bucket *b = &r->buckets[i];
        assert_int_equal(b->offset, stored);
        assert_int_equal(b->first_shard, shards);
        assert_true(b->shards > 0);
        uint64_t at = 0, replicated = 0;
        for (; shards < b->first_shard + b->shards; shards++) {
            const struct shard *s = &r->shards[shards];
            assert_int_equal(s->bucket, i);
            assert_int_equal(s->offset, at);
            assert_int_equal(s->stored % 16, 0);
            assert_true(s->rows * s->cols <= s->stored);
            assert_true(!s->replicated || replicated == at); /* none after a divided one */
            at += s->stored;
            replicated += s->replicated ? s->stored : 0;
        }
        assert_int_equal(b->stored, at);
        assert_int_equal(b->replicated, replicated);
        stored += b->stored;
    }
    assert_int_equal(shards, r->shard_count);
    assert_int_equal(stored, r->stored);
}

/* Ranks of a tensor-parallel group sum and gather bucket by bucket: theirs must be alike. */
static void check_alike(const struct registry *r, const struct registry *first)
{
    assert_int_equal(r->bucket_count, first->bucket_count);
    assert_int_equal(r->embed_bucket, first->embed_bucket);
    for (uint32_t i = 0; i < r->bucket_count; i++) {
        assert_int_equal(r->buckets[i].kind, first->buckets[i].kind);
        assert_int_equal(r->buckets[i].stored, first->buckets[i].stored);
        assert_int_equal(r->buckets[i].replicated, first->buckets[i].replicated);
    }
}

/* The projections of one layer: all divided dimensions in equal parts, that of the rank's number here; so what one
 * product gives here is what the next one takes here. */
static void check_parts(const struct registry *r, const struct model_conf *c, const struct share *share, uint64_t layer)
{
    const uint64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const bool in_out = family_desc(c->family)->in_out;
    /* queries, keys and values in one tensor, and both products into the feed-forward width */
    const bool fused = registry_find(r, layer, SLOT_Q)->param == registry_find(r, layer, SLOT_K)->param;
    const bool pair = c->family == FAMILY_PHI3;
    const struct { enum slot slot; bool divides_input; uint64_t first, size; } parts[] = {
        { SLOT_Q, false, 0, q },        { SLOT_K, false, fused ? q : 0, kv }, { SLOT_V, false, fused ? q + kv : 0, kv },
        { SLOT_OUT, true, 0, q },       { SLOT_GATE, false, 0, c->ffn },
        { SLOT_DOWN, true, 0, c->ffn }, { SLOT_UP, false, pair ? c->ffn : 0, c->ffn },
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        const struct shard *s = registry_find(r, layer, parts[i].slot);
        uint64_t part = parts[i].size / share->tp, lo = parts[i].first + share->tp_rank * part;
        bool by_rows = parts[i].divides_input == in_out;
        if (s == NULL) {
            assert_true(parts[i].slot == SLOT_GATE && !c->gated);
            continue;
        }
        assert_int_equal(by_rows ? s->row0 : s->col0, lo);
        assert_int_equal(by_rows ? s->rows : s->cols, part);
        assert_int_equal(by_rows ? s->cols : s->rows, c->hidden);
    }
}

/* Each shard fills one slot of a layer of this stage, or a global one. */
static void check_slots(const struct registry *r, const struct model_conf *c, const struct share *share)
{
    uint32_t found = 0;
    for (uint64_t layer = 0; layer < c->layers; layer++) {
        bool here = false;
        for (uint32_t chunk = 0; chunk < share->pipe.chunks; chunk++) {
            struct order_range own = pipe_layers(&share->pipe, share->stage, chunk);
            here = here || (layer >= own.lo && layer < own.hi);
        }
        for (int slot = layer == 0 ? 0 : SLOT_LAYER_FIRST; slot < SLOT_COUNT; slot++) {
            const struct shard *s = registry_find(r, layer, (enum slot)slot);
            found += s != NULL;
            assert_true(s == NULL || here || slot < SLOT_LAYER_FIRST);
        }
        if (here) {
            check_parts(r, c, share, layer);
        }
    }
    assert_int_equal(found, r->shard_count);
}

/* Count this rank's share of every logical tensor's elements in marks[param]. */
static void mark_shards(const struct registry *r, const struct share *share, uint8_t **marks)
{
    for (uint32_t i = 0; i < r->shard_count; i++) {
        const struct shard *s = &r->shards[i];
        const struct param *p = &r->list[s->param];
        const struct box_map map = registry_map(r, s);
        bool counts = !s->copy && (!s->replicated || share->tp_rank == 0);
        assert_true(s->row0 + s->rows <= p->shape[0] && s->col0 + s->cols <= p->shape[1] && s->cols > 0);
        assert_true(!s->replicated || s->rows * s->cols == p->elements);
        for (uint64_t e = 0; e < s->rows * s->cols; e++) {
            uint64_t at = map.first + e / map.cols * map.ld + e % map.cols;
            assert_true(at < p->elements);
            marks[s->param][at] = (uint8_t)(marks[s->param][at] + counts);
        }
    }
}

/* What the ranks of a layout hold: one registry for each stage and tensor-parallel rank. */
static void check_layout(const struct model_conf *c, const struct pipe *pipe, uint32_t tp)
{
    struct registry all, reg, first;
    const struct share everything = share_all(c->layers);
    uint8_t *marks[RIG_PARAMS_MAX];
    assert_ok(registry_init(&all, c, &everything));
    assert_true(all.count <= RIG_PARAMS_MAX);
    for (uint32_t i = 0; i < all.count; i++) {
        marks[i] = calloc(all.list[i].elements, 1);
        assert_non_null(marks[i]);
    }
    for (uint32_t stage = 0; stage < pipe->stages; stage++) {
        for (uint32_t rank = 0; rank < tp; rank++) {
            const struct share share = { .tp = tp, .tp_rank = rank, .pipe = *pipe, .stage = stage };
            assert_ok(registry_init(rank == 0 ? &first : &reg, c, &share));
            const struct registry *r = rank == 0 ? &first : &reg;
            assert_int_equal(r->count, all.count);
            assert_int_equal(r->elements, all.elements);
            assert_memory_equal(r->list, all.list, all.count * sizeof(*all.list));
            check_buckets(r);
            check_alike(r, &first);
            check_slots(r, c, &share);
            mark_shards(r, &share, marks);
            if (rank > 0) {
                registry_release(&reg);
            }
        }
        registry_release(&first);
    }
    for (uint32_t i = 0; i < all.count; i++) {
        for (uint64_t e = 0; e < all.list[i].elements; e++) {
            if (marks[i][e] != 1) {
                fail_msg("%s element %llu: held by %u ranks (tp %u, pp %u, %u chunks)", all.list[i].name,
                         (unsigned long long)e, marks[i][e], tp, pipe->stages, pipe->chunks);
            }
        }
        free(marks[i]);
    }
    registry_release(&all);
}

static void ranks_of_every_layout_hold_every_element_once(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(pipes) / sizeof(pipes[0]); p++) {
        assert_true(pipe_fits(&pipes[p]));
        for (uint32_t tp = 1; tp <= 4; tp *= 2) {
            for (int model = 0; model < MODELS; model++) {
                const struct model_conf c = divisible(model);
                check_layout(&c, &pipes[p], tp);
            }
        }
    }
}

/* The last stage's copy of a tied embedding is the first stage's box, and both give it a bucket of one length. */
static void first_and_last_stage_share_a_tied_embedding(void **state)
{
    (void)state;
    for (int model = 0; model < MODELS; model++) {
        const struct model_conf c = divisible(model);
        for (uint32_t stages = 1; stages <= 3; stages++) {
            struct registry reg[3];
            for (uint32_t i = 0; i < stages; i++) {
                const struct share share = { .tp = 4, .tp_rank = 2, .stage = i,
                                             .pipe = { PIPE_1F1B, stages, 1, c.layers, NULL } };
                assert_ok(registry_init(&reg[i], &c, &share));
            }
            const struct registry *first = &reg[0], *last = &reg[stages - 1];
            const struct shard *own = registry_find(first, 0, SLOT_EMBED), *copy = registry_find(last, 0, SLOT_EMBED);
            assert_false(own->copy);
            if (c.tied && stages > 1) {
                assert_true(copy->copy && !own->replicated && !copy->replicated);
                assert_int_equal(own->param, copy->param);
                assert_true(own->row0 == copy->row0 && own->rows == copy->rows && own->cols == copy->cols);
                assert_true(own->bucket == first->embed_bucket && copy->bucket == last->embed_bucket);
                assert_int_equal(own->offset, copy->offset);
                assert_int_equal(first->buckets[own->bucket].stored, last->buckets[copy->bucket].stored);
            } else {
                assert_true(copy == NULL || stages == 1);
                assert_true(first->embed_bucket == REGISTRY_NONE && last->embed_bucket == REGISTRY_NONE);
            }
            assert_true(stages < 3 || registry_find(&reg[1], 0, SLOT_EMBED) == NULL);
            for (uint32_t i = 0; i < stages; i++) {
                registry_release(&reg[i]);
            }
        }
    }
}

/* Every tensor's fresh weights by their definition (docs/numerics.md), each at its offset; the caller frees. */
static float *fresh_weights(const struct rig *r, uint64_t seed)
{
    float *all = calloc(r->reg->elements, sizeof(float));
    assert_non_null(all);
    for (uint32_t i = 0; i < r->reg->count; i++) {
        const struct param *p = &r->reg->list[i];
        bool residual = strstr(p->name, "c_proj.weight") || strstr(p->name, "o_proj") || strstr(p->name, "down_proj") ||
                        strstr(p->name, "attention.dense.weight") || strstr(p->name, "dense_4h_to_h.weight");
        bool zero = strstr(p->name, ".bias") != NULL || r->conf.gain_offset; /* the norm adds 1 to the gain */
        double deviation = r->conf.initializer_range / (residual ? fmath_sqrt(2.0 * LAYERS) : 1.0), normal[4];
        for (uint64_t e = 0; e < p->elements; e++) {
            rng_normal4(rng_at(seed, RNG_INIT, i, e / 4), normal);
            all[r->offset[i] + e] = p->rank == 2 ? (float)(normal[e % 4] * deviation) : zero ? 0.0f : 1.0f;
        }
    }
    return all;
}

/* What a rank makes of its buckets in pieces are the wanted elements of the whole tensors; padding is zero. */
static void check_fresh(const struct rig *whole, const float *want, const struct model_shape *shape,
                        const struct share *share)
{
    struct model *m;
    float piece[48]; /* a multiple of 16 */
    const struct model_place place = { .share = *share, .cp = 1, .sets = { 1 } };
    assert_ok(model_new(&m, &whole->conf, shape, &place, whole->kern));
    const struct registry *r = model_registry(m);
    for (uint32_t b = 0; b < r->bucket_count; b++) {
        const struct shard *s = &r->shards[r->buckets[b].first_shard], *end = s + r->buckets[b].shards;
        for (uint64_t i = 0; i < r->buckets[b].stored; i++) {
            uint64_t at = i % 48, left = r->buckets[b].stored - i;
            if (at == 0) {
                memset(piece, 0xff, sizeof(piece));
                model_init_weights(m, b, i, i + (left < 48 ? left : 48), piece, 5);
            }
            while (s + 1 < end && i >= s[1].offset) {
                s++;
            }
            uint64_t e = i - s->offset;
            float here = e < s->rows * s->cols ? want[whole->offset[s->param] + rig_element(r, s, e)] : 0.0f;
            assert_memory_equal(&piece[at], &here, sizeof(float));
        }
    }
    model_free(m);
}

static void fresh_weights_are_the_same_for_every_layout(void **state)
{
    (void)state;
    for (int model = 0; model < MODELS; model++) {
        struct rig r;
        const struct model_conf c = divisible(model);
        const struct model_shape shape = rig_shape(&c, MODEL_EVAL, 1, 8);
        rig_open(&r, &c, &shape, rig_best_isa(), 1);
        float *want = fresh_weights(&r, 5);
        for (uint32_t tp = 1; tp <= (c.qk_norm == QK_NORM_ALL ? 1u : 4u); tp *= 2) {
            for (uint32_t i = 0; i < 2 * tp; i++) {
                const struct share share = { .tp = tp, .tp_rank = i / 2, .pipe = pipes[1], .stage = i % 2 };
                check_fresh(&r, want, &shape, &share);
            }
        }
        free(want);
        rig_close(&r);
    }
}

/* The tensors of one layer and around the layers, as transformers 5 names and shapes them. */
static void tensors_are_named_as_hugging_face_does(void **state)
{
    (void)state;
#define L "model.layers.1."
#define N "gpt_neox.layers.1."
#define LLAMA_NAMES                                                                                                    \
    L "self_attn.q_proj.weight 64x48", L "self_attn.k_proj.weight 32x48", L "self_attn.v_proj.weight 32x48",           \
        L "self_attn.o_proj.weight 48x64", L "mlp.gate_proj.weight 128x48", L "mlp.up_proj.weight 128x48",             \
        L "mlp.down_proj.weight 48x128", "model.embed_tokens.weight 70x48", "model.norm.weight 48x1"
#define NORMS L "input_layernorm.weight 48x1", L "post_attention_layernorm.weight 48x1"
#define GEMMA_NORMS                                                                                                    \
    NORMS, L "pre_feedforward_layernorm.weight 48x1", L "post_feedforward_layernorm.weight 48x1"
#define QKV_BIASES L "self_attn.q_proj.bias 64x1", L "self_attn.k_proj.bias 32x1", L "self_attn.v_proj.bias 32x1"
    static const char *const names[FAMILY_COUNT][24] = {
        [FAMILY_LLAMA] = { LLAMA_NAMES, NORMS },
        [FAMILY_MISTRAL] = { LLAMA_NAMES, NORMS },
        [FAMILY_QWEN2] = { LLAMA_NAMES, NORMS, QKV_BIASES },
        [FAMILY_QWEN3] = { LLAMA_NAMES, NORMS, L "self_attn.q_norm.weight 8x1", L "self_attn.k_norm.weight 8x1" },
        [FAMILY_GEMMA2] = { LLAMA_NAMES, GEMMA_NORMS },
        [FAMILY_GEMMA3] = { LLAMA_NAMES, GEMMA_NORMS, L "self_attn.q_norm.weight 8x1",
                            L "self_attn.k_norm.weight 8x1" },
        [FAMILY_PHI3] = { NORMS, L "self_attn.qkv_proj.weight 128x48", L "self_attn.o_proj.weight 48x64",
                          L "mlp.gate_up_proj.weight 256x48", L "mlp.down_proj.weight 48x128",
                          "model.embed_tokens.weight 70x48", "model.norm.weight 48x1" },
        [FAMILY_OLMO2] = { LLAMA_NAMES, L "self_attn.q_norm.weight 64x1", L "self_attn.k_norm.weight 32x1",
                           L "post_attention_layernorm.weight 48x1", L "post_feedforward_layernorm.weight 48x1" },
        [FAMILY_SMOLLM3] = { LLAMA_NAMES, NORMS },
        [FAMILY_STARCODER2] = { NORMS, QKV_BIASES, L "input_layernorm.bias 48x1",
                                L "post_attention_layernorm.bias 48x1",
                                L "self_attn.q_proj.weight 64x48", L "self_attn.k_proj.weight 32x48",
                                L "self_attn.v_proj.weight 32x48", L "self_attn.o_proj.weight 48x64",
                                L "self_attn.o_proj.bias 48x1", L "mlp.c_fc.weight 128x48", L "mlp.c_fc.bias 128x1",
                                L "mlp.c_proj.weight 48x128", L "mlp.c_proj.bias 48x1",
                                "model.embed_tokens.weight 70x48",
                                "model.norm.weight 48x1", "model.norm.bias 48x1" },
        [FAMILY_NEOX] = { N "input_layernorm.weight 64x1", N "input_layernorm.bias 64x1",
                          N "post_attention_layernorm.weight 64x1", N "post_attention_layernorm.bias 64x1",
                          N "attention.query_key_value.weight 192x64", N "attention.query_key_value.bias 192x1",
                          N "attention.dense.weight 64x64", N "attention.dense.bias 64x1",
                          N "mlp.dense_h_to_4h.weight 128x64", N "mlp.dense_h_to_4h.bias 128x1",
                          N "mlp.dense_4h_to_h.weight 64x128", N "mlp.dense_4h_to_h.bias 64x1",
                          "gpt_neox.embed_in.weight 70x64", "gpt_neox.final_layer_norm.weight 64x1",
                          "gpt_neox.final_layer_norm.bias 64x1" },
    };
    for (int family = FAMILY_LLAMA; family < FAMILY_COUNT; family++) {
        struct registry reg;
        const struct model_conf c = divisible(2 * family + 1);
        const struct share all = share_all(c.layers);
        uint32_t found = 0, wanted = 0;
        assert_ok(registry_init(&reg, &c, &all));
        for (uint32_t n = 0; n < 24 && names[family][n] != NULL; n++) {
            wanted++;
            for (uint32_t i = 0; i < reg.count; i++) {
                const struct param *p = &reg.list[i];
                char text[160];
                snprintf(text, sizeof(text), "%s %llux%llu", p->name, (unsigned long long)p->shape[0],
                         (unsigned long long)p->shape[1]);
                found += strcmp(text, names[family][n]) == 0;
            }
        }
        assert_int_equal(found, wanted);
        uint32_t around = family == FAMILY_STARCODER2 || family == FAMILY_NEOX ? 3 : 2; /* and the head */
        assert_int_equal(reg.count, LAYERS * (wanted - around) + around + 1);
        assert_string_equal(reg.list[reg.count - 1].name,
                            family == FAMILY_NEOX ? "embed_out.weight" : "lm_head.weight");
        registry_release(&reg);
    }
}

/* Row r of GPT-NeoX's fused projection is number r % 8 of part r / 8 % 3 of head r / 24. */
static void neox_projections_are_interleaved_by_head(void **state)
{
    (void)state;
    const struct model_conf c = divisible(2 * FAMILY_NEOX);
    const enum slot weights[] = { SLOT_Q, SLOT_K, SLOT_V }, biases[] = { SLOT_Q_BIAS, SLOT_K_BIAS, SLOT_V_BIAS };
    struct registry reg;
    const struct share share = { .tp = 4, .tp_rank = 1, .pipe = { PIPE_1F1B, 1, 1, LAYERS, NULL } };
    assert_ok(registry_init(&reg, &c, &share));
    for (uint64_t part = 0; part < 3; part++) {
        const struct shard *w = registry_find(&reg, 2, weights[part]), *b = registry_find(&reg, 2, biases[part]);
        assert_true(w->rows == 16 && w->cols == 64 && b->rows == 16 && b->cols == 1); /* heads 2 and 3 */
        for (uint64_t i = 0; i < 16; i++) {
            uint64_t row = (2 + i / 8) * 24 + part * 8 + i % 8;
            assert_int_equal(rig_element(&reg, b, i), row);
            assert_int_equal(rig_element(&reg, w, i * 64 + 5), row * 64 + 5);
        }
    }
    registry_release(&reg);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tensors_are_named_as_hugging_face_does),
    cmocka_unit_test(neox_projections_are_interleaved_by_head),
    cmocka_unit_test(parameters_are_counted_as_hugging_face_does),
    cmocka_unit_test(ranks_of_every_layout_hold_every_element_once),
    cmocka_unit_test(first_and_last_stage_share_a_tied_embedding),
    cmocka_unit_test(fresh_weights_are_the_same_for_every_layout),
};
TEST_MAIN(tests)
