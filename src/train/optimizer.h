/* AdamW over the registry, and the exact global gradient norm. Moments are fp32 and laid out like the parameters. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "base/buf.h"
#include "conf/conf.h"
#include "model/model.h"

struct optimizer {
    float *m, *v; /* flat storage of the registry's length, in the run's arena */
};

/* Take the moments from the arena (measure, then back). */
void optimizer_layout(struct optimizer *o, const struct model *m, struct arena *a);
/* Global gradient norm: sqrt of the exact sum of squares of all integer gradients, scaled once by 2^-grad_scale_log2 /
 * `tokens`. *bad is set when an integer left its range. */
double optimizer_grad_norm(struct model *m, struct kern *k, int32_t grad_scale_log2, uint64_t tokens, bool *bad);
/* What one update depends on besides the configuration. */
struct optimizer_update {
    uint64_t step, tokens; /* step counts from 1; tokens: counted ones of the global batch */
    double lr, grad_norm;
};
/* One step: clips to conf->max_grad_norm (0: no clipping), updates, zeroes the gradients. Returns the state hash of the
 * new parameters. */
uint64_t optimizer_step(struct optimizer *o, struct model *m, struct kern *k, const struct conf *c,
                        const struct optimizer_update *u);
/* Drop the gradients of a rejected step. */
void optimizer_zero_grads(struct model *m);
/* State hash of the parameters as they are. */
uint64_t optimizer_state_hash(struct model *m, struct kern *k);
/* "decay 0.1: 50 tensors, 124,318,464 elements" and "no decay: ..." lines. */
MUST_USE enum err optimizer_describe(const struct model *m, const struct conf *c, struct buf *out);

#endif
