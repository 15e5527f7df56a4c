/* Why this exists: when a rank is killed, hangs or waits for one that hangs, what it did last must be known without its
 * help, and writing that down must cost nothing that is felt.
 *
 * The file is a head of one page and RECORDER_RECORDS records (docs/formats.md). Invariants:
 *   - the file has all its blocks before it gets its name: no store into it can fail for want of disk;
 *   - record number s stands at place (s - 1) % RECORDER_RECORDS; its `seq` is 0 while it is written, so a record with
 *     a number and a wrong `check` is damage, not a death in the middle;
 *   - what `check` covers is not written again; t_out and result come later, by one store each;
 *   - all stores are plain or relaxed atomic stores in program order, which is the order in which the map has them when
 *     the process is gone. */
#include "comm/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/comm_int.h"
#include "comm/recorder_int.h"

#define CALIBRATE_NS 1000000u

_Static_assert(sizeof(((struct record *)0)->file) == COMM_PLACE_BYTES, "a signature's file name fits");
_Static_assert(sizeof(((struct record *)0)->name) == COMM_NAME_BYTES, "a signature's group name fits");

struct recorder {
    struct ring_head *head; /* the map */
    struct record *record;
    enum clock_kind clock;
    uint64_t start_ns; /* of CLOCK_MONOTONIC, at start_ticks */
};

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- ticks ---- */

/* The time stamp counter where the system itself trusts it: then it runs at one rate and is the same on all cores. */
static enum clock_kind clock_choose(void)
{
#if defined(__x86_64__)
    char text[128] = "";
    int fd = open("/sys/devices/system/clocksource/clocksource0/available_clocksource", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, text, sizeof(text) - 1);
        text[got > 0 ? got : 0] = '\0';
        close(fd);
    }
    return strstr(text, "tsc") != NULL ? CLOCK_TSC : CLOCK_NS;
#else
    return CLOCK_NS;
#endif
}

static inline uint64_t ticks_now(enum clock_kind clock)
{
#if defined(__x86_64__)
    if (clock == CLOCK_TSC) {
        uint32_t lo, hi;
        __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
        return (uint64_t)hi << 32 | lo;
    }
#endif
    (void)clock;
    return clock_ns(CLOCK_MONOTONIC);
}

/* Measure the rate over the whole time since the start. */
static void calibrate(struct recorder *r)
{
    uint64_t ns = clock_ns(CLOCK_MONOTONIC) - r->start_ns;
    uint64_t ticks = ticks_now(r->clock) - r->head->start_ticks;
    if (ticks > 0) {
        atomic_store_explicit(&r->head->rate, (uint64_t)(((unsigned __int128)ns << 32) / ticks), memory_order_relaxed);
    }
}

/* ---- writing ---- */

static void head_init(struct recorder *r, uint32_t rank, uint32_t size)
{
    struct ring_head *h = r->head;
    memcpy(h->magic, RING_MAGIC, sizeof(h->magic));
    h->version = RING_VERSION;
    h->head_bytes = HEAD_BYTES;
    h->record_bytes = sizeof(struct record);
    h->records = RECORDER_RECORDS;
    h->rank = rank;
    h->size = size;
    h->pid = getpid();
    h->clock = r->clock;
    if (gethostname(h->host, sizeof(h->host) - 1) != 0) {
        h->host[0] = '\0';
    }
    h->start_unix_ns = clock_ns(CLOCK_REALTIME);
    h->start_ticks = ticks_now(r->clock);
    r->start_ns = clock_ns(CLOCK_MONOTONIC);
    h->check = hash64(h, HEAD_CHECKED, 0);
    atomic_init(&h->rate, RATE_ONE);
    if (r->clock == CLOCK_TSC) {
        while (clock_ns(CLOCK_MONOTONIC) - r->start_ns < CALIBRATE_NS) {
        }
        calibrate(r);
    }
    atomic_init(&h->phase_ticks, h->start_ticks);
    atomic_init(&h->beat_ticks, ticks_now(r->clock));
}

