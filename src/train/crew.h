/* The threads of every rank: a fair share of the cores of its node, unless their number was given. */
#ifndef TRAIN_CREW_H
#define TRAIN_CREW_H

#include "base/buf.h"
#include "comm/comm.h"

struct crew_member; /* what one rank knows of itself */

struct crew {
    struct crew_member *list; /* heap, [ranks] */
    uint32_t ranks;
    uint32_t threads;         /* of this rank */
};

/* Ask every rank for its cores and settle how many threads it runs: `given`, or, when that is 0, the cores it may use,
 * each divided by the ranks of its node that may use it too, at least 1. Ranks need not get equal numbers.
 * Collective. crew_close frees it in any case. */
MUST_USE enum err crew_open(struct crew *c, struct comm_world *w, uint64_t given);
void crew_close(struct crew *c);
/* One line for each run of ranks that are alike: their threads, cores and node. */
MUST_USE enum err crew_describe(const struct crew *c, struct buf *out);
/* Warn, once for the whole job, where the ranks of a node run more threads than they have cores. */
void crew_warn(const struct crew *c);

#endif
