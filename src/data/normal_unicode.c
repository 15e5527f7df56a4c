/* Why this exists: some tokenizers bring their text to a normal form of Unicode first. For NFC most text is composed
 * already, so a quick look decides; what remains goes through utf8proc's tables, but with our own reordering of marks:
 * utf8proc sorts them by insertion, which takes quadratic time on a text of nothing but marks.
 *
 * Invariant: the result is the form that was asked for; NFC is equal to the text whenever nfc_may_change says no. */
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "data/normal.h"

bool nfc_may_change(const struct char_table *t, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        uint64_t eight;
        if (i + 8 <= bytes && (memcpy(&eight, text + i, 8), (eight & 0x8080808080808080ull) == 0)) {
            i += 8;
            continue;
        }
        uint32_t code = 0;
        i += utf8_decode(text + i, bytes - i, &code);
        if (code >= 0x80 && (char_class(t, code) & CHAR_NFC) != 0) {
            return true;
        }
    }
    return false;
}

static int mark_class(int32_t code)
{
    return utf8proc_get_property(code)->combining_class;
}

/* Stable merge of sorted runs [a, m) and [m, b) of marks through `spare`. */
static void merge_marks(int32_t *code, size_t a, size_t m, size_t b, int32_t *spare)
{
    size_t i = a, j = m, k = 0;
    while (i < m || j < b) {
        bool left = j == b || (i < m && mark_class(code[i]) <= mark_class(code[j]));
        spare[k++] = left ? code[i++] : code[j++];
    }
    memcpy(code + a, spare, k * sizeof(int32_t));
}

/* Sort [a, b) by combining class, equal classes keeping their order: bottom-up, so the stack does not grow. */
static void sort_marks(int32_t *code, size_t a, size_t b, int32_t *spare)
{
    for (size_t width = 1; width < b - a; width *= 2) {
        for (size_t i = a; i + width < b; i += 2 * width) {
            size_t end = b - i > 2 * width ? i + 2 * width : b;
            if (mark_class(code[i + width - 1]) > mark_class(code[i + width])) {
                merge_marks(code, i, i + width, end, spare);
            }
        }
    }
}

#define PARTS_MAX 32 /* the longest decomposition has 18 characters */

/* Decompose into w->code; the upper half of its capacity is for sorting. */
static enum err decompose(struct nfc_work *w, bool compat, const char *text, size_t bytes, size_t *count)
{
    size_t n = 0;
    int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compat ? UTF8PROC_COMPAT : 0);
    for (size_t i = 0; i < bytes;) {
        uint32_t code = 0;
        i += utf8_decode(text + i, bytes - i, &code);
        void *codes = w->code;
        TRY(mem_grow(&codes, &w->capacity, 2 * (n + PARTS_MAX), sizeof(int32_t)));
        w->code = codes;
        int boundary = 0;
        utf8proc_ssize_t parts = utf8proc_decompose_char((utf8proc_int32_t)code, w->code + n, PARTS_MAX,
                                                         (utf8proc_option_t)options, &boundary);
        BUG_IF(parts < 1 || parts > PARTS_MAX);
        n += (size_t)parts;
    }
    *count = n;
    return OK;
}

enum err nfc_append(struct nfc_work *w, bool compose, bool compat, const char *text, size_t bytes, struct buf *out)
{
    size_t n = 0;
    TRY(decompose(w, compat, text, bytes, &n));
    int32_t *spare = w->code + w->capacity / 2;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && mark_class(w->code[end]) != 0) {
            end++;
        }
        if (end > i + 1) {
            sort_marks(w->code, i, end, spare);
        }
        i = end + 1;
    }
    if (compose) {
        utf8proc_ssize_t composed =
            utf8proc_normalize_utf32(w->code, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        BUG_IF(composed < 0);
        n = (size_t)composed;
    }
    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        TRY(buf_add(out, utf8, utf8_encode((uint32_t)w->code[i], utf8)));
    }
    return OK;
}
