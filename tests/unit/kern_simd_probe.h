/* What kern_simd_probe.c (compiled once per instruction set) lets kern_simd_test.c call. */
#ifndef TESTS_UNIT_KERN_SIMD_PROBE_H
#define TESTS_UNIT_KERN_SIMD_PROBE_H

#include <stdint.h>

enum probe_op {
    PROBE_ADD,
    PROBE_SUB,
    PROBE_MUL,
    PROBE_DIV,
    PROBE_SQRT,
    PROBE_FMA,
    PROBE_FNMA,
    PROBE_MIN,
    PROBE_MAX,
    PROBE_ROUND,
    PROBE_LT,
    PROBE_LE,
    PROBE_EQ,
    PROBE_ABS,
    PROBE_NEG,
    PROBE_SUM,
    PROBE_MAX_LANES,
    PROBE_SHIFTS,
    PROBE_EXP,
    PROBE_EXP_LOW, /* of min(a, 88) */
    PROBE_LOG,
    PROBE_SIGMOID,
    PROBE_TANH,
    PROBE_ERF,
    PROBE_ROUND_BF16,
    PROBE_COUNT,
};

/* One table for each instruction set. */
struct probe {
    /* out[16] = op(a, b, c); reductions fill all lanes with their result. */
    void (*apply)(enum probe_op op, const float *a, const float *b, const float *c, float *out);
    /* out[0, n) = a[0, n) through v16_load_n and v16_store_n. */
    void (*copy_n)(const float *a, float *out, uint32_t n);
    uint32_t (*add_fixed)(int64_t *acc, const float *a, float limit);
    void (*from_fixed)(const int64_t *p, float *out);
    void (*load_bf16)(const uint16_t *p, float *out);
    void (*load_bf16_n)(const uint16_t *p, float *out, uint32_t n); /* all of out[16] */
    void (*store_bf16)(uint16_t *p, const float *a);
    void (*store_bf16_n)(uint16_t *p, const float *a, uint32_t n);
    void (*transpose)(float *r); /* r[16][16] */
};

extern const struct probe probe_scalar, probe_vector, probe_avx2, probe_avx512, probe_avx512bf16;

#endif
