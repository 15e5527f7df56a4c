/* Why this exists: a step is a few kernels at a few shapes, many times over. This is the list of them, as the model
 * calls them, with the work that each cannot do without; whoever wants to know where the time of a step goes compares
 * it with what each takes. Pure arithmetic on shapes.
 *
 * Letters as in kern.h: R rows of a micro-batch here, C hidden size, Q, K, F, V columns of queries, keys, feed-forward
 * and vocabulary here. */
#include "bench/ops.h"

#include "base/mem.h"
#include "model/registry.h"
#include "part/order.h"

#define HEAD_ROWS 512u               /* rows of logits at once, as model/ does */
#define UPDATE_ELEMENTS (1u << 24)   /* of the update that are measured: beyond every cache */

const char *ops_group_name(enum ops_group g)
{
    static const char *const names[OPS_GROUPS] = { "products", "attention", "rows", "update" };
    return names[g];
}

enum err ops_shape(struct ops_shape *s, const struct conf *c, uint32_t rank)
{
    const struct layout l = conf_layout(c);
    const struct coord at = layout_coord(&l, rank);
    const struct share share = { .tp = l.tp, .tp_rank = at.tp, .pipe = conf_pipe(c), .stage = at.pp };
    struct registry r;
    *s = (struct ops_shape){
        .model = c->model, .sequences = c->micro_batch_size, .length = c->seq_length, .cp = l.cp, .tp = l.tp,
        .sequence_parallel = c->sequence_parallel && l.tp > 1, .micros = c->gradient_accumulation_steps,
        .embedding = share_is_first(&share), .head = share_is_last(&share), .grain = (uint32_t)c->tp_grain,
        .unit = c->grad_unit, .bf16 = c->bf16, .recompute = c->recompute,
    };
    for (uint32_t i = 0; i < share.pipe.chunks; i++) {
        struct order_range layers = pipe_layers(&share.pipe, at.pp, i);
        s->layers += layers.hi - layers.lo;
    }
    TRY(registry_init(&r, &c->model, &share));
    s->parameters = c->zero_stage > 0 ? r.stored / (l.dp * l.cp) : r.stored;
    registry_release(&r);
    return OK;
}

/* The table as it grows, and the sizes here. */
struct table {
    const struct ops_shape *s;
    const struct family_desc *desc;
    struct op *list;
    uint32_t count;
    uint64_t rows, own; /* of a micro-batch; those kept between the products */
    uint64_t c, q, k, f, v;
    uint32_t grain;
    enum num kept;      /* activations that the backward pass reads, and what attention takes */
    double layers;      /* of all micro-batches of a step: what is done once a layer */
    double full, some;  /* times that a layer's attention, and its products into the feed-forward width, are computed
                         * again */
};

static void add(struct table *t, const struct op *op)
{
    if (op->calls > 0) {
        BUG_IF(t->count == OPS_MAX);
        t->list[t->count++] = *op;
    }
}

/* ---- products ---- */

/* `maps` linear maps of a layer from `in` to `out` columns each. */
struct map {
    const char *name;
    uint64_t in, out;
    double maps, again; /* times that the forward pass runs, also for the backward pass */
    bool row_parallel;  /* its sum has segments; its input is the result of a column-parallel one */
    enum num x, y;      /* how its input and output are stored */
};

/* C[m][n] over k. */
static struct op product(const struct table *t, const char *name, const char *what, enum op_kind kind,
                         const uint64_t mnk[3], double calls)
{
    struct op op = { .kind = kind, .group = OPS_PRODUCT, .rows = mnk[0], .cols = mnk[1], .sum = mnk[2],
                     .part = { mnk[2] }, .parts = 1, .segments = 1, .bf16 = t->s->bf16, .calls = calls };
    double m = (double)mnk[0], n = (double)mnk[1], k = (double)mnk[2];
    op.flops = 2.0 * m * n * k;
    op.bytes = 4.0 * (m * k + n * k) + (kind == OP_GRADIENT ? 16.0 : 4.0) * m * n; /* of fp32 */
    snprintf(op.name, sizeof(op.name), "%s %s", name, what);
    return op;
}

/* Forward and weight gradient of the maps. */
static void add_map(struct table *t, const struct map *l)
{
    uint64_t length = t->s->length / t->s->cp;
    uint64_t stretch = length % t->s->unit == 0 ? t->rows : length; /* rows of one sum over units */
    double again = l->again * l->maps * t->layers;
    struct op op = product(t, l->name, "forward", OP_PRODUCT, (const uint64_t[]){ t->rows, l->out, l->in },
                           l->maps * t->layers + again);
    op.again = again;
    op.b_trans = t->desc->in_out;
    op.segments = l->row_parallel ? t->grain : 1;
    op.a = l->x;
    op.c = l->y;
    add(t, &op);
    uint64_t m = t->desc->in_out ? l->in : l->out, n = t->desc->in_out ? l->out : l->in;
    op = product(t, l->name, "weight gradient", OP_GRADIENT, (const uint64_t[]){ m, n, stretch },
                 l->maps * t->layers * (double)(t->rows / stretch));
    op.a_trans = op.b_trans = true;
    op.a = t->desc->in_out ? l->x : NUM_F32;
    op.b = t->desc->in_out ? NUM_F32 : l->x;
    op.unit = t->s->unit < stretch ? t->s->unit : stretch;
    add(t, &op);
}

