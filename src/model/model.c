/* Why this exists: the life of a model - describe it, lay out its memory (measured first, then backed: the plan is
 * the allocation), start its weights - and its three uses: the operations of a training step, an evaluation, and
 * inference with a cache. */
#include "model/model_int.h"

#include "base/fmath.h"
#include "part/order.h"

/* ---- life ---- */

struct model_place model_place_single(const struct model_conf *c)
{
    struct model_place p = { .share = share_all(c->layers), .cp = 1 };
    p.sets[0] = 1;
    return p;
}

/* Every element of a gradient is a sum of at most batch x `units` integers. Units below this keep it at or below
 * sum_limit, so that no order of additions, on any layout, wraps unseen. */
static float unit_limit_of(const struct model_shape *s, uint64_t units, double sum_limit)
{
    double limit = (double)FIXED_UNIT_LIMIT;
    while (limit * (double)s->batch * (double)units > sum_limit) {
        limit *= 0.5;
    }
    return (float)limit;
}

static uint64_t units_of(const struct model_shape *s, uint64_t unit)
{
    return (s->seq_length + unit - 1) / unit;
}

static void set_limits(struct model *m)
{
    const struct model_shape *s = &m->shape;
    double all = (double)FIXED_SUM_LIMIT, vocabulary = m->conf.tied ? all / 2 : all; /* two sums in one */
    m->unit_limit = unit_limit_of(s, units_of(s, s->grad_unit), all);
    m->head_limit = unit_limit_of(s, units_of(s, head_unit(m)), vocabulary);
    m->token_limit = unit_limit_of(s, s->seq_length, vocabulary);
    /* a unit of each norm of a row, over all ranks */
    m->q_limit = unit_limit_of(s, units_of(s, s->grad_unit) * qk_norms(m, m->conf.heads), all);
    m->k_limit = unit_limit_of(s, units_of(s, s->grad_unit) * qk_norms(m, m->conf.kv_heads), all);
}

/* This rank's shares of everything that is divided. */
static void set_sizes(struct model *m)
{
    const struct model_conf *c = &m->conf;
    const struct model_shape *s = &m->shape;
    uint32_t tp = m->place.share.tp, cp = m->place.cp;
    BUG_IF(s->grain % tp != 0 || !context_fits(s->seq_length, s->grad_unit, cp));
    m->heads = c->heads / tp;
    m->kv_heads = c->kv_heads / tp;
    m->q_cols = m->heads * c->head_dim;
    m->kv_cols = m->kv_heads * c->head_dim;
    m->ffn = c->ffn / tp;
    m->vocab_padded = order_pad_vocab(c->vocab) / tp;
    m->grain = s->grain / tp;
    m->length = s->seq_length / cp;
    m->chunks_of_sequence = cp > 1 ? context_chunks(s->seq_length, s->grad_unit, cp) : 1;
    m->rows = s->sequences * m->length;
    m->head_rows = m->rows < HEAD_ROWS_MAX ? m->rows : HEAD_ROWS_MAX;
}

/* Chunks, their activation sets and the layers of each. */
static enum err new_chunks(struct model *m)
{
    void *mem;
    const struct pipe *pipe = &m->place.share.pipe;
    TRY(mem_alloc(&mem, pipe->chunks, sizeof(struct chunk)));
    m->chunk = mem;
    for (uint32_t i = 0; i < pipe->chunks; i++) {
        struct chunk *c = &m->chunk[i];
        c->layers = pipe_layers(pipe, m->place.share.stage, i);
        c->first = i == 0 && share_is_first(&m->place.share);
        c->last = i + 1 == pipe->chunks && share_is_last(&m->place.share);
        c->sets = m->shape.mode == MODEL_TRAIN ? m->place.sets[i] : 1;
        TRY(mem_alloc(&mem, c->sets, sizeof(struct act_set)));
        c->set = mem;
        for (uint32_t j = 0; j < c->sets; j++) {
            TRY(mem_alloc(&mem, c->layers.hi - c->layers.lo + 1, sizeof(struct layer_act)));
            c->set[j].layer = mem;
        }
    }
    return OK;
}

