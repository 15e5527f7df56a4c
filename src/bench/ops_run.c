/* Why this exists: every op of the table as a call of its kernel, on memory that all of them share. What is in it does
 * not matter as long as it is ordinary numbers: each role is used so that no op spoils what another one reads. */
#include "bench/ops.h"

#include "base/mem.h"
#include "base/rng.h"
#include "model/registry.h"
#include "part/order.h"

enum role {
    ROLE_X, ROLE_W, /* read only: left and right operands, queries and keys, tables of embeddings */
    ROLE_Y, ROLE_D, ROLE_E, ROLE_F, /* results, gradients */
    ROLE_M, ROLE_V, /* moments: V stays positive */
    ROLE_LSE, ROLE_DOT, ROLE_MEAN, ROLE_RSTD, ROLE_COS, ROLE_SIN,
    ROLES,
};

struct ops_memory {
    const struct ops_shape *shape;
    const struct op *list;
    struct kern *k;
    uint64_t need[ROLES], grads, tokens; /* elements */
    float *at[ROLES];
    int64_t *grad;
    int32_t *index, *target, *position;
    struct arena arena;
    bool overflow;
};

/* ---- memory ---- */

static void need(struct ops_memory *m, enum role r, uint64_t elements)
{
    m->need[r] = elements > m->need[r] ? elements : m->need[r];
}

static void need_op(struct ops_memory *m, const struct op *op)
{
    uint64_t all = op->rows * op->cols, left = op->rows * op->sum, right = op->cols * op->sum;
    bool product = op->group == OPS_PRODUCT, attention = op->group == OPS_ATTENTION;
    bool rows = op->group == OPS_ROWS && op->kind != OP_LOSS;
    uint64_t widest = attention ? op->rows * (op->cols > 2 * op->sum ? op->cols : 2 * op->sum) : rows ? all : 0;
    need(m, ROLE_X, product ? left : widest);
    need(m, ROLE_W, product ? right : widest);
    need(m, ROLE_Y, op->kind == OP_GRADIENT ? 0 : all);
    for (int r = ROLE_D; r <= ROLE_F; r++) {
        need(m, (enum role)r, widest);
    }
    need(m, ROLE_M, op->kind == OP_ADAMW ? all : 0);
    need(m, ROLE_V, op->kind == OP_ADAMW ? all : 0);
    m->grads = op->kind != OP_PRODUCT && op->kind != OP_LOSS && all > m->grads ? all : m->grads;
}

static void needs(struct ops_memory *m, uint32_t count)
{
    const struct model_conf *c = &m->shape->model;
    uint64_t rows = m->shape->sequences * m->shape->length, heads = c->heads * m->shape->length;
    for (uint32_t i = 0; i < count; i++) {
        need_op(m, &m->list[i]);
    }
    m->tokens = rows;
    uint64_t table = order_pad_vocab(c->vocab) / m->shape->tp * c->hidden;
    if (m->shape->embedding) {
        need(m, ROLE_W, table);
        need(m, ROLE_X, m->shape->length * c->hidden);
        m->grads = table > m->grads ? table : m->grads;
    }
    need(m, ROLE_LSE, heads);
    need(m, ROLE_DOT, heads);
    need(m, ROLE_MEAN, rows);
    need(m, ROLE_RSTD, rows);
    need(m, ROLE_COS, m->shape->length * c->head_dim / 2);
    need(m, ROLE_SIN, m->shape->length * c->head_dim / 2);
}

static void layout(struct ops_memory *m)
{
    for (int r = 0; r < ROLES; r++) {
        m->at[r] = arena_take(&m->arena, m->need[r], sizeof(float));
    }
    m->grad = arena_take(&m->arena, m->grads, sizeof(int64_t));
    m->index = arena_take(&m->arena, m->tokens, sizeof(int32_t));
    m->target = arena_take(&m->arena, m->tokens, sizeof(int32_t));
    m->position = arena_take(&m->arena, m->tokens, sizeof(int32_t));
}

/* Columns of the vocabulary here that are no padding. */
static uint64_t real_columns(const struct ops_memory *m)
{
    uint64_t here = order_pad_vocab(m->shape->model.vocab) / m->shape->tp;
    return m->shape->model.vocab < here ? m->shape->model.vocab : here;
}

/* Numbers of the size that they have in training, whether they are read as fp32 or as pairs of bf16. */
static float ordinary(uint64_t i, float from)
{
    float x = (float)(i % 1021 + 1) * 0x1p-10f + from;
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    bits = (bits & 0xffff0000u) | bits >> 16;
    memcpy(&x, &bits, sizeof(bits));
    return x;
}

static void fill(struct ops_memory *m)
{
    for (int r = 0; r < ROLES; r++) {
        float from = r == ROLE_V || r == ROLE_RSTD ? 0.0f : -0.5f;
        for (uint64_t i = 0; i < m->need[r]; i++) {
            m->at[r][i] = ordinary(i, from);
        }
    }
    memset(m->grad, 0, m->grads * sizeof(int64_t));
    for (uint64_t i = 0; i < m->tokens; i++) {
        struct rng_block b = rng_at(1, RNG_TEST, i, 0);
        m->index[i] = (int32_t)(b.word[0] % m->shape->model.vocab);
        m->target[i] = (int32_t)(b.word[1] % real_columns(m));
        m->position[i] = (int32_t)(i % m->shape->length);
    }
}

