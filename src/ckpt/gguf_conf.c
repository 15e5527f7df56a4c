/* Why this exists: the metadata of a GGUF file describes the same model as a config.json, under other names and without
 * what llama.cpp takes for granted. It is turned into the text of a config.json, which conf reads and judges: so there
 * is one judge of what can be trained. Invariant: every key of the architecture is in a table here, else the file is
 * refused: a key that is not understood may change the arithmetic. */
#include "ckpt/gguf_conf.h"

#include <inttypes.h>

#include "base/fmath.h"

#define A(name) (1u << ARCH_##name)
#define ALL ((1u << ARCH_COUNT) - 1)
#define OLD (A(GPT2) | A(NEOX))
#define LAYER_NORM (OLD | A(STARCODER2))
#define GEMMA (A(GEMMA2) | A(GEMMA3))
#define LAYERS_OF_27B(id) ((id) == ARCH_GEMMA2 ? 46u : 62u) /* where llama.cpp scales scores by hidden / heads */

static const struct field {
    const char *key, *hf; /* key: behind the architecture and a point */
    uint32_t archs;
    bool real, required;
} fields[] = {
    { "block_count", "num_hidden_layers", ALL & ~A(GPT2), false, true },
    { "block_count", "n_layer", A(GPT2), false, true },
    { "context_length", "max_position_embeddings", ALL & ~A(GPT2), false, true },
    { "context_length", "n_positions", A(GPT2), false, true },
    { "embedding_length", "hidden_size", ALL & ~A(GPT2), false, true },
    { "embedding_length", "n_embd", A(GPT2), false, true },
    { "feed_forward_length", "intermediate_size", ALL & ~A(GPT2), false, true },
    { "feed_forward_length", "n_inner", A(GPT2), false, true },
    { "attention.head_count", "num_attention_heads", ALL & ~A(GPT2), false, true },
    { "attention.head_count", "n_head", A(GPT2), false, true },
    { "attention.layer_norm_rms_epsilon", "rms_norm_eps", ALL & ~LAYER_NORM, true, true },
    { "attention.layer_norm_epsilon", "layer_norm_epsilon", A(GPT2), true, true },
    { "attention.layer_norm_epsilon", "norm_epsilon", A(STARCODER2), true, true },
    { "attention.layer_norm_epsilon", "layer_norm_eps", A(NEOX), true, true },
    { "attn_logit_softcapping", "attn_logit_softcapping", A(GEMMA2), true, false },
    { "final_logit_softcapping", "final_logit_softcapping", GEMMA, true, false },
    { "attention.sliding_window", "sliding_window", GEMMA | A(PHI3), false, false },
};
/* Read by functions below, or without an effect. */
static const char *const others[] = {
    "vocab_size", "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.causal",
    "attention.sliding_window", "attention.sliding_window_pattern", "rope.dimension_count", "rope.freq_base",
    "rope.freq_base_swa", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.finetuned", "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "use_parallel_residual", "tensor_data_layout",
};

struct reader {
    const struct gguf_file *f;
    const struct gguf_arch *a;
    struct buf text;
    uint64_t layers, hidden, heads, kv_heads, head_dim, positions, rotary_dim;
};

static bool arch_is(const struct reader *r, uint32_t archs)
{
    return (archs >> r->a->id & 1) != 0;
}

static const struct gguf_value *find(const struct reader *r, const char *key)
{
    char whole[128];
    snprintf(whole, sizeof(whole), "%s.%s", r->a->name, key);
    return gguf_find(r->f, whole);
}

static enum err fail_kind(const struct reader *r, const struct gguf_value *v, const char *expected)
{
    return FAIL(ERR_DATA, "%s: byte %" PRIu64 ": %.100s is %s, %s was expected", r->f->path, v->at, v->key,
                gguf_kind_name(v->kind), expected);
}

/* A whole number; `usual` where there is none. A list is taken when all its numbers are equal (one a layer). */
static enum err whole(const struct reader *r, const char *key, uint64_t usual, uint64_t *out)
{
    const struct gguf_value *v = find(r, key);
    uint64_t other;
    *out = usual;
    if (v == NULL) {
        return OK;
    }
    if (!gguf_whole(v, 0, out)) {
        return fail_kind(r, v, "a whole number");
    }
    for (uint64_t i = 1; v->kind == GGUF_ARRAY && i < v->count; i++) {
        if (!gguf_whole(v, i, &other) || other != *out) {
            return FAIL(ERR_DATA, "%s: byte %" PRIu64 ": %.100s differs between layers: all layers here are alike",
                        r->f->path, v->at, v->key);
        }
    }
    return OK;
}

