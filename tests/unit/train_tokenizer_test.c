/* Learning a tokenizer: which merges, the same bytes for any number of threads, and what is told when the text is
 * small. */
#include "data_fixture.h"

#include "base/rng.h"
#include "data/bpe_train.h"

static enum err train(const char *input, const char *output, uint64_t vocab, uint32_t threads)
{
    struct pool *pool;
    assert_ok(pool_new(&pool, threads));
    struct train_tokenizer_options o = { .inputs = &input, .inputs_count = 1, .vocab_size = vocab, .output = output,
                                         .quiet = true };
    enum err err = data_train_tokenizer(&o, pool);
    pool_free(pool);
    return err;
}

static void learn(const char *const *words, const uint64_t *counts, size_t n, size_t tokens, struct bpe_learnt *out)
{
    struct bpe_words w = { 0 };
    uint32_t index;
    *out = (struct bpe_learnt){ 0 };
    for (size_t i = 0; i < n; i++) {
        assert_ok(bpe_words_add(&w, words[i], strlen(words[i]), counts[i], &index));
    }
    assert_ok(bpe_train(&w, tokens, out));
    bpe_words_release(&w);
}

static void assert_merges(const struct bpe_learnt *l, const char *const *expected, size_t n)
{
    assert_int_equal(l->merges, n);
    for (size_t i = 0; i < n; i++) {
        char text[64];
        int32_t a = l->merge[i].left, b = l->merge[i].right;
        snprintf(text, sizeof(text), "%.*s+%.*s", (int)(l->offset[a + 1] - l->offset[a]), l->text.data + l->offset[a],
                 (int)(l->offset[b + 1] - l->offset[b]), l->text.data + l->offset[b]);
        assert_string_equal(text, expected[i]);
    }
}

static void the_most_frequent_pair_is_merged_first(void **state)
{
    (void)state;
    static const char *const words[] = { "low", "lower", "newest", "widest" };
    static const uint64_t counts[] = { 5, 2, 6, 3 };
    /* es and st 9 times each: the smaller ids first */
    static const char *const expected[] = { "e+s", "es+t", "l+o", "lo+w", "e+w", "n+ew", "new+est", "d+est", "i+dest",
                                            "w+idest", "e+r", "low+er" };
    struct bpe_learnt l;
    learn(words, counts, 4, 300, &l);
    assert_merges(&l, expected, 12);
    bpe_learnt_release(&l);
    learn(words, counts, 4, 258, &l); /* two merges, then full */
    assert_merges(&l, expected, 2);
    bpe_learnt_release(&l);
}

static void runs_are_merged_from_the_left(void **state)
{
    (void)state;
    static const char *const words[] = { "aaaaa", "aaab" };
    static const uint64_t counts[] = { 2, 3 };
    /* aa: 4*2 + 2*3; then aaaaa = aa aa a, aaab = aa a b */
    static const char *const expected[] = { "a+a", "aa+a", "aaa+b", "aa+aaa" };
    struct bpe_learnt l;
    learn(words, counts, 2, 300, &l);
    assert_merges(&l, expected, 4);
    bpe_learnt_release(&l);
}

/* Count pairs anew before every merge: slow and obvious. Words are arrays of ids. */
struct plain {
    int32_t id[40][24];
    size_t length[40];
    uint64_t count[40];
    size_t words;
};

static uint64_t plain_best(const struct plain *p, int32_t *left, int32_t *right)
{
    static uint64_t count[400][400];
    uint64_t best = 0;
    memset(count, 0, sizeof(count));
    for (size_t w = 0; w < p->words; w++) {
        for (size_t i = 0; i + 1 < p->length[w]; i++) {
            count[p->id[w][i]][p->id[w][i + 1]] += p->count[w];
        }
    }
    for (int32_t a = 0; a < 400; a++) {
        for (int32_t b = 0; b < 400; b++) {
            if (count[a][b] > best) {
                best = count[a][b];
                *left = a;
                *right = b;
            }
        }
    }
    return best;
}

static void plain_merge(struct plain *p, int32_t left, int32_t right, int32_t id)
{
    for (size_t w = 0; w < p->words; w++) {
        size_t n = 0;
        for (size_t i = 0; i < p->length[w]; i++) {
            bool hit = i + 1 < p->length[w] && p->id[w][i] == left && p->id[w][i + 1] == right;
            p->id[w][n++] = hit ? id : p->id[w][i];
            i += hit;
        }
        p->length[w] = n;
    }
}

