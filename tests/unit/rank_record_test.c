/* What ranks record of themselves, and what is read of it and of the metrics when a step is replayed. */
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "test.h"
#include "train/metrics.h"
#include "train/rank_record.h"

static char root[64], path[80];

static int fresh_folder(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/invar-rank-record-%d", (int)getpid());
    snprintf(path, sizeof(path), "%s/rank-3.jsonl", root);
    return file_remove_tree(root) == OK && file_make_folder(root) == OK ? 0 : 1;
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(root) == OK ? 0 : 1;
}

static const char job[] =
    "model: { model_type: gpt2, vocab_size: 257, n_embd: 32, n_layer: 4, n_head: 4, n_positions: 64 }\n"
    "data_path: data\nseq_length: 32\nglobal_batch_size: 8\nmicro_batch_size: 2\nmax_steps: 9\npp: 2\n"
    "pipeline_layers: [3, 1]\nlearning_rate: 0.1\n";

static void load_job(struct conf *c)
{
    char file[80];
    struct findings f = { 0 };
    snprintf(file, sizeof(file), "%s/job.yaml", root);
    assert_ok(file_replace(file, job, strlen(job)));
    assert_ok(conf_load(c, file, 0, NULL, 4, &f));
    findings_release(&f);
}

static void write_steps(const struct conf *c, uint32_t world, uint64_t done, const char *from, uint64_t last)
{
    struct rank_record *r;
    const struct rank_start start = { 3, world, done, from };
    assert_ok(rank_record_open(&r, root, &start, c));
    for (uint64_t step = done + 1; step <= last; step++) {
        const struct contribution given = { -5 * (int64_t)step, step * world, step % 2 == 0,
                                            0xabcdef0000000000u + step };
        assert_ok(rank_record_step(r, step, &given));
    }
    rank_record_close(r);
}

static const char *key(const struct past_start *s, const char *name)
{
    return json_string_value(json_object_get(s->keys, name));
}

static void a_record_reads_back(void **state)
{
    (void)state;
    struct conf c;
    struct rank_past p;
    char digest[33];
    load_job(&c);
    conf_digest(&c, digest);
    write_steps(&c, 4, 0, NULL, 4);
    write_steps(&c, 6, 2, "/a \"b\"/step-2", 7);
    assert_ok(rank_past_read(&p, root, 3, 4));
    assert_true(p.found && p.at == 1 && p.count == 2 && p.last == 7); /* step 4 was done twice: the last one */
    assert_true(p.given.loss == -20 && p.given.tokens == 24 && p.given.hashed);
    assert_true(p.given.gradient == 0xabcdef0000000004u);
    const struct past_start *first = &p.starts[0], *second = &p.starts[1];
    assert_true(first->world == 4 && first->step == 0 && first->from == NULL);
    assert_true(second->world == 6 && second->step == 2);
    assert_string_equal(second->from, "/a \"b\"/step-2");
    assert_string_equal(first->digest, digest);
    assert_string_equal(key(first, "pp"), "2");
    assert_string_equal(key(first, "dp"), "2");
    assert_string_equal(key(first, "pipeline_layers"), "3,1");
    assert_string_equal(key(first, "pipeline_schedule"), "1f1b");
    assert_string_equal(key(first, "sequence_parallel"), "false");
    assert_string_equal(key(first, "micro_batch_size"), "2");
    assert_string_equal(key(first, "global_batch_size"), "8");
    assert_string_equal(key(first, "learning_rate"), "0.1");
    assert_string_equal(key(first, "lr_decay_steps"), "9");
    assert_null(json_object_get(first->keys, "model"));
    rank_past_release(&p);
    assert_ok(rank_past_read(&p, root, 3, 1));
    assert_true(p.found && p.at == 0 && p.given.tokens == 4 && !p.given.hashed);
    rank_past_release(&p);
    assert_ok(rank_past_read(&p, root, 3, 8));
    assert_true(!p.found && p.last == 7);
    rank_past_release(&p);
    conf_release(&c);
}

static void a_line_that_was_cut_is_no_line(void **state)
{
    (void)state;
    struct conf c;
    struct rank_past p;
    uint64_t bytes;
    load_job(&c);
    write_steps(&c, 4, 0, NULL, 3);
    assert_ok(file_size(path, &bytes));
    assert_true(truncate(path, (off_t)bytes - 4) == 0);
    assert_ok(rank_past_read(&p, root, 3, 3));
    assert_true(!p.found && p.last == 2);
    rank_past_release(&p);
    write_steps(&c, 4, 3, NULL, 4); /* the next start has a line of its own */
    assert_ok(rank_past_read(&p, root, 3, 4));
    assert_true(p.found && p.count == 2 && p.at == 1);
    rank_past_release(&p);
    conf_release(&c);
}

#define START                                                                                                          \
    "{\"start\":0,\"rank\":3,\"world\":4,\"from\":null,\"config\":\"00112233445566778899aabbccddeeff\",\"keys\":{}}\n"

