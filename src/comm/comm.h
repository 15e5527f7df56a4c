/* Communication between ranks, in canonical order or on integers, so that no result depends on who arrives first.
 *
 * A rank is a `struct comm_world`; a group of ranks as one rank sees it is a `struct comm`. The ranks of a world are
 * the processes mpirun or srun started (comm_open), threads of this process (comm_threads_new: tests, `invar verify`),
 * or this process alone. Ranks of one node talk through shared memory; groups that span nodes through MPI.
 *
 * Every function below marked "collective" must be called by all ranks of its group in the same order, from the same
 * line of the source, with the same arguments but for buffers. Each call is written into the rank's flight record, and
 * its signature (place, kind, type, operation, root, count, bounds) is compared between the ranks before a result is
 * used: a difference is ERR_PEER on every rank, naming the ranks and both calls. The line is part of it because a rank
 * that leaves out one of two equal calls is seen by nothing else. When a rank has failed (comm_fail, comm_close with an
 * error) or died, every waiting and coming call of the others returns that rank's error with its message; when it has
 * left in peace, a call that waits for it is ERR_PEER. From comm_watch on no call waits for ever: one that takes longer
 * than the time limit ends the job (watchdog.h).
 *
 * Calls on one group come from one thread at a time; different groups of a world may be used by different threads. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/profile.h"

struct comm_world;
struct comm;

/* Where a call stands in the source: passed by the macros below. */
struct comm_site {
    const char *file;
    int line;
};
#define COMM_HERE ((struct comm_site){ __FILE__, __LINE__ })

/* ---- a world ---- */

/* Join the job this process was started for: MPI when an MPI launcher started it (its environment says so), else a
 * world of one without any MPI call. Collective over the job. On an error the message is empty on all ranks but the
 * first. */
MUST_USE enum err comm_open(struct comm_world **out);
/* ERR_USAGE when a launcher started this process as one of several; `what` is a command that knows no ranks. The
 * message is empty on all ranks but the first. Not collective. */
MUST_USE enum err comm_alone(const char *what);
/* Leave. `err` is how this rank's work ended; when it is not OK and was not agreed upon, the others are told first
 * (comm_fail). Never hangs: what does not come in time is left behind. */
void comm_close(struct comm_world *w, enum err err);

/* Threads as ranks: `size` worlds of one process. seed 0: no disturbance; else every rank is delayed and messages are
 * reordered by a sequence that the seed decides. Each world is used by its own thread; comm_threads_free after all of
 * them are done. */
struct comm_threads;
MUST_USE enum err comm_threads_new(struct comm_threads **out, uint32_t size, uint64_t seed);
struct comm_world *comm_threads_world(struct comm_threads *t, uint32_t rank);
void comm_threads_free(struct comm_threads *t);

/* All ranks. */
struct comm *comm_all(struct comm_world *w);
uint32_t comm_rank(const struct comm *c);
uint32_t comm_size(const struct comm *c);
const char *comm_name(const struct comm *c);
/* Ranks of this node in the world, the number of this node and of all: for messages and node alignment. */
uint32_t comm_node_size(const struct comm_world *w);
uint32_t comm_node(const struct comm_world *w);
uint32_t comm_nodes(const struct comm_world *w);

/* The ranks of `parent` with the same colour, ordered by their rank in parent. `name` ("tp") is for messages and must
 * outlive the group. Collective over parent. Groups live until comm_close (or comm_threads_free). */
#define comm_split(parent, color, name, out) comm_split_at((parent), (color), (name), (out), COMM_HERE)

/* Start the flight recorder (recorder.h) in FOLDER/rank-N.ring and the watchdog (watchdog.h) with a time limit in
 * seconds. Not collective. Until then nothing is recorded in a file and nothing is timed. */
MUST_USE enum err comm_watch(struct comm_world *w, const char *folder, double timeout_s);

/* What this rank is doing, for the record and for diagnosis: a few stores, no lock, no call to the system. */
enum comm_phase {
    PHASE_START, PHASE_DATA, PHASE_FORWARD, PHASE_BACKWARD, PHASE_REDUCE, PHASE_UPDATE, PHASE_EVAL, PHASE_SAVE,
    PHASE_LOAD, PHASE_COUNT,
};
void comm_phase(struct comm_world *w, enum comm_phase phase, uint64_t step, uint32_t layer);

/* Calls of every group (of more than one rank) are recorded in `profile` on the row of the group, phases on the row
 * "phase"; NULL: no longer. Not while a call is in progress. */
void comm_set_profile(struct comm_world *w, struct profile *profile);

/* ---- errors ---- */

/* Tell every rank that this one failed with its err_message(): their waiting and coming calls return `err` with that
 * message and this rank's number. The first one told wins. Not collective; returns err. */
enum err comm_fail(struct comm_world *w, enum err err);
/* All ranks get the error of the lowest failing rank, with its message (the others with "rank N: " in front); OK when
 * none failed. The job may go on after an error. Collective. */
#define comm_agree(c, mine) comm_agree_at((c), (mine), COMM_HERE)

/* ---- small collectives ---- */