enum err model_new(struct model **out, const struct model_conf *c, const struct model_shape *shape,
                   const struct model_place *place, struct kern *k)
{
    void *mem;
    *out = NULL;
    BUG_IF(shape->sequences == 0 || shape->grad_unit == 0 || shape->grad_unit > shape->seq_length);
    BUG_IF(shape->mode == MODEL_TRAIN && shape->batch == 0);
    BUG_IF(c->norms != NORMS_BEFORE && (c->norm == NORM_LAYER || c->parallel_residual));
    /* a norm over all heads has no part on a rank, and what branches without a norm before take is not gathered */
    BUG_IF((c->qk_norm == QK_NORM_ALL || c->norms == NORMS_AFTER) && place->share.tp > 1);
    TRY(mem_alloc(&mem, 1, sizeof(struct model)));
    struct model *m = mem;
    m->conf = *c;
    m->shape = *shape;
    m->place = *place;
    m->desc = family_desc(c->family);
    m->k = k;
    m->kept = shape->bf16 ? NUM_BF16 : NUM_F32;
    m->dropping = shape->mode == MODEL_TRAIN;
    set_sizes(m);
    set_limits(m);
    enum err err;
    TRY_OUT(registry_init(&m->reg, c, &place->share));
    TRY_OUT(new_chunks(m));
    TRY_OUT(mem_alloc(&mem, m->rows, sizeof(int32_t)));
    m->position = mem;
    *out = m;
    return OK;
out:
    model_free(m);
    return err;
}

void model_free(struct model *m)
{
    if (m == NULL) {
        return;
    }
    for (uint32_t i = 0; m->chunk != NULL && i < m->place.share.pipe.chunks; i++) {
        for (uint32_t j = 0; m->chunk[i].set != NULL && j < m->chunk[i].sets; j++) {
            free(m->chunk[i].set[j].layer);
        }
        free(m->chunk[i].set);
    }
    registry_release(&m->reg);
    free(m->chunk);
    free(m->position);
    free(m);
}

/* ---- memory ---- */

static float *take(struct arena *a, uint64_t rows, uint64_t cols)
{
    return arena_take(a, mem_mul(rows, cols), sizeof(float));
}

/* The most rows of a call that this rank keeps between the products. */
static uint64_t own_rows(const struct model *m)
{
    return m->place.sequence_parallel ? part_range(m->rows, m->place.share.tp, 0).hi : m->rows;
}

static void *take_kept(const struct model *m, struct arena *a, uint64_t rows, uint64_t cols)
{
    return arena_take(a, mem_mul(rows, cols), num_bytes(m->kept));
}

/* The parts of a layer's activations: what a backward pass cannot do without; what full recomputation computes again;
 * what selective recomputation does. */
enum act_part { ACT_INPUT = 1, ACT_ATTENTION = 2, ACT_WIDE = 4 };

/* Parts that every layer has for itself; all share the others'. Without a backward pass that is all of them. */
static unsigned own_parts(const struct model *m)
{
    static const unsigned train[] = {
        [RECOMPUTE_NONE] = ACT_INPUT | ACT_ATTENTION | ACT_WIDE,
        [RECOMPUTE_SELECTIVE] = ACT_INPUT | ACT_ATTENTION,
        [RECOMPUTE_FULL] = ACT_INPUT,
    };
    return m->shape.mode == MODEL_TRAIN ? train[m->shape.recompute] : 0;
}

/* The norm before a branch. */
static void *take_input(const struct model *m, struct arena *a)
{
    return m->conf.norms != NORMS_AFTER ? take_kept(m, a, m->rows, m->conf.hidden) : NULL;
}

static struct after_act take_after(const struct model *m, struct arena *a)
{
    struct after_act after = { 0 };
    if (m->conf.norms != NORMS_BEFORE) {
        after.x = take(a, own_rows(m), m->conf.hidden);
        after.rstd = take(a, m->rows, 1);
    }
    return after;
}