static enum err real(const struct reader *r, const char *key, double usual, double *out)
{
    const struct gguf_value *v = find(r, key);
    *out = usual;
    return v == NULL || gguf_real(v, 0, out) ? OK : fail_kind(r, v, "a number");
}

/* The shortest decimal text that reads back to the same number of the kind that is stored: 1e-05, not
 * 9.9999997473787516e-06. */
static enum err put_real(struct reader *r, const char *hf, double value)
{
    char text[40];
    bool single = (double)(float)value == value;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (single ? (double)strtof(text, NULL) == value : strtod(text, NULL) == value) {
            break;
        }
    }
    return buf_printf(&r->text, "  \"%s\": %s%s,\n", hf, text, strpbrk(text, ".e") == NULL ? ".0" : "");
}

static enum err put_whole(struct reader *r, const char *hf, uint64_t value)
{
    return buf_printf(&r->text, "  \"%s\": %" PRIu64 ",\n", hf, value);
}

static enum err put_field(struct reader *r, const struct field *k)
{
    const struct gguf_value *v = find(r, k->key);
    uint64_t count;
    double value;
    if (v == NULL && k->required) {
        return FAIL(ERR_DATA, "%s: %s.%s is missing", r->f->path, r->a->name, k->key);
    }
    if (v == NULL) {
        return OK;
    }
    if (k->real) {
        TRY(real(r, k->key, 0, &value));
        return put_real(r, k->hf, value);
    }
    TRY(whole(r, k->key, 0, &count));
    return put_whole(r, k->hf, count);
}

/* ---- sizes that hang together ---- */

static enum err read_sizes(struct reader *r)
{
    uint64_t values, usual;
    TRY(whole(r, "block_count", 0, &r->layers));
    TRY(whole(r, "embedding_length", 0, &r->hidden));
    TRY(whole(r, "attention.head_count", 0, &r->heads));
    TRY(whole(r, "attention.head_count_kv", r->heads, &r->kv_heads));
    TRY(whole(r, "context_length", 0, &r->positions));
    if (r->heads == 0 || r->heads > r->hidden) {
        return FAIL(ERR_DATA, "%s: %s.attention.head_count %" PRIu64 ", 1 to %" PRIu64 " were expected", r->f->path,
                    r->a->name, r->heads, r->hidden);
    }
    usual = r->hidden / r->heads;
    TRY(whole(r, "attention.key_length", usual, &r->head_dim));
    TRY(whole(r, "attention.value_length", usual, &values));
    if (values != r->head_dim || (r->head_dim != usual && arch_is(r, OLD))) {
        return FAIL(ERR_DATA, "%s: %s: heads of %" PRIu64 " numbers for keys and %" PRIu64 " for values are not in "
                    "this version", r->f->path, r->a->name, r->head_dim, values);
    }
    return whole(r, "rope.dimension_count", r->head_dim, &r->rotary_dim);
}

static enum err put_heads(struct reader *r)
{
    if (!arch_is(r, OLD)) {
        TRY(put_whole(r, "num_key_value_heads", r->kv_heads));
        TRY(put_whole(r, "head_dim", r->head_dim));
    } else if (r->kv_heads != r->heads) {
        return FAIL(ERR_DATA, "%s: %s.attention.head_count_kv %" PRIu64 ": as many as heads (%" PRIu64 ") were "
                    "expected", r->f->path, r->a->name, r->kv_heads, r->heads);
    }
    if (arch_is(r, GEMMA)) {
        bool large = r->layers == LAYERS_OF_27B(r->a->id);
        TRY(put_whole(r, "query_pre_attn_scalar", large ? r->hidden / r->heads : r->head_dim));
    }
    if (arch_is(r, A(PHI3) | A(NEOX)) && r->head_dim > 0) {
        return put_real(r, arch_is(r, A(PHI3)) ? "partial_rotary_factor" : "rotary_pct",
                        (double)r->rotary_dim / (double)r->head_dim);
    }
    if (r->rotary_dim != r->head_dim && !arch_is(r, A(GPT2))) {
        return FAIL(ERR_DATA, "%s: %s.rope.dimension_count %" PRIu64 ": all %" PRIu64 " numbers of a head are rotated "
                    "in this family", r->f->path, r->a->name, r->rotary_dim, r->head_dim);
    }
    return OK;
}

/* ---- rotary settings ---- */

