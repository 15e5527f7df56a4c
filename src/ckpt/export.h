/* Writing a model folder as Hugging Face does: model.safetensors, or shards and model.safetensors.index.json, and any
 * text beside them. Values pass by in blocks, so memory does not grow with the model. Everything is written into
 * FOLDER.tmp, fsynced, and renamed when it is complete: FOLDER exists whole or not at all. Not collective.
 *
 *   export_open(&e, &plan);
 *   while (export_next(e, &number)) { for each block of the tensor: export_add(e, values, count); }
 *   export_text(e, "config.json", text, bytes);
 *   export_finish(e);
 *   export_close(e);   always, also after an error: it removes what is not finished */
#ifndef CKPT_EXPORT_H
#define CKPT_EXPORT_H

#include "ckpt/safetensors.h"

struct export;

struct export_plan {
    const char *folder; /* must not exist, or be an empty folder */
    /* name, dtype (F32, F16 or BF16), rank and shape of every tensor; the rest is not looked at. Names must stay until
     * export_close. Shards are filled in this order. */
    const struct st_tensor *tensors;
    size_t count;
    uint64_t shard_bytes; /* of data in one file, at most; a larger tensor has a file of its own. 0: one file */
};

/* The dtype of a value of save_dtype: float32, bfloat16, float16 or F32, BF16, F16; NULL for another text. */
const struct st_dtype *export_dtype(const char *text);
/* "5GB" (10^9 bytes), "500MiB" (2^20), "4096": bytes, at least 1. ERR_USAGE names `key`. */
MUST_USE enum err export_size(const char *key, const char *text, uint64_t *bytes);

/* Checks the plan (a name twice or one that safetensors does not allow, too many elements: ERR_DATA) and the free
 * space (ERR_RESOURCE), then makes FOLDER.tmp. Nothing is replaced: a FOLDER or FOLDER.tmp that holds anything is
 * ERR_USAGE. */
MUST_USE enum err export_open(struct export **out, const struct export_plan *plan);
/* Which tensor of the plan the next export_add is for; false when all are there. File after file, in each as the
 * reference implementation orders them: wider types first, then by name. */
bool export_next(const struct export *e, size_t *number);
/* The next `count` elements of that tensor, in row-major order. Each is rounded once, to nearest with ties to even,
 * denormals kept. A finite value that its dtype cannot hold (above 65504 in float16) is ERR_DATA with name and
 * place. */
MUST_USE enum err export_add(struct export *e, const float *values, size_t count);
/* Another file of the folder. */
MUST_USE enum err export_text(struct export *e, const char *name, const void *bytes, size_t count);
/* The folder that is being written, for those who put files of their own there before export_finish. */
const char *export_folder(const struct export *e);
/* How many files of tensors there will be, and their bytes of data. */
size_t export_shards(const struct export *e);
uint64_t export_bytes(const struct export *e);
/* The index when there is more than one file, fsync, rename. All tensors must be there. */
MUST_USE enum err export_finish(struct export *e);
/* Safe on NULL. Removes FOLDER.tmp unless export_finish has succeeded. */
void export_close(struct export *e);

#endif
