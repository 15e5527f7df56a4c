/* invar eval: the loss of a checkpoint over a whole token store, each token predicted once. */
#include "base/buf.h"
#include "base/file.h"
#include "base/fmath.h"
#include "base/log.h"
#include "ckpt/safetensors.h"
#include "cmd/cmd.h"
#include "train/evaluate.h"
#include "train/session.h"

static const char usage[] =
    "usage: invar eval CHECKPOINT --data PREFIX [options]\n"
    "\n"
    "Loss, perplexity and bits per byte of a checkpoint over PREFIX.bin/.idx. CHECKPOINT is a run folder (its newest\n"
    "checkpoint), a step folder or a Hugging Face model folder.\n"
    "\n"
    "example: invar eval runs/demo/run --data runs/demo/val\n";

struct eval_flags {
    const char *data, *seq_length, *batch, *windows, *threads, *dump;
    bool json;
};

/* A JSON number; JSON has no infinity, which the perplexity of a loss above 700 is. */
static void print_number(const char *name, double value)
{
    if (value <= 0x1.fffffffffffffp1023) {
        printf("%s: %.17g", name, value);
    } else {
        printf("%s: null", name);
    }
}

static void print_result(const struct evaluation *e, const struct store_info *info, bool whole, bool json)
{
    double perplexity = fmath_exp(e->loss);
    double bytes = whole ? (double)info->text_bytes : 0.0; /* per byte only when every token was counted */
    double nats_byte = bytes > 0 ? e->total_nats / bytes : 0.0;
    double bits_byte = nats_byte / 0x1.62e42fefa39efp-1;
    if (json) {
        print_number("{\"loss\"", e->loss);
        print_number(", \"perplexity\"", perplexity);
        printf(", \"tokens\": %llu", (unsigned long long)e->tokens);
        if (bytes > 0) {
            print_number(", \"bits_per_byte\"", bits_byte);
            print_number(", \"nats_per_byte\"", nats_byte);
        }
        printf("}\n");
        return;
    }
    printf("loss        %.6f nats per token\nperplexity  %.4f\n", e->loss, perplexity);
    if (bytes > 0) {
        printf("per byte    %.4f bits = %.4f nats (%llu bytes of text)\n", bits_byte, nats_byte,
               (unsigned long long)info->text_bytes);
    }
    printf("tokens      %llu in %llu windows\n", (unsigned long long)e->tokens, (unsigned long long)e->windows);
}

/* arg: the tensors' values, in the order of the file's list. */
static enum err fetch_dumped(void *arg, size_t file, size_t tensor, const float **values)
{
    (void)file;
    *values = ((float *const *)arg)[tensor];
    return OK;
}

/* The first window's tokens and logits as a safetensors file: for comparison with other programs. */
static enum err dump_logits(const char *path, const char *out, const struct store *data, uint64_t length,
                            uint64_t threads)
{
    struct session s = { 0 };
    struct sampler sampler;
    struct st_written written = { 0 };
    void *ids = NULL, *mem = NULL;
    enum err err;
    const struct session_options o = { MODEL_INFER, 1, length, threads };
    TRY_OUT(session_open(&s, path, &o));
    TRY_OUT(sampler_init(&sampler, data, length, s.conf.vocab, 0));
    TRY_OUT(mem_alloc(&ids, 2 * length, sizeof(int32_t)));
    TRY_OUT(mem_alloc(&mem, length * (s.conf.vocab + 1), sizeof(float)));
    int32_t *token = ids;
    float *logits = mem, *as_float = logits + length * s.conf.vocab;
    TRY_OUT(sampler_eval_get(&sampler, 0, token, token + length));
    TRY_OUT(model_infer(s.model, 0, length, token, true, logits));
    for (uint64_t i = 0; i < length; i++) {
        as_float[i] = (float)token[i];
    }
    const struct ckpt_tensor tensors[] = { { .name = "tokens", .rank = 1, .shape = { length } },
                                           { .name = "logits", .rank = 2, .shape = { length, s.conf.vocab } } };
    const struct ckpt_file file = { out, tensors, 2 };
    float *values[] = { as_float, logits };
    TRY_OUT(st_write(out, &file, 0, &(struct ckpt_source){ fetch_dumped, values }, &written));
    log_note("logits of the first %llu tokens: %s", (unsigned long long)length, out);
out:
    session_close(&s);
    free(written.tensors);
    free(ids);
    free(mem);
    return err;
}

static enum err run(const char *path, const struct eval_flags *f, uint64_t length, uint64_t batch, uint64_t windows,
                    uint64_t threads)
{
    struct session s = { 0 };
    struct store *data = NULL;
    struct sampler sampler;
    struct store_info info;
    struct evaluation e;
    struct log_progress progress;
    enum err err;
    TRY_OUT(store_open(&data, f->data));
    TRY_OUT(store_info(data, &info));
    const struct session_options o = { MODEL_EVAL, batch, length, threads };
    TRY_OUT(session_open(&s, path, &o));
    uint64_t used = length > 0 ? length : s.conf.positions;
    TRY_OUT(store_check_vocab(data, s.conf.vocab));
    TRY_OUT(session_check_tokenizer(&s, data, f->data));
    TRY_OUT(sampler_init(&sampler, data, used, s.conf.vocab, 0));
    log_progress_init(&progress, 5.0);
    const struct evaluate_options what = {
        .sampler = &sampler, .sequences = batch, .windows = windows, .input = s.input, .target = s.target,
        .progress = &progress,
    };
    TRY_OUT(evaluate(s.model, &what, &e));
    print_result(&e, &info, e.windows == sampler_eval_windows(&sampler), f->json);
    if (f->dump != NULL) {
        session_close(&s);
        TRY_OUT(dump_logits(path, f->dump, data, used, threads));
    }
out:
    session_close(&s);
    store_close(data);
    return err;
}

enum err cmd_eval(int argc, char **argv)
{
    struct eval_flags f = { .seq_length = "0", .batch = "4", .windows = "0", .threads = "0" };
    const struct cmd_flag flags[] = {
        { "--data", "PREFIX", "token store made by `invar data build`", &f.data, NULL },
        { "--seq-length", "N", "tokens of a window; 0: the model's positions (0)", &f.seq_length, NULL },
        { "--batch-size", "N", "windows computed at a time; changes no result (4)", &f.batch, NULL },
        { "--windows", "N", "only the first N windows; 0: all (0)", &f.windows, NULL },
        { "--dump-logits", "FILE", "write tokens and logits of the first window (safetensors)", &f.dump, NULL },
        { "--json", NULL, "print one JSON object", NULL, &f.json },
        { "--threads", "N", "0: the cores this process may use (0)", &f.threads, NULL },
    };
    int rest;
    bool helped = false;
    uint64_t length, batch, windows, threads;
    TRY(cmd_parse(argc, argv, usage, flags, sizeof(flags) / sizeof(flags[0]), &rest, &helped));
    if (helped) {
        return OK;
    }
    if (rest != 1 || f.data == NULL) {
        return FAIL(ERR_USAGE, "eval: one CHECKPOINT and --data PREFIX were expected | see `invar eval --help`");
    }
    TRY(cmd_whole("--seq-length", f.seq_length, 0, 1u << 24, &length));
    TRY(cmd_whole("--batch-size", f.batch, 1, 1u << 20, &batch));
    TRY(cmd_whole("--windows", f.windows, 0, UINT64_MAX / 2, &windows));
    TRY(cmd_whole("--threads", f.threads, 0, POOL_THREADS_MAX, &threads));
    return run(argv[1], &f, length, batch, windows, threads);
}
