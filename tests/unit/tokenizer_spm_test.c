/* Tokenizers that begin with characters: small ones (tests/golden/tokenizer, see make_sentencepiece.py there) against
 * what Hugging Face and SentencePiece made of the same texts; hostile texts; damaged model and rank files. */
#include "data_fixture.h"

#include "base/json.h"
#include "base/rng.h"
#include "data/charsmap.h"

#define GOLDEN GOLDEN_FOLDER "/tokenizer/"

struct fixture {
    struct tokenizer *t;
    struct tokenizer_scratch *s;
    struct tokens ids;
    struct buf back;
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
    buf_release(&f->back);
    tokenizer_scratch_free(f->s);
    tokenizer_free(f->t);
}

static void encode(struct fixture *f, const char *text, size_t bytes, unsigned flags)
{
    struct tokenizer_decoding d = { 0 };
    f->ids.count = 0;
    buf_clear(&f->back);
    assert_ok(tokenizer_encode(f->t, f->s, text, bytes, flags, &f->ids));
    for (size_t i = 0; i < f->ids.count; i++) {
        assert_ok(tokenizer_decode(f->t, &d, f->ids.id[i], &f->back));
    }
}

static const char *const names[] = { "spm_bpe.json", "unigram.json", "bpe.model", "unigram.model" };

static const char *golden(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof(path), GOLDEN "%s", name);
    return path;
}

static void check_row(struct fixture *f, const char *name, const json_t *row, unsigned flags)
{
    const json_t *text = json_array_get(row, 0), *ids = json_array_get(row, 1), *back = json_array_get(row, 2);
    encode(f, json_string_value(text), json_string_length(text), flags);
    bool same = f->ids.count == json_array_size(ids);
    for (size_t i = 0; same && i < f->ids.count; i++) {
        same = f->ids.id[i] == json_integer_value(json_array_get(ids, i));
    }
    const char *shown = f->back.data != NULL ? f->back.data : "";
    if (!same || f->back.bytes != json_string_length(back) || strcmp(shown, json_string_value(back)) != 0) {
        fail_msg("%s: \"%s\": %zu ids, expected %zu or other ones; decoded \"%s\", expected \"%s\"", name,
                 json_string_value(text), f->ids.count, json_array_size(ids), shown, json_string_value(back));
    }
}

/* Twice: the second time from the cache of words. */
static void ids_and_texts_are_those_of_the_judges(void **state)
{
    (void)state;
    json_t *root;
    assert_ok(json_read_file(&root, GOLDEN "expected_spm.json", 1 << 20));
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        const json_t *rows = json_object_get(root, names[n]);
        struct fixture f;
        open_tokenizer(&f, golden(names[n]));
        assert_true(json_array_size(rows) > 20);
        for (size_t i = 0; i < 2 * json_array_size(rows); i++) {
            bool json = strstr(names[n], ".json") != NULL;
            check_row(&f, names[n], json_array_get(rows, i / 2), json ? TOKENIZER_SPECIAL : 0);
        }
        close_tokenizer(&f);
    }
    json_decref(root);
}

static size_t count_id(const struct fixture *f, int32_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < f->ids.count; i++) {
        n += f->ids.id[i] == id;
    }
    return n;
}

static void an_end_token_in_a_text_is_characters_unless_asked_for(void **state)
{
    (void)state;
    static const char text[] = "I love you.</s>";
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        struct fixture f;
        open_tokenizer(&f, golden(names[n]));
        int32_t eot = (int32_t)tokenizer_eot(f.t);
        assert_true(eot > 0);
        encode(&f, text, strlen(text), TOKENIZER_SPECIAL);
        assert_int_equal(f.ids.id[f.ids.count - 1], eot);
        size_t special = f.ids.count;
        encode(&f, text, strlen(text), 0);
        bool written = strcmp(names[n], "unigram.json") == 0; /* its vocabulary holds the token's text */
        assert_true(written || (count_id(&f, eot) == 0 && f.ids.count > special));
        close_tokenizer(&f);
    }
}

