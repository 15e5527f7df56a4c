/* Memory: checked heap calls, growing arrays, and arenas on 2-MB pages.
 * Two owners only: an arena (run, step) or one object that frees what it allocated. Not collective. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include "base/err.h"

struct pool;

#define MEM_ALIGN 64u /* one cache line and one AVX-512 register */

/* Heap memory, zeroed. count * size is checked for overflow. *out is NULL on failure (ERR_RESOURCE). */
MUST_USE enum err mem_alloc(void **out, size_t count, size_t size);
/* Grow *array (of *capacity elements of `size` bytes) to hold at least `need`; doubling. New elements are not set. */
MUST_USE enum err mem_grow(void **array, size_t *capacity, size_t need, size_t size);
/* A heap copy of `bytes` bytes plus a terminating zero. */
MUST_USE enum err mem_copy_string(char **out, const char *text, size_t bytes);

/* Bytes this process can still get without the system running out: free memory and swap, cut by the cgroup's limit;
 * UINT64_MAX when unknown. */
uint64_t mem_available_bytes(void);
/* ERR_RESOURCE when `bytes` are more than that. */
MUST_USE enum err mem_room(size_t bytes);
/* A block of zeroed memory aligned to 2 MB, on huge pages where the system gives them. */
MUST_USE enum err mem_big_alloc(void **out, size_t bytes);
/* As mem_big_alloc, with pages touched first by all threads of the pool, so near them or spread over their nodes. */
MUST_USE enum err mem_big_alloc_by(void **out, size_t bytes, struct pool *pool);
void mem_big_free(void *block, size_t bytes);
/* What a block of so many bytes takes: whole pages of 2 MB. */
size_t mem_big_bytes(size_t bytes);
/* Share of a block that is on 2-MB pages, as the system says; 1 when it says nothing. */
double mem_huge_share(const void *block, size_t bytes);
/* Whether the system, whose /sys is below `root` ("" for this machine), gives 2-MB pages at all. */
bool mem_huge_given(const char *root);

/* An arena: first laid out (arena with base == NULL: arena_take only counts), then backed by one block. The same code
 * runs twice, so the plan is the allocation. A plan of 2^64 bytes or more counts as SIZE_MAX, which nobody gives. */
struct arena {
    unsigned char *base; /* NULL while measuring */
    size_t capacity, used;
};

/* Carve `count` elements of `size` bytes, aligned to MEM_ALIGN. Returns NULL while measuring; exceeding the capacity
 * of a backed arena is a bug. */
void *arena_take(struct arena *a, size_t count, size_t size);
/* Back a measured arena: allocates a->used bytes and rewinds. */
MUST_USE enum err arena_back(struct arena *a);
MUST_USE enum err arena_back_by(struct arena *a, struct pool *pool); /* as mem_big_alloc_by */
void arena_release(struct arena *a);

/* a * b, SIZE_MAX when that is more: a size that every allocation refuses. */
size_t mem_mul(size_t a, size_t b);
/* Peak resident set of this process in bytes (VmHWM), 0 when unknown. */
uint64_t mem_peak_bytes(void);

#endif
