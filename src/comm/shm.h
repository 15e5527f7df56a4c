/* Inside the shared-memory engine: how its files meet and stage. The region of a group holds a staging area of two
 * halves for each rank, then a channel of messages for each ordered pair of ranks.
 *
 * A stage is: write the own half, meet, read the halves of others, shm_next. Stages use the halves in turn, so a half
 * is written again only after a meeting that all ranks came to when they had read it. */
#ifndef COMM_SHM_H
#define COMM_SHM_H

#include "comm/comm_int.h"

/* Two halves of a rank fit a core's second-level cache, and meetings are rare beside copying. */
#define SHM_HALF ((uint64_t)256 << 10)

struct mail;

struct shm {
    uint64_t stage;
    uint64_t *bounds; /* scratch, size + 1 */
    struct comm_region window;
    struct mail *mail;
};

/* A rank of threads with a seed may stop here for a while; the result is as of comm_transport.disturb. */
static inline uint64_t shm_disturb(const struct comm *c)
{
    const struct comm_transport *t = c->world->transport;
    return t->disturb != NULL ? t->disturb(c->world) : 0;
}

/* Arrive and wait until all ranks of the group have; the first time in a call also compare signatures. */
MUST_USE enum err shm_meet(struct comm *c);
/* The half of `member` in the present stage. */
unsigned char *shm_half(const struct comm *c, uint32_t member);
void shm_next(struct comm *c);

enum err shm_reduce_scatter_i64(struct comm *c, int64_t *buf, const uint64_t *bounds);
enum err shm_all_gather(struct comm *c, void *buf, uint64_t size, const uint64_t *bounds);
enum err shm_tree_sum(struct comm *c, const struct comm_tree *t);

/* Channels: bytes of all of a group, and their place in its region. */
uint64_t mail_bytes(uint32_t size);
MUST_USE enum err mail_open(struct mail **out, struct comm *c, unsigned char *channels);
void mail_close(struct mail *m, struct comm *c);
enum err shm_send(struct comm *c, uint32_t to, uint32_t tag, const void *buf, uint64_t bytes,
                  struct comm_ticket *ticket);
enum err shm_recv(struct comm *c, uint32_t from, uint32_t tag, void *buf, uint64_t bytes);

#endif
