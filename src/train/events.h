/* A TensorBoard event file: records of protobuf messages framed with lengths and masked CRC32C sums. */
#ifndef TRAIN_EVENTS_H
#define TRAIN_EVENTS_H

#include "base/buf.h"
#include "train/metrics.h"

struct events {
    int fd; /* -1: closed */
    char *path;
    struct buf record, tags;
    void *values; /* protobuf values of one event, kept between events */
    size_t values_bytes;
};

/* Create FOLDER/events.out.tfevents.TIME.HOST with the version record, and the mark that points of step `void_from` and
 * later in older files of the folder do not count. */
MUST_USE enum err events_open(struct events *e, const char *folder, uint64_t void_from);
void events_close(struct events *e);
/* One event with tags "group/name". Values that are not finite become NaN. */
MUST_USE enum err events_write(struct events *e, const char *group, uint64_t step, const struct metric *list,
                               size_t count);

/* CRC32C (Castagnoli), as event files use it before masking. */
uint32_t events_crc32c(const void *bytes, size_t count);

#endif
