/* Inside comm: MPI as its transport and engine use it, so that one file (mpi_link.c) includes mpi.h. Point-to-point
 * messages that never block and are waited for by polling, which lets a wait end when a rank has failed; and a few
 * blocking calls for the start.
 *
 * Any thread may call these, at the same time: see mpi_link.c for what that takes of the MPI library. Errors of MPI are
 * ERR_PEER with the library's own words. */
#ifndef COMM_MPI_LINK_H
#define COMM_MPI_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A communicator of our own: its messages meet no others. */
struct link;

/* A message on its way; word 0: none. */
struct link_request {
    uint64_t word;
};

#define LINK_BYTES_MAX ((size_t)1 << 30) /* of one message: MPI counts in int */
#define LINK_ANY UINT32_MAX

struct link_job {
    uint32_t rank, size;
    uint32_t leader;   /* lowest rank of those that MPI says are on this node */
    char library[64];  /* "Open MPI v4.1.4": the first words of what the library says it is */
};

/* Start MPI and a link of all ranks. Collective over the job, blocking. */
MUST_USE enum err link_start(struct link **out, struct link_job *job);
/* Finalize MPI; no request may be on its way. Collective over the job, blocking. Frees `all`. */
void link_stop(struct link *all);
/* End all processes of the job with this exit code, by whatever thread. */
_Noreturn void link_abort(struct link *all, int code);

/* A link of `size` ranks of `base`, in this order. Collective over them, blocking: all of them must be known to come.
 * `salt` tells links that are opened at the same time apart. */
struct link_members {
    const uint32_t *rank;
    uint32_t size;
    uint64_t salt;
};
MUST_USE enum err link_open(struct link *base, const struct link_members *members, struct link **out);
/* Forget the link. Not collective: what MPI keeps of it goes with link_stop. */
void link_close(struct link *l);

/* out[i * bytes ..] = what rank i gave. Collective over the link, blocking: for the start. */
MUST_USE enum err link_all_gather(struct link *l, const void *in, size_t bytes, void *out);

/* Largest tag of a message. */
uint32_t link_tag_max(const struct link *l);
/* At most LINK_BYTES_MAX bytes; buf belongs to the message until link_test says done. `from` may be LINK_ANY. */
MUST_USE enum err link_send(struct link *l, uint32_t to, uint32_t tag, const void *buf, size_t bytes,
                            struct link_request *out);
MUST_USE enum err link_recv(struct link *l, uint32_t from, uint32_t tag, void *buf, size_t bytes,
                            struct link_request *out);
/* Whether the message is done; then the request is none. `from` and `bytes` (of a receive) may be NULL. None: done. */
struct link_arrival {
    uint32_t from;
    size_t bytes;
};
MUST_USE enum err link_test(struct link *l, struct link_request *r, bool *done, struct link_arrival *arrival);
/* Take back a receive that nothing was sent for. */
void link_cancel(struct link *l, struct link_request *r);

#endif
