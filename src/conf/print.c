/* Why this exists: the table of keys as text: what a run was started with and where each value came from, the file that
 * starts it again, the help, the reference page, and the digest of what may change a result. */
#include "conf/conf_int.h"

#include "base/hash.h"

#define ORIGIN_COLUMN 48

static enum err print_origin(const struct conf_value *v, struct buf *out)
{
    if (!v->given) {
        return v->derived != NULL ? buf_printf(out, "derived from %s", v->derived) : buf_add_string(out, "default");
    }
    if (v->at.file == NULL) {
        return buf_add_string(out, "command line");
    }
    return buf_printf(out, "%s:%d", v->at.file, v->at.line);
}

static enum err print_model(const struct conf *c, struct buf *out)
{
    const struct model_conf *m = &c->model;
    if (!c->has_model) {
        return buf_add_string(out, "null");
    }
    TRY(buf_printf(
        out,
        "%s%s%s, %llu layers, width %llu, %llu heads (%llu key/value) of %llu, MLP %llu, vocabulary %llu, %s, %llu "
        "parameters",
        c->model_path != NULL ? c->model_path : "", c->model_path != NULL ? ": " : "",
        model_family_name(m->family), (unsigned long long)m->layers, (unsigned long long)m->hidden,
        (unsigned long long)m->heads, (unsigned long long)m->kv_heads, (unsigned long long)m->head_dim,
        (unsigned long long)m->ffn, (unsigned long long)m->vocab, m->tied ? "tied" : "untied",
        (unsigned long long)model_conf_parameters(m)));
    TRY(model_conf_special(m, out));
    if (m->embd_dropout == 0 && m->resid_dropout == 0) {
        return OK;
    }
    return buf_printf(out, ", dropout %s of embeddings and %s of residuals", scalar_write_real(m->embd_dropout).text,
                      scalar_write_real(m->resid_dropout).text);
}

enum err conf_print(const struct conf *c, struct buf *out)
{
    for (size_t i = 0; i < conf_key_count; i++) {
        const struct conf_key *key = &conf_keys[i];
        size_t start = out->bytes;
        TRY(buf_printf(out, "%s: ", key->name));
        TRY(key->type == KEY_MODEL ? print_model(c, out) : conf_write_value(c, key, out));
        int pad = ORIGIN_COLUMN - (int)(out->bytes - start);
        TRY(buf_printf(out, "%*s  # ", pad > 0 ? pad : 0, ""));
        TRY(print_origin(&c->values->list[i], out));
        TRY(buf_add_string(out, "\n"));
    }
    return OK;
}

const char *conf_identity_key(size_t i)
{
    for (size_t k = 0; k < conf_key_count; k++) {
        bool counts = conf_keys[k].identity && conf_keys[k].type != KEY_MODEL;
        if (counts && i-- == 0) {
            return conf_keys[k].name;
        }
    }
    return NULL;
}

enum err conf_write_key(const struct conf *c, const char *key, struct buf *out)
{
    return conf_write_value(c, &conf_keys[conf_index(key)], out);
}

/* A model folder stays a path (its weights belong to the run); anything else is written out. */
static enum err save_model(const struct conf *c, struct buf *out)
{
    if (!c->has_model) {
        return buf_add_string(out, "model: null\n");
    }
    if (c->model_path != NULL) {
        TRY(buf_add_string(out, "model: "));
        TRY(buf_add_json_string(out, c->model_path, strlen(c->model_path)));
        return buf_add_string(out, "\n");
    }
    struct buf json = { 0 };
    enum err err = OK;
    TRY_OUT(model_conf_write(&c->model, &json));
    TRY_OUT(buf_add_string(out, "model:\n"));
    for (const char *line = json.data; line != NULL && *line != '\0';) { /* JSON is YAML: indented it is a block */
        size_t bytes = strcspn(line, "\n");
        TRY_OUT(buf_printf(out, "  %.*s\n", (int)bytes, line));
        line += bytes + (line[bytes] == '\n');
    }
out:
    buf_release(&json);
    return err;
}

