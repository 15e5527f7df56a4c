/* Why this exists: libyaml gives events and an order; a configuration needs a small tree with places, and refuses most
 * of what makes YAML surprising or dangerous. libyaml's own resolution of types is not used (YAML 1.1 reads `no` as
 * false, 010 as 8 and 1e-4 as a text): a scalar stays text here and conf/scalar.c decides. Invariants: every node is in
 * tree.all and freed from there; depth <= YAML_DEPTH_MAX, so walkers may recurse; at most YAML_NODES_MAX nodes, so
 * quadratic checks of one mapping stay quick. */
#include "conf/yaml.h"

#include <yaml.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "conf/scalar.h"

struct builder {
    struct tree *tree;
    struct findings *f;
    yaml_parser_t parser;
    struct node *open[YAML_DEPTH_MAX]; /* lists and maps not yet closed */
    size_t depth;
    size_t documents;
};

static struct conf_origin place(const struct builder *b, const yaml_mark_t *mark)
{
    return (struct conf_origin){ b->tree->name, (int)mark->line + 1, (int)mark->column + 1 };
}

/* ---- before libyaml: what it would report unclearly or accept ---- */

static struct conf_origin place_of_byte(const char *name, const char *text, size_t offset)
{
    struct conf_origin at = { name, 1, 1 };
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            at.line++;
            at.col = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            at.col++; /* columns count characters, as libyaml does */
        }
    }
    return at;
}

static bool bytes_are_fit(struct findings *f, const char *name, const char *text, size_t bytes)
{
    struct conf_origin start = { name, 1, 1 };
    if (bytes > YAML_FILE_BYTES_MAX) {
        findings_add(f, FINDING_ERROR, &start, "the file has %zu bytes, a configuration at most %zu", bytes,
                     YAML_FILE_BYTES_MAX);
        return false;
    }
    if (bytes >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0)) {
        findings_add(f, FINDING_ERROR, &start, "the file is UTF-16 | save it as UTF-8");
        return false;
    }
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        findings_add(f, FINDING_ERROR, &start, "the file starts with a byte order mark | save it as UTF-8 without BOM");
        return false;
    }
    size_t valid = utf8_valid_prefix(text, bytes);
    if (valid < bytes) {
        struct conf_origin at = place_of_byte(name, text, valid);
        findings_add(f, FINDING_ERROR, &at, "byte 0x%02x is not UTF-8 | save the file as UTF-8",
                     (unsigned)(unsigned char)text[valid]);
        return false;
    }
    const char *nul = memchr(text, 0, bytes);
    if (nul != NULL) {
        struct conf_origin at = place_of_byte(name, text, (size_t)(nul - text));
        findings_add(f, FINDING_ERROR, &at, "a NUL byte: this is not a text file");
        return false;
    }
    return true;
}

/* Tabs may not indent YAML. A text that starts with a brace or bracket is JSON, where they are only space. */
static bool tabs_are_fit(struct findings *f, const char *name, const char *text, size_t bytes)
{
    size_t first = 0;
    while (first < bytes && strchr(" \t\r\n", text[first]) != NULL) {
        first++;
    }
    if (first < bytes && (text[first] == '{' || text[first] == '[')) {
        return true;
    }
    bool fit = true, indenting = true;
    struct conf_origin at = { name, 1, 1 };
    for (size_t i = 0; i < bytes; i++, at.col++) { /* while indenting, bytes are columns */
        if (text[i] == '\n') {
            indenting = true;
            at = (struct conf_origin){ name, at.line + 1, 0 };
        } else if (text[i] == '\t' && indenting) {
            findings_add(f, FINDING_ERROR, &at, "a tab indents this line | indent with spaces");
            fit = false;
            indenting = false;
        } else if (text[i] != ' ') {
            indenting = false;
        }
    }
    return fit;
}

/* ---- events to nodes ---- */

static enum err add_child(struct node *parent, struct node *child)
{
    void *list = parent->child;
    TRY(mem_grow(&list, &parent->capacity, parent->count + 1, sizeof(struct node *)));
    parent->child = list;
    parent->child[parent->count++] = child;
    return OK;
}

