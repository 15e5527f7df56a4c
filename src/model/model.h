/* The decoder: forward and backward written out, layer by layer. It knows shapes and orders and touches no element
 * itself; all arithmetic is in kern/. One model belongs to one rank; not thread-safe; not collective in this
 * version. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "base/mem.h"
#include "conf/model_conf.h"
#include "kern/kern.h"
#include "model/registry.h"

enum model_mode {
    MODEL_TRAIN, /* gradients; every layer keeps its activations */
    MODEL_EVAL,  /* losses only; layers share activations */
    MODEL_INFER, /* one sequence with a key/value cache of `seq_length` positions */
};

struct model_shape {
    enum model_mode mode;
    uint64_t sequences;  /* most sequences of one call: the micro-batch */
    uint64_t seq_length; /* tokens of a sequence; MODEL_INFER: cache positions */
    uint32_t grain;      /* tp_grain */
    uint64_t grad_unit;  /* tokens of a gradient unit, 1 to seq_length */
    int32_t grad_scale_log2;
};

struct model;

/* Sums over calls: exact integers, so their order does not matter. */
struct model_loss {
    int64_t sum;      /* units of 2^-28 nat */
    uint64_t tokens;  /* counted tokens */
    bool bad;         /* a loss was not finite, or a gradient left the integers' range */
    bool undefined;   /* a loss was not finite (or above 2^20 nats): the sum is without it */
};

/* Describe the model; nothing big is allocated. `k` must outlive it. */
MUST_USE enum err model_new(struct model **out, const struct model_conf *c, const struct model_shape *shape,
                            struct kern *k);
void model_free(struct model *m);
/* Take parameters, gradients and activations from the arena: once to measure (plan), once to allocate. */
void model_layout(struct model *m, struct arena *a);
/* Finish after the backed layout: rotary tables. */
MUST_USE enum err model_ready(struct model *m);

const struct registry *model_registry(const struct model *m);
const struct model_conf *model_conf(const struct model *m);
/* Flat storage: parameter i of the registry starts at its offset. Padding rows are zero and stay zero. */
float *model_params(struct model *m);
int64_t *model_grads(struct model *m); /* NULL unless MODEL_TRAIN */
/* Fresh weights from (seed, parameter index, element): the same bits for every layout. */
void model_init_weights(struct model *m, uint64_t seed);

/* Forward and backward of `sequences` x seq_length tokens; adds token-sum gradients to the integers and the losses
 * to *loss. target < 0: not counted. Token ids must be below the vocabulary. */
void model_micro_step(struct model *m, uint64_t sequences, const int32_t *token, const int32_t *target,
                      struct model_loss *loss);
/* Losses only (any mode but MODEL_INFER). token_loss, when not NULL, receives each row's loss in nats. */
void model_eval(struct model *m, uint64_t sequences, const int32_t *token, const int32_t *target,
                struct model_loss *loss, float *token_loss);
/* MODEL_INFER: append `count` tokens at position `first` (the cache holds positions below it) and give the logits
 * [count][vocab] of all of them when all_rows, else [1][vocab] of the last. */
void model_infer(struct model *m, uint64_t first, uint64_t count, const int32_t *token, bool all_rows, float *logits);

/* Floating-point operations of one token's forward and backward (products with parameters and attention; fused
 * multiply-add = 2): 6 x matrix parameters + 12 x layers x heads x head_dim x (T + 1) / 2. */
double model_train_flops_per_token(const struct model_conf *c, uint64_t seq_length);

#endif
