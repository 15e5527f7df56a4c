/* Why this exists: the Unigram model of a tokenizer.json (T5, XLM-R): [[token, score], ...], a token's id being its
 * place. */
#include "base/mem.h"
#include "data/tokenizer_int.h"

#define WHERE_BYTES (TOKENIZER_MESSAGE_PATH + 96)

static enum err parse_unknown(struct tokenizer *t, const char *path, const json_t *model, size_t count)
{
    const json_t *unk = json_object_get(model, "unk_id");
    char where[WHERE_BYTES];
    t->bpe.unk = -1;
    if (unk != NULL && !json_is_null(unk)) {
        if (!json_is_integer(unk) || json_integer_value(unk) < 0 || json_integer_value(unk) >= (json_int_t)count) {
            return FAIL(ERR_DATA, "%s: model.unk_id: expected an id of the vocabulary, 0 to %zu, or null", path,
                        count - 1);
        }
        t->bpe.unk = (int32_t)json_integer_value(unk);
    }
    snprintf(where, sizeof(where), "%s: model", path);
    TRY(tokenizer_flag(where, model, "byte_fallback", false, &t->bpe.byte_fallback));
    if (t->bpe.byte_fallback && t->bpe.missing > 0) {
        return FAIL(ERR_DATA, "%s.byte_fallback: needs the tokens <0x00> to <0xFF>, %d are missing", where,
                    t->bpe.missing);
    }
    return OK;
}

static enum err parse_token(const char *where, const json_t *pair, size_t i, struct unigram_token *out)
{
    const json_t *text = json_array_get(pair, 0), *score = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_string(text) || !json_is_number(score)) {
        return FAIL(ERR_DATA, "%s[%zu]: expected [token, score]", where, i);
    }
    *out = (struct unigram_token){ json_string_value(text), (uint32_t)json_string_length(text), (int32_t)i,
                                   json_number_value(score), false };
    return OK;
}

enum err tokenizer_parse_unigram(struct tokenizer *t, const char *path, const json_t *model)
{
    const json_t *vocab = json_object_get(model, "vocab");
    size_t count = json_array_size(vocab), kept = 0;
    double least = 1e300, most = -1e300;
    char where[WHERE_BYTES];
    void *block;
    snprintf(where, sizeof(where), "%s: model.vocab", path);
    if (count == 0 || count > (size_t)BPE_ID_MAX) {
        return FAIL(ERR_DATA, "%s: expected a list of [token, score], of at most %lld", where, (long long)BPE_ID_MAX);
    }
    TRY(mem_alloc(&block, count, sizeof(struct unigram_token)));
    struct unigram_token *list = block;
    enum err err = OK;
    t->bpe.chars = true;
    for (size_t i = 0; i < count; i++) {
        struct unigram_token token;
        TRY_OUT(parse_token(where, json_array_get(vocab, i), i, &token));
        TRY_OUT(bpe_add_token(&t->bpe, where, token.text, token.bytes, (int64_t)i, false));
        least = token.score < least ? token.score : least;
        most = token.score > most ? token.score : most;
        list[kept] = token;
        kept += token.bytes > 0;
    }
    TRY_OUT(bpe_seal(&t->bpe, where));
    TRY_OUT(parse_unknown(t, path, model, count));
    t->unigram.unk = t->bpe.unk;
    err = unigram_new(&t->unigram, list, kept, least, most);
out:
    free(list);
    return err;
}
