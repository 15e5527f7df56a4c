/* Why this exists: the pre-tokenizer and the post-processor of a tokenizer.json, turned into steps and lists of ids.
 * What is not known is refused by its name. */
#include "base/mem.h"
#include "base/utf8.h"
#include "data/tokenizer_int.h"

#define SUPPORTED_PRE                                                                                                  \
    " | supported: ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, and Sequence of them"
#define FIELD_BYTES (TOKENIZER_MESSAGE_PATH + 96)

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static enum err parse_behavior(const char *where, const json_t *pre, enum step_behavior *out)
{
    static const struct {
        const char *name;
        enum step_behavior behavior;
    } names[] = {
        { "Removed", STEP_REMOVED },
        { "Isolated", STEP_ISOLATED },
        { "MergedWithPrevious", STEP_MERGED_PREVIOUS },
        { "MergedWithNext", STEP_MERGED_NEXT },
        { "Contiguous", STEP_CONTIGUOUS },
    };
    char quote[96];
    const char *text = text_at(pre, "behavior");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i].name, text) == 0) {
            *out = names[i].behavior;
            return OK;
        }
    }
    return FAIL(ERR_DATA, "%s.behavior: \"%s\" is not known", where, bpe_quote(text, strlen(text), quote));
}

static enum err parse_split(const char *where, const json_t *pre, struct pretoken_step *step)
{
    const json_t *pattern = json_object_get(pre, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    TRY(parse_behavior(where, pre, &step->behavior));
    TRY(tokenizer_flag(where, pre, "invert", false, &step->invert));
    if (json_is_string(string)) {
        step->kind = STEP_STRING;
        return buf_add(&step->string, json_string_value(string), json_string_length(string));
    }
    if (!json_is_string(regex)) {
        return FAIL(ERR_DATA, "%s.pattern: expected {\"Regex\": text} or {\"String\": text}", where);
    }
    const char *text = json_string_value(regex);
    size_t bytes = json_string_length(regex);
    step->scanner = pretoken_scanner_of(text, bytes);
    step->kind = step->scanner != SCANNER_NONE ? STEP_SCAN : STEP_REGEX;
    return step->kind == STEP_SCAN ? OK : regex_new(&step->regex, where, text, bytes);
}

enum err tokenizer_parse_prepend(const char *where, const json_t *object, enum step_prepend *out)
{
    static const char *const names[] = { "always", "first", "never" };
    const char *text = text_at(object, "prepend_scheme");
    bool prefix;
    TRY(tokenizer_flag(where, object, "add_prefix_space", true, &prefix)); /* the older way to say it */
    *out = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (json_object_get(object, "prepend_scheme") == NULL) {
        return OK;
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(names[i], text) == 0) {
            *out = (enum step_prepend)i;
            return OK;
        }
    }
    char quote[96];
    return FAIL(ERR_DATA, "%s.prepend_scheme: \"%s\", expected \"always\", \"first\" or \"never\"", where,
                bpe_quote(text, strlen(text), quote));
}

enum err tokenizer_parse_mark(const char *where, const json_t *object, struct buf *out)
{
    const char *text = text_at(object, "replacement");
    size_t bytes = strlen(text);
    uint32_t code;
    if (bytes == 0 || utf8_decode(text, bytes, &code) != bytes) {
        return FAIL(ERR_DATA, "%s.replacement: expected one character", where);
    }
    return buf_add(out, text, bytes);
}

static enum err parse_metaspace(const char *where, const json_t *pre, struct pretoken_step *step)
{
    step->kind = STEP_METASPACE;
    TRY(tokenizer_parse_mark(where, pre, &step->string));
    TRY(tokenizer_parse_prepend(where, pre, &step->prepend));
    return tokenizer_flag(where, pre, "split", true, &step->split);
}

static enum err parse_step(struct pretoken *p, const char *where, const json_t *pre)
{
    char quote[96];
    const char *type = text_at(pre, "type");
    bool flag;
    if (p->steps >= PRETOKEN_STEPS) {
        return FAIL(ERR_DATA, "%s: more than %d steps", where, PRETOKEN_STEPS);
    }
    struct pretoken_step *step = &p->step[p->steps++];
    if (strcmp(type, "ByteLevel") == 0) {
        step->kind = STEP_BYTELEVEL;
        TRY(tokenizer_flag(where, pre, "add_prefix_space", true, &step->prefix_space));
        TRY(tokenizer_flag(where, pre, "use_regex", true, &flag));
        step->scanner = flag ? SCANNER_GPT2 : SCANNER_NONE;
        return OK;
    }
    if (strcmp(type, "Split") == 0) {
        return parse_split(where, pre, step);
    }
    if (strcmp(type, "Digits") == 0) {
        step->kind = STEP_DIGITS;
        TRY(tokenizer_flag(where, pre, "individual_digits", false, &flag));
        step->behavior = flag ? STEP_ISOLATED : STEP_CONTIGUOUS;
        return OK;
    }
    if (strcmp(type, "Punctuation") == 0) {
        step->kind = STEP_PUNCTUATION;
        step->behavior = STEP_ISOLATED;
        return json_object_get(pre, "behavior") != NULL ? parse_behavior(where, pre, &step->behavior) : OK;
    }
    if (strcmp(type, "Metaspace") == 0) {
        return parse_metaspace(where, pre, step);
    }
    if (strcmp(type, "Whitespace") == 0 || strcmp(type, "WhitespaceSplit") == 0) {
        step->kind = type[10] == 0 ? STEP_WHITESPACE : STEP_WHITESPACE_SPLIT;
        return OK;
    }
    return FAIL(ERR_DATA, "%s.type: \"%s\" is not supported" SUPPORTED_PRE, where,
                bpe_quote(type, strlen(type), quote));
}

