/* Why this exists: a checkpoint is complete when its manifest says so and every file agrees with it. The manifest is
 * JSON for people and tools; its last member is the hash of all bytes before it, so that a manifest which was cut or
 * changed is known before one number of it is used.
 *
 * Text: "{\n", members one per line, then exactly `  "hash": "<32 digits>"\n}\n`. */
#include "ckpt/manifest.h"

#include <inttypes.h>
#include <stdarg.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#define TAIL_BEFORE "  \"hash\": \""
#define TAIL_AFTER "\"\n}\n"
#define TAIL_BYTES (sizeof(TAIL_BEFORE) - 1 + 32 + sizeof(TAIL_AFTER) - 1)

bool manifest_name_ok(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > 255 || strchr(name, '/') != NULL || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
        strcmp(name, MANIFEST_NAME) == 0) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

const struct manifest_file *manifest_find(const struct manifest *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++) {
        if (strcmp(m->files[i].name, name) == 0) {
            return &m->files[i];
        }
    }
    return NULL;
}

void manifest_release(struct manifest *m)
{
    for (size_t i = 0; i < m->count; i++) {
        free(m->files[i].tensors);
    }
    for (size_t i = 0; i < m->owned_count; i++) {
        free(m->owned[i]);
    }
    free(m->files);
    free(m->owned);
    json_decref(m->root);
    *m = (struct manifest){ 0 };
}

/* ---- writing ---- */

static enum err print_tensor(const struct st_tensor *t, struct buf *out)
{
    TRY(buf_add_string(out, "        {\"name\": "));
    TRY(buf_add_json_string(out, t->name, strlen(t->name)));
    char shape[192];
    return buf_printf(out, ", \"dtype\": \"%s\", \"shape\": %s, \"offset\": %" PRIu64 ", \"hash128\": \"%s\"}",
                      t->dtype->name, st_shape_text(t->rank, t->shape, shape), t->begin, t->hash);
}

static enum err print_file(const struct manifest_file *f, struct buf *out)
{
    TRY(buf_add_string(out, "    {\"name\": "));
    TRY(buf_add_json_string(out, f->name, strlen(f->name)));
    TRY(buf_printf(out, ", \"bytes\": %" PRIu64 ", \"hash128\": \"%s\"", f->bytes, f->hash));
    if (f->tensor_file) {
        TRY(buf_add_string(out, ", \"tensors\": ["));
        for (size_t i = 0; i < f->count; i++) {
            TRY(buf_add_string(out, i > 0 ? ",\n" : "\n"));
            TRY(print_tensor(&f->tensors[i], out));
        }
        TRY(buf_add_string(out, "]"));
    }
    return buf_add_string(out, "}");
}

enum err manifest_print(const struct manifest *m, struct buf *out)
{
    buf_clear(out);
    TRY(buf_printf(out,
                   "{\n  \"format\": \"" MANIFEST_FORMAT "\",\n  \"numerics\": \"" MANIFEST_NUMERICS
                   "\",\n  \"step\": %" PRIu64 ",\n  \"state_hash\": \"%016" PRIx64 "\",\n  \"files\": [\n",
                   m->step, m->state_hash));
    for (size_t i = 0; i < m->count; i++) {
        TRY(print_file(&m->files[i], out));
        TRY(buf_add_string(out, i + 1 < m->count ? ",\n" : "\n"));
    }
    TRY(buf_add_string(out, "  ],\n"));
    char hash[33];
    hash128_hex(out->data, out->bytes, hash);
    return buf_printf(out, TAIL_BEFORE "%s" TAIL_AFTER, hash);
}

/* ---- reading ---- */

/* Where messages of one manifest point to. */
struct reader {
    const char *path;
    struct manifest *m;
};

PRINTF_LIKE(2, 3) static enum err bad(const struct reader *r, const char *fmt, ...)
{
    char rule[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(rule, sizeof(rule), fmt, args);
    va_end(args);
    return FAIL(ERR_DATA, "%s: %s | use another checkpoint", r->path, rule);
}

static enum err check_own_hash(const struct reader *r, const struct buf *text)
{
    if (text->bytes < TAIL_BYTES) {
        return bad(r, "%zu bytes, a manifest has more: it is cut", text->bytes);
    }
    size_t body = text->bytes - TAIL_BYTES;
    const char *tail = text->data + body, *digits = tail + sizeof(TAIL_BEFORE) - 1;
    if (memcmp(tail, TAIL_BEFORE, sizeof(TAIL_BEFORE) - 1) != 0 ||
        memcmp(digits + 32, TAIL_AFTER, sizeof(TAIL_AFTER) - 1) != 0) {
        return bad(r, "byte %zu: the manifest does not end with its own hash: it is cut or was edited", body);
    }
    char hash[33];
    hash128_hex(text->data, body, hash);
    if (memcmp(hash, digits, 32) != 0) {
        return bad(r, "its %zu bytes have hash %s, it says %.32s: it is damaged or was edited", body, hash, digits);
    }
    return OK;
}

static enum err text_of(const struct reader *r, json_t *object, const char *key, const char **out)
{
    json_t *value = json_object_get(object, key);
    *out = "";
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
        return bad(r, "\"%s\": a string was expected", key);
    }
    *out = json_string_value(value);
    return OK;
}