/* In the middle of a text the first token keeps its blank. */
static void the_first_blank_goes_at_the_beginning_only(void **state)
{
    (void)state;
    struct fixture f;
    open_tokenizer(&f, golden("spm_bpe.json"));
    encode(&f, "the text", 8, 0);
    assert_string_equal(f.back.data, "the text");
    buf_clear(&f.back);
    for (size_t i = 0; i < f.ids.count; i++) {
        assert_ok(tokenizer_decode(f.t, NULL, f.ids.id[i], &f.back));
    }
    assert_string_equal(f.back.data, " the text");
    close_tokenizer(&f);
}

static void repeat(struct buf *out, const char *unit, size_t bytes)
{
    buf_clear(out);
    while (out->bytes < bytes) {
        assert_ok(buf_add_string(out, unit));
    }
}

static void a_million_of_one_character_take_linear_time(void **state)
{
    (void)state;
    static const char *const units[] = { "a", " ", "\n", "\xf0\x9f\x99\x82", "\xe2\x96\x81", "\xe9\xbe\x8d",
                                         "e\xcc\x81", "count", "<sep>" };
    struct buf text = { 0 };
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        struct fixture f;
        open_tokenizer(&f, golden(names[n]));
        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
            repeat(&text, units[u], u == 0 ? 1000000 : 100000);
            encode(&f, text.data, text.bytes, 0);
            assert_true(f.ids.count <= text.bytes + 1);
        }
        close_tokenizer(&f);
    }
    buf_release(&text);
}

/* Cutting words where no merge can reach across never changes an id: the same merges with a whole-text model. */
static void cut_words_have_the_ids_of_the_whole_text(void **state)
{
    (void)state;
    struct fixture cut, whole;
    struct buf json = { 0 };
    get(golden("spm_bpe.json"), &json);
    char *at_merge = strstr(json.data, "\"byte_fallback\":true");
    assert_non_null(at_merge);
    open_tokenizer(&cut, golden("spm_bpe.json"));
    /* ignore_merges forbids cuts, and no text below is one token */
    struct buf other = { 0 };
    assert_ok(buf_add(&other, json.data, (size_t)(at_merge - json.data)));
    assert_ok(buf_add_string(&other, "\"ignore_merges\":true,"));
    char *rest = strstr(at_merge, ",\"ignore_merges\":false");
    assert_non_null(rest);
    assert_ok(buf_add(&other, at_merge, (size_t)(rest - at_merge)));
    assert_ok(buf_add_string(&other, rest + strlen(",\"ignore_merges\":false")));
    put(at("whole.json"), other.data, other.bytes);
    open_tokenizer(&whole, at("whole.json"));
    static const char letters[] = "atheonscurd  .,0123\n";
    for (uint64_t round = 0; round < 500; round++) {
        char text[201] = "xq ";
        size_t bytes = 3 + rng_at(round, RNG_TEST, 0, 7).word[0] % 190;
        for (size_t i = 3; i < bytes; i++) {
            text[i] = letters[rng_at(round, RNG_TEST, i, 8).word[0] % (sizeof(letters) - 1)];
        }
        encode(&cut, text, bytes, 0);
        encode(&whole, text, bytes, 0);
        assert_int_equal(cut.ids.count, whole.ids.count);
        assert_memory_equal(cut.ids.id, whole.ids.id, cut.ids.count * sizeof(int32_t));
    }
    buf_release(&json);
    buf_release(&other);
    close_tokenizer(&cut);
    close_tokenizer(&whole);
}

static void a_saved_model_loads_as_the_same(void **state)
{
    (void)state;
    for (size_t n = 2; n < sizeof(names) / sizeof(names[0]); n++) {
        struct fixture f;
        char before[33], after[33];
        const char *to = at(n == 2 ? "saved_bpe" : "saved_unigram");
        bool found;
        open_tokenizer(&f, golden(names[n]));
        tokenizer_digest(f.t, before);
        assert_ok(file_make_folder(to));
        assert_ok(tokenizer_save(f.t, to));
        close_tokenizer(&f);
        assert_ok(tokenizer_is_in(to, &found));
        assert_true(found);
        open_tokenizer(&f, to);
        tokenizer_digest(f.t, after);
        assert_string_equal(before, after);
        close_tokenizer(&f);
    }
}

