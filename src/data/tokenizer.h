/* Text to tokens and back. A tokenizer is immutable after loading and may be used by many threads at once, each with
 * its own struct tokenizer_scratch. */
#ifndef DATA_TOKENIZER_H
#define DATA_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"

struct tokenizer;
struct tokenizer_scratch; /* per-thread caches and match data */

/* path: a folder (the first of: tokenizer.json; tokenizer.model; a rank file of tiktoken by its name; vocab.json or
 * encoder.json with merges.txt or vocab.bpe), a file of these (*.json, *.model, cl100k_base.tiktoken, ...), or the word
 * "bytes" (ids 0..255 and end-of-text 256). ERR_DATA names the file, the field and what is supported. */
MUST_USE enum err tokenizer_load(struct tokenizer **out, const char *path);
void tokenizer_free(struct tokenizer *t);
/* Whether `folder` holds a file that tokenizer_load would read as the vocabulary. */
MUST_USE enum err tokenizer_is_in(const char *folder, bool *found);
uint64_t tokenizer_vocab(const struct tokenizer *t); /* highest id + 1, added tokens included */
int64_t tokenizer_eot(const struct tokenizer *t);    /* end-of-text id, -1 when there is none */

MUST_USE enum err tokenizer_scratch_new(struct tokenizer_scratch **out, const struct tokenizer *t);
void tokenizer_scratch_free(struct tokenizer_scratch *s);

struct tokens {
    int32_t *id;
    size_t count, capacity;
};
void tokens_release(struct tokens *t);

enum tokenizer_flags {
    TOKENIZER_SPECIAL = 1 << 0, /* special tokens written in the text become their ids (as Hugging Face does) */
    TOKENIZER_POST = 1 << 1,    /* add what the post-processor adds (e.g. a begin-of-text token) */
};
/* Append the ids of UTF-8 `text`. Linear time, bounded stack on any input. Bytes that are not UTF-8 are ERR_DATA
 * with the offset (byte-level models could encode them, but Hugging Face cannot). */
MUST_USE enum err tokenizer_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text,
                                   size_t bytes, unsigned flags, struct tokens *out);
/* Where a long text may be cut so that encoding both parts (without TOKENIZER_POST) gives the ids of the whole: the
 * last such offset in (0, bytes), looking back at most 1 MiB from the end; 0: nowhere. `tokenizer` is a struct
 * tokenizer, so this is the `split` of reader_options with split_arg = the tokenizer. */
size_t tokenizer_split(const void *tokenizer, const char *text, size_t bytes);
/* Where in a text the next token stands: SentencePiece's decoders drop the blank that encoding put before a text. Zero:
 * at its beginning. */
struct tokenizer_decoding {
    uint64_t tokens;   /* decoded so far */
    uint64_t stripped; /* characters dropped so far */
    bool begun;        /* some of the text has been given out */
};
/* Append the bytes of one token (a token may be part of a character: the pieces of a text are UTF-8 when they are put
 * together, unless the ids are no encoding of any text). d NULL: in the middle of a text. id outside the vocabulary:
 * ERR_DATA. */
MUST_USE enum err tokenizer_decode(const struct tokenizer *t, struct tokenizer_decoding *d, int32_t id,
                                   struct buf *out);
/* Copy the files that define it into a checkpoint folder (as they were read; for "bytes" a
 * tokenizer.json that transformers can load). */
MUST_USE enum err tokenizer_save(const struct tokenizer *t, const char *folder);
/* 128-bit hash of the definition (files' content). */
void tokenizer_digest(const struct tokenizer *t, char hex[33]);

#endif