enum err ops_memory_new(struct ops_memory **out, const struct ops_shape *s, const struct op *list, uint32_t count,
                        struct kern *k)
{
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct ops_memory)));
    struct ops_memory *m = mem;
    *m = (struct ops_memory){ .shape = s, .list = list, .k = k };
    needs(m, count);
    layout(m);
    enum err err = arena_back(&m->arena);
    if (err != OK) {
        ops_memory_free(m);
        return err;
    }
    layout(m);
    fill(m);
    *out = m;
    return OK;
}

void ops_memory_free(struct ops_memory *m)
{
    if (m != NULL) {
        arena_release(&m->arena);
        free(m);
    }
}

/* ---- calls ---- */

static void run_product(struct ops_memory *m, const struct op *op)
{
    struct gemm_piece pieces[GEMM_PIECES_MAX];
    uint32_t count = 0;
    for (uint32_t s = 0; s < op->segments; s++) {
        for (uint64_t i = 0, first = 0; i < op->parts; first += op->part[i++]) {
            struct order_range r = order_segment(op->part[i], op->segments, s);
            uint64_t at = first + r.lo;
            pieces[count++] = (struct gemm_piece){
                .a = { num_at(m->at[ROLE_X], op->a, op->a_trans ? at * op->rows : at),
                       op->a_trans ? op->rows : op->sum, op->a_trans, op->a },
                .b = { num_at(m->at[ROLE_W], op->b, op->b_trans ? at * op->cols : at),
                       op->b_trans ? op->cols : op->sum, op->b_trans, op->b },
                .k = r.hi - r.lo,
                .ends_segment = i + 1 == op->parts,
            };
        }
    }
    struct gemm_job job = { .m = op->rows, .n = op->cols, .pieces = pieces, .pieces_count = count, .bf16 = op->bf16 };
    if (op->kind == OP_GRADIENT) {
        job.grad = m->grad, job.ldg = op->cols, job.unit = op->unit, job.grad_scale = 0x1p20f;
        job.grad_limit = FIXED_UNIT_LIMIT, job.overflow = &m->overflow;
    } else {
        job.c = m->at[ROLE_Y], job.c_type = op->c, job.ldc = op->cols;
    }
    kern_gemm(m->k, &job);
}

static void run_attention(struct ops_memory *m, const struct op *op)
{
    const struct model_conf *c = &m->shape->model;
    uint64_t q = op->cols, kv = op->sum;
    const struct attention a = {
        .heads = q / c->head_dim, .kv_heads = kv / c->head_dim, .head_dim = c->head_dim, .rows = op->rows,
        .scale = 1.0f / __builtin_sqrtf((float)c->head_dim), .type = op->a, .q = m->at[ROLE_X], .k = m->at[ROLE_W],
        .v = num_at(m->at[ROLE_W], op->a, kv), .ldq = q, .ldk = 2 * kv, .o = m->at[ROLE_Y], .ldo = q,
        .lse = m->at[ROLE_LSE],
    };
    if (op->kind == OP_ATTENTION) {
        kern_attention_forward(m->k, &a);
        return;
    }
    float *dkv = m->at[ROLE_F];
    const struct attention_grad g = { m->at[ROLE_D], m->at[ROLE_E], dkv, dkv + kv, m->at[ROLE_DOT] };
    kern_attention_backward(m->k, &a, &g);
}

static void run_norm(struct ops_memory *m, const struct op *op)
{
    float *x = m->at[ROLE_X], *w = m->at[ROLE_W], *mean = m->at[ROLE_MEAN], *rstd = m->at[ROLE_RSTD];
    const struct grad_sink gain = { m->grad, op->unit, 0x1p20f, FIXED_UNIT_LIMIT, &m->overflow };
    struct grad_sink bias = gain;
    bias.grad = m->grad + op->cols;
    bool layer = m->shape->model.norm == NORM_LAYER;
    if (op->kind == OP_NORM_PARAM) {
        kern_norm_grad(m->k, op->rows, op->cols, op->cols, x, layer ? mean : NULL, rstd, m->at[ROLE_D], &gain,
                       layer ? &bias : NULL);
    } else if (op->kind == OP_NORM && layer) {
        kern_layernorm_forward(m->k, op->rows, op->cols, x, w, w + op->cols, 1e-5f, m->at[ROLE_Y], op->c, mean,
                               rstd);
    } else if (op->kind == OP_NORM) {
        kern_rmsnorm_forward(m->k, op->rows, op->cols, x, w, 0.0f, 1e-5f, m->at[ROLE_Y], op->c, rstd);
    } else if (layer) {
        kern_layernorm_backward(m->k, op->rows, op->cols, x, w, mean, rstd, m->at[ROLE_D], m->at[ROLE_E]);
    } else {
        kern_rmsnorm_backward(m->k, op->rows, op->cols, x, w, 0.0f, rstd, m->at[ROLE_D], m->at[ROLE_E]);
    }
}

