/* Why this exists: measurements need tokens that take as long as real ones, without asking anybody for a text. */
#include "data/build.h"
#include "data/store_int.h"

#include "base/rng.h"

#define RANDOM_BLOCK 4096u
#define NO_TOKENIZER "00000000000000000000000000000000"

static enum err add_tokens(struct store_writer *w, uint64_t tokens, uint64_t vocab, uint32_t token_bytes, uint64_t seed)
{
    int32_t wide[RANDOM_BLOCK];
    uint16_t narrow[RANDOM_BLOCK];
    for (uint64_t done = 0; done < tokens;) {
        size_t count = 0;
        for (; count < RANDOM_BLOCK && done < tokens; count++, done++) {
            uint32_t word = rng_at(seed, RNG_TEST, done, 0).word[0];
            wide[count] = (int32_t)(word % vocab);
            narrow[count] = (uint16_t)wide[count];
        }
        TRY(store_writer_add(w, token_bytes == 2 ? (const void *)narrow : wide, count));
    }
    return OK;
}

enum err data_random(const char *prefix, uint64_t tokens, uint64_t vocab, uint64_t seed)
{
    const struct store_writer_options o = { .prefix = prefix, .token_bytes = vocab <= UINT16_MAX + 1u ? 2 : 4 };
    struct store_writer *w;
    struct buf info = { 0 };
    char content[33];
    bool stored;
    BUG_IF(tokens == 0 || vocab == 0 || vocab > INT32_MAX);
    TRY(store_writer_open(&w, &o));
    enum err err = OK;
    TRY_OUT(add_tokens(w, tokens, vocab, o.token_bytes, seed));
    TRY_OUT(store_writer_end_document(w, &stored));
    TRY_OUT(store_writer_finish(w, content));
    TRY_OUT(buf_printf(&info, "{\"format\": \"%s\", \"version\": %d, \"tokens\": %llu, \"vocab\": %llu, "
                              "\"text_bytes\": 0, \"tokenizer\": \"" NO_TOKENIZER "\", \"content\": \"%s\"}\n",
                       INFO_FORMAT, INFO_VERSION, (unsigned long long)tokens, (unsigned long long)vocab, content));
    err = store_writer_publish(w, &info);
    w = NULL;
out:
    store_writer_abandon(w);
    buf_release(&info);
    return err;
}
