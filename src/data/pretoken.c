/* Why this exists: almost all byte-level tokenizers in use split text by one of three regular expressions; a scanner
 * written by hand for each is many times faster than a regular-expression engine and cannot backtrack.
 *
 * The scanners rely on what the patterns have in common: every character starts some word, and a run of one class
 * ends where the class changes. unit_tokenizer proves each equal to PCRE2 on real texts and random strings.
 *
 * Invariant: every scanner returns a position after p, and the text is valid UTF-8, so decoding needs no checks. */
#include "data/pretoken.h"

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const char cl100k_pattern[] =
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|"
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s";

static const struct {
    const char *pattern;
    enum pretoken_scanner scanner;
} known[] = {
    { gpt2_pattern, SCANNER_GPT2 },
    { "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", SCANNER_GPT2 },
    { llama3_pattern, SCANNER_LLAMA3 },
    { qwen2_pattern, SCANNER_QWEN2 },
};

enum pretoken_scanner pretoken_scanner_of(const char *pattern, size_t bytes)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strlen(known[i].pattern) == bytes && memcmp(known[i].pattern, pattern, bytes) == 0) {
            return known[i].scanner;
        }
    }
    return SCANNER_NONE;
}

const char *pretoken_pattern(enum pretoken_scanner s)
{
    static const char *const patterns[] = {
        [SCANNER_NONE] = "", [SCANNER_GPT2] = gpt2_pattern, [SCANNER_LLAMA3] = llama3_pattern,
        [SCANNER_QWEN2] = qwen2_pattern, [SCANNER_CL100K] = cl100k_pattern,
    };
    return patterns[s];
}

