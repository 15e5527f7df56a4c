/* Times of pieces of work on a machine that others use too: all pieces take turns, the least time of each counts. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdint.h>

/* Does piece `i` once. */
typedef void measure_fn(void *arg, uint32_t i);

struct timing {
    uint32_t inner;   /* runs of a sample: enough for the clock */
    uint32_t samples;
    double best_s;    /* of one run */
    double sum_s;     /* of all samples, of one run each */
};

/* Every piece once to warm up, then rounds over all of them for `seconds`, at least one. Not collective. */
void measure(uint32_t count, measure_fn *run, void *arg, double seconds, struct timing *out);

#endif
