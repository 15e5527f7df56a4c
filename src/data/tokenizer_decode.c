/* Why this exists: ids back to text, one token at a time, so that a text can be shown while it is generated. A
 * byte-level token is its bytes; a SentencePiece-style token goes through the steps of its tokenizer's decoder.
 *
 * Hugging Face decodes all tokens at once; the steps are taken apart here into what concerns one token and what
 * concerns the text, of which only its beginning needs a state. Bytes that are not UTF-8 come out as they are, where
 * Hugging Face puts U+FFFD for each. */
#include "base/utf8.h"
#include "data/tokenizer_int.h"

void decode_release(struct decode_chain *c)
{
    for (int i = 0; i < c->steps; i++) {
        buf_release(&c->step[i].what);
        buf_release(&c->step[i].with);
    }
    buf_release(&c->unknown_text);
    *c = (struct decode_chain){ 0 };
}

/* ---- parsing ---- */

#define WHERE_BYTES (TOKENIZER_MESSAGE_PATH + 96)

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static enum err parse_replace(const char *where, const json_t *d, struct decode_step *s)
{
    const json_t *what = json_object_get(json_object_get(d, "pattern"), "String");
    const json_t *with = json_object_get(d, "content");
    if (!json_is_string(what) || json_string_length(what) == 0 || !json_is_string(with)) {
        return FAIL(ERR_DATA, "%s: expected \"pattern\": {\"String\": text} and \"content\": text", where);
    }
    s->kind = DECODE_REPLACE;
    TRY(buf_add(&s->what, json_string_value(what), json_string_length(what)));
    return buf_add(&s->with, json_string_value(with), json_string_length(with));
}

static enum err parse_strip(const char *where, const json_t *d, struct decode_step *s)
{
    const json_t *start = json_object_get(d, "start"), *stop = json_object_get(d, "stop");
    const char *what = text_at(d, "content");
    uint32_t code;
    if (utf8_decode(what, strlen(what), &code) != strlen(what) || strlen(what) == 0 || !json_is_integer(start) ||
        !json_is_integer(stop) || json_integer_value(start) < 0 || json_integer_value(stop) < 0) {
        return FAIL(ERR_DATA, "%s: expected the character \"content\" and the counts \"start\" and \"stop\"", where);
    }
    s->kind = DECODE_STRIP;
    s->start = (uint64_t)json_integer_value(start);
    s->stop = (uint64_t)json_integer_value(stop);
    if (s->whole && s->stop > 0) {
        return FAIL(ERR_DATA, "%s.stop: %llu, expected 0 behind a Fuse: a text is written before its end is known",
                    where, (unsigned long long)s->stop);
    }
    return buf_add(&s->what, what, strlen(what));
}

static enum err parse_one(struct decode_chain *c, const char *where, const json_t *d)
{
    const char *type = text_at(d, "type");
    enum step_prepend prepend;
    char quote[96];
    if (c->steps >= DECODE_STEPS) {
        return FAIL(ERR_DATA, "%s: more than %d steps", where, DECODE_STEPS);
    }
    struct decode_step *s = &c->step[c->steps++];
    for (int i = 0; i + 1 < c->steps; i++) {
        s->whole = s->whole || c->step[i].kind == DECODE_FUSE;
    }
    if (strcmp(type, "Replace") == 0) {
        return parse_replace(where, d, s);
    }
    if (strcmp(type, "ByteFallback") == 0 && !s->whole) {
        s->kind = DECODE_BYTES;
        return OK;
    }
    if (strcmp(type, "Fuse") == 0) {
        s->kind = DECODE_FUSE;
        return OK;
    }
    if (strcmp(type, "Strip") == 0) {
        return parse_strip(where, d, s);
    }
    if (strcmp(type, "Metaspace") == 0 && !s->whole) {
        s->kind = DECODE_METASPACE;
        TRY(tokenizer_parse_prepend(where, d, &prepend));
        s->first = prepend != PREPEND_NEVER;
        return tokenizer_parse_mark(where, d, &s->what);
    }
    return FAIL(ERR_DATA, "%s.type: \"%s\" is not supported here | supported: ByteLevel for models of bytes; for "
                          "others Replace, ByteFallback, Fuse, Strip, Metaspace, and a Sequence of them",
                where, bpe_quote(type, strlen(type), quote));
}

static enum err check_bytelevel(const char *where, const json_t *d)
{
    char quote[96];
    const char *type = text_at(d, "type");
    const json_t *list = json_object_get(d, "decoders");
    if (d == NULL || json_is_null(d) || strcmp(type, "ByteLevel") == 0 ||
        (strcmp(type, "Sequence") == 0 && json_array_size(list) == 1 &&
         strcmp(text_at(json_array_get(list, 0), "type"), "ByteLevel") == 0)) {
        return OK;
    }
    return FAIL(ERR_DATA, "%s.type: \"%s\" is not supported here, expected \"ByteLevel\", as of the pre_tokenizer",
                where, bpe_quote(type, strlen(type), quote));
}

