#include "test.h"

#include <math.h>

#include "base/cores.h"
#include "base/fixed.h"
#include "base/fmath.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"

/* Vector of the Random123 distribution for counter and key of all ones. */
static void philox_matches_the_published_vector(void **state)
{
    (void)state;
    const uint32_t counter[4] = { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff }, key[2] = { 0xffffffff, 0xffffffff };
    struct rng_block b = rng_philox(counter, key);
    assert_int_equal(b.word[0], 0x408f276d);
    assert_int_equal(b.word[1], 0x41c83b0e);
    assert_int_equal(b.word[2], 0xa20bc7c6);
    assert_int_equal(b.word[3], 0x6d5451fd);
}

static void permutation_is_a_bijection(void **state)
{
    (void)state;
    static unsigned char seen[1000];
    for (uint64_t n = 1; n <= 1000; n += 111) {
        memset(seen, 0, sizeof(seen));
        for (uint64_t i = 0; i < n; i++) {
            uint64_t x = rng_permute(7, 3, n, i);
            assert_true(x < n && !seen[x]);
            seen[x] = 1;
        }
    }
}

static void elementary_functions_are_within_ulps_of_libm(void **state)
{
    (void)state;
    for (int i = -1000; i <= 1000; i++) {
        double x = 0.0371 * i;
        assert_true(fabs(fmath_exp(x) / exp(x) - 1.0) < 5e-16);
        assert_true(fabs(fmath_sin(x) - sin(x)) < 3e-16);
        assert_true(fabs(fmath_cos(x) - cos(x)) < 3e-16);
        double y = exp(x);
        assert_true(fabs(fmath_log(y) - log(y)) <= 4e-16 * fmax(1.0, fabs(log(y))));
        double s, c, t = (i + 1000) / 2001.0;
        fmath_sincos_turns(t, &s, &c);
        assert_true(fabs(s - sin(2 * M_PI * t)) < 2e-15 && fabs(c - cos(2 * M_PI * t)) < 2e-15);
    }
    assert_true(fabs(fmath_pow(10000.0, -0.37) / pow(10000.0, -0.37) - 1.0) < 1e-14);
}

static void wide_sums_round_once(void **state)
{
    (void)state;
    struct fixed_wide w = { { 1, 0, 0 } };
    assert_true(fixed_wide_value(&w) == 1.0);
    w = (struct fixed_wide){ { 5, 7, 0 } };
    assert_true(fixed_wide_value(&w) == 5.0 + 7 * 0x1p40);
    w = (struct fixed_wide){ { 1, 0, 1 } }; /* 2^80 + 1 rounds to 2^80 */
    assert_true(fixed_wide_value(&w) == 0x1p80);
    w = (struct fixed_wide){ { 1, 0, ((int64_t)1 << 53) + 1 } }; /* just above the tie: up */
    assert_true(fixed_wide_value(&w) == (0x1p53 + 2) * 0x1p80);
    w = (struct fixed_wide){ { 0, 0, ((int64_t)1 << 53) + 1 } }; /* the tie: to even */
    assert_true(fixed_wide_value(&w) == 0x1p53 * 0x1p80);
    w = (struct fixed_wide){ { -1, 1, 0 } };
    assert_true(fixed_wide_value(&w) == 0x1p40 - 1);
    w = (struct fixed_wide){ { 1, 0, 0, (int64_t)1 << 53 | 1 } }; /* just above the tie */
    assert_true(fixed_wide_value(&w) == (0x1p53 + 2) * 0x1p120);
}

static void wide_sums_of_many_parts_do_not_overflow(void **state)
{
    (void)state;
    const int64_t ones = ((int64_t)1 << 40) - 1;
    struct fixed_wide sum = { { ones, ones, ones, 7 } };
    for (int i = 0; i < 30; i++) { /* 2^30 parts: more than 2^63 in a limb without carries */
        struct fixed_wide twice = sum;
        fixed_wide_add(&sum, &twice);
    }
    assert_true(fixed_wide_value(&sum) == 0x1p153); /* 2^30 (2^123 - 1), rounded once */
    for (int i = 0; i < 3; i++) {
        assert_in_range(sum.limb[i], 0, ones);
    }
}

/* As many ranks as wrap 64 bits around to a sum that looks harmless. */
static void sums_over_ranks_cannot_wrap_unseen(void **state)
{
    (void)state;
    const struct { int64_t each; int ranks; bool bad; } cases[] = {
        { -12345678901, 1000, false }, { FIXED_SUM_LIMIT / 8 - 1, 8, false }, { FIXED_SUM_LIMIT / 8, 8, true },
        { FIXED_SUM_LIMIT / 2, 8, true }, { INT64_MAX, 2, true }, { INT64_MIN, 2, true },
        { -FIXED_SUM_LIMIT / 4, 4, false },
    };
    for (size_t t = 0; t < sizeof(cases) / sizeof(cases[0]); t++) {
        int64_t part[2], sum[2] = { 0 };
        bool bad = false;
        fixed_split(cases[t].each, part);
        for (int r = 0; r < cases[t].ranks; r++) {
            sum[0] += part[0];
            sum[1] += part[1];
        }
        int64_t whole = fixed_join(sum, &bad);
        assert_int_equal(bad, cases[t].bad);
        assert_true(bad || whole == cases[t].each * cases[t].ranks);
    }
}

