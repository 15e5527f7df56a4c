/* Why this exists: activations, rotary embedding and norms go over what a product has just written. Done by the thread
 * that finishes the last tile of a block of rows they find it in the cache, and cost no pass over memory.
 *
 * Invariants: the functions are the leaves of row_leaf.h on ranges of rows, so the bits are those of separate calls. A
 * block of rows is worked on once, after all its tasks: each counts itself with release and acquire, so that the last
 * one sees what the others wrote. Blocks are disjoint, and nothing but y, mean and rstd and C itself is written. */
#include "kern/gemm_then.h"

#define THEN_GRAIN 4096u /* elements of a task where a product was finished before */

static void prepare_map(struct gemm_then_work *out, const struct gemm_job *job, leaf_fn *leaf)
{
    const struct gemm_then *then = job->then;
    bool gated = then->kind == GEMM_THEN_SWIGLU || then->kind == GEMM_THEN_GEGLU;
    BUG_IF(job->ldc != job->n || then->y_type != NUM_F32);
    out->leaf = leaf;
    out->per_row = job->n;
    out->job = &out->u.map;
    out->u.map = (struct map_job){
        .x = gated ? then->gate : job->c, .up = gated ? job->c : NULL, .type = job->c_type, .y = then->y,
    };
}

static void prepare_norm(struct gemm_then_work *out, const struct gemm_job *job, leaf_fn *leaf)
{
    const struct gemm_then *then = job->then;
    BUG_IF(job->ldc != job->n || job->c_type != NUM_F32);
    out->leaf = leaf;
    out->per_row = 1;
    out->job = &out->u.norm;
    out->u.norm = (struct norm_job){
        .cols = job->n, .x = job->c, .gain = then->gain, .bias = then->bias,
        .offset = then->offset, .eps = then->eps, .y = then->y, .y_type = then->y_type, .mean = then->mean,
        .rstd = then->rstd,
    };
}

static void prepare_rope(struct gemm_then_work *out, const struct gemm_job *job, leaf_fn *leaf)
{
    const struct rope *r = job->then->rope;
    BUG_IF(!rope_is_sound(r) || job->n < r->heads * r->head_dim);
    out->leaf = leaf;
    out->per_row = 1;
    out->job = &out->u.rope;
    out->u.rope = (struct rope_job){ .x = job->c, .type = job->c_type, .ld = job->ldc, .rope = r };
}

void gemm_then_prepare(struct gemm_then_work *out, const struct kern *k, const struct gemm_job *job)
{
    const struct row_leaves *row = k->row;
    out->leaf = NULL;
    if (job->then == NULL) {
        return;
    }
    BUG_IF(job->grad != NULL);
    switch (job->then->kind) {
    case GEMM_THEN_GELU: prepare_map(out, job, row->gelu_forward); break;
    case GEMM_THEN_GELU_ERF: prepare_map(out, job, row->gelu_erf_forward); break;
    case GEMM_THEN_SWIGLU: prepare_map(out, job, row->swiglu_forward); break;
    case GEMM_THEN_GEGLU: prepare_map(out, job, row->geglu_forward); break;
    case GEMM_THEN_ROPE: prepare_rope(out, job, row->rope); break;
    case GEMM_THEN_LAYERNORM: prepare_norm(out, job, row->layernorm_forward); break;
    case GEMM_THEN_RMSNORM: prepare_norm(out, job, row->rmsnorm_forward); break;
    }
}

void gemm_then_begin(struct gemm_then_work *w)
{
    memset(w->finished, 0, sizeof(w->finished));
}

void gemm_then_task(struct gemm_then_work *w, uint64_t block, uint64_t tasks, uint64_t begin, uint64_t end)
{
    BUG_IF(block >= GEMM_THEN_BLOCKS);
    if (__atomic_add_fetch(&w->finished[block], 1, __ATOMIC_ACQ_REL) == tasks) {
        w->leaf(w->job, begin * w->per_row, end * w->per_row);
    }
}

void gemm_then_all(struct kern *k, const struct gemm_then_work *w, uint64_t rows)
{
    if (w->leaf != NULL) {
        split_run(k, w->leaf, w->job, rows * w->per_row, w->per_row > 1 ? THEN_GRAIN : 1);
    }
}
