/* Why this exists: a tokenizer.json may cut text by several pre-tokenizers in a row; this file runs such a chain
 * without building lists: a step hands each piece to the next step as it finds it.
 *
 * A step sees its piece as spans that match or do not; a behaviour (Hugging Face's names) turns spans into pieces.
 * Behind the byte-level step the text is spelt in the byte alphabet, and the last step spells it back.
 *
 * Invariants: recursion is as deep as there are steps; the buffer of a step is in use only while its piece is. */
#include "base/utf8.h"
#include "data/bpe.h"
#include "data/pretoken.h"

struct run {
    const struct pretoken *pre;
    struct pretoken_work *work;
    pretoken_sink *sink;
    void *arg;
    const char *start; /* where the whole text begins, NULL when this is not its beginning */
};

static enum err run_step(const struct run *r, int step, bool spelt, const char *text, size_t bytes);

void pretoken_release(struct pretoken *p)
{
    for (int i = 0; i < p->steps; i++) {
        regex_free(p->step[i].regex);
        buf_release(&p->step[i].string);
    }
    char_table_release(&p->table);
    *p = (struct pretoken){ 0 };
}

void pretoken_work_release(struct pretoken_work *w)
{
    for (int i = 0; i < PRETOKEN_STEPS; i++) {
        regex_work_release(&w->regex[i]);
        buf_release(&w->text[i]);
    }
    buf_release(&w->word);
}

void pretoken_finish(struct pretoken *p)
{
    if (p->steps == 0) {
        return;
    }
    const struct pretoken_step *first = &p->step[0], *last = &p->step[p->steps - 1];
    bool plain = last->kind == STEP_BYTELEVEL && !last->prefix_space;
    p->simple = false;
    if (plain && p->steps == 1) {
        p->simple = true;
        p->scanner = last->scanner;
    } else if (plain && p->steps == 2 && first->kind == STEP_SCAN && last->scanner == SCANNER_NONE) {
        /* Every character belongs to a match of these patterns, so keeping the matches keeps the text. */
        p->simple = first->behavior == STEP_ISOLATED || (first->behavior == STEP_REMOVED && first->invert);
        p->scanner = first->scanner;
    }
}

/* ---- spans to pieces ---- */

struct spans {
    const struct run *run;
    int step;
    bool spelt;
    const char *text;
    enum step_behavior behavior;
    bool invert;
    bool held;         /* a piece that the next span may still extend */
    bool held_match;   /* the span before this one matched */
    size_t start, end; /* of the held piece */
};

static enum err hand_on(struct spans *s, size_t start, size_t end)
{
    return start == end ? OK : run_step(s->run, s->step + 1, s->spelt, s->text + start, end - start);
}

static enum err flush(struct spans *s)
{
    bool held = s->held;
    s->held = false;
    return held ? hand_on(s, s->start, s->end) : OK;
}

static enum err add_span(struct spans *s, size_t start, size_t end, bool match)
{
    bool join = false;
    match = match != s->invert;
    switch (s->behavior) {
    case STEP_ISOLATED:
        return hand_on(s, start, end);
    case STEP_REMOVED:
        return match ? OK : hand_on(s, start, end);
    case STEP_CONTIGUOUS:
        join = s->held && match == s->held_match;
        break;
    case STEP_MERGED_PREVIOUS:
        join = s->held && match && !s->held_match;
        break;
    case STEP_MERGED_NEXT:
        join = s->held && s->held_match && !match;
        break;
    }
    s->held_match = match;
    if (join) {
        s->end = end;
        if (s->behavior == STEP_MERGED_NEXT) {
            return flush(s);
        }
        return OK;
    }
    TRY(flush(s));
    s->start = start;
    s->end = end;
    s->held = true;
    return OK;
}

/* ---- the steps ---- */

static enum err spans_scan(struct spans *s, const struct pretoken_step *step, size_t bytes)
{
    pretoken_next_fn *next = pretoken_scan(step->scanner);
    const char *end = s->text + bytes;
    for (const char *p = s->text; p < end;) {
        const char *q = next(&s->run->pre->table, p, end);
        TRY(add_span(s, (size_t)(p - s->text), (size_t)(q - s->text), true));
        p = q;
    }
    return OK;
}

