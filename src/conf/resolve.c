/* Why this exists: some values follow from others. They are computed in one place, after everything given is known, and
 * each says what it came from, so that the printed configuration has no unexplained number.
 * Resolving twice changes nothing: only a value that is not there, or was derived here, is set. */
#include "conf/conf_int.h"

#include "base/mem.h"
#include "part/order.h"

#define DEFAULT_SEQ_LENGTH 1024u
#define DEFAULT_GLOBAL_BATCH 8u
#define DEFAULT_MICRO_TOKENS 2048u

/* Set a whole number that nobody gave. */
static void derive(struct conf *c, const char *name, uint64_t *field, uint64_t value, const char *from)
{
    struct conf_value *v = conf_value(c, name);
    *field = value;
    v->has = true;
    v->given = false; /* `key: null` gave nothing */
    v->derived = from;
}

static bool open_value(const struct conf *c, const char *name)
{
    const struct conf_value *v = conf_value(c, name);
    return !v->bad && (!v->has || !v->given);
}

/* The same, where a zero that was given stands for automatic. */
static bool automatic(const struct conf *c, const char *name, bool zero)
{
    return open_value(c, name) || (zero && !conf_value(c, name)->bad);
}

static uint64_t ceil_div(uint64_t n, uint64_t d)
{
    return n / d + (n % d != 0);
}

/* ---- layout ---- */

static void resolve_pipeline(struct conf *c)
{
    uint64_t part = c->pp * c->pipe_chunk_layers;
    bool asked = part > 0 && !conf_value(c, "num_layers_per_virtual_pipeline_stage")->bad && !conf_value(c, "pp")->bad;
    if (asked && c->has_model && open_value(c, "virtual_pipeline_size") && c->model.layers % part == 0) {
        derive(c, "virtual_pipeline_size", &c->pipe_chunks, c->model.layers / part,
               "num_layers_per_virtual_pipeline_stage");
        conf_value(c, "virtual_pipeline_size")->follows = true;
    }
    if (open_value(c, "pipeline_schedule")) {
        struct conf_value *v = conf_value(c, "pipeline_schedule");
        c->pipe_schedule = c->pipe_chunks > 1 ? PIPE_INTERLEAVED : PIPE_1F1B;
        v->given = false;
        v->has = v->follows = true;
        v->derived = "virtual_pipeline_size";
    }
}

static void resolve_layout(struct conf *c)
{
    struct conf_value *dp = conf_value(c, "dp");
    bool bad = conf_value(c, "tp")->bad || conf_value(c, "pp")->bad || conf_value(c, "cp")->bad;
    uint64_t others = c->tp * c->pp * c->cp;
    if (!bad && automatic(c, "dp", c->dp == 0) && c->world % others == 0) {
        derive(c, "dp", &c->dp, c->world / others, "the number of ranks");
        dp->follows = true;
    }
    resolve_pipeline(c);
}

/* ---- batch ---- */

/* As few micro-batches of at most DEFAULT_MICRO_TOKENS tokens (or of one sequence) as can be, as even as can be. */
static uint64_t default_micro(uint64_t share, uint64_t seq_length)
{
    uint64_t most = seq_length > 0 ? DEFAULT_MICRO_TOKENS / seq_length : 1;
    return ceil_div(share, ceil_div(share, most > 0 ? most : 1));
}

/* Nobody gave the global batch: micro x accumulation x dp, or the default when these were not given either. */
static void resolve_global(struct conf *c, uint64_t dp, bool m, bool a)
{
    uint64_t global;
    if (!m && !a) {
        derive(c, "global_batch_size", &c->global_batch_size, DEFAULT_GLOBAL_BATCH, NULL);
        return;
    }
    uint64_t micro = m ? c->micro_batch_size : 1, steps = a ? c->gradient_accumulation_steps : 1;
    if (__builtin_mul_overflow(micro * steps, dp, &global) || micro * steps / micro != steps) {
        global = INT64_MAX; /* a rule refuses it */
    }
    derive(c, "global_batch_size", &c->global_batch_size, global,
           "micro_batch_size x gradient_accumulation_steps x dp");
}

/* The rank that has most holds ceil(global / dp) sequences, in micro-batches of which the last may be smaller.
 * Inconsistent numbers are left as they are: the rules report them. */
static void resolve_batch(struct conf *c)
{
    struct conf_value *global = conf_value(c, "global_batch_size"), *micro = conf_value(c, "micro_batch_size"),
                      *steps = conf_value(c, "gradient_accumulation_steps");
    if (global->bad || micro->bad || steps->bad) {
        return;
    }
    bool m = micro->given && c->micro_batch_size > 0, a = steps->given && c->gradient_accumulation_steps > 0;
    uint64_t dp = c->dp > 0 ? c->dp : 1;
    if (!global->given || c->global_batch_size == 0) {
        resolve_global(c, dp, m, a);
    }
    uint64_t share = ceil_div(c->global_batch_size, dp);
    if (!m) {
        uint64_t size = a ? ceil_div(share, c->gradient_accumulation_steps) : default_micro(share, c->seq_length);
        derive(c, "micro_batch_size", &c->micro_batch_size, size,
               a ? "global_batch_size, gradient_accumulation_steps and dp" : "global_batch_size, seq_length and dp");
    }
    if (!a) {
        derive(c, "gradient_accumulation_steps", &c->gradient_accumulation_steps, ceil_div(share, c->micro_batch_size),
               "global_batch_size, micro_batch_size and dp");
    }
    micro->follows = !m && !a;
    steps->follows = true;
}

