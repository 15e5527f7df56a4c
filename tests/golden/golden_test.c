/* Logits, loss, every gradient and 20 AdamW steps of the three golden models against PyTorch in float64
 * (tests/golden/README.md). Bounds: relative to the largest element of a tensor, 2e-5 for logits and losses, 1e-4 for
 * gradients and weights. */
#include "rig.h"

#include <math.h>

#include "ckpt/ckpt.h"
#include "train/optimizer.h"
#include "train/trainer.h"

#ifndef GOLDEN_FOLDER
#error "GOLDEN_FOLDER is set by meson.build"
#endif

#define BATCHES 4
#define SEQUENCES 2
#define LENGTH 24
#define STEPS 20

struct golden {
    char folder[512];
    struct model_conf conf;
    struct ckpt *ckpt;
    int32_t token[BATCHES][SEQUENCES * LENGTH], target[BATCHES][SEQUENCES * LENGTH];
    float loss, losses[STEPS], grad_norms[STEPS];
    float *logits; /* [SEQUENCES][LENGTH][vocab] */
};

static void load_golden(struct golden *g, const char *name)
{
    struct findings f = { 0 };
    static float token[BATCHES * SEQUENCES * LENGTH], target[BATCHES * SEQUENCES * LENGTH];
    snprintf(g->folder, sizeof(g->folder), "%s/%s", GOLDEN_FOLDER, name);
    assert_ok(model_conf_read(&g->conf, g->folder, &f));
    assert_int_equal(f.errors, 0);
    findings_release(&f);
    assert_ok(ckpt_open(&g->ckpt, g->folder));
    g->logits = malloc(SEQUENCES * LENGTH * g->conf.vocab * sizeof(float));
    assert_non_null(g->logits);
    const struct { struct ckpt_tensor tensor; float *data; } wanted[] = {
        { { .name = "tokens", .rank = 3, .shape = { BATCHES, SEQUENCES, LENGTH } }, token },
        { { .name = "targets", .rank = 3, .shape = { BATCHES, SEQUENCES, LENGTH } }, target },
        { { .name = "logits", .rank = 3, .shape = { SEQUENCES, LENGTH, g->conf.vocab } }, g->logits },
        { { .name = "loss", .rank = 1, .shape = { 1 } }, &g->loss },
        { { .name = "losses", .rank = 1, .shape = { STEPS } }, g->losses },
        { { .name = "grad_norms", .rank = 1, .shape = { STEPS } }, g->grad_norms },
    };
    struct ckpt_tensor tensors[6];
    struct ckpt_box boxes[6];
    for (size_t i = 0; i < 6; i++) {
        tensors[i] = wanted[i].tensor;
        boxes[i] = ckpt_box_whole(&tensors[i], wanted[i].data);
        tensors[i].boxes = &boxes[i];
        tensors[i].boxes_count = 1;
    }
    assert_ok(ckpt_read(g->ckpt, "golden.safetensors", tensors, 6));
    for (size_t b = 0; b < BATCHES; b++) {
        for (size_t i = 0; i < SEQUENCES * LENGTH; i++) {
            g->token[b][i] = (int32_t)token[b * SEQUENCES * LENGTH + i];
            g->target[b][i] = (int32_t)target[b * SEQUENCES * LENGTH + i];
        }
    }
}

static void release_golden(struct golden *g)
{
    ckpt_close(g->ckpt);
    free(g->logits);
}

/* Read a tensor file with the registry's names: all tensors, each at its rig.offset; the caller frees. */
static float *read_tensors(struct golden *g, const struct rig *r, const char *file)
{
    const struct registry *reg = r->reg;
    float *all = calloc(reg->elements, sizeof(float));
    struct ckpt_tensor *list = calloc(reg->count, sizeof(*list));
    struct ckpt_box *boxes = calloc(reg->count, sizeof(*boxes));
    assert_true(all != NULL && list != NULL && boxes != NULL);
    for (uint32_t i = 0; i < reg->count; i++) {
        const struct param *p = &reg->list[i];
        list[i] = (struct ckpt_tensor){ .name = p->name, .rank = p->rank, .shape = { p->shape[0], p->shape[1] },
                                        .boxes = &boxes[i], .boxes_count = 1 };
        boxes[i] = ckpt_box_whole(&list[i], all + r->offset[i]);
    }
    assert_ok(ckpt_read(g->ckpt, file, list, reg->count));
    free(list);
    free(boxes);
    return all;
}

