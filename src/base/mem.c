/* Why this exists: page faults are expensive, so big buffers live on 2-MB pages in one arena that is laid out once
 * (measured, then backed); everything else goes through checked heap calls that return an error. */
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/pool.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define SMALL_BYTES 4096u
#define TOUCH_BYTES ((size_t)32 << 20) /* some milliseconds of one thread */

enum err mem_alloc(void **out, size_t count, size_t size)
{
    *out = calloc(count > 0 ? count : 1, size);
    if (*out == NULL) {
        return FAIL(ERR_RESOURCE, "out of memory: %zu x %zu bytes were refused by the system", count,
                    size);
    }
    return OK;
}

enum err mem_grow(void **array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) {
        return OK;
    }
    size_t want = *capacity > 0 ? *capacity : 16;
    while (want < need) {
        want = want > SIZE_MAX / 2 ? need : want * 2;
    }
    size_t bytes;
    if (__builtin_mul_overflow(want, size, &bytes)) {
        return FAIL(ERR_RESOURCE, "out of memory: %zu elements of %zu bytes do not fit", want, size);
    }
    void *grown = realloc(*array, bytes);
    if (grown == NULL) {
        return FAIL(ERR_RESOURCE, "out of memory: %zu bytes were refused by the system", bytes);
    }
    *array = grown;
    *capacity = want;
    return OK;
}

