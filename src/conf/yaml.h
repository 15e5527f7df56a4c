/* A YAML (so also JSON) text as a tree of nodes that know their place. Only the part of YAML a configuration needs: one
 * document of mappings, lists and scalars. Anchors, aliases, tags, further documents, duplicate keys, tabs that indent,
 * a byte order mark, NUL and bytes that are not UTF-8 are findings. Private to conf/. */
#ifndef CONF_YAML_H
#define CONF_YAML_H

#include "base/err.h"
#include "conf/finding.h"

#define YAML_FILE_BYTES_MAX ((size_t)8 << 20)
#define YAML_VALUE_BYTES_MAX ((size_t)1 << 20)
#define YAML_DEPTH_MAX 32u
#define YAML_NODES_MAX 20000u

enum node_kind {
    NODE_PLAIN,  /* a scalar without quotes: a number, true, null or a text, by the rules of conf/scalar.h */
    NODE_QUOTED, /* a scalar in quotes or a block: always a text */
    NODE_LIST,
    NODE_MAP,
};

struct node {
    enum node_kind kind;
    struct conf_origin at;
    char *text; /* scalars: UTF-8, no NUL inside */
    size_t bytes;
    struct node **child; /* list: items; map: key, value, key, value... (keys are scalars) */
    size_t count, capacity;
    bool second; /* a key that its mapping had before */
};

struct tree {
    char *name;        /* of the file, what every node's place points to */
    struct node *root; /* NULL: the text holds nothing */
    struct node **all;
    size_t count, capacity;
};

/* Parse; `name` stands for the file in findings. ERR_USAGE when the text cannot be read as a tree at all; a tree whose
 * findings are only about parts of it (a duplicate key, a tag) is returned so that the rest can be checked as well. */
MUST_USE enum err tree_parse(struct tree *t, const char *name, const char *text, size_t bytes, struct findings *f);
void tree_release(struct tree *t);
/* Add a plain scalar made elsewhere (the command line) to the nodes of a tree. */
MUST_USE enum err tree_add(struct tree *t, const char *text, struct conf_origin at, struct node **out);
/* Replace the value of `key` in a mapping, or add the key. */
MUST_USE enum err tree_set(struct tree *t, struct node *map, const char *key, struct node *value);
/* The value of a key of a mapping, or NULL. */
const struct node *node_get(const struct node *map, const char *key);

#endif
