/* A safetensors file: header, then every byte of every tensor. */
#include "ckpt/safetensors.h"
#include "fuzz.h"

FUZZ_FILES("a.safetensors")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_START();
    struct st_file f;
    if (st_open(&f, fuzz_file("a.safetensors", data, size), false) != OK) {
        return 0;
    }
    fuzz_need(st_scan(&f) == OK, "a file whose header is right is read");
    for (size_t i = 0; i < f.count; i++) {
        fuzz_need(st_find(&f, f.tensors[i].name) == &f.tensors[i], "each name is found");
    }
    st_close(&f);
    return 0;
}
