/* Why this exists: some fields decide together what one of them means: the window's width and the layers that have it,
 * heads and their width. They are read here, when every field is known. */
#include "conf/family.h"

#include "base/fmath.h"

static unsigned long long ull(uint64_t n)
{
    return n;
}

static void set_bit(uint64_t *bits, uint64_t layer)
{
    bits[layer / 64] |= (uint64_t)1 << layer % 64;
}

static bool has_bit(const uint64_t *bits, uint64_t layer)
{
    return (bits[layer / 64] >> layer % 64 & 1) != 0;
}

/* A whole number that may be absent: `absent` then. 0 stands for null, where null is allowed. */
static uint64_t whole_or(struct parser *p, const char *name, uint64_t absent, bool null_allowed)
{
    const struct node *n = model_given(p, name);
    uint64_t value = absent;
    if (n == NULL) {
        return absent;
    }
    if (null_allowed && scalar_is_null(n)) {
        return 0;
    }
    (void)model_take_whole(p, name, n, 1, POSITIONS_MAX, &value);
    return value;
}

/* ---- heads ---- */

static void check_heads(struct parser *p)
{
    struct model_conf *m = p->m;
    const struct conf_origin *at = model_place(p, "num_attention_heads");
    bool own = m->head_dim > 0 || p->info->head_dim > 0;
    m->kv_heads = m->kv_heads > 0 ? m->kv_heads : m->heads;
    if (!own && m->hidden % m->heads != 0) {
        findings_add(p->f, FINDING_ERROR, at, "model: the width %llu is not a multiple of the %llu heads",
                     ull(m->hidden), ull(m->heads));
        return;
    }
    model_conf_complete(m);
    if (m->heads % m->kv_heads != 0) {
        findings_add(p->f, FINDING_ERROR, model_place(p, "num_key_value_heads"),
                     "model: %llu heads are not a multiple of %llu key/value heads", ull(m->heads), ull(m->kv_heads));
    }
    if (m->head_dim % HEAD_DIM_STEP != 0 || m->head_dim > MODEL_HEAD_DIM_MAX) {
        findings_add(p->f, FINDING_ERROR, model_given(p, "head_dim") != NULL ? model_place(p, "head_dim") : at,
                     "model: heads of %llu numbers (width %llu, %llu heads): a multiple of %u up to %u was expected",
                     ull(m->head_dim), ull(m->hidden), ull(m->heads), HEAD_DIM_STEP, MODEL_HEAD_DIM_MAX);
    }
    if (m->heads * m->head_dim > WIDTH_MAX) {
        findings_add(p->f, FINDING_ERROR, at, "model: %llu heads of %llu numbers: at most %llu in all", ull(m->heads),
                     ull(m->head_dim), ull(WIDTH_MAX));
    }
}

static void take_scale(struct parser *p)
{
    uint64_t scalar = model_find_field(p, "query_pre_attn_scalar") != NULL
                          ? whole_or(p, "query_pre_attn_scalar", p->info->scalar, false)
                          : p->m->head_dim;
    p->m->attention_scale = scalar > 0 ? 1 / fmath_sqrt((double)scalar) : 0;
}

/* ---- which layers ---- */

/* A list with one item for each layer, or nothing given. */
static const struct node *layer_list(struct parser *p, const char *name)
{
    const struct node *n = model_given(p, name);
    if (n == NULL || scalar_is_null(n)) {
        return NULL;
    }
    if (n->kind != NODE_LIST) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: expected a list with an item for each layer, got %s", name,
                     scalar_describe(n).text);
        return NULL;
    }
    if (n->count != p->m->layers) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: %zu items for %llu layers | write one for each", name,
                     n->count, ull(p->m->layers));
        return NULL;
    }
    return n;
}

static void take_unrotated(struct parser *p)
{
    const struct node *list = layer_list(p, "no_rope_layers");
    uint64_t interval = whole_or(p, "no_rope_layer_interval", 4, false);
    for (uint64_t i = 0; i < p->m->layers; i++) {
        uint64_t rotates = (i + 1) % interval != 0;
        if (list == NULL || model_take_whole(p, "no_rope_layers", list->child[i], 0, 1, &rotates)) {
            if (rotates == 0) {
                set_bit(p->m->unrotated, i);
            }
        }
    }
}

