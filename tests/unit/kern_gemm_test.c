/* The matrix product against its definition, written here as plain loops: bits are compared, never closeness. Jobs
 * are drawn from a seed; a failing one is named, and `unit_kern_gemm random` runs them again. */
#include "test.h"

#include <math.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kern/kern.h"

#define GAP 3u /* elements of sentinel around C and, at least, after each of its rows */
#define VARIANTS_MAX (3u * ISA_COUNT)

/* ---- variants: every instruction set of this machine with 1, 2 and 3 threads ---- */

struct variant {
    enum isa isa;
    uint32_t threads;
    struct pool *pool;
    struct kern *kern;
};

static struct variant *variants_open(uint32_t *count)
{
    void *mem;
    assert_ok(mem_alloc(&mem, VARIANTS_MAX, sizeof(struct variant)));
    struct variant *v = mem;
    *count = 0;
    for (int isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
        for (uint32_t threads = 1; threads <= 3 && kern_isa_supported((enum isa)isa); threads++) {
            struct variant *one = &v[(*count)++];
            *one = (struct variant){ .isa = (enum isa)isa, .threads = threads };
            assert_ok(pool_new(&one->pool, threads));
            assert_ok(kern_new(&one->kern, one->isa, one->pool));
        }
    }
    return v;
}

static void variants_close(struct variant *v, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        kern_free(v[i].kern);
        pool_free(v[i].pool);
    }
    free(v);
}

/* ---- a job with its memory ---- */

struct subject {
    struct gemm_job job;
    struct gemm_piece piece[GEMM_PIECES_MAX];
    bool in_place; /* residual is c */
    bool overflow;
    float *memory; /* operands */
    size_t used;
    void *out;    /* C or the gradient with sentinels */
    void *before; /* what it held */
    size_t out_bytes, element;
};

#define SUBJECT_FLOATS ((size_t)3 << 20)
#define OUT_BYTES_MAX ((size_t)4 << 20)

struct dice {
    uint64_t state;
};

static uint32_t roll(struct dice *d, uint32_t below)
{
    d->state = d->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((d->state >> 32) * below) >> 32);
}

/* Numbers over some 20 binary orders of magnitude, so that another order of summation gives other bits. */
static float number(struct dice *d)
{
    float mantissa = (float)((int32_t)roll(d, 1u << 24) - (1 << 23)) * 0x1p-23f;
    return mantissa * (float)(1u << roll(d, 20)) * 0x1p-10f;
}

static float *take(struct subject *s, size_t count, struct dice *d)
{
    float *p = s->memory + s->used + 1; /* off any alignment but that of a float */
    s->used += count + 1;
    assert_true(s->used <= SUBJECT_FLOATS);
    for (size_t i = 0; i < count; i++) {
        p[i] = number(d);
    }
    return p;
}

static struct gemm_mat operand(struct subject *s, uint64_t n, uint64_t k, bool trans, struct dice *d)
{
    uint64_t inner = trans ? n : k, outer = trans ? k : n, ld = inner + roll(d, 3);
    return (struct gemm_mat){ .p = take(s, (outer > 0 ? outer : 1) * ld, d), .ld = ld, .trans = trans };
}

static void subject_open(struct subject *s)
{
    void *mem;
    memset(s, 0, sizeof(*s));
    assert_ok(mem_alloc(&mem, SUBJECT_FLOATS, sizeof(float)));
    s->memory = mem;
    assert_ok(mem_alloc(&s->out, OUT_BYTES_MAX, 1));
    assert_ok(mem_alloc(&s->before, OUT_BYTES_MAX, 1));
}

static void subject_close(struct subject *s)
{
    free(s->memory);
    free(s->out);
    free(s->before);
}

/* The output with a gap before, after and at the end of each row; elements hold numbers, gaps sentinels. */
static void lay_out(struct subject *s, uint64_t m, uint64_t n, size_t element, struct dice *d)
{
    uint64_t ld = n + GAP + roll(d, 5);
    s->element = element;
    s->out_bytes = (GAP + m * ld + GAP) * element;
    assert_true(s->out_bytes <= OUT_BYTES_MAX);
    memset(s->before, 0x7b, s->out_bytes);
    for (uint64_t i = 0; i < m; i++) {
        for (uint64_t j = 0; j < n; j++) {
            uint64_t at = GAP + i * ld + j;
            if (element == sizeof(float)) {
                ((float *)s->before)[at] = number(d);
            } else {
                ((int64_t *)s->before)[at] = (int64_t)roll(d, 1u << 30) * (int64_t)roll(d, 1u << 30) - (1ll << 58);
            }
        }
    }
    s->job.m = m;
    s->job.n = n;
    if (element == sizeof(float)) {
        s->job.c = (float *)s->out + GAP;
        s->job.ldc = ld;
    } else {
        s->job.grad = (int64_t *)s->out + GAP;
        s->job.ldg = ld;
    }
}