bool conf_schedule_decays(enum schedule s)
{
    return s == SCHEDULE_LINEAR || s == SCHEDULE_COSINE || s == SCHEDULE_WSD;
}

static void resolve_schedule(struct conf *c)
{
    if (open_value(c, "lr_decay_steps") && conf_schedule_decays(c->lr_scheduler_type) && c->max_steps > 0) {
        derive(c, "lr_decay_steps", &c->lr_decay_steps, c->max_steps, "max_steps");
    }
    if (open_value(c, "wsd_decay_steps") && c->lr_scheduler_type == SCHEDULE_WSD && c->lr_decay_steps > 0) {
        uint64_t tenth = c->lr_decay_steps / 10;
        derive(c, "wsd_decay_steps", &c->wsd_decay_steps, tenth > 0 ? tenth : 1, "lr_decay_steps / 10");
    }
}

static enum err set_text(struct conf *c, const char *name, char **field, const struct buf *text, const char *from)
{
    struct conf_value *v = conf_value(c, name);
    TRY(mem_copy_string(field, text->data, text->bytes));
    v->has = true;
    v->given = false;
    v->derived = from;
    return OK;
}

/* The file's name without folder and ending; "run" without a file. */
static enum err default_run_name(const struct conf *c, struct buf *out)
{
    const char *path = c->values->file.name;
    if (path == NULL) {
        return buf_add_string(out, "run");
    }
    const char *slash = strrchr(path, '/');
    const char *start = slash != NULL ? slash + 1 : path;
    const char *dot = strrchr(start, '.');
    return buf_add(out, start, dot != NULL && dot > start ? (size_t)(dot - start) : strlen(start));
}

static enum err resolve_names(struct conf *c)
{
    struct buf text = { 0 };
    enum err err = OK;
    if (c->run_name == NULL && !conf_value(c, "run_name")->bad) {
        TRY_OUT(default_run_name(c, &text));
        TRY_OUT(set_text(c, "run_name", &c->run_name, &text, c->values->file.name != NULL ? "the file's name" : NULL));
    }
    if (c->output_dir == NULL && c->run_name != NULL && !conf_value(c, "output_dir")->bad) {
        buf_clear(&text);
        TRY_OUT(buf_add_string(&text, "runs/"));
        for (const char *p = c->run_name; *p != '\0'; p++) { /* a name is no path */
            TRY_OUT(buf_printf(&text, "%c", *p == '/' || (*p == '.' && p == c->run_name) ? '_' : *p));
        }
        TRY_OUT(set_text(c, "output_dir", &c->output_dir, &text, "run_name"));
    }
out:
    buf_release(&text);
    return err;
}

/* Automatic constants of the arithmetic: of the model and the sequence alone, never of the layout. */
static void resolve_arithmetic(struct conf *c)
{
    const struct model_conf *m = &c->model;
    if (c->has_model && automatic(c, "tp_grain", c->tp_grain == 0)) {
        derive(c, "tp_grain", &c->tp_grain, order_default_grain(m->kv_heads, m->ffn, order_pad_vocab(m->vocab)),
               "the model");
    }
    if (conf_value(c, "seq_length")->bad) {
        return;
    }
    if (automatic(c, "grad_unit", c->grad_unit == 0)) {
        derive(c, "grad_unit", &c->grad_unit, c->seq_length < ORDER_UNIT_MAX ? c->seq_length : ORDER_UNIT_MAX,
               "seq_length");
    }
    if (automatic(c, "grad_scale_log2", c->grad_scale_log2 == 0)) {
        struct conf_value *v = conf_value(c, "grad_scale_log2");
        c->grad_scale_log2 = order_default_grad_scale_log2(c->seq_length);
        v->has = true;
        v->given = false;
        v->derived = "seq_length";
    }
}

enum err conf_resolve(struct conf *c)
{
    if (open_value(c, "seq_length")) {
        bool fewer = c->has_model && c->model.positions < DEFAULT_SEQ_LENGTH;
        derive(c, "seq_length", &c->seq_length, fewer ? c->model.positions : DEFAULT_SEQ_LENGTH,
               fewer ? "the model's positions" : NULL);
    }
    if (open_value(c, "data_seed") && !conf_value(c, "seed")->bad) {
        derive(c, "data_seed", &c->data_seed, c->seed, "seed");
    }
    resolve_layout(c);
    resolve_batch(c);
    resolve_arithmetic(c);
    resolve_schedule(c);
    return resolve_names(c);
}

uint64_t conf_warmup_steps(const struct conf *c)
{
    if (c->warmup_steps >= 1) {
        return (uint64_t)c->warmup_steps;
    }
    double exact = c->warmup_steps * (double)c->max_steps * (1.0 - 0x1p-48);
    uint64_t whole = (uint64_t)exact;
    return whole + ((double)whole < exact);
}
