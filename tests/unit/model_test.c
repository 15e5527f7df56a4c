/* The decoder: every gradient against central differences of an independent model in double, causality, the cache,
 * units, masks, dropout, and the same bits for micro-batches, threads and instruction sets. */
#include "rig.h"

#include "base/rng.h"
#include "reference.h"

#define LENGTH 8
#define SEQUENCES 3
#define VOCAB 19

/* Heads of 8 numbers. The confs below have together every part of struct model_conf that changes the arithmetic. */
#define SIZES(f, l, c, h, kv, width)                                                                                  \
    .family = (f), .layers = (l), .hidden = (c), .heads = (h), .kv_heads = (kv), .head_dim = 8, .ffn = (width),       \
    .vocab = VOCAB, .initializer_range = 0.3
#define ROTARY(n, base)                                                                                               \
    .positions = 64, .rotary_dim = (n), .rope = { .theta = (base), .factor = 1, .attention_factor = 1 }
#define USUAL .embed_scale = 1, .attention_scale = 0.35355339059327379
#define LAYER_NORMS .norm = NORM_LAYER, .norm_eps = 1e-5
#define RMS_SWIGLU .norm = NORM_RMS, .norm_eps = 1e-5, .activation = ACTIVATION_SILU, .gated = true
#define BIASES .qkv_bias = true, .out_bias = true, .mlp_bias = true

static const struct model_conf tiny_gpt2 = {
    SIZES(FAMILY_GPT2, 2, 16, 2, 2, 32), LAYER_NORMS, BIASES, USUAL, .positions = LENGTH, .learned_positions = true,
    .tied = true,
};
static const struct model_conf tiny_llama = {
    SIZES(FAMILY_LLAMA, 2, 24, 4, 2, 32), RMS_SWIGLU, ROTARY(8, 10000), USUAL,
};
static const struct model_conf tiny_llama_tied = {
    SIZES(FAMILY_LLAMA, 1, 16, 2, 1, 48), RMS_SWIGLU, ROTARY(8, 500), USUAL, .tied = true,
};
static const struct model_conf tiny_llama_biased = {
    SIZES(FAMILY_LLAMA, 1, 16, 2, 1, 16), RMS_SWIGLU, BIASES, ROTARY(8, 500), USUAL,
};
static const struct model_conf tiny_mistral = {
    SIZES(FAMILY_MISTRAL, 2, 24, 4, 2, 32), RMS_SWIGLU, ROTARY(8, 10000), USUAL, .window = 3, .windowed = { 3 },
};
static const struct model_conf tiny_qwen2 = {
    SIZES(FAMILY_QWEN2, 2, 16, 2, 1, 16), RMS_SWIGLU, ROTARY(8, 10000), USUAL, .qkv_bias = true, .window = 4,
    .windowed = { 2 }, .tied = true,
};
static const struct model_conf tiny_qwen3 = {
    SIZES(FAMILY_QWEN3, 2, 24, 4, 2, 32), RMS_SWIGLU, ROTARY(8, 10000), USUAL, .qk_norm = QK_NORM_HEAD,
};
static const struct model_conf tiny_gemma2 = {
    SIZES(FAMILY_GEMMA2, 2, 16, 2, 1, 32), ROTARY(8, 10000), .norm = NORM_RMS, .norm_eps = 1e-4, .norms = NORMS_BOTH,
    .gain_offset = true, .activation = ACTIVATION_GELU_TANH, .gated = true, .window = 3, .windowed = { 1 },
    .attention_scale = 0.3, .attention_cap = 1.5, .final_cap = 1.25, .embed_scale = 4, .tied = true,
};
static const struct model_conf tiny_gemma3 = {
    SIZES(FAMILY_GEMMA3, 2, 16, 2, 1, 32), ROTARY(8, 10000), .norm = NORM_RMS, .norm_eps = 0.01, .norms = NORMS_BOTH,
    .gain_offset = true, .qk_norm = QK_NORM_HEAD, .activation = ACTIVATION_GELU_TANH, .gated = true,
    .has_local_rope = true, .local_rope = { .theta = 100, .factor = 1, .attention_factor = 1 }, .window = 3,
    .windowed = { 1 }, .attention_scale = 0.3, .embed_scale = 4, .tied = true,
};
static const struct model_conf tiny_phi3 = {
    SIZES(FAMILY_PHI3, 1, 24, 4, 2, 32), RMS_SWIGLU, ROTARY(6, 10000), USUAL, .window = 5, .windowed = { 1 },
};
static const struct model_conf tiny_olmo2 = {
    SIZES(FAMILY_OLMO2, 2, 24, 4, 2, 32), RMS_SWIGLU, ROTARY(8, 10000), USUAL, .norms = NORMS_AFTER,
    .qk_norm = QK_NORM_ALL,
};
static const struct model_conf tiny_smollm3 = {
    SIZES(FAMILY_SMOLLM3, 2, 16, 2, 1, 16), RMS_SWIGLU, ROTARY(8, 10000), USUAL, .unrotated = { 2 }, .tied = true,
};
static const struct model_conf tiny_starcoder2 = {
    SIZES(FAMILY_STARCODER2, 2, 16, 2, 1, 32), LAYER_NORMS, BIASES, ROTARY(8, 10000), USUAL, .window = 3,
    .windowed = { 3 }, .tied = true,
};
static const struct model_conf tiny_neox = {
    SIZES(FAMILY_NEOX, 2, 24, 3, 3, 32), LAYER_NORMS, BIASES, ROTARY(4, 10000), USUAL, .parallel_residual = true,
    .activation = ACTIVATION_GELU,
};
static const struct model_conf tiny_neox_serial = {
    SIZES(FAMILY_NEOX, 1, 16, 2, 2, 32), LAYER_NORMS, BIASES, ROTARY(4, 10000), USUAL, .activation = ACTIVATION_GELU,
};
static const struct model_conf *const families[] = {
    &tiny_gpt2, &tiny_llama, &tiny_llama_tied, &tiny_llama_biased, &tiny_mistral, &tiny_qwen2, &tiny_qwen3,
    &tiny_gemma2, &tiny_gemma3, &tiny_phi3, &tiny_olmo2, &tiny_smollm3, &tiny_starcoder2, &tiny_neox,
    &tiny_neox_serial,
};
#define FAMILIES (sizeof(families) / sizeof(families[0]))
#define OLDEST 3u /* families that are tried in more ways than the others */

