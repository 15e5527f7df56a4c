/* Why this exists: tensor files are as large as the model, so they are read by pread in blocks straight into their
 * destination and hashed while the block is in the cache; the model is never held twice. A file that is cut or that
 * changes while it is read gives an error with its offset. Multi-byte values are little-endian, as is every machine
 * Invar runs on. */
#include "ckpt/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/f16.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

void st_close(struct st_file *f)
{
    if (f->fd >= 0) {
        close(f->fd);
    }
    free(f->path);
    buf_release(&f->header);
    free(f->tensors);
    free(f->by_name);
    *f = (struct st_file){ .fd = -1 };
}

enum err st_bytes(const struct st_file *f, uint64_t offset, void *out, size_t count)
{
    return file_read_at(f->fd, f->path, f->bytes, offset, out, count);
}

/* The first 8 bytes and the header they announce. */
static enum err read_header(struct st_file *f)
{
    if (f->bytes < 8) {
        return FAIL(ERR_DATA, "%s: %" PRIu64 " bytes, a safetensors file has at least 8 | the file is cut", f->path,
                    f->bytes);
    }
    uint64_t length;
    TRY(st_bytes(f, 0, &length, sizeof(length)));
    if (length > ST_HEADER_BYTES_MAX || length > f->bytes - 8) {
        return FAIL(ERR_DATA,
                    "%s: byte 0: a header of %" PRIu64 " bytes is announced, the file has %" PRIu64
                    " after it and the limit is %" PRIu64 " | the file is cut or not a safetensors file",
                    f->path, length, f->bytes - 8, ST_HEADER_BYTES_MAX);
    }
    f->data_start = 8 + length;
    TRY(buf_reserve(&f->header, length));
    TRY(st_bytes(f, 8, f->header.data, length));
    f->header.bytes = length;
    f->header.data[length] = '\0';
    return OK;
}

static enum err open_in(struct st_file *f, int folder, const char *name, const char *path, bool links)
{
    *f = (struct st_file){ .fd = -1 };
    enum err err;
    struct stat st;
    TRY_OUT(mem_copy_string(&f->path, path, strlen(path)));
    f->fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links ? 0 : O_NOFOLLOW));
    if (f->fd < 0) {
        err = errno == ELOOP ? FAIL(ERR_DATA, "%s: a symbolic link, a file was expected | copy the folder with its "
                                    "files in place of the links: cp -rL", path)
                             : FAIL(ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
        goto out;
    }
    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err = FAIL(ERR_DATA, "%s: not a regular file, a file was expected", path);
        goto out;
    }
    f->bytes = (uint64_t)st.st_size;
    TRY_OUT(read_header(f));
    TRY_OUT(st_parse(f));
out:
    if (err != OK) {
        st_close(f);
    }
    return err;
}

enum err st_open(struct st_file *f, const char *path, bool links)
{
    return open_in(f, AT_FDCWD, path, path, links);
}

enum err st_open_at(struct st_file *f, int folder, const char *name, const char *path)
{
    return open_in(f, folder, name, path, false);
}

