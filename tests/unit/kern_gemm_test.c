/* The matrix product of fp32 numbers against its definition (kern_gemm_job.h). Jobs are drawn from a seed; a failing
 * one is named. */
#include "kern_gemm_job.h"

#include <sys/mman.h>

/* ---- facts ---- */

static void random_jobs_equal_the_definition_on_every_isa_and_thread_count(void **state)
{
    (void)state;
    uint32_t count;
    struct variant *v = variants_open(&count);
    struct subject s;
    subject_open(&s);
    for (uint64_t seed = 0; seed < 120; seed++) {
        struct wish w = draw(seed);
        subject_make(&s, &w, seed);
        check_all(&s, v, count, seed);
    }
    subject_close(&s);
    variants_close(v, count);
}

static void long_sums_equal_the_definition_in_every_layout(void **state)
{
    (void)state;
    uint32_t count;
    struct variant *v = variants_open(&count);
    struct subject s;
    subject_open(&s);
    for (int trans = 0; trans < 4; trans++) {
        for (uint32_t segments = 1; segments <= 8; segments *= 2) {
            struct wish w = { .m = 19, .n = 51, .pieces = segments, .segments = segments, .trans = trans,
                              .bias = segments == 2, .residual = segments == 8 ? RESIDUAL_IN_PLACE : RESIDUAL_NONE };
            for (uint32_t p = 0; p < segments; p++) {
                w.k[p] = 1700 / segments + p;
            }
            subject_make(&s, &w, segments);
            check_all(&s, v, count, segments);
        }
    }
    subject_close(&s);
    variants_close(v, count);
}

static void units_may_end_anywhere_and_the_last_may_be_shorter(void **state)
{
    (void)state;
    static const uint64_t units[] = { 1, 64, 700, 1000, 1024, 5000 };
    uint32_t count;
    struct variant *v = variants_open(&count);
    struct subject s;
    subject_open(&s);
    for (uint32_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
        for (int trans = 0; trans < 4; trans += 3) {
            struct wish w = { .m = 21, .n = 50, .pieces = 2, .segments = 1, .k = { 1100, 601 }, .trans = trans,
                              .unit = units[u], .grad_scale = 0x1p10f };
            subject_make(&s, &w, units[u]);
            check_all(&s, v, count, units[u]);
        }
    }
    subject_close(&s);
    variants_close(v, count);
}

static void few_rows_with_a_long_tree_equal_the_definition(void **state)
{
    (void)state;
    uint32_t count;
    struct variant *v = variants_open(&count);
    struct subject s;
    subject_open(&s);
    for (uint64_t m = 1; m <= 16; m += 5) {
        for (int trans = 0; trans < 4; trans++) {
            struct wish w = { .m = m, .n = 800, .pieces = 32, .segments = 32, .trans = trans, .bias = true };
            for (uint32_t p = 0; p < 32; p++) {
                w.k[p] = 11;
            }
            subject_make(&s, &w, m);
            check_all(&s, v, count, m);
        }
    }
    subject_close(&s);
    variants_close(v, count);
}

/* C = a b, with b stored transposed, against the definition at random places. */
static void check_samples(struct kern *kern, float *memory, const uint64_t size[3], uint32_t segments)
{
    uint64_t m = size[0], n = size[1], k = size[2], part = k / segments;
    float *a = memory, *b = a + m * k, *c = b + n * k;
    struct gemm_piece piece[GEMM_PIECES_MAX];
    for (uint32_t p = 0; p < segments; p++) {
        piece[p] = (struct gemm_piece){ .a = { a + p * part, k, false }, .b = { b + p * part * n, n, true },
                                        .k = part, .ends_segment = true };
    }
    struct gemm_job job = { .m = m, .n = n, .pieces = piece, .pieces_count = segments, .c = c, .ldc = n };
    struct dice d = { segments };
    memset(c, 0, m * n * sizeof(float));
    kern_gemm(kern, &job);
    for (uint32_t sample = 0; sample < 20000; sample++) {
        uint64_t i = roll(&d, (uint32_t)m), j = roll(&d, (uint32_t)n);
        float expected = define_value(&job, i, j);
        assert_memory_equal(&c[i * n + j], &expected, sizeof(float));
    }
}

