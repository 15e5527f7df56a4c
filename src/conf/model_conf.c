/* Why this exists: config.json is the one description of a model that everyone has. Every field of the two families is
 * a row: used (it sets a member of struct model_conf), fixed (only the value that the arithmetic here has is accepted),
 * metadata (cannot change the arithmetic), or a warning (asks for code to be run, which never happens). Anything else
 * is an error, so a model that needs something else is never trained as something it is not. Invariant: after a parse
 * without errors every size is in range and no product of sizes overflows 2^62. */
#include "conf/conf_int.h"

#include "base/file.h"
#include "base/fmath.h"
#include "conf/nearest.h"

#define GPT2 1u
#define LLAMA 2u
#define BOTH 3u

#define WIDTH_MAX ((uint64_t)1 << 17)
#define FFN_MAX ((uint64_t)1 << 20)
#define LAYERS_MAX 4096u
#define VOCAB_MAX ((uint64_t)1 << 24)
#define POSITIONS_MAX ((uint64_t)1 << 30)
#define HEAD_DIM_MAX 256u
#define HEAD_DIM_STEP 8u
#define PARAMETERS_MAX ((uint64_t)1 << 48)

enum field_use {
    FIELD_WHOLE,
    FIELD_REAL,
    FIELD_RATE, /* a number in [0, 1) */
    FIELD_FLAG,
    FIELD_TOKEN, /* a token id, null, or a list of ids of which the first is kept */
    FIELD_FIXED, /* must be one of `accepted` */
    FIELD_META,
    FIELD_WARN,
    FIELD_ROPE, /* a mapping of rotary settings, or null */
};

struct field {
    const char *names; /* separated by spaces: spellings of one field */
    unsigned families;
    enum field_use use;
    size_t offset;
    uint64_t least, most;
    double low, high; /* (low, high] */
    const char *accepted, *why;
    bool required;
    bool may_be_null;
};

#define AT(member) offsetof(struct model_conf, member)
#define NO_DROPOUT "attention dropout is not supported"