static void layout_qk_norms(const struct model *m, struct arena *a, struct layer_act *l)
{
    if (m->conf.qk_norm == QK_NORM_NONE) {
        return;
    }
    l->q_rstd = take(a, m->rows, qk_norms(m, m->heads));
    l->k_rstd = take(a, m->rows, qk_norms(m, m->kv_heads));
    if (m->shape.mode == MODEL_TRAIN) {
        l->q_raw = take_kept(m, a, m->rows, m->q_cols);
        l->k_raw = take_kept(m, a, m->rows, m->kv_cols);
    }
}

/* The cache of MODEL_INFER is per layer and laid out apart. */
static void layout_parts(const struct model *m, struct arena *a, struct layer_act *l, unsigned parts)
{
    uint64_t hidden = m->conf.hidden, own = own_rows(m);
    if ((parts & ACT_INPUT) != 0) {
        l->x = take(a, own, hidden);
    }
    if ((parts & ACT_ATTENTION) != 0) {
        l->mean1 = m->conf.norm == NORM_LAYER ? take(a, m->rows, 1) : NULL;
        l->rstd1 = take(a, m->rows, 1);
        layout_qk_norms(m, a, l);
        l->after1 = take_after(m, a);
        l->after2 = take_after(m, a);
        l->q = take_kept(m, a, m->rows, m->q_cols);
        l->kv = m->shape.mode != MODEL_INFER ? take_kept(m, a, m->rows, 2 * m->kv_cols) : NULL;
        l->att = take_kept(m, a, m->rows, m->q_cols);
        l->lse = m->shape.mode == MODEL_TRAIN ? take(a, m->rows, m->heads) : NULL;
        l->x1 = take(a, own, hidden);
        l->mean2 = m->conf.norm == NORM_LAYER ? take(a, m->rows, 1) : NULL;
        l->rstd2 = take(a, m->rows, 1);
    }
    if ((parts & ACT_WIDE) != 0) {
        l->n1 = take_input(m, a);
        l->n2 = own_parts(m) == (ACT_INPUT | ACT_ATTENTION | ACT_WIDE) ? take_input(m, a) : l->n1;
        l->gate = m->conf.gated ? take_kept(m, a, m->rows, m->ffn) : NULL;
        l->up = take_kept(m, a, m->rows, m->ffn);
    }
}

/* One activation set. */
static void layout_set(struct model *m, struct arena *a, const struct chunk *c, struct act_set *s)
{
    uint64_t layers = c->layers.hi - c->layers.lo;
    for (uint64_t l = 0; l <= layers; l++) {
        s->layer[l] = m->shared;
        layout_parts(m, a, &s->layer[l], l < layers ? own_parts(m) : own_parts(m) & ACT_INPUT);
        if (m->shape.mode == MODEL_INFER && l < layers) {
            s->layer[l].kv = take_kept(m, a, m->shape.seq_length, 2 * m->kv_cols);
        }
    }
    if (c->last) {
        s->final_norm = take_kept(m, a, m->rows, m->conf.hidden);
        s->final_mean = m->conf.norm == NORM_LAYER ? take(a, m->rows, 1) : NULL;
        s->final_rstd = take(a, m->rows, 1);
    }
}

static void layout_backward(struct model *m, struct arena *a)
{
    uint64_t hidden = m->conf.hidden;
    m->dx[0] = take(a, own_rows(m), hidden);
    m->dx[1] = m->place.share.pipe.stages > 1 ? take(a, own_rows(m), hidden) : m->dx[0];
    m->d_out = m->conf.parallel_residual ? take(a, own_rows(m), hidden) : NULL;
    m->dn = take(a, m->rows, hidden);
    m->d_att = take(a, m->rows, m->q_cols);
    m->dq = take(a, m->rows, m->q_cols);
    m->dkv = take(a, m->rows, 2 * m->kv_cols);
    m->row_dot = take(a, m->length, m->heads);
    m->d_up = take(a, m->rows, m->ffn);
    m->d_gate = m->conf.gated ? take(a, m->rows, m->ffn) : NULL;
    if (m->place.sequence_parallel) {
        m->full_x = take(a, m->rows, hidden);
        m->full_mean = m->conf.norm == NORM_LAYER ? take(a, m->rows, 1) : NULL;
        m->full_rstd = take(a, m->rows, 1);
    }
}

