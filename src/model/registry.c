/* Why this exists: a family is data, not code. Each is a table of tensors (name, shape, rule, slot); the decoder in
 * forward.c and backward.c asks for slots only.
 *
 * Storage order is table order: global tensors that come before the layers, layers in order, then the rest. */
#include "model/registry.h"

#include "base/mem.h"
#include "part/order.h"

enum dim { DIM_NONE, DIM_HIDDEN, DIM_FFN, DIM_VOCAB, DIM_POSITIONS, DIM_Q, DIM_KV, DIM_QKV };

struct param_row {
    const char *name; /* %u is the layer */
    enum slot slot;
    enum dim rows, cols;
    enum init_rule init;
};

static const struct param_row gpt2_rows[] = {
    { "transformer.wte.weight", SLOT_EMBED, DIM_VOCAB, DIM_HIDDEN, INIT_NORMAL },
    { "transformer.wpe.weight", SLOT_POSITIONS, DIM_POSITIONS, DIM_HIDDEN, INIT_NORMAL },
    { "transformer.h.%u.ln_1.weight", SLOT_NORM1_GAIN, DIM_HIDDEN, DIM_NONE, INIT_ONES },
    { "transformer.h.%u.ln_1.bias", SLOT_NORM1_BIAS, DIM_HIDDEN, DIM_NONE, INIT_ZEROS },
    { "transformer.h.%u.attn.c_attn.weight", SLOT_Q, DIM_HIDDEN, DIM_QKV, INIT_NORMAL },
    { "transformer.h.%u.attn.c_attn.bias", SLOT_Q_BIAS, DIM_QKV, DIM_NONE, INIT_ZEROS },
    { "transformer.h.%u.attn.c_proj.weight", SLOT_OUT, DIM_Q, DIM_HIDDEN, INIT_RESIDUAL },
    { "transformer.h.%u.attn.c_proj.bias", SLOT_OUT_BIAS, DIM_HIDDEN, DIM_NONE, INIT_ZEROS },
    { "transformer.h.%u.ln_2.weight", SLOT_NORM2_GAIN, DIM_HIDDEN, DIM_NONE, INIT_ONES },
    { "transformer.h.%u.ln_2.bias", SLOT_NORM2_BIAS, DIM_HIDDEN, DIM_NONE, INIT_ZEROS },
    { "transformer.h.%u.mlp.c_fc.weight", SLOT_UP, DIM_HIDDEN, DIM_FFN, INIT_NORMAL },
    { "transformer.h.%u.mlp.c_fc.bias", SLOT_UP_BIAS, DIM_FFN, DIM_NONE, INIT_ZEROS },
    { "transformer.h.%u.mlp.c_proj.weight", SLOT_DOWN, DIM_FFN, DIM_HIDDEN, INIT_RESIDUAL },
    { "transformer.h.%u.mlp.c_proj.bias", SLOT_DOWN_BIAS, DIM_HIDDEN, DIM_NONE, INIT_ZEROS },
    { "transformer.ln_f.weight", SLOT_FINAL_GAIN, DIM_HIDDEN, DIM_NONE, INIT_ONES },
    { "transformer.ln_f.bias", SLOT_FINAL_BIAS, DIM_HIDDEN, DIM_NONE, INIT_ZEROS },
    { "lm_head.weight", SLOT_HEAD, DIM_VOCAB, DIM_HIDDEN, INIT_NORMAL },
};

static const struct param_row llama_rows[] = {
    { "model.embed_tokens.weight", SLOT_EMBED, DIM_VOCAB, DIM_HIDDEN, INIT_NORMAL },
    { "model.layers.%u.input_layernorm.weight", SLOT_NORM1_GAIN, DIM_HIDDEN, DIM_NONE, INIT_ONES },
    { "model.layers.%u.self_attn.q_proj.weight", SLOT_Q, DIM_Q, DIM_HIDDEN, INIT_NORMAL },
    { "model.layers.%u.self_attn.k_proj.weight", SLOT_K, DIM_KV, DIM_HIDDEN, INIT_NORMAL },
    { "model.layers.%u.self_attn.v_proj.weight", SLOT_V, DIM_KV, DIM_HIDDEN, INIT_NORMAL },
    { "model.layers.%u.self_attn.o_proj.weight", SLOT_OUT, DIM_HIDDEN, DIM_Q, INIT_RESIDUAL },
    { "model.layers.%u.post_attention_layernorm.weight", SLOT_NORM2_GAIN, DIM_HIDDEN, DIM_NONE, INIT_ONES },
    { "model.layers.%u.mlp.gate_proj.weight", SLOT_GATE, DIM_FFN, DIM_HIDDEN, INIT_NORMAL },
    { "model.layers.%u.mlp.up_proj.weight", SLOT_UP, DIM_FFN, DIM_HIDDEN, INIT_NORMAL },
    { "model.layers.%u.mlp.down_proj.weight", SLOT_DOWN, DIM_HIDDEN, DIM_FFN, INIT_RESIDUAL },
    { "model.norm.weight", SLOT_FINAL_GAIN, DIM_HIDDEN, DIM_NONE, INIT_ONES },
    { "lm_head.weight", SLOT_HEAD, DIM_VOCAB, DIM_HIDDEN, INIT_NORMAL },
};

