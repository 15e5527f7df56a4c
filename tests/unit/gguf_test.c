/* The reader of GGUF files: every class of broken file is refused by its rule, odd but legal ones are read, and each
 * type of blocks is widened as the format defines. */
#include <unistd.h>

#include "ckpt/gguf.h"
#include "gguf_bytes.h"
#include "scratch_path.h"

static enum err try_bytes(const struct bytes *b, struct gguf_file *f)
{
    put_file(path, b->data, b->count);
    return gguf_open(f, path);
}

static void refuse(const struct bytes *b, const char *rule)
{
    struct gguf_file f;
    enum err err = try_bytes(b, &f);
    if (err != ERR_DATA || strstr(err_message(), rule) == NULL || strstr(err_message(), "byte ") == NULL) {
        fail_msg("expected \"%s\" with the byte, got %d \"%s\"", rule, err, err == OK ? "" : err_message());
    }
}

/* ---- the start ---- */

static void start_is_checked(void **state)
{
    (void)state;
    static struct bytes b;
    for (size_t cut = 0; cut < 24; cut++) {
        put_start(&b, 3, 0, 0);
        b.count = cut;
        refuse(&b, "were expected, the file has");
    }
    put_start(&b, 3, 0, 0);
    b.data[3] = 'f';
    refuse(&b, "does not begin with GGUF");
    static const struct { uint32_t version; const char *rule; } versions[] = {
        { 0, "version 0" }, { 1, "version 1" }, { 4, "version 4" }, { 0x01000003, "version 16777219" },
        { 0x03000000, "the version is 3 with its bytes swapped" }, { 0x02000000, "bytes swapped" },
    };
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        put_start(&b, versions[i].version, 0, 0);
        refuse(&b, versions[i].rule);
    }
}

static void counts_are_bounded_by_the_file(void **state)
{
    (void)state;
    static struct bytes b;
    static const uint64_t counts[] = { 1, 2, UINT32_MAX, (uint64_t)1 << 40, INT64_MAX, UINT64_MAX,
                                       UINT64_MAX / 56 + 1 };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        put_start(&b, 3, counts[i], 0);
        refuse(&b, "tensors are announced");
        put_start(&b, 3, 0, counts[i]);
        refuse(&b, "keys are announced");
    }
}

/* ---- metadata ---- */

/* One key whose bytes after the key are given. */
static void value_of(struct bytes *b, const char *key, uint32_t kind)
{
    put_start(b, 3, 0, 1);
    put_string(b, key);
    put32(b, kind);
}

static void with_fill(struct bytes *b)
{
    for (int i = 0; i < 16; i++) {
        put(b, "", 1);
    }
}

static void keys_are_checked(void **state)
{
    (void)state;
    static struct bytes b;
    static const struct { uint64_t length; const char *rule; } lengths[] = {
        { 0, "a key of 0 bytes" }, { 65536, "a key of 65536 bytes" }, { UINT64_MAX, "a key of" },
        { INT64_MAX, "a key of" }, { 1000, "a key: 1000 bytes were expected" }, { 65535, "a key: 65535 bytes" },
    };
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        put_start(&b, 3, 0, 1);
        put64(&b, lengths[i].length);
        with_fill(&b);
        refuse(&b, lengths[i].rule);
    }
    static const char *const names[] = { "a\nb", "\x7f", "\xff", "\xc0\x80", "a\xed\xa0\x80" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        value_of(&b, names[i], 4);
        with_fill(&b);
        refuse(&b, "not UTF-8 or has control characters");
    }
    put_start(&b, 3, 0, 1);
    put64(&b, 3);
    put(&b, "a\0b", 3);
    with_fill(&b);
    refuse(&b, "not UTF-8 or has control characters");
    put_start(&b, 3, 0, 2);
    put_u32(&b, "a.b", 1);
    put_u32(&b, "a.b", 1);
    refuse(&b, "key a.b is given twice");
}

