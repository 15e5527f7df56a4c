/* Why this exists: how the cost of a token changes with length, batch and size of the model decides what to train.
 * Operations alone would make it a straight line; a step leaves it where something else than operations costs time.
 * What that is, is computed: each group of kernels is taken to keep the share of its limit that it reached in the job
 * itself, so that the sum of the groups predicts every other case; the group furthest from the line explains it. */
#include "bench/suite.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/model.h"

#define LEAST_TOKENS 1024u /* of a step along the axes of length and of the model, where memory does not forbid it */
#define CASE_SHARE 0.5     /* of the time that the rest took: the most for a case */
#define ON_THE_LINE 0.03   /* as near to it as measurements are sure */

/* Factors in quarters of hidden size and layers. */
static const uint64_t quarters[] = { 1, 2, 4, 8 };
static const uint64_t lengths[] = { 256, 512, 1024, 2048, 4096, 8192 };
static const uint64_t batches[] = { 1, 2, 4, 8 };

/* ---- cases ---- */

/* The job of the case: as `base`, its size and constants of the arithmetic as the configuration would set them. */
static void reshape(struct conf *c, const struct conf *base, const struct bench_case *b)
{
    *c = *base;
    struct model_conf *m = &c->model;
    uint64_t per_group = m->heads / m->kv_heads;
    m->ffn = m->ffn * b->hidden / m->hidden;
    m->kv_heads = m->kv_heads * b->hidden / m->hidden;
    m->heads = m->kv_heads * per_group;
    m->hidden = b->hidden;
    m->layers = b->layers;
    m->positions = m->positions > b->length ? m->positions : b->length;
    c->seq_length = b->length;
    c->micro_batch_size = c->global_batch_size = b->sequences;
    c->gradient_accumulation_steps = 1;
    c->grad_unit = b->length < ORDER_UNIT_MAX ? b->length : ORDER_UNIT_MAX;
    c->grad_scale_log2 = order_default_grad_scale_log2(b->length);
    c->tp_grain = order_default_grain(m->kv_heads, m->ffn, order_pad_vocab(m->vocab));
    c->pipe_counts_count = 0;
}

static void add_case(struct bench_report *r, const struct conf *base, const char *axis, const struct bench_case *b)
{
    struct conf c;
    BUG_IF(r->case_count == BENCH_CASES_MAX);
    reshape(&c, base, b);
    struct bench_case *to = &r->cases[r->case_count++];
    *to = *b;
    to->axis = axis;
    to->flops = model_train_flops(&c.model, b->length);
}

/* A hidden size that is whole key heads and a multiple of eight everywhere. */
static bool divides(const struct model_conf *m, uint64_t quarter)
{
    return m->kv_heads * quarter % 4 == 0 && m->hidden * quarter % 32 == 0 && m->ffn * quarter % 64 == 0;
}

static void list_cases(struct bench_report *r, const struct conf *c)
{
    const struct model_conf *m = &c->model;
    const struct bench_case own = { .sequences = c->micro_batch_size, .length = c->seq_length, .hidden = m->hidden,
                                    .layers = m->layers };
    struct bench_case b = own;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        b.length = lengths[i];
        b.sequences = b.length < LEAST_TOKENS ? LEAST_TOKENS / b.length : 1;
        add_case(r, c, "seq_length", &b);
    }
    b = own;
    b.length = own.length < lengths[0] ? own.length : lengths[0];
    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        b.sequences = batches[i];
        add_case(r, c, "batch", &b);
    }
    b = own;
    for (size_t i = 0; i < sizeof(quarters) / sizeof(quarters[0]); i++) {
        b.hidden = own.hidden * quarters[i] / 4;
        if (divides(m, quarters[i])) {
            add_case(r, c, "hidden", &b);
        }
    }
    b = own;
    for (size_t i = 0; i < sizeof(quarters) / sizeof(quarters[0]); i++) {
        b.layers = own.layers * quarters[i] / 4;
        if (b.layers > 0 && (i == 0 || b.layers > own.layers * quarters[i - 1] / 4)) {
            add_case(r, c, "layers", &b);
        }
    }
}

/* ---- prediction ---- */

