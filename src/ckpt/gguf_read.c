/* Why this exists: a GGUF file is outside data whose counts say how much follows. The header is read in steps: each
 * count is compared with the bytes the file still has before anything is allocated for it, and the file is never read
 * further than a rule needs. Nothing here recurses: an array holds no arrays.
 *
 * After gguf_open has returned OK: keys and names of tensors are unique, UTF-8, without control characters; each value
 * lies in the header; each tensor's bytes are its blocks, begin at a multiple of the alignment, overlap no other's and
 * lie in the file. */
#include "ckpt/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"

#define STEP_BYTES ((uint64_t)1 << 16) /* read at once, at least */
#define KEY_BYTES_MAX ((uint64_t)65535)
#define ENTRIES_MAX ((uint64_t)1 << 19) /* keys, tensors: their lists stay below 64 MiB */
/* The least that an entry of each list takes. */
#define VALUE_BYTES_LEAST 14u  /* length and a byte of a key, kind, a byte */
#define TENSOR_BYTES_LEAST 33u /* length and a byte of a name, rank, a dimension, type, offset */

struct scan {
    struct gguf_file *f;
    uint64_t at;
};

static const struct kind {
    const char *name;
    uint32_t bytes; /* 0: not fixed */
} kinds[GGUF_KINDS] = {
    [GGUF_U8] = { "uint8", 1 },   [GGUF_I8] = { "int8", 1 },     [GGUF_U16] = { "uint16", 2 },
    [GGUF_I16] = { "int16", 2 },  [GGUF_U32] = { "uint32", 4 },  [GGUF_I32] = { "int32", 4 },
    [GGUF_F32] = { "float32", 4 }, [GGUF_BOOL] = { "bool", 1 },  [GGUF_STRING] = { "string", 0 },
    [GGUF_ARRAY] = { "array", 0 }, [GGUF_U64] = { "uint64", 8 }, [GGUF_I64] = { "int64", 8 },
    [GGUF_F64] = { "float64", 8 },
};

const char *gguf_kind_name(enum gguf_kind kind)
{
    return kinds[kind].name;
}

PRINTF_LIKE(3, 4) static enum err bad(const struct gguf_file *f, uint64_t at, const char *fmt, ...)
{
    char rule[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(rule, sizeof(rule), fmt, args);
    va_end(args);
    return FAIL(ERR_DATA, "%s: byte %" PRIu64 ": %s | the file is damaged, cut or not GGUF of version 2 or 3", f->path,
                at, rule);
}

/* ---- bytes ---- */

enum err gguf_bytes(const struct gguf_file *f, uint64_t offset, void *out, size_t count)
{
    return file_read_at(f->fd, f->path, f->bytes, offset, out, count);
}

/* The next `count` bytes are in the header: what they are for the message. */
static enum err need(struct scan *s, uint64_t count, const char *what)
{
    struct gguf_file *f = s->f;
    if (count > f->bytes - s->at) {
        return bad(f, s->at, "%s: %" PRIu64 " bytes were expected, the file has %" PRIu64 " more", what, count,
                   f->bytes - s->at);
    }
    uint64_t have = f->header.bytes;
    if (s->at + count <= have) {
        return OK;
    }
    uint64_t more = s->at + count - have;
    more = more < STEP_BYTES ? STEP_BYTES : more;
    more = more < have ? have : more; /* doubling */
    more = more < f->bytes - have ? more : f->bytes - have;
    TRY(buf_reserve(&f->header, more));
    TRY(gguf_bytes(f, have, f->header.data + have, more));
    f->header.bytes += more;
    f->header.data[f->header.bytes] = '\0';
    return OK;
}

static enum err take(struct scan *s, void *out, size_t count, const char *what)
{
    TRY(need(s, count, what));
    memcpy(out, s->f->header.data + s->at, count);
    s->at += count;
    return OK;
}

static bool is_name(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)text[i] < 32 || text[i] == 127) {
            return false;
        }
    }
    return utf8_valid_prefix(text, bytes) == bytes;
}

