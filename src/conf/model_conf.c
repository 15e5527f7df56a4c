/* Why this exists: config.json is the one description of a model that everyone has. Every field of a family is a row of
 * a table (model_fields.c); here the rows are read. Invariant: after a parse without errors every size is in range and
 * no product of sizes overflows 2^62. */
#include "conf/family.h"

#include "base/file.h"
#include "conf/nearest.h"

const struct field *model_find_field(const struct parser *p, const char *name)
{
    for (size_t i = 0; i < model_field_count; i++) {
        if ((model_fields[i].families & p->family) != 0 && conf_names_hold(model_fields[i].names, name)) {
            return &model_fields[i];
        }
    }
    return NULL;
}

const struct node *model_given(const struct parser *p, const char *name)
{
    const struct field *k = model_find_field(p, name);
    return k != NULL ? p->value[k - model_fields] : NULL;
}

const struct conf_origin *model_place(const struct parser *p, const char *name)
{
    const struct node *n = model_given(p, name);
    return n != NULL ? &n->at : &p->root->at;
}

static void report_unknown(const struct parser *p, const struct node *key)
{
    struct nearest near;
    nearest_init(&near, key->text);
    for (size_t i = 0; i < model_field_count && p->f->not_kept == 0; i++) {
        const char *names = (model_fields[i].families & p->family) != 0 ? model_fields[i].names : "";
        while (*names != '\0') {
            size_t n = strcspn(names, " ");
            nearest_try(&near, names, n);
            names += n + (names[n] == ' ');
        }
    }
    const char *family = p->info->name, *name = nearest_found(&near);
    struct quoted q = scalar_quote(key->text, key->bytes);
    if (name != NULL) {
        findings_add(p->f, FINDING_ERROR, &key->at, "model: %s is no field of %s here | did you mean %s?", q.text,
                     family, name);
    } else {
        findings_add(p->f, FINDING_ERROR, &key->at,
                     "model: %s is no field of %s here, and it might change the arithmetic | remove it if it does not",
                     q.text, family);
    }
}

static void report_problem(const struct parser *p, const char *name, const struct node *n, const char *text)
{
    findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: %s", name, text);
}

/* ---- values ---- */

bool model_take_whole(struct parser *p, const char *name, const struct node *n, uint64_t least, uint64_t most,
                      uint64_t *out)
{
    uint64_t value = 0;
    struct scalar_problem problem = scalar_whole(n, &value);
    if (problem.bad) {
        report_problem(p, name, n, problem.text);
        return false;
    }
    if (value < least || value > most) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: expected a whole number from %llu to %llu, got %llu", name,
                     (unsigned long long)least, (unsigned long long)most, (unsigned long long)value);
        return false;
    }
    *out = value;
    return true;
}

bool model_take_real(struct parser *p, const char *name, const struct node *n, double low, double high, double *out)
{
    double value = 0;
    struct scalar_problem problem = scalar_real(n, &value);
    if (problem.bad) {
        report_problem(p, name, n, problem.text);
        return false;
    }
    if (!(value > low && value <= high)) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: expected a number above %s and up to %s, got %.60s", name,
                     scalar_write_real(low).text, scalar_write_real(high).text, n->text);
        return false;
    }
    *out = value;
    return true;
}

bool model_take_flag(struct parser *p, const char *name, const struct node *n, bool *out)
{
    struct scalar_problem problem = scalar_flag(n, out);
    if (problem.bad) {
        report_problem(p, name, n, problem.text);
    }
    return !problem.bad;
}

static void take_flag(struct parser *p, const struct field *k, const char *name, const struct node *n)
{
    bool value = false;
    if (!model_take_flag(p, name, n, &value)) {
        return;
    }
    *(bool *)(void *)((char *)p->m + k->offset) = value;
    for (size_t i = 0; i < sizeof(k->also) / sizeof(k->also[0]); i++) {
        if (k->also[i] != 0) {
            *(bool *)(void *)((char *)p->m + k->also[i]) = value;
        }
    }
}

static void take_rate(struct parser *p, const struct field *k, const char *name, const struct node *n)
{
    double value = 0;
    struct scalar_problem problem = scalar_real(n, &value);
    if (problem.bad) {
        report_problem(p, name, n, problem.text);
    } else if (!(value >= 0 && value < 1)) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: expected a number from 0 and below 1, got %.60s", name,
                     n->text);
    } else {
        *(double *)(void *)((char *)p->m + k->offset) = value;
    }
}

