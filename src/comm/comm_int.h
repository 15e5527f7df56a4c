/* The private seam of comm: what its files share and nobody else includes.
 *
 * comm.c records and publishes a call, then hands it to the engine of the group: solo (groups of one), shm (all ranks
 * on one node: threads, or processes with common memory) or the transport's far engine (groups that span nodes). A
 * transport (threads.c, mpi.c) starts worlds and provides regions of memory that the ranks of a node share.
 *
 * A node has one control block (struct comm_node) with a slot for each rank; a rank's slot has a call slot for each of
 * its groups. Everything others may read while it changes is atomic. Invariants:
 *   - a call slot is written by its own rank only, by one thread at a time (the rule of comm.h for groups);
 *   - sig[number % 2] of a collective is complete before `step` counts its first meeting, and stays until every rank of
 *     the group has arrived at the next collective: each collective begins with a meeting of all its ranks;
 *   - `failure` goes from 0 to 1 (being written) to 2 (readable) once; every wait of every engine checks it. */
#ifndef COMM_COMM_INT_H
#define COMM_COMM_INT_H

#include <stdatomic.h>
#include <stddef.h>

#include "comm/comm.h"

#define COMM_GROUPS_MAX 32u   /* groups of a rank, the world included */
#define COMM_NAME_BYTES 16u   /* of a group's name, in signatures */
#define COMM_PLACE_BYTES 32u  /* of a file's name, without folders, in signatures */
#define COMM_NOTE_BYTES 4096u /* the longest note of a watchdog */
#define COMM_WAIT_NS 2000000  /* the longest sleep between two looks at the failure state */
#define COMM_NOBODY UINT32_MAX

/* ---- signatures ---- */

enum comm_kind {
    KIND_BARRIER, KIND_AGREE, KIND_BCAST, KIND_GATHER, KIND_ALL_REDUCE, KIND_REDUCE_SCATTER, KIND_ALL_GATHER,
    KIND_TREE_SUM, KIND_WINDOW, KIND_SPLIT, KIND_SEND, KIND_SENT, KIND_RECV, KIND_COUNT,
};
enum comm_type { TYPE_NONE, TYPE_BYTE, TYPE_I64, TYPE_F32, TYPE_COUNT };
enum comm_op { OP_NONE, OP_SUM, OP_MAX, OP_COUNT };

/* What one call is. Plain bytes, the same in every process: it goes through shared memory, MPI and the flight record.
 * The words before `file` are the same on all ranks of a collective call. */
struct comm_sig {
    uint64_t number; /* collectives: 1 for the group's first; messages: 1 for the group's first of this rank */
    uint64_t group;  /* id of the group: the same on its ranks, differs between groups of a world */
    uint64_t count;  /* elements of `type` */
    uint64_t shape;  /* hash of what else must agree: bounds, element size, rows and columns; 0 when nothing */
    uint64_t place;  /* hash of file name and line */
    uint32_t line;
    uint32_t root;   /* root; the other rank of a message, within the group; else 0 */
    uint32_t tag;    /* of a message */
    uint8_t kind, type, op, pad;
    char file[COMM_PLACE_BYTES];
    char name[COMM_NAME_BYTES]; /* of the group */
};
#define COMM_SIG_WORDS (sizeof(struct comm_sig) / 8)
#define COMM_SIG_EQUAL_BYTES offsetof(struct comm_sig, file)
_Static_assert(sizeof(struct comm_sig) % 8 == 0, "signatures are copied as words");

/* "#41 all-gather f32 x 1000 (state.c:210) of group tp"; messages: "recv byte x 64 from 1 tag 7 (pipe.c:33) of ..." */
#define COMM_SIG_TEXT 160
void sig_text(const struct comm_sig *sig, char out[COMM_SIG_TEXT]);
/* Whether two ranks make the same collective call. */
bool sig_equal(const struct comm_sig *a, const struct comm_sig *b);

/* ---- the control block of a node ---- */

