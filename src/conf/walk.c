/* Why this exists: a file nests (optimizer: params: lr) and a command line does not (--optimizer.params.lr), but both
 * name keys of the same table. A path is the keys joined by dots; every path that is no known name is an error with the
 * nearest known one, at whatever depth, so nothing is ignored. Names are compared with "_" for "-" and without leading
 * dashes: --train-iters, train-iters and train_iters are one. */
#include "conf/conf_int.h"

#include "conf/nearest.h"

#define PATH_BYTES 256u
#define MODEL "model"

struct place {
    char path[PATH_BYTES]; /* known form: underscores */
    size_t bytes;
};

/* Append one key in its known form. A path too long for any known name is cut: it is unknown either way. */
static struct place below(const struct place *parent, const char *key)
{
    struct place p = *parent;
    size_t start = p.bytes;
    key += strspn(key, "-") <= 2 ? strspn(key, "-") : 0;
    int n = snprintf(p.path + start, sizeof(p.path) - start, "%s%s", start > 0 ? "." : "", key);
    size_t room = sizeof(p.path) - 1 - start;
    p.bytes = start + ((size_t)n < room ? (size_t)n : room);
    for (size_t i = start; i < p.bytes; i++) {
        unsigned char ch = (unsigned char)p.path[i];
        p.path[i] = ch == '-' ? '_' : ch < 0x20 || ch == 0x7f ? '?' : p.path[i]; /* fit to be printed */
    }
    return p;
}

/* ---- names ---- */

static const struct conf_key *find_key(const char *path)
{
    for (size_t i = 0; i < conf_key_count; i++) {
        if (strcmp(conf_keys[i].name, path) == 0 || conf_names_hold(conf_keys[i].aliases, path)) {
            return &conf_keys[i];
        }
    }
    return NULL;
}

static const struct conf_foreign *find_foreign(const char *path)
{
    for (size_t i = 0; i < conf_foreign_count; i++) {
        if (conf_names_hold(conf_foreign[i].names, path)) {
            return &conf_foreign[i];
        }
    }
    return NULL;
}

static const struct conf_translation *find_translation(const char *path)
{
    for (size_t i = 0; i < conf_translation_count; i++) {
        if (conf_names_hold(conf_translations[i].names, path)) {
            return &conf_translations[i];
        }
    }
    return NULL;
}

/* Calls `each` for every word until it returns true. */
typedef bool word_fn(void *arg, const char *word, size_t bytes);

static bool each_word(const char *names, word_fn *each, void *arg)
{
    for (const char *p = names; p != NULL && *p != '\0';) {
        size_t n = strcspn(p, " ");
        if (each(arg, p, n)) {
            return true;
        }
        p += n + (p[n] == ' ');
    }
    return false;
}

static bool each_known_name(word_fn *each, void *arg)
{
    for (size_t i = 0; i < conf_key_count; i++) {
        if (each_word(conf_keys[i].name, each, arg) || each_word(conf_keys[i].aliases, each, arg)) {
            return true;
        }
    }
    for (size_t i = 0; i < conf_translation_count; i++) {
        if (each_word(conf_translations[i].names, each, arg)) {
            return true;
        }
    }
    for (size_t i = 0; i < conf_foreign_count; i++) {
        if (each_word(conf_foreign[i].names, each, arg)) {
            return true;
        }
    }
    return false;
}

static bool starts_with_path(void *arg, const char *word, size_t bytes)
{
    const struct place *p = arg;
    return bytes > p->bytes && memcmp(word, p->path, p->bytes) == 0 && strchr(".[", word[p->bytes]) != NULL;
}

/* Is there a known name inside this mapping or list? */
static bool is_section(const struct place *p)
{
    struct place copy = *p;
    return each_known_name(starts_with_path, &copy);
}

static bool offer(void *arg, const char *word, size_t bytes)
{
    nearest_try(arg, word, bytes);
    return false;
}

static void report_unknown(const struct place *p, const struct conf_origin *at, struct findings *f)
{
    struct nearest near;
    nearest_init(&near, p->path);
    if (f->not_kept == 0) { /* a file of a thousand unknown keys needs no thousand searches */
        each_known_name(offer, &near);
    }
    const char *dashes = at->file == NULL ? "--" : "";
    const char *name = nearest_found(&near);
    if (name != NULL) {
        findings_add(f, FINDING_ERROR, at, "unknown key %s%.120s | did you mean %s%s?", dashes, p->path, dashes, name);
    } else {
        findings_add(f, FINDING_ERROR, at, "unknown key %s%.120s | docs/configuration.md lists the keys", dashes,
                     p->path);
    }
}