static const struct field fields[] = {
    { .names = "model_type", .families = BOTH, .use = FIELD_META },
    { .names = "n_layer num_hidden_layers",
      .families = GPT2,
      .offset = AT(layers),
      .least = 1,
      .most = LAYERS_MAX,
      .required = true },
    { .names = "n_embd hidden_size",
      .families = GPT2,
      .offset = AT(hidden),
      .least = 1,
      .most = WIDTH_MAX,
      .required = true },
    { .names = "n_head num_attention_heads",
      .families = GPT2,
      .offset = AT(heads),
      .least = 1,
      .most = WIDTH_MAX,
      .required = true },
    { .names = "n_positions max_position_embeddings",
      .families = GPT2,
      .offset = AT(positions),
      .least = 1,
      .most = POSITIONS_MAX,
      .required = true },
    { .names = "n_inner", .families = GPT2, .offset = AT(ffn), .least = 1, .most = FFN_MAX, .may_be_null = true },
    { .names = "layer_norm_epsilon", .families = GPT2, .use = FIELD_REAL, .offset = AT(norm_eps), .high = 1 },
    { .names = "activation_function",
      .families = GPT2,
      .use = FIELD_FIXED,
      .accepted = "gelu_new|gelu_pytorch_tanh",
      .why = "gpt2 here has the tanh form of GELU" },
    { .names = "resid_pdrop", .families = GPT2, .use = FIELD_RATE, .offset = AT(resid_dropout), .may_be_null = true },
    { .names = "embd_pdrop", .families = GPT2, .use = FIELD_RATE, .offset = AT(embd_dropout), .may_be_null = true },
    { .names = "attn_pdrop", .families = GPT2, .use = FIELD_FIXED, .accepted = "0.0|null", .why = NO_DROPOUT },
    { .names = "scale_attn_weights",
      .families = GPT2,
      .use = FIELD_FIXED,
      .accepted = "true",
      .why = "attention here is scaled by the root of head_dim" },
    { .names = "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn add_cross_attention",
      .families = GPT2,
      .use = FIELD_FIXED,
      .accepted = "false",
      .why = "this form of attention is not in this version" },

    { .names = "num_hidden_layers",
      .families = LLAMA,
      .offset = AT(layers),
      .least = 1,
      .most = LAYERS_MAX,
      .required = true },
    { .names = "hidden_size",
      .families = LLAMA,
      .offset = AT(hidden),
      .least = 1,
      .most = WIDTH_MAX,
      .required = true },
    { .names = "num_attention_heads",
      .families = LLAMA,
      .offset = AT(heads),
      .least = 1,
      .most = WIDTH_MAX,
      .required = true },
    { .names = "num_key_value_heads",
      .families = LLAMA,
      .offset = AT(kv_heads),
      .least = 1,
      .most = WIDTH_MAX,
      .may_be_null = true },
    { .names = "head_dim",
      .families = LLAMA,
      .offset = AT(head_dim),
      .least = 1,
      .most = WIDTH_MAX,
      .may_be_null = true },
    { .names = "intermediate_size",
      .families = LLAMA,
      .offset = AT(ffn),
      .least = 1,
      .most = FFN_MAX,
      .required = true },
    { .names = "max_position_embeddings",
      .families = LLAMA,
      .offset = AT(positions),
      .least = 1,
      .most = POSITIONS_MAX,
      .required = true },
    { .names = "rms_norm_eps", .families = LLAMA, .use = FIELD_REAL, .offset = AT(norm_eps), .high = 1 },
    { .names = "rope_theta", .families = LLAMA, .use = FIELD_REAL, .offset = AT(rope.theta), .high = 1e12 },
    { .names = "rope_scaling rope_parameters", .families = LLAMA, .use = FIELD_ROPE },
    { .names = "attention_bias mlp_bias",
      .families = LLAMA,
      .use = FIELD_FIXED,
      .accepted = "false",
      .why = "llama here has no biases" },
    { .names = "hidden_act",
      .families = LLAMA,
      .use = FIELD_FIXED,
      .accepted = "silu|swish",
      .why = "llama here has SiLU" },
    { .names = "attention_dropout", .families = LLAMA, .use = FIELD_FIXED, .accepted = "0.0|null", .why = NO_DROPOUT },
    { .names = "pretraining_tp",
      .families = LLAMA,
      .use = FIELD_FIXED,
      .accepted = "1",
      .why = "it changes the order of sums" },
    { .names = "sliding_window",
      .families = LLAMA,
      .use = FIELD_FIXED,
      .accepted = "null",
      .why = "attention here sees all earlier tokens" },

    { .names = "vocab_size", .families = BOTH, .offset = AT(vocab), .least = 2, .most = VOCAB_MAX, .required = true },
    { .names = "initializer_range", .families = BOTH, .use = FIELD_REAL, .offset = AT(initializer_range), .high = 100 },
    { .names = "tie_word_embeddings", .families = BOTH, .use = FIELD_FLAG, .offset = AT(tied) },
    { .names = "bos_token_id", .families = BOTH, .use = FIELD_TOKEN, .offset = AT(bos_token_id) },
    { .names = "eos_token_id", .families = BOTH, .use = FIELD_TOKEN, .offset = AT(eos_token_id) },
    { .names = "quantization quantization_config",
      .families = BOTH,
      .use = FIELD_FIXED,
      .accepted = "null",
      .why = "quantised weights are not in this version" },
    { .names = "is_encoder_decoder tie_encoder_decoder",
      .families = BOTH,
      .use = FIELD_FIXED,
      .accepted = "false|null",
      .why = "this version has decoders" },
    { .names = "gradient_checkpointing",
      .families = BOTH,
      .use = FIELD_FIXED,
      .accepted = "false|null",
      .why = "it is a key of the run: write it beside model" },
    { .names = "chunk_size_feed_forward",
      .families = BOTH,
      .use = FIELD_FIXED,
      .accepted = "0|null",
      .why = "the feed-forward layer is not cut into chunks here" },
    { .names = "pruned_heads", .families = BOTH, .use = FIELD_META },
    { .names =
          "architectures torch_dtype dtype transformers_version use_cache _name_or_path name_or_path pad_token_id "
          "sep_token_id cls_token_id unk_token_id decoder_start_token_id task_specific_params problem_type id2label "
          "label2id num_labels return_dict return_dict_in_generate output_attentions output_hidden_states "
          "output_scores is_decoder tokenizer_class finetuning_task prefix n_ctx summary_type summary_use_proj "
          "summary_activation summary_first_dropout summary_proj_to_labels max_length min_length do_sample temperature "
          "top_k top_p repetition_penalty use_bfloat16 torchscript _commit_hash license",
      .families = BOTH,
      .use = FIELD_META },
    { .names = "auto_map trust_remote_code _attn_implementation _attn_implementation_internal "
               "_attn_implementation_autoset attn_implementation custom_pipelines",
      .families = BOTH,
      .use = FIELD_WARN,
      .why = "code named by a model is never run; the architecture is Invar's own" },
};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))

