/* Why this exists: some values follow from others. They are computed in one place, after everything given is known, and
 * each says what it came from, so that the printed configuration has no unexplained number.
 * Resolving twice changes nothing: only a value that is not there, or was derived here, is set. */
#include "conf/conf_int.h"

#include "base/mem.h"

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

/* The largest divisor of `global` with which a micro-batch has at most DEFAULT_MICRO_TOKENS tokens (at least 1). */
static uint64_t default_micro(uint64_t global, uint64_t seq_length)
{
    uint64_t micro = seq_length > 0 ? DEFAULT_MICRO_TOKENS / seq_length : 1;
    micro = micro > global ? global : micro > 0 ? micro : 1;
    while (global % micro != 0) {
        micro--;
    }
    return micro;
}

/* global = micro x accumulation. Inconsistent numbers are left as they are: the rules report them. */
static void resolve_batch(struct conf *c)
{
    uint64_t *global = &c->global_batch_size, *micro = &c->micro_batch_size, *steps = &c->gradient_accumulation_steps;
    bool g = conf_value(c, "global_batch_size")->given && *global > 0;
    bool m = conf_value(c, "micro_batch_size")->given && *micro > 0;
    bool a = conf_value(c, "gradient_accumulation_steps")->given && *steps > 0;
    if (conf_value(c, "global_batch_size")->bad || conf_value(c, "micro_batch_size")->bad ||
        conf_value(c, "gradient_accumulation_steps")->bad) {
        return;
    }
    if (!m && !g) {
        derive(c, "micro_batch_size", micro, 1, "gradient_accumulation_steps");
        m = a;
    }
    if (!g && !m) {
        derive(c, "global_batch_size", global, DEFAULT_GLOBAL_BATCH, NULL);
        g = true;
    }
    if (!a && !g) {
        derive(c, "gradient_accumulation_steps", steps, 1, NULL);
        a = true;
    }
    if (!g) {
        derive(c, "global_batch_size", global, *micro * *steps, "micro_batch_size x gradient_accumulation_steps");
    } else if (m && !a && *global % *micro == 0) {
        derive(c, "gradient_accumulation_steps", steps, *global / *micro, "global_batch_size / micro_batch_size");
    } else if (a && !m && *global % *steps == 0) {
        derive(c, "micro_batch_size", micro, *global / *steps, "global_batch_size / gradient_accumulation_steps");
    } else if (!a && !m) {
        derive(c, "micro_batch_size", micro, default_micro(*global, c->seq_length), "global_batch_size and seq_length");
        derive(c, "gradient_accumulation_steps", steps, *global / *micro, "global_batch_size / micro_batch_size");
    }
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
    resolve_batch(c);
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
