/* The decoder: every gradient against central differences of an independent model in double, causality, the cache,
 * units, masks, and the same bits for micro-batches, threads and instruction sets. */
#include "rig.h"

#include "base/rng.h"
#include "reference.h"

#define LENGTH 8
#define SEQUENCES 3
#define VOCAB 19

static const struct model_conf tiny_gpt2 = {
    .family = FAMILY_GPT2, .layers = 2, .hidden = 16, .heads = 2, .kv_heads = 2, .head_dim = 8, .ffn = 32,
    .vocab = VOCAB, .positions = LENGTH, .norm_eps = 1e-5, .initializer_range = 0.3, .tied = true,
};
static const struct model_conf tiny_llama = {
    .family = FAMILY_LLAMA, .layers = 2, .hidden = 24, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn = 32,
    .vocab = VOCAB, .positions = 64, .norm_eps = 1e-5, .rope_theta = 10000.0, .initializer_range = 0.3, .tied = false,
};
static const struct model_conf tiny_llama_tied = {
    .family = FAMILY_LLAMA, .layers = 1, .hidden = 16, .heads = 2, .kv_heads = 1, .head_dim = 8, .ffn = 48,
    .vocab = VOCAB, .positions = 64, .norm_eps = 1e-5, .rope_theta = 500.0, .initializer_range = 0.3, .tied = true,
};
static const struct model_conf *const families[] = { &tiny_gpt2, &tiny_llama, &tiny_llama_tied };
#define FAMILIES (sizeof(families) / sizeof(families[0]))

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

/* Weights with life in every tensor: also gains and biases. */
static void lively_weights(struct rig *r)
{
    model_init_weights(r->model, 5);
    const struct registry *reg = model_registry(r->model);
    for (uint32_t i = 0; i < reg->count; i++) {
        const struct param *p = &reg->list[i];
        for (uint64_t e = 0; e < p->elements && p->rank == 1; e++) {
            double noise[4];
            rng_normal4(rng_at(9, RNG_TEST, i, e), noise);
            model_params(r->model)[p->offset + e] += (float)(0.3 * noise[0]);
        }
    }
}

static void open_train(struct rig *r, const struct model_conf *c, enum isa isa, uint32_t threads)
{
    struct model_shape shape = rig_shape(c, MODEL_TRAIN, SEQUENCES, LENGTH);
    rig_open(r, c, &shape, isa, threads);
    lively_weights(r);
}

static void gradients_match_central_differences(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct rig r;
        struct batch b = make_batch(3);
        struct model_loss loss = { 0 };
        open_train(&r, families[f], rig_best_isa(), 1);
        model_micro_step(r.model, SEQUENCES, b.token, b.target, &loss);
        const struct registry *reg = model_registry(r.model);
        double *w = calloc(reg->stored, sizeof(double));
        assert_non_null(w);
        for (uint64_t i = 0; i < reg->stored; i++) {
            w[i] = (double)model_params(r.model)[i];
        }
        struct reference ref = { families[f], reg, w };
        double scale = 1.0 / (double)((int64_t)1 << order_default_grad_scale_log2(LENGTH));
        for (uint32_t i = 0; i < reg->count; i++) {
            const struct param *p = &reg->list[i];
            for (uint64_t e = p->offset; e < p->offset + p->elements; e++) {
                double kept = w[e], sum[2] = { 0.0, 0.0 }, step = 1e-5;
                for (int side = 0; side < 2; side++) {
                    uint64_t counted = 0;
                    w[e] = kept + (side == 0 ? step : -step);
                    for (uint64_t s = 0; s < SEQUENCES; s++) {
                        sum[side] += ref_loss(&ref, LENGTH, b.token + s * LENGTH, b.target + s * LENGTH, &counted);
                    }
                    assert_int_equal(counted, loss.tokens);
                }
                w[e] = kept;
                double want = (sum[0] - sum[1]) / (2.0 * step), got = (double)model_grads(r.model)[e] * scale;
                if (fabs(want - got) > 2e-5 * (1.0 + fabs(want))) {
                    fail_msg("%s element %llu: gradient %.9g, central difference %.9g", p->name,
                             (unsigned long long)(e - p->offset), got, want);
                }
            }
        }
        free(w);
        rig_close(&r);
    }
}

