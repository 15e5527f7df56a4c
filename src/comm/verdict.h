/* Who is late, and who waits for whom: what the control block of a node tells about its ranks at one moment. */
#ifndef COMM_VERDICT_H
#define COMM_VERDICT_H

#include "base/buf.h"
#include "comm/comm_int.h"
#include "comm/process.h"
#include "comm/recorder.h"

#define VIEW_CALLS 8u /* calls a rank is in at once, one for each of its threads: more are not looked at */

struct view_call {
    struct comm_sig sig;
    uint32_t slot; /* of the group, among the rank's */
    uint32_t step; /* meetings arrived at */
    uint32_t group_rank, group_size;
};

/* One rank at that moment. */
struct rank_view {
    uint32_t rank; /* in the world */
    bool left;     /* closed its world */
    bool remote;   /* of another node, by that node's account .. */
    bool silent;   /* .. or without: it gives no answer */
    char host[RECORDER_HOST_BYTES]; /* of a remote one */
    enum comm_phase phase;
    uint32_t layer;
    uint64_t step;
    struct process process;
    bool main_waits; /* the thread that follows the phases is in a call */
    uint32_t calls;
    struct view_call call[VIEW_CALLS];
    bool has_last; /* the last call on any group that it made, when in none */
    struct comm_sig last;
};

struct verdict {
    const struct comm_world *world;
    struct rank_view *view; /* ranks of this node, by rank within it, then ranks other nodes told of */
    uint32_t count, room;   /* of this node; of view */
    uint32_t remotes;       /* told of by other nodes */
    bool *waits;            /* [i * count + j]: i waits for j, both of this node */
    bool *far;              /* [i]: i waits for a rank of another node */
    bool *reached;          /* [i]: the one that asks waits for i, through others perhaps */
    bool *late;             /* by place in view: who is to blame */
    bool far_late;          /* somebody of another node is, but not who */
    bool cycle;             /* those that are late wait for each other */
};

/* Look at all ranks of the node; pidfd by rank within the node (-1: none), NULL for threads. `remotes`: places for
 * ranks of other nodes. Not collective. */
MUST_USE enum err verdict_take(struct verdict *v, const struct comm_world *w, const int *pidfd, uint32_t remotes);
void verdict_release(struct verdict *v);

/* Mark who keeps rank `from` (within the node) waiting, through as many other waits as it takes: ranks that are gone or
 * stopped, else ranks that wait for nobody, else ranks whose main thread computes, else, when all wait for each other,
 * those that most wait for. */
void verdict_blame(struct verdict *v, uint32_t from);
/* Whether anybody is marked. */
bool verdict_blames(const struct verdict *v);
/* Mark a rank of this node, or one of another node, which is added when there is room. */
void verdict_blame_one(struct verdict *v, uint32_t place);
void verdict_blame_remote(struct verdict *v, const struct rank_view *r);
/* Whether it ended or is stopped. */
bool view_broken(const struct rank_view *r);
/* Whether rank i of the node has begun call `number` of a group. */
bool verdict_has_begun(const struct verdict *v, uint32_t i, uint64_t group, uint64_t number);

/* The one line of it, with the hint behind " | ": "rank 3 is late: ... ; ranks 0-2 wait in ...". waited_s: how long;
 * below 0: not known. */
MUST_USE enum err verdict_text(struct buf *out, const struct verdict *v, double waited_s);
/* "in forward of layer 5, step 17 (process 1234 is stopped)". */
MUST_USE enum err view_text(struct buf *out, const struct rank_view *r);

/* The watchdog's words in a rank's slot. */
enum watch_word {
    WORD_CLAIM,     /* of the node's first rank: 1 + world rank that reports; 0: nobody yet */
    WORD_MAIN_CALL, /* calls the main thread is in: 0 or 1 */
    WORD_LAST,      /* 1 + call slot of the last call */
};

#endif
