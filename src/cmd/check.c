/* invar check: can this be trained, and if not, what stands in the way? Reads, and changes nothing. */
#include "base/file.h"
#include "cmd/cmd.h"
#include "conf/conf.h"
#include "conf/tokens.h"

static const char usage[] =
    "usage: invar check PATH ... [options]\n"
    "\n"
    "Says of each PATH whether it can be trained, and if not, what stands in the way: all of it, with the place.\n"
    "PATH is the configuration of a run (.yaml or .yml), a model's config.json (any .json), or a model folder; in a\n"
    "folder, what its files say of special tokens and the vocabulary is compared. Exit code 2: something stands in\n"
    "the way.\n"
    "\n"
    "example: invar check models/smollm2 run.yaml\n";

static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

static void print_model(const char *path, const struct model_conf *m, const struct buf *special)
{
    printf("%s: %s, %llu layers, width %llu, %llu heads (%llu key/value) of %llu, MLP %llu, vocabulary %llu, %s, %llu "
           "parameters%s\n",
           path, model_family_name(m->family), (unsigned long long)m->layers, (unsigned long long)m->hidden,
           (unsigned long long)m->heads, (unsigned long long)m->kv_heads, (unsigned long long)m->head_dim,
           (unsigned long long)m->ffn, (unsigned long long)m->vocab, m->tied ? "tied" : "untied",
           (unsigned long long)model_conf_parameters(m), special->data != NULL ? special->data : "");
}

static enum err parse_file(struct model_conf *m, const char *path, struct findings *f)
{
    struct buf text = { 0 };
    enum err err = OK;
    TRY_OUT(file_read(path, (size_t)8 << 20, &text));
    err = model_conf_parse(m, path, text.data != NULL ? text.data : "", text.bytes, f);
out:
    buf_release(&text);
    return err;
}

static enum err check_model(const char *path, struct findings *f)
{
    struct model_conf m;
    struct buf special = { 0 }, table = { 0 };
    bool folder = file_is_folder(path);
    enum err err = folder ? model_conf_read(&m, path, f) : parse_file(&m, path, f);
    bool good = err == OK;
    if (err != OK && f->errors == 0) {
        goto out;
    }
    err = OK;
    if (folder) {
        TRY_OUT(tokens_check(path, f, &table));
    }
    if (good) {
        TRY_OUT(model_conf_special(&m, &special));
        print_model(path, &m, &special);
    }
    fputs(table.data != NULL ? table.data : "", stdout);
out:
    buf_release(&special);
    buf_release(&table);
    return err;
}

static enum err check_run(const char *path, uint32_t ranks, struct findings *f)
{
    struct conf c;
    struct buf special = { 0 };
    enum err err = conf_load(&c, path, 0, NULL, ranks, f);
    if (err == OK && c.has_model) {
        err = model_conf_special(&c.model, &special);
        print_model(path, &c.model, &special);
    } else if (err == ERR_USAGE && f->errors > 0) {
        err = OK;
    }
    buf_release(&special);
    conf_release(&c);
    return err;
}

static enum err check(const char *path, uint32_t ranks, bool *refused)
{
    struct findings f = { 0 };
    bool run = ends_with(path, ".yaml") || ends_with(path, ".yml");
    enum err err = run ? check_run(path, ranks, &f) : check_model(path, &f);
    fflush(stdout);
    findings_print(&f);
    *refused = *refused || f.errors > 0;
    if (err == OK) {
        printf("%s: %s\n", path, f.errors > 0 ? "cannot be trained" : "can be trained");
    }
    findings_release(&f);
    return err;
}

enum err cmd_check(int argc, char **argv)
{
    const char *ranks_text = "1";
    const struct cmd_flag flags[] = {
        { "--ranks", "N", "how many ranks a run is meant for (1)", &ranks_text, NULL },
    };
    int rest;
    bool helped = false, refused = false;
    uint64_t ranks;
    TRY(cmd_parse(argc, argv, usage, flags, sizeof(flags) / sizeof(flags[0]), &rest, &helped));
    if (helped) {
        return OK;
    }
    if (rest < 1) {
        return FAIL(ERR_USAGE, "check: a model folder, a config.json or a CONFIG.yaml was expected | see `invar check "
                               "--help`");
    }
    TRY(cmd_whole("--ranks", ranks_text, 1, 1u << 20, &ranks));
    for (int i = 1; i <= rest; i++) {
        TRY(check(argv[i], (uint32_t)ranks, &refused));
    }
    err_set_message("");
    return refused ? ERR_USAGE : OK;
}