struct parser {
    struct model_conf *m;
    const struct node *root;
    struct findings *f;
    unsigned family;
    const struct node *value[FIELDS]; /* where a used field was given */
    const char *spelled[FIELDS];
    const struct node *theta;
};

static const struct field *find_field(const struct parser *p, const char *name)
{
    for (size_t i = 0; i < FIELDS; i++) {
        if ((fields[i].families & p->family) != 0 && conf_names_hold(fields[i].names, name)) {
            return &fields[i];
        }
    }
    return NULL;
}

static void report_unknown(const struct parser *p, const struct node *key)
{
    struct nearest near;
    nearest_init(&near, key->text);
    for (size_t i = 0; i < FIELDS && p->f->not_kept == 0; i++) {
        const char *names = (fields[i].families & p->family) != 0 ? fields[i].names : "";
        while (*names != '\0') {
            size_t n = strcspn(names, " ");
            nearest_try(&near, names, n);
            names += n + (names[n] == ' ');
        }
    }
    const char *family = p->family == GPT2 ? "gpt2" : "llama", *name = nearest_found(&near);
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

/* ---- one field ---- */

static void take_whole(struct parser *p, const struct field *k, const char *name, const struct node *n)
{
    uint64_t value = 0;
    struct scalar_problem problem = scalar_whole(n, &value);
    if (problem.bad) {
        report_problem(p, name, n, problem.text);
    } else if (value < k->least || value > k->most) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: expected a whole number from %llu to %llu, got %llu", name,
                     (unsigned long long)k->least, (unsigned long long)k->most, (unsigned long long)value);
    } else {
        *(uint64_t *)(void *)((char *)p->m + k->offset) = value;
    }
}

static bool take_real(struct parser *p, const struct field *k, const char *name, const struct node *n)
{
    double value = 0;
    struct scalar_problem problem = scalar_real(n, &value);
    if (problem.bad) {
        report_problem(p, name, n, problem.text);
        return false;
    }
    if (!(value > k->low && value <= k->high)) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: expected a number above %s and up to %s, got %.60s", name,
                     scalar_write_real(k->low).text, scalar_write_real(k->high).text, n->text);
        return false;
    }
    *(double *)(void *)((char *)p->m + k->offset) = value;
    return true;
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

/* rope_theta stands alone or inside the rotary mapping; both must agree. */
static void take_theta(struct parser *p, const char *name, const struct node *n)
{
    double before = p->m->rope.theta;
    bool had = p->theta != NULL;
    if (take_real(p, find_field(p, "rope_theta"), name, n) && had && p->m->rope.theta != before) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: %s here, but %s at line %d | keep one of the two", name,
                     scalar_write_real(p->m->rope.theta).text, scalar_write_real(before).text, p->theta->at.line);
    }
    p->theta = n;
}

static void take_rope(struct parser *p, const char *name, const struct node *n)
{
    if (scalar_is_null(n)) {
        return;
    }
    if (n->kind != NODE_MAP) {
        findings_add(p->f, FINDING_ERROR, &n->at, "model.%s: expected a mapping or null, got %s", name,
                     scalar_describe(n).text);
        return;
    }
    const struct node *type = node_get(n, "rope_type") != NULL ? node_get(n, "rope_type") : node_get(n, "type");
    if (type != NULL && !scalar_is_one_of(type, "default|null")) {
        findings_add(p->f, FINDING_ERROR, &type->at,
                     "model.%s: rope_type %s: this version has plain rotary positions only | set %s to null", name,
                     scalar_show(type).text, name);
        return; /* its other keys belong to that type */
    }
    for (size_t i = 0; i + 1 < n->count; i += 2) {
        const struct node *key = n->child[i], *value = n->child[i + 1];
        if (strcmp(key->text, "rope_theta") == 0) {
            take_theta(p, "rope_theta", value);
        } else if (!conf_names_hold("rope_type type", key->text) &&
                   (strcmp(key->text, "partial_rotary_factor") != 0 || !scalar_is_one_of(value, "1|null"))) {
            findings_add(p->f, FINDING_ERROR, &key->at,
                         "model.%s.%s: this version has plain rotary positions only | set %s to null", name,
                         scalar_quote(key->text, key->bytes).text, name);
        }
    }
}

