/* Why this exists: dropout, once per instruction set. A mask that is a function of the element's logical coordinates
 * costs ten rounds of Philox for four columns; sixteen blocks at once make that cheap enough to compute it again in
 * the backward pass instead of keeping it.
 *
 * Definition (docs/numerics.md quotes it): the word of an element is word column % 4 of rng_at(seed, RNG_DROPOUT,
 * sample 2^16 + site, position 2^32 + column / 4); y = residual + (word < threshold ? +0 : x factor). */
#include "kern/row_leaf.h"

#include "base/rng.h"

#define BLOCKS 16u
#define COLUMNS (4 * BLOCKS)

/* keep[c] is all ones when column 4 b + c is kept, else 0; (a, b) are the coordinates of the first of the blocks. The
 * loops over blocks are written for the compiler to turn into vectors. */
static void keep_columns(const struct dropout_job *j, uint64_t a, uint64_t b, int32_t keep[COLUMNS])
{
    uint32_t c0[BLOCKS], c1[BLOCKS], c2[BLOCKS], c3[BLOCKS];
    for (uint32_t l = 0; l < BLOCKS; l++) {
        c0[l] = (uint32_t)a;
        c1[l] = (uint32_t)(a >> 32);
        c2[l] = (uint32_t)b + l; /* columns are below 2^34 */
        c3[l] = (uint32_t)(b >> 32);
    }
    uint32_t k0 = j->key[0], k1 = j->key[1];
    for (int round = 0; round < RNG_PHILOX_ROUNDS; round++) {
        for (uint32_t l = 0; l < BLOCKS; l++) {
            uint64_t p0 = (uint64_t)RNG_PHILOX_M0 * c0[l];
            uint64_t p1 = (uint64_t)RNG_PHILOX_M1 * c2[l];
            c0[l] = (uint32_t)(p1 >> 32) ^ c1[l] ^ k0;
            c2[l] = (uint32_t)(p0 >> 32) ^ c3[l] ^ k1;
            c1[l] = (uint32_t)p1;
            c3[l] = (uint32_t)p0;
        }
        k0 += RNG_PHILOX_W0;
        k1 += RNG_PHILOX_W1;
    }
    for (uint32_t l = 0; l < BLOCKS; l++) {
        keep[4 * l] = c0[l] < j->threshold ? 0 : -1;
        keep[4 * l + 1] = c1[l] < j->threshold ? 0 : -1;
        keep[4 * l + 2] = c2[l] < j->threshold ? 0 : -1;
        keep[4 * l + 3] = c3[l] < j->threshold ? 0 : -1;
    }
}

void KERN_NAME(row_dropout)(const void *job, uint64_t begin, uint64_t end)
{
    const struct dropout_job *j = job;
    const struct dropout *d = j->d;
    const struct v16 factor = v16_set1(j->factor);
    int32_t keep[COLUMNS];
    for (uint64_t t = begin; t < end; t++) {
        uint64_t row = d->first_row + t, sample = d->first_sample + row / d->period;
        uint64_t a = (sample << 16) + d->site, b = (uint64_t)d->position[row % d->period] << 32;
        for (uint64_t c = 0; c < j->cols; c += V16_LANES) {
            if (c % COLUMNS == 0) {
                keep_columns(j, a, b + c / 4, keep);
            }
            uint64_t at = t * j->cols + c;
            uint32_t n = j->cols - c < V16_LANES ? (uint32_t)(j->cols - c) : V16_LANES;
            struct v16 v = v16_mul(v16_load_part(j->x + at, n), factor);
            v = v16_from_bits(v16i_and(v16_bits(v), v16i_load(keep + c % COLUMNS)));
            v = j->residual != NULL ? v16_add(v16_load_part(j->residual + at, n), v) : v;
            v16_store_part(j->y + at, v, n);
        }
    }
}
