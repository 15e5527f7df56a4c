/* Why this exists: checks and division of work of the loss. Rows are divided over threads; the order of the sums
 * inside a row is in cross_entropy_leaf.c.
 *
 * Invariant: a target lies inside the real vocabulary or is negative (does not count). */
#include "kern/row_leaf.h"

void kern_cross_entropy(struct kern *k, uint64_t rows, uint64_t vocab, uint64_t padded, uint64_t ld, uint32_t segments,
                        const int32_t *target, float *logits, float *loss, bool backward)
{
    BUG_IF(vocab == 0 || vocab > padded || padded > ld);
    BUG_IF(segments == 0 || segments > CROSS_ENTROPY_SEGMENTS_MAX || (segments & (segments - 1)) != 0);
    BUG_IF(padded % segments != 0);
    for (uint64_t t = 0; t < rows; t++) {
        BUG_IF(target[t] >= 0 && (uint64_t)target[t] >= vocab);
    }
    struct cross_entropy_job job = {
        .vocab = vocab, .padded = padded, .ld = ld, .segments = segments, .target = target, .logits = logits,
        .loss = loss, .backward = backward,
    };
    split_run(k, k->row->cross_entropy, &job, rows, split_rows_grain(padded));
}
