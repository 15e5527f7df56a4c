/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1,
 * 2, 3", SC 2011). A number is a pure function of (seed, purpose, coordinates): no state, no order, no rank, no
 * thread. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

enum rng_purpose {
    RNG_INIT = 1,     /* counter: tensor id, element / 4 */
    RNG_SHUFFLE = 2,  /* round keys of the order of an epoch */
    RNG_SAMPLE = 3,   /* generation: token position */
    RNG_TEST = 4,
    RNG_DROPOUT = 5,  /* sample * 2^16 + site, position * 2^32 + column / 4 */
};

struct rng_block {
    uint32_t word[4];
};

/* Multipliers of the first and third counter word, and what is added to the key words after each round. */
#define RNG_PHILOX_M0 0xd2511f53u
#define RNG_PHILOX_M1 0xcd9e8d57u
#define RNG_PHILOX_W0 0x9e3779b9u
#define RNG_PHILOX_W1 0xbb67ae85u
#define RNG_PHILOX_ROUNDS 10

/* The Philox4x32-10 block of `counter` under `key`. */
struct rng_block rng_philox(const uint32_t counter[4], const uint32_t key[2]);
/* The key of one purpose: the seed mixed with it. */
void rng_key(uint64_t seed, enum rng_purpose purpose, uint32_t key[2]);
/* The block at coordinates (a, b) of one purpose: counter words a, a >> 32, b, b >> 32 under rng_key. */
struct rng_block rng_at(uint64_t seed, enum rng_purpose purpose, uint64_t a, uint64_t b);
/* (word + 0.5) / 2^32: in (0, 1), exact in double. */
static inline double rng_unit(uint32_t word)
{
    return ((double)word + 0.5) * 0x1p-32;
}
/* Four standard normal numbers from one block (Box-Muller, in double with base/fmath.h: the same bits everywhere). */
void rng_normal4(struct rng_block block, double out[4]);

/* The keyed permutation of [0, n): a pure function in O(1) time and memory (a 4-round Feistel network over the
 * next even power of two, walked until it falls inside n). Bijective for every seed and epoch. index < n, n > 0. */
uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t index);

#endif
