/* Why this exists: a family is data, not code. The tensors of all of them are one table (name, shape, rule, slot, and
 * which families have it); the decoder in forward.c and backward.c asks for slots only.
 *
 * Tensors are numbered in table order: global tensors that come before the layers, layers in order, then the rest; the
 * number is the same on every rank. A rank's storage is a row of buckets: the embedding, the positions, its layers, the
 * final norm, the head; each holds the boxes of its tensors, those that are replicated over the tensor-parallel ranks
 * first. */
#include "model/registry.h"

#include "base/mem.h"

enum dim { DIM_NONE, DIM_HIDDEN, DIM_FFN, DIM_FFN2, DIM_VOCAB, DIM_POSITIONS, DIM_Q, DIM_KV, DIM_HEAD, DIM_QKV,
           DIM_QKV_HEADS };

struct param_row {
    const char *name; /* %u is the layer */
    enum slot slot;
    enum dim rows, cols;
    enum split_rule split;
    enum init_rule init;
    unsigned families; /* that have it; a row whose slot a model does not need is left out, too (has_slot) */
};

#define FOR(family) (1u << FAMILY_##family)
#define GPT2 FOR(GPT2)
#define NEOX FOR(NEOX)
#define HF (~(GPT2 | NEOX)) /* named as Llama names them */
#define ROOT "model.layers.%u."
#define NEOX_ROOT "gpt_neox.layers.%u."
#define AFTER (FOR(GEMMA2) | FOR(GEMMA3) | FOR(OLMO2)) /* post_attention_layernorm stands behind attention */
#define PARTS (HF & ~FOR(PHI3)) /* queries, keys and values are three tensors */
#define SWIGLU (PARTS & ~FOR(STARCODER2))

