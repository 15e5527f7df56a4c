/* Inside the tokenizer: what loading fills in and encoding reads. Private to src/data. */
#ifndef DATA_TOKENIZER_INT_H
#define DATA_TOKENIZER_INT_H

#include <jansson.h>

#include "data/bpe.h"
#include "data/normal.h"
#include "data/pretoken.h"
#include "data/tokenizer.h"
#include "data/unigram.h"

#define TOKENIZER_FILES 6
#define TOKENIZER_FILE_BYTES_MAX ((size_t)256 << 20)
#define TOKENIZER_MESSAGE_PATH 300

/* ---- added tokens: cut out of the text before the model sees it ---- */

#define ADDED_BYTES_MAX 1024
#define ADDED_TOKENS_MAX 16384

struct added_token {
    char *text;
    size_t bytes;
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
};

struct added_node { /* of a trie over bytes */
    int32_t child, sibling, token; /* -1: none */
    unsigned char byte;
};

struct added_trie {
    struct added_node *node; /* 0 is the root */
    size_t count, capacity;
    bool first[256];         /* bytes that some token begins with */
    int only_first;          /* the byte when there is a single one, else -1 */
};

struct added {
    struct added_token *token;
    size_t count, capacity;
    struct added_trie plain, normalized; /* matched in the text as it is, and after normalization */
    bool ordinary; /* some token is not special: it is matched without TOKENIZER_SPECIAL too */
};

void added_release(struct added *a);
/* Takes a copy. `where` for messages. */
MUST_USE enum err added_add(struct added *a, const char *where, const struct added_token *t);
const struct added_token *added_find(const struct added *a, const char *text, size_t bytes);
/* After the last token: build the tries. */
MUST_USE enum err added_finish(struct added *a, const struct tokenizer *t);

struct added_hit {
    size_t start, end; /* what it takes from the text, stripped blanks included */
    int32_t id;
};
struct added_scan { /* one pass over one text */
    const struct added *added;
    const struct added_trie *trie;
    const struct char_table *table;
    const char *text;
    size_t bytes, at;
    size_t done;      /* end of the last hit */
    bool special;
};
/* The next added token; false at the end. start may lie before the end of the last hit, as in Hugging Face. */
bool added_next(struct added_scan *s, struct added_hit *hit);

/* ---- decoding ---- */

enum decode_kind { DECODE_REPLACE, DECODE_BYTES, DECODE_FUSE, DECODE_STRIP, DECODE_METASPACE };
struct decode_step {
    enum decode_kind kind;
    struct buf what, with; /* DECODE_REPLACE; `what` of the others: the character */
    uint64_t start, stop;  /* DECODE_STRIP: how many at most */
    bool first;            /* DECODE_METASPACE: the first token of a text has none */
    bool whole;            /* DECODE_STRIP behind DECODE_FUSE: of the text, not of each token */
    bool each;             /* whole: of each token while nothing of the text has been given out */
};
#define DECODE_STEPS 8
struct decode_chain {
    struct decode_step step[DECODE_STEPS];
    int steps;
    bool join; /* no decoder: Hugging Face puts blanks between tokens */
    int32_t unknown;         /* shown as unknown_text, when that is set */
    struct buf unknown_text;
};
void decode_release(struct decode_chain *c);

/* ---- the tokenizer ---- */

struct tokenizer_file {
    const char *name; /* under which it is saved */
    struct buf text;
    bool definition;  /* counts for the digest */
};

enum tokenizer_model { MODEL_BYTES, MODEL_CHARS, MODEL_UNIGRAM };

struct tokenizer {
    char *path;       /* as given, for messages */
    enum tokenizer_model model;
    struct bpe bpe;   /* the tokens of every kind of model */
    struct unigram unigram;   /* MODEL_UNIGRAM */
    struct symbol_trie user;  /* SentencePiece's user-defined symbols: in a BPE model they never merge */
    struct normal normal;
    struct pretoken pre;
    struct added added;
    struct decode_chain decode; /* not of MODEL_BYTES */
    int32_t *prefix, *suffix; /* of the post-processor */
    size_t prefix_count, suffix_count;
    int64_t eot;
    uint64_t vocab;
    struct tokenizer_file file[TOKENIZER_FILES];
    int files;
    char digest[33];
};

