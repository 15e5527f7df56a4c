/* Why this exists: llama.cpp reads the tokenizer from lists in the metadata and knows ways to cut words by their names
 * only. A tokenizer.json that is none of them is refused by what it has: a name that is almost right would give other
 * ids without a word. */
#include "ckpt/gguf_tokenizer.h"

#include <inttypes.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/spm_file.h"

#define TEXT_BYTES_MAX ((size_t)1 << 30)

struct entry {
    const char *text; /* of the json; NULL: none */
    int32_t type;     /* as GGUF counts: 1 normal, 3 control, 4 user-defined, 5 unused */
};

struct writer {
    struct gguf_out *o;
    char *path, *config_path; /* tokenizer.json, tokenizer_config.json */
    json_t *root, *config;    /* config: NULL where there is none */
    const struct gguf_pre *pre;
    struct entry *list;
    uint64_t count;
    bool adds_bos;
};

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static enum err refuse(const struct writer *w, const char *field, const char *expected)
{
    return FAIL(ERR_DATA, "%s: %s: %s was expected: llama.cpp knows no other here", w->path, field, expected);
}

/* ---- how words are cut ---- */

static bool is_level(const json_t *step, bool regex)
{
    const json_t *flag = json_object_get(step, "use_regex");
    bool uses = flag == NULL || json_is_true(flag);
    return strcmp(text_at(step, "type"), "ByteLevel") == 0 && uses == regex &&
           json_is_false(json_object_get(step, "add_prefix_space"));
}

static bool is_split(const json_t *step, const char *regex)
{
    const json_t *pattern = json_object_get(step, "pattern");
    return strcmp(text_at(step, "type"), "Split") == 0 && strcmp(text_at(pattern, "Regex"), regex) == 0 &&
           strcmp(text_at(step, "behavior"), "Isolated") == 0 && !json_is_true(json_object_get(step, "invert"));
}

/* no_merges: every byte is a token whatever the words are. */
static bool fits(const struct gguf_pre *p, const json_t *pre, bool no_merges)
{
    const json_t *steps = json_object_get(pre, "pretokenizers");
    const json_t *first = json_array_get(steps, 0), *second = json_array_get(steps, 1);
    if (p->kind == PRE_BYTES) {
        return is_level(pre, true) || (no_merges && is_level(pre, false));
    }
    if (strcmp(text_at(pre, "type"), "Sequence") != 0 || json_array_size(steps) != 2) {
        return false;
    }
    if (p->kind == PRE_DIGITS) {
        return strcmp(text_at(first, "type"), "Digits") == 0 && is_level(second, true) &&
               json_is_true(json_object_get(first, "individual_digits"));
    }
    return is_split(first, p->regex) && is_level(second, false);
}

static enum err find_pre(struct writer *w)
{
    const json_t *model = json_object_get(w->root, "model"), *pre = json_object_get(w->root, "pre_tokenizer");
    const json_t *normal = json_object_get(w->root, "normalizer");
    const char *type = text_at(model, "type");
    bool ignores = json_is_true(json_object_get(model, "ignore_merges"));
    bool no_merges = json_array_size(json_object_get(model, "merges")) == 0;
    if ((type[0] != '\0' && strcmp(type, "BPE") != 0) || json_is_true(json_object_get(model, "byte_fallback"))) {
        return refuse(w, "model", "byte-level BPE");
    }
    if (normal != NULL && !json_is_null(normal) && strcmp(text_at(normal, "type"), "NFC") != 0) {
        return refuse(w, "normalizer", "none or NFC");
    }
    for (size_t i = 0; i < gguf_pres_count && w->pre == NULL; i++) {
        const struct gguf_pre *p = &gguf_pres[i];
        if ((p->kind != PRE_REGEX || p->ignore_merges == ignores) && fits(p, pre, no_merges)) {
            w->pre = p;
        }
    }
    return w->pre != NULL ? OK : refuse(w, "pre_tokenizer", "that of GPT-2, SmolLM, StarCoder, Llama 3 or Qwen 2");
}

/* ---- the vocabulary ---- */

static enum err put_entry(struct writer *w, const char *field, const char *text, const json_t *id, int32_t type)
{
    json_int_t number = json_integer_value(id);
    if (text == NULL || !json_is_integer(id) || number < 0 || (uint64_t)number >= w->count) {
        return FAIL(ERR_DATA, "%s: %s: an id from 0 to %" PRIu64 " for each text was expected (the model's vocabulary)",
                    w->path, field, w->count - 1);
    }
    struct entry *e = &w->list[number];
    if (e->text != NULL && strcmp(e->text, text) != 0) {
        return FAIL(ERR_DATA, "%s: %s: id %lld is given twice", w->path, field, (long long)number);
    }
    *e = (struct entry){ text, type };
    return OK;
}

