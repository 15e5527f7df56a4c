/* Why this exists: softmax and loss of one row of logits, once per instruction set: three passes over a row that
 * stays in the second-level cache.
 *
 * Order (docs/numerics.md quotes it), x[j] for j < vocab, fp32:
 *   max    of all real columns (exact in any order)
 *   sum    columns are cut into `segments` equal segments of the padded row. Column j of a segment (counted from its
 *          start) adds e = exp(x - max) to accumulator (j / 16) mod 4, lane j mod 16, ascending, from +0. A segment's
 *          sum is the tree over the lanes of (a0 + a1) + (a2 + a3). Segments are combined by the balanced tree (0 +
 *          1) + (2 + 3)... Padding adds nothing. exp is v16_exp of kern/vmath.h.
 *   loss   float(log(double(sum)) + (double(max) - double(x[target]))), the logarithm of base/fmath.h in double
 *   grad   e (1 / sum), then - 1 at the target; 0 in the padding
 * A logit that is not a number or +infinity makes the loss not a number.
 * A part of the columns gives its share of the maximum, then of the sum: whole segments, so the balanced tree of the
 * parts' sums is the tree above. */
#include "kern/row_leaf.h"

#include "base/fmath.h"
#include "kern/vmath.h"

#define BLOCK 64u /* columns: one step of each accumulator */

V16_INLINE struct v16 max_of(struct v16 acc, const float *x, uint64_t left)
{
    if (left >= V16_LANES) {
        return v16_max(acc, v16_load(x));
    }
    return v16_max(acc, v16_select(m16_first((uint32_t)left), v16_load_n(x, (uint32_t)left), acc));
}

static float row_max(const float *x, uint64_t count)
{
    struct v16 acc[4];
    for (int a = 0; a < 4; a++) {
        acc[a] = v16_set1(-__builtin_inff());
    }
    uint64_t j = 0;
    for (; j + BLOCK <= count; j += BLOCK) {
        for (uint64_t a = 0; a < 4; a++) {
            acc[a] = v16_max(acc[a], v16_load(x + j + a * V16_LANES));
        }
    }
    for (; j < count; j += V16_LANES) {
        acc[0] = max_of(acc[0], x + j, count - j);
    }
    return v16_max_lanes(v16_max(v16_max(acc[0], acc[1]), v16_max(acc[2], acc[3])));
}

/* The sum of exp(x - max) over one segment; with `keep` x is overwritten by the exponentials. */
V16_INLINE float segment_sum(float *x, uint64_t count, struct v16 max, const bool keep)
{
    struct v16 acc[4];
    for (int a = 0; a < 4; a++) {
        acc[a] = v16_zero();
    }
    uint64_t j = 0;
    for (; j + BLOCK <= count; j += BLOCK) {
        for (uint64_t a = 0; a < 4; a++) {
            struct v16 e = v16_exp(v16_sub(v16_load(x + j + a * V16_LANES), max));
            acc[a] = v16_add(acc[a], e);
            if (keep) {
                v16_store(x + j + a * V16_LANES, e);
            }
        }
    }
    for (uint64_t a = 0; j < count; j += V16_LANES, a++) {
        uint32_t n = count - j < V16_LANES ? (uint32_t)(count - j) : V16_LANES;
        struct v16 e = v16_exp(v16_sub(v16_load_n(x + j, n), max));
        acc[a] = v16_add(acc[a], v16_select(m16_first(n), e, v16_zero()));
        if (keep) {
            v16_store_n(x + j, e, n);
        }
    }
    return v16_sum(v16_add(v16_add(acc[0], acc[1]), v16_add(acc[2], acc[3])));
}

static float row_sum(const struct ce_part *part, float *x, float max, bool keep)
{
    float sum[CROSS_ENTROPY_SEGMENTS_MAX];
    uint64_t width = part->padded / part->segments;
    struct v16 max16 = v16_set1(max);
    for (uint32_t s = 0; s < part->segments; s++) {
        uint64_t begin = s * width, end = begin + width < part->real ? begin + width : part->real;
        uint64_t count = begin < end ? end - begin : 0;
        sum[s] = keep ? segment_sum(x + begin, count, max16, true) : segment_sum(x + begin, count, max16, false);
    }
    for (uint32_t left = part->segments / 2; left > 0; left /= 2) {
        for (uint32_t s = 0; s < left; s++) {
            sum[s] = sum[2 * s] + sum[2 * s + 1];
        }
    }
    return sum[0];
}