/* Read `folder`/`name` if it is there and keep it as `save_as`. NULL when it is not there. */
MUST_USE enum err tokenizer_keep(struct tokenizer *t, const char *folder, const char *name, const char *save_as,
                                 bool definition, struct tokenizer_file **out);
/* Keep a text of our own. */
MUST_USE enum err tokenizer_keep_text(struct tokenizer *t, const char *save_as, const struct buf *text,
                                      bool definition);

/* Add a token that is cut out of the text, with its checks against the vocabulary (bpe sealed). */
MUST_USE enum err tokenizer_add(struct tokenizer *t, const char *where, const struct added_token *token);
/* The boolean `key` of an object; `usual` when it is not there or null. ERR_DATA "WHERE.key: ..." for anything else. */
MUST_USE enum err tokenizer_flag(const char *where, const json_t *object, const char *key, bool usual, bool *out);
/* From a JSON object {"content", "special", "lstrip", ...}; `id` is used when the object has none. */
MUST_USE enum err tokenizer_add_json(struct tokenizer *t, const char *where, const json_t *object, int64_t id);
/* From the text of a tokenizer.json. */
MUST_USE enum err tokenizer_parse_json(struct tokenizer *t, const char *path, const json_t *root);
MUST_USE enum err tokenizer_parse_normalizer(struct tokenizer *t, const char *path, const json_t *n);
MUST_USE enum err tokenizer_parse_decode(struct tokenizer *t, const char *path, const json_t *d);
/* Whether a pre-tokenizer has a step of type ByteLevel: the model's symbols are bytes then. */
bool tokenizer_is_bytelevel(const json_t *pre);
MUST_USE enum err tokenizer_parse_pre(struct tokenizer *t, const char *path, const json_t *pre);
/* Of a Metaspace: whether it puts its character in front, and which that is. */
MUST_USE enum err tokenizer_parse_prepend(const char *where, const json_t *object, enum step_prepend *out);
MUST_USE enum err tokenizer_parse_mark(const char *where, const json_t *object, struct buf *out);
MUST_USE enum err tokenizer_parse_post(struct tokenizer *t, const char *path, const json_t *post);
MUST_USE enum err tokenizer_parse_unigram(struct tokenizer *t, const char *path, const json_t *model);
/* Tokens that only the added list has get their place in the vocabulary. */
MUST_USE enum err tokenizer_seal_added(struct tokenizer *t, const char *where);
/* Names of the files of tiktoken that are known: the i-th, NULL behind the last; the one equal to `name`, or NULL. */
const char *tokenizer_tiktoken_name(size_t i);
const char *tokenizer_tiktoken_known(const char *name);
/* From the text of the file of that known name. */
MUST_USE enum err tokenizer_parse_tiktoken(struct tokenizer *t, const char *where, const char *name,
                                           const struct buf *text);
/* From the bytes of a SentencePiece model file; `where` names it. */
MUST_USE enum err tokenizer_parse_spm(struct tokenizer *t, const char *where, const struct buf *text);
/* From vocab.json and merges.txt; `config` is tokenizer_config.json or NULL. */
MUST_USE enum err tokenizer_parse_vocab(struct tokenizer *t, const char *folder, const struct tokenizer_file *vocab,
                                        const struct tokenizer_file *merges, const json_t *config);
/* The vocabulary of a JSON object token -> id. */
MUST_USE enum err tokenizer_parse_tokens(struct tokenizer *t, const char *where, const json_t *object);
/* added_tokens_decoder of tokenizer_config.json. */
MUST_USE enum err tokenizer_parse_decoder(struct tokenizer *t, const char *where, const json_t *config);

#endif