/* As the iterator of Hugging Face's engine: an empty match right behind a match does not count. */
static enum err spans_regex(struct spans *s, const struct pretoken_step *step, size_t bytes)
{
    struct regex_work *work = &s->run->work->regex[s->step];
    size_t from = 0, done = 0;
    bool any = false;
    while (from <= bytes) {
        size_t start, end;
        bool found;
        TRY(regex_next(step->regex, work, s->text, bytes, from, &found, &start, &end));
        if (!found) {
            break;
        }
        if (start == end && any && end == done) {
            uint32_t code;
            size_t len = from < bytes ? utf8_decode(s->text + from, bytes - from, &code) : 1;
            from += len;
            continue;
        }
        if (done != start) {
            TRY(add_span(s, done, start, false));
        }
        TRY(add_span(s, start, end, true));
        from = done = end;
        any = true;
    }
    return done < bytes ? add_span(s, done, bytes, false) : OK;
}

static enum err spans_string(struct spans *s, const struct pretoken_step *step, size_t bytes)
{
    size_t done = 0;
    while (step->string.bytes > 0 && done < bytes) {
        const char *at = memmem(s->text + done, bytes - done, step->string.data, step->string.bytes);
        if (at == NULL) {
            break;
        }
        size_t start = (size_t)(at - s->text);
        if (start > done) {
            TRY(add_span(s, done, start, false));
        }
        done = start + step->string.bytes;
        TRY(add_span(s, start, done, true));
    }
    return done < bytes ? add_span(s, done, bytes, false) : OK;
}

/* Each character of the class matches by itself. */
static enum err spans_chars(struct spans *s, enum step_kind kind, size_t bytes)
{
    const struct char_table *table = &s->run->pre->table;
    size_t done = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t code = 0;
        size_t len = utf8_decode(s->text + i, bytes - i, &code);
        uint8_t class = char_class(table, code);
        if (kind == STEP_DIGITS ? (class & CHAR_CLASS) == CHAR_NUMBER : (class & CHAR_PUNCTUATION) != 0) {
            if (i > done) {
                TRY(add_span(s, done, i, false));
            }
            TRY(add_span(s, i, i + len, true));
            done = i + len;
        }
        i += len;
    }
    return done < bytes ? add_span(s, done, bytes, false) : OK;
}

/* Runs of the same kind: white space, word characters, others. Those of white space go, words stay apart. */
static enum err spans_whitespace(struct spans *s, bool words, size_t bytes)
{
    const struct char_table *table = &s->run->pre->table;
    size_t start = 0;
    int last = -1;
    for (size_t i = 0; i < bytes;) {
        uint32_t code = 0;
        size_t len = utf8_decode(s->text + i, bytes - i, &code);
        uint8_t class = char_class(table, code);
        int kind = (class & CHAR_CLASS) == CHAR_SPACE ? 0 : !words ? 1 : (class & CHAR_WORD) != 0 ? 2 : 3;
        if (kind != last) {
            if (last > 0) {
                TRY(hand_on(s, start, i));
            }
            start = i;
            last = kind;
        }
        i += len;
    }
    return last > 0 ? hand_on(s, start, bytes) : OK;
}

