/* Why this exists: the step itself: batch -> model -> loss, gradients -> new weights. Everything before the division by
 * the counted tokens is an exact integer, so micro-batches cannot change a bit. */
#include <math.h>

#include "base/fixed.h"
#include "train/schedule.h"
#include "train/trainer.h"

/* Forward and backward of the global batch, one micro-batch after the other. Sample i of step s (from 1) is number
 * (s - 1) * global_batch + i of the run. */
static enum err accumulate(struct trainer *t, struct model_loss *loss)
{
    const struct conf *c = t->conf;
    uint64_t sample = t->step * c->global_batch_size;
    for (uint64_t a = 0; a < c->gradient_accumulation_steps; a++) {
        for (uint64_t i = 0; i < c->micro_batch_size; i++) {
            TRY(sampler_get(&t->sampler, sample++, t->input + i * c->seq_length, t->target + i * c->seq_length));
        }
        model_micro_step(t->model, c->micro_batch_size, t->input, t->target, loss);
    }
    return OK;
}

/* The step is rejected in the same way on every layout: the weights stay as they are. */
static void reject(struct trainer *t, struct step_report *r, const struct model_loss *loss)
{
    r->rejected = true;
    r->state_hash = t->state_hash;
    r->loss = loss->undefined ? NAN : r->loss; /* what is left of the sums would look like a loss and a norm */
    r->grad_norm = NAN;
    optimizer_zero_grads(t->model);
    t->rejected_in_a_row++;
}

enum err trainer_step(struct trainer *t, struct step_report *r)
{
    const struct conf *c = t->conf;
    double started = log_seconds();
    struct model_loss loss = { 0 };
    *r = (struct step_report){ .step = t->step + 1, .lr = schedule_lr(c, t->step + 1) };

    TRY(accumulate(t, &loss));
    if (loss.tokens == 0) {
        return FAIL(ERR_DATA, "step %llu: no token of the batch counts towards the loss", (unsigned long long)r->step);
    }
    r->tokens = loss.tokens;
    r->loss = fixed_to_loss(loss.sum) / (double)loss.tokens;
    r->grad_norm = optimizer_grad_norm(t->model, t->kern, (int32_t)c->grad_scale_log2, loss.tokens, &loss.bad);
    if (loss.bad) {
        reject(t, r, &loss);
    } else {
        const struct optimizer_update u = { .step = r->step, .tokens = r->tokens, .lr = r->lr,
                                            .grad_norm = r->grad_norm };
        r->state_hash = optimizer_step(&t->optimizer, t->model, t->kern, c, &u);
        t->rejected_in_a_row = 0;
    }
    t->state_hash = r->state_hash;
    t->step = r->step;
    r->seconds = log_seconds() - started;
    return OK;
}
