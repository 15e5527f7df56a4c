/* For tests of kern/: every instruction set of this machine with 1, 2 and 3 threads, deterministic inputs, and
 * outputs with sentinels around them. A fact is checked against a double reference on the first variant (scalar, one
 * thread: the definition), and every other variant must give the same bytes, sentinels included. */
#ifndef TESTS_UNIT_KERN_EACH_H
#define TESTS_UNIT_KERN_EACH_H

#include "test.h"

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kern/kern.h"

#define THREADS_MAX 3u
#define VARIANTS_MAX (ISA_COUNT * THREADS_MAX)
#define OUT_BYTES ((size_t)1 << 20)
#define OUT_PARTS_MAX 8u
#define GAP_BYTES 64u
#define GAP_BYTE 0xa5

struct variant {
    enum isa isa;
    uint32_t threads;
    struct pool *pool;
    struct kern *kern;
};

/* Output memory: parts with gaps between them. */
struct outs {
    unsigned char *bytes;
    size_t used;
    size_t gap[OUT_PARTS_MAX + 1], part[OUT_PARTS_MAX + 1];
    uint32_t gaps;
};

struct each {
    struct variant variant[VARIANTS_MAX];
    uint32_t count;
    struct outs outs, first, whole;
};

static inline void outs_gap(struct outs *o)
{
    assert_true(o->gaps <= OUT_PARTS_MAX && o->used + GAP_BYTES <= OUT_BYTES);
    o->gap[o->gaps++] = o->used;
    memset(o->bytes + o->used, GAP_BYTE, GAP_BYTES);
    o->used += GAP_BYTES;
}

static inline void outs_begin(struct outs *o)
{
    o->used = 0;
    o->gaps = 0;
    memset(o->bytes, 0x7b, OUT_BYTES); /* what an output holds before: a finite, odd number */
    outs_gap(o);
}

/* Room for `count` elements of `size` bytes; not cleared. 4-byte elements get no more than 4-byte alignment. */
static inline void *outs_take(struct outs *o, size_t count, size_t size)
{
    o->used = (o->used + size - 1) / size * size;
    void *p = o->bytes + o->used;
    o->part[o->gaps - 1] = o->used;
    o->used += count * size;
    outs_gap(o);
    return p;
}

/* What the i-th outs_take returned. */
static inline void *outs_part(const struct outs *o, uint32_t i)
{
    assert_true(i + 1 < o->gaps);
    return o->bytes + o->part[i];
}

static inline void outs_check(const struct outs *o)
{
    for (uint32_t g = 0; g < o->gaps; g++) {
        for (size_t i = 0; i < GAP_BYTES; i++) {
            if (o->bytes[o->gap[g] + i] != GAP_BYTE) {
                fail_msg("byte %zu of gap %u was overwritten", i, g);
            }
        }
    }
}

static inline void each_open(struct each *e)
{
    memset(e, 0, sizeof(*e));
    void *mem;
    assert_ok(mem_alloc(&mem, 3, OUT_BYTES));
    e->first.bytes = mem;
    e->outs.bytes = (unsigned char *)mem + OUT_BYTES;
    e->whole.bytes = (unsigned char *)mem + 2 * OUT_BYTES;
    for (int isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
        if (!kern_isa_supported((enum isa)isa)) {
            continue;
        }
        for (uint32_t threads = 1; threads <= THREADS_MAX; threads++) {
            struct variant *v = &e->variant[e->count++];
            v->isa = (enum isa)isa;
            v->threads = threads;
            assert_ok(pool_new(&v->pool, threads));
            assert_ok(kern_new(&v->kern, v->isa, v->pool));
        }
    }
}

static inline void each_close(struct each *e)
{
    for (uint32_t i = 0; i < e->count; i++) {
        kern_free(e->variant[i].kern);
        pool_free(e->variant[i].pool);
    }
    free(e->first.bytes);
}

struct shape {
    uint64_t rows, cols;
    uint64_t step; /* rows given to one call */
    int option;    /* the test's own */
};

/* Takes its outputs from `outs`. */
typedef void each_fn(struct kern *k, struct outs *outs, const struct shape *shape);

/* Run `fn` on every variant; returns the outputs of the definition. */
static inline const struct outs *each_run(struct each *e, each_fn *fn, const struct shape *shape)
{
    for (uint32_t i = 0; i < e->count; i++) {
        struct outs *o = i == 0 ? &e->first : &e->outs;
        outs_begin(o);
        fn(e->variant[i].kern, o, shape);
        outs_check(o);
        for (size_t b = 0; i > 0 && b < e->first.used; b++) {
            if (o->bytes[b] != e->first.bytes[b]) {
                fail_msg("%s with %u threads differs from scalar with 1 at byte %zu", kern_isa_name(e->variant[i].isa),
                         e->variant[i].threads, b);
            }
        }
    }
    return &e->first;
}

/* As each_run in one call for all rows, after proving that calls of fewer rows give the same bytes. */
static inline const struct outs *each_run_split(struct each *e, each_fn *fn, struct shape shape)
{
    shape.step = shape.rows;
    const struct outs *o = each_run(e, fn, &shape);
    memcpy(e->whole.bytes, o->bytes, o->used);
    for (uint64_t step = 1; step < shape.rows && step <= 2; step++) {
        shape.step = step;
        each_run(e, fn, &shape);
        if (memcmp(e->whole.bytes, o->bytes, o->used) != 0) {
            fail_msg("%u rows in calls of %u give other bits than one call", (unsigned)shape.rows, (unsigned)step);
        }
    }
    return o;
}

/* Deterministic numbers, roughly normal with the given deviation. */
static inline void numbers(float *p, size_t n, uint64_t stream, double deviation)
{
    for (size_t i = 0; i < n; i += 4) {
        double normal[4];
        rng_normal4(rng_at(99, RNG_TEST, stream, i), normal);
        for (size_t j = 0; j < 4 && i + j < n; j++) {
            p[i + j] = (float)(normal[j] * deviation);
        }
    }
}

static inline void assert_near(const char *what, size_t i, double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance)) {
        fail_msg("%s[%zu]: %.9g, expected %.9g +- %.2g", what, i, found, expected, tolerance);
    }
}

#endif
