/* Why this exists: sampling that a reader can repeat: the draw at a position depends on the logits, the seed and the
 * position only. Probabilities are computed in double with base/fmath.h, in the order of falling likelihood. */
#include "train/sampling.h"

#include <math.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

static int by_likelihood(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight) {
        return x->weight > y->weight ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

static int32_t most_likely(const float *logits, uint64_t vocab)
{
    uint64_t best = 0;
    for (uint64_t i = 1; i < vocab; i++) {
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    return (int32_t)best;
}

/* Number of leading candidates whose weights reach `share` of the total of `count`. */
static uint64_t nucleus(const struct candidate *c, uint64_t count, double share, double total)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        sum += c[i].weight;
        if (sum >= share * total) {
            return i + 1;
        }
    }
    return count;
}

int32_t sample_token(const float *logits, uint64_t vocab, const struct sampling *s, uint64_t position,
                     struct candidate *scratch)
{
    int32_t best = most_likely(logits, vocab);
    if (s->temperature <= 0.0) {
        return best;
    }
    double top = (double)logits[best];
    for (uint64_t i = 0; i < vocab; i++) {
        scratch[i] = (struct candidate){ fmath_exp(((double)logits[i] - top) / s->temperature), (int32_t)i };
    }
    qsort(scratch, vocab, sizeof(scratch[0]), by_likelihood);
    uint64_t count = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    double total = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        total += scratch[i].weight;
    }
    if (s->top_p < 1.0) {
        count = nucleus(scratch, count, s->top_p, total);
        total = 0.0;
        for (uint64_t i = 0; i < count; i++) {
            total += scratch[i].weight;
        }
    }
    struct rng_block block = rng_at(s->seed, RNG_SAMPLE, position, 0);
    double aim = rng_unit(block.word[0]) * total, sum = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        sum += scratch[i].weight;
        if (aim < sum) {
            return scratch[i].id;
        }
    }
    return scratch[count - 1].id;
}

/* Length of the leading part of `text` that does not end inside a character. */
static size_t whole_characters(const char *text, size_t bytes)
{
    size_t valid = utf8_valid_prefix(text, bytes);
    size_t rest = bytes - valid;
    /* Up to three bytes may be the start of a character; more cannot become one and are passed on. */
    return rest <= 3 && rest > 0 && ((unsigned char)text[valid] & 0xc0) == 0xc0 ? valid : bytes;
}

static void emit(const struct generation *g, struct buf *text, bool end)
{
    size_t ready = end ? text->bytes : whole_characters(text->data, text->bytes);
    if (ready == 0) {
        return;
    }
    g->sink(g->sink_arg, text->data, ready);
    memmove(text->data, text->data + ready, text->bytes - ready + 1);
    text->bytes -= ready;
}

static enum err encode_prompt(const struct tokenizer *t, const char *prompt, struct tokens *ids)
{
    struct tokenizer_scratch *scratch;
    TRY(tokenizer_scratch_new(&scratch, t));
    enum err err = tokenizer_encode(t, scratch, prompt, strlen(prompt), TOKENIZER_SPECIAL, ids);
    if (err == ERR_DATA) { /* the text that cannot be encoded is an argument of the command */
        err = FAIL(ERR_USAGE, "the prompt: %s", err_message());
    }
    tokenizer_scratch_free(scratch);
    if (err == OK && ids->count == 0) {
        if (tokenizer_eot(t) < 0) {
            return FAIL(ERR_USAGE,
                        "the prompt is empty and this tokenizer has no end-of-text token to start from | give "
                        "--prompt TEXT");
        }
        void *mem = ids->id;
        TRY(mem_grow(&mem, &ids->capacity, 1, sizeof(int32_t)));
        ids->id = mem;
        ids->id[ids->count++] = (int32_t)tokenizer_eot(t);
    }
    return err;
}

/* Sampling from NaN or infinite logits would print some text without a word of warning. */
static enum err check_finite(const float *logits, uint64_t vocab, uint64_t position)
{
    for (uint64_t i = 0; i < vocab; i++) {
        if (!isfinite(logits[i])) {
            return FAIL(ERR_RUN, "position %llu: the model's output for id %llu is not finite | check the checkpoint "
                                 "with `invar ckpt verify`", (unsigned long long)position, (unsigned long long)i);
        }
    }
    return OK;
}

/* One generation: who takes part, and room for one row of logits. */
struct writer {
    struct model *m;
    const struct tokenizer *t;
    const struct generation *g;
    uint64_t positions;
    float *logits;             /* [vocab] */
    struct candidate *scratch; /* [vocab] */
};

static enum err write_text(const struct writer *w, const struct tokens *prompt, struct generated *out)
{
    const struct generation *g = w->g;
    const struct tokenizer *t = w->t;
    uint64_t vocab = model_conf(w->m)->vocab, at = prompt->count;
    struct buf text = { 0 };
    enum err err = OK;
    g->sink(g->sink_arg, g->prompt, strlen(g->prompt));
    TRY_OUT(model_infer(w->m, 0, prompt->count, prompt->id, false, w->logits));
    for (out->new_tokens = 0; out->new_tokens < g->max_new_tokens;) {
        TRY_OUT(check_finite(w->logits, vocab, at));
        int32_t next = sample_token(w->logits, vocab, &g->sampling, at, w->scratch);
        if (next == tokenizer_eot(t)) {
            out->stopped = true;
            break;
        }
        out->new_tokens++;
        if ((uint64_t)next < tokenizer_vocab(t)) { /* ids above belong to the padding of vocab_size: no text */
            TRY_OUT(tokenizer_decode(t, NULL, next, &text));
            emit(g, &text, false);
        }
        if (at == w->positions) {
            out->full = true;
            break;
        }
        TRY_OUT(model_infer(w->m, at++, 1, &next, false, w->logits));
    }
    emit(g, &text, true);
out:
    if (err != OK) {
        g->sink(g->sink_arg, "\n", 1); /* a message starts its own line */
    }
    buf_release(&text);
    return err;
}

enum err generate(struct model *m, const struct tokenizer *t, uint64_t positions, const struct generation *g,
                  struct generated *out)
{
    struct tokens prompt = { 0 };
    void *logits = NULL, *scratch = NULL;
    uint64_t vocab = model_conf(m)->vocab;
    enum err err;
    *out = (struct generated){ 0 };
    TRY_OUT(encode_prompt(t, g->prompt, &prompt));
    out->prompt_tokens = prompt.count;
    if (prompt.count > positions) {
        err = FAIL(ERR_USAGE,
                   "the prompt has %zu tokens, there are %llu positions | shorten the prompt, or raise --context",
                   prompt.count, (unsigned long long)positions);
        goto out;
    }
    TRY_OUT(mem_alloc(&logits, vocab, sizeof(float)));
    TRY_OUT(mem_alloc(&scratch, vocab, sizeof(struct candidate)));
    const struct writer w = { m, t, g, positions, logits, scratch };
    TRY_OUT(write_text(&w, &prompt, out));
out:
    tokens_release(&prompt);
    free(logits);
    free(scratch);
    return err;
}
