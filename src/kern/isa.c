/* Why this exists: one binary must run on every CPU of its family and pick the fastest kernels the CPU and the system
 * allow, and a user must be able to force a slower set to show that the bits do not change. Off x86-64 the best set is
 * vector; on x86-64, where it is compiled as avx2 is, it is there to be compared.
 *
 * Invariants: scalar always works; a set is offered only when every flag its leaf files are compiled with
 * (kern_isa_flags in meson.build) is present. __builtin_cpu_supports also asks XGETBV, so registers the system does
 * not save do not count. */
#include "kern/gemm_leaf.h"

#include <time.h>

static const char *const isa_names[ISA_COUNT] = { "scalar", "vector", "avx2", "avx512", "avx512bf16" };

const char *kern_isa_name(enum isa isa)
{
    BUG_IF((unsigned)isa >= ISA_COUNT);
    return isa_names[isa];
}

bool kern_isa_supported(enum isa isa)
{
    if (isa == ISA_SCALAR) {
        return true;
    }
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* F16C has no name in older compilers' lists; every CPU with AVX2 and FMA has it. */
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == ISA_VECTOR || isa == ISA_AVX2) {
        return avx2;
    }
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (isa == ISA_AVX512) {
        return avx512;
    }
    if (isa == ISA_AVX512BF16) {
        return avx512 && __builtin_cpu_supports("avx512bf16");
    }
    return false;
#else
    return isa == ISA_VECTOR;
#endif
}

/* The best of a few rounds of one thread, some 0.1 ms each. */
static double rate_of(double (*loop)(uint64_t rounds))
{
    double best = 0;
    for (int i = 0; i < 4; i++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        double flops = loop(20000);
        clock_gettime(CLOCK_MONOTONIC, &end);
        double rate = flops / ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec));
        best = rate > best ? rate : best;
    }
    return best;
}

/* VDPBF16PS is worth packing pairs for where it does more than fused multiply-adds of widened numbers: twice as much on
 * AMD, half as much on Intel, whose CPU lists do not tell. */
static bool pairs_are_fast(void)
{
    return rate_of(gemm_leaves_of[ISA_AVX512BF16]->bf16.peak_loop) > rate_of(gemm_leaves_of[ISA_AVX512]->f32.peak_loop);
}

static enum isa best_isa(void)
{
    enum isa best = ISA_SCALAR;
    for (int i = 0; i < ISA_COUNT; i++) {
        if (kern_isa_supported((enum isa)i) && (i != ISA_AVX512BF16 || pairs_are_fast())) {
            best = (enum isa)i;
        }
    }
    return best;
}

enum err kern_choose_isa(enum isa *out)
{
    const char *name = getenv("INVAR_ISA");
    if (name == NULL || name[0] == '\0') {
        *out = best_isa();
        return OK;
    }
    *out = ISA_SCALAR;
    for (int i = 0; i < ISA_COUNT; i++) {
        if (strcmp(name, isa_names[i]) == 0) {
            if (!kern_isa_supported((enum isa)i)) {
                return FAIL(ERR_USAGE, "INVAR_ISA: this CPU or system does not support \"%s\" | unset INVAR_ISA to use "
                                       "the best instruction set there is",
                            name);
            }
            *out = (enum isa)i;
            return OK;
        }
    }
    return FAIL(ERR_USAGE, "INVAR_ISA: found \"%s\", expected scalar, vector, avx2, avx512 or avx512bf16 | unset it "
                           "to use the best instruction set of this CPU",
                name);
}
