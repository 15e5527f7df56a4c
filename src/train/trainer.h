/* A training run: everything it owns, and its step. The order of the fields is the order of their life. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <signal.h>

#include "base/log.h"
#include "conf/conf.h"
#include "data/sampler.h"
#include "data/tokenizer.h"
#include "model/model.h"
#include "train/evaluate.h"
#include "train/metrics.h"
#include "train/optimizer.h"

struct trainer {
    const struct conf *conf;
    struct pool *pool;
    struct kern *kern;
    struct tokenizer *tokenizer; /* NULL: none given */
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
    double loss, grad_norm, lr;
    uint64_t state_hash;
    bool rejected;           /* a gradient or loss left its range: weights unchanged */
    double seconds;
};

/* Open data, tokenizer and model for `conf` (whose automatic values are resolved here: tp_grain, grad_unit,
 * grad_scale_log2, max_steps from epochs), check that they fit together, lay out all memory, then start fresh
 * weights, load those of model_path, or resume. Nothing is written before all checks are done. */
MUST_USE enum err trainer_open(struct trainer *t, struct conf *conf);
void trainer_close(struct trainer *t);
/* One optimizer step: accumulate gradients of the global batch, norm, clip, AdamW. */
MUST_USE enum err trainer_step(struct trainer *t, struct step_report *r);
/* Steps until max_steps with evaluation, saving and reports. When *stop becomes non-zero the run saves and returns
 * ERR_INTERRUPT. */
MUST_USE enum err trainer_run(struct trainer *t, const volatile sig_atomic_t *stop);
/* Write checkpoints/step-N. */
MUST_USE enum err trainer_save(struct trainer *t);
/* Read weights, moments and position from a checkpoint (state.c). */
MUST_USE enum err trainer_resume(struct trainer *t, const char *path);
/* Read weights only, from a model folder. */
MUST_USE enum err trainer_load_weights(struct trainer *t, const char *folder);

/* Read the weights of a model folder into `m` (also used by eval and generate). *step may be NULL. */
MUST_USE enum err state_read_weights(struct model *m, const char *path, uint64_t *step);
/* The model description of a checkpoint or model folder, and the tp_grain it was trained with (0: not recorded);
 * `path` as ckpt_open takes it. */
MUST_USE enum err state_read_conf(const char *path, struct model_conf *out, uint64_t *grain);

#endif