enum err conf_save(const struct conf *c, struct buf *out)
{
    for (size_t i = 0; i < conf_key_count; i++) {
        const struct conf_key *key = &conf_keys[i];
        if (key->section != NULL) {
            TRY(buf_printf(out, "%s# %s\n", i > 0 ? "\n" : "", key->section));
        }
        if (key->type == KEY_MODEL) {
            TRY(save_model(c, out));
            continue;
        }
        const struct conf_value *v = &c->values->list[i];
        /* Both lengths may be known by now; one of them was asked for. */
        bool other = strcmp(key->name, "max_steps") == 0 && conf_value(c, "num_train_epochs")->has;
        TRY(buf_printf(out, "%s%s: ", v->follows ? "# " : "", key->name));
        TRY(other ? buf_add_string(out, "null") : conf_write_value(c, key, out));
        TRY(buf_add_string(out, v->derived != NULL && v->has && !v->given ? "  # derived\n" : "\n"));
    }
    return OK;
}

/* ---- help ---- */

static const char *type_name(const struct conf_key *key)
{
    static const char *const names[] = {
        [KEY_WHOLE] = "whole number", [KEY_SIGNED] = "whole number", [KEY_REAL] = "number",
        [KEY_FLAG] = "true or false", [KEY_TEXT] = "text",           [KEY_PATH] = "path",
        [KEY_OUT_PATH] = "path",      [KEY_SCHEDULE] = "name",       [KEY_REPORT] = "name",
        [KEY_PIPELINE] = "name",      [KEY_RECOMPUTE] = "name",      [KEY_BIND] = "name",
        [KEY_COUNTS] = "list",        [KEY_MODEL] = "mapping or path",
    };
    return names[key->type];
}

static enum err help_range(const struct conf_key *key, struct buf *out)
{
    if (key->type == KEY_REAL) {
        return buf_printf(out, "%s%s, %s%s", key->low_open ? "(" : "[", scalar_write_real(key->low).text,
                          scalar_write_real(key->high).text, key->high_open ? ")" : "]");
    }
    if (key->type != KEY_WHOLE && key->type != KEY_SIGNED) {
        return OK;
    }
    if ((key->most & (key->most - 1)) == 0 && key->most > 4096) {
        return buf_printf(out, "[%llu, 2^%d]", (unsigned long long)key->least, __builtin_ctzll(key->most));
    }
    if (key->most == INT64_MAX) {
        return buf_printf(out, "[%llu, 2^63 - 1]", (unsigned long long)key->least);
    }
    return buf_printf(out, "[%llu, %llu]", (unsigned long long)key->least, (unsigned long long)key->most);
}

static enum err help_plain(const struct conf_key *key, struct buf *out)
{
    if (key->section != NULL) {
        TRY(buf_printf(out, "\n%s\n", key->section));
    }
    TRY(buf_printf(out, "  --%s  (%s", key->name, type_name(key)));
    size_t before = out->bytes;
    TRY(buf_add_string(out, " "));
    TRY(help_range(key, out));
    if (out->bytes == before + 1) {
        out->data[--out->bytes] = '\0';
    }
    TRY(buf_printf(out, "%s%s; default: %s)\n      %s\n", key->unit != NULL ? ", " : "",
                   key->unit != NULL ? key->unit : "", key->fallback != NULL ? key->fallback : key->none, key->help));
    return key->aliases != NULL ? buf_printf(out, "      also: %s\n", key->aliases) : OK;
}

static enum err code_words(const char *names, struct buf *out)
{
    for (const char *p = names; p != NULL && *p != '\0';) {
        size_t n = strcspn(p, " ");
        TRY(buf_printf(out, "%s`%.*s`", p != names ? ", " : "", (int)n, p));
        p += n + (p[n] == ' ');
    }
    return OK;
}

static enum err help_row(const struct conf_key *key, struct buf *out)
{
    if (key->section != NULL) {
        TRY(buf_printf(
            out, "\n## %s\n\n| key | type | range | unit | default | meaning | also |\n|---|---|---|---|---|---|---|\n",
            key->section));
    }
    TRY(buf_printf(out, "| `%s` | %s | ", key->name, type_name(key)));
    TRY(help_range(key, out));
    TRY(buf_printf(out, " | %s | ", key->unit != NULL ? key->unit : ""));
    TRY(key->fallback != NULL ? buf_printf(out, "`%s`", key->fallback) : buf_add_string(out, key->none));
    TRY(buf_printf(out, " | %s | ", key->help));
    TRY(code_words(key->aliases, out));
    return buf_add_string(out, " |\n");
}

