/* Why this exists: tokenizers with a pattern of their own are run through PCRE2. Two things need care. The patterns
 * are written for Oniguruma in Ruby syntax, which reads some constructs in another way: those are rewritten or
 * refused, never approximated. And a backtracking engine may take exponential time in one match, or look through the
 * whole rest of the text for every short match: so each match gets a small step limit and sees a small window of the
 * text (PCRE2's hard partial matching tells when the window was too short); both grow only as long as the budget of
 * the text lasts.
 *
 * Invariants: the work of one text is linear in its length; the outcome does not depend on the clock; a match found
 * in a window is the match in the whole text. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "data/bpe.h"
#include "data/pretoken.h"

#define WINDOW_BYTES 4096u    /* first window of a match */
#define MATCH_STEPS 2000u     /* first step limit of a match; not charged */
#define MATCH_STEPS_MAX 10000000u
#define TEXT_STEPS 500000000u /* the budget: this plus TEXT_STEPS_PER_BYTE for each byte of the text */
#define TEXT_STEPS_PER_BYTE 1000u
#define HEAP_KIB (64u << 10)
#define PATTERN_BYTES_MAX (1u << 16)

struct regex {
    pcre2_code *code;
    bool jit;
    char *where;
};

/* ---- from Oniguruma to PCRE2 ---- */

struct rewrite {
    const char *p, *start, *end;
    const char *where;
    struct buf *out;
    int depth;           /* open groups */
    uint64_t caseless;   /* one bit for each open group: letters match in any case */
    char last_letter;    /* the literal letter before this place, lower case; 0 */
    bool atom;           /* something stands before this place that a quantifier can repeat */
};

static enum err refuse(const struct rewrite *r, size_t bytes, const char *why)
{
    char quote[96], whole[96];
    size_t left = (size_t)(r->end - r->p);
    return FAIL(ERR_DATA, "%s: \"%s\" at byte %zu of the pattern \"%s\": %s | invar can not run this pre-tokenizer",
                r->where, bpe_quote(r->p, bytes < left ? bytes : left, quote), (size_t)(r->p - r->start),
                bpe_quote(r->start, (size_t)(r->end - r->start), whole), why);
}

static int hex_value(char c)
{
    char lower = (char)(c | 32);
    return c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* \xHH, \x{H...}, \uHHHH: a code point. */
static enum err rewrite_code(struct rewrite *r)
{
    const char *q = r->p + 2;
    bool braces = r->p[1] == 'x' && q < r->end && *q == '{';
    size_t most = braces ? 6 : r->p[1] == 'x' ? 2 : 4, digits = 0;
    uint32_t code = 0;
    for (q += braces; q < r->end && digits < most && hex_value(*q) >= 0; q++, digits++) {
        code = code * 16 + (uint32_t)hex_value(*q);
    }
    bool closed = braces ? q < r->end && *q == '}' && digits > 0 : digits == most;
    if (!closed || code > 0x10ffff || (most == 2 && code > 0x7f)) {
        return refuse(r, 10, "not a code point");
    }
    TRY(buf_printf(r->out, "\\x{%x}", code));
    r->p = q + braces;
    return OK;
}

/* \p{..} and \P{..}. General categories (one or two letters) mean the same; longer names are scripts, for which
 * PCRE2 would take the wider script extensions. */
static enum err rewrite_property(struct rewrite *r)
{
    const char *q = r->p + 2;
    if (q >= r->end || *q != '{') {
        return refuse(r, 4, "expected a property in braces");
    }
    q++;
    bool negate = r->p[1] == 'P';
    if (q < r->end && *q == '^') {
        negate = !negate;
        q++;
    }
    const char *name = q;
    while (q < r->end && ((*q >= 'a' && *q <= 'z') || (*q >= 'A' && *q <= 'Z') || *q == '_')) {
        q++;
    }
    size_t len = (size_t)(q - name);
    if (q >= r->end || *q != '}' || len == 0 || len > 40) {
        return refuse(r, 12, "a property name is not understood");
    }
    TRY(buf_printf(r->out, "\\%c{%s%.*s}", negate ? 'P' : 'p', len > 2 ? "sc:" : "", (int)len, name));
    r->p = q + 1;
    return OK;
}

static enum err rewrite_escape(struct rewrite *r, bool in_class)
{
    static const struct {
        char name;
        bool class_only_whole; /* not inside [...] */
        const char *text;
    } map[] = {
        { 's', false, "\\p{wspace}" }, { 'S', false, "\\P{wspace}" }, { 'd', false, "\\p{Nd}" },
        { 'D', false, "\\P{Nd}" },     { 'r', false, "\\r" },         { 'n', false, "\\n" },
        { 't', false, "\\t" },         { 'f', false, "\\f" },         { 'v', false, "\\x0b" },
        { 'a', false, "\\a" },         { 'e', false, "\\e" },         { 'A', true, "\\A" },
        { 'z', true, "\\z" },
    };
    if (r->end - r->p < 2) {
        return refuse(r, 1, "nothing after the backslash");
    }
    char c = r->p[1];
    r->last_letter = 0;
    if (c == 'p' || c == 'P') {
        return rewrite_property(r);
    }
    if (c == 'x' || c == 'u') {
        return rewrite_code(r);
    }
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
        if (map[i].name == c && !(in_class && map[i].class_only_whole)) {
            r->p += 2;
            return buf_add_string(r->out, map[i].text);
        }
    }
    if ((unsigned char)c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        return refuse(r, 2, "an escape that is not understood");
    }
    TRY(buf_add(r->out, r->p, 2));
    r->p += 2;
    return OK;
}

