/* UTF-8, strict (no overlong forms, surrogates or values above U+10FFFF). */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decode one code point of text[0..bytes). Returns its length 1..4, or 0 when the bytes are not UTF-8. */
size_t utf8_decode(const char *text, size_t bytes, uint32_t *code);
/* Encode one code point; returns 1..4. `out` holds 4 bytes. */
size_t utf8_encode(uint32_t code, char *out);
/* Offset of the first byte that is not UTF-8, or `bytes` when all is well. */
size_t utf8_valid_prefix(const char *text, size_t bytes);

#endif
