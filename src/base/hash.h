/* Hashes of bytes (XXH3 through xxHash) and of logical tensors (position-keyed, order-free).
 * None is cryptographic: they find damage and difference, not attack. Not collective. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash64(const void *bytes, size_t count, uint64_t seed);
/* 128 bits of a byte string as 32 lower-case hexadecimal digits and a zero. */
void hash128_hex(const void *bytes, size_t count, char out[33]);

/* Incremental form of hash128_hex; state is heap memory, freed by hash_stream_end. */
struct hash_stream;
struct hash_stream *hash_stream_begin(void); /* NULL when out of memory */
void hash_stream_add(struct hash_stream *s, const void *bytes, size_t count);
void hash_stream_end(struct hash_stream *s, char out[33]);

/* A bijective scramble of 64 bits (the finaliser of SplitMix64). */
static inline uint64_t hash_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* One element's share of a tensor sum: element `index` of the logical tensor holds the 32 bits `bits`. The sum over all
 * elements (mod 2^64) is the same in every order and for every division into boxes. kern_hash computes the same sum. */
static inline uint64_t hash_element(uint64_t index, uint32_t bits)
{
    uint64_t key = (index + 1) * 0x9e3779b97f4a7c15ull;
    uint64_t term = (uint64_t)(bits ^ (uint32_t)key) * ((key >> 32) | 1u);
    return term ^ (term >> 32);
}

/* The same for an element of 64 bits: its low word is element 2 index, its high word element 2 index + 1. */
static inline uint64_t hash_element_i64(uint64_t index, int64_t value)
{
    return hash_element(2 * index, (uint32_t)(uint64_t)value) +
           hash_element(2 * index + 1, (uint32_t)((uint64_t)value >> 32));
}

/* The state hash is the sum (mod 2^64) of this over all tensors. */
uint64_t hash_tensor(const char *name, uint64_t element_sum);

#endif
