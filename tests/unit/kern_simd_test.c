#include "test.h"

#include <math.h>

#include "base/bf16.h"
#include "base/pool.h"
#include "base/rng.h"
#include "kern/kern_int.h"
#include "kern_simd_probe.h"

/* The representations this CPU can run; the first is scalar, with which the others are compared. */
static uint32_t probes(const struct probe **out)
{
    static const struct probe *const all[ISA_COUNT] = KERN_TABLES(probe);
    uint32_t n = 0;
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (kern_isa_supported((enum isa)isa)) {
            out[n++] = all[isa];
        }
    }
    return n;
}

static const struct probe *best_probe(void)
{
    const struct probe *set[ISA_COUNT];
    return set[probes(set) - 1];
}

/* Numbers of every kind: random patterns without denormals, small integers and halves, zeros, infinities, NaN. */
static float number(uint64_t i)
{
    const uint32_t counter[4] = { (uint32_t)i, 0, 0, 0 }, key[2] = { 1, 2 };
    struct rng_block r = rng_philox(counter, key);
    static const float special[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 0x1p23f };
    float x;
    switch (r.word[0] % 8) {
    case 0: return special[r.word[1] % 8];
    case 1: return 0.5f * (float)((int)(r.word[1] % 65) - 32);
    case 2: return ldexpf((float)(int32_t)r.word[1], -27);
    default:
        r.word[1] = (r.word[1] & 0x7f800000u) == 0 ? 0x3f800000u : r.word[1];
        memcpy(&x, &r.word[1], sizeof(x));
        return x;
    }
}

static bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof(a)) == 0;
}

static void operations_have_the_same_bits_on_every_instruction_set(void **state)
{
    (void)state;
    pool_set_float_mode();
    const struct probe *set[ISA_COUNT];
    uint32_t count = probes(set);
    uint64_t next = 0;
    for (int round = 0; round < 20000; round++) {
        float a[16], b[16], c[16];
        for (int l = 0; l < 16; l++) {
            a[l] = number(next++);
            b[l] = round % 5 == 0 && l % 3 == 0 ? a[l] : number(next++);
            c[l] = number(next++);
        }
        for (int op = 0; op < PROBE_COUNT; op++) {
            float want[16], got[16];
            probe_scalar.apply((enum probe_op)op, a, b, c, want);
            for (uint32_t o = 1; o < count; o++) {
                set[o]->apply((enum probe_op)op, a, b, c, got);
                for (int l = 0; l < 16; l++) {
                    if (!same(want[l], got[l])) {
                        fail_msg("op %d set %u a %a b %a c %a: %a, scalar %a", op, o, (double)a[l], (double)b[l],
                                 (double)c[l], (double)got[l], (double)want[l]);
                    }
                }
            }
        }
    }
}

static void scalar_operations_mean_what_they_say(void **state)
{
    (void)state;
    pool_set_float_mode();
    float a[16], b[16], c[16], r[16];
    for (int l = 0; l < 16; l++) {
        a[l] = (float)l - 7.5f;
        b[l] = 3.0f;
        c[l] = 1.0f;
    }
    probe_scalar.apply(PROBE_FMA, a, b, c, r);
    assert_true(r[0] == -21.5f);
    probe_scalar.apply(PROBE_FNMA, a, b, c, r);
    assert_true(r[0] == 23.5f);
    probe_scalar.apply(PROBE_ROUND, a, b, c, r);
    assert_true(r[0] == -8.0f && r[1] == -6.0f && same(r[7], -0.0f) && r[8] == 0.0f && r[9] == 2.0f);
    probe_scalar.apply(PROBE_MAX_LANES, a, b, c, r);
    assert_true(r[5] == 7.5f);
    a[3] = NAN;
    probe_scalar.apply(PROBE_MIN, a, b, c, r);
    assert_true(r[3] == 3.0f);
    probe_scalar.apply(PROBE_MAX, b, a, c, r);
    assert_true(isnan(r[3]));
    a[3] = 0x1p60f;
    a[7] = 1.0f;
    a[11] = -0x1p60f;
    for (int l = 0; l < 16; l++) {
        a[l] = l % 4 == 3 ? a[l] : 0.0f;
    }
    probe_scalar.apply(PROBE_SUM, a, b, c, r); /* 3 and 11 meet first, so the 1 (and lane 15's 7.5) survive */
    assert_true(r[0] == 8.5f);
}

