/* Why this exists: who repairs a model wants to know all that is wrong with it, but not ten thousand lines. */
#include "ckpt/kind.h"

#include <stdarg.h>
#include <stdio.h>

enum err kind_note(struct kind *k, const char *fmt, ...)
{
    char text[400];
    if (++k->count > KIND_LISTED_MAX) {
        return OK;
    }
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return buf_printf(&k->text, "%s%s", k->count > 1 ? ", " : "", text);
}

enum err kind_print(const struct kind *k, const char *what, struct buf *out)
{
    if (k->count == 0) {
        return OK;
    }
    TRY(buf_printf(out, "; %zu %s: %s", k->count, what, k->text.data));
    return k->count > KIND_LISTED_MAX ? buf_printf(out, " and %zu more", k->count - KIND_LISTED_MAX) : OK;
}

void kind_release(struct kind *k)
{
    buf_release(&k->text);
    k->count = 0;
}
