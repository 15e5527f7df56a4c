/* Why this exists: llama.cpp takes much of a model for granted by the name of its architecture. Each key is written
 * from struct model_conf, and whatever the model has otherwise than llama.cpp would compute is refused: a file that
 * runs and is another model would be worse than none. */
#include <inttypes.h>

#include "base/fmath.h"
#include "base/log.h"
#include "ckpt/gguf_conf.h"

#define A(name) (1u << ARCH_##name)
#define OLD (A(GPT2) | A(NEOX))
#define GEMMA (A(GEMMA2) | A(GEMMA3))

struct writer {
    struct gguf_out *o;
    const struct gguf_arch *a;
    const struct model_conf *c;
    const char *from;
};

static bool arch_is(const struct writer *w, uint32_t archs)
{
    return (archs >> w->a->id & 1) != 0;
}

static const char *key_of(const struct writer *w, const char *key, char out[128])
{
    snprintf(out, 128, "%s.%s", w->a->name, key);
    return out;
}

static enum err whole(const struct writer *w, const char *key, uint64_t value)
{
    char text[128];
    return gguf_out_u32(w->o, key_of(w, key, text), value);
}

static enum err real(const struct writer *w, const char *key, double value)
{
    char text[128];
    return gguf_out_f32(w->o, key_of(w, key, text), value);
}

static enum err refuse(const struct writer *w, const char *what)
{
    return FAIL(ERR_DATA, "%s: GGUF's architecture %s has no %s: llama.cpp would compute something else", w->from,
                w->a->name, what);
}

static bool close_to(double a, double b)
{
    double d = a - b, most = 1e-6 * (b < 0 ? -b : b);
    return d <= most && -d <= most;
}

/* ---- what llama.cpp assumes ---- */

static bool usual_scale(const struct writer *w)
{
    const struct model_conf *c = w->c;
    bool large = (w->a->id == ARCH_GEMMA2 && c->layers == 46) || (w->a->id == ARCH_GEMMA3 && c->layers == 62);
    double heads = large ? (double)(c->hidden / c->heads) : (double)c->head_dim;
    return close_to(c->attention_scale, 1 / fmath_sqrt(heads));
}

/* Which layers have a window, which have no positions. */
static bool usual_layers(const struct writer *w)
{
    const struct model_conf *c = w->c;
    for (uint64_t l = 0; l < c->layers; l++) {
        bool window = w->a->id == ARCH_GEMMA2 ? l % 2 == 0 : w->a->id == ARCH_GEMMA3 ? l % 6 != 5 : true;
        bool rotates = w->a->id != ARCH_SMOLLM3 || l % 4 != 3;
        if ((c->window != 0 && model_conf_windowed(c, l) != window) ||
            (!c->learned_positions && model_conf_rotates(c, l) != rotates)) {
            return false;
        }
    }
    return true;
}

static enum err check(const struct writer *w)
{
    const struct model_conf *c = w->c;
    if (!usual_scale(w)) {
        return refuse(w, "such scale of scores");
    }
    if (!usual_layers(w)) {
        return refuse(w, "such choice of layers with a window or without positions");
    }
    if ((c->qkv_bias || c->out_bias) && !arch_is(w, A(LLAMA) | A(QWEN2) | A(STARCODER2) | OLD)) {
        return refuse(w, "biases of attention");
    }
    if (c->head_dim * c->heads != c->hidden && arch_is(w, OLD | A(STARCODER2) | A(PHI3))) {
        return refuse(w, "heads of such a size");
    }
    if (c->attention_cap != 0 && w->a->id != ARCH_GEMMA2) {
        return refuse(w, "cap of scores");
    }
    if (c->final_cap != 0 && !arch_is(w, GEMMA)) {
        return refuse(w, "cap of logits");
    }
    if (c->activation == ACTIVATION_GELU) {
        log_warning("llama.cpp computes GELU by its tanh form, this model has the exact one: its numbers will differ "
                    "in the fourth digit");
    }
    return OK;
}

/* ---- rotary settings ---- */