static enum err rewrite_class(struct rewrite *r)
{
    const char *open = r->p;
    TRY(buf_add(r->out, "[", 1));
    r->p++;
    if (r->p < r->end && *r->p == '^') {
        TRY(buf_add(r->out, "^", 1));
        r->p++;
    }
    if (r->p < r->end && *r->p == ']') {
        return refuse(r, 4, "an empty class");
    }
    while (r->p < r->end && *r->p != ']') {
        if (*r->p == '[') {
            return refuse(r, 8, "a class inside a class");
        }
        if (*r->p == '&' && r->end - r->p > 1 && r->p[1] == '&') {
            return refuse(r, 4, "an intersection of classes");
        }
        if (*r->p == '\\') {
            TRY(rewrite_escape(r, true));
        } else {
            TRY(buf_add(r->out, r->p, 1));
            r->p++;
        }
    }
    if (r->p >= r->end) {
        r->p = open;
        return refuse(r, 8, "the class is not closed");
    }
    r->p++;
    r->atom = true;
    r->last_letter = 0;
    return buf_add(r->out, "]", 1);
}

static enum err rewrite_group(struct rewrite *r)
{
    static const char *const same[] = { "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>" };
    if (r->depth >= 60) {
        return refuse(r, 4, "groups nested too deeply");
    }
    bool inherited = (r->caseless >> r->depth & 1) != 0, caseless = inherited;
    const char *text = NULL;
    size_t left = (size_t)(r->end - r->p), taken = 0;
    if (left > 1 && r->p[1] != '?' && r->p[1] != '*') {
        text = "(?:"; /* nothing refers back to a group */
        taken = 1;
    } else if (left >= 4 && memcmp(r->p, "(?i:", 4) == 0) {
        text = "(?i:";
        taken = 4;
        caseless = true;
    } else if (left >= 4 && memcmp(r->p, "(?i)", 4) == 0 && r->p == r->start) {
        r->caseless |= 1;
        r->p += 4;
        return buf_add_string(r->out, "(?i)");
    }
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]) && text == NULL; i++) {
        size_t len = strlen(same[i]);
        if (left >= len && memcmp(r->p, same[i], len) == 0) {
            text = same[i];
            taken = len;
        }
    }
    if (text == NULL) {
        return refuse(r, 5, "a kind of group that is not understood");
    }
    r->depth++;
    r->caseless = (r->caseless & ~(UINT64_C(1) << r->depth)) | (uint64_t)caseless << r->depth;
    r->p += taken;
    r->atom = false;
    r->last_letter = 0;
    return buf_add_string(r->out, text);
}

