/* Why this exists: up to four files of a model folder name its special tokens, by id or by text, and programs believe
 * different ones. When they disagree, texts end where they should not, or never. */
#include "conf/tokens.h"

#include "base/file.h"
#include "base/json.h"
#include "conf/conf_int.h"

#define TOKENIZER_BYTES_MAX ((size_t)1 << 28)
#define IDS_MAX 32u
#define NO_ID (-1)

enum { BOS, EOS, PAD, UNK, KINDS };
static const char *const kinds[KINDS] = { "bos", "eos", "pad", "unk" };

/* What one file with ids says about one token. */
struct said {
    bool given; /* null is given, too: no ids */
    int64_t id[IDS_MAX];
    size_t count;
    struct conf_origin at;
};

struct tokens {
    struct findings *f;
    struct tree config, generation;
    json_t *tokenizer_config, *tokenizer; /* NULL: no such file */
    struct said model[KINDS], generated[KINDS];
    int64_t vocab; /* config.json's vocab_size; NO_ID: none */
    const struct node *vocab_node;
    const char *text[KINDS]; /* tokenizer_config.json's; NULL: none */
    int64_t id[KINDS];       /* of these texts in tokenizer.json; NO_ID: not there */
    int64_t entries;         /* tokenizer.json's highest id + 1 */
};

/* ---- reading ---- */

static enum err read_tree(struct tokens *t, const char *folder, const char *name, struct tree *tree)
{
    char *path = NULL;
    struct buf text = { 0 };
    enum err err = OK;
    TRY_OUT(file_join(&path, folder, name));
    if (file_exists(path)) {
        TRY_OUT(file_read(path, YAML_FILE_BYTES_MAX, &text));
        err = tree_parse(tree, path, text.data != NULL ? text.data : "", text.bytes, t->f);
    }
out:
    buf_release(&text);
    free(path);
    return err;
}

static enum err read_json(const char *folder, const char *name, json_t **out)
{
    char *path = NULL;
    enum err err = OK;
    struct buf text = { 0 };
    TRY_OUT(file_join(&path, folder, name));
    if (file_exists(path)) {
        TRY_OUT(file_read(path, TOKENIZER_BYTES_MAX, &text));
        /* transformers writes 10^30 into model_max_length: numbers of this file are not asked for */
        TRY_OUT(strcmp(name, "tokenizer.json") == 0
                    ? json_parse(out, path, text.data != NULL ? text.data : "", text.bytes)
                    : json_parse_reals(out, path, text.data != NULL ? text.data : "", text.bytes));
    }
out:
    buf_release(&text);
    free(path);
    return err;
}

static void read_ids(const struct tree *tree, const char *kind, struct said *s)
{
    char name[32];
    snprintf(name, sizeof(name), "%s_token_id", kind);
    const struct node *n = tree->root != NULL && tree->root->kind == NODE_MAP ? node_get(tree->root, name) : NULL;
    if (n == NULL) {
        return;
    }
    s->given = true;
    s->at = n->at;
    size_t count = n->kind == NODE_LIST ? n->count : 1;
    for (size_t i = 0; i < count && s->count < IDS_MAX; i++) {
        uint64_t id;
        const struct node *item = n->kind == NODE_LIST ? n->child[i] : n;
        if (!scalar_is_null(item) && !scalar_whole(item, &id).bad) { /* what is no id, model_conf_parse reports */
            s->id[s->count++] = (int64_t)id;
        }
    }
}

/* "bos_token": a text, or an object with a text in `content`. */
static const char *token_text(const json_t *config, const char *kind)
{
    char name[32];
    snprintf(name, sizeof(name), "%s_token", kind);
    const json_t *value = json_object_get(config, name);
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

/* Go through tokenizer.json's entries: its highest id, and the ids of the four texts. */
static void see_entry(struct tokens *t, const char *text, int64_t id)
{
    t->entries = id >= t->entries ? id + 1 : t->entries;
    for (int kind = 0; kind < KINDS; kind++) {
        if (t->text[kind] != NULL && text != NULL && strcmp(text, t->text[kind]) == 0) {
            t->id[kind] = id;
        }
    }
}

static void read_entries(struct tokens *t)
{
    const json_t *model = json_object_get(t->tokenizer, "model"), *vocab = json_object_get(model, "vocab"), *item;
    const char *key;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, item)
    {
        if (json_is_integer(item)) {
            see_entry(t, key, json_integer_value(item));
        }
    }
    json_array_foreach(vocab, i, item)
    { /* Unigram: [text, score] */
        see_entry(t, json_string_value(json_array_get(item, 0)), (int64_t)i);
    }
    json_array_foreach(json_object_get(t->tokenizer, "added_tokens"), i, item)
    {
        if (json_is_integer(json_object_get(item, "id"))) {
            see_entry(t, json_string_value(json_object_get(item, "content")),
                      json_integer_value(json_object_get(item, "id")));
        }
    }
}

/* ---- rules ---- */

static bool says(const struct said *s, int64_t id)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->id[i] == id) {
            return true;
        }
    }
    return false;
}

/* "2" or "[2, 301]" */
struct ids {
    char text[400];
};

static struct ids show(const struct said *s)
{
    struct ids out = { .text = "null" };
    size_t used = 0;
    for (size_t i = 0; i < s->count; i++) {
        int n = snprintf(out.text + used, sizeof(out.text) - used, "%s%lld%s",
                         i > 0          ? ", "
                         : s->count > 1 ? "["
                                        : "",
                         (long long)s->id[i], i + 1 == s->count && s->count > 1 ? "]" : "");
        used += n > 0 ? (size_t)n : 0;
    }
    return out;
}

