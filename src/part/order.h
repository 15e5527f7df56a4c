/* The orders sums run in: segments, units and the pieces of a dot product. Pure arithmetic; the same answer on
 * every rank. docs/numerics.md is the text of these rules. */
#ifndef PART_ORDER_H
#define PART_ORDER_H

#include <stdint.h>

#define ORDER_SEGMENTS_MAX 8u
/* Tokens of one partial sum of the head's weight gradient: min(grad_unit, this). */
#define ORDER_HEAD_UNIT 256u
/* Tokens of a unit by default: min(seq_length, this). */
#define ORDER_UNIT_MAX 1024u
/* Vocabularies are padded to a multiple of this inside the program; padding reaches no result and no file. */
#define ORDER_VOCAB_MULTIPLE 128u

struct order_range {
    uint64_t lo, hi; /* [lo, hi) */
};

/* The largest power of two up to 8 that divides kv_heads, ffn / 16 and padded_vocab (docs/numerics.md, 3). */
uint32_t order_default_grain(uint64_t kv_heads, uint64_t ffn, uint64_t padded_vocab);
/* Segment s of `segments` equal parts of [0, n); segments must divide n. */
struct order_range order_segment(uint64_t n, uint32_t segments, uint32_t s);
/* Rows of a vocabulary with its padding. */
uint64_t order_pad_vocab(uint64_t vocab);
/* Exponent g: gradient partials are multiplied by 2^g before rounding to integers; 44 - ceil(log2 seq_length). */
int32_t order_default_grad_scale_log2(uint64_t seq_length);

#endif