static struct rope_table take_rope(const struct model *m, struct arena *a)
{
    float *cos = take(a, m->length, m->conf.rotary_dim / 2), *sin = take(a, m->length, m->conf.rotary_dim / 2);
    return (struct rope_table){ cos, sin };
}

void model_layout(struct model *m, struct arena *a)
{
    const struct model_conf *c = &m->conf;
    bool train = m->shape.mode == MODEL_TRAIN, last = share_is_last(&m->place.share);
    layout_parts(m, a, &m->shared, (ACT_INPUT | ACT_ATTENTION | ACT_WIDE) & ~own_parts(m));
    for (uint32_t i = 0; i < m->place.share.pipe.chunks; i++) {
        for (uint32_t j = 0; j < m->chunk[i].sets; j++) {
            layout_set(m, a, &m->chunk[i], &m->chunk[i].set[j]);
        }
    }
    m->act_ffn = take(a, m->rows, m->ffn);
    if (m->place.sequence_parallel || c->norms != NORMS_BEFORE ||
        (train && c->resid_dropout + c->embd_dropout > 0.0)) {
        m->branch = take(a, m->rows, c->hidden);
    }
    if (train) {
        layout_backward(m, a);
    }
    if (last) {
        head_layout(m, a);
    }
    attend_layout(m, a);
    if (!c->learned_positions) {
        m->rope = take_rope(m, a);
    }
    if (c->has_local_rope) {
        m->local_rope = take_rope(m, a);
    }
}

void model_layout_storage(struct model *m, struct arena *a, struct model_lists *lists)
{
    bool train = m->shape.mode == MODEL_TRAIN;
    for (uint32_t b = 0; b < m->reg.bucket_count; b++) {
        lists->p[b] = arena_take(a, m->reg.buckets[b].stored, sizeof(float));
        if (train) {
            lists->g[b] = arena_take(a, m->reg.buckets[b].stored, sizeof(int64_t));
        }
    }
    m->at = (struct model_storage){ .p = lists->p, .g = train ? lists->g : NULL };
}

void model_set_storage(struct model *m, const struct model_storage *s)
{
    m->at = *s;
}

/* Position of local row t of a sequence. */
static uint64_t position_of(const struct model *m, uint64_t t)
{
    if (m->place.cp == 1) {
        return t;
    }
    uint64_t n = m->length / m->chunks_of_sequence;
    struct order_range chunk = context_chunk(m->shape.seq_length, m->shape.grad_unit, m->place.cp, m->place.cp_rank,
                                             (uint32_t)(t / n));
    return chunk.lo + t % n;
}

/* Angle of pair i at position t: t * frequency; its cosine and sine times `scale`, in double, rounded to fp32 once (Su
 * et al., 2021). */
static void fill_rope(const struct model *m, const struct rope_conf *conf, const struct rope_table *table)
{
    uint64_t half = m->conf.rotary_dim / 2;
    double frequency[MODEL_HEAD_DIM_MAX / 2], scale;
    model_conf_frequencies(&m->conf, conf, m->shape.seq_length, frequency, &scale);
    for (uint64_t i = 0; i < half; i++) {
        for (uint64_t t = 0; t < m->length; t++) {
            double angle = (double)position_of(m, t) * frequency[i];
            table->cos[t * half + i] = (float)(fmath_cos(angle) * scale);
            table->sin[t * half + i] = (float)(fmath_sin(angle) * scale);
        }
    }
}

enum err model_ready(struct model *m)
{
    for (uint64_t row = 0; row < m->rows; row++) {
        m->position[row] = (int32_t)position_of(m, row % m->length);
    }
    if (!m->conf.learned_positions) {
        fill_rope(m, &m->conf.rope, &m->rope);
    }
    if (m->conf.has_local_rope) {
        fill_rope(m, &m->conf.local_rope, &m->local_rope);
    }
    if (m->place.tp != NULL) {
        void *window;
        TRY(comm_window(m->place.tp, m->rows * m->conf.hidden * sizeof(float), &window));
        m->window = window;
    }
    return OK;
}

