/* Why this exists: the model of GPT-2, Llama 3 and Qwen tokenizers is a list of tokens and a list of merges; this
 * file holds both as flat arrays and applies the merges to one word.
 *
 * Order of merges: always the pair of lowest rank, among equals the leftmost. Short words find it by a scan (n is
 * small, everything is in the first-level cache), long ones by a heap, so that a million equal characters take O(n
 * log n).
 *
 * Invariants: tokens are sorted by id after bpe_seal; `name` finds each of them by (bytes, raw); a token that is not
 * raw consists of the bytes it stands for; every pair's parts and result are ids of tokens; memory is proportional
 * to the file. */
#include "base/mem.h"
#include "data/bpe_int.h"

#include "base/hash.h"
#include "base/utf8.h"

#define SHORT_WORD 40 /* bytes; measured: the scan wins below about this length */
#define NO_RANK UINT32_MAX

enum err bytelevel_encode(const char *bytes, size_t count, struct buf *out)
{
    TRY(buf_reserve(out, 2 * count));
    for (size_t i = 0; i < count; i++) {
        char text[4];
        TRY(buf_add(out, text, utf8_encode(bytelevel_code((unsigned char)bytes[i]), text)));
    }
    return OK;
}

enum err bytelevel_decode(const char *text, size_t count, struct buf *out, bool *whole)
{
    size_t before = out->bytes;
    *whole = true;
    TRY(buf_reserve(out, count));
    for (size_t i = 0; i < count;) {
        uint32_t code;
        size_t used = utf8_decode(text + i, count - i, &code);
        int byte = used > 0 ? bytelevel_byte(code) : -1;
        if (byte < 0) {
            *whole = false;
            out->bytes = before;
            return OK;
        }
        char one = (char)byte;
        TRY(buf_add(out, &one, 1));
        i += used;
    }
    return OK;
}

const char *bpe_quote(const char *text, size_t bytes, char out[96])
{
    size_t used = 0;
    size_t i = 0;
    while (i < bytes && used < 80) {
        uint32_t code;
        size_t len = utf8_decode(text + i, bytes - i, &code);
        if (len == 0 || code < 32 || code == 127) {
            used += (size_t)snprintf(out + used, 96 - used, "\\x%02x", (unsigned char)text[i]);
            i++;
        } else {
            memcpy(out + used, text + i, len);
            used += len;
            i += len;
        }
    }
    memcpy(out + used, i < bytes ? "..." : "", i < bytes ? 4 : 1);
    return out;
}

void bpe_release(struct bpe *b)
{
    free(b->token);
    free(b->name);
    free(b->pair);
    free(b->byte_rank);
    free(b->result);
    free(b->order);
    free(b->code.slot);
    free(b->joint);
    buf_release(&b->text);
    *b = (struct bpe){ 0 };
}

enum err bpe_add_token(struct bpe *b, const char *where, const char *text, size_t bytes, int64_t id, bool raw)
{
    char quote[96];
    if (id < 0 || id > BPE_ID_MAX) {
        return FAIL(ERR_DATA, "%s: token \"%s\" has id %lld, expected 0 to %lld", where, bpe_quote(text, bytes, quote),
                    (long long)id, (long long)BPE_ID_MAX);
    }
    if (bytes > UINT32_MAX / 4) {
        return FAIL(ERR_DATA, "%s: token \"%s\" has %zu bytes", where, bpe_quote(text, bytes, quote), bytes);
    }
    void *array = b->token;
    TRY(mem_grow(&array, &b->capacity, b->count + 1, sizeof(struct bpe_token)));
    b->token = array;
    struct bpe_token t = { .offset = b->text.bytes, .id = (int32_t)id, .raw = raw };
    if (!raw && !b->chars) {
        bool whole;
        TRY(bytelevel_decode(text, bytes, &b->text, &whole));
        t.raw = !whole;
    }
    if (t.raw || b->chars) {
        TRY(buf_add(&b->text, text, bytes));
    }
    t.bytes = (uint32_t)(b->text.bytes - t.offset);
    b->token[b->count++] = t;
    return OK;
}

static const char *token_text(const struct bpe *b, const struct bpe_token *t)
{
    return t->bytes > 0 ? b->text.data + t->offset : "";
}

