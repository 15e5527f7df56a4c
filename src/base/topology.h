/* The cores of this machine and the memory near them, and which of them the threads of each process take.
 *
 * A hardware thread is what the system numbers and a mask holds (base/cores.h); a core has one or more of them. */
#ifndef BASE_TOPOLOGY_H
#define BASE_TOPOLOGY_H

#include "base/cores.h"
#include "base/err.h"

/* One hardware thread: its number, its core and the memory node near it. */
struct topology_slot {
    uint16_t number, core, node;
};

struct topology {
    uint32_t count;
    struct topology_slot slot[CORES_MAX]; /* neighbours share a core, then caches, then a node */
};

/* Look at this machine; `synthetic`: at one that hwloc describes, "package:2 core:4 pu:2", for tests. A machine that
 * cannot be looked at has a core for each hardware thread and one node. Some milliseconds. */
void topology_load(struct topology *t, const char *synthetic);
/* The cores that a mask touches, each as the lowest of its hardware threads, whether that is in the mask or not: masks
 * that share a core share it here, too. */
void topology_cores(const struct topology *t, const struct cores *mask, struct cores *out);

/* A process that wants cores for `threads` threads, of its mask. */
struct topology_wish {
    struct cores mask;
    uint32_t threads;
    struct cores got; /* by topology_assign: a hardware thread for each; none where there are not enough cores */
};
/* Give each process cores that no other gets. Whoever has the smallest mask chooses first (equals in their order): the
 * first node that has all it wants, else what comes first. The same list gives the same answer in every process. */
void topology_assign(const struct topology *t, struct topology_wish *list, uint32_t count);
/* The nodes of a set of hardware threads, a bit for each of the first 64. */
uint64_t topology_nodes(const struct topology *t, const struct cores *set);

#endif