static enum err help_translations(struct buf *out)
{
    TRY(buf_add_string(out, "\n"
                            "## Keys in other words\n"
                            "\n"
                            "These mean a key above in other words or another unit.\n"
                            "\n"
                            "| key | what it means |\n"
                            "|---|---|\n"));
    for (size_t i = 0; i < conf_translation_count; i++) {
        TRY(buf_add_string(out, "| "));
        TRY(code_words(conf_translations[i].names, out));
        TRY(buf_printf(out, " | %s |\n", conf_translations[i].help));
    }
    return OK;
}

static enum err help_foreign(struct buf *out)
{
    TRY(buf_add_string(out, "\n"
                            "## Keys of other systems\n"
                            "\n"
                            "These are known and refused, unless their value asks for nothing. None is ignored.\n"
                            "\n"
                            "| key | accepted | why |\n"
                            "|---|---|---|\n"));
    for (size_t i = 0; i < conf_foreign_count; i++) {
        const struct conf_foreign *k = &conf_foreign[i];
        TRY(buf_add_string(out, "| "));
        TRY(code_words(k->names, out));
        TRY(buf_add_string(out, " | "));
        for (const char *p = k->neutral; *p != '\0';) {
            size_t n = strcspn(p, "|");
            TRY(buf_printf(out, "%s`%.*s`", p != k->neutral ? ", " : "", (int)n, p));
            p += n + (p[n] == '|');
        }
        TRY(buf_printf(out, "%s | %s%s%s |\n", k->neutral[0] == '\0' ? "nothing" : "", k->why,
                       k->instead != NULL ? "; " : "", k->instead != NULL ? k->instead : ""));
    }
    return OK;
}

static const char markdown_head[] =
    "# Configuration\n"
    "\n"
    "This page is made from the table in `src/conf/keys.c`; `unit_conf` fails when it is stale\n"
    "(`INVAR_ACCEPT=1 build/unit_conf reference_page` writes it again).\n"
    "\n"
    "A configuration is one YAML file (JSON is YAML), and `--key value` or `--key=value` on the command line, which "
    "goes before\n"
    "the file. A key of a mapping is written with dots: `--model.hidden_size 64`. `-` and `_` are the same in a name.\n"
    "Every value has one type and is read strictly: `\"8\"` is a text, `010`, `1_000`, `yes` and `.inf` are errors, "
    "`1e-4` is a\n"
    "number. Anchors, tags, duplicate keys, further documents and tabs that indent are errors. `null` stands for a "
    "value that is\n"
    "not given, where there is such a thing. All errors are reported at once, with file, line and column. Two "
    "spellings of one\n"
    "key with different values are an error. Paths are relative to the current folder; nothing is expanded in them.\n";

enum err conf_help(struct buf *out, bool markdown)
{
    if (!markdown) {
        TRY(buf_add_string(out, "Configuration keys, in CONFIG.yaml as `key: value` or here as `--key value`:\n"));
        for (size_t i = 0; i < conf_key_count; i++) {
            TRY(help_plain(&conf_keys[i], out));
        }
        return OK;
    }
    TRY(buf_add_string(out, markdown_head));
    for (size_t i = 0; i < conf_key_count; i++) {
        TRY(help_row(&conf_keys[i], out));
    }
    TRY(buf_add_string(out, "\n## Fields of the model\n\n"));
    TRY(model_conf_help(out));
    TRY(buf_add_string(out, "\n## Rules\n\nWhat must hold between values.\n\n"));
    TRY(conf_rules_help(out));
    TRY(help_translations(out));
    return help_foreign(out);
}

/* ---- digest ---- */

struct digest_text {
    char text[4096]; /* identity fields are numbers and names of a few characters: this is ample */
    size_t used;
};

static void digest_add(struct digest_text *d, const char *name, const char *value)
{
    int n = snprintf(d->text + d->used, sizeof(d->text) - d->used, "%s=%s\n", name, value);
    BUG_IF(n < 0 || (size_t)n >= sizeof(d->text) - d->used);
    d->used += (size_t)n;
}