/* ---- damaged files ---- */

static void try_file(const char *path)
{
    struct tokenizer *t;
    struct tokenizer_scratch *s;
    struct tokens ids = { 0 };
    if (tokenizer_load(&t, path) != OK) {
        assert_non_null(strstr(err_message(), path));
        return;
    }
    assert_ok(tokenizer_scratch_new(&s, t));
    enum err err = tokenizer_encode(t, s, "the counted <sep> \xef\xbc\xa1 \xe9\xbe\x8d", 24, TOKENIZER_SPECIAL, &ids);
    assert_true(err == OK || err == ERR_DATA);
    tokens_release(&ids);
    tokenizer_scratch_free(s);
    tokenizer_free(t);
}

static void cut_and_altered_models_never_crash(void **state)
{
    (void)state;
    struct buf text = { 0 };
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        bool json = strstr(names[n], ".json") != NULL;
        const char *path = at(json ? "altered.json" : "altered.model");
        get(golden(names[n]), &text);
        for (uint64_t i = 0; i < 100; i++) {
            struct rng_block b = rng_at(i, RNG_TEST, n, 9);
            size_t where = b.word[0] % text.bytes;
            char kept = text.data[where];
            text.data[where] = (char)b.word[1];
            put(path, text.data, i % 3 == 0 ? where : text.bytes);
            text.data[where] = kept;
            try_file(path);
        }
    }
    buf_release(&text);
}

static const char *const ranks[][2] = {
    { "", "no token at all" },
    { "IQ== 0\nIg== x\n", "cl100k_base.tiktoken:2: \"Ig== x\", expected a token in base64, a blank and its rank" },
    { "I?== 0\n", "cl100k_base.tiktoken:1: \"I?== 0\"" },
    { "IQ==\n", "cl100k_base.tiktoken:1" },
    { " 0\n", "cl100k_base.tiktoken:1" },
    { "IQ== 99999999999\n", "cl100k_base.tiktoken:1" },
    { "IQ== 99999999\n", "has id 99999999, expected 0 to 16777215" },
    { "IQ== 0\nIQ== 1\n", "is there twice" },
    { "IQ== 0\nIg== 0\n", "have the same id 0" },
    { "IQ== 0\n", "the byte 0x00 is no token, expected all 256" },
};

static void damaged_rank_files_are_refused_with_their_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        struct tokenizer *t;
        put_text(at("cl100k_base.tiktoken"), ranks[i][0]);
        assert_fails(ERR_DATA, ranks[i][1], tokenizer_load(&t, at("cl100k_base.tiktoken")));
    }
    struct tokenizer *t;
    put_text(at("other.tiktoken"), "IQ== 0\n");
    assert_fails(ERR_DATA, "is no name of a tokenizer", tokenizer_load(&t, at("other.tiktoken")));
}