static enum err list_tokens(struct writer *w)
{
    const json_t *vocab = json_object_get(json_object_get(w->root, "model"), "vocab");
    const json_t *added = json_object_get(w->root, "added_tokens");
    const char *text;
    json_t *id;
    if (!json_is_object(vocab)) {
        return refuse(w, "model.vocab", "an object of texts and ids");
    }
    json_object_foreach((json_t *)(uintptr_t)vocab, text, id) {
        TRY(put_entry(w, "model.vocab", text, id, 1));
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        bool special = json_is_true(json_object_get(token, "special"));
        TRY(put_entry(w, "added_tokens", json_string_value(json_object_get(token, "content")),
                      json_object_get(token, "id"), special ? 3 : 4));
    }
    return OK;
}

static enum err put_tokens(const struct writer *w)
{
    char pad[32];
    TRY(gguf_out_array(w->o, "tokenizer.ggml.tokens", GGUF_STRING, w->count));
    for (uint64_t i = 0; i < w->count; i++) {
        snprintf(pad, sizeof(pad), "[PAD%" PRIu64 "]", i);
        const char *text = w->list[i].text != NULL ? w->list[i].text : pad;
        TRY(gguf_out_text(w->o, text, strlen(text)));
    }
    TRY(gguf_out_array(w->o, "tokenizer.ggml.token_type", GGUF_I32, w->count));
    for (uint64_t i = 0; i < w->count; i++) {
        int32_t type = w->list[i].text != NULL ? w->list[i].type : 5;
        TRY(buf_add(&w->o->keys, &type, 4));
    }
    return OK;
}

static enum err put_merges(const struct writer *w)
{
    const json_t *merges = json_object_get(json_object_get(w->root, "model"), "merges");
    if (!json_is_array(merges)) {
        return refuse(w, "model.merges", "a list");
    }
    TRY(gguf_out_array(w->o, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(merges)));
    struct buf text = { 0 };
    enum err err = OK;
    for (size_t i = 0; i < json_array_size(merges) && err == OK; i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *left = json_string_value(json_array_get(merge, 0));
        const char *right = json_string_value(json_array_get(merge, 1));
        buf_clear(&text);
        if (json_is_string(merge)) {
            err = buf_add_string(&text, json_string_value(merge));
        } else if (left != NULL && right != NULL) {
            err = buf_printf(&text, "%s %s", left, right);
        } else {
            err = refuse(w, "model.merges", "a pair of texts");
        }
        err = err == OK ? gguf_out_text(w->o, text.data, text.bytes) : err;
    }
    buf_release(&text);
    return err;
}

/* ---- special tokens ---- */

/* The id of a token of tokenizer_config.json; -1 when it is not given. */
static int64_t special(const struct writer *w, const char *key)
{
    const json_t *value = json_object_get(w->config, key);
    const char *text = json_is_object(value) ? text_at(value, "content") : json_string_value(value);
    for (uint64_t i = 0; text != NULL && i < w->count; i++) {
        if (w->list[i].text != NULL && strcmp(w->list[i].text, text) == 0) {
            return (int64_t)i;
        }
    }
    return -1;
}

static enum err put_special(const struct writer *w, const char *name, const char *key, int64_t usual)
{
    int64_t id = special(w, name);
    id = id >= 0 ? id : usual;
    return id >= 0 ? gguf_out_u32(w->o, key, (uint64_t)id) : OK;
}

/* Whether the post-processor puts a token before a text; anything else that it adds has no place in the file. */
static enum err read_post(struct writer *w, const json_t *post)
{
    const json_t *list = json_object_get(post, "processors"), *single = json_object_get(post, "single");
    const char *type = text_at(post, "type");
    if (post == NULL || json_is_null(post) || strcmp(type, "ByteLevel") == 0) {
        return OK;
    }
    if (strcmp(type, "Sequence") == 0) {
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *step = json_array_get(list, i);
            if (strcmp(text_at(step, "type"), "Sequence") == 0) {
                return refuse(w, "post_processor", "one list");
            }
            TRY(read_post(w, step));
        }
        return OK;
    }
    if (strcmp(type, "TemplateProcessing") != 0) {
        return refuse(w, "post_processor", "ByteLevel or TemplateProcessing");
    }
    const json_t *first = json_object_get(json_array_get(single, 0), "SpecialToken");
    w->adds_bos = first != NULL;
    if (json_array_size(single) != (first != NULL ? 2u : 1u) ||
        json_object_get(json_array_get(single, first != NULL ? 1 : 0), "Sequence") == NULL) {
        return refuse(w, "post_processor.single", "the text, after one token at most");
    }
    return OK;
}