static void values_are_checked(void **state)
{
    (void)state;
    static struct bytes b;
    static const uint32_t no_kinds[] = { 13, 14, 255, 1u << 31, UINT32_MAX };
    for (size_t i = 0; i < sizeof(no_kinds) / sizeof(no_kinds[0]); i++) {
        value_of(&b, "k", no_kinds[i]);
        with_fill(&b);
        refuse(&b, "do not exist");
        value_of(&b, "k", GGUF_ARRAY);
        put32(&b, no_kinds[i]);
        put64(&b, 0);
        refuse(&b, "do not exist");
    }
    value_of(&b, "k", GGUF_ARRAY);
    put32(&b, GGUF_ARRAY);
    put64(&b, 1);
    with_fill(&b);
    refuse(&b, "an array of arrays");
    for (unsigned flag = 2; flag < 256; flag += 23) {
        value_of(&b, "k", GGUF_BOOL);
        unsigned char byte = (unsigned char)flag;
        put(&b, &byte, 1);
        refuse(&b, "a bool of value");
        value_of(&b, "k", GGUF_ARRAY);
        put32(&b, GGUF_BOOL);
        put64(&b, 3);
        put(&b, "\1\0", 2);
        put(&b, &byte, 1);
        refuse(&b, "a bool of value");
    }
    static const uint64_t lengths[] = { 17, 1u << 20, INT64_MAX, UINT64_MAX, UINT64_MAX - 30 };
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        value_of(&b, "k", GGUF_STRING);
        put64(&b, lengths[i]);
        with_fill(&b);
        refuse(&b, "a string: ");
        for (uint32_t item = 0; item < GGUF_KINDS; item++) {
            if (item != GGUF_ARRAY) {
                value_of(&b, "k", GGUF_ARRAY);
                put32(&b, item);
                put64(&b, lengths[i]);
                with_fill(&b);
                refuse(&b, "are announced");
            }
        }
        value_of(&b, "k", GGUF_ARRAY);
        put32(&b, GGUF_STRING);
        put64(&b, 2);
        put_string(&b, "x");
        put64(&b, lengths[i]);
        with_fill(&b);
        refuse(&b, "a string: ");
    }
}

static void every_value_is_whole(void **state)
{
    (void)state;
    static struct bytes b;
    for (uint32_t kind = 0; kind < GGUF_KINDS; kind++) {
        value_of(&b, "key", kind);
        size_t before = b.count;
        if (kind == GGUF_ARRAY) {
            put32(&b, GGUF_U64);
            put64(&b, 2);
        }
        put64(&b, kind == GGUF_STRING ? 4 : 1);
        put64(&b, 1);
        struct gguf_file f;
        assert_ok(try_bytes(&b, &f));
        size_t bytes = f.values[0].bytes + (kind == GGUF_STRING ? 8 : kind == GGUF_ARRAY ? 12 : 0);
        gguf_close(&f);
        for (size_t cut = before; cut < before + bytes; cut++) {
            b.count = cut;
            struct gguf_file g;
            assert_int_equal(try_bytes(&b, &g), ERR_DATA);
        }
    }
}

static void alignment_is_checked(void **state)
{
    (void)state;
    static struct bytes b;
    static const uint32_t wrong[] = { 0, 3, 31, 48, 1u << 21, 1u << 31, UINT32_MAX };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        put_start(&b, 3, 0, 1);
        put_u32(&b, "general.alignment", wrong[i]);
        refuse(&b, "a power of two up to 1048576 was expected");
    }
    value_of(&b, "general.alignment", GGUF_U64);
    put64(&b, 32);
    refuse(&b, "general.alignment is uint64");
    value_of(&b, "general.alignment", GGUF_STRING);
    put_string(&b, "32");
    refuse(&b, "general.alignment is string");
    put_start(&b, 3, 1, 1);
    put_u32(&b, "general.alignment", 1u << 20);
    put_tensor(&b, "t", 1, 1, 0, 0);
    put64(&b, 0);
    refuse(&b, "is to be filled to a multiple of 1048576");
}

/* ---- tensors ---- */

/* A file of one tensor with its bytes. */
static void one_tensor(struct bytes *b, const char *name, uint64_t columns, uint64_t rows, uint32_t type,
                       uint64_t offset, size_t data)
{
    put_start(b, 3, 1, 0);
    put_tensor(b, name, columns, rows, type, offset);
    put_fill(b, 32);
    for (size_t i = 0; i < data; i++) {
        put(b, "", 1);
    }
}

static void shape_of(struct bytes *b, uint32_t rank, const uint64_t *shape)
{
    put_start(b, 3, 1, 0);
    put_string(b, "t");
    put32(b, rank);
    for (uint32_t i = 0; i < rank && i < 8; i++) {
        put64(b, shape[i]);
    }
    put32(b, 0);
    put64(b, 0);
    with_fill(b);
}