static enum err read_table(const struct gguf_file *f, const struct gguf_tensor *t, uint64_t count, float *out)
{
    if (t->elements != count || count > MODEL_HEAD_DIM_MAX / 2 || strcmp(t->type->name, "F32") != 0) {
        return FAIL(ERR_DATA, "%s: %s: %" PRIu64 " numbers of %s, %" PRIu64 " of F32 were expected", f->path, t->name,
                    t->elements, t->type->name, count);
    }
    return gguf_floats(f, t, 0, count, out, out);
}

/* Llama 3's settings are not kept in the file, only what came of them: those that Meta used are tried. */
static enum err put_llama3(struct reader *r, const struct gguf_tensor *t)
{
    float stored[MODEL_HEAD_DIM_MAX / 2];
    struct gguf_rope_table tables[2];
    TRY(read_table(r->f, t, r->rotary_dim / 2, stored));
    double theta;
    TRY(real(r, "rope.freq_base", 10000, &theta));
    if (!(theta > 1) || theta > 1e12) {
        return FAIL(ERR_DATA, "%s: %s.rope.freq_base %g, a number above 1 was expected", r->f->path, r->a->name, theta);
    }
    for (int factor = 1; factor <= 64; factor++) {
        struct model_conf c = { .rotary_dim = r->rotary_dim, .head_dim = r->head_dim };
        c.rope = (struct rope_conf){ .kind = ROPE_LLAMA3, .theta = theta, .factor = factor, .low_freq = 1,
                                     .high_freq = 4, .original_positions = 8192, .attention_factor = 1 };
        gguf_conf_tables(&c, tables);
        bool same = true;
        for (uint64_t i = 0; i < r->rotary_dim / 2; i++) {
            float d = stored[i] - tables[0].values[i];
            same = same && d <= 1e-4f * stored[i] && -d <= 1e-4f * stored[i];
        }
        if (same) {
            return buf_printf(&r->text, "  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %d.0, "
                              "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                              "\"original_max_position_embeddings\": 8192},\n", factor);
        }
    }
    return FAIL(ERR_DATA, "%s: %s: not the factors of Llama 3 for a context of 8192 (low 1, high 4): which settings "
                "they come of is not in the file", r->f->path, t->name);
}

static enum err put_list(struct reader *r, const char *key, const struct gguf_tensor *t)
{
    float values[MODEL_HEAD_DIM_MAX / 2];
    TRY(read_table(r->f, t, r->rotary_dim / 2, values));
    TRY(buf_printf(&r->text, ", \"%s\": [", key));
    for (uint64_t i = 0; i < r->rotary_dim / 2; i++) {
        TRY(buf_printf(&r->text, "%s%.9g", i > 0 ? ", " : "", (double)values[i]));
    }
    return buf_add_string(&r->text, "]");
}

static enum err put_longrope(struct reader *r, const struct gguf_tensor *lengthy)
{
    const struct gguf_tensor *brief = gguf_find_tensor(r->f, "rope_factors_short.weight");
    uint64_t original;
    TRY(whole(r, "rope.scaling.original_context_length", r->positions, &original));
    if (brief == NULL) {
        return FAIL(ERR_DATA, "%s: rope_factors_long.weight without rope_factors_short.weight", r->f->path);
    }
    TRY(put_whole(r, "original_max_position_embeddings", original));
    TRY(buf_add_string(&r->text, "  \"rope_scaling\": {\"type\": \"longrope\""));
    TRY(put_list(r, "long_factor", lengthy));
    TRY(put_list(r, "short_factor", brief));
    return buf_add_string(&r->text, "},\n");
}

static bool is_text(const struct gguf_value *v, const char *text)
{
    return v != NULL && v->kind == GGUF_STRING && v->count == strlen(text) && memcmp(v->data, text, v->count) == 0;
}

static enum err put_scaling(struct reader *r)
{
    const struct gguf_value *kind = find(r, "rope.scaling.type");
    double factor, older;
    uint64_t original;
    TRY(real(r, "rope.scale_linear", 1, &older));
    TRY(real(r, "rope.scaling.factor", older, &factor));
    TRY(whole(r, "rope.scaling.original_context_length", r->positions, &original));
    if ((kind == NULL && factor == 1) || is_text(kind, "none") || is_text(kind, "longrope")) {
        return OK;
    }
    if (kind == NULL || is_text(kind, "linear")) {
        return buf_printf(&r->text, "  \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": %.9g},\n", factor);
    }
    if (is_text(kind, "yarn")) {
        double fast, slow;
        TRY(real(r, "rope.scaling.yarn_beta_fast", 32, &fast));
        TRY(real(r, "rope.scaling.yarn_beta_slow", 1, &slow));
        return buf_printf(&r->text, "  \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": %.9g, \"beta_fast\": "
                          "%.9g, \"beta_slow\": %.9g, \"original_max_position_embeddings\": %" PRIu64 "},\n",
                          factor, fast, slow, original);
    }
    return FAIL(ERR_DATA, "%s: byte %" PRIu64 ": %.100s: none, linear, yarn or longrope was expected", r->f->path,
                kind->at, kind->key);
}