/* Seconds of a token in each group, had every group the share of its limit that it has in the job itself. */
static enum err predict(const struct bench_report *r, const struct conf *base, const struct bench_case *b,
                        double out[OPS_GROUPS])
{
    struct conf c;
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct bench_report)));
    struct bench_report *other = mem;
    reshape(&c, base, b);
    enum err err = ops_shape(&other->shape, &c, 0);
    if (err == OK) {
        other->machine = r->machine;
        other->ops = ops_list(&other->shape, other->op);
        for (int g = 0; g < OPS_GROUPS; g++) {
            double here = bench_group_s(r, (enum ops_group)g, false), limit = bench_group_s(r, (enum ops_group)g, true);
            out[g] = bench_group_s(other, (enum ops_group)g, true) * (limit > 0 ? here / limit : 1) /
                     (double)(b->sequences * b->length);
        }
    }
    free(mem);
    return err;
}

/* Why `b` is not on the line through `first`. */
static enum err explain(const struct bench_report *r, const struct conf *base, const struct bench_case *first,
                        struct bench_case *b)
{
    double from[OPS_GROUPS], to[OPS_GROUPS], all_from = 0, all_to = 0, most = 0, off = b->line - 1;
    int which = 0;
    TRY(predict(r, base, first, from));
    TRY(predict(r, base, b, to));
    for (int g = 0; g < OPS_GROUPS; g++) {
        all_from += from[g];
        all_to += to[g];
    }
    double flops = b->flops / first->flops;
    for (int g = 0; g < OPS_GROUPS; g++) {
        double away = (to[g] / flops - from[g]) / all_from;
        if (away * off > 0 && away * away > most * most) {
            most = away;
            which = g;
        }
    }
    double predicted = all_to / flops / all_from;
    if (off * off < ON_THE_LINE * ON_THE_LINE) {
        snprintf(b->why, sizeof(b->why), "on the line");
    } else if (most * off <= 0 || (predicted - 1) / off < 0.25) {
        snprintf(b->why, sizeof(b->why), "kernels at these shapes, or other load: %.2f was predicted", predicted);
    } else {
        snprintf(b->why, sizeof(b->why), "%s: %.0f %% of the step, %.0f %% in the first row; %.2f was predicted",
                 ops_group_name((enum ops_group)which), 100 * to[which] / all_to, 100 * from[which] / all_from,
                 predicted);
    }
    return OK;
}

/* ---- measurement ---- */

/* Steps of one configuration in a world of its own: its groups are gone with it. */
static enum err run_alone(struct whole *step, struct conf *c, double seconds)
{
    struct comm_threads *threads;
    TRY(comm_threads_new(&threads, 1, 0));
    struct comm_world *w = comm_threads_world(threads, 0);
    enum err err = whole_measure(step, c, w, 1, seconds);
    comm_close(w, err);
    comm_threads_free(threads);
    return err;
}

static enum err run_case(const struct bench_report *r, const struct conf *base, double limit, struct bench_case *b)
{
    struct conf c;
    struct whole step;
    double rate = r->whole.best_s / ((double)r->whole.tokens * model_train_flops(&base->model, base->seq_length));
    double expected = 2 * rate * b->flops * (double)(b->sequences * b->length); /* one to warm up, one that counts */
    if (expected > limit) {
        snprintf(b->why, sizeof(b->why), "left out: two steps take about %.1f s, %.1f s are given", expected, limit);
        return OK;
    }
    reshape(&c, base, b);
    c.data_path = NULL;
    enum err err = run_alone(&step, &c, limit / 4);
    free(c.data_path);
    if (err == ERR_RESOURCE) {
        snprintf(b->why, sizeof(b->why), "left out: %.*s", (int)strcspn(err_message(), "|"), err_message());
        return OK;
    }
    b->best_s = err == OK ? step.best_s : 0;
    return err;
}

enum err bench_scaling(struct bench_report *r, const struct conf *c, double seconds)
{
    const struct bench_case *first = NULL;
    BUG_IF(c->world != 1);
    list_cases(r, c);
    for (uint32_t i = 0; i < r->case_count; i++) {
        struct bench_case *b = &r->cases[i];
        TRY(run_case(r, c, CASE_SHARE * seconds, b));
        if (b->best_s == 0) {
            continue;
        }
        if (first == NULL || strcmp(first->axis, b->axis) != 0) {
            first = b;
        }
        double token = b->best_s / (double)(b->sequences * b->length);
        double start = first->best_s / (double)(first->sequences * first->length);
        b->line = token / start / (b->flops / first->flops);
        if (b == first) {
            snprintf(b->why, sizeof(b->why), "the line starts here");
        } else {
            TRY(explain(r, c, first, b));
        }
    }
    return OK;
}
