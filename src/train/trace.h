/* Fine hashes of one step: what each layer gave, every gradient, every new weight; the same for every layout. */
#ifndef TRAIN_TRACE_H
#define TRAIN_TRACE_H

#include "train/holdings.h"

struct trace {
    uint64_t *layer;    /* heap, [layers + 1]: of the embedding's output and each layer's; the model adds to it */
    uint64_t *gradient; /* heap, [params]: sums of hash_element_i64 of the integers */
    uint64_t *weight;   /* heap, [params]: sums of hash_element after the update */
    uint32_t layers, params;
};

/* Empty sums for a model. trace_close frees them in any case. */
MUST_USE enum err trace_open(struct trace *t, const struct model_conf *c);
void trace_close(struct trace *t);
/* Forget what was added: before a step. */
void trace_clear(struct trace *t);
/* Add this rank's slices of the reduced gradients. */
void trace_gradients(struct trace *t, const struct holdings *h);
/* Sum over ranks; weights are the sums of truth_state. Collective over all ranks. */
MUST_USE enum err trace_finish(struct trace *t, const struct holdings *h, const uint64_t *weights);

/* The part of a step in whose results two traces of a model differ first, and the first of them in words in `where`. */
enum trace_part { TRACE_FORWARD, TRACE_BACKWARD, TRACE_UPDATE, TRACE_SAME };
enum trace_part trace_differs(const struct trace *a, const struct trace *b, const struct registry *r, char where[256]);

#endif