#define FIRST_SAMPLE 5000000000u /* number of a batch's first sequence in the run */
#define SEED 77u                 /* of dropout */

static struct model_conf with_rates(const struct model_conf *c, double resid, double embd)
{
    struct model_conf dropped = *c;
    dropped.resid_dropout = resid;
    dropped.embd_dropout = embd;
    return dropped;
}

static struct model_conf with_dropout(const struct model_conf *c)
{
    return with_rates(c, 0.3, 0.3);
}

struct batch {
    int32_t token[SEQUENCES * LENGTH], target[SEQUENCES * LENGTH];
};

/* Unequal numbers of counted tokens: sequence s counts those from position s on, except one in five. */
static struct batch make_batch(uint64_t seed)
{
    struct batch b;
    for (uint64_t i = 0; i < SEQUENCES * LENGTH; i++) {
        struct rng_block r = rng_at(seed, RNG_TEST, i, 0);
        b.token[i] = (int32_t)(r.word[0] % VOCAB);
        bool counts = i % LENGTH >= i / LENGTH && r.word[1] % 5 != 0;
        b.target[i] = counts ? (int32_t)(r.word[2] % VOCAB) : -1;
    }
    return b;
}

/* Sequences [first, first + count) of a batch. */
static struct micro micro_of(const struct batch *b, uint64_t first, uint64_t count)
{
    return (struct micro){ .sequences = count, .token = b->token + first * LENGTH, .target = b->target + first * LENGTH,
                           .first_sample = FIRST_SAMPLE + first };
}

/* Weights with life in every tensor: also gains and biases. */
static void lively_weights(struct rig *r)
{
    rig_init_weights(r, 5);
    float *all = rig_weights(r);
    for (uint32_t i = 0; i < r->reg->count; i++) {
        const struct param *p = &r->reg->list[i];
        for (uint64_t e = 0; e < p->elements && p->rank == 1; e++) {
            double noise[4];
            rng_normal4(rng_at(9, RNG_TEST, i, e), noise);
            all[r->offset[i] + e] += (float)(0.3 * noise[0]);
        }
        rig_set(r, i, all + r->offset[i]);
    }
    free(all);
}

