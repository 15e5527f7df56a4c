/* Why this exists: a model has other names in a GGUF file, and some of its tensors other layouts. All of it is one
 * table: a row is a tensor with its two names, its shape, the architectures that have it and what differs. */
#include "ckpt/gguf_arch.h"

#include <inttypes.h>

#include "base/mem.h"

static const struct gguf_arch archs[ARCH_COUNT] = {
    { ARCH_LLAMA, "llama", FAMILY_LLAMA, "llama", true, false },
    { ARCH_QWEN2, "qwen2", FAMILY_QWEN2, "qwen2", false, false },
    { ARCH_QWEN3, "qwen3", FAMILY_QWEN3, "qwen3", false, false },
    { ARCH_GEMMA2, "gemma2", FAMILY_GEMMA2, "gemma2", false, true },
    { ARCH_GEMMA3, "gemma3", FAMILY_GEMMA3, "gemma3_text", false, true },
    { ARCH_PHI3, "phi3", FAMILY_PHI3, "phi3", false, false },
    { ARCH_GPT2, "gpt2", FAMILY_GPT2, "gpt2", false, false },
    { ARCH_STARCODER2, "starcoder2", FAMILY_STARCODER2, "starcoder2", false, false },
    { ARCH_NEOX, "gptneox", FAMILY_NEOX, "gpt_neox", false, false },
    { ARCH_OLMO2, "olmo2", FAMILY_OLMO2, "olmo2", false, false },
    { ARCH_SMOLLM3, "smollm3", FAMILY_SMOLLM3, "smollm3", true, false },
};

const struct gguf_arch *gguf_arch_named(const char *name, size_t bytes)
{
    for (size_t i = 0; i < ARCH_COUNT; i++) {
        if (strlen(archs[i].name) == bytes && memcmp(archs[i].name, name, bytes) == 0) {
            return &archs[i];
        }
    }
    return NULL;
}

const struct gguf_arch *gguf_arch_of(enum family family)
{
    for (size_t i = 0; i < ARCH_COUNT; i++) {
        if (archs[i].family == family) {
            return &archs[i];
        }
    }
    BUG_IF(family != FAMILY_MISTRAL);
    return &archs[ARCH_LLAMA];
}

const char *gguf_arch_names(void)
{
    return "llama, qwen2, qwen3, gemma2, gemma3, phi3, gpt2, starcoder2, gptneox, olmo2, smollm3";
}

/* ---- the table ---- */

#define A(name) (1u << ARCH_##name)
#define GPT2_NEOX (A(GPT2) | A(NEOX))
#define LLAMA_LIKE (((1u << ARCH_COUNT) - 1) & ~GPT2_NEOX) /* names of tensors as Llama's */
#define GEMMA (A(GEMMA2) | A(GEMMA3))
#define SPLIT_QKV (LLAMA_LIKE & ~A(PHI3))
#define GATED (LLAMA_LIKE & ~(A(PHI3) | A(STARCODER2)))

enum dim { DIM_ONE, DIM_H, DIM_V, DIM_P, DIM_F, DIM_2F, DIM_Q, DIM_KV, DIM_QKV, DIM_D };
/* What a tensor depends on: nothing, or a property of the model. Those with a bias have it where the model does. */
enum when { ALWAYS, WHEN_UNTIED };
enum bias { BIAS_NO, BIAS_NORM, BIAS_QKV, BIAS_OUT, BIAS_MLP };

struct row {
    const char *gguf, *hf; /* without .weight; %u is the layer */
    uint32_t archs;
    enum dim rows, cols;
    enum bias bias;
    enum gguf_layout layout;
    enum when when;
};

