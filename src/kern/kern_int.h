/* Private to kern/: the instance and the naming of leaf kernels. Branches in the parent, loops in the leaf: files
 * compiled once (gemm.c, attention.c, ...) check arguments and divide the outputs over the pool; leaf files
 * (*_leaf.c) are compiled once per instruction set and export one table of functions each, so that nothing outside
 * picks an instruction set by itself. */
#ifndef KERN_KERN_INT_H
#define KERN_KERN_INT_H

#include "kern/kern.h"

/* KERN_ISA is 0, 1, 2, 3, 4 in leaf files (meson.build): KERN_NAME(x) is x_scalar, x_avx2, x_avx512, x_avx512bf16,
 * x_vector. What is not one of the three below is scalar. */
#if defined(KERN_ISA)
#define KERN_AVX2 (KERN_ISA == 1)
#define KERN_AVX512 (KERN_ISA == 2 || KERN_ISA == 3)
#define KERN_VECTOR (KERN_ISA == 4)
#define KERN_PASTE_(a, b) a##_##b
#define KERN_PASTE(a, b) KERN_PASTE_(a, b)
#if KERN_VECTOR
#define KERN_NAME(x) KERN_PASTE(x, vector)
#elif KERN_ISA == 3
#define KERN_NAME(x) KERN_PASTE(x, avx512bf16)
#elif KERN_ISA == 2
#define KERN_NAME(x) KERN_PASTE(x, avx512)
#elif KERN_ISA == 1
#define KERN_NAME(x) KERN_PASTE(x, avx2)
#else
#define KERN_NAME(x) KERN_PASTE(x, scalar)
#endif
#endif

/* The tables x_scalar, x_vector, ... by instruction set; of a set of another CPU there is none. */
#if defined(__x86_64__)
#define KERN_TABLES(x)                                                                             \
    {                                                                                              \
        [ISA_SCALAR] = &x##_scalar, [ISA_VECTOR] = &x##_vector, [ISA_AVX2] = &x##_avx2,            \
        [ISA_AVX512] = &x##_avx512, [ISA_AVX512BF16] = &x##_avx512bf16,                            \
    }
#else
#define KERN_TABLES(x)                                                                             \
    {                                                                                              \
        [ISA_SCALAR] = &x##_scalar, [ISA_VECTOR] = &x##_vector,                                    \
    }
#endif

struct gemm_leaves;      /* kern/gemm_leaf.h */
struct attention_leaves; /* kern/attention_leaf.h */
struct row_leaves;       /* kern/row_leaf.h: norms, activations, rotary, embedding, cross entropy */
struct param_leaves;     /* kern/param_leaf.h: optimizer, sums, hashes, initialisation */

struct kern {
    enum isa isa;
    struct pool *pool;
    const struct gemm_leaves *gemm;
    const struct gemm_blocking *blocking;
    const struct attention_leaves *attention;
    const struct row_leaves *row;
    const struct param_leaves *param;
    void *gemm_workspace;      /* mem_big block of gemm_workspace_bytes(threads) */
    void *attention_workspace; /* likewise */
};

extern const struct gemm_leaves *const gemm_leaves_of[ISA_COUNT];
extern const struct attention_leaves *const attention_leaves_of[ISA_COUNT];
extern const struct row_leaves *const row_leaves_of[ISA_COUNT];
extern const struct param_leaves *const param_leaves_of[ISA_COUNT];
uint64_t gemm_workspace_bytes(uint32_t threads);
/* How a product is cut for the caches: rows of one task, cells of k of one chunk. No bit depends on it. */
struct gemm_blocking {
    uint64_t rows, cells;
};
/* By the second-level cache of this machine. */
const struct gemm_blocking *gemm_blocking_here(void);
uint64_t attention_workspace_bytes(uint32_t threads);

#endif
