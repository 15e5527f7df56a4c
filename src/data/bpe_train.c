/* Why this exists: learns the merges of a tokenizer from word counts in time that follows the number of changes, not
 * the number of words: every adjacent pair of symbols is an occurrence in the list of its pair, and a merge touches
 * only the occurrences of the merged pair and their neighbours.
 *
 * Layout: the words lie one behind the other as symbols 0..n-1, linked within a word (next, prev). Occurrence i is
 * the pair (symbol i, symbol next[i]); it is in the doubly linked list of pair[i] (near, far neighbours in occ_next,
 * occ_prev). So the memory is fixed by the number of symbols, and lists never hold stale entries.
 *
 * Invariants: pair.count is the exact count-weighted length of its list; the heap holds every pair that occurs often
 * enough with a count at least as large as the true one (counts only fall between pushes), so a popped entry whose
 * count is true is the maximum. Overlapping occurrences ("aaa") are merged from the left, as in encoding. */
#include "data/bpe_train.h"

#include "base/hash.h"
#include "base/mem.h"
#include "data/bpe.h"

#define NONE UINT32_MAX

void bpe_words_release(struct bpe_words *w)
{
    free(w->word);
    free(w->slot);
    buf_release(&w->text);
    *w = (struct bpe_words){ 0 };
}

static enum err grow_slots(struct bpe_words *w)
{
    size_t slots = w->slots > 0 ? 2 * w->slots : 1 << 12;
    void *block;
    TRY(mem_alloc(&block, slots, sizeof(uint32_t)));
    free(w->slot);
    w->slot = block;
    w->slots = slots;
    for (size_t i = 0; i < w->count; i++) {
        size_t at = (size_t)w->word[i].hash & (slots - 1);
        while (w->slot[at] != 0) {
            at = (at + 1) & (slots - 1);
        }
        w->slot[at] = (uint32_t)(i + 1);
    }
    return OK;
}

/* Slot of a word: the one that holds it, or the free one where it belongs. */
static size_t word_slot(const struct bpe_words *w, uint64_t hash, const char *word, size_t bytes)
{
    size_t at = (size_t)hash & (w->slots - 1);
    for (; w->slot[at] != 0; at = (at + 1) & (w->slots - 1)) {
        const struct bpe_count *old = &w->word[w->slot[at] - 1];
        if (old->hash == hash && old->bytes == bytes && memcmp(w->text.data + old->offset, word, bytes) == 0) {
            break;
        }
    }
    return at;
}

enum err bpe_words_add(struct bpe_words *w, const char *word, size_t bytes, uint64_t count, uint32_t *index)
{
    if (2 * w->count >= w->slots) {
        TRY(grow_slots(w));
    }
    uint64_t hash = hash64(word, bytes, 0);
    size_t at = word_slot(w, hash, word, bytes);
    if (w->slot[at] == 0) {
        if (w->count >= NONE - 1 || bytes >= NONE) {
            return FAIL(ERR_RESOURCE, "more than %u distinct words | train on a sample of the text", NONE - 1);
        }
        void *array = w->word;
        TRY(mem_grow(&array, &w->capacity, w->count + 1, sizeof(struct bpe_count)));
        w->word = array;
        w->word[w->count] = (struct bpe_count){ .hash = hash, .offset = w->text.bytes, .bytes = (uint32_t)bytes };
        TRY(buf_add(&w->text, word, bytes));
        w->slot[at] = (uint32_t)++w->count;
    }
    *index = w->slot[at] - 1;
    w->word[*index].count += count;
    return OK;
}

void bpe_learnt_release(struct bpe_learnt *l)
{
    free(l->merge);
    free(l->offset);
    buf_release(&l->text);
    *l = (struct bpe_learnt){ 0 };
}

/* ---- state ---- */

struct pair {
    uint64_t key; /* left << 32 | right */
    uint64_t count;
    uint32_t head, tail;
    uint32_t gained; /* number of the last merge that added an occurrence */
};