/* Blocks of rows and columns need sizes at which only samples can be checked one by one. */
static void products_of_many_blocks_equal_the_definition(void **state)
{
    (void)state;
    const size_t bytes = (size_t)45 << 22;
    enum isa isa;
    struct pool *pool;
    struct kern *kern;
    assert_ok(kern_choose_isa(&isa));
    assert_ok(pool_new(&pool, 2));
    assert_ok(kern_new(&kern, isa, pool));
    void *mem;
    assert_ok(mem_big_alloc(&mem, bytes));
    float *memory = mem;
    struct dice d = { 5 };
    for (uint64_t i = 0; i < 16u << 20; i++) {
        memory[i] = number(&d);
    }
    check_samples(kern, memory, (const uint64_t[]){ 4500, 5600, 900 }, 1); /* one chunk, blocks of rows and columns */
    check_samples(kern, memory, (const uint64_t[]){ 1500, 3000, 2800 }, 1); /* chunks, a packed again for each block */
    check_samples(kern, memory, (const uint64_t[]){ 1500, 3000, 2800 }, 4); /* the tree carried over chunks */
    mem_big_free(mem, bytes);
    kern_free(kern);
    pool_free(pool);
}

static void splitting_rows_or_columns_over_calls_changes_no_bit(void **state)
{
    (void)state;
    uint32_t count;
    struct variant *v = variants_open(&count);
    struct subject s;
    subject_open(&s);
    struct wish w = { .m = 37, .n = 101, .pieces = 2, .segments = 2, .k = { 130, 700 }, .trans = 2, .bias = true,
                      .residual = RESIDUAL_OTHER };
    subject_make(&s, &w, 3);
    bool overflow;
    void *expected = define(&s, &overflow);
    struct gemm_job whole = s.job;
    for (uint32_t i = 0; i < count; i++) {
        subject_reset(&s);
        for (uint64_t cut[] = { 0, 1, 19, 37 }, p = 0; p < 3; p++) {
            for (uint64_t edge[] = { 0, 50, 51, 101 }, q = 0; q < 3; q++) {
                uint64_t row = cut[p], col = edge[q];
                struct gemm_piece piece[2];
                for (int t = 0; t < 2; t++) {
                    piece[t] = whole.pieces[t];
                    piece[t].a.p = num_at(piece[t].a.p, NUM_F32, row * (piece[t].a.trans ? 1 : piece[t].a.ld));
                    piece[t].b.p = num_at(piece[t].b.p, NUM_F32, col * (piece[t].b.trans ? 1 : piece[t].b.ld));
                }
                struct gemm_job part = whole;
                part.pieces = piece;
                part.m = cut[p + 1] - row;
                part.n = edge[q + 1] - col;
                part.c = num_at_mut(part.c, NUM_F32, row * part.ldc + col);
                part.bias += col;
                part.residual += row * part.ldr + col;
                kern_gemm(v[i].kern, &part);
            }
        }
        compare(&s, expected, "nine calls", 3);
    }
    free(expected);
    subject_close(&s);
    variants_close(v, count);
}

#define GUARDED_BYTES ((size_t)1 << 20)

