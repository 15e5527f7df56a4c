/* Why this exists: a sampler with a state must be saved, restored and replayed; this one is a function, so a resumed
 * run, a run on other ranks and a replay of one step all see the same samples without any of that.
 *
 * Invariants: training window w covers tokens [w T, w T + T] (the last one is only a target); windows of an epoch are
 * taken each once, in the order rng_permute gives; the tokens after the last whole window are not trained on. */
#include "data/sampler.h"

#include "base/rng.h"

enum err sampler_init(struct sampler *s, const struct store *store, uint64_t seq_length, uint64_t vocab, uint64_t seed)
{
    BUG_IF(seq_length == 0);
    uint64_t tokens = store_tokens(store);
    *s = (struct sampler){ .store = store, .seq_length = seq_length, .vocab = vocab, .seed = seed,
                           .end_of_text = -1 };
    TRY(store_check_vocab(store, vocab));
    s->samples = (tokens - 1) / seq_length;
    if (s->samples == 0) {
        return FAIL(ERR_DATA,
                    "the data have %llu tokens, one sample of sequence length %llu needs %llu | choose a shorter "
                    "sequence or give more text",
                    (unsigned long long)tokens, (unsigned long long)seq_length, (unsigned long long)seq_length + 1);
    }
    return OK;
}

uint64_t sampler_window(const struct sampler *s, uint64_t index)
{
    return rng_permute(s->seed, index / s->samples, s->samples, index % s->samples);
}

/* input = tokens [first, first + count), target = the same one later. */
static enum err read_window(const struct sampler *s, uint64_t first, uint64_t count, int32_t *input, int32_t *target)
{
    TRY(store_read(s->store, first, count, s->vocab, input));
    memcpy(target, input + 1, (count - 1) * sizeof(*target));
    TRY(store_read(s->store, first + count, 1, s->vocab, target + count - 1));
    for (uint64_t t = 0; t < count && s->end_of_text >= 0; t++) {
        target[t] = input[t] == s->end_of_text ? SAMPLER_NO_TARGET : target[t];
    }
    return OK;
}

enum err sampler_get(const struct sampler *s, uint64_t index, int32_t *input, int32_t *target)
{
    return read_window(s, sampler_window(s, index) * s->seq_length, s->seq_length, input, target);
}

uint64_t sampler_eval_windows(const struct sampler *s)
{
    uint64_t targets = store_tokens(s->store) - 1;
    return targets / s->seq_length + (targets % s->seq_length != 0);
}

enum err sampler_eval_get(const struct sampler *s, uint64_t w, int32_t *input, int32_t *target)
{
    BUG_IF(w >= sampler_eval_windows(s));
    uint64_t first = w * s->seq_length, left = store_tokens(s->store) - 1 - first;
    uint64_t count = left < s->seq_length ? left : s->seq_length;
    TRY(read_window(s, first, count, input, target));
    for (uint64_t t = count; t < s->seq_length; t++) {
        input[t] = 0;
        target[t] = SAMPLER_NO_TARGET;
    }
    return OK;
}