static int by_id(const void *a, const void *b)
{
    const struct bpe_token *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static uint64_t name_hash(const char *bytes, size_t count, bool raw)
{
    return hash64(bytes, count, raw);
}

/* Slot of a name: the one that holds it, or the free one where it belongs. */
static size_t name_slot(const struct bpe *b, const char *bytes, size_t count, bool raw)
{
    size_t i = (size_t)name_hash(bytes, count, raw) & b->name_mask;
    while (b->name[i] != 0) {
        const struct bpe_token *t = &b->token[b->name[i] - 1];
        if (t->bytes == count && t->raw == raw && memcmp(token_text(b, t), bytes, count) == 0) {
            break;
        }
        i = (i + 1) & b->name_mask;
    }
    return i;
}

static enum err index_names(struct bpe *b, const char *where)
{
    size_t slots = 64;
    while (slots < 2 * b->count) {
        slots *= 2;
    }
    free(b->name);
    b->name = NULL;
    void *block;
    TRY(mem_alloc(&block, slots, sizeof(uint32_t)));
    b->name = block;
    b->name_mask = slots - 1;
    for (size_t i = 0; i < b->count; i++) {
        const struct bpe_token *t = &b->token[i];
        size_t slot = name_slot(b, token_text(b, t), t->bytes, t->raw);
        if (b->name[slot] != 0) {
            char quote[96];
            return FAIL(ERR_DATA, "%s: token \"%s\" is there twice, with the ids %d and %d", where,
                        bpe_quote(token_text(b, t), t->bytes, quote), b->token[b->name[slot] - 1].id, t->id);
        }
        b->name[slot] = (uint32_t)(i + 1);
    }
    return OK;
}

enum err bpe_seal(struct bpe *b, const char *where)
{
    if (b->count == 0) {
        return FAIL(ERR_DATA, "%s: no token at all", where);
    }
    qsort(b->token, b->count, sizeof(struct bpe_token), by_id);
    for (size_t i = 1; i < b->count; i++) {
        const struct bpe_token *x = &b->token[i - 1], *y = &b->token[i];
        if (x->id == y->id) {
            char one[96], two[96];
            return FAIL(ERR_DATA, "%s: tokens \"%s\" and \"%s\" have the same id %d", where,
                        bpe_quote(token_text(b, x), x->bytes, one), bpe_quote(token_text(b, y), y->bytes, two), x->id);
        }
    }
    TRY(index_names(b, where));
    b->missing = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8] = { (char)byte };
        int spelt = b->chars ? snprintf(name, sizeof(name), "<0x%02X>", byte) : 1;
        int64_t index = bpe_find(b, name, (size_t)spelt, false);
        b->byte_id[byte] = index < 0 ? -1 : b->token[index].id;
        bool in_utf8 = byte < 0xc0 || (byte > 0xc1 && byte < 0xf5);
        b->missing += index < 0 && in_utf8;
    }
    return OK;
}

int64_t bpe_find(const struct bpe *b, const char *bytes, size_t count, bool raw)
{
    return (int64_t)b->name[name_slot(b, bytes, count, raw)] - 1;
}

enum err bpe_find_spelling(const struct bpe *b, const char *text, size_t bytes, int64_t *index)
{
    struct buf decoded = { 0 };
    bool whole;
    if (b->chars) {
        *index = bpe_find(b, text, bytes, false);
        return OK;
    }
    enum err err = bytelevel_decode(text, bytes, &decoded, &whole);
    if (err == OK) {
        *index = whole ? bpe_find(b, decoded.data != NULL ? decoded.data : "", decoded.bytes, false)
                       : bpe_find(b, text, bytes, true);
    }
    buf_release(&decoded);
    return err;
}

