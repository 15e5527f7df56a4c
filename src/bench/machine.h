/* What this machine can do at its best: arithmetic, memory, disk; and whether it was ours meanwhile. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include "comm/comm.h"
#include "kern/kern.h"

#define MACHINE_LEVELS 9u /* footprints of a copy: 32 KB, four times as much, ... */

/* Of one thread, and of all threads of this rank. */
struct rate {
    double one, all;
};

struct machine {
    enum isa isa;
    uint32_t threads;
    struct rate fma, bf16; /* operations a second: of fp32, and of bf16 the way this processor multiplies it */
    /* Bytes a second that a loop over memory on 2-MB pages names: read; copied (once read, once written); multiplied
     * and added to in place. */
    struct rate read, copy, update;
    uint64_t memory_bytes; /* gone over by these */
    uint32_t levels;
    struct machine_level {
        uint64_t bytes; /* source and destination together, divided over the threads */
        struct rate copy;
    } level[MACHINE_LEVELS];
    double spread; /* the median of the samples of the FMA peak is so much below the best: 0.02 is 2 % */
};

/* Measure for about `seconds`. `k` has `threads` threads. Not collective. */
MUST_USE enum err machine_measure(struct machine *m, struct kern *k, uint32_t threads, double seconds);
/* Bytes a second that all threads copy where source and destination together have `bytes`. */
double machine_copy_rate(const struct machine *m, uint64_t bytes);

/* Processor time of the whole machine and of this process since noise_begin. */
struct noise {
    double busy_s, steal_s, own_s, wall_s;
};
void noise_begin(struct noise *n);
/* Cores that others used on average (`ranks` processes like this one are not others), and the share of time that the
 * hypervisor took; both 0 where the system does not say. */
struct noise_found {
    double others, steal;
};
struct noise_found noise_end(const struct noise *begin, uint32_t ranks);

/* Bandwidth of the file system of `folder`, or of its nearest folder that exists. The file has no name from the moment
 * it is made, so nothing stays behind. */
struct disk {
    char folder[256];    /* where it was measured */
    char skipped[128];   /* why not; "": it was */
    uint64_t bytes;
    double write, read;  /* bytes a second: written and synchronised; read after the cache was told to let go */
};
/* For about `seconds`, at most `bytes`. A disk that is nearly full, or cannot be written, is skipped: not an error. */
MUST_USE enum err disk_measure(struct disk *d, const char *folder, uint64_t bytes, double seconds);

/* How ranks talk. All zero for one rank but `ranks`. */
struct links {
    uint32_t ranks, nodes;
    double latency_s;  /* half a ping-pong of 8 bytes between the first and the last rank */
    double message;    /* bytes a second of one of LINKS_BYTES */
    double sum_s;      /* the sum of one integer over all ranks */
    double all_gather, reduce_scatter; /* LINKS_BYTES / time */
};
#define LINKS_BYTES ((uint64_t)16 << 20)
/* Collective over all ranks. */
MUST_USE enum err links_measure(struct links *l, struct comm_world *w);

#endif