static void open_train(struct rig *r, const struct model_conf *c, enum isa isa, uint32_t threads)
{
    struct model_shape shape = rig_shape(c, MODEL_TRAIN, SEQUENCES, LENGTH);
    shape.seed = SEED;
    rig_open(r, c, &shape, isa, threads);
    lively_weights(r);
}

/* All weights in double; the caller frees. */
static double *weights_in_double(const struct rig *r)
{
    float *all = rig_weights(r);
    double *w = calloc(r->reg->elements, sizeof(double));
    assert_non_null(w);
    for (uint64_t i = 0; i < r->reg->elements; i++) {
        w[i] = (double)all[i];
    }
    free(all);
    return w;
}

/* Sum of the losses of a batch; it counts `tokens` tokens. */
static double reference_loss(struct reference *ref, const struct batch *b, uint64_t tokens)
{
    double sum = 0.0;
    uint64_t counted = 0;
    for (uint64_t s = 0; s < SEQUENCES; s++) {
        ref->sample = FIRST_SAMPLE + s;
        sum += ref_loss(ref, LENGTH, b->token + s * LENGTH, b->target + s * LENGTH, &counted);
    }
    assert_int_equal(counted, tokens);
    return sum;
}

static void check_gradients(const struct model_conf *c)
{
    struct rig r;
    struct batch b = make_batch(3);
    struct micro micro = micro_of(&b, 0, SEQUENCES);
    struct model_loss loss = { 0 };
    open_train(&r, c, rig_best_isa(), 1);
    assert_ok(model_micro_step(r.model, &micro, &loss));
    double *w = weights_in_double(&r);
    int64_t *grad = rig_gradients(&r);
    struct reference ref = { .c = c, .reg = r.reg, .w = w, .offset = r.offset, .seed = SEED };
    assert_true(fabs(fixed_to_loss(loss.sum) / reference_loss(&ref, &b, loss.tokens) - 1.0) < 1e-6);
    double scale = 1.0 / (double)((int64_t)1 << order_default_grad_scale_log2(LENGTH));
    for (uint32_t i = 0; i < r.reg->count; i++) {
        const struct param *p = &r.reg->list[i];
        uint64_t step = p->elements <= 32 ? 1 : p->elements / 32 | 1; /* in a matrix no two of a column in a row */
        for (uint64_t e = r.offset[i]; e < r.offset[i] + p->elements; e += step) {
            double kept = w[e], sum[2] = { 0.0, 0.0 }, d = 1e-5;
            for (int side = 0; side < 2; side++) {
                w[e] = kept + (side == 0 ? d : -d);
                sum[side] = reference_loss(&ref, &b, loss.tokens);
            }
            w[e] = kept;
            double want = (sum[0] - sum[1]) / (2.0 * d), got = (double)grad[e] * scale;
            if (fabs(want - got) > 2e-5 * (1.0 + fabs(want))) {
                fail_msg("%s element %llu: gradient %.9g, central difference %.9g", p->name,
                         (unsigned long long)(e - r.offset[i]), got, want);
            }
        }
    }
    free(w);
    free(grad);
    rig_close(&r);
}

static void gradients_match_central_differences(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        check_gradients(families[f]);
    }
}

static void gradients_with_dropout_match_central_differences(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        const struct model_conf c = with_dropout(families[f]);
        check_gradients(&c);
    }
    const struct model_conf resid_only = with_rates(&tiny_gpt2, 0.3, 0.0), embd_only = with_rates(&tiny_gpt2, 0.0, 0.3);
    check_gradients(&resid_only);
    check_gradients(&embd_only);
}

static void loss_matches_the_reference_and_counts_tokens(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct rig r;
        struct batch b = make_batch(4);
        struct micro micro = micro_of(&b, 0, SEQUENCES);
        struct model_loss loss = { 0 };
        open_train(&r, families[f], rig_best_isa(), 2);
        assert_ok(model_eval(r.model, &micro, &loss, NULL));
        double *w = weights_in_double(&r);
        struct reference ref = { .c = families[f], .reg = r.reg, .w = w, .offset = r.offset };
        assert_true(fabs(fixed_to_loss(loss.sum) / reference_loss(&ref, &b, loss.tokens) - 1.0) < 1e-6);
        free(w);
        rig_close(&r);
    }
}

