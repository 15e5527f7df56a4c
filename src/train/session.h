/* A model opened to be used, not trained: what `invar eval` and `invar generate` share. */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H

#include "ckpt/ckpt.h"
#include "data/sampler.h"
#include "model/model.h"

struct session {
    struct ckpt *ckpt; /* where the model is from */
    struct model_conf conf;
    struct pool *pool;
    struct kern *kern;
    struct model *model;
    struct model_lists lists; /* heap: where its weights are */
    struct arena arena;
    int32_t *input, *target; /* [sequences][seq_length], MODEL_EVAL */
};

struct session_options {
    enum model_mode mode;   /* MODEL_EVAL or MODEL_INFER */
    uint64_t sequences;     /* computed at a time */
    uint64_t seq_length;    /* 0: the model's positions */
    uint64_t threads;       /* 0: the cores this process may use */
};

/* Open the checkpoint or model folder `path`, lay out memory and read the weights. */
MUST_USE enum err session_open(struct session *s, const char *path, const struct session_options *o);
void session_close(struct session *s);
/* The tokenizer that lies with the model made the data, as far as both are known: else the loss would be of other text.
 * ERR_USAGE names both. */
MUST_USE enum err session_check_tokenizer(const struct session *s, const struct store *data, const char *prefix);

#endif
