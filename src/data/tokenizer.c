/* Why this exists: one way in for every kind of tokenizer file. The text of each file is kept in memory, so that a
 * checkpoint written hours later gets the very bytes the run was started with, whatever happened to the folder.
 *
 * "bytes" is not a special case: its tokenizer.json is written here and read like any other.
 *
 * Invariants: a loaded tokenizer never changes; every id it can produce is in bpe.token; eot is one of them or -1. */
#include "data/tokenizer.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/tokenizer_int.h"

#define SUPPORTED                                                                                                      \
    "supported: \"bytes\", tokenizer.json, tokenizer.model, cl100k_base.tiktoken (or o200k_base, "                     \
    "p50k_base, r50k_base), vocab.json or encoder.json with merges.txt or vocab.bpe"

static const char *text_of(const struct tokenizer_file *f)
{
    return f->text.data != NULL ? f->text.data : "";
}

enum err tokenizer_keep_text(struct tokenizer *t, const char *save_as, const struct buf *text, bool definition)
{
    BUG_IF(t->files >= TOKENIZER_FILES);
    struct tokenizer_file *f = &t->file[t->files];
    TRY(buf_add(&f->text, text->data, text->bytes));
    f->name = save_as;
    f->definition = definition;
    t->files++;
    return OK;
}

enum err tokenizer_keep(struct tokenizer *t, const char *folder, const char *name, const char *save_as, bool definition,
                        struct tokenizer_file **out)
{
    char *path;
    enum err err = OK;
    *out = NULL;
    TRY(file_join(&path, folder, name));
    if (file_exists(path)) {
        BUG_IF(t->files >= TOKENIZER_FILES);
        struct tokenizer_file *f = &t->file[t->files];
        TRY_OUT(file_read(path, TOKENIZER_FILE_BYTES_MAX, &f->text));
        f->name = save_as;
        f->definition = definition;
        t->files++;
        *out = f;
    }
out:
    free(path);
    return err;
}

/* Parse a kept file, naming it folder/name; NULL when the file is not there. */
static enum err parse_kept(const struct tokenizer_file *f, const char *folder, json_t **out)
{
    char *path;
    *out = NULL;
    if (f == NULL) {
        return OK;
    }
    TRY(file_join(&path, folder, f->name));
    enum err err = json_parse_reals(out, path, text_of(f), f->text.bytes);
    if (err == OK && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        err = FAIL(ERR_DATA, "%s: expected a JSON object", path);
    }
    free(path);
    return err;
}

/* ---- end of text ---- */

/* The text of a token given as a string or as {"content": string}; NULL when it is neither. */
static const char *token_content(const json_t *value, size_t *bytes)
{
    if (json_is_object(value)) {
        value = json_object_get(value, "content");
    }
    *bytes = json_string_length(value);
    return json_string_value(value);
}

static enum err set_eot(struct tokenizer *t, const char *text, size_t bytes, bool *found)
{
    int64_t index;
    const struct added_token *added = added_find(&t->added, text, bytes);
    *found = false;
    if (added != NULL) {
        t->eot = added->id;
    } else {
        TRY(bpe_find_spelling(&t->bpe, text, bytes, &index));
        if (index < 0) {
            return OK;
        }
        t->eot = t->bpe.token[index].id;
    }
    *found = true;
    return OK;
}

/* What the files say; the usual names only when they say nothing. */
static enum err find_eot(struct tokenizer *t, const char *folder, const json_t *config, const json_t *map)
{
    static const char *const usual[] = { "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>" };
    const json_t *both[2] = { config, map };
    bool found;
    for (int i = 0; i < 2; i++) {
        size_t bytes;
        const char *text = token_content(json_object_get(both[i], "eos_token"), &bytes);
        if (text == NULL || bytes == 0) {
            continue;
        }
        TRY(set_eot(t, text, bytes, &found));
        if (!found) {
            char quote[96];
            return FAIL(ERR_DATA, "%s/%s: eos_token: \"%s\" is not in the vocabulary", folder,
                        i == 0 ? "tokenizer_config.json" : "special_tokens_map.json", bpe_quote(text, bytes, quote));
        }
        return OK;
    }
    for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]) && t->eot < 0; i++) {
        TRY(set_eot(t, usual[i], strlen(usual[i]), &found));
    }
    return OK;
}