struct entry {
    uint64_t count, key;
    uint32_t pair;
};

struct train {
    const struct bpe_words *words;
    struct bpe_learnt *out;
    uint32_t symbols;
    int32_t *symbol; /* -1: merged into its left neighbour */
    uint32_t *next, *prev, *occ_next, *occ_prev, *pair_at, *word_at;
    struct pair *pair;
    size_t pairs, pair_capacity;
    uint32_t *slot; /* open addressing on key: index + 1 */
    size_t slots;
    struct entry *heap;
    size_t held, heap_capacity;
    uint32_t *fresh; /* pairs that gained in this merge */
    size_t freshes, fresh_capacity;
    struct bpe_words names; /* the tokens by their bytes; index = id */
};

static void train_release(struct train *t)
{
    free(t->symbol);
    free(t->next);
    free(t->prev);
    free(t->occ_next);
    free(t->occ_prev);
    free(t->pair_at);
    free(t->word_at);
    free(t->pair);
    free(t->slot);
    free(t->heap);
    free(t->fresh);
    bpe_words_release(&t->names);
}

static bool comes_first(const struct entry *a, const struct entry *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static enum err heap_push(struct train *t, uint32_t pair)
{
    void *array = t->heap;
    TRY(mem_grow(&array, &t->heap_capacity, t->held + 1, sizeof(struct entry)));
    t->heap = array;
    struct entry e = { .count = t->pair[pair].count, .key = t->pair[pair].key, .pair = pair };
    size_t i = t->held++;
    for (; i > 0 && comes_first(&e, &t->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        t->heap[i] = t->heap[(i - 1) / 2];
    }
    t->heap[i] = e;
    return OK;
}

static struct entry heap_pop(struct train *t)
{
    struct entry top = t->heap[0], e = t->heap[--t->held];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= t->held) {
            break;
        }
        if (child + 1 < t->held && comes_first(&t->heap[child + 1], &t->heap[child])) {
            child++;
        }
        if (!comes_first(&t->heap[child], &e)) {
            break;
        }
        t->heap[i] = t->heap[child];
        i = child;
    }
    t->heap[i] = e;
    return top;
}

/* ---- pairs and their occurrences ---- */

static size_t key_slot(const struct train *t, uint64_t key)
{
    size_t at = (size_t)hash_mix(key) & (t->slots - 1);
    while (t->slot[at] != 0 && t->pair[t->slot[at] - 1].key != key) {
        at = (at + 1) & (t->slots - 1);
    }
    return at;
}

static enum err grow_pairs(struct train *t)
{
    size_t slots = t->slots > 0 ? 2 * t->slots : 1 << 16;
    void *block;
    TRY(mem_alloc(&block, slots, sizeof(uint32_t)));
    free(t->slot);
    t->slot = block;
    t->slots = slots;
    for (size_t i = 0; i < t->pairs; i++) {
        t->slot[key_slot(t, t->pair[i].key)] = (uint32_t)(i + 1);
    }
    return OK;
}

static enum err find_pair(struct train *t, int32_t left, int32_t right, uint32_t *out)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if (2 * t->pairs >= t->slots) {
        TRY(grow_pairs(t));
    }
    size_t at = key_slot(t, key);
    if (t->slot[at] == 0) {
        if (t->pairs >= NONE - 1) {
            return FAIL(ERR_RESOURCE, "more than %u distinct pairs | train on a sample of the text", NONE - 1);
        }
        void *array = t->pair;
        TRY(mem_grow(&array, &t->pair_capacity, t->pairs + 1, sizeof(struct pair)));
        t->pair = array;
        t->pair[t->pairs] = (struct pair){ .key = key, .head = NONE, .tail = NONE };
        t->slot[at] = (uint32_t)++t->pairs;
    }
    *out = t->slot[at] - 1;
    return OK;
}

