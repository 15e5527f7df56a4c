/* Why this exists: the promise of the program is that a layout changes no bit; this runs the same steps under many and
 * looks. Ranks are threads, so a laptop can check the layout of a cluster, as far as its memory goes.
 *
 * Every layout is given explicitly, also the axes it leaves at 1, so that the file's own layout does not matter. */
#include "train/verify.h"

#include <pthread.h>

#include "train/trainer.h"

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

static enum err add_word(struct verify_layout *l, const char *key, const char *value)
{
    BUG_IF((size_t)l->count + 2 > sizeof(l->words) / sizeof(l->words[0]));
    snprintf(l->words[l->count++], sizeof(l->words[0]), "--%s", key);
    snprintf(l->words[l->count++], sizeof(l->words[0]), "%s", value);
    return OK;
}

static enum err unknown_token(const char *token)
{
    return FAIL(ERR_USAGE,
                "layout: \"%s\" is no part of a layout | parts are dpN tpN ppN cpN zeroN sp mbN threadsN gpipe 1f1b vN "
                "layersA-B-.. seedN, joined by commas; or serial",
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
    bool seen[TOKENS] = { false }, sp = false, schedule = false;
    char copy[128], *rest = copy;
    *l = (struct verify_layout){ .world = 1 };
    if (strlen(text) >= sizeof(copy)) {
        return unknown_token(text);
    }
    snprintf(l->name, sizeof(l->name), "%s", text);
    snprintf(copy, sizeof(copy), "%s", strcmp(text, "serial") == 0 ? "" : text);
    for (char *token = strsep(&rest, ","); token != NULL && copy[0] != '\0'; token = strsep(&rest, ",")) {
        if (strcmp(token, "sp") == 0 && !sp) {
            sp = true;
        } else if ((strcmp(token, "gpipe") == 0 || strcmp(token, "1f1b") == 0) && !schedule) {
            schedule = true;
            TRY(add_word(l, "pipeline_schedule", token));
        } else {
            TRY(add_token(l, token, seen));
        }
    }
    TRY(add_word(l, "sequence_parallel", sp ? "true" : "false"));
    for (size_t i = 0; i < TOKENS; i++) {
        if (!seen[i] && tokens[i].fallback != NULL) {
            TRY(add_word(l, tokens[i].key, tokens[i].fallback));
        } else if (!seen[i] && tokens[i].kind == TOKEN_TEXT) {
            TRY(add_word(l, tokens[i].key, "null"));
        }
    }
    return schedule ? OK : add_word(l, "pipeline_schedule", "null");
}

/* ---- one layout ---- */

struct run {
    const struct verify_job *job;
    const struct verify_layout *layout;
    struct comm_threads *threads;
    int argc;
    char **argv;
    uint32_t steps;
    struct verify_result *result;
    struct buf *why;
    struct trace *trace; /* of the last step; NULL: none. Rank 0 keeps it */
};

struct rank {
    struct run *run;
    uint32_t rank;
    pthread_t thread;
    bool started;
    enum err err;
    char message[ERR_MESSAGE_BYTES];
};

static enum err load(const struct run *run, uint32_t rank, struct conf *conf)
{
    struct findings f = { 0 };
    enum err err = conf_load(conf, run->job->path, run->argc, run->argv, run->layout->world, &f);
    for (size_t i = 0; i < f.count && rank == 0 && err != OK; i++) {
        if (f.list[i].level == FINDING_ERROR && buf_printf(run->why, "%s\n", f.list[i].text) != OK) {
            break;
        }
    }
    findings_release(&f);
    return err;
}

static enum err steps(const struct run *run, struct trainer *t)
{
    struct verify_result *out = run->result;
    double started = log_seconds();
    int64_t planned = (int64_t)trainer_planned_bytes(t);
    TRY(comm_sum_i64(t->ranks.all, &planned, 1));
    for (uint32_t i = 0; i < run->steps; i++) {
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

static enum err run_rank(const struct run *run, uint32_t rank)
{
    struct conf conf = { 0 };
    struct trainer t;
    struct trace trace = { 0 };
    struct comm_world *w = comm_threads_world(run->threads, rank);
    enum err err = comm_agree(comm_all(w), load(run, rank, &conf));
    if (err == OK) {
        const struct trainer_use use = { .world = w, .trace = run->trace != NULL ? &trace : NULL };
        err = trainer_open(&t, &conf, &use);
        if (err == OK) {
            err = steps(run, &t);
            if (err != OK) {
                comm_fail(w, err); /* before the trainer waits for its thread, which may wait for others */
            }
            trainer_close(&t);
        }
    }
    if (err == OK && rank == 0 && run->trace != NULL) {
        *run->trace = trace;
    } else {
        trace_close(&trace);
    }
    conf_release(&conf);
    comm_close(w, err);
    return err;
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    r->err = run_rank(r->run, r->rank);
    snprintf(r->message, sizeof(r->message), "%s", err_message());
    return NULL;
}

/* Start a thread for each rank and wait for all; the error of the lowest failing rank. */
static enum err run_ranks(struct run *run)
{
    struct rank ranks[VERIFY_RANKS_MAX];
    uint32_t world = run->layout->world;
    memset(ranks, 0, sizeof(ranks));
    for (uint32_t i = 0; i < world; i++) {
        ranks[i].run = run;
        ranks[i].rank = i;
        ranks[i].started = pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) == 0;
        if (!ranks[i].started) { /* its rank fails for it, so that the others do not wait */
            ranks[i].err = FAIL(ERR_RESOURCE, "a thread for rank %u cannot be started | check the limit on processes", i);
            snprintf(ranks[i].message, sizeof(ranks[i].message), "%s", err_message());
            comm_close(comm_threads_world(run->threads, i), ranks[i].err);
        }
    }
    for (uint32_t i = 0; i < world; i++) {
        if (ranks[i].started) {
            pthread_join(ranks[i].thread, NULL);
        }
    }
    for (uint32_t i = 0; i < world; i++) {
        if (ranks[i].err != OK) {
            err_set_message(ranks[i].message);
            return ranks[i].err;
        }
    }
    return OK;
}

/* Whether `argument` is --key or --key=value of a key that is set for the layout: `count` words, every second one. */
static bool is_set(const char *argument, const char *const *words, int count)
{
    for (int i = 0; i < count; i += 2) {
        size_t bytes = strlen(words[i]);
        if (strncmp(argument, words[i], bytes) == 0 && (argument[bytes] == '\0' || argument[bytes] == '=')) {
            return true;
        }
    }
    return false;
}

/* The job's arguments without those that the layout sets, the layout's, and the global batch (0: what the job says). */
static enum err join_arguments(struct run *run, uint64_t global_batch, char batch[32])
{
    const char *set[64] = { "--world_size", "null", "--num_layers_per_virtual_pipeline_stage", "null",
                            "--gradient_accumulation_steps", "null", "--global_batch_size", batch };
    int count = global_batch > 0 ? 8 : 4;
    void *mem;
    snprintf(batch, 32, "%llu", (unsigned long long)global_batch);
    for (int i = 0; i < run->layout->count; i++) {
        set[count++] = run->layout->words[i];
    }
    TRY(mem_alloc(&mem, (size_t)(run->job->argc + count), sizeof(char *)));
    run->argv = mem;
    for (int i = 0; i < run->job->argc; i++) {
        char *argument = run->job->argv[i];
        if (!is_set(argument, set, count)) {
            run->argv[run->argc++] = argument;
        } else if (strchr(argument, '=') == NULL) {
            i++; /* its value */
        }
    }
    for (int i = 0; i < count; i++) {
        run->argv[run->argc++] = (char *)(uintptr_t)set[i];
    }
    return OK;
}

static enum err run_layout(struct run *run, uint64_t global_batch)
{
    void *mem;
    char batch[32];
    enum err err;
    *run->result = (struct verify_result){ 0 };
    TRY_OUT(mem_alloc(&mem, run->steps, sizeof(struct verify_step)));
    run->result->step = mem;
    TRY_OUT(join_arguments(run, global_batch, batch));
    TRY_OUT(comm_threads_new(&run->threads, run->layout->world, run->layout->seed));
    err = run_ranks(run);
    comm_threads_free(run->threads);
out:
    free(run->argv);
    if (err != OK) {
        verify_result_release(run->result);
    }
    return err;
}

enum err verify_run(const struct verify_job *job, const struct verify_layout *l, uint64_t global_batch,
                    struct verify_result *out, struct buf *why)
{
    struct run run = { .job = job, .layout = l, .steps = job->steps, .result = out, .why = why };
    return run_layout(&run, global_batch);
}

/* The job as one rank sees it. conf_release frees *conf in any case. */
static enum err load_serial(const struct verify_job *job, struct conf *conf)
{
    struct verify_layout serial;
    struct findings f = { 0 };
    char batch[32];
    TRY(verify_layout_parse(&serial, "serial"));
    struct run run = { .job = job, .layout = &serial };
    TRY(join_arguments(&run, 0, batch));
    enum err err = conf_load(conf, job->path, run.argc, run.argv, 1, &f);
    findings_print(&f);
    findings_release(&f);
    free(run.argv);
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

static enum err traced(const struct verify_job *job, const struct verify_layout *l, uint64_t global_batch,
                       uint32_t step, struct trace *out)
{
    struct verify_result result;
    struct buf why = { 0 };
    struct run run = { .job = job, .layout = l, .steps = step, .result = &result, .why = &why, .trace = out };
    enum err err = run_layout(&run, global_batch);
    verify_result_release(&result);
    buf_release(&why);
    return err;
}

enum err verify_explain(const struct verify_job *job, const struct verify_layout *a, const struct verify_layout *b,
                        uint64_t global_batch, uint32_t step, char where[256])
{
    struct trace first = { 0 }, second = { 0 };
    struct registry r = { 0 };
    struct conf conf = { 0 };
    enum err err;
    TRY_OUT(load_serial(job, &conf));
    const struct share all = share_all(conf.model.layers);
    TRY_OUT(registry_init(&r, &conf.model, &all));
    TRY_OUT(traced(job, a, global_batch, step, &first));
    TRY_OUT(traced(job, b, global_batch, step, &second));
    if (!trace_differs(&first, &second, &r, where)) {
        snprintf(where, 256, "nothing when run again: the difference does not repeat, so it depends on timing");
    }
out:
    trace_close(&first);
    trace_close(&second);
    registry_release(&r);
    conf_release(&conf);
    return err;
}
