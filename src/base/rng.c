/* Why this exists: initialisation, data order and sampling must not depend on how a job is split, so every random
 * number is addressed by logical coordinates. */
#include "base/rng.h"

#include "base/fmath.h"
#include "base/hash.h"

struct rng_block rng_philox(const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < RNG_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)RNG_PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)RNG_PHILOX_M1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += RNG_PHILOX_W0;
        k1 += RNG_PHILOX_W1;
    }
    return (struct rng_block){ { c0, c1, c2, c3 } };
}

void rng_key(uint64_t seed, enum rng_purpose purpose, uint32_t key[2])
{
    uint64_t mixed = hash_mix(seed + (uint64_t)purpose * 0x9e3779b97f4a7c15ull);
    key[0] = (uint32_t)mixed;
    key[1] = (uint32_t)(mixed >> 32);
}

struct rng_block rng_at(uint64_t seed, enum rng_purpose purpose, uint64_t a, uint64_t b)
{
    uint32_t key[2];
    rng_key(seed, purpose, key);
    const uint32_t counter[4] = { (uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32) };
    return rng_philox(counter, key);
}

void rng_normal4(struct rng_block block, double out[4])
{
    for (int i = 0; i < 4; i += 2) {
        double radius = fmath_sqrt(-2.0 * fmath_log(rng_unit(block.word[i])));
        double sine, cosine;
        fmath_sincos_turns(rng_unit(block.word[i + 1]), &sine, &cosine);
        out[i] = radius * cosine;
        out[i + 1] = radius * sine;
    }
}

static uint64_t feistel(uint64_t seed, uint64_t epoch, uint32_t half_bits, uint64_t x)
{
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < 4; round++) {
        struct rng_block b = rng_at(seed, RNG_SHUFFLE, right, epoch * 4 + round);
        uint64_t f = ((uint64_t)b.word[1] << 32 | b.word[0]) & mask;
        uint64_t next = left ^ f;
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t index)
{
    uint32_t half_bits = 1;
    while (half_bits < 32 && ((uint64_t)1 << (2 * half_bits)) < n) {
        half_bits++;
    }
    uint64_t x = index;
    do { /* cycle walking: at most 4 expected rounds, since the domain is below 4 n */
        x = feistel(seed, epoch, half_bits, x);
    } while (x >= n);
    return x;
}
