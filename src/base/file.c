/* Why this exists: a write that is lost, torn or silently short ruins days of work, so every write goes through one
 * stream that remembers its first error and one commit sequence (write aside, fsync, rename, fsync of the folder). Maps
 * are read through file_map_copy: a file that another program cuts while it is mapped gives SIGBUS on access, which is
 * turned into an error here. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define OUT_BUFFER_BYTES ((size_t)1 << 20)

static enum err fail_system(const char *path, const char *operation)
{
    int code = errno;
    enum err kind = code == ENOSPC || code == EDQUOT || code == ENOMEM || code == EFBIG ? ERR_RESOURCE : ERR_IO;
    const char *hint = code == ENOSPC || code == EDQUOT ? " | free space on this disk or choose another output folder"
                       : code == ENOENT                 ? " | check the path"
                       : code == EACCES                 ? " | check the permissions"
                       : code == ENOTDIR                ? " | a part of this path is a file, not a folder"
                       : code == EROFS                  ? " | this disk is read-only: choose another output folder"
                       : code == EFBIG ? " | a limit (ulimit -f) or the file system allows no larger file"
                                                        : "";
    return FAIL(kind, "%s: %s: %s%s", path, operation, strerror(code), hint);
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum err file_size(const char *path, uint64_t *bytes)
{
    struct stat st;
    *bytes = 0;
    if (stat(path, &st) != 0) {
        return fail_system(path, "cannot be opened");
    }
    *bytes = (uint64_t)st.st_size;
    return OK;
}

/* Open a regular file for reading; *bytes is its size. */
static enum err open_regular(const char *path, int *fd, uint64_t *bytes)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) {
        return fail_system(path, "cannot be opened");
    }
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        *fd = -1;
        return FAIL(ERR_DATA, "%s: not a regular file, a file was expected", path);
    }
    *bytes = (uint64_t)st.st_size;
    return OK;
}

enum err file_read(const char *path, size_t limit, struct buf *out)
{
    int fd;
    uint64_t bytes;
    TRY(open_regular(path, &fd, &bytes));
    enum err err = OK;
    if (bytes > limit) {
        err = FAIL(ERR_DATA, "%s: %llu bytes, at most %zu are read here", path, (unsigned long long)bytes, limit);
        goto out;
    }
    TRY_OUT(buf_reserve(out, bytes));
    while (out->bytes < bytes) {
        ssize_t got = read(fd, out->data + out->bytes, bytes - out->bytes);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            err = fail_system(path, "cannot be read");
            goto out;
        }
        if (got == 0) {
            break; /* cut while being read: the caller's parser sees the short text */
        }
        out->bytes += (size_t)got;
    }
    out->data[out->bytes] = '\0';
out:
    close(fd);
    return err;
}

enum err file_join(char **out, const char *folder, const char *name)
{
    struct buf b = { 0 };
    enum err err = buf_printf(&b, "%s%s%s", folder, folder[0] != '\0' && folder[strlen(folder) - 1] != '/' ? "/" : "",
                              name);
    *out = b.data;
    return err;
}

enum err file_make_folder(const char *path)
{
    char *copy;
    TRY(mem_copy_string(&copy, path, strlen(path)));
    enum err err = OK;
    for (char *p = copy + 1; err == OK; p++) {
        char kept = *p;
        if (kept == '/' || kept == '\0') {
            *p = '\0';
            if (mkdir(copy, 0777) != 0 && !(errno == EEXIST && file_is_folder(copy))) {
                err = errno == EEXIST ? FAIL(ERR_USAGE, "%s: a file, a folder was expected | choose another path", copy)
                                      : fail_system(copy, "folder cannot be made");
            }
            *p = kept;
        }
        if (kept == '\0') {
            break;
        }
    }
    free(copy);
    return err;
}

enum err file_remove_tree(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? OK : fail_system(path, "cannot be removed");
    }
    if (!S_ISDIR(st.st_mode)) {
        return unlink(path) == 0 ? OK : fail_system(path, "cannot be removed");
    }
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return fail_system(path, "cannot be listed");
    }
    enum err err = OK;
    for (struct dirent *e = readdir(dir); e != NULL && err == OK; e = readdir(dir)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            continue;
        }
        char *child;
        err = file_join(&child, path, e->d_name);
        if (err == OK) {
            err = file_remove_tree(child);
        }
        free(child);
    }
    closedir(dir);
    if (err == OK && rmdir(path) != 0) {
        err = fail_system(path, "cannot be removed");
    }
    return err;
}

