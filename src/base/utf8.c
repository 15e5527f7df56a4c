/* Why this exists: one strict decoder for readers, tokenizers and messages. */
#include "base/utf8.h"

#include <string.h>

size_t utf8_decode(const char *text, size_t bytes, uint32_t *code)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    if (bytes == 0) {
        return 0;
    }
    unsigned char first = (unsigned char)text[0];
    if (first < 0x80) {
        *code = first;
        return 1;
    }
    size_t len = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || len > bytes) {
        return 0;
    }
    uint32_t value = first & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        unsigned char next = (unsigned char)text[i];
        if ((next & 0xc0) != 0x80) {
            return 0;
        }
        value = value << 6 | (next & 0x3fu);
    }
    if (value < least[len] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) {
        return 0;
    }
    *code = value;
    return len;
}

size_t utf8_encode(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t len = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    static const unsigned char lead[5] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    out[0] = (char)(lead[len] | code);
    return len;
}

size_t utf8_valid_prefix(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes) {
        uint64_t eight;
        if (bytes - i >= sizeof(eight)) { /* most text is ASCII: eight bytes at a time */
            memcpy(&eight, text + i, sizeof(eight));
            if ((eight & 0x8080808080808080ull) == 0) {
                i += sizeof(eight);
                continue;
            }
        }
        if ((unsigned char)text[i] < 0x80) {
            i++;
            continue;
        }
        uint32_t code;
        size_t used = utf8_decode(text + i, bytes - i, &code);
        if (used == 0) {
            return i;
        }
        i += used;
    }
    return bytes;
}
