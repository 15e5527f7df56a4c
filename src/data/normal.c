/* Why this exists: tokenizers of the SentencePiece family rewrite their text before they look at it: a blank becomes
 * U+2581, one is put in front, compatible characters become plain ones. Each step is a pass from one buffer into
 * another.
 *
 * Invariants: every step keeps UTF-8 valid; no text grows beyond NORMAL_GROWTH times its length, whatever the file asks
 * for; time is linear in the text (NFC and its kin: n log n). */
#include "data/normal.h"

#include <utf8proc.h>

#include "base/utf8.h"

#define SPACE_SYMBOL "\xe2\x96\x81" /* U+2581 */
#define GRAPHEME_BYTES 6            /* Hugging Face looks only shorter ones up as a whole */

void normal_release(struct normal *n)
{
    for (int i = 0; i < n->steps; i++) {
        struct normal_step *s = &n->step[i];
        buf_release(&s->what);
        buf_release(&s->with);
        regex_free(s->regex);
        charsmap_release(&s->map);
    }
    *n = (struct normal){ 0 };
}

void normal_work_release(struct normal_work *w)
{
    free(w->nfc.code);
    buf_release(&w->text[0]);
    buf_release(&w->text[1]);
    regex_work_release(&w->regex);
    *w = (struct normal_work){ 0 };
}

struct pass {
    const struct normal_step *step;
    const struct char_table *table;
    struct normal_work *work;
    const char *text;
    size_t bytes, limit; /* no result may be longer than the limit */
    struct buf *out;
};

static enum err add(struct pass *p, const char *text, size_t bytes)
{
    if (p->out->bytes + bytes > p->limit) {
        return FAIL(ERR_DATA, "normalization makes more than %u times as much of a text of %zu bytes", NORMAL_GROWTH,
                    p->bytes);
    }
    return bytes > 0 ? buf_add(p->out, text, bytes) : OK;
}

static enum err add_code(struct pass *p, uint32_t code)
{
    char utf8[4];
    return add(p, utf8, utf8_encode(code, utf8));
}

static enum err run_unicode(struct pass *p)
{
    return nfc_append(&p->work->nfc, p->step->compose, p->step->compat, p->text, p->bytes, p->out);
}

static enum err run_lowercase(struct pass *p)
{
    for (size_t i = 0; i < p->bytes;) {
        uint32_t code = 0;
        i += utf8_decode(p->text + i, p->bytes - i, &code);
        TRY(add_code(p, code == 0x130 ? 'i' : (uint32_t)utf8proc_tolower((utf8proc_int32_t)code)));
        if (code == 0x130) { /* the only character whose small form is two */
            TRY(add_code(p, 0x307));
        }
    }
    return OK;
}

static bool is_space_at(const struct pass *p, size_t at, size_t *len)
{
    uint32_t code = 0;
    *len = utf8_decode(p->text + at, p->bytes - at, &code);
    return (char_class(p->table, code) & CHAR_CLASS) == CHAR_SPACE;
}

static enum err run_strip(struct pass *p)
{
    size_t start = 0, end = p->bytes, len;
    while (p->step->left && start < end && is_space_at(p, start, &len)) {
        start += len;
    }
    while (p->step->right && end > start) {
        size_t before = end - 1;
        while (before > start && ((unsigned char)p->text[before] & 0xc0) == 0x80) {
            before--;
        }
        if (!is_space_at(p, before, &len)) {
            break;
        }
        end = before;
    }
    return add(p, p->text + start, end - start);
}

static enum err run_strip_accents(struct pass *p)
{
    for (size_t i = 0; i < p->bytes;) {
        uint32_t code = 0;
        size_t len = utf8_decode(p->text + i, p->bytes - i, &code);
        int category = code < 128 ? 0 : utf8proc_get_property((utf8proc_int32_t)code)->category;
        if (category != UTF8PROC_CATEGORY_MN && category != UTF8PROC_CATEGORY_MC && category != UTF8PROC_CATEGORY_ME) {
            TRY(add(p, p->text + i, len));
        }
        i += len;
    }
    return OK;
}

