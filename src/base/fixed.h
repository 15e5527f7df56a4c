/* Exact sums: fixed point and wide integers. A sum of integers is the same in every order, so it cannot depend on how a
 * job is split. */
#ifndef BASE_FIXED_H
#define BASE_FIXED_H

#include <stdbool.h>
#include <stdint.h>

/* Losses: 2^-28 nat in int64; 2^35 nats fit. */
#define FIXED_LOSS_BITS 28
/* Sums of losses or gradients that reach this are an overflow. */
#define FIXED_SUM_LIMIT ((int64_t)1 << 62)
/* Scaled gradient units are below this: of larger floats the conversion is not exact. */
#define FIXED_UNIT_LIMIT 0x1p50f

/* Sum of squares as signed limbs: value = limb[0] + limb[1] 2^40 + limb[2] 2^80 + limb[3] 2^120. Canonical: all but the
 * last in [0, 2^40), so that 2^23 canonical parts can be added limb by limb. */
#define FIXED_WIDE_LIMBS 4
struct fixed_wide {
    int64_t limb[FIXED_WIDE_LIMBS];
};

/* The same value in its one canonical form. */
static inline void fixed_wide_carry(struct fixed_wide *w)
{
    for (int i = 0; i + 1 < FIXED_WIDE_LIMBS; i++) {
        w->limb[i + 1] += w->limb[i] >> 40;
        w->limb[i] &= ((int64_t)1 << 40) - 1;
    }
}

/* Canonical parts give a canonical sum. */
static inline void fixed_wide_add(struct fixed_wide *sum, const struct fixed_wide *part)
{
    for (int i = 0; i < FIXED_WIDE_LIMBS; i++) {
        sum->limb[i] += part->limb[i];
    }
    fixed_wide_carry(sum);
}

/* The value rounded once to double; the limbs need not be canonical. */
double fixed_wide_value(const struct fixed_wide *sum);
/* loss (nats, fp32) in units of 2^-28, round to nearest even; *bad is set when it is not finite or above 2^20. */
int64_t fixed_from_loss(float loss, bool *bad);
double fixed_to_loss(int64_t sum);

/* A sum as two numbers that can be added over up to 2^31 ranks without wrapping, and back: *bad is set, and the result
 * is 0, when the whole is not in [-FIXED_SUM_LIMIT, FIXED_SUM_LIMIT). */
void fixed_split(int64_t sum, int64_t part[2]);
int64_t fixed_join(const int64_t part[2], bool *bad);

#endif
