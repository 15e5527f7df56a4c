/* Why this exists: every sum has one order, and the orders are chosen in one place. */
#include "part/order.h"

#include "base/err.h"

uint32_t order_default_grain(uint64_t kv_heads, uint64_t ffn, uint64_t padded_vocab)
{
    uint32_t grain = ORDER_SEGMENTS_MAX;
    while (grain > 1 && (kv_heads % grain != 0 || ffn % (16u * grain) != 0 || padded_vocab % grain != 0)) {
        grain /= 2;
    }
    return grain;
}

struct order_range order_segment(uint64_t n, uint32_t segments, uint32_t s)
{
    BUG_IF(segments == 0 || s >= segments || n % segments != 0);
    uint64_t length = n / segments;
    return (struct order_range){ s * length, (s + 1) * length };
}

uint64_t order_pad_vocab(uint64_t vocab)
{
    return (vocab + ORDER_VOCAB_MULTIPLE - 1) / ORDER_VOCAB_MULTIPLE * ORDER_VOCAB_MULTIPLE;
}

int32_t order_default_grad_scale_log2(uint64_t seq_length)
{
    int32_t log2 = 0;
    while (log2 < 40 && ((uint64_t)1 << log2) < seq_length) {
        log2++;
    }
    return 44 - log2;
}
