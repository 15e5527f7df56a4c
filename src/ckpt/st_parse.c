/* Why this exists: the header of a safetensors file is outside data. Its grammar is two levels deep and fixed, so one
 * forward scan reads it without recursion, without a tree (a header of 100 MB needs no memory beyond the tensors it
 * names) and knows the byte offset of every broken rule. Strings are decoded in place: an escape is never shorter than
 * what it stands for, and the closing quote makes room for the terminating zero.
 *
 * After st_parse has returned OK: names are unique, UTF-8, without control characters; each tensor's bytes are
 * elements * bits / 8; the tensors in order of begin cover the data without hole or overlap to the end of the file. */
#include "ckpt/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>

#include "base/mem.h"
#include "base/utf8.h"

struct scan {
    struct st_file *f;
    char *text;
    size_t bytes, at;
    bool metadata; /* "__metadata__" was seen */
};

#define BAD(s, where, ...) bad((s)->f, (where), __VA_ARGS__)

PRINTF_LIKE(3, 4) static enum err bad(const struct st_file *f, size_t at, const char *fmt, ...)
{
    char rule[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(rule, sizeof(rule), fmt, args);
    va_end(args);
    return FAIL(ERR_DATA, "%s: header, byte %zu: %s | the file is damaged or was not written as safetensors", f->path,
                at + 8, rule);
}

static const struct st_dtype dtypes[] = {
    { "F32", 32, true },     { "F16", 16, true },     { "BF16", 16, true },    { "F64", 64, false },
    { "I64", 64, false },    { "I32", 32, false },    { "I16", 16, false },    { "I8", 8, false },
    { "U64", 64, false },    { "U32", 32, false },    { "U16", 16, false },    { "U8", 8, false },
    { "BOOL", 8, false },    { "F8_E5M2", 8, false }, { "F8_E4M3", 8, false }, { "C64", 64, false },
    { "F8_E8M0", 8, false }, { "F4", 4, false },      { "F6_E2M3", 6, false }, { "F6_E3M2", 6, false },
};

const struct st_dtype *st_dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

void st_check_size(struct st_tensor *t, const char **rule)
{
    uint64_t elements = 1, bits;
    for (uint32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] > ST_DIM_MAX || __builtin_mul_overflow(elements, t->shape[d], &elements)) {
            *rule = "the shape has more elements than 64 bits can count";
            return;
        }
    }
    t->elements = elements;
    if (__builtin_mul_overflow(elements, t->dtype->bits, &bits)) {
        *rule = "the tensor has more bits than 64 bits can count";
    } else if (bits % 8 != 0) {
        *rule = "the tensor does not fill whole bytes";
    } else if (t->begin > t->end) {
        *rule = "data_offsets end before they begin";
    } else if (t->end - t->begin != bits / 8) {
        *rule = "data_offsets do not agree with shape and dtype";
    } else {
        *rule = NULL;
    }
}

const char *st_shape_text(uint32_t rank, const uint64_t *shape, char out[192])
{
    size_t used = (size_t)snprintf(out, 192, "[");
    for (uint32_t d = 0; d < rank; d++) {
        used += (size_t)snprintf(out + used, 192 - used, "%s%" PRIu64, d > 0 ? ", " : "", shape[d]);
    }
    snprintf(out + used, 192 - used, "]");
    return out;
}

/* ---- tokens ---- */

static void skip_space(struct scan *s)
{
    while (s->at < s->bytes && strchr(" \t\n\r", s->text[s->at]) != NULL && s->text[s->at] != '\0') {
        s->at++;
    }
}

/* Skip white space; whether the next byte is `c`, which is then taken. */
static bool take(struct scan *s, char c)
{
    skip_space(s);
    if (s->at < s->bytes && s->text[s->at] == c) {
        s->at++;
        return true;
    }
    return false;
}

static enum err need(struct scan *s, char c, const char *where)
{
    if (!take(s, c)) {
        return BAD(s, s->at, "'%c' was expected %s", c, where);
    }
    return OK;
}

static bool hex4(const char *text, size_t left, uint32_t *code)
{
    *code = 0;
    if (left < 4) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        char c = text[i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) {
            return false;
        }
        *code = *code * 16 + digit;
    }
    return true;
}

/* The escape at s->at, which is just after the backslash; its UTF-8 goes to `out`. */
static enum err take_escape(struct scan *s, char *out, size_t *length)
{
    static const char plain[] = "\"\\/bfnrt", value[] = "\"\\/\b\f\n\r\t";
    size_t start = s->at - 1;
    char c = s->at < s->bytes ? s->text[s->at++] : '\0';
    const char *found = c != '\0' ? strchr(plain, c) : NULL;
    if (found != NULL) {
        out[0] = value[found - plain];
        *length = 1;
        return OK;
    }
    uint32_t code = 0, low = 0;
    if (c != 'u' || !hex4(s->text + s->at, s->bytes - s->at, &code)) {
        return BAD(s, start, "an escape that JSON does not have");
    }
    s->at += 4;
    if (code >= 0xd800 && code < 0xdc00) {
        if (s->bytes - s->at < 6 || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u' ||
            !hex4(s->text + s->at + 2, 4, &low) || low < 0xdc00 || low > 0xdfff) {
            return BAD(s, start, "half of a surrogate pair");
        }
        s->at += 6;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
        return BAD(s, start, "half of a surrogate pair");
    }
    *length = utf8_encode(code, out);
    return OK;
}

