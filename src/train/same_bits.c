/* Why this exists: the promise of the program is that a layout changes no bit; this runs the same steps under many and
 * looks. Ranks are threads, so a laptop can check the layout of a cluster, as far as its memory goes.
 *
 * Every layout is given explicitly, also the axes it leaves at 1, so that the file's own layout does not matter. */
#include "train/same_bits.h"

#include "train/thread_ranks.h"

void verify_result_release(struct verify_result *r)
{
    free(r->step);
    *r = (struct verify_result){ 0 };
}

/* ---- layouts ---- */

const char *const verify_layouts[] = {
    "threads2", "mb1", "dp2", "dp3", "tp2", "tp4", "pp2", "cp2", "dp2,zero1", "dp2,zero2", "dp2,zero3", "tp2,sp",
    "pp2,gpipe", "pp2,v2", "dp2,tp2", "dp2,pp2", "dp2,cp2", "tp2,pp2", "tp2,cp2", "pp2,cp2", "dp3,zero3,tp2",
    "dp2,tp2,pp2,mb1",
};
const size_t verify_layouts_count = sizeof(verify_layouts) / sizeof(verify_layouts[0]);

enum token_kind { TOKEN_AXIS, TOKEN_NUMBER, TOKEN_TEXT, TOKEN_SEED };

/* What a token of a layout sets; `fallback` when it is not there. */
static const struct token {
    const char *name, *key, *fallback;
    enum token_kind kind;
} tokens[] = {
    { "dp", "dp", "1", TOKEN_AXIS },
    { "tp", "tp", "1", TOKEN_AXIS },
    { "pp", "pp", "1", TOKEN_AXIS },
    { "cp", "cp", "1", TOKEN_AXIS },
    { "zero", "zero_optimization.stage", "0", TOKEN_NUMBER },
    { "mb", "micro_batch_size", NULL, TOKEN_NUMBER },
    { "threads", "threads", "1", TOKEN_NUMBER },
    { "v", "virtual_pipeline_size", "1", TOKEN_NUMBER },
    { "layers", "pipeline_layers", NULL, TOKEN_TEXT },
    { "seed", NULL, NULL, TOKEN_SEED },
};
#define TOKENS (sizeof(tokens) / sizeof(tokens[0]))

/* Tokens without a number: a choice of a key each, `fallback` when it is not made. */
enum { WORD_SEQUENCE, WORD_SCHEDULE, WORD_RECOMPUTE, WORD_KEYS };
static const struct {
    const char *key, *fallback;
} word_keys[WORD_KEYS] = {
    [WORD_SEQUENCE] = { "sequence_parallel", "false" },
    [WORD_SCHEDULE] = { "pipeline_schedule", "null" },
    [WORD_RECOMPUTE] = { "gradient_checkpointing", "none" },
};
static const struct {
    const char *name, *value;
    int key;
} words[] = {
    { "sp", "true", WORD_SEQUENCE },
    { "gpipe", "gpipe", WORD_SCHEDULE },
    { "1f1b", "1f1b", WORD_SCHEDULE },
    { "selective", "selective", WORD_RECOMPUTE },
    { "full", "full", WORD_RECOMPUTE },
};
#define WORDS (sizeof(words) / sizeof(words[0]))

static enum err add_word(struct verify_layout *l, const char *key, const char *value)
{
    BUG_IF((size_t)l->count + 2 > sizeof(l->words) / sizeof(l->words[0]));
    snprintf(l->words[l->count++], sizeof(l->words[0]), "%s", key);
    snprintf(l->words[l->count++], sizeof(l->words[0]), "%s", value);
    return OK;
}

static enum err unknown_token(const char *token)
{
    return FAIL(ERR_USAGE,
                "layout: \"%s\" is no part of a layout | parts are dpN tpN ppN cpN zeroN sp mbN threadsN gpipe 1f1b vN "
                "layersA-B-.. selective full seedN, joined by commas; or serial",
                token);
}

/* "3-5-4" as the list that the key takes. */
static void dashes_to_commas(const char *text, char out[64])
{
    snprintf(out, 64, "%s", text);
    for (char *c = out; *c != '\0'; c++) {
        *c = *c == '-' ? ',' : *c;
    }
}

