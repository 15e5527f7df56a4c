/* Why this exists: the one place where partial sums of tensor parallelism are added, in the order of docs/numerics.md:
 * residual + (balanced tree over ranks + bias).
 *
 * Invariant: the order is per element, so the blocks below, which keep what is between in the first-level cache, are
 * invisible; a block's sum is complete before any of it is stored, so `out` may be an operand. */
#include "comm/comm_int.h"

#define BLOCK 1024u /* floats */

/* sum[0..n) = the tree over part[0 .. parts) of elements at, at + 1, .. */
static void sum_block(const float *const *part, uint32_t parts, uint64_t at, uint64_t n, float *restrict sum)
{
    if (parts == 1) {
        memcpy(sum, part[0] + at, n * sizeof(float));
        return;
    }
    const float *a = part[0] + at, *b = part[1] + at;
    if (parts == 2) {
        for (uint64_t j = 0; j < n; j++) {
            sum[j] = a[j] + b[j];
        }
        return;
    }
    float right[BLOCK];
    sum_block(part, parts / 2, at, n, sum);
    sum_block(part + parts / 2, parts / 2, at, n, right);
    for (uint64_t j = 0; j < n; j++) {
        sum[j] += right[j];
    }
}

static void finish_block(const float *bias, const float *residual, const float *restrict sum, uint64_t n, float *out)
{
    if (bias == NULL && residual == NULL) {
        memcpy(out, sum, n * sizeof(float));
    } else if (bias == NULL) {
        for (uint64_t j = 0; j < n; j++) {
            out[j] = residual[j] + sum[j];
        }
    } else if (residual == NULL) {
        for (uint64_t j = 0; j < n; j++) {
            out[j] = sum[j] + bias[j];
        }
    } else {
        for (uint64_t j = 0; j < n; j++) {
            out[j] = residual[j] + (sum[j] + bias[j]);
        }
    }
}

void tree_sum_rows(const struct comm_tree *t, const struct tree_rows *rows)
{
    float sum[BLOCK];
    for (uint64_t i = rows->lo; i < rows->hi; i++) {
        uint64_t to = (i - rows->first) * t->ldo;
        for (uint64_t j = 0; j < t->cols; j += BLOCK) {
            uint64_t n = t->cols - j < BLOCK ? t->cols - j : BLOCK;
            const float *bias = t->bias != NULL ? t->bias + j : NULL;
            const float *residual = t->residual != NULL ? t->residual + to + j : NULL;
            sum_block(rows->part, rows->parts, i * t->cols + j, n, sum);
            finish_block(bias, residual, sum, n, t->out + to + j);
        }
    }
}
