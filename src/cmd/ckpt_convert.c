/* invar ckpt convert: a model from one kind of file to another. */
#include "base/log.h"
#include "ckpt/convert.h"
#include "ckpt/export.h"
#include "cmd/cmd.h"

static void show(void *arg, uint64_t done, uint64_t total)
{
    char text[2][32];
    log_progress_line(arg, done == total, "converted %s of %s (as fp32)", log_bytes(done, text[0]),
                      log_bytes(total, text[1]));
}

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

enum err cmd_ckpt_convert(const char *from, const char *to, const struct cmd_convert_flags *flags, bool quiet)
{
    struct log_progress line;
    struct convert_options o = { .gguf = ends_with(to, ".gguf"), .dtype = flags->dtype };
    if (flags->to != NULL) {
        o.gguf = strcmp(flags->to, "gguf") == 0;
        if (!o.gguf && strcmp(flags->to, "hf") != 0) {
            return FAIL(ERR_USAGE, "--to: \"%.40s\", hf or gguf was expected", flags->to);
        }
    }
    if (flags->shard_size != NULL) {
        if (o.gguf) {
            return FAIL(ERR_USAGE, "--max_shard_size is for folders: a GGUF file is one file");
        }
        TRY(export_size("--max_shard_size", flags->shard_size, &o.shard_bytes));
    }
    log_progress_init(&line, 10);
    if (!quiet) {
        o.progress = show;
        o.progress_arg = &line;
    }
    enum err err = convert_model(from, to, &o);
    log_progress_end(&line);
    TRY(err);
    if (!quiet) {
        log_note("%s: written from %s", to, from);
    }
    return OK;
}
