/* Exact sums: fixed point and wide integers. A sum of integers is the same in every order, so it cannot depend on how a
 * job is split. */
#ifndef BASE_FIXED_H
#define BASE_FIXED_H

#include <stdbool.h>
#include <stdint.h>

/* Losses: 2^-28 nat in int64; 2^35 nats fit. */
#define FIXED_LOSS_BITS 28
/* A gradient unit whose scaled magnitude reaches this overflows: 2^12 units of 2^50 still fit int64 (KERNELS D). */
#define FIXED_UNIT_LIMIT 0x1p50f

/* Sum of squares as three signed limbs: value = limb[0] + limb[1] 2^40 + limb[2] 2^80. Limbs of parts are added
 * one by one. */
struct fixed_wide {
    int64_t limb[3];
};

static inline void fixed_wide_add(struct fixed_wide *sum, const struct fixed_wide *part)
{
    for (int i = 0; i < 3; i++) {
        sum->limb[i] += part->limb[i];
    }
}

/* The value rounded once to double, after carrying the limbs into canonical form. */
double fixed_wide_value(const struct fixed_wide *sum);
/* loss (nats, fp32) in units of 2^-28, round to nearest even; *bad is set when it is not finite or above 2^20. */
int64_t fixed_from_loss(float loss, bool *bad);
double fixed_to_loss(int64_t sum);

#endif