static void take_token(struct parser *p, const struct field *k, const char *name, const struct node *n)
{
    int64_t *token = (int64_t *)(void *)((char *)p->m + k->offset);
    const struct node *first = n->kind == NODE_LIST && n->count > 0 ? n->child[0] : n;
    uint64_t value = 0;
    if (scalar_is_null(n)) {
        *token = -1;
        return;
    }
    struct scalar_problem problem = scalar_whole(first, &value);
    if (problem.bad) {
        report_problem(p, name, first, problem.text);
        return;
    }
    if (n->kind == NODE_LIST && n->count > 1) {
        findings_add(p->f, FINDING_WARNING, &n->at, "model.%s: of %zu tokens the first, %llu, is kept", name, n->count,
                     (unsigned long long)value);
    }
    *token = (int64_t)value;
}

static void take_fixed(struct parser *p, const struct field *k, const char *name, const struct node *n)
{
    if (!scalar_is_one_of(n, k->accepted)) {
        int bytes = (int)strcspn(k->accepted, "|");
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s %s: %s | set it to %.*s", name, scalar_show(n).text, k->why,
                     bytes, k->accepted);
    }
}

static void take_activation(struct parser *p, const struct field *k, const char *name, const struct node *n)
{
    static const struct {
        const char *names;
        enum activation activation;
    } known[] = {
        { "silu|swish", ACTIVATION_SILU },
        { "gelu_pytorch_tanh|gelu_new|gelu_fast", ACTIVATION_GELU_TANH },
        { "gelu", ACTIVATION_GELU },
    };
    take_fixed(p, k, name, n);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (scalar_is_one_of(n, known[i].names)) {
            p->m->activation = known[i].activation;
        }
    }
}

static void take_field(struct parser *p, const struct field *k, const char *name, const struct node *n)
{
    void *member = (char *)p->m + k->offset;
    if (scalar_is_null(n) && k->may_be_null) {
        return;
    }
    switch (k->use) {
    case FIELD_WHOLE:
        (void)model_take_whole(p, name, n, k->least, k->most, member);
        return;
    case FIELD_REAL:
        (void)model_take_real(p, name, n, k->low, k->high, member);
        return;
    case FIELD_RATE:
        take_rate(p, k, name, n);
        return;
    case FIELD_CAP:
        if (scalar_is_null(n)) {
            *(double *)member = 0;
        } else {
            (void)model_take_real(p, name, n, k->low, k->high, member);
        }
        return;
    case FIELD_FLAG:
        take_flag(p, k, name, n);
        return;
    case FIELD_TOKEN:
        take_token(p, k, name, n);
        return;
    case FIELD_FIXED:
        take_fixed(p, k, name, n);
        return;
    case FIELD_ACTIVATION:
        take_activation(p, k, name, n);
        return;
    case FIELD_WARN:
        findings_add(p->f, FINDING_WARNING, &n->at, "model.%s is not acted upon: %s", name, k->why);
        return;
    case FIELD_LATER:
    case FIELD_META:
        return;
    }
}

/* Spellings of one used field that both stand there must say the same. */
static bool is_second_spelling(struct parser *p, size_t index, const struct node *key, const struct node *n)
{
    const struct node *before = p->value[index];
    enum field_use use = model_fields[index].use;
    if (before == NULL || (use != FIELD_WHOLE && use != FIELD_REAL && use != FIELD_LATER)) {
        p->value[index] = n;
        p->spelled[index] = key->text;
        return false;
    }
    if (!scalar_is_scalar(n) || !scalar_is_scalar(before) || strcmp(n->text, before->text) != 0) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: %s here, but %s is %s at line %d | keep one of the two",
                     key->text, scalar_describe(n).text, p->spelled[index], scalar_describe(before).text,
                     before->at.line);
    }
    return true;
}

/* ---- the whole ---- */

static void require(struct parser *p)
{
    for (size_t i = 0; i < model_field_count; i++) {
        if (model_fields[i].required && (model_fields[i].families & p->family) != 0 && p->value[i] == NULL) {
            findings_add(p->f, FINDING_ERROR, &p->root->at, "model: %.*s is not given",
                         (int)strcspn(model_fields[i].names, " "), model_fields[i].names);
        }
    }
}

static enum err find_family(struct parser *p)
{
    struct buf list = { 0 };
    enum err err = OK;
    const struct node *type = node_get(p->root, "model_type");
    TRY_OUT(model_families_list(&list));
    for (int i = 0; i < FAMILY_COUNT && type != NULL; i++) {
        if (scalar_is_one_of(type, model_families[i].name)) {
            p->info = &model_families[i];
            p->family = 1u << i;
            model_conf_defaults(p->m, (enum family)i);
        }
    }
    if (type == NULL) {
        findings_add(p->f, FINDING_ERROR, &p->root->at, "model: model_type is not given | write one of %s", list.data);
    } else if (scalar_is_one_of(type, "gemma3")) {
        findings_add(p->f, FINDING_ERROR, &type->at,
                     "model.model_type %s: a model of images and text; this version has its text part | take "
                     "text_config as the whole, with model_type gemma3_text, and the weights under language_model",
                     scalar_show(type).text);
    } else if (p->info == NULL) {
        findings_add(p->f, FINDING_ERROR, &type->at, "model.model_type %s: this version has %s", scalar_show(type).text,
                     list.data);
    }
out:
    buf_release(&list);
    return err != OK ? err : p->info == NULL ? ERR_USAGE : OK;
}