/* layer_types: the layers with sliding_attention. */
static void take_types(struct parser *p, const struct node *list)
{
    for (uint64_t i = 0; i < list->count; i++) {
        if (scalar_is_one_of(list->child[i], "sliding_attention")) {
            set_bit(p->m->windowed, i);
        } else if (!scalar_is_one_of(list->child[i], "full_attention")) {
            findings_add(p->f, FINDING_ERROR, &list->child[i]->at,
                         "model.layer_types: %s is no kind of layer of %s here | full_attention or sliding_attention",
                         scalar_show(list->child[i]).text, p->info->name);
        }
    }
}

static void take_windowed(struct parser *p)
{
    struct model_conf *m = p->m;
    const struct node *list = model_find_field(p, "layer_types") != NULL ? layer_list(p, "layer_types") : NULL;
    uint64_t n = p->info->windows == WINDOW_SWITCHED ? whole_or(p, "max_window_layers", 28, false)
                 : p->info->pattern == 6             ? whole_or(p, "sliding_window_pattern", 6, true)
                                                     : p->info->pattern;
    n = p->info->windows == WINDOW_PATTERN && n == 0 ? p->info->pattern : n;
    if (list != NULL) {
        take_types(p, list);
        return;
    }
    for (uint64_t i = 0; i < m->layers; i++) {
        bool has = p->info->windows == WINDOW_SWITCHED    ? i >= n
                   : p->info->windows == WINDOW_UNROTATED ? has_bit(m->unrotated, i)
                   : p->info->windows == WINDOW_PATTERN   ? (i + 1) % n != 0
                                                          : true;
        if (has) {
            set_bit(m->windowed, i);
        }
    }
}

static bool any_windowed(const struct model_conf *m)
{
    bool any = false;
    for (uint64_t i = 0; i < m->layers; i++) {
        any = any || has_bit(m->windowed, i);
    }
    return any;
}

static void take_window(struct parser *p)
{
    struct model_conf *m = p->m;
    bool switched = model_find_field(p, "use_sliding_window") != NULL, on = !switched;
    const struct node *use = switched ? model_given(p, "use_sliding_window") : NULL;
    if (p->info->windows == WINDOW_NONE) {
        return;
    }
    if (use != NULL && !model_take_flag(p, "use_sliding_window", use, &on)) {
        return;
    }
    m->window = whole_or(p, "sliding_window", p->info->window, p->info->windows != WINDOW_PATTERN);
    m->window = on ? m->window : 0;
    bool listed = model_find_field(p, "layer_types") != NULL && model_given(p, "layer_types") != NULL;
    if (m->window > 0 || listed) {
        take_windowed(p);
    }
    bool any = any_windowed(m);
    if (any && m->window == 0) {
        findings_add(p->f, FINDING_ERROR, model_place(p, "layer_types"),
                     "model.layer_types: layers with sliding_attention, but %s | give both or neither",
                     on ? "sliding_window is null" : "use_sliding_window is not true");
    }
    m->window = any ? m->window : 0;
}

/* ---- tokens, size ---- */

static void check_token(struct parser *p, const char *name, int64_t *token)
{
    if (*token >= 0 && (uint64_t)*token >= p->m->vocab) {
        findings_add(p->f, FINDING_WARNING, model_place(p, name),
                     "model.%s %lld is not in the vocabulary of %llu: taken as none", name, (long long)*token,
                     ull(p->m->vocab));
        *token = -1;
    }
}

void model_check(struct parser *p)
{
    struct model_conf *m = p->m;
    check_heads(p);
    if (p->f->errors > p->before) {
        return;
    }
    take_scale(p);
    if (model_find_field(p, "no_rope_layers") != NULL) {
        take_unrotated(p);
    }
    take_window(p);
    model_take_rope(p);
    check_token(p, "bos_token_id", &m->bos_token_id);
    check_token(p, "eos_token_id", &m->eos_token_id);
    if (p->f->errors == p->before && model_conf_parameters(m) > PARAMETERS_MAX) {
        findings_add(p->f, FINDING_ERROR, &p->root->at, "model: %llu parameters: at most 2^48 are possible here",
                     ull(model_conf_parameters(m)));
    }
}
