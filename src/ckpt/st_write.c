/* Why this exists: what Invar writes must be, byte for byte, what the reference implementation would write, so that a
 * file can be compared with cmp and every tool reads it: 8 bytes of header length, a JSON header padded with spaces to
 * a multiple of 8, then the tensors sorted by name without gaps. Hashes are taken while the bytes pass by. */
#include <inttypes.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"

static int by_name(const void *a, const void *b)
{
    const struct ckpt_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The tensors in file order with their places. */
static void lay_out(const struct ckpt_tensor **order, size_t count, struct st_tensor *out)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const struct ckpt_tensor *t = order[i];
        struct st_tensor *o = &out[i];
        BUG_IF(t->rank < 1 || t->rank > 4 || t->name[0] == '\0');
        BUG_IF(i > 0 && strcmp(order[i - 1]->name, t->name) == 0);
        *o = (struct st_tensor){ .name = t->name, .dtype = st_dtype_find("F32"), .rank = t->rank, .begin = at };
        uint64_t elements = 1;
        for (uint32_t d = 0; d < t->rank; d++) {
            o->shape[d] = t->shape[d];
            elements = mem_mul(elements, t->shape[d]);
        }
        o->end = at + mem_mul(elements, 4);
        o->elements = elements;
        BUG_IF(o->end < at);
        at = o->end;
    }
}

static enum err header_text(const struct st_tensor *list, size_t count, struct buf *out)
{
    TRY(buf_add_string(out, "{\"__metadata__\":{\"format\":\"pt\"}"));
    for (size_t i = 0; i < count; i++) {
        const struct st_tensor *t = &list[i];
        TRY(buf_add_string(out, ","));
        TRY(buf_add_json_string(out, t->name, strlen(t->name)));
        TRY(buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype->name));
        for (uint32_t d = 0; d < t->rank; d++) {
            TRY(buf_printf(out, "%s%" PRIu64, d > 0 ? "," : "", t->shape[d]));
        }
        TRY(buf_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin, t->end));
    }
    TRY(buf_add_string(out, "}"));
    while (out->bytes % 8 != 0) {
        TRY(buf_add_string(out, " "));
    }
    if (out->bytes > ST_HEADER_BYTES_MAX) {
        return FAIL(ERR_RESOURCE, "a header of %zu bytes for %zu tensors does not fit safetensors", out->bytes, count);
    }
    return OK;
}

/* Write and hash: in blocks, so that the second hash finds the bytes in the cache. */
static void put(struct file_out *f, struct hash_stream *whole, struct hash_stream *own, const void *bytes, size_t count)
{
    const unsigned char *from = bytes;
    while (count > 0) {
        size_t some = count < ST_BLOCK_BYTES ? count : ST_BLOCK_BYTES;
        hash_stream_add(whole, from, some);
        if (own != NULL) {
            hash_stream_add(own, from, some);
        }
        file_out_write(f, from, some);
        from += some;
        count -= some;
    }
}

static enum err put_tensors(struct file_out *f, struct hash_stream *whole, const struct ckpt_tensor **order,
                            struct st_written *w)
{
    for (size_t i = 0; i < w->count && f->err == OK; i++) {
        struct hash_stream *own = hash_stream_begin();
        if (own == NULL) {
            return FAIL(ERR_RESOURCE, "out of memory for a hash");
        }
        put(f, whole, own, order[i]->data, w->tensors[i].end - w->tensors[i].begin);
        hash_stream_end(own, w->tensors[i].hash);
    }
    return OK;
}

enum err st_write(const char *path, const struct ckpt_tensor *tensors, size_t count, struct st_written *written)
{
    *written = (struct st_written){ .count = count };
    struct buf header = { 0 };
    struct file_out f = { .fd = -1 };
    struct hash_stream *whole = NULL;
    void *order = NULL, *list = NULL;
    enum err err;
    TRY_OUT(mem_alloc(&order, count, sizeof(struct ckpt_tensor *)));
    TRY_OUT(mem_alloc(&list, count, sizeof(struct st_tensor)));
    written->tensors = list;
    for (size_t i = 0; i < count; i++) {
        ((const struct ckpt_tensor **)order)[i] = &tensors[i];
    }
    qsort(order, count, sizeof(struct ckpt_tensor *), by_name);
    lay_out(order, count, list);
    TRY_OUT(header_text(list, count, &header));
    whole = hash_stream_begin();
    if (whole == NULL) {
        err = FAIL(ERR_RESOURCE, "out of memory for a hash");
        goto out;
    }
    TRY_OUT(file_out_open(&f, path));
    uint64_t length = header.bytes;
    put(&f, whole, NULL, &length, sizeof(length));
    put(&f, whole, NULL, header.data, header.bytes);
    TRY_OUT(put_tensors(&f, whole, order, written));
    written->bytes = f.bytes;
    TRY_OUT(file_out_close(&f));
out:
    if (whole != NULL) {
        hash_stream_end(whole, written->hash);
    }
    file_out_abandon(&f);
    buf_release(&header);
    free(order);
    return err;
}

uint64_t st_write_bytes(const struct ckpt_tensor *tensors, size_t count)
{
    uint64_t bytes = 64;
    for (size_t i = 0; i < count; i++) {
        uint64_t elements = 1;
        for (uint32_t d = 0; d < tensors[i].rank; d++) {
            elements = mem_mul(elements, tensors[i].shape[d]);
        }
        bytes += elements * 4 + strlen(tensors[i].name) + 160;
    }
    return bytes;
}