static const struct {
    const char *data;
    size_t bytes;
    const char *message;
} models[] = {
    { "", 0, "there are no pieces" },
    { "\x0a", 1, "the file ends inside of a number" },
    { "\x0a\x7f", 2, "a field is longer than what is left" },
    { "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 11, "a number is longer than 64 bits" },
    { "\x02\x00", 2, "a field without a number" },
    { "\x0b\x00", 2, "a field of unknown kind" },
    { "\x08\x01", 2, "a field is of another kind than expected" },
    { "\x0a\x00", 2, "a piece without text" },
    { "\x0a\x03\x0a\x01\xff", 5, "a piece that is not UTF-8" },
    { "\x0a\x08\x0a\x01" "a\x15\x00\x00\xc0\x7f", 10, "a piece whose score is no number" },
    { "\x0a\x05\x0a\x01" "a\x18\x09", 7, "a piece of unknown type" },
    { "\x0a\x03\x0a\x01" "a", 5, "no piece has type UNKNOWN" },
    { "\x0a\x05\x0a\x01" "a\x18\x02\x0a\x05\x0a\x01" "b\x18\x02", 14, "pieces 0 and 1 have type UNKNOWN" },
    { "\x0a\x05\x0a\x01" "a\x18\x02\x12\x02\x18\x03", 11, "trainer_spec.model_type: WORD is not supported" },
    { "\x0a\x05\x0a\x01" "a\x18\x02\x12\x02\x18\x09", 11, "trainer_spec.model_type is not known" },
    { "\x0a\x05\x0a\x01" "a\x18\x02\x12\x03\x98\x02\x01", 12, "trainer_spec.byte_fallback" },
    { "\x0a\x05\x0a\x01" "a\x18\x02\x1a\x03\x12\x01x", 12, "precompiled_charsmap: 1 bytes, a map has at least 8" },
};

static void damaged_models_are_refused_by_field_and_offset(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        struct tokenizer *t;
        put(at("small.model"), models[i].data, models[i].bytes);
        assert_fails(ERR_DATA, models[i].message, tokenizer_load(&t, at("small.model")));
        assert_non_null(strstr(err_message(), "small.model"));
    }
}

/* Pieces <unk>, b, c, a, bc, ab, all with the score 0; nothing is normalized. */
static void equal_scores_merge_from_the_left(void **state)
{
    (void)state;
    static const char model[] = "\x0a\x09\x0a\x05<unk>\x18\x02"
                                "\x0a\x03\x0a\x01" "b\x0a\x03\x0a\x01" "c\x0a\x03\x0a\x01" "a"
                                "\x0a\x04\x0a\x02" "bc\x0a\x04\x0a\x02" "ab"
                                "\x12\x02\x18\x02" "\x1a\x04\x18\x00\x20\x00";
    struct fixture f;
    put(at("equal.model"), model, sizeof(model) - 1);
    open_tokenizer(&f, at("equal.model"));
    encode(&f, "abcbcab", 7, 0);
    const int32_t expected[] = { 5, 2, 4, 5 };
    assert_int_equal(f.ids.count, 4);
    assert_memory_equal(f.ids.id, expected, sizeof(expected));
    encode(&f, "x\xc3\xa9" "ab", 5, 0); /* a row of unknown characters is one token */
    assert_int_equal(f.ids.count, 2);
    assert_int_equal(f.ids.id[0], 0);
    assert_string_equal(f.back.data, " \xe2\x81\x87 ab");
    close_tokenizer(&f);
}

static void base64_is_read_to_the_bit(void **state)
{
    (void)state;
    static const char *const good[][2] = { { "", "" }, { "Zg==", "f" }, { "Zm8=", "fo" }, { "Zm9v", "foo" },
                                           { "Zm9vYg", "foob" } };
    struct buf out = { 0 };
    bool whole;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        buf_clear(&out);
        assert_ok(base64_decode(good[i][0], strlen(good[i][0]), &out, &whole));
        assert_true(whole);
        assert_string_equal(out.data, good[i][1]);
    }
    assert_ok(base64_decode("Zm9*", 4, &out, &whole));
    assert_false(whole);
    assert_ok(base64_decode("Zm9vY", 5, &out, &whole));
    assert_false(whole);
    buf_release(&out);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ids_and_texts_are_those_of_the_judges),
    cmocka_unit_test(an_end_token_in_a_text_is_characters_unless_asked_for),
    cmocka_unit_test(the_first_blank_goes_at_the_beginning_only),
    cmocka_unit_test(a_million_of_one_character_take_linear_time),
    cmocka_unit_test(cut_words_have_the_ids_of_the_whole_text),
    cmocka_unit_test(a_saved_model_loads_as_the_same),
    cmocka_unit_test(cut_and_altered_models_never_crash),
    cmocka_unit_test(damaged_rank_files_are_refused_with_their_line),
    cmocka_unit_test(damaged_models_are_refused_by_field_and_offset),
    cmocka_unit_test(equal_scores_merge_from_the_left),
    cmocka_unit_test(base64_is_read_to_the_bit),
};

TEST_GROUP(tests, make_folder, remove_folder)