/* Fails when the largest difference is above `bound` times the largest element of `want`. */
static void compare(const char *what, const float *got, const float *want, uint64_t n, double bound)
{
    double worst = 0.0, largest = 0.0;
    for (uint64_t i = 0; i < n; i++) {
        assert_true(isfinite(got[i]));
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    if (worst > bound * largest) {
        fail_msg("%s: largest difference %.3g, largest element %.3g, bound %.1g", what, worst, largest, bound);
    }
}

/* GPT-2's key bias inside c_attn.bias, elements [hidden, 2 hidden), has no effect (tests/golden/README.md): its exact
 * gradient is 0, so it is held to the size of the other gradients; AdamW divides its rounding by its own size, so its
 * weights mean nothing. */
static bool has_key_bias(const struct param *p)
{
    return strstr(p->name, "attn.c_attn.bias") != NULL;
}

static void compare_param(const struct param *p, const float *got, const float *want, double bound)
{
    if (!has_key_bias(p)) {
        compare(p->name, got, want, p->elements, bound);
        return;
    }
    uint64_t third = p->elements / 3;
    compare(p->name, got, want, third, bound);
    compare(p->name, got + 2 * third, want + 2 * third, third, bound);
}

static void key_bias_has_no_gradient(const struct param *p, const float *got, double bound)
{
    uint64_t third = p->elements / 3;
    double others = 0.0, key = 0.0;
    for (uint64_t i = 0; has_key_bias(p) && i < p->elements; i++) {
        double *largest = i / third == 1 ? &key : &others;
        *largest = fmax(*largest, fabs((double)got[i]));
    }
    if (key > bound * others) {
        fail_msg("%s: the key bias has the gradient %.3g, the others up to %.3g", p->name, key, others);
    }
}

static void open_rig(struct rig *r, struct golden *g, const struct model_shape *shape, enum isa isa)
{
    struct kept kept[RIG_BUCKETS_MAX];
    rig_open(r, &g->conf, shape, isa, 2);
    for (uint32_t b = 0; b < r->reg->bucket_count; b++) {
        kept[b] = (struct kept){ r->at.p[b], { 0, r->reg->buckets[b].stored } };
    }
    assert_ok(state_read_weights(g->ckpt, r->reg, kept));
}

static struct micro micro_of(const struct golden *g, uint64_t batch)
{
    return (struct micro){ .sequences = SEQUENCES, .token = g->token[batch], .target = g->target[batch] };
}

static void check_forward(struct golden *g, enum isa isa)
{
    struct rig r;
    struct model_shape shape = rig_shape(&g->conf, MODEL_INFER, 1, LENGTH);
    uint64_t vocab = g->conf.vocab;
    float *logits = malloc(LENGTH * vocab * sizeof(float));
    assert_non_null(logits);
    open_rig(&r, g, &shape, isa);
    for (int s = 0; s < SEQUENCES; s++) {
        assert_ok(model_infer(r.model, 0, LENGTH, g->token[0] + s * LENGTH, true, logits));
        compare("logits", logits, g->logits + (uint64_t)s * LENGTH * vocab, LENGTH * vocab, 2e-5);
    }
    rig_close(&r);
    free(logits);
}

static void check_gradients(struct golden *g, enum isa isa)
{
    struct rig r;
    struct model_shape shape = rig_shape(&g->conf, MODEL_TRAIN, SEQUENCES, LENGTH);
    struct model_loss loss = { 0 };
    const struct micro micro = micro_of(g, 0);
    open_rig(&r, g, &shape, isa);
    assert_ok(model_micro_step(r.model, &micro, &loss));
    assert_false(loss.bad);
    float got = (float)(fixed_to_loss(loss.sum) / (double)loss.tokens);
    compare("loss", &got, &g->loss, 1, 2e-5);
    int64_t *grad = rig_gradients(&r);
    float *want = read_tensors(g, &r, "gradients.safetensors"), *mine = calloc(r.reg->elements, sizeof(float));
    assert_non_null(mine);
    double factor = 1.0 / (double)((int64_t)1 << shape.grad_scale_log2) / (double)loss.tokens;
    kern_grad_to_float(r.kern, r.reg->elements, grad, factor, mine);
    for (uint32_t i = 0; i < r.reg->count; i++) {
        compare_param(&r.reg->list[i], mine + r.offset[i], want + r.offset[i], 1e-4);
        key_bias_has_no_gradient(&r.reg->list[i], mine + r.offset[i], 1e-4);
    }
    free(want);
    free(mine);
    free(grad);
    rig_close(&r);
}

/* A rank on its own, and what it keeps: the model of a rig uses that, with the rig's weights, instead of the rig's. */
struct solo {
    struct comm_threads *threads;
    struct ranks ranks;
    struct holdings holdings;
    struct arena arena;
};

static void solo_open(struct solo *s, struct rig *r, const struct conf *c)
{
    *s = (struct solo){ 0 };
    assert_ok(comm_threads_new(&s->threads, 1, 0));
    assert_ok(ranks_open(&s->ranks, comm_threads_world(s->threads, 0), c));
    assert_ok(holdings_open(&s->holdings, &s->ranks, r->reg, r->kern, c));
    holdings_layout(&s->holdings, &s->arena);
    assert_ok(arena_back(&s->arena));
    holdings_layout(&s->holdings, &s->arena);
    assert_ok(holdings_start(&s->holdings, r->model));
    for (uint32_t b = 0; b < r->reg->bucket_count; b++) {
        memcpy(s->holdings.p[b], r->at.p[b], r->reg->buckets[b].stored * sizeof(float));
    }
    r->at = (struct model_lists){ s->holdings.p, s->holdings.g };
}

static void solo_close(struct solo *s)
{
    holdings_close(&s->holdings);
    arena_release(&s->arena);
    comm_close(s->ranks.world, OK);
    comm_threads_free(s->threads);
}

static double grad_norm(const struct solo *s, const struct conf *c, struct model_loss *loss)
{
    struct fixed_wide sum;
    optimizer_squares(&s->holdings, &sum, &loss->bad);
    return optimizer_norm(&sum, (int32_t)c->grad_scale_log2, loss->tokens);
}

static void check_steps(struct golden *g, enum isa isa)
{
    struct rig r;
    struct solo s;
    struct model_shape shape = rig_shape(&g->conf, MODEL_TRAIN, SEQUENCES, LENGTH);
    const struct conf c = {
        .learning_rate = 3e-3, .weight_decay = 0.1, .adam_beta1 = 0.9, .adam_beta2 = 0.95, .adam_epsilon = 1e-8,
        .max_grad_norm = 1.0, .grad_scale_log2 = shape.grad_scale_log2, .model = g->conf, .tp = 1, .pp = 1, .cp = 1,
        .dp = 1, .pipe_chunks = 1, .global_batch_size = SEQUENCES, .micro_batch_size = SEQUENCES,
    };
    uint64_t box_hash[3 * RIG_PARAMS_MAX];
    open_rig(&r, g, &shape, isa);
    solo_open(&s, &r, &c);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct model_loss loss = { 0 };
        const struct micro micro = micro_of(g, (step - 1) % BATCHES);
        assert_ok(model_micro_step(r.model, &micro, &loss));
        double norm = grad_norm(&s, &c, &loss);
        assert_false(loss.bad);
        float got[2] = { (float)(fixed_to_loss(loss.sum) / (double)loss.tokens), (float)norm };
        compare("losses", &got[0], &g->losses[step - 1], 1, 2e-5);
        compare("grad_norms", &got[1], &g->grad_norms[step - 1], 1, 1e-4);
        const struct optimizer_update u = { .step = step, .tokens = loss.tokens, .lr = c.learning_rate,
                                            .grad_norm = norm };
        optimizer_step(&s.holdings, &c, &u, box_hash);
    }
    float *want = read_tensors(g, &r, "after.safetensors"), *mine = rig_weights(&r);
    for (uint32_t i = 0; i < r.reg->count; i++) {
        compare_param(&r.reg->list[i], mine + r.offset[i], want + r.offset[i], 1e-4);
    }
    free(want);
    free(mine);
    solo_close(&s);
    rig_close(&r);
}