static const struct param_row param_rows[] = {
    { "transformer.wte.weight", SLOT_EMBED, DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, GPT2 },
    { "model.embed_tokens.weight", SLOT_EMBED, DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, HF },
    { "gpt_neox.embed_in.weight", SLOT_EMBED, DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, NEOX },
    { "transformer.wpe.weight", SLOT_POSITIONS, DIM_POSITIONS, DIM_HIDDEN, SPLIT_NONE, INIT_NORMAL, GPT2 },

    { "transformer.h.%u.ln_1.weight", SLOT_NORM1_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, GPT2 },
    { "transformer.h.%u.ln_1.bias", SLOT_NORM1_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, GPT2 },
    { "transformer.h.%u.attn.c_attn.weight", SLOT_Q, DIM_HIDDEN, DIM_QKV, SPLIT_COLS, INIT_NORMAL, GPT2 },
    { "transformer.h.%u.attn.c_attn.bias", SLOT_Q_BIAS, DIM_QKV, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, GPT2 },
    { "transformer.h.%u.attn.c_proj.weight", SLOT_OUT, DIM_Q, DIM_HIDDEN, SPLIT_ROWS, INIT_RESIDUAL, GPT2 },
    { "transformer.h.%u.attn.c_proj.bias", SLOT_OUT_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, GPT2 },
    { "transformer.h.%u.ln_2.weight", SLOT_NORM2_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, GPT2 },
    { "transformer.h.%u.ln_2.bias", SLOT_NORM2_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, GPT2 },
    { "transformer.h.%u.mlp.c_fc.weight", SLOT_UP, DIM_HIDDEN, DIM_FFN, SPLIT_COLS, INIT_NORMAL, GPT2 },
    { "transformer.h.%u.mlp.c_fc.bias", SLOT_UP_BIAS, DIM_FFN, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, GPT2 },
    { "transformer.h.%u.mlp.c_proj.weight", SLOT_DOWN, DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, INIT_RESIDUAL, GPT2 },
    { "transformer.h.%u.mlp.c_proj.bias", SLOT_DOWN_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, GPT2 },

    { ROOT "input_layernorm.weight", SLOT_NORM1_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, HF },
    { ROOT "input_layernorm.bias", SLOT_NORM1_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, HF },
    { ROOT "self_attn.q_proj.weight", SLOT_Q, DIM_Q, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, PARTS },
    { ROOT "self_attn.q_proj.bias", SLOT_Q_BIAS, DIM_Q, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, PARTS },
    { ROOT "self_attn.k_proj.weight", SLOT_K, DIM_KV, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, PARTS },
    { ROOT "self_attn.k_proj.bias", SLOT_K_BIAS, DIM_KV, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, PARTS },
    { ROOT "self_attn.v_proj.weight", SLOT_V, DIM_KV, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, PARTS },
    { ROOT "self_attn.v_proj.bias", SLOT_V_BIAS, DIM_KV, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, PARTS },
    { ROOT "self_attn.qkv_proj.weight", SLOT_Q, DIM_QKV, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, FOR(PHI3) },
    /* of each head, so every rank has it; and of all heads of a token, divided as they are */
    { ROOT "self_attn.q_norm.weight", SLOT_Q_GAIN, DIM_HEAD, DIM_NONE, SPLIT_NONE, INIT_ONES, HF & ~FOR(OLMO2) },
    { ROOT "self_attn.k_norm.weight", SLOT_K_GAIN, DIM_HEAD, DIM_NONE, SPLIT_NONE, INIT_ONES, HF & ~FOR(OLMO2) },
    { ROOT "self_attn.q_norm.weight", SLOT_Q_GAIN, DIM_Q, DIM_NONE, SPLIT_ROWS, INIT_ONES, FOR(OLMO2) },
    { ROOT "self_attn.k_norm.weight", SLOT_K_GAIN, DIM_KV, DIM_NONE, SPLIT_ROWS, INIT_ONES, FOR(OLMO2) },
    { ROOT "self_attn.o_proj.weight", SLOT_OUT, DIM_HIDDEN, DIM_Q, SPLIT_COLS, INIT_RESIDUAL, HF },
    { ROOT "self_attn.o_proj.bias", SLOT_OUT_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, HF },
    { ROOT "post_attention_layernorm.weight", SLOT_AFTER1_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, AFTER },
    { ROOT "post_attention_layernorm.weight", SLOT_NORM2_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES,
      HF & ~AFTER },
    { ROOT "post_attention_layernorm.bias", SLOT_NORM2_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS,
      HF & ~AFTER },
    { ROOT "pre_feedforward_layernorm.weight", SLOT_NORM2_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, AFTER },
    { ROOT "mlp.gate_up_proj.weight", SLOT_GATE, DIM_FFN2, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, FOR(PHI3) },
    { ROOT "mlp.gate_proj.weight", SLOT_GATE, DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, SWIGLU },
    { ROOT "mlp.gate_proj.bias", SLOT_GATE_BIAS, DIM_FFN, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, SWIGLU },
    { ROOT "mlp.up_proj.weight", SLOT_UP, DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, SWIGLU },
    { ROOT "mlp.up_proj.bias", SLOT_UP_BIAS, DIM_FFN, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, SWIGLU },
    { ROOT "mlp.down_proj.weight", SLOT_DOWN, DIM_HIDDEN, DIM_FFN, SPLIT_COLS, INIT_RESIDUAL, HF & ~FOR(STARCODER2) },
    { ROOT "mlp.down_proj.bias", SLOT_DOWN_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, HF & ~FOR(STARCODER2) },
    { ROOT "mlp.c_fc.weight", SLOT_UP, DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, FOR(STARCODER2) },
    { ROOT "mlp.c_fc.bias", SLOT_UP_BIAS, DIM_FFN, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, FOR(STARCODER2) },
    { ROOT "mlp.c_proj.weight", SLOT_DOWN, DIM_HIDDEN, DIM_FFN, SPLIT_COLS, INIT_RESIDUAL, FOR(STARCODER2) },
    { ROOT "mlp.c_proj.bias", SLOT_DOWN_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, FOR(STARCODER2) },
    { ROOT "post_feedforward_layernorm.weight", SLOT_AFTER2_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, AFTER },

    { NEOX_ROOT "input_layernorm.weight", SLOT_NORM1_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, NEOX },
    { NEOX_ROOT "input_layernorm.bias", SLOT_NORM1_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, NEOX },
    { NEOX_ROOT "attention.query_key_value.weight", SLOT_Q, DIM_QKV_HEADS, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, NEOX },
    { NEOX_ROOT "attention.query_key_value.bias", SLOT_Q_BIAS, DIM_QKV_HEADS, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, NEOX },
    { NEOX_ROOT "attention.dense.weight", SLOT_OUT, DIM_HIDDEN, DIM_Q, SPLIT_COLS, INIT_RESIDUAL, NEOX },
    { NEOX_ROOT "attention.dense.bias", SLOT_OUT_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, NEOX },
    { NEOX_ROOT "post_attention_layernorm.weight", SLOT_NORM2_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, NEOX },
    { NEOX_ROOT "post_attention_layernorm.bias", SLOT_NORM2_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, NEOX },
    { NEOX_ROOT "mlp.dense_h_to_4h.weight", SLOT_UP, DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, NEOX },
    { NEOX_ROOT "mlp.dense_h_to_4h.bias", SLOT_UP_BIAS, DIM_FFN, DIM_NONE, SPLIT_ROWS, INIT_ZEROS, NEOX },
    { NEOX_ROOT "mlp.dense_4h_to_h.weight", SLOT_DOWN, DIM_HIDDEN, DIM_FFN, SPLIT_COLS, INIT_RESIDUAL, NEOX },
    { NEOX_ROOT "mlp.dense_4h_to_h.bias", SLOT_DOWN_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, NEOX },

    { "transformer.ln_f.weight", SLOT_FINAL_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, GPT2 },
    { "transformer.ln_f.bias", SLOT_FINAL_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, GPT2 },
    { "model.norm.weight", SLOT_FINAL_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, HF },
    { "model.norm.bias", SLOT_FINAL_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, HF },
    { "gpt_neox.final_layer_norm.weight", SLOT_FINAL_GAIN, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ONES, NEOX },
    { "gpt_neox.final_layer_norm.bias", SLOT_FINAL_BIAS, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, INIT_ZEROS, NEOX },
    { "lm_head.weight", SLOT_HEAD, DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, ~NEOX },
    { "embed_out.weight", SLOT_HEAD, DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS, INIT_NORMAL, NEOX },
};
#define ROWS (sizeof(param_rows) / sizeof(param_rows[0]))