/* Class of the character at p and its length. */
static inline unsigned class_at(const struct char_table *t, const unsigned char *p, size_t *len)
{
    unsigned c = t->first[*p];
    if (!(c & CHAR_MULTI)) {
        *len = 1;
        return c & CHAR_CLASS;
    }
    uint32_t code;
    if (*p < 0xe0) {
        *len = 2;
        code = (*p & 0x1fu) << 6 | (p[1] & 0x3fu);
    } else if (*p < 0xf0) {
        *len = 3;
        code = (*p & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    } else {
        *len = 4;
        code = (*p & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    }
    return char_class(t, code) & CHAR_CLASS;
}

/* End of the run of `class` that begins at p. */
static inline const unsigned char *run_end(const struct char_table *t, const unsigned char *p, const unsigned char *end,
                                           unsigned class)
{
    while (p < end) {
        size_t len;
        unsigned c = t->first[*p];
        if (!(c & CHAR_MULTI)) {
            if ((c & CHAR_CLASS) != class) {
                break;
            }
            p++;
            continue;
        }
        if (class_at(t, p, &len) != class) {
            break;
        }
        p += len;
    }
    return p;
}

/* Length of 's 't 're 've 'm 'll 'd at the apostrophe p, 0 when there is none. */
static inline size_t contraction(const unsigned char *p, const unsigned char *end)
{
    size_t left = (size_t)(end - p);
    if (left < 2) {
        return 0;
    }
    unsigned c = p[1], d = left > 2 ? p[2] : 0;
    if (c == 's' || c == 't' || c == 'm' || c == 'd') {
        return 2;
    }
    return ((c == 'r' || c == 'v') && d == 'e') || (c == 'l' && d == 'l') ? 3 : 0;
}

/* The same in any case; U+017F (long s) is an s then. */
static inline size_t contraction_caseless(const unsigned char *p, const unsigned char *end)
{
    size_t left = (size_t)(end - p);
    if (left < 2) {
        return 0;
    }
    if (left > 2 && p[1] == 0xc5 && p[2] == 0xbf) {
        return 3;
    }
    unsigned c = p[1] | 0x20u, d = left > 2 ? p[2] | 0x20u : 0;
    if (c == 's' || c == 't' || c == 'm' || c == 'd') {
        return 2;
    }
    return ((c == 'r' || c == 'v') && d == 'e') || (c == 'l' && d == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ : the run but for its last character, which the next word may want; all of it at the end of the
 * text, and when it is a single character. */
static inline const unsigned char *space_end(const struct char_table *t, const unsigned char *p,
                                             const unsigned char *end)
{
    const unsigned char *last = p, *q = p;
    while (q < end) {
        size_t len;
        if (class_at(t, q, &len) != CHAR_SPACE) {
            return last > p ? last : q;
        }
        last = q;
        q += len;
    }
    return q;
}

static const char *next_gpt2(const struct char_table *t, const char *text, const char *text_end)
{
    const unsigned char *p = (const unsigned char *)text, *end = (const unsigned char *)text_end;
    size_t len;
    unsigned class = class_at(t, p, &len);
    if (*p == '\'') {
        size_t n = contraction(p, end);
        if (n > 0) {
            return text + n;
        }
    } else if (*p == ' ' && p + 1 < end) {
        size_t next_len;
        unsigned next = class_at(t, p + 1, &next_len);
        if (next != CHAR_SPACE) {
            class = next;
            len = 1 + next_len;
        }
    }
    return (const char *)(class == CHAR_SPACE ? space_end(t, p, end) : run_end(t, p + len, end, class));
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line break of the run, if it has one. */
static const unsigned char *lines_end(const struct char_table *t, const unsigned char *p, const unsigned char *end)
{
    const unsigned char *stop = run_end(t, p, end, CHAR_SPACE);
    for (const unsigned char *q = stop; q > p; q--) {
        if (q[-1] == '\n' || q[-1] == '\r') {
            return q;
        }
    }
    if (stop == end) {
        return stop;
    }
    const unsigned char *last = stop - 1;
    while ((*last & 0xc0) == 0x80) {
        last--;
    }
    return last > p ? last : stop;
}

static inline const unsigned char *next_lines(const struct char_table *t, const unsigned char *p,
                                              const unsigned char *end, int digits)
{
    size_t len, next_len;
    unsigned class = class_at(t, p, &len);
    if (*p == '\'') {
        size_t n = contraction_caseless(p, end);
        if (n > 0) {
            return p + n;
        }
    }
    if (class == CHAR_LETTER) {
        return run_end(t, p + len, end, CHAR_LETTER);
    }
    if (class == CHAR_NUMBER) {
        for (p += len; --digits > 0 && p < end && class_at(t, p, &len) == CHAR_NUMBER; p += len) {
        }
        return p;
    }
    unsigned next = p + len < end ? class_at(t, p + len, &next_len) : CHAR_SPACE;
    if (next == CHAR_LETTER && *p != '\n' && *p != '\r') {
        return run_end(t, p + len + next_len, end, CHAR_LETTER);
    }
    if (*p == ' ' && next == CHAR_OTHER) {
        class = CHAR_OTHER;
        len += next_len;
    }
    if (class == CHAR_OTHER) {
        p = run_end(t, p + len, end, CHAR_OTHER);
        while (p < end && (*p == '\n' || *p == '\r')) {
            p++;
        }
        return p;
    }
    return lines_end(t, p, end);
}

static const char *next_llama3(const struct char_table *t, const char *p, const char *end)
{
    return (const char *)next_lines(t, (const unsigned char *)p, (const unsigned char *)end, 3);
}

static const char *next_qwen2(const struct char_table *t, const char *p, const char *end)
{
    return (const char *)next_lines(t, (const unsigned char *)p, (const unsigned char *)end, 1);
}

/* White space up to the end of the text is one word. */
static const char *next_cl100k(const struct char_table *t, const char *text, const char *text_end)
{
    const unsigned char *p = (const unsigned char *)text, *end = (const unsigned char *)text_end;
    size_t len;
    return class_at(t, p, &len) == CHAR_SPACE && run_end(t, p, end, CHAR_SPACE) == end ? text_end :
                                                                                         next_llama3(t, text, text_end);
}

static const char *next_none(const struct char_table *t, const char *p, const char *end)
{
    (void)t;
    (void)p;
    return end;
}

pretoken_next_fn *pretoken_scan(enum pretoken_scanner s)
{
    static pretoken_next_fn *const scan[] = {
        [SCANNER_NONE] = next_none,
        [SCANNER_GPT2] = next_gpt2,
        [SCANNER_LLAMA3] = next_llama3,
        [SCANNER_QWEN2] = next_qwen2,
        [SCANNER_CL100K] = next_cl100k,
    };
    return scan[s];
}

#define CUT_BACK ((size_t)1 << 20)

size_t pretoken_cut(const struct char_table *t, const char *text, size_t bytes)
{
    size_t stop = bytes > CUT_BACK ? bytes - CUT_BACK : 1;
    for (size_t i = bytes; i-- > stop;) {
        if ((text[i] == ' ' || text[i] == '\n') && t->first[(unsigned char)text[i - 1]] == (CHAR_LETTER | CHAR_WORD)) {
            return i;
        }
    }
    return 0;
}