static void partial_loads_and_stores_leave_the_rest_alone(void **state)
{
    (void)state;
    const struct probe *set[ISA_COUNT];
    uint32_t count = probes(set);
    for (uint32_t o = 0; o < count; o++) {
        for (uint32_t n = 0; n <= 16; n++) {
            float a[16], out[16];
            for (int l = 0; l < 16; l++) {
                a[l] = (float)l + 1.0f;
                out[l] = -1.0f;
            }
            set[o]->copy_n(a, out, n);
            for (uint32_t l = 0; l < 16; l++) {
                assert_true(out[l] == (l < n ? (float)l + 1.0f : -1.0f));
            }
        }
    }
}

static void fixed_point_rounds_to_even_and_reports_overflow(void **state)
{
    (void)state;
    pool_set_float_mode();
    const struct probe *set[ISA_COUNT];
    uint32_t count = probes(set);
    const float a[16] = {
        0.5f,     1.5f, -0.5f,    -2.5f,     3.25f, 0x1p49f,          -0x1.fffffep49f, 0x1p50f,
        -0x1p50f, NAN,  INFINITY, -INFINITY, -0.0f, 0x1.8p22f + 0.5f, -1e-3f,          0x1.234568p30f
    };
    const int64_t want[16] = { 0, 2, 0, -2, 3, 1ll << 49, -0x3fffffc000000, 0, 0, 0, 0, 0, 0, 0x600000, 0, 0x48d15a00 };
    for (uint32_t o = 0; o < count; o++) {
        int64_t acc[16];
        for (int l = 0; l < 16; l++) {
            acc[l] = 1000 - l;
        }
        assert_int_equal(set[o]->add_fixed(acc, a, 0x1p40f), 0x0fe0); /* also those of 2^49 */
        for (int l = 0; l < 16; l++) {
            assert_int_equal(acc[l] - (1000 - l), l == 5 || l == 6 ? 0 : want[l]);
            acc[l] = 1000 - l;
        }
        assert_int_equal(set[o]->add_fixed(acc, a, 0x1p50f), 0x0f80);
        for (int l = 0; l < 16; l++) {
            assert_int_equal(acc[l] - (1000 - l), want[l]);
        }
    }
    for (uint64_t i = 0; i < 4000; i++) {
        int64_t p[16];
        float r[16];
        for (uint32_t l = 0; l < 16; l++) {
            const uint32_t counter[4] = { (uint32_t)i, l, 0, 0 }, key[2] = { 3, 4 };
            struct rng_block b = rng_philox(counter, key);
            p[l] = (int64_t)((uint64_t)b.word[0] << 32 | b.word[1]) >> (b.word[2] % 64);
        }
        for (uint32_t o = 0; o < count; o++) {
            set[o]->from_fixed(p, r);
            for (uint32_t l = 0; l < 16; l++) {
                assert_true(r[l] == (float)(double)p[l]);
            }
        }
    }
}

