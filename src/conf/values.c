/* Why this exists: one way from a node of text to a field of struct conf and back, for every type of key.
 * Invariants: a field is written only by store(); a value is `has` exactly when its field means something; what the
 * command line gives goes before the file, and two different values at the same place of precedence are an error that
 * names both. */
#include "conf/conf_int.h"

#include "base/mem.h"

/* More layers than any model has: larger counts are as wrong, and their sum stays in 64 bits. */
#define COUNT_MOST ((uint64_t)1 << 40)

struct scalar {
    uint64_t whole;
    double real;
    bool flag;
    unsigned choice;  /* an enum's value */
    const char *text; /* in the node */
    uint64_t counts[CONF_STAGES_MAX];
    uint64_t counts_count;
};

struct choice {
    const char *name;
    unsigned value;
};

/* The first name of a value is the one written; the others mean the same elsewhere. */
static const struct choice schedule_names[] = {
    { "constant", SCHEDULE_CONSTANT },
    { "linear", SCHEDULE_LINEAR },
    { "cosine", SCHEDULE_COSINE },
    { "wsd", SCHEDULE_WSD },
    { "inverse_sqrt", SCHEDULE_INVERSE_SQRT },
    { "constant_with_warmup", SCHEDULE_CONSTANT },
    { "cosine_with_min_lr", SCHEDULE_COSINE },
    { "warmup_stable_decay", SCHEDULE_WSD },
    { "inverse-square-root", SCHEDULE_INVERSE_SQRT },
    { NULL, 0 },
};
static const struct choice pipeline_names[] = {
    { "gpipe", PIPE_GPIPE },
    { "1f1b", PIPE_1F1B },
    { "interleaved", PIPE_INTERLEAVED },
    { NULL, 0 },
};
static const struct choice bind_names[] = {
    { "auto", BIND_AUTO },
    { "none", BIND_NONE },
    { NULL, 0 },
};
static const struct choice recompute_names[] = {
    { "none", RECOMPUTE_NONE },
    { "selective", RECOMPUTE_SELECTIVE },
    { "full", RECOMPUTE_FULL },
    { "false", RECOMPUTE_NONE },
    { "true", RECOMPUTE_FULL },
    { NULL, 0 },
};
_Static_assert(sizeof(enum schedule) == sizeof(unsigned) && sizeof(enum pipe_schedule) == sizeof(unsigned) &&
                   sizeof(enum recompute) == sizeof(unsigned) && sizeof(enum bind) == sizeof(unsigned),
               "an enum's field is written as an unsigned");

/* By type of key: the names, and what an error expects. */
static const struct {
    const struct choice *names;
    const char *expected;
} choice_kinds[] = {
    [KEY_SCHEDULE] = { schedule_names, "constant, linear, cosine, wsd or inverse_sqrt" },
    [KEY_PIPELINE] = { pipeline_names, "gpipe, 1f1b or interleaved" },
    [KEY_RECOMPUTE] = { recompute_names, "none, selective or full" },
    [KEY_BIND] = { bind_names, "auto or none" },
};

/* ---- fields ---- */

static void *field(const struct conf *c, const struct conf_key *key)
{
    return (char *)(uintptr_t)c + key->offset;
}

static bool is_text(const struct conf_key *key)
{
    return key->type == KEY_TEXT || key->type == KEY_PATH || key->type == KEY_OUT_PATH;
}

static enum err store(struct conf *c, const struct conf_key *key, const struct scalar *s)
{
    void *f = field(c, key);
    switch (key->type) {
    case KEY_WHOLE:
        *(uint64_t *)f = s->whole;
        return OK;
    case KEY_SIGNED:
        *(int64_t *)f = (int64_t)s->whole;
        return OK;
    case KEY_REAL:
        *(double *)f = s->real;
        return OK;
    case KEY_FLAG:
    case KEY_REPORT:
        *(bool *)f = s->flag;
        return OK;
    case KEY_SCHEDULE:
    case KEY_PIPELINE:
    case KEY_RECOMPUTE:
    case KEY_BIND:
        *(unsigned *)f = s->choice;
        return OK;
    case KEY_COUNTS:
        memcpy(c->pipe_counts, s->counts, s->counts_count * sizeof(s->counts[0]));
        c->pipe_counts_count = s->counts_count;
        return OK;
    case KEY_TEXT:
    case KEY_PATH:
    case KEY_OUT_PATH:
        free(*(char **)f);
        *(char **)f = NULL;
        return s->text != NULL ? mem_copy_string(f, s->text, strlen(s->text)) : OK;
    case KEY_MODEL:
        break;
    }
    BUG_IF(true);
    return OK;
}

