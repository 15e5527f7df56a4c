/* The architectures of GGUF files that Invar has a family for: how llama.cpp names their tensors and lays them out,
 * beside Hugging Face. Not collective. */
#ifndef CKPT_GGUF_ARCH_H
#define CKPT_GGUF_ARCH_H

#include "ckpt/gguf.h"
#include "conf/model_conf.h"

enum gguf_arch_id {
    ARCH_LLAMA, /* Mistral too */
    ARCH_QWEN2, ARCH_QWEN3, ARCH_GEMMA2, ARCH_GEMMA3, ARCH_PHI3, ARCH_GPT2, ARCH_STARCODER2, ARCH_NEOX, ARCH_OLMO2,
    ARCH_SMOLLM3, ARCH_COUNT,
};

struct gguf_arch {
    enum gguf_arch_id id;
    const char *name; /* general.architecture, and what its keys begin with */
    enum family family;
    const char *model_type; /* of config.json */
    bool rotates_pairs; /* numbers 2j and 2j + 1 of a head turn together, not j and j + head_dim / 2 */
    bool adds_one;      /* the gains of norms are stored as 1 + gain */
};

const struct gguf_arch *gguf_arch_named(const char *name, size_t bytes); /* NULL: there is none */
const struct gguf_arch *gguf_arch_of(enum family family);
/* All names, for messages: "llama, qwen2, ...". */
const char *gguf_arch_names(void);

/* How the rows of a tensor in a GGUF file relate to those in a Hugging Face file. */
enum gguf_layout {
    LAYOUT_SAME,
    LAYOUT_TRANSPOSED, /* rows are columns */
    LAYOUT_PAIRS,      /* rows of each head: j of half s is row 2j + s in GGUF */
    LAYOUT_FUSED,      /* rows of queries, keys and values: by head in Hugging Face, all heads' queries first in GGUF */
};

#define GGUF_HF_NAME_BYTES 96u

struct gguf_map {
    char gguf[GGUF_NAME_BYTES_MAX + 1], hf[GGUF_HF_NAME_BYTES];
    uint32_t rank;
    uint64_t shape[2]; /* as Hugging Face has it; shape[1] is 1 for vectors */
    enum gguf_layout layout;
    uint64_t heads; /* LAYOUT_PAIRS, LAYOUT_FUSED: of the rows */
    bool adds_one;
};

/* Every tensor of a model, in the order of a GGUF file. *list is heap memory. */
MUST_USE enum err gguf_arch_list(const struct gguf_arch *a, const struct model_conf *c, struct gguf_map **list,
                                 size_t *count);
/* Which row of the Hugging Face tensor is row `row` of the GGUF tensor, and the other way. Not for
 * LAYOUT_TRANSPOSED. */
uint64_t gguf_map_hf_row(const struct gguf_map *m, uint64_t row);
uint64_t gguf_map_gguf_row(const struct gguf_map *m, uint64_t row);

#endif
