/* Ranks in the form of tiktoken, and what it makes of a few texts. */
#include "fuzz_text.h"

FUZZ_FILES("cl100k_base.tiktoken")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_START();
    struct tokenizer *t = NULL;
    fuzz_file("cl100k_base.tiktoken", data, size);
    if (tokenizer_load(&t, fuzz_folder()) == OK) {
        fuzz_use_tokenizer(t, "a\xe2\x96\x81 \xcc\x81", 7);
    }
    tokenizer_free(t);
    return 0;
}
