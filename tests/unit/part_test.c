#include "test.h"

#include "part/order.h"

static void default_grain_is_the_largest_power_of_two_that_divides_all(void **state)
{
    (void)state;
    assert_int_equal(order_default_grain(12, 3072, 50304), 4);
    assert_int_equal(order_default_grain(8, 14336, 128256), 8);
    assert_int_equal(order_default_grain(3, 1536, 49152), 1);
    assert_int_equal(order_default_grain(8, 64, 512), 4);
}

static void segments_cover_the_range_in_order(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < 8; s++) {
        struct order_range r = order_segment(96, 8, s);
        assert_int_equal(r.lo, s * 12);
        assert_int_equal(r.hi, s * 12 + 12);
    }
}

static void gradient_scale_follows_the_sequence_length(void **state)
{
    (void)state;
    assert_int_equal(order_default_grad_scale_log2(1024), 34);
    assert_int_equal(order_default_grad_scale_log2(1), 44);
    assert_int_equal(order_default_grad_scale_log2(1000), 34);
    assert_int_equal(order_pad_vocab(50257), 50304);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(default_grain_is_the_largest_power_of_two_that_divides_all),
    cmocka_unit_test(segments_cover_the_range_in_order),
    cmocka_unit_test(gradient_scale_follows_the_sequence_length),
};
TEST_MAIN(tests)
