/* The logs of a run: numbers that read back, resuming, and TensorBoard's frames. */
#include <dirent.h>
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "test.h"
#include "train/events.h"

static char root[64];

static int fresh_folder(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/invar-metrics-%d", (int)getpid());
    return file_remove_tree(root) == OK && file_make_folder(root) == OK ? 0 : 1;
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(root) == OK ? 0 : 1;
}

static void read_log(struct buf *out)
{
    char path[100];
    snprintf(path, sizeof(path), "%s/metrics.jsonl", root);
    buf_clear(out);
    assert_ok(file_read(path, 1 << 20, out));
}

static void put_log(const char *text)
{
    char path[100];
    snprintf(path, sizeof(path), "%s/metrics.jsonl", root);
    assert_ok(file_replace(path, text, strlen(text)));
}

static void write_steps(uint64_t resumed, uint64_t first, uint64_t last, bool tensorboard)
{
    struct metrics *m;
    assert_ok(metrics_open(&m, root, tensorboard, resumed));
    for (uint64_t s = first; s <= last; s++) {
        const struct metric list[] = { { "loss", 3.0 / (double)s }, { "learning_rate", 1e-4 } };
        assert_ok(metrics_write(m, "train", s, s * 0x1111, list, 2));
    }
    metrics_close(m);
}

static void a_line_holds_group_step_hash_and_numbers(void **state)
{
    (void)state;
    struct buf text = { 0 };
    struct metrics *m;
    const struct metric list[] = { { "loss", 2.5 }, { "tokens", 4096 }, { "bad", NAN }, { "big", HUGE_VAL } };
    assert_ok(metrics_open(&m, root, false, 0));
    assert_ok(metrics_write(m, "train", 7, 0xabcdef, list, 4));
    assert_ok(metrics_write(m, "eval", 7, 0, list, 1));
    read_log(&text); /* before closing: lines are there at once */
    assert_string_equal(
        text.data, "{\"group\":\"train\",\"step\":7,\"state_hash\":\"0000000000abcdef\",\"loss\":2.5,\"tokens\":4096,"
                   "\"bad\":null,\"big\":null}\n{\"group\":\"eval\",\"step\":7,\"loss\":2.5}\n");
    metrics_close(m);
    buf_release(&text);
}

static void numbers_read_back_to_the_same_bits(void **state)
{
    (void)state;
    static const double values[] = { 0.1,
                                     1.0 / 3.0,
                                     9.0e-5,
                                     1e-300,
                                     5e-324,
                                     1.7976931348623157e308,
                                     -0.0,
                                     123456789012345678.0,
                                     0x1.fffffffffffffp-3,
                                     4.9406564584124654e-324,
                                     2.2250738585072011e-308 };
    size_t count = sizeof(values) / sizeof(values[0]);
    struct buf text = { 0 };
    struct metrics *m;
    assert_ok(metrics_open(&m, root, false, 0));
    for (size_t i = 0; i < count; i++) {
        const struct metric list[] = { { "v", values[i] } };
        assert_ok(metrics_write(m, "train", 1, 0, list, 1));
    }
    metrics_close(m);
    read_log(&text);
    const char *p = text.data;
    for (size_t i = 0; i < count; i++) {
        p = strstr(p, "\"v\":") + 4;
        double back = strtod(p, NULL);
        assert_memory_equal(&back, &values[i], sizeof(back));
    }
    assert_non_null(strstr(text.data, "\"v\":0.1}")); /* and no more digits than needed */
    buf_release(&text);
}

static void resuming_drops_later_lines_and_a_cut_one(void **state)
{
    (void)state;
    struct buf once = { 0 }, twice = { 0 };
    write_steps(0, 1, 6, false);
    read_log(&once);
    put_log(once.data);
    write_steps(4, 5, 6, false);
    read_log(&twice);
    assert_string_equal(once.data, twice.data);
    for (size_t cut = 0; cut < once.bytes; cut += 11) { /* power lost while writing */
        char *part = strndup(once.data, cut);
        put_log(part);
        free(part);
        uint64_t whole = 0;
        for (size_t i = 0; i < cut; i++) {
            whole += once.data[i] == '\n';
        }
        write_steps(whole, whole + 1, 6, false);
        read_log(&twice);
        assert_string_equal(once.data, twice.data);
    }
    buf_release(&once);
    buf_release(&twice);
}

static void lines_that_are_not_of_a_log_are_dropped(void **state)
{
    (void)state;
    struct buf text = { 0 };
    put_log(
        "{\"group\":\"train\",\"step\":1}\nrubbish\n{\"step\":\"2\"}\n{\"step\":-1}\n[3]\n{\"step\":2,\"loss\":1}\n\n");
    write_steps(5, 6, 5, false);
    read_log(&text);
    assert_string_equal(text.data, "{\"group\":\"train\",\"step\":1}\n{\"step\":2,\"loss\":1}\n");
    write_steps(0, 1, 0, false); /* a new run starts an empty log */
    read_log(&text);
    assert_int_equal(text.bytes, 0);
    buf_release(&text);
}

static void crc32c_has_its_check_value(void **state)
{
    (void)state;
    assert_int_equal(events_crc32c("123456789", 9), 0xe3069283u);
    unsigned char zeros[32] = { 0 };
    assert_int_equal(events_crc32c(zeros, 32), 0x8a9136aau);
}

static uint32_t unmask(uint32_t masked)
{
    uint32_t rot = masked - 0xa282ead8u;
    return rot >> 17 | rot << 15;
}

static void event_files_are_whole_frames_with_right_sums(void **state)
{
    (void)state;
    write_steps(0, 1, 3, true);
    DIR *dir = opendir(root);
    assert_non_null(dir);
    size_t found = 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (strncmp(e->d_name, "events.out.tfevents.", 20) != 0) {
            continue;
        }
        char path[400];
        struct buf text = { 0 };
        snprintf(path, sizeof(path), "%s/%s", root, e->d_name);
        assert_ok(file_read(path, 1 << 20, &text));
        size_t at = 0, records = 0;
        for (; at < text.bytes; records++) {
            uint64_t length;
            uint32_t sum;
            assert_true(text.bytes - at >= 16);
            memcpy(&length, text.data + at, 8);
            memcpy(&sum, text.data + at + 8, 4);
            assert_int_equal(unmask(sum), events_crc32c(text.data + at, 8));
            assert_true(length <= text.bytes - at - 16);
            memcpy(&sum, text.data + at + 12 + length, 4);
            assert_int_equal(unmask(sum), events_crc32c(text.data + at + 12, length));
            if (records == 0) {
                assert_memory_equal(text.data + at + 12 + length - 13, "brain.Event:2", 13);
            }
            at += 16 + length;
        }
        assert_int_equal(records, 5); /* version, start, three steps */
        buf_release(&text);
        found++;
    }
    closedir(dir);
    assert_int_equal(found, 1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, fresh_folder, remove_folder)
static const struct CMUnitTest tests[] = {
    T(a_line_holds_group_step_hash_and_numbers),
    T(numbers_read_back_to_the_same_bits),
    T(resuming_drops_later_lines_and_a_cut_one),
    T(lines_that_are_not_of_a_log_are_dropped),
    T(crc32c_has_its_check_value),
    T(event_files_are_whole_frames_with_right_sums),
};
TEST_MAIN(tests)
