/* The ranks of a job as threads of this process, for `invar verify` and `invar replay`: nothing is written. */
#ifndef TRAIN_THREAD_RANKS_H
#define TRAIN_THREAD_RANKS_H

#include "train/trainer.h"

/* --key value arguments for conf_load; heap. */
struct arguments {
    char **list;
    int count;
    size_t capacity;
};
void arguments_release(struct arguments *a);
/* A copy of what a user gave. */
MUST_USE enum err arguments_copy(struct arguments *a, int argc, char *const *argv);
/* --key value in the place of what was given for that key. */
MUST_USE enum err arguments_set(struct arguments *a, const char *key, const char *value);
bool arguments_have(const struct arguments *a, const char *key);
/* Any number of ranks will do; the global batch is this one (0: as it was given). */
MUST_USE enum err arguments_free_ranks(struct arguments *a, uint64_t global_batch);

struct thread_job {
    const char *path; /* configuration file; NULL: none */
    const struct arguments *arguments;
    uint32_t world;   /* ranks */
    uint64_t seed;    /* of their delays; 0: none */
    struct trace *traces; /* [world] zeroed; the caller closes them in any case. NULL: none */
    enum err (*work)(void *arg, struct trainer *t); /* of each rank, in its thread. Collective over the ranks */
    void *arg;
    struct buf *why;  /* receives the errors of the configuration, one a line */
};

/* Open a trainer on every rank, work, close. The error of the lowest rank that failed; ERR_USAGE with an empty message:
 * the configuration is refused, `why` has the reasons. */
MUST_USE enum err thread_ranks_run(const struct thread_job *j);

#endif