enum err tokenizer_parse_decode(struct tokenizer *t, const char *path, const json_t *d)
{
    char where[WHERE_BYTES];
    const json_t *list = json_object_get(d, "decoders");
    snprintf(where, sizeof(where), "%s: decoder", path);
    if (t->model == MODEL_BYTES) {
        return check_bytelevel(where, d);
    }
    if (d == NULL || json_is_null(d)) {
        t->decode.join = true;
        return OK;
    }
    if (strcmp(text_at(d, "type"), "Sequence") != 0 || !json_is_array(list)) {
        return parse_one(&t->decode, where, d);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(where, sizeof(where), "%s: decoder.decoders[%zu]", path, i);
        TRY(parse_one(&t->decode, where, json_array_get(list, i)));
    }
    return OK;
}

/* ---- decoding ---- */

/* One token on its way: text[0, bytes) lies in the vocabulary, in own[0] or in own[1]. */
struct piece {
    const char *text;
    size_t bytes;
    struct buf own[2];
    int into;
    bool byte; /* is a byte of a character: no text for the steps that follow */
    char one;
};

static enum err replace(struct piece *p, const struct buf *what, const struct buf *with)
{
    size_t done = 0;
    struct buf *out = &p->own[p->into];
    if (memmem(p->text, p->bytes, what->data, what->bytes) == NULL) {
        return OK;
    }
    buf_clear(out);
    TRY(buf_reserve(out, p->bytes));
    for (;;) {
        const char *at = memmem(p->text + done, p->bytes - done, what->data, what->bytes);
        size_t len = at != NULL ? (size_t)(at - p->text) - done : p->bytes - done;
        TRY(buf_add(out, p->text + done, len));
        if (at == NULL) {
            break;
        }
        if (with->bytes > 0) {
            TRY(buf_add(out, with->data, with->bytes));
        }
        done += len + what->bytes;
    }
    p->text = out->data;
    p->bytes = out->bytes;
    p->into = 1 - p->into;
    return OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x0A>" is the byte 10. */
static void find_byte(struct piece *p)
{
    unsigned value = 0;
    if (p->bytes != 6 || memcmp(p->text, "<0x", 3) != 0 || p->text[5] != '>') {
        return;
    }
    for (int i = 3; i < 5; i++) {
        int digit = hex_digit(p->text[i]);
        if (digit < 0) {
            return;
        }
        value = value << 4 | (unsigned)digit;
    }
    p->one = (char)value;
    p->byte = true;
    p->text = &p->one;
    p->bytes = 1;
}

static void strip(const struct decode_step *s, struct tokenizer_decoding *d, struct piece *p)
{
    size_t len = s->what.bytes;
    uint64_t before = s->whole ? (d->begun ? s->start : s->each ? 0 : d->stripped) : 0, taken = 0;
    while (before + taken < s->start && p->bytes >= len && memcmp(p->text, s->what.data, len) == 0) {
        p->text += len;
        p->bytes -= len;
        taken++;
    }
    d->stripped += s->whole ? taken : 0;
    for (uint64_t i = 0; i < s->stop && p->bytes >= len; i++) {
        if (memcmp(p->text + p->bytes - len, s->what.data, len) != 0) {
            break;
        }
        p->bytes -= len;
    }
}

static enum err run_step(const struct decode_step *s, struct tokenizer_decoding *d, struct piece *p)
{
    static const struct buf blank = { .data = (char *)" ", .bytes = 1 }, nothing = { 0 };
    switch (s->kind) {
    case DECODE_REPLACE:
        return p->byte ? OK : replace(p, &s->what, &s->with);
    case DECODE_BYTES:
        find_byte(p);
        return OK;
    case DECODE_FUSE:
        return OK;
    case DECODE_STRIP:
        strip(s, d, p);
        return OK;
    case DECODE_METASPACE:
        return p->byte ? OK : replace(p, &s->what, s->first && d->tokens == 0 ? &nothing : &blank);
    }
    return OK;
}

enum err tokenizer_decode(const struct tokenizer *t, struct tokenizer_decoding *d, int32_t id, struct buf *out)
{
    int64_t index = bpe_find_id(&t->bpe, id);
    struct tokenizer_decoding middle = { .tokens = 1, .begun = true };
    enum err err = OK;
    if (index < 0) {
        return FAIL(ERR_DATA, "%s: token id %d is not in the vocabulary (ids below %llu, not all in use)", t->path, id,
                    (unsigned long long)t->vocab);
    }
    const struct bpe_token *token = &t->bpe.token[index];
    struct piece p = { .text = token->bytes > 0 ? t->bpe.text.data + token->offset : "", .bytes = token->bytes };
    if (t->decode.unknown_text.data != NULL && id == t->decode.unknown) {
        p.text = t->decode.unknown_text.data;
        p.bytes = t->decode.unknown_text.bytes;
    }
    d = d != NULL ? d : &middle;
    for (int i = 0; i < t->decode.steps; i++) {
        TRY_OUT(run_step(&t->decode.step[i], d, &p));
    }
    if (t->decode.join && d->tokens > 0) {
        TRY_OUT(buf_add(out, " ", 1));
    }
    d->tokens++;
    d->begun = d->begun || p.bytes > 0;
    if (p.bytes > 0) {
        err = buf_add(out, p.text, p.bytes);
    }
out:
    buf_release(&p.own[0]);
    buf_release(&p.own[1]);
    return err;
}