/* A key or a tensor's name, copied to f->names. *where: its place there, made a pointer when all are there. */
static enum err take_name(struct scan *s, const char *what, uint64_t most, uint64_t *where)
{
    struct gguf_file *f = s->f;
    uint64_t at = s->at, length;
    TRY(take(s, &length, 8, what));
    if (length == 0 || length > most) {
        return bad(f, at, "%s of %" PRIu64 " bytes, 1 to %" PRIu64 " were expected", what, length, most);
    }
    TRY(need(s, length, what));
    const char *text = f->header.data + s->at;
    if (!is_name(text, length)) {
        return bad(f, s->at, "%s that is not UTF-8 or has control characters", what);
    }
    *where = f->names.bytes;
    TRY(buf_add(&f->names, text, length));
    TRY(buf_add(&f->names, "", 1));
    s->at += length;
    return OK;
}

/* ---- metadata ---- */

static enum err check_flags(struct scan *s, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        unsigned char flag = (unsigned char)s->f->header.data[s->at + i];
        if (flag > 1) {
            return bad(s->f, s->at + i, "a bool of value %u, 0 or 1 was expected", flag);
        }
    }
    return OK;
}

/* `count` elements of kind `kind` from s->at on. */
static enum err take_elements(struct scan *s, enum gguf_kind kind, uint64_t count)
{
    uint64_t left = s->f->bytes - s->at, least = kind == GGUF_STRING ? 8 : kinds[kind].bytes;
    if (count > left / least) {
        return bad(s->f, s->at, "%" PRIu64 " elements of %s are announced, the file has %" PRIu64 " more bytes", count,
                   kinds[kind].name, left);
    }
    if (kind != GGUF_STRING) {
        TRY(need(s, count * least, "a value"));
        TRY(kind == GGUF_BOOL ? check_flags(s, count) : OK);
        s->at += count * least;
        return OK;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t length;
        TRY(take(s, &length, 8, "the length of a string"));
        TRY(need(s, length, "a string"));
        s->at += length;
    }
    return OK;
}

static enum err take_kind(struct scan *s, enum gguf_kind *kind)
{
    uint32_t number;
    uint64_t at = s->at;
    TRY(take(s, &number, 4, "the type of a value"));
    if (number >= GGUF_KINDS) {
        return bad(s->f, at, "values of type %" PRIu32 " do not exist, 0 to %d were expected", number, GGUF_KINDS - 1);
    }
    *kind = (enum gguf_kind)number;
    return OK;
}

/* Until all of the header is there, `data` is a place in it, not a pointer. */
static enum err take_value(struct scan *s, struct gguf_value *v, uint64_t *data)
{
    v->at = s->at;
    v->count = 1;
    if (v->kind == GGUF_ARRAY) {
        TRY(take_kind(s, &v->item));
        if (v->item == GGUF_ARRAY) {
            return bad(s->f, v->at, "an array of arrays");
        }
        TRY(take(s, &v->count, 8, "the length of an array"));
        *data = s->at;
        TRY(take_elements(s, v->item, v->count));
    } else if (v->kind == GGUF_STRING) {
        TRY(take(s, &v->count, 8, "the length of a string"));
        *data = s->at;
        TRY(need(s, v->count, "a string"));
        s->at += v->count;
    } else {
        *data = s->at;
        TRY(take_elements(s, v->kind, 1));
    }
    v->bytes = s->at - *data;
    return OK;
}

/* Places, of names in f->names and of values in f->header. */
struct places {
    uint64_t name, data;
};

static enum err take_values(struct scan *s, struct places *places)
{
    struct gguf_file *f = s->f;
    for (size_t i = 0; i < f->values_count; i++) {
        struct gguf_value *v = &f->values[i];
        TRY(take_name(s, "a key", KEY_BYTES_MAX, &places[i].name));
        TRY(take_kind(s, &v->kind));
        TRY(take_value(s, v, &places[i].data));
    }
    return OK;
}

