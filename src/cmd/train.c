/* invar train: configuration in, run folder out. */
#include <signal.h>

#include "cmd/cmd.h"
#include "comm/comm.h"
#include "train/trainer.h"

static volatile sig_atomic_t stop_requested; /* set by SIGINT and SIGTERM: a signal handler has no other place */

static void on_signal(int number)
{
    stop_requested = 1;
    signal(number, SIG_DFL); /* a second one ends the program at once */
}

static const char usage[] =
    "usage: invar train [CONFIG.yaml] [--key value ...]\n"
    "\n"
    "Train a model as CONFIG.yaml (or --key value alone) says. Every key of the file can be given on the command\n"
    "line, which wins. Ctrl-C saves a checkpoint and ends with exit code 6; --resume_from_checkpoint latest goes on\n"
    "with the same bits as a run that never stopped.\n"
    "\n"
    "example: invar train examples/demo.yaml --max_steps 100\n\n";

static enum err print_help(void)
{
    struct buf text = { 0 };
    enum err err = conf_help(&text, false);
    if (err == OK) {
        fputs(usage, stdout);
        fputs(text.data, stdout);
    }
    buf_release(&text);
    return err;
}

static enum err run(struct conf *conf, struct comm_world *w)
{
    struct trainer t;
    TRY(trainer_open(&t, conf, &(struct trainer_use){ .world = w, .writes = true }));
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    signal(SIGUSR1, on_signal); /* mpirun passes it on to all ranks: save and end */
    enum err err = trainer_run(&t, &stop_requested);
    trainer_close(&t);
    return err;
}

/* The configuration, read by every rank. The first one says what is wrong with it; others have to only when theirs is
 * wrong and the first one's is not. */
static enum err load(struct conf *conf, const char *path, int argc, char **argv, struct comm_world *w)
{
    struct findings f = { 0 };
    enum err err = conf_load(conf, path, argc, argv, comm_size(comm_all(w)), &f);
    if (comm_rank(comm_all(w)) == 0) {
        findings_print(&f);
    } else {
        findings_to_message(&f);
    }
    findings_release(&f);
    return comm_agree(comm_all(w), err);
}

enum err cmd_train(int argc, char **argv)
{
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return print_help();
        }
    }
    int first = 1;
    if (argc > 1 && strncmp(argv[1], "--", 2) != 0) {
        path = argv[1];
        first = 2;
    }
    struct conf conf = { 0 };
    struct comm_world *w;
    TRY(comm_open(&w));
    enum err err = load(&conf, path, argc - first, argv + first, w);
    if (err == OK) {
        err = run(&conf, w);
    }
    conf_release(&conf);
    return cmd_leave(w, err);
}
