/* Why this exists: the rules about ranks: how many there are, how axes, model and sequence divide among them, and what
 * each of them gets of a batch. Part of the table of rules (rules.c). Each refusal names the numbers and the nearest
 * that can be; a finding has one hint, put together from what would help. */
#include <stdarg.h>

#include "conf/rules_int.h"
#include "part/order.h"

#define NEAREST_LAYOUTS 3u

/* The hint line of a finding: things that would help, with ", or " between them. Empty while there is none. */
struct hint {
    char text[1024]; /* more than any hint has, with every number at its longest */
    size_t used;
};

PRINTF_LIKE(2, 3) static void hint_add(struct hint *h, const char *fmt, ...)
{
    va_list args;
    h->used += (size_t)snprintf(h->text + h->used, sizeof(h->text) - h->used, "%s", h->used > 0 ? ", or " : "\nhint: ");
    va_start(args, fmt);
    int n = vsnprintf(h->text + h->used, sizeof(h->text) - h->used, fmt, args);
    va_end(args);
    BUG_IF(n < 0 || (size_t)n >= sizeof(h->text) - h->used);
    h->used += (size_t)n;
}

/* The layouts of the ranks that are running which can be and are nearest. */
static void hint_layouts(struct hint *h, const struct conf *c)
{
    struct layout near[NEAREST_LAYOUTS];
    size_t count = conf_layouts_near(c, c->world, near, NEAREST_LAYOUTS);
    for (size_t i = 0; i < count; i++) {
        char start[48] = "";
        if (i == 0) {
            snprintf(start, sizeof(start), "nearest for %llu rank%s: ", ull(c->world), c->world == 1 ? "" : "s");
        }
        hint_add(h, "%stp %u pp %u cp %u dp %u", start, near[i].tp, near[i].pp, near[i].cp, near[i].dp);
    }
}

static uint64_t ceil_div(uint64_t n, uint64_t d)
{
    return n / d + (n % d != 0);
}

static const char *ranks_are(uint64_t n)
{
    return n == 1 ? "rank is" : "ranks are";
}

/* ---- ranks ---- */

static void rule_world_size(const struct asker *a)
{
    uint64_t world = a->c->world, wanted = a->c->world_size;
    if (rule_given(a, "world_size") && wanted != world) {
        REPORT(a, "world_size",
               "world_size %llu, but %llu %s running | start %llu (mpirun -n %llu), or remove world_size", ull(wanted),
               ull(world), ranks_are(world), ull(wanted), ull(wanted));
    }
}

/* The axis to blame: the first one that was given and splits anything. */
static const char *blamed_axis(const struct asker *a)
{
    const struct conf *c = a->c;
    return c->tp > 1 && rule_given(a, "tp") ? "tp" : c->pp > 1 && rule_given(a, "pp") ? "pp" : "cp";
}

static void rule_ranks(const struct asker *a)
{
    const struct conf *c = a->c;
    uint64_t others = c->tp * c->pp * c->cp;
    bool given = rule_given(a, "dp") && c->dp > 0;
    uint64_t need = given ? others * c->dp : ceil_div(c->world, others) * others;
    if (c->world == need) {
        return;
    }
    struct hint h = { 0 };
    if (conf_tp_fits(c, c->tp) && conf_pp_fits(c, c->pp) && conf_cp_fits(c, c->cp)) {
        hint_add(&h, "start %llu (mpirun -n %llu)", ull(need), ull(need));
    }
    hint_layouts(&h, c);
    if (given) {
        REPORT(a, "dp", "tp %llu x pp %llu x cp %llu x dp %llu needs %llu ranks, but %llu %s running%s", ull(c->tp),
               ull(c->pp), ull(c->cp), ull(c->dp), ull(need), ull(c->world), ranks_are(c->world), h.text);
    } else {
        REPORT(a, blamed_axis(a), "tp %llu x pp %llu x cp %llu needs a multiple of %llu ranks, but %llu %s running%s",
               ull(c->tp), ull(c->pp), ull(c->cp), ull(others), ull(c->world), ranks_are(c->world), h.text);
    }
}

/* ---- axes ---- */