static void digest_whole(struct digest_text *d, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    digest_add(d, name, text);
}

static void digest_real(struct digest_text *d, const char *name, double value)
{
    digest_add(d, name, scalar_write_real(value).text);
}

static void digest_rope(struct digest_text *d, const char *name, const struct rope_conf *r)
{
    digest_whole(d, name, r->kind);
    digest_real(d, "theta", r->theta);
    digest_real(d, "factor", r->factor);
    digest_real(d, "low_freq", r->low_freq);
    digest_real(d, "high_freq", r->high_freq);
    digest_real(d, "beta_fast", r->beta_fast);
    digest_real(d, "beta_slow", r->beta_slow);
    digest_real(d, "attention_factor", r->attention_factor);
    digest_whole(d, "original_positions", r->original_positions);
    digest_whole(d, "truncate", r->truncate);
    digest_whole(d, "long_factor", hash64(r->long_factor, sizeof(r->long_factor), 0));
    digest_whole(d, "short_factor", hash64(r->short_factor, sizeof(r->short_factor), 0));
}

/* What is not as the family has it leaves a trace; the rest is in its name. So a model that could be described before
 * there were more families has the digest it had then. */
static void digest_special(struct digest_text *d, const struct model_conf *m)
{
    struct model_conf plain;
    model_conf_defaults(&plain, m->family);
    plain.hidden = m->hidden;
    plain.heads = m->heads;
    plain.head_dim = m->head_dim;
    model_conf_complete(&plain);
    const struct { const char *name; uint64_t is, usual; } facts[] = {
        { "norm", m->norm, plain.norm },
        { "norms", m->norms, plain.norms },
        { "gain_offset", m->gain_offset, plain.gain_offset },
        { "qk_norm", m->qk_norm, plain.qk_norm },
        { "activation", m->activation, plain.activation },
        { "gated", m->gated, plain.gated },
        { "parallel_residual", m->parallel_residual, plain.parallel_residual },
        { "learned_positions", m->learned_positions, plain.learned_positions },
        { "qkv_bias", m->qkv_bias, plain.qkv_bias },
        { "out_bias", m->out_bias, plain.out_bias },
        { "mlp_bias", m->mlp_bias, plain.mlp_bias },
        { "rotary_dim", m->rotary_dim, plain.rotary_dim },
        { "window", m->window, 0 },
        { "windowed", hash64(m->windowed, sizeof(m->windowed), 0), hash64(plain.windowed, sizeof(plain.windowed), 0) },
        { "unrotated", hash64(m->unrotated, sizeof(m->unrotated), 0),
          hash64(plain.unrotated, sizeof(plain.unrotated), 0) },
    };
    const struct { const char *name; double is, usual; } numbers[] = {
        { "attention_scale", m->attention_scale, plain.attention_scale },
        { "attention_cap", m->attention_cap, plain.attention_cap },
        { "final_cap", m->final_cap, plain.final_cap },
        { "embed_scale", m->embed_scale, plain.embed_scale },
    };
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        if (facts[i].is != facts[i].usual) {
            digest_whole(d, facts[i].name, facts[i].is);
        }
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i].is != numbers[i].usual) {
            digest_real(d, numbers[i].name, numbers[i].is);
        }
    }
    if (m->rope.kind != ROPE_DEFAULT) {
        digest_rope(d, "rope", &m->rope);
    }
    if (m->has_local_rope) {
        digest_rope(d, "local_rope", &m->local_rope);
    }
}

static void digest_model(struct digest_text *d, const struct model_conf *m)
{
    digest_whole(d, "family", m->family);
    digest_whole(d, "layers", m->layers);
    digest_whole(d, "hidden", m->hidden);
    digest_whole(d, "heads", m->heads);
    digest_whole(d, "kv_heads", m->kv_heads);
    digest_whole(d, "head_dim", m->head_dim);
    digest_whole(d, "ffn", m->ffn);
    digest_whole(d, "vocab", m->vocab);
    digest_whole(d, "positions", m->positions);
    digest_add(d, "norm_eps", scalar_write_real(m->norm_eps).text);
    digest_add(d, "rope_theta", scalar_write_real(m->rope.theta).text);
    digest_add(d, "initializer_range", scalar_write_real(m->initializer_range).text);
    digest_whole(d, "tied", m->tied);
    if (m->resid_dropout > 0 || m->embd_dropout > 0) { /* a model without has the digest it had before there was any */
        digest_add(d, "resid_dropout", scalar_write_real(m->resid_dropout).text);
        digest_add(d, "embd_dropout", scalar_write_real(m->embd_dropout).text);
    }
    digest_special(d, m);
}