static void take_field(struct parser *p, const struct field *k, const char *name, const struct node *n)
{
    bool null = scalar_is_null(n);
    switch (k->use) {
    case FIELD_WHOLE:
        if (!(null && k->may_be_null)) {
            take_whole(p, k, name, n);
        }
        return;
    case FIELD_REAL:
        if (strcmp(name, "rope_theta") == 0) {
            take_theta(p, name, n);
        } else {
            take_real(p, k, name, n);
        }
        return;
    case FIELD_RATE:
        if (!(null && k->may_be_null)) {
            take_rate(p, k, name, n);
        }
        return;
    case FIELD_FLAG: {
        struct scalar_problem problem = scalar_flag(n, (bool *)(void *)((char *)p->m + k->offset));
        if (problem.bad) {
            report_problem(p, name, n, problem.text);
        }
        return;
    }
    case FIELD_TOKEN:
        take_token(p, k, name, n);
        return;
    case FIELD_FIXED:
        take_fixed(p, k, name, n);
        return;
    case FIELD_ROPE:
        take_rope(p, name, n);
        return;
    case FIELD_WARN:
        findings_add(p->f, FINDING_WARNING, &n->at, "model.%s is not acted upon: %s", name, k->why);
        return;
    case FIELD_META:
        return;
    }
}

