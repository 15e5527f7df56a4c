/* The state of a rank's watchdog, shared by watchdog.c (its looks and its report) and watch_notes.c (what it asks and
 * tells those of other nodes). */
#ifndef COMM_WATCHDOG_INT_H
#define COMM_WATCHDOG_INT_H

#include <poll.h>
#include <pthread.h>

#include "comm/exit_record.h"
#include "comm/recorder.h"
#include "comm/watchdog.h"

#define WATCH_ROUNDS 2u
#define WATCH_ANSWERS 4u /* late ranks of other nodes that are told of */

/* A wait of this rank in one of its groups. */
struct wait {
    _Atomic uint64_t record; /* number of the open call's record; 0: none */
    uint64_t seen;           /* by the thread: the record whose time is counted .. */
    uint64_t since_ns;       /* .. from this, of watchdog.clock_ns */
};

/* What other nodes said about a wait of this rank. They are asked in two rounds: early, so that a busy machine has time
 * to answer, and once more for what is true when the limit runs out. */
struct inquiry {
    uint64_t record;     /* of the wait that was asked about last; 0: none was */
    uint32_t round;      /* the last one asked */
    unsigned char *said; /* enum said, by world rank; of both rounds */
    struct rank_view late[WATCH_ROUNDS][WATCH_ANSWERS];
    uint32_t lates[WATCH_ROUNDS];
    uint64_t *passed_on_ns; /* of clock_ns, by who asks: when a question of theirs was last passed on; 0: never */
};
enum said { SAID_NOT_ASKED, SAID_NOTHING, SAID_SOMETHING };

struct watchdog {
    struct comm_world *world;
    struct recorder *recorder;
    char *folder;
    uint64_t limit_ns;
    pthread_t main; /* the thread that called comm_watch: it follows the phases */
    pthread_t thread;
    bool started, threads; /* threads: the ranks are threads of this process */
    int stop;              /* an eventfd */
    char host[RECORDER_HOST_BYTES];
    struct wait wait[COMM_GROUPS_MAX];
    /* The thread's own: */
    uint64_t clock_ns, looked_ns;
    uint64_t doomed_ns;  /* of clock_ns, when it was first seen that the job ends; 0: it does not */
    int *pidfd;          /* by rank within the node; -1: none */
    uint64_t *ended_ns;  /* .. of clock_ns, when it was seen to have ended; 0: not */
    struct pollfd *poll; /* [0] is stop */
    struct inquiry asked;
    uint32_t nodes_written; /* that wrote exit records for this rank's report */
};

/* ---- watchdog.c ---- */

/* Take the report of this node: false when another rank has it. */
bool watch_claim(struct watchdog *d);
/* Another node reports: take over the report of this one, also from a rank that claimed it when `over`. False: what
 * this node reports is said already, or stands. */
bool watch_take_over(struct watchdog *d, bool over);
/* An exit record for each rank of the node that has not left, those to blame first: the others may be killed soon. */
void watch_write_records(struct watchdog *d, const struct verdict *v, const char *message);

/* ---- watch_notes.c: worlds of several nodes ---- */

/* Read what came, and answer. */
void notes_read(struct watchdog *d);
/* The wait in call slot `slot` leads to other nodes: ask the ranks there. v is blamed from this rank. */
void notes_ask(struct watchdog *d, uint32_t slot, uint32_t round, const struct verdict *v);
/* Put into v whom the answers blame: who is late, or does not answer. */
void notes_conclude(struct watchdog *d, struct verdict *v);
/* Tell other nodes that this one reports `message`. give_way: hear whether one of them does, too, and takes over. */
void notes_tell(struct watchdog *d, const struct verdict *v, const char *message, bool give_way);
/* Wait for a moment until the other nodes have written their exit records. */
void notes_wait(struct watchdog *d);

#endif