/* The pair at symbol i joins the end of its list. */
static enum err occurrence_add(struct train *t, uint32_t i)
{
    uint32_t index = NONE;
    TRY(find_pair(t, t->symbol[i], t->symbol[t->next[i]], &index));
    struct pair *p = &t->pair[index];
    t->pair_at[i] = index;
    t->occ_prev[i] = p->tail;
    t->occ_next[i] = NONE;
    if (p->tail != NONE) {
        t->occ_next[p->tail] = i;
    } else {
        p->head = i;
    }
    p->tail = i;
    p->count += t->words->word[t->word_at[i]].count;
    return OK;
}

static void occurrence_remove(struct train *t, uint32_t i)
{
    struct pair *p = &t->pair[t->pair_at[i]];
    uint32_t before = t->occ_prev[i], after = t->occ_next[i];
    if (before != NONE) {
        t->occ_next[before] = after;
    } else {
        p->head = after;
    }
    if (after != NONE) {
        t->occ_prev[after] = before;
    } else {
        p->tail = before;
    }
    p->count -= t->words->word[t->word_at[i]].count;
}

static enum err occurrence_new(struct train *t, uint32_t i)
{
    TRY(occurrence_add(t, i));
    void *array = t->fresh;
    struct pair *p = &t->pair[t->pair_at[i]];
    if (p->gained != (uint32_t)t->out->merges) {
        p->gained = (uint32_t)t->out->merges;
        TRY(mem_grow(&array, &t->fresh_capacity, t->freshes + 1, sizeof(uint32_t)));
        t->fresh = array;
        t->fresh[t->freshes++] = t->pair_at[i];
    }
    return OK;
}

/* ---- start ---- */

static enum err add_name(struct bpe_learnt *l, const char *bytes, size_t count)
{
    void *array = l->offset;
    TRY(mem_grow(&array, &l->offset_capacity, l->tokens + 2, sizeof(size_t)));
    l->offset = array;
    TRY(buf_add(&l->text, bytes, count));
    l->offset[0] = 0;
    l->offset[++l->tokens] = l->text.bytes;
    return OK;
}

static enum err add_bytes(struct train *t, int32_t id_of[256])
{
    for (uint32_t code = 0; code < 324; code++) {
        int byte = bytelevel_byte(code);
        if (byte >= 0) {
            char one = (char)byte;
            id_of[byte] = (int32_t)t->out->tokens;
            TRY(add_name(t->out, &one, 1));
            uint32_t index;
            TRY(bpe_words_add(&t->names, &one, 1, 1, &index));
        }
    }
    return OK;
}

static enum err make_arrays(struct train *t, size_t symbols)
{
    if (symbols >= NONE) {
        return FAIL(ERR_RESOURCE, "the distinct words have %zu bytes, at most %u | train on a sample of the text",
                    symbols, NONE - 1);
    }
    uint32_t **arrays[] = { &t->next, &t->prev, &t->occ_next, &t->occ_prev, &t->pair_at, &t->word_at };
    void *block;
    TRY(mem_alloc(&block, symbols, sizeof(int32_t)));
    t->symbol = block;
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        TRY(mem_alloc(&block, symbols, sizeof(uint32_t)));
        *arrays[i] = block;
    }
    t->symbols = (uint32_t)symbols;
    return OK;
}

static enum err lay_out_words(struct train *t)
{
    int32_t id_of[256];
    uint32_t at = 0;
    TRY(add_bytes(t, id_of));
    TRY(make_arrays(t, t->words->text.bytes));
    for (size_t w = 0; w < t->words->count; w++) {
        const struct bpe_count *word = &t->words->word[w];
        for (uint32_t i = 0; i < word->bytes; i++, at++) {
            t->symbol[at] = id_of[(unsigned char)t->words->text.data[word->offset + i]];
            t->prev[at] = i > 0 ? at - 1 : NONE;
            t->next[at] = i + 1 < word->bytes ? at + 1 : NONE;
            t->word_at[at] = (uint32_t)w;
        }
    }
    BUG_IF(at != t->symbols);
    for (uint32_t i = 0; i < t->symbols; i++) {
        if (t->next[i] != NONE) {
            TRY(occurrence_add(t, i));
        }
    }
    for (uint32_t p = 0; p < t->pairs; p++) {
        if (t->pair[p].count >= BPE_TRAIN_COUNT_MIN) {
            TRY(heap_push(t, p));
        }
    }
    return OK;
}