/* ---- loading ---- */

static enum err finish(struct tokenizer *t)
{
    TRY(bpe_seal(&t->bpe, t->path)); /* with the added tokens */
    TRY(added_finish(&t->added, t));
    pretoken_finish(&t->pre);
    t->vocab = (uint64_t)t->bpe.token[t->bpe.count - 1].id + 1;
    if (t->bpe.missing > 0 && t->model == MODEL_BYTES) {
        log_warning("%s: the vocabulary has no token for %d of the 243 bytes of UTF-8 | text with such a byte is "
                    "refused with its place (Hugging Face would drop it without a word)",
                    t->path, t->bpe.missing);
    }
    struct hash_stream *hash = hash_stream_begin();
    if (hash == NULL) {
        return FAIL(ERR_RESOURCE, "out of memory");
    }
    for (int i = 0; i < t->files; i++) {
        if (t->file[i].definition) {
            hash_stream_add(hash, t->file[i].name, strlen(t->file[i].name) + 1);
            hash_stream_add(hash, text_of(&t->file[i]), t->file[i].text.bytes);
        }
    }
    hash_stream_end(hash, t->digest);
    return OK;
}

/* Which files to look for in a folder; NULL: not this kind. */
struct names {
    const char *json, *spm, *tiktoken;
};

static enum err parse_pair(struct tokenizer *t, const char *folder, const json_t *config)
{
    struct tokenizer_file *file, *merges;
    TRY(tokenizer_keep(t, folder, "vocab.json", "vocab.json", true, &file));
    if (file == NULL) {
        TRY(tokenizer_keep(t, folder, "encoder.json", "vocab.json", true, &file));
    }
    TRY(tokenizer_keep(t, folder, "merges.txt", "merges.txt", true, &merges));
    if (merges == NULL) {
        TRY(tokenizer_keep(t, folder, "vocab.bpe", "merges.txt", true, &merges));
    }
    if (file == NULL || merges == NULL) {
        bool pair = file != NULL || merges != NULL;
        return FAIL(ERR_DATA, "%s: no tokenizer that can be read%s | " SUPPORTED, folder,
                    !pair ? "" : file == NULL ? " (merges without a vocabulary)" : " (a vocabulary without merges)");
    }
    return tokenizer_parse_vocab(t, folder, file, merges, config);
}

static enum err parse_file(struct tokenizer *t, const char *path, const struct names *n,
                           const struct tokenizer_file *file)
{
    json_t *root = NULL;
    if (n->spm != NULL) {
        return tokenizer_parse_spm(t, path, &file->text);
    }
    if (n->tiktoken != NULL) {
        return tokenizer_parse_tiktoken(t, path, n->tiktoken, &file->text);
    }
    TRY(json_parse(&root, path, text_of(file), file->text.bytes));
    enum err err = tokenizer_parse_json(t, path, root);
    json_decref(root);
    return err;
}

/* *found false: there is no such file. */
static enum err parse_named(struct tokenizer *t, const char *folder, const struct names *n, const json_t *config,
                            bool *found)
{
    const char *name = n->json != NULL ? n->json : n->spm != NULL ? n->spm : n->tiktoken;
    const char *save_as = n->json != NULL ? "tokenizer.json" : n->spm != NULL ? "tokenizer.model" : n->tiktoken;
    struct tokenizer_file *file;
    char *path;
    TRY(tokenizer_keep(t, folder, name, save_as, true, &file));
    *found = file != NULL;
    if (!*found) {
        return OK;
    }
    TRY(file_join(&path, folder, name));
    enum err err = parse_file(t, path, n, file);
    err = err != OK ? err : tokenizer_parse_decoder(t, folder, config);
    free(path);
    return err;
}