/* Distance of `got` from the exact value in units of the last place of its fp32 rounding. */
static double ulps(float got, double exact)
{
    if (same(got, (float)exact)) {
        return 0.0;
    }
    int e;
    frexp(exact, &e);
    return fabs((double)got - exact) / ldexp(1.0, e - 24);
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* The largest error over `steps` x 16 points from lo to hi; geometric spacing when lo > 0. */
static double worst(enum probe_op op, double (*exact)(double), double lo, double hi)
{
    const int steps = 40000;
    double most = 0.0;
    for (int i = 0; i < steps; i++) {
        float x[16], y[16];
        for (int l = 0; l < 16; l++) {
            double at = (16.0 * i + l) / (16.0 * steps);
            x[l] = (float)(lo > 0.0 ? lo * exp(log(hi / lo) * at) : lo + (hi - lo) * at);
        }
        best_probe()->apply(op, x, x, x, y);
        for (int l = 0; l < 16; l++) {
            double u = ulps(y[l], exact((double)x[l]));
            most = u > most ? u : most;
        }
    }
    return most;
}

static void check_worst(const char *name, double got, double limit)
{
    print_message("# %s: %.3f ulp\n", name, got);
    assert_true(got <= limit);
}

static void functions_are_within_ulps_of_double_libm(void **state)
{
    (void)state;
    pool_set_float_mode();
    check_worst("exp", worst(PROBE_EXP, exp, -87.3, 88.72), 1.0);
    check_worst("exp near 0", worst(PROBE_EXP, exp, 1e-20, 0.5), 1.0);
    check_worst("log", worst(PROBE_LOG, log, 1.2e-38, 3e38), 1.0);
    check_worst("log near 1", worst(PROBE_LOG, log, 0.4, 2.1), 1.0);
    check_worst("sigmoid", worst(PROBE_SIGMOID, sigmoid, -80.0, 80.0), 3.0);
    check_worst("tanh", worst(PROBE_TANH, tanh, -12.0, 12.0), 2.0);
    check_worst("tanh near 0", worst(PROBE_TANH, tanh, 1e-20, 0.7), 2.0);
    check_worst("erf", worst(PROBE_ERF, erf, -5.0, 5.0), 2.0);
    check_worst("erf near 0", worst(PROBE_ERF, erf, 1e-20, 1.1), 2.0);
}

static void exp_low_is_exp_up_to_88(void **state)
{
    (void)state;
    pool_set_float_mode();
    for (uint64_t i = 0; i < 100000; i++) {
        float x[16], want[16], got[16];
        for (uint64_t l = 0; l < 16; l++) {
            x[l] = number(16 * i + l);
            x[l] = x[l] > 88.0f ? -x[l] : x[l];
        }
        best_probe()->apply(PROBE_EXP, x, x, x, want);
        best_probe()->apply(PROBE_EXP_LOW, x, x, x, got);
        for (int l = 0; l < 16; l++) {
            assert_true(same(want[l], got[l]));
        }
    }
}

static void functions_are_sane_at_the_ends(void **state)
{
    (void)state;
    pool_set_float_mode();
    float x[16] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 200.0f, -200.0f, -87.31f, 88.7228f, 88.73f, -1.0f, 1.0f },
          y[16];
    probe_scalar.apply(PROBE_EXP, x, x, x, y);
    assert_true(y[0] == 1.0f && y[1] == 1.0f && y[2] == INFINITY && same(y[3], 0.0f) && isnan(y[4]));
    assert_true(y[5] == INFINITY && same(y[6], 0.0f) && same(y[7], 0.0f) && isfinite(y[8]) && y[9] == INFINITY);
    probe_scalar.apply(PROBE_LOG, x, x, x, y);
    assert_true(y[0] == -INFINITY && y[1] == -INFINITY && y[2] == INFINITY && isnan(y[3]) && isnan(y[4]));
    assert_true(isnan(y[10]) && same(y[11], 0.0f));
    probe_scalar.apply(PROBE_SIGMOID, x, x, x, y);
    assert_true(y[0] == 0.5f && y[2] == 1.0f && y[3] == 0.0f && isnan(y[4]) && y[6] == 0.0f);
    for (int op = PROBE_TANH; op <= PROBE_ERF; op++) {
        probe_scalar.apply((enum probe_op)op, x, x, x, y);
        assert_true(y[0] == 0.0f && y[1] == 0.0f && y[2] == 1.0f && y[3] == -1.0f && isnan(y[4]));
        assert_true(y[5] == 1.0f && y[6] == -1.0f && y[10] == -y[11]);
    }
}

/* fp32 numbers around every bf16 number: on it, halfway to the next, next to these; then random patterns. */
static float beside_bf16(uint32_t i)
{
    static const uint32_t low[8] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };
    uint32_t bits = i << 13 & 0xffff0000u;
    if (i % 8 < 6) {
        bits |= low[i % 8];
    } else {
        const uint32_t counter[4] = { i, 0, 0, 0 }, key[2] = { 5, 6 };
        bits = rng_philox(counter, key).word[0];
    }
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}
#define BESIDE_BF16 (8u << 16)

