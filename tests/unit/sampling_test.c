/* Choosing a token: which candidates remain, that the draw is a pure function of seed and position, and that it follows
 * the probabilities. */
#include "test.h"

#include <math.h>

#include "train/sampling.h"

#define VOCAB 5

static const float logits[VOCAB] = { 1.0f, 3.0f, 2.0f, 3.0f, -4.0f };

/* How often each token is drawn at `draws` positions. */
static void count(const struct sampling *s, uint64_t draws, uint64_t times[VOCAB])
{
    struct candidate scratch[VOCAB];
    memset(times, 0, VOCAB * sizeof(times[0]));
    for (uint64_t at = 0; at < draws; at++) {
        int32_t id = sample_token(logits, VOCAB, s, at, scratch);
        assert_in_range(id, 0, VOCAB - 1);
        times[id]++;
    }
}

static void temperature_zero_takes_the_most_likely_and_the_smaller_id(void **state)
{
    (void)state;
    const struct sampling s = { .temperature = 0.0, .top_p = 1.0 };
    uint64_t times[VOCAB];
    count(&s, 20, times);
    assert_int_equal(times[1], 20);
}

static void top_k_keeps_so_many_of_the_most_likely(void **state)
{
    (void)state;
    uint64_t times[VOCAB];
    count(&(struct sampling){ .temperature = 2.0, .top_k = 3, .top_p = 1.0 }, 500, times);
    assert_true(times[1] > 0 && times[2] > 0 && times[3] > 0);
    assert_int_equal(times[0] + times[4], 0);
    count(&(struct sampling){ .temperature = 2.0, .top_k = 1, .top_p = 1.0 }, 500, times);
    assert_int_equal(times[1], 500);
}

static void top_p_keeps_the_smallest_set_that_reaches_it(void **state)
{
    (void)state;
    uint64_t times[VOCAB]; /* probabilities 0.40, 0.40, 0.15, 0.05 and 0.0004 of ids 1, 3, 2, 0 and 4 */
    count(&(struct sampling){ .temperature = 1.0, .top_p = 0.3 }, 500, times);
    assert_int_equal(times[1], 500);
    count(&(struct sampling){ .temperature = 1.0, .top_p = 0.7 }, 500, times);
    assert_int_equal(times[1] + times[3], 500);
    assert_true(times[1] > 0 && times[3] > 0);
    count(&(struct sampling){ .temperature = 1.0, .top_p = 0.9 }, 500, times);
    assert_true(times[2] > 0);
    assert_int_equal(times[0] + times[4], 0);
}

static void the_draw_depends_on_seed_and_position_only(void **state)
{
    (void)state;
    struct candidate scratch[VOCAB];
    const struct sampling a = { .temperature = 1.0, .top_p = 1.0, .seed = 1 }, b = { .temperature = 1.0, .top_p = 1.0 };
    uint64_t differ = 0;
    for (uint64_t at = 0; at < 100; at++) {
        int32_t id = sample_token(logits, VOCAB, &a, at, scratch);
        memset(scratch, 0xff, sizeof(scratch));
        assert_int_equal(sample_token(logits, VOCAB, &a, at, scratch), id);
        differ += sample_token(logits, VOCAB, &b, at, scratch) != id;
    }
    assert_true(differ > 30);
}

static void draws_follow_the_probabilities(void **state)
{
    (void)state;
    const uint64_t draws = 20000;
    uint64_t times[VOCAB];
    double total = 0.0;
    count(&(struct sampling){ .temperature = 1.5, .top_p = 1.0, .seed = 3 }, draws, times);
    for (int i = 0; i < VOCAB; i++) {
        total += exp((double)logits[i] / 1.5);
    }
    for (int i = 0; i < VOCAB; i++) {
        double want = exp((double)logits[i] / 1.5) / total; /* four standard deviations */
        assert_true(fabs((double)times[i] / (double)draws - want) < 4.0 * sqrt(want * (1.0 - want) / (double)draws));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(temperature_zero_takes_the_most_likely_and_the_smaller_id),
    cmocka_unit_test(top_k_keeps_so_many_of_the_most_likely),
    cmocka_unit_test(top_p_keeps_the_smallest_set_that_reaches_it),
    cmocka_unit_test(the_draw_depends_on_seed_and_position_only),
    cmocka_unit_test(draws_follow_the_probabilities),
};
TEST_MAIN(tests)
