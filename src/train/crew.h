/* The threads of every rank: a fair share of the cores of its node, unless their number was given; and which cores they
 * stay on. */
#ifndef TRAIN_CREW_H
#define TRAIN_CREW_H

#include "base/buf.h"
#include "base/pool.h"
#include "base/topology.h"
#include "comm/comm.h"
#include "conf/conf.h"

/* What ranks tell each other. */
struct crew_member {
    struct cores mine;  /* the affinity mask: hardware threads */
    struct cores whole; /* the cores these belong to */
    struct cores got;   /* a hardware thread for each of its threads; none: they are not bound */
    uint32_t node, quota, given, threads;
    bool bind; /* if possible */
};

struct crew {
    struct crew_member *list; /* heap, [ranks] */
    uint32_t ranks;
    uint32_t threads;         /* of this rank */
    struct pool_place place;  /* of this rank */
};

/* Ask every rank for its cores and settle how many threads it runs: `threads` of the configuration, or, when that is 0,
 * the cores it may use, each divided by the ranks of its node that may use it too, at least 1. Ranks need not get equal
 * numbers. Collective. crew_close frees it in any case. */
MUST_USE enum err crew_open(struct crew *c, struct comm_world *w, const struct conf *conf);
void crew_close(struct crew *c);
/* The threads of this rank, on their cores. Not collective. */
MUST_USE enum err crew_pool(const struct crew *c, struct pool **out);
/* Settle threads and cores of members that are all of one node. Threads are bound
 * where the node's cores are theirs: all cores are used but the rest of a division, none twice, and no quota counts. */
MUST_USE enum err crew_settle(struct crew_member *list, uint32_t count, const struct topology *t);
/* One line for each run of ranks that are alike: their threads, cores and node. */
MUST_USE enum err crew_describe(const struct crew *c, struct buf *out);
/* Warn, once for the whole job, where the ranks of a node run more threads than they have cores. */
void crew_warn(const struct crew *c);

#endif
