/* The matrix product of bf16 numbers against its definition (kern_gemm_job.h): operands of both types, stretches of odd
 * length, numbers of all kinds, results of both types. The scalar set goes through pairs as avx512bf16 does, the others
 * through fp32: all must give the definition's bits. */
#include "kern_gemm_job.h"

#include <sys/mman.h>

struct all {
    struct variant *variant;
    uint32_t count;
    struct subject subject;
};

static int open_all(void **state)
{
    void *mem;
    assert_ok(mem_alloc(&mem, 1, sizeof(struct all)));
    struct all *a = mem;
    a->variant = variants_open(&a->count);
    subject_open(&a->subject);
    *state = a;
    return 0;
}

static int close_all(void **state)
{
    struct all *a = *state;
    subject_close(&a->subject);
    variants_close(a->variant, a->count);
    free(a);
    return 0;
}

static void check(struct all *a, const struct wish *w, uint64_t seed)
{
    subject_make(&a->subject, w, seed);
    check_all(&a->subject, a->variant, a->count, seed);
}

static void random_jobs_equal_the_definition(void **state)
{
    for (uint64_t seed = 1000; seed < 1160; seed++) {
        struct wish w = draw(seed);
        w.bf16 = seed % 16 != 0; /* a bf16 result is also one of fp32 products */
        w.a_type = w.bf16 && (seed & 1) != 0 ? NUM_BF16 : NUM_F32;
        w.b_type = w.bf16 && (seed & 2) != 0 ? NUM_BF16 : NUM_F32;
        w.wild = (seed & 4) != 0;
        if (w.unit == 0 && seed % 3 != 0) {
            w.c_type = NUM_BF16;
            w.residual = RESIDUAL_NONE;
        }
        check(*state, &w, seed);
    }
}

static void all_types_and_layouts_and_odd_sizes_equal_the_definition(void **state)
{
    static const uint64_t sizes[][3] = { { 1, 1, 1 },   { 1, 245, 37 }, { 5, 33, 3 },   { 7, 49, 2 },
                                         { 70, 17, 1 }, { 71, 98, 65 }, { 97, 300, 33 } };
    for (uint32_t mix = 0; mix < 32; mix++) {
        for (uint32_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            struct wish w = { .m = sizes[s][0], .n = sizes[s][1], .pieces = 1, .segments = 1, .k = { sizes[s][2] },
                              .trans = (int)(mix & 3), .bf16 = true, .a_type = mix >> 2 & 1, .b_type = mix >> 3 & 1,
                              .c_type = mix >> 4, .bias = s % 2 == 0, .wild = s >= 5 };
            check(*state, &w, mix * 100 + s);
        }
    }
}

/* Stretches end at odd places of a chain and are cut for the cache at others. */
static void long_chains_of_odd_pieces_equal_the_definition(void **state)
{
    for (int trans = 0; trans < 4; trans++) {
        for (uint32_t segments = 1; segments <= 8; segments *= 2) {
            struct wish w = { .m = trans == 2 ? 9 : 66, .n = 18, .pieces = 2 * segments, .segments = segments,
                              .trans = trans, .bf16 = true, .b_type = trans % 2, .wild = segments == 4,
                              .bias = segments == 2, .residual = segments == 8 ? RESIDUAL_IN_PLACE : RESIDUAL_NONE };
            for (uint32_t p = 0; p < w.pieces; p++) {
                w.k[p] = (p % 2 == 0 ? 4801 : 101) / segments + p;
            }
            check(*state, &w, segments);
        }
    }
}

static void units_of_any_length_equal_the_definition(void **state)
{
    static const uint64_t units[] = { 1, 2, 3, 63, 700, 1025, 5000 };
    for (uint32_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
        for (int trans = 0; trans < 4; trans++) {
            struct wish w = { .m = trans == 0 ? 6 : 65, .n = 18, .pieces = 2, .segments = 1, .k = { 1100, 601 },
                              .trans = trans, .unit = units[u], .grad_scale = 0x1p10f, .bf16 = true,
                              .a_type = u % 2, .b_type = u / 2 % 2, .wild = u == 1 };
            check(*state, &w, units[u]);
        }
    }
}

