/* Tokenizers without any other program: ids that Hugging Face computed (tests/golden/tokenizer), the ways to be
 * asked for special tokens, saving, hostile texts and damaged files. */
#include "data_fixture.h"

#include "base/json.h"
#include "base/rng.h"
#include "base/utf8.h"

#define GOLDEN GOLDEN_FOLDER "/tokenizer/"

struct fixture {
    struct tokenizer *t;
    struct tokenizer_scratch *s;
    struct tokens ids;
};

static void open_tokenizer(struct fixture *f, const char *path)
{
    *f = (struct fixture){ 0 };
    assert_ok(tokenizer_load(&f->t, path));
    assert_ok(tokenizer_scratch_new(&f->s, f->t));
}

static void close_tokenizer(struct fixture *f)
{
    tokens_release(&f->ids);
    tokenizer_scratch_free(f->s);
    tokenizer_free(f->t);
}

static const char *golden(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof(path), GOLDEN "%s.json", name);
    return path;
}

static void encode(struct fixture *f, const char *text, size_t bytes, unsigned flags)
{
    f->ids.count = 0;
    assert_ok(tokenizer_encode(f->t, f->s, text, bytes, flags, &f->ids));
}

static void assert_ids(struct fixture *f, const char *text, size_t bytes, unsigned flags, const json_t *expected)
{
    encode(f, text, bytes, flags);
    bool same = f->ids.count == json_array_size(expected);
    for (size_t i = 0; same && i < f->ids.count; i++) {
        same = f->ids.id[i] == json_integer_value(json_array_get(expected, i));
    }
    if (!same) {
        fail_msg("\"%s\" with flags %u: %zu ids, expected %zu or other ones", text, flags, f->ids.count,
                 json_array_size(expected));
    }
}

static void decode_all(struct fixture *f, struct buf *out)
{
    struct tokenizer_decoding d = { 0 };
    buf_clear(out);
    for (size_t i = 0; i < f->ids.count; i++) {
        assert_ok(tokenizer_decode(f->t, &d, f->ids.id[i], out));
    }
}

static void ids_are_those_of_hugging_face(void **state)
{
    (void)state;
    json_t *root;
    const char *name;
    json_t *rows;
    assert_ok(json_read_file(&root, GOLDEN "expected.json", 1 << 20));
    json_object_foreach(root, name, rows) {
        struct fixture f;
        open_tokenizer(&f, golden(name));
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i), *text = json_array_get(row, 0);
            const char *bytes = json_string_value(text);
            size_t count = json_string_length(text);
            assert_ids(&f, bytes, count, TOKENIZER_SPECIAL, json_array_get(row, 1));
            assert_ids(&f, bytes, count, 0, json_array_get(row, 2));
            if (strstr(bytes, "<|begin|>") == NULL) {
                assert_ids(&f, bytes, count, TOKENIZER_SPECIAL | TOKENIZER_POST, json_array_get(row, 3));
            }
        }
        close_tokenizer(&f);
    }
    json_decref(root);
}

static void special_tokens_in_text_are_characters_unless_asked_for(void **state)
{
    (void)state;
    struct fixture f;
    struct buf back = { 0 };
    static const char text[] = "a<|endoftext|>b";
    open_tokenizer(&f, golden("gpt2"));
    int32_t eot = (int32_t)tokenizer_eot(f.t);
    encode(&f, text, strlen(text), TOKENIZER_SPECIAL);
    assert_int_equal(f.ids.count, 3);
    assert_int_equal(f.ids.id[1], eot);
    encode(&f, text, strlen(text), 0);
    for (size_t i = 0; i < f.ids.count; i++) {
        assert_int_not_equal(f.ids.id[i], eot);
    }
    decode_all(&f, &back);
    assert_string_equal(back.data, text);
    buf_release(&back);
    close_tokenizer(&f);
}

static void a_begin_token_is_not_added_twice(void **state)
{
    (void)state;
    struct fixture f;
    static const char with[] = "<|begin|>x", without[] = "x";
    open_tokenizer(&f, golden("llama3"));
    encode(&f, with, strlen(with), TOKENIZER_SPECIAL | TOKENIZER_POST);
    assert_int_equal(f.ids.count, 2);
    int32_t begin = f.ids.id[0];
    f.ids.count = 1; /* appending must look at its own ids only */
    assert_ok(tokenizer_encode(f.t, f.s, without, strlen(without), TOKENIZER_POST, &f.ids));
    assert_int_equal(f.ids.count, 3);
    assert_int_equal(f.ids.id[1], begin);
    close_tokenizer(&f);
}

