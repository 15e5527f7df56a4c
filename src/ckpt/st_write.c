/* Why this exists: what Invar writes must be, byte for byte, what the reference implementation would write, so that a
 * file can be compared with cmp and every tool reads it: 8 bytes of header length, a JSON header padded with spaces to
 * a multiple of 8, then the tensors sorted by name without gaps. The values of one tensor are there at a time, and pass
 * by once: written and hashed together. */
#include <inttypes.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct ckpt_tensor *list = tensors;
    return strcmp(list[*(const size_t *)a].name, list[*(const size_t *)b].name);
}

void ckpt_order(const struct ckpt_tensor *tensors, size_t count, size_t *order)
{
    for (size_t i = 0; i < count; i++) {
        order[i] = i;
    }
    qsort_r(order, count, sizeof(order[0]), by_name, (void *)tensors);
}

/* The tensors in file order with their places. */
static void lay_out(const struct ckpt_file *file, const size_t *order, struct st_tensor *out)
{
    uint64_t at = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct ckpt_tensor *t = &file->tensors[order[i]];
        struct st_tensor *o = &out[i];
        BUG_IF(t->rank < 1 || t->rank > 4 || t->name[0] == '\0');
        BUG_IF(i > 0 && strcmp(out[i - 1].name, t->name) == 0);
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

enum err st_header_text(const struct st_tensor *list, size_t count, struct buf *out)
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

/* What is needed to write one file. */
struct writer {
    const struct ckpt_file *file;
    size_t number; /* of the file, for fetch */
    const struct ckpt_source *source;
    size_t *order;
    struct hash_stream *whole;
    struct file_out out;
    struct st_written *written;
};

static enum err put_tensor(struct writer *w, size_t i)
{
    struct st_tensor *t = &w->written->tensors[i];
    const float *values = NULL;
    TRY(w->source->fetch(w->source->arg, w->number, w->order[i], &values));
    struct hash_stream *own = hash_stream_begin();
    if (own == NULL) {
        return FAIL(ERR_RESOURCE, "out of memory for a hash");
    }
    put(&w->out, w->whole, own, values, t->end - t->begin);
    hash_stream_end(own, t->hash);
    return w->out.err;
}

static enum err put_file(struct writer *w, const char *path, const struct buf *header)
{
    TRY(file_out_open(&w->out, path));
    uint64_t length = header->bytes;
    put(&w->out, w->whole, NULL, &length, sizeof(length));
    put(&w->out, w->whole, NULL, header->data, header->bytes);
    for (size_t i = 0; i < w->file->count; i++) {
        TRY(put_tensor(w, i));
    }
    w->written->bytes = w->out.bytes;
    return file_out_close(&w->out);
}

enum err st_write(const char *path, const struct ckpt_file *file, size_t number, const struct ckpt_source *source,
                  struct st_written *written)
{
    *written = (struct st_written){ .count = file->count };
    struct writer w = { .file = file, .number = number, .source = source, .out = { .fd = -1 }, .written = written };
    struct buf header = { 0 };
    void *order = NULL, *list = NULL;
    enum err err;
    TRY_OUT(mem_alloc(&order, file->count, sizeof(size_t)));
    TRY_OUT(mem_alloc(&list, file->count, sizeof(struct st_tensor)));
    written->tensors = list;
    w.order = order;
    ckpt_order(file->tensors, file->count, w.order);
    lay_out(file, w.order, list);
    TRY_OUT(st_header_text(list, file->count, &header));
    w.whole = hash_stream_begin();
    if (w.whole == NULL) {
        err = FAIL(ERR_RESOURCE, "out of memory for a hash");
        goto out;
    }
    TRY_OUT(put_file(&w, path, &header));
out:
    if (w.whole != NULL) {
        hash_stream_end(w.whole, written->hash);
    }
    file_out_abandon(&w.out);
    buf_release(&header);
    free(order);
    return err;
}

uint64_t st_write_bytes(const struct ckpt_file *file)
{
    uint64_t bytes = 64;
    for (size_t i = 0; i < file->count; i++) {
        const struct ckpt_tensor *t = &file->tensors[i];
        bytes += mem_mul(t->shape[0], ckpt_row_length(t)) * 4 + strlen(t->name) + 160;
    }
    return bytes;
}