static enum err new_node(struct tree *t, enum node_kind kind, struct conf_origin at, struct node **out)
{
    void *list = t->all, *memory = NULL;
    TRY(mem_grow(&list, &t->capacity, t->count + 1, sizeof(struct node *)));
    t->all = list;
    TRY(mem_alloc(&memory, 1, sizeof(struct node)));
    struct node *n = memory;
    t->all[t->count++] = n;
    n->kind = kind;
    n->at = at;
    *out = n;
    return OK;
}

static bool expects_key(const struct node *parent)
{
    return parent->kind == NODE_MAP && parent->count % 2 == 0;
}

/* A key given twice: both places are named, the first stays. */
static void check_duplicate(struct builder *b, const struct node *map, struct node *key)
{
    for (size_t i = 0; i + 1 < map->count; i += 2) {
        const struct node *other = map->child[i];
        if (other->bytes == key->bytes && memcmp(other->text, key->text, key->bytes) == 0) {
            key->second = true;
            findings_add(b->f, FINDING_ERROR, &key->at,
                         "duplicate key %s, first given at line %d | keep one of the two",
                         scalar_quote(key->text, key->bytes).text, other->at.line);
            return;
        }
    }
}

static enum err attach(struct builder *b, struct node *n)
{
    if (b->depth == 0) {
        b->tree->root = n;
        return OK;
    }
    struct node *parent = b->open[b->depth - 1];
    if (expects_key(parent)) {
        if (n->kind == NODE_LIST || n->kind == NODE_MAP) {
            findings_add(b->f, FINDING_ERROR, &n->at, "a list or mapping as a key | a key is a name");
            return ERR_USAGE;
        }
        check_duplicate(b, parent, n);
    } else if (parent->kind == NODE_MAP && parent->child[parent->count - 1]->second) {
        parent->count--; /* reported: the second pair is left out, so that it causes no further findings */
        return OK;
    }
    return add_child(parent, n);
}

static void refuse_marks(struct builder *b, const yaml_event_t *event, const yaml_char_t *anchor,
                         const yaml_char_t *tag)
{
    struct conf_origin at = place(b, &event->start_mark);
    if (anchor != NULL) {
        findings_add(b->f, FINDING_ERROR, &at, "an anchor (&%.60s): anchors are not used here | write the value",
                     (const char *)anchor);
    }
    if (tag != NULL) {
        findings_add(b->f, FINDING_ERROR, &at, "a tag (%.60s): tags are not used here | remove it", (const char *)tag);
    }
}

static enum err take_scalar(struct builder *b, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t bytes = event->data.scalar.length;
    struct conf_origin at = place(b, &event->start_mark);
    refuse_marks(b, event, event->data.scalar.anchor, event->data.scalar.tag);
    if (memchr(text, 0, bytes) != NULL) {
        findings_add(b->f, FINDING_ERROR, &at, "a NUL character inside a text | remove it");
        return ERR_USAGE;
    }
    if (bytes > YAML_VALUE_BYTES_MAX) {
        findings_add(b->f, FINDING_ERROR, &at, "a value of %zu bytes, at most %zu are read", bytes,
                     YAML_VALUE_BYTES_MAX);
        return ERR_USAGE;
    }
    struct node *n = NULL;
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    TRY(new_node(b->tree, plain ? NODE_PLAIN : NODE_QUOTED, at, &n));
    TRY(mem_copy_string(&n->text, text, bytes));
    n->bytes = bytes;
    return attach(b, n);
}

static enum err take_start(struct builder *b, const yaml_event_t *event)
{
    bool map = event->type == YAML_MAPPING_START_EVENT;
    refuse_marks(b, event, map ? event->data.mapping_start.anchor : event->data.sequence_start.anchor,
                 map ? event->data.mapping_start.tag : event->data.sequence_start.tag);
    struct node *n = NULL;
    TRY(new_node(b->tree, map ? NODE_MAP : NODE_LIST, place(b, &event->start_mark), &n));
    TRY(attach(b, n));
    if (b->depth == YAML_DEPTH_MAX) {
        findings_add(b->f, FINDING_ERROR, &n->at, "nested deeper than %u levels", YAML_DEPTH_MAX);
        return ERR_USAGE;
    }
    b->open[b->depth++] = n;
    return OK;
}

