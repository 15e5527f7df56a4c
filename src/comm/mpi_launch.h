/* Inside comm: whether an MPI launcher started this process, told from its environment, before any MPI call. */
#ifndef COMM_MPI_LAUNCH_H
#define COMM_MPI_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct launch {
    const char *by;  /* "mpirun of Open MPI"; NULL: nobody, this process is alone */
    uint32_t size;   /* processes started; 0: the launcher does not say */
    uint32_t rank;
};

/* Reads the environment. Variables that a batch system also gives to shells (SLURM_*) do not count by themselves; but
 * tasks that srun started without MPI, several at once, are refused: each would think it is alone. */
MUST_USE enum err launch_find(struct launch *out);

/* After MPI has started and says there are `size` ranks: refuse when the launcher started more, which happens when it
 * belongs to another MPI than `library`. */
MUST_USE enum err launch_check(const struct launch *l, const char *library, uint32_t size);

/* INVAR_TRANSPORT: "mpi" takes every rank for a node of its own, so that all ranks talk through MPI; "mpi:N" takes N
 * neighbours for one. Sets *ranks to 0 when it is not set: nodes as they are. */
MUST_USE enum err launch_node_ranks(uint32_t *ranks);

#endif
