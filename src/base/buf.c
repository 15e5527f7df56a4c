/* Why this exists: the one growing buffer, so that no bound is computed by hand. */
#include "base/buf.h"

#include <stdarg.h>

#include "base/mem.h"
#include "base/utf8.h"

void buf_release(struct buf *b)
{
    free(b->data);
    *b = (struct buf){ 0 };
}

void buf_clear(struct buf *b)
{
    b->bytes = 0;
    if (b->data != NULL) {
        b->data[0] = '\0';
    }
}

enum err buf_reserve(struct buf *b, size_t more)
{
    size_t need;
    if (__builtin_add_overflow(b->bytes, more, &need) || need >= BUF_BYTES_MAX) {
        return FAIL(ERR_RESOURCE, "a text of over %zu bytes does not fit a buffer", BUF_BYTES_MAX);
    }
    void *data = b->data;
    TRY(mem_grow(&data, &b->capacity, need + 1, 1));
    b->data = data;
    b->data[b->bytes] = '\0';
    return OK;
}

enum err buf_add(struct buf *b, const void *bytes, size_t count)
{
    TRY(buf_reserve(b, count));
    if (count > 0) {
        memcpy(b->data + b->bytes, bytes, count);
    }
    b->bytes += count;
    b->data[b->bytes] = '\0';
    return OK;
}

enum err buf_add_string(struct buf *b, const char *text)
{
    return buf_add(b, text, strlen(text));
}

enum err buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int need = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    BUG_IF(need < 0);
    enum err err = buf_reserve(b, (size_t)need);
    if (err == OK) {
        vsnprintf(b->data + b->bytes, (size_t)need + 1, fmt, again);
        b->bytes += (size_t)need;
    }
    va_end(again);
    return err;
}

enum err buf_add_json_string(struct buf *b, const char *text, size_t count)
{
    TRY(buf_add(b, "\"", 1));
    for (size_t i = 0; i < count;) {
        uint32_t code;
        size_t used = utf8_decode(text + i, count - i, &code);
        if (used == 0) {
            TRY(buf_add_string(b, "\\ufffd"));
            i++;
            continue;
        }
        if (code == '"' || code == '\\') {
            TRY(buf_printf(b, "\\%c", (int)code));
        } else if (code < 0x20 || code == 0x7f) {
            TRY(buf_printf(b, "\\u%04x", code));
        } else {
            TRY(buf_add(b, text + i, used));
        }
        i += used;
    }
    return buf_add(b, "\"", 1);
}
