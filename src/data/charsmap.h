/* SentencePiece's precompiled map of character sequences (a double-array trie and the texts it points to), and a trie
 * of symbols. Immutable once built. */
#ifndef DATA_CHARSMAP_H
#define DATA_CHARSMAP_H

#include "base/buf.h"
#include "base/err.h"

struct charsmap {
    uint32_t *unit; /* NULL: no map */
    size_t units;
    struct buf text; /* zero-terminated replacements */
};
/* From the bytes of a model file: a length, the units, the texts. `where` is "file: field". Takes a copy. */
MUST_USE enum err charsmap_new(struct charsmap *m, const char *where, const char *blob, size_t bytes);
/* The same in base64. */
MUST_USE enum err charsmap_new_base64(struct charsmap *m, const char *where, const char *text, size_t chars);
void charsmap_release(struct charsmap *m);
/* The longest (or shortest) sequence of the map that `text` begins with: its length, 0 when there is none, and what it
 * becomes (UTF-8, valid until the release). */
size_t charsmap_match(const struct charsmap *m, const char *text, size_t bytes, bool longest, const char **with,
                      size_t *with_bytes);

/* Base64 (RFC 4648, padded or not): appends the bytes; *whole false when a character is none of its alphabet. */
MUST_USE enum err base64_decode(const char *text, size_t chars, struct buf *out, bool *whole);

/* ---- symbols ---- */

struct symbol_node { /* child and sibling lists; children of the root through `first` */
    int32_t child, sibling, id; /* -1: none */
    unsigned char byte;
};
struct symbol_trie {
    struct symbol_node *node;
    size_t count, capacity;
    int32_t first[256];
};
void symbol_trie_init(struct symbol_trie *t);
void symbol_trie_release(struct symbol_trie *t);
/* A symbol of at least one byte; ids from 0. */
MUST_USE enum err symbol_trie_add(struct symbol_trie *t, const char *text, size_t bytes, int32_t id);
/* Length of the longest symbol that `text` begins with and its id; 0: none. */
size_t symbol_trie_match(const struct symbol_trie *t, const char *text, size_t bytes, int32_t *id);

#endif
