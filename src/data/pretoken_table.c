/* Why this exists: the scanners ask for the class of every character, so the classes of Unicode lie in one small
 * two-stage table, built at load from utf8proc, which has one version of Unicode for all of them.
 *
 * Invariant: equal blocks share a row, so the table is about 50 kB. */
#include <utf8proc.h>

#include "base/mem.h"
#include "data/pretoken.h"

static bool is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
           code == 0x3000;
}

/* Other_Alphabetic outside the categories of letters and marks, and the joiners. */
static bool is_word_extra(uint32_t code)
{
    return (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
           (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189) || code == 0x200c ||
           code == 0x200d;
}

static uint8_t class_of(int category)
{
    switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return CHAR_LETTER | CHAR_WORD;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
        return CHAR_NUMBER | CHAR_WORD;
    case UTF8PROC_CATEGORY_NO:
        return CHAR_NUMBER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return CHAR_OTHER | CHAR_WORD;
    case UTF8PROC_CATEGORY_PC:
        return CHAR_OTHER | CHAR_WORD | CHAR_PUNCTUATION;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return CHAR_OTHER | CHAR_PUNCTUATION;
    default:
        return CHAR_OTHER;
    }
}

static uint8_t flags_of(uint32_t code, int category)
{
    bool ascii_punctuation = (code >= 33 && code <= 47) || (code >= 58 && code <= 64) || (code >= 91 && code <= 96) ||
                             (code >= 123 && code <= 126);
    unsigned flags = is_space(code) ? CHAR_SPACE : class_of(category);
    flags |= ascii_punctuation ? CHAR_PUNCTUATION : 0u;
    flags |= is_word_extra(code) ? CHAR_WORD : 0u;
    return (uint8_t)flags;
}

/* Mark what canonical composition may change: marks, characters that do not decompose and compose to themselves, and
 * those that may join the one before. */
static void mark_nfc(uint8_t *flags, uint32_t code, const utf8proc_property_t *p)
{
    bool joining_jamo = (code >= 0x1161 && code <= 0x1175) || (code >= 0x11a8 && code <= 0x11c2);
    if (p->combining_class != 0 || joining_jamo) {
        flags[code] |= CHAR_NFC;
    }
    if (p->decomp_seqindex == UINT16_MAX) { /* no mapping; Hangul syllables compose to themselves */
        return;
    }
    utf8proc_int32_t parts[8];
    int boundary = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)code, parts, 8, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
    if (n < 1 || n > 8 || (n == 1 && parts[0] == (utf8proc_int32_t)code)) {
        return;
    }
    flags[parts[n - 1]] |= n > 1 ? CHAR_NFC : 0u;
    n = utf8proc_normalize_utf32(parts, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (n != 1 || parts[0] != (utf8proc_int32_t)code) {
        flags[code] |= CHAR_NFC;
    }
}

static enum err add_block(struct char_table *t, uint32_t block, const uint8_t *flags)
{
    for (size_t i = t->rows; i-- > 0;) {
        if (memcmp(t->row[i], flags, CHAR_BLOCK) == 0) {
            t->block[block] = (uint16_t)i;
            return OK;
        }
    }
    void *rows = t->row;
    TRY(mem_grow(&rows, &t->capacity, t->rows + 1, CHAR_BLOCK));
    t->row = rows;
    memcpy(t->row[t->rows], flags, CHAR_BLOCK);
    t->block[block] = (uint16_t)t->rows++;
    return OK;
}

enum err char_table_init(struct char_table *t)
{
    void *block;
    TRY(mem_alloc(&block, 0x110000, 1));
    uint8_t *flags = block;
    enum err err = OK;
    for (uint32_t code = 0; code < 0xe1000; code++) {
        if (code == 0x40000) {
            code = 0xe0000; /* nothing is assigned between, and only private characters behind */
        }
        const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)code);
        /* |= because mark_nfc of an earlier character may have marked this one */
        flags[code] = (uint8_t)(flags[code] | flags_of(code, p->category));
        mark_nfc(flags, code, p);
    }
    for (uint32_t b = 0; b < CHAR_BLOCKS; b++) {
        TRY_OUT(add_block(t, b, flags + (size_t)b * CHAR_BLOCK));
    }
    for (unsigned i = 0; i < 256; i++) {
        t->first[i] = i < 128 ? flags[i] : CHAR_MULTI;
    }
out:
    free(flags);
    return err;
}

void char_table_release(struct char_table *t)
{
    free(t->row);
    *t = (struct char_table){ 0 };
}
