/* Why this exists: a SentencePiece-style BPE begins with characters instead of bytes, knows characters that it has no
 * token for, and has no words: merges may run over a whole text. Here are the symbols of a text, what becomes of
 * unknown ones, and the places where a text may be cut into words after all.
 *
 * A merge joins neighbours only, and its result spells what it joined; so where two characters stand side by side in no
 * result of a merge, nothing is ever merged across, and both sides can be encoded by themselves. `joint` holds those
 * pairs that do stand side by side: exactly for two characters of ASCII, else by a hash, whose collisions cost a cut
 * and never a token.
 *
 * Two orders of falling back: Hugging Face puts bytes or the unknown token in before the merges, SentencePiece merges
 * first (late_fallback), and a character that is no token may still be a part of one. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "data/bpe_int.h"

#define ASCII_WORDS 256u                /* 128 x 128 bits */
#define HASH_BITS 18
#define UNKNOWN ((int32_t)BPE_ID_MAX)   /* a symbol that merges with nothing */

/* ---- characters to ids ---- */

static size_t code_slot(const struct bpe_chars *c, uint32_t code)
{
    size_t at = (size_t)hash_mix(code) & c->mask;
    while (c->slot[at] != 0 && c->slot[at] >> 32 != (uint64_t)code + 1) {
        at = (at + 1) & c->mask;
    }
    return at;
}

int32_t bpe_char_id(const struct bpe *b, uint32_t code)
{
    if (code < 128) {
        return b->code.ascii[code];
    }
    if (b->code.slot == NULL) {
        return -1;
    }
    uint64_t slot = b->code.slot[code_slot(&b->code, code)];
    return slot != 0 ? (int32_t)(uint32_t)slot : -1;
}

static enum err add_char(struct bpe_chars *c, uint32_t code, int32_t id)
{
    if (code < 128) {
        c->ascii[code] = id;
        return OK;
    }
    if (c->slot == NULL || 2 * c->count > c->mask) {
        struct bpe_chars old = *c;
        size_t slots = c->slot != NULL ? 2 * (c->mask + 1) : 1024;
        void *block;
        TRY(mem_alloc(&block, slots, sizeof(uint64_t)));
        c->slot = block;
        c->mask = slots - 1;
        for (size_t i = 0; old.slot != NULL && i <= old.mask; i++) {
            if (old.slot[i] != 0) {
                c->slot[code_slot(c, (uint32_t)(old.slot[i] >> 32) - 1)] = old.slot[i];
            }
        }
        free(old.slot);
    }
    uint64_t *slot = &c->slot[code_slot(c, code)];
    c->count += *slot == 0;
    *slot = (uint64_t)(code + 1) << 32 | (uint32_t)id;
    return OK;
}

/* Characters inside of tokens that are no tokens: symbols all the same. */
static enum err add_hidden(struct bpe *b)
{
    int32_t id = b->hidden;
    for (size_t i = 0; i < b->count; i++) {
        const struct bpe_token *t = &b->token[i];
        const char *text = t->bytes > 0 ? b->text.data + t->offset : "";
        for (size_t at = 0; !t->aside && !t->raw && at < t->bytes;) {
            uint32_t code;
            size_t len = utf8_decode(text + at, t->bytes - at, &code);
            if (len == 0) {
                at++;
                continue;
            }
            at += len;
            if (bpe_char_id(b, code) < 0) {
                if (id >= UNKNOWN) {
                    return FAIL(ERR_DATA, "the tokens and their characters have more than %d ids", UNKNOWN);
                }
                TRY(add_char(&b->code, code, id++));
            }
        }
    }
    return OK;
}

enum err bpe_index_chars(struct bpe *b)
{
    memset(b->code.ascii, 0xff, sizeof(b->code.ascii));
    for (size_t i = 0; i < b->count; i++) {
        const struct bpe_token *t = &b->token[i];
        uint32_t code;
        if (!t->aside && !t->raw && t->bytes > 0 &&
            utf8_decode(b->text.data + t->offset, t->bytes, &code) == t->bytes) {
            TRY(add_char(&b->code, code, t->id));
        }
    }
    b->hidden = b->token[b->count - 1].id + 1;
    return b->late_fallback ? add_hidden(b) : OK;
}

/* ---- cuts ---- */

static inline size_t joint_bit(uint32_t a, uint32_t b)
{
    if ((a | b) < 128) {
        return a * 128 + b;
    }
    uint64_t x = ((uint64_t)a << 21 | b) * 0x9e3779b97f4a7c15ull;
    return 64 * ASCII_WORDS + (size_t)(x >> (64 - HASH_BITS));
}

static inline bool may_join(const struct bpe *b, uint32_t left, uint32_t right)
{
    size_t bit = joint_bit(left, right);
    return (b->joint[bit / 64] >> (bit % 64) & 1) != 0;
}