/* {n}, {n,}, {,m}, {n,m}; any other brace is itself. Ruby reads {n}+ and {n}? not as PCRE2 does. */
static enum err rewrite_brace(struct rewrite *r)
{
    const char *q = r->p + 1;
    const char *low = q;
    while (q < r->end && *q >= '0' && *q <= '9') {
        q++;
    }
    size_t low_digits = (size_t)(q - low), high_digits = 0;
    if (q < r->end && *q == ',') {
        const char *high = ++q;
        while (q < r->end && *q >= '0' && *q <= '9') {
            q++;
        }
        high_digits = (size_t)(q - high);
    }
    if (q >= r->end || *q != '}' || low_digits + high_digits == 0 || !r->atom) {
        r->p++;
        r->atom = true;
        return buf_add(r->out, "\\{", 2);
    }
    q++;
    if (q < r->end && (*q == '+' || *q == '?' || *q == '*' || *q == '{')) {
        return refuse(r, (size_t)(q + 1 - r->p), "a quantifier after a quantifier in braces");
    }
    TRY(buf_printf(r->out, "{%s%.*s", low_digits == 0 ? "0" : "", (int)(q - low), low));
    r->p = q;
    r->atom = false;
    return OK;
}

/* Two letters that some single character equals when case is ignored: Oniguruma matches it, PCRE2 does not. */
static bool folds_together(char a, char b)
{
    return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
}

static enum err rewrite_literal(struct rewrite *r)
{
    uint32_t code;
    size_t len = utf8_decode(r->p, (size_t)(r->end - r->p), &code);
    if (len == 0) {
        return refuse(r, 4, "not UTF-8");
    }
    bool letter = (*r->p >= 'a' && *r->p <= 'z') || (*r->p >= 'A' && *r->p <= 'Z');
    char lower = (char)(letter ? *r->p | 32 : 0);
    if ((r->caseless >> r->depth & 1) != 0 && folds_together(r->last_letter, lower)) {
        return refuse(r, 4, "these letters in any case also match a ligature");
    }
    if (strchr("}]#", *r->p) != NULL && *r->p != 0) {
        TRY(buf_add(r->out, "\\", 1));
    }
    TRY(buf_add(r->out, r->p, len));
    r->p += len;
    r->last_letter = lower;
    r->atom = true;
    return OK;
}

static enum err rewrite_one(struct rewrite *r)
{
    char c = *r->p;
    switch (c) {
    case '\\':
        TRY(rewrite_escape(r, false));
        r->atom = true;
        return OK;
    case '[':
        return rewrite_class(r);
    case '(':
        return rewrite_group(r);
    case ')':
        if (r->depth == 0) {
            return refuse(r, 4, "a group is closed that was not opened");
        }
        r->depth--;
        break;
    case '{':
        return rewrite_brace(r);
    case '*':
    case '+':
    case '?':
        if (!r->atom && r->p > r->start && strchr("*+?", r->p[-1]) == NULL) {
            return refuse(r, 4, "nothing to repeat");
        }
        r->atom = false;
        r->last_letter = 0;
        r->p++;
        return buf_add(r->out, &c, 1);
    case '|':
    case '^':
    case '$':
    case '.':
        break;
    default:
        return rewrite_literal(r);
    }
    r->atom = c == ')' || c == '.';
    r->last_letter = 0;
    r->p++;
    return buf_add(r->out, &c, 1);
}

static enum err rewrite_pattern(const char *where, const char *pattern, size_t bytes, struct buf *out)
{
    struct rewrite r = { .p = pattern, .start = pattern, .end = pattern + bytes, .where = where, .out = out };
    if (bytes > PATTERN_BYTES_MAX || utf8_valid_prefix(pattern, bytes) != bytes) {
        return FAIL(ERR_DATA, "%s: a pattern of %zu bytes, expected UTF-8 of at most %u", where, bytes,
                    PATTERN_BYTES_MAX);
    }
    while (r.p < r.end) {
        TRY(rewrite_one(&r));
    }
    if (r.depth > 0) {
        return FAIL(ERR_DATA, "%s: the pattern has %d groups that are not closed", where, r.depth);
    }
    return OK;
}

/* ---- compiling and matching ---- */

enum err regex_new(struct regex **out, const char *where, const char *pattern, size_t bytes)
{
    struct buf text = { 0 };
    void *block = NULL;
    enum err err = OK;
    *out = NULL;
    TRY_OUT(rewrite_pattern(where, pattern, bytes, &text));
    TRY_OUT(mem_alloc(&block, 1, sizeof(struct regex)));
    struct regex *r = block;
    TRY_OUT(mem_copy_string(&r->where, where, strlen(where)));
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL) {
        err = FAIL(ERR_RESOURCE, "out of memory");
        goto out;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)(text.data != NULL ? text.data : ""), text.bytes,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
    pcre2_compile_context_free(context);
    if (r->code == NULL) {
        char message[200] = "";
        char quote[96];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof(message));
        err = FAIL(ERR_DATA, "%s: the pattern \"%s\" does not compile: %s | invar can not run this pre-tokenizer",
                   where, bpe_quote(pattern, bytes, quote), message);
        goto out;
    }
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    *out = r;
    block = NULL;