/* The gradient of the rows that `parts` maps read, from those of their outputs. */
static void add_input(struct table *t, const char *name, uint64_t in, const uint64_t *out, uint32_t parts,
                      bool row_parallel)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < parts; i++) {
        sum += out[i];
    }
    struct op op = product(t, name, "input gradient", OP_PRODUCT, (const uint64_t[]){ t->rows, in, sum }, t->layers);
    memcpy(op.part, out, parts * sizeof(out[0]));
    op.parts = parts;
    op.segments = row_parallel ? 1 : t->grain;
    op.b_trans = !t->desc->in_out;
    add(t, &op);
}

static void add_layer_products(struct table *t)
{
    const bool gated = t->s->model.gated;
    const char *up = gated ? "gate, up" : "up";
    const enum num kept = t->kept;
    if (t->q == t->k) {
        add_map(t, &(struct map){ "q, k, v", t->c, t->q, 3, t->full, false, kept, kept });
    } else {
        add_map(t, &(struct map){ "q", t->c, t->q, 1, t->full, false, kept, kept });
        add_map(t, &(struct map){ "k, v", t->c, t->k, 2, t->full, false, kept, kept });
    }
    add_input(t, "q, k, v", t->c, (const uint64_t[]){ t->q, t->k, t->k }, 3, false);
    add_map(t, &(struct map){ "attention out", t->q, t->c, 1, t->full, true, kept, NUM_F32 });
    add_input(t, "attention out", t->q, &t->c, 1, true);
    add_map(t, &(struct map){ up, t->c, t->f, gated ? 2 : 1, t->some, false, kept, kept });
    add_input(t, up, t->c, (const uint64_t[]){ t->f, t->f }, gated ? 2 : 1, false);
    add_map(t, &(struct map){ "down", t->f, t->c, 1, 0, true, NUM_F32, NUM_F32 });
    add_input(t, "down", t->f, &t->c, 1, true);
}

/* Logits, loss and their gradients in chunks of rows. Padding of the vocabulary is computed, but is no work. */
static void add_head(struct table *t)
{
    if (!t->s->head) {
        return;
    }
    uint64_t unit = t->s->unit < ORDER_HEAD_UNIT ? t->s->unit : ORDER_HEAD_UNIT;
    uint64_t most = HEAD_ROWS / unit * unit, rows = t->rows < most ? t->rows : most;
    double calls = (double)t->s->micros * (double)t->rows / (double)rows;
    double real = (double)t->s->model.vocab / (double)order_pad_vocab(t->s->model.vocab);
    struct op list[] = {
        product(t, "head", "forward", OP_PRODUCT, (const uint64_t[]){ rows, t->v, t->c }, calls),
        product(t, "head", "input gradient", OP_PRODUCT, (const uint64_t[]){ rows, t->c, t->v }, calls),
        product(t, "head", "weight gradient", OP_GRADIENT, (const uint64_t[]){ t->v, t->c, rows }, calls),
    };
    list[0].a = t->kept;
    list[1].b_trans = true;
    list[1].segments = t->grain;
    list[2].a_trans = list[2].b_trans = true;
    list[2].b = t->kept;
    list[2].unit = unit < rows ? unit : rows;
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        list[i].flops *= real;
        add(t, &list[i]);
    }
    add(t, &(struct op){ .name = "cross entropy", .kind = OP_LOSS, .group = OPS_ROWS, .rows = rows, .cols = t->v,
                         .segments = t->grain, .calls = calls, .bytes = 8.0 * (double)rows * (double)t->v });
}

/* ---- attention, rows ---- */

/* One call of a whole sequence; ranks that share it do a part of it each. Its useful operations: two products of the
 * lower triangle forward, four backward. */
static void add_attention(struct table *t)
{
    double pairs = (double)t->s->length * ((double)t->s->length + 1) / 2, q = (double)t->q, k = (double)t->k;
    double rows = (double)t->s->length, calls = t->layers * (double)t->s->sequences / t->s->cp;
    double kept = (double)num_bytes(t->kept);
    struct op op = { .name = "attention forward", .kind = OP_ATTENTION, .group = OPS_ATTENTION,
                     .rows = t->s->length, .cols = t->q, .sum = t->k,
                     .a = t->kept, .calls = (1 + t->full) * calls, .again = t->full * calls,
                     .flops = 4.0 * pairs * q, .bytes = kept * rows * (2 * q + 2 * k) };
    add(t, &op);
    op.kind = OP_ATTENTION_GRAD;
    op.flops *= 2;
    op.calls = calls;
    op.again = 0;
    op.bytes = rows * (kept * (2 * q + 2 * k) + 4.0 * (2 * q + 2 * k));
    snprintf(op.name, sizeof(op.name), "attention backward");
    add(t, &op);
}