bool tokenizer_is_bytelevel(const json_t *pre)
{
    const json_t *list = json_object_get(pre, "pretokenizers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (strcmp(text_at(json_array_get(list, i), "type"), "ByteLevel") == 0) {
            return true;
        }
    }
    return strcmp(text_at(pre, "type"), "ByteLevel") == 0;
}

enum err tokenizer_parse_pre(struct tokenizer *t, const char *path, const json_t *pre)
{
    char where[FIELD_BYTES];
    const json_t *list = json_object_get(pre, "pretokenizers");
    snprintf(where, sizeof(where), "%s: pre_tokenizer", path);
    if (strcmp(text_at(pre, "type"), "Sequence") == 0 && json_is_array(list)) {
        for (size_t i = 0; i < json_array_size(list); i++) {
            snprintf(where, sizeof(where), "%s: pre_tokenizer.pretokenizers[%zu]", path, i);
            TRY(parse_step(&t->pre, where, json_array_get(list, i)));
        }
    } else if (pre != NULL && !json_is_null(pre)) {
        TRY(parse_step(&t->pre, where, pre));
    }
    int levels = 0;
    for (int i = 0; i < t->pre.steps; i++) {
        levels += t->pre.step[i].kind == STEP_BYTELEVEL;
    }
    if (levels != (t->model == MODEL_BYTES)) {
        return FAIL(ERR_DATA, "%s: pre_tokenizer: %d steps of type \"ByteLevel\", expected %s" SUPPORTED_PRE, path,
                    levels, t->model == MODEL_BYTES ? "one" : "none of this model");
    }
    return OK;
}

/* ---- post-processor ---- */

static enum err add_ids(struct tokenizer *t, const char *path, const json_t *special, const char *name, bool after)
{
    int32_t **list = after ? &t->suffix : &t->prefix;
    size_t *count = after ? &t->suffix_count : &t->prefix_count;
    char quote[96];
    const json_t *ids = json_object_get(json_object_get(special, name), "ids");
    bpe_quote(name, strlen(name), quote);
    if (!json_is_array(ids)) {
        return FAIL(ERR_DATA, "%s: post_processor: special token \"%s\" is not in special_tokens", path, quote);
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || bpe_find_id(&t->bpe, json_integer_value(id)) < 0) {
            return FAIL(ERR_DATA, "%s: post_processor: special token \"%s\" has id %lld, which is not in the "
                        "vocabulary", path, quote, (long long)json_integer_value(id));
        }
        void *block;
        TRY(mem_alloc(&block, *count + 1, sizeof(int32_t)));
        if (*count > 0) {
            memcpy(block, *list, *count * sizeof(int32_t));
        }
        free(*list);
        *list = block;
        (*list)[(*count)++] = (int32_t)json_integer_value(id);
        if (*count > 64) {
            return FAIL(ERR_DATA, "%s: post_processor: adds more than 64 tokens", path);
        }
    }
    return OK;
}

static enum err parse_template(struct tokenizer *t, const char *path, const json_t *post)
{
    const json_t *single = json_object_get(post, "single"), *special = json_object_get(post, "special_tokens");
    int texts = 0;
    if (t->prefix_count + t->suffix_count > 0) {
        return FAIL(ERR_DATA, "%s: post_processor: two templates", path);
    }
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *token = json_object_get(piece, "SpecialToken"), *text = json_object_get(piece, "Sequence");
        if (json_is_object(token) && json_is_string(json_object_get(token, "id"))) {
            TRY(add_ids(t, path, special, text_at(token, "id"), texts > 0));
        } else if (json_is_object(text) && strcmp(text_at(text, "id"), "A") == 0) {
            texts++;
        } else {
            return FAIL(ERR_DATA,
                        "%s: post_processor.single[%zu]: expected {\"SpecialToken\"} or {\"Sequence\": \"A\"}",
                        path, i);
        }
    }
    if (texts != 1) {
        return FAIL(ERR_DATA, "%s: post_processor.single: the text is there %d times, expected once", path, texts);
    }
    return OK;
}

static enum err parse_post_one(struct tokenizer *t, const char *path, const json_t *post)
{
    char quote[96];
    const char *type = text_at(post, "type");
    if (strcmp(type, "ByteLevel") == 0) {
        return OK; /* moves offsets only */
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return parse_template(t, path, post);
    }
    return FAIL(ERR_DATA,
                "%s: post_processor.type: \"%s\" is not supported | supported: ByteLevel, TemplateProcessing, Sequence",
                path, bpe_quote(type, strlen(type), quote));
}

enum err tokenizer_parse_post(struct tokenizer *t, const char *path, const json_t *post)
{
    const json_t *list = json_object_get(post, "processors");
    if (post == NULL || json_is_null(post)) {
        return OK;
    }
    if (strcmp(text_at(post, "type"), "Sequence") != 0 || !json_is_array(list)) {
        return parse_post_one(t, path, post);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        TRY(parse_post_one(t, path, json_array_get(list, i)));
    }
    return OK;
}
