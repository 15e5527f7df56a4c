/* Why this exists: added tokens ("<|endoftext|>", runs of blanks) are cut out of the text before the model sees it,
 * in two rounds: those matched in the text as it is, then, after normalization, the others. The rules (leftmost,
 * then longest; a match that does not count is skipped over, not retried shorter) are Hugging Face's.
 *
 * Invariant: a trie holds every token of its round once; tokens are at most ADDED_BYTES_MAX long, so a pass is
 * linear. */
#include "base/mem.h"
#include "base/utf8.h"
#include "data/tokenizer_int.h"

static void trie_release(struct added_trie *t)
{
    free(t->node);
    *t = (struct added_trie){ 0 };
}

void added_release(struct added *a)
{
    for (size_t i = 0; i < a->count; i++) {
        free(a->token[i].text);
    }
    free(a->token);
    trie_release(&a->plain);
    trie_release(&a->normalized);
    *a = (struct added){ 0 };
}

const struct added_token *added_find(const struct added *a, const char *text, size_t bytes)
{
    for (size_t i = 0; i < a->count; i++) {
        if (a->token[i].bytes == bytes && memcmp(a->token[i].text, text, bytes) == 0) {
            return &a->token[i];
        }
    }
    return NULL;
}

enum err added_add(struct added *a, const char *where, const struct added_token *t)
{
    char quote[96];
    if (t->bytes == 0 || t->bytes > ADDED_BYTES_MAX) {
        return FAIL(ERR_DATA, "%s: the added token with id %d has %zu bytes, expected 1 to %d", where, t->id, t->bytes,
                    ADDED_BYTES_MAX);
    }
    if (a->count >= ADDED_TOKENS_MAX) {
        return FAIL(ERR_DATA, "%s: more than %d added tokens", where, ADDED_TOKENS_MAX);
    }
    if (added_find(a, t->text, t->bytes) != NULL) {
        return FAIL(ERR_DATA, "%s: the added token \"%s\" is there twice", where, bpe_quote(t->text, t->bytes, quote));
    }
    void *array = a->token;
    TRY(mem_grow(&array, &a->capacity, a->count + 1, sizeof(struct added_token)));
    a->token = array;
    struct added_token copy = *t;
    TRY(mem_copy_string(&copy.text, t->text, t->bytes));
    a->token[a->count++] = copy;
    a->ordinary = a->ordinary || !t->special;
    return OK;
}

/* The child of `node` with this byte, or -1. */
static int32_t trie_child(const struct added_trie *t, int32_t node, unsigned char byte)
{
    int32_t child = t->node[node].child;
    while (child >= 0 && t->node[child].byte != byte) {
        child = t->node[child].sibling;
    }
    return child;
}

static enum err trie_add(struct added_trie *t, const char *text, size_t bytes, int32_t token)
{
    void *array = t->node;
    TRY(mem_grow(&array, &t->capacity, t->count + bytes + 1, sizeof(struct added_node)));
    t->node = array;
    if (t->count == 0) {
        t->node[t->count++] = (struct added_node){ .child = -1, .sibling = -1, .token = -1 };
    }
    int32_t at = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        int32_t child = trie_child(t, at, byte);
        if (child < 0) {
            child = (int32_t)t->count++;
            t->node[child] =
                (struct added_node){ .child = -1, .sibling = t->node[at].child, .token = -1, .byte = byte };
            t->node[at].child = child;
        }
        at = child;
    }
    t->node[at].token = token;
    t->first[(unsigned char)text[0]] = true;
    return OK;
}

static void find_only_first(struct added_trie *t)
{
    int count = 0;
    t->only_first = -1;
    for (int i = 0; i < 256; i++) {
        if (t->first[i]) {
            count++;
            t->only_first = i;
        }
    }
    t->only_first = count == 1 ? t->only_first : -1;
}

