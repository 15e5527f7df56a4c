/* Commands: one file each, flags and printing only. cmd/main.c has the table. */
#ifndef CMD_CMD_H
#define CMD_CMD_H

#include "base/err.h"

struct comm_world;

/* argv[0] is the command's name. Returns the error printed by main (its exit code is err_exit_code). */
typedef enum err cmd_fn(int argc, char **argv);

struct cmd {
    const char *name;
    const char *summary; /* one line of `invar --help` */
    cmd_fn *run;
};

cmd_fn cmd_train, cmd_verify, cmd_replay, cmd_eval, cmd_generate, cmd_data, cmd_ckpt, cmd_bench, cmd_check;

/* `invar ckpt convert FROM TO`, an action of cmd_ckpt; flags that were not given are NULL. */
struct cmd_convert_flags {
    const char *to, *dtype, *shard_size;
};
MUST_USE enum err cmd_ckpt_convert(const char *from, const char *to, const struct cmd_convert_flags *flags, bool quiet);

/* Close the ranks' world and return `err`. One rank speaks for all: an error of another one has reached it. What was
 * printed is not printed again. Collective. */
MUST_USE enum err cmd_leave(struct comm_world *w, enum err err);

/* Simple flags of one command, beside configuration keys: "--name VALUE", "--name=VALUE" or a switch. */
struct cmd_flag {
    const char *name;  /* "--prompt" */
    const char *value; /* "TEXT" in the help; NULL: a switch */
    const char *help;
    const char **text; /* receives the value */
    bool *on;          /* or the switch */
};
/* Parse flags; other arguments are moved to the front of argv after argv[0] and counted in *rest. Unknown flags are
 * ERR_USAGE with the nearest known name. --help prints usage and the flags on stdout and sets *helped. */
MUST_USE enum err cmd_parse(int argc, char **argv, const char *usage, const struct cmd_flag *flags, size_t count,
                            int *rest, bool *helped);
/* For commands whose other arguments are keys of the configuration: the value of flag `name` at argv[*i], in the form
 * "--name VALUE" or "--name=VALUE", *i moved to its last word; NULL: it is another argument. "" when there is none. */
const char *cmd_value(int argc, char **argv, int *i, const char *name);
/* A decimal whole number / a real number in a range, for flag values. */
MUST_USE enum err cmd_whole(const char *flag, const char *text, uint64_t least, uint64_t most, uint64_t *out);
MUST_USE enum err cmd_real(const char *flag, const char *text, double least, double most, double *out);

#endif