static enum err find_alignment(struct gguf_file *f)
{
    const struct gguf_value *v = gguf_find(f, "general.alignment");
    f->alignment = GGUF_ALIGN_DEFAULT;
    if (v == NULL) {
        return OK;
    }
    if (v->kind != GGUF_U32) {
        return bad(f, v->at, "general.alignment is %s, uint32 was expected", kinds[v->kind].name);
    }
    uint32_t value;
    memcpy(&value, v->data, 4);
    if (value == 0 || (value & (value - 1)) != 0 || value > GGUF_ALIGN_MAX) {
        return bad(f, v->at, "general.alignment %" PRIu32 ", a power of two up to %" PRIu64 " was expected", value,
                   GGUF_ALIGN_MAX);
    }
    f->alignment = value;
    return OK;
}

/* ---- tensors ---- */

static enum err take_shape(struct scan *s, struct gguf_tensor *t)
{
    uint64_t at = s->at;
    TRY(take(s, &t->rank, 4, "the number of dimensions"));
    if (t->rank < 1 || t->rank > GGUF_RANK_MAX) {
        return bad(s->f, at, "a tensor of %" PRIu32 " dimensions, 1 to %u were expected", t->rank, GGUF_RANK_MAX);
    }
    t->elements = 1;
    for (uint32_t d = 0; d < t->rank; d++) {
        at = s->at;
        TRY(take(s, &t->shape[d], 8, "a dimension"));
        if (t->shape[d] == 0 || t->shape[d] > INT64_MAX) {
            return bad(s->f, at, "a dimension of %" PRIi64 ", 1 or more was expected", (int64_t)t->shape[d]);
        }
        if (__builtin_mul_overflow(t->elements, t->shape[d], &t->elements) || t->elements > INT64_MAX) {
            return bad(s->f, at, "a tensor of more than 2^63 - 1 elements");
        }
    }
    return OK;
}

static enum err take_type(struct scan *s, struct gguf_tensor *t)
{
    uint32_t number;
    uint64_t at = s->at;
    TRY(take(s, &number, 4, "the type of a tensor"));
    t->type = gguf_type_find(number);
    if (t->type == NULL) {
        return bad(s->f, at, "tensors of type %" PRIu32 " do not exist", number);
    }
    if (t->shape[0] % t->type->elements != 0) {
        return bad(s->f, at, "rows of %" PRIu64 " numbers are not whole blocks of %u, as %s has them", t->shape[0],
                   t->type->elements, t->type->name);
    }
    if (__builtin_mul_overflow(t->elements / t->type->elements, (uint64_t)t->type->bytes, &t->bytes)) {
        return bad(s->f, at, "a tensor of more than 2^64 bytes");
    }
    return OK;
}

static enum err take_tensors(struct scan *s, struct places *places)
{
    struct gguf_file *f = s->f;
    for (size_t i = 0; i < f->tensors_count; i++) {
        struct gguf_tensor *t = &f->tensors[i];
        TRY(take_name(s, "the name of a tensor", GGUF_NAME_BYTES_MAX, &places[i].name));
        TRY(take_shape(s, t));
        TRY(take_type(s, t));
        places[i].data = s->at;
        TRY(take(s, &t->begin, 8, "the offset of a tensor"));
        if (t->begin % f->alignment != 0) {
            return bad(f, s->at - 8, "offset %" PRIu64 " is not a multiple of the alignment %" PRIu64, t->begin,
                       f->alignment);
        }
    }
    return OK;
}

