/* invar replay: a step of a run again, compared with what the run recorded. */
#include "cmd/cmd.h"
#include "base/pool.h"
#include "train/replay_run.h"

static const char usage[] =
    "usage: invar replay RUN --step N [--rank R|all] [--threads N] [--key value ...]\n"
    "\n"
    "Compute a step of a run again in this process, from the nearest checkpoint before it, and compare every step\n"
    "on the way with the record, bit by bit. RUN is the output_dir of a run of any number of ranks; nothing is\n"
    "written to it. Exit code 1 when something differs; the first differing step is named. A checkpoint holds what\n"
    "the run had computed by then: when steps before it are in doubt, replay them, too.\n"
    "\n"
    "  --step N                the step\n"
    "  --rank R                compare what rank R gave to the step before ranks were added up: loss, tokens and,\n"
    "                          where the run had gradient_hashes, a checksum of its gradients. The ranks of R's\n"
    "                          data-parallel index become threads, with the memory that they had.\n"
    "                          all: every rank, one data-parallel index after the other\n"
    "  --threads N             threads of each rank (the cores, shared out)\n"
    "  --key value             any key of the configuration that has to be another one here, such as data_path\n"
    "\n"
    "example: invar replay runs/demo --step 120 --rank all\n";

static enum err parse_rank(const char *text, struct replay_job *job)
{
    uint64_t rank;
    job->of_ranks = true;
    job->rank = REPLAY_RANK_ALL;
    if (strcmp(text, "all") != 0) {
        TRY(cmd_whole("--rank", text, 0, REPLAY_RANK_ALL - 1, &rank));
        job->rank = (uint32_t)rank;
    }
    return OK;
}

static enum err parse(int argc, char **argv, struct replay_job *job)
{
    *job = (struct replay_job){ 0 };
    if (argc < 2 || strncmp(argv[1], "--", 2) == 0) {
        return FAIL(ERR_USAGE, "no run is given | start with: invar replay RUN --step N");
    }
    job->run = argv[1];
    job->argv = argv + 2;
    for (int i = 2; i < argc; i++) {
        const char *value = cmd_value(argc, argv, &i, "--step");
        if (value != NULL) {
            TRY(cmd_whole("--step", value, 1, (uint64_t)1 << 40, &job->step));
        } else if ((value = cmd_value(argc, argv, &i, "--rank")) != NULL) {
            TRY(parse_rank(value, job));
        } else if ((value = cmd_value(argc, argv, &i, "--threads")) != NULL) {
            TRY(cmd_whole("--threads", value, 1, POOL_THREADS_MAX, &job->threads));
        } else {
            job->argv[job->argc++] = argv[i];
        }
    }
    return job->step > 0 ? OK : FAIL(ERR_USAGE, "--step: which step of %s? | invar replay RUN --step N", job->run);
}

/* ---- printing ---- */

static void print_begin(void *arg, const char *from, uint64_t step, uint32_t ranks)
{
    (void)arg;
    printf("from %s%s%llu%s as %u %s\n", from != NULL ? from : "a fresh start", from != NULL ? " (step " : ", step ",
           (unsigned long long)step, from != NULL ? ")" : "", ranks, ranks == 1 ? "rank" : "ranks");
    fflush(stdout);
}

static void print_step(void *arg, uint64_t step, const struct past_step *now, const struct past_step *past)
{
    (void)arg;
    bool equal = replay_step_equal(now, past);
    printf("step %-6llu %-12s %016llx", (unsigned long long)step,
           !past->found ? "not recorded" : equal ? "equal" : "DIFFERENT", (unsigned long long)now->state_hash);
    if (now->loss == now->loss) {
        printf("  loss %.9g", now->loss);
    }
    if (past->found && !equal) {
        printf(", recorded %016llx  loss %.9g", (unsigned long long)past->state_hash, past->loss);
    }
    printf("\n");
    fflush(stdout);
}

static void print_contribution(const struct contribution *c)
{
    printf("loss sum %lld  tokens %llu  gradient ", (long long)c->loss, (unsigned long long)c->tokens);
    if (c->hashed) {
        printf("%016llx", (unsigned long long)c->gradient);
    } else {
        printf("not recorded");
    }
}

static void print_rank(void *arg, const struct replay_rank *r)
{
    (void)arg;
    bool equal = contribution_equal(&r->now, &r->past);
    printf("rank %-6u %-12s pp %u dp %u cp %u tp %u  ", r->rank,
           !r->found ? "not recorded" : equal ? "equal" : "DIFFERENT", r->at.pp, r->at.dp, r->at.cp, r->at.tp);
    print_contribution(&r->now);
    if (r->found && !equal) {
        printf(", recorded ");
        print_contribution(&r->past);
    }
    printf("\n");
}

static enum err run(const struct replay_job *job)
{
    const struct replay_watch watch = { .begin = print_begin, .step = print_step, .rank = print_rank };
    struct buf why = { 0 };
    enum err err = replay_run(job, &watch, &why);
    if (why.bytes > 0) {
        fputs(why.data, stderr);
    }
    buf_release(&why);
    return err;
}

enum err cmd_replay(int argc, char **argv)
{
    struct replay_job job;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return OK;
        }
    }
    TRY(parse(argc, argv, &job));
    return run(&job);
}
