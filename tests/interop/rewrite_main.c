/* The config.json that Invar writes for the one it reads: rewrite_config CONFIG.json >NEW.json. For config_test.py. */
#include <stdio.h>

#include "base/file.h"
#include "conf/model_conf.h"

int main(int argc, char **argv)
{
    struct buf text = { 0 }, out = { 0 };
    struct model_conf m;
    struct findings f = { 0 };
    enum err err = argc == 2 ? file_read(argv[1], (size_t)1 << 23, &text) : FAIL(ERR_USAGE, "one file was expected");
    err = err == OK ? model_conf_parse(&m, argv[1], text.data, text.bytes, &f) : err;
    err = err == OK ? model_conf_write(&m, &out) : err;
    findings_print(&f);
    if (err != OK) {
        err_print();
    } else {
        fputs(out.data, stdout);
    }
    buf_release(&text);
    buf_release(&out);
    findings_release(&f);
    return err_exit_code(err);
}
