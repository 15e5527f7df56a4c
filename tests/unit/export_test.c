/* A model that is written as Hugging Face does: places, shards, index, rounding, and what is left after an error. */
#include <stdlib.h>
#include <unistd.h>

#include "base/f16.h"
#include "base/file.h"
#include "ckpt/export.h"
#include "test.h"

static char base[64], folder[96];

static int make_base(void **state)
{
    (void)state;
    snprintf(base, sizeof(base), "%s/invar-export-%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
             (int)getpid());
    snprintf(folder, sizeof(folder), "%s/model", base);
    return file_make_folder(base) == OK ? 0 : 1;
}

static int remove_base(void **state)
{
    (void)state;
    return file_remove_tree(base) == OK ? 0 : 1;
}

static struct st_tensor tensor(const char *name, const char *dtype, uint64_t rows, uint64_t cols)
{
    return (struct st_tensor){ .name = name, .dtype = st_dtype_find(dtype), .rank = 2, .shape = { rows, cols } };
}

static float value_of(size_t number, uint64_t element)
{
    return (float)(number * 16 + element) / 8.0f;
}

/* All values, in blocks of three. */
static enum err add_all(struct export *e, const struct export_plan *plan)
{
    size_t number;
    while (export_next(e, &number)) {
        uint64_t elements = plan->tensors[number].shape[0] * plan->tensors[number].shape[1];
        for (uint64_t at = 0; at < elements; at += 3) {
            float some[3];
            size_t count = elements - at < 3 ? (size_t)(elements - at) : 3;
            for (size_t i = 0; i < count; i++) {
                some[i] = value_of(number, at + i);
            }
            TRY(export_add(e, some, count));
        }
    }
    return OK;
}

static enum err write_model(const struct export_plan *plan)
{
    struct export *e;
    TRY(export_open(&e, plan));
    enum err err = add_all(e, plan);
    if (err == OK) {
        err = export_text(e, "config.json", "{}\n", 3);
    }
    if (err == OK) {
        err = export_finish(e);
    }
    export_close(e);
    return err;
}

static bool is_there(const char *name)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", base, name);
    return file_exists(path);
}

static void expect_tensor(const char *file, const char *name, size_t number)
{
    char path[200];
    struct st_file f;
    float raw[32], values[32];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    assert_ok(st_open(&f, path, false));
    struct st_tensor *t = st_find(&f, name);
    assert_non_null(t);
    assert_in_range(t->elements, 0, 32);
    assert_ok(st_floats(&f, t, 0, (size_t)t->elements, raw, values));
    for (uint64_t i = 0; i < t->elements; i++) {
        assert_true(values[i] == value_of(number, i));
    }
    st_close(&f);
}

