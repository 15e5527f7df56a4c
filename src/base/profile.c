/* Why this exists: where the time of a step goes is seen only with every thread and rank side by side. Recording must
 * not change what it looks at: a span costs two looks at the clock and one entry of an array.
 *
 * Invariant: an entry belongs to the thread that took its number from `used`. */
#include "base/profile.h"

#include <stdatomic.h>
#include <time.h>

#include "base/mem.h"

struct profile {
    struct profile_event *list;
    uint64_t room;
    _Atomic uint64_t used;
    _Atomic bool on;
    uint64_t start;
};

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

enum err profile_new(struct profile **out, uint64_t events)
{
    void *mem;
    *out = NULL;
    TRY(mem_alloc(&mem, 1, sizeof(struct profile)));
    struct profile *p = mem;
    p->room = events;
    enum err err = mem_big_alloc(&mem, profile_bytes(events));
    p->list = mem;
    if (err != OK) {
        free(p);
        return err;
    }
    *out = p;
    return OK;
}

void profile_free(struct profile *p)
{
    if (p != NULL) {
        mem_big_free(p->list, profile_bytes(p->room));
        free(p);
    }
}

uint64_t profile_bytes(uint64_t events)
{
    return mem_mul(events, sizeof(struct profile_event));
}

void profile_start(struct profile *p)
{
    if (p != NULL) {
        atomic_store(&p->used, 0);
        p->start = clock_ns() - 1; /* 0 stands for nothing */
        atomic_store(&p->on, true);
    }
}

void profile_stop(struct profile *p)
{
    if (p != NULL) {
        atomic_store(&p->on, false);
    }
}

uint64_t profile_now(const struct profile *p)
{
    return p != NULL && atomic_load_explicit(&p->on, memory_order_relaxed) ? clock_ns() - p->start : 0;
}

void profile_add(struct profile *p, uint64_t begin, const char *row, const char *name, const uint64_t size[3])
{
    uint64_t end = profile_now(p);
    if (begin == 0 || end == 0) {
        return;
    }
    uint64_t i = atomic_fetch_add_explicit(&p->used, 1, memory_order_relaxed);
    if (i >= p->room) {
        return;
    }
    struct profile_event *e = &p->list[i];
    *e = (struct profile_event){ .begin = begin, .end = end };
    snprintf(e->row, sizeof(e->row), "%s", row);
    snprintf(e->name, sizeof(e->name), "%s", name);
    if (size != NULL) {
        memcpy(e->size, size, sizeof(e->size));
    }
}

const struct profile_event *profile_events(const struct profile *p, uint64_t *count, uint64_t *dropped)
{
    uint64_t used = atomic_load(&p->used);
    *count = used < p->room ? used : p->room;
    *dropped = used - *count;
    return p->list;
}
