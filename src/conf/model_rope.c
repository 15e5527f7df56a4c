/* Why this exists: rotary settings come in two spellings (rope_theta beside rope_scaling, or all in rope_parameters),
 * one or two of them a model, of six kinds. A kind is a set of keys; a key of another kind is an error, for it would be
 * ignored. Frequencies are computed in double: fp32 is what rotates with them. */
#include "conf/family.h"

#include "base/fmath.h"

#define PI 3.14159265358979323846

#define KIND(kind) (1u << ROPE_##kind)
#define SCALED (KIND(LINEAR) | KIND(DYNAMIC) | KIND(LLAMA3) | KIND(YARN) | KIND(LONGROPE))
#define EXTENDED (KIND(LLAMA3) | KIND(YARN) | KIND(LONGROPE))

enum rope_use { ROPE_NUMBER, ROPE_COUNT, ROPE_SWITCH, ROPE_FACTORS };

/* One key of a rotary mapping beside its type, rope_theta and partial_rotary_factor. */
struct rope_key {
    const char *name;
    unsigned kinds, required;
    enum rope_use use;
    size_t offset; /* in struct rope_read */
    double low, high;
};

struct rope_read {
    struct rope_conf rope;
    double part, mscale, mscale_all; /* 0: not given */
    uint64_t long_count, short_count;
    bool has_factor;
};

static const char *const kind_names[] = {
    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_DYNAMIC] = "dynamic",
    [ROPE_LLAMA3] = "llama3",   [ROPE_YARN] = "yarn",     [ROPE_LONGROPE] = "longrope",
};

const char *model_rope_name(enum rope_kind kind)
{
    return kind_names[kind];
}

#define IN(member) offsetof(struct rope_read, member)
static const struct rope_key rope_keys[] = {
    { "factor", SCALED, SCALED & ~(KIND(YARN) | KIND(LONGROPE)), ROPE_NUMBER, IN(rope.factor), 0, 1e6 },
    { "original_max_position_embeddings", EXTENDED, 0, ROPE_COUNT, IN(rope.original_positions), 1, POSITIONS_MAX },
    { "low_freq_factor", KIND(LLAMA3), KIND(LLAMA3), ROPE_NUMBER, IN(rope.low_freq), 0, 1e6 },
    { "high_freq_factor", KIND(LLAMA3), KIND(LLAMA3), ROPE_NUMBER, IN(rope.high_freq), 0, 1e6 },
    { "attention_factor", KIND(YARN) | KIND(LONGROPE), 0, ROPE_NUMBER, IN(rope.attention_factor), 0, 1e6 },
    { "beta_fast", KIND(YARN), 0, ROPE_NUMBER, IN(rope.beta_fast), 0, 1e6 },
    { "beta_slow", KIND(YARN), 0, ROPE_NUMBER, IN(rope.beta_slow), 0, 1e6 },
    { "mscale", KIND(YARN), 0, ROPE_NUMBER, IN(mscale), 0, 1e6 },
    { "mscale_all_dim", KIND(YARN), 0, ROPE_NUMBER, IN(mscale_all), 0, 1e6 },
    { "truncate", KIND(YARN), 0, ROPE_SWITCH, IN(rope.truncate), 0, 0 },
    { "long_factor", KIND(LONGROPE), KIND(LONGROPE), ROPE_FACTORS, IN(rope.long_factor), 0, 0 },
    { "short_factor", KIND(LONGROPE), KIND(LONGROPE), ROPE_FACTORS, IN(rope.short_factor), 0, 0 },
};

/* ---- one mapping ---- */

/* "rope_scaling.factor" */
struct rope_name {
    char text[160];
};

static struct rope_name name_of(const char *map, const char *key)
{
    struct rope_name name;
    snprintf(name.text, sizeof(name.text), "%.60s.%.60s", map, key);
    return name;
}

static bool take_factors(struct parser *p, const char *name, const struct node *n, float *out, uint64_t *count)
{
    if (n->kind != NODE_LIST || n->count > MODEL_HEAD_DIM_MAX / 2) {
        findings_add(p->f, FINDING_ERROR, &n->at,
                     "model.%s: expected a list of numbers, one for each rotated pair, got %s", name,
                     scalar_describe(n).text);
        return false;
    }
    for (size_t i = 0; i < n->count; i++) {
        double value = 0;
        if (!model_take_real(p, name, n->child[i], 0, 1e6, &value)) {
            return false;
        }
        out[i] = (float)value;
    }
    *count = n->count;
    return true;
}

