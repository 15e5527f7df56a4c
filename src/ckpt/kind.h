/* Kinds of disagreement, collected for one error: of each the first few are written out, the others counted. */
#ifndef CKPT_KIND_H
#define CKPT_KIND_H

#include "base/buf.h"

#define KIND_LISTED_MAX 6u

struct kind {
    struct buf text;
    size_t count;
};

/* One more of it. */
MUST_USE enum err kind_note(struct kind *k, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* "; 2 missing: a, b", nothing when there is none. */
MUST_USE enum err kind_print(const struct kind *k, const char *what, struct buf *out);
void kind_release(struct kind *k);

#endif
