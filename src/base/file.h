/* Files: whole reads, checked maps, and writes that either happen completely or not at all.
 * All errors name the file and the system's reason. Not collective. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"

/* Read a whole regular file, at most `limit` bytes, into an empty buffer. */
MUST_USE enum err file_read(const char *path, size_t limit, struct buf *out);
bool file_exists(const char *path);
bool file_is_folder(const char *path);
MUST_USE enum err file_size(const char *path, uint64_t *bytes);
/* mkdir -p. */
MUST_USE enum err file_make_folder(const char *path);
/* Remove a folder and all that is in it; a missing one is no error. */
MUST_USE enum err file_remove_tree(const char *path);
/* Make a new folder NAME.xxxxxx below TMPDIR, or /tmp; `path` receives its name. */
MUST_USE enum err file_temporary_folder(char *path, size_t bytes, const char *name);
/* Make names in `folder` durable. */
MUST_USE enum err file_sync_folder(const char *path);
/* ERR_RESOURCE when the disk of `folder` has fewer than `need` bytes free; `what` (say "a checkpoint") needs them. */
MUST_USE enum err file_check_space(const char *folder, uint64_t need, const char *what);
/* Write aside (path + ".tmp"), fsync, rename, fsync the folder: readers see the old or the new file, never a part. */
MUST_USE enum err file_replace(const char *path, const void *bytes, size_t count);
/* rename, then fsync of the parent folder. */
MUST_USE enum err file_rename(const char *from, const char *to);
/* Write all bytes to an open file, at once where the system does so (one record of a log); `path` for the message. */
MUST_USE enum err file_write(int fd, const char *path, const void *bytes, size_t count);
/* Read bytes [offset, offset + count) of an open file that had `size` bytes when it was opened; `path` for messages. A
 * file that ends before is ERR_DATA. */
MUST_USE enum err file_read_at(int fd, const char *path, uint64_t size, uint64_t offset, void *out, size_t count);
/* a/b as a heap string. */
MUST_USE enum err file_join(char **out, const char *folder, const char *name);

/* A streaming writer: buffered, counts bytes, remembers the first error so that every write need not be tested. */
struct file_out {
    int fd;
    char *path;
    unsigned char *buffer;
    size_t used;
    uint64_t bytes;
    enum err err;
};
MUST_USE enum err file_out_open(struct file_out *f, const char *path); /* creates or truncates */
void file_out_write(struct file_out *f, const void *bytes, size_t count);
/* Flush, fsync, close; returns the first error of the whole stream. The file stays where it is even on error. */
MUST_USE enum err file_out_close(struct file_out *f);
/* Close without flush and delete the file. Safe on a closed or zeroed struct. */
void file_out_abandon(struct file_out *f);

/* A read-only map. Bytes are reached through file_map_copy, which survives a file that shrinks under the run. Opening
 * one puts a handler for SIGBUS in place, for the whole process; faults outside file_map_copy still end it. */
struct file_map {
    const unsigned char *data; /* NULL when bytes == 0 */
    uint64_t bytes;
    char *path;
};
MUST_USE enum err file_map_open(struct file_map *m, const char *path);
void file_map_close(struct file_map *m);
/* Copy bytes [offset, offset + count) to `out`. Out of range, or a file that was cut after it was opened, is
 * ERR_DATA with file and offset, never a signal. Any number of threads at once. */
MUST_USE enum err file_map_copy(const struct file_map *m, uint64_t offset, uint64_t count, void *out);

#endif
