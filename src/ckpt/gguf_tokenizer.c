/* Why this exists: a GGUF file carries its tokenizer as lists in the metadata, and how a text is cut into words as a
 * name. From these the files of Hugging Face are written, which say the same in full. A name that is not in the table
 * is refused: a tokenizer that is almost right ruins a model without a word. */
#include "ckpt/gguf_tokenizer.h"

#include <inttypes.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"

#define WORDS3 "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" \
               " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS1 "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
               "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The first entry of a kind is the one that is written. */
const struct gguf_pre gguf_pres[] = {
    { "gpt-2", PRE_BYTES, "", false, false, false },     { "olmo", PRE_BYTES, "", false, false, false },
    { "mpt", PRE_BYTES, "", false, false, false },       { "smollm", PRE_DIGITS, "", false, false, false },
    { "starcoder", PRE_DIGITS, "", false, false, false }, { "refact", PRE_DIGITS, "", false, false, false },
    { "llama-bpe", PRE_REGEX, WORDS3, true, true, false }, { "llama3", PRE_REGEX, WORDS3, true, true, false },
    { "llama-v3", PRE_REGEX, WORDS3, true, true, false }, { "dbrx", PRE_REGEX, WORDS3, false, false, false },
    { "smaug-bpe", PRE_REGEX, WORDS3, false, false, false }, { "qwen2", PRE_REGEX, WORDS1, false, false, true },
    { "stablelm2", PRE_REGEX, WORDS1, false, false, true },
    { "deepseek-r1-qwen", PRE_REGEX, WORDS1, false, false, true },
};
const size_t gguf_pres_count = sizeof(gguf_pres) / sizeof(gguf_pres[0]);

