/* A step's forward and backward passes as the timetable of part/layout.h orders them, with the messages between
 * stages. */
#ifndef TRAIN_PIPELINE_H
#define TRAIN_PIPELINE_H

#include "train/holdings.h"

/* Fill in micro-batch k of the step; its arrays are used until the next call. */
typedef enum err load_micro(void *arg, uint32_t k, struct micro *b);

struct pipeline {
    const struct ranks *ranks;
    struct model *model;
    struct comm_ticket *sent; /* heap: of the output of each activation set, all chunks */
    uint32_t *first_set;      /* heap, [chunks + 1]: activation sets of a chunk, counted through all chunks: those from
                               * first_set[chunk] to before first_set[chunk + 1] */
    struct comm_ticket gradient[2]; /* of the two gradient buffers */
    uint32_t turn;
};

/* For as many micro-batches as r has now, or fewer. */
MUST_USE enum err pipeline_open(struct pipeline *p, const struct ranks *r, struct model *m);
void pipeline_close(struct pipeline *p);
/* All micro-batches forward and backward: gradients are on their way to `h`, losses of this rank are added to *loss.
 * Collective over all ranks. */
MUST_USE enum err pipeline_run(struct pipeline *p, struct holdings *h, load_micro *load, void *arg,
                               struct model_loss *loss);
/* Forward of one micro-batch through all stages; the last one adds its losses. Without dropout. Collective. */
MUST_USE enum err pipeline_eval(struct pipeline *p, const struct micro *b, struct model_loss *loss);

#endif
