/* Everything that `invar bench` measures, in one run. */
#ifndef BENCH_SUITE_H
#define BENCH_SUITE_H

#include "bench/machine.h"
#include "bench/measure.h"
#include "bench/ops.h"
#include "bench/whole.h"

#define BENCH_CASES_MAX 32u

/* A step of another length, batch or size than the one that was asked for. */
struct bench_case {
    const char *axis; /* "seq_length", "batch", "hidden", "layers" */
    uint64_t sequences, length, hidden, layers;
    double flops;     /* of a token */
    double best_s;    /* of a step; 0: left out */
    double line;      /* seconds of a token / what its operations make of that of the first case of the axis */
    char why[120];    /* what takes it off the line, or why it was left out */
};

struct bench_report {
    struct machine machine;
    struct disk disk;
    struct links links;
    struct ops_shape shape;
    struct op op[OPS_MAX];
    struct timing time[OPS_MAX];
    uint32_t ops;
    struct whole whole;
    struct noise_found noise;
    struct bench_case cases[BENCH_CASES_MAX];
    uint32_t case_count;
};

enum bench_part { BENCH_MACHINE, BENCH_KERNELS, BENCH_STEP, BENCH_SCALING };

struct bench_options {
    double seconds; /* about, without scaling: each of its cases takes at most half as long */
    bool scaling;   /* one rank only */
    /* Called after each part, on rank 0. */
    void (*done)(const struct bench_report *r, const struct conf *c, enum bench_part part);
};

/* Measure the job of `c`, whose batch is cut to one micro-batch for each stage and data-parallel rank, and whose paths
 * are not used. Collective over all ranks, whose results differ. */
MUST_USE enum err bench_run(struct bench_report *r, struct conf *c, struct comm_world *w,
                            const struct bench_options *o);

/* The least seconds of one call of op `i`: its operations at the peak - of bf16 numbers for products of them, else of
 * fp32 -, or its bytes at the rate of memory or of the cache that holds them. */
double bench_limit_s(const struct bench_report *r, uint32_t i);
/* Seconds of a step that the ops of a group take, each as fast as it was alone; `limit`: at their limits. */
double bench_group_s(const struct bench_report *r, enum ops_group g, bool limit);
/* What a step's products take at the measured peak, those left out that are computed again. */
double bench_bound_s(const struct bench_report *r);

/* Steps along one axis at a time, from the job of `c` outwards (scaling.c). One rank. */
MUST_USE enum err bench_scaling(struct bench_report *r, const struct conf *c, double seconds);

#endif
