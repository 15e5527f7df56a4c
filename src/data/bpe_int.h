/* Between the files of the BPE model. */
#ifndef DATA_BPE_INT_H
#define DATA_BPE_INT_H

#include "data/bpe.h"

/* Id of the symbol of a character, -1 when it has none. */
int32_t bpe_char_id(const struct bpe *b, uint32_t code);
/* The parts of a merge: where one may stand for bytes or for what is unknown, words are not cut. */
void bpe_note_parts(struct bpe *b, int32_t left, int32_t right);
/* The symbols that merging begins with: at most `bytes`. As bpe_word where one has no id. */
MUST_USE enum err bpe_char_symbols(const struct bpe *b, const char *word, size_t bytes, int32_t *id, size_t *count,
                                   size_t *bad);
/* What becomes of symbols that are no tokens after the merges: in place, `bytes` ids at most. */
MUST_USE enum err bpe_char_finish(const struct bpe *b, struct bpe_work *w, const char *word, size_t bytes, int32_t *id,
                                  size_t n, size_t *count, size_t *bad);
/* Room for n symbols. */
MUST_USE enum err bpe_work_reserve(struct bpe_work *w, size_t n);

#endif
