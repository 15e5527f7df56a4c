/* Learning rates: pure functions of the optimizer step. */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include "conf/conf.h"

/* Learning rate of optimizer step `step` (1 is the first). Computed in double with base/fmath.h, rounded once to fp32 by the
 * caller: the same bits everywhere. */
double schedule_lr(const struct conf *c, uint64_t step);

#endif