#define L "model.layers.%u."
#define N "gpt_neox.layers.%u."
#define G "transformer.h.%u."
#define NORM DIM_H, DIM_ONE, BIAS_NORM
static const struct row rows[] = {
    { "token_embd", "model.embed_tokens", LLAMA_LIKE, DIM_V, DIM_H, BIAS_NO, LAYOUT_SAME, ALWAYS },
    { "token_embd", "transformer.wte", A(GPT2), DIM_V, DIM_H, BIAS_NO, LAYOUT_SAME, ALWAYS },
    { "token_embd", "gpt_neox.embed_in", A(NEOX), DIM_V, DIM_H, BIAS_NO, LAYOUT_SAME, ALWAYS },
    { "position_embd", "transformer.wpe", A(GPT2), DIM_P, DIM_H, BIAS_NO, LAYOUT_SAME, ALWAYS },

    { "blk.%u.attn_norm", L "input_layernorm", LLAMA_LIKE & ~A(OLMO2), NORM, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_norm", G "ln_1", A(GPT2), NORM, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_norm", N "input_layernorm", A(NEOX), NORM, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_q", L "self_attn.q_proj", SPLIT_QKV, DIM_Q, DIM_H, BIAS_QKV, LAYOUT_PAIRS, ALWAYS },
    { "blk.%u.attn_k", L "self_attn.k_proj", SPLIT_QKV, DIM_KV, DIM_H, BIAS_QKV, LAYOUT_PAIRS, ALWAYS },
    { "blk.%u.attn_v", L "self_attn.v_proj", SPLIT_QKV, DIM_KV, DIM_H, BIAS_QKV, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_qkv", L "self_attn.qkv_proj", A(PHI3), DIM_QKV, DIM_H, BIAS_QKV, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_qkv", G "attn.c_attn", A(GPT2), DIM_H, DIM_QKV, BIAS_QKV, LAYOUT_TRANSPOSED, ALWAYS },
    { "blk.%u.attn_qkv", N "attention.query_key_value", A(NEOX), DIM_QKV, DIM_H, BIAS_QKV, LAYOUT_FUSED, ALWAYS },
    { "blk.%u.attn_q_norm", L "self_attn.q_norm", A(QWEN3) | A(GEMMA3), DIM_D, DIM_ONE, BIAS_NO, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_k_norm", L "self_attn.k_norm", A(QWEN3) | A(GEMMA3), DIM_D, DIM_ONE, BIAS_NO, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_q_norm", L "self_attn.q_norm", A(OLMO2), DIM_Q, DIM_ONE, BIAS_NO, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_k_norm", L "self_attn.k_norm", A(OLMO2), DIM_KV, DIM_ONE, BIAS_NO, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_output", L "self_attn.o_proj", LLAMA_LIKE, DIM_H, DIM_Q, BIAS_OUT, LAYOUT_SAME, ALWAYS },
    { "blk.%u.attn_output", G "attn.c_proj", A(GPT2), DIM_Q, DIM_H, BIAS_OUT, LAYOUT_TRANSPOSED, ALWAYS },
    { "blk.%u.attn_output", N "attention.dense", A(NEOX), DIM_H, DIM_Q, BIAS_OUT, LAYOUT_SAME, ALWAYS },
    { "blk.%u.post_attention_norm", L "post_attention_layernorm", GEMMA | A(OLMO2), NORM, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_norm", L "pre_feedforward_layernorm", GEMMA, NORM, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_norm", L "post_attention_layernorm", LLAMA_LIKE & ~(GEMMA | A(OLMO2)), NORM, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_norm", G "ln_2", A(GPT2), NORM, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_norm", N "post_attention_layernorm", A(NEOX), NORM, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_gate", L "mlp.gate_proj", GATED, DIM_F, DIM_H, BIAS_MLP, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_up", L "mlp.up_proj", GATED, DIM_F, DIM_H, BIAS_MLP, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_up", L "mlp.gate_up_proj", A(PHI3), DIM_2F, DIM_H, BIAS_MLP, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_up", L "mlp.c_fc", A(STARCODER2), DIM_F, DIM_H, BIAS_MLP, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_up", G "mlp.c_fc", A(GPT2), DIM_H, DIM_F, BIAS_MLP, LAYOUT_TRANSPOSED, ALWAYS },
    { "blk.%u.ffn_up", N "mlp.dense_h_to_4h", A(NEOX), DIM_F, DIM_H, BIAS_MLP, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_down", L "mlp.down_proj", GATED | A(PHI3), DIM_H, DIM_F, BIAS_MLP, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_down", L "mlp.c_proj", A(STARCODER2), DIM_H, DIM_F, BIAS_MLP, LAYOUT_SAME, ALWAYS },
    { "blk.%u.ffn_down", G "mlp.c_proj", A(GPT2), DIM_F, DIM_H, BIAS_MLP, LAYOUT_TRANSPOSED, ALWAYS },
    { "blk.%u.ffn_down", N "mlp.dense_4h_to_h", A(NEOX), DIM_H, DIM_F, BIAS_MLP, LAYOUT_SAME, ALWAYS },
    { "blk.%u.post_ffw_norm", L "post_feedforward_layernorm", GEMMA | A(OLMO2), NORM, LAYOUT_SAME, ALWAYS },

    { "output_norm", "model.norm", LLAMA_LIKE, NORM, LAYOUT_SAME, ALWAYS },
    { "output_norm", "transformer.ln_f", A(GPT2), NORM, LAYOUT_SAME, ALWAYS },
    { "output_norm", "gpt_neox.final_layer_norm", A(NEOX), NORM, LAYOUT_SAME, ALWAYS },
    { "output", "lm_head", LLAMA_LIKE | A(GPT2), DIM_V, DIM_H, BIAS_NO, LAYOUT_SAME, WHEN_UNTIED },
    { "output", "embed_out", A(NEOX), DIM_V, DIM_H, BIAS_NO, LAYOUT_SAME, WHEN_UNTIED },
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static uint64_t dim_size(const struct model_conf *c, enum dim d)
{
    uint64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    switch (d) {
    case DIM_H: return c->hidden;
    case DIM_V: return c->vocab;
    case DIM_P: return c->positions;
    case DIM_F: return c->ffn;
    case DIM_2F: return 2 * c->ffn;
    case DIM_Q: return q;
    case DIM_KV: return kv;
    case DIM_QKV: return q + 2 * kv;
    case DIM_D: return c->head_dim;
    case DIM_ONE: break;
    }
    return 1;
}

static bool has_bias(const struct model_conf *c, enum bias bias)
{
    switch (bias) {
    case BIAS_NORM: return c->norm == NORM_LAYER;
    case BIAS_QKV: return c->qkv_bias;
    case BIAS_OUT: return c->out_bias;
    case BIAS_MLP: return c->mlp_bias;
    case BIAS_NO: break;
    }
    return false;
}

/* ---- the list ---- */

struct lister {
    const struct gguf_arch *a;
    const struct model_conf *c;
    struct gguf_map *list;
    size_t count;
};

static void name(char *out, size_t bytes, const char *pattern, uint64_t layer, const char *end)
{
    const char *mark = strstr(pattern, "%u");
    if (mark == NULL) {
        snprintf(out, bytes, "%s%s", pattern, end);
    } else {
        snprintf(out, bytes, "%.*s%" PRIu64 "%s%s", (int)(mark - pattern), pattern, layer, mark + 2, end);
    }
}

static void add(struct lister *l, const struct row *r, uint64_t layer, bool bias)
{
    struct gguf_map *m = &l->list[l->count++];
    bool transposed = r->layout == LAYOUT_TRANSPOSED, matrix = !bias && r->cols != DIM_ONE;
    *m = (struct gguf_map){ .rank = matrix ? 2 : 1, .layout = r->layout };
    name(m->gguf, sizeof(m->gguf), r->gguf, layer, bias ? ".bias" : ".weight");
    name(m->hf, sizeof(m->hf), r->hf, layer, bias ? ".bias" : ".weight");
    m->shape[0] = dim_size(l->c, bias && transposed ? r->cols : r->rows);
    m->shape[1] = matrix ? dim_size(l->c, r->cols) : 1;
    if ((bias && transposed) || (r->layout == LAYOUT_PAIRS && !l->a->rotates_pairs)) {
        m->layout = LAYOUT_SAME;
    }
    m->heads = r->rows == DIM_KV ? l->c->kv_heads : l->c->heads;
    m->adds_one = l->a->adds_one && !matrix && strstr(r->gguf, "norm") != NULL;
}

static void add_row(struct lister *l, const struct row *r, uint64_t layer)
{
    if ((r->archs >> l->a->id & 1) == 0 || (r->when == WHEN_UNTIED && l->c->tied)) {
        return;
    }
    add(l, r, layer, false);
    if (has_bias(l->c, r->bias)) {
        add(l, r, layer, true);
    }
}

enum err gguf_arch_list(const struct gguf_arch *a, const struct model_conf *c, struct gguf_map **list, size_t *count)
{
    void *mem;
    TRY(mem_alloc(&mem, mem_mul(2 * ROWS, c->layers), sizeof(struct gguf_map)));
    struct lister l = { a, c, mem, 0 };
    size_t first = 0, end = 0;
    while (strncmp(rows[first].gguf, "blk.", 4) != 0) {
        add_row(&l, &rows[first++], 0);
    }
    for (uint64_t layer = 0; layer < c->layers; layer++) {
        for (end = first; strncmp(rows[end].gguf, "blk.", 4) == 0; end++) {
            add_row(&l, &rows[end], layer);
        }
    }
    for (; end < ROWS; end++) {
        add_row(&l, &rows[end], 0);
    }
    *list = l.list;
    *count = l.count;
    return OK;
}

/* ---- rows ---- */

uint64_t gguf_map_hf_row(const struct gguf_map *m, uint64_t row)
{
    if (m->layout == LAYOUT_SAME) {
        return row;
    }
    uint64_t head_dim = m->shape[0] / m->heads;
    if (m->layout == LAYOUT_PAIRS) {
        uint64_t in = row % head_dim;
        return row - in + in % 2 * (head_dim / 2) + in / 2;
    }
    BUG_IF(m->layout != LAYOUT_FUSED);
    head_dim /= 3;
    uint64_t part = row / (m->heads * head_dim), head = row / head_dim % m->heads;
    return (head * 3 + part) * head_dim + row % head_dim;
}

uint64_t gguf_map_gguf_row(const struct gguf_map *m, uint64_t row)
{
    if (m->layout == LAYOUT_SAME) {
        return row;
    }
    uint64_t head_dim = m->shape[0] / m->heads;
    if (m->layout == LAYOUT_PAIRS) {
        uint64_t in = row % head_dim, half = head_dim / 2;
        return row - in + in % half * 2 + in / half;
    }
    BUG_IF(m->layout != LAYOUT_FUSED);
    head_dim /= 3;
    uint64_t head = row / (3 * head_dim), part = row / head_dim % 3;
    return (part * m->heads + head) * head_dim + row % head_dim;
}
