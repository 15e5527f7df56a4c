/* Why this exists: reads a Hugging Face tokenizer.json: BPE over bytes or over characters, Unigram. Whatever would
 * change the ids and is not understood is refused by name: a tokenizer that is almost right ruins a training run
 * without a word.
 *
 * Every message starts with "file: field". */
#include "base/log.h"
#include "base/mem.h"
#include "data/tokenizer_int.h"

#define HINT                                                                                                           \
    " | supported: BPE over bytes (GPT-2, Llama 3, Qwen2) or characters (Llama 2, Mistral, Gemma), Unigram (T5)"

/* The "type" of a component; "" when it has none. */
static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type != NULL ? type : "";
}

/* "path: field" in a buffer of the caller. */
#define WHERE_BYTES (TOKENIZER_MESSAGE_PATH + 160)
static const char *where_is(char where[WHERE_BYTES], const char *path, const char *field)
{
    snprintf(where, WHERE_BYTES, "%s: %s", path, field);
    return where;
}

enum err tokenizer_flag(const char *where, const json_t *object, const char *key, bool usual, bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = value == NULL || json_is_null(value) ? usual : json_is_true(value);
    if (value != NULL && !json_is_null(value) && !json_is_boolean(value)) {
        return FAIL(ERR_DATA, "%s.%s: expected true or false", where, key);
    }
    return OK;
}

/* ---- vocabulary, merges, added tokens ---- */

enum err tokenizer_parse_tokens(struct tokenizer *t, const char *where, const json_t *object)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object)) {
        return FAIL(ERR_DATA, "%s: expected an object token -> id", where);
    }
    json_object_foreach((json_t *)object, key, value) {
        size_t bytes = strlen(key);
        if (!json_is_integer(value)) {
            char quote[96];
            return FAIL(ERR_DATA, "%s: the id of token \"%s\" is not an integer", where, bpe_quote(key, bytes, quote));
        }
        TRY(bpe_add_token(&t->bpe, where, key, bytes, json_integer_value(value), false));
    }
    return bpe_seal(&t->bpe, where);
}

/* "a b" or ["a", "b"]. */
static enum err parse_merge(struct tokenizer *t, const char *where, const json_t *merge)
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        size_t bytes = json_string_length(merge);
        const char *space = memchr(text, ' ', bytes);
        size_t left = space != NULL ? (size_t)(space - text) : 0;
        if (space == NULL || memchr(space + 1, ' ', bytes - left - 1) != NULL) {
            char quote[96];
            return FAIL(ERR_DATA, "%s: merge %zu is \"%s\", expected two tokens with a blank between", where,
                        t->bpe.pairs, bpe_quote(text, bytes, quote));
        }
        return bpe_add_merge(&t->bpe, where, text, left, space + 1, bytes - left - 1);
    }
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(left) || !json_is_string(right)) {
        return FAIL(ERR_DATA, "%s: merge %zu is neither \"a b\" nor [\"a\", \"b\"]", where, t->bpe.pairs);
    }
    return bpe_add_merge(&t->bpe, where, json_string_value(left), json_string_length(left), json_string_value(right),
                         json_string_length(right));
}

static enum err check_affix(const char *path, const json_t *model, const char *key)
{
    const json_t *value = json_object_get(model, key);
    if (value != NULL && !json_is_null(value) && !(json_is_string(value) && json_string_length(value) == 0)) {
        return FAIL(ERR_DATA, "%s: model.%s: is set, but no supported model has one" HINT, path, key);
    }
    return OK;
}

/* What a model of characters does with those it has no token for. */
static enum err parse_unknown(struct tokenizer *t, const char *path, const json_t *model)
{
    struct bpe *b = &t->bpe;
    const json_t *unk = json_object_get(model, "unk_token");
    int64_t index = -1;
    b->unk = -1;
    if (json_is_string(unk)) {
        char quote[96];
        index = bpe_find(b, json_string_value(unk), json_string_length(unk), false);
        if (index < 0) {
            return FAIL(ERR_DATA, "%s: model.unk_token: \"%s\" is not in the vocabulary", path,
                        bpe_quote(json_string_value(unk), json_string_length(unk), quote));
        }
        b->unk = b->token[index].id;
    } else if (unk != NULL && !json_is_null(unk)) {
        return FAIL(ERR_DATA, "%s: model.unk_token: expected a text or null", path);
    }
    return bpe_index_chars(b);
}

static enum err parse_merges(struct tokenizer *t, const char *path, const json_t *merges)
{
    char where[WHERE_BYTES];
    where_is(where, path, "model.merges");
    if (!json_is_array(merges)) {
        return FAIL(ERR_DATA, "%s: expected a list", where);
    }
    TRY(bpe_reserve_merges(&t->bpe, json_array_size(merges)));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        TRY(parse_merge(t, where, json_array_get(merges, i)));
    }
    return OK;
}

static enum err check_dropout(const char *path, const json_t *model)
{
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout != NULL && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) <= 0)) {
        return FAIL(ERR_DATA, "%s: model.dropout: is set, so the ids would be random | remove it", path);
    }
    return OK;
}

