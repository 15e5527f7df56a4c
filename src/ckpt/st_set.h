/* The tensors of one model, whether they lie in one file or in the shards of an index: one list of names. For ckpt, and
 * for commands that convert or dump tensors. Not collective. */
#ifndef CKPT_ST_SET_H
#define CKPT_ST_SET_H

#include "ckpt/manifest.h"

#define INDEX_NAME MODEL_NAME ".index.json"
#define INDEX_BYTES_MAX ((size_t)64 << 20)
#define INDEX_SHARDS_MAX 4096u

struct st_place {
    struct st_file *file;
    struct st_tensor *tensor;
};

struct st_set {
    char *path; /* of the one file or of the index, for messages */
    struct st_file *files;
    size_t files_count;
    struct st_place *list; /* ascending name */
    size_t count;
    uint64_t bytes; /* of all files */
};

/* One file. */
MUST_USE enum err st_set_open(struct st_set *s, const char *path, bool links);
/* FOLDER/model.safetensors.index.json and its shards. Refused, all at once: a shard that is not a plain file name, that
 * is missing or a link; a tensor that the index does not list, that its shard lacks, or that is in two shards; a
 * total_size that is not the sum of the tensors' bytes. Only regular files directly in the folder are opened. */
MUST_USE enum err st_set_open_index(struct st_set *s, const char *folder);
/* FOLDER/model.safetensors, or the index; both: ERR_DATA. A single file may be a link. */
MUST_USE enum err st_set_open_model(struct st_set *s, const char *folder);
void st_set_close(struct st_set *s); /* safe on a zeroed struct */
/* The tensor of that name, NULL when there is none. */
const struct st_place *st_set_find(const struct st_set *s, const char *name);

#endif
