#include "test.h"

#include "train/cover.h"

#define PARTS(...)                                                                                                     \
    (const struct cover_part[]){ __VA_ARGS__ }, sizeof((struct cover_part[]){ __VA_ARGS__ }) / sizeof(struct cover_part)

/* A tensor of 4 x 6. */
static bool covers(const struct cover_part *parts, size_t count, uint64_t *elements)
{
    struct cover c;
    cover_init(&c, 4, 6);
    for (size_t i = 0; i < count; i++) {
        cover_add(&c, &parts[i]);
    }
    *elements = c.elements;
    return cover_whole(&c);
}

static void parts_that_are_the_tensor_cover_it(void **state)
{
    (void)state;
    uint64_t n;
    assert_true(covers(PARTS({ 0, 4, 0, 6, 0, 24 }), &n));                                    /* one rank */
    assert_true(covers(PARTS({ 0, 4, 0, 6, 0, 7 }, { 0, 4, 0, 6, 7, 24 }), &n));              /* slices, not of rows */
    assert_true(covers(PARTS({ 0, 3, 0, 6, 0, 18 }, { 3, 1, 0, 6, 0, 6 }), &n));              /* rows */
    assert_true(covers(PARTS({ 0, 4, 4, 2, 0, 8 }, { 0, 4, 0, 4, 0, 16 }), &n));              /* columns */
    assert_true(covers(PARTS({ 0, 4, 0, 1, 0, 4 }, { 0, 4, 2, 1, 0, 4 }, { 0, 4, 4, 1, 0, 4 },
                             { 0, 4, 1, 1, 0, 4 }, { 0, 4, 3, 1, 0, 4 }, { 0, 4, 5, 1, 0, 4 }), &n)); /* fused, tp 2 */
    assert_true(covers(PARTS({ 0, 2, 0, 6, 0, 5 }, { 2, 2, 0, 6, 0, 1 }, { 0, 2, 0, 6, 5, 12 },
                             { 2, 2, 0, 6, 1, 12 }), &n));                                    /* slices of rows */
}

static void a_missing_part_is_seen(void **state)
{
    (void)state;
    uint64_t n;
    assert_false(covers(NULL, 0, &n));
    assert_int_equal(n, 0);
    assert_false(covers(PARTS({ 0, 2, 0, 6, 0, 12 }), &n));
    assert_int_equal(n, 12);
    assert_false(covers(PARTS({ 0, 4, 0, 6, 0, 7 }, { 0, 4, 0, 6, 8, 24 }), &n)); /* a gap */
    assert_false(covers(PARTS({ 0, 4, 0, 6, 1, 24 }), &n));
    assert_false(covers(PARTS({ 0, 4, 0, 6, 0, 23 }), &n));
    assert_int_equal(n, 23);
}

static void a_part_in_the_place_of_another_is_seen(void **state)
{
    (void)state;
    uint64_t n;
    assert_false(covers(PARTS({ 0, 2, 0, 6, 0, 12 }, { 0, 2, 0, 6, 0, 12 }), &n)); /* the second without its offset */
    assert_false(covers(PARTS({ 0, 2, 0, 6, 0, 12 }, { 1, 2, 0, 6, 0, 12 }), &n)); /* right in number */
    assert_false(covers(PARTS({ 0, 4, 0, 6, 0, 7 }, { 0, 4, 0, 6, 6, 23 }), &n));
    assert_false(covers(PARTS({ 0, 2, 0, 6, 0, 12 }, { 3, 2, 0, 6, 0, 12 }), &n)); /* beyond the end */
    assert_false(covers(PARTS({ 0, 4, 0, 3, 0, 12 }, { 0, 4, 4, 3, 0, 12 }), &n));
    assert_false(covers(PARTS({ 0, 2, 0, 6, 0, 24 }), &n)); /* more than the box has */
    assert_false(covers(PARTS({ 0, 4, 0, 6, 0, 24 }, { 0, 1, 0, 1, 0, 0 }), &n)); /* empty, but within another */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(parts_that_are_the_tensor_cover_it),
    cmocka_unit_test(a_missing_part_is_seen),
    cmocka_unit_test(a_part_in_the_place_of_another_is_seen),
};

TEST_MAIN(tests)
