/* The format of the pair, shared by the reader and the writer of token stores. docs/formats.md has the description. */
#ifndef DATA_STORE_INT_H
#define DATA_STORE_INT_H

#include "base/file.h"
#include "data/store.h"

#define STORE_MAGIC "MMIDIDX\0" /* with the literal's own zero 9 bytes */
#define STORE_MAGIC_BYTES 9u
#define STORE_VERSION 1u
#define STORE_HEAD_BYTES 34u /* magic, version, dtype code, sequence count, document-entry count */

enum store_dtype {
    STORE_UINT8 = 1,
    STORE_INT16 = 3,
    STORE_INT32 = 4,
    STORE_INT64 = 5,
    STORE_UINT16 = 8,
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the pair is little-endian and is read without swapping");

#define INFO_FORMAT "invar tokens"      /* "format" of PREFIX.json */
#define INFO_VERSION 1                   /* and its "version" */
#define INFO_BYTES_MAX ((size_t)1 << 20) /* of PREFIX.json */

#define STORE_WALK_ITEMS 2048u /* entries read at once */

struct store {
    char *prefix, *bin_path, *idx_path, *info_path;
    struct file_map bin, idx;
    enum store_dtype dtype;
    uint32_t token_bytes;
    uint64_t sequences, entries, tokens; /* entries: document boundaries, one more than documents */
};

/* Where entry i of each part of the index begins in the .idx. */
static inline uint64_t store_lengths_at(uint64_t i)
{
    return STORE_HEAD_BYTES + 4 * i;
}

static inline uint64_t store_pointers_at(const struct store *s, uint64_t i)
{
    return store_lengths_at(s->sequences) + 8 * i;
}

static inline uint64_t store_entries_at(const struct store *s, uint64_t i)
{
    return store_pointers_at(s, s->sequences) + 8 * i;
}

/* Check the open index completely; sets dtype, token_bytes, sequences, entries and tokens. */
MUST_USE enum err store_check_index(struct store *s);
/* Refuse a vocabulary that the token width cannot hold. */
MUST_USE enum err store_check_width(const struct store *s, uint64_t vocab);
/* Read every token: the hash of the .bin and the highest id. An id >= vocab (0: unchecked) is ERR_DATA. */
MUST_USE enum err store_scan(const struct store *s, uint64_t vocab, char content[33], int32_t *most);

/* Writes a pair aside (PREFIX.bin.tmp, PREFIX.idx.tmp) in memory that does not grow with the number of documents: their
 * lengths go through a third file, PREFIX.lengths.tmp. */
struct store_writer;

struct store_writer_options {
    const char *prefix;
    uint32_t token_bytes;     /* 2 (uint16) or 4 (int32) */
    uint64_t sequence_tokens; /* longer documents are stored as several sequences; 0: INT32_MAX */
};
MUST_USE enum err store_writer_open(struct store_writer **out, const struct store_writer_options *o);
/* Append tokens, already in the store's width, to the document that is being written. */
MUST_USE enum err store_writer_add(struct store_writer *w, const void *tokens, size_t count);
/* The document is complete. One without tokens is not stored. *stored says which. */
MUST_USE enum err store_writer_end_document(struct store_writer *w, bool *stored);
uint64_t store_writer_tokens(const struct store_writer *w);
uint64_t store_writer_documents(const struct store_writer *w);
/* Complete the files under their temporary names; content: the hash of the .bin. */
MUST_USE enum err store_writer_finish(struct store_writer *w, char content[33]);
/* Rename the finished pair into place and write `info` to PREFIX.json as the last file. Frees the writer, also on
 * error; then nothing new is left behind, and an earlier pair is whole or, when its .bin was replaced already, gone. */
MUST_USE enum err store_writer_publish(struct store_writer *w, const struct buf *info);
/* Give up: close and delete what was written. NULL is accepted. */
void store_writer_abandon(struct store_writer *w);

#endif
