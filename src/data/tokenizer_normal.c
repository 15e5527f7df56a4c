/* Why this exists: the normalizer of a tokenizer.json, turned into steps. What is not known is refused by its name. */
#include "data/tokenizer_int.h"

#define SUPPORTED_NORMAL                                                                                               \
    " | supported: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Precompiled, and Sequence " \
    "of them"
#define WHERE_BYTES (TOKENIZER_MESSAGE_PATH + 96)
#define TEXT_BYTES_MAX 4096 /* of what a step looks for and puts in */

static const json_t *text_field(const json_t *object, const char *key)
{
    const json_t *text = json_object_get(object, key);
    return json_is_string(text) && json_string_length(text) <= TEXT_BYTES_MAX ? text : NULL;
}

static enum err parse_replace(const char *where, const json_t *n, struct normal_step *s)
{
    const json_t *pattern = json_object_get(n, "pattern"), *with = text_field(n, "content");
    const json_t *string = text_field(pattern, "String"), *regex = text_field(pattern, "Regex");
    s->kind = NORMAL_REPLACE;
    if (with == NULL || (string == NULL) == (regex == NULL)) {
        return FAIL(ERR_DATA, "%s: expected \"pattern\": {\"String\": text} or {\"Regex\": text} and \"content\": "
                              "text, of at most %d bytes", where, TEXT_BYTES_MAX);
    }
    TRY(buf_add(&s->with, json_string_value(with), json_string_length(with)));
    return string != NULL ? buf_add(&s->what, json_string_value(string), json_string_length(string))
                          : regex_new(&s->regex, where, json_string_value(regex), json_string_length(regex));
}

static enum err parse_prepend(const char *where, const json_t *n, struct normal_step *s)
{
    const json_t *with = text_field(n, "prepend");
    s->kind = NORMAL_PREPEND;
    if (with == NULL) {
        return FAIL(ERR_DATA, "%s.prepend: expected a text of at most %d bytes", where, TEXT_BYTES_MAX);
    }
    return buf_add(&s->with, json_string_value(with), json_string_length(with));
}

static enum err parse_strip(const char *where, const json_t *n, struct normal_step *s)
{
    s->kind = NORMAL_STRIP;
    TRY(tokenizer_flag(where, n, "strip_left", true, &s->left));
    return tokenizer_flag(where, n, "strip_right", true, &s->right);
}

static enum err parse_precompiled(const char *where, const json_t *n, struct normal_step *s)
{
    const json_t *map = json_object_get(n, "precompiled_charsmap");
    char field[WHERE_BYTES + 32];
    s->kind = NORMAL_PRECOMPILED;
    snprintf(field, sizeof(field), "%s.precompiled_charsmap", where);
    if (!json_is_string(map)) {
        return FAIL(ERR_DATA, "%s: expected a text in base64", field);
    }
    return charsmap_new_base64(&s->map, field, json_string_value(map), json_string_length(map));
}

static enum err parse_unicode(const char *where, const json_t *n, struct normal_step *s)
{
    const char *type = json_string_value(json_object_get(n, "type"));
    (void)where;
    s->kind = NORMAL_UNICODE;
    s->compat = type[2] == 'K';
    s->compose = type[strlen(type) - 1] == 'C';
    return OK;
}

static enum err parse_lowercase(const char *where, const json_t *n, struct normal_step *s)
{
    (void)where;
    (void)n;
    s->kind = NORMAL_LOWERCASE;
    return OK;
}

static enum err parse_strip_accents(const char *where, const json_t *n, struct normal_step *s)
{
    (void)where;
    (void)n;
    s->kind = NORMAL_STRIP_ACCENTS;
    return OK;
}

static enum err parse_one(struct normal *normal, const char *where, const json_t *n)
{
    static const struct {
        const char *name;
        enum err (*parse)(const char *where, const json_t *n, struct normal_step *s);
    } known[] = {
        { "NFC", parse_unicode },       { "NFD", parse_unicode },
        { "NFKC", parse_unicode },      { "NFKD", parse_unicode },
        { "Lowercase", parse_lowercase }, { "StripAccents", parse_strip_accents },
        { "Strip", parse_strip },       { "Prepend", parse_prepend },
        { "Replace", parse_replace },   { "Precompiled", parse_precompiled },
    };
    const char *type = json_string_value(json_object_get(n, "type"));
    char quote[96];
    type = type != NULL ? type : "";
    if (normal->steps >= NORMAL_STEPS) {
        return FAIL(ERR_DATA, "%s: more than %d steps", where, NORMAL_STEPS);
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].name, type) == 0) {
            return known[i].parse(where, n, &normal->step[normal->steps++]);
        }
    }
    return FAIL(ERR_DATA, "%s.type: \"%s\" is not supported" SUPPORTED_NORMAL, where,
                bpe_quote(type, strlen(type), quote));
}

enum err tokenizer_parse_normalizer(struct tokenizer *t, const char *path, const json_t *n)
{
    char where[WHERE_BYTES];
    const char *type = json_string_value(json_object_get(n, "type"));
    const json_t *list = json_object_get(n, "normalizers");
    snprintf(where, sizeof(where), "%s: normalizer", path);
    if (n == NULL || json_is_null(n)) {
        return OK;
    }
    if (type == NULL || strcmp(type, "Sequence") != 0 || !json_is_array(list)) {
        return parse_one(&t->normal, where, n);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(where, sizeof(where), "%s: normalizer.normalizers[%zu]", path, i);
        TRY(parse_one(&t->normal, where, json_array_get(list, i)));
    }
    return OK;
}
