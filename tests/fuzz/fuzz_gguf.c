/* A GGUF file: metadata, the list of tensors, and the numbers of each. */
#include "ckpt/gguf.h"
#include "fuzz.h"

FUZZ_FILES("a.gguf")

static void use(const struct gguf_file *f)
{
    static float out[GGUF_BLOCK_MAX];
    static unsigned char raw[8 * GGUF_BLOCK_MAX];
    for (size_t i = 0; i < f->values_count; i++) {
        uint64_t whole, at = 0;
        double real;
        bool flag;
        const char *text;
        size_t bytes;
        const struct gguf_value *v = &f->values[i];
        fuzz_need(gguf_find(f, v->key) == v, "each key is found");
        for (uint64_t k = 0; k < v->count && k < 16; k++) {
            fuzz_need(!gguf_whole(v, k, &whole) || !gguf_flag(v, &flag), "a number is no flag");
            fuzz_need(!gguf_real(v, k, &real) || v->kind != GGUF_STRING, "a text is no number");
            if (v->kind == GGUF_ARRAY && v->item == GGUF_STRING) {
                gguf_next_string(v, &at, &text, &bytes);
            }
        }
    }
    for (size_t i = 0; i < f->tensors_count; i++) {
        const struct gguf_tensor *t = &f->tensors[i];
        fuzz_need(gguf_find_tensor(f, t->name) == t, "each tensor is found");
        for (uint64_t at = 0; t->type->widen != NULL && at < t->elements; at += t->type->elements) {
            fuzz_need(gguf_floats(f, t, at, t->type->elements, raw, out) == OK, "what was checked is read");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_START();
    struct gguf_file f;
    if (gguf_open(&f, fuzz_file("a.gguf", data, size)) == OK) {
        use(&f);
        gguf_close(&f);
    }
    return 0;
}