static int by_begin(const void *a, const void *b, void *tensors)
{
    const struct gguf_tensor *x = (const struct gguf_tensor *)tensors + *(const uint32_t *)a,
                             *y = (const struct gguf_tensor *)tensors + *(const uint32_t *)b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Offsets count from the end of the header, filled up to the alignment. order: room for a number a tensor. */
static enum err place_tensors(struct gguf_file *f, uint64_t header, const struct places *places, uint32_t *order)
{
    uint64_t fill = (f->alignment - header % f->alignment) % f->alignment;
    if (f->tensors_count > 0 && fill > f->bytes - header) {
        return bad(f, header, "the header is to be filled to a multiple of %" PRIu64 " bytes, the file has %" PRIu64
                   " more", f->alignment, f->bytes - header);
    }
    uint64_t start = header + fill;
    for (size_t i = 0; i < f->tensors_count; i++) {
        struct gguf_tensor *t = &f->tensors[i];
        if (t->begin > f->bytes - start || t->bytes > f->bytes - start - t->begin) {
            return bad(f, places[i].data, "%s: %" PRIu64 " bytes at offset %" PRIu64 " of the data, which has %" PRIu64,
                       t->name, t->bytes, t->begin, f->bytes - start);
        }
        t->begin += start;
        order[i] = (uint32_t)i;
    }
    qsort_r(order, f->tensors_count, sizeof(order[0]), by_begin, f->tensors);
    for (size_t i = 1; i < f->tensors_count; i++) {
        const struct gguf_tensor *a = &f->tensors[order[i - 1]], *b = &f->tensors[order[i]];
        if (b->begin - a->begin < a->bytes) {
            return bad(f, places[order[i]].data, "the bytes of %s and %s overlap", a->name, b->name);
        }
    }
    return OK;
}

/* ---- names ---- */

static int by_key(const void *a, const void *b, void *values)
{
    const struct gguf_value *list = values;
    return strcmp(list[*(const uint32_t *)a].key, list[*(const uint32_t *)b].key);
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct gguf_tensor *list = tensors;
    return strcmp(list[*(const uint32_t *)a].name, list[*(const uint32_t *)b].name);
}

static enum err sorted(uint32_t **out, size_t count, int (*order)(const void *, const void *, void *), void *list)
{
    void *mem;
    TRY(mem_alloc(&mem, count, sizeof(uint32_t)));
    *out = mem;
    for (size_t i = 0; i < count; i++) {
        (*out)[i] = (uint32_t)i;
    }
    qsort_r(*out, count, sizeof(uint32_t), order, list);
    return OK;
}

static enum err name_values(struct gguf_file *f, const struct places *places)
{
    for (size_t i = 0; i < f->values_count; i++) {
        f->values[i].key = f->names.data + places[i].name;
        f->values[i].data = (unsigned char *)f->header.data + places[i].data;
    }
    TRY(sorted(&f->values_by_key, f->values_count, by_key, f->values));
    for (size_t i = 1; i < f->values_count; i++) {
        const struct gguf_value *v = &f->values[f->values_by_key[i]];
        if (strcmp(f->values[f->values_by_key[i - 1]].key, v->key) == 0) {
            return bad(f, v->at, "key %.100s is given twice", v->key);
        }
    }
    return OK;
}

static enum err name_tensors(struct gguf_file *f, const struct places *places)
{
    for (size_t i = 0; i < f->tensors_count; i++) {
        f->tensors[i].name = f->names.data + places[i].name;
    }
    TRY(sorted(&f->tensors_by_name, f->tensors_count, by_name, f->tensors));
    for (size_t i = 1; i < f->tensors_count; i++) {
        size_t n = f->tensors_by_name[i];
        if (strcmp(f->tensors[f->tensors_by_name[i - 1]].name, f->tensors[n].name) == 0) {
            return bad(f, places[n].data, "two tensors are named %s", f->tensors[n].name);
        }
    }
    return OK;
}

/* ---- the whole ---- */

static enum err take_start(struct scan *s)
{
    struct gguf_file *f = s->f;
    char magic[4];
    uint64_t counts[2];
    TRY(take(s, magic, 4, "GGUF"));
    if (memcmp(magic, "GGUF", 4) != 0) {
        return bad(f, 0, "the file does not begin with GGUF");
    }
    TRY(take(s, &f->version, 4, "the version"));
    if ((f->version & 0xffffu) == 0 && f->version != 0) {
        return bad(f, 4, "the version is %" PRIu32 " with its bytes swapped: big-endian files are not read",
                   __builtin_bswap32(f->version));
    }
    if (f->version != 2 && f->version != 3) {
        return bad(f, 4, "version %" PRIu32 ", 2 or 3 was expected", f->version);
    }
    TRY(take(s, counts, 16, "the numbers of tensors and keys"));
    if (counts[0] > (f->bytes - s->at) / TENSOR_BYTES_LEAST || counts[0] > ENTRIES_MAX) {
        return bad(f, 8, "%" PRIi64 " tensors are announced, the file has %" PRIu64 " more bytes; %" PRIu64 " are the "
                   "most", (int64_t)counts[0], f->bytes - s->at, ENTRIES_MAX);
    }
    if (counts[1] > (f->bytes - s->at) / VALUE_BYTES_LEAST || counts[1] > ENTRIES_MAX) {
        return bad(f, 16, "%" PRIi64 " keys are announced, the file has %" PRIu64 " more bytes; %" PRIu64 " are the "
                   "most", (int64_t)counts[1], f->bytes - s->at, ENTRIES_MAX);
    }
    f->tensors_count = counts[0];
    f->values_count = counts[1];
    return OK;
}

static enum err parse_rest(struct scan *s, struct places *values, struct places *tensors)
{
    struct gguf_file *f = s->f;
    TRY(take_values(s, values));
    TRY(name_values(f, values));
    TRY(find_alignment(f));
    TRY(take_tensors(s, tensors));
    free(f->values_by_key); /* the buffers have moved */
    f->values_by_key = NULL;
    TRY(name_values(f, values));
    TRY(name_tensors(f, tensors));
    void *order;
    TRY(mem_alloc(&order, f->tensors_count, sizeof(uint32_t)));
    enum err err = place_tensors(f, s->at, tensors, order);
    free(order);
    return err;
}

static enum err parse(struct gguf_file *f)
{
    struct scan s = { f, 0 };
    void *mem, *values = NULL, *tensors = NULL;
    enum err err;
    TRY_OUT(take_start(&s));
    TRY_OUT(mem_alloc(&mem, f->values_count, sizeof(struct gguf_value)));
    f->values = mem;
    TRY_OUT(mem_alloc(&mem, f->tensors_count, sizeof(struct gguf_tensor)));
    f->tensors = mem;
    TRY_OUT(mem_alloc(&values, f->values_count, sizeof(struct places)));
    TRY_OUT(mem_alloc(&tensors, f->tensors_count, sizeof(struct places)));
    TRY_OUT(parse_rest(&s, values, tensors));
out:
    free(values);
    free(tensors);
    return err;
}

enum err gguf_open(struct gguf_file *f, const char *path)
{
    *f = (struct gguf_file){ .fd = -1 };
    struct stat st;
    enum err err;
    TRY_OUT(mem_copy_string(&f->path, path, strlen(path)));
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0) {
        err = FAIL(ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
        goto out;
    }
    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err = FAIL(ERR_DATA, "%s: not a regular file, a file was expected", path);
        goto out;
    }
    f->bytes = (uint64_t)st.st_size;
    TRY_OUT(parse(f));
out:
    if (err != OK) {
        gguf_close(f);
    }
    return err;
}

void gguf_close(struct gguf_file *f)
{
    if (f->fd >= 0) {
        close(f->fd);
    }
    free(f->path);
    buf_release(&f->header);
    buf_release(&f->names);
    free(f->values);
    free(f->tensors);
    free(f->values_by_key);
    free(f->tensors_by_name);
    *f = (struct gguf_file){ .fd = -1 };
}

bool gguf_is(const char *path)
{
    char magic[4];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool is = fd >= 0 && pread(fd, magic, 4, 0) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return is;
}