out:
    buf_release(&text);
    regex_free(block);
    return err;
}

void regex_free(struct regex *r)
{
    if (r != NULL) {
        pcre2_code_free(r->code);
        free(r->where);
        free(r);
    }
}

void regex_work_begin(struct regex_work *w, size_t bytes)
{
    w->left = TEXT_STEPS + (uint64_t)bytes * TEXT_STEPS_PER_BYTE;
}

void regex_work_release(struct regex_work *w)
{
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    *w = (struct regex_work){ 0 };
}

static enum err work_ready(const struct regex *r, struct regex_work *w)
{
    if (w->owner == r) {
        return OK;
    }
    uint64_t left = w->left;
    regex_work_release(w);
    w->left = left;
    w->match = pcre2_match_data_create_from_pattern(r->code, NULL);
    w->context = pcre2_match_context_create(NULL);
    if (r->jit) {
        w->stack = pcre2_jit_stack_create(32 << 10, 1 << 20, NULL);
    }
    if (w->match == NULL || w->context == NULL || (r->jit && w->stack == NULL)) {
        return FAIL(ERR_RESOURCE, "out of memory");
    }
    pcre2_jit_stack_assign(w->context, NULL, w->stack);
    pcre2_set_heap_limit(w->context, HEAP_KIB);
    w->owner = r;
    return OK;
}

static enum err spend(const struct regex *r, struct regex_work *w, uint64_t steps, size_t from)
{
    if (steps > w->left) {
        return FAIL(ERR_DATA, "%s: the pattern takes too many steps on this text (near byte %zu of a piece) | such a "
                              "pattern could run for hours; use another tokenizer",
                    r->where, from);
    }
    w->left -= steps;
    return OK;
}

static size_t window_end(const char *text, size_t bytes, size_t from, size_t window)
{
    if (window >= bytes - from) {
        return bytes;
    }
    size_t end = from + window;
    while (((unsigned char)text[end] & 0xc0) == 0x80) {
        end--; /* not inside a character */
    }
    return end;
}

enum err regex_next(const struct regex *r, struct regex_work *w, const char *text, size_t bytes, size_t from,
                    bool *found, size_t *start, size_t *end)
{
    size_t window = WINDOW_BYTES;
    uint32_t steps = MATCH_STEPS;
    uint32_t options = PCRE2_NO_UTF_CHECK;
    TRY(work_ready(r, w));
    *found = false;
    for (;;) {
        size_t stop = window_end(text, bytes, from, window);
        bool whole = stop == bytes;
        pcre2_set_match_limit(w->context, steps);
        int got = pcre2_match(r->code, (PCRE2_SPTR)text, stop, from, options | (whole ? 0 : PCRE2_PARTIAL_HARD),
                              w->match, w->context);
        if (got > 0) {
            const PCRE2_SIZE *range = pcre2_get_ovector_pointer(w->match);
            *found = true;
            *start = range[0];
            *end = range[1];
            return OK;
        }
        if (whole && got == PCRE2_ERROR_NOMATCH) {
            return OK;
        }
        if (got == PCRE2_ERROR_PARTIAL || got == PCRE2_ERROR_NOMATCH) {
            window *= 4;
            TRY(spend(r, w, window, from));
        } else if (got == PCRE2_ERROR_JIT_STACKLIMIT && !(options & PCRE2_NO_JIT)) {
            options |= PCRE2_NO_JIT;
        } else if (got == PCRE2_ERROR_MATCHLIMIT && steps < MATCH_STEPS_MAX) {
            TRY(spend(r, w, steps, from));
            steps = steps * 8 > MATCH_STEPS_MAX ? MATCH_STEPS_MAX : steps * 8;
        } else if (got == PCRE2_ERROR_NOMEMORY) {
            return FAIL(ERR_RESOURCE, "out of memory");
        } else {
            TRY(spend(r, w, UINT64_MAX, from)); /* a limit that cannot grow: never returns OK */
        }
    }
}
