/* The bytes of a ring file, shared by its writer and its reader; docs/formats.md describes them. */
#ifndef COMM_RECORDER_INT_H
#define COMM_RECORDER_INT_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/hash.h"
#include "comm/recorder.h"

#define RING_MAGIC "INVARREC"
#define RING_VERSION 1u
#define HEAD_BYTES 4096u
#define RING_BYTES (HEAD_BYTES + RECORDER_RECORDS * sizeof(struct record))
#define RATE_ONE ((uint64_t)1 << 32)

/* What a tick is: a nanosecond of CLOCK_MONOTONIC, or one of the processor's time stamp counter. */
enum clock_kind { CLOCK_NS, CLOCK_TSC, CLOCK_KIND_COUNT };

struct ring_head {
    char magic[8];
    uint32_t version, head_bytes, record_bytes, records;
    uint32_t rank, size;
    int32_t pid;
    uint32_t clock; /* enum clock_kind */
    uint64_t start_unix_ns, start_ticks;
    char host[RECORDER_HOST_BYTES];
    uint64_t check; /* hash of all above */
    _Alignas(64) _Atomic uint64_t begun;
    _Alignas(64) _Atomic uint64_t step;
    _Atomic uint64_t phase_ticks, beat_ticks;
    _Atomic uint64_t rate; /* nanoseconds of a tick, times 2^32 */
    _Atomic uint32_t phase, layer;
    _Atomic uint32_t ended; /* 0, or 1 + exit code */
};
#define HEAD_CHECKED offsetof(struct ring_head, check)

_Static_assert(sizeof(struct ring_head) <= HEAD_BYTES, "the head fits its page");
_Static_assert(HEAD_CHECKED == 120 && offsetof(struct ring_head, begun) == 128 &&
                   offsetof(struct ring_head, step) == 192 && offsetof(struct ring_head, rate) == 216 &&
                   offsetof(struct ring_head, ended) == 232,
               "the head of version 1");
_Static_assert(sizeof(struct record) == 144 && offsetof(struct record, layer) == 20 &&
                   offsetof(struct record, line) == 72 && offsetof(struct record, check) == 136,
               "the record of version 1");

static inline uint64_t record_check(const struct record *x)
{
    return hash64(&x->layer, offsetof(struct record, check) - offsetof(struct record, layer), 0);
}

#endif