/* A string, decoded in place. Control characters, written out or escaped, have no place in any string of a header. */
static enum err take_string(struct scan *s, const char **out, const char *what)
{
    TRY(need(s, '"', what));
    size_t start = s->at, put = s->at;
    for (;;) {
        if (s->at == s->bytes) {
            return BAD(s, start - 1, "a string without end");
        }
        char c = s->text[s->at++];
        if (c == '"') {
            break;
        }
        size_t length = 1;
        if (c == '\\') {
            char decoded[4];
            TRY(take_escape(s, decoded, &length));
            memcpy(s->text + put, decoded, length);
        } else {
            s->text[put] = c;
        }
        if ((unsigned char)s->text[put] < 0x20 || s->text[put] == 0x7f) {
            return BAD(s, s->at - 1, "a control character in a string");
        }
        put += length;
    }
    s->text[put] = '\0';
    *out = s->text + start;
    return OK;
}

static enum err take_whole(struct scan *s, uint64_t *out, const char *what)
{
    skip_space(s);
    size_t start = s->at;
    uint64_t value = 0;
    for (; s->at < s->bytes && s->text[s->at] >= '0' && s->text[s->at] <= '9'; s->at++) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(s->text[s->at] - '0'), &value)) {
            return BAD(s, start, "%s: a number above 64 bits", what);
        }
    }
    bool ends = s->at == s->bytes || strchr(",]} \t\n\r", s->text[s->at]) != NULL;
    if (s->at == start || !ends || (s->text[start] == '0' && s->at - start > 1)) {
        return BAD(s, start, "%s: a whole number from 0 in plain digits was expected", what);
    }
    *out = value;
    return OK;
}

/* ---- the grammar ---- */

static enum err take_shape(struct scan *s, struct st_tensor *t)
{
    TRY(need(s, '[', "before the shape"));
    for (t->rank = 0; !take(s, ']'); t->rank++) {
        if (t->rank > 0) {
            TRY(need(s, ',', "between two dimensions"));
        }
        if (t->rank == ST_RANK_MAX) {
            return BAD(s, s->at, "%.200s: a shape of more than %u dimensions", t->name, ST_RANK_MAX);
        }
        TRY(take_whole(s, &t->shape[t->rank], "shape"));
    }
    return OK;
}

static enum err take_offsets(struct scan *s, struct st_tensor *t)
{
    TRY(need(s, '[', "before data_offsets"));
    TRY(take_whole(s, &t->begin, "data_offsets"));
    TRY(need(s, ',', "between two data_offsets"));
    TRY(take_whole(s, &t->end, "data_offsets"));
    return need(s, ']', "after two data_offsets");
}

static enum err take_field(struct scan *s, struct st_tensor *t, unsigned *seen)
{
    const char *key, *dtype;
    skip_space(s);
    size_t start = s->at;
    TRY(take_string(s, &key, "before a field of a tensor"));
    TRY(need(s, ':', "after a key"));
    unsigned bit = strcmp(key, "dtype") == 0 ? 1u : strcmp(key, "shape") == 0 ? 2u
                                                : strcmp(key, "data_offsets") == 0 ? 4u : 0u;
    if (bit == 0) {
        return BAD(s, start, "%.200s: a tensor has dtype, shape and data_offsets, not \"%.100s\"", t->name, key);
    }
    if ((*seen & bit) != 0) {
        return BAD(s, start, "%.200s: \"%s\" is given twice", t->name, key);
    }
    *seen |= bit;
    if (bit == 2) {
        return take_shape(s, t);
    }
    if (bit == 4) {
        return take_offsets(s, t);
    }
    TRY(take_string(s, &dtype, "before a dtype"));
    t->dtype = st_dtype_find(dtype);
    if (t->dtype == NULL) {
        return BAD(s, start, "%.200s: dtype \"%.40s\" is not one that safetensors has", t->name, dtype);
    }
    return OK;
}

static enum err check_name(const struct scan *s, const char *name, size_t start)
{
    size_t length = strlen(name);
    if (length == 0) {
        return BAD(s, start, "a tensor without a name");
    }
    if (length > ST_NAME_BYTES_MAX) {
        return BAD(s, start, "a name of %zu bytes, at most %u are allowed", length, ST_NAME_BYTES_MAX);
    }
    if (strstr(name, "../") != NULL) {
        return BAD(s, start, "%.200s: a path in place of a name", name);
    }
    return OK;
}

