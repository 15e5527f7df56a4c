/* Why this exists: checks and division of work of the loss. Rows are divided over threads; the order of the sums
 * inside a row is in cross_entropy_leaf.c.
 *
 * Invariants: a target is negative (its row does not count), or lies among the real columns of exactly one part. A part
 * begins and ends at borders of segments, and their number is a power of two. */
#include "kern/row_leaf.h"

static void run_part(struct kern *k, leaf_fn *leaf, const struct cross_entropy_job *job)
{
    const struct ce_part *c = &job->part;
    BUG_IF(c->real > c->padded || c->padded == 0 || c->padded > c->ld);
    BUG_IF(c->segments == 0 || c->segments > CROSS_ENTROPY_SEGMENTS_MAX || (c->segments & (c->segments - 1)) != 0);
    BUG_IF(c->padded % c->segments != 0 || c->first % (c->padded / c->segments) != 0);
    split_run(k, leaf, job, c->rows, split_rows_grain(c->padded));
}

void kern_cross_entropy(struct kern *k, uint64_t rows, uint64_t vocab, uint64_t padded, uint64_t ld, uint32_t segments,
                        const int32_t *target, float *logits, float *loss, bool backward)
{
    POOL_SPAN(k->pool, "cross entropy", rows, vocab, 0);
    for (uint64_t t = 0; t < rows; t++) {
        BUG_IF(target[t] >= 0 && (uint64_t)target[t] >= vocab);
    }
    struct cross_entropy_job job = {
        .part = { .rows = rows, .ld = ld, .real = vocab, .padded = padded, .segments = segments, .target = target,
                  .logits = logits },
        .loss = loss, .backward = backward,
    };
    run_part(k, k->row->cross_entropy, &job);
}

void kern_ce_max(struct kern *k, const struct ce_part *c, float *max, float *x_target)
{
    POOL_SPAN(k->pool, "cross entropy max", c->rows, c->real, 0);
    struct cross_entropy_job job = { .part = *c, .max = max, .x_target = x_target };
    run_part(k, k->row->ce_max, &job);
}

void kern_ce_exp(struct kern *k, const struct ce_part *c, const float *max, float *sum)
{
    POOL_SPAN(k->pool, "cross entropy exp", c->rows, c->real, 0);
    struct cross_entropy_job job = { .part = *c, .max_in = max, .sum = sum };
    run_part(k, k->row->ce_exp, &job);
}

void kern_ce_finish(struct kern *k, const struct ce_part *c, const float *max, const float *sum, const float *x_target,
                    float *loss, bool backward)
{
    POOL_SPAN(k->pool, "cross entropy finish", c->rows, c->real, 0);
    struct cross_entropy_job job = {
        .part = *c, .max_in = max, .sum_in = sum, .x_target_in = x_target, .loss = loss, .backward = backward,
    };
    run_part(k, k->row->ce_finish, &job);
}