static void bytes_tokenizer_is_the_bytes(void **state)
{
    (void)state;
    struct fixture f;
    char text[512];
    size_t bytes = 0;
    open_tokenizer(&f, "bytes");
    assert_int_equal(tokenizer_vocab(f.t), 257);
    assert_int_equal(tokenizer_eot(f.t), 256);
    for (uint32_t code = 0; code < 0x250; code += 3) {
        bytes += bytes < 500 ? utf8_encode(code, text + bytes) : 0;
    }
    encode(&f, text, bytes, 0);
    assert_int_equal(f.ids.count, bytes);
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(f.ids.id[i], (unsigned char)text[i]);
    }
    encode(&f, "<|endoftext|>", 13, TOKENIZER_SPECIAL);
    assert_int_equal(f.ids.count, 1);
    assert_int_equal(f.ids.id[0], 256);
    struct buf out = { 0 };
    for (int32_t id = 0; id < 256; id++) {
        buf_clear(&out);
        assert_ok(tokenizer_decode(f.t, NULL, id, &out));
        assert_true(out.bytes == 1 && (unsigned char)out.data[0] == id);
    }
    assert_fails(ERR_DATA, "id 257 is not in the vocabulary", tokenizer_decode(f.t, NULL, 257, &out));
    assert_fails(ERR_DATA, "id -1 is not in the vocabulary", tokenizer_decode(f.t, NULL, -1, &out));
    buf_release(&out);
    close_tokenizer(&f);
}

static void bytes_that_are_not_utf8_are_refused_with_their_offset(void **state)
{
    (void)state;
    struct fixture f;
    open_tokenizer(&f, golden("gpt2"));
    assert_fails(ERR_DATA, "byte 0xff at offset 10 is not UTF-8",
                 tokenizer_encode(f.t, f.s, "0123456789\xff", 11, 0, &f.ids));
    assert_fails(ERR_DATA, "byte 0xe2 at offset 3", tokenizer_encode(f.t, f.s, "abc\xe2\x82", 5, 0, &f.ids));
    assert_fails(ERR_DATA, "byte 0xed at offset 0", tokenizer_encode(f.t, f.s, "\xed\xa0\x80", 3, 0, &f.ids));
    close_tokenizer(&f);
}

static void a_saved_tokenizer_loads_as_the_same(void **state)
{
    (void)state;
    const char *const paths[] = { "bytes", golden("qwen2") };
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        char before[33], after[33];
        const char *to = at(i == 0 ? "saved0" : "saved1");
        open_tokenizer(&f, i == 0 ? paths[0] : golden("qwen2"));
        assert_ok(file_make_folder(to));
        assert_ok(tokenizer_save(f.t, to));
        tokenizer_digest(f.t, before);
        close_tokenizer(&f);
        open_tokenizer(&f, to);
        tokenizer_digest(f.t, after);
        assert_string_equal(before, after);
        close_tokenizer(&f);
    }
}