/* `count` floats that end where unmapped memory begins. */
static float *guarded(void **block, size_t count)
{
    *block = mmap(NULL, 2 * GUARDED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(*block != MAP_FAILED && count * sizeof(float) <= GUARDED_BYTES);
    char *end = (char *)*block + GUARDED_BYTES;
    assert_int_equal(mprotect(end, GUARDED_BYTES, PROT_NONE), 0);
    return (float *)(void *)end - count;
}

static void nothing_past_the_end_of_a_matrix_is_touched(void **state)
{
    (void)state;
    uint32_t count;
    struct variant *v = variants_open(&count);
    for (uint64_t m = 1; m < 80; m += 23) { /* few and many rows */
        for (int trans = 0; trans < 4; trans++) {
            const uint64_t n = 245, k = 37;
            void *block[3];
            float *a = guarded(&block[0], m * k), *b = guarded(&block[1], n * k), *c = guarded(&block[2], m * n);
            bool at = (trans & 1) != 0, bt = (trans & 2) != 0;
            struct gemm_piece piece = { .a = { a, at ? m : k, at }, .b = { b, bt ? n : k, bt }, .k = k,
                                        .ends_segment = true };
            struct gemm_job job = { .m = m, .n = n, .pieces = &piece, .pieces_count = 1, .c = c, .ldc = n,
                                    .residual = c, .ldr = n, .bias = b + (k - 1) * n };
            for (uint32_t i = 0; i < count; i++) {
                kern_gemm(v[i].kern, &job);
            }
            for (int i = 0; i < 3; i++) {
                munmap(block[i], 2 * GUARDED_BYTES);
            }
        }
    }
    variants_close(v, count);
}

static void the_tree_is_not_the_chain(void **state)
{
    (void)state;
    struct subject s;
    subject_open(&s);
    struct wish w = { .m = 8, .n = 48, .pieces = 8, .segments = 8, .k = { 20, 20, 20, 20, 20, 20, 20, 20 } };
    subject_make(&s, &w, 1);
    bool overflow;
    void *expected = define(&s, &overflow);
    for (int p = 0; p < 7; p++) {
        s.piece[p].ends_segment = false;
    }
    void *chain = define(&s, &overflow);
    assert_memory_not_equal(expected, chain, s.out_bytes);
    free(expected);
    free(chain);
    subject_close(&s);
}

/* A one by one product in all variants; returns C and checks that all give the same bits. */
static float one_product(float a, float b, float bias)
{
    uint32_t count;
    struct variant *v = variants_open(&count);
    struct gemm_piece piece = { .a = { &a, 1, false }, .b = { &b, 1, false }, .k = 1, .ends_segment = true };
    float first = 0;
    for (uint32_t i = 0; i < count; i++) {
        float c = 7.0f;
        struct gemm_job job = { .m = 1, .n = 1, .pieces = &piece, .pieces_count = 1, .c = &c, .ldc = 1, .bias = &bias };
        kern_gemm(v[i].kern, &job);
        first = i == 0 ? c : first;
        assert_memory_equal(&c, &first, sizeof(c));
    }
    variants_close(v, count);
    return first;
}

static void denormals_are_zero_in_and_out(void **state)
{
    (void)state;
    assert_true(one_product(0x1p-130f, 0x1p100f, 0.0f) == 0.0f);  /* in */
    assert_true(one_product(0x1p-100f, 0x1p-40f, 0.0f) == 0.0f);  /* out */
    assert_true(one_product(0x1p-100f, 0x1p-26f, 0.0f) == 0x1p-126f);
    assert_true(one_product(1.0f, 1.0f, 0x1p-140f) == 1.0f);
    assert_true(one_product(0x1p-126f, 1.0f, -0x1.8p-126f) == 0.0f); /* epilogue */
}

static void nothing_to_sum_leaves_bias_and_residual(void **state)
{
    (void)state;
    uint32_t count;
    struct variant *v = variants_open(&count);
    struct subject s;
    subject_open(&s);
    for (uint64_t m = 3; m < 60; m += 40) {
        struct wish w = { .m = m, .n = 50, .pieces = 2, .segments = 2, .bias = true, .residual = RESIDUAL_OTHER };
        subject_make(&s, &w, m);
        check_all(&s, v, count, m);
    }
    subject_close(&s);
    variants_close(v, count);
}

struct grad_case {
    float value, scale;
    int64_t sum; /* 100 + the rounded product */
    bool overflow;
    float limit;
};

static void gradients_round_to_even_and_report_overflow(void **state)
{
    (void)state;
    static const struct grad_case cases[] = {
        { 2.5f, 1.0f, 102, false, FIXED_UNIT_LIMIT },
        { 3.5f, 1.0f, 104, false, FIXED_UNIT_LIMIT },
        { -2.5f, 1.0f, 98, false, FIXED_UNIT_LIMIT },
        { 0.5f, 1.0f, 100, false, FIXED_UNIT_LIMIT },
        { -0.75f, 2.0f, 98, false, FIXED_UNIT_LIMIT },
        { 0x1.8p-127f, 0x1p127f, 100, false, FIXED_UNIT_LIMIT }, /* denormal operand */
        { 0x1.fffffep15f, 0x1p34f, 100 + ((1ll << 50) - (1ll << 26)), false, FIXED_UNIT_LIMIT },
        { 0x1p16f, 0x1p34f, 100, true, FIXED_UNIT_LIMIT },
        { -0x1p16f, 0x1p34f, 100, true, FIXED_UNIT_LIMIT },
        { -0x1.fffffep15f, 0x1p34f, 100 - ((1ll << 50) - (1ll << 26)), false, FIXED_UNIT_LIMIT },
        { 0x1p127f, 0x1p34f, 100, true, FIXED_UNIT_LIMIT },
        { INFINITY, 1.0f, 100, true, FIXED_UNIT_LIMIT },
        { NAN, 1.0f, 100, true, FIXED_UNIT_LIMIT },
        { 0x1.fffffep15f, 0x1p4f, 100 + (1ll << 20), false, 0x1p20f }, /* below, before it is rounded */
        { -0x1p16f, 0x1p4f, 100, true, 0x1p20f },
    };
    uint32_t count;
    struct variant *v = variants_open(&count);
    for (uint32_t t = 0; t < sizeof(cases) / sizeof(cases[0]); t++) {
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t j = 0; j < 20; j += 19) { /* inside a vector, and in the rest of a row */
                float one = 1.0f, row[20] = { 0 };
                int64_t grad[20];
                bool overflow = false;
                row[j] = cases[t].value;
                for (int x = 0; x < 20; x++) {
                    grad[x] = 100;
                }
                struct gemm_piece piece = { .a = { &one, 1, false }, .b = { row, 1, false }, .k = 1,
                                            .ends_segment = true };
                struct gemm_job job = { .m = 1, .n = 20, .pieces = &piece, .pieces_count = 1, .grad = grad, .ldg = 20,
                                        .unit = 4, .grad_scale = cases[t].scale, .overflow = &overflow,
                                        .grad_limit = cases[t].limit };
                kern_gemm(v[i].kern, &job);
                assert_int_equal(grad[j], cases[t].sum);
                assert_int_equal(overflow, cases[t].overflow);
                assert_int_equal(grad[10], 100);
                overflow = true;
                row[j] = 0;
                kern_gemm(v[i].kern, &job);
                assert_true(overflow); /* sticky */
            }
        }
    }
    variants_close(v, count);
}