static void run_activation(struct ops_memory *m, const struct op *op)
{
    const float *x = m->at[ROLE_X], *w = m->at[ROLE_W];
    float *y = m->at[ROLE_Y];
    uint64_t n = op->rows * op->cols;
    bool forward = op->kind == OP_ACTIVATION;
    if (m->shape->model.gated && forward) {
        kern_swiglu_forward(m->k, n, x, w, op->a, y);
    } else if (m->shape->model.gated) {
        kern_swiglu_backward(m->k, n, x, w, op->a, m->at[ROLE_D], m->at[ROLE_E], m->at[ROLE_F], y);
    } else if (forward) {
        kern_gelu_forward(m->k, n, x, op->a, y);
    } else {
        kern_gelu_backward(m->k, n, x, op->a, m->at[ROLE_D], y);
    }
}

static void run_embedding(struct ops_memory *m, const struct op *op)
{
    uint64_t vocab = order_pad_vocab(m->shape->model.vocab) / m->shape->tp;
    if (op->kind == OP_EMBED_GRAD) {
        const struct embed_grad g = { op->rows, op->cols, op->cols, m->index, 0, vocab, m->at[ROLE_D], m->grad, 0x1p20f,
                                      FIXED_UNIT_LIMIT, &m->overflow };
        kern_embed_grad(m->k, &g);
        return;
    }
    const struct lookup token = { m->at[ROLE_W], m->index, 0, vocab };
    const struct lookup position = { m->at[ROLE_X], m->position, 0, m->shape->length };
    kern_embed_forward(m->k, op->rows, op->cols, &token, m->shape->model.learned_positions ? &position : NULL,
                       m->at[ROLE_Y]);
}

static void run_rows(struct ops_memory *m, const struct op *op)
{
    const struct model_conf *c = &m->shape->model;
    if (op->kind == OP_BIAS) {
        const struct grad_sink sink = { m->grad, op->unit, 0x1p20f, FIXED_UNIT_LIMIT, &m->overflow };
        kern_bias_grad(m->k, op->rows, op->cols, m->at[ROLE_D], op->cols, &sink);
    } else if (op->kind == OP_ROPE) {
        const uint64_t dim = c->head_dim;
        const struct rope rope = { m->at[ROLE_COS], m->at[ROLE_SIN], op->cols / dim, dim, dim, 0,
                                   m->shape->length / m->shape->cp, false };
        kern_rope(m->k, op->rows, m->at[ROLE_Y], op->c, op->cols, &rope);
    } else if (op->kind == OP_DROPOUT) {
        const struct dropout d = { .p = 0.1, .period = m->shape->length, .position = m->position };
        kern_dropout(m->k, op->rows, op->cols, m->at[ROLE_D], m->at[ROLE_X], m->at[ROLE_Y], &d);
    } else { /* OP_LOSS: in place, so the logits of one call are the gradient of the one before */
        kern_cross_entropy(m->k, op->rows, real_columns(m), op->cols, op->cols, op->segments, m->target, m->at[ROLE_Y],
                           m->at[ROLE_MEAN], true);
    }
}

/* AdamW with constants that leave parameters and moments as they are: the same work at every call. */
static void run_update(struct ops_memory *m, const struct op *op)
{
    if (op->kind == OP_SQUARES) {
        struct fixed_wide sum = { { 0 } };
        kern_grad_square_sum(m->k, op->cols, m->grad, &sum, &m->overflow);
        return;
    }
    const struct adamw a = { .grad_factor = 1e-6, .beta1 = 1, .beta2 = 1, .eps = 1e-8f, .rsqrt_correction2 = 1 };
    const struct box_map map = { 0, op->cols, op->cols };
    uint64_t hash;
    kern_adamw(m->k, op->cols, &a, m->at[ROLE_Y], m->at[ROLE_M], m->at[ROLE_V], m->grad, &map, 0, &hash);
}

void ops_run(void *memory, uint32_t i)
{
    struct ops_memory *m = memory;
    const struct op *op = &m->list[i];
    switch (op->kind) {
    case OP_PRODUCT:
    case OP_GRADIENT:
        run_product(m, op);
        break;
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
        run_attention(m, op);
        break;
    case OP_NORM:
    case OP_NORM_INPUT:
    case OP_NORM_PARAM:
        run_norm(m, op);
        break;
    case OP_ACTIVATION:
    case OP_ACTIVATION_GRAD:
        run_activation(m, op);
        break;
    case OP_EMBED:
    case OP_EMBED_GRAD:
        run_embedding(m, op);
        break;
    case OP_BIAS:
    case OP_ROPE:
    case OP_DROPOUT:
    case OP_LOSS:
        run_rows(m, op);
        break;
    case OP_SQUARES:
    case OP_ADAMW:
        run_update(m, op);
        break;
    }
}