struct family_table {
    struct family_desc desc;
    const struct param_row *rows;
    uint32_t count;
};

#define ROWS(table) (table), (uint32_t)(sizeof(table) / sizeof((table)[0]))
static const struct family_table families[] = {
    [FAMILY_GPT2] = { { .layer_norm = true, .learned_positions = true, .gated = false, .in_out = true },
                      ROWS(gpt2_rows) },
    [FAMILY_LLAMA] = { { .layer_norm = false, .learned_positions = false, .gated = true, .in_out = false },
                       ROWS(llama_rows) },
};

const struct family_desc *family_desc(enum family family)
{
    return &families[family].desc;
}

static uint64_t dim_size(const struct model_conf *c, enum dim d)
{
    switch (d) {
    case DIM_HIDDEN: return c->hidden;
    case DIM_FFN: return c->ffn;
    case DIM_VOCAB: return c->vocab;
    case DIM_POSITIONS: return c->positions;
    case DIM_Q: return c->heads * c->head_dim;
    case DIM_KV: return c->kv_heads * c->head_dim;
    case DIM_QKV: return (c->heads + 2 * c->kv_heads) * c->head_dim;
    case DIM_NONE: break;
    }
    return 1;
}

static void add_param(struct registry *r, const struct model_conf *c, const struct param_row *row, uint64_t layer)
{
    struct param *p = &r->list[r->count];
    char *name = p->name;
    const char *mark = strstr(row->name, "%u");
    if (mark != NULL) {
        snprintf(name, REGISTRY_NAME_BYTES, "%.*s%llu%s", (int)(mark - row->name), row->name, (unsigned long long)layer,
                 mark + 2);
    } else {
        snprintf(name, REGISTRY_NAME_BYTES, "%s", row->name);
    }
    p->rank = row->cols == DIM_NONE ? 1 : 2;
    p->shape[0] = dim_size(c, row->rows);
    p->shape[1] = dim_size(c, row->cols);
    p->elements = p->shape[0] * p->shape[1];
    uint64_t rows = row->rows == DIM_VOCAB ? order_pad_vocab(p->shape[0]) : p->shape[0];
    p->stored = (rows * p->shape[1] + 15) / 16 * 16;
    p->offset = r->stored;
    p->init = row->init;
    p->decay = p->rank == 2;
    r->slot_of[layer * SLOT_COUNT + row->slot] = r->count;
    r->count++;
    r->elements += p->elements;
    r->stored += p->stored;
}

enum err registry_init(struct registry *r, const struct model_conf *c)
{
    *r = (struct registry){ 0 };
    const struct family_table *t = &families[c->family];
    void *mem = NULL;
    TRY(mem_alloc(&mem, c->layers * SLOT_COUNT, sizeof(uint32_t)));
    r->slot_of = mem;
    memset(r->slot_of, 0xff, c->layers * SLOT_COUNT * sizeof(uint32_t));
    enum err err = mem_alloc(&mem, (size_t)t->count * c->layers, sizeof(struct param));
    if (err != OK) {
        registry_release(r);
        return err;
    }
    r->list = mem;
    for (uint32_t i = 0; i < t->count;) {
        if (t->rows[i].slot < SLOT_LAYER_FIRST) {
            if (t->rows[i].slot != SLOT_HEAD || !c->tied) {
                add_param(r, c, &t->rows[i], 0);
            }
            i++;
            continue;
        }
        uint32_t end = i; /* the rows of one layer stand together */
        while (end < t->count && t->rows[end].slot >= SLOT_LAYER_FIRST) {
            end++;
        }
        for (uint64_t layer = 0; layer < c->layers; layer++) {
            for (uint32_t j = i; j < end; j++) {
                add_param(r, c, &t->rows[j], layer);
            }
        }
        i = end;
    }
    return OK;
}

void registry_release(struct registry *r)
{
    free(r->list);
    free(r->slot_of);
    *r = (struct registry){ 0 };
}

const struct param *registry_find(const struct registry *r, uint64_t layer, enum slot slot)
{
    uint64_t row = slot < SLOT_LAYER_FIRST ? 0 : layer;
    uint32_t index = r->slot_of[row * SLOT_COUNT + slot];
    return index == UINT32_MAX ? NULL : &r->list[index];
}
