/* A decoder as a Hugging Face config.json describes it. */
#ifndef CONF_MODEL_CONF_H
#define CONF_MODEL_CONF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "conf/finding.h"

enum family {
    FAMILY_GPT2,
    FAMILY_LLAMA,   /* Llama 2, 3, 3.x; SmolLM2, TinyLlama */
    FAMILY_MISTRAL,
    FAMILY_QWEN2,
    FAMILY_QWEN3,
    FAMILY_GEMMA2,
    FAMILY_GEMMA3,  /* gemma3_text */
    FAMILY_PHI3,
    FAMILY_OLMO2,
    FAMILY_SMOLLM3,
    FAMILY_STARCODER2,
    FAMILY_NEOX,    /* Pythia */
    FAMILY_COUNT,
};

enum norm_kind { NORM_LAYER, NORM_RMS };
/* Where a branch (attention, feed-forward) has norms: before it, after it, or both. */
enum norm_place { NORMS_BEFORE, NORMS_AFTER, NORMS_BOTH };
enum activation { ACTIVATION_GELU_TANH, ACTIVATION_GELU, ACTIVATION_SILU }; /* GELU: with erf */
/* Norms of queries and keys before they are rotated: none; of each head (one gain of head_dim for all heads); of all
 * heads of a token together. */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_ALL };
/* How rotary frequencies are changed for longer sequences, as transformers' modeling_rope_utils names them. */
enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE };

#define MODEL_LAYERS_MAX 4096u
#define MODEL_HEAD_DIM_MAX 256u

struct rope_conf {
    enum rope_kind kind;
    double theta;                  /* base of the frequencies */
    double factor;                 /* all kinds but default */
    double low_freq, high_freq;    /* llama3 */
    double beta_fast, beta_slow;   /* yarn */
    double attention_factor;       /* what cos and sin are multiplied by: yarn, longrope; else 1 */
    uint64_t original_positions;   /* dynamic, llama3, yarn, longrope */
    bool truncate;                 /* yarn */
    float long_factor[MODEL_HEAD_DIM_MAX / 2], short_factor[MODEL_HEAD_DIM_MAX / 2]; /* longrope */
};

struct model_conf {
    enum family family;
    uint64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    uint64_t positions; /* max_position_embeddings or n_positions */
    double norm_eps;
    enum norm_kind norm;
    enum norm_place norms;
    bool gain_offset;       /* norms multiply by 1 + gain (Gemma) */
    enum qk_norm qk_norm;
    enum activation activation;
    bool gated;             /* activation(gate) * up; else activation(up) */
    bool parallel_residual; /* x + attention(norm1(x)) + feed-forward(norm2(x)) (NeoX) */
    bool learned_positions; /* a table of positions is added; else rotary */
    bool qkv_bias, out_bias, mlp_bias;
    uint64_t rotary_dim;    /* numbers of a head that are rotated, even, the first ones */
    struct rope_conf rope;
    struct rope_conf local_rope;   /* of layers with a window, where has_local_rope (Gemma 3) */
    bool has_local_rope;
    uint64_t window;               /* a query sees itself and window - 1 tokens before it, in layers of `windowed`; 0:
                                    * none */
    uint64_t windowed[MODEL_LAYERS_MAX / 64]; /* bit l: layer l has the window */
    uint64_t unrotated[MODEL_LAYERS_MAX / 64]; /* bit l: layer l has no positions (SmolLM3) */
    double attention_scale;        /* scores are multiplied by it; usually head_dim^-0.5 */
    double attention_cap, final_cap; /* cap * tanh(x / cap) of scores and logits; 0: none (Gemma 2) */
    double embed_scale;            /* embeddings are multiplied by it, as fp32; usually 1 */
    double initializer_range;           /* standard deviation of fresh weights */
    double resid_dropout, embd_dropout; /* gpt2: rates in [0, 1) of dropout on the residual stream's additions, and on
                                         * the sum of embeddings */
    bool tied;                          /* the head is the embedding */
    int64_t bos_token_id, eos_token_id; /* -1: none */
};

static inline bool model_conf_windowed(const struct model_conf *m, uint64_t layer)
{
    return m->window != 0 && (m->windowed[layer / 64] >> layer % 64 & 1) != 0;
}

static inline bool model_conf_rotates(const struct model_conf *m, uint64_t layer)
{
    return !m->learned_positions && (m->unrotated[layer / 64] >> layer % 64 & 1) == 0;
}

/* The frequency (radians a position) of each pair of rotated numbers, [rotary_dim / 2], for sequences of `length`
 * tokens, in double; *scale is what cos and sin are multiplied by. Formulas as in the papers (linear: Chen 2023;
 * dynamic: NTK by bloc97; llama3: Meta 2024; yarn: Peng 2023; longrope: Ding 2024), with transformers' conventions. */
void model_conf_frequencies(const struct model_conf *m, const struct rope_conf *r, uint64_t length, double *frequency,
                            double *scale);

/* Read a config.json text (also YAML, as the inline `model:` block is). Every field that changes the arithmetic is used
 * or refused; nothing is ignored silently. Findings name file:line:col. */
MUST_USE enum err model_conf_parse(struct model_conf *m, const char *name, const char *text, size_t bytes,
                                   struct findings *f);
/* Read FOLDER/config.json. */
MUST_USE enum err model_conf_read(struct model_conf *m, const char *folder, struct findings *f);
/* config.json as Hugging Face writes it; transformers loads it. */
MUST_USE enum err model_conf_write(const struct model_conf *m, struct buf *out);
/* Parameters, counted once when tied. */
uint64_t model_conf_parameters(const struct model_conf *m);

/* model_type of a family: "llama". */
const char *model_family_name(enum family family);
/* What a config.json of a family says that says nothing; sizes are 0. */
void model_conf_defaults(struct model_conf *m, enum family family);
/* Fill what follows from layers, hidden, heads and the family, where it is 0: kv_heads, head_dim, ffn, rotary_dim,
 * attention_scale; and the embeddings' scale. */
void model_conf_complete(struct model_conf *m);
/* What a decoder has that Llama or GPT-2 has not, in words: ", window of 4096 in 13 of 26 layers". Nothing for a
 * plain one. */
MUST_USE enum err model_conf_special(const struct model_conf *m, struct buf *out);

#endif