int64_t bpe_find_id(const struct bpe *b, int64_t id)
{
    size_t lo = 0, hi = b->count;
    if (id >= 0 && (uint64_t)id < b->count && b->token[id].id == id) {
        return id; /* the usual vocabulary has no gaps */
    }
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (b->token[mid].id < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < b->count && b->token[lo].id == id ? (int64_t)lo : -1;
}

/* ---- merges ---- */

/* The table of pairs is what encoding waits for, so a slot has 8 bytes and the table of a large vocabulary fits the
 * second- level cache. A pair of ids (48 bits) is scrambled one to one; the upper pair_bits bits are the slot where
 * the search begins. A slot holds the other bits, how far from there it lies, and the rank: together they name the
 * pair. */
#define PAIR_FREE UINT64_MAX
#define PAIR_MASK ((UINT64_C(1) << 48) - 1)
#define DISTANCE_BITS 16
#define DISTANCE_MAX ((1u << DISTANCE_BITS) - 1) /* not reached, so that no slot looks free */

/* Where the search for a pair begins; *tag is what a slot right there holds above the rank. */
static inline size_t pair_home(const struct bpe *b, int32_t left, int32_t right, uint64_t *tag)
{
    uint64_t key = ((uint64_t)(uint32_t)left << 24 | (uint32_t)right) * 0x9e3779b97f4a7c15ull & PAIR_MASK;
    *tag = (key & (PAIR_MASK >> b->pair_bits)) << DISTANCE_BITS;
    return (size_t)(key >> (48 - b->pair_bits));
}

static inline uint32_t pair_rank(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t tag;
    size_t home = pair_home(b, left, right, &tag), mask = ((size_t)1 << b->pair_bits) - 1;
    for (uint32_t d = 0; d <= b->pair_reach; d++) {
        uint64_t slot = b->pair[(home + d) & mask];
        if (slot >> b->pair_bits == tag + d) {
            return (uint32_t)(slot & mask);
        }
        if (slot == PAIR_FREE) {
            break;
        }
    }
    return NO_RANK;
}

/* A pair that is listed twice counts with its last rank, as Hugging Face reads it. False: no slot within reach. */
static bool pair_put(struct bpe *b, int32_t left, int32_t right, uint32_t rank)
{
    uint64_t tag;
    size_t home = pair_home(b, left, right, &tag), mask = ((size_t)1 << b->pair_bits) - 1;
    for (uint32_t d = 0; d < DISTANCE_MAX; d++) {
        uint64_t *slot = &b->pair[(home + d) & mask];
        if (*slot == PAIR_FREE || *slot >> b->pair_bits == tag + d) {
            *slot = (tag + d) << b->pair_bits | rank;
            b->pair_reach = d > b->pair_reach ? d : b->pair_reach;
            return true;
        }
    }
    return false;
}

enum err bpe_reserve_merges(struct bpe *b, size_t count)
{
    BUG_IF(b->pair != NULL);
    if (count > (size_t)BPE_ID_MAX) {
        return FAIL(ERR_DATA, "%zu merges are more than any tokenizer has", count);
    }
    b->pair_bits = 6;
    while (((size_t)1 << b->pair_bits) < count + count / 2) {
        b->pair_bits++;
    }
    void *block;
    TRY(mem_alloc(&block, (size_t)1 << b->pair_bits, sizeof(uint64_t)));
    b->pair = block;
    memset(b->pair, 0xff, sizeof(uint64_t) << b->pair_bits); /* PAIR_FREE */
    TRY(mem_alloc(&block, 1 << 16, sizeof(uint32_t)));
    b->byte_rank = block;
    memset(b->byte_rank, 0xff, sizeof(uint32_t) << 16); /* NO_RANK */
    TRY(mem_alloc(&block, count, sizeof(int32_t)));
    b->result = block;
    return OK;
}

static enum err merge_part(const struct bpe *b, const char *where, const char *text, size_t bytes, int64_t *index)
{
    char quote[96];
    if (bytes == 0) {
        return FAIL(ERR_DATA, "%s: merge %zu has an empty part", where, b->pairs);
    }
    TRY(bpe_find_spelling(b, text, bytes, index));
    if (*index < 0) {
        return FAIL(ERR_DATA, "%s: merge %zu names \"%s\", which is not in the vocabulary", where, b->pairs,
                    bpe_quote(text, bytes, quote));
    }
    return OK;
}

/* The next rank. */
static enum err put_merge(struct bpe *b, const char *where, int32_t left, int32_t right, int32_t id)
{
    if (!pair_put(b, left, right, (uint32_t)b->pairs)) {
        return FAIL(ERR_DATA, "%s: merge %zu: too many pairs fall on one place of the table, as if made to do so",
                    where, b->pairs);
    }
    b->result[b->pairs++] = id;
    bpe_note_parts(b, left, right);
    return OK;
}

/* Of the merge just put, whose parts are one byte each. */
static void note_byte_rank(struct bpe *b, const char *left, const char *right)
{
    b->byte_rank[(size_t)(unsigned char)*left << 8 | (unsigned char)*right] = (uint32_t)b->pairs - 1;
}

enum err bpe_add_merge(struct bpe *b, const char *where, const char *left, size_t left_bytes, const char *right,
                       size_t right_bytes)
{
    int64_t l, r, merged;
    TRY(merge_part(b, where, left, left_bytes, &l));
    TRY(merge_part(b, where, right, right_bytes, &r));
    struct buf both = { 0 };
    enum err err = OK;
    TRY_OUT(buf_add(&both, left, left_bytes));
    TRY_OUT(buf_add(&both, right, right_bytes));
    TRY_OUT(bpe_find_spelling(b, both.data, both.bytes, &merged));
    if (merged < 0) {
        char quote[96];
        err = FAIL(ERR_DATA, "%s: merge %zu gives \"%s\", which is not in the vocabulary", where, b->pairs,
                   bpe_quote(both.data, both.bytes, quote));
        goto out;
    }
    const struct bpe_token *x = &b->token[l], *y = &b->token[r];
    err = put_merge(b, where, x->id, y->id, b->token[merged].id);
    if (err == OK && x->bytes == 1 && y->bytes == 1 && !x->raw && !y->raw) {
        note_byte_rank(b, b->text.data + x->offset, b->text.data + y->offset);
    }
out:
    buf_release(&both);
    return err;
}

/* ---- merges that follow from the tokens ---- */

#define IMPLY_BYTES_MAX 1024u            /* of a token: its parts are looked up at every place */
#define IMPLY_WORK_MAX (UINT64_C(1) << 34) /* bytes hashed for all of them */

struct implied {
    uint32_t order;
    int32_t left, right, id;
};

static int by_order(const void *a, const void *b)
{
    const struct implied *x = a, *y = b;
    if (x->order != y->order) {
        return x->order < y->order ? -1 : 1;
    }
    return x->left != y->left ? (x->left < y->left ? -1 : 1) : x->right < y->right ? -1 : x->right > y->right;
}

/* Id of a part of a token as a symbol, -1 when it is none. */
static int32_t part_id(const struct bpe *b, const char *text, size_t bytes)
{
    int64_t index = bpe_find(b, text, bytes, false);
    if (index >= 0 && !b->token[index].aside) {
        return b->token[index].id;
    }
    uint32_t code;
    return b->chars && utf8_decode(text, bytes, &code) == bytes ? bpe_char_id(b, code) : -1;
}

static enum err imply_token(const struct bpe *b, size_t index, uint32_t order, struct implied **list, size_t *count,
                            size_t *capacity)
{
    const struct bpe_token *t = &b->token[index];
    const char *text = token_text(b, t);
    for (size_t cut = 1; cut < t->bytes; cut++) {
        if (b->chars && ((unsigned char)text[cut] & 0xc0) == 0x80) {
            continue;
        }
        int32_t left = part_id(b, text, cut), right = left < 0 ? -1 : part_id(b, text + cut, t->bytes - cut);
        if (right < 0) {
            continue;
        }
        void *array = *list;
        TRY(mem_grow(&array, capacity, *count + 1, sizeof(struct implied)));
        *list = array;
        (*list)[(*count)++] = (struct implied){ .order = order, .left = left, .right = right, .id = t->id };
    }
    return OK;
}

static enum err put_implied(struct bpe *b, const char *where, const struct implied *list, size_t count)
{
    void *block;
    TRY(bpe_reserve_merges(b, count));
    TRY(mem_alloc(&block, count + 1, sizeof(uint32_t)));
    b->order = block;
    for (size_t i = 0; i < count; i++) {
        b->order[b->pairs] = list[i].order;
        TRY(put_merge(b, where, list[i].left, list[i].right, list[i].id));
        const struct bpe_token *t = &b->token[bpe_find_id(b, list[i].id)];
        if (t->bytes == 2 && !b->chars) {
            note_byte_rank(b, b->text.data + t->offset, b->text.data + t->offset + 1);
        }
    }
    return OK;
}

enum err bpe_imply_merges(struct bpe *b, const char *where, const uint32_t *order)
{
    struct implied *list = NULL;
    size_t count = 0, capacity = 0;
    uint64_t work = 0;
    enum err err = OK;
    for (size_t i = 0; i < b->count; i++) {
        const struct bpe_token *t = &b->token[i];
        if (t->aside || t->raw) {
            continue;
        }
        work += (uint64_t)t->bytes * t->bytes;
        if (t->bytes > IMPLY_BYTES_MAX || work > IMPLY_WORK_MAX) {
            char quote[96];
            err = FAIL(ERR_DATA, "%s: token %d \"%s\" has %u bytes, expected at most %u, and fewer of them in all",
                       where, t->id, bpe_quote(token_text(b, t), t->bytes, quote), t->bytes, IMPLY_BYTES_MAX);
            goto out;
        }
        TRY_OUT(imply_token(b, i, order[i], &list, &count, &capacity));
    }
    if (count > 1) {
        qsort(list, count, sizeof(struct implied), by_order);
    }
    err = put_implied(b, where, list, count);
out:
    free(list);
    return err;
}

/* ---- encoding ---- */

void bpe_work_release(struct bpe_work *w)
{
    free(w->id);
    free(w->next);
    free(w->prev);
    free(w->heap);
    *w = (struct bpe_work){ 0 };
}

static inline uint32_t rank_of_bytes(const struct bpe *b, const char *word)
{
    return b->byte_rank[(size_t)(unsigned char)word[0] << 8 | (unsigned char)word[1]];
}

/* When a pair of this rank is merged, NO_RANK: never. */
static inline uint32_t order_of(const struct bpe *b, uint32_t rank)
{
    return b->order == NULL || rank == NO_RANK ? rank : b->order[rank];
}

static inline uint32_t pair_order(const struct bpe *b, int32_t left, int32_t right)
{
    return order_of(b, pair_rank(b, left, right));
}

/* order[i] is that of the pair (i, i + 1). */
static size_t merge_short(const struct bpe *b, uint32_t *order, int32_t *id, size_t n)
{
    while (n > 1) {
        size_t best = 0;
        uint32_t least = order[0];
        for (size_t i = 1; i + 1 < n; i++) {
            best = order[i] < least ? i : best;
            least = order[i] < least ? order[i] : least;
        }
        if (least == NO_RANK) {
            break;
        }
        id[best] = b->result[b->order == NULL ? least : pair_rank(b, id[best], id[best + 1])];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            id[i] = id[i + 1];
            order[i - 1] = order[i];
        }
        if (best + 1 < n) {
            order[best] = pair_order(b, id[best], id[best + 1]);
        }
        if (best > 0) {
            order[best - 1] = pair_order(b, id[best - 1], id[best]);
        }
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t item = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && heap[child + 1] < heap[child]) {
            child++;
        }
        if (heap[child] >= item) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = item;
}