static void each_isa(const char *name, void (*check)(struct golden *, enum isa))
{
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (kern_isa_supported((enum isa)isa)) {
            struct golden g;
            load_golden(&g, name);
            check(&g, (enum isa)isa);
            release_golden(&g);
        }
    }
}

#define GOLDEN_TESTS(name)                                                                         \
    static void name##_logits_match_pytorch(void **state) { (void)state; each_isa(#name, check_forward); }   \
    static void name##_gradients_match_pytorch(void **state) { (void)state; each_isa(#name, check_gradients); } \
    static void name##_twenty_steps_match_pytorch(void **state) { (void)state; each_isa(#name, check_steps); }
GOLDEN_TESTS(gpt2)
GOLDEN_TESTS(llama)
GOLDEN_TESTS(llama_tied)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gpt2_logits_match_pytorch),         cmocka_unit_test(gpt2_gradients_match_pytorch),
    cmocka_unit_test(gpt2_twenty_steps_match_pytorch),   cmocka_unit_test(llama_logits_match_pytorch),
    cmocka_unit_test(llama_gradients_match_pytorch),     cmocka_unit_test(llama_twenty_steps_match_pytorch),
    cmocka_unit_test(llama_tied_logits_match_pytorch),   cmocka_unit_test(llama_tied_gradients_match_pytorch),
    cmocka_unit_test(llama_tied_twenty_steps_match_pytorch),
};
TEST_MAIN(tests)
