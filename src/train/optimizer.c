/* Why this exists: the step from gradients to weights. Everything that depends on the step number is computed here
 * in double and rounded to fp32 once, so that every rank and every resume uses the same bits. Formulas: Loshchilov
 * and Hutter, "Decoupled weight decay regularization", 2019; clipping as torch.nn.utils.clip_grad_norm_: factor
 * min(1, max_norm / (norm + 1e-6)). */
#include "train/optimizer.h"

#include "base/fmath.h"

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

bool optimizer_counts(const struct holdings *h, const struct shard *s)
{
    return !s->copy && (!s->replicated || h->ranks->at.tp == 0);
}

void optimizer_squares(const struct holdings *h, struct fixed_wide *sum, bool *bad)
{
    *sum = (struct fixed_wide){ { 0 } };
    for (uint32_t i = 0; i < h->reg->shard_count; i++) {
        const struct shard *s = &h->reg->shards[i];
        const struct holding *own = &h->of[s->bucket];
        struct piece at = holdings_piece(s, own->slice);
        if (at.begin < at.end && optimizer_counts(h, s)) {
            struct fixed_wide part = { { 0 } };
            kern_grad_square_sum(h->kern, at.end - at.begin, own->g + (s->offset + at.begin - own->g_at.lo), &part,
                                 bad);
            fixed_wide_add(sum, &part);
        }
    }
}

double optimizer_norm(const struct fixed_wide *sum, int32_t grad_scale_log2, uint64_t tokens)
{
    return fmath_sqrt(fixed_wide_value(sum)) * power_of_two(-grad_scale_log2) / (double)tokens;
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

/* What is the same for every parameter of a step. */
static struct adamw step_constants(const struct conf *c, const struct optimizer_update *u)
{
    double clip = 1.0;
    if (c->max_grad_norm > 0.0 && u->grad_norm + 1e-6 > c->max_grad_norm) {
        clip = c->max_grad_norm / (u->grad_norm + 1e-6);
    }
    return (struct adamw){
        .grad_factor = power_of_two(-(int32_t)c->grad_scale_log2) / (double)u->tokens * clip,
        .lr = (float)u->lr,
        .beta1 = (float)c->adam_beta1,
        .beta2 = (float)c->adam_beta2,
        .eps = (float)c->adam_epsilon,
        .step_size = (float)(u->lr / bias_correction(c->adam_beta1, u->step)),
        .rsqrt_correction2 = (float)(1.0 / fmath_sqrt(bias_correction(c->adam_beta2, u->step))),
    };
}

void optimizer_step(const struct holdings *h, const struct conf *c, const struct optimizer_update *u,
                    uint64_t *box_hash)
{
    struct adamw a = step_constants(c, u);
    for (uint32_t i = 0; i < h->reg->shard_count; i++) {
        const struct shard *s = &h->reg->shards[i];
        const struct holding *own = &h->of[s->bucket];
        const struct box_map map = registry_map(h->reg, s);
        struct piece at = holdings_piece(s, own->m_at);
        box_hash[i] = 0;
        if (at.begin < at.end) {
            uint64_t e = s->offset + at.begin;
            a.weight_decay = h->reg->list[s->param].decay ? (float)c->weight_decay : 0.0f;
            kern_adamw(h->kern, at.end - at.begin, &a, own->p + (e - own->p_at.lo), own->m + (e - own->m_at.lo),
                       own->v + (e - own->m_at.lo), own->g + (e - own->g_at.lo), &map, at.begin, &box_hash[i]);
        }
    }
}

void optimizer_hash(const struct holdings *h, uint64_t *box_hash)
{
    for (uint32_t i = 0; i < h->reg->shard_count; i++) {
        const struct shard *s = &h->reg->shards[i];
        const struct holding *own = &h->of[s->bucket];
        const struct box_map map = registry_map(h->reg, s);
        struct piece at = holdings_piece(s, own->m_at);
        box_hash[i] = 0;
        if (at.begin < at.end) {
            const float *p = own->p + (s->offset + at.begin - own->p_at.lo);
            box_hash[i] = kern_hash(h->kern, at.end - at.begin, p, &map, at.begin);
        }
    }
}

enum err optimizer_describe(const struct registry *r, const struct conf *c, struct buf *out)
{
    unsigned long long tensors[2] = { 0 }, elements[2] = { 0 };
    for (uint32_t i = 0; i < r->count; i++) {
        tensors[r->list[i].decay]++;
        elements[r->list[i].decay] += r->list[i].elements;
    }
    TRY(buf_printf(out, "weight decay %g: %llu matrices, %llu parameters\n", c->weight_decay, tensors[1], elements[1]));
    return buf_printf(out, "no weight decay: %llu vectors (norms, biases), %llu parameters\n", tensors[0], elements[0]);
}
