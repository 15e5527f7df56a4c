/* Why this exists: a trained model must load elsewhere. Every field that matters is written, also where it has the
 * value that Hugging Face transformers would assume, because assumed values differ between its versions (and its
 * dropout is 0.1). */
#include "conf/conf_int.h"

static enum err write_token(struct buf *out, const char *name, int64_t token)
{
    return token >= 0 ? buf_printf(out, "  \"%s\": %lld,\n", name, (long long)token)
                      : buf_printf(out, "  \"%s\": null,\n", name);
}

static enum err write_whole(struct buf *out, const char *name, uint64_t value)
{
    return buf_printf(out, "  \"%s\": %llu,\n", name, (unsigned long long)value);
}

/* A JSON number that readers take as a real one. */
static enum err write_real(struct buf *out, const char *name, double value)
{
    struct quoted q = scalar_write_real(value);
    return buf_printf(out, "  \"%s\": %s%s,\n", name, q.text, strpbrk(q.text, ".e") == NULL ? ".0" : "");
}

static enum err write_gpt2(const struct model_conf *m, struct buf *out)
{
    TRY(buf_add_string(out, "  \"activation_function\": \"gelu_new\",\n"
                            "  \"architectures\": [\n"
                            "    \"GPT2LMHeadModel\"\n"
                            "  ],\n"
                            "  \"attn_pdrop\": 0.0,\n"));
    TRY(write_token(out, "bos_token_id", m->bos_token_id));
    TRY(write_real(out, "embd_pdrop", m->embd_dropout));
    TRY(write_token(out, "eos_token_id", m->eos_token_id));
    TRY(write_real(out, "initializer_range", m->initializer_range));
    TRY(write_real(out, "layer_norm_epsilon", m->norm_eps));
    TRY(buf_add_string(out, "  \"model_type\": \"gpt2\",\n"));
    TRY(write_whole(out, "n_embd", m->hidden));
    TRY(write_whole(out, "n_head", m->heads));
    TRY(write_whole(out, "n_inner", m->ffn));
    TRY(write_whole(out, "n_layer", m->layers));
    TRY(write_whole(out, "n_positions", m->positions));
    TRY(buf_add_string(out, "  \"reorder_and_upcast_attn\": false,\n"));
    TRY(write_real(out, "resid_pdrop", m->resid_dropout));
    return buf_add_string(out, "  \"scale_attn_by_inverse_layer_idx\": false,\n"
                               "  \"scale_attn_weights\": true,\n");
}

static enum err write_llama(const struct model_conf *m, struct buf *out)
{
    TRY(buf_add_string(out, "  \"architectures\": [\n"
                            "    \"LlamaForCausalLM\"\n"
                            "  ],\n"
                            "  \"attention_bias\": false,\n"
                            "  \"attention_dropout\": 0.0,\n"));
    TRY(write_token(out, "bos_token_id", m->bos_token_id));
    TRY(write_token(out, "eos_token_id", m->eos_token_id));
    TRY(write_whole(out, "head_dim", m->head_dim));
    TRY(buf_add_string(out, "  \"hidden_act\": \"silu\",\n"));
    TRY(write_whole(out, "hidden_size", m->hidden));
    TRY(write_real(out, "initializer_range", m->initializer_range));
    TRY(write_whole(out, "intermediate_size", m->ffn));
    TRY(write_whole(out, "max_position_embeddings", m->positions));
    TRY(buf_add_string(out, "  \"mlp_bias\": false,\n  \"model_type\": \"llama\",\n"));
    TRY(write_whole(out, "num_attention_heads", m->heads));
    TRY(write_whole(out, "num_hidden_layers", m->layers));
    TRY(write_whole(out, "num_key_value_heads", m->kv_heads));
    TRY(buf_add_string(out, "  \"pretraining_tp\": 1,\n"));
    TRY(write_real(out, "rms_norm_eps", m->norm_eps));
    TRY(buf_add_string(out, "  \"rope_scaling\": null,\n"));
    return write_real(out, "rope_theta", m->rope.theta);
}

enum err model_conf_write(const struct model_conf *m, struct buf *out)
{
    TRY(buf_add_string(out, "{\n"));
    TRY(m->family == FAMILY_GPT2 ? write_gpt2(m, out) : write_llama(m, out));
    TRY(buf_printf(out, "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"float32\",\n  \"use_cache\": true,\n",
                   m->tied ? "true" : "false"));
    return buf_printf(out, "  \"vocab_size\": %llu\n}\n", (unsigned long long)m->vocab);
}

uint64_t model_conf_parameters(const struct model_conf *m)
{
    uint64_t h = m->hidden, f = m->ffn, embedding = m->vocab * h;
    uint64_t total = embedding * (m->tied ? 1 : 2);
    if (m->family == FAMILY_GPT2) {
        uint64_t norms = 4 * h, attention = 3 * h * h + 3 * h + h * h + h, mlp = 2 * h * f + f + h;
        return total + m->positions * h + m->layers * (norms + attention + mlp) + 2 * h;
    }
    uint64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    return total + m->layers * (2 * h + 2 * h * q + 2 * h * kv + 3 * h * f) + h;
}