static void evaluation_drops_nothing_and_training_still_does_after_it(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        const struct model_conf confs[] = { *families[f], with_dropout(families[f]) };
        struct batch b = make_batch(4);
        struct micro micro = micro_of(&b, 0, SEQUENCES);
        struct model_loss eval[2] = { { 0 } }, train[2][2] = { { { 0 } } };
        for (int dropped = 0; dropped < 2; dropped++) {
            struct rig r;
            open_train(&r, &confs[dropped], rig_best_isa(), 1);
            assert_ok(model_micro_step(r.model, &micro, &train[dropped][0]));
            assert_ok(model_eval(r.model, &micro, &eval[dropped], NULL));
            assert_ok(model_micro_step(r.model, &micro, &train[dropped][1]));
            assert_int_equal(train[dropped][0].sum, train[dropped][1].sum);
            rig_close(&r);
        }
        assert_int_equal(eval[1].sum, eval[0].sum);
        assert_int_equal(train[0][0].sum, eval[0].sum);
        assert_int_not_equal(train[1][0].sum, eval[0].sum);
    }
}

/* Gradient integers, padding too, and loss of one batch under a way of computing it. */
struct outcome {
    int64_t *grad;
    uint64_t stored;
    struct model_loss loss;
};

static void keep_gradients(struct outcome *o, const struct rig *r)
{
    o->stored = r->reg->stored;
    o->grad = malloc(o->stored * sizeof(int64_t));
    assert_non_null(o->grad);
    for (uint32_t i = 0; i < r->reg->bucket_count; i++) {
        const struct bucket *b = &r->reg->buckets[i];
        memcpy(o->grad + b->offset, r->at.g[i], b->stored * sizeof(int64_t));
    }
}

/* A way of computing a batch: none of it changes a bit. */
struct way {
    enum isa isa;
    uint32_t threads;
    uint64_t micro;
    enum recompute recompute;
    bool bf16;
};

static struct outcome compute(const struct model_conf *c, const struct way *w)
{
    struct rig r;
    struct batch b = make_batch(6);
    struct outcome o = { 0 };
    struct model_shape shape = rig_shape(c, MODEL_TRAIN, SEQUENCES, LENGTH);
    uint64_t micro = w->micro;
    shape.seed = SEED;
    shape.recompute = w->recompute;
    shape.bf16 = w->bf16;
    rig_open(&r, c, &shape, w->isa, w->threads);
    lively_weights(&r);
    for (uint64_t s = 0; s < SEQUENCES; s += micro) {
        struct micro m = micro_of(&b, s, SEQUENCES - s < micro ? SEQUENCES - s : micro);
        assert_ok(model_micro_step(r.model, &m, &o.loss));
    }
    keep_gradients(&o, &r);
    rig_close(&r);
    return o;
}

static void check_way(const struct model_conf *c, const struct way *w, const struct outcome *want)
{
    struct outcome got = compute(c, w);
    assert_int_equal(got.loss.sum, want->loss.sum);
    assert_int_equal(got.loss.tokens, want->loss.tokens);
    assert_memory_equal(got.grad, want->grad, want->stored * sizeof(int64_t));
    free(got.grad);
}

/* Every number of threads with every micro-batch; `few`: each once. */
static void check_every_way(const struct model_conf *c, bool bf16, bool few)
{
    struct outcome want = compute(c, &(struct way){ .isa = ISA_SCALAR, .threads = 1, .micro = 1, .bf16 = bf16 });
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        struct way w = { .isa = (enum isa)isa, .bf16 = bf16 };
        for (w.threads = 1; w.threads <= 3 && kern_isa_supported(w.isa); w.threads++) {
            for (w.micro = few ? 4 - w.threads : 1; w.micro <= (few ? 4 - w.threads : 3); w.micro++) {
                check_way(c, &w, &want);
            }
        }
    }
    struct way again = { .isa = rig_best_isa(), .threads = 2, .micro = 2, .bf16 = bf16 };
    for (int i = RECOMPUTE_NONE; i <= RECOMPUTE_FULL; i++) {
        again.recompute = (enum recompute)i;
        check_way(c, &again, &want);
    }
    free(want.grad);
}

