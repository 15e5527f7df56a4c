/* A growing byte buffer, also used as a string: data is always zero-terminated. Every buffer has a maximum. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/err.h"

struct buf {
    char *data;   /* NULL when empty, else data[bytes] == 0 */
    size_t bytes; /* without the terminator */
    size_t capacity;
};

#define BUF_BYTES_MAX ((size_t)1 << 36)

void buf_release(struct buf *b);
/* Empty it, keeping the memory. */
void buf_clear(struct buf *b);
MUST_USE enum err buf_reserve(struct buf *b, size_t more);
MUST_USE enum err buf_add(struct buf *b, const void *bytes, size_t count);
MUST_USE enum err buf_add_string(struct buf *b, const char *text);
MUST_USE enum err buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The text as a JSON string, quoted and escaped (input must be UTF-8; other bytes become U+FFFD). */
MUST_USE enum err buf_add_json_string(struct buf *b, const char *text, size_t count);

#endif