static void sift_up(uint64_t *heap, size_t i)
{
    uint64_t item = heap[i];
    while (i > 0 && heap[(i - 1) / 2] > item) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = item;
}

enum err bpe_work_reserve(struct bpe_work *w, size_t n)
{
    void *id = w->id, *next = w->next, *prev = w->prev, *heap = w->heap;
    TRY(mem_grow(&id, &w->id_capacity, n, sizeof(int32_t)));
    w->id = id;
    TRY(mem_grow(&next, &w->next_capacity, n, sizeof(uint32_t)));
    w->next = next;
    TRY(mem_grow(&prev, &w->prev_capacity, n, sizeof(uint32_t)));
    w->prev = prev;
    /* Each merge takes one entry out and puts two in at most, and there are n - 1 merges. */
    TRY(mem_grow(&heap, &w->heap_capacity, 2 * n, sizeof(uint64_t)));
    w->heap = heap;
    return OK;
}

#define LIST_END UINT32_MAX

static size_t heap_push(const struct bpe *b, const struct bpe_work *w, size_t held, uint32_t left, uint32_t right)
{
    uint32_t order = pair_order(b, w->id[left], w->id[right]);
    if (order == NO_RANK) {
        return held;
    }
    w->heap[held] = (uint64_t)order << 32 | left;
    sift_up(w->heap, held);
    return held + 1;
}

