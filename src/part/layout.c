/* Why this exists: ranks that disagree about who holds what lose or repeat samples, positions or layers without a word.
 * Every such question is answered here, from numbers all ranks share.
 * Invariants: coordinates and ranks map one to one; the parts of a range are disjoint, in order, and cover it. */
#include "part/layout.h"

#include "base/err.h"

uint32_t layout_world(const struct layout *l)
{
    uint32_t world = l->pp;
    BUG_IF(__builtin_mul_overflow(world, l->dp, &world) || __builtin_mul_overflow(world, l->cp, &world) ||
           __builtin_mul_overflow(world, l->tp, &world) || world == 0);
    return world;
}

struct coord layout_coord(const struct layout *l, uint32_t rank)
{
    BUG_IF(rank >= layout_world(l));
    struct coord c = { .tp = rank % l->tp };
    rank /= l->tp;
    c.cp = rank % l->cp;
    rank /= l->cp;
    c.dp = rank % l->dp;
    c.pp = rank / l->dp;
    return c;
}

uint32_t layout_rank(const struct layout *l, const struct coord *c)
{
    BUG_IF(c->pp >= l->pp || c->dp >= l->dp || c->cp >= l->cp || c->tp >= l->tp);
    return ((c->pp * l->dp + c->dp) * l->cp + c->cp) * l->tp + c->tp;
}

struct order_range part_range(uint64_t n, uint32_t parts, uint32_t i)
{
    BUG_IF(parts == 0 || i >= parts);
    uint64_t length = n / parts, longer = n % parts;
    uint64_t lo = i * length + (i < longer ? i : longer);
    return (struct order_range){ lo, lo + length + (i < longer) };
}

struct order_range part_range_aligned(uint64_t n, uint64_t align, uint32_t parts, uint32_t i)
{
    BUG_IF(align == 0);
    uint64_t blocks = n / align + (n % align != 0);
    struct order_range r = part_range(blocks, parts, i);
    return (struct order_range){ r.lo == blocks ? n : r.lo * align, r.hi == blocks ? n : r.hi * align };
}

bool context_fits(uint64_t seq_length, uint64_t unit, uint32_t cp)
{
    if (cp == 0 || unit == 0 || seq_length == 0) {
        return false;
    }
    uint64_t head_unit = unit < ORDER_HEAD_UNIT ? unit : ORDER_HEAD_UNIT;
    return cp == 1 || (seq_length % unit == 0 && seq_length / unit % cp == 0 && unit % head_unit == 0);
}

uint32_t context_chunks(uint64_t seq_length, uint64_t unit, uint32_t cp)
{
    BUG_IF(!context_fits(seq_length, unit, cp));
    if (cp == 1) {
        return 1;
    }
    uint64_t units = seq_length / unit / cp;
    if (units % 2 == 0) {
        return 2;
    }
    BUG_IF(units > UINT32_MAX);
    return (uint32_t)units;
}

struct order_range context_chunk(uint64_t seq_length, uint64_t unit, uint32_t cp, uint32_t rank, uint32_t j)
{
    uint32_t chunks = context_chunks(seq_length, unit, cp);
    BUG_IF(rank >= cp || j >= chunks);
    uint64_t length = seq_length / cp / chunks;
    uint64_t lo = ((uint64_t)j * cp + (j % 2 == 0 ? rank : cp - 1 - rank)) * length;
    return (struct order_range){ lo, lo + length };
}