static void tensors_are_checked(void **state)
{
    (void)state;
    static struct bytes b;
    static const uint64_t ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    static const uint32_t ranks[] = { 0, 5, 6, 255, UINT32_MAX };
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        shape_of(&b, ranks[i], ones);
        refuse(&b, "1 to 4 were expected");
    }
    static const struct { uint64_t shape[4]; const char *rule; } shapes[] = {
        { { 0, 1, 1, 1 }, "a dimension of 0" }, { { 4, 1, 1, 0 }, "a dimension of 0" },
        { { UINT64_MAX, 1, 1, 1 }, "a dimension of -1" }, { { 1, (uint64_t)1 << 63, 1, 1 }, "a dimension of -" },
        { { INT64_MAX, 2, 1, 1 }, "more than 2^63 - 1" },
        { { (uint64_t)1 << 32, (uint64_t)1 << 32, 1, 1 }, "2^63 - 1" },
        { { (uint64_t)1 << 16, (uint64_t)1 << 16, (uint64_t)1 << 16, (uint64_t)1 << 16 }, "2^63 - 1" },
        { { INT64_MAX, 1, 1, 1 }, "more than 2^64 bytes" }, { { (uint64_t)1 << 62, 1, 1, 1 }, "more than 2^64 bytes" },
        { { (uint64_t)1 << 60, 1, 1, 1 }, "bytes at offset 0" }, { { 5, 1, 1, 1 }, "20 bytes at offset 0" },
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        shape_of(&b, 4, shapes[i].shape);
        refuse(&b, shapes[i].rule);
    }
    static const uint32_t types[] = { 4, 5, 31, 32, 33, 36, 37, 38, 42, 1000, UINT32_MAX };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        one_tensor(&b, "t", 256, 1, types[i], 0, 1024);
        refuse(&b, "do not exist");
    }
    for (uint32_t type = 0; type < 64; type++) {
        const struct gguf_type *t = gguf_type_find(type);
        if (t != NULL && t->elements > 1) {
            one_tensor(&b, "t", t->elements + 1, 1, type, 0, 1024);
            refuse(&b, "are not whole blocks");
            one_tensor(&b, "t", t->elements, 2, type, 0, 2 * t->bytes - 1);
            refuse(&b, "bytes at offset 0");
        }
    }
}

static void names_of_tensors_are_checked(void **state)
{
    (void)state;
    static struct bytes b;
    char name[66] = { 0 };
    memset(name, 'n', 64);
    one_tensor(&b, "", 1, 1, 0, 0, 4);
    refuse(&b, "the name of a tensor of 0 bytes");
    one_tensor(&b, name, 1, 1, 0, 0, 4);
    refuse(&b, "the name of a tensor of 64 bytes");
    one_tensor(&b, "a\tb", 1, 1, 0, 0, 4);
    refuse(&b, "control characters");
    one_tensor(&b, "a\xfe", 1, 1, 0, 0, 4);
    refuse(&b, "not UTF-8");
    put_start(&b, 3, 1, 0);
    put64(&b, UINT64_MAX - 7);
    with_fill(&b);
    with_fill(&b);
    refuse(&b, "the name of a tensor of");
    put_start(&b, 3, 2, 0);
    put_tensor(&b, "t", 1, 1, 0, 0);
    put_tensor(&b, "t", 1, 1, 0, 32);
    put_fill(&b, 32);
    b.count += 64;
    refuse(&b, "two tensors are named t");
}

static void places_of_tensors_are_checked(void **state)
{
    (void)state;
    static struct bytes b;
    static const struct { uint64_t offset; const char *rule; } offsets[] = {
        { 1, "not a multiple of the alignment" }, { 31, "not a multiple" }, { UINT64_MAX, "not a multiple" },
        { 32, "bytes at offset 32" }, { UINT64_MAX - 31, "bytes at offset" }, { (uint64_t)1 << 63, "bytes at offset" },
    };
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        one_tensor(&b, "t", 1, 1, 0, offsets[i].offset, 4);
        refuse(&b, offsets[i].rule);
    }
    put_start(&b, 3, 2, 0);
    put_tensor(&b, "a", 16, 1, 0, 0);
    put_tensor(&b, "b", 1, 1, 0, 32);
    put_fill(&b, 32);
    memset(b.data + b.count, 0, 64);
    b.count += 64;
    refuse(&b, "the bytes of a and b overlap");
    put_start(&b, 3, 2, 0);
    put_tensor(&b, "a", 1, 1, 0, 0);
    put_tensor(&b, "b", 1, 1, 0, 0);
    put_fill(&b, 32);
    b.count += 64;
    refuse(&b, "overlap");
    one_tensor(&b, "t", 1, 1, 0, 0, 4);
    for (size_t cut = 24; cut < b.count; cut++) {
        struct bytes *c = &b;
        size_t whole = c->count;
        c->count = cut;
        struct gguf_file f;
        assert_int_equal(try_bytes(c, &f), ERR_DATA);
        c->count = whole;
    }
}