/* The word is a linked list of symbols; an entry of the heap (order, position of the left symbol) is stale when the
 * pair that now stands at that position has another order. id -1 marks a symbol that was merged into its left
 * neighbour. */
static void merge_heap(const struct bpe *b, struct bpe_work *w, size_t held)
{
    for (size_t i = held / 2; i-- > 0;) {
        sift_down(w->heap, held, i);
    }
    while (held > 0) {
        uint64_t top = w->heap[0];
        w->heap[0] = w->heap[--held];
        if (held > 0) {
            sift_down(w->heap, held, 0);
        }
        uint32_t at = (uint32_t)top, right = w->next[at];
        if (w->id[at] < 0 || right == LIST_END) {
            continue;
        }
        uint32_t rank = pair_rank(b, w->id[at], w->id[right]);
        if (order_of(b, rank) != (uint32_t)(top >> 32)) {
            continue;
        }
        w->id[at] = b->result[rank];
        w->id[right] = -1;
        uint32_t after = w->next[right];
        w->next[at] = after;
        if (after != LIST_END) {
            w->prev[after] = at;
            held = heap_push(b, w, held, at, after);
        }
        if (w->prev[at] != LIST_END) {
            held = heap_push(b, w, held, w->prev[at], at);
        }
    }
}

/* Merge w->id[0, n) by a heap into `out`; `word` when the symbols are its bytes, else NULL. */
static size_t merge_long(const struct bpe *b, struct bpe_work *w, const char *word, size_t n, int32_t *out)
{
    size_t held = 0, count = 0;
    for (uint32_t i = 0; i < n; i++) {
        w->prev[i] = i - 1;
        w->next[i] = i + 1 < n ? i + 1 : LIST_END;
        uint32_t order = i + 1 == n     ? NO_RANK
                         : word != NULL ? order_of(b, rank_of_bytes(b, word + i))
                                        : pair_order(b, w->id[i], w->id[i + 1]);
        if (order != NO_RANK) {
            w->heap[held++] = (uint64_t)order << 32 | i;
        }
    }
    merge_heap(b, w, held);
    for (uint32_t i = 0; i != LIST_END; i = w->next[i]) {
        out[count++] = w->id[i];
    }
    return count;
}

