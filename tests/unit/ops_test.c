/* The table of kernels that `invar bench` measures: its operations are those that the model counts, over all ranks of a
 * layout, whatever is computed again; and every entry runs. */
#include "rig.h"

#include "bench/ops.h"
#include "model/model.h"

static struct model_conf small(enum family family)
{
    bool gpt2 = family == FAMILY_GPT2;
    return (struct model_conf){
        .family = family, .layers = 4, .hidden = 64, .heads = 8, .kv_heads = gpt2 ? 8 : 4, .head_dim = 8, .ffn = 128,
        .vocab = 300, .positions = 64, .norm_eps = 1e-5, .norm = gpt2 ? NORM_LAYER : NORM_RMS,
        .activation = gpt2 ? ACTIVATION_GELU_TANH : ACTIVATION_SILU, .gated = !gpt2, .learned_positions = gpt2,
        .rotary_dim = gpt2 ? 0 : 8, .rope = { .theta = 1e4, .factor = 1, .attention_factor = 1 }, .embed_scale = 1,
        .attention_scale = 0.35355339059327379, .initializer_range = 0.02, .tied = gpt2,
        .resid_dropout = gpt2 ? 0.1 : 0, .embd_dropout = gpt2 ? 0.1 : 0,
    };
}

static struct ops_shape whole(enum family family)
{
    return (struct ops_shape){
        .model = small(family), .sequences = 3, .length = 32, .cp = 1, .tp = 1, .micros = 2, .layers = 4,
        .embedding = true, .head = true, .parameters = 1000, .grain = 4, .unit = 32,
    };
}

/* What products and attention compute in a step, without what they compute again. */
static double useful_flops(const struct ops_shape *s)
{
    struct op list[OPS_MAX];
    double sum = 0;
    uint32_t count = ops_list(s, list);
    for (uint32_t i = 0; i < count; i++) {
        sum += (list[i].calls - list[i].again) * list[i].flops;
    }
    return sum;
}

static double step_flops(const struct ops_shape *s)
{
    return model_train_flops(&s->model, s->length) * (double)(s->sequences * s->length * s->micros);
}

static void near_equal(double a, double b)
{
    assert_true(a > 0);
    assert_true(a / b > 1 - 1e-12 && a / b < 1 + 1e-12);
}

static void operations_are_those_of_the_model(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct ops_shape s = whole(f == 0 ? FAMILY_GPT2 : FAMILY_LLAMA);
        near_equal(useful_flops(&s), step_flops(&s));
        s.unit = 20; /* units that do not tile a sequence: one sum for each sequence */
        near_equal(useful_flops(&s), step_flops(&s));
    }
}

static void what_is_computed_again_is_no_use(void **state)
{
    (void)state;
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
        struct op list[OPS_MAX];
        struct ops_shape s = whole(FAMILY_LLAMA);
        double again = 0;
        s.recompute = (enum recompute)recompute;
        near_equal(useful_flops(&s), step_flops(&s));
        uint32_t count = ops_list(&s, list);
        for (uint32_t i = 0; i < count; i++) {
            again += list[i].again * list[i].flops;
        }
        assert_true((again > 0) == (recompute != RECOMPUTE_NONE));
        assert_true(again < 0.34 * step_flops(&s));
    }
}

/* Divided by tensor, context and pipeline parallelism: the ranks together do the work of one. */
static void ranks_share_the_operations(void **state)
{
    (void)state;
    const struct ops_shape all = whole(FAMILY_LLAMA);
    struct ops_shape first = all;
    first.tp = 2;
    first.cp = 2;
    first.unit = 16;
    first.layers = 1;
    first.head = false;
    struct ops_shape last = first;
    last.layers = 3;
    last.embedding = false;
    last.head = true;
    near_equal(4 * (useful_flops(&first) + useful_flops(&last)), step_flops(&all));
}

static void every_op_runs(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct op list[OPS_MAX];
        const struct ops_shape s = whole(f == 0 ? FAMILY_GPT2 : FAMILY_LLAMA);
        struct pool *pool;
        struct kern *k;
        struct ops_memory *memory;
        assert_ok(pool_new(&pool, 2));
        assert_ok(kern_new(&k, rig_best_isa(), pool));
        uint32_t count = ops_list(&s, list);
        assert_ok(ops_memory_new(&memory, &s, list, count, k));
        for (uint32_t i = 0; i < count; i++) {
            assert_true(list[i].calls > 0 && list[i].bytes > 0);
            ops_run(memory, i);
        }
        ops_memory_free(memory);
        kern_free(k);
        pool_free(pool);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(operations_are_those_of_the_model),
    cmocka_unit_test(what_is_computed_again_is_no_use),
    cmocka_unit_test(ranks_share_the_operations),
    cmocka_unit_test(every_op_runs),
};
TEST_MAIN(tests)
