/* The kernels of a training step: which, at which shapes, how often, and what each of them has to compute and move. */
#ifndef BENCH_OPS_H
#define BENCH_OPS_H

#include "conf/conf.h"
#include "kern/kern.h"

#define OPS_MAX 64u

/* What bounds a kernel, and where it stands in the sums of the step. */
enum ops_group { OPS_PRODUCT, OPS_ATTENTION, OPS_ROWS, OPS_UPDATE, OPS_GROUPS };
const char *ops_group_name(enum ops_group g);

/* One rank's part of a step. */
struct ops_shape {
    struct model_conf model;
    uint64_t sequences, length;      /* a micro-batch: sequences of so many tokens .. */
    uint32_t cp, tp;                 /* .. of whose positions and columns a rank has one part of so many */
    bool sequence_parallel;
    uint64_t micros;                 /* of a step */
    uint64_t layers;                 /* here */
    bool embedding, head;            /* here */
    uint64_t parameters;             /* updated here */
    uint32_t grain;
    uint64_t unit;                   /* grad_unit */
    bool bf16;
    enum recompute recompute;
};
/* The part of rank `rank` of the job that `c` describes. */
MUST_USE enum err ops_shape(struct ops_shape *s, const struct conf *c, uint32_t rank);

enum op_kind {
    OP_PRODUCT, OP_GRADIENT, OP_ATTENTION, OP_ATTENTION_GRAD, OP_NORM, OP_NORM_INPUT, OP_NORM_PARAM, OP_BIAS,
    OP_ACTIVATION, OP_ACTIVATION_GRAD, OP_ROPE, OP_DROPOUT, OP_EMBED, OP_EMBED_GRAD, OP_LOSS, OP_SQUARES, OP_ADAMW,
};

/* A kernel at a shape. Rows and columns are those of its result; products sum over `sum` = the sum of part[]. */
struct op {
    char name[40];
    enum op_kind kind;
    enum ops_group group;
    uint64_t rows, cols, sum;
    uint64_t part[3]; /* stretches of the summed dimension that are chained */
    uint32_t parts;
    uint32_t segments;
    bool a_trans, b_trans; /* as in struct gemm_mat */
    bool bf16;             /* a product of bf16 numbers */
    enum num a, b, c;      /* how operands and result are stored; of other kernels: a is their input, c their result */
    uint64_t unit;         /* of a gradient */
    double calls;          /* of a step; a fraction where a call here is larger than the step's last one */
    double again;          /* so many of them compute again what was not kept */
    double flops, bytes;   /* of a call: what it must compute, and read and write at least */
    bool stream;           /* goes over memory once, far beyond every cache */
};

/* The table for one rank's part; returns its length. Pure. */
uint32_t ops_list(const struct ops_shape *s, struct op list[OPS_MAX]);

/* Memory that all of them share. */
struct ops_memory;
MUST_USE enum err ops_memory_new(struct ops_memory **out, const struct ops_shape *s, const struct op *list,
                                 uint32_t count, struct kern *k);
void ops_memory_free(struct ops_memory *m);
/* Does op `i` of the list once (a measure_fn on a struct ops_memory). */
void ops_run(void *memory, uint32_t i);

#endif