static void few_rows_with_a_long_tree_equal_the_definition(void **state)
{
    for (uint64_t m = 1; m <= 11; m += 5) {
        for (int trans = 0; trans < 4; trans++) {
            struct wish w = { .m = m, .n = 1210, .pieces = 32, .segments = 32, .trans = trans, .bias = true,
                              .bf16 = true, .b_type = m / 5 % 2, .c_type = NUM_BF16 };
            for (uint32_t p = 0; p < 32; p++) {
                w.k[p] = 11 + p % 2;
            }
            check(*state, &w, m);
        }
    }
}

/* Blocks of rows and of columns, several chunks of each. */
static void products_of_many_blocks_equal_the_definition(void **state)
{
    struct all *a = *state;
    const uint64_t m = 1600, n = 2100, k = 2501;
    const size_t a_count = m * k, b_count = n * k;
    const size_t bytes = (a_count + b_count) * sizeof(float) + m * n * sizeof(uint16_t);
    void *mem;
    assert_ok(mem_big_alloc(&mem, bytes));
    float *left = mem, *right = left + a_count;
    uint16_t *c = (uint16_t *)(void *)(right + b_count);
    struct dice d = { 5 };
    for (size_t i = 0; i < a_count + b_count; i++) {
        left[i] = number(&d);
    }
    struct gemm_piece piece[2];
    for (uint64_t p = 0, part = 1253; p < 2; p++) {
        piece[p] = (struct gemm_piece){ .a = { left + p * part, k, false, NUM_F32 }, .k = p == 0 ? part : k - part,
                                        .b = { right + p * part * n, n, true, NUM_F32 }, .ends_segment = true };
    }
    struct gemm_job job = { .m = m, .n = n, .pieces = piece, .pieces_count = 2, .bf16 = true, .c = c, .ldc = n,
                            .c_type = NUM_BF16 };
    kern_gemm(a->variant[a->count - 1].kern, &job);
    for (uint32_t sample = 0; sample < 10000; sample++) {
        uint64_t i = roll(&d, (uint32_t)m), j = roll(&d, (uint32_t)n);
        assert_int_equal(c[i * n + j], bf16_from_float(define_value(&job, i, j)));
    }
    mem_big_free(mem, bytes);
}

static float one_sum(const struct variant *v, const float *a, const float *b, uint64_t k)
{
    float c = 7.0f;
    struct gemm_piece piece = { .a = { a, k, false, NUM_F32 }, .b = { b, k, false, NUM_F32 }, .k = k,
                                .ends_segment = true };
    struct gemm_job job = { .m = 1, .n = 1, .pieces = &piece, .pieces_count = 1, .bf16 = true, .c = &c, .ldc = 1 };
    kern_gemm(v->kern, &job);
    return c;
}

static void operands_and_results_are_rounded_to_even(void **state)
{
    static const float cases[][2] = { { 1.0f + 0x1p-8f, 1.0f },          { 1.0f + 0x1.8p-7f, 1.0f + 0x1p-6f },
                                      { 1.0f + 0x1.01p-8f, 1.0f + 0x1p-7f }, { -1.0f - 0x1p-8f, -1.0f },
                                      { 0x1.fffffep127f, INFINITY },     { 0x1.fep127f, 0x1.fep127f },
                                      { 0x1.fp-127f, 0.0f },             { 0x1.ffp-126f, 0x1p-125f } };
    struct all *a = *state;
    const float one = 1.0f;
    for (uint32_t i = 0; i < a->count; i++) {
        for (uint32_t t = 0; t < sizeof(cases) / sizeof(cases[0]); t++) {
            assert_true(one_sum(&a->variant[i], &cases[t][0], &one, 1) == cases[t][1]);
            assert_true(one_sum(&a->variant[i], &one, &cases[t][0], 1) == cases[t][1]);
            uint16_t c[20];
            float row[20] = { cases[t][0] };
            row[19] = cases[t][0];
            struct gemm_piece piece = { .a = { &one, 1, false, NUM_F32 }, .b = { row, 1, false, NUM_F32 }, .k = 1,
                                        .ends_segment = true };
            struct gemm_job job = { .m = 1, .n = 20, .pieces = &piece, .pieces_count = 1, .c = c, .c_type = NUM_BF16,
                                    .ldc = 20 };
            kern_gemm(a->variant[i].kern, &job);
            assert_true(bf16_to_float(c[0]) == cases[t][1] && bf16_to_float(c[19]) == cases[t][1]);
        }
    }
}

