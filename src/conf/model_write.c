/* Why this exists: a trained model must load elsewhere. Every field that matters is written, also where it has the
 * value that Hugging Face transformers would assume, because assumed values differ between its versions (and its
 * dropout is 0.1). Rotary settings are written in the spelling that all its versions read. A row for each field, in
 * the order in which they are written. */
#include "conf/family.h"

enum write_use {
    WRITE_TEXT, /* `text` as it stands */
    WRITE_WHOLE,
    WRITE_REAL,
    WRITE_FLAG,
    WRITE_TOKEN,
    WRITE_CAP,          /* 0: null */
    WRITE_WINDOW,       /* 0: null */
    WRITE_HAS_WINDOW,   /* is there one? */
    WRITE_FIRST_WINDOW, /* the first layer from which on all have it */
    WRITE_TYPES,
    WRITE_ROTATED,
    WRITE_ACTIVATION,
    WRITE_ARCHITECTURE,
    WRITE_FAMILY,
    WRITE_ROPE,
    WRITE_ORIGINAL,
    WRITE_PART,
    WRITE_SCALAR, /* query_pre_attn_scalar */
};

struct written {
    const char *name;
    unsigned families;
    enum write_use use;
    size_t offset;
    const char *text;
};

#define AT(member) offsetof(struct model_conf, member)
#define GPT FOR(GPT2)
#define KV (FOR_ROTARY & ~FOR(NEOX))
#define TYPED (FOR_QWEN | FOR_GEMMA | FOR(SMOLLM3))
#define BIASED (FOR(LLAMA) | FOR(QWEN3) | FOR_GEMMA | FOR(OLMO2) | FOR(SMOLLM3) | FOR(NEOX))

