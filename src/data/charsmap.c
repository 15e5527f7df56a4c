/* Why this exists: SentencePiece keeps its normalization (NFKC and more) as a compiled table in the model file, so the
 * result does not depend on anybody's version of Unicode. The table is a double array: a unit has a label, an offset
 * to its children and a mark that a value hangs below it.
 *
 * Invariants: no walk leaves the array, whatever the file holds; every replacement is valid UTF-8. */
#include "data/charsmap.h"

#include "base/mem.h"
#include "base/utf8.h"

enum err base64_decode(const char *text, size_t chars, struct buf *out, bool *whole)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    signed char value[256];
    uint32_t bits = 0;
    int held = 0;
    memset(value, -1, sizeof(value));
    for (int i = 0; i < 64; i++) {
        value[(unsigned char)alphabet[i]] = (signed char)i;
    }
    for (int pad = 0; pad < 2 && chars > 0 && text[chars - 1] == '='; pad++) {
        chars--;
    }
    *whole = chars % 4 != 1;
    TRY(buf_reserve(out, chars / 4 * 3 + 3));
    for (size_t i = 0; i < chars && *whole; i++) {
        int six = value[(unsigned char)text[i]];
        *whole = six >= 0;
        bits = bits << 6 | (uint32_t)(six & 63);
        held += 6;
        if (held >= 8) {
            held -= 8;
            char byte = (char)(bits >> held & 0xff);
            TRY(buf_add(out, &byte, 1));
        }
    }
    return OK;
}

/* ---- the map ---- */

#define UNIT_LABEL(u) ((u) & (UINT32_C(1) << 31 | 0xffu))
#define UNIT_OFFSET(u) ((u) >> 10 << (((u) & (1u << 9)) >> 6))
#define UNIT_HAS_VALUE(u) (((u) >> 8 & 1u) != 0)
#define UNIT_VALUE(u) ((u) & 0x7fffffffu)

enum err charsmap_new(struct charsmap *m, const char *where, const char *blob, size_t bytes)
{
    uint32_t size;
    if (bytes < 8) {
        return FAIL(ERR_DATA, "%s: %zu bytes, a map has at least 8", where, bytes);
    }
    memcpy(&size, blob, 4);
    if (size % 4 != 0 || size == 0 || size > bytes - 4) {
        return FAIL(ERR_DATA, "%s: says that its trie has %u bytes, of %zu that follow", where, size, bytes - 4);
    }
    void *block;
    TRY(mem_alloc(&block, size / 4, sizeof(uint32_t)));
    m->unit = block;
    m->units = size / 4;
    memcpy(m->unit, blob + 4, size);
    const char *text = blob + 4 + size;
    size_t text_bytes = bytes - 4 - size;
    if (utf8_valid_prefix(text, text_bytes) != text_bytes) {
        return FAIL(ERR_DATA, "%s: the replacements are not UTF-8", where);
    }
    return buf_add(&m->text, text, text_bytes);
}

enum err charsmap_new_base64(struct charsmap *m, const char *where, const char *text, size_t chars)
{
    struct buf blob = { 0 };
    bool whole;
    enum err err = base64_decode(text, chars, &blob, &whole);
    if (err == OK) {
        err = whole ? charsmap_new(m, where, blob.data != NULL ? blob.data : "", blob.bytes)
                    : FAIL(ERR_DATA, "%s: is not base64", where);
    }
    buf_release(&blob);
    return err;
}

void charsmap_release(struct charsmap *m)
{
    free(m->unit);
    buf_release(&m->text);
    *m = (struct charsmap){ 0 };
}

size_t charsmap_match(const struct charsmap *m, const char *text, size_t bytes, bool longest, const char **with,
                      size_t *with_bytes)
{
    size_t found = 0, at = 0;
    uint32_t value = 0;
    if (m->unit == NULL) {
        return 0;
    }
    at ^= UNIT_OFFSET(m->unit[0]);
    for (size_t i = 0; i < bytes && text[i] != 0; i++) {
        at ^= (unsigned char)text[i];
        if (at >= m->units || UNIT_LABEL(m->unit[at]) != (unsigned char)text[i]) {
            break;
        }
        uint32_t unit = m->unit[at];
        at ^= UNIT_OFFSET(unit);
        if (UNIT_HAS_VALUE(unit) && at < m->units && UNIT_VALUE(m->unit[at]) < m->text.bytes) {
            found = i + 1;
            value = UNIT_VALUE(m->unit[at]);
            if (!longest) {
                break;
            }
        }
    }
    if (found > 0) {
        *with = m->text.data + value;
        *with_bytes = strlen(*with);
        found = ((unsigned char)**with & 0xc0) == 0x80 ? 0 : found; /* a value that points into a character */
    }
    return found > 0 && (found == bytes || ((unsigned char)text[found] & 0xc0) != 0x80) ? found : 0;
}

/* ---- symbols ---- */

void symbol_trie_init(struct symbol_trie *t)
{
    *t = (struct symbol_trie){ 0 };
    memset(t->first, 0xff, sizeof(t->first));
}

void symbol_trie_release(struct symbol_trie *t)
{
    free(t->node);
    *t = (struct symbol_trie){ 0 };
}

static enum err add_node(struct symbol_trie *t, unsigned char byte, int32_t sibling, int32_t *out)
{
    void *array = t->node;
    TRY(mem_grow(&array, &t->capacity, t->count + 1, sizeof(struct symbol_node)));
    t->node = array;
    t->node[t->count] = (struct symbol_node){ .child = -1, .sibling = sibling, .id = -1, .byte = byte };
    *out = (int32_t)t->count++;
    return OK;
}

enum err symbol_trie_add(struct symbol_trie *t, const char *text, size_t bytes, int32_t id)
{
    int32_t at = -1;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        int32_t next = i == 0 ? t->first[byte] : t->node[at].child;
        while (next >= 0 && t->node[next].byte != byte) {
            next = t->node[next].sibling;
        }
        if (next < 0) {
            TRY(add_node(t, byte, i == 0 ? -1 : t->node[at].child, &next));
            if (i == 0) {
                t->first[byte] = next;
            } else {
                t->node[at].child = next;
            }
        }
        at = next;
    }
    t->node[at].id = id;
    return OK;
}

size_t symbol_trie_match(const struct symbol_trie *t, const char *text, size_t bytes, int32_t *id)
{
    size_t found = 0;
    int32_t at = bytes > 0 ? t->first[(unsigned char)text[0]] : -1;
    for (size_t i = 0; at >= 0; at = t->node[at].child) {
        while (at >= 0 && t->node[at].byte != (unsigned char)text[i]) {
            at = t->node[at].sibling;
        }
        if (at < 0) {
            break;
        }
        i++;
        if (t->node[at].id >= 0) {
            found = i;
            *id = t->node[at].id;
        }
        if (i == bytes) {
            break;
        }
    }
    return found;
}
