/* Why this exists: one choice of hash for files, names and tensors. */
#include "base/hash.h"

#include <string.h>
#include <xxhash.h>

#include "base/banned.h"

uint64_t hash64(const void *bytes, size_t count, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, count, seed);
}

static void to_hex(XXH128_hash_t h, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

void hash128_hex(const void *bytes, size_t count, char out[33])
{
    to_hex(XXH3_128bits(bytes, count), out);
}

struct hash_stream *hash_stream_begin(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state != NULL) {
        XXH3_128bits_reset(state);
    }
    return (struct hash_stream *)state;
}

void hash_stream_add(struct hash_stream *s, const void *bytes, size_t count)
{
    XXH3_128bits_update((XXH3_state_t *)s, bytes, count);
}

void hash_stream_end(struct hash_stream *s, char out[33])
{
    to_hex(XXH3_128bits_digest((XXH3_state_t *)s), out);
    XXH3_freeState((XXH3_state_t *)s);
}

uint64_t hash_tensor(const char *name, uint64_t element_sum)
{
    return hash_mix(element_sum ^ hash64(name, strlen(name), 0));
}