enum residual { RESIDUAL_NONE, RESIDUAL_OTHER, RESIDUAL_IN_PLACE };

struct wish {
    uint64_t m, n;
    uint32_t pieces, segments; /* pieces is a multiple of segments */
    uint64_t k[GEMM_PIECES_MAX];
    int trans; /* 0..3: a, b; -1: each piece its own */
    bool bias;
    enum residual residual;
    uint64_t unit; /* 0: an fp32 result */
    float grad_scale;
};

static void subject_make(struct subject *s, const struct wish *w, uint64_t seed)
{
    struct dice d = { seed * 2654435761u + 1 };
    s->used = 0;
    s->job = (struct gemm_job){ 0 };
    lay_out(s, w->m, w->n, w->unit > 0 ? sizeof(int64_t) : sizeof(float), &d);
    for (uint32_t p = 0; p < w->pieces; p++) {
        int trans = w->trans >= 0 ? w->trans : (int)roll(&d, 4);
        s->piece[p] = (struct gemm_piece){ .a = operand(s, w->m, w->k[p], (trans & 1) != 0, &d),
                                           .b = operand(s, w->n, w->k[p], (trans & 2) != 0, &d),
                                           .k = w->k[p],
                                           .ends_segment = (p + 1) % (w->pieces / w->segments) == 0 };
    }
    s->job.pieces = s->piece;
    s->job.pieces_count = w->pieces;
    s->job.bias = w->bias ? take(s, w->n, &d) : NULL;
    s->in_place = w->residual == RESIDUAL_IN_PLACE;
    if (w->residual == RESIDUAL_OTHER) {
        s->job.ldr = w->n + roll(&d, 3);
        s->job.residual = take(s, w->m * s->job.ldr, &d);
    } else if (s->in_place) {
        s->job.residual = s->job.c;
        s->job.ldr = s->job.ldc;
    }
    s->job.unit = w->unit;
    s->job.grad_scale = w->grad_scale;
    s->job.grad_limit = FIXED_UNIT_LIMIT;
    s->job.overflow = &s->overflow;
}

static void subject_reset(struct subject *s)
{
    memcpy(s->out, s->before, s->out_bytes);
    s->overflow = false;
}

/* ---- the definition ---- */

static float element(const struct gemm_mat *m, uint64_t i, uint64_t k)
{
    return ((const float *)m->p)[m->trans ? k * m->ld + i : i * m->ld + k];
}

static float tree(const float *part, uint32_t count)
{
    return count == 1 ? part[0] : tree(part, count / 2) + tree(part + count / 2, count / 2);
}

static float define_value(const struct gemm_job *job, uint64_t i, uint64_t j)
{
    float part[GEMM_PIECES_MAX], acc = 0.0f;
    uint32_t segments = 0;
    for (uint32_t p = 0; p < job->pieces_count; p++) {
        const struct gemm_piece *piece = &job->pieces[p];
        for (uint64_t k = 0; k < piece->k; k++) {
            acc = fmaf(element(&piece->a, i, k), element(&piece->b, j, k), acc);
        }
        if (piece->ends_segment) {
            part[segments++] = acc;
            acc = 0.0f;
        }
    }
    float v = tree(part, segments);
    v = job->bias != NULL ? v + job->bias[j] : v;
    return job->residual != NULL ? job->residual[i * job->ldr + j] + v : v;
}

/* Round to nearest even by comparing with both neighbours: another way than the kernels go. */
static int64_t define_round(double v)
{
    int64_t low = (int64_t)v;
    low -= (double)low > v;
    double above = v - (double)low;
    return above > 0.5 || (above == 0.5 && (low & 1) != 0) ? low + 1 : low;
}