/* ---- what is read ---- */

static void legal_files_are_read(void **state)
{
    (void)state;
    static struct bytes b;
    struct gguf_file f;
    put_start(&b, 2, 0, 0);
    assert_ok(try_bytes(&b, &f));
    assert_int_equal(f.version, 2);
    gguf_close(&f);
    put_start(&b, 3, 2, 3);
    put_u32(&b, "general.alignment", 8);
    put_text(&b, "general.architecture", "llama");
    put_string(&b, "list");
    put32(&b, GGUF_ARRAY);
    put32(&b, GGUF_STRING);
    put64(&b, 2);
    put_string(&b, "one");
    put_string(&b, "");
    put_tensor(&b, "second", 2, 1, 0, 8);
    put_tensor(&b, "first", 1, 1, 0, 0);
    put_fill(&b, 8);
    size_t start = b.count;
    const float values[] = { 1.5f, 0, -2, 3 };
    put(&b, values, sizeof(values));
    put(&b, "behind", 6);
    assert_ok(try_bytes(&b, &f));
    uint64_t at = 0, whole;
    const char *text;
    size_t bytes;
    gguf_next_string(gguf_find(&f, "list"), &at, &text, &bytes);
    assert_true(bytes == 3 && memcmp(text, "one", 3) == 0);
    gguf_next_string(gguf_find(&f, "list"), &at, &text, &bytes);
    assert_int_equal(bytes, 0);
    assert_true(gguf_whole(gguf_find(&f, "general.alignment"), 0, &whole) && whole == 8);
    assert_false(gguf_whole(gguf_find(&f, "general.architecture"), 0, &whole));
    assert_null(gguf_find(&f, "none"));
    const struct gguf_tensor *t = gguf_find_tensor(&f, "second");
    assert_int_equal(t->begin, start + 8);
    float out[2];
    assert_ok(gguf_floats(&f, t, 0, 2, out, out));
    assert_true(out[0] == -2 && out[1] == 3);
    gguf_close(&f);
}