static void digest_value(struct digest_text *d, const struct conf *c, const struct conf_key *key)
{
    const char *field = (const char *)c + key->offset;
    switch (key->type) {
    case KEY_WHOLE:
        digest_whole(d, key->name, *(const uint64_t *)(const void *)field);
        return;
    case KEY_SIGNED:
        digest_whole(d, key->name, (uint64_t) * (const int64_t *)(const void *)field);
        return;
    case KEY_REAL:
        digest_add(d, key->name, scalar_write_real(*(const double *)(const void *)field).text);
        return;
    case KEY_FLAG: /* an option that is off leaves no trace: digests from before there was one stand */
        if (*(const bool *)(const void *)field) {
            digest_add(d, key->name, "true");
        }
        return;
    case KEY_SCHEDULE:
        digest_whole(d, key->name, *(const unsigned *)(const void *)field);
        return;
    case KEY_MODEL:
        digest_model(d, &c->model);
        if (c->eod_mask_loss) { /* only then does it decide what counts */
            digest_whole(d, "eos_token_id", (uint64_t)c->model.eos_token_id);
        }
        return;
    default:
        BUG_IF(true);
    }
}

void conf_digest(const struct conf *c, char hex[33])
{
    struct digest_text d = { .used = 0 };
    for (size_t i = 0; i < conf_key_count; i++) {
        if (conf_keys[i].identity) {
            digest_value(&d, c, &conf_keys[i]);
        }
    }
    hash128_hex(d.text, d.used, hex);
}

/* ---- the same on every rank ---- */

static enum err hash_value(const struct conf *c, const struct conf_key *key, uint64_t *hash)
{
    if (key->type == KEY_MODEL) {
        struct digest_text d = { .used = 0 };
        digest_value(&d, c, key);
        *hash = hash64(d.text, d.used, 0);
        return OK;
    }
    struct buf text = { 0 };
    enum err err = conf_write_value(c, key, &text);
    *hash = err == OK ? hash64(text.data, text.bytes, 0) : 0;
    buf_release(&text);
    return err;
}

enum err conf_hashes(const struct conf *c, uint64_t hash[CONF_KEYS_MAX])
{
    memset(hash, 0, CONF_KEYS_MAX * sizeof(*hash));
    for (size_t i = 0; i < conf_key_count; i++) {
        if (conf_keys[i].type != KEY_PATH && strcmp(conf_keys[i].name, "threads") != 0) {
            TRY(hash_value(c, &conf_keys[i], &hash[i]));
            hash[i] = hash[i] << 1 | c->values->list[i].given;
        }
    }
    return OK;
}

size_t conf_hashes_differ(const uint64_t a[CONF_KEYS_MAX], const uint64_t b[CONF_KEYS_MAX])
{
    size_t first = CONF_KEYS_MAX;
    for (size_t i = 0; i < CONF_KEYS_MAX; i++) {
        bool differs = a[i] >> 1 != b[i] >> 1, given = ((a[i] | b[i]) & 1) != 0;
        if (differs && given) {
            return i;
        }
        first = differs && first == CONF_KEYS_MAX ? i : first;
    }
    return first;
}

enum err conf_describe(const struct conf *c, size_t key, struct buf *out)
{
    BUG_IF(key >= conf_key_count);
    TRY(buf_printf(out, "%s ", conf_keys[key].name));
    TRY(conf_keys[key].type == KEY_MODEL ? print_model(c, out) : conf_write_value(c, &conf_keys[key], out));
    TRY(buf_add_string(out, " ("));
    TRY(print_origin(&c->values->list[key], out));
    return buf_add_string(out, ")");
}