enum err file_temporary_folder(char *path, size_t bytes, const char *name)
{
    const char *base = getenv("TMPDIR");
    int used = snprintf(path, bytes, "%s/%s.XXXXXX", base != NULL && base[0] != '\0' ? base : "/tmp", name);
    if (used < 0 || (size_t)used >= bytes || mkdtemp(path) == NULL) {
        return FAIL(ERR_IO, "%s: no folder can be made there | set TMPDIR to one that can be written", path);
    }
    return OK;
}

enum err file_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return fail_system(path, "cannot be opened");
    }
    int rc = fsync(fd);
    enum err err = rc == 0 ? OK : fail_system(path, "fsync");
    close(fd);
    return err;
}

enum err file_check_space(const char *folder, uint64_t need, const char *what)
{
    struct statvfs st;
    uint64_t available;
    if (statvfs(folder, &st) != 0 || st.f_blocks == 0 ||
        __builtin_mul_overflow((uint64_t)st.f_bavail, (uint64_t)st.f_frsize, &available) || available >= need) {
        return OK; /* unknown, or enough */
    }
    char text[2][32];
    return FAIL(ERR_RESOURCE, "%s: %s needs %s (%llu bytes), %s (%llu bytes) are free | free space on this disk or "
                "choose another output folder", folder, what, log_bytes(need, text[0]), (unsigned long long)need,
                log_bytes(available, text[1]), (unsigned long long)available);
}

static enum err sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return file_sync_folder(".");
    }
    char *parent;
    TRY(mem_copy_string(&parent, path, slash == path ? 1 : (size_t)(slash - path)));
    enum err err = file_sync_folder(parent);
    free(parent);
    return err;
}

enum err file_rename(const char *from, const char *to)
{
    if (rename(from, to) != 0) {
        return fail_system(to, "rename");
    }
    return sync_parent(to);
}

enum err file_replace(const char *path, const void *bytes, size_t count)
{
    struct buf temp = { 0 };
    struct file_out f = { .fd = -1 };
    enum err err;
    TRY_OUT(buf_printf(&temp, "%s.tmp", path));
    TRY_OUT(file_out_open(&f, temp.data));
    file_out_write(&f, bytes, count);
    TRY_OUT(file_out_close(&f));
    TRY_OUT(file_rename(temp.data, path));
out:
    if (err != OK && temp.data != NULL) {
        file_out_abandon(&f);
        unlink(temp.data);
    }
    buf_release(&temp);
    return err;
}

enum err file_out_open(struct file_out *f, const char *path)
{
    *f = (struct file_out){ .fd = -1 };
    void *block = NULL;
    enum err err;
    TRY_OUT(mem_copy_string(&f->path, path, strlen(path)));
    TRY_OUT(mem_alloc(&block, 1, OUT_BUFFER_BYTES));
    f->buffer = block;
    f->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        err = fail_system(path, "cannot be written");
        goto out;
    }
    return OK;
out:
    free(f->path);
    free(f->buffer);
    *f = (struct file_out){ .fd = -1 };
    return err;
}

enum err file_read_at(int fd, const char *path, uint64_t size, uint64_t offset, void *out, size_t count)
{
    unsigned char *to = out;
    while (count > 0) {
        ssize_t got = pread(fd, to, count, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return FAIL(ERR_IO, "%s: cannot be read at byte %" PRIu64 ": %s", path, offset, strerror(errno));
        }
        if (got == 0) {
            return FAIL(ERR_DATA,
                        "%s: the file ends at byte %" PRIu64 ", it had %" PRIu64
                        " when it was opened | do not change a file while it is read",
                        path, offset, size);
        }
        to += got;
        offset += (uint64_t)got;
        count -= (size_t)got;
    }
    return OK;
}