static void numbers_of_all_kinds_are_read(void **state)
{
    (void)state;
    static struct bytes b;
    struct gguf_file f;
    uint64_t whole;
    double real;
    static const struct { enum gguf_kind kind; uint64_t bits; bool whole; double value; } cases[] = {
        { GGUF_U8, 200, true, 200 },      { GGUF_I8, 200, false, -56 },
        { GGUF_U16, 40000, true, 40000 }, { GGUF_I16, 40000, false, -25536 },
        { GGUF_U32, 3000000000u, true, 3e9 }, { GGUF_I32, 7, true, 7 },
        { GGUF_U64, 1ull << 40, true, 1099511627776.0 }, { GGUF_I64, UINT64_MAX, false, -1 },
        { GGUF_F32, 0x3fc00000u, false, 1.5 }, { GGUF_F64, 0x3ff8000000000000ull, false, 1.5 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        value_of(&b, "k", cases[i].kind);
        put64(&b, cases[i].bits);
        assert_ok(try_bytes(&b, &f));
        assert_int_equal(gguf_whole(&f.values[0], 0, &whole), cases[i].whole);
        assert_true(!cases[i].whole || (double)whole == cases[i].value);
        assert_true(gguf_real(&f.values[0], 0, &real) && real == cases[i].value);
        assert_false(gguf_whole(&f.values[0], 1, &whole));
        gguf_close(&f);
    }
    value_of(&b, "k", GGUF_F32);
    put32(&b, 0x7f800000u);
    assert_ok(try_bytes(&b, &f));
    assert_false(gguf_real(&f.values[0], 0, &real));
    gguf_close(&f);
}

/* ---- blocks: the bytes of a block are byte(i) = 37 i + 11, its scales 16-bit halves put over them ---- */

struct block_case {
    const char *type;
    uint32_t half[2]; /* places of the halves; 0xffff: none */
    uint32_t index[8];
    float value[8];
};

static void blocks_are_widened(void **state)
{
    (void)state;
    /* d = 0.5 (0x3800), second 0.25 (0x3400). Values: dequantize of the Python package gguf. */
    static const struct block_case cases[] = {
        { "Q4_0", { 0, 0xffff }, { 0, 5, 10, 15, 16, 21, 26, 31 },
          { -1.5f, 3, -0.5f, -4, -1.5f, -4, 2, 0 } },
        { "Q4_1", { 0, 2 }, { 0, 5, 10, 15, 16, 21, 26, 31 },
          { 7.75f, 4.25f, 0.75f, 5.25f, 4.75f, 2.75f, 0.75f, 6.25f } },
        { "Q5_0", { 0, 0xffff }, { 0, 5, 10, 15, 16, 21, 26, 31 },
          { 4.5f, -7, -2.5f, -6, 7, -3, 2.5f, 0.5f } },
        { "Q5_1", { 0, 2 }, { 0, 5, 10, 15, 16, 21, 26, 31 },
          { 9.75f, 6.25f, 10.75f, 15.25f, 9.75f, 15.25f, 13.25f, 2.75f } },
        { "Q8_0", { 0, 0xffff }, { 0, 5, 10, 15, 16, 21, 26, 31 },
          { 42.5f, 7, -28.5f, -64, -45.5f, 47, 11.5f, -24 } },
        { "Q2_K", { 80, 82 }, { 0, 37, 74, 111, 148, 185, 222, 227 },
          { 16.5f, 1.25f, -2.25f, 5.5f, 10.75f, -0.5f, 2.5f, 0.25f } },
        { "Q3_K", { 108, 0xffff }, { 0, 37, 74, 111, 148, 185, 222, 227 },
          { 40.5f, 16.5f, -8.5f, -12.5f, -8.5f, -27, -22, 4 } },
        { "Q4_K", { 0, 2 }, { 0, 37, 74, 111, 148, 185, 222, 227 },
          { 157.75f, -4, 251.25f, 5.5f, 289.5f, 82.5f, 20.25f, 21.25f } },
        { "Q5_K", { 0, 2 }, { 0, 37, 74, 111, 148, 185, 222, 227 },
          { 405.75f, 16, 579.25f, 75.5f, 601.5f, 862.5f, 20.25f, 51.25f } },
        { "Q6_K", { 208, 0xffff }, { 0, 37, 74, 111, 148, 185, 222, 227 },
          { -715.5f, -126, 1092.5f, -565.5f, 372, 392, 924, -117.5f } },
    };
    unsigned char block[300];
    float out[GGUF_BLOCK_MAX];
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const struct gguf_type *type = gguf_type_named(cases[c].type);
        for (uint32_t i = 0; i < type->bytes; i++) {
            block[i] = (unsigned char)(37 * i + 11);
        }
        static const uint16_t halves[2] = { 0x3800, 0x3400 };
        for (int h = 0; h < 2; h++) {
            if (cases[c].half[h] != 0xffff) {
                memcpy(block + cases[c].half[h], &halves[h], 2);
            }
        }
        type->widen(block, 1, out);
        for (int i = 0; i < 8; i++) {
            if (out[cases[c].index[i]] != cases[c].value[i]) {
                fail_msg("%s: number %u is %g, expected %g", cases[c].type, cases[c].index[i],
                         (double)out[cases[c].index[i]], (double)cases[c].value[i]);
            }
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_is_checked),
        cmocka_unit_test(counts_are_bounded_by_the_file),
        cmocka_unit_test(keys_are_checked),
        cmocka_unit_test(values_are_checked),
        cmocka_unit_test(every_value_is_whole),
        cmocka_unit_test(alignment_is_checked),
        cmocka_unit_test(tensors_are_checked),
        cmocka_unit_test(names_of_tensors_are_checked),
        cmocka_unit_test(places_of_tensors_are_checked),
        cmocka_unit_test(legal_files_are_read),
        cmocka_unit_test(numbers_of_all_kinds_are_read),
        cmocka_unit_test(blocks_are_widened),
    };
    if (tests_chosen(tests, sizeof(tests) / sizeof(tests[0]), argc, argv) == 0) {
        return 2;
    }
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
