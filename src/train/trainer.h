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
#include "train/crew.h"
#include "train/evaluate.h"
#include "train/gather.h"
#include "train/metrics.h"
#include "train/rank_record.h"
#include "train/trace.h"
#include "train/truth.h"
#include "train/views.h"

struct trainer {
    const struct conf *conf;
    int lock;                    /* of output_dir (output.h), on the leading rank; -1: not held */
    struct crew crew;
    struct pool *pool;
    struct kern *kern;
    struct ckpt *start;          /* what it goes on from; NULL: nothing, and again once the weights are there */
    struct tokenizer *tokenizer; /* NULL: none */
    struct store *data, *eval_data;
    struct sampler sampler, eval_sampler;
    bool leads;                  /* it prints and writes files */
    bool writes;                 /* there is an output folder */
    struct trace *trace;         /* fine hashes of each step; NULL: none */
    struct ranks ranks;
    struct model *model;
    struct holdings holdings; /* parameters, gradients, moments */
    struct pipeline pipeline;
    struct truth truth;
    struct gather gather;
    struct arena arena;       /* all of their memory */
    uint64_t program_bytes;   /* of a run: what program, libraries and inputs held before anything below */
    int32_t *sequence;        /* [2][seq_length]: one sample */
    int32_t *input, *target;  /* [micro_batch][local length] */
    uint64_t loaded;          /* first sample of the micro-batch they hold; UINT64_MAX: none */
    struct metrics *metrics;  /* on the leading rank */
    struct profile *profile;    /* until its step is written; NULL: none */
    uint64_t profile_bytes;     /* that it takes, or took */
    struct rank_record *record; /* what this rank gives to each step; NULL: nothing is written */
    const volatile sig_atomic_t *stop; /* set by a signal; NULL: none */
    bool stopping;            /* some rank was asked to stop */
    char *checkpoints;       /* OUTPUT_DIR/checkpoints */
    char *from;              /* the checkpoint it went on from; NULL: none */
    uint64_t step;           /* optimizer steps done */
    uint64_t state_hash;
    uint64_t saved_step;     /* last step with a checkpoint of this run */
    uint32_t rejected_in_a_row;
    double peak_gflops;      /* measured at the start, for the progress line */
};

/* What a trainer is opened for. */
struct trainer_use {
    struct comm_world *world;
    bool writes;         /* a run, with an output folder; else steps only */
    struct trace *trace; /* fine hashes of each step; NULL: none */
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
 * where they were not given (from the checkpoint or the model folder), tp_grain, max_steps from epochs. `conf` and
 * the world must outlive the trainer. Writes nothing but the
 * recorder folder of several ranks. Collective over the world; an error of one rank is every rank's.
 */
MUST_USE enum err trainer_open(struct trainer *t, struct conf *conf, const struct trainer_use *use);
void trainer_close(struct trainer *t);
/* One optimizer step: accumulate gradients of the global batch, norm, clip, AdamW. A step whose loss or gradient is not
 * finite or leaves its range is rejected: the weights stay, r->rejected says so. Collective. */
MUST_USE enum err trainer_step(struct trainer *t, struct step_report *r);
/* What part `part` of `parts` of the next step's samples gives on this rank; no update. The steps before must have been
 * of the whole batch, or of no more parts. Collective. */
MUST_USE enum err trainer_contribution(struct trainer *t, uint32_t parts, uint32_t part, struct contribution *out);
/* Prints the configuration, makes the run's folder, then steps until max_steps with evaluation, saving and reports.
 * When *stop becomes non-zero on any rank the run saves after the step it is in and returns ERR_INTERRUPT. ERR_RUN:
 * five steps in a row were rejected. Collective. */
MUST_USE enum err trainer_run(struct trainer *t, const volatile sig_atomic_t *stop);
/* The memory of this rank's process: what it held before the run, the arena, packing buffers, buffers of its groups. */
uint64_t trainer_planned_bytes(const struct trainer *t);
/* Write checkpoints/step-N (state.c, as the rest of this file). Collective. */
MUST_USE enum err trainer_save(struct trainer *t);
/* Read this rank's weights, moments and position from a checkpoint. ERR_USAGE when its run had another arithmetic. */
MUST_USE enum err trainer_resume(struct trainer *t, struct ckpt *c);
/* Whether what was read has the state hash that the checkpoint records. */
MUST_USE enum err trainer_check_resumed(const struct trainer *t, const struct ckpt *c);
MUST_USE enum err trainer_read_weights(struct trainer *t, struct ckpt *c);

/* Read weights of an open checkpoint or model folder into what is kept of each bucket (eval and generate). */
MUST_USE enum err state_read_weights(struct ckpt *c, const struct registry *r, const struct kept *kept);
/* The arithmetic a model was trained with. */
struct arithmetic {
    uint64_t grain; /* tp_grain: its losses are sums in that many segments; 0: not recorded */
    bool bf16;
};
/* Its model and arithmetic. */
MUST_USE enum err state_read_conf(struct ckpt *c, struct model_conf *out, struct arithmetic *arithmetic);

#endif