static enum err take_tensor(struct scan *s, const char *name, size_t start)
{
    struct st_tensor t = { .name = name };
    unsigned seen = 0;
    TRY(check_name(s, name, start));
    TRY(need(s, '{', "before the fields of a tensor"));
    do {
        TRY(take_field(s, &t, &seen));
    } while (take(s, ','));
    TRY(need(s, '}', "after the fields of a tensor"));
    if (seen != 7) {
        return BAD(s, start, "%.200s: %s is missing", name,
                   (seen & 1) == 0 ? "dtype" : (seen & 2) == 0 ? "shape" : "data_offsets");
    }
    const char *rule;
    st_check_size(&t, &rule);
    if (rule != NULL) {
        char shape[192];
        return BAD(s, start, "%.200s: %s (dtype %s, shape %s, data_offsets %" PRIu64 " to %" PRIu64 ")", name, rule,
                   t.dtype->name, st_shape_text(t.rank, t.shape, shape), t.begin, t.end);
    }
    if (t.end > s->f->bytes - s->f->data_start) {
        return BAD(s, start, "%.200s: data_offsets end at %" PRIu64 ", the file has %" PRIu64 " bytes of data", name,
                   t.end, s->f->bytes - s->f->data_start);
    }
    void *list = s->f->tensors;
    TRY(mem_grow(&list, &s->f->capacity, s->f->count + 1, sizeof(t)));
    s->f->tensors = list;
    s->f->tensors[s->f->count++] = t;
    return OK;
}

static enum err take_metadata(struct scan *s, size_t start)
{
    if (s->metadata) {
        return BAD(s, start, "\"__metadata__\" is given twice");
    }
    s->metadata = true;
    TRY(need(s, '{', "before the metadata"));
    if (take(s, '}')) {
        return OK;
    }
    do {
        const char *key, *value;
        TRY(take_string(s, &key, "before a key of the metadata"));
        TRY(need(s, ':', "after a key"));
        TRY(take_string(s, &value, "before a value of the metadata (strings only)"));
    } while (take(s, ','));
    return need(s, '}', "after the metadata");
}

static enum err take_header(struct scan *s)
{
    TRY(need(s, '{', "at the start"));
    if (!take(s, '}')) {
        do {
            const char *key;
            skip_space(s);
            size_t start = s->at;
            TRY(take_string(s, &key, "before a name"));
            TRY(need(s, ':', "after a name"));
            TRY(strcmp(key, "__metadata__") == 0 ? take_metadata(s, start) : take_tensor(s, key, start));
        } while (take(s, ','));
        TRY(need(s, '}', "at the end"));
    }
    skip_space(s);
    if (s->at != s->bytes) {
        return BAD(s, s->at, "text after the end of the header's object");
    }
    return OK;
}

/* ---- rules over all tensors ---- */

static int by_begin(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct st_tensor *list = tensors;
    return strcmp(list[*(const uint32_t *)a].name, list[*(const uint32_t *)b].name);
}

static enum err check_cover(struct st_file *f)
{
    uint64_t at = 0, data = f->bytes - f->data_start;
    for (size_t i = 0; i < f->count; i++) {
        const struct st_tensor *t = &f->tensors[i];
        if (t->begin != at) {
            return FAIL(ERR_DATA,
                        "%s: %.200s: data_offsets %s: it begins at byte %" PRIu64 " of the data, %" PRIu64
                        " was expected | the file is damaged or was not written as safetensors",
                        f->path, t->name, t->begin < at ? "overlap the tensor before" : "leave a hole", t->begin, at);
        }
        at = t->end;
    }
    if (at != data) {
        return FAIL(ERR_DATA,
                    "%s: the tensors end at byte %" PRIu64 " of the data, the file has %" PRIu64
                    " | bytes that no tensor owns: the file is damaged",
                    f->path, at, data);
    }
    return OK;
}

enum err st_parse(struct st_file *f)
{
    struct scan s = { .f = f, .text = f->header.data, .bytes = f->header.bytes };
    size_t valid = utf8_valid_prefix(s.text, s.bytes);
    if (valid != s.bytes) {
        return bad(f, valid, "not UTF-8");
    }
    const char *zero = memchr(s.text, 0, s.bytes);
    if (zero != NULL) {
        return bad(f, (size_t)(zero - s.text), "a zero byte");
    }
    TRY(take_header(&s));
    if (f->count > 0) {
        qsort(f->tensors, f->count, sizeof(f->tensors[0]), by_begin);
    }
    void *order;
    TRY(mem_alloc(&order, f->count, sizeof(uint32_t)));
    f->by_name = order;
    for (size_t i = 0; i < f->count; i++) {
        f->by_name[i] = (uint32_t)i; /* a header of 100 MB names fewer than 2^32 tensors */
    }
    qsort_r(f->by_name, f->count, sizeof(uint32_t), by_name, f->tensors);
    for (size_t i = 1; i < f->count; i++) {
        const char *name = f->tensors[f->by_name[i]].name;
        if (strcmp(f->tensors[f->by_name[i - 1]].name, name) == 0) {
            return bad(f, (size_t)(name - s.text), "%.200s: two tensors of one name", name);
        }
    }
    return check_cover(f);
}