static const struct written rows[] = {
    { "activation_function", GPT, WRITE_ACTIVATION, 0, NULL },
    { "architectures", FOR_ALL, WRITE_ARCHITECTURE, 0, NULL },
    { "attention_bias", BIASED, WRITE_FLAG, AT(qkv_bias), NULL },
    { "attention_dropout", FOR_ROTARY, WRITE_TEXT, 0, "0.0" },
    { "attn_logit_softcapping", FOR_GEMMA, WRITE_CAP, AT(attention_cap), NULL },
    { "attn_pdrop", GPT, WRITE_TEXT, 0, "0.0" },
    { "bos_token_id", FOR_ALL, WRITE_TOKEN, AT(bos_token_id), NULL },
    { "embd_pdrop", GPT | FOR(PHI3), WRITE_REAL, AT(embd_dropout), NULL },
    { "embedding_dropout", FOR(STARCODER2), WRITE_REAL, AT(embd_dropout), NULL },
    { "eos_token_id", FOR_ALL, WRITE_TOKEN, AT(eos_token_id), NULL },
    { "final_logit_softcapping", FOR_GEMMA, WRITE_CAP, AT(final_cap), NULL },
    { "head_dim", KV, WRITE_WHOLE, AT(head_dim), NULL },
    { "hidden_act", FOR_ROTARY, WRITE_ACTIVATION, 0, NULL },
    { "hidden_activation", FOR_GEMMA, WRITE_ACTIVATION, 0, NULL },
    { "hidden_dropout", FOR(NEOX), WRITE_TEXT, 0, "0.0" },
    { "hidden_size", FOR_ROTARY, WRITE_WHOLE, AT(hidden), NULL },
    { "initializer_range", FOR_ALL, WRITE_REAL, AT(initializer_range), NULL },
    { "intermediate_size", FOR_ROTARY, WRITE_WHOLE, AT(ffn), NULL },
    { "layer_norm_eps", FOR(NEOX), WRITE_REAL, AT(norm_eps), NULL },
    { "layer_norm_epsilon", GPT, WRITE_REAL, AT(norm_eps), NULL },
    { "layer_types", TYPED, WRITE_TYPES, 0, NULL },
    { "max_position_embeddings", FOR_ROTARY, WRITE_WHOLE, AT(positions), NULL },
    { "max_window_layers", FOR_QWEN, WRITE_FIRST_WINDOW, 0, NULL },
    { "mlp_bias", FOR(LLAMA) | FOR(SMOLLM3), WRITE_FLAG, AT(mlp_bias), NULL },
    { "model_type", FOR_ALL, WRITE_FAMILY, 0, NULL },
    { "n_embd", GPT, WRITE_WHOLE, AT(hidden), NULL },
    { "n_head", GPT, WRITE_WHOLE, AT(heads), NULL },
    { "n_inner", GPT, WRITE_WHOLE, AT(ffn), NULL },
    { "n_layer", GPT, WRITE_WHOLE, AT(layers), NULL },
    { "n_positions", GPT, WRITE_WHOLE, AT(positions), NULL },
    { "no_rope_layers", FOR(SMOLLM3), WRITE_ROTATED, 0, NULL },
    { "norm_epsilon", FOR(STARCODER2), WRITE_REAL, AT(norm_eps), NULL },
    { "num_attention_heads", FOR_ROTARY, WRITE_WHOLE, AT(heads), NULL },
    { "num_hidden_layers", FOR_ROTARY, WRITE_WHOLE, AT(layers), NULL },
    { "num_key_value_heads", KV, WRITE_WHOLE, AT(kv_heads), NULL },
    { "original_max_position_embeddings", FOR(PHI3), WRITE_ORIGINAL, 0, NULL },
    /* else transformers takes an id that a small vocabulary does not have */
    { "pad_token_id", FOR(PHI3) | FOR(SMOLLM3), WRITE_TEXT, 0, "null" },
    { "partial_rotary_factor", FOR(PHI3), WRITE_PART, 0, NULL },
    { "pretraining_tp", FOR(LLAMA), WRITE_TEXT, 0, "1" },
    { "query_pre_attn_scalar", FOR_GEMMA, WRITE_SCALAR, 0, NULL },
    { "reorder_and_upcast_attn", GPT, WRITE_TEXT, 0, "false" },
    { "resid_pdrop", GPT | FOR(PHI3), WRITE_REAL, AT(resid_dropout), NULL },
    { "residual_dropout", FOR(STARCODER2), WRITE_REAL, AT(resid_dropout), NULL },
    { "rms_norm_eps", FOR_RMS, WRITE_REAL, AT(norm_eps), NULL },
    { "rope_local_base_freq", FOR(GEMMA3), WRITE_REAL, AT(local_rope.theta), NULL },
    { "rope_scaling", FOR_ROTARY, WRITE_ROPE, 0, NULL },
    { "rope_theta", FOR_ROTARY & ~FOR(NEOX), WRITE_REAL, AT(rope.theta), NULL },
    { "rotary_emb_base", FOR(NEOX), WRITE_REAL, AT(rope.theta), NULL },
    { "rotary_pct", FOR(NEOX), WRITE_PART, 0, NULL },
    { "scale_attn_by_inverse_layer_idx", GPT, WRITE_TEXT, 0, "false" },
    { "scale_attn_weights", GPT, WRITE_TEXT, 0, "true" },
    { "sliding_window", FOR_ROTARY & ~(FOR(LLAMA) | FOR(OLMO2) | FOR(NEOX)), WRITE_WINDOW, 0, NULL },
    { "tie_word_embeddings", FOR_ALL, WRITE_FLAG, AT(tied), NULL },
    { "torch_dtype", FOR_ALL, WRITE_TEXT, 0, "\"float32\"" },
    { "use_bias", FOR(STARCODER2), WRITE_FLAG, AT(qkv_bias), NULL },
    { "use_cache", FOR_ALL, WRITE_TEXT, 0, "true" },
    { "use_parallel_residual", FOR(NEOX), WRITE_FLAG, AT(parallel_residual), NULL },
    { "use_sliding_window", FOR_QWEN | FOR(SMOLLM3), WRITE_HAS_WINDOW, 0, NULL },
    { "vocab_size", FOR_ALL, WRITE_WHOLE, AT(vocab), NULL },
};

/* ---- values ---- */

static enum err whole(struct buf *out, uint64_t value)
{
    return buf_printf(out, "%llu", (unsigned long long)value);
}

/* A JSON number that readers take as a real one. */
static enum err real(struct buf *out, double value)
{
    struct quoted q = scalar_write_real(value);
    return buf_printf(out, "%s%s", q.text, strpbrk(q.text, ".e") == NULL ? ".0" : "");
}

static enum err flag(struct buf *out, bool value)
{
    return buf_add_string(out, value ? "true" : "false");
}

static enum err activation(struct buf *out, const struct model_conf *m)
{
    const char *name = m->activation == ACTIVATION_SILU   ? "silu"
                       : m->activation == ACTIVATION_GELU ? "gelu"
                       : m->family == FAMILY_GPT2         ? "gelu_new"
                                                          : "gelu_pytorch_tanh";
    return buf_printf(out, "\"%s\"", name);
}

static enum err layer_types(struct buf *out, const struct model_conf *m)
{
    for (uint64_t i = 0; i < m->layers; i++) {
        TRY(buf_printf(out, "%s    \"%s\"", i == 0 ? "[\n" : ",\n",
                       model_conf_windowed(m, i) ? "sliding_attention" : "full_attention"));
    }
    return buf_add_string(out, "\n  ]");
}

static enum err rotated_layers(struct buf *out, const struct model_conf *m)
{
    for (uint64_t i = 0; i < m->layers; i++) {
        TRY(buf_printf(out, "%s    %d", i == 0 ? "[\n" : ",\n", model_conf_rotates(m, i) ? 1 : 0));
    }
    return buf_add_string(out, "\n  ]");
}