/* Make and map the file `temp`. */
static enum err map_new(struct recorder *r, const char *temp)
{
    int fd = open(temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return FAIL(ERR_IO, "%s: cannot be written: %s | check the folder", temp, strerror(errno));
    }
    enum err err = OK;
    int code = posix_fallocate(fd, 0, (off_t)RING_BYTES);
    if (code != 0) {
        err = FAIL(code == ENOSPC || code == EFBIG ? ERR_RESOURCE : ERR_IO, "%s: %zu bytes for the flight record: %s "
                   "| free space on this disk or choose another output folder", temp, RING_BYTES, strerror(code));
        goto out;
    }
    void *map = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (map == MAP_FAILED) {
        err = FAIL(ERR_IO, "%s: cannot be mapped: %s | choose an output folder on another file system", temp,
                   strerror(errno));
        goto out;
    }
    r->head = map;
    r->record = (struct record *)((unsigned char *)map + HEAD_BYTES);
out:
    close(fd);
    return err;
}

enum err recorder_new(struct recorder **out, const char *path, uint32_t rank, uint32_t size)
{
    struct buf temp = { 0 };
    struct recorder *r = NULL;
    void *block;
    enum err err;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(*r)));
    r = block;
    r->clock = clock_choose();
    TRY_OUT(buf_printf(&temp, "%s.tmp", path));
    TRY_OUT(map_new(r, temp.data));
    head_init(r, rank, size);
    if (rename(temp.data, path) != 0) {
        err = FAIL(ERR_IO, "%s: rename: %s | check the folder", path, strerror(errno));
        goto out;
    }
    *out = r;
    r = NULL;
out:
    if (r != NULL) {
        if (temp.data != NULL) {
            unlink(temp.data);
        }
        recorder_free(r, 0);
    }
    buf_release(&temp);
    return err;
}

void recorder_free(struct recorder *r, int exit_code)
{
    if (r == NULL) {
        return;
    }
    if (r->head != NULL) {
        recorder_beat(r);
        atomic_store_explicit(&r->head->ended, 1u + (uint32_t)exit_code, memory_order_relaxed);
        munmap(r->head, RING_BYTES);
    }
    free(r);
}

uint64_t recorder_begin(struct recorder *r, const struct comm_sig *sig)
{
    struct ring_head *h = r->head;
    uint64_t seq = atomic_fetch_add_explicit(&h->begun, 1, memory_order_relaxed) + 1;
    struct record *x = &r->record[(seq - 1) % RECORDER_RECORDS];
    __atomic_store_n(&x->seq, 0, __ATOMIC_RELAXED);
    atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order: the map is what a death leaves */
    x->t_out = 0;
    x->result = OK;
    x->t_in = ticks_now(r->clock);
    x->step = atomic_load_explicit(&h->step, memory_order_relaxed);
    x->layer = atomic_load_explicit(&h->layer, memory_order_relaxed);
    x->phase = (uint8_t)atomic_load_explicit(&h->phase, memory_order_relaxed);
    x->number = sig->number;
    x->group = sig->group;
    x->count = sig->count;
    x->shape = sig->shape;
    x->line = sig->line;
    x->root = sig->root;
    x->tag = sig->tag;
    x->kind = sig->kind;
    x->type = sig->type;
    x->op = sig->op;
    memcpy(x->file, sig->file, sizeof(x->file));
    memcpy(x->name, sig->name, sizeof(x->name));
    x->check = record_check(x);
    atomic_signal_fence(memory_order_seq_cst);
    __atomic_store_n(&x->seq, seq, __ATOMIC_RELAXED);
    return seq;
}

void recorder_end(struct recorder *r, uint64_t seq, enum err err)
{
    struct record *x = &r->record[(seq - 1) % RECORDER_RECORDS];
    if (__atomic_load_n(&x->seq, __ATOMIC_RELAXED) == seq) {
        x->result = (uint32_t)err;
        x->t_out = ticks_now(r->clock);
    }
}

void recorder_phase(struct recorder *r, enum comm_phase phase, uint64_t step, uint32_t layer)
{
    struct ring_head *h = r->head;
    atomic_store_explicit(&h->step, step, memory_order_relaxed);
    atomic_store_explicit(&h->layer, layer, memory_order_relaxed);
    atomic_store_explicit(&h->phase, (uint32_t)phase, memory_order_relaxed);
    atomic_store_explicit(&h->phase_ticks, ticks_now(r->clock), memory_order_relaxed);
}

void recorder_beat(struct recorder *r)
{
    calibrate(r);
    atomic_store_explicit(&r->head->beat_ticks, ticks_now(r->clock), memory_order_relaxed);
}
