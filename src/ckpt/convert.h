/* A model from one kind of file to another: Hugging Face folders, checkpoints of Invar and GGUF files. Tensor by tensor
 * and block by block, so that memory does not grow with the model. Not collective. */
#ifndef CKPT_CONVERT_H
#define CKPT_CONVERT_H

#include "base/err.h"

struct convert_options {
    bool gguf;             /* write a GGUF file, else a Hugging Face folder */
    const char *dtype;     /* f32, f16, bf16 or q8_0 (GGUF only); NULL: f32, or bf16 or f16 where all weights are so */
    uint64_t shard_bytes;  /* of a file of the folder; 0: one file */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes that are written; may be NULL */
    void *progress_arg;
};

/* `from`: a GGUF file, a Hugging Face folder, a checkpoint or a run. `to` must not exist; it is there complete or not
 * at all. Everything the model is, is converted or refused by name. */
MUST_USE enum err convert_model(const char *from, const char *to, const struct convert_options *o);

#endif
