/* Why this exists: people watch runs in TensorBoard, whose files are records of protobuf messages:
 *
 *   uint64 length, uint32 masked CRC of the length, message, uint32 masked CRC of the message      (little-endian)
 *
 * Every record goes to the system in one write, so that a reader beside the run sees whole records. */
#include "train/events.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "tfevents.pb-c.h"

uint32_t events_crc32c(const void *bytes, size_t count)
{
    const unsigned char *p = bytes;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

/* Sums of data that contain sums are weak, so the format rotates and shifts them. */
static uint32_t masked(const void *bytes, size_t count)
{
    uint32_t crc = events_crc32c(bytes, count);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static enum err put_event(struct events *e, const Invar__Tfevents__Event *event)
{
    uint64_t length = invar__tfevents__event__get_packed_size(event);
    uint32_t length_crc = masked(&length, sizeof(length));
    buf_clear(&e->record);
    TRY(buf_add(&e->record, &length, sizeof(length)));
    TRY(buf_add(&e->record, &length_crc, sizeof(length_crc)));
    TRY(buf_reserve(&e->record, length + 4));
    char *message = e->record.data + e->record.bytes;
    invar__tfevents__event__pack(event, (uint8_t *)message);
    e->record.bytes += length;
    uint32_t crc = masked(message, length);
    TRY(buf_add(&e->record, &crc, sizeof(crc)));
    return file_write(e->fd, e->path, e->record.data, e->record.bytes);
}

static Invar__Tfevents__Event new_event(uint64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now); /* for the axis of the display only */
    Invar__Tfevents__Event event = INVAR__TFEVENTS__EVENT__INIT;
    event.wall_time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    event.has_step = true;
    event.step = (int64_t)step;
    return event;
}

static enum err open_file(struct events *e, const char *folder)
{
    char host[HOST_NAME_MAX + 1] = "host";
    struct timespec now;
    struct buf path = { 0 };
    clock_gettime(CLOCK_REALTIME, &now);
    gethostname(host, sizeof(host) - 1);
    /* TensorBoard reads the files of a folder in the order of their names: time first. */
    enum err err =
        buf_printf(&path, "%s/events.out.tfevents.%010lld.%09ld.%s", folder, (long long)now.tv_sec, now.tv_nsec, host);
    e->path = path.data;
    if (err != OK) {
        return err;
    }
    e->fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    return e->fd >= 0 ? OK : FAIL(ERR_IO, "%s: cannot be written: %s", e->path, strerror(errno));
}

enum err events_open(struct events *e, const char *folder, uint64_t void_from)
{
    char version[] = "brain.Event:2"; /* protobuf-c wants a pointer that is not const */
    *e = (struct events){ .fd = -1 };
    enum err err;
    TRY_OUT(open_file(e, folder));
    Invar__Tfevents__Event first = new_event(0);
    first.file_version = version;
    TRY_OUT(put_event(e, &first));
    Invar__Tfevents__SessionLog log = INVAR__TFEVENTS__SESSION_LOG__INIT;
    log.has_status = true;
    log.status = INVAR__TFEVENTS__SESSION_LOG__STATUS__START;
    Invar__Tfevents__Event start = new_event(void_from);
    start.session_log = &log;
    TRY_OUT(put_event(e, &start));
out:
    if (err != OK) {
        events_close(e);
    }
    return err;
}

void events_close(struct events *e)
{
    if (e->fd >= 0) {
        close(e->fd);
    }
    free(e->path);
    buf_release(&e->record);
    buf_release(&e->tags);
    free(e->values);
    *e = (struct events){ .fd = -1 };
}

/* All tags one after another, each with its zero, in e->tags. */
static enum err make_tags(struct events *e, const char *group, const struct metric *list, size_t count)
{
    buf_clear(&e->tags);
    for (size_t i = 0; i < count; i++) {
        TRY(buf_printf(&e->tags, "%s/%s", group, list[i].name));
        TRY(buf_add(&e->tags, "", 1));
    }
    return OK;
}

enum err events_write(struct events *e, const char *group, uint64_t step, const struct metric *list, size_t count)
{
    TRY(make_tags(e, group, list, count));
    struct Invar__Tfevents__Summary__Value *values, **pointers;
    TRY(mem_grow(&e->values, &e->values_bytes, count * (sizeof(*values) + sizeof(*pointers)), 1));
    values = e->values;
    pointers = (struct Invar__Tfevents__Summary__Value **)(void *)(values + count);
    char *tag = e->tags.data;
    for (size_t i = 0; i < count; i++) {
        values[i] = (struct Invar__Tfevents__Summary__Value)INVAR__TFEVENTS__SUMMARY__VALUE__INIT;
        values[i].tag = tag;
        values[i].has_simple_value = true;
        values[i].simple_value = isfinite(list[i].value) ? (float)list[i].value : NAN;
        pointers[i] = &values[i];
        tag += strlen(tag) + 1;
    }
    Invar__Tfevents__Summary summary = INVAR__TFEVENTS__SUMMARY__INIT;
    summary.n_value = count;
    summary.value = pointers;
    Invar__Tfevents__Event event = new_event(step);
    event.summary = &summary;
    return put_event(e, &event);
}
