/* Inside comm: what the files of the MPI transport share. mpi.c opens and closes the world, mpi_region.c gives the
 * processes of a node memory in common, mpi_control.c carries failures, notes and farewells between ranks, mpi_pump.c
 * keeps MPI going while ranks compute, mpi_far.c is the engine of groups that span nodes. */
#ifndef COMM_MPI_INT_H
#define COMM_MPI_INT_H

#include <pthread.h>

#include "comm/comm_int.h"
#include "comm/mpi_link.h"

/* ---- memory of a node ---- */

/* As struct comm_transport says; w is not used, so they also serve before there is a world. */
enum err mpi_region_new(struct comm_world *w, uint64_t bytes, struct comm_region *out);
enum err mpi_region_map(struct comm_world *w, struct comm_region *r);
void mpi_region_found(struct comm_world *w, struct comm_region *r);
void mpi_region_free(struct comm_world *w, struct comm_region *r);

/* ---- control messages ---- */

#define MPI_NOTES 8u /* of a rank's watchdog on their way at once; more are dropped */

/* A failure as it travels to other nodes. */
struct mpi_failure {
    uint32_t rank, err;
    char message[ERR_MESSAGE_BYTES];
};

/* The thread that lets MPI move what was sent. */
struct mpi_pump {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool runs, woken, stop;
};

/* The state of the transport. */
struct mpi_world {
    struct link *all;     /* of the groups: the engine opens links of their own on it */
    struct link *control; /* failures, notes, farewells */
    uint32_t *node_of, *node_rank_of;
    struct comm_region region; /* the node's control block */
    pthread_mutex_t hearing;   /* held by the thread that looks whether a failure came */
    _Atomic bool heard;        /* one came, and was told to all nodes by who had it */
    struct mpi_failure heard_failure, told_failure;
    struct link_request hear, *tell; /* tell: by rank */
    struct link_request note_in, note_out[MPI_NOTES];
    struct mpi_pump pump; /* when there are several nodes */
    unsigned char note_in_bytes[COMM_NOTE_BYTES], note_out_bytes[MPI_NOTES][COMM_NOTE_BYTES];
};

static inline struct mpi_world *mpi_of(const struct comm_world *w)
{
    return w->transport_state;
}

/* Begin to listen. Not collective. */
MUST_USE enum err mpi_control_start(struct mpi_world *m);
/* Stop listening: no request is left on its way. */
void mpi_control_stop(struct mpi_world *m);
/* Look whether another node told of a failure; record it on this one. By any thread; called now and then in waits. */
void mpi_hear(struct comm_world *w);
/* As struct comm_transport says. */
void mpi_failed(struct comm_world *w);
void mpi_note_put(struct comm_world *w, uint32_t to, const void *note, uint32_t bytes);
bool mpi_note_take(struct comm_world *w, uint32_t *from, void *note, uint32_t *bytes);
/* Wait until all ranks have come here: false when one failed, or not all came in `limit_s` seconds. Collective. */
bool mpi_farewell(struct comm_world *w, double limit_s);

/* Start the pump of a world on several nodes. Not collective. */
MUST_USE enum err mpi_pump_start(struct comm_world *w);
/* Something was sent that is still on its way. */
void mpi_pump_wake(struct comm_world *w);
/* End it, when it runs, before groups and world go. */
void mpi_pump_stop(struct mpi_world *m);

/* Between two looks at something that another rank will do: first busy, as often as comm_world.spins says, then asleep
 * for times that grow with the wait. Start with { 0 }. */
struct mpi_pause {
    uint32_t rounds;
};
void mpi_pause(const struct comm_world *w, struct mpi_pause *p);

extern const struct comm_engine mpi_far_engine;

#endif
