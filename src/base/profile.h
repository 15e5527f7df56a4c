/* A trace of a stretch of time: named spans of every thread and group of a rank, as Chrome's trace viewer and Perfetto
 * show them. One per rank. Any thread may add; nothing is allocated after profile_new. All functions take NULL for no
 * profile. */
#ifndef BASE_PROFILE_H
#define BASE_PROFILE_H

#include "base/err.h"

struct profile;

#define PROFILE_TEXT 24u

/* Times are nanoseconds of a monotonic clock since profile_start. `row`: the line of the picture it is drawn on
 * ("thread 1", "group tp"); spans of one row lie inside each other or apart. */
struct profile_event {
    uint64_t begin, end;
    char row[PROFILE_TEXT], name[PROFILE_TEXT];
    uint64_t size[3]; /* of what was worked on; unused ones 0 */
};

/* Room for `events` spans; more are counted and dropped. */
MUST_USE enum err profile_new(struct profile **out, uint64_t events);
void profile_free(struct profile *p);
/* Begin to record (forgetting what was), and stop. Not while other threads add. */
void profile_start(struct profile *p);
void profile_stop(struct profile *p);
/* Now, or 0 when nothing is recorded: what a span begins with. */
uint64_t profile_now(const struct profile *p);
/* A span from `begin` (0: nothing is added) until now. Texts are cut to PROFILE_TEXT - 1 bytes; size NULL: none. */
void profile_add(struct profile *p, uint64_t begin, const char *row, const char *name, const uint64_t size[3]);
/* What was added, in no order; *dropped: how many found no room. */
const struct profile_event *profile_events(const struct profile *p, uint64_t *count, uint64_t *dropped);
/* Bytes that profile_new allocates for the events. */
uint64_t profile_bytes(uint64_t events);

#endif