static const struct family_desc in_out = { .in_out = true }, out_in = { .in_out = false };

const struct family_desc *family_desc(enum family family)
{
    return family == FAMILY_GPT2 ? &in_out : &out_in;
}

/* Which slots a model has follows from what it is made of. */
static bool has_slot(const struct model_conf *c, enum slot slot)
{
    switch (slot) {
    case SLOT_HEAD: return !c->tied;
    case SLOT_POSITIONS: return c->learned_positions;
    case SLOT_FINAL_BIAS: return c->norm == NORM_LAYER;
    case SLOT_NORM1_GAIN:
    case SLOT_NORM2_GAIN: return c->norms != NORMS_AFTER;
    case SLOT_NORM1_BIAS:
    case SLOT_NORM2_BIAS: return c->norms != NORMS_AFTER && c->norm == NORM_LAYER;
    case SLOT_AFTER1_GAIN:
    case SLOT_AFTER2_GAIN: return c->norms != NORMS_BEFORE;
    case SLOT_Q_GAIN:
    case SLOT_K_GAIN: return c->qk_norm != QK_NORM_NONE;
    case SLOT_Q_BIAS:
    case SLOT_K_BIAS:
    case SLOT_V_BIAS: return c->qkv_bias;
    case SLOT_OUT_BIAS: return c->out_bias;
    case SLOT_GATE: return c->gated;
    case SLOT_GATE_BIAS: return c->gated && c->mlp_bias;
    case SLOT_UP_BIAS:
    case SLOT_DOWN_BIAS: return c->mlp_bias;
    default: return true;
    }
}

/* The rows of one model. */
struct family_table {
    const struct param_row *row[ROWS];
    uint32_t count;
};

static void select_rows(struct family_table *t, const struct model_conf *c)
{
    t->count = 0;
    for (size_t i = 0; i < ROWS; i++) {
        if ((param_rows[i].families >> c->family & 1u) != 0 && has_slot(c, param_rows[i].slot)) {
            t->row[t->count++] = &param_rows[i];
        }
    }
}

struct share share_all(uint64_t layers)
{
    return (struct share){ .tp = 1, .pipe = { .schedule = PIPE_1F1B, .stages = 1, .chunks = 1, .layers = layers } };
}

bool share_is_first(const struct share *s)
{
    return s->stage == 0;
}