static enum err add_token(struct verify_layout *l, const char *token, bool *seen)
{
    for (size_t i = 0; i < TOKENS; i++) {
        size_t bytes = strlen(tokens[i].name);
        const char *value = token + bytes;
        bool whole = value[0] >= '0' && value[0] <= '9' && strspn(value, "0123456789") == strlen(value);
        bool fits = strncmp(token, tokens[i].name, bytes) == 0 &&
                    (tokens[i].kind == TOKEN_TEXT ? value[0] >= '0' && value[0] <= '9' : whole) && strlen(value) < 60;
        if (!fits || seen[i]) {
            continue;
        }
        char text[64];
        seen[i] = true;
        dashes_to_commas(value, text);
        if (tokens[i].kind == TOKEN_AXIS) {
            l->world *= (uint32_t)strtoul(value, NULL, 10);
            if (l->world == 0 || l->world > VERIFY_RANKS_MAX) {
                return FAIL(ERR_USAGE, "layout %s: 1 to %u ranks can be threads of this process", l->name,
                            VERIFY_RANKS_MAX);
            }
        }
        if (tokens[i].kind == TOKEN_SEED) {
            l->seed = strtoull(value, NULL, 10);
            return OK;
        }
        return add_word(l, tokens[i].key, text);
    }
    return unknown_token(token);
}

enum err verify_layout_parse(struct verify_layout *l, const char *text)
{
    bool seen[TOKENS] = { false }, chosen[WORD_KEYS] = { false };
    char copy[128], *rest = copy;
    *l = (struct verify_layout){ .world = 1 };
    size_t bytes = strlen(text);
    if (bytes >= sizeof(copy)) {
        return unknown_token(text);
    }
    memcpy(l->name, text, bytes + 1);
    memcpy(copy, text, bytes + 1);
    if (strcmp(text, "serial") == 0) {
        copy[0] = '\0';
    }
    for (char *token = strsep(&rest, ","); token != NULL && copy[0] != '\0'; token = strsep(&rest, ",")) {
        size_t w = 0;
        while (w < WORDS && (strcmp(token, words[w].name) != 0 || chosen[words[w].key])) {
            w++;
        }
        if (w < WORDS) {
            chosen[words[w].key] = true;
            TRY(add_word(l, word_keys[words[w].key].key, words[w].value));
        } else {
            TRY(add_token(l, token, seen));
        }
    }
    for (int k = 0; k < WORD_KEYS; k++) {
        if (!chosen[k]) {
            TRY(add_word(l, word_keys[k].key, word_keys[k].fallback));
        }
    }
    for (size_t i = 0; i < TOKENS; i++) {
        if (!seen[i] && tokens[i].fallback != NULL) {
            TRY(add_word(l, tokens[i].key, tokens[i].fallback));
        } else if (!seen[i] && tokens[i].kind == TOKEN_TEXT) {
            TRY(add_word(l, tokens[i].key, "null"));
        }
    }
    return OK;
}

/* ---- one layout ---- */

static enum err steps(void *arg, struct trainer *t)
{
    struct verify_result *out = arg;
    double started = log_seconds();
    int64_t planned = (int64_t)trainer_planned_bytes(t);
    TRY(comm_sum_i64(t->ranks.all, &planned, 1));
    for (uint32_t i = 0; i < out->steps; i++) {
        struct step_report r;
        if (t->trace != NULL) {
            trace_clear(t->trace);
        }
        TRY(trainer_step(t, &r));
        if (t->leads) {
            out->step[i] = (struct verify_step){ r.state_hash, r.tokens, r.loss, r.grad_norm };
        }
    }
    if (t->leads) {
        out->seconds = log_seconds() - started;
        out->planned_bytes = (uint64_t)planned;
    }
    return OK;
}

/* The job's arguments, but for what the layout and the global batch (0: what the job says) set. */
static enum err join_arguments(struct arguments *a, const struct verify_job *job, const struct verify_layout *l,
                               uint64_t global_batch)
{
    TRY(arguments_copy(a, job->argc, job->argv));
    for (int i = 0; i < l->count; i += 2) {
        TRY(arguments_set(a, l->words[i], l->words[i + 1]));
    }
    return arguments_free_ranks(a, global_batch);
}

static enum err run_layout(const struct verify_job *job, const struct verify_layout *l, uint64_t global_batch,
                           struct thread_job *ranks, struct verify_result *out)
{
    void *mem;
    struct arguments a = { 0 };
    enum err err;
    TRY_OUT(mem_alloc(&mem, out->steps, sizeof(struct verify_step)));
    out->step = mem;
    TRY_OUT(join_arguments(&a, job, l, global_batch));
    ranks->path = job->path;
    ranks->arguments = &a;
    ranks->world = l->world;
    ranks->seed = l->seed;
    ranks->work = steps;
    ranks->arg = out;
    err = thread_ranks_run(ranks);
out:
    arguments_release(&a);
    if (err != OK) {
        verify_result_release(out);
    }
    return err;
}