static void gradients_are_the_same_bits_for_every_way_of_computing(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        check_every_way(families[f], false, f >= OLDEST);
        check_every_way(families[f], true, f >= OLDEST);
    }
}

static void masks_of_dropout_are_the_same_for_every_way_of_computing(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        const struct model_conf c = with_dropout(families[f]);
        check_every_way(&c, f % 2 == 0, f >= OLDEST);
        if (f < OLDEST) {
            check_every_way(&c, f % 2 == 1, false);
        }
    }
}

/* Loss of the first sequence of a batch under a seed, as sample number `sample`. */
static int64_t dropped_loss(uint64_t seed, uint64_t sample)
{
    struct rig r;
    const struct model_conf c = with_dropout(&tiny_gpt2);
    struct model_shape shape = rig_shape(&c, MODEL_TRAIN, 1, LENGTH);
    struct batch b = make_batch(6);
    struct micro micro = micro_of(&b, 0, 1);
    struct model_loss loss = { 0 };
    shape.seed = seed;
    micro.first_sample = sample;
    rig_open(&r, &c, &shape, rig_best_isa(), 1);
    lively_weights(&r);
    assert_ok(model_micro_step(r.model, &micro, &loss));
    rig_close(&r);
    return loss.sum;
}

static void masks_of_dropout_depend_on_seed_and_sample(void **state)
{
    (void)state;
    int64_t loss = dropped_loss(SEED, FIRST_SAMPLE);
    assert_int_equal(dropped_loss(SEED, FIRST_SAMPLE), loss);
    assert_int_not_equal(dropped_loss(SEED + 1, FIRST_SAMPLE), loss);
    assert_int_not_equal(dropped_loss(SEED, FIRST_SAMPLE + 1), loss);
}

static void units_shorter_than_a_sequence_change_no_micro_batch(void **state)
{
    (void)state;
    for (uint64_t unit = 3; unit <= 4; unit++) { /* one that divides the length and one that does not */
        struct outcome o[2] = { { 0 } };
        for (uint64_t micro = 1; micro <= 2; micro++) {
            struct rig r;
            struct batch b = make_batch(6);
            struct model_shape shape = rig_shape(&tiny_llama, MODEL_TRAIN, micro, LENGTH);
            shape.grad_unit = unit;
            rig_open(&r, &tiny_llama, &shape, rig_best_isa(), 2);
            lively_weights(&r);
            for (uint64_t s = 0; s < 2; s += micro) {
                struct micro m = micro_of(&b, s, micro);
                assert_ok(model_micro_step(r.model, &m, &o[micro - 1].loss));
            }
            keep_gradients(&o[micro - 1], &r);
            rig_close(&r);
        }
        assert_memory_equal(o[0].grad, o[1].grad, o[0].stored * sizeof(int64_t));
        free(o[0].grad);
        free(o[1].grad);
    }
}

static void future_tokens_change_nothing(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct rig r;
        struct model_shape shape = rig_shape(families[f], MODEL_INFER, 1, LENGTH);
        float want[LENGTH * VOCAB], got[LENGTH * VOCAB];
        struct batch b = make_batch(8);
        shape.bf16 = f % 2 == 1;
        rig_open(&r, families[f], &shape, rig_best_isa(), 2);
        lively_weights(&r);
        assert_ok(model_infer(r.model, 0, LENGTH, b.token, true, want));
        for (uint64_t cut = 1; cut < LENGTH; cut++) {
            for (uint64_t t = cut; t < LENGTH; t++) {
                b.token[t] = (b.token[t] + 7) % VOCAB;
            }
            assert_ok(model_infer(r.model, 0, LENGTH, b.token, true, got));
            assert_memory_equal(got, want, cut * VOCAB * sizeof(float));
            assert_memory_not_equal(got + cut * VOCAB, want + cut * VOCAB, VOCAB * sizeof(float));
            assert_ok(model_infer(r.model, 0, LENGTH, b.token, true, want));
        }
        rig_close(&r);
    }
}