static void vocab_and_merges_are_read_as_the_class_says(void **state)
{
    (void)state;
    struct fixture f;
    static const char merges[] = "#version: 0.2\n\na b\r\n\xc4\xa0 a\n";
    assert_ok(file_make_folder(at("pair")));
    put_text(at("pair/vocab.json"), "{\"a\": 0, \"b\": 1, \"ab\": 2, \"\xc4\xa0\": 4, \"\xc4\xa0"
                                    "a\": 3, \"1\": 5, \"\xc3\x83\": 6, \"\xc2\xa9\": 7, \"<|endoftext|>\": 9}");
    put_text(at("pair/merges.txt"), merges);
    open_tokenizer(&f, at("pair"));
    assert_int_equal(tokenizer_vocab(f.t), 10);
    assert_int_equal(tokenizer_eot(f.t), 9);
    encode(&f, "ab a11", 6, 0);
    const int32_t expected[] = { 2, 3, 5, 5 };
    assert_int_equal(f.ids.count, 4);
    assert_memory_equal(f.ids.id, expected, sizeof(expected));
    assert_fails(ERR_DATA, "no token for the byte 0x63 in \" c\"", tokenizer_encode(f.t, f.s, "ab c", 4, 0, &f.ids));
    assert_ok(file_make_folder(at("pair2")));
    assert_ok(tokenizer_save(f.t, at("pair2"))); /* with the class that transformers needs */
    assert_true(file_exists(at("pair2/tokenizer_config.json")) && file_exists(at("pair2/merges.txt")));
    close_tokenizer(&f);
    put_text(at("pair/tokenizer_config.json"),
             "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"model_max_length\": 1000000000000000019884624838656, "
             "\"eos_token\": {\"content\": \"<end>\"}, \"added_tokens_decoder\": {\"8\": {\"content\": \"<end>\", "
             "\"special\": true}}}");
    open_tokenizer(&f, at("pair"));
    assert_int_equal(tokenizer_eot(f.t), 8);
    encode(&f, "<end>", 5, TOKENIZER_SPECIAL);
    assert_int_equal(f.ids.count, 1);
    close_tokenizer(&f);
    put_text(at("pair/tokenizer_config.json"), "{\"tokenizer_class\": \"T5Tokenizer\"}");
    assert_fails(ERR_DATA, "tokenizer_class: \"T5Tokenizer\" is not supported", tokenizer_load(&f.t, at("pair")));
    put_text(at("pair/tokenizer_config.json"), "{\"eos_token\": \"</s>\"}");
    assert_fails(ERR_DATA, "eos_token: \"</s>\" is not in the vocabulary", tokenizer_load(&f.t, at("pair")));
    remove(at("pair/tokenizer_config.json"));
    put_text(at("pair/merges.txt"), "a b c\n");
    assert_fails(ERR_DATA, "line 1 is \"a b c\"", tokenizer_load(&f.t, at("pair")));
    remove(at("pair/merges.txt"));
    assert_fails(ERR_DATA, "a vocabulary without merges", tokenizer_load(&f.t, at("pair")));
}

static void cut_texts_have_the_tokens_of_the_whole(void **state)
{
    (void)state;
    static const char *const names[] = { "gpt2", "llama3", "qwen2", "chain" };
    static const char *const words[] = { "the", " and", "\n\n", "  ", "don't", " 12", "\t", "x\xcc\x81", " ...\n",
                                         "\xc3\xa9" };
    for (int n = 0; n < 4; n++) {
        struct fixture f;
        struct tokens whole = { 0 };
        int cuts = 0;
        open_tokenizer(&f, golden(names[n]));
        for (uint64_t round = 0; round < 2000; round++) {
            char text[256];
            size_t bytes = 0;
            for (uint64_t i = 0; i < 12; i++) {
                const char *w = words[rng_at(round, RNG_TEST, i, 1).word[0] % 10];
                memcpy(text + bytes, w, strlen(w));
                bytes += strlen(w);
            }
            size_t cut = tokenizer_split(f.t, text, bytes);
            whole.count = f.ids.count = 0;
            assert_true(cut < bytes);
            assert_ok(tokenizer_encode(f.t, f.s, text, bytes, 0, &whole));
            assert_ok(tokenizer_encode(f.t, f.s, text, cut, 0, &f.ids));
            assert_ok(tokenizer_encode(f.t, f.s, text + cut, bytes - cut, 0, &f.ids));
            assert_int_equal(whole.count, f.ids.count);
            assert_memory_equal(whole.id, f.ids.id, whole.count * sizeof(int32_t));
            cuts += cut > 0;
        }
        /* "word" as an added token ends in a letter, but does not take blanks: still cut; a chain is never cut. */
        assert_true(n == 3 ? cuts == 0 : cuts > 1000);
        tokens_release(&whole);
        close_tokenizer(&f);
    }
}

/* ---- hostile texts ---- */

static void repeat(struct buf *out, const char *unit, size_t bytes)
{
    buf_clear(out);
    while (out->bytes < bytes) {
        assert_ok(buf_add(out, unit, strlen(unit)));
    }
}