enum err file_write(int fd, const char *path, const void *bytes, size_t count)
{
    const unsigned char *from = bytes;
    while (count > 0) {
        ssize_t put = write(fd, from, count);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return fail_system(path, "write");
        }
        from += put;
        count -= (size_t)put;
    }
    return OK;
}

static void write_all(struct file_out *f, const unsigned char *bytes, size_t count)
{
    if (f->err == OK) {
        f->err = file_write(f->fd, f->path, bytes, count);
    }
}

void file_out_write(struct file_out *f, const void *bytes, size_t count)
{
    f->bytes += count;
    if (count >= OUT_BUFFER_BYTES || f->used + count > OUT_BUFFER_BYTES) {
        write_all(f, f->buffer, f->used);
        f->used = 0;
    }
    if (count >= OUT_BUFFER_BYTES) {
        write_all(f, bytes, count);
    } else if (count > 0) {
        memcpy(f->buffer + f->used, bytes, count);
        f->used += count;
    }
}

static void file_out_free(struct file_out *f)
{
    free(f->path);
    free(f->buffer);
    *f = (struct file_out){ .fd = -1 };
}

enum err file_out_close(struct file_out *f)
{
    write_all(f, f->buffer, f->used);
    if (f->err == OK && fsync(f->fd) != 0) {
        f->err = fail_system(f->path, "fsync");
    }
    if (close(f->fd) != 0 && f->err == OK) {
        f->err = fail_system(f->path, "close");
    }
    enum err err = f->err;
    file_out_free(f);
    return err;
}

void file_out_abandon(struct file_out *f)
{
    if (f->path == NULL) {
        return;
    }
    close(f->fd);
    unlink(f->path);
    file_out_free(f);
}

/* ---- maps ---- */

static _Thread_local sigjmp_buf *volatile bus_guard; /* where a SIGBUS inside file_map_copy returns to */

static void on_bus(int signal_number)
{
    if (bus_guard != NULL) {
        siglongjmp(*bus_guard, 1);
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* With every map, not once: libraries (MPI, test frameworks) put their own handler in its place when they start. */
static void install_bus_handler(void)
{
    struct sigaction action = { .sa_handler = on_bus, .sa_flags = SA_NODEFER };
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

enum err file_map_open(struct file_map *m, const char *path)
{
    *m = (struct file_map){ 0 };
    int fd;
    uint64_t bytes;
    TRY(open_regular(path, &fd, &bytes));
    enum err err;
    TRY_OUT(mem_copy_string(&m->path, path, strlen(path)));
    if (bytes > 0) {
        void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            err = fail_system(path, "cannot be mapped");
            free(m->path);
            m->path = NULL;
            goto out;
        }
        m->data = data;
        m->bytes = bytes;
    }
    install_bus_handler();
out:
    close(fd);
    return err;
}

void file_map_close(struct file_map *m)
{
    if (m->data != NULL) {
        munmap((void *)(uintptr_t)m->data, m->bytes);
    }
    free(m->path);
    *m = (struct file_map){ 0 };
}

enum err file_map_copy(const struct file_map *m, uint64_t offset, uint64_t count, void *out)
{
    if (offset > m->bytes || count > m->bytes - offset) {
        return FAIL(ERR_DATA, "%s: bytes %llu to %llu were asked for, the file has %llu", m->path,
                    (unsigned long long)offset, (unsigned long long)(offset + count), (unsigned long long)m->bytes);
    }
    if (count == 0) {
        return OK;
    }
    sigjmp_buf here;
    if (sigsetjmp(here, 0) != 0) {
        bus_guard = NULL;
        return FAIL(ERR_DATA,
                    "%s: the file was cut or cannot be read any more at bytes %llu to %llu (it had %llu bytes when it "
                    "was opened) | do not change a data file while a run uses it",
                    m->path, (unsigned long long)offset, (unsigned long long)(offset + count),
                    (unsigned long long)m->bytes);
    }
    bus_guard = &here;
    atomic_signal_fence(memory_order_seq_cst); /* the compiler must not move the copy past the guard */
    memcpy(out, m->data + offset, count);
    atomic_signal_fence(memory_order_seq_cst);
    bus_guard = NULL;
    return OK;
}