static enum err whole_of(const struct reader *r, json_t *object, const char *key, uint64_t *out)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return bad(r, "\"%s\": a whole number from 0 was expected", key);
    }
    *out = (uint64_t)json_integer_value(value);
    return OK;
}

static bool is_hex(const char *text, size_t digits)
{
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

static enum err hash_of(const struct reader *r, json_t *object, char out[33])
{
    const char *text;
    TRY(text_of(r, object, "hash128", &text));
    if (!is_hex(text, 32)) {
        return bad(r, "\"hash128\": 32 hexadecimal digits were expected");
    }
    memcpy(out, text, 33);
    return OK;
}

static enum err read_tensor(const struct reader *r, json_t *object, struct st_tensor *t)
{
    const char *dtype;
    TRY(text_of(r, object, "name", &t->name));
    TRY(text_of(r, object, "dtype", &dtype));
    TRY(whole_of(r, object, "offset", &t->begin));
    TRY(hash_of(r, object, t->hash));
    t->dtype = st_dtype_find(dtype);
    json_t *shape = json_object_get(object, "shape");
    if (t->dtype == NULL || !json_is_array(shape) || json_array_size(shape) > ST_RANK_MAX) {
        return bad(r, "%.200s: dtype or shape are not those of a tensor", t->name);
    }
    t->rank = (uint32_t)json_array_size(shape);
    for (uint32_t d = 0; d < t->rank; d++) {
        json_t *value = json_array_get(shape, d);
        if (!json_is_integer(value) || json_integer_value(value) < 0) {
            return bad(r, "%.200s: shape: whole numbers from 0 were expected", t->name);
        }
        t->shape[d] = (uint64_t)json_integer_value(value);
    }
    return OK;
}

static enum err read_file(const struct reader *r, json_t *object, struct manifest_file *f)
{
    TRY(text_of(r, object, "name", &f->name));
    if (!manifest_name_ok(f->name)) {
        return bad(r, "\"%.200s\" is not a plain file name", f->name);
    }
    TRY(whole_of(r, object, "bytes", &f->bytes));
    TRY(hash_of(r, object, f->hash));
    json_t *tensors = json_object_get(object, "tensors");
    if (tensors == NULL) {
        return OK;
    }
    if (!json_is_array(tensors)) {
        return bad(r, "\"tensors\": a list was expected");
    }
    void *list;
    TRY(mem_alloc(&list, json_array_size(tensors), sizeof(struct st_tensor)));
    f->tensors = list;
    f->tensor_file = true;
    f->count = json_array_size(tensors);
    for (size_t i = 0; i < f->count; i++) {
        TRY(read_tensor(r, json_array_get(tensors, i), &f->tensors[i]));
    }
    return OK;
}

static enum err read_files(const struct reader *r)
{
    struct manifest *m = r->m;
    json_t *files = json_object_get(m->root, "files");
    if (!json_is_array(files) || json_array_size(files) > 1000) {
        return bad(r, "\"files\": a list of at most 1000 was expected");
    }
    void *list;
    TRY(mem_alloc(&list, json_array_size(files), sizeof(struct manifest_file)));
    m->files = list;
    for (size_t i = 0; i < json_array_size(files); i++) {
        m->count++;
        TRY(read_file(r, json_array_get(files, i), &m->files[i]));
        if (manifest_find(m, m->files[i].name) != &m->files[i]) {
            return bad(r, "\"%.200s\" is listed twice", m->files[i].name);
        }
    }
    const struct manifest_file *model = manifest_find(m, MODEL_NAME);
    if (model == NULL || !model->tensor_file) {
        return bad(r, "it does not list the tensors of " MODEL_NAME);
    }
    return OK;
}

static enum err read_root(const struct reader *r)
{
    const char *format, *numerics, *state;
    TRY(text_of(r, r->m->root, "format", &format));
    if (strcmp(format, MANIFEST_FORMAT) != 0) {
        return FAIL(ERR_DATA, "%s: format \"%.60s\", this version reads \"" MANIFEST_FORMAT "\" | use the version of "
                    "invar that wrote it", r->path, format);
    }
    TRY(text_of(r, r->m->root, "numerics", &numerics));
    if (strcmp(numerics, MANIFEST_NUMERICS) != 0) {
        return FAIL(ERR_DATA, "%s: numerics \"%.60s\", this version computes by \"" MANIFEST_NUMERICS "\" | use the "
                    "version of invar that wrote it", r->path, numerics);
    }
    TRY(whole_of(r, r->m->root, "step", &r->m->step));
    TRY(text_of(r, r->m->root, "state_hash", &state));
    if (!is_hex(state, 16)) {
        return bad(r, "\"state_hash\": 16 hexadecimal digits were expected");
    }
    r->m->state_hash = strtoull(state, NULL, 16);
    return read_files(r);
}

enum err manifest_read(struct manifest *m, const char *folder)
{
    *m = (struct manifest){ 0 };
    char *path = NULL;
    struct buf text = { 0 };
    enum err err;
    TRY_OUT(file_join(&path, folder, MANIFEST_NAME));
    struct reader r = { .path = path, .m = m };
    TRY_OUT(file_read(path, MANIFEST_BYTES_MAX, &text));
    TRY_OUT(check_own_hash(&r, &text));
    TRY_OUT(json_parse(&m->root, path, text.data, text.bytes));
    TRY_OUT(read_root(&r));
out:
    if (err != OK) {
        manifest_release(m);
    }
    buf_release(&text);
    free(path);
    return err;
}
