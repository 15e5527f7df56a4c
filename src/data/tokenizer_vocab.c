/* Why this exists: the older pair of files, vocab.json and merges.txt, says nothing about the pre-tokenizer; the
 * class named in tokenizer_config.json does. Without one it is GPT-2, whose files have this form. */
#include "base/json.h"
#include "base/mem.h"
#include "data/tokenizer_int.h"

/* What a tokenizer class of transformers implies. */
static const struct vocab_class {
    const char *name;
    enum pretoken_scanner scanner;
    bool nfc;
} classes[] = {
    { "GPT2Tokenizer", SCANNER_GPT2, false },    { "GPTNeoXTokenizer", SCANNER_GPT2, false },
    { "CodeGenTokenizer", SCANNER_GPT2, false }, { "Qwen2Tokenizer", SCANNER_QWEN2, true },
};

static enum err find_class(const char *folder, const json_t *config, const struct vocab_class **out)
{
    const json_t *value = json_object_get(config, "tokenizer_class");
    const char *name = json_string_value(value);
    *out = &classes[0];
    if (value == NULL || json_is_null(value)) {
        return OK;
    }
    size_t len = name != NULL ? strlen(name) : 0;
    if (len > 4 && strcmp(name + len - 4, "Fast") == 0) {
        len -= 4;
    }
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        if (len == strlen(classes[i].name) && memcmp(classes[i].name, name, len) == 0) {
            *out = &classes[i];
            return OK;
        }
    }
    char quote[96];
    return FAIL(ERR_DATA,
                "%s/tokenizer_config.json: tokenizer_class: \"%s\" is not supported for vocab.json and merges.txt | "
                "supported: GPT2Tokenizer, GPTNeoXTokenizer, CodeGenTokenizer, Qwen2Tokenizer; or a tokenizer.json",
                folder, bpe_quote(name != NULL ? name : "", len, quote));
}

/* One merge a line, "#version" lines and blank lines aside. */
static enum err parse_merges(struct tokenizer *t, const char *where, const char *text, size_t bytes)
{
    static const char version[] = "#version";
    size_t lines = 1, number = 0;
    for (size_t i = 0; i < bytes; i++) {
        lines += text[i] == '\n';
    }
    TRY(bpe_reserve_merges(&t->bpe, lines));
    for (const char *p = text, *end = text + bytes; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop != NULL ? stop : end;
        size_t len = (size_t)(stop - p);
        len -= len > 0 && p[len - 1] == '\r';
        number++;
        if (len > 0 && !(len >= sizeof(version) - 1 && memcmp(p, version, sizeof(version) - 1) == 0)) {
            const char *space = memchr(p, ' ', len);
            size_t left = space != NULL ? (size_t)(space - p) : 0;
            if (space == NULL || memchr(space + 1, ' ', len - left - 1) != NULL) {
                char quote[96];
                return FAIL(ERR_DATA, "%s: line %zu is \"%s\", expected two tokens with a blank between", where, number,
                            bpe_quote(p, len, quote));
            }
            TRY(bpe_add_merge(&t->bpe, where, p, left, space + 1, len - left - 1));
        }
        p = stop + 1;
    }
    return OK;
}

/* Without added_tokens_decoder, GPT-2's only special token. */
static enum err add_usual(struct tokenizer *t, const char *where)
{
    static const char eot[] = "<|endoftext|>";
    int64_t index;
    TRY(bpe_find_spelling(&t->bpe, eot, sizeof(eot) - 1, &index));
    if (index < 0) {
        return OK;
    }
    struct added_token token = { .text = (char *)eot, .bytes = sizeof(eot) - 1, .id = t->bpe.token[index].id,
                                 .special = true };
    return tokenizer_add(t, where, &token);
}

/* transformers needs the class to load the pair. */
static enum err add_config(struct tokenizer *t)
{
    struct buf text = { 0 };
    enum err err = buf_add_string(&text, "{\n  \"tokenizer_class\": \"GPT2Tokenizer\"\n}\n");
    err = err != OK ? err : tokenizer_keep_text(t, "tokenizer_config.json", &text, false);
    buf_release(&text);
    return err;
}

enum err tokenizer_parse_vocab(struct tokenizer *t, const char *folder, const struct tokenizer_file *vocab,
                               const struct tokenizer_file *merges, const json_t *config)
{
    char where[TOKENIZER_MESSAGE_PATH + 64];
    const struct vocab_class *class;
    json_t *root = NULL;
    enum err err = OK;
    TRY(find_class(folder, config, &class));
    snprintf(where, sizeof(where), "%s/%s", folder, vocab->name);
    TRY_OUT(json_parse(&root, where, vocab->text.data != NULL ? vocab->text.data : "", vocab->text.bytes));
    TRY_OUT(tokenizer_parse_tokens(t, where, root));
    snprintf(where, sizeof(where), "%s/%s", folder, merges->name);
    TRY_OUT(parse_merges(t, where, merges->text.data, merges->text.bytes));
    if (class->nfc) {
        t->normal.step[t->normal.steps++] = (struct normal_step){ .kind = NORMAL_UNICODE, .compose = true };
    }
    t->pre.steps = 1;
    t->pre.step[0] = (struct pretoken_step){ .kind = STEP_BYTELEVEL, .scanner = class->scanner };
    snprintf(where, sizeof(where), "%s/tokenizer_config.json", folder);
    TRY_OUT(tokenizer_flag(where, config, "add_prefix_space", false, &t->pre.step[0].prefix_space));
    if (json_is_object(json_object_get(config, "added_tokens_decoder"))) {
        TRY_OUT(tokenizer_parse_decoder(t, folder, config));
    } else {
        snprintf(where, sizeof(where), "%s/%s", folder, vocab->name);
        TRY_OUT(add_usual(t, where));
    }
    if (config == NULL) {
        TRY_OUT(add_config(t));
    }
out:
    json_decref(root);
    return err;
}
