/* Why this exists: a family is data. Here stands what its decoder is made of where a config.json says nothing: the
 * defaults of Hugging Face transformers. */
#include "base/fmath.h"
#include "conf/family.h"

#define ROPE(base)                                                                                                     \
    {                                                                                                                  \
        .kind = ROPE_DEFAULT, .theta = (base), .factor = 1, .attention_factor = 1                                      \
    }
#define ANY(base) .embed_scale = 1, .bos_token_id = -1, .eos_token_id = -1, .rope = ROPE(base)
/* RMSNorm before both branches, SwiGLU. */
#define LLAMA_LIKE(family_, eps, base)                                                                                 \
    .family = (family_), .norm = NORM_RMS, .norm_eps = (eps), .activation = ACTIVATION_SILU, .gated = true,            \
    .initializer_range = 0.02, ANY(base)
#define GEMMA(family_, base)                                                                                           \
    .family = (family_), .norm = NORM_RMS, .norm_eps = 1e-6, .norms = NORMS_BOTH, .gain_offset = true,                 \
    .activation = ACTIVATION_GELU_TANH, .gated = true, .tied = true, .initializer_range = 0.02, ANY(base)
/* LayerNorm, biases everywhere, one product into the feed-forward width. */
#define GPT_LIKE(family_, act, range)                                                                                  \
    .family = (family_), .norm = NORM_LAYER, .norm_eps = 1e-5, .activation = (act), .qkv_bias = true,                  \
    .out_bias = true, .mlp_bias = true, .initializer_range = (range), ANY(10000)

const struct family_info model_families[FAMILY_COUNT] = {
    [FAMILY_GPT2] = { .name = "gpt2",
                      .architecture = "GPT2LMHeadModel",
                      .defaults = { GPT_LIKE(FAMILY_GPT2, ACTIVATION_GELU_TANH, 0.02), .learned_positions = true,
                                    .tied = true } },
    [FAMILY_LLAMA] = { .name = "llama",
                       .architecture = "LlamaForCausalLM",
                       .rotary_part = 1,
                       .defaults = { LLAMA_LIKE(FAMILY_LLAMA, 1e-6, 10000) } },
    [FAMILY_MISTRAL] = { .name = "mistral",
                         .architecture = "MistralForCausalLM",
                         .rotary_part = 1,
                         .defaults = { LLAMA_LIKE(FAMILY_MISTRAL, 1e-6, 10000) },
                         .windows = WINDOW_ALL,
                         .window = 4096 },
    [FAMILY_QWEN2] = { .name = "qwen2",
                       .architecture = "Qwen2ForCausalLM",
                       .rotary_part = 1,
                       .defaults = { LLAMA_LIKE(FAMILY_QWEN2, 1e-6, 10000), .qkv_bias = true },
                       .windows = WINDOW_SWITCHED,
                       .window = 4096 },
    [FAMILY_QWEN3] = { .name = "qwen3",
                       .architecture = "Qwen3ForCausalLM",
                       .rotary_part = 1,
                       .head_dim = 128,
                       .defaults = { LLAMA_LIKE(FAMILY_QWEN3, 1e-6, 10000), .qk_norm = QK_NORM_HEAD },
                       .windows = WINDOW_SWITCHED,
                       .window = 4096 },
    [FAMILY_GEMMA2] = { .name = "gemma2",
                        .architecture = "Gemma2ForCausalLM",
                        .rotary_part = 1,
                        .head_dim = 256,
                        .defaults = { GEMMA(FAMILY_GEMMA2, 10000), .attention_cap = 50, .final_cap = 30 },
                        .windows = WINDOW_PATTERN,
                        .window = 4096,
                        .pattern = 2,
                        .scalar = 256 },
    [FAMILY_GEMMA3] = { .name = "gemma3_text",
                        .architecture = "Gemma3ForCausalLM",
                        .rotary_part = 1,
                        .head_dim = 256,
                        .defaults = { GEMMA(FAMILY_GEMMA3, 1e6), .qk_norm = QK_NORM_HEAD, .local_rope = ROPE(10000),
                                      .has_local_rope = true },
                        .windows = WINDOW_PATTERN,
                        .window = 4096,
                        .pattern = 6,
                        .scalar = 256 },
    [FAMILY_PHI3] = { .name = "phi3",
                      .architecture = "Phi3ForCausalLM",
                      .rotary_part = 1,
                      .defaults = { LLAMA_LIKE(FAMILY_PHI3, 1e-5, 10000) },
                      .windows = WINDOW_ALL },
    [FAMILY_OLMO2] = { .name = "olmo2",
                       .architecture = "Olmo2ForCausalLM",
                       .rotary_part = 1,
                       .defaults = { LLAMA_LIKE(FAMILY_OLMO2, 1e-5, 10000), .norms = NORMS_AFTER,
                                     .qk_norm = QK_NORM_ALL } },
    [FAMILY_SMOLLM3] = { .name = "smollm3",
                         .architecture = "SmolLM3ForCausalLM",
                         .rotary_part = 1,
                         .defaults = { LLAMA_LIKE(FAMILY_SMOLLM3, 1e-6, 2e6), .tied = true },
                         .windows = WINDOW_UNROTATED },
    [FAMILY_STARCODER2] = { .name = "starcoder2",
                            .architecture = "Starcoder2ForCausalLM",
                            .rotary_part = 1,
                            .defaults = { GPT_LIKE(FAMILY_STARCODER2, ACTIVATION_GELU_TANH, 0.018042), .tied = true },
                            .windows = WINDOW_ALL },
    [FAMILY_NEOX] = { .name = "gpt_neox",
                      .architecture = "GPTNeoXForCausalLM",
                      .rotary_part = 0.25,
                      .defaults = { GPT_LIKE(FAMILY_NEOX, ACTIVATION_GELU, 0.02), .parallel_residual = true } },
};

const char *model_family_name(enum family family)
{
    return model_families[family].name;
}

void model_conf_defaults(struct model_conf *m, enum family family)
{
    *m = model_families[family].defaults;
}

void model_conf_complete(struct model_conf *m)
{
    const struct family_info *info = &model_families[m->family];
    m->kv_heads = m->kv_heads > 0 ? m->kv_heads : m->heads;
    m->head_dim = m->head_dim > 0 ? m->head_dim : info->head_dim > 0 ? info->head_dim : m->hidden / m->heads;
    m->ffn = m->ffn > 0 ? m->ffn : 4 * m->hidden;
    if (m->rotary_dim == 0 && !m->learned_positions) {
        m->rotary_dim = (uint64_t)((double)m->head_dim * info->rotary_part);
    }
    if (m->attention_scale == 0 && m->head_dim > 0) {
        uint64_t scalar = info->scalar > 0 ? info->scalar : m->head_dim;
        m->attention_scale = 1 / fmath_sqrt((double)scalar);
    }
    if (m->gain_offset && m->embed_scale == 1) { /* Gemma; transformers keeps it as fp32 */
        m->embed_scale = (double)(float)fmath_sqrt((double)m->hidden);
    }
}

enum err model_families_list(struct buf *out)
{
    for (int i = 0; i < FAMILY_COUNT; i++) {
        TRY(buf_printf(out, "%s%s", i == 0 ? "" : i + 1 < FAMILY_COUNT ? ", " : " and ", model_families[i].name));
    }
    return OK;
}