static void long_runs_take_linear_time_and_round_trip(void **state)
{
    (void)state;
    static const char *const units[] = { "a", " ", "\n", "\xf0\x9f\x99\x82", "ab", "the", "1", "<", "<|right|>",
                                         "  x" };
    static const char *const names[] = { "gpt2", "llama3", "qwen2", "chain" };
    struct buf text = { 0 }, back = { 0 };
    for (int n = 0; n < 4; n++) {
        struct fixture f;
        open_tokenizer(&f, golden(names[n]));
        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
            repeat(&text, units[u], 300000);
            encode(&f, text.data, text.bytes, 0);
            decode_all(&f, &back);
            bool strips = strcmp(units[u], "<|right|>") == 0;
            assert_true(strips || (back.bytes == text.bytes && memcmp(back.data, text.data, text.bytes) == 0));
        }
        close_tokenizer(&f);
    }
    buf_release(&text);
    buf_release(&back);
}

static void marks_without_end_are_composed_in_linear_time(void **state)
{
    (void)state;
    struct fixture f;
    struct buf text = { 0 }, back = { 0 };
    open_tokenizer(&f, golden("qwen2"));
    /* combining classes 230, 220, 1 over and over: an insertion sort would need hours */
    repeat(&text, "\xcc\x81\xcc\xa3\xcc\xb4", 1 << 20);
    encode(&f, text.data, text.bytes, 0);
    decode_all(&f, &back);
    assert_int_equal(back.bytes, text.bytes);
    assert_memory_equal(back.data, "\xcc\xb4\xcc\xb4\xcc\xb4", 6);
    assert_memory_equal(back.data + back.bytes - 4, "\xcc\x81\xcc\x81", 4);
    buf_release(&text);
    buf_release(&back);
    close_tokenizer(&f);
}

/* Merging by heap and merging by scan are one function: a long word equals the same word found by plain search. */
static void long_words_merge_as_short_ones(void **state)
{
    (void)state;
    struct fixture f;
    struct buf text = { 0 };
    open_tokenizer(&f, golden("gpt2"));
    for (uint64_t round = 0; round < 300; round++) {
        buf_clear(&text);
        size_t words = 1 + rng_at(round, RNG_TEST, 0, 2).word[0] % 60;
        for (size_t i = 0; i < words; i++) {
            char c = (char)('a' + rng_at(round, RNG_TEST, i, 3).word[0] % 5);
            assert_ok(buf_add(&text, &c, 1));
        }
        encode(&f, text.data, text.bytes, 0);
        size_t short_count = f.ids.count;
        int32_t ids[64];
        memcpy(ids, f.ids.id, short_count * sizeof(int32_t));
        /* Behind a long run of another letter that merges with nothing the same letters must give the same ids. */
        struct buf longer = { 0 };
        repeat(&longer, "X", 60);
        assert_ok(buf_add(&longer, text.data, text.bytes));
        encode(&f, longer.data, longer.bytes, 0);
        assert_true(f.ids.count > short_count);
        assert_memory_equal(ids, f.ids.id + f.ids.count - short_count, short_count * sizeof(int32_t));
        buf_release(&longer);
    }
    buf_release(&text);
    close_tokenizer(&f);
}

/* ---- damaged files ---- */

#define MODEL(vocab, merges) "\"model\": {\"type\": \"BPE\", \"vocab\": {" vocab "}, \"merges\": [" merges "]}"
#define LEVEL "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}"
#define FILE_OF(rest) "{" LEVEL ", " rest "}"