static enum err byte_ids(const struct bpe *b, const char *word, size_t bytes, int32_t *id, size_t *bad)
{
    for (size_t i = 0; i < bytes; i++) {
        id[i] = b->byte_id[(unsigned char)word[i]];
        if (id[i] < 0) {
            *bad = i;
            return ERR_DATA; /* the caller knows file and offset */
        }
    }
    return OK;
}

static enum err word_of_chars(const struct bpe *b, struct bpe_work *w, const char *word, size_t bytes, int32_t *out,
                              size_t *count, size_t *bad)
{
    uint32_t order[SHORT_WORD];
    size_t n;
    TRY(bpe_char_symbols(b, word, bytes, out, &n, bad));
    if (n <= SHORT_WORD) {
        for (size_t i = 0; i + 1 < n; i++) {
            order[i] = pair_order(b, out[i], out[i + 1]);
        }
        n = merge_short(b, order, out, n);
    } else {
        TRY(bpe_work_reserve(w, n));
        memcpy(w->id, out, n * sizeof(int32_t));
        n = merge_long(b, w, NULL, n, out);
    }
    return bpe_char_finish(b, w, word, bytes, out, n, count, bad);
}

enum err bpe_word(const struct bpe *b, struct bpe_work *w, const char *word, size_t bytes, int32_t *out, size_t *count,
                  size_t *bad)
{
    uint32_t order[SHORT_WORD];
    *bad = SIZE_MAX;
    if (b->ignore_merges) {
        int64_t index = bpe_find(b, word, bytes, false);
        if (index >= 0) {
            out[0] = b->token[index].id;
            *count = 1;
            return OK;
        }
    }
    if (bytes >= LIST_END) {
        return FAIL(ERR_DATA, "a word of %zu bytes: at most %u can be encoded", bytes, LIST_END - 1);
    }
    if (b->chars) {
        return word_of_chars(b, w, word, bytes, out, count, bad);
    }
    if (bytes <= SHORT_WORD) {
        TRY(byte_ids(b, word, bytes, out, bad));
        for (size_t i = 0; i + 1 < bytes; i++) {
            order[i] = order_of(b, rank_of_bytes(b, word + i));
        }
        *count = merge_short(b, order, out, bytes);
        return OK;
    }
    TRY(bpe_work_reserve(w, bytes));
    TRY(byte_ids(b, word, bytes, w->id, bad));
    *count = merge_long(b, w, word, bytes, out);
    return OK;
}