static void check_foreign(const struct conf_foreign *k, const struct place *p, const struct node *n, struct findings *f)
{
    if (scalar_is_one_of(n, k->neutral)) {
        return;
    }
    const char *dashes = n->at.file == NULL ? "--" : "";
    struct quoted value = scalar_show(n);
    if (k->instead != NULL) {
        findings_add(f, FINDING_ERROR, &n->at, "%s%s %s: %s | %s", dashes, p->path, value.text, k->why, k->instead);
        return;
    }
    int bytes = (int)strcspn(k->neutral, "|");
    findings_add(f, FINDING_ERROR, &n->at, "%s%s %s: %s | remove it or set it to %.*s", dashes, p->path, value.text,
                 k->why, bytes, k->neutral);
}

/* The value behind the "=" of the word that stands in the node, or NULL. */
static const char *word_value(const struct conf_translation *t, const struct node *n, size_t *bytes)
{
    for (const char *p = t->words; *p != '\0';) {
        size_t word = strcspn(p, "="), item = strcspn(p, "|");
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)word, p);
        if (scalar_is_one_of(n, name)) {
            *bytes = item - word - 1;
            return p + word + 1;
        }
        p += item + (p[item] == '|');
    }
    return NULL;
}

/* Take what a key of another system says as the value of one of ours, at the place where it was said. */
static enum err take_translation(struct conf *c, const struct conf_translation *t, const char *spelled,
                                 const struct node *n, struct findings *f)
{
    const struct conf_key *key = &conf_keys[conf_index(t->key)];
    char text[40];
    size_t bytes = 0;
    const char *value = word_value(t, n, &bytes);
    double number = 0;
    struct scalar_problem p = { 0 };
    if (value != NULL) {
        snprintf(text, sizeof(text), "%.*s", (int)bytes, value);
    } else if (t->factor == 1) {
        return conf_take(c, key, spelled, n, f);
    } else if (t->factor > 0) {
        p = scalar_real(n, &number);
        snprintf(text, sizeof(text), "%.39s", scalar_write_real(number * t->factor).text);
    } else {
        findings_add(f, FINDING_ERROR, &n->at, "%s%s: %s is not known here | known are %s",
                     n->at.file == NULL ? "--" : "", spelled, scalar_show(n).text, t->help);
        conf_value(c, key->name)->bad = true;
        return OK;
    }
    if (p.bad) {
        findings_add(f, FINDING_ERROR, &n->at, "%s%s: %s", n->at.file == NULL ? "--" : "", spelled, p.text);
        conf_value(c, key->name)->bad = true;
        return OK;
    }
    struct node *said;
    if (text[0] == '\0') {
        return OK; /* it asks for nothing */
    }
    TRY(tree_add(&c->values->file, text, n->at, &said));
    return conf_take(c, key, spelled, said, f);
}

/* ---- the file ---- */

static enum err take_node(struct conf *c, const struct place *p, const struct node *key_node, struct node *n,
                          struct findings *f);

static enum err take_list(struct conf *c, const struct place *p, const struct node *n, struct findings *f)
{
    for (size_t i = 0; i < n->count; i++) {
        struct place item = *p;
        int used = snprintf(item.path + item.bytes, sizeof(item.path) - item.bytes, "[%zu]", i);
        item.bytes += (size_t)used < sizeof(item.path) - item.bytes ? (size_t)used : 0;
        TRY(take_node(c, &item, n->child[i], n->child[i], f));
    }
    return OK;
}

static enum err take_map(struct conf *c, const struct place *p, const struct node *map, struct findings *f)
{
    for (size_t i = 0; i + 1 < map->count; i += 2) {
        struct place inner = below(p, map->child[i]->text);
        TRY(take_node(c, &inner, map->child[i], map->child[i + 1], f));
    }
    return OK;
}

static enum err take_node(struct conf *c, const struct place *p, const struct node *key_node, struct node *n,
                          struct findings *f)
{
    const struct conf_key *key = find_key(p->path);
    if (key != NULL && key->type == KEY_MODEL) {
        if (c->values->model != NULL) {
            findings_add(f, FINDING_ERROR, &key_node->at, "a second model | keep one of the two");
        }
        c->values->model = n;
        return OK;
    }
    if ((n->kind == NODE_MAP || n->kind == NODE_LIST) && !(key != NULL && key->type == KEY_REPORT) && is_section(p)) {
        return n->kind == NODE_MAP ? take_map(c, p, n, f) : take_list(c, p, n, f);
    }
    if (key != NULL) {
        return conf_take(c, key, p->path, n, f);
    }
    const struct conf_translation *translation = find_translation(p->path);
    if (translation != NULL) {
        return take_translation(c, translation, p->path, n, f);
    }
    const struct conf_foreign *foreign = find_foreign(p->path);
    if (foreign != NULL) {
        check_foreign(foreign, p, n, f);
        return OK;
    }
    report_unknown(p, &key_node->at, f);
    return OK;
}

enum err conf_take_tree(struct conf *c, const struct node *root, struct findings *f)
{
    if (root->kind != NODE_MAP) {
        findings_add(f, FINDING_ERROR, &root->at, "expected a mapping of keys to values, got %s",
                     scalar_describe(root).text);
        return ERR_USAGE;
    }
    struct place top = { 0 };
    return take_map(c, &top, root, f);
}

