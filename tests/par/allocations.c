/* Counts what a run allocates from its second step on, for a program that is linked with the product's objects and
 * -Wl,--wrap=trainer_step,--wrap=trainer_save. The functions below stand before those of the C library for the whole
 * process. What a library of MPI asks for is its own affair and not counted.
 *
 * Counting begins when the second step does and ends with it when something is saved, which allocates as it likes.
 * At the exit a line on stderr says "allocations: N", behind it where the first of them came from. */
#include <dlfcn.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "train/trainer.h"

#define FRAMES 24
#define KEPT 8

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
enum err __real_trainer_step(struct trainer *t, struct step_report *r);
enum err __wrap_trainer_step(struct trainer *t, struct step_report *r);
enum err __real_trainer_save(struct trainer *t);
enum err __wrap_trainer_save(struct trainer *t);

static unsigned steps; /* begun */
static atomic_bool counting;
static atomic_uint counted;
static void *kept[KEPT][FRAMES];
static int kept_frames[KEPT];
static _Thread_local bool inside;

/* Whose the call is: the first library on the way that is not the C library's decides. */
static bool of_mpi(void *const *frames, int count)
{
    static const char *const theirs[] = { "libmpi", "libopen-", "libpmix", "libevent", "libuc", "libfabric", "mca_" };
    for (int i = 0; i < count; i++) {
        Dl_info d;
        if (dladdr(frames[i], &d) == 0 || strstr(d.dli_fname, "libc.so") != NULL) {
            continue;
        }
        for (size_t k = 0; k < sizeof(theirs) / sizeof(theirs[0]); k++) {
            if (strstr(d.dli_fname, theirs[k]) != NULL) {
                return true;
            }
        }
        if (i >= 2) { /* behind this file's own */
            return false;
        }
    }
    return false;
}

static void count_call(void)
{
    if (!atomic_load(&counting) || inside) {
        return;
    }
    void *frames[FRAMES];
    inside = true;
    int found = backtrace(frames, FRAMES);
    if (!of_mpi(frames, found)) {
        unsigned n = atomic_fetch_add(&counted, 1);
        if (n < KEPT) {
            memcpy(kept[n], frames, sizeof(frames));
            kept_frames[n] = found;
        }
    }
    inside = false;
}

void *malloc(size_t bytes)
{
    count_call();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    count_call();
    return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes)
{
    count_call();
    return __libc_realloc(block, bytes);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    count_call();
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

static void report(void)
{
    atomic_store(&counting, false);
    fprintf(stderr, "allocations: %u in %u steps\n", atomic_load(&counted), steps > 0 ? steps - 1 : 0);
    for (unsigned i = 0; i < KEPT && i < atomic_load(&counted); i++) {
        fprintf(stderr, "allocation %u:\n", i);
        backtrace_symbols_fd(kept[i], kept_frames[i], STDERR_FILENO);
    }
}

enum err __wrap_trainer_step(struct trainer *t, struct step_report *r)
{
    if (steps++ == 0) {
        void *first[FRAMES];
        backtrace(first, FRAMES); /* loads a library the first time */
        atexit(report);
    }
    atomic_store(&counting, steps > 1);
    return __real_trainer_step(t, r);
}

enum err __wrap_trainer_save(struct trainer *t)
{
    atomic_store(&counting, false);
    return __real_trainer_save(t);
}
