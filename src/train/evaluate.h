/* Losses over a token store. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H

#include "base/log.h"
#include "data/sampler.h"
#include "model/model.h"

struct evaluation {
    double loss;       /* nats per counted token: exact sum over all, divided once */
    double total_nats; /* the sum */
    uint64_t tokens, windows;
};

/* Loss of the first `windows` evaluation windows (0: all; each token is predicted once). `sequences` windows are
 * computed at a time; input and target hold sequences * seq_length ids. progress may be NULL. ERR_RUN when a loss
 * is not finite. */
MUST_USE enum err evaluate(struct model *m, const struct sampler *s, uint64_t sequences, uint64_t windows,
                           int32_t *input, int32_t *target, struct log_progress *progress, struct evaluation *out);

#endif