static bool same(const struct conf *c, const struct conf_key *key, bool has, const struct scalar *s)
{
    const struct conf_value *v = conf_value(c, key->name);
    const void *f = field(c, key);
    if (v->has != has || !has) {
        return v->has == has;
    }
    switch (key->type) {
    case KEY_WHOLE:
        return *(const uint64_t *)f == s->whole;
    case KEY_SIGNED:
        return *(const int64_t *)f == (int64_t)s->whole;
    case KEY_REAL:
        return *(const double *)f == s->real;
    case KEY_FLAG:
    case KEY_REPORT:
        return *(const bool *)f == s->flag;
    case KEY_SCHEDULE:
    case KEY_PIPELINE:
    case KEY_RECOMPUTE:
    case KEY_BIND:
        return *(const unsigned *)f == s->choice;
    case KEY_COUNTS:
        return c->pipe_counts_count == s->counts_count &&
               memcmp(c->pipe_counts, s->counts, s->counts_count * sizeof(s->counts[0])) == 0;
    default:
        return is_text(key) && strcmp(*(char *const *)f, s->text) == 0;
    }
}

/* ---- reading ---- */

static struct scalar_problem said(const char *text)
{
    struct scalar_problem p = { .bad = true };
    snprintf(p.text, sizeof(p.text), "%s", text);
    return p;
}

static struct scalar_problem read_whole(const struct conf_key *key, const struct node *n, struct scalar *s)
{
    struct scalar_problem p = scalar_whole(n, &s->whole);
    if (!p.bad && (s->whole < key->least || s->whole > key->most)) {
        p.bad = true;
        snprintf(p.text, sizeof(p.text), "expected a whole number from %llu to %llu, got %llu",
                 (unsigned long long)key->least, (unsigned long long)key->most, (unsigned long long)s->whole);
    }
    return p;
}

static struct scalar_problem read_real(const struct conf_key *key, const struct node *n, struct scalar *s)
{
    struct scalar_problem p = scalar_real(n, &s->real);
    bool inside = (key->low_open ? s->real > key->low : s->real >= key->low) &&
                  (key->high_open ? s->real < key->high : s->real <= key->high);
    if (!p.bad && !inside) {
        p.bad = true;
        snprintf(p.text, sizeof(p.text), "expected a number %s %.30s and %s %.30s, got %.60s",
                 key->low_open ? "above" : "from", scalar_write_real(key->low).text, key->high_open ? "below" : "up to",
                 scalar_write_real(key->high).text, n->text);
    }
    return p;
}

static struct scalar_problem read_choice(const struct conf_key *key, const struct node *n, struct scalar *s)
{
    for (const struct choice *i = choice_kinds[key->type].names; i->name != NULL && scalar_is_scalar(n); i++) {
        if (strcmp(i->name, n->text) == 0) {
            s->choice = i->value;
            return (struct scalar_problem){ 0 };
        }
    }
    struct scalar_problem p = { .bad = true };
    snprintf(p.text, sizeof(p.text), "expected %s, got %s", choice_kinds[key->type].expected, scalar_describe(n).text);
    return p;
}

static bool read_count(const struct node *n, struct scalar *s)
{
    uint64_t count;
    if (scalar_whole(n, &count).bad || s->counts_count == CONF_STAGES_MAX) {
        return false;
    }
    s->counts[s->counts_count++] = count < COUNT_MOST ? count : COUNT_MOST;
    return true;
}

