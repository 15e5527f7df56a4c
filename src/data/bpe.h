/* The BPE model: tokens, merges, and the encoding of one word. Its symbols are bytes (GPT-2, Llama 3), or characters
 * with an unknown token or a fall back to bytes (SentencePiece; chars = true). Immutable once built; many threads may
 * encode, each with its own struct bpe_work. */
#ifndef DATA_BPE_H
#define DATA_BPE_H

#include "base/buf.h"
#include "base/err.h"

#define BPE_ID_MAX (((int64_t)1 << 24) - 1) /* above every known vocabulary, and small enough to pack */

/* ---- the printable alphabet of byte-level BPE: one character for each byte (GPT-2's) ---- */

/* Printable Latin-1 characters stand for themselves, the other bytes, in ascending order, for U+0100 and up. */
static inline uint32_t bytelevel_code(unsigned byte)
{
    if (byte < 33) {
        return 256 + byte;
    }
    if (byte >= 127 && byte <= 160) {
        return 256 + 33 + (byte - 127);
    }
    return byte == 173 ? 256 + 33 + 34 : byte;
}
/* The byte that a character stands for, -1 when it is not in the alphabet. */
static inline int bytelevel_byte(uint32_t code)
{
    if (code >= 256) {
        return code < 289 ? (int)code - 256 : code < 323 ? (int)code - 289 + 127 : code == 323 ? 173 : -1;
    }
    return code < 33 || (code >= 127 && code <= 160) || code == 173 ? -1 : (int)code;
}
/* Append the characters of `bytes`. */
MUST_USE enum err bytelevel_encode(const char *bytes, size_t count, struct buf *out);
/* Append the bytes of `text`; *whole is false, and nothing is appended, when a character is not in the alphabet. */
MUST_USE enum err bytelevel_decode(const char *text, size_t count, struct buf *out, bool *whole);

/* ---- the model ---- */

struct bpe_token {
    size_t offset;  /* in bpe.text */
    uint32_t bytes;
    int32_t id;
    bool raw;       /* holds characters outside the alphabet (or is an added token): never the result of a merge */
    bool aside;     /* not a part or a result of merges: control, unknown and byte tokens of SentencePiece */
};

/* Characters to ids of the model's symbols. */
struct bpe_chars {
    int32_t ascii[128];      /* -1: none */
    uint64_t *slot;          /* open addressing: (code + 1) << 32 | id; 0 free */
    size_t mask, count;
};

struct bpe {
    struct bpe_token *token; /* ascending ids once sealed */
    size_t count, capacity;
    struct buf text;         /* bytes of all tokens */
    uint32_t *name;          /* open addressing on the bytes: token index + 1; 0 free */
    size_t name_mask;
    uint64_t *pair;          /* the ranks of pairs, packed: see bpe.c */
    int pair_bits;           /* 2^pair_bits slots */
    uint32_t pair_reach;     /* how far from its place a pair lies at most */
    size_t pairs;
    uint32_t *byte_rank;     /* of the pair of bytes left << 8 | right: every word begins with these */
    int32_t *result;         /* id that the merge of each rank gives */
    int32_t byte_id[256];    /* -1: the model has no token for this byte */
    int missing;             /* how many of the 243 bytes that occur in UTF-8 have none */
    bool ignore_merges;      /* a word that is a token is that token, whatever the merges would give */
    uint32_t *order;         /* of each rank: equal orders are merged from the left; NULL: the rank itself */
    /* the rest only when the symbols are characters */
    bool chars;
    bool late_fallback;      /* SentencePiece: a symbol that is no token in the end becomes bytes or unknown */
    bool byte_fallback;      /* an unknown character becomes the tokens <0x00> to <0xFF> of its bytes: byte_id */
    bool fuse_unk;           /* a row of unknown characters is one unknown token */
    bool whole_words;        /* a part of some merge stands for bytes or the unknown: no cuts */
    int32_t unk;             /* -1: none */
    int32_t hidden;          /* ids from here on: characters that only merge, and are no tokens themselves */
    struct bpe_chars code;
    uint64_t *joint;         /* pairs of characters that some merge may join; NULL: words must not be cut */
};

/* Text for a message: unprintable bytes escaped, cut to fit. */
const char *bpe_quote(const char *text, size_t bytes, char out[96]);

void bpe_release(struct bpe *b);
/* Add a token by its spelling in the alphabet (raw: as plain text). `where` is "file: field" for messages. */
MUST_USE enum err bpe_add_token(struct bpe *b, const char *where, const char *text, size_t bytes, int64_t id, bool raw);
/* After the last token: sort, refuse two tokens with one id, index. May be called again after more bpe_add_token. */
MUST_USE enum err bpe_seal(struct bpe *b, const char *where);
/* Room for `count` merges; then add them in order of rank. Both parts and the result must be tokens. */
MUST_USE enum err bpe_reserve_merges(struct bpe *b, size_t count);
MUST_USE enum err bpe_add_merge(struct bpe *b, const char *where, const char *left, size_t left_bytes,
                                const char *right, size_t right_bytes);
/* Merges of every token but those set aside from two others, wherever both are tokens: SentencePiece's and tiktoken's
 * way. order[i] is that of token i (its index), least first; equal ones from the left. For characters index those
 * first. */
MUST_USE enum err bpe_imply_merges(struct bpe *b, const char *where, const uint32_t *order);
/* For characters, after the last merge: the table of characters (model tokens only), and where words may be cut. */
MUST_USE enum err bpe_index_chars(struct bpe *b);
MUST_USE enum err bpe_index_joints(struct bpe *b);
/* End of the longest part of [p, end) that may be encoded by itself: no merge joins what stands on both sides of it.
 * Valid UTF-8, not empty. */
const char *bpe_cut(const struct bpe *b, const char *p, const char *end);
/* Index of the token spelt so, or -1. Only after bpe_seal. */
int64_t bpe_find(const struct bpe *b, const char *bytes, size_t count, bool raw);
/* As bpe_find for a spelling in the alphabet; a spelling with other characters is looked up raw. A model of characters
 * looks up the text. */
MUST_USE enum err bpe_find_spelling(const struct bpe *b, const char *text, size_t bytes, int64_t *index);
/* Index of the token with this id, or -1. */
int64_t bpe_find_id(const struct bpe *b, int64_t id);

/* ---- encoding ---- */

struct bpe_work { /* arrays for long words */
    int32_t *id;
    uint32_t *next, *prev;
    uint64_t *heap;
    size_t id_capacity, next_capacity, prev_capacity, heap_capacity;
};
void bpe_work_release(struct bpe_work *w);
/* Ids of one word: the lowest-ranked pair, leftmost first, is merged until none is left. O(n log n). `out` holds
 * `bytes` ids at most; *count is set. A byte or character without a token is ERR_DATA with *bad its offset and no
 * message: the caller knows the file. */
MUST_USE enum err bpe_word(const struct bpe *b, struct bpe_work *w, const char *word, size_t bytes, int32_t *out,
                           size_t *count, size_t *bad);

#endif
