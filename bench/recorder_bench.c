/* What the flight recorder costs: nanoseconds for one call's record (its begin and its end) and for one phase, the best
 * of many rounds, and a read of the clock beside them in the same rounds. */
#include <stdio.h>

#include "base/log.h"
#include "comm/comm_int.h"
#include "comm/recorder.h"

#define ROUNDS 50
#define CALLS 100000

static double best(double a, double b)
{
    return a < b ? a : b;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "/tmp/invar-recorder-bench.ring";
    struct comm_sig sig = { .group = 1, .count = 4096, .kind = KIND_ALL_REDUCE, .type = TYPE_F32, .op = OP_MAX };
    snprintf(sig.file, sizeof(sig.file), "forward.c");
    snprintf(sig.name, sizeof(sig.name), "tp");
    struct recorder *r;
    if (recorder_new(&r, path, 0, 1) != OK) {
        err_print();
        return 1;
    }
    double record_s = 1e9, phase_s = 1e9, clock_s = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double t0 = log_seconds();
        for (uint64_t i = 0; i < CALLS; i++) {
            sig.number = i;
            recorder_end(r, recorder_begin(r, &sig), OK);
        }
        double t1 = log_seconds();
        for (uint64_t i = 0; i < CALLS; i++) {
            recorder_phase(r, PHASE_FORWARD, i, 3);
        }
        double t2 = log_seconds();
        for (uint64_t i = 0; i < CALLS; i++) {
            (void)log_seconds();
        }
        double t3 = log_seconds();
        record_s = best(record_s, t1 - t0);
        phase_s = best(phase_s, t2 - t1);
        clock_s = best(clock_s, t3 - t2);
    }
    recorder_free(r, 0);
    remove(path);
    printf("recorder: a call %.1f ns, a phase %.1f ns; the system's clock takes %.1f ns\n", record_s / CALLS * 1e9,
           phase_s / CALLS * 1e9, clock_s / CALLS * 1e9);
    return 0;
}