/* A list of whole numbers, or a text of whole numbers with commas between them. */
static struct scalar_problem read_counts(const struct node *n, struct scalar *s)
{
    const struct node *wrong =
        n->kind == NODE_MAP || scalar_is_null(n) || (n->kind == NODE_LIST && n->count == 0) ? n : NULL;
    for (size_t i = 0; n->kind == NODE_LIST && i < n->count && wrong == NULL; i++) {
        wrong = read_count(n->child[i], s) ? NULL : n->child[i];
    }
    for (const char *next, *text = scalar_is_scalar(n) ? n->text : NULL; text != NULL && wrong == NULL; text = next) {
        size_t bytes = strcspn(text, ",");
        char word[24];
        snprintf(word, sizeof(word), "%.*s", (int)(bytes < sizeof(word) ? bytes : sizeof(word) - 1), text);
        struct node item = { .kind = NODE_PLAIN, .text = word + strspn(word, " "), .bytes = strlen(word) };
        wrong = read_count(&item, s) ? NULL : n;
        next = text[bytes] == ',' ? text + bytes + 1 : NULL;
    }
    struct scalar_problem p = { .bad = wrong != NULL };
    if (p.bad && s->counts_count == CONF_STAGES_MAX) {
        snprintf(p.text, sizeof(p.text), "more than %u stages", CONF_STAGES_MAX);
    } else if (p.bad) {
        snprintf(p.text, sizeof(p.text), "expected the layers of each stage, as in 3,5,4 or [3, 5, 4], got %s%s",
                 scalar_describe(wrong).text, wrong != n ? " in it" : "");
    }
    return p;
}

/* none, tensorboard, or a list of them; an empty list is none. */
static struct scalar_problem read_report(const struct node *n, struct scalar *s)
{
    size_t count = n->kind == NODE_LIST ? n->count : 1;
    for (size_t i = 0; i < count; i++) {
        const struct node *item = n->kind == NODE_LIST ? n->child[i] : n;
        if (!scalar_is_one_of(item, "none|tensorboard")) {
            struct scalar_problem p = { .bad = true };
            snprintf(p.text, sizeof(p.text), "expected none or tensorboard, got %s", scalar_describe(item).text);
            return p;
        }
        s->flag = s->flag || strcmp(item->text, "tensorboard") == 0;
    }
    return (struct scalar_problem){ 0 };
}

static bool has_parent_step(const char *path)
{
    for (const char *p = path; p != NULL; p = strchr(p, '/') != NULL ? strchr(p, '/') + 1 : NULL) {
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == '\0')) {
            return true;
        }
    }
    return false;
}

/* A path is taken as it stands: nothing is expanded, so what looks like an expansion is an error. */
static struct scalar_problem read_text(const struct conf_key *key, const struct node *n, bool argument,
                                       struct scalar *s)
{
    struct scalar_problem p = { 0 };
    if (!argument) {
        p = scalar_text(n);
    } else if (n->bytes == 0) {
        p = said("expected a text, got nothing");
    }
    s->text = n->text;
    if (p.bad || key->type == KEY_TEXT) {
        return p;
    }
    if (strchr(n->text, '$') != NULL || (n->text[0] == '~' && n->text[1] == '/')) {
        return said("variables and ~ are not expanded here (write the whole path)");
    }
    if (key->type == KEY_OUT_PATH && has_parent_step(n->text)) {
        return said("a path that is written to may not hold \"..\" (write the whole path)");
    }
    return p;
}

static struct scalar_problem read_value(const struct conf_key *key, const struct node *n, bool argument,
                                        struct scalar *s)
{
    *s = (struct scalar){ 0 };
    switch (key->type) {
    case KEY_WHOLE:
    case KEY_SIGNED:
        return read_whole(key, n, s);
    case KEY_REAL:
        return read_real(key, n, s);
    case KEY_FLAG:
        return scalar_flag(n, &s->flag);
    case KEY_SCHEDULE:
    case KEY_PIPELINE:
    case KEY_RECOMPUTE:
    case KEY_BIND:
        return read_choice(key, n, s);
    case KEY_COUNTS:
        return read_counts(n, s);
    case KEY_REPORT:
        return read_report(n, s);
    default:
        BUG_IF(!is_text(key));
        return read_text(key, n, argument, s);
    }
}

static void report_conflict(const struct conf *c, const struct conf_key *key, const char *spelled, const struct node *n,
                            struct findings *f)
{
    const struct conf_value *v = conf_value(c, key->name);
    struct buf old = { 0 };
    if (conf_write_value(c, key, &old) != OK) {
        buf_release(&old);
    }
    const char *text = old.data != NULL ? old.data : "another value";
    if (n->at.file == NULL) {
        findings_add(f, FINDING_ERROR, &n->at,
                     "--%s %s here, but --%s %.100s before it: two values for %s | keep one of the two", spelled,
                     scalar_show(n).text, v->spelled, text, key->name);
    } else {
        findings_add(f, FINDING_ERROR, &n->at,
                     "%s is %s here, but %s is %.100s at %s:%d:%d: two values for %s | keep one of the two", spelled,
                     scalar_show(n).text, v->spelled, text, v->at.file, v->at.line, v->at.col, key->name);
    }
    buf_release(&old);
}