static enum err take_event(struct builder *b, const yaml_event_t *event)
{
    struct conf_origin at = place(b, &event->start_mark);
    if (b->tree->count >= YAML_NODES_MAX) {
        findings_add(b->f, FINDING_ERROR, &at, "more than %u keys and values: this is not a configuration",
                     YAML_NODES_MAX);
        return ERR_USAGE;
    }
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++b->documents > 1) {
            findings_add(b->f, FINDING_ERROR, &at, "a second document | one file holds one configuration");
            return ERR_USAGE;
        }
        return OK;
    case YAML_ALIAS_EVENT:
        findings_add(b->f, FINDING_ERROR, &at, "an alias (*%.60s): aliases are not used here | write the value",
                     (const char *)event->data.alias.anchor);
        return ERR_USAGE;
    case YAML_SCALAR_EVENT:
        return take_scalar(b, event);
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        return take_start(b, event);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        b->depth--;
        return OK;
    default:
        return OK;
    }
}

static enum err syntax_error(struct builder *b)
{
    const yaml_parser_t *p = &b->parser;
    if (p->error == YAML_MEMORY_ERROR) {
        return FAIL(ERR_RESOURCE, "%s: out of memory", b->tree->name);
    }
    struct conf_origin at = place(b, p->error == YAML_READER_ERROR ? &p->mark : &p->problem_mark);
    const char *problem = p->problem != NULL ? p->problem : "cannot be read";
    if (p->context != NULL) {
        findings_add(b->f, FINDING_ERROR, &at, "not valid YAML: %s (%s that starts at line %zu)", problem, p->context,
                     p->context_mark.line + 1);
    } else {
        findings_add(b->f, FINDING_ERROR, &at, "not valid YAML: %s", problem);
    }
    return ERR_USAGE;
}

static enum err read_events(struct builder *b)
{
    for (bool more = true; more;) {
        yaml_event_t event;
        if (yaml_parser_parse(&b->parser, &event) == 0) {
            return syntax_error(b);
        }
        enum err err = take_event(b, &event);
        more = event.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
        TRY(err);
    }
    return OK;
}

enum err tree_parse(struct tree *t, const char *name, const char *text, size_t bytes, struct findings *f)
{
    *t = (struct tree){ 0 };
    TRY(mem_copy_string(&t->name, name, strlen(name)));
    if (!bytes_are_fit(f, t->name, text, bytes) || !tabs_are_fit(f, t->name, text, bytes)) {
        return ERR_USAGE;
    }
    struct builder b = { .tree = t, .f = f };
    if (yaml_parser_initialize(&b.parser) == 0) {
        return FAIL(ERR_RESOURCE, "%s: out of memory", name);
    }
    yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&b.parser, (const unsigned char *)text, bytes);
    enum err err = read_events(&b);
    yaml_parser_delete(&b.parser);
    return err;
}

void tree_release(struct tree *t)
{
    for (size_t i = 0; i < t->count; i++) {
        free(t->all[i]->text);
        free(t->all[i]->child);
        free(t->all[i]);
    }
    free(t->all);
    free(t->name);
    *t = (struct tree){ 0 };
}

enum err tree_add(struct tree *t, const char *text, struct conf_origin at, struct node **out)
{
    struct node *n = NULL;
    TRY(new_node(t, NODE_PLAIN, at, &n));
    n->bytes = strlen(text);
    TRY(mem_copy_string(&n->text, text, n->bytes));
    *out = n;
    return OK;
}

enum err tree_set(struct tree *t, struct node *map, const char *key, struct node *value)
{
    for (size_t i = 0; i + 1 < map->count; i += 2) {
        if (strcmp(map->child[i]->text, key) == 0) {
            map->child[i + 1] = value;
            return OK;
        }
    }
    struct node *name = NULL;
    TRY(tree_add(t, key, value->at, &name));
    TRY(add_child(map, name));
    return add_child(map, value);
}

const struct node *node_get(const struct node *map, const char *key)
{
    if (map == NULL || map->kind != NODE_MAP) {
        return NULL;
    }
    for (size_t i = 0; i + 1 < map->count; i += 2) {
        if (strcmp(map->child[i]->text, key) == 0) {
            return map->child[i + 1];
        }
    }
    return NULL;
}
