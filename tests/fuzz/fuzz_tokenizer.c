/* tokenizer.json, and what it makes of a few texts; behind a zero byte, which JSON never has, another text may
 * follow. */
#include "fuzz_text.h"

FUZZ_FILES("tokenizer.json")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_START();
    struct tokenizer *t = NULL;
    const uint8_t *zero = memchr(data, 0, size);
    size_t json = zero != NULL ? (size_t)(zero - data) : size;
    if (tokenizer_load(&t, fuzz_file("tokenizer.json", data, json)) == OK) {
        fuzz_use_tokenizer(t, zero != NULL ? (const char *)zero + 1 : "", zero != NULL ? size - json - 1 : 0);
    }
    tokenizer_free(t);
    return 0;
}