/* A sum that is -0 meets what an odd chain is padded with. */
static void padding_keeps_the_sign_of_zero(void **state)
{
    struct all *all = *state;
    const float a[3] = { -0x1p-100f, -0x1p-100f, -0x1p-100f }, b[3] = { 0x1p-40f, 0x1p-40f, 0x1p-40f };
    for (uint32_t i = 0; i < all->count; i++) {
        for (uint64_t k = 1; k <= 3; k++) {
            float found = one_sum(&all->variant[i], a, b, k), expected = 0.0f;
            for (uint64_t t = 0; t < k; t++) {
                expected = fmaf(a[t], b[t], expected);
            }
            assert_true(signbit(expected) && expected == 0.0f);
            assert_memory_equal(&found, &expected, sizeof(found));
        }
    }
}

#define GUARDED_BYTES ((size_t)1 << 20)

/* `bytes` bytes that end where unmapped memory begins. */
static void *guarded(void **block, size_t bytes)
{
    *block = mmap(NULL, 2 * GUARDED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(*block != MAP_FAILED && bytes <= GUARDED_BYTES);
    char *end = (char *)*block + GUARDED_BYTES;
    assert_int_equal(mprotect(end, GUARDED_BYTES, PROT_NONE), 0);
    return end - bytes;
}

static void nothing_past_the_end_of_a_matrix_is_touched(void **state)
{
    struct all *all = *state;
    for (uint64_t m = 1; m < 80; m += 23) { /* few and many rows */
        for (int mix = 0; mix < 16; mix++) {
            const uint64_t n = 245, k = 37;
            enum num a_type = mix >> 2 & 1, b_type = mix >> 3;
            void *block[4];
            void *a = guarded(&block[0], m * k * num_bytes(a_type)), *b = guarded(&block[1], n * k * num_bytes(b_type));
            void *c = guarded(&block[2], m * n * sizeof(uint16_t)), *bias = guarded(&block[3], n * sizeof(float));
            bool at = (mix & 1) != 0, bt = (mix & 2) != 0;
            struct gemm_piece piece = { .a = { a, at ? m : k, at, a_type }, .b = { b, bt ? n : k, bt, b_type }, .k = k,
                                        .ends_segment = true };
            struct gemm_job job = { .m = m, .n = n, .pieces = &piece, .pieces_count = 1, .bf16 = true, .c = c,
                                    .c_type = NUM_BF16, .ldc = n, .bias = bias };
            for (uint32_t i = 0; i < all->count; i++) {
                kern_gemm(all->variant[i].kern, &job);
            }
            for (int i = 0; i < 4; i++) {
                munmap(block[i], 2 * GUARDED_BYTES);
            }
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(random_jobs_equal_the_definition, open_all, close_all),
    cmocka_unit_test_setup_teardown(all_types_and_layouts_and_odd_sizes_equal_the_definition, open_all, close_all),
    cmocka_unit_test_setup_teardown(long_chains_of_odd_pieces_equal_the_definition, open_all, close_all),
    cmocka_unit_test_setup_teardown(units_of_any_length_equal_the_definition, open_all, close_all),
    cmocka_unit_test_setup_teardown(few_rows_with_a_long_tree_equal_the_definition, open_all, close_all),
    cmocka_unit_test_setup_teardown(products_of_many_blocks_equal_the_definition, open_all, close_all),
    cmocka_unit_test_setup_teardown(operands_and_results_are_rounded_to_even, open_all, close_all),
    cmocka_unit_test_setup_teardown(padding_keeps_the_sign_of_zero, open_all, close_all),
    cmocka_unit_test_setup_teardown(nothing_past_the_end_of_a_matrix_is_touched, open_all, close_all),
};
TEST_MAIN(tests)
