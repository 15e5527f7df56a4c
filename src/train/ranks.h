/* The ranks of a training job: where this one stands in the layout, and the groups it talks in. */
#ifndef TRAIN_RANKS_H
#define TRAIN_RANKS_H

#include "comm/comm.h"
#include "conf/conf.h"
#include "model/model.h"

struct ranks {
    struct comm_world *world;
    struct layout layout;
    struct coord at;
    struct pipe pipe;
    uint32_t parts, part; /* of the samples of a step, this rank's: the data-parallel axis, but for a replay */
    uint32_t micros;      /* micro-batches of a step: the same number on every rank, some may be empty */
    struct comm *all;
    struct comm *tp;      /* same layers, same sequences */
    struct comm *cp;      /* the same sequences, other positions */
    struct comm *stages;  /* the pipeline: rank is the stage */
    struct comm *data;    /* the same part of the model, other sequences or positions: dp x cp */
    struct comm *embed;   /* first and last stage of the same part, when they share a tied embedding */
    /* The same groups again, for the thread that reduces gradients beside the computation. */
    struct comm *tp_grad, *data_grad;
};

/* Make the groups. Collective over the world, whose size is that of the layout. */
MUST_USE enum err ranks_open(struct ranks *r, struct comm_world *w, const struct conf *c);
/* Take part `part` of `parts` of each step's samples, at least as many as there were before: micro-batches follow. */
void ranks_take_part(struct ranks *r, const struct conf *c, uint32_t parts, uint32_t part);
/* What the model is told. */
struct model_place ranks_place(const struct ranks *r, const struct conf *c);
/* Whether this rank prints, writes files and keeps the metrics. */
bool ranks_leads(const struct ranks *r);
/* Samples of a step that this rank's part is: [lo, hi) of global_batch_size; and those of its
 * micro-batch k. */
struct order_range ranks_samples(const struct ranks *r, const struct conf *c);
struct order_range ranks_micro(const struct ranks *r, const struct conf *c, uint32_t k);

#endif
