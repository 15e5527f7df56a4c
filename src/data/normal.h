/* Normalization: what a tokenizer does to a text before it looks for words. Steps in order, each on the whole text that
 * the one before gave. Immutable once built; many threads may normalize, each with its own struct normal_work. */
#ifndef DATA_NORMAL_H
#define DATA_NORMAL_H

#include "data/charsmap.h"
#include "data/pretoken.h"

enum normal_kind {
    NORMAL_UNICODE,       /* NFC, NFD, NFKC, NFKD: compose, compat */
    NORMAL_LOWERCASE,
    NORMAL_STRIP,         /* white space: left, right */
    NORMAL_STRIP_ACCENTS, /* all combining marks go */
    NORMAL_PREPEND,       /* `with` before a text that is not empty */
    NORMAL_REPLACE,       /* each `what`, or match of `regex`, becomes `with` */
    NORMAL_PRECOMPILED,   /* `map` as Hugging Face applies it */
    NORMAL_SPM,           /* `map` and `spm` as SentencePiece applies them */
};

struct normal_spm {
    bool dummy_prefix, remove_extra, escape;
    const struct symbol_trie *user; /* user-defined symbols stay as they are; NULL: none */
};

struct normal_step {
    enum normal_kind kind;
    bool compose, compat, left, right;
    struct buf what, with;
    struct regex *regex;
    struct charsmap map;
    struct normal_spm spm;
};

#define NORMAL_STEPS 16

struct normal {
    struct normal_step step[NORMAL_STEPS];
    int steps;
};
void normal_release(struct normal *n);

struct nfc_work {
    int32_t *code;
    size_t capacity;
};
struct normal_work {
    struct nfc_work nfc;
    struct buf text[2];
    struct regex_work regex;
};
void normal_work_release(struct normal_work *w);

/* Valid UTF-8 in and out. *text and *bytes become the normalized text, which lies in `w` unless nothing changed it.
 * ERR_DATA when it would grow beyond NORMAL_GROWTH times the text. O(n log n). */
#define NORMAL_GROWTH 64u
MUST_USE enum err normal_apply(const struct normal *n, const struct char_table *table, struct normal_work *w,
                               const char **text, size_t *bytes);

/* ---- the forms of Unicode ---- */

/* Whether canonical composition may change the text. */
bool nfc_may_change(const struct char_table *t, const char *text, size_t bytes);
/* Append the normal form of valid UTF-8: NFC (compose), NFKC (compose, compat), NFD, NFKD. O(n log n) on any text. */
MUST_USE enum err nfc_append(struct nfc_work *w, bool compose, bool compat, const char *text, size_t bytes,
                             struct buf *out);

#endif
