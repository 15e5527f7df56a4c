/* Why this exists: a whole job as threads of one process, so that every layout runs in a test, under sanitizers and in
 * `invar verify`. It is the transport of processes without the processes: the same engine on plain memory. A seed makes
 * ranks late and messages overtake each other, so that an order nobody promised breaks in a test.
 *
 * Invariant: a block of memory lives until its last user frees it; worlds live until comm_threads_free, so what a rank
 * sent before it closed is still there. */
#include "comm/comm_int.h"

#include <sched.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"

/* What worlds of one comm_threads share. */
struct comm_threads {
    uint32_t size;
    uint32_t *zero;   /* node of each rank */
    uint32_t *number; /* rank within the node of each rank */
    struct comm_region ctl;
    struct thread_rank *rank;
};

struct thread_rank {
    struct comm_world *world;
    uint64_t seed;
    _Atomic uint64_t events; /* disturbances so far */
};

/* In front of the memory of a region; handle.word[0] is its address. */
struct shared_block {
    _Alignas(64) _Atomic uint32_t users;
    void *heap; /* what to free */
};

/* From the heap, whose large blocks are pages that come when they are touched. */
static enum err thread_region_new(struct comm_world *w, uint64_t bytes, struct comm_region *out)
{
    (void)w;
    void *heap;
    uint64_t available = mem_available_bytes();
    if (bytes > available) { /* the heap would promise it */
        return FAIL(ERR_RESOURCE, "out of memory: %.2f GB are to be shared between ranks, %.2f GB are available",
                    (double)bytes * 1e-9, (double)available * 1e-9);
    }
    TRY(mem_alloc(&heap, bytes + sizeof(struct shared_block) + MEM_ALIGN, 1));
    struct shared_block *b = (struct shared_block *)(((uintptr_t)heap + MEM_ALIGN) / MEM_ALIGN * MEM_ALIGN);
    atomic_store(&b->users, 1);
    b->heap = heap;
    *out = (struct comm_region){ (unsigned char *)(b + 1), bytes, { { (uintptr_t)b } } };
    return OK;
}

static enum err thread_region_map(struct comm_world *w, struct comm_region *r)
{
    (void)w;
    struct shared_block *b = (struct shared_block *)(uintptr_t)r->handle.word[0];
    atomic_fetch_add(&b->users, 1);
    r->base = (unsigned char *)(b + 1);
    return OK;
}

static void thread_region_found(struct comm_world *w, struct comm_region *r)
{
    (void)w;
    (void)r; /* an address needs no keeping */
}

static void thread_region_free(struct comm_world *w, struct comm_region *r)
{
    (void)w;
    struct shared_block *b = (struct shared_block *)(uintptr_t)r->handle.word[0];
    if (atomic_fetch_sub(&b->users, 1) == 1) {
        free(b->heap);
    }
    *r = (struct comm_region){ .base = NULL };
}

static uint64_t thread_disturb(struct comm_world *w)
{
    struct thread_rank *rank = w->transport_state;
    if (rank->seed == 0) {
        return 0;
    }
    uint64_t event = atomic_fetch_add_explicit(&rank->events, 1, memory_order_relaxed);
    uint64_t chance = hash_mix(rank->seed + event * 0x9e3779b97f4a7c15u);
    for (uint64_t i = 0; i < chance % 4; i++) {
        sched_yield();
    }
    if (chance >> 8 & 15) {
        return 0;
    }
    uint64_t ns = (chance >> 16) % 100000;
    nanosleep(&(struct timespec){ 0, (long)ns }, NULL);
    return (chance >> 40) % 200000;
}

static void thread_close(struct comm_world *w, enum err err)
{
    (void)w;
    (void)err; /* comm_threads_free frees it: others may still read what it left */
}

static const struct comm_transport threads = {
    .name = "threads",
    .region_new = thread_region_new,
    .region_map = thread_region_map,
    .region_found = thread_region_found,
    .region_free = thread_region_free,
    .disturb = thread_disturb,
    .close = thread_close,
};

static enum err start_ranks(struct comm_threads *t, uint64_t seed)
{
    for (uint32_t r = 0; r < t->size; r++) {
        t->number[r] = r;
    }
    for (uint32_t r = 0; r < t->size; r++) {
        struct thread_rank *rank = &t->rank[r];
        rank->seed = seed != 0 ? hash_mix(seed * 1000 + r) | 1 : 0;
        const struct comm_world def = { .rank = r, .size = t->size, .nodes = 1, .node_size = t->size, .node_rank = r,
                                        .node_of = t->zero, .node_rank_of = t->number, .transport = &threads,
                                        .ctl = (struct comm_node *)t->ctl.base, .transport_state = rank };
        TRY(world_new(&rank->world, &def));
    }
    return OK;
}

enum err comm_threads_new(struct comm_threads **out, uint32_t size, uint64_t seed)
{
    BUG_IF(size == 0);
    *out = NULL;
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct comm_threads)));
    struct comm_threads *t = mem;
    t->size = size;
    enum err err;
    TRY_OUT(mem_alloc(&mem, size, sizeof(*t->rank)));
    t->rank = mem;
    TRY_OUT(mem_alloc(&mem, size, sizeof(*t->zero)));
    t->zero = mem;
    TRY_OUT(mem_alloc(&mem, size, sizeof(*t->number)));
    t->number = mem;
    TRY_OUT(thread_region_new(NULL, world_region_bytes(size, 1), &t->ctl));
    TRY_OUT(start_ranks(t, seed));
    *out = t;
out:
    if (err != OK) {
        comm_threads_free(t);
    }
    return err;
}

struct comm_world *comm_threads_world(struct comm_threads *t, uint32_t rank)
{
    BUG_IF(rank >= t->size);
    return t->rank[rank].world;
}

void comm_threads_free(struct comm_threads *t)
{
    if (t == NULL) {
        return;
    }
    for (uint32_t r = 0; t->rank != NULL && r < t->size; r++) {
        world_free(t->rank[r].world);
    }
    if (t->ctl.base != NULL) {
        thread_region_free(NULL, &t->ctl);
    }
    free(t->rank);
    free(t->zero);
    free(t->number);
    free(t);
}