enum token_type { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

struct token {
    const char *text;
    size_t bytes;
    uint64_t type;
    bool in_vocab; /* of the model, beside the added tokens */
};

struct reader {
    const struct gguf_file *f;
    const struct gguf_pre *pre;
    struct token *list;
    uint64_t count;
    bool adds_bos;
};

static const struct gguf_value *find(const struct reader *r, const char *key)
{
    char whole[96];
    snprintf(whole, sizeof(whole), "tokenizer.%s", key);
    return gguf_find(r->f, whole);
}

static bool is_text(const struct gguf_value *v, const char *text)
{
    return v != NULL && v->kind == GGUF_STRING && v->count == strlen(text) && memcmp(v->data, text, v->count) == 0;
}

static enum err fail_value(const struct reader *r, const struct gguf_value *v, const char *key, const char *expected)
{
    if (v == NULL) {
        return FAIL(ERR_DATA, "%s: tokenizer.%s is missing, %s was expected", r->f->path, key, expected);
    }
    return FAIL(ERR_DATA, "%s: byte %" PRIu64 ": tokenizer.%s: %s was expected", r->f->path, v->at, key, expected);
}

/* ---- lists ---- */

static enum err read_texts(struct reader *r)
{
    const struct gguf_value *v = find(r, "ggml.tokens");
    if (v == NULL || v->kind != GGUF_ARRAY || v->item != GGUF_STRING || v->count == 0) {
        return fail_value(r, v, "ggml.tokens", "a list of strings");
    }
    void *mem;
    TRY(mem_alloc(&mem, v->count, sizeof(struct token)));
    r->list = mem;
    r->count = v->count;
    uint64_t at = 0;
    for (uint64_t i = 0; i < v->count; i++) {
        struct token *t = &r->list[i];
        gguf_next_string(v, &at, &t->text, &t->bytes);
        t->type = TYPE_NORMAL;
        if (utf8_valid_prefix(t->text, t->bytes) != t->bytes || memchr(t->text, 0, t->bytes) != NULL) {
            return FAIL(ERR_DATA, "%s: token %" PRIu64 " is not UTF-8 or has a zero byte", r->f->path, i);
        }
    }
    return OK;
}

static enum err read_types(struct reader *r)
{
    const struct gguf_value *v = find(r, "ggml.token_type");
    if (v == NULL) {
        return OK;
    }
    if (v->kind != GGUF_ARRAY || v->count != r->count) {
        return fail_value(r, v, "ggml.token_type", "a number for each token");
    }
    for (uint64_t i = 0; i < r->count; i++) {
        if (!gguf_whole(v, i, &r->list[i].type) || r->list[i].type < TYPE_NORMAL || r->list[i].type > TYPE_BYTE) {
            return fail_value(r, v, "ggml.token_type", "1 to 6 for each token");
        }
    }
    return OK;
}

/* The id of a special token, -1 when there is none. */
static enum err special(const struct reader *r, const char *key, int64_t *out)
{
    const struct gguf_value *v = find(r, key);
    uint64_t id = UINT64_MAX;
    *out = -1;
    if (v == NULL) {
        return OK;
    }
    if (!gguf_whole(v, 0, &id)) {
        return fail_value(r, v, key, "a token id");
    }
    if (id >= r->count) {
        return id == UINT32_MAX ? OK : fail_value(r, v, key, "an id of the vocabulary");
    }
    *out = (int64_t)id;
    return OK;
}

/* ---- byte-level BPE: tokenizer.json ---- */

/* Added tokens behind the vocabulary get their ids by counting on; others must be in it too. */
static void choose_vocab(struct reader *r)
{
    uint64_t end = r->count, last = 0;
    for (uint64_t i = 0; i < r->count; i++) {
        bool normal = r->list[i].type == TYPE_NORMAL || r->list[i].type == TYPE_BYTE;
        r->list[i].in_vocab = r->list[i].type != TYPE_UNUSED;
        last = r->list[i].in_vocab ? i + 1 : last;
        end = normal ? i + 1 : end;
    }
    bool dense = true;
    for (uint64_t i = end; i < last; i++) {
        dense = dense && r->list[i].in_vocab;
    }
    for (uint64_t i = end; i < last && dense; i++) {
        r->list[i].in_vocab = false;
    }
}

static bool is_added(const struct token *t)
{
    return t->type == TYPE_CONTROL || t->type == TYPE_USER || t->type == TYPE_UNKNOWN;
}

static enum err put_added(const struct reader *r, struct buf *out)
{
    bool first = true;
    TRY(buf_add_string(out, "  \"added_tokens\": ["));
    for (uint64_t i = 0; i < r->count; i++) {
        const struct token *t = &r->list[i];
        if (!is_added(t)) {
            continue;
        }
        TRY(buf_printf(out, "%s\n    {\"id\": %" PRIu64 ", \"content\": ", first ? "" : ",", i));
        TRY(buf_add_json_string(out, t->text, t->bytes));
        TRY(buf_printf(out, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                       "\"special\": %s}", t->type == TYPE_USER ? "false" : "true"));
        first = false;
    }
    return buf_add_string(out, "\n  ],\n");
}

static enum err put_pre(const struct reader *r, struct buf *out)
{
    TRY(buf_printf(out, "  \"normalizer\": %s,\n  \"pre_tokenizer\": ", r->pre->nfc ? "{\"type\": \"NFC\"}" : "null"));
    bool regex = r->pre->kind == PRE_REGEX;
    if (r->pre->kind == PRE_DIGITS) {
        TRY(buf_add_string(out, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
                                "\"individual_digits\": true}, "));
    } else if (regex) {
        TRY(buf_add_string(out, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
                                "{\"Regex\": "));
        TRY(buf_add_json_string(out, r->pre->regex, strlen(r->pre->regex)));
        TRY(buf_add_string(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, "));
    }
    TRY(buf_printf(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": "
                   "%s}%s,\n", regex ? "false" : "true", r->pre->kind == PRE_BYTES ? "" : "]}"));
    return OK;
}

static enum err put_post(const struct reader *r, struct buf *out)
{
    static const char levels[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, "
                                 "\"use_regex\": true}";
    int64_t bos;
    TRY(special(r, "ggml.bos_token_id", &bos));
    TRY(buf_add_string(out, "  \"post_processor\": "));
    if (!r->adds_bos || bos < 0) {
        return buf_printf(out, "%s,\n", levels);
    }
    const struct token *t = &r->list[bos];
    TRY(buf_printf(out, "{\"type\": \"Sequence\", \"processors\": [%s, {\"type\": \"TemplateProcessing\", \"single\": "
                   "[{\"SpecialToken\": {\"id\": ", levels));
    TRY(buf_add_json_string(out, t->text, t->bytes));
    TRY(buf_add_string(out, ", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": "
                            "[{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", "
                            "\"type_id\": 1}}], \"special_tokens\": {"));
    TRY(buf_add_json_string(out, t->text, t->bytes));
    TRY(buf_add_string(out, ": {\"id\": "));
    TRY(buf_add_json_string(out, t->text, t->bytes));
    TRY(buf_printf(out, ", \"ids\": [%" PRId64 "], \"tokens\": [", bos));
    TRY(buf_add_json_string(out, t->text, t->bytes));
    return buf_add_string(out, "]}}}]},\n");
}

static enum err put_vocab(const struct reader *r, struct buf *out)
{
    bool first = true;
    TRY(buf_printf(out, "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                   "\"use_regex\": true},\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    "
                   "\"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
                   "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": %s,\n    "
                   "\"vocab\": {", r->pre->ignore_merges ? "true" : "false"));
    for (uint64_t i = 0; i < r->count; i++) {
        if (r->list[i].in_vocab) {
            TRY(buf_add_string(out, first ? "\n      " : ",\n      "));
            TRY(buf_add_json_string(out, r->list[i].text, r->list[i].bytes));
            TRY(buf_printf(out, ": %" PRIu64, i));
            first = false;
        }
    }
    return buf_add_string(out, "\n    },\n");
}

static enum err put_merges(const struct reader *r, struct buf *out)
{
    const struct gguf_value *v = find(r, "ggml.merges");
    const char *text;
    size_t bytes;
    uint64_t at = 0;
    if (v == NULL || v->kind != GGUF_ARRAY || v->item != GGUF_STRING) {
        return fail_value(r, v, "ggml.merges", "a list of strings");
    }
    TRY(buf_add_string(out, "    \"merges\": ["));
    for (uint64_t i = 0; i < v->count; i++) {
        gguf_next_string(v, &at, &text, &bytes);
        if (utf8_valid_prefix(text, bytes) != bytes || memchr(text, 0, bytes) != NULL) {
            return FAIL(ERR_DATA, "%s: merge %" PRIu64 " is not UTF-8 or has a zero byte", r->f->path, i);
        }
        TRY(buf_add_string(out, i > 0 ? ",\n      " : "\n      "));
        TRY(buf_add_json_string(out, text, bytes));
    }
    return buf_add_string(out, "\n    ]\n  }\n}\n");
}

static enum err find_pre(struct reader *r)
{
    const struct gguf_value *v = find(r, "ggml.pre");
    for (size_t i = 0; i < gguf_pres_count; i++) {
        if (is_text(v, gguf_pres[i].name)) {
            r->pre = &gguf_pres[i];
            return OK;
        }
    }
    if (v == NULL || v->kind != GGUF_STRING) {
        return fail_value(r, v, "ggml.pre", "the name of a way to cut words");
    }
    struct buf names = { 0 };
    for (size_t i = 0; i < gguf_pres_count; i++) {
        TRY(buf_printf(&names, "%s%s", i > 0 ? ", " : "", gguf_pres[i].name));
    }
    enum err err = FAIL(ERR_DATA, "%s: byte %" PRIu64 ": tokenizer.ggml.pre \"%.*s\" is not in this version | there "
                        "are: %s", r->f->path, v->at, (int)(v->count < 60 ? v->count : 60), (const char *)v->data,
                        names.data);
    buf_release(&names);
    return err;
}

static enum err read_byte_level(struct reader *r, struct buf *out)
{
    const struct gguf_value *bos = find(r, "ggml.add_bos_token");
    TRY(find_pre(r));
    r->adds_bos = r->pre->adds_bos;
    if (bos != NULL && !gguf_flag(bos, &r->adds_bos)) {
        return fail_value(r, bos, "ggml.add_bos_token", "a bool");
    }
    choose_vocab(r);
    TRY(buf_add_string(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"));
    TRY(put_added(r, out));
    TRY(put_pre(r, out));
    TRY(put_post(r, out));
    TRY(put_vocab(r, out));
    return put_merges(r, out);
}

/* ---- tokenizer_config.json ---- */

static enum err put_special(const struct reader *r, const char *key, const char *name, struct buf *out)
{
    int64_t id;
    TRY(special(r, key, &id));
    if (id < 0) {
        return OK;
    }
    TRY(buf_printf(out, "  \"%s\": ", name));
    TRY(buf_add_json_string(out, r->list[id].text, r->list[id].bytes));
    return buf_add_string(out, ",\n");
}

static enum err put_config(const struct reader *r, const char *class, struct buf *out)
{
    const struct gguf_value *chat = find(r, "chat_template");
    TRY(buf_add_string(out, "{\n"));
    TRY(put_special(r, "ggml.bos_token_id", "bos_token", out));
    TRY(put_special(r, "ggml.eos_token_id", "eos_token", out));
    TRY(put_special(r, "ggml.unknown_token_id", "unk_token", out));
    TRY(put_special(r, "ggml.padding_token_id", "pad_token", out));
    if (chat != NULL && chat->kind == GGUF_STRING) {
        if (utf8_valid_prefix((const char *)chat->data, chat->count) != chat->count) {
            return fail_value(r, chat, "chat_template", "UTF-8");
        }
        TRY(buf_add_string(out, "  \"chat_template\": "));
        TRY(buf_add_json_string(out, (const char *)chat->data, chat->count));
        TRY(buf_add_string(out, ",\n"));
    }
    if (strcmp(class, "LlamaTokenizer") == 0) {
        TRY(buf_printf(out, "  \"add_bos_token\": %s,\n  \"legacy\": false,\n", r->adds_bos ? "true" : "false"));
    }
    return buf_printf(out, "  \"clean_up_tokenization_spaces\": false,\n  \"tokenizer_class\": \"%s\"\n}\n", class);
}

/* ---- SentencePiece: tokenizer.model ---- */

static enum err put_varint(struct buf *out, uint64_t value)
{
    do {
        unsigned char byte = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
        TRY(buf_add(out, &byte, 1));
        value >>= 7;
    } while (value > 0);
    return OK;
}

/* A field of a protocol buffer: a whole number, or bytes with their length. */
static enum err put_number(struct buf *out, uint32_t field, uint64_t value)
{
    TRY(put_varint(out, (uint64_t)field << 3));
    return put_varint(out, value);
}

static enum err put_bytes(struct buf *out, uint32_t field, const void *bytes, size_t count)
{
    TRY(put_varint(out, (uint64_t)field << 3 | 2));
    TRY(put_varint(out, count));
    return buf_add(out, bytes, count);
}

/* A piece: its text (1), score (2, a float) and type (3), which GGUF counts as SentencePiece does. */
static enum err put_piece(const struct token *t, float score, struct buf *piece, struct buf *out)
{
    static const unsigned char float_field = 2 << 3 | 5;
    buf_clear(piece);
    TRY(put_bytes(piece, 1, t->text, t->bytes));
    TRY(buf_add(piece, &float_field, 1));
    TRY(buf_add(piece, &score, 4));
    TRY(put_number(piece, 3, t->type));
    return put_bytes(out, 1, piece->data, piece->bytes);
}

static enum err read_flag(const struct reader *r, const char *key, bool usual, bool *out)
{
    const struct gguf_value *v = find(r, key);
    *out = usual;
    return v == NULL || gguf_flag(v, out) ? OK : fail_value(r, v, key, "a bool");
}

/* Settings of the trainer: a BPE model (3), pieces for bytes (35), ids of special pieces (40 to 43; an id of -1 is
 * none); of the normalizer: a space in front (3), repeated spaces are removed (4). */
static enum err put_settings(const struct reader *r, struct buf *part, struct buf *out)
{
    static const char *const special_keys[] = { "ggml.unknown_token_id", "ggml.bos_token_id", "ggml.eos_token_id",
                                                "ggml.padding_token_id" };
    bool bytes = false, prefix, spaces;
    int64_t id;
    for (uint64_t i = 0; i < r->count; i++) {
        bytes = bytes || r->list[i].type == TYPE_BYTE;
    }
    buf_clear(part);
    TRY(put_number(part, 3, 2));
    TRY(put_number(part, 35, bytes));
    for (uint32_t i = 0; i < 4; i++) {
        TRY(special(r, special_keys[i], &id));
        TRY(put_number(part, 40 + i, (uint64_t)id));
    }
    TRY(put_bytes(out, 2, part->data, part->bytes));
    TRY(read_flag(r, "ggml.add_space_prefix", true, &prefix));
    TRY(read_flag(r, "ggml.remove_extra_whitespaces", false, &spaces));
    buf_clear(part);
    TRY(put_bytes(part, 1, "identity", 8));
    TRY(put_number(part, 3, prefix));
    TRY(put_number(part, 4, spaces));
    TRY(put_number(part, 5, 1));
    return put_bytes(out, 3, part->data, part->bytes);
}

static enum err read_sentencepiece(struct reader *r, struct buf *out)
{
    const struct gguf_value *scores = find(r, "ggml.scores");
    struct buf part = { 0 };
    double score;
    if (scores == NULL || scores->kind != GGUF_ARRAY || scores->count != r->count) {
        return fail_value(r, scores, "ggml.scores", "a number for each token");
    }
    enum err err;
    while (r->count > 0 && r->list[r->count - 1].type == TYPE_UNUSED) { /* fills up the embedding */
        r->count--;
    }
    for (uint64_t i = 0; i < r->count; i++) {
        if (!gguf_real(scores, i, &score)) {
            err = fail_value(r, scores, "ggml.scores", "a number for each token");
            goto out;
        }
        TRY_OUT(put_piece(&r->list[i], (float)score, &part, out));
    }
    TRY_OUT(put_settings(r, &part, out));
out:
    buf_release(&part);
    return err;
}

static enum err read_kind(struct reader *r, const struct gguf_value *model, struct gguf_tokenizer_texts *out)
{
    bool pieces = is_text(model, "llama");
    if (!pieces && !is_text(model, "gpt2")) {
        return FAIL(ERR_DATA, "%s: byte %" PRIu64 ": tokenizer.ggml.model \"%.*s\" is not in this version | there are: "
                    "gpt2, llama", r->f->path, model->at, (int)(model->count < 60 ? model->count : 60),
                    (const char *)model->data);
    }
    TRY(read_texts(r));
    TRY(read_types(r));
    if (pieces) {
        TRY(read_sentencepiece(r, &out->sentencepiece));
        TRY(read_flag(r, "ggml.add_bos_token", true, &r->adds_bos));
        return put_config(r, "LlamaTokenizer", &out->config);
    }
    TRY(read_byte_level(r, &out->tokenizer));
    return put_config(r, "PreTrainedTokenizerFast", &out->config);
}

enum err gguf_tokenizer_read(const struct gguf_file *f, struct gguf_tokenizer_texts *out)
{
    struct reader r = { .f = f };
    const struct gguf_value *model = find(&r, "ggml.model");
    *out = (struct gguf_tokenizer_texts){ 0 };
    if (model == NULL || is_text(model, "no_vocab")) {
        log_warning("%s holds no tokenizer", f->path);
        return OK;
    }
    if (model->kind != GGUF_STRING) {
        return fail_value(&r, model, "ggml.model", "a string");
    }
    enum err err = read_kind(&r, model, out);
    free(r.list);
    if (err != OK) {
        gguf_tokenizer_release(out);
    }
    return err;
}

void gguf_tokenizer_release(struct gguf_tokenizer_texts *t)
{
    buf_release(&t->tokenizer);
    buf_release(&t->config);
    buf_release(&t->sentencepiece);
}
