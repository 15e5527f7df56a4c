/* Training samples by coordinate: fixed-length windows over the joined token stream in a keyed order. Pure functions of
 * (seed, epoch, index): O(1) time and memory, so resuming needs no replay. */
#ifndef DATA_SAMPLER_H
#define DATA_SAMPLER_H

#include "data/store.h"

#define SAMPLER_NO_TARGET (-1)

struct sampler {
    const struct store *store;
    uint64_t seq_length, vocab, seed;
    uint64_t samples; /* windows per epoch: (tokens - 1) / seq_length */
    int64_t end_of_text; /* what follows this token has no target; -1 (set by sampler_init): everything has one */
};

/* ERR_DATA when the store is too short for one window. */
MUST_USE enum err sampler_init(struct sampler *s, const struct store *store, uint64_t seq_length, uint64_t vocab,
                               uint64_t seed);
/* Training sample number `index` since the start of the run (epoch = index / samples, shuffled within each epoch):
 * input[0..T) and target[0..T) with target[t] = the next token. */
MUST_USE enum err sampler_get(const struct sampler *s, uint64_t index, int32_t *input, int32_t *target);
/* Which window sample `index` is. */
uint64_t sampler_window(const struct sampler *s, uint64_t index);
/* Evaluation window w in stream order, each token once: windows = ceil((tokens - 1) / T); the last one is filled up
 * with input 0 and target SAMPLER_NO_TARGET. */
uint64_t sampler_eval_windows(const struct sampler *s);
MUST_USE enum err sampler_eval_get(const struct sampler *s, uint64_t w, int32_t *input, int32_t *target);

#endif