static void bf16_is_the_nearest_upper_half(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BESIDE_BF16; i++) {
        float x = beside_bf16(i), size = fabsf(x);
        uint16_t got = bf16_from_float(x), down;
        uint32_t bits;
        memcpy(&bits, &size, sizeof(bits));
        down = (uint16_t)(bits >> 16);
        assert_int_equal(got >> 15, signbit(x) != 0);
        got &= 0x7fffu;
        if (isnan(x)) {
            assert_int_equal(got, down | 0x40);
        } else if (isinf(x) || size < 0x1p-126f) {
            assert_int_equal(got, isinf(x) ? 0x7f80 : 0);
        } else { /* in the place of infinity, the number after the largest */
            double below = (double)bf16_to_float(down);
            double above = down == 0x7f7f ? 0x1p128 : (double)bf16_to_float((uint16_t)(down + 1));
            double to_below = (double)size - below, to_above = above - (double)size;
            bool up = to_above < to_below || (to_above == to_below && down % 2 == 1);
            assert_int_equal(got, down + up);
        }
    }
}

static void bf16_has_the_same_bits_on_every_instruction_set(void **state)
{
    (void)state;
    pool_set_float_mode();
    const struct probe *set[ISA_COUNT];
    uint32_t count = probes(set);
    for (uint32_t o = 0; o < count; o++) {
        for (uint32_t i = 0; i < 0x10000; i += 16) {
            uint16_t half[16];
            uint32_t got[16];
            for (uint32_t l = 0; l < 16; l++) {
                half[l] = (uint16_t)(i + l);
            }
            set[o]->load_bf16(half, (float *)got);
            for (uint32_t l = 0; l < 16; l++) {
                assert_int_equal(got[l], (i + l) << 16);
            }
        }
        for (uint32_t i = 0; i < BESIDE_BF16; i += 16) {
            float a[16];
            uint16_t want[16], got[16];
            uint32_t wide[16];
            for (uint32_t l = 0; l < 16; l++) {
                a[l] = beside_bf16(i + l);
                want[l] = bf16_from_float(a[l]);
            }
            set[o]->store_bf16(got, a);
            assert_memory_equal(got, want, sizeof(want));
            set[o]->apply(PROBE_ROUND_BF16, a, a, a, (float *)wide);
            for (uint32_t l = 0; l < 16; l++) {
                assert_int_equal(wide[l], (uint32_t)want[l] << 16);
            }
        }
    }
}

static void partial_bf16_leaves_the_rest_alone(void **state)
{
    (void)state;
    pool_set_float_mode();
    const struct probe *set[ISA_COUNT];
    uint32_t count = probes(set);
    for (uint32_t o = 0; o < count; o++) {
        for (uint32_t n = 0; n <= 16; n++) {
            float a[16], wide[16];
            uint16_t half[16];
            for (uint32_t l = 0; l < 16; l++) {
                a[l] = -1.0f - (float)l / 15.0f;
                half[l] = 0xabcd;
            }
            set[o]->store_bf16_n(half, a, n);
            for (uint32_t l = 0; l < 16; l++) {
                assert_int_equal(half[l], l < n ? bf16_from_float(a[l]) : 0xabcd);
            }
            set[o]->load_bf16_n(half, wide, n);
            for (uint32_t l = 0; l < 16; l++) {
                assert_true(same(wide[l], l < n ? bf16_to_float(half[l]) : 0.0f));
            }
        }
    }
}

static void transposing_moves_lanes(void **state)
{
    (void)state;
    const struct probe *set[ISA_COUNT];
    uint32_t count = probes(set);
    for (uint32_t o = 0; o < count; o++) {
        float r[256];
        for (int i = 0; i < 256; i++) {
            r[i] = (float)i;
        }
        set[o]->transpose(r);
        for (int i = 0; i < 256; i++) {
            assert_true(r[i] == (float)(i % 16 * 16 + i / 16));
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(scalar_operations_mean_what_they_say),
    cmocka_unit_test(operations_have_the_same_bits_on_every_instruction_set),
    cmocka_unit_test(partial_loads_and_stores_leave_the_rest_alone),
    cmocka_unit_test(bf16_is_the_nearest_upper_half),
    cmocka_unit_test(bf16_has_the_same_bits_on_every_instruction_set),
    cmocka_unit_test(partial_bf16_leaves_the_rest_alone),
    cmocka_unit_test(transposing_moves_lanes),
    cmocka_unit_test(fixed_point_rounds_to_even_and_reports_overflow),
    cmocka_unit_test(functions_are_within_ulps_of_double_libm),
    cmocka_unit_test(exp_low_is_exp_up_to_88),
    cmocka_unit_test(functions_are_sane_at_the_ends),
};
TEST_MAIN(tests)
