/* Text from a model: one sequence, key/value cache, seeded sampling. */
#ifndef TRAIN_SAMPLING_H
#define TRAIN_SAMPLING_H

#include "data/tokenizer.h"
#include "model/model.h"

struct sampling {
    double temperature; /* 0: the most likely token (ties: the smaller id) */
    uint64_t top_k;     /* 0: all */
    double top_p;       /* 1: all; else the smallest set of most likely tokens whose probability reaches top_p */
    uint64_t seed;
};

/* Scratch of the sampler: one entry per id. */
struct candidate {
    double weight;
    int32_t id;
};

/* Draw the token that follows position `position`: a pure function of (logits, sampling, position). `scratch`
 * holds vocab entries. Logits are divided by the temperature, then top-k, then top-p, as transformers does; sums
 * run from the most likely candidate down. */
int32_t sample_token(const float *logits, uint64_t vocab, const struct sampling *s, uint64_t position,
                     struct candidate *scratch);

/* Receives the prompt, once it is known to fit, and then generated text as it comes; complete UTF-8 characters only
 * (except at the very end). */
typedef void generate_sink(void *arg, const char *text, size_t bytes);

struct generation {
    struct sampling sampling;
    const char *prompt;
    uint64_t max_new_tokens;
    generate_sink *sink;
    void *sink_arg;
};

struct generated {
    uint64_t prompt_tokens, new_tokens;
    bool stopped; /* by end-of-text */
    bool full;    /* by the end of the cache */
};

/* Encode the prompt (an empty one starts from end-of-text), fill the cache of a MODEL_INFER model with `positions`
 * places and sample until end-of-text, max_new_tokens or the end of the cache. */
MUST_USE enum err generate(struct model *m, const struct tokenizer *t, uint64_t positions, const struct generation *g,
                           struct generated *out);

#endif
