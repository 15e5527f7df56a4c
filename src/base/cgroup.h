/* What control groups leave a process of the machine's time and memory. A limit may stand at any group on the way from
 * the root to the process's own, in version 1 or 2 of the interface; the tightest counts. Not collective. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stdint.h>

/* `root` stands before /proc and /sys: "" for this machine, a folder in tests. */

/* Whole cores of the time quota, rounded up: at least 1; UINT32_MAX without a limit. */
uint32_t cgroup_cores(const char *root);
/* Bytes of memory this process and the others of its groups can still get; what the file cache holds can be had again.
 * UINT64_MAX without a limit. */
uint64_t cgroup_memory(const char *root);

#endif