static enum err run_prepend(struct pass *p)
{
    if (p->bytes > 0) {
        TRY(add(p, p->step->with.data != NULL ? p->step->with.data : "", p->step->with.bytes));
    }
    return add(p, p->text, p->bytes);
}

static enum err replace_string(struct pass *p)
{
    const struct buf *what = &p->step->what, *with = &p->step->with;
    size_t done = 0;
    while (done < p->bytes && what->bytes > 0) {
        const char *rest = p->text + done;
        const char *at = what->bytes == 1 ? memchr(rest, what->data[0], p->bytes - done)
                                          : memmem(rest, p->bytes - done, what->data, what->bytes);
        if (at == NULL) {
            break;
        }
        TRY(add(p, rest, (size_t)(at - rest)));
        TRY(add(p, with->data != NULL ? with->data : "", with->bytes));
        done = (size_t)(at - p->text) + what->bytes;
    }
    return add(p, p->text + done, p->bytes - done);
}

/* As the iterator of Hugging Face's engine: an empty match right behind a match does not count. */
static enum err replace_regex(struct pass *p)
{
    const struct buf *with = &p->step->with;
    size_t from = 0, done = 0;
    bool any = false;
    regex_work_begin(&p->work->regex, p->bytes);
    while (from <= p->bytes) {
        size_t start, end;
        bool found;
        TRY(regex_next(p->step->regex, &p->work->regex, p->text, p->bytes, from, &found, &start, &end));
        if (!found) {
            break;
        }
        if (start == end && any && end == done) {
            uint32_t code;
            from += from < p->bytes ? utf8_decode(p->text + from, p->bytes - from, &code) : 1;
            continue;
        }
        TRY(add(p, p->text + done, start - done));
        TRY(add(p, with->data != NULL ? with->data : "", with->bytes));
        from = done = end;
        any = true;
    }
    return add(p, p->text + done, p->bytes - done);
}

static enum err run_replace(struct pass *p)
{
    return p->step->regex != NULL ? replace_regex(p) : replace_string(p);
}

/* ---- compiled maps ---- */

/* End of the grapheme that begins at `at`. */
static size_t grapheme_end(const struct pass *p, size_t at)
{
    uint32_t before = 0, code = 0;
    utf8proc_int32_t state = 0;
    at += utf8_decode(p->text + at, p->bytes - at, &before);
    while (at < p->bytes) {
        size_t len = utf8_decode(p->text + at, p->bytes - at, &code);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)code, &state)) {
            break;
        }
        before = code;
        at += len;
    }
    return at;
}

/* Hugging Face's way: a short grapheme becomes what the shortest sequence at its beginning says, all of it; else each
 * character by itself. */
static enum err run_precompiled(struct pass *p)
{
    const struct charsmap *map = &p->step->map;
    for (size_t i = 0; i < p->bytes;) {
        size_t end = grapheme_end(p, i), with_bytes;
        const char *with;
        if (end - i < GRAPHEME_BYTES && charsmap_match(map, p->text + i, end - i, false, &with, &with_bytes) > 0) {
            TRY(add(p, with, with_bytes));
            i = end;
            continue;
        }
        while (i < end) {
            uint32_t code;
            size_t len = utf8_decode(p->text + i, end - i, &code);
            bool found = charsmap_match(map, p->text + i, len, false, &with, &with_bytes) > 0;
            TRY(found ? add(p, with, with_bytes) : add(p, p->text + i, len));
            i += len;
        }
    }
    return OK;
}

