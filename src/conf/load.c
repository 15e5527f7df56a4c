/* Why this exists: the one way to a configuration. Defaults, then the file, then the command line (which goes before
 * the file), then the model, then what follows from these, then the rules; every step adds its findings and goes on, so
 * that all are known at once. Nothing is written and nothing but the configuration's own memory is allocated here. */
#include "conf/conf_int.h"

#include "base/file.h"
#include "base/mem.h"

/* The message of a failed call as a finding at a file; the file's name, which starts it, is the place. */
static void add_message(struct findings *f, const struct conf_origin *at)
{
    const char *text = err_message(), *bar = strstr(text, " | ");
    size_t name = strlen(at->file);
    text += strncmp(text, at->file, name) == 0 && strncmp(text + name, ": ", 2) == 0 ? name + 2 : 0;
    if (bar != NULL && bar > text) {
        findings_add(f, FINDING_ERROR, at, "%.*s | %s", (int)(bar - text), text, bar + 3);
    } else {
        findings_add(f, FINDING_ERROR, at, "%s", text);
    }
}

static enum err read_model_file(struct conf *c, const char *path, struct findings *f)
{
    struct buf text = { 0 };
    struct tree t = { 0 };
    enum err err = OK;
    if (file_read(path, YAML_FILE_BYTES_MAX, &text) != OK) {
        struct conf_origin at = { path, 0, 0 };
        add_message(f, &at);
        err = ERR_USAGE;
        goto out;
    }
    TRY_OUT(tree_parse(&t, path, text.data != NULL ? text.data : "", text.bytes, f));
    TRY_OUT(model_conf_from_node(&c->model, t.root, t.name, f));
out:
    tree_release(&t);
    buf_release(&text);
    return err;
}

static enum err take_model_path(struct conf *c, const struct node *n, struct findings *f)
{
    char *file = NULL;
    enum err err = OK;
    if (file_is_folder(n->text)) {
        TRY_OUT(mem_copy_string(&c->model_path, n->text, n->bytes));
        TRY_OUT(file_join(&file, n->text, "config.json"));
    } else {
        TRY_OUT(mem_copy_string(&file, n->text, n->bytes));
    }
    if (n->bytes > 5 && strcmp(n->text + n->bytes - 5, ".gguf") == 0 && c->model_path == NULL) {
        findings_add(f, FINDING_ERROR, &n->at,
                     "model: a GGUF file, a model folder or a config.json was expected | convert it first: "
                     "invar ckpt convert %.300s FOLDER", n->text);
        err = ERR_USAGE;
        goto out;
    }
    if (!file_exists(file)) {
        findings_add(f, FINDING_ERROR, &n->at,
                     "model: there is no %s %.300s | write a model folder, a config.json, or the keys of a config.json",
                     c->model_path != NULL ? "file" : "folder or file", scalar_quote(file, strlen(file)).text);
        err = ERR_USAGE;
        goto out;
    }
    TRY_OUT(read_model_file(c, file, f));
out:
    free(file);
    return err;
}

enum err conf_take_model(struct conf *c, struct findings *f)
{
    struct conf_value *v = conf_value(c, "model");
    const struct node *n = c->values->model;
    if (n == NULL || scalar_is_null(n)) {
        return OK;
    }
    v->given = v->has = true;
    v->at = n->at;
    struct scalar_problem p = scalar_text(n);
    enum err err = OK;
    if (n->kind == NODE_MAP) {
        err = model_conf_from_node(&c->model, n, c->values->file.name, f);
    } else if (p.bad && n->at.file != NULL) {
        findings_add(f, FINDING_ERROR, &n->at, "model: expected a path or the keys of a config.json, got %s",
                     scalar_describe(n).text);
        err = ERR_USAGE;
    } else {
        err = take_model_path(c, n, f);
    }
    v->bad = err != OK;
    c->has_model = err == OK;
    return err == ERR_USAGE ? OK : err; /* the findings say it; go on to the rest */
}