static void check_range(struct tokens *t, const struct said *s, int kind)
{
    for (size_t i = 0; i < s->count; i++) {
        if (t->vocab != NO_ID && s->id[i] >= t->vocab) {
            findings_add(t->f, FINDING_ERROR, &s->at, "%s_token_id %lld is not below vocab_size %lld", kinds[kind],
                         (long long)s->id[i], (long long)t->vocab);
        }
    }
}

static void check_kind(struct tokens *t, int kind)
{
    const struct said *model = &t->model[kind], *generated = &t->generated[kind];
    check_range(t, model, kind);
    check_range(t, generated, kind);
    if (model->count > 0 && generated->count > 0 && !says(generated, model->id[0])) {
        findings_add(t->f, FINDING_ERROR, &generated->at, "%s_token_id: %s here, but %s in config.json (line %d)",
                     kinds[kind], show(generated).text, show(model).text, model->at.line);
    }
    if (t->text[kind] == NULL || t->tokenizer == NULL) {
        return;
    }
    if (t->id[kind] == NO_ID) {
        const struct conf_origin at = { t->config.name, 1, 1 };
        findings_add(t->f, FINDING_ERROR, model->given ? &model->at : &at,
                     "%s_token \"%s\" of tokenizer_config.json is not in tokenizer.json", kinds[kind], t->text[kind]);
    } else if (model->count > 0 && !says(model, t->id[kind])) {
        findings_add(t->f, FINDING_ERROR, &model->at,
                     "%s_token_id: %s here, but %s_token of tokenizer_config.json is \"%s\", %lld in tokenizer.json",
                     kinds[kind], show(model).text, kinds[kind], t->text[kind], (long long)t->id[kind]);
    }
}

static void check_vocabulary(struct tokens *t)
{
    if (t->tokenizer != NULL && t->vocab != NO_ID && t->entries > t->vocab) {
        findings_add(t->f, FINDING_ERROR, &t->vocab_node->at,
                     "vocab_size %lld, but tokenizer.json has ids up to %lld: they would have no embedding",
                     (long long)t->vocab, (long long)t->entries - 1);
    }
    if (t->text[PAD] != NULL && t->text[EOS] != NULL && strcmp(t->text[PAD], t->text[EOS]) == 0) {
        const struct said *eos = &t->model[EOS];
        const struct conf_origin at = { t->config.name, 1, 1 };
        findings_add(
            t->f, FINDING_WARNING, eos->given ? &eos->at : &at,
            "pad_token of tokenizer_config.json is \"%s\", which also ends a text: programs that leave padding "
            "out of the loss leave the end out, too",
            t->text[PAD]);
    }
}

/* ---- the table ---- */

static enum err print_table(const struct tokens *t, struct buf *out)
{
    TRY(buf_printf(out, "  %-5s %-20s %-24s %-24s %s\n", "", "config.json", "generation_config.json",
                   "tokenizer_config.json", "tokenizer.json"));
    for (int kind = 0; kind < KINDS; kind++) {
        const struct said *model = &t->model[kind], *generated = &t->generated[kind];
        char id[24] = "-";
        if (t->tokenizer != NULL && t->text[kind] != NULL && t->id[kind] != NO_ID) {
            snprintf(id, sizeof(id), "%lld", (long long)t->id[kind]);
        }
        TRY(buf_printf(out, "  %-5s %-20s %-24s %-24s %s\n", kinds[kind], model->given ? show(model).text : "-",
                       generated->given ? show(generated).text : "-", t->text[kind] != NULL ? t->text[kind] : "-", id));
    }
    if (t->tokenizer != NULL && t->vocab != NO_ID) {
        TRY(buf_printf(out, "  vocabulary: tokenizer %lld entries, config %lld rows", (long long)t->entries,
                       (long long)t->vocab));
        if (t->entries < t->vocab) {
            TRY(buf_printf(out, ": %lld rows are padding", (long long)(t->vocab - t->entries)));
        }
        TRY(buf_add_string(out, "\n"));
    }
    return OK;
}

enum err tokens_check(const char *folder, struct findings *f, struct buf *table)
{
    struct tokens t = { .f = f, .vocab = NO_ID, .id = { NO_ID, NO_ID, NO_ID, NO_ID } };
    enum err err = OK;
    uint64_t vocab;
    TRY_OUT(read_tree(&t, folder, "config.json", &t.config));
    TRY_OUT(read_tree(&t, folder, "generation_config.json", &t.generation));
    TRY_OUT(read_json(folder, "tokenizer_config.json", &t.tokenizer_config));
    TRY_OUT(read_json(folder, "tokenizer.json", &t.tokenizer));
    t.vocab_node =
        t.config.root != NULL && t.config.root->kind == NODE_MAP ? node_get(t.config.root, "vocab_size") : NULL;
    if (t.vocab_node != NULL && !scalar_whole(t.vocab_node, &vocab).bad && vocab <= INT32_MAX) {
        t.vocab = (int64_t)vocab;
    }
    for (int kind = 0; kind < KINDS; kind++) {
        read_ids(&t.config, kinds[kind], &t.model[kind]);
        read_ids(&t.generation, kinds[kind], &t.generated[kind]);
        t.text[kind] = t.tokenizer_config != NULL ? token_text(t.tokenizer_config, kinds[kind]) : NULL;
    }
    read_entries(&t);
    for (int kind = 0; kind < KINDS; kind++) {
        check_kind(&t, kind);
    }
    check_vocabulary(&t);
    if (t.tokenizer_config != NULL || t.tokenizer != NULL || t.generation.root != NULL) {
        TRY_OUT(print_table(&t, table));
    }
out:
    tree_release(&t.config);
    tree_release(&t.generation);
    json_decref(t.tokenizer_config);
    json_decref(t.tokenizer);
    return err;
}
