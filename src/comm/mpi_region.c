/* Why this exists: processes of a node share memory without a name. A region is a memfd of its maker, which the others
 * open through /proc/PID/fd: nothing is ever in /dev/shm or /tmp, so whatever kills a job leaves nothing of ours.
 *
 * Invariant: a region is what its maker made and nothing else: device and inode of the opened file are compared, as in
 * a container the same process number is another process. In a handle word[0] is the process, word[1] its descriptor,
 * or CLOSED in the copy of a rank that holds none. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/mpi_int.h"

#define CLOSED UINT64_MAX

static enum err fail_new(uint64_t bytes, int code)
{
    return FAIL(ERR_RESOURCE, "shared memory: %llu bytes were refused: %s | use fewer ranks on this machine, or a "
                              "smaller model, micro_batch_size or seq_length",
                (unsigned long long)bytes, strerror(code));
}

/* fd of a region: map it, set base. */
static int map(int fd, struct comm_region *r)
{
    void *base = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return errno;
    }
    madvise(base, r->bytes, MADV_HUGEPAGE); /* advice only, which most systems do not take for shared memory */
    r->base = base;
    return 0;
}

enum err mpi_region_new(struct comm_world *w, uint64_t bytes, struct comm_region *out)
{
    (void)w;
    *out = (struct comm_region){ .base = NULL };
    if (bytes > mem_available_bytes()) { /* its pages come when they are touched, and would be refused by a signal */
        return fail_new(bytes, ENOMEM);
    }
    int fd = memfd_create("invar", MFD_CLOEXEC);
    if (fd < 0) {
        return fail_new(bytes, errno);
    }
    int code = ftruncate(fd, (off_t)bytes) != 0 ? errno : 0;
    struct stat s;
    code = code == 0 && fstat(fd, &s) != 0 ? errno : code;
    struct comm_region r = { .bytes = bytes };
    code = code == 0 ? map(fd, &r) : code;
    if (code != 0) {
        close(fd);
        return fail_new(bytes, code);
    }
    r.handle = (struct comm_handle){ { (uint64_t)getpid(), (uint64_t)fd, s.st_dev, s.st_ino } };
    *out = r;
    return OK;
}

enum err mpi_region_map(struct comm_world *w, struct comm_region *r)
{
    (void)w;
    const uint64_t *word = r->handle.word;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%llu/fd/%llu", (unsigned long long)word[0], (unsigned long long)word[1]);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat s;
    int code = fd < 0 || fstat(fd, &s) != 0 ? errno : 0;
    bool other = code == 0 && (s.st_dev != word[2] || s.st_ino != word[3] || (uint64_t)s.st_size != r->bytes);
    code = code == 0 && !other ? map(fd, r) : code;
    if (fd >= 0) {
        close(fd);
    }
    if (other || code != 0) {
        return FAIL(ERR_RESOURCE, "shared memory: %s of another rank: %s | ranks of a machine must run as one user and "
                                  "in one container, or in containers that share process numbers",
                    path, other ? "it is not the memory that rank made" : strerror(code));
    }
    r->handle.word[1] = CLOSED;
    return OK;
}

void mpi_region_found(struct comm_world *w, struct comm_region *r)
{
    (void)w;
    if (r->handle.word[1] != CLOSED) {
        close((int)r->handle.word[1]);
        r->handle.word[1] = CLOSED;
    }
}

void mpi_region_free(struct comm_world *w, struct comm_region *r)
{
    mpi_region_found(w, r);
    munmap(r->base, r->bytes);
    *r = (struct comm_region){ .base = NULL };
}
