/* For tests of the matrix product: jobs with their memory, and the definition of the product, written here as plain
 * loops: bits are compared, never closeness. */
#ifndef TESTS_UNIT_KERN_GEMM_JOB_H
#define TESTS_UNIT_KERN_GEMM_JOB_H

#include "test.h"

#include <math.h>

#include "base/bf16.h"
#include "base/mem.h"
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

static inline struct variant *variants_open(uint32_t *count)
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

static inline void variants_close(struct variant *v, uint32_t count)
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
    bool wild;
};

#define SUBJECT_FLOATS ((size_t)3 << 20)
#define OUT_BYTES_MAX ((size_t)4 << 20)

struct dice {
    uint64_t state;
};

static inline uint32_t roll(struct dice *d, uint32_t below)
{
    d->state = d->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((d->state >> 32) * below) >> 32);
}

/* Numbers over some 20 binary orders of magnitude, so that another order of summation gives other bits. */
static inline float number(struct dice *d)
{
    float mantissa = (float)((int32_t)roll(d, 1u << 24) - (1 << 23)) * 0x1p-23f;
    return mantissa * (float)(1u << roll(d, 20)) * 0x1p-10f;
}

/* Any bits of a float: ties and near ties of bf16, denormals of both signs, now and then what is not a number. */
static inline float wild_number(struct dice *d)
{
    static const uint32_t rare[] = { 0x7f800000, 0xff800000, 0x7f7fffff, 0xff7f8000,
                                     0x7f7f7fff, 0x7fc12345, 0xffa00001 };
    uint32_t low = (const uint32_t[]){ 0x8000, 0x7fff, 0x8001, 0, 0xffff, 0x18000 }[roll(d, 6)];
    uint32_t exponent = roll(d, 4) == 0 ? roll(d, 3) : 117 + roll(d, 20);
    uint32_t bits = roll(d, 2) << 31 | exponent << 23 | roll(d, 64) << 17 | low;
    bits = roll(d, 3000) == 0 ? rare[roll(d, 7)] : bits;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* In the order of memory; a bf16 number has the upper half of those bits. */
static inline void put_number(void *p, enum num type, size_t i, float x)
{
    if (type == NUM_F32) {
        ((float *)p)[i] = x;
    } else {
        memcpy((uint16_t *)p + i, (const char *)&x + sizeof(uint16_t), sizeof(uint16_t));
    }
}

static inline void *take_type(struct subject *s, size_t count, enum num type, struct dice *d)
{
    float *p = s->memory + s->used + 1; /* off any alignment but that of a float */
    s->used += count + 1;
    assert_true(s->used <= SUBJECT_FLOATS);
    for (size_t i = 0; i < count; i++) {
        put_number(p, type, i, s->wild ? wild_number(d) : number(d));
    }
    return p;
}

static inline float *take(struct subject *s, size_t count, struct dice *d)
{
    return take_type(s, count, NUM_F32, d);
}

static inline struct gemm_mat operand(struct subject *s, uint64_t n, uint64_t k, int trans, enum num type,
                                      struct dice *d)
{
    uint64_t inner = trans != 0 ? n : k, outer = trans != 0 ? k : n, ld = inner + roll(d, 3);
    return (struct gemm_mat){ .p = take_type(s, (outer > 0 ? outer : 1) * ld, type, d), .ld = ld, .trans = trans != 0,
                              .type = type };
}

static inline void subject_open(struct subject *s)
{
    void *mem;
    memset(s, 0, sizeof(*s));
    assert_ok(mem_alloc(&mem, SUBJECT_FLOATS, sizeof(float)));
    s->memory = mem;
    assert_ok(mem_alloc(&s->out, OUT_BYTES_MAX, 1));
    assert_ok(mem_alloc(&s->before, OUT_BYTES_MAX, 1));
}

static inline void subject_close(struct subject *s)
{
    free(s->memory);
    free(s->out);
    free(s->before);
}

/* The output with a gap before, after and at the end of each row; elements hold numbers, gaps sentinels. */
static inline void lay_out(struct subject *s, uint64_t m, uint64_t n, size_t element, struct dice *d)
{
    uint64_t ld = n + GAP + roll(d, 5);
    s->element = element;
    s->out_bytes = (GAP + m * ld + GAP) * element;
    assert_true(s->out_bytes <= OUT_BYTES_MAX);
    memset(s->before, 0x7b, s->out_bytes);
    for (uint64_t i = 0; i < m; i++) {
        for (uint64_t j = 0; j < n; j++) {
            uint64_t at = GAP + i * ld + j;
            if (element < sizeof(int64_t)) {
                put_number(s->before, element == sizeof(float) ? NUM_F32 : NUM_BF16, at, number(d));
            } else {
                ((int64_t *)s->before)[at] = (int64_t)roll(d, 1u << 30) * (int64_t)roll(d, 1u << 30) - (1ll << 58);
            }
        }
    }
    s->job.m = m;
    s->job.n = n;
    if (element < sizeof(int64_t)) {
        s->job.c = (char *)s->out + GAP * element;
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
    uint64_t unit; /* 0: a result in c */
    float grad_scale;
    bool bf16;
    enum num a_type, b_type, c_type;
    bool wild; /* numbers of all kinds */
};

static inline void subject_make(struct subject *s, const struct wish *w, uint64_t seed)
{
    struct dice d = { seed * 2654435761u + 1 };
    s->used = 0;
    s->wild = w->wild;
    s->job = (struct gemm_job){ .bf16 = w->bf16, .c_type = w->c_type };
    lay_out(s, w->m, w->n, w->unit > 0 ? sizeof(int64_t) : num_bytes(w->c_type), &d);
    for (uint32_t p = 0; p < w->pieces; p++) {
        int trans = w->trans >= 0 ? w->trans : (int)roll(&d, 4);
        s->piece[p] = (struct gemm_piece){ .a = operand(s, w->m, w->k[p], trans & 1, w->a_type, &d),
                                           .b = operand(s, w->n, w->k[p], trans & 2, w->b_type, &d),
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

static inline void subject_reset(struct subject *s)
{
    memcpy(s->out, s->before, s->out_bytes);
    s->overflow = false;
}

/* ---- the definition ---- */

static inline float element(const struct gemm_mat *m, uint64_t i, uint64_t k, bool bf16)
{
    uint64_t at = m->trans ? k * m->ld + i : i * m->ld + k;
    if (m->type == NUM_BF16) {
        return bf16_to_float(((const uint16_t *)m->p)[at]);
    }
    float x = ((const float *)m->p)[at];
    return bf16 ? bf16_to_float(bf16_from_float(x)) : x;
}

/* The next term of a chain. */
static inline float define_term(const struct gemm_job *job, const struct gemm_piece *p, const uint64_t at[2],
                                uint64_t k, float acc)
{
    return fmaf(element(&p->a, at[0], k, job->bf16), element(&p->b, at[1], k, job->bf16), acc);
}

static inline float tree(const float *part, uint32_t count)
{
    return count == 1 ? part[0] : tree(part, count / 2) + tree(part + count / 2, count / 2);
}

static inline float define_value(const struct gemm_job *job, uint64_t i, uint64_t j)
{
    float part[GEMM_PIECES_MAX], acc = 0.0f;
    uint32_t segments = 0;
    for (uint32_t p = 0; p < job->pieces_count; p++) {
        const struct gemm_piece *piece = &job->pieces[p];
        for (uint64_t k = 0; k < piece->k; k++) {
            acc = define_term(job, piece, (const uint64_t[]){ i, j }, k, acc);
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
static inline int64_t define_round(double v)
{
    int64_t low = (int64_t)v;
    low -= (double)low > v;
    double above = v - (double)low;
    return above > 0.5 || (above == 0.5 && (low & 1) != 0) ? low + 1 : low;
}

static inline bool define_grad(const struct gemm_job *job, uint64_t i, uint64_t j, int64_t *grad)
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
            acc = define_term(job, piece, (const uint64_t[]){ i, j }, k, acc);
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
static inline void *define(struct subject *s, bool *overflow)
{
    void *copy;
    subject_reset(s);
    for (uint64_t i = 0; i < s->job.m; i++) {
        for (uint64_t j = 0; j < s->job.n; j++) {
            if (s->job.grad != NULL) {
                s->overflow |= !define_grad(&s->job, i, j, &s->job.grad[i * s->job.ldg + j]);
            } else {
                float v = define_value(&s->job, i, j);
                if (s->job.c_type == NUM_BF16) {
                    ((uint16_t *)s->job.c)[i * s->job.ldc + j] = bf16_from_float(v);
                } else {
                    ((float *)s->job.c)[i * s->job.ldc + j] = v;
                }
            }
        }
    }
    *overflow = s->overflow;
    assert_ok(mem_alloc(&copy, s->out_bytes, 1));
    memcpy(copy, s->out, s->out_bytes);
    return copy;
}

/* Both are not numbers: which ones is no part of the contract. */
static inline bool both_nan(const struct subject *s, const void *found, const void *want, size_t at)
{
    if (s->job.grad != NULL) {
        return false;
    }
    if (s->job.c_type == NUM_BF16) {
        const uint16_t *f = found, *w = want;
        return isnan(bf16_to_float(f[at])) && isnan(bf16_to_float(w[at]));
    }
    return isnan(((const float *)found)[at]) && isnan(((const float *)want)[at]);
}

static inline void compare(const struct subject *s, const void *expected, const char *who, uint64_t seed)
{
    const unsigned char *found = s->out, *want = expected;
    for (size_t b = 0; b < s->out_bytes; b++) {
        size_t at = b / s->element;
        if (found[b] != want[b] && !both_nan(s, found, want, at)) {
            uint64_t ld = s->job.grad != NULL ? s->job.ldg : s->job.ldc;
            fail_msg("%s, job %llu: M %llu N %llu: element %zu of the output (row %lld, column %lld) differs", who,
                     (unsigned long long)seed, (unsigned long long)s->job.m, (unsigned long long)s->job.n, at,
                     (long long)((at - GAP) / ld), (long long)((at - GAP) % ld));
        }
    }
}

static inline void check_all(struct subject *s, const struct variant *v, uint32_t variants, uint64_t seed)
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

/* A job of fp32 numbers. */
static inline struct wish draw(uint64_t seed)
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

#endif