/* The named files in their order, then a vocabulary with merges. */
static enum err parse_definition(struct tokenizer *t, const char *folder, const struct names *n, const json_t *config)
{
    bool found = false;
    if (n->json != NULL) {
        TRY(parse_named(t, folder, &(struct names){ .json = n->json }, config, &found));
    }
    if (!found && n->spm != NULL) {
        TRY(parse_named(t, folder, &(struct names){ .spm = n->spm }, config, &found));
    }
    if (!found && n->tiktoken != NULL) {
        TRY(parse_named(t, folder, &(struct names){ .tiktoken = n->tiktoken }, config, &found));
    }
    for (size_t i = 0; !found && n->json != NULL && n->spm != NULL && tokenizer_tiktoken_name(i) != NULL; i++) {
        TRY(parse_named(t, folder, &(struct names){ .tiktoken = tokenizer_tiktoken_name(i) }, config, &found));
    }
    return found ? OK : parse_pair(t, folder, config);
}

static enum err load_folder(struct tokenizer *t, const char *folder, const struct names *n)
{
    struct tokenizer_file *config_file, *map_file, *template;
    json_t *config = NULL, *map = NULL;
    enum err err = OK;
    TRY_OUT(tokenizer_keep(t, folder, "tokenizer_config.json", "tokenizer_config.json", false, &config_file));
    TRY_OUT(tokenizer_keep(t, folder, "special_tokens_map.json", "special_tokens_map.json", false, &map_file));
    TRY_OUT(tokenizer_keep(t, folder, "chat_template.jinja", "chat_template.jinja", false, &template));
    TRY_OUT(parse_kept(config_file, folder, &config));
    TRY_OUT(parse_kept(map_file, folder, &map));
    TRY_OUT(parse_definition(t, folder, n, config));
    TRY_OUT(finish(t));
    err = find_eot(t, folder, config, map);
out:
    json_decref(config);
    json_decref(map);
    return err;
}

/* 256 tokens, id = value of the byte, and the end of text. */
static enum err load_bytes(struct tokenizer *t)
{
    static const char config[] = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                                 "  \"bos_token\": \"<|endoftext|>\",\n  \"eos_token\": \"<|endoftext|>\",\n"
                                 "  \"clean_up_tokenization_spaces\": false,\n"
                                 "  \"model_max_length\": 1000000000000000019884624838656\n}\n";
    struct buf text = { 0 }, config_text = { 0 };
    json_t *root = NULL;
    enum err err = OK;
    TRY_OUT(buf_add_string(&text, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                                  "  \"added_tokens\": [\n    {\"id\": 256, \"content\": \"<|endoftext|>\", "
                                  "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                                  "\"normalized\": false, \"special\": true}\n  ],\n  \"normalizer\": null,\n"
                                  "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                  "\"trim_offsets\": true, \"use_regex\": false},\n  \"post_processor\": null,\n"
                                  "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                  "\"trim_offsets\": true, \"use_regex\": false},\n  \"model\": {\n"
                                  "    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null,\n"
                                  "    \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null,\n"
                                  "    \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false,\n"
                                  "    \"vocab\": {"));
    for (unsigned byte = 0; byte < 256; byte++) {
        struct buf spelt = { 0 };
        char one = (char)byte;
        err = bytelevel_encode(&one, 1, &spelt);
        err = err != OK ? err : buf_add_string(&text, byte > 0 ? ",\n      " : "\n      ");
        err = err != OK ? err : buf_add_json_string(&text, spelt.data, spelt.bytes);
        err = err != OK ? err : buf_printf(&text, ": %u", byte);
        buf_release(&spelt);
        TRY_OUT(err);
    }
    TRY_OUT(buf_add_string(&text, "\n    },\n    \"merges\": []\n  }\n}\n"));
    TRY_OUT(buf_add_string(&config_text, config));
    TRY_OUT(tokenizer_keep_text(t, "tokenizer.json", &text, true));
    TRY_OUT(tokenizer_keep_text(t, "tokenizer_config.json", &config_text, false));
    TRY_OUT(json_parse(&root, t->path, text.data, text.bytes));
    TRY_OUT(tokenizer_parse_json(t, t->path, root));
    TRY_OUT(finish(t));
    err = find_eot(t, t->path, NULL, NULL);
out:
    json_decref(root);
    buf_release(&text);
    buf_release(&config_text);
    return err;
}

