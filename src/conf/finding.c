/* Why this exists: a user who must fix five things should hear of five things. Findings are formatted when they are
 * added (what they point at may be freed later), kept with their place, and printed in the order of the file.
 * Invariants: `errors` counts every error, also one that could not be kept (out of memory, or above the limit), so a
 * configuration with an error never passes. */
#include "conf/finding.h"

#include <stdarg.h>

#include "base/mem.h"

/* Beyond this many nobody reads on; a broken file of megabytes must not fill memory. */
#define FINDINGS_KEPT_MAX 200u

static enum err place_text(struct buf *out, const struct conf_origin *at)
{
    if (at->file == NULL) {
        return buf_add_string(out, at->line > 0 ? "command line: " : "configuration: ");
    }
    if (at->line <= 0) {
        return buf_printf(out, "%s: ", at->file);
    }
    return buf_printf(out, "%s:%d:%d: ", at->file, at->line, at->col);
}

/* The hint is split off in the format, not in the text: a " | " inside a user's value is no hint. */
static enum err split_format(struct buf *out, const char *fmt)
{
    const char *bar = strstr(fmt, " | ");
    if (bar == NULL) {
        return buf_add_string(out, fmt);
    }
    TRY(buf_add(out, fmt, (size_t)(bar - fmt)));
    TRY(buf_add_string(out, "\nhint: "));
    return buf_add_string(out, bar + 3);
}

static enum err compose(struct buf *out, enum finding_level level, const struct conf_origin *at, const char *fmt,
                        va_list args)
{
    struct buf split = { 0 };
    enum err err = OK;
    TRY_OUT(split_format(&split, fmt));
    TRY_OUT(place_text(out, at));
    TRY_OUT(buf_add_string(out, level == FINDING_ERROR ? "error: " : "warning: "));
    va_list again;
    va_copy(again, args);
    int need = vsnprintf(NULL, 0, split.data, again);
    va_end(again);
    BUG_IF(need < 0);
    TRY_OUT(buf_reserve(out, (size_t)need));
    vsnprintf(out->data + out->bytes, (size_t)need + 1, split.data, args);
    out->bytes += (size_t)need;
out:
    buf_release(&split);
    return err;
}

static enum err keep(struct findings *f, enum finding_level level, const struct conf_origin *at, struct buf *text)
{
    void *list = f->list;
    TRY(mem_grow(&list, &f->capacity, f->count + 1, sizeof(*f->list)));
    f->list = list;
    struct finding *added = &f->list[f->count];
    *added = (struct finding){ .level = level, .text = text->data, .line = at->line, .col = at->col };
    if (at->file != NULL) {
        TRY(mem_copy_string(&added->file, at->file, strlen(at->file)));
    }
    *text = (struct buf){ 0 };
    f->count++;
    return OK;
}

void findings_add(struct findings *f, enum finding_level level, const struct conf_origin *at, const char *fmt, ...)
{
    static const struct conf_origin nowhere = { 0 };
    f->errors += level == FINDING_ERROR;
    if (f->count >= FINDINGS_KEPT_MAX) {
        f->not_kept++;
        return;
    }
    at = at != NULL ? at : &nowhere;
    struct buf text = { 0 };
    va_list args;
    va_start(args, fmt);
    enum err err = compose(&text, level, at, fmt, args);
    va_end(args);
    if (err != OK || keep(f, level, at, &text) != OK) {
        f->not_kept++;
    }
    buf_release(&text);
}

/* Files first, in the order of their names; then the command line; then what has no place. */
static int compare(const struct finding *a, const struct finding *b)
{
    if ((a->file == NULL) != (b->file == NULL)) {
        return a->file == NULL ? 1 : -1;
    }
    if (a->file == NULL && (a->line == 0) != (b->line == 0)) {
        return a->line == 0 ? 1 : -1;
    }
    int by_file = a->file != NULL ? strcmp(a->file, b->file) : 0;
    if (by_file != 0) {
        return by_file;
    }
    return a->line != b->line ? a->line - b->line : a->col - b->col;
}

/* Stable insertion sort of at most FINDINGS_KEPT_MAX numbers. */
static void sorted_order(const struct findings *f, size_t *order)
{
    for (size_t i = 0; i < f->count; i++) {
        size_t j = i;
        while (j > 0 && compare(&f->list[order[j - 1]], &f->list[i]) > 0) {
            order[j] = order[j - 1];
            j--;
        }
        order[j] = i;
    }
}

void findings_print(const struct findings *f)
{
    size_t order[FINDINGS_KEPT_MAX];
    sorted_order(f, order);
    for (size_t i = 0; i < f->count; i++) {
        fprintf(stderr, "%s\n", f->list[order[i]].text);
    }
    if (f->not_kept > 0) {
        fprintf(stderr, "... and %zu more\n", f->not_kept);
    }
    if (f->errors > 0) {
        fprintf(stderr, "%zu error%s\n", f->errors, f->errors == 1 ? "" : "s");
    }
}

/* "FILE:1:2: error: what\nhint: how" as "FILE:1:2: what | how". */
void findings_to_message(const struct findings *f)
{
    size_t order[FINDINGS_KEPT_MAX];
    sorted_order(f, order);
    for (size_t i = 0; i < f->count; i++) {
        const struct finding *first = &f->list[order[i]];
        if (first->level != FINDING_ERROR) {
            continue;
        }
        char message[ERR_MESSAGE_BYTES];
        const char *error = strstr(first->text, "error: "), *hint = strstr(first->text, "\nhint: ");
        const char *end = hint != NULL ? hint : first->text + strlen(first->text);
        snprintf(message, sizeof(message), "%.*s%.*s%s%s", (int)(error - first->text), first->text,
                 (int)(end - error) - 7, error + 7, hint != NULL ? " | " : "", hint != NULL ? hint + 7 : "");
        err_set_message(message);
        return;
    }
}

void findings_release(struct findings *f)
{
    for (size_t i = 0; i < f->count; i++) {
        free(f->list[i].text);
        free(f->list[i].file);
    }
    free(f->list);
    *f = (struct findings){ 0 };
}
