/* The resolved configuration: what one table of keys (conf/keys.c) made of defaults, a YAML file and --key value.
 * Not collective; the same answer on every rank. */
#ifndef CONF_CONF_H
#define CONF_CONF_H

#include "base/buf.h"
#include "base/err.h"
#include "conf/finding.h"
#include "conf/model_conf.h"
#include "part/layout.h"

#define CONF_KEYS_MAX 64u
#define CONF_STAGES_MAX 1024u /* virtual pipeline stages: pp x pipe_chunks */

enum schedule { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_INVERSE_SQRT };

/* What a layer's backward pass computes again instead of keeping it: the same operations, so the same bits. */
enum recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE, /* norms and the products into the feed-forward width */
    RECOMPUTE_FULL,      /* all but the layer's input */
};

/* Where threads run. */
enum bind {
    BIND_AUTO, /* each on a core of its own, where the job has its cores to itself: train/crew.h */
    BIND_NONE,
};

struct conf {
    /* model */
    struct model_conf model; /* from the `model` block or folder */
    bool has_model;
    char *model_path; /* folder given as `model: PATH`, else NULL; its weights are the start when it has any */
    char *tokenizer;  /* folder or file; NULL: not given */
    /* data */
    char *data_path;      /* PREFIX of PREFIX.bin and PREFIX.idx */
    char *eval_data_path; /* NULL: no validation */
    uint64_t seq_length;
    /* batch and length of the run */
    /* Sequences of a step over all ranks; of one computation; computations of a step on the rank that has most:
     * ceil(ceil(global / dp) / micro). Ranks may hold unequal numbers, and a last micro-batch may be smaller. */
    uint64_t global_batch_size, micro_batch_size, gradient_accumulation_steps;
    uint64_t max_steps;       /* 0 until train/ derives it, when num_train_epochs is given */
    double num_train_epochs;  /* 0: not given */
    uint64_t seed, data_seed; /* data_seed defaults to seed */
    bool eod_mask_loss;       /* what follows an end-of-text token does not count */
    /* optimizer */
    double learning_rate, min_lr, weight_decay, adam_beta1, adam_beta2, adam_epsilon, max_grad_norm;
    enum schedule lr_scheduler_type;
    double warmup_steps;      /* a whole number, or a fraction of max_steps below 1 */
    uint64_t lr_decay_steps;  /* max_steps unless given; 0 where the schedule does not decay */
    uint64_t wsd_decay_steps; /* last steps of a WSD schedule that decay */
    /* evaluation, logging, saving */
    uint64_t eval_steps, eval_iters, logging_steps, save_steps, save_total_limit; /* 0: never / all */
    char *output_dir;
    char *run_name;
    char *resume_from_checkpoint; /* NULL, "latest", or a checkpoint folder */
    bool report_tensorboard;
    bool overwrite_output_dir;
    bool drop_vocab_padding; /* of the tables of model_path, rows behind vocab_size are left out */
    uint64_t profile;     /* step whose trace is written; 0: none */
    bool gradient_hashes; /* each rank records a checksum of its gradients */
    /* execution: changes no bit */
    enum recompute recompute; /* what backward passes compute again */
    uint64_t threads; /* of a rank; 0: its share of the cores of its node */
    enum bind bind_threads;
    /* how the job is split over the ranks: changes no bit */
    uint64_t world;          /* ranks of the job: what conf_load was told */
    uint64_t world_size;     /* what the file expects them to be; 0: not given */
    uint64_t tp, pp, cp, dp; /* dp is resolved: tp x pp x cp x dp = world */
    bool sequence_parallel;  /* splits nothing when tp is 1 */
    enum pipe_schedule pipe_schedule;
    uint64_t pipe_chunks;                  /* model chunks of a stage: 1 unless interleaved */
    uint64_t pipe_counts[CONF_STAGES_MAX]; /* layers of virtual stage chunk * pp + stage; their sum is the model's */
    uint64_t pipe_counts_count;            /* pp x pipe_chunks; 0: not given, as even as can be (part_range) */
    uint64_t pipe_chunk_layers;            /* layers of each virtual stage, from which pipe_chunks came; 0: not given */
    uint64_t zero_stage;                   /* 0 to 3 */
    double distributed_timeout;            /* seconds */
    /* identity of the arithmetic */
    bool bf16;         /* products and attention of bf16 numbers */
    uint64_t tp_grain; /* 0 while the model is not known */
    uint64_t grad_unit;
    int64_t grad_scale_log2;

