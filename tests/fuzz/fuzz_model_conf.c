/* config.json of a model (YAML too, as the inline block is). What is accepted is written and read back. */
#include "base/buf.h"
#include "conf/model_conf.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_conf m, again;
    struct findings f = { 0 };
    struct buf text = { 0 };
    char *copy = malloc(size + 1); /* an exact end, so that reading behind it is seen */
    fuzz_need(copy != NULL, "memory");
    memcpy(copy, data, size);
    copy[size] = '\0';
    if (model_conf_parse(&m, "config.json", copy, size, &f) == OK) {
        fuzz_need(model_conf_write(&m, &text) == OK, "what was read is written");
        fuzz_need(model_conf_parse(&again, "written", text.data, text.bytes, &f) == OK, "what was written is read");
    }
    findings_release(&f);
    buf_release(&text);
    free(copy);
    return 0;
}
