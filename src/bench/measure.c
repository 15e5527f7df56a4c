/* Why this exists: one long measurement of a kernel says what the machine did at that moment. Rounds over all kernels
 * give each of them many moments, so that load from elsewhere spoils samples instead of results. */
#include "bench/measure.h"

#include "base/log.h"

#define SAMPLE_S 1e-3 /* the least time of a sample */
#define INNER_MAX 100000u

static double sample(measure_fn *run, void *arg, uint32_t i, uint32_t inner)
{
    double start = log_seconds();
    for (uint32_t k = 0; k < inner; k++) {
        run(arg, i);
    }
    return (log_seconds() - start) / inner;
}

static uint32_t repeats(double run_s)
{
    if (run_s > SAMPLE_S) {
        return 1;
    }
    return run_s > SAMPLE_S / INNER_MAX ? (uint32_t)(SAMPLE_S / run_s) + 1 : INNER_MAX;
}

void measure(uint32_t count, measure_fn *run, void *arg, double seconds, struct timing *out)
{
    double start = log_seconds();
    for (uint32_t i = 0; i < count; i++) {
        double first = sample(run, arg, i, 1); /* also touches the memory: not counted */
        out[i] = (struct timing){ .inner = repeats(first), .best_s = 1e30 };
    }
    do {
        for (uint32_t i = 0; i < count; i++) {
            double s = sample(run, arg, i, out[i].inner);
            out[i].best_s = s < out[i].best_s ? s : out[i].best_s;
            out[i].sum_s += s;
            out[i].samples++;
        }
    } while (log_seconds() - start < seconds);
}
