/* Why this exists: a rate that is a pure function of the step has no state to lose at a resume, none to step once for
 * each process, and the same bits on every rank. Division and subtraction of whole numbers come first, so that round
 * shares of the schedule give the round rates people compare with. */
#include "train/schedule.h"

#include "base/fmath.h"

#define INVERSE_SQRT_SCALE 10000.0 /* the time scale when there is no warm-up, as in Hugging Face transformers */

/* 1 at share 0, 0 at share 1, along half a cosine. */
static double half_cosine(double share)
{
    double sine, cosine;
    fmath_sincos_turns(share / 2.0, &sine, &cosine);
    return (1.0 + cosine) / 2.0;
}

static double inverse_sqrt(const struct conf *c, double s, double warm)
{
    double lr = c->learning_rate *
                fmath_sqrt(warm > 0.0 ? warm / s : INVERSE_SQRT_SCALE / (s + INVERSE_SQRT_SCALE));
    return lr > c->min_lr ? lr : c->min_lr;
}

double schedule_lr(const struct conf *c, uint64_t step)
{
    BUG_IF(step == 0);
    double s = (double)step, warm = (double)conf_warmup_steps(c);
    double end = (double)(c->lr_decay_steps > 0 ? c->lr_decay_steps : c->max_steps);
    double span = c->learning_rate - c->min_lr;
    if (s <= warm) {
        return c->learning_rate * (s / warm);
    }
    if (c->lr_scheduler_type == SCHEDULE_CONSTANT) {
        return c->learning_rate;
    }
    if (c->lr_scheduler_type == SCHEDULE_INVERSE_SQRT) {
        return inverse_sqrt(c, s, warm);
    }
    if (s >= end) {
        return c->min_lr;
    }
    if (c->lr_scheduler_type == SCHEDULE_LINEAR) {
        return c->min_lr + span * ((end - s) / (end - warm));
    }
    if (c->lr_scheduler_type == SCHEDULE_COSINE) {
        return c->min_lr + span * half_cosine((s - warm) / (end - warm));
    }
    BUG_IF(c->lr_scheduler_type != SCHEDULE_WSD);
    double decay = (double)c->wsd_decay_steps, stable = end - decay;
    return s <= stable ? c->learning_rate : c->min_lr + span * half_cosine((s - stable) / decay);
}
