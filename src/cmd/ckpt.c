/* invar ckpt: look at checkpoints without training. */
#include <inttypes.h>

#include "base/buf.h"
#include "ckpt/ckpt.h"
#include "cmd/cmd.h"
#include "conf/scalar.h"

static const char usage[] =
    "usage: invar ckpt show CHECKPOINT      every tensor with shape, type and hash, then the other files\n"
    "       invar ckpt verify CHECKPOINT    read everything and compare every hash; of a run, all its checkpoints\n"
    "       invar ckpt hash CHECKPOINT      the state hash, computed from the tensors of model.safetensors\n"
    "       invar ckpt diff A B             where two differ: exit 0 when they are equal, 1 when not\n"
    "       invar ckpt convert FROM TO      a model from one kind of file to another\n"
    "\n"
    "diff prints a line a tensor: equal, or how many elements differ, the first of them (its number in row-major\n"
    "order and its place, both from 0) and the largest difference.\n"
    "\n"
    "CHECKPOINT is a step folder, a run folder (its newest complete checkpoint) or a Hugging Face model folder.\n"
    "\n"
    "convert: FROM is one of these or a GGUF file (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K), TO\n"
    "is a GGUF file when it ends in .gguf, else a Hugging Face folder. TO must not exist; it is there complete or not\n"
    "at all. Types of weights that are not asked for are kept where TO can have them.\n"
    "\n"
    "example: invar ckpt diff runs/a/checkpoints/step-100 runs/b/checkpoints/step-100\n"
    "         invar ckpt convert runs/a model.gguf --save_dtype bf16\n";

static enum err show(char **paths, bool quiet)
{
    (void)quiet;
    struct buf out = { 0 };
    enum err err = ckpt_show(paths[0], &out);
    if (err == OK) {
        fwrite(out.data, 1, out.bytes, stdout);
    }
    buf_release(&out);
    return err;
}

static enum err verify(char **paths, bool quiet)
{
    return ckpt_verify(paths[0], quiet);
}

static enum err hash(char **paths, bool quiet)
{
    (void)quiet;
    uint64_t value;
    TRY(ckpt_compute_hash(paths[0], &value));
    printf("%016" PRIx64 "\n", value);
    return OK;
}

static enum err diff(char **paths, bool quiet)
{
    struct buf out = { 0 };
    struct ckpt_diff sum;
    enum err err = ckpt_diff(paths[0], paths[1], &out, &sum);
    if (err == OK && !quiet) {
        fwrite(out.data, 1, out.bytes, stdout);
        fflush(stdout);
    }
    buf_release(&out);
    TRY(err);
    if (sum.different > 0) {
        return FAIL(ERR_RUN, "%s and %s: %" PRIu64 " of %" PRIu64 " tensors differ", paths[0], paths[1], sum.different,
                    sum.tensors);
    }
    printf("%" PRIu64 " tensors are equal%s\n", sum.tensors,
           sum.suspicious ? "; suspicious: two different steps hold the same bits" : "");
    return OK;
}

static const struct action {
    const char *name;
    int paths;
    enum err (*run)(char **paths, bool quiet); /* NULL: convert, which has flags */
} actions[] = {
    { "show", 1, show },
    { "verify", 1, verify },
    { "hash", 1, hash },
    { "diff", 2, diff },
    { "convert", 2, NULL },
};

enum err cmd_ckpt(int argc, char **argv)
{
    bool quiet = false, helped = false;
    struct cmd_convert_flags convert = { NULL, NULL, NULL };
    const struct cmd_flag flags[] = {
        { "--quiet", NULL, "print only what is wrong (verify, diff, convert)", NULL, &quiet },
        { "--to", "KIND", "convert: hf or gguf, whatever TO is named", &convert.to, NULL },
        { "--save_dtype", "TYPE", "convert: f32, f16, bf16, or q8_0 in GGUF (as in FROM, else f32)", &convert.dtype,
          NULL },
        { "--max_shard_size", "SIZE", "convert: bytes of a file in a folder, as 5GB (one file)", &convert.shard_size,
          NULL },
    };
    int rest;
    TRY(cmd_parse(argc, argv, usage, flags, sizeof(flags) / sizeof(flags[0]), &rest, &helped));
    if (helped) {
        return OK;
    }
    for (size_t i = 0; rest > 0 && i < sizeof(actions) / sizeof(actions[0]); i++) {
        if (strcmp(argv[1], actions[i].name) != 0) {
            continue;
        }
        if (rest - 1 != actions[i].paths) {
            return FAIL(ERR_USAGE, "ckpt %s: %d paths are given, %d expected | see `invar ckpt --help`", argv[1],
                        rest - 1, actions[i].paths);
        }
        bool flagged = convert.to != NULL || convert.dtype != NULL || convert.shard_size != NULL;
        if (actions[i].run != NULL && flagged) {
            return FAIL(ERR_USAGE, "ckpt %s: --to, --save_dtype and --max_shard_size are of convert", argv[1]);
        }
        return actions[i].run != NULL ? actions[i].run(argv + 2, quiet)
                                      : cmd_ckpt_convert(argv[2], argv[3], &convert, quiet);
    }
    if (rest == 0) {
        return FAIL(ERR_USAGE,
                    "ckpt: no action is given, expected show, verify, hash, diff or convert | see `invar ckpt --help`");
    }
    return FAIL(ERR_USAGE, "ckpt: %s is no action, expected show, verify, hash, diff or convert | see "
                "`invar ckpt --help`", scalar_quote(argv[1], strlen(argv[1])).text);
}
