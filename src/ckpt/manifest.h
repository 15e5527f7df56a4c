/* manifest.json: what a checkpoint consists of, with sizes and hashes; written last, so that its presence means that
 * all else is there. Used inside ckpt only. Not collective. */
#ifndef CKPT_MANIFEST_H
#define CKPT_MANIFEST_H

#include "base/json.h"
#include "ckpt/safetensors.h"

#define MANIFEST_NAME "manifest.json"
#define MANIFEST_FORMAT "invar-ckpt/1"
#define MANIFEST_NUMERICS "invar-num/1"
#define MANIFEST_BYTES_MAX ((size_t)200000000)
#define MODEL_NAME "model.safetensors"

struct manifest_file {
    const char *name;
    uint64_t bytes;
    char hash[33];
    bool tensor_file; /* it has a list of tensors */
    struct st_tensor *tensors; /* ascending begin; of a manifest that was read without `end` and `elements` */
    size_t count;
};

struct manifest {
    uint64_t step, state_hash;
    struct manifest_file *files;
    size_t count;
    char **owned; /* names of files found while saving */
    size_t owned_count;
    json_t *root; /* owns the names of a manifest that was read; NULL while saving */
};

/* A name that may stand in a manifest: plain, no path. */
bool manifest_name_ok(const char *name);
/* The file's text, ready to be written. */
MUST_USE enum err manifest_print(const struct manifest *m, struct buf *out);
/* Read FOLDER/manifest.json and check its own hash and every rule inside it. */
MUST_USE enum err manifest_read(struct manifest *m, const char *folder);
/* Safe on a zeroed struct. */
void manifest_release(struct manifest *m);
/* The entry of a file, NULL when there is none. */
const struct manifest_file *manifest_find(const struct manifest *m, const char *name);
/* Whether the header of an opened file names exactly the tensors of the manifest. */
MUST_USE enum err manifest_match(const struct manifest_file *f, const struct st_file *file);

/* What manifest_verify found. */
struct manifest_sums {
    uint64_t files, tensors, bytes, not_finite;
    uint64_t state_hash;
};
/* Sizes only: every file of the manifest is a regular file of `folder` with the recorded size. */
MUST_USE enum err manifest_check_sizes(const struct manifest *m, const char *folder);
/* Read everything: headers, tensor hashes, file hashes, state hash. */
MUST_USE enum err manifest_verify(const struct manifest *m, const char *folder, struct manifest_sums *sums);
/* hash128 of a whole regular file and its size. */
MUST_USE enum err manifest_hash_file(const char *path, uint64_t *bytes, char hash[33]);
/* The state hash from the sums of a scanned model file. ERR_DATA when a tensor is not of a float dtype. */
MUST_USE enum err manifest_state_hash(const struct st_file *f, uint64_t *hash);

#endif
