/* A decoder as a Hugging Face config.json describes it. */
#ifndef CONF_MODEL_CONF_H
#define CONF_MODEL_CONF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "conf/finding.h"

enum family { FAMILY_GPT2, FAMILY_LLAMA };

struct model_conf {
    enum family family;
    uint64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    uint64_t positions; /* max_position_embeddings or n_positions */
    double norm_eps;
    double rope_theta;                  /* llama */
    double initializer_range;           /* standard deviation of fresh weights */
    double resid_dropout, embd_dropout; /* gpt2: rates in [0, 1) of dropout on the residual stream's additions, and on
                                         * the sum of embeddings */
    bool tied;                          /* the head is the embedding */
    int64_t bos_token_id, eos_token_id; /* -1: none */
};

/* Read a config.json text (also YAML, as the inline `model:` block is). Every field that changes the arithmetic is used
 * or refused; nothing is ignored silently. Findings name file:line:col. */
MUST_USE enum err model_conf_parse(struct model_conf *m, const char *name, const char *text, size_t bytes,
                                   struct findings *f);
/* Read FOLDER/config.json. */
MUST_USE enum err model_conf_read(struct model_conf *m, const char *folder, struct findings *f);
/* config.json as Hugging Face writes it; transformers loads it. */
MUST_USE enum err model_conf_write(const struct model_conf *m, struct buf *out);
/* Parameters, counted once when tied. */
uint64_t model_conf_parameters(const struct model_conf *m);

#endif