static void shards_are_filled_in_the_order_of_the_plan(void **state)
{
    (void)state;
    const struct st_tensor list[] = { tensor("c", "F32", 2, 2), tensor("a", "F32", 1, 2), tensor("b", "BF16", 3, 4),
                                      tensor("none", "F32", 0, 5), tensor("z", "F32", 5, 5) };
    const struct export_plan plan = { folder, list, 5, 48 };
    assert_ok(write_model(&plan));
    expect_tensor("model-00001-of-00002.safetensors", "c", 0);
    expect_tensor("model-00001-of-00002.safetensors", "a", 1);
    expect_tensor("model-00001-of-00002.safetensors", "b", 2);
    expect_tensor("model-00001-of-00002.safetensors", "none", 3);
    expect_tensor("model-00002-of-00002.safetensors", "z", 4);
    struct buf text = { 0 };
    char path[200];
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", folder);
    assert_ok(file_read(path, 10000, &text));
    assert_string_equal(text.data, "{\n  \"metadata\": {\n    \"total_parameters\": 43,\n"
                                   "    \"total_size\": 148\n  },\n  \"weight_map\": {\n"
                                   "    \"a\": \"model-00001-of-00002.safetensors\",\n"
                                   "    \"b\": \"model-00001-of-00002.safetensors\",\n"
                                   "    \"c\": \"model-00001-of-00002.safetensors\",\n"
                                   "    \"none\": \"model-00001-of-00002.safetensors\",\n"
                                   "    \"z\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
    buf_release(&text);
    assert_true(is_there("model/config.json") && !is_there("model.tmp") && !is_there("model/model.safetensors"));
    assert_fails(ERR_USAGE, "nothing there is replaced", write_model(&plan));
    assert_ok(file_remove_tree(folder));
}

static void one_file_has_wide_types_first_and_then_names(void **state)
{
    (void)state;
    const struct st_tensor list[] = { tensor("a", "F16", 2, 2), tensor("c", "F32", 1, 2),
                                      tensor("b", "F32", 3, 1) };
    const struct export_plan plan = { folder, list, 3, 0 };
    assert_ok(write_model(&plan));
    struct st_file f;
    char path[200];
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    assert_ok(st_open(&f, path, false));
    assert_int_equal(f.count, 3);
    assert_string_equal(f.tensors[0].name, "b");
    assert_string_equal(f.tensors[1].name, "c");
    assert_string_equal(f.tensors[2].name, "a");
    st_close(&f);
    for (size_t i = 0; i < 3; i++) {
        expect_tensor("model.safetensors", list[i].name, i);
    }
    assert_false(is_there("model/model.safetensors.index.json"));
    assert_ok(file_remove_tree(folder));
}

static void an_error_leaves_nothing(void **state)
{
    (void)state;
    const struct st_tensor list[] = { tensor("a", "F16", 1, 2) }, twice[] = { list[0], list[0] };
    const struct export_plan plan = { folder, list, 1, 0 }, two = { folder, twice, 2, 0 };
    struct export *e;
    const float good[] = { 65519.0f, -1.0f }, large[] = { 1.0f, -65520.0f };
    assert_ok(export_open(&e, &plan));
    assert_true(is_there("model.tmp"));
    assert_fails(ERR_DATA, "a: element 1 is -65520, more than F16 can hold", export_add(e, large, 2));
    export_close(e);
    assert_false(is_there("model.tmp") || is_there("model"));
    assert_ok(export_open(&e, &plan));
    assert_ok(export_add(e, good, 2));
    export_close(e); /* not finished */
    assert_false(is_there("model.tmp") || is_there("model"));
    assert_fails(ERR_DATA, "two tensors of one name", export_open(&e, &two));
    assert_false(is_there("model.tmp"));
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Every half comes back; the middle of two neighbours goes to the even one, what is beside it to the nearer. */
static void halves_are_rounded_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        uint32_t low = f16_widen((uint16_t)h);
        assert_int_equal(f16_narrow(low), h);
        assert_int_equal(f16_narrow(low | 0x80000000u), h | 0x8000u);
        double high = h == 0x7bff ? 65536.0 : (double)float_of(f16_widen((uint16_t)(h + 1)));
        uint32_t middle = bits_of((float)(((double)float_of(low) + high) / 2));
        assert_int_equal(f16_narrow(middle), h + (h & 1));
        assert_int_equal(f16_narrow(middle - 1), h);
        assert_int_equal(f16_narrow(middle + 1), h + 1);
    }
    assert_int_equal(f16_narrow(0x7f800000u), 0x7c00);
    assert_int_equal(f16_narrow(0x7f800001u), 0x7e00);
    assert_int_equal(f16_narrow(0x00000001u), 0);
}

/* The table of a reported fault: halfway values, and denormals that the kernels' rounding would flush. */
static void bf16_is_rounded_once_to_nearest_even(void **state)
{
    (void)state;
    static const uint32_t cases[][2] = { { 0x3f808000u, 0x3f80 }, { 0x3f818000u, 0x3f82 }, { 0x3f808001u, 0x3f81 },
                                         { 0x00010000u, 0x0001 }, { 0x80008001u, 0x8001 }, { 0x7f7fffffu, 0x7f80 },
                                         { 0x7fa00001u, 0x7fe0 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(bf16_narrow(cases[i][0]), cases[i][1]);
    }
}

static void sizes_are_read(void **state)
{
    (void)state;
    static const struct { const char *text; uint64_t bytes; } good[] = {
        { "5GB", 5000000000 }, { "500MiB", 524288000 }, { "4096", 4096 }, { "1B", 1 }, { "2TB", 2000000000000 } };
    static const char *const bad[] = { "", "GB", "0", "-1", "1.5GB", "5 GB", "5gb",
                                       "99999999999999999999", "99999999TB" };
    uint64_t bytes;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_ok(export_size("max_shard_size", good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_fails(ERR_USAGE, "a size was expected", export_size("max_shard_size", bad[i], &bytes));
    }
    assert_ptr_equal(export_dtype("bfloat16"), st_dtype_find("BF16"));
    assert_null(export_dtype("bf17"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(shards_are_filled_in_the_order_of_the_plan),
    cmocka_unit_test(one_file_has_wide_types_first_and_then_names),
    cmocka_unit_test(an_error_leaves_nothing),
    cmocka_unit_test(halves_are_rounded_to_nearest_even),
    cmocka_unit_test(bf16_is_rounded_once_to_nearest_even),
    cmocka_unit_test(sizes_are_read),
};

TEST_GROUP(tests, make_base, remove_base)
