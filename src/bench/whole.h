/* Whole training steps on random tokens: nothing is kept of them. */
#ifndef BENCH_WHOLE_H
#define BENCH_WHOLE_H

#include "comm/comm.h"
#include "conf/conf.h"

struct whole {
    uint64_t tokens;  /* of a step, over all ranks */
    uint32_t steps;   /* that were timed: the one before them warmed up */
    double best_s, mean_s;
    uint64_t planned_bytes, peak_bytes; /* of this rank's process */
};

/* Steps of the job that `c` describes for about `seconds`, at least `least` of them. data_path of `c` is replaced by
 * random tokens, in a temporary folder that is gone when the first step begins. Collective over all ranks. */
MUST_USE enum err whole_measure(struct whole *w, struct conf *c, struct comm_world *world, uint32_t least,
                                double seconds);

#endif