/* For readers that know max_window_layers only. */
static uint64_t first_window(const struct model_conf *m)
{
    uint64_t first = m->layers;
    while (first > 0 && model_conf_windowed(m, first - 1)) {
        first--;
    }
    return first;
}

/* The share of a head whose product with head_dim, rounded down, is rotary_dim again. */
static double rotary_part(const struct model_conf *m)
{
    double part = (double)m->rotary_dim / (double)m->head_dim;
    while ((uint64_t)(part * (double)m->head_dim) < m->rotary_dim) {
        part += 0x1p-53;
    }
    return part;
}

static uint64_t scalar_of(const struct model_conf *m)
{
    return (uint64_t)(1 / (m->attention_scale * m->attention_scale) + 0.5);
}

/* ---- rotary settings ---- */

static enum err rope_real(struct buf *out, const char *name, double value)
{
    TRY(buf_printf(out, ",\n    \"%s\": ", name));
    return real(out, value);
}

static enum err rope_factors(struct buf *out, const char *name, const float *factor, uint64_t count)
{
    TRY(buf_printf(out, ",\n    \"%s\": [", name));
    for (uint64_t i = 0; i < count; i++) {
        TRY(buf_add_string(out, i > 0 ? ", " : ""));
        TRY(real(out, (double)factor[i]));
    }
    return buf_add_string(out, "]");
}

static enum err rope_longrope(struct buf *out, const struct model_conf *m)
{
    const struct rope_conf *r = &m->rope;
    TRY(rope_factors(out, "long_factor", r->long_factor, m->rotary_dim / 2));
    TRY(rope_factors(out, "short_factor", r->short_factor, m->rotary_dim / 2));
    bool plain = r->factor == (double)m->positions / (double)r->original_positions &&
                 r->attention_factor == model_attention_factor(r);
    if (m->family == FAMILY_PHI3 && plain) { /* transformers before 5 takes these and no others there */
        return OK;
    }
    TRY(rope_real(out, "factor", r->factor));
    TRY(rope_real(out, "attention_factor", r->attention_factor));
    return buf_printf(out, ",\n    \"original_max_position_embeddings\": %llu",
                      (unsigned long long)r->original_positions);
}

static enum err rope_scaling(struct buf *out, const struct model_conf *m)
{
    const struct rope_conf *r = &m->rope;
    if (r->kind == ROPE_DEFAULT) {
        return buf_add_string(out, "null");
    }
    TRY(buf_printf(out, "{\n    \"%s\": \"%s\"", m->family == FAMILY_PHI3 ? "type" : "rope_type",
                   model_rope_name(r->kind)));
    if (r->kind == ROPE_LONGROPE) {
        TRY(rope_longrope(out, m));
        return buf_add_string(out, "\n  }");
    }
    TRY(rope_real(out, "factor", r->factor));
    if (r->kind == ROPE_LLAMA3) {
        TRY(rope_real(out, "low_freq_factor", r->low_freq));
        TRY(rope_real(out, "high_freq_factor", r->high_freq));
    }
    if (r->kind == ROPE_YARN) {
        TRY(rope_real(out, "attention_factor", r->attention_factor));
        TRY(rope_real(out, "beta_fast", r->beta_fast));
        TRY(rope_real(out, "beta_slow", r->beta_slow));
        TRY(buf_printf(out, ",\n    \"truncate\": %s", r->truncate ? "true" : "false"));
    }
    if (r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN) {
        TRY(buf_printf(out, ",\n    \"original_max_position_embeddings\": %llu",
                       (unsigned long long)r->original_positions));
    }
    return buf_add_string(out, "\n  }");
}

/* ---- the whole ---- */

