/* Why this exists: the front door: one table of commands, one place where an error becomes a message and an exit code
 * (0 done, 1 the run failed, 2 usage or configuration, 3 damaged input, 4 resources, 5 a peer, 6 interrupted, 70 our
 * bug). */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "comm/comm.h"

#include "conf/nearest.h"
#include "conf/scalar.h"

static const struct cmd commands[] = {
    { "train", "train a model from a configuration: invar train CONFIG.yaml [--key value ...]", cmd_train },
    { "check", "say whether a model or a configuration can be trained, and if not, why", cmd_check },
    { "verify", "run a few steps under many layouts and compare the bits", cmd_verify },
    { "replay", "compute a step of a run again and compare it with the record", cmd_replay },
    { "eval", "the loss of a model on token files", cmd_eval },
    { "generate", "continue a text with a model", cmd_generate },
    { "data", "build, verify and show token files", cmd_data },
    { "ckpt", "show, verify, hash and compare checkpoints", cmd_ckpt },
    { "bench", "what this machine can do, and what a training step makes of it", cmd_bench },
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *out)
{
    fprintf(
        out,
        "usage: invar COMMAND [ARGUMENT ...]\n"
        "\n"
        "Trains language models with results that do not depend on how the work is split.\n"
        "\n");
    for (size_t i = 0; i < COMMANDS; i++) {
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    fprintf(out, "\n`invar COMMAND --help` explains a command; `invar --version` prints the version.\n");
}

enum err cmd_leave(struct comm_world *w, enum err err)
{
    if (comm_rank(comm_all(w)) == 0 && err != OK && err_message()[0] != '\0') {
        err_print();
    }
    comm_close(w, err);
    err_set_message("");
    return err;
}

static enum err unknown_command(const char *name)
{
    struct nearest near;
    nearest_init(&near, name);
    for (size_t i = 0; i < COMMANDS; i++) {
        nearest_try(&near, commands[i].name, strlen(commands[i].name));
    }
    if (nearest_found(&near) != NULL) {
        return FAIL(ERR_USAGE, "unknown command %s | did you mean invar %s?", scalar_quote(name, strlen(name)).text,
                    nearest_found(&near));
    }
    return FAIL(ERR_USAGE, "unknown command %s | invar --help lists the commands",
                scalar_quote(name, strlen(name)).text);
}

static enum err run(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return FAIL(ERR_USAGE, "no command is given | start with: invar train CONFIG.yaml");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("invar %s\n", INVAR_VERSION);
        return OK;
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, argv[1]) == 0) {
            if (commands[i].run != cmd_train && commands[i].run != cmd_bench) { /* those that ranks run together */
                TRY(comm_alone(argv[1]));
            }
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    return unknown_command(argv[1]);
}

/* A file opened in the place of a closed standard stream would get the messages meant for that stream. */
static enum err fill_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO;) {
        fd = open("/dev/null", O_RDWR); /* the lowest that is free; above the streams none was */
        if (fd < 0) {
            return FAIL(ERR_IO, "/dev/null: cannot be opened: %s", strerror(errno));
        }
        if (fd > STDERR_FILENO) {
            close(fd);
        }
    }
    return OK;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of the write, which is reported and cleaned up */
    enum err err = fill_standard_streams();
    err = err == OK ? run(argc, argv) : err;
    /* Output that could not be written (a full disk behind a redirection) must not look like success. */
    bool lost = fflush(stdout) != 0;
    if ((lost || ferror(stdout)) && err == OK) {
        err = FAIL(ERR_RESOURCE,
                   "standard output: not everything could be written | is the disk that it goes to full?");
    }
    if (err != OK && err_message()[0] != '\0') { /* empty: findings were printed and say it all */
        err_print();
    }
    return err_exit_code(err);
}
