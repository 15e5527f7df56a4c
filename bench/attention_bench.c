/* How near attention comes to the fused multiply-add peak of the same threads, measured in turns in one process: ratios
 * survive a busy machine, absolute times do not. Work is counted on the causal half: 4 D operations forward and 10 D
 * backward for each pair of a query and a key it sees. Each shape in fp32 and in bf16, whose speed is also given as a
 * multiple of fp32's.
 *
 *   bench_attention [repetitions [threads]]      INVAR_ISA chooses the instruction set */
#include <time.h>

#include "base/bf16.h"
#include "base/log.h"
#include "base/mem.h"
#include "kern/kern.h"

#define REPETITIONS 7

struct shape {
    uint64_t rows, heads, kv_heads, dim;
};

static const struct shape shapes[] = {
    { 256, 12, 12, 64 }, { 1024, 12, 12, 64 }, { 2048, 12, 12, 64 }, { 256, 9, 3, 64 },   { 1024, 9, 3, 64 },
    { 2048, 8, 2, 64 },  { 256, 8, 2, 128 },   { 1024, 8, 2, 128 },  { 2048, 8, 2, 128 },  { 1024, 12, 12, 128 },
};

struct bench {
    struct kern *kern;
    uint32_t threads, repetitions;
    struct attention a;
    struct attention_grad g;
    size_t floats;
};

/* Processor time is blind to other processes, but not to our own waiting: wall time with several threads. */
static double seconds_now(const struct bench *b)
{
    struct timespec t;
    if (b->threads == 1 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0) {
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return log_seconds();
}

/* q, k, v side by side as one projection leaves them; bf16 numbers take the first half of their places. */
static enum err set_up(struct bench *b, const struct shape *s, enum num type, void **memory)
{
    uint64_t q = s->heads * s->dim, kv = s->kv_heads * s->dim, ld = q + 2 * kv;
    b->floats = s->rows * (2 * ld + 2 * q + 2 * s->heads);
    TRY(mem_big_alloc(memory, b->floats * sizeof(float)));
    float *x = *memory;
    for (uint64_t i = 0; i < b->floats; i++) {
        x[i] = (float)(i * 7919 % 1021) * 0x1p-9f - 1.0f;
    }
    for (uint64_t i = 0; i < s->rows * ld && type == NUM_BF16; i++) {
        uint16_t half = bf16_from_float(x[i]);
        memcpy(num_at_mut(x, type, i), &half, sizeof(half));
    }
    float *grad = x + s->rows * ld, *o = grad + s->rows * ld, *d_o = o + s->rows * q, *lse = d_o + s->rows * q;
    b->a = (struct attention){ .heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->dim, .rows = s->rows,
                               .scale = 0.125f, .type = type, .q = x, .k = num_at(x, type, q),
                               .v = num_at(x, type, q + kv), .ldq = ld, .ldk = ld, .o = o, .ldo = q, .lse = lse };
    b->g = (struct attention_grad){ d_o, grad, grad + q, grad + q + kv, lse + s->rows * s->heads };
    return OK;
}

/* GFLOP/s of one pass. */
static double measure(const struct bench *b, const struct shape *s, bool backward)
{
    double start = seconds_now(b);
    if (backward) {
        kern_attention_backward(b->kern, &b->a, &b->g);
    } else {
        kern_attention_forward(b->kern, &b->a);
    }
    double pairs = 0.5 * (double)s->rows * (double)(s->rows + 1) * (double)(s->heads * s->dim) * 1e-9;
    return (backward ? 10 : 4) * pairs / (seconds_now(b) - start);
}

static enum err bench_shape(struct bench *b, const struct shape *s)
{
    struct bench of_type[2] = { *b, *b };
    void *memory[2] = { NULL, NULL };
    double best[2][2] = { { 0 } }, peak = 0; /* [type][direction] */
    enum err err = OK;
    for (int type = NUM_F32; type <= NUM_BF16; type++) {
        TRY_OUT(set_up(&of_type[type], s, (enum num)type, &memory[type]));
    }
    for (uint32_t r = 0; r < b->repetitions; r++) {
        double p = kern_peak_gflops(b->kern);
        peak = p > peak ? p : peak;
        for (int i = 0; i < 4; i++) {
            int type = i / 2, backward = i % 2;
            double speed = measure(&of_type[type], s, backward == 1);
            best[type][backward] = speed > best[type][backward] ? speed : best[type][backward];
        }
    }
    printf("%6u %4u %4u %4u %9.1f %9.1f %9.1f %9.3f %9.3f %9.3f %9.3f\n", (unsigned)s->rows, (unsigned)s->heads,
           (unsigned)s->kv_heads, (unsigned)s->dim, best[0][0], best[0][1], peak, best[0][0] / peak, best[0][1] / peak,
           best[1][0] / best[0][0], best[1][1] / best[0][1]);
    fflush(stdout);
out:
    for (int type = NUM_F32; type <= NUM_BF16; type++) {
        mem_big_free(memory[type], of_type[type].floats * sizeof(float));
    }
    return err;
}

/* Generation: one query row against a full cache, in microseconds. */
static enum err bench_one_row(struct bench *b, const struct shape *s)
{
    void *memory;
    TRY(set_up(b, s, NUM_F32, &memory));
    b->a.first = s->rows - 1;
    b->a.rows = 1;
    double best = 1e30;
    for (uint32_t r = 0; r < 5 * b->repetitions; r++) {
        double start = seconds_now(b);
        kern_attention_forward(b->kern, &b->a);
        double seconds = seconds_now(b) - start;
        best = seconds < best ? seconds : best;
    }
    printf("%6u %4u %4u %4u one row: %.0f us\n", (unsigned)s->rows, (unsigned)s->heads, (unsigned)s->kv_heads,
           (unsigned)s->dim, best * 1e6);
    mem_big_free(memory, b->floats * sizeof(float));
    return OK;
}

static enum err bench_threads(uint32_t threads, uint32_t repetitions)
{
    struct bench b = { .threads = threads, .repetitions = repetitions };
    struct pool *pool = NULL;
    enum isa isa;
    enum err err = OK;
    TRY_OUT(kern_choose_isa(&isa));
    TRY_OUT(pool_new(&pool, threads));
    TRY_OUT(kern_new(&b.kern, isa, pool));
    printf("\n%u thread%s, %s, best of %u\n", threads, threads == 1 ? "" : "s", kern_isa_name(isa), repetitions);
    printf("%6s %4s %4s %4s %9s %9s %9s %9s %9s %9s %9s\n", "T", "H", "G", "D", "fwd GF/s", "bwd GF/s", "peak",
           "fwd/peak", "bwd/peak", "bf16 fwd", "bf16 bwd");
    for (uint64_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        TRY_OUT(bench_shape(&b, &shapes[i]));
    }
    TRY_OUT(bench_one_row(&b, &shapes[1]));
    TRY_OUT(bench_one_row(&b, &shapes[5]));
out:
    kern_free(b.kern);
    pool_free(pool);
    return err;
}

int main(int argc, char **argv)
{
    uint32_t repetitions = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : REPETITIONS;
    uint32_t threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    enum err err = OK;
    for (uint32_t t = 1; t <= pool_cores() && err == OK; t *= 2) {
        if (threads == 0 || threads == t) {
            err = bench_threads(t, repetitions > 0 ? repetitions : 1);
        }
    }
    if (err != OK) {
        err_print();
    }
    return err_exit_code(err);
}
