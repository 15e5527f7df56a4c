/* The decoder: forward and backward written out, layer by layer, for the part of it that one rank holds. It knows
 * shapes and orders and touches no element itself; all arithmetic is in kern/, all talk with other ranks in comm/.
 *
 * A rank holds some layers (pipeline), a slice of every layer's heads, feed-forward columns and vocabulary (tensor
 * parallelism), and some chunks of every sequence's positions (context parallelism). One model belongs to one rank; not
 * thread-safe. Functions marked "collective" must be called alike by the ranks of the tensor- and context-parallel
 * groups. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "base/mem.h"
#include "comm/comm.h"
#include "conf/conf.h"
#include "kern/kern.h"
#include "model/registry.h"

enum model_mode {
    MODEL_TRAIN, /* gradients; every layer keeps its activations */
    MODEL_EVAL,  /* losses only; layers share activations */
    MODEL_INFER, /* one sequence with a key/value cache of `seq_length` positions */
};

/* Which part this rank computes, and with whom. */
struct model_place {
    struct share share;
    uint32_t cp, cp_rank;
    bool sequence_parallel; /* rows between the products are divided over the tensor-parallel ranks, too */
    struct comm_world *world;  /* for the record of phases; NULL: none */
    struct comm *tp, *cp_group; /* NULL when the group has one rank */
    uint64_t *trace; /* [layers + 1], or NULL: sums of hash_element of the embedding's and of each layer's output, of
                      * every row that this rank counts for, by (sample, position, column): added over all ranks they
                      * are the same for every layout */
    uint32_t sets[REGISTRY_CHUNKS_MAX]; /* activation sets of each model chunk (pipe_sets); MODEL_TRAIN */
};

struct model_shape {
    enum model_mode mode;
    uint64_t sequences;  /* most sequences of one call: the micro-batch */
    uint64_t batch;      /* most sequences whose gradients are added up, on all ranks: the global batch; MODEL_TRAIN */
    uint64_t seq_length; /* tokens of a sequence; MODEL_INFER: cache positions */
    uint32_t grain;      /* tp_grain */
    uint64_t grad_unit;  /* tokens of a gradient unit, 1 to seq_length */
    int32_t grad_scale_log2;
    uint64_t seed;       /* of dropout */
    bool bf16;           /* products and attention of bf16 numbers (docs/numerics.md 14) */
    enum recompute recompute; /* MODEL_TRAIN */
};

struct model;

/* Sums over calls: exact integers, so their order does not matter. */
struct model_loss {
    int64_t sum;      /* units of 2^-28 nat */
    uint64_t tokens;  /* counted tokens */
    bool bad;         /* undefined, or a gradient left the integers' range */
    bool undefined;   /* a loss was not finite (or above 2^20 nats), or the sum left its range: it means nothing */
};

/* A micro-batch as this rank sees it: `sequences` x (seq_length / cp) tokens, those of its chunks in ascending
 * position order (context_chunk). target < 0: not counted. Token ids must be below the vocabulary. */
struct micro {
    uint64_t sequences; /* 0: nothing to compute, but parameters are used and done as for any other */
    const int32_t *token, *target;
    uint64_t first_sample; /* number of its first sequence in the run: where dropout masks come from */
    uint64_t step;         /* for the flight record */
};

/* Where parameters and gradients are: one pointer a bucket of the registry. Without `use` they are always there. */
struct model_storage {
    float **p;   /* [buckets] */
    int64_t **g; /* [buckets]; NULL: no gradients */
    /* Called before a bucket is used (its pointers must be set when it returns), and when it is done with; `grad`:
     * gradients are added. Calls of one bucket do not nest. */
    enum err (*use)(void *arg, uint32_t bucket, bool grad);
    enum err (*done)(void *arg, uint32_t bucket, bool grad);
    void *arg;
};

/* Describe the model; nothing big is allocated. `k` must outlive it. */
MUST_USE enum err model_new(struct model **out, const struct model_conf *c, const struct model_shape *shape,
                            const struct model_place *place, struct kern *k);
