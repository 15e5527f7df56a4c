/* From text files to a token store, in parallel and in bounded memory. */
#ifndef DATA_BUILD_H
#define DATA_BUILD_H

#include "base/err.h"
#include "base/pool.h"
#include "data/tokenizer.h"

enum build_on_error { BUILD_STOP, BUILD_SKIP }; /* a damaged jsonl line: stop, or skip with a count per kind */

struct build_options {
    const char *const *inputs; /* files, folders or globs: .txt .jsonl, each also .gz and .zst */
    size_t inputs_count;
    const char *prefix; /* PREFIX.bin, PREFIX.idx, PREFIX.json */
    const char *field;  /* of a JSON line, default "text" */
    bool append_eot;    /* end each document with the end-of-text token (default) */
    enum build_on_error on_error;
    uint64_t memory_bytes;     /* bound of the buffers; 0: 256 MB. A single line or text that needs more gets it */
    double range_lo, range_hi; /* part of a single plain .txt: fractions of its bytes, moved to the next character
                                * boundary; both 0: all of it. 0:0.9 and 0.9:1 divide a text without overlap or gap */
    bool quiet;
};

struct build_result {
    uint64_t documents, tokens, text_bytes;
    uint64_t skipped; /* damaged lines, with BUILD_SKIP */
    uint64_t empty;   /* documents without text: never stored */
    double seconds;
};

/* The same input gives the same bytes for any number of threads. Files are written aside and renamed when complete; on
 * any error nothing is left behind. Zero tokens is an error. */
MUST_USE enum err data_build(const struct build_options *o, const struct tokenizer *t, struct pool *pool,
                             struct build_result *out);

/* A store of random tokens below `vocab`, one document: for measurements. The same arguments give the same tokens. */
MUST_USE enum err data_random(const char *prefix, uint64_t tokens, uint64_t vocab, uint64_t seed);

struct train_tokenizer_options {
    const char *const *inputs;
    size_t inputs_count;
    const char *field;
    uint64_t vocab_size; /* 256 bytes + end-of-text + merges */
    const char *output;  /* folder: tokenizer.json (byte-level BPE, GPT-2 pre-tokeniser), tokenizer_config.json */
    bool quiet;
};
/* Byte-level BPE: count words by the GPT-2 pattern in parallel, then merge the most frequent pair (ties: smaller pair
 * of ids) until vocab_size. Deterministic for any number of threads. */
MUST_USE enum err data_train_tokenizer(const struct train_tokenizer_options *o, struct pool *pool);

/* Check a pair completely: index rules, content hash, every id below vocab (0: from PREFIX.json, else unchecked).
 * Prints a summary; the first damage is the error. */
MUST_USE enum err data_verify(const char *prefix, uint64_t vocab);

#endif