static void lines_of_another_form_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "{\"step\":1,\"loss_sum\":1,\"tokens\":1}\n", /* before any start */
        START "{\"step\":-1,\"loss_sum\":1,\"tokens\":1}\n",
        START "{\"step\":1,\"loss_sum\":1.5,\"tokens\":1}\n",
        START "{\"step\":1,\"loss_sum\":1,\"tokens\":-1}\n",
        START "{\"step\":1,\"tokens\":1}\n",
        START "{\"step\":1,\"loss_sum\":1,\"tokens\":1,\"gradient\":\"12\"}\n",
        START "{\"step\":1,\"loss_sum\":1,\"tokens\":1,\"gradient\":\"00112233445566G7\"}\n",
        START "{\"step\":1,\"loss_sum\":1,\"tokens\":1,\"gradient\":null}\n",
        START "7\n",
        "{\"start\":0,\"world\":0,\"from\":null,\"config\":\"00112233445566778899aabbccddeeff\",\"keys\":{}}\n",
        "{\"start\":-1,\"world\":4,\"from\":null,\"config\":\"00112233445566778899aabbccddeeff\",\"keys\":{}}\n",
        "{\"start\":0,\"world\":4,\"config\":\"00112233445566778899aabbccddeeff\",\"keys\":{}}\n",
        "{\"start\":0,\"world\":4,\"from\":3,\"config\":\"00112233445566778899aabbccddeeff\",\"keys\":{}}\n",
        "{\"start\":0,\"world\":4,\"from\":null,\"config\":\"0011\",\"keys\":{}}\n",
        "{\"start\":0,\"world\":4,\"from\":null,\"config\":\"00112233445566778899aabbccddeeff\",\"keys\":{\"tp\":2}}\n",
        "{\"start\":0,\"world\":4,\"from\":null,\"config\":\"00112233445566778899aabbccddeeff\"}\n",
    };
    struct rank_past p;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_ok(file_replace(path, wrong[i], strlen(wrong[i])));
        assert_int_equal(rank_past_read(&p, root, 3, 1), ERR_DATA);
        rank_past_release(&p);
    }
    const char good[] = START "{\"step\":1,\"loss_sum\":-1,\"tokens\":0,\"gradient\":\"00112233445566f7\"}\n\n";
    assert_ok(file_replace(path, good, strlen(good)));
    assert_ok(rank_past_read(&p, root, 3, 1));
    assert_true(p.found && p.given.loss == -1 && p.given.gradient == 0x112233445566f7u);
    rank_past_release(&p);
    assert_int_equal(rank_past_read(&p, root, 2, 1), ERR_USAGE);
    rank_past_release(&p);
}

static void contributions_are_compared_as_far_as_they_are_known(void **state)
{
    (void)state;
    const struct contribution all = { 1, 2, true, 3 }, loss = { 9, 2, true, 3 }, tokens = { 1, 9, true, 3 },
                              gradient = { 1, 2, true, 9 }, none = { 1, 2, false, 0 };
    assert_true(contribution_equal(&all, &all) && contribution_equal(&all, &none) && contribution_equal(&none, &all));
    assert_false(contribution_equal(&all, &loss) || contribution_equal(&all, &tokens) ||
                 contribution_equal(&all, &gradient));
}

static void metrics_of_steps_are_read(void **state)
{
    (void)state;
    struct metrics *m;
    struct past_step s[3];
    uint64_t last;
    assert_ok(metrics_open(&m, root, false, 0));
    for (uint64_t step = 1; step <= 5; step++) {
        const struct metric loss = { "loss", step == 3 ? NAN : 0.1 * (double)step };
        const struct metric other = { "loss", 77.0 };
        assert_ok(metrics_write(m, "train", step, 0xf000000000000000u + step, &loss, 1));
        assert_ok(metrics_write(m, "eval", step, 1, &other, 1));
    }
    metrics_close(m);
    memset(s, 0, sizeof(s));
    assert_ok(metrics_read(root, 3, 3, s, &last));
    assert_true(last == 5 && s[0].found && isnan(s[0].loss) && s[0].state_hash == 0xf000000000000003u);
    assert_true(s[2].found && s[2].loss == 0.1 * 5.0 && s[2].state_hash == 0xf000000000000005u);
    memset(s, 0, sizeof(s));
    assert_ok(metrics_read(root, 5, 3, s, &last));
    assert_true(s[0].found && !s[1].found && !s[2].found);
    assert_int_equal(metrics_read("/nowhere/at/all", 1, 3, s, &last), ERR_USAGE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh_folder, remove_folder)

static const struct CMUnitTest tests[] = {
    TEST(a_record_reads_back),
    TEST(a_line_that_was_cut_is_no_line),
    TEST(lines_of_another_form_are_refused),
    cmocka_unit_test(contributions_are_compared_as_far_as_they_are_known),
    TEST(metrics_of_steps_are_read),
};
TEST_MAIN(tests)