/* A function of rows x cols that moves so many numbers of fp32, and of those that are kept, for each element. */
static void add_rows(struct table *t, const char *name, enum op_kind kind, const uint64_t shape[2],
                     const double moved[2], double calls)
{
    struct op op = { .kind = kind, .group = OPS_ROWS, .rows = shape[0], .cols = shape[1], .calls = calls,
                     .a = t->kept, .c = t->kept, .unit = t->s->unit };
    op.bytes = (4.0 * moved[0] + (double)num_bytes(t->kept) * moved[1]) * (double)shape[0] * (double)shape[1];
    snprintf(op.name, sizeof(op.name), "%s", name);
    add(t, &op);
}

/* What add_rows takes as `moved`. */
#define MOVED(f32, kept) ((const double[]){ (f32), (kept) })

static void add_all_rows(struct table *t)
{
    const struct model_conf *m = &t->s->model;
    double micros = (double)t->s->micros, norms = 2 * t->layers + (t->s->head ? micros : 0);
    const uint64_t own[] = { t->own, t->c }, columns[] = { t->rows, t->c / t->s->tp }, ffn[] = { t->rows, t->f };
    const uint64_t q[] = { t->rows, t->q }, k[] = { t->rows, t->k }, all[] = { t->rows, t->c };
    bool gpt2 = t->s->model.norm == NORM_LAYER, gated = t->s->model.gated;
    double ropes = t->s->model.learned_positions ? 0 : (2 + t->full) * t->layers;
    add_rows(t, "norm forward", OP_NORM, own, MOVED(1, 1), norms + (2 * t->some + t->full) * t->layers);
    add_rows(t, "norm input gradient", OP_NORM_INPUT, own, MOVED(4, 0), norms);
    add_rows(t, "norm parameter gradient", OP_NORM_PARAM, columns, MOVED(2, 0), norms);
    add_rows(t, "activation forward", OP_ACTIVATION, ffn, MOVED(1, gated ? 2 : 1), (gated ? 1 : 2) * t->layers);
    add_rows(t, "activation backward", OP_ACTIVATION_GRAD, ffn, gated ? MOVED(4, 2) : MOVED(2, 1), t->layers);
    add_rows(t, "rotary, queries", OP_ROPE, q, MOVED(0, 2), ropes);
    add_rows(t, "rotary, keys", OP_ROPE, k, MOVED(0, 2), ropes);
    add_rows(t, "bias gradient, hidden", OP_BIAS, columns, MOVED(1, 0), gpt2 ? 2 * t->layers : 0);
    add_rows(t, "bias gradient, q, k, v", OP_BIAS, q, MOVED(1, 0), gpt2 ? 3 * t->layers : 0);
    add_rows(t, "bias gradient, up", OP_BIAS, ffn, MOVED(1, 0), gpt2 ? t->layers : 0);
    add_rows(t, "dropout", OP_DROPOUT, own, MOVED(3, 0),
             (m->resid_dropout > 0 ? 4 * t->layers : 0) + (m->embd_dropout > 0 && t->s->embedding ? 2 * micros : 0));
    add_rows(t, "embedding forward", OP_EMBED, all, MOVED(3, 0), t->s->embedding ? micros : 0);
    add_rows(t, "embedding gradient", OP_EMBED_GRAD, all, MOVED(5, 0),
             t->s->embedding ? (t->s->model.learned_positions ? 2 : 1) * micros : 0);
}

static void add_update(struct table *t)
{
    uint64_t n = t->s->parameters < UPDATE_ELEMENTS ? t->s->parameters : UPDATE_ELEMENTS;
    double calls = (double)t->s->parameters / (double)n;
    const struct op ops[] = {
        /* integers read; parameter, two moments and integer read and written */
        { .name = "gradient norm", .kind = OP_SQUARES, .bytes = 8.0 * (double)n },
        { .name = "AdamW", .kind = OP_ADAMW, .bytes = 40.0 * (double)n },
    };
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        struct op op = ops[i];
        op.group = OPS_UPDATE;
        op.rows = 1;
        op.cols = n;
        op.calls = calls;
        op.stream = n == UPDATE_ELEMENTS;
        add(t, &op);
    }
}

uint32_t ops_list(const struct ops_shape *s, struct op list[OPS_MAX])
{
    const struct model_conf *m = &s->model;
    uint64_t rows = s->sequences * s->length / s->cp;
    struct table t = {
        .s = s, .desc = family_desc(m->family), .list = list, .rows = rows,
        .own = s->sequence_parallel ? (rows + s->tp - 1) / s->tp : rows, .c = m->hidden,
        .q = m->heads * m->head_dim / s->tp, .k = m->kv_heads * m->head_dim / s->tp, .f = m->ffn / s->tp,
        .v = order_pad_vocab(m->vocab) / s->tp, .grain = s->grain / s->tp,
        .kept = s->bf16 ? NUM_BF16 : NUM_F32, .layers = (double)s->layers * (double)s->micros,
        .full = s->recompute == RECOMPUTE_FULL, .some = s->recompute != RECOMPUTE_NONE,
    };
    add_layer_products(&t);
    add_head(&t);
    add_attention(&t);
    add_all_rows(&t);
    add_update(&t);
    return t.count;
}
