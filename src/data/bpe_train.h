/* Learning the merges of a byte-level BPE from words and their counts. */
#ifndef DATA_BPE_TRAIN_H
#define DATA_BPE_TRAIN_H

#include "base/buf.h"
#include "base/err.h"

/* Distinct byte strings with counts, in order of their first bpe_words_add. Zero-initialise; one writer at a time. */
struct bpe_count {
    uint64_t count, hash;
    size_t offset; /* in bpe_words.text */
    uint32_t bytes;
};
struct bpe_words {
    struct bpe_count *word;
    size_t count, capacity;
    struct buf text;
    uint32_t *slot; /* open addressing: index + 1; 0 free */
    size_t slots;
};
void bpe_words_release(struct bpe_words *w);
MUST_USE enum err bpe_words_add(struct bpe_words *w, const char *word, size_t bytes, uint64_t count, uint32_t *index);

struct bpe_merge {
    int32_t left, right, id;
};
struct bpe_learnt {
    struct bpe_merge *merge; /* in order */
    size_t merges, merge_capacity;
    size_t *offset;          /* token i is text[offset[i], offset[i + 1]) */
    size_t tokens, offset_capacity;
    struct buf text;
};
void bpe_learnt_release(struct bpe_learnt *l);

#define BPE_TRAIN_COUNT_MIN 2u /* a pair that occurs once teaches nothing */

/* Tokens 0..255 are the bytes in order of their characters in the alphabet (bytelevel_code); then the most frequent
 * pair is merged, among equals the one with the smaller (left, right) ids, until there are `tokens` tokens or no
 * pair occurs BPE_TRAIN_COUNT_MIN times. A pair that spells an old token becomes that token. The result depends on
 * the counts only. */
MUST_USE enum err bpe_train(const struct bpe_words *words, size_t tokens, struct bpe_learnt *out);

#endif