bool share_is_last(const struct share *s)
{
    return s->stage + 1 == s->pipe.stages;
}

static uint64_t dim_size(const struct model_conf *c, enum dim d)
{
    switch (d) {
    case DIM_HIDDEN: return c->hidden;
    case DIM_FFN: return c->ffn;
    case DIM_FFN2: return 2 * c->ffn;
    case DIM_VOCAB: return c->vocab;
    case DIM_POSITIONS: return c->positions;
    case DIM_Q: return c->heads * c->head_dim;
    case DIM_KV: return c->kv_heads * c->head_dim;
    case DIM_HEAD: return c->head_dim;
    case DIM_QKV:
    case DIM_QKV_HEADS: return (c->heads + 2 * c->kv_heads) * c->head_dim;
    case DIM_NONE: break;
    }
    return 1;
}

/* ---- logical tensors ---- */

static void add_param(struct registry *r, const struct model_conf *c, const struct param_row *row, uint64_t layer)
{
    struct param *p = &r->list[r->count];
    const char *mark = strstr(row->name, "%u");
    if (mark != NULL) {
        snprintf(p->name, REGISTRY_NAME_BYTES, "%.*s%llu%s", (int)(mark - row->name), row->name,
                 (unsigned long long)layer, mark + 2);
    } else {
        snprintf(p->name, REGISTRY_NAME_BYTES, "%s", row->name);
    }
    p->rank = row->cols == DIM_NONE ? 1 : 2;
    p->shape[0] = dim_size(c, row->rows);
    p->shape[1] = dim_size(c, row->cols);
    p->elements = p->shape[0] * p->shape[1];
    p->view_cols = row->rows == DIM_QKV_HEADS ? 3 * c->head_dim * p->shape[1] : p->shape[1];
    p->init = c->gain_offset && row->init == INIT_ONES ? INIT_ZEROS : row->init; /* the norm adds the 1 */
    p->split = row->split;
    p->slot = row->slot;
    p->decay = p->rank == 2;
    r->count++;
    r->elements += p->elements;
}

/* The rows of one layer stand together: [first, end) of the table. */
static struct order_range layer_rows(const struct family_table *t)
{
    struct order_range layer = { 0, t->count };
    while (t->row[layer.lo]->slot < SLOT_LAYER_FIRST) {
        layer.lo++;
    }
    for (layer.hi = layer.lo; layer.hi < t->count && t->row[layer.hi]->slot >= SLOT_LAYER_FIRST;) {
        layer.hi++;
    }
    return layer;
}

/* Files of a tied model may hold the head too. */
static void name_head(struct registry *r, const struct model_conf *c)
{
    for (size_t i = 0; i < ROWS && c->tied; i++) {
        if (param_rows[i].slot == SLOT_HEAD && (param_rows[i].families >> c->family & 1u) != 0) {
            r->tied_head = param_rows[i].name;
        }
    }
}

static void list_params(struct registry *r, const struct model_conf *c, const struct family_table *t)
{
    struct order_range layer = layer_rows(t);
    for (uint32_t i = 0; i < t->count; i++) {
        if (i == layer.lo) {
            for (uint64_t n = 0; n < c->layers; n++) {
                for (uint64_t j = layer.lo; j < layer.hi; j++) {
                    add_param(r, c, t->row[j], n);
                }
            }
        }
        if (i < layer.lo || i >= layer.hi) {
            add_param(r, c, t->row[i], 0);
        }
    }
}

/* The number of the tensor that list_params made of table row `row` for `layer`. */
static uint32_t param_number(const struct model_conf *c, const struct family_table *t, uint32_t row, uint64_t layer)
{
    struct order_range layers = layer_rows(t);
    uint64_t width = layers.hi - layers.lo;
    if (row < layers.lo) {
        return row;
    }
    if (row < layers.hi) {
        return (uint32_t)(layers.lo + layer * width + (row - layers.lo));
    }
    return (uint32_t)(layers.lo + c->layers * width + (row - layers.hi));
}

/* ---- what this rank holds ---- */

struct builder {
    struct registry *r;
    const struct model_conf *c;
    const struct family_table *t;
    const struct share *share;
};

/* A stretch of the divided dimension: this rank's part of [first, first + size), of which `real` rows exist. */
struct stretch {
    uint64_t first, count, padded;
};

