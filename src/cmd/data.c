/* Why this exists: `invar data`: from text to tokens, and a look at what others made. Each verb is a row of `verbs`. */
#include "base/log.h"
#include "base/pool.h"
#include "cmd/cmd.h"
#include "conf/scalar.h"
#include "data/build.h"
#include "data/store.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- build ---- */

static const char build_usage[] =
    "usage: invar data build INPUT... --tokenizer T --output PREFIX\n"
    "Text to tokens: writes PREFIX.bin and PREFIX.idx (Megatron format) and PREFIX.json. An input is a .txt file (one\n"
    "document), a .jsonl file (one document per line), either with .gz or .zst, a folder of them, or a pattern.";

struct build_flags {
    const char *tokenizer, *output, *field, *on_error, *range, *threads, *memory;
    bool no_eot, quiet;
};

/* "A:B" with 0 <= A < B <= 1. */
static enum err parse_range(const char *text, double *lo, double *hi)
{
    char first[64];
    const char *colon = strchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof(first)) {
        return FAIL(ERR_USAGE, "--range: \"%s\", two fractions were expected | for example 0:0.9", text);
    }
    memcpy(first, text, (size_t)(colon - text));
    first[colon - text] = '\0';
    TRY(cmd_real("--range", first, 0, 1, lo));
    TRY(cmd_real("--range", colon + 1, 0, 1, hi));
    if (*lo >= *hi) {
        return FAIL(ERR_USAGE, "--range: \"%s\", the second fraction must be greater | for example 0.9:1", text);
    }
    return OK;
}

static enum err parse_build(const struct build_flags *f, struct build_options *o, uint64_t *threads)
{
    uint64_t megabytes;
    if (o->inputs_count == 0 || f->tokenizer == NULL || f->output == NULL) {
        return FAIL(ERR_USAGE,
                    "data build: INPUT, --tokenizer and --output were expected | see `invar data build --help`");
    }
    TRY(cmd_whole("--threads", f->threads, 0, POOL_THREADS_MAX, threads));
    TRY(cmd_whole("--memory", f->memory, 1, 1u << 20, &megabytes));
    if (f->range != NULL) {
        TRY(parse_range(f->range, &o->range_lo, &o->range_hi));
    }
    if (strcmp(f->on_error, "stop") != 0 && strcmp(f->on_error, "skip") != 0) {
        return FAIL(ERR_USAGE, "--on-error: \"%s\", stop or skip was expected", f->on_error);
    }
    o->prefix = f->output;
    o->field = f->field;
    o->append_eot = !f->no_eot;
    o->on_error = strcmp(f->on_error, "skip") == 0 ? BUILD_SKIP : BUILD_STOP;
    o->memory_bytes = megabytes * 1000000;
    o->quiet = f->quiet;
    return OK;
}

static enum err verb_build(int argc, char **argv)
{
    struct build_flags f = { .field = "text", .on_error = "stop", .threads = "0", .memory = "256" };
    const struct cmd_flag flags[] = {
        { "--tokenizer", "T", "folder or file of a tokenizer, or the word bytes", &f.tokenizer, NULL },
        { "--output", "PREFIX", "where to write", &f.output, NULL },
        { "--field", "NAME", "field of a JSON line that holds the text (text)", &f.field, NULL },
        { "--on-error", "stop|skip", "a damaged JSON line: stop, or leave it out and count it (stop)", &f.on_error,
          NULL },
        { "--range", "A:B", "only this part of one plain .txt, as fractions: 0:0.9", &f.range, NULL },
        { "--no-eot", NULL, "no end-of-text token after each document", NULL, &f.no_eot },
        { "--threads", "N", "0: the cores this process may use; changes no byte (0)", &f.threads, NULL },
        { "--memory", "MB", "about how much memory the buffers may take; changes no byte (256)", &f.memory, NULL },
        { "--quiet", NULL, "print only warnings and errors", NULL, &f.quiet },
    };
    int rest;
    bool helped = false;
    uint64_t threads;
    struct tokenizer *t = NULL;
    struct pool *pool = NULL;
    struct build_result result;
    TRY(cmd_parse(argc, argv, build_usage, flags, COUNT(flags), &rest, &helped));
    if (helped) {
        return OK;
    }
    struct build_options o = { .inputs = (const char *const *)(argv + 1), .inputs_count = (size_t)rest };
    TRY(parse_build(&f, &o, &threads));
    enum err err;
    TRY_OUT(tokenizer_load(&t, f.tokenizer));
    TRY_OUT(pool_new(&pool, (uint32_t)threads));
    TRY_OUT(data_build(&o, t, pool, &result));
out:
    pool_free(pool);
    tokenizer_free(t);
    return err;
}

/* ---- verify ---- */