/* Spellings of one used field that both stand there must say the same. */
static bool is_second_spelling(struct parser *p, size_t index, const struct node *key, const struct node *n)
{
    const struct node *before = p->value[index];
    enum field_use use = fields[index].use;
    if (before == NULL || (use != FIELD_WHOLE && use != FIELD_REAL)) {
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
    for (size_t i = 0; i < FIELDS; i++) {
        if (fields[i].required && (fields[i].families & p->family) != 0 && p->value[i] == NULL) {
            findings_add(p->f, FINDING_ERROR, &p->root->at, "model: %.*s is not given",
                         (int)strcspn(fields[i].names, " "), fields[i].names);
        }
    }
}

static void set_defaults(struct model_conf *m, enum family family)
{
    *m = (struct model_conf){
        .family = family,
        .norm_eps = family == FAMILY_GPT2 ? 1e-5 : 1e-6,
        .norm = family == FAMILY_GPT2 ? NORM_LAYER : NORM_RMS,
        .activation = family == FAMILY_GPT2 ? ACTIVATION_GELU_TANH : ACTIVATION_SILU,
        .gated = family != FAMILY_GPT2,
        .learned_positions = family == FAMILY_GPT2,
        .qkv_bias = family == FAMILY_GPT2,
        .out_bias = family == FAMILY_GPT2,
        .mlp_bias = family == FAMILY_GPT2,
        .rope = { .theta = 10000, .factor = 1, .attention_factor = 1 },
        .embed_scale = 1,
        .initializer_range = 0.02,
        .tied = family == FAMILY_GPT2,
        .bos_token_id = -1,
        .eos_token_id = -1,
    };
}

static const struct conf_origin *place_of(const struct parser *p, const char *name)
{
    const struct field *k = find_field(p, name);
    const struct node *n = k != NULL ? p->value[k - fields] : NULL;
    return n != NULL ? &n->at : &p->root->at;
}

/* Sizes that others give, then what must hold between them. */
static void check_heads(struct parser *p)
{
    struct model_conf *m = p->m;
    unsigned long long hidden = m->hidden, heads = m->heads, kv = m->kv_heads;
    const struct conf_origin *at = place_of(p, "num_attention_heads");
    if (m->head_dim == 0 && m->hidden % m->heads != 0) {
        findings_add(p->f, FINDING_ERROR, at, "model: the width %llu is not a multiple of the %llu heads", hidden,
                     heads);
        return;
    }
    m->head_dim = m->head_dim > 0 ? m->head_dim : m->hidden / m->heads;
    if (m->heads % m->kv_heads != 0) {
        findings_add(p->f, FINDING_ERROR, place_of(p, "num_key_value_heads"),
                     "model: %llu heads are not a multiple of %llu key/value heads", heads, kv);
    }
    if (m->head_dim % HEAD_DIM_STEP != 0 || m->head_dim > HEAD_DIM_MAX) {
        bool own = find_field(p, "head_dim") != NULL && p->value[find_field(p, "head_dim") - fields] != NULL;
        findings_add(p->f, FINDING_ERROR, own ? place_of(p, "head_dim") : at,
                     "model: heads of %llu numbers (width %llu, %llu heads): a multiple of %u up to %u was expected",
                     (unsigned long long)m->head_dim, hidden, heads, HEAD_DIM_STEP, HEAD_DIM_MAX);
    }
    if (m->heads * m->head_dim > WIDTH_MAX) {
        findings_add(p->f, FINDING_ERROR, at, "model: %llu heads of %llu numbers: at most %llu in all", heads,
                     (unsigned long long)m->head_dim, (unsigned long long)WIDTH_MAX);
    }
}

static void check_token(struct parser *p, const char *name, int64_t *token)
{
    if (*token >= 0 && (uint64_t)*token >= p->m->vocab) {
        findings_add(p->f, FINDING_WARNING, place_of(p, name),
                     "model.%s %lld is not in the vocabulary of %llu: taken as none", name, (long long)*token,
                     (unsigned long long)p->m->vocab);
        *token = -1;
    }
}

static void check_whole(struct parser *p)
{
    struct model_conf *m = p->m;
    size_t errors = p->f->errors;
    m->kv_heads = m->kv_heads > 0 ? m->kv_heads : m->heads;
    m->ffn = m->ffn > 0 ? m->ffn : 4 * m->hidden;
    check_heads(p);
    m->rotary_dim = m->learned_positions ? 0 : m->head_dim;
    m->attention_scale = m->head_dim > 0 ? 1 / fmath_sqrt((double)m->head_dim) : 0;
    check_token(p, "bos_token_id", &m->bos_token_id);
    check_token(p, "eos_token_id", &m->eos_token_id);
    if (p->f->errors == errors && model_conf_parameters(m) > PARAMETERS_MAX) {
        findings_add(p->f, FINDING_ERROR, &p->root->at, "model: %llu parameters: at most 2^48 are possible here",
                     (unsigned long long)model_conf_parameters(m));
    }
}

static bool find_family(struct parser *p)
{
    const struct node *type = node_get(p->root, "model_type");
    if (type == NULL) {
        findings_add(p->f, FINDING_ERROR, &p->root->at,
                     "model: model_type is not given | write model_type: gpt2 or llama");
        return false;
    }
    bool gpt2 = scalar_is_one_of(type, "gpt2"), llama = scalar_is_one_of(type, "llama");
    if (!gpt2 && !llama) {
        findings_add(p->f, FINDING_ERROR, &type->at, "model.model_type %s: this version has gpt2 and llama",
                     scalar_show(type).text);
        return false;
    }
    p->family = gpt2 ? GPT2 : LLAMA;
    set_defaults(p->m, gpt2 ? FAMILY_GPT2 : FAMILY_LLAMA);
    return true;
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
    struct parser p = { .m = m, .root = root, .f = f };
    if (!find_family(&p)) {
        return ERR_USAGE;
    }
    for (size_t i = 0; i + 1 < root->count; i += 2) {
        const struct node *key = root->child[i], *value = root->child[i + 1];
        const struct field *k = find_field(&p, key->text);
        if (k == NULL) {
            report_unknown(&p, key);
        } else if (!is_second_spelling(&p, (size_t)(k - fields), key, value)) {
            take_field(&p, k, key->text, value);
        }
    }
    require(&p);
    if (f->errors == errors) {
        check_whole(&p);
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

enum err model_conf_help(struct buf *out)
{
    static const char *const uses[] = {
        [FIELD_WHOLE] = "whole number",
        [FIELD_REAL] = "number",
        [FIELD_RATE] = "dropout, [0, 1)",
        [FIELD_FLAG] = "true or false",
        [FIELD_TOKEN] = "token id",
        [FIELD_FIXED] = "",
        [FIELD_META] = "accepted, changes nothing",
        [FIELD_WARN] = "never acted upon, a warning",
        [FIELD_ROPE] = "null, or rope_type default with rope_theta",
    };
    TRY(buf_add_string(out, "The fields of Hugging Face `config.json`. Any other is an error.\n"
                            "\n"
                            "| family | field | value |\n"
                            "|---|---|---|\n"));
    for (size_t i = 0; i < FIELDS; i++) {
        const struct field *k = &fields[i];
        TRY(buf_printf(out, "| %s | %s | %s",
                       k->families == BOTH   ? "both"
                       : k->families == GPT2 ? "gpt2"
                                             : "llama",
                       k->names, uses[k->use]));
        if (k->use == FIELD_FIXED) {
            TRY(buf_add_string(out, "only "));
            for (const char *p = k->accepted; *p != '\0'; p++) {
                TRY(*p == '|' ? buf_add_string(out, " or ") : buf_add(out, p, 1));
            }
        }
        TRY(buf_printf(out, "%s |\n", k->required ? ", required" : ""));
    }
    return OK;
}

void model_conf_frequencies(const struct model_conf *m, const struct rope_conf *r, uint64_t length, double *frequency,
                            double *scale)
{
    (void)length;
    for (uint64_t i = 0; i < m->rotary_dim / 2; i++) {
        frequency[i] = fmath_pow(r->theta, -(double)(2 * i) / (double)m->rotary_dim);
    }
    *scale = r->attention_factor;
}