static struct stretch own_stretch(const struct builder *b, enum dim d, uint64_t first, uint64_t size, bool split)
{
    uint32_t tp = split ? b->share->tp : 1, rank = split ? b->share->tp_rank : 0;
    if (d == DIM_VOCAB) {
        uint64_t padded = order_pad_vocab(size) / tp, lo = rank * padded;
        uint64_t real = lo >= size ? 0 : size - lo < padded ? size - lo : padded;
        return (struct stretch){ lo < size ? lo : size, real, padded };
    }
    struct order_range part = order_segment(size, tp, rank);
    return (struct stretch){ first + part.lo, part.hi - part.lo, part.hi - part.lo };
}

/* Add the box of table row `row` whose divided dimension is this rank's part of [first, first + size). */
static void add_box(const struct builder *b, uint32_t row, uint64_t layer, uint32_t part, struct order_range divided)
{
    struct registry *r = b->r;
    const struct param_row *pr = b->t->row[row];
    struct bucket *bucket = &r->buckets[r->bucket_count];
    bool split_rows = pr->split == SPLIT_ROWS, split_cols = pr->split == SPLIT_COLS;
    uint64_t size = divided.hi - divided.lo;
    struct stretch rows = split_cols ? own_stretch(b, pr->rows, 0, dim_size(b->c, pr->rows), false)
                                     : own_stretch(b, pr->rows, divided.lo, size, split_rows);
    struct stretch cols = split_cols ? own_stretch(b, pr->cols, divided.lo, size, true)
                                     : own_stretch(b, pr->cols, 0, dim_size(b->c, pr->cols), false);
    struct shard *s = &r->shards[r->shard_count];
    *s = (struct shard){
        .param = param_number(b->c, b->t, row, layer), .bucket = r->bucket_count,
        .row0 = rows.first, .rows = rows.count, .col0 = cols.first, .cols = cols.count,
        .offset = bucket->stored, .stored = (rows.padded * cols.padded + 15) / 16 * 16,
        .replicated = pr->split == SPLIT_NONE,
        .copy = pr->slot == SLOT_EMBED && !share_is_first(b->share),
    };
    bucket->stored += s->stored;
    bucket->replicated += s->replicated ? s->stored : 0;
    bucket->shards++;
    uint64_t slot_row = pr->slot < SLOT_LAYER_FIRST ? 0 : layer;
    r->slot_of[slot_row * SLOT_COUNT + pr->slot + part] = r->shard_count++;
}

/* All boxes of one table row: one, or those of a fused projection. */
static void add_boxes(const struct builder *b, uint32_t row, uint64_t layer)
{
    const struct param_row *pr = b->t->row[row];
    const struct model_conf *c = b->c;
    enum dim divided = pr->split == SPLIT_COLS ? pr->cols : pr->rows;
    uint64_t q = dim_size(c, DIM_Q), kv = dim_size(c, DIM_KV), all = dim_size(c, divided);
    const bool qkv = divided == DIM_QKV || divided == DIM_QKV_HEADS, pair = divided == DIM_FFN2;
    const uint64_t ends[4] = { 0, qkv ? q : pair ? c->ffn : all, qkv ? q + kv : all, all };
    for (uint32_t i = 0; i < (qkv ? 3u : pair ? 2u : 1u); i++) {
        add_box(b, row, layer, i, (struct order_range){ ends[i], ends[i + 1] });
    }
}

/* One bucket of table rows [first, end), replicated ones first; nothing when there is no row. */
static void add_bucket(const struct builder *b, enum bucket_kind kind, struct order_range rows, uint64_t layer)
{
    struct registry *r = b->r;
    struct bucket *bucket = &r->buckets[r->bucket_count];
    *bucket = (struct bucket){ .kind = kind, .offset = r->stored, .first_shard = r->shard_count };
    for (int replicated = 1; replicated >= 0; replicated--) {
        for (uint64_t i = rows.lo; i < rows.hi; i++) {
            if ((b->t->row[i]->split == SPLIT_NONE) == (replicated == 1)) {
                add_boxes(b, (uint32_t)i, layer);
            }
        }
    }
    if (bucket->shards > 0) {
        r->stored += bucket->stored;
        r->bucket_count++;
    }
}