enum err mem_copy_string(char **out, const char *text, size_t bytes)
{
    void *copy;
    *out = NULL;
    TRY(mem_alloc(&copy, bytes + 1, 1));
    memcpy(copy, text, bytes);
    *out = copy;
    return OK;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* A number in a file of /proc that stands behind `key`, times `unit`. */
static uint64_t system_number(const char *path, const char *key, uint64_t unit, uint64_t fallback)
{
    FILE *f = fopen(path, "r");
    char line[256];
    unsigned long long value;
    uint64_t found = fallback;
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%llu", &value) == 1) {
            found = value > UINT64_MAX / unit ? UINT64_MAX : value * unit;
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

uint64_t mem_available_bytes(void)
{
    uint64_t ram = system_number("/proc/meminfo", "MemAvailable:", 1024, UINT64_MAX);
    uint64_t swap = system_number("/proc/meminfo", "SwapFree:", 1024, 0);
    uint64_t group = cgroup_memory("");
    uint64_t machine = ram > UINT64_MAX - swap ? UINT64_MAX : ram + swap;
    return group < machine ? group : machine;
}

/* Pages of a block that are asked for now, a part by each task. */
struct touching {
    unsigned char *base;
    size_t bytes;
};

static void touch_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    const struct touching *t = arg;
    size_t from = (size_t)task * TOUCH_BYTES, bytes = t->bytes - from < TOUCH_BYTES ? t->bytes - from : TOUCH_BYTES;
    if (madvise(t->base + from, bytes, MADV_POPULATE_WRITE) != 0 && errno == EINVAL) { /* Linux before 5.14 */
        for (size_t i = 0; i < bytes; i += SMALL_BYTES) {
            ((volatile unsigned char *)t->base)[from + i] = 0;
        }
    }
}

/* Where pages go and when they come. Asking for all of them now keeps page faults out of the first step and makes the
 * plan the measured peak. Advice only: small pages of any node work too, slower. */
static void prepare(unsigned char *base, size_t bytes, struct pool *pool)
{
    struct touching t = { base, bytes };
    unsigned long nodes = pool != NULL ? pool_nodes(pool) : 0;
    madvise(base, bytes, MADV_HUGEPAGE);
    if ((nodes & (nodes - 1)) != 0) {
        syscall(SYS_mbind, base, bytes, MPOL_INTERLEAVE, &nodes, 8 * sizeof(nodes) + 1, 0);
    }
    uint64_t parts = (bytes + TOUCH_BYTES - 1) / TOUCH_BYTES;
    if (pool != NULL) {
        pool_run(pool, parts, touch_task, &t);
    }
    for (uint64_t i = 0; pool == NULL && i < parts; i++) {
        touch_task(&t, i, 0);
    }
}

enum err mem_big_alloc(void **out, size_t bytes)
{
    return mem_big_alloc_by(out, bytes, NULL);
}

size_t mem_big_bytes(size_t bytes)
{
    return round_up(bytes > 0 ? bytes : 1, HUGE_BYTES);
}

enum err mem_room(size_t bytes)
{
    uint64_t available = mem_available_bytes();
    if (bytes > available || bytes > SIZE_MAX - 2 * HUGE_BYTES) {
        return FAIL(ERR_RESOURCE, "out of memory: %.2f GB%s are needed at once, %.2f GB are available | use a "
                                  "smaller model, micro_batch_size or seq_length, or free memory",
                    (double)bytes * 1e-9, bytes == SIZE_MAX ? " or more" : "", (double)available * 1e-9);
    }
    return OK;
}

enum err mem_big_alloc_by(void **out, size_t bytes, struct pool *pool)
{
    *out = NULL;
    TRY(mem_room(bytes));
    size_t rounded = mem_big_bytes(bytes);
    unsigned char *raw =
        mmap(NULL, rounded + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        return FAIL(ERR_RESOURCE, "out of memory: a block of %zu bytes was refused by the system | use a smaller "
                                  "model, micro_batch_size or seq_length",
                    bytes);
    }
    /* Trim to a 2-MB aligned block so that mem_big_free can unmap it exactly. */
    size_t head = (HUGE_BYTES - (uintptr_t)raw % HUGE_BYTES) % HUGE_BYTES;
    if (head > 0) {
        munmap(raw, head);
    }
    munmap(raw + head + rounded, HUGE_BYTES - head);
    prepare(raw + head, rounded, pool);
    *out = raw + head;
    return OK;
}

void mem_big_free(void *block, size_t bytes)
{
    if (block != NULL) {
        munmap(block, mem_big_bytes(bytes));
    }
}

double mem_huge_share(const void *block, size_t bytes)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[256];
    unsigned long lo, hi, mapped = 0, huge = 0;
    uintptr_t from = (uintptr_t)block;
    bool inside = false;
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        unsigned long kilobytes;
        if (sscanf(line, "%lx-%lx ", &lo, &hi) == 2) { /* a range begins; ours may have grown together with others */
            inside = lo < from + bytes && hi > from;
            mapped += inside ? (hi - lo) / 1024 : 0;
        } else if (inside && sscanf(line, "AnonHugePages: %lu kB", &kilobytes) == 1) {
            huge += kilobytes;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return mapped > 0 ? (double)huge / (double)mapped : 1;
}

bool mem_huge_given(const char *root)
{
    char path[4096], modes[64] = "";
    snprintf(path, sizeof(path), "%s/sys/kernel/mm/transparent_hugepage/enabled", root);
    FILE *f = fopen(path, "r");
    bool given = f != NULL && fgets(modes, sizeof(modes), f) != NULL && strstr(modes, "[never]") == NULL;
    if (f != NULL) {
        fclose(f);
    }
    return given;
}

void *arena_take(struct arena *a, size_t count, size_t size)
{
    bool possible = a->used <= SIZE_MAX - MEM_ALIGN;
    size_t start = possible ? round_up(a->used, MEM_ALIGN) : SIZE_MAX, end;
    if (__builtin_add_overflow(start, mem_mul(count, size), &end)) {
        end = SIZE_MAX;
    }
    a->used = end;
    if (a->base == NULL) {
        return NULL;
    }
    BUG_IF(end > a->capacity);
    return a->base + start;
}

enum err arena_back(struct arena *a)
{
    return arena_back_by(a, NULL);
}

enum err arena_back_by(struct arena *a, struct pool *pool)
{
    BUG_IF(a->base != NULL);
    void *block;
    TRY(mem_big_alloc_by(&block, a->used, pool));
    a->base = block;
    a->capacity = a->used;
    a->used = 0;
    return OK;
}

void arena_release(struct arena *a)
{
    mem_big_free(a->base, a->capacity);
    *a = (struct arena){ 0 };
}

size_t mem_mul(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* Without stdio, which would allocate: this is asked in every step. */
uint64_t mem_peak_bytes(void)
{
    char text[4096];
    unsigned long long kilobytes;
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    text[got > 0 ? got : 0] = '\0';
    const char *line = strstr(text, "VmHWM:");
    return line != NULL && sscanf(line, "VmHWM: %llu", &kilobytes) == 1 ? kilobytes * 1024 : 0;
}