enum err verify_run(const struct verify_job *job, const struct verify_layout *l, uint64_t global_batch,
                    struct verify_result *out, struct buf *why)
{
    struct thread_job ranks = { .why = why };
    *out = (struct verify_result){ .steps = job->steps };
    return run_layout(job, l, global_batch, &ranks, out);
}

/* The job as one rank sees it. conf_release frees *conf in any case. */
static enum err load_serial(const struct verify_job *job, struct conf *conf)
{
    struct verify_layout serial;
    struct findings f = { 0 };
    struct arguments a = { 0 };
    enum err err;
    TRY_OUT(verify_layout_parse(&serial, "serial"));
    TRY_OUT(join_arguments(&a, job, &serial, 0));
    err = conf_load(conf, job->path, a.count, a.list, 1, &f);
    findings_print(&f);
out:
    findings_release(&f);
    arguments_release(&a);
    return err;
}

enum err verify_global_batch(const struct verify_job *job, uint64_t *global_batch)
{
    struct conf conf = { 0 };
    enum err err = load_serial(job, &conf);
    *global_batch = conf.global_batch_size;
    conf_release(&conf);
    return err;
}

/* ---- where two layouts part ---- */

/* A step looked at closely. */
struct close_up {
    struct trace trace;
    struct verify_step step;
};

/* The trace of rank 0 is that of all ranks together. */
static enum err look(const struct verify_job *job, const struct verify_layout *l, uint64_t global_batch, uint32_t step,
                     struct close_up *out)
{
    struct trace traces[VERIFY_RANKS_MAX] = { { 0 } };
    struct buf why = { 0 };
    struct thread_job ranks = { .traces = traces, .why = &why };
    struct verify_result result = { .steps = step };
    enum err err = run_layout(job, l, global_batch, &ranks, &result);
    for (uint32_t i = 1; i < VERIFY_RANKS_MAX; i++) {
        trace_close(&traces[i]);
    }
    out->trace = traces[0];
    if (err == OK) {
        out->step = result.step[step - 1];
    }
    verify_result_release(&result);
    buf_release(&why);
    return err;
}

/* In the order of computation: the batch, forward, loss, gradients, their norm, new weights. `a` was expected. */
static void find_difference(const struct close_up *a, const struct close_up *b, const struct registry *r,
                            char where[256])
{
    enum trace_part part = trace_differs(&a->trace, &b->trace, r, where);
    const struct verify_step *want = &a->step, *got = &b->step;
    if (got->tokens != want->tokens) {
        snprintf(where, 256, "the number of tokens that count: %llu instead of %llu", (unsigned long long)got->tokens,
                 (unsigned long long)want->tokens);
    } else if (part > TRACE_FORWARD && memcmp(&got->loss, &want->loss, sizeof(got->loss)) != 0) {
        snprintf(where, 256, "the loss: %.17g instead of %.17g", got->loss, want->loss);
    } else if (part > TRACE_BACKWARD && memcmp(&got->grad_norm, &want->grad_norm, sizeof(got->grad_norm)) != 0) {
        snprintf(where, 256, "the norm of the gradients: %.17g instead of %.17g", got->grad_norm, want->grad_norm);
    } else if (part == TRACE_SAME) {
        snprintf(where, 256, "nothing when run again: the difference does not repeat, so it depends on timing");
    }
}

enum err verify_explain(const struct verify_job *job, const struct verify_layout *a, const struct verify_layout *b,
                        uint64_t global_batch, uint32_t step, char where[256])
{
    struct close_up first = { 0 }, second = { 0 };
    struct registry r = { 0 };
    struct conf conf = { 0 };
    enum err err;
    TRY_OUT(load_serial(job, &conf));
    const struct share all = share_all(conf.model.layers);
    TRY_OUT(registry_init(&r, &conf.model, &all));
    TRY_OUT(look(job, a, global_batch, step, &first));
    TRY_OUT(look(job, b, global_batch, step, &second));
    find_difference(&first, &second, &r, where);
out:
    trace_close(&first.trace);
    trace_close(&second.trace);
    registry_release(&r);
    conf_release(&conf);
    return err;
}