static enum err write_value(const struct model_conf *m, const struct written *w, struct buf *out)
{
    const void *member = (const char *)m + w->offset;
    switch (w->use) {
    case WRITE_TEXT:
        return buf_add_string(out, w->text);
    case WRITE_WHOLE:
        return whole(out, *(const uint64_t *)member);
    case WRITE_REAL:
        return real(out, *(const double *)member);
    case WRITE_FLAG:
        return flag(out, *(const bool *)member);
    case WRITE_TOKEN:
        return *(const int64_t *)member < 0 ? buf_add_string(out, "null")
                                            : whole(out, (uint64_t) * (const int64_t *)member);
    case WRITE_CAP:
        return *(const double *)member == 0 ? buf_add_string(out, "null") : real(out, *(const double *)member);
    case WRITE_WINDOW:
        if (m->window == 0 && (FOR_GEMMA >> m->family & 1u) != 0) { /* null is no number there; no layer has it */
            return whole(out, m->positions);
        }
        return m->window == 0 ? buf_add_string(out, "null") : whole(out, m->window);
    case WRITE_HAS_WINDOW:
        return flag(out, m->window != 0);
    case WRITE_FIRST_WINDOW:
        return whole(out, first_window(m));
    case WRITE_TYPES:
        return layer_types(out, m);
    case WRITE_ROTATED:
        return rotated_layers(out, m);
    case WRITE_ACTIVATION:
        return activation(out, m);
    case WRITE_ARCHITECTURE:
        return buf_printf(out, "[\n    \"%s\"\n  ]", model_families[m->family].architecture);
    case WRITE_FAMILY:
        return buf_printf(out, "\"%s\"", model_families[m->family].name);
    case WRITE_ROPE:
        return rope_scaling(out, m);
    case WRITE_ORIGINAL:
        return whole(out, m->rope.original_positions > 0 ? m->rope.original_positions : m->positions);
    case WRITE_PART:
        return real(out, rotary_part(m));
    case WRITE_SCALAR:
        return whole(out, scalar_of(m));
    }
    return OK;
}

enum err model_conf_write(const struct model_conf *m, struct buf *out)
{
    const char *comma = "{\n";
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if ((rows[i].families >> m->family & 1u) != 0) {
            TRY(buf_printf(out, "%s  \"%s\": ", comma, rows[i].name));
            TRY(write_value(m, &rows[i], out));
            comma = ",\n";
        }
    }
    return buf_add_string(out, "\n}\n");
}

/* ---- what it amounts to ---- */

uint64_t model_conf_parameters(const struct model_conf *m)
{
    uint64_t h = m->hidden, f = m->ffn, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    uint64_t norm = m->norm == NORM_LAYER ? 2 * h : h, layer = (m->norms == NORMS_BOTH ? 4 : 2) * norm;
    layer += h * q + 2 * h * kv + q * h + (m->gated ? 3 : 2) * h * f;
    layer += (m->qkv_bias ? q + 2 * kv : 0) + (m->out_bias ? h : 0);
    layer += m->mlp_bias ? (m->gated ? 2 : 1) * f + h : 0;
    layer += m->qk_norm == QK_NORM_HEAD ? 2 * m->head_dim : m->qk_norm == QK_NORM_ALL ? q + kv : 0;
    uint64_t tables = m->vocab * h * (m->tied ? 1 : 2) + (m->learned_positions ? m->positions * h : 0);
    return tables + m->layers * layer + norm;
}

/* Layers of which a test holds. */
static uint64_t count_layers(const struct model_conf *m, bool (*test)(const struct model_conf *m, uint64_t layer))
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < m->layers; i++) {
        n += test(m, i);
    }
    return n;
}

enum err model_conf_special(const struct model_conf *m, struct buf *out)
{
    unsigned long long layers = m->layers, rotated = count_layers(m, model_conf_rotates);
    if (!m->learned_positions && m->rope.kind != ROPE_DEFAULT) {
        TRY(buf_printf(out, ", %s positions x%s", model_rope_name(m->rope.kind),
                       scalar_write_real(m->rope.factor).text));
    }
    if (!m->learned_positions && m->rotary_dim != m->head_dim) {
        TRY(buf_printf(out, ", %llu of %llu numbers of a head rotated", (unsigned long long)m->rotary_dim,
                       (unsigned long long)m->head_dim));
    }
    if (!m->learned_positions && rotated != layers) {
        TRY(buf_printf(out, ", no positions in %llu of %llu layers", layers - rotated, layers));
    }
    if (m->window > 0) {
        TRY(buf_printf(out, ", window of %llu in %llu of %llu layers", (unsigned long long)m->window,
                       (unsigned long long)count_layers(m, model_conf_windowed), layers));
    }
    if (m->qk_norm != QK_NORM_NONE) {
        TRY(buf_printf(out, ", norm of queries and keys%s", m->qk_norm == QK_NORM_HEAD ? " of each head" : ""));
    }
    if (m->norms != NORMS_BEFORE) {
        TRY(buf_printf(out, ", norms %s", m->norms == NORMS_AFTER ? "after branches" : "before and after branches"));
    }
    if (m->gated && (m->qkv_bias || m->out_bias || m->mlp_bias)) {
        TRY(buf_printf(out, ", biases of%s%s%s", m->qkv_bias ? " queries, keys and values" : "",
                       m->out_bias ? ", attention's output" : "", m->mlp_bias ? ", feed-forward" : ""));
    }
    if (m->attention_cap > 0 || m->final_cap > 0) {
        TRY(buf_printf(out, ", scores capped at %s, logits at %s", scalar_write_real(m->attention_cap).text,
                       scalar_write_real(m->final_cap).text));
    }
    return m->parallel_residual ? buf_add_string(out, ", parallel branches") : OK;
}