/* The whole model on one rank. */
struct model_place model_place_single(const struct model_conf *c);
void model_free(struct model *m);
/* Take activations from the arena: once to measure (plan), once to allocate. */
void model_layout(struct model *m, struct arena *a);
/* Finish after the backed layout: rotary tables, windows. Collective over the tensor-parallel group. */
MUST_USE enum err model_ready(struct model *m);
/* Where its parameters and gradients are; copied. */
void model_set_storage(struct model *m, const struct model_storage *s);
/* Parameters (and gradients) in flat storage taken from the arena, for a model that is all on this rank: lays them out
 * and sets the storage. `lists` holds the bucket pointers. */
struct model_lists {
    float **p;
    int64_t **g;
};
void model_layout_storage(struct model *m, struct arena *a, struct model_lists *lists);

const struct registry *model_registry(const struct model *m);
const struct model_conf *model_conf(const struct model *m);
/* Fresh weights of elements [lo, hi) of a bucket, `p` being element lo, from (seed, parameter number, element): the
 * same bits for every layout. lo is a multiple of 16. Padding is zero and stays zero. */
void model_init_weights(const struct model *m, uint32_t bucket, uint64_t lo, uint64_t hi, float *p, uint64_t seed);
/* Tokens of a sequence that this rank holds, and which positions they are. */
uint64_t model_local_length(const struct model *m);
void model_local_tokens(const struct model *m, const int32_t *sequence, int32_t *local);

/* ---- training: operations of the pipeline's timetable ---- */

/* Forward of one model chunk over activation set `set`. The first virtual stage starts from tokens, others from
 * model_input. Collective. */
MUST_USE enum err model_forward_op(struct model *m, uint32_t chunk, uint32_t set, const struct micro *b);
/* Backward of the same: adds token-sum gradients to the integers. The last virtual stage starts with the head and adds
 * the losses to *loss; others start from the gradient in model_gradient, and all leave theirs there. Collective. */
MUST_USE enum err model_backward_op(struct model *m, uint32_t chunk, uint32_t set, const struct micro *b,
                                    struct model_loss *loss);
/* What stages hand on: [model_boundary(sequences)] floats, this rank's rows of the residual stream and of its gradient.
 * model_gradient alternates between two buffers: model_turn goes to the other one. */
uint64_t model_boundary(const struct model *m, uint64_t sequences);
float *model_input(struct model *m, uint32_t chunk, uint32_t set);
float *model_output(struct model *m, uint32_t chunk, uint32_t set);
float *model_gradient(struct model *m);
void model_turn(struct model *m);
/* Forward and backward of a micro-batch of a model that has one virtual stage. Collective. */
MUST_USE enum err model_micro_step(struct model *m, const struct micro *b, struct model_loss *loss);

/* ---- evaluation and inference ---- */

/* Losses only, after model_forward_op of the last chunk. token_loss, when not NULL, receives each row's loss in
 * nats. Collective. */
MUST_USE enum err model_eval_op(struct model *m, uint32_t chunk, uint32_t set, const struct micro *b,
                                struct model_loss *loss, float *token_loss);
/* Both, for a model that has one virtual stage. No dropout. Collective. */
MUST_USE enum err model_eval(struct model *m, const struct micro *b, struct model_loss *loss, float *token_loss);
/* Whether forward passes drop: true at first. */
void model_set_dropout(struct model *m, bool on);
/* MODEL_INFER, one rank: append `count` tokens at position `first` (the cache holds positions below it) and give the
 * logits [count][vocab] of all of them when all_rows, else [1][vocab] of the last. */
MUST_USE enum err model_infer(struct model *m, uint64_t first, uint64_t count, const int32_t *token, bool all_rows,
                              float *logits);

/* Floating-point operations of one token's forward and backward (products with parameters and attention; fused
 * multiply-add = 2). A layer, the mean of all: 6 x its matrix parameters + 12 x heads x head_dim x the keys that a
 * query sees, (T + 1) / 2 without a window; the head: 6 x hidden x vocab; the model: both. */
double model_layer_flops(const struct model_conf *c, uint64_t seq_length);
double model_head_flops(const struct model_conf *c);
double model_train_flops(const struct model_conf *c, uint64_t seq_length);

#endif
