/* Why this exists: the path from text to ids and back. Layers, outermost first: added tokens in the text as it is,
 * normalization, added tokens in the normalized text, words, merges.
 *
 * Speed comes from a cache of words per thread: natural text repeats its words, so most are one probe of a cache
 * line that holds the word and its ids. A miss costs a merge and nothing else, so the cache never changes a result.
 *
 * Invariants: an entry's key is the word, zero-filled, with its length in the last byte (0: free); `out` has room
 * for all ids of a word before they are written. */
#include "base/mem.h"
#include "base/utf8.h"
#include "data/tokenizer_int.h"

#define CACHE_BITS 15
#define CACHE_WORD 31 /* longest word, in bytes */
#define CACHE_IDS 7

struct cache_entry { /* one cache line */
    uint64_t key[4];
    int32_t id[CACHE_IDS];
    int32_t count;
};

struct tokenizer_scratch {
    const struct tokenizer *owner;
    struct cache_entry *cache;
    struct bpe_work bpe;
    struct pretoken_work pre;
    struct normal_work normal;
    struct unigram_work unigram;
};

enum err tokenizer_scratch_new(struct tokenizer_scratch **out, const struct tokenizer *t)
{
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(struct tokenizer_scratch)));
    struct tokenizer_scratch *s = block;
    s->owner = t;
    enum err err = mem_big_alloc(&block, ((size_t)1 << CACHE_BITS) * sizeof(struct cache_entry));
    if (err != OK) {
        free(s);
        return err;
    }
    s->cache = block;
    *out = s;
    return OK;
}

void tokenizer_scratch_free(struct tokenizer_scratch *s)
{
    if (s == NULL) {
        return;
    }
    mem_big_free(s->cache, ((size_t)1 << CACHE_BITS) * sizeof(struct cache_entry));
    bpe_work_release(&s->bpe);
    pretoken_work_release(&s->pre);
    normal_work_release(&s->normal);
    unigram_work_release(&s->unigram);
    free(s);
}

void tokens_release(struct tokens *t)
{
    free(t->id);
    *t = (struct tokens){ 0 };
}

static enum err tokens_reserve(struct tokens *t, size_t more)
{
    if (__builtin_expect(t->capacity - t->count >= more, 1)) {
        return OK;
    }
    void *ids = t->id;
    TRY(mem_grow(&ids, &t->capacity, t->count + more, sizeof(int32_t)));
    t->id = ids;
    return OK;
}

static enum err add_id(struct tokens *t, int32_t id)
{
    TRY(tokens_reserve(t, 1));
    t->id[t->count++] = id;
    return OK;
}

/* ---- one call ---- */

struct encode {
    const struct tokenizer *t;
    struct tokenizer_scratch *s;
    struct tokens *out;
    bool special;
    bool text_start; /* the piece in hand begins where the text does */
};

