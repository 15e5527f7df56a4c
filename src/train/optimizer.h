/* AdamW over what a rank keeps, and the exact global gradient norm. Not collective. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "base/buf.h"
#include "train/holdings.h"

/* Whether this rank counts for a shard when something is summed over all ranks: each box is counted on one
 * tensor-parallel rank, a tied embedding on the first stage. */
bool optimizer_counts(const struct holdings *h, const struct shard *s);
/* Exact sum of squares of the reduced integer gradients of this rank's slices; over all ranks each element is counted
 * once. *bad is set when an integer left its range. */
void optimizer_squares(const struct holdings *h, struct fixed_wide *sum, bool *bad);
/* Global gradient norm: sqrt of the sum over all ranks, scaled once by 2^-grad_scale_log2 / `tokens`. */
double optimizer_norm(const struct fixed_wide *sum, int32_t grad_scale_log2, uint64_t tokens);

/* What one update depends on besides the configuration. */
struct optimizer_update {
    uint64_t step, tokens; /* step counts from 1; tokens: counted ones of the global batch */
    double lr, grad_norm;
};
/* One step of what this rank updates: clips to conf->max_grad_norm (0: no clipping), zeroes those gradients.
 * box_hash[shard]: sum of hash_element over the new parameters of the shard that were updated here. */
void optimizer_step(const struct holdings *h, const struct conf *c, const struct optimizer_update *u,
                    uint64_t *box_hash);
/* The same sums without an update. */
void optimizer_hash(const struct holdings *h, uint64_t *box_hash);
/* "decay 0.1: 50 tensors, 124,318,464 elements" and "no decay: ..." lines. */
MUST_USE enum err optimizer_describe(const struct registry *r, const struct conf *c, struct buf *out);

#endif
