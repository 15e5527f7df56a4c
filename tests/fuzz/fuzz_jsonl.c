/* Text sources. The first byte says of which kind the rest is: .jsonl, .txt, or one of them in gzip or zstd. */
#include "data/reader.h"
#include "fuzz.h"

static const char *const kinds[] = { "a.jsonl", "a.txt", "a.jsonl.gz", "a.txt.gz", "a.jsonl.zst", "a.txt.zst" };
FUZZ_FILES("a.jsonl", "a.txt", "a.jsonl.gz", "a.txt.gz", "a.jsonl.zst", "a.txt.zst")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_START();
    if (size == 0) {
        return 0;
    }
    const char *input = fuzz_file(kinds[data[0] % 6], data + 1, size - 1);
    const struct reader_options o = { .inputs = &input, .inputs_count = 1 };
    struct reader *r = NULL;
    struct reader_batch b = { 0 };
    enum err err = reader_open(&r, &o);
    while (err == OK) {
        err = reader_fill(r, &b, 4096);
        if (err != OK || b.count == 0) {
            break;
        }
        for (size_t i = 0; i < b.count; i++) {
            struct reader_text text;
            enum reader_fault fault;
            if (reader_text(r, &b, i, &text, &fault) == OK) {
                reader_text_release(&text);
            }
        }
    }
    reader_batch_release(&b);
    reader_close(r);
    return 0;
}
