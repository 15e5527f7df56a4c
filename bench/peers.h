/* Other programs' matrix products, for bench_gemm: the same product on the same machine in the same minute. */
#ifndef BENCH_PEERS_H
#define BENCH_PEERS_H

#include <stdbool.h>
#include <stdint.h>

/* C[m][n] = sum over k of a(i, k) b(j, k), row-major; trans as in struct gemm_mat. */
struct product {
    char name[48];
    uint64_t m, n, k;
    bool a_trans, b_trans;
};

/* What all sides read and write: at least m k, n k and m n floats. */
struct operands {
    float *a, *b, *c;
};

struct peer {
    const char *name;
    bool bf16; /* it multiplies bf16 numbers; else fp32 */
    /* Ready for so many threads; false: absent, and `absent` says why. */
    bool (*open)(struct peer *p, uint32_t threads);
    /* The product once. Returns its seconds where the peer itself takes the time (also the pause and the uncounted run
     * before), else 0: the caller does. */
    double (*run)(const struct peer *p, const struct product *product, const struct operands *o);
    void (*close)(struct peer *p);
    char absent[160];
    void *state;  /* its own */
};

#define PEERS 4
/* oneDNN, OpenBLAS, PyTorch, PyTorch in bf16. */
extern const struct peer peers[PEERS];

#endif
