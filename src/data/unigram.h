/* The Unigram model: of all ways to cut a text into tokens the one whose scores have the largest sum. Immutable once
 * built; many threads may encode, each with its own struct unigram_work. */
#ifndef DATA_UNIGRAM_H
#define DATA_UNIGRAM_H

#include "base/buf.h"
#include "base/err.h"

struct unigram_token {
    const char *text; /* valid UTF-8, until unigram_new returns */
    uint32_t bytes;
    int32_t id;
    double score;
    bool user; /* SentencePiece's user-defined symbols win against anything */
};

struct unigram_node { /* children are neighbours, in order of their bytes */
    uint32_t first;
    uint16_t count;
    unsigned char byte;
    bool user;
    int32_t id;       /* -1: no token ends here */
    double score;
};

struct unigram {
    struct unigram_node *node; /* 0 is the root */
    size_t nodes, capacity;
    double unk_score, max_score;
    int32_t unk;
    bool single; /* sums in float, as SentencePiece; else double, as Hugging Face */
};
void unigram_release(struct unigram *u);
/* From distinct tokens; sorts the list. `least`, `most`: the scores that those of the unknown and of user-defined
 * tokens are made from. */
MUST_USE enum err unigram_new(struct unigram *u, struct unigram_token *list, size_t count, double least, double most);

struct unigram_place { /* the best way to here */
    double score;
    uint32_t start; /* of its last token, within the window */
    int32_t id;
};
struct unigram_work {
    struct unigram_place *place;
    size_t capacity;
};
void unigram_work_release(struct unigram_work *w);

/* Receives the tokens of the text in order; id = u->unk for a row of unknown characters, all of them at once. */
typedef enum err unigram_sink(void *arg, int32_t id, const char *text, size_t bytes);
/* Valid UTF-8. Of equal sums the one found first: earlier starts, shorter tokens. Time is linear in the text times the
 * longest token. Memory is that of the longest stretch in which tokens overlap without a gap. */
MUST_USE enum err unigram_encode(const struct unigram *u, struct unigram_work *w, const char *text, size_t bytes,
                                 unigram_sink *sink, void *arg);

#endif