/* ---- the command line ---- */

struct argument {
    char name[PATH_BYTES];
    char *value; /* in argv, or "true" for a switch */
};

/* A key without a value is a switch when it may be true. */
static bool may_be_switch(const char *path)
{
    const struct conf_key *key = find_key(path);
    return key != NULL ? key->type == KEY_FLAG : find_foreign(path) != NULL || find_translation(path) != NULL;
}

/* Split argument i (and its value, when that is the next one). Returns how many were used, 0 when it is no key. */
static int split_argument(struct argument *a, int argc, char **argv, int i, char *yes)
{
    char *equals = strchr(argv[i], '=');
    size_t bytes = equals != NULL ? (size_t)(equals - argv[i]) : strlen(argv[i]);
    if (strncmp(argv[i], "--", 2) != 0 || bytes <= 2) {
        return 0;
    }
    snprintf(a->name, sizeof(a->name), "%.*s", (int)(bytes < PATH_BYTES ? bytes : PATH_BYTES - 1), argv[i]);
    if (equals != NULL) {
        a->value = equals + 1;
        return 1;
    }
    struct place top = { 0 };
    struct place p = below(&top, a->name);
    bool next_is_key = i + 1 >= argc || strncmp(argv[i + 1], "--", 2) == 0;
    const struct conf_key *key = find_key(p.path);
    bool flag = key != NULL && key->type == KEY_FLAG;
    bool next_is_flag = !next_is_key && (strcmp(argv[i + 1], "true") == 0 || strcmp(argv[i + 1], "false") == 0);
    if (may_be_switch(p.path) && (next_is_key || (flag && !next_is_flag))) {
        a->value = yes;
        return 1;
    }
    a->value = next_is_key ? NULL : argv[i + 1];
    return next_is_key ? 1 : 2;
}

/* --model PATH goes before the file's model; --model.FIELD VALUE before the field of its mapping. */
static enum err take_model_argument(struct conf *c, const struct place *p, const struct node *n, struct findings *f)
{
    struct conf_values *v = c->values;
    struct node *value = NULL;
    if (p->bytes == strlen(MODEL)) {
        if (v->model != NULL && v->model->at.file == NULL) {
            findings_add(f, FINDING_ERROR, &n->at, "--model: given twice | keep one of the two");
        }
        return tree_add(&v->file, n->text, n->at, &v->model);
    }
    if (v->model != NULL && v->model->kind != NODE_MAP) {
        findings_add(f, FINDING_ERROR, &n->at,
                     "--%s: the model is a path, its fields are in its config.json | change them there, or write them "
                     "in a mapping under model",
                     p->path);
        return OK;
    }
    TRY(tree_add(&v->file, n->text, n->at, &value));
    if (v->model == NULL) {
        TRY(tree_add(&v->file, "", n->at, &v->model));
        v->model->kind = NODE_MAP;
    }
    return tree_set(&v->file, v->model, p->path + strlen(MODEL) + 1, value);
}

static enum err take_argument(struct conf *c, const struct argument *a, int number, struct findings *f)
{
    struct place top = { 0 };
    struct place p = below(&top, a->name);
    struct conf_origin at = { NULL, number, 0 };
    bool model = strncmp(p.path, MODEL, strlen(MODEL)) == 0 && strchr(".", p.path[strlen(MODEL)]) != NULL;
    const struct conf_key *key = find_key(p.path);
    const struct conf_foreign *foreign = find_foreign(p.path);
    const struct conf_translation *translation = find_translation(p.path);
    if (key == NULL && foreign == NULL && translation == NULL && !model) {
        report_unknown(&p, &at, f);
        return OK;
    }
    if (a->value == NULL) {
        findings_add(f, FINDING_ERROR, &at, "--%s: a value was expected after it", p.path);
        if (key != NULL) {
            conf_value(c, key->name)->bad = true;
        }
        return OK;
    }
    struct node n = { .kind = NODE_PLAIN, .at = at, .text = a->value, .bytes = strlen(a->value) };
    if (model) {
        return take_model_argument(c, &p, &n, f);
    }
    if (translation != NULL) {
        return take_translation(c, translation, p.path, &n, f);
    }
    if (key == NULL) {
        check_foreign(foreign, &p, &n, f);
        return OK;
    }
    return conf_take(c, key, p.path, &n, f);
}

enum err conf_take_arguments(struct conf *c, int argc, char **argv, struct findings *f)
{
    char yes[] = "true";
    for (int i = 0; i < argc;) {
        struct argument a = { 0 };
        int used = split_argument(&a, argc, argv, i, yes);
        if (used == 0) {
            struct conf_origin at = { NULL, i + 1, 0 };
            findings_add(f, FINDING_ERROR, &at,
                         "%s is not a key | write --key value; one configuration file comes first",
                         scalar_quote(argv[i], strlen(argv[i])).text);
            used = 1;
        } else {
            TRY(take_argument(c, &a, i + 1, f));
        }
        i += used;
    }
    return OK;
}
