/* GGUF files of a few bytes, put together field by field so that any of them can be wrong. */
#ifndef TESTS_UNIT_GGUF_BYTES_H
#define TESTS_UNIT_GGUF_BYTES_H

#include <stdio.h>
#include <unistd.h>

#include "test.h"

struct bytes {
    unsigned char data[1 << 16];
    size_t count;
};

static inline void put(struct bytes *b, const void *from, size_t count)
{
    assert_true(b->count + count <= sizeof(b->data));
    memcpy(b->data + b->count, from, count);
    b->count += count;
}

static inline void put32(struct bytes *b, uint32_t x)
{
    put(b, &x, 4);
}

static inline void put64(struct bytes *b, uint64_t x)
{
    put(b, &x, 8);
}

static inline void put_string(struct bytes *b, const char *text)
{
    put64(b, strlen(text));
    put(b, text, strlen(text));
}

static inline void put_start(struct bytes *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    b->count = 0;
    put(b, "GGUF", 4);
    put32(b, version);
    put64(b, tensors);
    put64(b, keys);
}

static inline void put_u32(struct bytes *b, const char *key, uint32_t value)
{
    put_string(b, key);
    put32(b, 4);
    put32(b, value);
}

static inline void put_text(struct bytes *b, const char *key, const char *value)
{
    put_string(b, key);
    put32(b, 8);
    put_string(b, value);
}

/* A tensor of two dimensions. */
static inline void put_tensor(struct bytes *b, const char *name, uint64_t columns, uint64_t rows, uint32_t type,
                              uint64_t offset)
{
    put_string(b, name);
    put32(b, 2);
    put64(b, columns);
    put64(b, rows);
    put32(b, type);
    put64(b, offset);
}

static inline void put_fill(struct bytes *b, size_t align)
{
    while (b->count % align != 0) {
        put(b, "", 1);
    }
}

static inline void put_file(const char *path, const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb"); /* no fsync: thousands of files are tried */
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

#endif