static void rule_tp(const struct asker *a)
{
    const struct conf *c = a->c;
    if (conf_tp_fits(c, c->tp)) {
        return;
    }
    struct hint h = { 0 };
    hint_layouts(&h, c);
    const struct model_conf *m = &c->model;
    uint64_t most = c->has_model ? order_default_grain(m->kv_heads, m->ffn, order_pad_vocab(m->vocab)) : 0;
    if (rule_given(a, "tp_grain") && most % c->tp == 0 && most > 0) {
        hint_add(&h, "tp_grain %llu, which belongs to the run's identity", ull(most));
    }
    if (c->tp > ORDER_SEGMENTS_MAX || (c->tp & (c->tp - 1)) != 0) {
        REPORT(a, "tp", "tp %llu: expected 1, 2, 4 or 8, the parts a sum is cut into%s", ull(c->tp), h.text);
    } else if (c->has_model && m->qk_norm == QK_NORM_ALL) {
        REPORT(a, "tp", "tp %llu: %s norms the queries of all heads together, so heads cannot be divided%s", ull(c->tp),
               model_family_name(m->family), h.text);
    } else if (rule_given(a, "tp_grain")) {
        REPORT(a, "tp", "tp %llu does not divide tp_grain %llu%s", ull(c->tp), ull(c->tp_grain), h.text);
    } else {
        REPORT(a, "tp",
               "tp %llu does not divide tp_grain %llu, the largest for %llu key/value heads and MLP width %llu%s",
               ull(c->tp), ull(c->tp_grain), ull(m->kv_heads), ull(m->ffn), h.text);
    }
}

/* pp x chunks stages, each with a layer, unless pipeline_layers says how many each has. */
static void rule_pp(const struct asker *a)
{
    const struct conf *c = a->c;
    uint64_t stages = c->pp * c->pipe_chunks;
    if (!c->has_model || c->pipe_counts_count > 0 || stages <= c->model.layers) {
        return;
    }
    struct hint h = { 0 };
    if (c->pp <= c->model.layers && c->pipe_chunks > 1) {
        hint_add(&h, "write virtual_pipeline_size %llu or less", ull(c->model.layers / c->pp));
    }
    hint_layouts(&h, c);
    REPORT(a, c->pp > 1 ? "pp" : "virtual_pipeline_size",
           "pp %llu x virtual_pipeline_size %llu = %llu stages, but the model has %llu layers: some stages would be "
           "empty%s",
           ull(c->pp), ull(c->pipe_chunks), ull(stages), ull(c->model.layers), h.text);
}

/* Layers dealt to `stages` stages as evenly as can be, when that is short enough to be read. */
static void hint_even(struct hint *h, uint64_t layers, uint64_t stages)
{
    char list[8 * 16];
    size_t used = 0;
    if (stages > 16 || stages > layers) {
        return;
    }
    for (uint32_t i = 0; i < stages; i++) {
        struct order_range r = part_range(layers, (uint32_t)stages, i);
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%llu", i > 0 ? "," : "", ull(r.hi - r.lo));
    }
    hint_add(h, "as even as can be: pipeline_layers %s", list);
}

static void rule_pipeline_layers(const struct asker *a)
{
    const struct conf *c = a->c;
    uint64_t stages = c->pp * c->pipe_chunks, sum = 0, layers = c->model.layers;
    struct hint h = { 0 };
    for (uint64_t i = 0; i < c->pipe_counts_count; i++) {
        sum += c->pipe_counts[i];
    }
    if (c->pipe_counts_count == 0) {
        return;
    }
    if (c->has_model) {
        hint_even(&h, layers, stages);
    }
    if (c->pipe_counts_count != stages) {
        REPORT(a, "pipeline_layers",
               "pipeline_layers has %llu stages, pp %llu x virtual_pipeline_size %llu = %llu were expected%s",
               ull(c->pipe_counts_count), ull(c->pp), ull(c->pipe_chunks), ull(stages), h.text);
    }
    if (c->has_model && sum != layers) {
        REPORT(a, "pipeline_layers", "pipeline_layers adds up to %llu, but the model has %llu layers: %llu %s%s",
               ull(sum), ull(layers), ull(sum < layers ? layers - sum : sum - layers),
               sum < layers ? "would be lost" : "are too many", h.text);
    }
}

static void rule_chunk_layers(const struct asker *a)
{
    const struct conf *c = a->c;
    uint64_t part = c->pp * c->pipe_chunk_layers, layers = c->model.layers;
    struct hint h = { 0 };
    if (part == 0) {
        return;
    }
    if (rule_given(a, "virtual_pipeline_size") || c->pipe_counts_count > 0) {
        REPORT(a, "num_layers_per_virtual_pipeline_stage",
               "num_layers_per_virtual_pipeline_stage says again what virtual_pipeline_size or pipeline_layers says | "
               "keep one of them");
    } else if (c->has_model && layers % part != 0) {
        if (part < layers && c->pp > 1) {
            hint_add(&h, "write virtual_pipeline_size %llu instead: stages need not be equal",
                     ull(ceil_div(layers, part)));
        }
        hint_layouts(&h, c);
        REPORT(
            a, "num_layers_per_virtual_pipeline_stage",
            "%llu layers / (pp %llu x num_layers_per_virtual_pipeline_stage %llu) is no whole number of chunks: %llu "
            "layers would be lost%s",
            ull(layers), ull(c->pp), ull(c->pipe_chunk_layers), ull(layers % part), h.text);
    }
}

