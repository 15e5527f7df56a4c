/* The model that is converted: its description, its tensors under both names, and their values in the layout of either
 * kind of file. Not collective. */
#ifndef CKPT_CONVERT_READ_H
#define CKPT_CONVERT_READ_H

#include "ckpt/ckpt_open.h"
#include "ckpt/gguf_arch.h"
#include "ckpt/st_set.h"

struct convert_place {
    const struct st_place *st; /* in a folder */
    const struct gguf_tensor *gguf; /* in a GGUF file */
};

struct convert_source {
    bool is_gguf;
    struct gguf_file gguf;
    struct ckpt *ckpt; /* else */
    struct st_set weights;
    bool described;                /* conf and arch are set: always, but not for a folder that stays one */
    struct model_conf conf;
    const struct gguf_arch *arch;
    struct gguf_map *maps;         /* every tensor */
    struct convert_place *places;  /* where each is */
    size_t count;
    void *raw;                     /* a block as it is stored */
};

/* Open a GGUF file or a folder. With `describe`, all its tensors must be those of its description, name by name and
 * shape by shape (ERR_DATA lists what is not); without, a folder's are taken as they are. */
MUST_USE enum err convert_open(struct convert_source *s, const char *path, bool describe);
void convert_close(struct convert_source *s);

/* Takes the next values of the tensor. */
typedef enum err convert_sink(void *arg, const float *values, size_t count);
/* All values of tensor i, in row-major order of its Hugging Face shape or in the order of a GGUF file, block by
 * block (a multiple of 256 elements but for the last). */
MUST_USE enum err convert_values(const struct convert_source *s, size_t i, bool to_gguf, convert_sink *sink, void *arg);
/* The stored type of a tensor: "BF16". */
const char *convert_type(const struct convert_source *s, size_t i);

#endif