static void losses_are_fixed_point(void **state)
{
    (void)state;
    bool bad = false;
    assert_int_equal(fixed_from_loss(1.5f, &bad), (int64_t)3 << 27);
    assert_false(bad);
    fixed_from_loss(NAN, &bad);
    assert_true(bad);
}

struct sum_job {
    uint64_t out[1000];
};

static void square(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    struct sum_job *j = arg;
    j->out[task] += task * task + 1; /* a second run of the same task shows */
}

static void pool_runs_every_task_once(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct pool *p;
        assert_ok(pool_new(&p, threads));
        for (int round = 0; round < 50; round++) {
            struct sum_job j = { { 0 } };
            pool_run(p, 1000, square, &j);
            for (uint64_t i = 0; i < 1000; i++) {
                assert_int_equal(j.out[i], i * i + 1);
            }
        }
        pool_free(p);
    }
}

static struct cores cores_of(uint32_t lo, uint32_t hi)
{
    struct cores c = { { 0 } };
    for (uint32_t core = lo; core <= hi; core++) {
        c.word[core / 64] |= 1ull << (core % 64);
    }
    return c;
}

static void cores_are_shared_fairly(void **state)
{
    (void)state;
    const struct cores all = cores_of(0, 7), low = cores_of(0, 3), high = cores_of(4, 7), one = cores_of(5, 5);
    assert_int_equal(cores_share(&all, 1, 0), 8);
    const struct cores two[] = { all, all };
    assert_int_equal(cores_share(two, 2, 1), 4);
    const struct cores three[] = { low, low, low }; /* a third of 4 cores, and of 6, which is no less than 2 */
    assert_int_equal(cores_share(three, 3, 2), 1);
    const struct cores six = cores_of(60, 65), thirds[] = { six, six, six };
    assert_int_equal(cores_share(thirds, 3, 0), 2);
    const struct cores bound[] = { low, high };
    assert_int_equal(cores_share(bound, 2, 1), 4);
    const struct cores uneven[] = { all, one }; /* 7 of its own and half of core 5 */
    assert_int_equal(cores_share(uneven, 2, 0), 7);
    assert_int_equal(cores_share(uneven, 2, 1), 1); /* half a core: at least one thread */
    const struct cores many[] = { one, one, one, one };
    assert_int_equal(cores_share(many, 4, 3), 1);
}

static void cores_are_written_as_ranges(void **state)
{
    (void)state;
    char text[CORES_TEXT_BYTES];
    struct cores c = cores_of(62, 65), more = cores_of(1, 1);
    assert_string_equal(cores_text(&c, text), "62-65");
    cores_join(&c, &more);
    more = cores_of(1023, 1023);
    cores_join(&c, &more);
    assert_int_equal(cores_count(&c), 6);
    assert_string_equal(cores_text(&c, text), "1, 62-65, 1023");
    for (uint32_t core = 0; core < CORES_MAX; core += 2) {
        more = cores_of(core, core);
        cores_join(&c, &more);
    }
    assert_string_equal(cores_text(&c, text) + strlen(text) - 4, ", ..");
}

static void a_plan_beyond_all_memory_is_an_error(void **state)
{
    (void)state;
    const size_t rows = (size_t)1 << 56;
    struct arena a = { 0 };
    assert_int_equal(mem_mul(rows, rows), SIZE_MAX);
    arena_take(&a, 3, 1);
    arena_take(&a, mem_mul(rows, 1 << 20), sizeof(float));
    assert_int_equal(a.used, SIZE_MAX);
    arena_take(&a, 3, 1); /* and does not wrap to a small one */
    assert_int_equal(a.used, SIZE_MAX);
    assert_fails(ERR_RESOURCE, "are needed at once", arena_back(&a));
    arena_release(&a);
}

static void element_hash_sees_every_bit_and_place(void **state)
{
    (void)state;
    uint64_t base = hash_element(5, 0x3f800000);
    for (int bit = 0; bit < 32; bit++) {
        assert_int_not_equal(base, hash_element(5, 0x3f800000u ^ (1u << bit)));
    }
    assert_int_not_equal(base, hash_element(6, 0x3f800000));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(philox_matches_the_published_vector),
    cmocka_unit_test(permutation_is_a_bijection),
    cmocka_unit_test(elementary_functions_are_within_ulps_of_libm),
    cmocka_unit_test(wide_sums_round_once),
    cmocka_unit_test(wide_sums_of_many_parts_do_not_overflow),
    cmocka_unit_test(losses_are_fixed_point),
    cmocka_unit_test(sums_over_ranks_cannot_wrap_unseen),
    cmocka_unit_test(pool_runs_every_task_once),
    cmocka_unit_test(cores_are_shared_fairly),
    cmocka_unit_test(cores_are_written_as_ranges),
    cmocka_unit_test(a_plan_beyond_all_memory_is_an_error),
    cmocka_unit_test(element_hash_sees_every_bit_and_place),
};
TEST_MAIN(tests)