static enum err put_rope(struct reader *r)
{
    const struct gguf_tensor *table = gguf_find_tensor(r->f, "rope_freqs.weight"),
                             *lengthy = gguf_find_tensor(r->f, "rope_factors_long.weight");
    double theta, factor;
    if (arch_is(r, A(GPT2))) {
        return OK;
    }
    TRY(real(r, "rope.freq_base", 10000, &theta));
    TRY(put_real(r, arch_is(r, A(NEOX)) ? "rotary_emb_base" : "rope_theta", theta));
    if (arch_is(r, A(GEMMA3))) {
        TRY(real(r, "rope.freq_base_swa", 10000, &theta));
        TRY(put_real(r, "rope_local_base_freq", theta));
    }
    TRY(real(r, "rope.scaling.attn_factor", 1, &factor));
    if (factor != 1 && lengthy == NULL) {
        return FAIL(ERR_DATA, "%s: %s.rope.scaling.attn_factor %g: only 1 is read", r->f->path, r->a->name, factor);
    }
    if (table != NULL) {
        return put_llama3(r, table);
    }
    return lengthy != NULL ? put_longrope(r, lengthy) : put_scaling(r);
}

/* ---- what the tensors say ---- */

static bool has(const struct reader *r, const char *name)
{
    return gguf_find_tensor(r->f, name) != NULL;
}

static enum err put_flags(struct reader *r)
{
    const struct gguf_tensor *embedding = gguf_find_tensor(r->f, "token_embd.weight");
    bool bias = has(r, "blk.0.attn_q.bias"), flag;
    if (embedding == NULL) {
        return FAIL(ERR_DATA, "%s: tensor token_embd.weight is missing", r->f->path);
    }
    TRY(put_whole(r, "vocab_size", embedding->rank == 2 ? embedding->shape[1] : 1));
    TRY(buf_printf(&r->text, "  \"tie_word_embeddings\": %s,\n", has(r, "output.weight") ? "false" : "true"));
    if (arch_is(r, A(LLAMA) | A(SMOLLM3))) {
        TRY(buf_printf(&r->text, "  \"attention_bias\": %s,\n  \"mlp_bias\": %s,\n", bias ? "true" : "false",
                       has(r, "blk.0.ffn_up.bias") ? "true" : "false"));
    }
    if (arch_is(r, A(QWEN3) | A(OLMO2))) {
        TRY(buf_printf(&r->text, "  \"attention_bias\": %s,\n", bias ? "true" : "false"));
    }
    if (arch_is(r, A(STARCODER2))) {
        TRY(buf_printf(&r->text, "  \"use_bias\": %s,\n", bias ? "true" : "false"));
    }
    if (arch_is(r, A(NEOX))) {
        const struct gguf_value *v = find(r, "use_parallel_residual");
        if (v != NULL && !gguf_flag(v, &flag)) {
            return fail_kind(r, v, "bool");
        }
        TRY(buf_printf(&r->text, "  \"use_parallel_residual\": %s,\n", v == NULL || flag ? "true" : "false"));
    }
    return OK;
}

static enum err put_token(struct reader *r, const char *key, const char *hf)
{
    const struct gguf_value *v = gguf_find(r->f, key);
    uint64_t id;
    if (v == NULL || !gguf_whole(v, 0, &id) || id > INT32_MAX) {
        return buf_printf(&r->text, "  \"%s\": null,\n", hf);
    }
    return put_whole(r, hf, id);
}

/* ---- keys ---- */

static bool is_known(const struct reader *r, const char *key)
{
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (strcmp(others[i], key) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (strcmp(fields[i].key, key) == 0 && arch_is(r, fields[i].archs)) {
            return true;
        }
    }
    return false;
}