static enum err load_path(struct tokenizer *t, const char *path)
{
    if (strcmp(path, "bytes") == 0) {
        return load_bytes(t);
    }
    if (strlen(path) >= TOKENIZER_MESSAGE_PATH) {
        return FAIL(ERR_DATA, "tokenizer: a path of %zu bytes, at most %d", strlen(path), TOKENIZER_MESSAGE_PATH - 1);
    }
    if (file_is_folder(path)) {
        return load_folder(t, path, &(struct names){ .json = "tokenizer.json", .spm = "tokenizer.model" });
    }
    if (!file_exists(path)) {
        return FAIL(ERR_DATA, "%s: no such file or folder | " SUPPORTED, path);
    }
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    struct names n = { .tiktoken = tokenizer_tiktoken_known(name) };
    bool pair = strcmp(name, "vocab.json") == 0 || strcmp(name, "encoder.json") == 0;
    n.json = dot != NULL && strcmp(dot, ".json") == 0 && !pair ? name : NULL;
    n.spm = dot != NULL && strcmp(dot, ".model") == 0 ? name : NULL;
    if (n.json == NULL && n.spm == NULL && n.tiktoken == NULL && !pair) {
        return FAIL(ERR_DATA, "%s: is no name of a tokenizer | " SUPPORTED, path);
    }
    char *folder;
    TRY(slash == NULL ? mem_copy_string(&folder, ".", 1) :
        mem_copy_string(&folder, path, slash == path ? 1 : (size_t)(slash - path)));
    enum err err = load_folder(t, folder, &n);
    free(folder);
    return err;
}

enum err tokenizer_load(struct tokenizer **out, const char *path)
{
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(struct tokenizer)));
    struct tokenizer *t = block;
    enum err err = OK;
    t->eot = -1;
    TRY_OUT(mem_copy_string(&t->path, path, strlen(path)));
    symbol_trie_init(&t->user);
    TRY_OUT(char_table_init(&t->pre.table));
    TRY_OUT(load_path(t, path));
    *out = t;
    return OK;
out:
    tokenizer_free(t);
    return err;
}

enum err tokenizer_is_in(const char *folder, bool *found)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer.model", "vocab.json", "encoder.json" };
    const size_t count = sizeof(names) / sizeof(names[0]);
    *found = false;
    for (size_t i = 0; !*found && (i < count || tokenizer_tiktoken_name(i - count) != NULL); i++) {
        char *path;
        TRY(file_join(&path, folder, i < count ? names[i] : tokenizer_tiktoken_name(i - count)));
        *found = file_exists(path);
        free(path);
    }
    return OK;
}

void tokenizer_free(struct tokenizer *t)
{
    if (t == NULL) {
        return;
    }
    bpe_release(&t->bpe);
    unigram_release(&t->unigram);
    symbol_trie_release(&t->user);
    normal_release(&t->normal);
    pretoken_release(&t->pre);
    decode_release(&t->decode);
    added_release(&t->added);
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        buf_release(&t->file[i].text);
    }
    free(t->prefix);
    free(t->suffix);
    free(t->path);
    free(t);
}

/* ---- what it is ---- */

uint64_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->vocab;
}

int64_t tokenizer_eot(const struct tokenizer *t)
{
    return t->eot;
}

void tokenizer_digest(const struct tokenizer *t, char hex[33])
{
    memcpy(hex, t->digest, sizeof(t->digest));
}

enum err tokenizer_save(const struct tokenizer *t, const char *folder)
{
    for (int i = 0; i < t->files; i++) {
        char *path;
        TRY(file_join(&path, folder, t->file[i].name));
        enum err err = file_replace(path, text_of(&t->file[i]), t->file[i].text.bytes);
        free(path);
        TRY(err);
    }
    return OK;
}
