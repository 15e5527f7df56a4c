/* invar bench: what the machine can do, and what a training step makes of it. */
#include "base/file.h"
#include "cmd/bench_report.h"
#include "cmd/cmd.h"
#include "train/thread_ranks.h"

#define DEFAULT_SECONDS "60"
#define DEFAULT_OUTPUT "bench.json"

static const char usage[] =
    "usage: invar bench [CONFIG.yaml | MODEL_FOLDER] [--seconds S] [--scaling] [--output FILE.json] [--key value ...]\n"
    "\n"
    "Measure peaks of this machine (arithmetic, memory, caches, disk, ranks), every kernel of a training step at the\n"
    "shapes of the model, and the whole step, and say which share of its limit each reaches. Without a model: GPT-2\n"
    "124M on 1 x 1024 tokens. Tokens are random; a step is at most one micro-batch for each stage and data-parallel\n"
    "rank. Start it with mpirun to measure ranks; the first one prints.\n"
    "\n"
    "  --seconds S             about so long in all (60); at least one sample of everything is taken\n"
    "  --scaling               also steps of other lengths, batches, hidden sizes and numbers of layers: time of a\n"
    "                          token beside its operations. One rank only. Up to half of S for each case\n"
    "  --output FILE.json      the same figures for programs (bench.json); an older one is replaced\n"
    "  --key value             any key of the configuration, e.g. --seq_length 2048 --threads 1\n"
    "\n"
    "That file is all that stays: data, output folder and checkpoints of the configuration are not used, but the disk\n"
    "is measured where output_dir is.\n"
    "Exit codes: 0 measured, 2 usage or configuration, 4 memory or disk, 5 another rank failed.\n";

/* GPT-2 124M as keys of a configuration. */
static const char *const default_model[][2] = {
    { "model.model_type", "gpt2" }, { "model.vocab_size", "50257" }, { "model.n_embd", "768" },
    { "model.n_layer", "12" },      { "model.n_head", "12" },        { "model.n_positions", "1024" },
};
/* One micro-batch of about a thousand tokens, where nobody says how many. */
static const char *const default_batch[][2] = { { "seq_length", "1024" }, { "micro_batch_size", "1" } };

struct options {
    struct bench_options bench;
    const char *path, *output; /* path: configuration, NULL without one */
    struct arguments keys;
};

static enum err set_missing(struct arguments *a, const char *const (*list)[2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!arguments_have(a, list[i][0])) {
            TRY(arguments_set(a, list[i][0], list[i][1]));
        }
    }
    return OK;
}

/* What a configuration for training must say, and a measurement need not. */
static enum err complete_keys(struct options *o, const char *model)
{
    struct arguments *a = &o->keys;
    const size_t model_keys = sizeof(default_model) / sizeof(default_model[0]);
    if (model != NULL) {
        TRY(arguments_set(a, "model", model));
    } else if (o->path == NULL && !arguments_have(a, "model")) {
        TRY(set_missing(a, default_model, model_keys));
    }
    if (o->path == NULL) {
        bool batch = arguments_have(a, "global_batch_size") || arguments_have(a, "gradient_accumulation_steps");
        TRY(set_missing(a, default_batch + (model != NULL ? 1 : 0), batch ? 0 : model != NULL ? 1 : 2));
    }
    TRY(arguments_set(a, "data_path", "random"));
    TRY(arguments_set(a, "resume_from_checkpoint", "null"));
    TRY(arguments_set(a, "num_train_epochs", "null"));
    return arguments_set(a, "max_steps", "1000000000");
}

/* Flags of this command, taken out of the arguments of the configuration. */
static enum err parse(int argc, char **argv, struct options *o)
{
    int first = argc > 1 && strncmp(argv[1], "--", 2) != 0 ? 2 : 1;
    const char *model = first == 2 && file_is_folder(argv[1]) ? argv[1] : NULL, *seconds = DEFAULT_SECONDS;
    o->path = first == 2 && model == NULL ? argv[1] : NULL;
    o->output = DEFAULT_OUTPUT;
    for (int i = first; i < argc; i++) {
        const char *value;
        if ((value = cmd_value(argc, argv, &i, "--seconds")) != NULL) {
            seconds = value;
        } else if ((value = cmd_value(argc, argv, &i, "--output")) != NULL) {
            o->output = value;
        } else if (strcmp(argv[i], "--scaling") == 0) {
            o->bench.scaling = true;
        } else {
            TRY(arguments_copy(&o->keys, 1, &argv[i]));
        }
    }
    if (o->output[0] == '\0') {
        return FAIL(ERR_USAGE, "--output: a value was expected after it (FILE.json)");
    }
    TRY(cmd_real("--seconds", seconds, 1, 86400, &o->bench.seconds));
    return complete_keys(o, model);
}

/* The configuration, read by every rank; the first one says what is wrong with it. */
static enum err load(struct conf *conf, const struct options *o, struct comm_world *w)
{
    struct findings f = { 0 };
    enum err err = conf_load(conf, o->path, o->keys.count, o->keys.list, comm_size(comm_all(w)), &f);
    if (comm_rank(comm_all(w)) == 0) {
        findings_print(&f);
    } else {
        findings_to_message(&f);
    }
    findings_release(&f);
    return comm_agree(comm_all(w), err);
}

static enum err run(const struct options *o, struct conf *conf, struct comm_world *w)
{
    struct bench_report *r;
    void *mem;
    bool leads = comm_rank(comm_all(w)) == 0;
    if (o->bench.scaling && comm_size(comm_all(w)) > 1) {
        return FAIL(ERR_USAGE, "--scaling: started as %u ranks, one was expected | run it without mpirun, or leave out "
                               "--scaling", comm_size(comm_all(w)));
    }
    TRY(comm_agree(comm_all(w), leads ? bench_check_output(o->output) : OK));
    TRY(comm_agree(comm_all(w), mem_alloc(&mem, 1, sizeof(struct bench_report))));
    r = mem;
    if (leads) {
        bench_print_job(conf);
    }
    enum err err = bench_run(r, conf, w, &o->bench);
    if (err == OK) {
        err = comm_agree(comm_all(w), leads ? bench_write_json(r, conf, o->output) : OK);
    }
    free(r);
    return err;
}

enum err cmd_bench(int argc, char **argv)
{
    struct options o = { .bench.done = bench_print };
    struct conf conf = { 0 };
    struct comm_world *w;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return OK;
        }
    }
    TRY(comm_open(&w));
    enum err err = comm_agree(comm_all(w), parse(argc, argv, &o));
    err = err == OK ? load(&conf, &o, w) : err;
    err = err == OK ? run(&o, &conf, w) : err;
    conf_release(&conf);
    arguments_release(&o.keys);
    return cmd_leave(w, err);
}