static void incremental_counts_equal_counting_anew(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 12; round++) {
        struct plain p = { .words = 40 };
        struct bpe_words words = { 0 };
        struct bpe_learnt l = { 0 };
        for (size_t w = 0; w < p.words; w++) {
            char text[24];
            uint32_t index;
            size_t n = 1 + rng_at(round, RNG_TEST, w, 1).word[0] % 20;
            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + rng_at(round, RNG_TEST, w, 100 + i).word[0] % 3);
                p.id[w][i] = text[i] - 33; /* ids are in order of printable characters, '!' is 0 */
            }
            p.length[w] = n;
            p.count[w] = 1 + rng_at(round, RNG_TEST, w, 2).word[0] % 5;
            assert_ok(bpe_words_add(&words, text, n, p.count[w], &index));
        }
        assert_ok(bpe_train(&words, 380, &l));
        for (size_t m = 0; m < l.merges; m++) {
            int32_t left = 0, right = 0;
            assert_true(plain_best(&p, &left, &right) >= BPE_TRAIN_COUNT_MIN);
            assert_int_equal(l.merge[m].left, left);
            assert_int_equal(l.merge[m].right, right);
            plain_merge(&p, left, right, l.merge[m].id);
        }
        int32_t left, right;
        assert_true(l.tokens == 380 || plain_best(&p, &left, &right) < BPE_TRAIN_COUNT_MIN);
        bpe_learnt_release(&l);
        bpe_words_release(&words);
    }
}

static void write_text(const char *path)
{
    static const char *const words[] = { "the", "cat", "sat", "on", "mat", "don't", "\n", "1984", "caf\xc3\xa9",
                                         "the" };
    struct buf text = { 0 };
    for (uint64_t i = 0; i < 60000; i++) {
        assert_ok(buf_add_string(&text, words[rng_at(3, RNG_TEST, i, 0).word[0] % 10]));
        assert_ok(buf_add_string(&text, rng_at(3, RNG_TEST, i, 0).word[1] % 7 == 0 ? "s " : " "));
    }
    put(path, text.data, text.bytes);
    buf_release(&text);
}

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    (void)state;
    struct buf first = { 0 }, other = { 0 };
    write_text(at("train.txt"));
    assert_ok(train(at("train.txt"), at("t1"), 300, 1));
    get(at("t1/tokenizer.json"), &first);
    for (uint32_t threads = 2; threads <= 4; threads++) {
        assert_ok(train(at("train.txt"), at("tn"), 300, threads));
        get(at("tn/tokenizer.json"), &other);
        assert_int_equal(first.bytes, other.bytes);
        assert_memory_equal(first.data, other.data, first.bytes);
    }
    buf_release(&first);
    buf_release(&other);
}

static void what_is_learnt_loads_and_round_trips(void **state)
{
    (void)state;
    struct tokenizer *t;
    struct tokenizer_scratch *s;
    struct tokens ids = { 0 };
    struct buf back = { 0 };
    static const char text[] = "the cats sat on caf\xc3\xa9 mats \xf0\x9f\x99\x82";
    write_text(at("train.txt"));
    assert_ok(train(at("train.txt"), at("new/folder"), 280, 2));
    assert_ok(tokenizer_load(&t, at("new/folder")));
    assert_int_equal(tokenizer_vocab(t), 280);
    assert_int_equal(tokenizer_eot(t), 279);
    assert_ok(tokenizer_scratch_new(&s, t));
    assert_ok(tokenizer_encode(t, s, text, strlen(text), 0, &ids));
    assert_true(ids.count < strlen(text));
    for (size_t i = 0; i < ids.count; i++) {
        assert_ok(tokenizer_decode(t, NULL, ids.id[i], &back));
    }
    assert_string_equal(back.data, text);
    buf_release(&back);
    tokens_release(&ids);
    tokenizer_scratch_free(s);
    tokenizer_free(t);
}

static void a_small_text_gives_a_smaller_vocabulary(void **state)
{
    (void)state;
    struct tokenizer *t;
    put_text(at("small.txt"), "ab ab");
    assert_ok(train(at("small.txt"), at("small"), 5000, 1)); /* warns with the size reached */
    assert_ok(tokenizer_load(&t, at("small")));
    assert_int_equal(tokenizer_vocab(t), 258); /* "ab" twice; " ab" only once */
    tokenizer_free(t);
}

static void faults_are_told_before_anything_is_written(void **state)
{
    (void)state;
    put_text(at("empty.txt"), "");
    assert_fails(ERR_DATA, "hold no text", train(at("empty.txt"), at("none"), 300, 1));
    assert_fails(ERR_USAGE, "vocab_size: 256, expected 257", train(at("empty.txt"), at("none"), 256, 1));
    put_text(at("bad.jsonl"), "{\"text\": \"good\"}\n{\"text\": 5}\n");
    assert_fails(ERR_DATA, "bad.jsonl:2", train(at("bad.jsonl"), at("none"), 300, 2));
    assert_false(file_exists(at("none")));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_most_frequent_pair_is_merged_first),
    cmocka_unit_test(runs_are_merged_from_the_left),
    cmocka_unit_test(incremental_counts_equal_counting_anew),
    cmocka_unit_test(any_number_of_threads_gives_the_same_bytes),
    cmocka_unit_test(what_is_learnt_loads_and_round_trips),
    cmocka_unit_test(a_small_text_gives_a_smaller_vocabulary),
    cmocka_unit_test(faults_are_told_before_anything_is_written),
};

TEST_GROUP(tests, make_folder, remove_folder)
