/* Why this exists: checkpoints are as fast as the disk they go to. The file is made without a name (or loses it at
 * once, where the file system knows no such files), so that no end of this process leaves it behind. */
#include "bench/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#define CHUNK_BYTES ((uint64_t)4 << 20)
#define FREE_LEAST 4u /* times the size of the file that the disk must have free */

/* The nearest folder above `path`, or itself, that exists. */
static void nearest_folder(const char *path, char out[256])
{
    snprintf(out, 256, "%s", path);
    while (!file_is_folder(out)) {
        char *slash = strrchr(out, '/');
        if (slash == NULL || slash == out) {
            snprintf(out, 256, "%s", slash == NULL ? "." : "/");
            return;
        }
        *slash = '\0';
    }
}

/* A file without a name; -1: there is none to be had, errno says why. */
static int open_nameless(const char *folder)
{
    char name[300];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) {
        return fd;
    }
    snprintf(name, sizeof(name), "%s/.invar-bench.XXXXXX", folder);
    fd = mkostemp(name, O_CLOEXEC);
    if (fd >= 0) {
        unlink(name);
    }
    return fd;
}

/* Write until `bytes` or the time is reached, synchronise. false: the disk refused. */
static bool write_file(struct disk *d, int fd, const void *chunk, uint64_t bytes, double seconds)
{
    double start = log_seconds();
    while (d->bytes < bytes && (d->bytes == 0 || log_seconds() - start < seconds)) {
        if (write(fd, chunk, CHUNK_BYTES) != (ssize_t)CHUNK_BYTES) {
            return false;
        }
        d->bytes += CHUNK_BYTES;
    }
    if (fdatasync(fd) != 0) {
        return false;
    }
    d->write = (double)d->bytes / (log_seconds() - start);
    return true;
}

static bool read_file(struct disk *d, int fd, void *chunk)
{
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* where it is refused the rate is that of memory */
    double start = log_seconds();
    for (uint64_t at = 0; at < d->bytes; at += CHUNK_BYTES) {
        if (pread(fd, chunk, CHUNK_BYTES, (off_t)at) != (ssize_t)CHUNK_BYTES) {
            return false;
        }
    }
    d->read = (double)d->bytes / (log_seconds() - start);
    return true;
}

enum err disk_measure(struct disk *d, const char *folder, uint64_t bytes, double seconds)
{
    struct statvfs fs;
    char size[32], need[32];
    void *chunk;
    *d = (struct disk){ .bytes = 0 };
    nearest_folder(folder, d->folder);
    if (statvfs(d->folder, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < FREE_LEAST * bytes) {
        snprintf(d->skipped, sizeof(d->skipped), "%s free, %s wanted",
                 log_bytes((uint64_t)fs.f_bavail * fs.f_frsize, size), log_bytes(FREE_LEAST * bytes, need));
        return OK;
    }
    int fd = open_nameless(d->folder);
    if (fd < 0) {
        snprintf(d->skipped, sizeof(d->skipped), "no file can be made: %s", strerror(errno));
        return OK;
    }
    enum err err = mem_big_alloc(&chunk, CHUNK_BYTES);
    if (err == OK) {
        memset(chunk, 0x5a, CHUNK_BYTES);
        if (!write_file(d, fd, chunk, bytes, seconds) || !read_file(d, fd, chunk)) {
            snprintf(d->skipped, sizeof(d->skipped), "the disk refused: %s", strerror(errno));
        }
        mem_big_free(chunk, CHUNK_BYTES);
    }
    close(fd);
    return err;
}