/* ---- what others ask ---- */

const struct registry *model_registry(const struct model *m)
{
    return &m->reg;
}

const struct model_conf *model_conf(const struct model *m)
{
    return &m->conf;
}

uint64_t model_local_length(const struct model *m)
{
    return m->length;
}

void model_local_tokens(const struct model *m, const int32_t *sequence, int32_t *local)
{
    for (uint64_t t = 0; t < m->length; t++) {
        local[t] = sequence[m->position[t]];
    }
}

void model_init_weights(const struct model *m, uint32_t bucket, uint64_t lo, uint64_t hi, float *p, uint64_t seed)
{
    double deviation = m->conf.initializer_range;
    double residual = deviation / fmath_sqrt(2.0 * (double)m->conf.layers);
    const struct bucket *b = &m->reg.buckets[bucket];
    memset(p, 0, (hi - lo) * sizeof(float));
    for (uint32_t i = b->first_shard; i < b->first_shard + b->shards; i++) {
        const struct shard *s = &m->reg.shards[i];
        const struct param *logical = &m->reg.list[s->param];
        uint64_t end = s->offset + s->rows * s->cols;
        uint64_t from = lo > s->offset ? lo : s->offset, to = hi < end ? hi : end;
        if (from >= to) {
            continue;
        }
        const struct box_map map = registry_map(&m->reg, s);
        double d = logical->init == INIT_RESIDUAL ? residual : deviation;
        if (logical->init == INIT_NORMAL || logical->init == INIT_RESIDUAL) {
            kern_init_normal(m->k, to - from, p + (from - lo), seed, s->param, &map, from - s->offset, d);
        } else if (logical->init == INIT_ONES) {
            kern_fill(m->k, to - from, p + (from - lo), 1.0f);
        }
    }
}

/* ---- training ---- */

uint64_t model_boundary(const struct model *m, uint64_t sequences)
{
    struct rows r = model_rows(m, sequences);
    return own_count(&r) * m->conf.hidden;
}

float *model_input(struct model *m, uint32_t chunk, uint32_t set)
{
    return m->chunk[chunk].set[set].layer[0].x;
}

float *model_output(struct model *m, uint32_t chunk, uint32_t set)
{
    const struct chunk *c = &m->chunk[chunk];
    return c->set[set].layer[c->layers.hi - c->layers.lo].x;
}

float *model_gradient(struct model *m)
{
    return m->dx[m->turn];
}

void model_turn(struct model *m)
{
    m->turn = 1 - m->turn;
}

void model_set_dropout(struct model *m, bool on)
{
    m->dropping = on;
}

static void add_losses(struct model *m, uint64_t rows, const int32_t *target, struct model_loss *loss)
{
    for (uint64_t r = 0; r < rows; r++) {
        if (target[r] >= 0) {
            int64_t nats = fixed_from_loss(m->row_loss[r], &loss->undefined);
            loss->undefined = __builtin_add_overflow(loss->sum, nats, &loss->sum) || loss->undefined;
            loss->tokens++;
        }
    }
    loss->bad = loss->bad || loss->undefined;
}

enum err model_forward_op(struct model *m, uint32_t chunk, uint32_t set, const struct micro *b)
{
    struct chunk *c = &m->chunk[chunk];
    const struct rows r = model_rows(m, b->sequences);
    BUG_IF(b->sequences > m->shape.sequences || set >= c->sets);
    return model_forward(m, c, &c->set[set], &r, b);
}

enum err model_backward_op(struct model *m, uint32_t chunk, uint32_t set, const struct micro *b,
                           struct model_loss *loss)
{
    struct chunk *c = &m->chunk[chunk];
    const struct rows r = model_rows(m, b->sequences);
    BUG_IF(m->shape.mode != MODEL_TRAIN || b->sequences > m->shape.sequences || set >= c->sets);
    if (c->last) {
        model_phase(m, PHASE_BACKWARD, b, c->layers.hi);
        TRY(head_all(m, &c->set[set], &r, b->target, true));
        add_losses(m, r.count, b->target, loss);
    }
    TRY(model_backward(m, c, &c->set[set], &r, b));
    loss->bad = loss->bad || m->bad;
    m->bad = false;
    return OK;
}