static void take_key(struct parser *p, struct rope_read *r, const struct rope_key *k, const char *map,
                     const struct node *n)
{
    void *member = (char *)r + k->offset;
    struct rope_name name = name_of(map, k->name);
    if (scalar_is_null(n)) {
        return; /* as if it were not there */
    }
    switch (k->use) {
    case ROPE_NUMBER:
        (void)model_take_real(p, name.text, n, k->low, k->high, member);
        break;
    case ROPE_COUNT:
        (void)model_take_whole(p, name.text, n, (uint64_t)k->low, (uint64_t)k->high, member);
        break;
    case ROPE_SWITCH:
        (void)model_take_flag(p, name.text, n, member);
        break;
    case ROPE_FACTORS:
        (void)take_factors(p, name.text, n, member, member == r->rope.long_factor ? &r->long_count : &r->short_count);
        break;
    }
}

/* The kind a mapping names, by `rope_type` or `type`. */
static bool take_kind(struct parser *p, const char *map, const struct node *n, enum rope_kind *kind)
{
    const struct node *now = node_get(n, "rope_type"), *old = node_get(n, "type"), *type = now != NULL ? now : old;
    *kind = ROPE_DEFAULT;
    if (now != NULL && old != NULL &&
        (!scalar_is_scalar(now) || !scalar_is_scalar(old) || strcmp(now->text, old->text) != 0)) {
        findings_add(p->f, FINDING_ERROR, &old->at, "model.%s: type %s here, but rope_type is %s | keep one of the two",
                     map, scalar_show(old).text, scalar_show(now).text);
        return false;
    }
    if (type == NULL || scalar_is_null(type)) {
        return true;
    }
    if (p->m->family == FAMILY_PHI3 && scalar_is_one_of(type, "su|yarn")) { /* its names before longrope */
        *kind = ROPE_LONGROPE;
        return true;
    }
    for (int i = 0; i <= ROPE_LONGROPE; i++) {
        if (scalar_is_one_of(type, kind_names[i])) {
            *kind = (enum rope_kind)i;
            return true;
        }
    }
    findings_add(p->f, FINDING_ERROR, &type->at,
                 "model.%s: rope_type %s: this version has default, linear, dynamic, llama3, yarn and longrope", map,
                 scalar_show(type).text);
    return false;
}

/* rope_theta stands alone or inside the mapping; both must agree. */
static void take_theta(struct parser *p, struct rope_read *r, const char *map, const struct node *n,
                       const struct node *alone)
{
    double value = 0;
    if (!model_take_real(p, name_of(map, "rope_theta").text, n, 0, 1e12, &value)) {
        return;
    }
    if (alone != NULL && value != r->rope.theta) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: %s here, but %s at line %d | keep one of the two",
                     name_of(map, "rope_theta").text, scalar_write_real(value).text,
                     scalar_write_real(r->rope.theta).text, alone->at.line);
    }
    r->rope.theta = value;
}

static void take_item(struct parser *p, struct rope_read *r, const char *map, const struct node *key,
                      const struct node *value)
{
    for (size_t i = 0; i < sizeof(rope_keys) / sizeof(rope_keys[0]); i++) {
        const struct rope_key *k = &rope_keys[i];
        if (strcmp(k->name, key->text) == 0 && (k->kinds >> r->rope.kind & 1u) != 0) {
            take_key(p, r, k, map, value);
            return;
        }
    }
    findings_add(p->f, FINDING_ERROR, &key->at,
                 "model.%s.%s: rope_type %s has no such key | remove it, or name its type", map,
                 scalar_quote(key->text, key->bytes).text, kind_names[r->rope.kind]);
}