/* A bucket of every table row in [first, end) with one of two slots (twice the same: one). */
static void add_global(const struct builder *b, enum bucket_kind kind, enum slot slot, enum slot other)
{
    struct order_range rows = { b->t->count, 0 };
    for (uint32_t i = 0; i < b->t->count; i++) {
        if (b->t->row[i]->slot == slot || b->t->row[i]->slot == other) {
            rows.lo = rows.lo < i ? rows.lo : i;
            rows.hi = i + 1;
        }
    }
    add_bucket(b, kind, rows, 0);
}

static void list_shards(const struct builder *b)
{
    const struct share *s = b->share;
    bool first = share_is_first(s), last = share_is_last(s);
    if (first || (last && b->c->tied)) {
        b->r->embed_bucket = b->c->tied && s->pipe.stages > 1 ? b->r->bucket_count : REGISTRY_NONE;
        add_global(b, BUCKET_VOCAB, SLOT_EMBED, SLOT_EMBED);
    }
    if (first) {
        add_global(b, BUCKET_POSITIONS, SLOT_POSITIONS, SLOT_POSITIONS);
    }
    for (uint32_t chunk = 0; chunk < s->pipe.chunks; chunk++) {
        struct order_range layers = pipe_layers(&s->pipe, s->stage, chunk);
        for (uint64_t layer = layers.lo; layer < layers.hi; layer++) {
            add_bucket(b, BUCKET_LAYER, layer_rows(b->t), layer);
        }
    }
    if (last) {
        add_global(b, BUCKET_FINAL, SLOT_FINAL_GAIN, SLOT_FINAL_BIAS);
        add_global(b, BUCKET_VOCAB, SLOT_HEAD, SLOT_HEAD);
    }
}

/* Each array is reserved for the longest case: every tensor, three boxes of each, a bucket of each layer and four
 * more. */
static enum err reserve(struct registry *r, const struct model_conf *c, size_t rows)
{
    void *mem;
    size_t tensors = rows * c->layers;
    TRY(mem_alloc(&mem, c->layers * SLOT_COUNT, sizeof(uint32_t)));
    r->slot_of = mem;
    memset(r->slot_of, 0xff, c->layers * SLOT_COUNT * sizeof(uint32_t));
    TRY(mem_alloc(&mem, tensors, sizeof(struct param)));
    r->list = mem;
    TRY(mem_alloc(&mem, 3 * tensors, sizeof(struct shard)));
    r->shards = mem;
    TRY(mem_alloc(&mem, c->layers + 5, sizeof(struct bucket)));
    r->buckets = mem;
    return OK;
}

enum err registry_init(struct registry *r, const struct model_conf *c, const struct share *share)
{
    struct family_table table, *t = &table;
    select_rows(t, c);
    *r = (struct registry){ .embed_bucket = REGISTRY_NONE };
    enum err err = reserve(r, c, t->count);
    if (err != OK) {
        registry_release(r);
        return err;
    }
    list_params(r, c, t);
    name_head(r, c);
    list_shards(&(struct builder){ r, c, t, share });
    return OK;
}

void registry_release(struct registry *r)
{
    free(r->list);
    free(r->shards);
    free(r->buckets);
    free(r->slot_of);
    *r = (struct registry){ 0 };
}

const struct shard *registry_find(const struct registry *r, uint64_t layer, enum slot slot)
{
    uint64_t row = slot < SLOT_LAYER_FIRST ? 0 : layer;
    uint32_t index = r->slot_of[row * SLOT_COUNT + slot];
    return index == REGISTRY_NONE ? NULL : &r->shards[index];
}

struct view_box registry_box(const struct registry *r, const struct shard *s)
{
    const struct param *p = &r->list[s->param];
    if (p->view_cols == p->shape[1]) {
        return (struct view_box){ s->row0, s->rows, s->col0, s->cols };
    }
    uint64_t part = p->shape[0] / 3, block = p->view_cols / 3, head = block / p->shape[1];
    return (struct view_box){ s->row0 % part / head, s->rows / head, s->row0 / part * block, block };
}

struct box_map registry_map(const struct registry *r, const struct shard *s)
{
    const struct view_box at = registry_box(r, s);
    uint64_t ld = r->list[s->param].view_cols;
    return (struct box_map){ at.row0 * ld + at.col0, at.cols, ld };
}
