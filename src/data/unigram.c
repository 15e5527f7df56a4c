/* Why this exists: T5 and XLM-R have a list of tokens with scores instead of merges. A forward pass keeps the best way
 * to every place, a backward pass reads it off.
 *
 * Sums are taken in the order and the precision of the judges, double in Hugging Face and float in SentencePiece:
 * where two ways are nearly equal the rounding decides. (In a text of more than some ten thousand tokens a float's last
 * bit is a hundredth and more: SentencePiece's choice between such ways is by chance there.) So a text cannot be cut
 * into words that are remembered; but where no token runs over a place, all ways meet there, and what lies before it is
 * final: a window is given out and its memory used again, while the sum goes on.
 *
 * Invariant: every character has a token or the unknown one, so some way reaches every place between characters. */
#include "data/unigram.h"

#include "base/mem.h"
#include "base/utf8.h"

#define UNK_PENALTY 10.0
#define USER_MALUS 0.1

void unigram_release(struct unigram *u)
{
    free(u->node);
    *u = (struct unigram){ 0 };
}

void unigram_work_release(struct unigram_work *w)
{
    free(w->place);
    *w = (struct unigram_work){ 0 };
}

/* ---- the trie ---- */

static int by_text(const void *a, const void *b)
{
    const struct unigram_token *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order != 0 ? order : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static enum err add_node(struct unigram *u, unsigned char byte)
{
    void *array = u->node;
    if (u->nodes >= UINT32_MAX) {
        return FAIL(ERR_RESOURCE, "the tokens have more than %u different beginnings", UINT32_MAX);
    }
    TRY(mem_grow(&array, &u->capacity, u->nodes + 1, sizeof(struct unigram_node)));
    u->node = array;
    u->node[u->nodes++] = (struct unigram_node){ .id = -1, .byte = byte };
    return OK;
}

struct range { /* the tokens below a node: they share their first `depth` bytes */
    uint32_t lo, hi, depth;
};

/* Level by level, so that the children of a node are neighbours: node i's tokens are range[i]. */
static enum err grow(struct unigram *u, const struct unigram_token *list, struct range **range, size_t *room, size_t i)
{
    struct range r = (*range)[i];
    if (r.lo < r.hi && list[r.lo].bytes == r.depth) {
        u->node[i].id = list[r.lo].id;
        u->node[i].score = list[r.lo].score;
        u->node[i].user = list[r.lo].user;
        r.lo++;
    }
    u->node[i].first = (uint32_t)u->nodes;
    while (r.lo < r.hi) {
        unsigned char byte = (unsigned char)list[r.lo].text[r.depth];
        uint32_t end = r.lo + 1;
        while (end < r.hi && (unsigned char)list[end].text[r.depth] == byte) {
            end++;
        }
        TRY(add_node(u, byte));
        void *array = *range;
        TRY(mem_grow(&array, room, u->nodes, sizeof(struct range)));
        *range = array;
        (*range)[u->nodes - 1] = (struct range){ r.lo, end, r.depth + 1 };
        u->node[i].count++;
        r.lo = end;
    }
    return OK;
}

enum err unigram_new(struct unigram *u, struct unigram_token *list, size_t count, double least, double most)
{
    struct range *range = NULL;
    size_t room = 0;
    void *array = NULL;
    enum err err = OK;
    BUG_IF(count >= UINT32_MAX);
    u->max_score = most;
    u->unk_score = least - UNK_PENALTY;
    if (count > 1) {
        qsort(list, count, sizeof(struct unigram_token), by_text);
    }
    TRY_OUT(add_node(u, 0));
    TRY_OUT(mem_grow(&array, &room, 1, sizeof(struct range)));
    range = array;
    range[0] = (struct range){ 0, (uint32_t)count, 0 };
    for (size_t i = 0; i < u->nodes; i++) {
        TRY_OUT(grow(u, list, &range, &room, i));
    }
out:
    free(range);
    return err;
}

/* The child of `node` with this byte, 0: none. */
static inline uint32_t child_of(const struct unigram *u, uint32_t node, unsigned char byte)
{
    uint32_t lo = u->node[node].first, n = u->node[node].count;
    while (n > 1) { /* the last one that is not above the byte */
        uint32_t half = n / 2;
        lo = u->node[lo + half].byte <= byte ? lo + half : lo;
        n -= half;
    }
    return n == 1 && u->node[lo].byte == byte ? lo : 0;
}

/* ---- encoding ---- */

struct pass {
    const struct unigram *u;
    struct unigram_work *w;
    const char *text;
    size_t bytes;
    size_t base;  /* where the window begins; place[i] is of text[base + i] */
    size_t reach; /* end of the longest token that begins before here, from base */
    size_t unknown, unknown_end; /* a row of unknown characters not given out yet */
    unigram_sink *sink;
    void *arg;
};

/* Places up to `end` of the window exist. */
static enum err reach_to(struct pass *p, size_t end)
{
    if (end <= p->reach) {
        return OK;
    }
    if (end >= UINT32_MAX) {
        return FAIL(ERR_RESOURCE, "tokens overlap without a gap in more than %u bytes | cut the text", UINT32_MAX);
    }
    void *array = p->w->place;
    TRY(mem_grow(&array, &p->w->capacity, end + 1, sizeof(struct unigram_place)));
    p->w->place = array;
    for (size_t i = p->reach + 1; i <= end; i++) {
        p->w->place[i].start = UINT32_MAX;
    }
    p->reach = end;
    return OK;
}

static inline void offer(const struct pass *p, size_t at, size_t end, double score, int32_t id)
{
    struct unigram_place *to = &p->w->place[end];
    double sum = score + p->w->place[at].score;
    sum = p->u->single ? (double)(float)sum : sum;
    if (to->start == UINT32_MAX || sum > to->score) {
        *to = (struct unigram_place){ .score = sum, .start = (uint32_t)at, .id = id };
    }
}

static enum err tokens_from(struct pass *p, size_t at)
{
    const struct unigram *u = p->u;
    const char *text = p->text + p->base + at;
    size_t left = p->bytes - p->base - at;
    uint32_t node = 0, code;
    size_t len = utf8_decode(text, left, &code);
    bool single = false;
    for (size_t i = 0; i < left; i++) {
        node = child_of(u, node, (unsigned char)text[i]);
        if (node == 0) {
            break;
        }
        const struct unigram_node *n = &u->node[node];
        if (n->id >= 0) {
            TRY(reach_to(p, at + i + 1));
            double score = n->user ? (double)((float)(i + 1) * (float)u->max_score) - USER_MALUS : n->score;
            offer(p, at, at + i + 1, score, n->id);
            single = single || i + 1 == len;
        }
    }
    if (!single) {
        TRY(reach_to(p, at + len));
        offer(p, at, at + len, u->unk_score, u->unk);
    }
    return OK;
}

static enum err give(struct pass *p, int32_t id, size_t start, size_t end)
{
    if (id == p->u->unk) {
        p->unknown = p->unknown_end == start && p->unknown < start ? p->unknown : start;
        p->unknown_end = end;
        return OK;
    }
    if (p->unknown < p->unknown_end) {
        TRY(p->sink(p->arg, p->u->unk, p->text + p->unknown, p->unknown_end - p->unknown));
        p->unknown = p->unknown_end;
    }
    return p->sink(p->arg, id, p->text + start, end - start);
}

/* All ways meet at `end` of the window: turn the best one around, give it out, and begin a new window there. */
static enum err flush(struct pass *p, size_t end)
{
    struct unigram_place *place = p->w->place;
    uint32_t after = UINT32_MAX;
    for (uint32_t at = (uint32_t)end; at != 0;) {
        uint32_t before = place[at].start;
        place[at].start = after; /* from now on: where the next token ends */
        after = at;
        at = before;
    }
    for (uint32_t start = 0, at = after; at != UINT32_MAX;) {
        uint32_t next = place[at].start;
        TRY(give(p, place[at].id, p->base + start, p->base + at));
        start = at;
        at = next;
    }
    place[0].score = place[end].score;
    p->base += end;
    p->reach = 0;
    return OK;
}

enum err unigram_encode(const struct unigram *u, struct unigram_work *w, const char *text, size_t bytes,
                        unigram_sink *sink, void *arg)
{
    struct pass p = { .u = u, .w = w, .text = text, .bytes = bytes, .sink = sink, .arg = arg };
    void *array = w->place;
    TRY(mem_grow(&array, &w->capacity, 1, sizeof(struct unigram_place)));
    w->place = array;
    w->place[0] = (struct unigram_place){ 0 };
    for (size_t at = 0; p.base + at < bytes;) {
        if (at > 0 && at == p.reach) {
            TRY(flush(&p, at));
            at = 0;
        }
        TRY(tokens_from(&p, at));
        for (at++; p.base + at < bytes && ((unsigned char)text[p.base + at] & 0xc0) == 0x80;) {
            at++;
        }
    }
    if (p.reach > 0) {
        TRY(flush(&p, p.reach));
    }
    return p.unknown < p.unknown_end ? sink(arg, u->unk, text + p.unknown, p.unknown_end - p.unknown) : OK;
}