static void rule_schedule(const struct asker *a)
{
    const struct conf *c = a->c;
    bool interleaved = c->pipe_schedule == PIPE_INTERLEAVED;
    const char *blamed = rule_given(a, "pipeline_schedule") ? "pipeline_schedule" : "virtual_pipeline_size";
    if (interleaved && c->pp == 1) {
        struct hint h = { 0 };
        hint_add(&h, "write virtual_pipeline_size 1 and pipeline_schedule 1f1b");
        hint_layouts(&h, c);
        REPORT(a, blamed, "an interleaved pipeline needs pp 2 or more: with pp 1 there is nothing to interleave%s",
               h.text);
    } else if (interleaved && c->pipe_chunks < 2) {
        REPORT(a, blamed,
               "pipeline_schedule interleaved needs virtual_pipeline_size 2 or more, got %llu | write "
               "virtual_pipeline_size 2, or pipeline_schedule 1f1b",
               ull(c->pipe_chunks));
    } else if (!interleaved && c->pipe_chunks > 1) {
        REPORT(
            a, blamed,
            "virtual_pipeline_size %llu needs pipeline_schedule interleaved | write that, or virtual_pipeline_size 1",
            ull(c->pipe_chunks));
    }
}

/* The largest unit up to the present one with which cp ranks can share a sequence; better one that balances the causal
 * work, with an even number of units for each rank. 0: there is none. */
static uint64_t unit_for(const struct conf *c)
{
    uint64_t any = 0;
    for (uint64_t unit = c->grad_unit; unit > 0; unit--) {
        bool fits = context_fits(c->seq_length, unit, (uint32_t)c->cp);
        if (fits && c->seq_length / unit / c->cp % 2 == 0) {
            return unit;
        }
        any = fits && any == 0 ? unit : any;
    }
    return any;
}

static void rule_cp(const struct asker *a)
{
    const struct conf *c = a->c;
    if (c->grad_unit > c->seq_length || conf_cp_fits(c, c->cp)) { /* the first has a rule of its own */
        return;
    }
    struct hint h = { 0 };
    uint64_t unit = unit_for(c);
    if (unit > 0) {
        hint_add(&h,
                 "write grad_unit %llu, which belongs to the run's identity: its bits are not those of grad_unit %llu",
                 ull(unit), ull(c->grad_unit));
    }
    hint_layouts(&h, c);
    if (c->seq_length % c->cp != 0) {
        REPORT(a, "cp", "cp %llu does not divide seq_length %llu%s", ull(c->cp), ull(c->seq_length), h.text);
    } else if (c->seq_length % (c->cp * c->grad_unit) != 0) {
        REPORT(a, "cp", "cp %llu x grad_unit %llu = %llu does not divide seq_length %llu: ranks share whole units%s",
               ull(c->cp), ull(c->grad_unit), ull(c->cp * c->grad_unit), ull(c->seq_length), h.text);
    } else {
        REPORT(a, "cp", "cp %llu needs a grad_unit that is a multiple of %u when above it, got %llu%s", ull(c->cp),
               ORDER_HEAD_UNIT, ull(c->grad_unit), h.text);
    }
}

static void rule_no_effect(const struct asker *a)
{
    if (a->c->sequence_parallel && a->c->tp == 1) {
        REPORT(a, "sequence_parallel", "sequence_parallel has no effect with tp 1");
    }
    if (rule_given(a, "pipeline_schedule") && a->c->pipe_schedule == PIPE_GPIPE && a->c->pp == 1) {
        REPORT(a, "pipeline_schedule", "pipeline_schedule gpipe is of no use with pp 1: there is one stage");
    }
}

/* ---- batch ---- */

