/* PREFIX.idx, a token store's index; the .bin has as many bytes as the index would ask for, up to 64 KiB. The first two
 * bytes are that number. */
#include "data/store.h"
#include "fuzz.h"

FUZZ_FILES("a.idx", "a.bin")

static void use(struct store *s)
{
    uint64_t sequences = store_sequences(s);
    int32_t out[16];
    struct store_lengths lengths;
    struct store_info info;
    for (uint64_t i = 0; i < sequences && i < 64; i++) {
        uint64_t first, end;
        fuzz_need(store_sequence(s, i, &first, &end) == OK && first <= end, "a sequence that was checked is there");
        for (uint64_t at = first; at < end; at += 16) {
            enum err err = store_read(s, at, end - at < 16 ? end - at : 16, 100, out);
            if (err != OK) {
                break;
            }
        }
    }
    fuzz_need(store_lengths(s, &lengths) == OK && store_info(s, &info) == OK, "an open store is described");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t tokens[65536];
    FUZZ_START();
    if (size < 2) {
        return 0;
    }
    char prefix[160];
    struct store *s = NULL;
    fuzz_file("a.bin", tokens, (size_t)(data[0] | data[1] << 8));
    fuzz_file("a.idx", data + 2, size - 2);
    snprintf(prefix, sizeof(prefix), "%s/a", fuzz_folder());
    if (store_open(&s, prefix) == OK) {
        use(s);
    }
    store_close(s);
    return 0;
}
