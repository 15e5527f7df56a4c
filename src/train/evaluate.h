/* Losses over a token store. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H

#include "base/log.h"
#include "data/sampler.h"
#include "model/model.h"
#include "train/pipeline.h"

struct evaluation {
    double loss;       /* nats per counted token: exact sum over all, divided once */
    double total_nats; /* the sum */
    uint64_t tokens, windows;
};

struct evaluate_options {
    const struct sampler *sampler;
    struct pipeline *pipeline;      /* the job's ranks share the windows; NULL: the model is all here */
    uint64_t sequences;             /* windows computed at a time, at most the model's; changes no result */
    uint64_t windows;               /* the first so many in stream order; 0: all */
    int32_t *input, *target;        /* scratch, [sequences][seq_length] each */
    int32_t *sequence;              /* scratch, [2][seq_length]; with a pipeline */
    struct log_progress *progress;  /* NULL: none */
};

/* Loss of evaluation windows, each token predicted once; an exact sum, divided once; with a pipeline over all ranks,
 * and collective. `m` is not MODEL_INFER. ERR_RUN when a loss is not finite. */
MUST_USE enum err evaluate(struct model *m, const struct evaluate_options *o, struct evaluation *out);

#endif
