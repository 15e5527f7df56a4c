/* A regular expression of a pre-tokenizer, a zero byte, and a text: matching ends, and in order. */
#include "base/utf8.h"
#include "data/pretoken.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = memchr(data, 0, size);
    size_t pattern = zero != NULL ? (size_t)(zero - data) : size, bytes = zero != NULL ? size - pattern - 1 : 0;
    const char *text = zero != NULL ? (const char *)zero + 1 : "";
    struct regex *r = NULL;
    struct regex_work w = { 0 };
    if (utf8_valid_prefix(text, bytes) != bytes || utf8_valid_prefix((const char *)data, pattern) != pattern ||
        regex_new(&r, "fuzz", (const char *)data, pattern) != OK) {
        regex_free(r);
        return 0;
    }
    regex_work_begin(&w, bytes);
    bool found = true;
    for (size_t at = 0; found && at <= bytes;) {
        size_t start, end;
        if (regex_next(r, &w, text, bytes, at, &found, &start, &end) != OK || !found) {
            break;
        }
        fuzz_need(start >= at && end >= start && end <= bytes, "a match lies in the text");
        at = end > at ? end : at + 1;
        while (at < bytes && ((unsigned char)text[at] & 0xc0) == 0x80) {
            at++;
        }
    }
    regex_work_release(&w);
    regex_free(r);
    return 0;
}