enum err added_finish(struct added *a, const struct tokenizer *t)
{
    struct normal_work work = { 0 };
    enum err err = OK;
    for (size_t i = 0; i < a->count; i++) {
        const struct added_token *token = &a->token[i];
        if (!token->normalized) {
            TRY_OUT(trie_add(&a->plain, token->text, token->bytes, (int32_t)i));
            continue;
        }
        const char *text = token->text;
        size_t bytes = token->bytes;
        TRY_OUT(normal_apply(&t->normal, &t->pre.table, &work, &text, &bytes));
        if (bytes == 0) {
            continue; /* normalization leaves nothing that could be found */
        }
        TRY_OUT(trie_add(&a->normalized, text, bytes, (int32_t)i));
    }
    find_only_first(&a->plain);
    find_only_first(&a->normalized);
out:
    normal_work_release(&work);
    return err;
}

/* ---- one pass ---- */

static bool next_candidate(struct added_scan *s)
{
    const struct added_trie *t = s->trie;
    if (t->only_first >= 0) {
        const char *at = memchr(s->text + s->at, t->only_first, s->bytes - s->at);
        s->at = at != NULL ? (size_t)(at - s->text) : s->bytes;
    } else {
        while (s->at < s->bytes && !t->first[(unsigned char)s->text[s->at]]) {
            s->at++;
        }
    }
    return s->at < s->bytes;
}

/* The longest token at s->at and how many bytes of the text it takes, or NULL. */
static const struct added_token *longest(const struct added_scan *s, size_t *bytes)
{
    int32_t node = 0, token = -1;
    for (size_t i = s->at; i < s->bytes; i++) {
        node = trie_child(s->trie, node, (unsigned char)s->text[i]);
        if (node < 0) {
            break;
        }
        if (s->trie->node[node].token >= 0) {
            token = s->trie->node[node].token;
            *bytes = i + 1 - s->at;
        }
    }
    return token >= 0 ? &s->added->token[token] : NULL;
}

/* Start of the character that ends at `end` > 0. */
static size_t char_before(const char *text, size_t end)
{
    end--;
    while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80) {
        end--;
    }
    return end;
}

static uint8_t class_here(const struct added_scan *s, size_t at, size_t *len)
{
    uint32_t code = 0;
    *len = utf8_decode(s->text + at, s->bytes - at, &code);
    return char_class(s->table, code);
}

static bool word_borders(const struct added_scan *s, size_t start, size_t end)
{
    size_t len;
    return (start > 0 && (class_here(s, char_before(s->text, start), &len) & CHAR_WORD) != 0) ||
           (end < s->bytes && (class_here(s, end, &len) & CHAR_WORD) != 0);
}

static void strip(const struct added_scan *s, const struct added_token *token, struct added_hit *hit)
{
    size_t len;
    while (token->lstrip && hit->start > s->done) {
        size_t before = char_before(s->text, hit->start);
        if ((class_here(s, before, &len) & CHAR_CLASS) != CHAR_SPACE) {
            break;
        }
        hit->start = before;
    }
    while (token->rstrip && hit->end < s->bytes && (class_here(s, hit->end, &len) & CHAR_CLASS) == CHAR_SPACE) {
        hit->end += len;
    }
}

bool added_next(struct added_scan *s, struct added_hit *hit)
{
    if (s->trie->count == 0 || (!s->special && !s->added->ordinary)) {
        return false;
    }
    while (next_candidate(s)) {
        size_t bytes = 0;
        const struct added_token *token = longest(s, &bytes);
        if (token == NULL) {
            s->at++;
            continue;
        }
        size_t start = s->at;
        s->at += bytes;
        if ((token->special && !s->special) || (token->single_word && word_borders(s, start, s->at))) {
            continue;
        }
        *hit = (struct added_hit){ .start = start, .end = s->at, .id = token->id };
        strip(s, token, hit);
        s->done = hit->end;
        return true;
    }
    return false;
}
