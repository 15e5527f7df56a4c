/* Private to conf/: the table of keys, the values with their origins, and how the parts of conf_load meet. */
#ifndef CONF_CONF_INT_H
#define CONF_CONF_INT_H

#include "conf/conf.h"
#include "conf/scalar.h"
#include "conf/yaml.h"

enum key_type {
    KEY_WHOLE,    /* uint64_t */
    KEY_SIGNED,   /* a whole number kept in an int64_t */
    KEY_REAL,     /* double */
    KEY_FLAG,     /* bool */
    KEY_TEXT,     /* char * */
    KEY_PATH,     /* char *, a file name */
    KEY_OUT_PATH, /* KEY_PATH that is written to: must not hold ".." */
    KEY_SCHEDULE, /* enum schedule */
    KEY_PIPELINE, /* enum pipe_schedule */
    KEY_RECOMPUTE, /* enum recompute */
    KEY_BIND,     /* enum bind */
    KEY_COUNTS,   /* pipe_counts and pipe_counts_count: whole numbers, as a list or with commas between them */
    KEY_REPORT,   /* bool report_tensorboard: none or tensorboard, or a list of these */
    KEY_MODEL,    /* a mapping or a path: conf/model_conf.h */
};

struct conf_key {
    const char *name;
    enum key_type type;
    size_t offset;        /* of the field in struct conf */
    const char *section;  /* heading, on the first key of a section */
    const char *fallback; /* default as it would be written in the file; NULL: none, `null` stands for it */
    const char *none;     /* what happens without a value, where fallback is NULL */
    uint64_t least, most; /* KEY_WHOLE, KEY_SIGNED */
    double low, high;     /* KEY_REAL: [low, high] */
    bool low_open;        /* (low, high] */
    bool high_open;       /* [low, high) */
    bool identity;        /* may change a bit of the result: part of conf_digest */
    const char *unit;
    const char *help;
    const char *aliases; /* other spellings of the same meaning and unit, separated by spaces */
};

extern const struct conf_key conf_keys[];
extern const size_t conf_key_count;

/* Keys that other systems have and this version does not: accepted only with a value that asks for nothing. */
struct conf_foreign {
    const char *names;   /* separated by spaces; the first is the usual one */
    const char *neutral; /* "1|null": what may stand there; "" nothing may */
    const char *why;     /* completes "KEY: VALUE: ..." */
    const char *instead; /* the hint; NULL: "remove it, or set it to NEUTRAL" */
};

extern const struct conf_foreign conf_foreign[];
extern const size_t conf_foreign_count;

/* Keys of other systems that say what a key of the table says, in other words or another unit. */
struct conf_translation {
    const char *names; /* separated by spaces */
    const char *key;   /* of the table */
    const char *words; /* "full_shard=3|no=": the value of `key` for a word; nothing behind "=": it asks for nothing */
    double factor;     /* of a number that is none of the words; 0: no other value is known */
    const char *help;
};

extern const struct conf_translation conf_translations[];
extern const size_t conf_translation_count;

/* One value of the table's view. */
struct conf_value {
    bool has;            /* the field holds a value; false: none */
    bool given;          /* by the file or the command line */
    bool bad;            /* given, but wrong: rules about it are not asked */
    const char *derived; /* "max_steps": what it was computed from; NULL otherwise */
    bool follows;        /* from the number of ranks and what else is written: a comment in the saved configuration */
    struct conf_origin at;
    char *spelled; /* the name used where it was given */
};

struct conf_values {
    struct conf_value list[CONF_KEYS_MAX];
    struct tree file;   /* what origins point to; also holds the nodes of the command line's model */
    struct node *model; /* what `model` says; NULL: nothing */
};

/* Index of a key of the table by its own name; a name that is not there is a bug. */
size_t conf_index(const char *name);
struct conf_value *conf_value(const struct conf *c, const char *name);
/* Does `word` stand in the space-separated list? */
bool conf_names_hold(const char *names, const char *word);

/* Read one value of the table from a node (command line: is_argument, then a text needs no quotes) into the field. Adds
 * a finding and marks the value bad when it is wrong or differs from one given before at the same place of precedence.
 */
MUST_USE enum err conf_take(struct conf *c, const struct conf_key *key, const char *spelled, const struct node *n,
                            struct findings *f);
/* Set every field to its default. */
MUST_USE enum err conf_set_defaults(struct conf *c);
/* The value as it would be written in the file ("null" when there is none). */
MUST_USE enum err conf_write_value(const struct conf *c, const struct conf_key *key, struct buf *out);

/* Walk a tree or the arguments and take every value (conf/walk.c). ERR_USAGE: the tree holds no keys at all. */
MUST_USE enum err conf_take_tree(struct conf *c, const struct node *root, struct findings *f);
MUST_USE enum err conf_take_arguments(struct conf *c, int argc, char **argv, struct findings *f);
/* Read what `model` says, values->model: a mapping, a folder or a file (conf/load.c). */
MUST_USE enum err conf_take_model(struct conf *c, struct findings *f);

/* Fill what follows from other values (conf/resolve.c). */
MUST_USE enum err conf_resolve(struct conf *c);
/* Does the learning rate fall to min_lr at lr_decay_steps? */
bool conf_schedule_decays(enum schedule s);
/* Ask every rule (conf/rules.c). */
void conf_ask_rules(const struct conf *c, struct findings *f);
/* The rules as markdown. */
MUST_USE enum err conf_rules_help(struct buf *out);
/* Can the axes be so, each by itself (conf/layouts.c)? What is not known yet (0) fits. */
bool conf_tp_fits(const struct conf *c, uint64_t tp);
bool conf_pp_fits(const struct conf *c, uint64_t pp);
bool conf_cp_fits(const struct conf *c, uint64_t cp);
/* The layouts of this many ranks that fit and change least, at most `most`: first those that change fewest of the axes
 * given, then those whose sizes change by the smallest factor. Returns how many. */
size_t conf_layouts_near(const struct conf *c, uint64_t world, struct layout *out, size_t most);
/* model_conf_parse on a tree; root NULL: an empty text. ERR_USAGE when a finding was an error. */
MUST_USE enum err model_conf_from_node(struct model_conf *m, const struct node *root, const char *name,
                                       struct findings *f);
/* The fields of the `model` block as markdown. */
MUST_USE enum err model_conf_help(struct buf *out);

#endif