/* Read a whole mapping. `alone`: where rope_theta was given beside it. */
static void take_map(struct parser *p, struct rope_read *r, const char *map, const struct node *n,
                     const struct node *alone)
{
    if (n->kind != NODE_MAP) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: expected a mapping or null, got %s", map,
                     scalar_describe(n).text);
        return;
    }
    if (!take_kind(p, map, n, &r->rope.kind)) {
        return; /* its other keys belong to that type */
    }
    bool yarn = r->rope.kind == ROPE_YARN;
    r->rope.beta_fast = yarn ? 32 : 0;
    r->rope.beta_slow = yarn ? 1 : 0;
    r->rope.truncate = yarn;
    r->rope.attention_factor = yarn || r->rope.kind == ROPE_LONGROPE ? 0 : 1;
    for (size_t i = 0; i + 1 < n->count; i += 2) {
        const struct node *key = n->child[i], *value = n->child[i + 1];
        if (strcmp(key->text, "rope_theta") == 0) {
            take_theta(p, r, map, value, alone);
        } else if (strcmp(key->text, "partial_rotary_factor") == 0) {
            if (!scalar_is_null(value)) {
                (void)model_take_real(p, name_of(map, key->text).text, value, 0, 1, &r->part);
            }
        } else if (!conf_names_hold("rope_type type", key->text)) {
            take_item(p, r, map, key, value);
        }
    }
    for (size_t i = 0; i < sizeof(rope_keys) / sizeof(rope_keys[0]); i++) {
        const struct rope_key *k = &rope_keys[i];
        const struct node *value = node_get(n, k->name);
        if ((k->required >> r->rope.kind & 1u) != 0 && (value == NULL || scalar_is_null(value))) {
            findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: %s is not given, and rope_type %s needs it", map,
                         k->name, kind_names[r->rope.kind]);
        }
    }
    const struct node *factor = node_get(n, "factor");
    r->has_factor = factor != NULL && !scalar_is_null(factor);
}

/* ---- what follows ---- */

double model_attention_factor(const struct rope_conf *r)
{
    if (r->factor <= 1) {
        return 1;
    }
    return r->kind == ROPE_YARN ? 0.1 * fmath_log(r->factor) + 1
                                : fmath_sqrt(1 + fmath_log(r->factor) / fmath_log((double)r->original_positions));
}

/* How many positions a model had before it was extended: said inside the mapping, beside it, or all it has. */
static void take_original(struct parser *p, struct rope_read *r, const char *map)
{
    const struct node *beside = model_given(p, "original_max_position_embeddings");
    uint64_t inside = r->rope.original_positions, value = 0;
    r->rope.original_positions = 0;
    if (beside != NULL && !scalar_is_null(beside) &&
        !model_take_whole(p, "original_max_position_embeddings", beside, 1, POSITIONS_MAX, &value)) {
        return;
    }
    if ((1u << r->rope.kind & EXTENDED) == 0) {
        r->rope.original_positions = r->rope.kind == ROPE_DYNAMIC ? p->m->positions : 0;
        return;
    }
    if (inside != 0 && value != 0 && inside != value) {
        findings_add(p->f, FINDING_ERROR, &beside->at,
                     "model.original_max_position_embeddings: %llu here, but %s has %llu | keep one of the two",
                     (unsigned long long)value, map, (unsigned long long)inside);
    }
    r->rope.original_positions = inside != 0                   ? inside
                                 : value != 0                  ? value
                                 : p->m->family == FAMILY_PHI3 ? 4096
                                                               : p->m->positions;
}

/* The words for two values that must stand in order. */
static void refuse(struct parser *p, const struct node *n, const char *map, const char *what)
{
    findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: %s", map, what);
}

static void complete(struct parser *p, struct rope_read *r, const char *map, const struct node *n)
{
    struct rope_conf *c = &r->rope;
    if (!r->has_factor && (c->kind == ROPE_YARN || c->kind == ROPE_LONGROPE)) {
        c->factor = (double)p->m->positions / (double)c->original_positions;
    }
    if (c->kind != ROPE_LONGROPE && c->factor < 1) {
        refuse(p, n, map, "a factor below 1 shortens what the model can read: at least 1 was expected");
    }
    if (c->kind == ROPE_LLAMA3 && c->high_freq <= c->low_freq) {
        refuse(p, n, map, "high_freq_factor must be above low_freq_factor");
    }
    if (c->kind == ROPE_YARN && (c->theta <= 1 || c->beta_fast < c->beta_slow)) {
        refuse(p, n, map, "yarn needs a rope_theta above 1, and a beta_fast that is not below beta_slow");
    }
    if (c->kind == ROPE_DYNAMIC && p->m->rotary_dim <= 2) {
        refuse(p, n, map, "dynamic needs more than 2 rotated numbers a head");
    }
    if (c->kind == ROPE_LONGROPE && c->original_positions < 2) {
        refuse(p, n, map, "longrope needs an original_max_position_embeddings of at least 2");
    }
    if (c->attention_factor > 0 || p->f->errors > p->before) {
        return;
    }
    c->attention_factor = model_attention_factor(c);
    if (c->kind == ROPE_YARN && r->mscale > 0 && r->mscale_all > 0 && c->factor > 1) {
        double log_factor = 0.1 * fmath_log(c->factor);
        c->attention_factor = (log_factor * r->mscale + 1) / (log_factor * r->mscale_all + 1);
    }
}