enum err model_conf_from_node(struct model_conf *m, const struct node *root, const char *name, struct findings *f)
{
    size_t errors = f->errors;
    *m = (struct model_conf){ 0 };
    if (root == NULL || root->kind != NODE_MAP) {
        struct conf_origin at = root != NULL ? root->at : (struct conf_origin){ name, 1, 1 };
        findings_add(f, FINDING_ERROR, &at, "model: expected a mapping of fields, got %s",
                     root != NULL ? scalar_describe(root).text : "nothing");
        return ERR_USAGE;
    }
    struct parser p = { .m = m, .root = root, .f = f, .before = errors };
    TRY(find_family(&p));
    for (size_t i = 0; i + 1 < root->count; i += 2) {
        const struct node *key = root->child[i], *value = root->child[i + 1];
        const struct field *k = model_find_field(&p, key->text);
        if (k == NULL) {
            report_unknown(&p, key);
        } else if (!is_second_spelling(&p, (size_t)(k - model_fields), key, value)) {
            take_field(&p, k, key->text, value);
        }
    }
    require(&p);
    if (f->errors == errors) {
        model_check(&p);
    } else {
        model_try_rope(&p);
    }
    return f->errors == errors ? OK : ERR_USAGE;
}

enum err model_conf_parse(struct model_conf *m, const char *name, const char *text, size_t bytes, struct findings *f)
{
    struct tree t = { 0 };
    size_t errors = f->errors;
    enum err err = tree_parse(&t, name, text, bytes, f);
    if (err == OK) {
        err = model_conf_from_node(m, t.root, t.name, f);
    }
    tree_release(&t);
    if (err == ERR_USAGE || f->errors != errors) {
        err_set_message("");
        return ERR_USAGE;
    }
    return err;
}

enum err model_conf_read(struct model_conf *m, const char *folder, struct findings *f)
{
    char *path = NULL;
    struct buf text = { 0 };
    enum err err = OK;
    TRY_OUT(file_join(&path, folder, "config.json"));
    TRY_OUT(file_read(path, YAML_FILE_BYTES_MAX, &text));
    TRY_OUT(model_conf_parse(m, path, text.data != NULL ? text.data : "", text.bytes, f));
out:
    buf_release(&text);
    free(path);
    return err;
}

/* "llama, mistral": the families of a set; "all" and "all but gpt2" in words. */
static enum err print_families(struct buf *out, unsigned families)
{
    if (families == FOR_ALL || families == FOR_ROTARY) {
        return buf_add_string(out, families == FOR_ALL ? "all" : "all but gpt2");
    }
    const char *comma = "";
    for (int i = 0; i < FAMILY_COUNT; i++) {
        if ((families >> i & 1u) != 0) {
            TRY(buf_printf(out, "%s%s", comma, model_families[i].name));
            comma = ", ";
        }
    }
    return OK;
}

enum err model_conf_help(struct buf *out)
{
    static const char *const uses[] = {
        [FIELD_WHOLE] = "whole number",
        [FIELD_REAL] = "number",
        [FIELD_RATE] = "dropout, [0, 1)",
        [FIELD_FLAG] = "true or false",
        [FIELD_CAP] = "number, or null: none",
        [FIELD_TOKEN] = "token id",
        [FIELD_FIXED] = "only ",
        [FIELD_ACTIVATION] = "",
        [FIELD_LATER] = "",
        [FIELD_META] = "accepted, changes nothing",
        [FIELD_WARN] = "never acted upon, a warning",
    };
    TRY(buf_add_string(out, "The fields of Hugging Face `config.json`. Any other is an error.\n"
                            "\n"
                            "| family | field | value |\n"
                            "|---|---|---|\n"));
    for (size_t i = 0; i < model_field_count; i++) {
        const struct field *k = &model_fields[i];
        TRY(buf_add_string(out, "| "));
        TRY(print_families(out, k->families));
        TRY(buf_printf(out, " | %s | %s%s", k->names, uses[k->use], k->help != NULL ? k->help : ""));
        for (const char *p = k->accepted != NULL ? k->accepted : ""; *p != '\0'; p++) {
            TRY(*p == '|' ? buf_add_string(out, " or ") : buf_add(out, p, 1));
        }
        TRY(buf_printf(out, "%s |\n", k->required ? ", required" : ""));
    }
    return OK;
}
