/* A training run: everything it owns, and its step. The order of the fields is the order of their life. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <signal.h>

#include "base/log.h"
#include "ckpt/ckpt.h"
#include "conf/conf.h"
#include "data/sampler.h"
#include "data/tokenizer.h"
#include "model/model.h"
#include "train/evaluate.h"
#include "train/metrics.h"
#include "train/optimizer.h"

struct trainer {
    const struct conf *conf;
    int lock;                    /* of output_dir (output.h); -1: not held */
    struct pool *pool;
    struct kern *kern;
    struct ckpt *start;          /* what it goes on from; NULL: nothing, and again once the weights are there */
    struct tokenizer *tokenizer; /* NULL: none */
    struct store *data, *eval_data;
    struct sampler sampler, eval_sampler;
    struct model *model;
    struct optimizer optimizer;
    struct arena arena; /* parameters, gradients, moments, activations, token buffers: all of them */
    int32_t *input, *target; /* [micro_batch][seq_length] */
    struct metrics *metrics;
    char *checkpoints;       /* OUTPUT_DIR/checkpoints */
    uint64_t step;           /* optimizer steps done */
    uint64_t state_hash;
    uint64_t saved_step;     /* last step with a checkpoint of this run */
    uint32_t rejected_in_a_row;
    double peak_gflops;      /* measured at the start, for the progress line */
};

struct step_report {
    uint64_t step, tokens;   /* counted tokens of this step */
    double loss, grad_norm, lr; /* rejected: grad_norm is NaN, and loss when that is not finite */
    uint64_t state_hash;
    bool rejected;           /* a gradient or loss left its range: weights unchanged */
    double seconds;
};

/* Open data, tokenizer and model for `conf`, check that they fit together, lay out all memory, then start fresh
 * weights, load those of model_path, or resume. What only the inputs can say is set in `conf`: model and tokenizer
 * where they were not given (from the checkpoint or the model folder), tp_grain, grad_unit, grad_scale_log2, max_steps
 * from epochs. `conf` must outlive the trainer. Writes nothing. */
MUST_USE enum err trainer_open(struct trainer *t, struct conf *conf);
void trainer_close(struct trainer *t);
/* One optimizer step: accumulate gradients of the global batch, norm, clip, AdamW. A step whose loss or gradient is not
 * finite or leaves its range is rejected: the weights stay, r->rejected says so. */
MUST_USE enum err trainer_step(struct trainer *t, struct step_report *r);
/* Prints the configuration, makes the run's folder, then steps until max_steps with evaluation, saving and reports.
 * When *stop becomes non-zero the run saves after the step it is in and returns ERR_INTERRUPT. ERR_RUN: five steps in
 * a row were rejected. */
MUST_USE enum err trainer_run(struct trainer *t, const volatile sig_atomic_t *stop);
/* Write checkpoints/step-N (state.c, as the rest of this file). */
MUST_USE enum err trainer_save(struct trainer *t);
/* Read weights, moments and position from a checkpoint. ERR_USAGE when its run had another arithmetic. */
MUST_USE enum err trainer_resume(struct trainer *t, struct ckpt *c);

/* Read the weights of an open checkpoint or model folder into `m` (also used by eval and generate). */
MUST_USE enum err state_read_weights(struct ckpt *c, struct model *m);
/* Its model, and the tp_grain it was trained with (0: not recorded). */
MUST_USE enum err state_read_conf(struct ckpt *c, struct model_conf *out, uint64_t *grain);

#endif