static const char *const damaged[][2] = {
    { "", "JSON" },
    { "[]", "expected an object with \"model\"" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":", "not valid JSON" },
    { FILE_OF("\"model\": null"), "model: missing" },
    { FILE_OF("\"model\": {\"type\": \"Unigram\"}"), "1 steps of type \"ByteLevel\", expected none" },
    { FILE_OF("\"model\": {\"type\": \"WordPiece\\u001b[2J\"}"), "WordPiece\\x1b[2J" },
    { FILE_OF("\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"dropout\": 0.1}"),
      "model.dropout" },
    { FILE_OF("\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], "
              "\"end_of_word_suffix\": \"</w>\"}"),
      "model.end_of_word_suffix: is set" },
    { FILE_OF("\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"byte_fallback\": true}"),
      "model.byte_fallback" },
    { FILE_OF("\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"ignore_merges\": 1}"),
      "ignore_merges: expected true or false" },
    { FILE_OF("\"model\": {\"type\": \"BPE\", \"vocab\": [1], \"merges\": []}"), "model.vocab: expected an object" },
    { FILE_OF("\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": {}}"),
      "model.merges: expected a list" },
    { FILE_OF(MODEL("", "")), "model.vocab: no token at all" },
    { FILE_OF(MODEL("\"a\": -1", "")), "model.vocab: token \"a\" has id -1, expected 0 to 16777215" },
    { FILE_OF(MODEL("\"a\": 2147483648", "")), "has id 2147483648" },
    { FILE_OF(MODEL("\"a\": 16777216", "")), "has id 16777216" },
    { FILE_OF(MODEL("\"a\": 9223372036854775808", "")), "not valid JSON" },
    { FILE_OF(MODEL("\"a\": 1.5", "")), "the id of token \"a\" is not an integer" },
    { FILE_OF(MODEL("\"a\": 0, \"b\": 0", "")), "have the same id 0" },
    { FILE_OF(MODEL("\"a\": 0, \"a\": 1", "")), "not valid JSON" },
    { FILE_OF(MODEL("\"\xff\": 0", "")), "not valid JSON" },
    { FILE_OF(MODEL("\"\\ud800\": 0", "")), "not valid JSON" },
    { FILE_OF(MODEL("\"a\": 0", "\"a b\"")), "merge 0 names \"b\", which is not in the vocabulary" },
    { FILE_OF(MODEL("\"a\": 0, \"b\": 1", "\"a b\"")), "merge 0 gives \"ab\", which is not in the vocabulary" },
    { FILE_OF(MODEL("\"a\": 0, \"b\": 1, \"ab\": 2", "\"a b\", \"ab  b\"")), "merge 1 is \"ab  b\"" },
    { FILE_OF(MODEL("\"a\": 0", "\"aa\"")), "merge 0 is \"aa\"" },
    { FILE_OF(MODEL("\"a\": 0, \"\": 1", "\" a\"")), "merge 0 has an empty part" },
    { FILE_OF(MODEL("\"a\": 0", "[\"a\"]")), "merge 0 is neither" },
    { FILE_OF(MODEL("\"a\": 0", "[\"a\", 1]")), "merge 0 is neither" },
    { FILE_OF(MODEL("\"a\": 0", "3")), "merge 0 is neither" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": {}"), "added_tokens: expected a list" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 5}]"), "added_tokens[0]: expected an object" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 5, \"content\": \"\"}]"), "has 0 bytes" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": -5, \"content\": \"x\"}]"), "\"x\" has id -1" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 99999999999, \"content\": \"x\"}]"),
      "\"x\" has id" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 5, \"content\": \"a\"}]"),
      "\"a\" has id 5 here and 0 in the vocabulary" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 0, \"content\": \"x\"}]"),
      "\"x\" has id 0, which is token \"a\"" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 5, \"content\": \"x\"}, "
                                    "{\"id\": 5, \"content\": \"y\"}]"),
      "have the same id 5" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 5, \"content\": \"x\"}, "
                                    "{\"id\": 6, \"content\": \"x\"}]"),
      "\"x\" is there twice" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 5, \"content\": \"x\", \"special\": \"yes\"}]"),
      "special: expected true or false" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"normalizer\": {\"type\": \"Nmt\"}"), "normalizer.type: \"Nmt\"" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"decoder\": {\"type\": \"Metaspace\"}"), "decoder.type: \"Metaspace\"" },
    { "{\"pre_tokenizer\": {\"type\": \"Metaspace\"}, " MODEL("\"a\": 0", "") "}",
      "pre_tokenizer.replacement: expected one character" },
    { "{\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, " MODEL("\"a\": 0", "") "}",
      "pre_tokenizer.type: \"BertPreTokenizer\"" },
    { "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
      "\"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"(\"}}]}, " MODEL("\"a\": 0", "") "}",
      "pre_tokenizer.pretokenizers[0]" },
    { "{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Sideways\", \"pattern\": {\"Regex\": \"a\"}}, "
      MODEL("\"a\": 0", "") "}", "behavior: \"Sideways\"" },
    { "{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": 3}, "
      MODEL("\"a\": 0", "") "}", "pattern: expected" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"post_processor\": {\"type\": \"BertProcessing\"}"), "\"BertProcessing\"" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
                                    "{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], "
                                    "\"special_tokens\": {\"<s>\": {\"ids\": [7]}}}"),
      "\"<s>\" has id 7, which is not in the vocabulary" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
                                    "{\"SpecialToken\": {\"id\": \"<s>\"}}], \"special_tokens\": {}}"),
      "\"<s>\" is not in special_tokens" },
    { FILE_OF(MODEL("\"a\": 0", "") ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}"),
      "the text is there 0 times" },
};

