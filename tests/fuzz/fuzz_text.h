/* What the targets of tokenizers share: a loaded one encodes a few texts and one of the input, and decodes them again.
 * Once in each program. */
#ifndef TESTS_FUZZ_FUZZ_TEXT_H
#define TESTS_FUZZ_FUZZ_TEXT_H

#include "base/buf.h"
#include "data/pretoken.h"
#include "data/tokenizer.h"
#include "fuzz.h"

/* The classes of all characters are the same for every input and cost more than the rest: made once. The linker puts
 * these two in place of the product's. */
enum err __real_char_table_init(struct char_table *t);
enum err __wrap_char_table_init(struct char_table *t);
void __wrap_char_table_release(struct char_table *t);

enum err __wrap_char_table_init(struct char_table *t)
{
    static struct char_table made;
    enum err err = made.rows > 0 ? OK : __real_char_table_init(&made);
    *t = made;
    return err;
}

void __wrap_char_table_release(struct char_table *t)
{
    memset(t, 0, sizeof(*t));
}

/* Encode and decode again. */
static inline void fuzz_use_text(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t bytes)
{
    struct tokens tokens = { 0 };
    struct buf out = { 0 };
    for (unsigned flags = 0; flags < 4; flags++) {
        struct tokenizer_decoding d = { 0 };
        tokens.count = 0;
        enum err err = tokenizer_encode(t, s, text, bytes, flags, &tokens);
        for (size_t k = 0; err == OK && k < tokens.count; k++) {
            fuzz_need(tokens.id[k] >= 0 && (uint64_t)tokens.id[k] < tokenizer_vocab(t), "ids are below the count");
            err = tokenizer_decode(t, &d, tokens.id[k], &out);
            fuzz_need(err == OK, "what was encoded is decoded");
        }
    }
    fuzz_need(bytes == 0 || tokenizer_split(t, text, bytes) < bytes, "a cut lies inside");
    tokens_release(&tokens);
    buf_release(&out);
}

static inline void fuzz_use_tokenizer(const struct tokenizer *t, const char *text, size_t bytes)
{
    static const char *const texts[] = { "", "Hello, world!  12345\n\n\tx",
                                         "\xc3\x84\xcc\x88 \xe4\xbd\xa0\xe5\xa5\xbd <s>",
                                         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" };
    struct tokenizer_scratch *s;
    fuzz_need(tokenizer_scratch_new(&s, t) == OK, "a loaded tokenizer can be used");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        fuzz_use_text(t, s, texts[i], strlen(texts[i]));
    }
    fuzz_use_text(t, s, text, bytes);
    tokenizer_scratch_free(s);
}

#endif