static enum err put_chat(const struct writer *w, const char *folder)
{
    const json_t *chat = json_object_get(w->config, "chat_template");
    if (json_is_string(chat)) {
        return gguf_out_string(w->o, "tokenizer.chat_template", json_string_value(chat), json_string_length(chat));
    }
    char *path = NULL;
    struct buf text = { 0 };
    enum err err;
    TRY_OUT(file_join(&path, folder, "chat_template.jinja"));
    if (file_exists(path)) {
        TRY_OUT(file_read(path, TEXT_BYTES_MAX, &text));
        TRY_OUT(gguf_out_string(w->o, "tokenizer.chat_template", text.data != NULL ? text.data : "", text.bytes));
    }
out:
    buf_release(&text);
    free(path);
    return err;
}

/* ---- SentencePiece ---- */

/* Tokens behind the pieces, as tokenizer_config.json lists them. */
static enum err list_added(struct writer *w, uint64_t pieces)
{
    const json_t *added = json_object_get(w->config, "added_tokens_decoder");
    const char *key;
    json_t *token;
    json_object_foreach((json_t *)(uintptr_t)added, key, token) {
        char *end;
        unsigned long long id = strtoull(key, &end, 10);
        const char *text = json_string_value(json_object_get(token, "content"));
        if (key[0] < '0' || key[0] > '9' || *end != '\0' || id >= w->count || text == NULL) {
            return FAIL(ERR_DATA, "%s: added_tokens_decoder: an id below %" PRIu64 " with its content was expected, "
                        "got \"%.40s\"", w->config_path, w->count, key);
        }
        if (id >= pieces) {
            w->list[id] = (struct entry){ text, json_is_true(json_object_get(token, "special")) ? 3 : 4 };
        }
    }
    return OK;
}

/* The list of tokens from the pieces, whose texts are kept in `names`. */
static enum err list_pieces(struct writer *w, const struct spm_file *m, struct buf *names)
{
    if (m->kind != SPM_BPE || m->rules.map_bytes > 0 || !m->rules.escape || m->suffix) {
        return refuse(w, "the kind of model, its normalizer", "BPE with identity, spaces as U+2581 in front of words");
    }
    if (m->count > w->count) {
        return FAIL(ERR_DATA, "%s: %zu pieces, the model has %" PRIu64, w->path, m->count, w->count);
    }
    for (size_t i = 0; i < m->count; i++) {
        if (memchr(m->piece[i].text, 0, m->piece[i].bytes) != NULL) {
            return refuse(w, "pieces", "no zero byte");
        }
        TRY(buf_add(names, m->piece[i].text, m->piece[i].bytes));
        TRY(buf_add(names, "", 1));
    }
    const char *at = names->data;
    for (size_t i = 0; i < m->count; i++) {
        w->list[i] = (struct entry){ at, (int32_t)m->piece[i].type };
        at += m->piece[i].bytes + 1;
    }
    return list_added(w, m->count);
}

static enum err put_pieces(struct writer *w, const struct spm_file *m, const struct model_conf *c)
{
    const json_t *bos = json_object_get(w->config, "add_bos_token");
    TRY(gguf_out_string(w->o, "tokenizer.ggml.model", "llama", 5));
    TRY(gguf_out_string(w->o, "tokenizer.ggml.pre", "default", 7));
    TRY(put_tokens(w));
    TRY(gguf_out_array(w->o, "tokenizer.ggml.scores", GGUF_F32, w->count));
    for (uint64_t i = 0; i < w->count; i++) {
        float score = i < m->count ? m->piece[i].score : -1000.0f;
        TRY(buf_add(&w->o->keys, &score, 4));
    }
    TRY(put_special(w, "bos_token", "tokenizer.ggml.bos_token_id", c->bos_token_id));
    TRY(put_special(w, "eos_token", "tokenizer.ggml.eos_token_id", c->eos_token_id));
    TRY(put_special(w, "unk_token", "tokenizer.ggml.unknown_token_id", -1));
    TRY(put_special(w, "pad_token", "tokenizer.ggml.padding_token_id", -1));
    TRY(gguf_out_flag(w->o, "tokenizer.ggml.add_bos_token", bos == NULL || json_is_true(bos)));
    TRY(gguf_out_flag(w->o, "tokenizer.ggml.add_eos_token", json_is_true(json_object_get(w->config, "add_eos_token"))));
    TRY(gguf_out_flag(w->o, "tokenizer.ggml.remove_extra_whitespaces", m->rules.remove_extra));
    return gguf_out_flag(w->o, "tokenizer.ggml.add_space_prefix", m->rules.dummy_prefix);
}