#define comm_barrier(c) comm_barrier_at((c), COMM_HERE)
/* Rank root's `bytes` bytes to all. Collective. */
#define comm_bcast(c, root, buf, bytes) comm_bcast_at((c), (root), (buf), (bytes), COMM_HERE)
/* out[i * bytes ..] = what rank i gave; `in` may be its own place in out. Collective. */
#define comm_gather(c, in, bytes, out) comm_gather_at((c), (in), (bytes), (out), COMM_HERE)
/* buf[i] = sum over ranks, mod 2^64. Collective. Any length. */
#define comm_sum_i64(c, buf, n) comm_sum_i64_at((c), (buf), (n), COMM_HERE)
/* buf[i] = the largest over ranks; what happens to NaN is not promised. Collective. */
#define comm_max_f32(c, buf, n) comm_max_f32_at((c), (buf), (n), COMM_HERE)

/* ---- large collectives ---- */

/* buf[bounds[r] .. bounds[r + 1]) becomes, on rank r, the sum over ranks of that stretch (mod 2^64); the rest of buf is
 * unspecified afterwards. bounds has size + 1 ascending entries. Collective. */
#define comm_reduce_scatter_i64(c, buf, bounds) comm_reduce_scatter_i64_at((c), (buf), (bounds), COMM_HERE)
/* Stretch r of buf, which rank r holds, on every rank. Elements of `size` bytes. Collective. */
#define comm_all_gather(c, buf, size, bounds) comm_all_gather_at((c), (buf), (size), (bounds), COMM_HERE)

/* This rank's operand of comm_tree_sum, at least `bytes` bytes, aligned to 64: a product writes its partial sums there
 * and no copy is made. One window for each group; a larger request enlarges it, a smaller one returns it as it is (so
 * call it while laying out memory). Collective; the same `bytes` on every rank. */
#define comm_window(c, bytes, out) comm_window_at((c), (bytes), (out), COMM_HERE)

/* out[(i - first) * ldo + j] = residual[(i - first) * ldo + j] + (sum + bias[j]), absent parts left out, where sum is
 * the balanced tree over ranks ((0 + 1) + (2 + 3)) + ... of window[i * cols + j] (the size is a power of two), for this
 * rank's rows i in [bounds[r], bounds[r + 1]), first = bounds[r]; with bounds NULL for all rows on every rank, first =
 * 0. `out` may be residual; neither may be in a window. When it returns, this rank's window may be written again. fp32
 * in the mode of base/pool.h. Collective. */
struct comm_tree {
    uint64_t rows, cols;
    const uint64_t *bounds;
    const float *bias, *residual;
    float *out;
    uint64_t ldo;
};
#define comm_tree_sum(c, ...) comm_tree_sum_at((c), __VA_ARGS__, COMM_HERE) /* takes a compound literal, too */

/* ---- messages ---- */

#define COMM_MESSAGES_MAX 64u
/* A message to another rank `to` of the group. Returns at once, unless COMM_MESSAGES_MAX messages of this rank to that
 * one have not been received yet: then it waits for one of them, so that a stage that runs ahead does not fill the
 * memory. `buf` must stay as it is until comm_sent of the same ticket. Messages of one pair with one tag arrive in
 * order. The receiver must ask for the same number of bytes: else ERR_PEER on both. Not collective. */
struct comm_ticket {
    void *state;
};
#define comm_send(c, to, tag, buf, bytes, ticket) comm_send_at((c), (to), (tag), (buf), (bytes), (ticket), COMM_HERE)
/* Wait until the buffer of a send may be written again (at once for a ticket that is zero). */
#define comm_sent(c, ticket) comm_sent_at((c), (ticket), COMM_HERE)
#define comm_recv(c, from, tag, buf, bytes) comm_recv_at((c), (from), (tag), (buf), (bytes), COMM_HERE)

/* Bytes of shared memory and buffers that this rank's groups hold: part of the memory plan. */
uint64_t comm_memory_bytes(const struct comm_world *w);

/* What the macros call: groups and small collectives .. */
MUST_USE enum err comm_split_at(struct comm *parent, uint32_t color, const char *name, struct comm **out,
                                struct comm_site site);
MUST_USE enum err comm_agree_at(struct comm *c, enum err mine, struct comm_site site);
MUST_USE enum err comm_barrier_at(struct comm *c, struct comm_site site);
MUST_USE enum err comm_bcast_at(struct comm *c, uint32_t root, void *buf, uint64_t bytes, struct comm_site site);
MUST_USE enum err comm_gather_at(struct comm *c, const void *in, uint64_t bytes, void *out, struct comm_site site);
MUST_USE enum err comm_sum_i64_at(struct comm *c, int64_t *buf, uint64_t n, struct comm_site site);
MUST_USE enum err comm_max_f32_at(struct comm *c, float *buf, uint64_t n, struct comm_site site);
/* .. large collectives .. */
MUST_USE enum err comm_reduce_scatter_i64_at(struct comm *c, int64_t *buf, const uint64_t *bounds,
                                             struct comm_site site);
MUST_USE enum err comm_all_gather_at(struct comm *c, void *buf, uint64_t size, const uint64_t *bounds,
                                     struct comm_site site);
MUST_USE enum err comm_window_at(struct comm *c, uint64_t bytes, void **out, struct comm_site site);
MUST_USE enum err comm_tree_sum_at(struct comm *c, const struct comm_tree *t, struct comm_site site);
/* .. and messages. */
MUST_USE enum err comm_send_at(struct comm *c, uint32_t to, uint32_t tag, const void *buf, uint64_t bytes,
                               struct comm_ticket *ticket, struct comm_site site);
MUST_USE enum err comm_sent_at(struct comm *c, struct comm_ticket *ticket, struct comm_site site);
MUST_USE enum err comm_recv_at(struct comm *c, uint32_t from, uint32_t tag, void *buf, uint64_t bytes,
                               struct comm_site site);

#endif
