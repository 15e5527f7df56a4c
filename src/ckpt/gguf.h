/* One GGUF file (versions 2 and 3, little-endian): metadata, a list of tensors, then their bytes. Reading is total: any
 * file gives either its content or an error that names the rule and the byte offset. Sees names and numbers, no models
 * (ckpt/gguf_model.h). Not collective. */
#ifndef CKPT_GGUF_H
#define CKPT_GGUF_H

#include "base/buf.h"
#include "base/err.h"

#define GGUF_RANK_MAX 4u
#define GGUF_NAME_BYTES_MAX 63u /* of a tensor: ggml keeps 64 with the zero */
#define GGUF_ALIGN_DEFAULT 32u
#define GGUF_ALIGN_MAX ((uint64_t)1 << 20)
#define GGUF_BLOCK_MAX 256u /* elements */

/* How the numbers of a tensor are stored: blocks of `elements` numbers in `bytes` bytes. */
struct gguf_type {
    uint32_t number; /* in the file */
    const char *name;
    uint32_t elements, bytes;
    /* Blocks to fp32; NULL: only the size is known. */
    void (*widen)(const unsigned char *blocks, size_t count, float *out);
};
const struct gguf_type *gguf_type_find(uint32_t number); /* NULL: there is none */
const struct gguf_type *gguf_type_named(const char *name);

enum gguf_kind {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64,
    GGUF_I64, GGUF_F64, GGUF_KINDS,
};
const char *gguf_kind_name(enum gguf_kind kind);

/* A value of the metadata. Its bytes lie in the file's header, as they are stored: of a string the characters, of an
 * array its elements (strings with their lengths). */
struct gguf_value {
    const char *key; /* owned by the file */
    enum gguf_kind kind;
    enum gguf_kind item; /* kind of an array's elements */
    uint64_t count;      /* characters of a string, elements of an array, else 1 */
    uint64_t bytes;
    const unsigned char *data;
    uint64_t at; /* byte of the file */
};

struct gguf_tensor {
    const char *name; /* owned by the file */
    const struct gguf_type *type;
    uint32_t rank;
    uint64_t shape[GGUF_RANK_MAX]; /* shape[0]: numbers of a row, which lie side by side; the reverse of Hugging Face */
    uint64_t elements;
    uint64_t begin, bytes; /* byte of the file */
};

struct gguf_file {
    char *path;
    int fd;
    uint64_t bytes;
    uint32_t version;
    uint64_t alignment;
    struct buf header; /* all before the tensors' bytes */
    struct buf names;
    struct gguf_value *values; /* in the order of the file */
    size_t values_count;
    struct gguf_tensor *tensors; /* likewise */
    size_t tensors_count;
    uint32_t *values_by_key, *tensors_by_name;
};

MUST_USE enum err gguf_open(struct gguf_file *f, const char *path);
void gguf_close(struct gguf_file *f); /* safe on a zeroed struct with fd -1 */
/* Whether the file begins as a GGUF file does; false also where it cannot be read. */
bool gguf_is(const char *path);
const struct gguf_value *gguf_find(const struct gguf_file *f, const char *key); /* NULL: there is none */
const struct gguf_tensor *gguf_find_tensor(const struct gguf_file *f, const char *name);
/* One number of the metadata (of an array: element `index`): false when it is of another kind. A whole number must be
 * in the range of the result. */
bool gguf_whole(const struct gguf_value *v, uint64_t index, uint64_t *out);
bool gguf_real(const struct gguf_value *v, uint64_t index, double *out);
bool gguf_flag(const struct gguf_value *v, bool *out);
/* The strings of an array one after another: *at is 0 at first. */
void gguf_next_string(const struct gguf_value *v, uint64_t *at, const char **text, size_t *bytes);

/* Elements [first, first + count) of a tensor as fp32: both whole blocks. raw holds their stored bytes. */
MUST_USE enum err gguf_floats(const struct gguf_file *f, const struct gguf_tensor *t, uint64_t first, size_t count,
                              void *raw, float *out);
/* Read the bytes [offset, offset + count) of the file. */
MUST_USE enum err gguf_bytes(const struct gguf_file *f, uint64_t offset, void *out, size_t count);

#endif
