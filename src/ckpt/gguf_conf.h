/* A model's description in the metadata of a GGUF file, and as struct model_conf. Not collective. */
#ifndef CKPT_GGUF_CONF_H
#define CKPT_GGUF_CONF_H

#include "ckpt/gguf_arch.h"
#include "ckpt/gguf_write.h"

/* What the metadata says. Every key of the architecture is used or refused by name. */
MUST_USE enum err gguf_conf_read(const struct gguf_file *f, const struct gguf_arch **arch, struct model_conf *c);
/* The keys of the architecture. What llama.cpp would compute otherwise than the model is refused, named by `from`. */
MUST_USE enum err gguf_conf_put(struct gguf_out *o, const struct gguf_arch *a, const struct model_conf *c,
                                const char *from);
/* Rotary frequencies that are not those of the base alone are tensors in a GGUF file: factors by which each is
 * divided. */
struct gguf_rope_table {
    const char *name;                     /* "rope_freqs.weight"; NULL: none */
    float values[MODEL_HEAD_DIM_MAX / 2]; /* rotary_dim / 2 */
};
/* The tables of a model (at most two), in out[0] and out[1]. */
void gguf_conf_tables(const struct model_conf *c, struct gguf_rope_table out[2]);
/* Whether a tensor of that name is such a table. */
bool gguf_conf_is_table(const char *name);

#endif
