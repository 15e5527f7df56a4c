/* Learning rates: round values of known schedules, ends, continuity. */
#include <math.h>

#include "test.h"
#include "train/schedule.h"

static struct conf make(enum schedule type, double warmup, uint64_t steps)
{
    return (struct conf){ .lr_scheduler_type = type, .learning_rate = 1e-4, .warmup_steps = warmup, .max_steps = steps,
                          .lr_decay_steps = steps };
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-14 * fabs(want))) {
        fail_msg("got %.17g, expected %.17g", got, want);
    }
}

static void linear_over_10000_steps_gives_the_round_rates(void **state)
{
    (void)state;
    struct conf c = make(SCHEDULE_LINEAR, 0, 10000);
    assert_true(schedule_lr(&c, 1000) == 9.0e-5);
    near(schedule_lr(&c, 2500), 7.5e-5);
    assert_true(schedule_lr(&c, 5000) == 5.0e-5);
    near(schedule_lr(&c, 1), 1e-4 * 0.9999);
    assert_true(schedule_lr(&c, 10000) == 0.0);
    assert_true(schedule_lr(&c, 20000) == 0.0);
}

static void warmup_rises_by_equal_parts_to_the_full_rate(void **state)
{
    (void)state;
    for (int type = SCHEDULE_CONSTANT; type <= SCHEDULE_INVERSE_SQRT; type++) {
        struct conf c = make((enum schedule)type, 100, 1000);
        c.wsd_decay_steps = 200;
        near(schedule_lr(&c, 1), 1e-6);
        near(schedule_lr(&c, 50), 5e-5);
        assert_true(schedule_lr(&c, 100) == 1e-4);
        assert_true(schedule_lr(&c, 101) <= 1e-4);
        assert_true(schedule_lr(&c, 101) > 0.98e-4);
    }
}

static void warmup_below_one_is_a_share_of_the_steps_rounded_up(void **state)
{
    (void)state;
    struct conf c = make(SCHEDULE_CONSTANT, 0.07, 100);
    near(schedule_lr(&c, 6), 1e-4 * 6 / 7);
    assert_true(schedule_lr(&c, 7) == 1e-4);
    c.warmup_steps = 0.101;
    near(schedule_lr(&c, 10), 1e-4 * 10 / 11);
    c.warmup_steps = 0.0;
    assert_true(schedule_lr(&c, 1) == 1e-4);
    c.max_steps = 3;
    c.warmup_steps = 0.99;
    near(schedule_lr(&c, 1), 1e-4 / 3);
}

static void min_lr_is_reached_exactly_at_the_last_step_of_the_decay(void **state)
{
    (void)state;
    static const enum schedule types[] = { SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD };
    for (size_t i = 0; i < 3; i++) {
        struct conf c = make(types[i], 10, 1000);
        c.min_lr = 1e-5;
        c.lr_decay_steps = 800;
        c.wsd_decay_steps = 100;
        assert_true(schedule_lr(&c, 799) > 1e-5);
        assert_true(schedule_lr(&c, 800) == 1e-5);
        assert_true(schedule_lr(&c, 1000) == 1e-5);
        for (uint64_t s = 11; s <= 800; s++) {
            assert_true(schedule_lr(&c, s) <= schedule_lr(&c, s - 1));
        }
    }
}

static void cosine_follows_half_a_wave(void **state)
{
    (void)state;
    struct conf c = make(SCHEDULE_COSINE, 100, 1100);
    c.min_lr = 2e-5;
    near(schedule_lr(&c, 600), 6e-5);
    near(schedule_lr(&c, 350), 2e-5 + 8e-5 * (1.0 + sqrt(0.5)) / 2.0);
    near(schedule_lr(&c, 850), 2e-5 + 8e-5 * (1.0 - sqrt(0.5)) / 2.0);
}

static void wsd_stays_and_then_decays(void **state)
{
    (void)state;
    struct conf c = make(SCHEDULE_WSD, 100, 1000);
    c.wsd_decay_steps = 200;
    assert_true(schedule_lr(&c, 500) == 1e-4);
    assert_true(schedule_lr(&c, 800) == 1e-4);
    near(schedule_lr(&c, 900), 5e-5);
    assert_true(schedule_lr(&c, 1000) == 0.0);
    c.wsd_decay_steps = 0;
    assert_true(schedule_lr(&c, 999) == 1e-4);
    assert_true(schedule_lr(&c, 1000) == 0.0);
}

static void inverse_sqrt_halves_at_four_times_the_warmup(void **state)
{
    (void)state;
    struct conf c = make(SCHEDULE_INVERSE_SQRT, 100, 1000);
    assert_true(schedule_lr(&c, 400) == 5e-5);
    near(schedule_lr(&c, 10000), 1e-5);
    c.min_lr = 3e-5;
    assert_true(schedule_lr(&c, 10000) == 3e-5);
    c.warmup_steps = 0;
    near(schedule_lr(&c, 30000), 5e-5);
}

static void a_decay_of_zero_length_means_the_whole_run(void **state)
{
    (void)state;
    struct conf c = make(SCHEDULE_LINEAR, 0, 100);
    c.lr_decay_steps = 0;
    assert_true(schedule_lr(&c, 50) == 5e-5);
}

static void warmup_longer_than_the_decay_divides_by_nothing(void **state)
{
    (void)state;
    for (int type = SCHEDULE_CONSTANT; type <= SCHEDULE_INVERSE_SQRT; type++) {
        struct conf c = make((enum schedule)type, 100, 50);
        c.wsd_decay_steps = 500;
        for (uint64_t s = 1; s < 300; s++) {
            double lr = schedule_lr(&c, s);
            assert_true(lr >= 0.0 && lr <= 1e-4);
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(linear_over_10000_steps_gives_the_round_rates),
    cmocka_unit_test(warmup_rises_by_equal_parts_to_the_full_rate),
    cmocka_unit_test(warmup_below_one_is_a_share_of_the_steps_rounded_up),
    cmocka_unit_test(min_lr_is_reached_exactly_at_the_last_step_of_the_decay),
    cmocka_unit_test(cosine_follows_half_a_wave),
    cmocka_unit_test(wsd_stays_and_then_decays),
    cmocka_unit_test(inverse_sqrt_halves_at_four_times_the_warmup),
    cmocka_unit_test(a_decay_of_zero_length_means_the_whole_run),
    cmocka_unit_test(warmup_longer_than_the_decay_divides_by_nothing),
};
TEST_MAIN(tests)