static void cache_gives_the_logits_of_a_full_forward(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct rig r;
        struct model_shape shape = rig_shape(families[f], MODEL_INFER, 1, LENGTH);
        float want[LENGTH * VOCAB], got[LENGTH * VOCAB];
        struct batch b = make_batch(8);
        rig_open(&r, families[f], &shape, rig_best_isa(), 2);
        lively_weights(&r);
        assert_ok(model_infer(r.model, 0, LENGTH, b.token, true, want));
        for (uint64_t prompt = 1; prompt <= LENGTH; prompt++) {
            assert_ok(model_infer(r.model, 0, prompt, b.token, true, got));
            for (uint64_t t = prompt; t < LENGTH; t++) {
                assert_ok(model_infer(r.model, t, 1, b.token + t, false, got + t * VOCAB));
            }
            assert_memory_equal(got, want, sizeof(want));
        }
        rig_close(&r);
    }
}

static void untrained_loss_is_the_logarithm_of_the_vocabulary(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct rig r;
        struct model_conf c = *families[f];
        struct batch b = make_batch(2);
        struct micro micro = micro_of(&b, 0, SEQUENCES);
        struct model_loss loss = { 0 };
        c.initializer_range = 0.02;
        struct model_shape shape = rig_shape(&c, MODEL_TRAIN, SEQUENCES, LENGTH);
        rig_open(&r, &c, &shape, rig_best_isa(), 1);
        rig_init_weights(&r, 1);
        assert_ok(model_eval(r.model, &micro, &loss, NULL));
        double mean = fixed_to_loss(loss.sum) / (double)loss.tokens;
        assert_true(fabs(mean / log(VOCAB) - 1.0) < 0.02);
        rig_close(&r);
    }
}

/* The larger the batch, the smaller a unit may be: all units of a step fit into their integers. */
static void units_leave_room_for_the_whole_batch(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        for (int large = 0; large < 2; large++) {
            struct rig r;
            struct batch b = make_batch(2);
            struct micro micro = micro_of(&b, 0, SEQUENCES);
            struct model_loss loss = { 0 };
            struct model_shape shape = rig_shape(families[f], MODEL_TRAIN, SEQUENCES, LENGTH);
            shape.batch = large ? (uint64_t)1 << 40 : (uint64_t)1 << 10;
            rig_open(&r, families[f], &shape, rig_best_isa(), 1);
            rig_init_weights(&r, 1);
            assert_ok(model_micro_step(r.model, &micro, &loss));
            assert_int_equal(loss.bad, large);
            assert_false(loss.undefined);
            rig_close(&r);
        }
    }
}

static void masked_tokens_have_no_gradient(void **state)
{
    (void)state;
    struct rig r;
    struct batch b = make_batch(2);
    struct micro micro = micro_of(&b, 0, SEQUENCES);
    struct model_loss loss = { 0 };
    struct outcome o;
    open_train(&r, &tiny_llama, rig_best_isa(), 1);
    for (size_t i = 0; i < SEQUENCES * LENGTH; i++) {
        b.target[i] = -1;
    }
    assert_ok(model_micro_step(r.model, &micro, &loss));
    assert_int_equal(loss.tokens, 0);
    assert_int_equal(loss.sum, 0);
    keep_gradients(&o, &r);
    for (uint64_t i = 0; i < o.stored; i++) {
        assert_int_equal(o.grad[i], 0);
    }
    free(o.grad);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gradients_match_central_differences),
    cmocka_unit_test(gradients_with_dropout_match_central_differences),
    cmocka_unit_test(loss_matches_the_reference_and_counts_tokens),
    cmocka_unit_test(evaluation_drops_nothing_and_training_still_does_after_it),
    cmocka_unit_test(gradients_are_the_same_bits_for_every_way_of_computing),
    cmocka_unit_test(masks_of_dropout_are_the_same_for_every_way_of_computing),
    cmocka_unit_test(masks_of_dropout_depend_on_seed_and_sample),
    cmocka_unit_test(units_shorter_than_a_sequence_change_no_micro_batch),
    cmocka_unit_test(future_tokens_change_nothing),
    cmocka_unit_test(cache_gives_the_logits_of_a_full_forward),
    cmocka_unit_test(untrained_loss_is_the_logarithm_of_the_vocabulary),
    cmocka_unit_test(masked_tokens_have_no_gradient),
    cmocka_unit_test(units_leave_room_for_the_whole_batch),
};
TEST_MAIN(tests)