static void loss_matches_the_reference_and_counts_tokens(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct rig r;
        struct batch b = make_batch(4);
        struct model_loss loss = { 0 };
        open_train(&r, families[f], rig_best_isa(), 2);
        model_eval(r.model, SEQUENCES, b.token, b.target, &loss, NULL);
        const struct registry *reg = model_registry(r.model);
        double *w = calloc(reg->stored, sizeof(double)), want = 0.0;
        assert_non_null(w);
        for (uint64_t i = 0; i < reg->stored; i++) {
            w[i] = (double)model_params(r.model)[i];
        }
        struct reference ref = { families[f], reg, w };
        uint64_t counted = 0;
        for (uint64_t s = 0; s < SEQUENCES; s++) {
            want += ref_loss(&ref, LENGTH, b.token + s * LENGTH, b.target + s * LENGTH, &counted);
        }
        assert_int_equal(counted, loss.tokens);
        assert_true(fabs(fixed_to_loss(loss.sum) / want - 1.0) < 1e-6);
        free(w);
        rig_close(&r);
    }
}

/* Gradient integers and loss of one batch under a way of computing it. */
struct outcome {
    int64_t *grad;
    uint64_t stored;
    struct model_loss loss;
};

static struct outcome compute(const struct model_conf *c, enum isa isa, uint32_t threads, uint64_t micro)
{
    struct rig r;
    struct batch b = make_batch(6);
    struct outcome o = { 0 };
    open_train(&r, c, isa, threads);
    for (uint64_t s = 0; s < SEQUENCES; s += micro) {
        uint64_t n = SEQUENCES - s < micro ? SEQUENCES - s : micro;
        model_micro_step(r.model, n, b.token + s * LENGTH, b.target + s * LENGTH, &o.loss);
    }
    o.stored = model_registry(r.model)->stored;
    o.grad = malloc(o.stored * sizeof(int64_t));
    assert_non_null(o.grad);
    memcpy(o.grad, model_grads(r.model), o.stored * sizeof(int64_t));
    rig_close(&r);
    return o;
}

static void gradients_are_the_same_bits_for_every_way_of_computing(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct outcome want = compute(families[f], ISA_SCALAR, 1, 1);
        for (int isa = 0; isa < ISA_COUNT; isa++) {
            for (uint32_t threads = 1; threads <= 3 && kern_isa_supported((enum isa)isa); threads++) {
                for (uint64_t micro = 1; micro <= 3; micro++) {
                    struct outcome got = compute(families[f], (enum isa)isa, threads, micro);
                    assert_int_equal(got.loss.sum, want.loss.sum);
                    assert_int_equal(got.loss.tokens, want.loss.tokens);
                    assert_memory_equal(got.grad, want.grad, want.stored * sizeof(int64_t));
                    free(got.grad);
                }
            }
        }
        free(want.grad);
    }
}