static enum err check_keys(const struct reader *r)
{
    size_t length = strlen(r->a->name);
    for (size_t i = 0; i < r->f->values_count; i++) {
        const struct gguf_value *v = &r->f->values[i];
        bool own = strncmp(v->key, r->a->name, length) == 0 && v->key[length] == '.';
        if (own && !is_known(r, v->key + length + 1)) {
            return FAIL(ERR_DATA, "%s: byte %" PRIu64 ": %.100s is not understood: it may change the arithmetic",
                        r->f->path, v->at, v->key);
        }
    }
    uint64_t window;
    TRY(whole(r, "attention.sliding_window", 0, &window));
    if (window != 0 && window < r->positions && !arch_is(r, GEMMA | A(PHI3))) {
        return FAIL(ERR_DATA, "%s: %s.attention.sliding_window %" PRIu64 ": windows of this architecture are not read",
                    r->f->path, r->a->name, window);
    }
    const struct gguf_value *split = gguf_find(r->f, "split.count");
    uint64_t files;
    if (split != NULL && gguf_whole(split, 0, &files) && files > 1) {
        return FAIL(ERR_DATA, "%s: one of %" PRIu64 " files of a model, which are not read together | join them with "
                    "llama-gguf-split --merge", r->f->path, files);
    }
    return OK;
}

static enum err write_text(struct reader *r)
{
    TRY(buf_printf(&r->text, "{\n  \"model_type\": \"%s\",\n", r->a->model_type));
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (arch_is(r, fields[i].archs)) {
            TRY(put_field(r, &fields[i]));
        }
    }
    TRY(put_heads(r));
    TRY(put_rope(r));
    TRY(put_flags(r));
    TRY(put_token(r, "tokenizer.ggml.bos_token_id", "bos_token_id"));
    TRY(put_token(r, "tokenizer.ggml.eos_token_id", "eos_token_id"));
    return buf_add_string(&r->text, "  \"initializer_range\": 0.02\n}\n");
}

static enum err find_arch(struct reader *r)
{
    const struct gguf_value *v = gguf_find(r->f, "general.architecture");
    if (v == NULL || v->kind != GGUF_STRING) {
        return FAIL(ERR_DATA, "%s: general.architecture is missing or no string", r->f->path);
    }
    r->a = gguf_arch_named((const char *)v->data, v->count);
    if (r->a == NULL) {
        return FAIL(ERR_DATA, "%s: byte %" PRIu64 ": general.architecture \"%.*s\" is not in this version | there are: "
                    "%s", r->f->path, v->at, (int)(v->count < 60 ? v->count : 60), (const char *)v->data,
                    gguf_arch_names());
    }
    return OK;
}

enum err gguf_conf_read(const struct gguf_file *f, const struct gguf_arch **arch, struct model_conf *c)
{
    struct reader r = { .f = f };
    struct findings findings = { 0 };
    enum err err;
    TRY_OUT(find_arch(&r));
    *arch = r.a;
    TRY_OUT(read_sizes(&r));
    TRY_OUT(check_keys(&r));
    TRY_OUT(write_text(&r));
    char name[512];
    snprintf(name, sizeof(name), "%s: as config.json", f->path);
    err = model_conf_parse(c, name, r.text.data, r.text.bytes, &findings);
    if (err == ERR_USAGE) {
        findings_to_message(&findings);
        err = ERR_DATA;
    }
out:
    findings_release(&findings);
    buf_release(&r.text);
    return err;
}

/* ---- tables ---- */

bool gguf_conf_is_table(const char *name)
{
    return strcmp(name, "rope_freqs.weight") == 0 || strcmp(name, "rope_factors_long.weight") == 0 ||
           strcmp(name, "rope_factors_short.weight") == 0;
}

void gguf_conf_tables(const struct model_conf *c, struct gguf_rope_table out[2])
{
    out[0] = (struct gguf_rope_table){ 0 };
    out[1] = (struct gguf_rope_table){ 0 };
    const struct rope_conf *r = &c->rope;
    uint64_t half = c->rotary_dim / 2;
    if (r->kind == ROPE_LONGROPE) {
        out[0].name = "rope_factors_long.weight";
        out[1].name = "rope_factors_short.weight";
        memcpy(out[0].values, r->long_factor, half * sizeof(float));
        memcpy(out[1].values, r->short_factor, half * sizeof(float));
    } else if (r->kind == ROPE_LLAMA3) {
        out[0].name = "rope_freqs.weight";
        double low = (double)r->original_positions / r->low_freq, high = (double)r->original_positions / r->high_freq;
        for (uint64_t i = 0; i < half; i++) {
            double frequency = fmath_pow(r->theta, -(double)(2 * i) / (double)c->rotary_dim);
            double wave = 6.283185307179586 / frequency, smooth;
            if (wave < high) {
                out[0].values[i] = 1;
            } else if (wave > low) {
                out[0].values[i] = (float)r->factor;
            } else {
                smooth = ((double)r->original_positions / wave - r->low_freq) / (r->high_freq - r->low_freq);
                out[0].values[i] = (float)(1 / ((1 - smooth) / r->factor + smooth));
            }
        }
    }
}
