/* invar generate: text from a checkpoint, streamed to standard output. */
#include "base/log.h"
#include "cmd/cmd.h"
#include "train/sampling.h"
#include "train/session.h"

static const char usage[] =
    "usage: invar generate CHECKPOINT --prompt TEXT [options]\n"
    "\n"
    "Continue a text. CHECKPOINT is a run folder (its newest checkpoint), a step folder or a Hugging Face model\n"
    "folder.\n"
    "The same seed gives the same text on every machine and number of threads.\n"
    "\n"
    "example: invar generate runs/demo/run --prompt \"ROMEO:\" --max-new-tokens 200 --temperature 0.8\n";

static void print_text(void *arg, const char *text, size_t bytes)
{
    fwrite(text, 1, bytes, arg);
    fflush(arg);
}

struct generate_flags {
    const char *prompt, *max_new_tokens, *temperature, *top_k, *top_p, *seed, *tokenizer, *threads, *context;
};

static enum err read_numbers(const struct generate_flags *f, struct generation *g, uint64_t *threads, uint64_t *context)
{
    TRY(cmd_whole("--max-new-tokens", f->max_new_tokens, 1, 1u << 30, &g->max_new_tokens));
    TRY(cmd_real("--temperature", f->temperature, 0.0, 100.0, &g->sampling.temperature));
    TRY(cmd_whole("--top-k", f->top_k, 0, 1u << 30, &g->sampling.top_k));
    TRY(cmd_real("--top-p", f->top_p, 1e-6, 1.0, &g->sampling.top_p));
    TRY(cmd_whole("--seed", f->seed, 0, UINT64_MAX / 2, &g->sampling.seed));
    TRY(cmd_whole("--threads", f->threads, 0, POOL_THREADS_MAX, threads));
    return cmd_whole("--context", f->context, 0, 1u << 24, context);
}

static enum err run(const char *path, const char *tokenizer_path, struct generation *g, uint64_t threads,
                    uint64_t context)
{
    struct session s = { 0 };
    struct tokenizer *t = NULL;
    struct generated done;
    enum err err;
    const struct session_options o = { MODEL_INFER, 1, context, threads };
    TRY_OUT(session_open(&s, path, &o));
    TRY_OUT(tokenizer_load(&t, tokenizer_path != NULL ? tokenizer_path : ckpt_folder(s.ckpt)));
    if (tokenizer_vocab(t) > s.conf.vocab) {
        err = FAIL(ERR_USAGE,
                   "the tokenizer has %llu ids, the model %llu | give the tokenizer the model was trained with",
                   (unsigned long long)tokenizer_vocab(t), (unsigned long long)s.conf.vocab);
        goto out;
    }
    double started = log_seconds();
    uint64_t positions = context > 0 ? context : s.conf.positions;
    TRY_OUT(generate(s.model, t, positions, g, &done));
    double seconds = log_seconds() - started;
    fputc('\n', stdout);
    fflush(stdout); /* before the note on stderr */
    log_note("%llu prompt tokens, %llu new tokens in %.2f s (%.1f tokens/s)%s", (unsigned long long)done.prompt_tokens,
             (unsigned long long)done.new_tokens, seconds, (double)done.new_tokens / (seconds > 1e-9 ? seconds : 1e-9),
             done.stopped ? "; the model ended the text"
             : done.full  ? "; the model's last position was reached"
                          : "");
out:
    session_close(&s);
    tokenizer_free(t);
    return err;
}

enum err cmd_generate(int argc, char **argv)
{
    struct generate_flags f = { .prompt = "", .max_new_tokens = "256", .temperature = "0.8", .top_k = "0",
                                .top_p = "1", .seed = "0", .threads = "0", .context = "0" };
    const struct cmd_flag flags[] = {
        { "--prompt", "TEXT", "what to continue; empty: start a new text", &f.prompt, NULL },
        { "--max-new-tokens", "N", "most tokens to generate (256)", &f.max_new_tokens, NULL },
        { "--temperature", "X", "0: always the most likely token; 1: as the model says (0.8)", &f.temperature, NULL },
        { "--top-k", "N", "choose among the N most likely tokens; 0: all (0)", &f.top_k, NULL },
        { "--top-p", "X", "choose among the most likely tokens that hold this share of probability (1)", &f.top_p,
          NULL },
        { "--seed", "N", "another number, another text (0)", &f.seed, NULL },
        { "--tokenizer", "PATH", "when it does not lie in the checkpoint folder", &f.tokenizer, NULL },
        { "--context", "N", "positions of the cache; 0: all the model has (0)", &f.context, NULL },
        { "--threads", "N", "0: the cores this process may use (0)", &f.threads, NULL },
    };
    int rest;
    bool helped = false;
    TRY(cmd_parse(argc, argv, usage, flags, sizeof(flags) / sizeof(flags[0]), &rest, &helped));
    if (helped) {
        return OK;
    }
    if (rest != 1) {
        return FAIL(ERR_USAGE, "generate: one CHECKPOINT was expected, got %d | see `invar generate --help`", rest);
    }
    struct generation g = { .prompt = f.prompt, .sink = print_text, .sink_arg = stdout };
    uint64_t threads, context;
    TRY(read_numbers(&f, &g, &threads, &context));
    return run(argv[1], f.tokenizer, &g, threads, context);
}
