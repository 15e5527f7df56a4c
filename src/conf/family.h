/* Private to conf/: the families, the table of config.json's fields, and how the parts of the reader meet. */
#ifndef CONF_FAMILY_H
#define CONF_FAMILY_H

#include "conf/conf_int.h"

#define WIDTH_MAX ((uint64_t)1 << 17)
#define FFN_MAX ((uint64_t)1 << 20)
#define VOCAB_MAX ((uint64_t)1 << 24)
#define POSITIONS_MAX ((uint64_t)1 << 30)
#define HEAD_DIM_STEP 8u
#define PARAMETERS_MAX ((uint64_t)1 << 48)

/* Sets of families. */
#define FOR(family) (1u << FAMILY_##family)
#define FOR_ALL ((1u << FAMILY_COUNT) - 1u)
#define FOR_ROTARY (FOR_ALL & ~FOR(GPT2))
#define FOR_QWEN (FOR(QWEN2) | FOR(QWEN3))
#define FOR_GEMMA (FOR(GEMMA2) | FOR(GEMMA3))
#define FOR_RMS (FOR_ROTARY & ~(FOR(STARCODER2) | FOR(NEOX)))

/* Which layers have the window that sliding_window gives. */
enum window_rule {
    WINDOW_NONE,
    WINDOW_ALL,       /* every layer, where sliding_window is a number */
    WINDOW_SWITCHED,  /* those of layer_types, or from max_window_layers on, where use_sliding_window is true */
    WINDOW_UNROTATED, /* the same, or the layers without positions */
    WINDOW_PATTERN,   /* those of layer_types, or all but every n-th */
};

struct family_info {
    const char *name;         /* model_type */
    const char *architecture; /* of transformers */
    struct model_conf defaults;
    double rotary_part; /* share of a head that is rotated */
    uint64_t head_dim;  /* where it is not given; 0: hidden / heads */
    enum window_rule windows;
    uint64_t window;  /* where sliding_window is not given; 0: none */
    uint64_t pattern; /* WINDOW_PATTERN: every n-th layer has none */
    uint64_t scalar;  /* query_pre_attn_scalar; 0: head_dim */
};

extern const struct family_info model_families[FAMILY_COUNT];
/* "gpt2, llama, ... and gpt_neox" */
MUST_USE enum err model_families_list(struct buf *out);

enum field_use {
    FIELD_WHOLE,
    FIELD_REAL,
    FIELD_RATE, /* a number in [0, 1) */
    FIELD_FLAG,
    FIELD_CAP,        /* a number above 0, or null: 0 */
    FIELD_TOKEN,      /* a token id, null, or a list of ids of which the first is kept */
    FIELD_FIXED,      /* must be one of `accepted` */
    FIELD_ACTIVATION, /* one of `accepted`, names of enum activation */
    FIELD_LATER,      /* read when all others are known (model_check.c, model_rope.c) */
    FIELD_META,
    FIELD_WARN,
};

struct field {
    const char *names; /* separated by spaces: spellings of one field */
    unsigned families;
    enum field_use use;
    size_t offset;
    size_t also[2]; /* FIELD_FLAG: further members it sets; 0: none (there family stands) */
    uint64_t least, most;
    double low, high; /* (low, high] */
    const char *accepted, *why;
    const char *help; /* FIELD_LATER: what may stand there */
    bool required;
    bool may_be_null;
};

#define MODEL_FIELDS_MAX 96u
extern const struct field model_fields[];
extern const size_t model_field_count;

struct parser {
    struct model_conf *m;
    const struct family_info *info;
    const struct node *root;
    struct findings *f;
    size_t before;                              /* errors that were found before this model's */
    unsigned family;                            /* a set of one */
    const struct node *value[MODEL_FIELDS_MAX]; /* where a field was given */
    const char *spelled[MODEL_FIELDS_MAX];
};

/* The field of this family with this name, or NULL; the value given for it, or NULL; its place, or that of the whole.
 */
const struct field *model_find_field(const struct parser *p, const char *name);
const struct node *model_given(const struct parser *p, const char *name);
const struct conf_origin *model_place(const struct parser *p, const char *name);

/* Read a number of a field that is known by name only. False: it was wrong, and a finding says so. */
bool model_take_whole(struct parser *p, const char *name, const struct node *n, uint64_t least, uint64_t most,
                      uint64_t *out);
bool model_take_real(struct parser *p, const char *name, const struct node *n, double low, double high, double *out);
bool model_take_flag(struct parser *p, const char *name, const struct node *n, bool *out);

/* What follows from other fields, and what must hold between them; after all fields without an error. */
void model_check(struct parser *p);
/* The rotary settings (model_rope.c): m->rotary_dim, m->rope, m->local_rope. */
void model_take_rope(struct parser *p);
/* The same where other fields are wrong: only what is wrong by itself is found. */
void model_try_rope(struct parser *p);
/* What cos and sin are multiplied by where nothing says it (yarn, longrope). */
double model_attention_factor(const struct rope_conf *r);
const char *model_rope_name(enum rope_kind kind);
#endif
