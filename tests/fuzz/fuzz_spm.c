/* tokenizer.model, SentencePiece's protobuf, and what it makes of a few texts. */
#include "fuzz_text.h"

FUZZ_FILES("tokenizer.model")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_START();
    struct tokenizer *t = NULL;
    fuzz_file("tokenizer.model", data, size);
    if (tokenizer_load(&t, fuzz_folder()) == OK) {
        fuzz_use_tokenizer(t, "a\xe2\x96\x81 \xcc\x81", 7);
    }
    tokenizer_free(t);
    return 0;
}
