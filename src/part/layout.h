/* Who is who: the ranks of a job as coordinates, and what each of them holds of samples, positions and layers. Pure
 * arithmetic: the same answer on every rank, no memory, not collective. */
#ifndef PART_LAYOUT_H
#define PART_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "part/order.h"

/* Sizes of the axes, each at least 1; the world has pp x dp x cp x tp ranks. */
struct layout {
    uint32_t pp, dp, cp, tp;
};

/* Where a rank stands on each axis. */
struct coord {
    uint32_t pp, dp, cp, tp;
};

/* The number of ranks; below 2^32. */
uint32_t layout_world(const struct layout *l);
/* rank = ((pp_i * dp + dp_i) * cp + cp_i) * tp + tp_i: tensor-parallel neighbours are neighbours on a node. */
struct coord layout_coord(const struct layout *l, uint32_t rank);
uint32_t layout_rank(const struct layout *l, const struct coord *c);

/* Part i of `parts` of [0, n): in order, disjoint, covering, lengths differ by at most 1 (longer ones first). Where
 * `parts` divides n these are the segments of order.h. */
struct order_range part_range(uint64_t n, uint32_t parts, uint32_t i);
/* The same in blocks of `align`, of which the last may be short: every boundary is a multiple of `align`, or n. */
struct order_range part_range_aligned(uint64_t n, uint64_t align, uint32_t parts, uint32_t i);

/* ---- context parallelism: positions of a sequence of T tokens, in whole units ---- */

/* Whether cp ranks can share a sequence: T is a multiple of cp x unit, and unit one of min(unit, ORDER_HEAD_UNIT), so
 * that a chunk has whole units of every gradient. One rank always can. Zeros never fit. */
bool context_fits(uint64_t seq_length, uint64_t unit, uint32_t cp);
/* A rank holds `context_chunks` chunks of equal length, in ascending position order: chunk group j is dealt to the
 * ranks forwards for even j and backwards for odd j. 2 chunks when T / (cp x unit) is even: then the causal work, a
 * query's position + 1, is the same on all ranks. Else T / (cp x unit) chunks of one unit: then it differs between
 * ranks by at most (cp - 1) x unit^2 of T (T + 1) / 2. One rank: one chunk, the sequence. */
uint32_t context_chunks(uint64_t seq_length, uint64_t unit, uint32_t cp);
/* Positions of chunk j of rank `rank`. */
struct order_range context_chunk(uint64_t seq_length, uint64_t unit, uint32_t cp, uint32_t rank, uint32_t j);

/* ---- pipeline parallelism ---- */

enum pipe_schedule { PIPE_GPIPE, PIPE_1F1B, PIPE_INTERLEAVED };

struct pipe {
    enum pipe_schedule schedule;
    uint32_t stages;        /* pp */
    uint32_t chunks;        /* model chunks of a stage: at least 2 when interleaved, else 1 */
    uint64_t layers;
    const uint64_t *counts; /* layers of each virtual stage [stages * chunks], or NULL: part_range */
};

/* Whether p describes a pipeline: chunks as the schedule wants them; counts sum to `layers`, or without counts every
 * virtual stage gets a layer. Only this may be asked of what a user wrote: the other functions take p for granted. */
bool pipe_fits(const struct pipe *p);
/* Layers of chunk `chunk` of stage `stage`, which is virtual stage chunk * stages + stage. May be empty only when
 * counts says so. */
struct order_range pipe_layers(const struct pipe *p, uint32_t stage, uint32_t chunk);

/* The forward or backward pass of one micro-batch through one chunk. */
struct pipe_op {
    bool forward;
    uint32_t micro, chunk;
};

/* The timetable of a stage with `micros` micro-batches: pipe_ops operations, operation i of them. Every (micro, chunk)
 * has one forward and one backward; per chunk both are in ascending micro order. With sends that never block and
 * receives that wait, all stages following their timetables never deadlock, for every number of micro-batches. A call
 * takes time in the order of the logarithm of pipe_ops. */
uint64_t pipe_ops(const struct pipe *p, uint32_t micros);
struct pipe_op pipe_op(const struct pipe *p, uint32_t stage, uint32_t micros, uint64_t i);
/* Activation sets a chunk of this stage needs: the most micro-batches whose forward is done and backward is not.
 * Micro-batch m uses set m mod this. At least 1. Chunks of a stage are at their most at different times: all their sets
 * together are more than the stage ever has in flight. */
uint32_t pipe_sets(const struct pipe *p, uint32_t stage, uint32_t chunk, uint32_t micros);
/* Share of the time that stages of equal cost are idle: (stages - 1) / (chunks * micros + stages - 1). Interleaved with
 * micros that are not a multiple of stages: at least that share, yet never longer than 1F1B takes for the same work. */
double pipe_bubble(const struct pipe *p, uint32_t micros);

#endif