/* A field of the model that is not known may change the ids. */
static enum err check_fields(const char *path, const json_t *model)
{
    static const char known[] = " type vocab merges dropout unk_token continuing_subword_prefix end_of_word_suffix "
                                "fuse_unk byte_fallback ignore_merges unk_id ";
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)model, key, value) {
        char word[64];
        int bytes = snprintf(word, sizeof(word), " %s ", key);
        if (bytes >= (int)sizeof(word) || strchr(key, ' ') != NULL || strstr(known, word) == NULL) {
            char quote[96];
            return FAIL(ERR_DATA, "%s: model: \"%s\" is not a field that is known" HINT, path,
                        bpe_quote(key, strlen(key), quote));
        }
    }
    value = json_object_get(model, "type");
    if (value != NULL && !json_is_string(value)) {
        return FAIL(ERR_DATA, "%s: model.type: expected a text" HINT, path);
    }
    return OK;
}

static enum err parse_model(struct tokenizer *t, const char *path, const json_t *model)
{
    char where[WHERE_BYTES];
    const char *type = type_of(model);
    const json_t *merges = json_object_get(model, "merges");
    struct bpe *b = &t->bpe;
    if (!json_is_object(model)) {
        return FAIL(ERR_DATA, "%s: model: missing" HINT, path);
    }
    TRY(type[0] == 0 || strcmp(type, "BPE") == 0 || strcmp(type, "Unigram") == 0 ? check_fields(path, model) : OK);
    if (strcmp(type, "Unigram") == 0) {
        return tokenizer_parse_unigram(t, path, model);
    }
    if (strcmp(type, "BPE") != 0 && !(json_object_get(model, "type") == NULL && json_is_array(merges))) {
        char quote[96];
        return FAIL(ERR_DATA, "%s: model.type: \"%s\", expected \"BPE\" or \"Unigram\"" HINT, path,
                    bpe_quote(type, strlen(type), quote));
    }
    TRY(check_dropout(path, model));
    TRY(check_affix(path, model, "continuing_subword_prefix"));
    TRY(check_affix(path, model, "end_of_word_suffix"));
    b->chars = t->model == MODEL_CHARS;
    TRY(tokenizer_flag(where_is(where, path, "model"), model, "byte_fallback", false, &b->byte_fallback));
    TRY(tokenizer_flag(where, model, "ignore_merges", false, &b->ignore_merges));
    TRY(tokenizer_flag(where, model, "fuse_unk", false, &b->fuse_unk));
    TRY(tokenizer_parse_tokens(t, where_is(where, path, "model.vocab"), json_object_get(model, "vocab")));
    if (b->missing > 0 && b->byte_fallback) {
        return FAIL(ERR_DATA, "%s: model.byte_fallback: needs the tokens %s, %d are missing" HINT, path,
                    b->chars ? "<0x00> to <0xFF>" : "of all bytes", b->missing);
    }
    TRY(b->chars ? parse_unknown(t, path, model) : OK);
    TRY(parse_merges(t, path, merges));
    return b->chars ? bpe_index_joints(b) : OK;
}

enum err tokenizer_add(struct tokenizer *t, const char *where, const struct added_token *token)
{
    int64_t index;
    char quote[96], other[96];
    if (token->id < 0 || token->id > BPE_ID_MAX) {
        return FAIL(ERR_DATA, "%s: \"%s\" has id %d, expected 0 to %lld", where,
                    bpe_quote(token->text, token->bytes, quote), token->id, (long long)BPE_ID_MAX);
    }
    TRY(added_add(&t->added, where, token));
    TRY(bpe_find_spelling(&t->bpe, token->text, token->bytes, &index));
    if (index >= 0) {
        if (t->bpe.token[index].id != token->id) {
            return FAIL(ERR_DATA, "%s: \"%s\" has id %d here and %d in the vocabulary", where,
                        bpe_quote(token->text, token->bytes, quote), token->id, t->bpe.token[index].id);
        }
        return OK;
    }
    index = bpe_find_id(&t->bpe, token->id);
    if (index >= 0) {
        const struct bpe_token *old = &t->bpe.token[index];
        return FAIL(ERR_DATA, "%s: \"%s\" has id %d, which is token \"%s\" of the vocabulary", where,
                    bpe_quote(token->text, token->bytes, quote), token->id,
                    bpe_quote(t->bpe.text.data + old->offset, old->bytes, other));
    }
    return OK;
}