/* ---- one merge ---- */

/* The token that left and right spell: an old one, or the next id. */
static enum err result_id(struct train *t, int32_t left, int32_t right, int32_t *id)
{
    struct bpe_learnt *l = t->out;
    struct buf both = { 0 };
    size_t before = t->names.count;
    uint32_t index;
    enum err err = OK;
    TRY_OUT(buf_add(&both, l->text.data + l->offset[left], l->offset[left + 1] - l->offset[left]));
    TRY_OUT(buf_add(&both, l->text.data + l->offset[right], l->offset[right + 1] - l->offset[right]));
    TRY_OUT(bpe_words_add(&t->names, both.data, both.bytes, 1, &index));
    *id = (int32_t)index; /* names and tokens are added together */
    if (t->names.count > before) {
        err = add_name(l, both.data, both.bytes);
    }
out:
    buf_release(&both);
    return err;
}

/* Merge the occurrence at i. */
static enum err merge_at(struct train *t, uint32_t i, int32_t id)
{
    uint32_t left = t->prev[i], right = t->next[i], after = t->next[right];
    if (left != NONE) {
        occurrence_remove(t, left);
    }
    occurrence_remove(t, i);
    if (after != NONE) {
        occurrence_remove(t, right);
        t->prev[after] = i;
    }
    t->symbol[i] = id;
    t->symbol[right] = -1;
    t->next[i] = after;
    if (left != NONE) {
        TRY(occurrence_new(t, left));
    }
    return after != NONE ? occurrence_new(t, i) : OK;
}

static enum err merge_pair(struct train *t, uint32_t pair)
{
    int32_t left = (int32_t)(t->pair[pair].key >> 32), right = (int32_t)(uint32_t)t->pair[pair].key, id = -1;
    TRY(result_id(t, left, right, &id));
    struct bpe_learnt *l = t->out;
    void *array = l->merge;
    TRY(mem_grow(&array, &l->merge_capacity, l->merges + 1, sizeof(struct bpe_merge)));
    l->merge = array;
    l->merge[l->merges++] = (struct bpe_merge){ .left = left, .right = right, .id = id };
    t->freshes = 0;
    while (t->pair[pair].head != NONE) {
        uint32_t i = t->pair[pair].head;
        while (left == right && t->prev[i] != NONE && t->symbol[t->prev[i]] == left) {
            i = t->prev[i]; /* a run is merged from its left end */
        }
        TRY(merge_at(t, i, id));
    }
    for (size_t f = 0; f < t->freshes; f++) {
        uint32_t p = t->fresh[f];
        if (t->pair[p].count >= BPE_TRAIN_COUNT_MIN) {
            TRY(heap_push(t, p));
        }
    }
    return OK;
}

enum err bpe_train(const struct bpe_words *words, size_t tokens, struct bpe_learnt *out)
{
    struct train t = { .words = words, .out = out };
    enum err err = OK;
    BUG_IF(tokens < 256);
    TRY_OUT(lay_out_words(&t));
    while (out->tokens < tokens && t.held > 0) {
        struct entry top = heap_pop(&t);
        uint64_t count = t.pair[top.pair].count;
        if (count != top.count) {
            if (count >= BPE_TRAIN_COUNT_MIN && count < top.count) {
                TRY_OUT(heap_push(&t, top.pair));
            }
            continue;
        }
        TRY_OUT(merge_pair(&t, top.pair));
    }
out:
    train_release(&t);
    return err;
}
