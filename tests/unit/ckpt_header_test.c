/* The header of a safetensors file: every class of broken file is refused by its rule, odd but legal ones are read. */
#include <unistd.h>

#include "ckpt/safetensors.h"
#include "scratch_path.h"

static void put_file(const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb"); /* no fsync: thousands of files are tried */
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

/* A file of this header, true length in front, and `data` bytes of data. */
static size_t make_file(unsigned char *out, const char *header, size_t header_bytes, size_t data)
{
    uint64_t length = header_bytes;
    memcpy(out, &length, 8);
    memcpy(out + 8, header, header_bytes);
    for (size_t i = 0; i < data; i++) {
        out[8 + header_bytes + i] = (unsigned char)(i * 37 + 1);
    }
    return 8 + header_bytes + data;
}

static enum err try_bytes(const void *bytes, size_t count, struct st_file *f)
{
    put_file(bytes, count);
    return st_open(f, path, false);
}

static enum err try_header(const char *header, size_t data, struct st_file *f)
{
    static unsigned char bytes[200000];
    return try_bytes(bytes, make_file(bytes, header, strlen(header), data), f);
}

struct header_case {
    const char *header;
    size_t data;
    const char *rule; /* part of the message */
};

#define T(shape, offsets) "{\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define ONE "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"

static const struct header_case broken[] = {
    { "", 0, "'{' was expected at the start" },
    { "[]", 0, "'{' was expected at the start" },
    { "null", 0, "'{' was expected at the start" },
    { "{", 0, "before a name" },
    { "{} {}", 0, "text after the end" },
    { "{}x", 0, "text after the end" },
    { "{\"a\"}", 0, "':' was expected" },
    { "{\"a\":1}", 0, "before the fields" },
    { "{\"a\":{}}", 0, "before a field" },
    { "{\"a\":[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}", 0, "before the fields" },
    { "{\"a", 0, "string without end" },
    { "{\"a\\", 0, "escape" },
    { "{\"a\\q\":{}}", 0, "escape" },
    { "{\"a\\u12g4\":{}}", 0, "escape" },
    { "{\"\\ud800\":{}}", 0, "surrogate" },
    { "{\"\\udc00\":{}}", 0, "surrogate" },
    { "{\"\\ud800\\u0041\":{}}", 0, "surrogate" },
    { "{\"a\\u0000\":{" ONE "}}", 4, "control character" },
    { "{\"a\tb\":{" ONE "}}", 4, "control character" },
    { "{\"a\xff\":{" ONE "}}", 4, "not UTF-8" },
    { "{\"\":{" ONE "}}", 4, "without a name" },
    { "{\"../a\":{" ONE "}}", 4, "a path in place of a name" },
    { "{\"a\":{" ONE "},}", 4, "before a name" },
    { "{\"a\":{" ONE ",}}", 4, "before a field" },
    { "{\"a\":{" ONE "},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
      "two tensors of one name" },
    { "{\"a\":{" ONE ",\"dtype\":\"F32\"}}", 4, "given twice" },
    { "{\"a\":{" ONE ",\"stride\":[1]}}", 4, "not \"stride\"" },
    { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype is missing" },
    { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape is missing" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets is missing" },
    { "{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype \"f32\"" },
    { "{\"a\":{\"dtype\":\"\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype \"\"" },
    { "{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "before a dtype" },
    { T("[-1]", "[0,4]"), 4, "whole number" },
    { T("[1.0]", "[0,4]"), 4, "whole number" },
    { T("[1e0]", "[0,4]"), 4, "whole number" },
    { T("[01]", "[0,4]"), 4, "whole number" },
    { T("[\"1\"]", "[0,4]"), 4, "whole number" },
    { T("[true]", "[0,4]"), 4, "whole number" },
    { T("[1,]", "[0,4]"), 4, "whole number" },
    { T("[1", "[0,4]"), 4, "whole number" },
    { T("[1 2]", "[0,4]"), 4, "between two dimensions" },
    { T("{}", "[0,4]"), 4, "before the shape" },
    { T("[99999999999999999999]", "[0,4]"), 4, "above 64 bits" },
    { T("[562949953421312]", "[0,4]"), 4, "more elements" },
    { T("[4294967296,4294967297]", "[0,4]"), 4, "more elements" },
    { T("[65536,65536,65536,65536]", "[0,4]"), 4, "more elements" },
    { T("[1073741824,1073741824]", "[0,4]"), 4, "more bits" },
    { T("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "more than 8 dimensions" },
    { T("[1]", "[4,0]"), 4, "end before they begin" },
    { T("[1]", "[0,-4]"), 4, "whole number" },
    { T("[1]", "[0]"), 4, "between two data_offsets" },
    { T("[1]", "[0,4,8]"), 4, "after two data_offsets" },
    { T("[2]", "[0,4]"), 4, "do not agree with shape" },
    { T("[1]", "[0,8]"), 8, "do not agree with shape" },
    { T("[2]", "[0,8]"), 4, "the file has 4 bytes of data" },
    { T("[1]", "[4,8]"), 8, "leave a hole" },
    { T("[1]", "[0,4]"), 5, "the file has 5" },
    { "{}", 1, "the file has 1" },
    { "{\"a\":{" ONE "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", 6, "overlap" },
    { "{\"a\":{" ONE "},\"b\":{" ONE "}}", 4, "overlap" },
    { "{\"a\":{" ONE "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12, "leave a hole" },
    { "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "whole bytes" },
    { "{\"__metadata__\":{\"a\":1}}", 0, "strings only" },
    { "{\"__metadata__\":{\"a\":null}}", 0, "strings only" },
    { "{\"__metadata__\":[]}", 0, "before the metadata" },
    { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "given twice" },
};

static void each_broken_header_is_refused_by_its_rule(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        struct st_file f;
        enum err err = try_header(broken[i].header, broken[i].data, &f);
        if (err != ERR_DATA || strstr(err_message(), broken[i].rule) == NULL ||
            strstr(err_message(), path) == NULL) {
            fail_msg("%s: error %d \"%s\", expected \"%s\"", broken[i].header, err, err_message(), broken[i].rule);
        }
    }
}

static void each_broken_header_is_refused_when_cut_anywhere(void **state)
{
    (void)state;
    unsigned char bytes[4096];
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{" ONE "}}";
    size_t count = make_file(bytes, header, strlen(header), 4);
    struct st_file f;
    for (size_t cut = 0; cut < count; cut++) {
        assert_int_equal(try_bytes(bytes, cut, &f), ERR_DATA);
        /* The same with a length that fits what is left. */
        uint64_t length = cut > 8 ? cut - 8 : 0;
        unsigned char again[4096];
        memcpy(again, bytes, count);
        memcpy(again, &length, 8);
        assert_int_equal(try_bytes(again, cut, &f), ERR_DATA);
    }
    assert_ok(try_bytes(bytes, count, &f));
    st_close(&f);
}

static void lengths_beyond_the_file_are_refused_before_memory_is_asked_for(void **state)
{
    (void)state;
    static const uint64_t lengths[] = { 3, 100000001, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63 };
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct st_file f;
        unsigned char bytes[10] = { 0 };
        memcpy(bytes, &lengths[i], 8);
        bytes[8] = '{';
        bytes[9] = '}';
        assert_fails(ERR_DATA, "byte 0: a header of", try_bytes(bytes, 10, &f));
    }
}

static void odd_but_legal_headers_are_read(void **state)
{
    (void)state;
    struct st_file f;
    assert_ok(try_header("{}", 0, &f));
    assert_int_equal(f.count, 0);
    st_close(&f);
    assert_ok(try_header("{\"__metadata__\":{}}    ", 0, &f));
    st_close(&f);
    assert_ok(try_header(
        " \t\n\r{ \"a\" : { \"data_offsets\" : [ 0 , 4 ] , \"shape\" : [ ] , \"dtype\" : \"F32\" } } \n", 4, &f));
    assert_int_equal(f.tensors[0].rank, 0);
    assert_int_equal(f.tensors[0].elements, 1);
    st_close(&f);
    assert_ok(try_header(T("[3,0]", "[0,0]"), 0, &f));
    assert_int_equal(f.tensors[0].elements, 0);
    st_close(&f);
    assert_ok(try_header(
        "{\"b\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[3,11]},\"e\":{\"dtype\":\"F32\","
        "\"shape\":[0],\"data_offsets\":[3,3]},\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
        11, &f)); /* any order, unaligned, an empty one in between */
    assert_string_equal(f.tensors[0].name, "a");
    assert_ptr_equal(st_find(&f, "b"), &f.tensors[2]);
    assert_null(st_find(&f, "c"));
    st_close(&f);
    assert_ok(try_header("{\"\\u00e4\\ud83d\\ude00\\/\\\"\\\\\":{" ONE "}}", 4, &f));
    assert_non_null(st_find(&f, "\xc3\xa4\xf0\x9f\x98\x80/\"\\"));
    st_close(&f);
}

static void a_zero_byte_in_the_header_is_refused(void **state)
{
    (void)state;
    static const char header[] = "{\"a\0b\":{" ONE "}}";
    unsigned char bytes[256];
    struct st_file f;
    assert_fails(ERR_DATA, "a zero byte", try_bytes(bytes, make_file(bytes, header, sizeof(header) - 1, 4), &f));
}

static void names_up_to_the_limit_are_read_and_longer_ones_refused(void **state)
{
    (void)state;
    struct st_file f;
    static char header[70000];
    static const size_t lengths[] = { ST_NAME_BYTES_MAX, ST_NAME_BYTES_MAX + 1, 65536 };
    for (size_t i = 0; i < 3; i++) {
        int used = snprintf(header, sizeof(header), "{\"%0*d\":{" ONE "}}", (int)lengths[i], 7);
        assert_true(used > 0 && (size_t)used < sizeof(header));
        if (i == 0) {
            assert_ok(try_header(header, 4, &f));
            st_close(&f);
        } else {
            assert_fails(ERR_DATA, "a name of", try_header(header, 4, &f));
        }
    }
}

/* fp16 to fp32 by definition, in double. */
static float half_value(unsigned h)
{
    unsigned exponent = (h >> 10) & 31u, fraction = h & 1023u;
    double v = exponent == 0 ? fraction * 0x1p-24 : (1024.0 + fraction) * 0x1p-24;
    for (unsigned e = 1; e < exponent; e++) {
        v *= 2.0;
    }
    return (float)((h & 0x8000u) != 0 ? -v : v);
}

static void all_fp16_values_widen_exactly(void **state)
{
    (void)state;
    static unsigned char bytes[131072 + 256];
    static float out[65536];
    const struct ckpt_box box = { 0, 65536, 0, 1, 0, 65536, out };
    const struct ckpt_tensor whole = { .name = "a", .rank = 1, .shape = { 65536 }, .boxes = &box, .boxes_count = 1 };
    struct st_file f;
    const char *header = "{\"a\":{\"dtype\":\"F16\",\"shape\":[65536],\"data_offsets\":[0,131072]}}";
    size_t count = make_file(bytes, header, strlen(header), 131072);
    for (unsigned h = 0; h < 65536; h++) {
        uint16_t stored = (uint16_t)h;
        memcpy(bytes + 8 + strlen(header) + 2 * h, &stored, 2);
    }
    assert_ok(try_bytes(bytes, count, &f));
    assert_ok(st_load(&f, &f.tensors[0], true, &whole));
    for (unsigned h = 0; h < 65536; h++) {
        uint32_t bits;
        memcpy(&bits, &out[h], 4);
        if ((h & 0x7c00u) == 0x7c00u) {
            assert_int_equal(bits, (h & 0x8000u) << 16 | 0x7f800000u | (h & 1023u) << 13);
        } else {
            float want = half_value(h);
            uint32_t want_bits;
            memcpy(&want_bits, &want, 4);
            if (bits != want_bits) {
                fail_msg("fp16 %04x became %08x, expected %08x", h, bits, want_bits);
            }
        }
    }
    char loaded[33];
    memcpy(loaded, f.tensors[0].hash, sizeof(loaded));
    assert_ok(st_scan(&f));
    assert_string_equal(loaded, f.tensors[0].hash); /* of the stored bytes, both */
    assert_int_equal(f.tensors[0].not_finite, 2 * 1024);
    st_close(&f);
}

static void bf16_widens_and_other_types_have_no_floats(void **state)
{
    (void)state;
    unsigned char bytes[256];
    float out[2];
    const struct ckpt_box box = { 0, 2, 0, 1, 0, 2, out };
    const struct ckpt_tensor whole = { .name = "a", .rank = 1, .shape = { 2 }, .boxes = &box, .boxes_count = 1 };
    struct st_file f;
    const char *header = "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}";
    size_t count = make_file(bytes, header, strlen(header), 4);
    memcpy(bytes + 8 + strlen(header), "\x80\x3f\x01\x80", 4); /* 1 and the smallest negative denormal of bf16 */
    assert_ok(try_bytes(bytes, count, &f));
    assert_ok(st_load(&f, &f.tensors[0], true, &whole));
    assert_memory_equal(out, "\x00\x00\x80\x3f\x00\x00\x01\x80", 8);
    st_close(&f);
    assert_false(st_dtype_find("I32")->floats);
    assert_null(st_dtype_find("F31"));
}

/* Any one bit of a file changed: it is refused, or what it says is a legal file again; never a crash, never a read
 * outside. */
static void every_bit_flip_is_refused_or_read_without_harm(void **state)
{
    (void)state;
    unsigned char bytes[512];
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{" ONE
                         "},\"b\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[4,8]}}";
    size_t count = make_file(bytes, header, strlen(header), 8), refused = 0;
    for (size_t bit = 0; bit < (8 + strlen(header)) * 8; bit++) {
        struct st_file f;
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        put_file(bytes, count);
        if (st_open(&f, path, false) == OK) {
            assert_ok(st_scan(&f));
            st_close(&f);
        } else {
            refused++;
        }
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_true(refused > 500);
}

static void a_file_that_is_cut_after_opening_gives_an_error_with_the_offset(void **state)
{
    (void)state;
    struct st_file f;
    float out[1024];
    const struct ckpt_box box = { 0, 1024, 0, 1, 0, 1024, out };
    const struct ckpt_tensor whole = { .name = "a", .rank = 1, .shape = { 1024 }, .boxes = &box, .boxes_count = 1 };
    assert_ok(try_header(T("[1024]", "[0,4096]"), 4096, &f));
    assert_int_equal(f.data_start, 68);
    assert_int_equal(truncate(path, 68 + 100), 0);
    assert_fails(ERR_DATA, "the file ends at byte 168", st_load(&f, &f.tensors[0], true, &whole));
    assert_fails(ERR_DATA, "the file ends at byte 168", st_scan(&f));
    st_close(&f);
}

static void links_folders_and_missing_files_are_refused(void **state)
{
    (void)state;
    struct st_file f;
    unlink(path);
    assert_fails(ERR_IO, "cannot be opened", st_open(&f, path, false));
    assert_fails(ERR_DATA, "not a regular file", st_open(&f, "/tmp", false));
    assert_int_equal(symlink("/etc/hostname", path), 0);
    assert_fails(ERR_DATA, "symbolic link", st_open(&f, path, false));
    unlink(path);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(each_broken_header_is_refused_by_its_rule, make_path, remove_path),
    cmocka_unit_test_setup_teardown(each_broken_header_is_refused_when_cut_anywhere, make_path, remove_path),
    cmocka_unit_test_setup_teardown(lengths_beyond_the_file_are_refused_before_memory_is_asked_for, make_path,
                                    remove_path),
    cmocka_unit_test_setup_teardown(odd_but_legal_headers_are_read, make_path, remove_path),
    cmocka_unit_test_setup_teardown(a_zero_byte_in_the_header_is_refused, make_path, remove_path),
    cmocka_unit_test_setup_teardown(names_up_to_the_limit_are_read_and_longer_ones_refused, make_path, remove_path),
    cmocka_unit_test_setup_teardown(all_fp16_values_widen_exactly, make_path, remove_path),
    cmocka_unit_test_setup_teardown(bf16_widens_and_other_types_have_no_floats, make_path, remove_path),
    cmocka_unit_test_setup_teardown(every_bit_flip_is_refused_or_read_without_harm, make_path, remove_path),
    cmocka_unit_test_setup_teardown(a_file_that_is_cut_after_opening_gives_an_error_with_the_offset, make_path,
                                    remove_path),
    cmocka_unit_test_setup_teardown(links_folders_and_missing_files_are_refused, make_path, remove_path),
};
TEST_MAIN(tests)