static enum err take_file(struct conf *c, const char *path, struct findings *f)
{
    struct buf text = { 0 };
    struct conf_origin at = { path, 0, 0 };
    enum err err = file_read(path, YAML_FILE_BYTES_MAX, &text);
    if (err != OK) {
        add_message(f, &at);
        goto out;
    }
    struct tree *t = &c->values->file;
    TRY_OUT(tree_parse(t, path, text.data != NULL ? text.data : "", text.bytes, f));
    if (t->root == NULL) {
        findings_add(f, FINDING_ERROR, &at, "the file is empty, a mapping of keys to values was expected");
        err = ERR_USAGE;
        goto out;
    }
    TRY_OUT(conf_take_tree(c, t->root, f));
out:
    buf_release(&text);
    return err;
}

static enum err load(struct conf *c, const char *path, int argc, char **argv, struct findings *f)
{
    void *memory;
    TRY(mem_alloc(&memory, 1, sizeof(struct conf_values)));
    c->values = memory;
    TRY(conf_set_defaults(c));
    enum err err = path != NULL ? take_file(c, path, f) : OK;
    /* Without a readable file everything it holds would be reported as missing: stop at the arguments. */
    enum err err_arguments = conf_take_arguments(c, argc, argv, f);
    TRY(err);
    TRY(err_arguments);
    TRY(conf_take_model(c, f));
    TRY(conf_resolve(c));
    conf_ask_rules(c, f);
    return OK;
}

/* An error that findings tell needs no second message. */
static enum err verdict(enum err err, const struct findings *f)
{
    if (f->errors > 0 && (err == OK || err == ERR_USAGE || err == ERR_IO || err == ERR_DATA)) {
        err_set_message("");
        return ERR_USAGE;
    }
    return err;
}

enum err conf_load(struct conf *c, const char *path, int argc, char **argv, uint32_t world, struct findings *f)
{
    BUG_IF(world == 0);
    *c = (struct conf){ .world = world };
    return verdict(load(c, path, argc, argv, f), f);
}

void conf_release(struct conf *c)
{
    free(c->model_path);
    free(c->tokenizer);
    free(c->data_path);
    free(c->eval_data_path);
    free(c->output_dir);
    free(c->run_name);
    free(c->resume_from_checkpoint);
    if (c->values != NULL) {
        for (size_t i = 0; i < conf_key_count; i++) {
            free(c->values->list[i].spelled);
        }
        tree_release(&c->values->file);
        free(c->values);
    }
    *c = (struct conf){ 0 };
}

enum err conf_check(const struct conf *c, struct findings *f)
{
    conf_ask_rules(c, f);
    return verdict(OK, f);
}

enum err conf_derive(struct conf *c, const char *name, uint64_t value, const char *from)
{
    const struct conf_key *key = &conf_keys[conf_index(name)];
    struct conf_value *v = conf_value(c, name);
    BUG_IF(key->type != KEY_WHOLE && key->type != KEY_SIGNED);
    BUG_IF(value > INT64_MAX);
    if (key->type == KEY_WHOLE) {
        *(uint64_t *)(void *)((char *)c + key->offset) = value;
    } else {
        *(int64_t *)(void *)((char *)c + key->offset) = (int64_t)value;
    }
    v->has = true;
    v->given = false; /* `key: null` gave nothing */
    v->derived = from;
    return conf_resolve(c);
}

enum err conf_derive_text(struct conf *c, const char *name, const char *text, const char *from)
{
    const struct conf_key *key = &conf_keys[conf_index(name)];
    struct conf_value *v = conf_value(c, name);
    BUG_IF(key->type != KEY_TEXT && key->type != KEY_PATH);
    if (v->given) {
        return OK;
    }
    char **field = (char **)(void *)((char *)c + key->offset);
    free(*field);
    *field = NULL;
    TRY(mem_copy_string(field, text, strlen(text)));
    v->has = true;
    v->derived = from;
    return conf_resolve(c);
}

enum err conf_derive_model(struct conf *c, const struct model_conf *m, const char *from)
{
    struct conf_value *v = conf_value(c, "model");
    BUG_IF(c->has_model);
    c->model = *m;
    c->has_model = true;
    v->has = true;
    v->derived = from;
    return conf_resolve(c);
}