/* A number that only grows (mod 2^32), on which ranks of the node may sleep. */
struct comm_futex {
    _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

enum comm_call_state { CALL_NONE, CALL_EVEN, CALL_ODD, CALL_MESSAGE }; /* which sig is in flight: value - 1 */

/* A rank's calls on one of its groups. */
struct comm_call_slot {
    _Alignas(64) struct comm_futex step; /* meetings this rank has arrived at */
    _Atomic uint32_t state;             /* enum comm_call_state; CALL_NONE: not in a call of this group */
    _Atomic uint32_t rank, size;        /* of this rank in the group, of the group: set before `group` */
    _Atomic uint64_t group;             /* id; 0: slot not used */
    _Atomic uint64_t calls;             /* collectives begun */
    _Atomic uint64_t messages;          /* sends, sents and receives begun */
    _Alignas(64) _Atomic uint64_t sig[3][COMM_SIG_WORDS]; /* collectives by parity of their number; message */
};

enum comm_presence { RANK_ABSENT, RANK_IN, RANK_LEFT }; /* LEFT: closed its world */

struct comm_rank_slot {
    _Alignas(64) _Atomic int32_t pid;
    _Atomic uint32_t presence;
    _Atomic uint32_t phase, layer;
    _Atomic uint64_t step;
    _Atomic uint64_t watch[8]; /* the watchdog's own words (heartbeats and the like) */
    struct comm_call_slot call[COMM_GROUPS_MAX];
};

struct comm_node {
    _Alignas(64) _Atomic uint32_t failure; /* 0, 1 or 2: see above */
    uint32_t rank;                         /* world rank that failed; these three are set when failure is 2 */
    uint32_t err;
    char message[ERR_MESSAGE_BYTES];       /* without "rank N: " */
    struct comm_rank_slot slot[];          /* by rank within the node */
};

/* A consistent copy of what a rank is doing in one of its groups: false when it is in no call there. */
bool call_slot_read(const struct comm_call_slot *slot, struct comm_sig *out);

/* Record that world rank `rank` failed (COMM_NOBODY: the message names who) and tell other nodes (transport->failed).
 * The first one told to this node wins. message without "rank N: ". By any thread. Returns whether it was the first. */
bool node_fail(struct comm_world *w, uint32_t rank, enum err err, const char *message);
/* The recorded failure as this thread's error: message "rank N: ..." and its code; OK when there is none. */
MUST_USE enum err node_failure(const struct comm_world *w);
/* node_fail, then the failure that was first: never OK. */
MUST_USE enum err node_fail_too(struct comm_world *w, uint32_t rank, enum err err, const char *message);
/* Whether there is one: a load. */
bool node_failed(const struct comm_world *w);

/* ---- shared memory ---- */

/* What another rank of the node needs to map a region: an address for threads; process, descriptor.. for processes.
 * word[0] is never 0. */
struct comm_handle {
    uint64_t word[4];
};
struct comm_region {
    unsigned char *base;
    uint64_t bytes;
    struct comm_handle handle;
};

/* A region that rank `maker` of `via` makes and others of its node map. Collective over via: every rank takes part,
 * those with bytes 0 get none. On an error all get it and nothing is held. */
MUST_USE enum err region_share(struct comm *via, uint32_t maker, uint64_t bytes, struct comm_region *out);

/* Wait until the value is `target` or more: a short spin, a few yields, then sleeps of at most COMM_WAIT_NS. Ends early
 * with the error of a failed rank, and with ERR_PEER when member `whom` of c, who was to post, has left. */
MUST_USE enum err futex_wait(struct comm *c, struct comm_futex *f, uint32_t target, uint32_t whom);
/* For comm_world.spins: how often a wait looks before it gives the core away. Ranks may outnumber the cores. */
uint32_t node_spins(uint32_t node_size);
/* Add 1 and wake who sleeps. */
void futex_post(struct comm_futex *f);

/* ---- engines and transports ---- */

/* One function for each call, on calls that are already checked, recorded and published; NULL: nothing to do (all have
 * close, agree, gather, window and tree_sum). Groups have at least 2 ranks but for the solo engine. The first meeting
 * of a call compares the signatures (c->fresh) before any result is used; a call made of several (split, window) may
 * use more than one function, later ones find c->fresh false. */
struct comm_engine {
    const char *name;
    /* Collective over the new group c, whose members, slots and region are filled in; parent is open, NULL for the
     * world's own group. */
    enum err (*open)(struct comm *c, struct comm *parent);
    void (*close)(struct comm *c); /* not collective, never waits */
    enum err (*barrier)(struct comm *c);
    enum err (*agree)(struct comm *c, enum err mine); /* as comm_agree, the lowest failing rank by group rank */
    enum err (*bcast)(struct comm *c, uint32_t root, void *buf, uint64_t bytes);
    enum err (*gather)(struct comm *c, const void *in, uint64_t bytes, void *out);
    enum err (*sum_i64)(struct comm *c, int64_t *buf, uint64_t n);
    enum err (*max_f32)(struct comm *c, float *buf, uint64_t n);
    enum err (*reduce_scatter_i64)(struct comm *c, int64_t *buf, const uint64_t *bounds);
    enum err (*all_gather)(struct comm *c, void *buf, uint64_t size, const uint64_t *bounds);
    enum err (*window)(struct comm *c, uint64_t bytes); /* sets c->window[own] and window_bytes; more than before */
    enum err (*tree_sum)(struct comm *c, const struct comm_tree *t);
    enum err (*send)(struct comm *c, uint32_t to, uint32_t tag, const void *buf, uint64_t bytes,
                     struct comm_ticket *ticket);
    enum err (*sent)(struct comm *c, struct comm_ticket *ticket);
    enum err (*recv)(struct comm *c, uint32_t from, uint32_t tag, void *buf, uint64_t bytes);
};
extern const struct comm_engine solo_engine, shm_engine;
/* Bytes of the region of a group on one node. */
uint64_t shm_group_bytes(uint32_t size);

struct comm_transport {
    const char *name;
    /* Zeroed memory that other ranks of the node can map by its handle. Not collective. Counted by the caller. */
    enum err (*region_new)(struct comm_world *w, uint64_t bytes, struct comm_region *out);
    /* handle and bytes are given: sets base. */
    enum err (*region_map)(struct comm_world *w, struct comm_region *r);
    /* On the rank that made it, once all that will map it have: what only served to find it may go. */
    void (*region_found)(struct comm_world *w, struct comm_region *r);
    /* Unmap; the memory goes with its last user. */
    void (*region_free)(struct comm_world *w, struct comm_region *r);
    const struct comm_engine *far; /* for groups that span nodes; NULL where there is one node */
    /* Tell other nodes of the failure recorded on this one; may be called by any thread. NULL: one node. */
    void (*failed)(struct comm_world *w);
    /* Seeded disturbance: may delay this thread, and returns for how many nanoseconds a message is to be held back.
     * Called before a rank publishes and after it wakes. NULL: none. */
    uint64_t (*disturb)(struct comm_world *w);
    /* End the whole job now with this exit code, also ranks that are stopped or compute: called by the watchdog's
     * thread, does not return. NULL: the failure in the control block is all there is to say (threads). */
    void (*end_job)(struct comm_world *w, int code);
    /* Notes between watchdogs, which name a late rank of another node: put gives one of at most COMM_NOTE_BYTES to
     * world rank `to` and never waits (it may be lost); take fetches one that came for this rank, false when there is
     * none. Called by the watchdog's thread only. NULL: one node. */
    void (*note_put)(struct comm_world *w, uint32_t to, const void *note, uint32_t bytes);
    bool (*note_take)(struct comm_world *w, uint32_t *from, void *note, uint32_t *bytes);
    /* The last act of comm_close: groups are closed already; frees the world (threads: only marks it). */
    void (*close)(struct comm_world *w, enum err err);
};

/* Recorder and watchdog, from comm_watch on (watchdog.c defines comm_watch and sets comm_world.watch). */
struct comm_watch_ops {
    /* Before a call is published; what it returns is given to end. Called by the thread that makes the call. */
    uint64_t (*begin)(struct comm *c, const struct comm_sig *sig);
    void (*end)(struct comm *c, uint64_t record, enum err err);
    void (*phase)(struct comm_world *w, enum comm_phase phase, uint64_t step, uint32_t layer);
    /* By comm_close, after others are told of an error and before anything is freed: ends the thread. */
    void (*close)(struct comm_world *w, enum err err);
};

/* ---- groups and worlds ---- */

struct comm {
    struct comm_world *world;
    const char *name;
    uint64_t id;
    uint32_t rank, size;
    uint32_t *member;                 /* world rank of each */
    struct comm_call_slot **peer;     /* call slot of each, NULL on other nodes */
    struct comm_call_slot *own;       /* = peer[rank] */
    const struct comm_engine *engine;
    void *state;                      /* the engine's */
    struct comm_region region;        /* the shared part of a group on one node; bytes 0: not its own, or none */
    bool opened;                      /* by the engine */
    uint64_t calls, messages, splits; /* made so far; the slot has copies */
    struct comm_sig sig;              /* of the call in progress; once for each group, as one thread uses it */
    bool fresh;                       /* its signatures are not compared yet */
    bool recorded;                    /* it is in the flight record, as number .. */
    uint64_t record;
    uint64_t begin;                   /* of the call in progress, in the profile */
    void **window;                    /* of each member that this rank can read; own one at [rank]; NULL: none yet */
    uint64_t window_bytes;
    struct comm *_Atomic next;        /* world->groups: only ever prepended to */
};

struct comm_world {
    uint32_t rank, size;
    uint32_t node, nodes, node_size, node_rank;
    uint32_t spins; /* set by world_new */
    const uint32_t *node_of, *node_rank_of; /* by world rank; the transport's, live as long as the world */
    struct comm_node *ctl;
    struct comm_rank_slot *slot; /* own */
    const struct comm_transport *transport;
    void *transport_state;
    struct comm *all;
    struct comm *_Atomic groups;
    _Atomic uint32_t group_count; /* call slots taken */
    _Atomic uint64_t memory_bytes;
    _Atomic uint64_t agreed; /* error_hash of what the last call, a comm_agree, gave all ranks; else 0 */
    const struct comm_watch_ops *_Atomic watch;
    void *watch_state;
    struct profile *profile; /* where calls and phases are recorded; NULL: nowhere */
    uint64_t phase_begin;    /* of the phase in progress, for it */
    uint32_t phase, layer;
};

/* Bytes of the region a transport gives to world_new: control block, and the `all` group's shared part when the world
 * has one node. Must be zeroed, and common to the ranks of the node. */
uint64_t world_region_bytes(uint32_t node_size, uint32_t nodes);
/* A world of this rank, its `all` group opened: collective over the job for nodes > 1 (far->open). rank .. transport
 * and transport_state of `def` are set by the caller, ctl = the region above; the rest is zero. */
MUST_USE enum err world_new(struct comm_world **out, const struct comm_world *def);
/* Frees groups and world, not the region: for transport->close. */
void world_free(struct comm_world *w);

/* An error and this thread's message as one number, not 0. */
uint64_t error_hash(enum err err);

/* What every comm_*_at does: sig's kind, type, op, root, tag, count, shape are set; the rest is filled in. */
MUST_USE enum err call_begin(struct comm *c, const struct comm_sig *what, struct comm_site site);
/* Ends the call and returns err. Groups of one are not recorded. */
enum err call_end(struct comm *c, enum err err);

/* Signatures of all ranks of c, by group rank, differ: records ERR_PEER naming ranks and calls and returns it. */
enum err call_mismatch(struct comm *c, const struct comm_sig *sigs);

/* The arithmetic of comm_tree_sum: rows [lo, hi) of the operands part[0 .. parts), rows of t->cols elements, to row
 * i - first of t->out and t->residual. Balanced tree over parts (a power of two); out may be a part. */
struct tree_rows {
    const float *const *part;
    uint32_t parts;
    uint64_t lo, hi, first;
};
void tree_sum_rows(const struct comm_tree *t, const struct tree_rows *rows);

/* mpi.c: a world of the job that an MPI launcher started. Collective over the job. */
struct launch;
MUST_USE enum err mpi_world_open(struct comm_world **out, const struct launch *launch);

#endif