    struct conf_values *values; /* the table's view: every value with its origin (keys.c) */
};

/* Build from an optional file (path NULL: none) and `--key value` / `--key=value` arguments (argv[0] is the first of
 * them, not the command's name) for a job of `world` ranks. All errors are collected in `f`; returns ERR_USAGE when
 * there is one, with an empty err_message(): the findings say it all, so print them. On success `c` is complete and
 * consistent but for what only data and checkpoint can say, which train/ sets with conf_derive: max_steps is 0 when
 * num_train_epochs was given, and tp_grain when the model is the checkpoint's. conf_release frees it in any case. */
MUST_USE enum err conf_load(struct conf *c, const char *path, int argc, char **argv, uint32_t world,
                            struct findings *f);
void conf_release(struct conf *c);

/* For what only the data can say (max_steps from num_train_epochs): set a whole number, say in words what it came from,
 * and resolve what follows. Then conf_check asks the rules again. */
MUST_USE enum err conf_derive(struct conf *c, const char *key, uint64_t value, const char *from);
/* The same for a text. One that was given stays, and so does a null that was given: it asks for none. */
MUST_USE enum err conf_derive_text(struct conf *c, const char *key, const char *text, const char *from);
/* The same for a model that was not given: that of the checkpoint a run goes on from. */
MUST_USE enum err conf_derive_model(struct conf *c, const struct model_conf *m, const char *from);
/* Ask every rule about what is known now: errors and warnings are added to `f`, ERR_USAGE when one is an error. */
MUST_USE enum err conf_check(const struct conf *c, struct findings *f);
/* Warm-up in whole optimizer steps: a share of max_steps is rounded up, after taking off what only rounding of the
 * product added (0.07 of 100 is 7). */
uint64_t conf_warmup_steps(const struct conf *c);
/* The axes of a configuration without errors, and its pipeline (which points into `c`). */
struct layout conf_layout(const struct conf *c);
struct pipe conf_pipe(const struct conf *c);

/* "key: value   # origin" for every key, in table order: what is printed at the start. */
MUST_USE enum err conf_print(const struct conf *c, struct buf *out);
/* The resolved configuration as YAML that conf_load reads back to the same values, for any number of ranks: what
 * followed from that number stands there as a comment. */
MUST_USE enum err conf_save(const struct conf *c, struct buf *out);
/* Name of key i, in table order, that may change a bit of the result and has one value (all but the model); NULL: there
 * are no more. */
const char *conf_identity_key(size_t i);
/* The value of one key of the table, as --key takes it: "null" when there is none. */
MUST_USE enum err conf_write_key(const struct conf *c, const char *key, struct buf *out);
/* The keys with type, range, default and help: `invar train --help` and docs/configuration.md (markdown). */
MUST_USE enum err conf_help(struct buf *out, bool markdown);
/* A hash of the value of each key, in table order, with bit 0 set where the value was given; 0 for a key whose value
 * may be another on each rank: paths of inputs, which may lie elsewhere on another node, and threads. The model counts
 * by its fields. */
MUST_USE enum err conf_hashes(const struct conf *c, uint64_t hash[CONF_KEYS_MAX]);
/* The first key that differs, rather one that was given than one that followed from it; CONF_KEYS_MAX: none. */
size_t conf_hashes_differ(const uint64_t a[CONF_KEYS_MAX], const uint64_t b[CONF_KEYS_MAX]);
/* "learning_rate 0.01 (run.yaml:14)" of key number `key`. */
MUST_USE enum err conf_describe(const struct conf *c, size_t key, struct buf *out);
/* 128-bit hash of everything that may change a bit of the result (not paths, threads, logging). */
void conf_digest(const struct conf *c, char hex[33]);

#endif