/* Where the target of row t lies in this part, or NULL. */
static float *target_of(const struct ce_part *part, uint64_t t)
{
    uint64_t column = (uint64_t)part->target[t] - part->first;
    return part->target[t] >= 0 && column < part->real ? part->logits + t * part->ld + column : NULL;
}

/* `sum` has at least the maximum's own exp(0) = 1. */
static float row_loss(float max, float sum, float x_target)
{
    double loss = fmath_log((double)sum) + ((double)max - (double)x_target);
    return sum >= 1.0f ? (float)loss : __builtin_nanf("");
}

static void clear_row(const struct ce_part *part, uint64_t t, uint64_t from)
{
    memset(part->logits + t * part->ld + from, 0, (part->padded - from) * sizeof(float));
}

static void scale_row(float *x, uint64_t count, float factor)
{
    struct v16 factor16 = v16_set1(factor);
    uint64_t j = 0;
    for (; j + V16_LANES <= count; j += V16_LANES) {
        v16_store(x + j, v16_mul(v16_load(x + j), factor16));
    }
    uint32_t n = (uint32_t)(count - j);
    v16_store_n(x + j, v16_mul(v16_load_n(x + j, n), factor16), n);
}

/* From exponentials to the gradient. */
static void finish_row(const struct ce_part *part, uint64_t t, float sum)
{
    scale_row(part->logits + t * part->ld, part->real, 1.0f / sum);
    float *target = target_of(part, t);
    if (target != NULL) {
        *target -= 1.0f;
    }
}

void KERN_NAME(row_cross_entropy)(const void *job, uint64_t begin, uint64_t end)
{
    const struct cross_entropy_job *j = job;
    const struct ce_part *part = &j->part;
    for (uint64_t t = begin; t < end; t++) {
        float *x = part->logits + t * part->ld;
        const float *target = target_of(part, t);
        if (target == NULL) {
            j->loss[t] = 0.0f;
            if (j->backward) {
                clear_row(part, t, 0);
            }
            continue;
        }
        float max = row_max(x, part->real), x_target = *target;
        float sum = row_sum(part, x, max, j->backward);
        j->loss[t] = row_loss(max, sum, x_target);
        if (j->backward) {
            finish_row(part, t, sum);
            clear_row(part, t, part->real);
        }
    }
}

void KERN_NAME(row_ce_max)(const void *job, uint64_t begin, uint64_t end)
{
    const struct cross_entropy_job *j = job;
    const struct ce_part *part = &j->part;
    for (uint64_t t = begin; t < end; t++) {
        const float *target = target_of(part, t);
        j->max[t] = part->target[t] >= 0 ? row_max(part->logits + t * part->ld, part->real) : -__builtin_inff();
        j->x_target[t] = target != NULL ? *target : -__builtin_inff();
    }
}

void KERN_NAME(row_ce_exp)(const void *job, uint64_t begin, uint64_t end)
{
    const struct cross_entropy_job *j = job;
    const struct ce_part *part = &j->part;
    for (uint64_t t = begin; t < end; t++) {
        if (part->target[t] < 0) {
            j->sum[t] = 0.0f;
            continue;
        }
        j->sum[t] = row_sum(part, part->logits + t * part->ld, j->max_in[t], true);
        clear_row(part, t, part->real);
    }
}

void KERN_NAME(row_ce_finish)(const void *job, uint64_t begin, uint64_t end)
{
    const struct cross_entropy_job *j = job;
    const struct ce_part *part = &j->part;
    for (uint64_t t = begin; t < end; t++) {
        bool counts = part->target[t] >= 0;
        j->loss[t] = counts ? row_loss(j->max_in[t], j->sum_in[t], j->x_target_in[t]) : 0.0f;
        if (j->backward && counts) {
            finish_row(part, t, j->sum_in[t]);
        } else if (j->backward) {
            clear_row(part, t, 0);
        }
    }
}
