/* manifest.json, with the hash of its own bytes put behind: else no input would come further than that. */
#include "base/hash.h"
#include "ckpt/manifest.h"
#include "fuzz.h"

FUZZ_FILES(MANIFEST_NAME)

static void read_it(const void *bytes, size_t count)
{
    struct manifest m;
    fuzz_file(MANIFEST_NAME, bytes, count);
    if (manifest_read(&m, fuzz_folder()) == OK) {
        struct manifest_sums sums;
        fuzz_need(manifest_find(&m, MODEL_NAME) != NULL, "a manifest that is right lists the model");
        enum err err = manifest_verify(&m, fuzz_folder(), &sums);
        fuzz_need(err != OK, "files that are not there are missed");
    }
    manifest_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_START();
    struct buf text = { 0 };
    char hash[33];
    read_it(data, size);
    fuzz_need(buf_add(&text, data, size) == OK, "memory");
    hash128_hex(text.data != NULL ? text.data : "", text.bytes, hash);
    fuzz_need(buf_printf(&text, "  \"hash\": \"%s\"\n}\n", hash) == OK, "memory");
    read_it(text.data, text.bytes);
    buf_release(&text);
    return 0;
}