static const char verify_usage[] = "usage: invar data verify PREFIX... [--vocab N]\n"
                                   "Checks an .idx/.bin pair completely: every count, length, pointer and boundary of "
                                   "the index, the content hash, and\n"
                                   "every token id. The first damage is the error (exit code 3).";

static enum err verb_verify(int argc, char **argv)
{
    const char *vocab_text = "0";
    const struct cmd_flag flags[] = {
        { "--vocab", "N", "ids must be below N; 0: what PREFIX.json says (0)", &vocab_text, NULL },
    };
    int rest;
    bool helped = false;
    uint64_t vocab;
    TRY(cmd_parse(argc, argv, verify_usage, flags, COUNT(flags), &rest, &helped));
    if (helped) {
        return OK;
    }
    if (rest == 0) {
        return FAIL(ERR_USAGE, "data verify: PREFIX was expected | see `invar data verify --help`");
    }
    TRY(cmd_whole("--vocab", vocab_text, 0, (uint64_t)1 << 31, &vocab));
    for (int i = 1; i <= rest; i++) {
        TRY(data_verify(argv[i], vocab));
    }
    return OK;
}

/* ---- show ---- */

static const char show_usage[] = "usage: invar data show PREFIX [--tokenizer T] [--sequences N]\n"
                                 "What is in a token store: counts, lengths, and the beginning of the first sequences.";

#define SHOW_TOKENS_MAX 64u

static void show_lengths(const struct store_lengths *l, uint64_t sequences)
{
    static const char bar[] = "########################################";
    uint64_t most = 1;
    for (int k = 0; k < 33; k++) {
        most = l->bucket[k] > most ? l->bucket[k] : most;
    }
    printf("lengths     %llu least, %llu median, %llu most\n", (unsigned long long)l->least,
           (unsigned long long)l->median, (unsigned long long)l->most);
    for (int k = 0; k < 33; k++) {
        if (l->bucket[k] > 0) {
            unsigned long long lo = k > 0 ? 1ull << (k - 1) : 0, hi = k > 0 ? (1ull << k) - 1 : 0;
            printf("  %10llu to %-10llu %10llu  %5.1f %%  %.*s\n", lo, hi, (unsigned long long)l->bucket[k],
                   100.0 * (double)l->bucket[k] / (double)sequences, (int)(40 * l->bucket[k] / most), bar);
        }
    }
}

/* The first tokens of one sequence: as text with a tokenizer, else as ids. */
static enum err show_sequence(const struct store *s, uint64_t i, const struct tokenizer *t, struct buf *text)
{
    int32_t id[SHOW_TOKENS_MAX];
    uint64_t first, end;
    TRY(store_sequence(s, i, &first, &end));
    uint64_t count = end - first < SHOW_TOKENS_MAX ? end - first : SHOW_TOKENS_MAX;
    TRY(store_read(s, first, count, t != NULL ? tokenizer_vocab(t) : 0, id));
    struct tokenizer_decoding decoding = { 0 };
    buf_clear(text);
    for (uint64_t k = 0; k < count; k++) {
        if (t != NULL) {
            TRY(tokenizer_decode(t, &decoding, id[k], text));
        } else {
            TRY(buf_printf(text, "%s%d", k > 0 ? " " : "", id[k]));
        }
    }
    struct buf quoted = { 0 };
    enum err err = t != NULL ? buf_add_json_string(&quoted, text->data != NULL ? text->data : "", text->bytes)
                             : buf_add_string(&quoted, text->data != NULL ? text->data : "");
    if (err == OK) {
        printf("%llu (%llu tokens): %s%s\n", (unsigned long long)i, (unsigned long long)(end - first), quoted.data,
               end - first > count ? " ..." : "");
    }
    buf_release(&quoted);
    return err;
}

static enum err show(const char *prefix, const struct tokenizer *t, uint64_t sequences)
{
    struct store *s = NULL;
    struct store_info info;
    struct store_lengths lengths;
    struct buf text = { 0 };
    char size[32];
    enum err err;
    TRY_OUT(store_open(&s, prefix));
    TRY_OUT(store_info(s, &info));
    TRY_OUT(store_lengths(s, &lengths));
    printf("store       %s\n", prefix);
    printf("documents   %llu in %llu sequences\n", (unsigned long long)store_documents(s),
           (unsigned long long)store_sequences(s));
    printf("tokens      %llu, %s, %s\n", (unsigned long long)store_tokens(s), store_token_type(s),
           log_bytes(store_tokens(s) * store_token_bytes(s), size));
    if (info.content[0] != '\0') {
        printf("text        %s, %.3f bytes per token\n", log_bytes(info.text_bytes, size),
               (double)info.text_bytes / (double)store_tokens(s));
        printf("vocabulary  %llu, tokenizer %s\n", (unsigned long long)info.vocab, info.tokenizer);
    }
    show_lengths(&lengths, store_sequences(s));
    for (uint64_t i = 0; i < sequences && i < store_sequences(s); i++) {
        TRY_OUT(show_sequence(s, i, t, &text));
    }
out:
    buf_release(&text);
    store_close(s);
    return err;
}