static inline uint64_t load8(const char *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* The first `bytes` < 8 bytes of p in the low end of a word; reads 8 bytes when they are there. */
static inline uint64_t load_part(const char *p, size_t bytes, const char *limit)
{
    if ((size_t)(limit - p) >= 8) {
        return load8(p) & ((UINT64_C(1) << (8 * bytes)) - 1);
    }
    uint64_t word = 0;
    memcpy(&word, p, bytes);
    return word;
}

static inline void make_key(const char *word, size_t bytes, const char *limit, uint64_t key[4])
{
    key[0] = key[1] = key[2] = key[3] = 0;
    size_t i = 0;
    for (; bytes >= 8; bytes -= 8) {
        key[i++] = load8(word);
        word += 8;
    }
    key[i] = load_part(word, bytes, limit);
    key[3] |= (uint64_t)(8 * i + bytes) << 56;
}

static inline size_t cache_slot(const uint64_t key[4])
{
    uint64_t x = key[0] * 0x9e3779b97f4a7c15ull ^ (key[1] + (key[3] << 7 | key[3] >> 57)) * 0xd6e8feb86659fd93ull ^
                 key[2] * 0xa0761d6478bd642full;
    x ^= x >> 32;
    return (size_t)((x * 0x9e3779b97f4a7c15ull) >> (64 - CACHE_BITS));
}

/* Ids of the tokens that a Unigram model found. */
struct unigram_ids {
    const struct tokenizer *t;
    const char *word;
    int32_t *id;
    size_t count, bad;
};

static enum err unigram_id(void *arg, int32_t id, const char *text, size_t bytes)
{
    struct unigram_ids *u = arg;
    const struct bpe *b = &u->t->bpe;
    if (id == b->unk && b->byte_fallback) {
        int64_t index = b->late_fallback ? -1 : bpe_find(b, text, bytes, false);
        if (index >= 0) { /* the unknown token, written out */
            u->id[u->count++] = b->token[index].id;
            return OK;
        }
        for (size_t i = 0; i < bytes; i++) {
            u->id[u->count++] = b->byte_id[(unsigned char)text[i]];
        }
        return OK;
    }
    u->id[u->count++] = id;
    u->bad = (size_t)(text - u->word);
    return id >= 0 ? OK : ERR_DATA;
}

/* At most `bytes` ids; as bpe_word. */
static enum err model_word(const struct encode *e, const char *word, size_t bytes, int32_t *id, size_t *count,
                           size_t *bad)
{
    const struct tokenizer *t = e->t;
    struct unigram_ids u = { .t = t, .word = word, .id = id, .bad = SIZE_MAX };
    if (t->model != MODEL_UNIGRAM) {
        return bpe_word(&t->bpe, &e->s->bpe, word, bytes, id, count, bad);
    }
    enum err err = unigram_encode(&t->unigram, &e->s->unigram, word, bytes, unigram_id, &u);
    *count = u.count;
    *bad = err == ERR_DATA ? u.bad : SIZE_MAX;
    return err;
}

static enum err merge_word(const struct encode *e, const char *word, size_t bytes, size_t *count)
{
    size_t bad;
    TRY(tokens_reserve(e->out, bytes));
    enum err err = model_word(e, word, bytes, e->out->id + e->out->count, count, &bad);
    if (err == ERR_DATA && bad != SIZE_MAX) {
        char quote[96];
        bool ascii = (unsigned char)word[bad] < 128;
        return FAIL(ERR_DATA, "%s: the vocabulary has no token for the %s 0x%02x in \"%s\" | clean the text, or "
                              "use a tokenizer with all 256 bytes", e->t->path,
                    e->t->bpe.chars && !ascii ? "character that begins with the byte" : "byte",
                    (unsigned)(unsigned char)word[bad], bpe_quote(word, bytes, quote));
    }
    return err;
}

/* `limit`: end of the memory that may be read. */
static inline enum err encode_word(const struct encode *e, const char *word, size_t bytes, const char *limit)
{
    struct tokens *out = e->out;
    size_t count;
    if (bytes > CACHE_WORD) {
        TRY(merge_word(e, word, bytes, &count));
        out->count += count;
        return OK;
    }
    uint64_t key[4];
    make_key(word, bytes, limit, key);
    struct cache_entry *entry = &e->s->cache[cache_slot(key)];
    if (__builtin_expect(((entry->key[0] ^ key[0]) | (entry->key[1] ^ key[1]) | (entry->key[2] ^ key[2]) |
                          (entry->key[3] ^ key[3])) == 0,
                         1)) {
        TRY(tokens_reserve(out, CACHE_IDS));
        memcpy(out->id + out->count, entry->id, sizeof(entry->id));
        out->count += (size_t)entry->count;
        return OK;
    }
    TRY(merge_word(e, word, bytes, &count));
    if (count <= CACHE_IDS) {
        memcpy(entry->key, key, sizeof(key));
        memcpy(entry->id, out->id + out->count, count * sizeof(int32_t));
        entry->count = (int32_t)count;
    }
    out->count += count;
    return OK;
}

static enum err word_sink(void *arg, const char *word, size_t bytes)
{
    return encode_word(arg, word, bytes, word + bytes);
}

/* A piece of text for a model of characters: what no merge joins is encoded by itself. */
static enum err chars_sink(void *arg, const char *text, size_t bytes)
{
    const struct encode *e = arg;
    const char *end = text + bytes;
    while (text < end) {
        const char *stop = bpe_cut(&e->t->bpe, text, end);
        TRY(encode_word(e, text, (size_t)(stop - text), end));
        text = stop;
    }
    return OK;
}

/* Text for a SentencePiece BPE: its user-defined symbols never merge. */
static enum err encode_user(struct encode *e, const char *text, size_t bytes)
{
    size_t done = 0;
    for (size_t i = 0; i < bytes;) {
        int32_t id = -1;
        size_t len = symbol_trie_match(&e->t->user, text + i, bytes - i, &id);
        if (len == 0) {
            i++;
            continue;
        }
        TRY(i > done ? chars_sink(e, text + done, i - done) : OK);
        TRY(add_id(e->out, id));
        done = i += len;
    }
    return done < bytes ? chars_sink(e, text + done, bytes - done) : OK;
}

/* Text without added tokens, normalized. */
static enum err encode_plain(struct encode *e, const char *text, size_t bytes)
{
    const struct pretoken *pre = &e->t->pre;
    if (e->t->model == MODEL_CHARS && e->t->user.count > 0) {
        return encode_user(e, text, bytes);
    }
    if (e->t->model == MODEL_CHARS) {
        return pretoken_split(pre, &e->s->pre, text, bytes, e->text_start, chars_sink, e);
    }
    if (!pre->simple) {
        return pretoken_split(pre, &e->s->pre, text, bytes, e->text_start, word_sink, e);
    }
    pretoken_next_fn *next = pretoken_scan(pre->scanner);
    const char *end = text + bytes;
    while (text < end) {
        const char *stop = next(&pre->table, text, end);
        TRY(encode_word(e, text, (size_t)(stop - text), end));
        text = stop;
    }
    return OK;
}

typedef enum err encode_fn(struct encode *e, const char *text, size_t bytes);

/* Cut the added tokens of one round out of the text; `inner` encodes what is between. */
static enum err encode_added(struct encode *e, const struct added_trie *trie, const char *text, size_t bytes,
                             encode_fn *inner)
{
    struct added_scan scan = { .added = &e->t->added, .trie = trie, .table = &e->t->pre.table, .text = text,
                               .bytes = bytes, .special = e->special };
    struct added_hit hit;
    size_t done = 0;
    bool text_start = e->text_start;
    while (added_next(&scan, &hit)) {
        e->text_start = text_start && done == 0;
        if (hit.start > done) {
            TRY(inner(e, text + done, hit.start - done));
        }
        TRY(add_id(e->out, hit.id));
        done = hit.end;
    }
    e->text_start = text_start && done == 0;
    return done < bytes ? inner(e, text + done, bytes - done) : OK;
}

static enum err encode_normalized(struct encode *e, const char *text, size_t bytes)
{
    const struct tokenizer *t = e->t;
    TRY(normal_apply(&t->normal, &t->pre.table, &e->s->normal, &text, &bytes));
    return encode_added(e, &t->added.normalized, text, bytes, encode_plain);
}

/* The post-processor's tokens before the text; not a second time when the text brings them itself. */
static enum err add_prefix(const struct tokenizer *t, size_t first, struct tokens *out)
{
    size_t n = t->prefix_count;
    if (n == 0 || (out->count - first >= n && memcmp(out->id + first, t->prefix, n * sizeof(int32_t)) == 0)) {
        return OK;
    }
    TRY(tokens_reserve(out, n));
    memmove(out->id + first + n, out->id + first, (out->count - first) * sizeof(int32_t));
    memcpy(out->id + first, t->prefix, n * sizeof(int32_t));
    out->count += n;
    return OK;
}

enum err tokenizer_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t bytes,
                          unsigned flags, struct tokens *out)
{
    BUG_IF(s->owner != t);
    size_t first = out->count, valid = utf8_valid_prefix(text, bytes);
    struct encode e = { .t = t, .s = s, .out = out, .special = (flags & TOKENIZER_SPECIAL) != 0,
                        .text_start = true };
    if (valid != bytes) {
        return FAIL(ERR_DATA, "byte 0x%02x at offset %zu is not UTF-8 | convert the text to UTF-8",
                    (unsigned)(unsigned char)text[valid], valid);
    }
    TRY(encode_added(&e, &t->added.plain, text, bytes, encode_normalized));
    if ((flags & TOKENIZER_POST) != 0) {
        TRY(add_prefix(t, first, out));
        for (size_t i = 0; i < t->suffix_count; i++) {
            TRY(add_id(out, t->suffix[i]));
        }
    }
    return OK;
}

/* ---- cutting long texts ---- */

/* At the cuts of pretoken_cut words end in all known patterns, and nothing composes across them. Only an added token
 * could tell: one that spans such a place, or that ends in a letter and takes the blanks behind it. */
static bool may_split(const struct tokenizer *t)
{
    if (t->model != MODEL_BYTES || !t->pre.simple || (t->pre.scanner == SCANNER_NONE && t->bpe.pairs > 0)) {
        return false;
    }
    for (size_t i = 0; i < t->added.count; i++) {
        const struct added_token *token = &t->added.token[i];
        for (size_t j = 0; j < token->bytes; j++) {
            bool letter = (t->pre.table.first[(unsigned char)token->text[j]] & CHAR_CLASS) == CHAR_LETTER;
            bool blank = j + 1 < token->bytes ? token->text[j + 1] == ' ' || token->text[j + 1] == '\n' : token->rstrip;
            if (letter && blank) {
                return false;
            }
        }
    }
    return true;
}

size_t tokenizer_split(const void *tokenizer, const char *text, size_t bytes)
{
    const struct tokenizer *t = tokenizer;
    return may_split(t) ? pretoken_cut(&t->pre.table, text, bytes) : 0;
}