static void check_factors(struct parser *p, const struct rope_read *r, const char *map, const struct node *n)
{
    uint64_t pairs = p->m->rotary_dim / 2;
    if (r->rope.kind == ROPE_LONGROPE && p->f->errors == p->before &&
        (r->long_count != pairs || r->short_count != pairs)) {
        findings_add(
            p->f, FINDING_ERROR, &n->at,
            "model.%s: %llu long and %llu short factors: %llu of each were expected, one for each rotated pair", map,
            (unsigned long long)r->long_count, (unsigned long long)r->short_count, (unsigned long long)pairs);
    }
}

/* How many numbers of a head are rotated: the part said beside the mapping or in it, or what the family has. */
static void take_part(struct parser *p, const struct rope_read *r, const char *map)
{
    struct model_conf *m = p->m;
    bool partial = m->family == FAMILY_PHI3 || m->family == FAMILY_NEOX;
    const struct node *beside = partial ? model_given(p, "partial_rotary_factor") : NULL;
    double part = beside != NULL || r->part == 0 ? p->info->rotary_part : r->part;
    const struct conf_origin *at = beside != NULL ? &beside->at : model_place(p, map);
    if (beside != NULL && !scalar_is_null(beside) &&
        !model_take_real(p, "partial_rotary_factor", beside, 0, 1, &part)) {
        return;
    }
    if (r->part != 0 && (partial ? beside != NULL && r->part != part : r->part != 1)) {
        findings_add(p->f, FINDING_ERROR, model_place(p, map), "model.%s.partial_rotary_factor %s: %s", map,
                     scalar_write_real(r->part).text,
                     partial ? "another stands beside it | keep one of the two" : "this family rotates whole heads");
    }
    m->rotary_dim = (uint64_t)((double)m->head_dim * part);
    if (m->rotary_dim % 2 != 0 || m->rotary_dim == 0) {
        findings_add(p->f, FINDING_ERROR, at, "model: %s of heads of %llu numbers is %llu: an even number was expected",
                     scalar_write_real(part).text, (unsigned long long)m->head_dim, (unsigned long long)m->rotary_dim);
    }
}

/* ---- the model ---- */

static void take_rotary(struct parser *p, const char *map, const struct node *n)
{
    struct rope_read r = { .rope = p->m->rope };
    if (n != NULL) {
        take_map(p, &r, map, n, model_given(p, "rope_theta"));
    }
    take_part(p, &r, map);
    if (n == NULL || n->kind != NODE_MAP || p->f->errors > p->before) {
        return;
    }
    take_original(p, &r, map);
    complete(p, &r, map, n);
    check_factors(p, &r, map, n);
    p->m->rope = r.rope;
}

/* Gemma 3's rope_parameters: a mapping for each kind of layer. */
static void take_both(struct parser *p, const struct node *n)
{
    const struct node *full = NULL, *local = NULL;
    for (size_t i = 0; i + 1 < n->count; i += 2) {
        const struct node *key = n->child[i], *value = scalar_is_null(n->child[i + 1]) ? NULL : n->child[i + 1];
        if (strcmp(key->text, "full_attention") == 0) {
            full = value;
        } else if (strcmp(key->text, "sliding_attention") == 0) {
            local = value;
        } else {
            findings_add(p->f, FINDING_ERROR, &key->at,
                         "model.rope_parameters.%s: a mapping for full_attention and one for sliding_attention were "
                         "expected",
                         scalar_quote(key->text, key->bytes).text);
        }
    }
    take_rotary(p, "rope_parameters.full_attention", full);
    if (local != NULL) {
        struct rope_read r = { .rope = p->m->local_rope };
        take_map(p, &r, "rope_parameters.sliding_attention", local, model_given(p, "rope_local_base_freq"));
        if (r.rope.kind != ROPE_DEFAULT || (r.part != 0 && r.part != 1)) {
            refuse(p, local, "rope_parameters.sliding_attention", "layers with a window have plain positions here");
        }
        p->m->local_rope = r.rope;
    }
}

