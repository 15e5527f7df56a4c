/* Private to conf/: what a rule is, for the files that hold rules. */
#ifndef CONF_RULES_INT_H
#define CONF_RULES_INT_H

#include "conf/conf_int.h"

struct rule;

struct asker {
    const struct conf *c;
    const struct rule *rule;
    struct findings *f;
};

struct rule {
    const char *id;
    enum finding_level level;
    const char *keys; /* separated by spaces */
    void (*ask)(const struct asker *a);
    const char *help;
};

/* The finding's place: where the key was given; else the configuration as a whole. */
#define REPORT(asker, key, ...)                                                                                        \
    findings_add((asker)->f, (asker)->rule->level, rule_place((asker)->c, (key)), __VA_ARGS__)

/* Was the key given, with a value that is not null? */
bool rule_given(const struct asker *a, const char *key);
/* Where it was; NULL: nowhere (key NULL: the configuration as a whole). */
const struct conf_origin *rule_place(const struct conf *c, const char *key);

static inline unsigned long long ull(uint64_t n)
{
    return (unsigned long long)n;
}

/* conf/rules_layout.c: the batch over the ranks, and the ranks themselves. */
extern const struct rule rules_layout[];
extern const size_t rules_layout_count;

#endif
