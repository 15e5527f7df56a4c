/* The configuration of a run. */
#include "base/buf.h"
#include "conf/conf.h"
#include "fuzz.h"

FUZZ_FILES("run.yaml")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_START();
    struct conf c;
    struct findings f = { 0 };
    struct buf text = { 0 };
    if (conf_load(&c, fuzz_file("run.yaml", data, size), 0, NULL, 1, &f) == OK) {
        fuzz_need(conf_save(&c, &text) == OK, "what was read is written");
        fuzz_need(conf_print(&c, &text) == OK, "what was read is printed");
    }
    conf_release(&c);
    findings_release(&f);
    buf_release(&text);
    return 0;
}
