/* Why this exists: the step from gradients to weights. Everything that depends on the step number is computed here
 * in double and rounded to fp32 once, so that every rank and every resume uses the same bits. Formulas: Loshchilov
 * and Hutter, "Decoupled weight decay regularization", 2019; clipping as torch.nn.utils.clip_grad_norm_: factor
 * min(1, max_norm / (norm + 1e-6)). */
#include "train/optimizer.h"

#include "base/fmath.h"
#include "base/hash.h"

void optimizer_layout(struct optimizer *o, const struct model *m, struct arena *a)
{
    o->m = arena_take(a, model_registry(m)->stored, sizeof(float));
    o->v = arena_take(a, model_registry(m)->stored, sizeof(float));
}

static double power_of_two(int32_t exponent)
{
    double x = 1.0;
    for (int32_t i = 0; i < exponent; i++) {
        x *= 2.0;
    }
    for (int32_t i = 0; i > exponent; i--) {
        x *= 0.5;
    }
    return x;
}

double optimizer_grad_norm(struct model *m, struct kern *k, int32_t grad_scale_log2, uint64_t tokens, bool *bad)
{
    const struct registry *r = model_registry(m);
    struct fixed_wide sum = { { 0 } };
    for (uint32_t i = 0; i < r->count; i++) {
        struct fixed_wide part = { { 0 } };
        kern_grad_square_sum(k, r->list[i].elements, model_grads(m) + r->list[i].offset, &part, bad);
        fixed_wide_add(&sum, &part);
    }
    return fmath_sqrt(fixed_wide_value(&sum)) * power_of_two(-grad_scale_log2) / (double)tokens;
}

/* 1 - beta^step by repeated squaring: the same operations for the same step everywhere. */
static double bias_correction(double beta, uint64_t step)
{
    double power = 1.0, base = beta;
    for (uint64_t s = step; s > 0; s >>= 1) {
        if ((s & 1) != 0) {
            power *= base;
        }
        base *= base;
    }
    return 1.0 - power;
}

uint64_t optimizer_step(struct optimizer *o, struct model *m, struct kern *k, const struct conf *c,
                        const struct optimizer_update *u)
{
    const struct registry *r = model_registry(m);
    double clip = 1.0;
    if (c->max_grad_norm > 0.0 && u->grad_norm + 1e-6 > c->max_grad_norm) {
        clip = c->max_grad_norm / (u->grad_norm + 1e-6);
    }
    struct adamw a = {
        .grad_factor = power_of_two(-(int32_t)c->grad_scale_log2) / (double)u->tokens * clip,
        .lr = (float)u->lr,
        .beta1 = (float)c->adam_beta1,
        .beta2 = (float)c->adam_beta2,
        .eps = (float)c->adam_epsilon,
        .step_size = (float)(u->lr / bias_correction(c->adam_beta1, u->step)),
        .rsqrt_correction2 = (float)(1.0 / fmath_sqrt(bias_correction(c->adam_beta2, u->step))),
    };
    uint64_t state = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct param *p = &r->list[i];
        uint64_t sum = 0;
        a.weight_decay = p->decay ? (float)c->weight_decay : 0.0f;
        kern_adamw(k, p->elements, &a, model_params(m) + p->offset, o->m + p->offset, o->v + p->offset,
                   model_grads(m) + p->offset, 0, &sum);
        state += hash_tensor(p->name, sum);
    }
    return state;
}

void optimizer_zero_grads(struct model *m)
{
    memset(model_grads(m), 0, model_registry(m)->stored * sizeof(int64_t));
}

uint64_t optimizer_state_hash(struct model *m, struct kern *k)
{
    const struct registry *r = model_registry(m);
    uint64_t state = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct param *p = &r->list[i];
        state += hash_tensor(p->name, kern_hash(k, p->elements, model_params(m) + p->offset, 0));
    }
    return state;
}

enum err optimizer_describe(const struct model *m, const struct conf *c, struct buf *out)
{
    const struct registry *r = model_registry(m);
    unsigned long long tensors[2] = { 0 }, elements[2] = { 0 };
    for (uint32_t i = 0; i < r->count; i++) {
        tensors[r->list[i].decay]++;
        elements[r->list[i].decay] += r->list[i].elements;
    }
    TRY(buf_printf(out, "weight decay %g: %llu matrices, %llu parameters\n", c->weight_decay, tensors[1], elements[1]));
    return buf_printf(out, "no weight decay: %llu vectors (norms, biases), %llu parameters\n", tensors[0], elements[0]);
}