static enum err put_scaling(const struct writer *w)
{
    char key[128];
    const struct model_conf *c = w->c;
    const struct rope_conf *r = &c->rope;
    key_of(w, "rope.scaling.type", key);
    switch (r->kind) {
    case ROPE_DEFAULT:
    case ROPE_LLAMA3: /* a table */
        return OK;
    case ROPE_DYNAMIC:
        return refuse(w, "dynamic scaling of positions");
    case ROPE_LINEAR:
        TRY(gguf_out_string(w->o, key, "linear", 6));
        return real(w, "rope.scaling.factor", r->factor);
    case ROPE_YARN:
        if (!close_to(r->attention_factor, 1 + 0.1 * fmath_log(r->factor)) || !r->truncate) {
            return refuse(w, "such attention_factor or truncate of yarn");
        }
        TRY(gguf_out_string(w->o, key, "yarn", 4));
        TRY(real(w, "rope.scaling.factor", r->factor));
        TRY(real(w, "rope.scaling.yarn_beta_fast", r->beta_fast));
        TRY(real(w, "rope.scaling.yarn_beta_slow", r->beta_slow));
        return whole(w, "rope.scaling.original_context_length", r->original_positions);
    case ROPE_LONGROPE:
        TRY(gguf_out_string(w->o, key, "longrope", 8));
        TRY(real(w, "rope.scaling.attn_factor", r->attention_factor));
        return whole(w, "rope.scaling.original_context_length", r->original_positions);
    }
    return OK;
}

static enum err put_rope(const struct writer *w)
{
    const struct model_conf *c = w->c;
    if (c->learned_positions) {
        return OK;
    }
    TRY(whole(w, "rope.dimension_count", c->rotary_dim));
    TRY(real(w, "rope.freq_base", c->rope.theta));
    if (c->has_local_rope) {
        TRY(real(w, "rope.freq_base_swa", c->local_rope.theta));
        if (c->local_rope.kind != ROPE_DEFAULT) {
            return refuse(w, "scaling of positions in layers with a window");
        }
    }
    return put_scaling(w);
}

/* ---- the rest ---- */

/* A window that the architecture lacks makes no difference up to its length. */
static enum err put_lengths(const struct writer *w)
{
    const struct model_conf *c = w->c;
    uint64_t length = c->positions;
    if (c->window != 0 && arch_is(w, GEMMA | A(PHI3))) {
        TRY(whole(w, "attention.sliding_window", c->window));
    } else if (c->window != 0 && c->window < length) {
        log_warning("%s: llama.cpp has no window for %s: the file is for %" PRIu64 " positions, where it makes no "
                    "difference", w->from, w->a->name, c->window);
        length = c->window;
    }
    return whole(w, "context_length", length);
}

static enum err put_heads(const struct writer *w)
{
    const struct model_conf *c = w->c;
    TRY(whole(w, "attention.head_count", c->heads));
    if (arch_is(w, OLD)) {
        return OK;
    }
    TRY(whole(w, "attention.head_count_kv", c->kv_heads));
    if (arch_is(w, A(STARCODER2) | A(PHI3))) {
        return OK;
    }
    TRY(whole(w, "attention.key_length", c->head_dim));
    return whole(w, "attention.value_length", c->head_dim);
}

enum err gguf_conf_put(struct gguf_out *o, const struct gguf_arch *a, const struct model_conf *c, const char *from)
{
    const struct writer w = { o, a, c, from };
    char key[128];
    TRY(check(&w));
    TRY(whole(&w, "block_count", c->layers));
    TRY(put_lengths(&w));
    TRY(whole(&w, "embedding_length", c->hidden));
    TRY(whole(&w, "feed_forward_length", c->ffn));
    TRY(put_heads(&w));
    TRY(real(&w, c->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
             c->norm_eps));
    TRY(whole(&w, "vocab_size", c->vocab));
    TRY(put_rope(&w));
    if (c->attention_cap != 0) {
        TRY(real(&w, "attn_logit_softcapping", c->attention_cap));
    }
    if (c->final_cap != 0) {
        TRY(real(&w, "final_logit_softcapping", c->final_cap));
    }
    if (a->id == ARCH_NEOX) {
        TRY(gguf_out_flag(o, key_of(&w, "use_parallel_residual", key), c->parallel_residual));
    }
    return OK;
}
