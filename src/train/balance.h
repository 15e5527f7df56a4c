/* How evenly a pipeline's stages are loaded, and what would be better. Pure. */
#ifndef TRAIN_BALANCE_H
#define TRAIN_BALANCE_H

#include "model/model.h"

struct balance {
    double worst;         /* work of the busiest stage over the mean of all */
    double best_worst;    /* the same for `counts` */
    uint64_t counts[256]; /* layers of each stage that make the busiest one least busy; one chunk a stage only */
};
/* The work of a stage is that of its layers, and of the head on the last one. False: no better split is known (one
 * stage, several chunks, more stages than counts). */
bool balance_pipe(const struct pipe *p, const struct model_conf *c, uint64_t seq_length, struct balance *out);

#endif
