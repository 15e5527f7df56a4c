/* Learning rates: pure functions of the optimizer step. */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include "conf/conf.h"

/* Learning rate that optimizer step `step` uses (1 is the first). Computed in double with base/fmath.h, rounded once to
 * fp32 by the caller: the same bits everywhere.
 *
 * Notation: s = step; P = learning_rate; m = min_lr; T = lr_decay_steps (max_steps when 0); W = warm-up steps:
 * warmup_steps itself from 1 on, below 1 the share of max_steps, rounded up; D = wsd_decay_steps.
 *
 *   s <= W          every type: P * s / W. Step 1 has P / W, step W has P.
 *   constant        P
 *   linear          m + (P - m) * (T - s) / (T - W)
 *   cosine          m + (P - m) * (1 + cos(pi * (s - W) / (T - W))) / 2
 *   wsd             P up to step T - D, then m + (P - m) * (1 + cos(pi * (s - (T - D)) / D)) / 2
 *   inverse_sqrt    the larger of m and P * sqrt(W / s); without warm-up P * sqrt(10000 / (s + 10000))
 *   s >= T          linear, cosine, wsd: exactly m.
 *
 * So the last step T uses m, and with m = 0 it changes nothing but moments. Step s here has the rate that a scheduler
 * counting from 0 (LambdaLR of PyTorch) has after s calls: that one uses it in step s + 1 and never uses its last. */
double schedule_lr(const struct conf *c, uint64_t step);

#endif