static void damaged_files_are_refused_with_file_and_field(void **state)
{
    (void)state;
    const char *path = at("damaged.json");
    for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
        struct tokenizer *t;
        put_text(path, damaged[i][0]);
        assert_fails(ERR_DATA, damaged[i][1], tokenizer_load(&t, path));
        assert_non_null(strstr(err_message(), "damaged.json"));
        assert_null(t);
    }
}

static void depth_and_wrong_places_are_refused(void **state)
{
    (void)state;
    struct buf text = { 0 };
    struct tokenizer *t;
    repeat(&text, "[", 100000);
    put(at("deep.json"), text.data, text.bytes);
    assert_fails(ERR_DATA, "nested deeper", tokenizer_load(&t, at("deep.json")));
    assert_fails(ERR_DATA, "no such file or folder", tokenizer_load(&t, at("nowhere")));
    assert_fails(ERR_DATA, "no tokenizer that can be read", tokenizer_load(&t, folder));
    put_text(at("tokenizer.text"), "x");
    assert_fails(ERR_DATA, "is no name of a tokenizer", tokenizer_load(&t, at("tokenizer.text")));
    buf_release(&text);
}

/* Cut and altered copies of a good file: an error or a tokenizer, never a crash. */
static void mutations_never_crash(void **state)
{
    (void)state;
    struct buf text = { 0 };
    get(golden("llama3"), &text);
    for (uint64_t i = 0; i < 250; i++) {
        struct rng_block b = rng_at(i, RNG_TEST, 1, 4);
        size_t where = b.word[0] % text.bytes;
        char kept = text.data[where];
        text.data[where] = (char)b.word[1];
        put(at("mutated.json"), text.data, i % 4 == 0 ? where : text.bytes);
        text.data[where] = kept;
        struct tokenizer *t;
        struct tokenizer_scratch *s;
        if (tokenizer_load(&t, at("mutated.json")) != OK) {
            continue;
        }
        struct tokens ids = { 0 };
        assert_ok(tokenizer_scratch_new(&s, t));
        enum err err = tokenizer_encode(t, s, "Hello <|left|> 123 wor\xc3\xa9", 24, TOKENIZER_SPECIAL, &ids);
        assert_true(err == OK || err == ERR_DATA);
        tokens_release(&ids);
        tokenizer_scratch_free(s);
        tokenizer_free(t);
    }
    buf_release(&text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ids_are_those_of_hugging_face),
    cmocka_unit_test(special_tokens_in_text_are_characters_unless_asked_for),
    cmocka_unit_test(a_begin_token_is_not_added_twice),
    cmocka_unit_test(bytes_tokenizer_is_the_bytes),
    cmocka_unit_test(bytes_that_are_not_utf8_are_refused_with_their_offset),
    cmocka_unit_test(a_saved_tokenizer_loads_as_the_same),
    cmocka_unit_test(vocab_and_merges_are_read_as_the_class_says),
    cmocka_unit_test(cut_texts_have_the_tokens_of_the_whole),
    cmocka_unit_test(long_runs_take_linear_time_and_round_trip),
    cmocka_unit_test(marks_without_end_are_composed_in_linear_time),
    cmocka_unit_test(long_words_merge_as_short_ones),
    cmocka_unit_test(damaged_files_are_refused_with_file_and_field),
    cmocka_unit_test(depth_and_wrong_places_are_refused),
    cmocka_unit_test(mutations_never_crash),
};

TEST_GROUP(tests, make_folder, remove_folder)