static bool define_grad(const struct gemm_job *job, uint64_t i, uint64_t j, int64_t *grad)
{
    float acc = 0.0f;
    uint64_t done = 0, total = 0;
    bool good = true;
    for (uint32_t p = 0; p < job->pieces_count; p++) {
        total += job->pieces[p].k;
    }
    for (uint32_t p = 0; p < job->pieces_count; p++) {
        const struct gemm_piece *piece = &job->pieces[p];
        for (uint64_t k = 0; k < piece->k; k++) {
            acc = fmaf(element(&piece->a, i, k), element(&piece->b, j, k), acc);
            if (++done % job->unit == 0 || done == total) {
                double v = (double)(acc * job->grad_scale);
                if (v > -0x1p50 && v < 0x1p50) {
                    *grad += define_round(v);
                } else {
                    good = false;
                }
                acc = 0.0f;
            }
        }
    }
    return good;
}

/* Fills the output as the definition says and returns a copy. */
static void *define(struct subject *s, bool *overflow)
{
    void *copy;
    subject_reset(s);
    for (uint64_t i = 0; i < s->job.m; i++) {
        for (uint64_t j = 0; j < s->job.n; j++) {
            if (s->job.grad != NULL) {
                s->overflow |= !define_grad(&s->job, i, j, &s->job.grad[i * s->job.ldg + j]);
            } else {
                ((float *)s->job.c)[i * s->job.ldc + j] = define_value(&s->job, i, j);
            }
        }
    }
    *overflow = s->overflow;
    assert_ok(mem_alloc(&copy, s->out_bytes, 1));
    memcpy(copy, s->out, s->out_bytes);
    return copy;
}

static void compare(const struct subject *s, const void *expected, const char *who, uint64_t seed)
{
    const unsigned char *found = s->out, *want = expected;
    for (size_t b = 0; b < s->out_bytes; b++) {
        if (found[b] != want[b]) {
            size_t at = b / s->element;
            uint64_t ld = s->job.grad != NULL ? s->job.ldg : s->job.ldc;
            fail_msg("%s, job %llu: M %llu N %llu: element %zu of the output (row %lld, column %lld) differs", who,
                     (unsigned long long)seed, (unsigned long long)s->job.m, (unsigned long long)s->job.n, at,
                     (long long)((at - GAP) / ld), (long long)((at - GAP) % ld));
        }
    }
}

static void check_all(struct subject *s, const struct variant *v, uint32_t variants, uint64_t seed)
{
    bool overflow;
    void *expected = define(s, &overflow);
    for (uint32_t i = 0; i < variants; i++) {
        char who[64];
        snprintf(who, sizeof(who), "%s with %u threads", kern_isa_name(v[i].isa), v[i].threads);
        subject_reset(s);
        kern_gemm(v[i].kern, &s->job);
        compare(s, expected, who, seed);
        if (s->overflow != overflow) {
            fail_msg("%s, job %llu: overflow is %d, not %d", who, (unsigned long long)seed, s->overflow, overflow);
        }
    }
    free(expected);
}

/* ---- facts ---- */

static struct wish draw(uint64_t seed)
{
    static const uint64_t sizes[] = { 1,  2,  3,  4,  5,  6,  7,  8,  9,  13, 15, 16,
                                      17, 18, 23, 31, 47, 48, 49, 64, 65, 97, 100 };
    struct dice d = { seed + 77 };
    uint32_t choices = sizeof(sizes) / sizeof(sizes[0]);
    struct wish w = { .m = sizes[roll(&d, choices)],
                      .n = sizes[roll(&d, choices)] + (roll(&d, 4) == 0 ? 200 : 0),
                      .trans = (int)roll(&d, 5) - 1 };
    bool grad = roll(&d, 3) == 0;
    w.segments = grad ? 1 : 1u << roll(&d, 4);
    w.pieces = w.segments * (1 + roll(&d, 3));
    uint32_t budget = (uint32_t)(400000 / (w.m * w.n));
    budget = budget < 40 ? 40 : budget > 2500 ? 2500 : budget;
    for (uint32_t p = 0; p < w.pieces; p++) {
        w.k[p] = roll(&d, 12) == 0 ? 0 : 1 + roll(&d, 2 * budget / w.pieces);
    }
    if (grad) {
        w.unit = roll(&d, 3) == 0 ? 1 + roll(&d, 5) : 1 + roll(&d, budget);
        w.grad_scale = roll(&d, 2) == 0 ? 0x1p12f : 0x1p-4f;
    } else {
        w.bias = roll(&d, 2) == 0;
        w.residual = (enum residual)roll(&d, 3);
    }
    return w;
}

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
    for (unsigned better = isa + 1; better < ISA_COUNT; better++) {
        assert_false(kern_isa_supported((enum isa)better));
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
    assert_true(kern_workspace_bytes(2) > kern_workspace_bytes(1));
    assert_true(kern_peak_gflops(kern) > 0);
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