static void units_shorter_than_a_sequence_change_no_micro_batch(void **state)
{
    (void)state;
    for (uint64_t unit = 3; unit <= 4; unit++) { /* one that divides the length and one that does not */
        struct outcome o[2];
        for (uint64_t micro = 1; micro <= 2; micro++) {
            struct rig r;
            struct batch b = make_batch(6);
            struct model_shape shape = rig_shape(&tiny_llama, MODEL_TRAIN, micro, LENGTH);
            shape.grad_unit = unit;
            rig_open(&r, &tiny_llama, &shape, rig_best_isa(), 2);
            lively_weights(&r);
            struct outcome *to = &o[micro - 1];
            *to = (struct outcome){ .stored = model_registry(r.model)->stored };
            for (uint64_t s = 0; s < 2; s += micro) {
                model_micro_step(r.model, micro, b.token + s * LENGTH, b.target + s * LENGTH, &to->loss);
            }
            to->grad = malloc(to->stored * sizeof(int64_t));
            assert_non_null(to->grad);
            memcpy(to->grad, model_grads(r.model), to->stored * sizeof(int64_t));
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
        rig_open(&r, families[f], &shape, rig_best_isa(), 2);
        lively_weights(&r);
        model_infer(r.model, 0, LENGTH, b.token, true, want);
        for (uint64_t cut = 1; cut < LENGTH; cut++) {
            for (uint64_t t = cut; t < LENGTH; t++) {
                b.token[t] = (b.token[t] + 7) % VOCAB;
            }
            model_infer(r.model, 0, LENGTH, b.token, true, got);
            assert_memory_equal(got, want, cut * VOCAB * sizeof(float));
            assert_memory_not_equal(got + cut * VOCAB, want + cut * VOCAB, VOCAB * sizeof(float));
            model_infer(r.model, 0, LENGTH, b.token, true, want);
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
        model_infer(r.model, 0, LENGTH, b.token, true, want);
        for (uint64_t prompt = 1; prompt <= LENGTH; prompt++) {
            model_infer(r.model, 0, prompt, b.token, true, got);
            for (uint64_t t = prompt; t < LENGTH; t++) {
                model_infer(r.model, t, 1, b.token + t, false, got + t * VOCAB);
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
        struct model_loss loss = { 0 };
        c.initializer_range = 0.02;
        struct model_shape shape = rig_shape(&c, MODEL_TRAIN, SEQUENCES, LENGTH);
        rig_open(&r, &c, &shape, rig_best_isa(), 1);
        model_init_weights(r.model, 1);
        model_eval(r.model, SEQUENCES, b.token, b.target, &loss, NULL);
        double mean = fixed_to_loss(loss.sum) / (double)loss.tokens;
        assert_true(fabs(mean / log(VOCAB) - 1.0) < 0.02);
        rig_close(&r);
    }
}

static void masked_tokens_have_no_gradient(void **state)
{
    (void)state;
    struct rig r;
    struct batch b = make_batch(2);
    struct model_loss loss = { 0 };
    open_train(&r, &tiny_llama, rig_best_isa(), 1);
    for (size_t i = 0; i < SEQUENCES * LENGTH; i++) {
        b.target[i] = -1;
    }
    model_micro_step(r.model, SEQUENCES, b.token, b.target, &loss);
    assert_int_equal(loss.tokens, 0);
    assert_int_equal(loss.sum, 0);
    for (uint64_t i = 0; i < model_registry(r.model)->stored; i++) {
        assert_int_equal(model_grads(r.model)[i], 0);
    }
    rig_close(&r);
}

static void parameters_are_counted_as_hugging_face_does(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct registry reg;
        assert_ok(registry_init(&reg, families[f]));
        assert_int_equal(reg.elements, model_conf_parameters(families[f]));
        registry_release(&reg);
    }
    const struct model_conf gpt2 = { .family = FAMILY_GPT2, .layers = 12, .hidden = 768, .heads = 12, .kv_heads = 12,
                                     .head_dim = 64, .ffn = 3072, .vocab = 50257, .positions = 1024, .tied = true };
    struct registry reg;
    assert_ok(registry_init(&reg, &gpt2));
    assert_int_equal(reg.elements, 124439808);
    registry_release(&reg);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gradients_match_central_differences),
    cmocka_unit_test(loss_matches_the_reference_and_counts_tokens),
    cmocka_unit_test(gradients_are_the_same_bits_for_every_way_of_computing),
    cmocka_unit_test(units_shorter_than_a_sequence_change_no_micro_batch),
    cmocka_unit_test(future_tokens_change_nothing),
    cmocka_unit_test(cache_gives_the_logits_of_a_full_forward),
    cmocka_unit_test(untrained_loss_is_the_logarithm_of_the_vocabulary),
    cmocka_unit_test(masked_tokens_have_no_gradient),
    cmocka_unit_test(parameters_are_counted_as_hugging_face_does),
};
TEST_MAIN(tests)
