/* What a run reports: metrics.jsonl (one object per line, flushed) and TensorBoard events. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H

#include "base/err.h"

struct metrics; /* open files of one run */

struct metric {
    const char *name; /* "loss"; TensorBoard tag "train/loss" is made from `group` and name */
    double value;
};

/* Opens RUN/metrics.jsonl for appending and, when wanted, a new RUN/events.out.tfevents.* file. On resume from `step`,
 * lines of metrics.jsonl after that step are dropped (they belong to work that is done again); the file is rewritten
 * aside and renamed. */
MUST_USE enum err metrics_open(struct metrics **out, const char *run_folder, bool tensorboard, uint64_t resumed_step);
void metrics_close(struct metrics *m);
/* One line {"group":...,"step":...,"state_hash":"16 hex"(when not 0), name:value...} with numbers that read back to the
 * same double, and one event. Not finite values are written as null and reported in TensorBoard as NaN. */
MUST_USE enum err metrics_write(struct metrics *m, const char *group, uint64_t step, uint64_t state_hash,
                                const struct metric *list, size_t count);

/* What metrics.jsonl has of a training step. */
struct past_step {
    bool found;
    uint64_t state_hash; /* 0: none */
    double loss;         /* NaN: it was not finite */
};
/* Of steps [first, first + count); *last is the highest step there is, 0: none. ERR_USAGE: there is no such file. */
MUST_USE enum err metrics_read(const char *run_folder, uint64_t first, uint64_t count, struct past_step *steps,
                               uint64_t *last);

#endif