static enum err run_metaspace(const struct run *r, int step, const char *text, size_t bytes)
{
    const struct pretoken_step *s = &r->pre->step[step];
    const struct buf *mark = &s->string;
    struct buf *out = &r->work->text[step];
    bool marked = *text == ' ' || (bytes >= mark->bytes && memcmp(text, mark->data, mark->bytes) == 0);
    bool start = r->start == text;
    struct run inner = *r;
    buf_clear(out);
    TRY(buf_reserve(out, bytes + bytes / 2 + mark->bytes));
    if (!marked && (s->prepend == PREPEND_ALWAYS || (s->prepend == PREPEND_FIRST && start))) {
        TRY(buf_add(out, mark->data, mark->bytes));
    }
    for (size_t i = 0; i < bytes;) {
        const char *space = memchr(text + i, ' ', bytes - i);
        size_t len = space != NULL ? (size_t)(space - text) - i : bytes - i;
        TRY(buf_add(out, text + i, len));
        if (space != NULL) {
            TRY(buf_add(out, mark->data, mark->bytes));
        }
        i += len + (space != NULL);
    }
    inner.start = start ? out->data : NULL;
    if (!s->split) {
        return run_step(&inner, step + 1, false, out->data, out->bytes);
    }
    struct spans spans = { .run = &inner, .step = step, .text = out->data, .behavior = STEP_MERGED_NEXT };
    TRY(spans_string(&spans, s, out->bytes));
    return flush(&spans);
}

static enum err run_bytelevel(const struct run *r, int step, const char *text, size_t bytes)
{
    const struct pretoken_step *s = &r->pre->step[step];
    struct buf *spelt = &r->work->text[step];
    struct buf prefixed = { 0 };
    enum err err = OK;
    if (s->prefix_space && text[0] != ' ') {
        TRY_OUT(buf_add(&prefixed, " ", 1));
        TRY_OUT(buf_add(&prefixed, text, bytes));
        text = prefixed.data;
        bytes = prefixed.bytes;
    }
    pretoken_next_fn *next = pretoken_scan(s->scanner);
    for (const char *p = text; p < text + bytes;) {
        const char *q = next(&r->pre->table, p, text + bytes);
        if (step + 1 == r->pre->steps) {
            TRY_OUT(r->sink(r->arg, p, (size_t)(q - p)));
        } else {
            buf_clear(spelt);
            TRY_OUT(bytelevel_encode(p, (size_t)(q - p), spelt));
            TRY_OUT(run_step(r, step + 1, true, spelt->data, spelt->bytes));
        }
        p = q;
    }
out:
    buf_release(&prefixed);
    return err;
}

static enum err run_step(const struct run *r, int step, bool spelt, const char *text, size_t bytes)
{
    if (step == r->pre->steps && !spelt) {
        return r->sink(r->arg, text, bytes);
    }
    if (step == r->pre->steps) {
        bool whole;
        buf_clear(&r->work->word);
        TRY(bytelevel_decode(text, bytes, &r->work->word, &whole));
        BUG_IF(!whole);
        return r->sink(r->arg, r->work->word.data, r->work->word.bytes);
    }
    const struct pretoken_step *s = &r->pre->step[step];
    struct spans spans = { .run = r, .step = step, .spelt = spelt, .text = text, .behavior = s->behavior,
                           .invert = s->invert };
    switch (s->kind) {
    case STEP_BYTELEVEL:
        return run_bytelevel(r, step, text, bytes);
    case STEP_METASPACE:
        return run_metaspace(r, step, text, bytes);
    case STEP_WHITESPACE:
    case STEP_WHITESPACE_SPLIT:
        return spans_whitespace(&spans, s->kind == STEP_WHITESPACE, bytes);
    case STEP_SCAN:
        TRY(spans_scan(&spans, s, bytes));
        break;
    case STEP_REGEX:
        TRY(spans_regex(&spans, s, bytes));
        break;
    case STEP_STRING:
        TRY(spans_string(&spans, s, bytes));
        break;
    case STEP_DIGITS:
    case STEP_PUNCTUATION:
        TRY(spans_chars(&spans, s->kind, bytes));
        break;
    }
    return flush(&spans);
}

enum err pretoken_split(const struct pretoken *p, struct pretoken_work *w, const char *text, size_t bytes,
                        bool text_start, pretoken_sink *sink, void *arg)
{
    struct run r = { .pre = p, .work = w, .sink = sink, .arg = arg, .start = text_start ? text : NULL };
    for (int i = 0; i < p->steps; i++) {
        if (p->step[i].kind == STEP_REGEX) {
            regex_work_begin(&w->regex[i], bytes);
        }
    }
    return bytes > 0 ? run_step(&r, 0, false, text, bytes) : OK;
}