/* What SentencePiece makes of the beginning of the rest; returns how much of it. */
static size_t spm_prefix(const struct pass *p, size_t at, const char **with, size_t *with_bytes)
{
    const struct normal_spm *spm = &p->step->spm;
    const char *rest = p->text + at;
    int32_t id;
    uint32_t code;
    size_t len = spm->user != NULL ? symbol_trie_match(spm->user, rest, p->bytes - at, &id) : 0;
    if (len == 0) {
        len = charsmap_match(&p->step->map, rest, p->bytes - at, true, with, with_bytes);
        if (len > 0) {
            return len;
        }
        len = utf8_decode(rest, p->bytes - at, &code);
    }
    *with = rest;
    *with_bytes = len;
    return len;
}

static enum err add_escaped(struct pass *p, const char *text, size_t bytes)
{
    if (!p->step->spm.escape || memchr(text, ' ', bytes) == NULL) {
        return add(p, text, bytes);
    }
    for (size_t i = 0; i < bytes; i++) {
        TRY(text[i] == ' ' ? add(p, SPACE_SYMBOL, 3) : add(p, text + i, 1));
    }
    return OK;
}

static void trim_end(struct pass *p)
{
    const char *space = p->step->spm.escape ? SPACE_SYMBOL : " ";
    size_t len = strlen(space);
    while (p->out->bytes >= len && memcmp(p->out->data + p->out->bytes - len, space, len) == 0) {
        p->out->bytes -= len;
        p->out->data[p->out->bytes] = 0;
    }
}

static enum err run_spm(struct pass *p)
{
    const struct normal_spm *spm = &p->step->spm;
    const char *with = "";
    size_t at = 0, len = 0, with_bytes = 0;
    while (spm->remove_extra && at < p->bytes) {
        len = spm_prefix(p, at, &with, &with_bytes);
        if (with_bytes != 1 || *with != ' ') {
            break;
        }
        at += len;
    }
    if (at == p->bytes) {
        return OK;
    }
    if (spm->dummy_prefix) {
        TRY(add_escaped(p, " ", 1));
    }
    bool after_space = spm->remove_extra;
    while (at < p->bytes) {
        at += spm_prefix(p, at, &with, &with_bytes);
        while (after_space && with_bytes > 0 && *with == ' ') {
            with++;
            with_bytes--;
        }
        if (with_bytes > 0) {
            TRY(add_escaped(p, with, with_bytes));
            after_space = spm->remove_extra && with[with_bytes - 1] == ' ';
        }
    }
    if (spm->remove_extra) {
        trim_end(p);
    }
    return OK;
}

static bool changes_nothing(const struct normal_step *s, const struct char_table *table, const char *text, size_t bytes)
{
    return s->kind == NORMAL_UNICODE && s->compose && !s->compat && !nfc_may_change(table, text, bytes);
}

enum err normal_apply(const struct normal *n, const struct char_table *table, struct normal_work *w, const char **text,
                      size_t *bytes)
{
    static enum err (*const run[])(struct pass *) = {
        [NORMAL_UNICODE] = run_unicode, [NORMAL_LOWERCASE] = run_lowercase,
        [NORMAL_STRIP] = run_strip, [NORMAL_STRIP_ACCENTS] = run_strip_accents,
        [NORMAL_PREPEND] = run_prepend, [NORMAL_REPLACE] = run_replace,
        [NORMAL_PRECOMPILED] = run_precompiled, [NORMAL_SPM] = run_spm,
    };
    size_t limit = *bytes > (SIZE_MAX - 4096) / NORMAL_GROWTH ? SIZE_MAX : *bytes * NORMAL_GROWTH + 4096;
    int into = 0;
    for (int i = 0; i < n->steps; i++) {
        if (changes_nothing(&n->step[i], table, *text, *bytes)) {
            continue;
        }
        struct buf *out = &w->text[into];
        buf_clear(out);
        TRY(buf_reserve(out, *bytes + *bytes / 2 + 16));
        struct pass pass = { &n->step[i], table, w, *text, *bytes, limit, out };
        TRY(run[n->step[i].kind](&pass));
        *text = out->data;
        *bytes = out->bytes;
        into = 1 - into;
    }
    return OK;
}
