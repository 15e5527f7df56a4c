/* Why this exists: what is trained here must run elsewhere, and llama.cpp reads GGUF. All places are known before the
 * first value: the list of tensors stands in front of the data, each filled up to the alignment. */
#include "ckpt/gguf_write.h"

#include <inttypes.h>
#include <unistd.h>

#include "base/f16.h"
#include "base/mem.h"

#define BLOCK_ELEMENTS ((size_t)1 << 16) /* narrowed at once */

static enum err put_key(struct gguf_out *o, const char *key, enum gguf_kind kind)
{
    uint64_t length = strlen(key);
    uint32_t number = (uint32_t)kind;
    TRY(buf_add(&o->keys, &length, 8));
    TRY(buf_add(&o->keys, key, length));
    o->keys_count++;
    return buf_add(&o->keys, &number, 4);
}

enum err gguf_out_u32(struct gguf_out *o, const char *key, uint64_t value)
{
    if (value > UINT32_MAX) {
        return FAIL(ERR_DATA, "%s: %" PRIu64 " is above what a GGUF file can hold", key, value);
    }
    uint32_t small = (uint32_t)value;
    TRY(put_key(o, key, GGUF_U32));
    return buf_add(&o->keys, &small, 4);
}

enum err gguf_out_f32(struct gguf_out *o, const char *key, double value)
{
    float single = (float)value;
    TRY(put_key(o, key, GGUF_F32));
    return buf_add(&o->keys, &single, 4);
}

enum err gguf_out_flag(struct gguf_out *o, const char *key, bool value)
{
    TRY(put_key(o, key, GGUF_BOOL));
    return buf_add(&o->keys, value ? "\1" : "\0", 1);
}

enum err gguf_out_text(struct gguf_out *o, const char *text, size_t bytes)
{
    uint64_t length = bytes;
    TRY(buf_add(&o->keys, &length, 8));
    return buf_add(&o->keys, text, bytes);
}

enum err gguf_out_string(struct gguf_out *o, const char *key, const char *text, size_t bytes)
{
    TRY(put_key(o, key, GGUF_STRING));
    return gguf_out_text(o, text, bytes);
}

enum err gguf_out_array(struct gguf_out *o, const char *key, enum gguf_kind item, uint64_t count)
{
    uint32_t number = (uint32_t)item;
    TRY(put_key(o, key, GGUF_ARRAY));
    TRY(buf_add(&o->keys, &number, 4));
    return buf_add(&o->keys, &count, 8);
}

/* ---- tensors ---- */

static uint64_t filled(uint64_t bytes)
{
    return (bytes + GGUF_ALIGN_DEFAULT - 1) / GGUF_ALIGN_DEFAULT * GGUF_ALIGN_DEFAULT;
}

enum err gguf_out_tensor(struct gguf_out *o, const char *name, const struct gguf_type *type, uint32_t rank,
                         const uint64_t *shape)
{
    void *list = o->list;
    BUG_IF(strlen(name) > GGUF_NAME_BYTES_MAX || rank < 1 || rank > GGUF_RANK_MAX || !gguf_out_can(type));
    BUG_IF(shape[0] % type->elements != 0);
    TRY(mem_grow(&list, &o->capacity, o->tensors_count + 1, sizeof(o->list[0])));
    o->list = list;
    struct gguf_out_tensor *t = &o->list[o->tensors_count++];
    *t = (struct gguf_out_tensor){ .type = type, .elements = 1 };
    snprintf(t->name, sizeof(t->name), "%s", name);
    uint64_t length = strlen(name);
    TRY(buf_add(&o->tensors, &length, 8));
    TRY(buf_add(&o->tensors, name, length));
    TRY(buf_add(&o->tensors, &rank, 4));
    TRY(buf_add(&o->tensors, shape, 8 * rank));
    TRY(buf_add(&o->tensors, &type->number, 4));
    TRY(buf_add(&o->tensors, &o->data_bytes, 8));
    for (uint32_t d = 0; d < rank; d++) {
        t->elements = mem_mul(t->elements, shape[d]);
    }
    t->bytes = mem_mul(t->elements / type->elements, type->bytes);
    BUG_IF(t->elements == 0 || t->bytes > (uint64_t)1 << 60 || o->data_bytes > (uint64_t)1 << 60);
    o->data_bytes += filled(t->bytes);
    return OK;
}

static void fill(struct gguf_out *o)
{
    static const unsigned char zeros[GGUF_ALIGN_DEFAULT];
    file_out_write(&o->out, zeros, filled(o->out.bytes) - o->out.bytes);
}

static enum err open_temp(struct gguf_out *o, const char *path)
{
    struct buf temp = { 0 };
    if (file_exists(path)) {
        return FAIL(ERR_USAGE, "%s: exists already, nothing is replaced | choose a new name, or move this one", path);
    }
    TRY(mem_copy_string(&o->path, path, strlen(path)));
    TRY(buf_printf(&temp, "%s.tmp", path));
    o->temp = temp.data;
    return file_out_open(&o->out, o->temp);
}

