/* A step of a run again, in one process, compared with what the run recorded. */
#ifndef TRAIN_REPLAY_RUN_H
#define TRAIN_REPLAY_RUN_H

#include "base/buf.h"
#include "part/layout.h"
#include "train/metrics.h"
#include "train/rank_record.h"

#define REPLAY_RANK_ALL UINT32_MAX

struct replay_job {
    const char *run; /* its folder */
    uint64_t step;   /* from 1 */
    bool of_ranks;   /* compare what ranks gave to this step; else the states after all steps up to it */
    uint32_t rank;   /* which; or REPLAY_RANK_ALL */
    uint64_t threads; /* of each rank; 0: the cores are shared out */
    int argc;        /* --key value arguments, that go before the configuration of the run: where its files are now */
    char **argv;
};

/* A rank of the run, its place in the layout, and its part of the step. */
struct replay_rank {
    uint32_t rank;
    struct coord at;
    bool found; /* recorded */
    struct contribution now, past;
};

/* What is reported meanwhile; calls come one at a time. */
struct replay_watch {
    /* Goes on from the checkpoint `from` (NULL: the run's fresh start) of step `step`, as `ranks` threads. */
    void (*begin)(void *arg, const char *from, uint64_t step, uint32_t ranks);
    /* The state after a step; past->found: recorded. */
    void (*step)(void *arg, uint64_t step, const struct past_step *now, const struct past_step *past);
    void (*rank)(void *arg, const struct replay_rank *r);
    void *arg;
};
bool replay_step_equal(const struct past_step *now, const struct past_step *past);

/* From the nearest checkpoint before the step, or the run's start. Steps before it are computed whole, as one rank or,
 * to compare ranks, as the ranks of one data-parallel index, which changes no bit; of the step itself a rank then
 * computes what it did in the run. ERR_RUN: bits differ, the message names the first step, or the ranks. ERR_USAGE with
 * an empty message: the configuration is refused, `why` has the reasons. Writes nothing. */
MUST_USE enum err replay_run(const struct replay_job *job, const struct replay_watch *watch, struct buf *why);

#endif