static enum err put_sentencepiece(struct writer *w, const char *folder, const struct model_conf *c)
{
    struct spm_file m = { 0 };
    struct buf text = { 0 }, names = { 0 };
    void *mem;
    enum err err;
    w->count = c->vocab;
    TRY_OUT(mem_alloc(&mem, w->count, sizeof(struct entry)));
    w->list = mem;
    TRY_OUT(file_read(w->path, TEXT_BYTES_MAX, &text));
    TRY_OUT(spm_file_parse(&m, w->path, text.data != NULL ? text.data : "", text.bytes));
    TRY_OUT(list_pieces(w, &m, &names));
    TRY_OUT(put_pieces(w, &m, c));
    TRY_OUT(put_chat(w, folder));
out:
    spm_file_release(&m);
    buf_release(&text);
    buf_release(&names);
    return err;
}

static enum err put_all(struct writer *w, const char *folder, const struct model_conf *c)
{
    void *mem;
    w->count = c->vocab;
    TRY(mem_alloc(&mem, w->count, sizeof(struct entry)));
    w->list = mem;
    TRY(find_pre(w));
    TRY(list_tokens(w));
    TRY(read_post(w, json_object_get(w->root, "post_processor")));
    TRY(gguf_out_string(w->o, "tokenizer.ggml.model", "gpt2", 4));
    TRY(gguf_out_string(w->o, "tokenizer.ggml.pre", w->pre->name, strlen(w->pre->name)));
    TRY(put_tokens(w));
    TRY(put_merges(w));
    TRY(put_special(w, "bos_token", "tokenizer.ggml.bos_token_id", c->bos_token_id));
    TRY(put_special(w, "eos_token", "tokenizer.ggml.eos_token_id", c->eos_token_id));
    TRY(put_special(w, "unk_token", "tokenizer.ggml.unknown_token_id", -1));
    TRY(put_special(w, "pad_token", "tokenizer.ggml.padding_token_id", -1));
    TRY(gguf_out_flag(w->o, "tokenizer.ggml.add_bos_token", w->adds_bos));
    TRY(gguf_out_flag(w->o, "tokenizer.ggml.add_space_prefix", false));
    return put_chat(w, folder);
}

enum err gguf_tokenizer_put(struct gguf_out *o, const char *folder, const struct model_conf *c)
{
    struct writer w = { .o = o };
    enum err err;
    TRY_OUT(file_join(&w.path, folder, "tokenizer.model"));
    TRY_OUT(file_join(&w.config_path, folder, "tokenizer_config.json"));
    bool pieces = file_exists(w.path);
    if (!pieces) {
        free(w.path);
        w.path = NULL;
        TRY_OUT(file_join(&w.path, folder, "tokenizer.json"));
    }
    if (!file_exists(w.path)) {
        log_warning("%s: no tokenizer.json and no tokenizer.model: the file will hold no tokenizer", folder);
        TRY_OUT(gguf_out_string(o, "tokenizer.ggml.model", "no_vocab", 8));
        goto out;
    }
    if (file_exists(w.config_path)) {
        struct buf text = { 0 };
        err = file_read(w.config_path, TEXT_BYTES_MAX, &text);
        const char *bytes = text.data != NULL ? text.data : "";
        err = err != OK ? err : json_parse_reals(&w.config, w.config_path, bytes, text.bytes);
        buf_release(&text);
        TRY_OUT(err);
    }
    if (!pieces) {
        TRY_OUT(json_read_file(&w.root, w.path, TEXT_BYTES_MAX));
    }
    TRY_OUT(pieces ? put_sentencepiece(&w, folder, c) : put_all(&w, folder, c));
out:
    json_decref(w.root);
    json_decref(w.config);
    free(w.path);
    free(w.config_path);
    free(w.list);
    return err;
}
