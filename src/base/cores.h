/* Which cores this process may use, numbered as the system does: hardware threads. Not collective. */
#ifndef BASE_CORES_H
#define BASE_CORES_H

#include <stdbool.h>
#include <stdint.h>

#define CORES_MAX 1024u
#define CORES_TEXT_BYTES 96

struct cores {
    uint64_t word[CORES_MAX / 64]; /* bit c % 64 of word c / 64: core c */
};

/* The affinity mask of the calling thread: what a launcher, taskset or a container left of the machine. */
void cores_mine(struct cores *out);
/* Run the calling thread on these cores only; false where the system refuses. */
bool cores_bind(const struct cores *c);
/* How many threads of this process can run at once: the mask, cut by the quota of its control groups; at least 1. */
uint32_t cores_usable(void);

void cores_add(struct cores *c, uint32_t core);
bool cores_has(const struct cores *c, uint32_t core);
/* c gets the cores of `more` too. */
void cores_join(struct cores *c, const struct cores *more);
uint32_t cores_count(const struct cores *c);
/* A fair share of list[i], the cores of one of `count` processes: each core divided by the processes that have it, the
 * sum rounded down, at least 1. */
uint32_t cores_share(const struct cores *list, uint32_t count, uint32_t i);
/* "0-3, 8", cut with ".." where it is too long for out. */
const char *cores_text(const struct cores *c, char out[CORES_TEXT_BYTES]);

#endif
