/* Why this exists: what is asked of an open GGUF file: a value by its key, whatever kind its writer chose for a number,
 * and the numbers of a tensor. */
#include "ckpt/gguf.h"

#include <string.h>

const struct gguf_value *gguf_find(const struct gguf_file *f, const char *key)
{
    size_t lo = 0, hi = f->values_count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct gguf_value *v = &f->values[f->values_by_key[mid]];
        int c = strcmp(key, v->key);
        if (c == 0) {
            return v;
        }
        lo = c < 0 ? lo : mid + 1;
        hi = c < 0 ? mid : hi;
    }
    return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf_file *f, const char *name)
{
    size_t lo = 0, hi = f->tensors_count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct gguf_tensor *t = &f->tensors[f->tensors_by_name[mid]];
        int c = strcmp(name, t->name);
        if (c == 0) {
            return t;
        }
        lo = c < 0 ? lo : mid + 1;
        hi = c < 0 ? mid : hi;
    }
    return NULL;
}

/* A number of any kind: whole ones as 64 bits with a sign (big: the value is above INT64_MAX), real ones as double. */
struct number {
    bool whole, real, big;
    int64_t i;
    double d;
};

#define READ(type) (memcpy(&x.type, at, sizeof(x.type)), x.type)

static struct number number_at(const struct gguf_value *v, uint64_t index)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        float f32;
        uint64_t u64;
        int64_t i64;
        double f64;
    } x = { 0 };
    enum gguf_kind kind = v->kind == GGUF_ARRAY ? v->item : v->kind;
    if (kind == GGUF_STRING || kind == GGUF_ARRAY || kind == GGUF_BOOL || index >= v->count) {
        return (struct number){ 0 };
    }
    const unsigned char *at = v->data + index * (v->bytes / v->count);
    switch (kind) {
    case GGUF_U8: return (struct number){ .whole = true, .i = READ(u8) };
    case GGUF_I8: return (struct number){ .whole = true, .i = READ(i8) };
    case GGUF_U16: return (struct number){ .whole = true, .i = READ(u16) };
    case GGUF_I16: return (struct number){ .whole = true, .i = READ(i16) };
    case GGUF_U32: return (struct number){ .whole = true, .i = READ(u32) };
    case GGUF_I32: return (struct number){ .whole = true, .i = READ(i32) };
    case GGUF_I64: return (struct number){ .whole = true, .i = READ(i64) };
    case GGUF_U64: return (struct number){ .whole = true, .i = (int64_t)READ(u64), .big = x.u64 > INT64_MAX };
    case GGUF_F32: return (struct number){ .real = true, .d = (double)READ(f32) };
    case GGUF_F64: return (struct number){ .real = true, .d = READ(f64) };
    default: return (struct number){ 0 };
    }
}

bool gguf_whole(const struct gguf_value *v, uint64_t index, uint64_t *out)
{
    struct number n = number_at(v, index);
    *out = (uint64_t)n.i;
    return n.whole && (n.i >= 0 || n.big);
}

bool gguf_real(const struct gguf_value *v, uint64_t index, double *out)
{
    struct number n = number_at(v, index);
    *out = n.real ? n.d : (double)n.i;
    return (n.real || (n.whole && !n.big)) && __builtin_isfinite(*out);
}

bool gguf_flag(const struct gguf_value *v, bool *out)
{
    *out = v->kind == GGUF_BOOL && v->data[0] != 0;
    return v->kind == GGUF_BOOL;
}

void gguf_next_string(const struct gguf_value *v, uint64_t *at, const char **text, size_t *bytes)
{
    uint64_t length;
    BUG_IF(v->kind != GGUF_ARRAY || v->item != GGUF_STRING || *at + 8 > v->bytes);
    memcpy(&length, v->data + *at, 8);
    *text = (const char *)v->data + *at + 8;
    *bytes = length;
    *at += 8 + length;
}

enum err gguf_floats(const struct gguf_file *f, const struct gguf_tensor *t, uint64_t first, size_t count, void *raw,
                     float *out)
{
    const struct gguf_type *type = t->type;
    BUG_IF(type->widen == NULL || first > t->elements || count > t->elements - first);
    BUG_IF(first % type->elements != 0 || count % type->elements != 0);
    size_t blocks = count / type->elements;
    TRY(gguf_bytes(f, t->begin + first / type->elements * type->bytes, raw, blocks * type->bytes));
    type->widen(raw, blocks, out);
    return OK;
}