/* Whether a symbol of this id may stand for something else than its text. */
static bool stands_for_other(const struct bpe *b, int32_t id)
{
    if (id == b->unk) {
        return true;
    }
    for (int i = 0; i < 256 && b->byte_fallback; i++) {
        if (b->byte_id[i] == id) {
            return true;
        }
    }
    return false;
}

static void note_joints(struct bpe *b, const struct bpe_token *t)
{
    uint32_t before = 0;
    for (size_t at = 0; at < t->bytes;) {
        uint32_t code = 0;
        size_t len = utf8_decode(b->text.data + t->offset + at, t->bytes - at, &code);
        if (at > 0) {
            size_t bit = joint_bit(before, code);
            b->joint[bit / 64] |= (uint64_t)1 << (bit % 64);
        }
        before = code;
        at += len > 0 ? len : 1;
    }
}

enum err bpe_index_joints(struct bpe *b)
{
    bool fuses = b->unk >= 0 && b->fuse_unk && !b->byte_fallback; /* a row of unknown characters is one token */
    if (fuses || b->ignore_merges || b->whole_words) {
        return OK;
    }
    void *block;
    TRY(mem_alloc(&block, ASCII_WORDS + (1u << HASH_BITS) / 64, sizeof(uint64_t)));
    b->joint = block;
    for (size_t i = 0; i < b->pairs; i++) {
        const struct bpe_token *t = &b->token[bpe_find_id(b, b->result[i])];
        note_joints(b, t);
    }
    return OK;
}

void bpe_note_parts(struct bpe *b, int32_t left, int32_t right)
{
    if (b->chars && !b->late_fallback && (stands_for_other(b, left) || stands_for_other(b, right))) {
        b->whole_words = true;
    }
}

const char *bpe_cut(const struct bpe *b, const char *p, const char *end)
{
    uint32_t before = 0;
    if (b->joint == NULL) {
        return end;
    }
    p += utf8_decode(p, (size_t)(end - p), &before);
    while (p < end) {
        uint32_t code = (unsigned char)*p;
        size_t len = 1;
        if (code >= 128) {
            len = utf8_decode(p, (size_t)(end - p), &code);
        }
        if (!may_join(b, before, code)) {
            break;
        }
        before = code;
        p += len;
    }
    return p;
}

/* ---- symbols of a word ---- */

enum err bpe_char_symbols(const struct bpe *b, const char *word, size_t bytes, int32_t *id, size_t *count, size_t *bad)
{
    size_t n = 0;
    bool unknown = false; /* the last symbol is the unknown token */
    for (size_t at = 0; at < bytes;) {
        uint32_t code = (unsigned char)word[at];
        size_t len = code < 128 ? 1 : utf8_decode(word + at, bytes - at, &code);
        int32_t one = bpe_char_id(b, code);
        if (one >= 0) {
            id[n++] = one;
            unknown = false;
        } else if (b->late_fallback) {
            id[n++] = UNKNOWN;
        } else if (b->byte_fallback) {
            for (size_t i = 0; i < len; i++) {
                id[n++] = b->byte_id[(unsigned char)word[at + i]];
            }
        } else if (b->unk < 0) {
            *bad = at;
            return ERR_DATA; /* the caller knows file and offset */
        } else if (!unknown || !b->fuse_unk) {
            id[n++] = b->unk;
            unknown = true;
        }
        at += len;
    }
    *count = n;
    return OK;
}

/* Bytes of the text that a symbol took. */
static size_t symbol_bytes(const struct bpe *b, int32_t id, const char *text, size_t bytes)
{
    uint32_t code;
    return id < b->hidden ? b->token[bpe_find_id(b, id)].bytes : utf8_decode(text, bytes, &code);
}

enum err bpe_char_finish(const struct bpe *b, struct bpe_work *w, const char *word, size_t bytes, int32_t *id,
                         size_t n, size_t *count, size_t *bad)
{
    bool hidden = false;
    *count = n;
    for (size_t i = 0; i < n; i++) {
        hidden = hidden || id[i] >= b->hidden;
    }
    if (!b->late_fallback || !hidden) {
        return OK;
    }
    TRY(bpe_work_reserve(w, n));
    memcpy(w->id, id, n * sizeof(int32_t));
    size_t out = 0;
    bool unknown = false;
    for (size_t i = 0, at = 0; i < n; i++) {
        size_t len = symbol_bytes(b, w->id[i], word + at, bytes - at);
        if (w->id[i] < b->hidden) {
            id[out++] = w->id[i];
            unknown = false;
        } else if (b->byte_fallback) {
            for (size_t k = 0; k < len; k++) {
                id[out++] = b->byte_id[(unsigned char)word[at + k]];
            }
        } else if (b->unk < 0) {
            *bad = at;
            return ERR_DATA;
        } else if (!unknown) {
            id[out++] = b->unk;
            unknown = true;
        }
        at += len;
    }
    *count = out;
    return OK;
}