/* The largest divisor of n at or below `near` and the smallest above it, by the 2^16 pairs of divisors of n < 2^33. */
static void nearest_divisors(uint64_t n, uint64_t near, uint64_t *down, uint64_t *up)
{
    *down = 1;
    *up = n;
    for (uint64_t d = 1; d * d <= n; d++) {
        for (int side = 0; side < 2 && n % d == 0; side++) {
            uint64_t divisor = side == 0 ? d : n / d;
            *down = divisor <= near && divisor > *down ? divisor : *down;
            *up = divisor > near && divisor < *up ? divisor : *up;
        }
    }
}

static void hint_ranks(struct hint *h, const struct conf *c, uint64_t dp, uint64_t steps)
{
    uint64_t ranks = dp * c->tp * c->pp * c->cp;
    if (dp != c->dp) {
        hint_add(h, "start %llu rank%s (mpirun -n %llu) for dp %llu with gradient_accumulation_steps %llu", ull(ranks),
                 ranks == 1 ? "" : "s", ull(ranks), ull(dp), ull(steps));
    }
}

/* The global batch is no multiple of micro x dp: without a number of steps it is legal all the same. */
static void hint_uneven(struct hint *h, const struct conf *c)
{
    uint64_t global = c->global_batch_size, once = c->micro_batch_size * c->dp, below = global / once;
    hint_add(h, "remove gradient_accumulation_steps (it is then %llu: ranks need not hold equal numbers)",
             ull(ceil_div(ceil_div(global, c->dp), c->micro_batch_size)));
    if (below > 0) {
        hint_add(h, "write global_batch_size %llu with gradient_accumulation_steps %llu", ull(below * once),
                 ull(below));
    }
    hint_add(h, "%llu with %llu", ull((below + 1) * once), ull(below + 1));
    if (global % c->micro_batch_size == 0) {
        uint64_t down, up, micros = global / c->micro_batch_size;
        nearest_divisors(micros, c->dp, &down, &up);
        hint_ranks(h, c, down, micros / down);
        hint_ranks(h, c, up, micros / up);
    }
}

static void rule_batch_identity(const struct asker *a)
{
    const struct conf *c = a->c;
    uint64_t global = c->global_batch_size, micro = c->micro_batch_size, steps = c->gradient_accumulation_steps,
             product;
    bool all = rule_given(a, "global_batch_size") && rule_given(a, "micro_batch_size") &&
               rule_given(a, "gradient_accumulation_steps");
    if (!all || c->dp == 0) {
        return;
    }
    if (__builtin_mul_overflow(micro * c->dp, steps, &product)) {
        product = UINT64_MAX;
    }
    if (product == global) {
        return;
    }
    struct hint h = { 0 };
    if (global % (micro * c->dp) == 0) {
        hint_add(&h, "write gradient_accumulation_steps %llu", ull(global / (micro * c->dp)));
        hint_add(&h, "global_batch_size %llu", ull(product));
        if (global / c->dp % steps == 0) {
            hint_add(&h, "micro_batch_size %llu", ull(global / c->dp / steps));
        }
        if (global / micro % steps == 0) {
            hint_ranks(&h, c, global / micro / steps, steps);
        }
    } else {
        hint_uneven(&h, c);
    }
    char where[120] = "";
    if (!rule_given(a, "dp")) {
        snprintf(where, sizeof(where), ", where dp is %llu rank%s / (tp %llu x pp %llu x cp %llu)", ull(c->world),
                 c->world == 1 ? "" : "s", ull(c->tp), ull(c->pp), ull(c->cp));
    }
    REPORT(a, "global_batch_size",
           "global_batch_size %llu != micro_batch_size %llu x gradient_accumulation_steps %llu x dp %llu (= %llu)%s%s",
           ull(global), ull(micro), ull(steps), ull(c->dp), ull(product), where, h.text);
}

static void rule_batch_limit(const struct asker *a)
{
    if (a->c->global_batch_size > (uint64_t)1 << 32) {
        REPORT(a, "micro_batch_size",
               "micro_batch_size %llu x gradient_accumulation_steps %llu x dp %llu is above 2^32 sequences",
               ull(a->c->micro_batch_size), ull(a->c->gradient_accumulation_steps), ull(a->c->dp));
    }
}

