/* One safetensors file: a header that names every tensor and its bytes, then the bytes. Reading is total: any file
 * gives either the tensors or an error that names the rule and the byte offset. For ckpt, and for commands that dump
 * tensors. Not collective. */
#ifndef CKPT_SAFETENSORS_H
#define CKPT_SAFETENSORS_H

#include "base/buf.h"
#include "base/err.h"
#include "ckpt/ckpt.h"

#define ST_HEADER_BYTES_MAX ((uint64_t)100000000) /* the limit of the reference implementation */
#define ST_RANK_MAX 8u
#define ST_NAME_BYTES_MAX 4096u
#define ST_DIM_MAX ((uint64_t)1 << 48)
#define ST_BLOCK_BYTES ((size_t)1 << 18) /* what is read and hashed at once: stays in the cache */

struct st_dtype {
    const char *name; /* "F32" */
    uint32_t bits;
    bool floats; /* Invar can widen it to fp32 exactly */
};

struct st_tensor {
    const char *name; /* owned by the header, the manifest or the caller that made this entry */
    const struct st_dtype *dtype;
    uint32_t rank;
    uint64_t shape[ST_RANK_MAX];
    uint64_t elements;
    uint64_t begin, end; /* bytes, counted from the end of the header */
    char hash[33];       /* hash128 of the stored bytes; "" when not known */
    uint64_t sum;        /* sum of hash_element over the fp32 values; set by st_scan for float tensors */
    uint64_t not_finite; /* likewise: how many values are NaN or infinite */
};

struct st_file {
    char *path;
    int fd;
    uint64_t bytes;
    uint64_t data_start; /* 8 + length of the header */
    struct buf header;   /* decoded in place: the names point into it */
    struct st_tensor *tensors; /* ascending begin */
    size_t count, capacity;
    uint32_t *by_name; /* numbers of tensors, ascending name */
    char hash[33];     /* of the whole file; set by st_scan */
};

/* The entry of a dtype's name, NULL when there is no such dtype. */
const struct st_dtype *st_dtype_find(const char *name);
/* Fill elements from rank and shape and check them and end - begin against the dtype. *rule names the broken rule, else
 * NULL. */
void st_check_size(struct st_tensor *t, const char **rule);
/* "[2, 3]"; out holds 192 bytes. */
const char *st_shape_text(uint32_t rank, const uint64_t *shape, char out[192]);

/* Open and read the header. links: whether `path` may be a symbolic link (models of others, never checkpoints). */
MUST_USE enum err st_open(struct st_file *f, const char *path, bool links);
/* The same for the regular file `name` of an open folder, never through a link; `path` is for messages. */
MUST_USE enum err st_open_at(struct st_file *f, int folder, const char *name, const char *path);
/* Parse f->header (decoding in place) for a file of f->bytes bytes: fills tensors and by_name. */
MUST_USE enum err st_parse(struct st_file *f);
void st_close(struct st_file *f); /* safe on a zeroed struct with fd -1 */
/* The tensor of that name, NULL when there is none. */
struct st_tensor *st_find(const struct st_file *f, const char *name);

/* Read bytes [offset, offset + count) of the file. */
MUST_USE enum err st_bytes(const struct st_file *f, uint64_t offset, void *out, size_t count);
/* Read elements [first, first + count) of a float tensor, widened exactly to fp32. raw: room for count stored elements;
 * may be `out` itself for F32. */
MUST_USE enum err st_floats(const struct st_file *f, const struct st_tensor *t, uint64_t first, size_t count, void *raw,
                            float *out);
/* Read a whole float tensor once and fill the boxes of `want`, whose rows are as long; hashed: set t->hash. */
MUST_USE enum err st_load(const struct st_file *f, struct st_tensor *t, bool hashed, const struct ckpt_tensor *want);
/* Read the file once from start to end: sets f->hash and each tensor's hash, sum and not_finite. */
MUST_USE enum err st_scan(struct st_file *f);

/* Write the tensors of `file` as fp32, sorted by name, as the reference implementation writes them, and fsync. The
 * source is asked for them as ckpt.h says, with `number` as the file's. *written gets file->count entries (heap, names
 * of the caller) with hashes in file order; hash and bytes are the file's. On error there is no file. */
struct st_written {
    struct st_tensor *tensors;
    size_t count;
    uint64_t bytes;
    char hash[33];
};
MUST_USE enum err st_write(const char *path, const struct ckpt_file *file, size_t number,
                           const struct ckpt_source *source, struct st_written *written);
/* The header of these tensors, in this order and with these begin and end, as the reference implementation writes it:
 * padded with spaces to a multiple of 8. */
MUST_USE enum err st_header_text(const struct st_tensor *list, size_t count, struct buf *out);
/* Bytes st_write will need, at most. */
uint64_t st_write_bytes(const struct ckpt_file *file);

#endif
