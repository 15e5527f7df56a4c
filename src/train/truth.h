/* One truth: what ranks hold twice is the same, and the hash of all parameters. */
#ifndef TRAIN_TRUTH_H
#define TRAIN_TRUTH_H

#include "train/holdings.h"

struct truth {
    uint64_t *box;      /* heap, [shards]: set by the optimizer */
    uint64_t *whole;    /* heap, [shards]: of the whole box, where it is kept */
    uint64_t *sums;     /* heap, [params] */
    uint64_t *gathered; /* heap, [largest group][shards] */
};

MUST_USE enum err truth_open(struct truth *t, const struct holdings *h);
void truth_close(struct truth *t);
/* All ranks have the same program and registry, and start at the same step, all with fresh weights or none of them.
 * ERR_USAGE names the first rank that differs. Collective. */
MUST_USE enum err truth_start(const struct ranks *r, const struct registry *reg, uint64_t step, bool fresh);
/* From box hashes (optimizer_step, optimizer_hash) and the parameters: the state hash of all ranks together. Replicas -
 * data ranks, tensor-parallel ranks of replicated tensors, both copies of a tied embedding - are compared first:
 * ERR_RUN names step, tensor and ranks. Collective. */
MUST_USE enum err truth_state(struct truth *t, const struct holdings *h, uint64_t step, uint64_t *state_hash);

#endif