static enum err note_given(struct conf_value *v, const char *spelled, const struct node *n)
{
    v->given = true;
    v->at = n->at;
    free(v->spelled);
    v->spelled = NULL;
    return mem_copy_string(&v->spelled, spelled, strlen(spelled));
}

enum err conf_take(struct conf *c, const struct conf_key *key, const char *spelled, const struct node *n,
                   struct findings *f)
{
    struct conf_value *v = conf_value(c, key->name);
    bool argument = n->at.file == NULL, has = true;
    struct scalar s = { 0 };
    struct scalar_problem p = { 0 };
    if (key->fallback == NULL && n->kind == NODE_PLAIN && scalar_is_null(n)) {
        has = false;
    } else {
        p = read_value(key, n, argument, &s);
    }
    bool same_rank = v->given && (v->at.file == NULL) == argument;
    if (p.bad) {
        findings_add(f, FINDING_ERROR, &n->at, "%s%s: %s", argument ? "--" : "", spelled, p.text);
        v->bad = true;
        return v->given ? OK : note_given(v, spelled, n);
    }
    if (v->bad && same_rank) {
        return OK;
    }
    if (same_rank) {
        if (!same(c, key, has, &s)) {
            report_conflict(c, key, spelled, n, f);
            v->bad = true;
        }
        return OK;
    }
    TRY(store(c, key, &s)); /* null: nothing, also where the file gave something */
    v->has = has;
    return note_given(v, spelled, n);
}

enum err conf_set_defaults(struct conf *c)
{
    for (size_t i = 0; i < conf_key_count; i++) {
        const struct conf_key *key = &conf_keys[i];
        if (key->fallback == NULL) {
            continue;
        }
        char text[32];
        snprintf(text, sizeof(text), "%s", key->fallback);
        struct node n = { .kind = NODE_PLAIN, .text = text, .bytes = strlen(text) };
        struct scalar s;
        struct scalar_problem p = read_value(key, &n, false, &s);
        BUG_IF(p.bad);
        TRY(store(c, key, &s));
        c->values->list[i].has = true;
    }
    return OK;
}

/* ---- writing ---- */

static const char *choice_name(const struct conf_key *key, unsigned value)
{
    const struct choice *i = choice_kinds[key->type].names;
    while (i->name != NULL && i->value != value) {
        i++;
    }
    BUG_IF(i->name == NULL);
    return i->name;
}

static enum err write_counts(const struct conf *c, struct buf *out)
{
    for (uint64_t i = 0; i < c->pipe_counts_count; i++) {
        TRY(buf_printf(out, "%s%llu", i > 0 ? "," : "", (unsigned long long)c->pipe_counts[i]));
    }
    return OK;
}

/* Quotes only where a text would read as something else. */
static enum err write_text(const char *text, struct buf *out)
{
    struct node n = { .kind = NODE_PLAIN, .text = (char *)(uintptr_t)text, .bytes = strlen(text) };
    bool simple = !scalar_text(&n).bad && text[0] != '-';
    for (const char *p = text; *p != '\0' && simple; p++) {
        simple =
            (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || strchr("_-./+", *p);
    }
    return simple ? buf_add_string(out, text) : buf_add_json_string(out, text, n.bytes);
}

enum err conf_write_value(const struct conf *c, const struct conf_key *key, struct buf *out)
{
    const void *f = field(c, key);
    if (!conf_value(c, key->name)->has) {
        return buf_add_string(out, "null");
    }
    switch (key->type) {
    case KEY_WHOLE:
        return buf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)f);
    case KEY_SIGNED:
        return buf_printf(out, "%lld", (long long)*(const int64_t *)f);
    case KEY_REAL:
        return buf_add_string(out, scalar_write_real(*(const double *)f).text);
    case KEY_FLAG:
        return buf_add_string(out, *(const bool *)f ? "true" : "false");
    case KEY_REPORT:
        return buf_add_string(out, *(const bool *)f ? "tensorboard" : "none");
    case KEY_SCHEDULE:
    case KEY_PIPELINE:
    case KEY_RECOMPUTE:
    case KEY_BIND:
        return buf_add_string(out, choice_name(key, *(const unsigned *)f));
    case KEY_COUNTS:
        return write_counts(c, out);
    default:
        return write_text(*(char *const *)f, out);
    }
}