enum err tokenizer_add_json(struct tokenizer *t, const char *where, const json_t *object, int64_t id)
{
    const json_t *content = json_object_get(object, "content"), *own = json_object_get(object, "id");
    if (!json_is_string(content) || (own != NULL && !json_is_integer(own)) || (own == NULL && id < 0)) {
        return FAIL(ERR_DATA, "%s: expected an object with the text \"content\" and the integer \"id\"", where);
    }
    struct added_token token = { .text = (char *)json_string_value(content), .bytes = json_string_length(content) };
    int64_t wide = own != NULL ? json_integer_value(own) : id;
    token.id = wide < 0 ? -1 : wide > INT32_MAX ? INT32_MAX : (int32_t)wide;
    TRY(tokenizer_flag(where, object, "special", false, &token.special));
    TRY(tokenizer_flag(where, object, "normalized", !token.special, &token.normalized));
    TRY(tokenizer_flag(where, object, "lstrip", false, &token.lstrip));
    TRY(tokenizer_flag(where, object, "rstrip", false, &token.rstrip));
    TRY(tokenizer_flag(where, object, "single_word", false, &token.single_word));
    const struct added_token *same = added_find(&t->added, token.text, token.bytes);
    if (own == NULL && same != NULL) {
        char quote[96];
        if (same->id != token.id) {
            return FAIL(ERR_DATA, "%s: \"%s\" has id %lld here and %d in tokenizer.json", where,
                        bpe_quote(token.text, token.bytes, quote), (long long)id, same->id);
        }
        return OK; /* tokenizer_config.json repeats tokenizer.json */
    }
    return tokenizer_add(t, where, &token);
}

enum err tokenizer_seal_added(struct tokenizer *t, const char *where)
{
    for (size_t i = 0; i < t->added.count; i++) {
        const struct added_token *token = &t->added.token[i];
        int64_t index;
        TRY(bpe_find_spelling(&t->bpe, token->text, token->bytes, &index));
        if (index < 0 && bpe_find(&t->bpe, token->text, token->bytes, true) < 0) {
            TRY(bpe_add_token(&t->bpe, where, token->text, token->bytes, token->id, true));
        }
    }
    return bpe_seal(&t->bpe, where);
}

static enum err parse_added(struct tokenizer *t, const char *path, const json_t *list)
{
    char where[WHERE_BYTES], field[64];
    if (list != NULL && !json_is_null(list) && !json_is_array(list)) {
        return FAIL(ERR_DATA, "%s: added_tokens: expected a list", path);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(field, sizeof(field), "added_tokens[%zu]", i);
        TRY(tokenizer_add_json(t, where_is(where, path, field), json_array_get(list, i), -1));
    }
    return tokenizer_seal_added(t, where_is(where, path, "added_tokens"));
}

enum err tokenizer_parse_decoder(struct tokenizer *t, const char *folder, const json_t *config)
{
    char where[WHERE_BYTES], field[80];
    const char *key;
    json_t *value, *list = json_object_get(config, "added_tokens_decoder");
    if (list == NULL || json_is_null(list)) {
        return OK;
    }
    if (!json_is_object(list)) {
        return FAIL(ERR_DATA, "%s/tokenizer_config.json: added_tokens_decoder: expected an object id -> token", folder);
    }
    json_object_foreach(list, key, value) {
        char *stop;
        size_t len = strlen(key);
        long long id = len > 0 && len <= 9 && key[0] >= '0' && key[0] <= '9' ? strtoll(key, &stop, 10) : -1;
        snprintf(field, sizeof(field), "added_tokens_decoder[%.40s]", key);
        snprintf(where, sizeof(where), "%s/tokenizer_config.json: %s", folder, field);
        if (id < 0 || *stop != 0) {
            return FAIL(ERR_DATA, "%s: expected an id", where);
        }
        TRY(tokenizer_add_json(t, where, value, id));
    }
    return tokenizer_seal_added(t, where_is(where, folder, "tokenizer_config.json: added_tokens_decoder"));
}

/* ---- the components around the model ---- */

static void note_unused(const char *path, const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    if (value != NULL && !json_is_null(value)) {
        log_warning("%s: %s: is set, but not applied: documents keep their length", path, key);
    }
}

enum err tokenizer_parse_json(struct tokenizer *t, const char *path, const json_t *root)
{
    if (!json_is_object(root)) {
        return FAIL(ERR_DATA, "%s: expected an object with \"model\"" HINT, path);
    }
    /* The small components first: a file of another kind is named as such before its vocabulary is read. */
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const char *type = type_of(json_object_get(root, "model"));
    t->model = strcmp(type, "Unigram") == 0 ? MODEL_UNIGRAM : tokenizer_is_bytelevel(pre) ? MODEL_BYTES : MODEL_CHARS;
    TRY(tokenizer_parse_normalizer(t, path, json_object_get(root, "normalizer")));
    if (type[0] == 0 || strcmp(type, "BPE") == 0 || t->model == MODEL_UNIGRAM) {
        TRY(tokenizer_parse_pre(t, path, pre));
        TRY(tokenizer_parse_decode(t, path, json_object_get(root, "decoder")));
    }
    TRY(parse_model(t, path, json_object_get(root, "model")));
    TRY(parse_added(t, path, json_object_get(root, "added_tokens")));
    TRY(tokenizer_parse_post(t, path, json_object_get(root, "post_processor")));
    note_unused(path, root, "truncation");
    note_unused(path, root, "padding");
    return OK;
}