void model_take_rope(struct parser *p)
{
    if (p->m->learned_positions) {
        p->m->rotary_dim = 0;
        return;
    }
    const struct node *old = model_given(p, "rope_scaling"), *now = model_given(p, "rope_parameters");
    old = old != NULL && scalar_is_null(old) ? NULL : old;
    now = now != NULL && scalar_is_null(now) ? NULL : now;
    if (old != NULL && now != NULL) {
        findings_add(p->f, FINDING_ERROR, &now->at,
                     "model.rope_parameters: rope_scaling at line %d says the same | keep one of the two",
                     old->at.line);
        return;
    }
    if (now != NULL && p->m->has_local_rope && now->kind == NODE_MAP) {
        take_both(p, now);
    } else {
        take_rotary(p, now != NULL ? "rope_parameters" : "rope_scaling", now != NULL ? now : old);
    }
}

void model_try_rope(struct parser *p)
{
    static const char *const names[] = { "rope_scaling", "rope_parameters" };
    for (size_t i = 0; i < 2; i++) {
        const struct node *n = model_given(p, names[i]);
        bool flat = i == 0 || !p->m->has_local_rope;
        if (n != NULL && !scalar_is_null(n) && flat) {
            struct rope_read r = { .rope = p->m->rope };
            take_map(p, &r, names[i], n, model_given(p, "rope_theta"));
        }
    }
}

/* ---- frequencies ---- */

/* The pair (as a real number) whose wave turns `turns` times in the original length. */
static double yarn_pair(const struct rope_conf *r, double dim, double turns)
{
    return dim * fmath_log((double)r->original_positions / (turns * 2 * PI)) / (2 * fmath_log(r->theta));
}

static double whole_below(double x)
{
    double whole = (double)(int64_t)x;
    return whole > x ? whole - 1 : whole;
}

/* Pairs below *low keep their frequency, those above *high have it divided. */
static void yarn_range(const struct rope_conf *r, double dim, double *low, double *high)
{
    *low = yarn_pair(r, dim, r->beta_fast);
    *high = yarn_pair(r, dim, r->beta_slow);
    if (r->truncate) {
        *low = whole_below(*low);
        *high = -whole_below(-*high);
    }
    *low = *low > 0 ? *low : 0;
    *high = *high < dim - 1 ? *high : dim - 1;
    *high += *low == *high ? 0.001 : 0;
}

static double llama3_frequency(const struct rope_conf *r, double f)
{
    double length = (double)r->original_positions, wave = 2 * PI / f;
    if (wave < length / r->high_freq) {
        return f;
    }
    if (wave > length / r->low_freq) {
        return f / r->factor;
    }
    double smooth = (length / wave - r->low_freq) / (r->high_freq - r->low_freq);
    return (1 - smooth) * f / r->factor + smooth * f;
}

void model_conf_frequencies(const struct model_conf *m, const struct rope_conf *r, uint64_t length, double *frequency,
                            double *scale)
{
    double dim = (double)m->rotary_dim, theta = r->theta, low = 0, high = 0;
    const float *factors = length > r->original_positions ? r->long_factor : r->short_factor;
    if (r->kind == ROPE_DYNAMIC && length > m->positions) {
        double stretch = r->factor * (double)length / (double)m->positions - (r->factor - 1);
        theta *= fmath_pow(stretch, dim / (dim - 2));
    }
    if (r->kind == ROPE_YARN) {
        yarn_range(r, dim, &low, &high);
    }
    for (uint64_t i = 0; i < m->rotary_dim / 2; i++) {
        double f = fmath_pow(theta, -(double)(2 * i) / dim);
        if (r->kind == ROPE_LINEAR) {
            f /= r->factor;
        } else if (r->kind == ROPE_LLAMA3) {
            f = llama3_frequency(r, f);
        } else if (r->kind == ROPE_YARN) {
            double ramp = ((double)i - low) / (high - low);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            f = f / r->factor * ramp + f * (1 - ramp);
        } else if (r->kind == ROPE_LONGROPE) {
            f /= (double)factors[i];
        }
        frequency[i] = f;
    }
    *scale = r->attention_factor;
}
