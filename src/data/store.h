/* The token store: a Megatron .bin/.idx pair, memory-mapped, read through a checked view. docs/formats.md has the
 * format. */
#ifndef DATA_STORE_H
#define DATA_STORE_H

#include "base/err.h"
#include "base/file.h"

struct store; /* immutable after opening; many threads may read */

/* Opens PREFIX.bin and PREFIX.idx (PREFIX may also be the name of one of the two) and checks every count, size, pointer
 * and document boundary of the index against the files. Each damage has its own one-line error with the numbers
 * (ERR_DATA). */
MUST_USE enum err store_open(struct store **out, const char *prefix);
void store_close(struct store *s);
uint64_t store_tokens(const struct store *s);
uint64_t store_sequences(const struct store *s);
uint64_t store_documents(const struct store *s);
uint32_t store_token_bytes(const struct store *s);
const char *store_token_type(const struct store *s); /* "uint16", ... */
/* Token positions [first, end) of sequence i in the joined stream. ERR_DATA when the index was cut under the run. */
MUST_USE enum err store_sequence(const struct store *s, uint64_t i, uint64_t *first, uint64_t *end);
/* Tokens [first, first + count) of the joined stream as int32. An id >= vocab is ERR_DATA naming sequence and position,
 * and so is a file that was cut under the run. vocab 0: only ids that int32 cannot hold or that are negative are
 * refused. */
MUST_USE enum err store_read(const struct store *s, uint64_t first, uint64_t count, uint64_t vocab, int32_t *out);
/* Lengths of the sequences. Bounded memory: several passes over the index. */
struct store_lengths {
    uint64_t least, median, most;
    uint64_t bucket[33]; /* [0]: length 0; [k]: lengths 2^(k-1) .. 2^k - 1 */
};
MUST_USE enum err store_lengths(const struct store *s, struct store_lengths *out);
/* Refuse, at open time, a model's vocabulary that the token width cannot hold, or that is smaller than the recorded
 * vocabulary of the tokens. */
MUST_USE enum err store_check_vocab(const struct store *s, uint64_t vocab);
/* What `data build` recorded beside the pair (PREFIX.json); zeros and "" when there is no such file. ERR_DATA when the
 * file is damaged or belongs to other tokens. */
struct store_info {
    uint64_t text_bytes; /* bytes of text behind the tokens, for bits per byte; 0 unknown */
    uint64_t vocab;      /* of the tokenizer; 0 unknown */
    char tokenizer[33];  /* tokenizer_digest; "" unknown */
    char content[33];    /* hash of the .bin; "" unknown */
};
MUST_USE enum err store_info(const struct store *s, struct store_info *out);

#endif