static void two_overflows_do_not_cancel(void **state)
{
    (void)state;
    float ones[2] = { 1.0f, 1.0f }, huge[2] = { 0x1p50f, -0x1p50f };
    int64_t grad = 7;
    bool overflow = false;
    uint32_t count;
    struct variant *v = variants_open(&count);
    struct gemm_piece piece = { .a = { ones, 2, false }, .b = { huge, 2, false }, .k = 2, .ends_segment = true };
    struct gemm_job job = { .m = 1, .n = 1, .pieces = &piece, .pieces_count = 1, .grad = &grad, .ldg = 1, .unit = 1,
                            .grad_scale = 1.0f, .grad_limit = FIXED_UNIT_LIMIT, .overflow = &overflow };
    for (uint32_t i = 0; i < count; i++) {
        overflow = false;
        kern_gemm(v[i].kern, &job);
        assert_true(overflow);
        assert_int_equal(grad, 7);
    }
    variants_close(v, count);
}

static void instruction_set_can_be_forced_and_wrong_names_are_refused(void **state)
{
    (void)state;
    const char *set = getenv("INVAR_ISA");
    char *before = set != NULL ? strdup(set) : NULL;
    enum isa isa;
    setenv("INVAR_ISA", "scalar", 1);
    assert_ok(kern_choose_isa(&isa));
    assert_int_equal(isa, ISA_SCALAR);
    setenv("INVAR_ISA", "sse9", 1);
    assert_fails(ERR_USAGE, "found \"sse9\"", kern_choose_isa(&isa));
    unsetenv("INVAR_ISA");
    assert_ok(kern_choose_isa(&isa));
    assert_true(kern_isa_supported(isa));
    for (unsigned better = isa + 1; better < ISA_COUNT; better++) { /* avx512bf16 is slower than avx512 on some CPUs */
        assert_true(!kern_isa_supported((enum isa)better) || (isa == ISA_AVX512 && better == ISA_AVX512BF16));
    }
    assert_string_equal(kern_isa_name(ISA_AVX512), "avx512");
    if (before != NULL) {
        setenv("INVAR_ISA", before, 1);
    }
    free(before);
}

static void an_instance_knows_what_it_was_made_of(void **state)
{
    (void)state;
    struct pool *pool;
    struct kern *kern;
    assert_ok(pool_new(&pool, 2));
    assert_ok(kern_new(&kern, ISA_SCALAR, pool));
    assert_int_equal(kern_isa(kern), ISA_SCALAR);
    assert_true(kern_workspace_bytes(8) > kern_workspace_bytes(1));
    assert_true(kern_peak_gflops(kern) > 0);
    assert_true(kern_peak_bf16_gflops(kern) > 0);
    kern_free(kern);
    pool_free(pool);
    kern_free(NULL);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(random_jobs_equal_the_definition_on_every_isa_and_thread_count),
    cmocka_unit_test(long_sums_equal_the_definition_in_every_layout),
    cmocka_unit_test(units_may_end_anywhere_and_the_last_may_be_shorter),
    cmocka_unit_test(few_rows_with_a_long_tree_equal_the_definition),
    cmocka_unit_test(products_of_many_blocks_equal_the_definition),
    cmocka_unit_test(splitting_rows_or_columns_over_calls_changes_no_bit),
    cmocka_unit_test(nothing_past_the_end_of_a_matrix_is_touched),
    cmocka_unit_test(the_tree_is_not_the_chain),
    cmocka_unit_test(denormals_are_zero_in_and_out),
    cmocka_unit_test(nothing_to_sum_leaves_bias_and_residual),
    cmocka_unit_test(gradients_round_to_even_and_report_overflow),
    cmocka_unit_test(two_overflows_do_not_cancel),
    cmocka_unit_test(instruction_set_can_be_forced_and_wrong_names_are_refused),
    cmocka_unit_test(an_instance_knows_what_it_was_made_of),
};
TEST_MAIN(tests)