/* The number of micro-batches that was asked for must be the one that there will be. */
static void rule_batch_steps(const struct asker *a)
{
    const struct conf *c = a->c;
    uint64_t steps = c->gradient_accumulation_steps, micro = c->micro_batch_size;
    uint64_t share = c->dp > 0 ? ceil_div(c->global_batch_size, c->dp) : 0;
    if (!rule_given(a, "gradient_accumulation_steps") || rule_given(a, "micro_batch_size") || share == 0 ||
        ceil_div(share, micro) == steps) {
        return;
    }
    struct hint h = { 0 };
    hint_add(&h, "write gradient_accumulation_steps %llu", ull(ceil_div(share, micro)));
    if (micro > 1) {
        hint_add(&h, "%llu", ull(ceil_div(share, micro - 1)));
    }
    REPORT(
        a, "gradient_accumulation_steps",
        "gradient_accumulation_steps %llu: a rank's %llu sequences (global_batch_size %llu / dp %llu) cannot be %llu "
        "micro-batches of one size with a last one that is smaller or equal%s",
        ull(steps), ull(share), ull(c->global_batch_size), ull(c->dp), ull(steps), h.text);
}

static void rule_batch_idle(const struct asker *a)
{
    const struct conf *c = a->c;
    uint64_t share = c->dp > 0 ? ceil_div(c->global_batch_size, c->dp) : 0;
    if (share == 0) {
        return;
    }
    if (c->dp > c->global_batch_size) {
        REPORT(a, "dp", "dp %llu is above global_batch_size %llu: %llu of %llu groups of ranks hold no sequence",
               ull(c->dp), ull(c->global_batch_size), ull(c->dp - c->global_batch_size), ull(c->dp));
    }
    if (rule_given(a, "micro_batch_size") && !rule_given(a, "gradient_accumulation_steps") &&
        c->micro_batch_size > share) {
        REPORT(a, "micro_batch_size",
               "micro_batch_size %llu is above the %llu sequences that a rank holds (global_batch_size %llu / dp %llu)",
               ull(c->micro_batch_size), ull(share), ull(c->global_batch_size), ull(c->dp));
    }
}

#define BATCH_KEYS "global_batch_size micro_batch_size gradient_accumulation_steps tp pp cp dp"

const struct rule rules_layout[] = {
    { "world-size", FINDING_ERROR, "world_size", rule_world_size, "world_size is the number of ranks." },
    { "ranks", FINDING_ERROR, "tp pp cp dp", rule_ranks,
      "The number of ranks is tp x pp x cp x dp, or a multiple of tp x pp x cp where dp is not given." },
    { "tp", FINDING_ERROR, "tp tp_grain model", rule_tp,
      "tp is 1, 2, 4 or 8 and divides tp_grain; 1 for olmo2, whose norm of queries goes over all heads." },
    { "pp", FINDING_ERROR, "pp virtual_pipeline_size pipeline_layers model", rule_pp,
      "Each of the pp x virtual_pipeline_size stages has a layer, unless pipeline_layers gives it none." },
    { "pipeline-layers", FINDING_ERROR, "pp virtual_pipeline_size pipeline_layers model", rule_pipeline_layers,
      "pipeline_layers names pp x virtual_pipeline_size stages, and their layers are the model's." },
    { "chunk-layers", FINDING_ERROR,
      "pp num_layers_per_virtual_pipeline_stage virtual_pipeline_size pipeline_layers model", rule_chunk_layers,
      "The layers are pp x num_layers_per_virtual_pipeline_stage x a whole number." },
    { "pipeline-schedule", FINDING_ERROR, "pp pipeline_schedule virtual_pipeline_size", rule_schedule,
      "virtual_pipeline_size is above 1 with pipeline_schedule interleaved, which needs pp above 1, and only with "
      "it." },
    { "cp", FINDING_ERROR, "cp seq_length grad_unit model", rule_cp,
      "seq_length is a multiple of cp x grad_unit, and a grad_unit above 256 is a multiple of 256, when cp is above "
      "1." },
    { "no-effect", FINDING_WARNING, "sequence_parallel tp pipeline_schedule pp", rule_no_effect,
      "sequence_parallel is for tp above 1, gpipe for pp above 1." },
    { "batch-identity", FINDING_ERROR, BATCH_KEYS, rule_batch_identity,
      "When all three are given, global_batch_size = micro_batch_size x gradient_accumulation_steps x dp. Nothing is "
      "rounded." },
    { "batch-limit", FINDING_ERROR, BATCH_KEYS, rule_batch_limit, "A global batch has at most 2^32 sequences." },
    { "batch-steps", FINDING_ERROR, BATCH_KEYS " seq_length", rule_batch_steps,
      "gradient_accumulation_steps is possible: that many micro-batches of one size, the last one smaller or equal." },
    { "batch-idle", FINDING_WARNING, BATCH_KEYS " seq_length", rule_batch_idle,
      "Every rank holds a sequence, and as many as a micro-batch." },
};
const size_t rules_layout_count = sizeof(rules_layout) / sizeof(rules_layout[0]);