struct st_tensor *st_find(const struct st_file *f, const char *name)
{
    size_t lo = 0, hi = f->count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        struct st_tensor *t = &f->tensors[f->by_name[mid]];
        int c = strcmp(name, t->name);
        if (c == 0) {
            return t;
        }
        if (c < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

static void widen(const struct st_tensor *t, const unsigned char *raw, size_t count, float *out)
{
    if (t->dtype->bits == 32) {
        if ((const void *)raw != (const void *)out) {
            memcpy(out, raw, count * 4);
        }
        return;
    }
    bool half = strcmp(t->dtype->name, "F16") == 0;
    for (size_t i = 0; i < count && half; i++) {
        uint16_t stored;
        memcpy(&stored, raw + 2 * i, 2);
        uint32_t bits = f16_widen(stored);
        memcpy(&out[i], &bits, 4);
    }
    for (size_t i = 0; i < count && !half; i++) {
        uint16_t stored;
        memcpy(&stored, raw + 2 * i, 2);
        uint32_t bits = (uint32_t)stored << 16;
        memcpy(&out[i], &bits, 4);
    }
}

enum err st_floats(const struct st_file *f, const struct st_tensor *t, uint64_t first, size_t count, void *raw,
                   float *out)
{
    BUG_IF(!t->dtype->floats || first > t->elements || count > t->elements - first);
    uint64_t width = t->dtype->bits / 8;
    TRY(st_bytes(f, f->data_start + t->begin + first * width, raw, count * width));
    widen(t, raw, count, out);
    return OK;
}

/* Elements of a block whatever they are stored in. */
#define BLOCK_ELEMENTS (ST_BLOCK_BYTES / sizeof(float))

/* Where elements [first, first + count) of the tensor lie in a box that has all of them side by side; NULL: it has
 * not. */
static float *place_in(const struct ckpt_box *b, uint64_t row_length, uint64_t first, size_t count)
{
    uint64_t start = b->row0 * row_length + b->begin, length = b->end - b->begin;
    bool whole = b->col0 == 0 && b->cols == row_length && first >= start && count <= length &&
                 first - start <= length - count;
    return whole ? b->data + (first - start) : NULL;
}

enum err st_load(const struct st_file *f, struct st_tensor *t, bool hashed, const struct ckpt_tensor *want)
{
    void *mem = NULL;
    struct hash_stream *hash = hashed ? hash_stream_begin() : NULL;
    enum err err = hash != NULL || !hashed ? mem_alloc(&mem, 2, ST_BLOCK_BYTES)
                                           : FAIL(ERR_RESOURCE, "out of memory for a hash");
    uint64_t width = t->dtype->bits / 8, row_length = ckpt_row_length(want);
    for (uint64_t first = 0; first < t->elements && err == OK; first += BLOCK_ELEMENTS) {
        size_t some = t->elements - first < BLOCK_ELEMENTS ? (size_t)(t->elements - first) : BLOCK_ELEMENTS;
        float *place = want->boxes_count > 0 ? place_in(&want->boxes[0], row_length, first, some) : NULL;
        float *values = place != NULL ? place : mem; /* where it goes, without a copy */
        float *raw = width == sizeof(float) ? values : (float *)mem + BLOCK_ELEMENTS;
        err = st_floats(f, t, first, some, raw, values);
        if (err == OK && hashed) {
            hash_stream_add(hash, raw, some * width);
        }
        for (size_t i = place != NULL ? 1 : 0; i < want->boxes_count && err == OK; i++) {
            ckpt_box_load(&want->boxes[i], row_length, first, some, values);
        }
    }
    if (hash != NULL) {
        hash_stream_end(hash, t->hash);
    }
    free(mem);
    return err;
}

/* ---- one pass over a file ---- */

static void add_elements(struct st_tensor *t, uint64_t first, const float *values, size_t count)
{
    uint64_t sum = 0, bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        sum += hash_element(first + i, bits);
        bad += (bits & 0x7f800000u) == 0x7f800000u;
    }
    t->sum += sum;
    t->not_finite += bad;
}

/* Read the bytes of one tensor, in blocks, into all its sums and the file's hash. raw and values: ST_BLOCK_BYTES each
 * (values: twice as much, for widening). */
static enum err scan_tensor(struct st_file *f, struct st_tensor *t, struct hash_stream *whole, unsigned char *raw,
                            float *values)
{
    struct hash_stream *own = hash_stream_begin();
    if (own == NULL) {
        return FAIL(ERR_RESOURCE, "out of memory for a hash");
    }
    enum err err = OK;
    t->sum = 0;
    t->not_finite = 0;
    for (uint64_t at = t->begin; at < t->end && err == OK;) {
        size_t count = t->end - at < ST_BLOCK_BYTES ? (size_t)(t->end - at) : ST_BLOCK_BYTES;
        err = st_bytes(f, f->data_start + at, raw, count);
        if (err == OK) {
            hash_stream_add(whole, raw, count);
            hash_stream_add(own, raw, count);
            if (t->dtype->floats) {
                size_t width = t->dtype->bits / 8;
                widen(t, raw, count / width, values);
                add_elements(t, (at - t->begin) / width, values, count / width);
            }
        }
        at += count;
    }
    hash_stream_end(own, t->hash);
    return err;
}

/* The header's bytes as they are in the file (f->header was decoded in place). */
static enum err scan_header(const struct st_file *f, struct hash_stream *whole, unsigned char *raw)
{
    for (uint64_t at = 0; at < f->data_start;) {
        size_t count = f->data_start - at < ST_BLOCK_BYTES ? (size_t)(f->data_start - at) : ST_BLOCK_BYTES;
        TRY(st_bytes(f, at, raw, count));
        hash_stream_add(whole, raw, count);
        at += count;
    }
    return OK;
}

enum err st_scan(struct st_file *f)
{
    void *raw = NULL, *values = NULL;
    struct hash_stream *whole = hash_stream_begin();
    enum err err = whole != NULL ? OK : FAIL(ERR_RESOURCE, "out of memory for a hash");
    if (err != OK) {
        goto out;
    }
    TRY_OUT(mem_alloc(&raw, 1, ST_BLOCK_BYTES));
    TRY_OUT(mem_alloc(&values, 2, ST_BLOCK_BYTES));
    TRY_OUT(scan_header(f, whole, raw));
    for (size_t i = 0; i < f->count; i++) {
        TRY_OUT(scan_tensor(f, &f->tensors[i], whole, raw, values));
    }
out:
    if (whole != NULL) {
        hash_stream_end(whole, f->hash);
    }
    free(raw);
    free(values);
    return err;
}