enum err gguf_out_begin(struct gguf_out *o, const char *path)
{
    const uint32_t version = 3;
    void *mem;
    TRY(mem_alloc(&mem, BLOCK_ELEMENTS, sizeof(float)));
    o->narrow = mem;
    TRY(open_temp(o, path));
    uint64_t need = o->keys.bytes + o->tensors.bytes + o->data_bytes + 4096;
    const char *slash = strrchr(path, '/');
    char *folder;
    TRY(mem_copy_string(&folder, slash != NULL ? path : ".", slash != NULL ? (size_t)(slash - path) + 1 : 1));
    enum err err = file_check_space(folder, need, "this model");
    free(folder);
    TRY(err);
    file_out_write(&o->out, "GGUF", 4);
    file_out_write(&o->out, &version, 4);
    file_out_write(&o->out, &o->tensors_count, 8);
    file_out_write(&o->out, &o->keys_count, 8);
    file_out_write(&o->out, o->keys.data, o->keys.bytes);
    file_out_write(&o->out, o->tensors.data, o->tensors.bytes);
    fill(o);
    return o->out.err;
}

/* ---- values ---- */

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static bool is_finite(float x)
{
    return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

/* Each returns how many of the values fit: `count`, or the number of the first that does not. */
static size_t narrow_f16(const float *x, size_t count, unsigned char *out)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t half = f16_narrow(bits_of(x[i]));
        if ((half & 0x7fffu) == 0x7c00u && is_finite(x[i])) {
            return i;
        }
        memcpy(out + 2 * i, &half, 2);
    }
    return count;
}

static size_t narrow_bf16(const float *x, size_t count, unsigned char *out)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t half = bf16_narrow(bits_of(x[i]));
        if ((half & 0x7fffu) == 0x7f80u && is_finite(x[i])) {
            return i;
        }
        memcpy(out + 2 * i, &half, 2);
    }
    return count;
}

/* To the nearest whole number, halves away from zero; |x| < 2^23. */
static int8_t round_away(float x)
{
    float magnitude = x < 0 ? -x : x;
    int whole = (int)magnitude;
    whole += magnitude - (float)whole >= 0.5f;
    return (int8_t)(x < 0 ? -whole : whole);
}

static size_t narrow_q8_0(const float *x, size_t count, unsigned char *out)
{
    for (size_t at = 0; at < count; at += 32, out += 34) {
        float most = 0;
        for (size_t i = 0; i < 32; i++) {
            float magnitude = x[at + i] < 0 ? -x[at + i] : x[at + i];
            if (!is_finite(magnitude)) {
                return at + i;
            }
            most = magnitude > most ? magnitude : most;
        }
        float d = most / 127;
        uint16_t half = f16_narrow(bits_of(d));
        if ((half & 0x7fffu) == 0x7c00u) { /* the scale itself is a half */
            return at;
        }
        float inverse = d >= 0x1p-126f ? 1 / d : 0; /* below, the scale is zero as a half, and 1 / d may be infinite */
        memcpy(out, &half, 2);
        for (size_t i = 0; i < 32; i++) {
            out[2 + i] = (unsigned char)round_away(x[at + i] * inverse);
        }
    }
    return count;
}

static const struct narrower {
    const char *type;
    size_t (*narrow)(const float *x, size_t count, unsigned char *out);
} narrowers[] = { { "F32", NULL }, { "F16", narrow_f16 }, { "BF16", narrow_bf16 }, { "Q8_0", narrow_q8_0 } };

static const struct narrower *narrower_of(const struct gguf_type *type)
{
    for (size_t i = 0; i < sizeof(narrowers) / sizeof(narrowers[0]); i++) {
        if (strcmp(narrowers[i].type, type->name) == 0) {
            return &narrowers[i];
        }
    }
    return NULL;
}

bool gguf_out_can(const struct gguf_type *type)
{
    return narrower_of(type) != NULL;
}

static enum err add_some(struct gguf_out *o, const struct gguf_out_tensor *t, const float *values, size_t count)
{
    const struct narrower *n = narrower_of(t->type);
    if (n->narrow == NULL) {
        file_out_write(&o->out, values, count * sizeof(float));
        return o->out.err;
    }
    size_t fit = n->narrow(values, count, o->narrow);
    if (fit < count) {
        return FAIL(ERR_DATA, "%s: element %" PRIu64 " is %g, which %s cannot hold | choose another save_dtype",
                    t->name, o->done + fit, (double)values[fit], t->type->name);
    }
    file_out_write(&o->out, o->narrow, count / t->type->elements * t->type->bytes);
    return o->out.err;
}

enum err gguf_out_add(struct gguf_out *o, const float *values, size_t count)
{
    BUG_IF(o->at >= o->tensors_count);
    const struct gguf_out_tensor *t = &o->list[o->at];
    BUG_IF(count > t->elements - o->done || count % t->type->elements != 0);
    while (count > 0) {
        size_t some = count < BLOCK_ELEMENTS ? count : BLOCK_ELEMENTS;
        TRY(add_some(o, t, values, some));
        o->done += some;
        values += some;
        count -= some;
    }
    if (o->done == t->elements) {
        fill(o);
        o->at++;
        o->done = 0;
    }
    return o->out.err;
}

enum err gguf_out_finish(struct gguf_out *o)
{
    BUG_IF(o->at != o->tensors_count);
    TRY(file_out_close(&o->out));
    TRY(file_rename(o->temp, o->path));
    free(o->temp);
    o->temp = NULL;
    return OK;
}

void gguf_out_release(struct gguf_out *o)
{
    file_out_abandon(&o->out);
    if (o->temp != NULL) {
        unlink(o->temp);
    }
    free(o->path);
    free(o->temp);
    free(o->list);
    free(o->narrow);
    buf_release(&o->keys);
    buf_release(&o->tensors);
    *o = (struct gguf_out){ .out = { .fd = -1 } };
}
