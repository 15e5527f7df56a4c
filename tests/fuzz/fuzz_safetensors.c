/* A safetensors file: header, then every byte of every tensor. */
#include "ckpt/safetensors.h"
#include "fuzz.h"

FUZZ_FILES("a.safetensors")

/* The header alone, in memory of exactly its size: a growing buffer has room behind it, where no sanitizer looks. */
static void parse_exact(const uint8_t *data, size_t size)
{
    uint64_t length;
    if (size < 8) {
        return;
    }
    memcpy(&length, data, 8);
    if (length > size - 8) {
        return;
    }
    struct st_file f = { .fd = -1, .bytes = size, .data_start = 8 + length };
    f.header = (struct buf){ malloc(length + 1), length, length + 1 };
    fuzz_need(f.header.data != NULL, "memory");
    memcpy(f.header.data, data + 8, length);
    f.header.data[length] = '\0';
    (void)!st_parse(&f); /* refused or not */
    st_close(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_START();
    struct st_file f;
    parse_exact(data, size);
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