static enum err verb_show(int argc, char **argv)
{
    const char *path = NULL, *sequences_text = "3";
    const struct cmd_flag flags[] = {
        { "--tokenizer", "T", "show text instead of ids: folder or file of a tokenizer, or bytes", &path, NULL },
        { "--sequences", "N", "how many sequences to show (3)", &sequences_text, NULL },
    };
    int rest;
    bool helped = false;
    uint64_t sequences;
    struct tokenizer *t = NULL;
    TRY(cmd_parse(argc, argv, show_usage, flags, COUNT(flags), &rest, &helped));
    if (helped) {
        return OK;
    }
    if (rest != 1) {
        return FAIL(ERR_USAGE, "data show: one PREFIX was expected | see `invar data show --help`");
    }
    TRY(cmd_whole("--sequences", sequences_text, 0, UINT64_MAX / 2, &sequences));
    if (path != NULL) {
        TRY(tokenizer_load(&t, path));
    }
    enum err err = show(argv[1], t, sequences);
    tokenizer_free(t);
    return err;
}

/* ---- train-tokenizer ---- */

static const char train_usage[] = "usage: invar data train-tokenizer INPUT... --vocab-size N --output FOLDER\n"
                                  "A byte-level BPE tokenizer with the GPT-2 pre-tokeniser from text; writes a Hugging "
                                  "Face tokenizer.json. The same\n"
                                  "text gives the same tokenizer for any number of threads.";

static enum err verb_train_tokenizer(int argc, char **argv)
{
    const char *output = NULL, *vocab_text = NULL, *field = "text", *threads_text = "0";
    bool quiet = false, helped = false;
    const struct cmd_flag flags[] = {
        { "--vocab-size", "N", "256 bytes + end-of-text + merges", &vocab_text, NULL },
        { "--output", "FOLDER", "where to write tokenizer.json", &output, NULL },
        { "--field", "NAME", "field of a JSON line that holds the text (text)", &field, NULL },
        { "--threads", "N", "0: the cores this process may use; changes no result (0)", &threads_text, NULL },
        { "--quiet", NULL, "print only warnings and errors", NULL, &quiet },
    };
    int rest;
    uint64_t vocab, threads;
    struct pool *pool = NULL;
    TRY(cmd_parse(argc, argv, train_usage, flags, COUNT(flags), &rest, &helped));
    if (helped) {
        return OK;
    }
    if (rest == 0 || output == NULL || vocab_text == NULL) {
        return FAIL(ERR_USAGE, "data train-tokenizer: INPUT, --vocab-size and --output were expected | see `invar data "
                               "train-tokenizer --help`");
    }
    TRY(cmd_whole("--vocab-size", vocab_text, 257, 1u << 24, &vocab));
    TRY(cmd_whole("--threads", threads_text, 0, POOL_THREADS_MAX, &threads));
    const struct train_tokenizer_options o = { .inputs = (const char *const *)(argv + 1),
                                               .inputs_count = (size_t)rest,
                                               .field = field,
                                               .vocab_size = vocab,
                                               .output = output,
                                               .quiet = quiet };
    TRY(pool_new(&pool, (uint32_t)threads));
    enum err err = data_train_tokenizer(&o, pool);
    pool_free(pool);
    return err;
}

/* ---- the verbs ---- */

static const struct cmd verbs[] = {
    { "build", "text files to tokens", verb_build },
    { "verify", "check a token store completely", verb_verify },
    { "show", "counts, lengths and the first sequences of a token store", verb_show },
    { "train-tokenizer", "a byte-level BPE tokenizer from text", verb_train_tokenizer },
};

enum err cmd_data(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < COUNT(verbs); i++) {
        if (strcmp(argv[1], verbs[i].name) == 0) {
            return verbs[i].run(argc - 1, argv + 1);
        }
    }
    if (argc > 1 && strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "-h") != 0) {
        return FAIL(ERR_USAGE,
                    "data: %s, build, verify, show or train-tokenizer was expected | see `invar data --help`",
                    scalar_quote(argv[1], strlen(argv[1])).text);
    }
    printf("usage: invar data VERB ...   (invar data VERB --help)\n\n");
    for (size_t i = 0; i < COUNT(verbs); i++) {
        printf("  %-16s %s\n", verbs[i].name, verbs[i].summary);
    }
    return argc > 1 ? OK : FAIL(ERR_USAGE, "data: no verb was given");
}
