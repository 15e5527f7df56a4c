/* Why this exists: losses and gradient norms are exact sums, converted to a floating-point number once. */
#include "base/fixed.h"

__extension__ typedef __int128 int128;

double fixed_wide_value(const struct fixed_wide *sum)
{
    /* The sum may need more than 128 bits, so it is cut in two at 2^80. */
    int128 low = (int128)sum->limb[0] + ((int128)sum->limb[1] << 40);
    int128 high = (int128)sum->limb[2] + ((int128)sum->limb[3] << 40) + (low >> 80);
    low &= ((int128)1 << 80) - 1; /* canonical: 0 <= low < 2^80 */
    /* high * 2^80 + low, rounded once: both parts below 2^53 significant bits is not given, so keep a sticky bit. */
    if (high == 0) {
        return (double)low;
    }
    if (high >= ((int128)1 << 62)) {
        return (double)(high | (low != 0)) * 0x1p80; /* the sticky bit, as below */
    }
    int shift = 0;
    while (((high << (shift + 1)) >> 126) == 0 && shift < 80) {
        shift++;
    }
    int128 top = (high << shift) | (low >> (80 - shift));
    int128 rest = shift < 80 ? low & ((((int128)1) << (80 - shift)) - 1) : 0;
    top |= rest != 0 ? 1 : 0; /* top has over 62 significant bits: the sticky bit is below the rounding point */
    double value = (double)top;
    for (int i = shift; i < 80; i++) {
        value *= 2.0;
    }
    return value;
}

int64_t fixed_from_loss(float loss, bool *bad)
{
    if (!(loss > -0x1p20f && loss < 0x1p20f)) {
        *bad = true;
        return 0;
    }
    double scaled = (double)loss * (double)((int64_t)1 << FIXED_LOSS_BITS);
    const double magic = 0x1.8p52; /* |scaled| < 2^48 */
    volatile double shifted = scaled + magic;
    return (int64_t)(shifted - magic);
}

double fixed_to_loss(int64_t sum)
{
    return (double)sum * (1.0 / (double)((int64_t)1 << FIXED_LOSS_BITS));
}

void fixed_split(int64_t sum, int64_t part[2])
{
    part[0] = sum & UINT32_MAX;
    part[1] = sum >> 32;
}

int64_t fixed_join(const int64_t part[2], bool *bad)
{
    const int64_t limit = FIXED_SUM_LIMIT >> 32;
    int64_t high = part[1] + (part[0] >> 32);
    if (high >= limit || high < -limit) {
        *bad = true;
        return 0;
    }
    return high * ((int64_t)1 << 32) + (part[0] & UINT32_MAX);
}