enum err model_micro_step(struct model *m, const struct micro *b, struct model_loss *loss)
{
    TRY(model_forward_op(m, 0, 0, b));
    return model_backward_op(m, 0, 0, b, loss);
}

/* ---- evaluation, inference ---- */

enum err model_eval_op(struct model *m, uint32_t chunk, uint32_t set, const struct micro *b, struct model_loss *loss,
                       float *token_loss)
{
    const struct chunk *c = &m->chunk[chunk];
    const struct rows r = model_rows(m, b->sequences);
    BUG_IF(m->shape.mode == MODEL_INFER || !c->last || b->sequences > m->shape.sequences);
    TRY(head_all(m, &c->set[set], &r, b->target, false));
    add_losses(m, r.count, b->target, loss);
    if (token_loss != NULL) {
        memcpy(token_loss, m->row_loss, r.count * sizeof(float));
    }
    return OK;
}

enum err model_eval(struct model *m, const struct micro *b, struct model_loss *loss, float *token_loss)
{
    bool dropping = m->dropping;
    model_set_dropout(m, false);
    enum err err = model_forward_op(m, 0, 0, b);
    if (err == OK) {
        err = model_eval_op(m, 0, 0, b, loss, token_loss);
    }
    model_set_dropout(m, dropping);
    return err;
}

enum err model_infer(struct model *m, uint64_t first, uint64_t count, const int32_t *token, bool all_rows,
                     float *logits)
{
    BUG_IF(m->shape.mode != MODEL_INFER || count == 0 || count > m->rows || first + count > m->shape.seq_length);
    const struct rows r = { .count = count, .length = count, .own = { 0, count }, .sequences = 1, .first = first };
    const struct micro b = { .sequences = 1, .token = token };
    struct act_set *s = &m->chunk[0].set[0];
    for (uint64_t i = 0; i < count; i++) {
        m->position[i] = (int32_t)(first + i);
    }
    TRY(model_forward(m, &m->chunk[0], s, &r, &b));
    uint64_t from = all_rows ? 0 : count - 1;
    for (uint64_t row = from; row < count;) {
        uint64_t rows = count - row < m->head_rows ? count - row : m->head_rows;
        head_logits(m, s, row, rows);
        for (uint64_t i = 0; i < rows; i++) {
            memcpy(logits + (row - from + i) * m->conf.vocab, m->logits + i * m->vocab_padded,
                   m->conf.vocab * sizeof(float));
        }
        row += rows;
    }
    return OK;
}

/* Keys that a query sees, summed over the queries of a sequence and all layers. */
static double seen_keys(const struct model_conf *c, uint64_t seq_length)
{
    double t = (double)seq_length, w = c->window < seq_length ? (double)c->window : t, sum = 0;
    for (uint64_t l = 0; l < c->layers; l++) {
        sum += model_conf_windowed(c, l) ? w * (w + 1.0) / 2.0 + (t - w) * w : t * (t + 1.0) / 2.0;
    }
    return sum;
}

double model_layer_flops(const struct model_conf *c, uint64_t seq_length)
{
    double q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim);
    double hidden = (double)c->hidden, ffn = (double)c->ffn;
    double matrices = hidden * (q + 2.0 * kv) + q * hidden + (c->gated ? 3.0 : 2.0) * hidden * ffn;
    return 6.0 * matrices + 12.0 * q * seen_keys(c, seq_length) / ((double)seq_length * (double)c->layers);
}

double model_head_flops(const struct model_conf *c)
{
    return 6.0 * (double)c->hidden * (double)c->vocab;
}

double model_train_flops(const struct model_conf *c, uint64_t seq_length)
{
    return (double)c->layers * model_layer_flops(c, seq_length) + model_head_flops(c);
}
