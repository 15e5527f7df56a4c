/* Inside the engine of groups that span nodes: how its files wait and meet.
 *
 * Every collective begins with a meeting: each rank's signature, and up to MEET_DATA bytes with it, reach all ranks in
 * log2(size) rounds. What is larger then goes directly between pairs, whose stretches both ends know. Messages of a
 * pair with one tag arrive in order, and both ends go through them in the same order, so a tag for meetings and one
 * for data are enough. */
#ifndef COMM_MPI_FAR_H
#define COMM_MPI_FAR_H

#include "comm/mpi_int.h"

#define MEET_DATA 152u

enum { TAG_MEET, TAG_DATA, TAG_MESSAGE }; /* TAG_MESSAGE + the caller's tag */

struct meet_card {
    struct comm_sig sig;
    unsigned char data[MEET_DATA];
};

/* Messages on their way: receives first. */
struct exchange {
    struct link_request *request; /* room for 2 * (size - 1) */
    uint32_t receives, count;
};

struct far_send;

struct far {
    struct link *link;
    struct meet_card *card;   /* of the last meeting, [i]: of rank + i */
    struct comm_sig *sigs;    /* the same signatures by rank, when they differ */
    struct exchange x[2];
    const void **part;        /* operands by rank */
    uint64_t *bounds;         /* scratch, size + 1 */
    unsigned char *staging;   /* of operands that came, grown to what is needed */
    uint64_t staging_bytes;
    struct comm_sig header;   /* of the message that is being received */
    pthread_mutex_t sending;  /* held by who looks at .. */
    struct far_send *sends;   /* all that were ever made */
};

static inline struct far *far_of(const struct comm *c)
{
    return c->state;
}

/* Post a message of the exchange: all receives before all sends. Errors are told to all ranks. */
MUST_USE enum err far_post_recv(struct comm *c, struct exchange *x, uint32_t from, uint32_t tag, void *buf,
                                uint64_t bytes);
MUST_USE enum err far_post_send(struct comm *c, struct exchange *x, uint32_t to, uint32_t tag, const void *buf,
                                uint64_t bytes);
/* Wait for all of it, and empty it. When a rank has failed: its error; receives are taken back as far as they can
 * be. */
MUST_USE enum err far_wait(struct comm *c, struct exchange *x);

/* Meet; data: at most MEET_DATA bytes. The first time in a call also compare signatures. */
MUST_USE enum err far_meet(struct comm *c, const void *data, uint64_t bytes);
/* What `rank` gave to the last meeting. */
const void *far_card(const struct comm *c, uint32_t rank);

/* The large collectives, as struct comm_engine says, but for the meeting. max_f32: element by element, in rank
 * order. */
enum err far_reduce_scatter_i64(struct comm *c, int64_t *buf, const uint64_t *bounds);
enum err far_reduce_scatter_max(struct comm *c, float *buf, const uint64_t *bounds);
enum err far_all_gather(struct comm *c, void *buf, uint64_t size, const uint64_t *bounds);
enum err far_tree_sum(struct comm *c, const struct comm_tree *t);

/* Messages, as struct comm_engine says. */
enum err far_send(struct comm *c, uint32_t to, uint32_t tag, const void *buf, uint64_t bytes,
                  struct comm_ticket *ticket);
enum err far_recv(struct comm *c, uint32_t from, uint32_t tag, void *buf, uint64_t bytes);
/* Whether something is still on its way, or just being sent. By the pump. */
bool far_sends_fly(struct comm *c);
/* Free the memory of all sends; all ranks have received what was sent. */
void far_sends_free(struct far *f);

#endif
