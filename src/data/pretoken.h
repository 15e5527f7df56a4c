/* Pre-tokenisation: text to words. The patterns of the well-known tokenizers have hand-written scanners, any other
 * regular expression goes through PCRE2 under a budget, so that no text and no pattern can hang. Immutable once
 * built; many threads may split, each with its own struct pretoken_work. */
#ifndef DATA_PRETOKEN_H
#define DATA_PRETOKEN_H

#include "base/buf.h"
#include "base/err.h"

/* ---- classes of characters ---- */

/* The low two bits of a class byte. */
enum { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE, CHAR_CLASS = 3 };
/* The flags above them. CHAR_MULTI is set in the table of first bytes only: decode before asking. */
enum { CHAR_PUNCTUATION = 4, CHAR_WORD = 8, CHAR_NFC = 16, CHAR_MULTI = 32 };

#define CHAR_BLOCK 128u
#define CHAR_BLOCKS (0x110000u / CHAR_BLOCK)

struct char_table {
    uint8_t first[256];            /* classes of ASCII; CHAR_MULTI for all other first bytes */
    uint16_t block[CHAR_BLOCKS];   /* which row of `row` a block of code points has */
    uint8_t (*row)[CHAR_BLOCK];    /* equal blocks share a row */
    size_t rows, capacity;
};
/* Unicode classes from utf8proc: \p{L}, \p{N}, \s (White_Space); punctuation, word characters and "normalization may
 * change this or what stands before it" as Hugging Face needs them. */
MUST_USE enum err char_table_init(struct char_table *t);
void char_table_release(struct char_table *t);

static inline uint8_t char_class(const struct char_table *t, uint32_t code)
{
    return t->row[t->block[code / CHAR_BLOCK]][code % CHAR_BLOCK];
}

/* ---- one regular expression ---- */

struct regex;
struct regex_work { /* match data and the budget of one text */
    void *match, *context, *stack;
    const struct regex *owner;
    uint64_t left;
};
/* Compile a pattern written for Hugging Face tokenizers (Oniguruma, Ruby syntax). Constructs that PCRE2 reads in
 * another way are rewritten or refused by name. `where` is "file: field". */
MUST_USE enum err regex_new(struct regex **out, const char *where, const char *pattern, size_t bytes);
void regex_free(struct regex *r);
/* The budget for a text of `bytes`: all matches together may take time linear in it. */
void regex_work_begin(struct regex_work *w, size_t bytes);
void regex_work_release(struct regex_work *w);
/* The first match at or after `from` in valid UTF-8. *found false: none. ERR_DATA when the budget is spent. */
MUST_USE enum err regex_next(const struct regex *r, struct regex_work *w, const char *text, size_t bytes, size_t from,
                             bool *found, size_t *start, size_t *end);

/* ---- scanners ---- */

enum pretoken_scanner {
    SCANNER_NONE,   /* the text is one word */
    SCANNER_GPT2,   /* GPT-2, GPT-NeoX, Phi-2, StarCoder */
    SCANNER_LLAMA3, /* Llama 3; cl100k as Hugging Face writes it */
    SCANNER_QWEN2,  /* Qwen2, 2.5, 3: as Llama 3 with single digits */
    SCANNER_CL100K, /* tiktoken's cl100k_base: as Llama 3 with the white space at the end of the text in one word */
};
/* The scanner of a pattern text, SCANNER_NONE when it has none. */
enum pretoken_scanner pretoken_scanner_of(const char *pattern, size_t bytes);
const char *pretoken_pattern(enum pretoken_scanner s);
/* End of the first word of [p, end): valid UTF-8, not empty. */
typedef const char *pretoken_next_fn(const struct char_table *t, const char *p, const char *end);
pretoken_next_fn *pretoken_scan(enum pretoken_scanner s);

/* The last offset in (0, bytes) where every scanner begins a word whatever stands around it: between a letter and a
 * blank of ASCII. Looks back at most 1 MiB; 0: none. */
size_t pretoken_cut(const struct char_table *t, const char *text, size_t bytes);

/* ---- steps ---- */

enum step_kind {
    STEP_SCAN,
    STEP_REGEX,
    STEP_STRING,
    STEP_DIGITS,
    STEP_PUNCTUATION,
    STEP_WHITESPACE,       /* runs of word characters, runs of others, without white space */
    STEP_WHITESPACE_SPLIT, /* what stands between white space */
    STEP_METASPACE,        /* blanks become `string`, one goes in front as `prepend` says; cut before each if `split` */
    STEP_BYTELEVEL,
};
enum step_behavior { STEP_REMOVED, STEP_ISOLATED, STEP_MERGED_PREVIOUS, STEP_MERGED_NEXT, STEP_CONTIGUOUS };

enum step_prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

#define PRETOKEN_STEPS 8

struct pretoken_step {
    enum step_kind kind;
    enum step_behavior behavior;
    bool invert;
    bool prefix_space;             /* STEP_BYTELEVEL */
    enum pretoken_scanner scanner; /* STEP_SCAN, STEP_BYTELEVEL */
    struct regex *regex;           /* STEP_REGEX, owned */
    struct buf string;             /* STEP_STRING, STEP_METASPACE */
    enum step_prepend prepend;     /* STEP_METASPACE */
    bool split;                    /* STEP_METASPACE */
};

/* Steps run in order, each on every piece of the one before. For a model of bytes exactly one of them is
 * STEP_BYTELEVEL; those behind it see the byte alphabet instead of the text, as in Hugging Face. */
struct pretoken {
    struct char_table table;
    struct pretoken_step step[PRETOKEN_STEPS];
    int steps;
    bool simple;                   /* one scanner does it all: `scanner` */
    enum pretoken_scanner scanner;
};
void pretoken_release(struct pretoken *p);
/* After the steps are set: find out whether one scanner does it all. */
void pretoken_finish(struct pretoken *p);

struct pretoken_work {
    struct regex_work regex[PRETOKEN_STEPS];
    struct buf text[PRETOKEN_STEPS]; /* what a step made of a piece */
    struct buf word;
};
void pretoken_work_release(struct pretoken_work *w);
/* Receives each word as bytes of the text (a prefix space added). text_start: the text begins where the whole does. */
typedef enum err pretoken_sink(void *arg, const char *word, size_t bytes);
MUST_USE enum err pretoken_split(const struct pretoken *p, struct pretoken_work *w, const char *text, size_t bytes,
                                 bool text_start, pretoken_sink *sink, void *arg);

#endif
