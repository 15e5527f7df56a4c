/* Writing a GGUF file (version 3). First keys and tensors are announced, then values pass by in blocks: nothing larger
 * than a block is held. Everything goes to PATH.tmp, which is fsynced and renamed at the end. Not collective.
 *
 *   gguf_out_u32(&o, "general.alignment", 32); ...; gguf_out_tensor(&o, ...); ...
 *   gguf_out_begin(&o, path);
 *   for each tensor, in the order of their announcement, for each block of it: gguf_out_add(&o, values, count);
 *   gguf_out_finish(&o);
 *   gguf_out_release(&o);   always: it removes what is not finished */
#ifndef CKPT_GGUF_WRITE_H
#define CKPT_GGUF_WRITE_H

#include "base/file.h"
#include "ckpt/gguf.h"

struct gguf_out {
    struct buf keys, tensors; /* as they will be in the file */
    uint64_t keys_count, tensors_count, data_bytes;
    struct gguf_out_tensor {
        char name[GGUF_NAME_BYTES_MAX + 1];
        const struct gguf_type *type;
        uint64_t elements, bytes;
    } *list;
    size_t capacity;
    uint64_t at, done; /* the tensor that is being written, and its elements so far */
    char *path, *temp;
    struct file_out out;
    unsigned char *narrow;
};

MUST_USE enum err gguf_out_u32(struct gguf_out *o, const char *key, uint64_t value); /* ERR_DATA above 32 bits */
MUST_USE enum err gguf_out_f32(struct gguf_out *o, const char *key, double value);
MUST_USE enum err gguf_out_flag(struct gguf_out *o, const char *key, bool value);
MUST_USE enum err gguf_out_string(struct gguf_out *o, const char *key, const char *text, size_t bytes);
/* An array of `count` elements, which the caller appends to o->keys: gguf_out_text for strings, else their bytes. */
MUST_USE enum err gguf_out_array(struct gguf_out *o, const char *key, enum gguf_kind item, uint64_t count);
MUST_USE enum err gguf_out_text(struct gguf_out *o, const char *text, size_t bytes);

/* Whether values can be written as this type: F32, F16, BF16 or Q8_0. */
bool gguf_out_can(const struct gguf_type *type);
/* shape as in struct gguf_tensor. */
MUST_USE enum err gguf_out_tensor(struct gguf_out *o, const char *name, const struct gguf_type *type, uint32_t rank,
                                  const uint64_t *shape);
/* Nothing is replaced: a file of that name is ERR_USAGE. ERR_RESOURCE when the disk has no room. */
MUST_USE enum err gguf_out_begin(struct gguf_out *o, const char *path);
/* The next elements of the tensor, whole blocks. Rounded once: F16 and BF16 to nearest with ties to even, denormals
 * kept; Q8_0 as ggml's reference (scale = largest magnitude / 127, halves away from zero). What the type cannot hold is
 * ERR_DATA with name and place: infinite in F16 but not before; not finite in Q8_0. */
MUST_USE enum err gguf_out_add(struct gguf_out *o, const float *values, size_t count);
MUST_USE enum err gguf_out_finish(struct gguf_out *o);
void gguf_out_release(struct gguf_out *o); /* safe on a struct of zeros with out.fd -1 */

#endif
