/* Tensors that are divided over ranks, whole on the rank that writes files. */
#ifndef TRAIN_GATHER_H
#define TRAIN_GATHER_H

#include "train/views.h"

struct offer; /* what a rank announces before it sends */

struct gather {
    const struct ranks *ranks;
    float *whole; /* a whole tensor; on the leading rank */
    float *piece; /* a piece that is not a stretch of the tensor; likewise */
    struct offer *offers; /* [ranks]; with more than one */
};

/* Take the buffers from the arena (measure, then back); the big ones on the leading rank only. */
void gather_layout(struct gather *g, const struct registry *r, const struct ranks *ranks, struct arena *a);
/* Tensor t, of which `t->boxes` are this rank's part: *values is all of it on the leading rank, valid until the next
 * call; elsewhere NULL. ERR_RUN on every rank when the boxes of all ranks are not disjoint or do not cover it.
 * Collective over all ranks. */
MUST_USE enum err gather_tensor(struct gather *g, const struct ckpt_tensor *t, const float **values);

#endif
