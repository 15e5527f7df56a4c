#include "attention_plain.h"

/* ---- reference in double, row by row ---- */

/* A score becomes the capped one, -infinity where it is not seen; *slope: its derivative. */
static double seen_score(const struct shape *s, uint64_t t, uint64_t key, double score, double *slope)
{
    double ratio = s->cap > 0 ? tanh(score / (double)s->cap) : 0;
    *slope = 1 - ratio * ratio;
    score = s->cap > 0 ? (double)s->cap * ratio : score;
    return s->window == 0 || key + s->window > t ? score : -INFINITY;
}

struct reference {
    double *o, *lse, *dq, *dk, *dv, *w, *slope; /* [rows][H D], [H][rows], .., [rows][G D], [rows] */
};

static void *doubles(uint64_t n)
{
    void *p;
    assert_ok(mem_alloc(&p, n, sizeof(double)));
    return p;
}

static double dot(const float *a, const float *b, uint64_t n)
{
    double s = 0;
    for (uint64_t i = 0; i < n; i++) {
        s += (double)a[i] * (double)b[i];
    }
    return s;
}

static void reference_row(const struct problem *p, struct reference *r, uint64_t h, uint64_t t)
{
    const struct shape *s = &p->s;
    uint64_t d = s->dim, g = h / (s->heads / s->kv_heads), kv, hd = widths(s, &kv);
    double scale = 1.0 / sqrt((double)d), most = -INFINITY, sum = 0, delta = 0;
    const float *q = p->q + t * p->ldq + h * d, *d_o = p->d_o + t * p->ldo + h * d;
    double *o = r->o + t * hd + h * d, *dq = r->dq + t * hd + h * d;
    for (uint64_t j = 0; j <= t; j++) {
        r->w[j] = seen_score(s, t, j, scale * dot(q, p->k + j * p->ldk + g * d, d), &r->slope[j]);
        most = fmax(most, r->w[j]);
    }
    for (uint64_t j = 0; j <= t; j++) {
        r->w[j] = exp(r->w[j] - most);
        sum += r->w[j];
    }
    r->lse[h * s->rows + t] = most + log(sum);
    for (uint64_t j = 0; j <= t; j++) {
        r->w[j] /= sum;
        for (uint64_t e = 0; e < d; e++) {
            o[e] += r->w[j] * (double)p->v[j * p->ldk + g * d + e];
        }
    }
    for (uint64_t e = 0; e < d; e++) {
        delta += o[e] * (double)d_o[e];
    }
    for (uint64_t j = 0; j <= t; j++) {
        double ds = r->w[j] * (dot(d_o, p->v + j * p->ldk + g * d, d) - delta) * scale * r->slope[j];
        for (uint64_t e = 0; e < d; e++) {
            dq[e] += ds * (double)p->k[j * p->ldk + g * d + e];
            r->dk[j * kv + g * d + e] += ds * (double)q[e];
            r->dv[j * kv + g * d + e] += r->w[j] * (double)d_o[e];
        }
    }
}

static double worst(const float *got, uint64_t ld, const double *want, uint64_t rows, uint64_t cols)
{
    double most = 0, size = 0;
    for (uint64_t t = 0; t < rows; t++) {
        for (uint64_t c = 0; c < cols; c++) {
            double e = fabs((double)got[t * ld + c] - want[t * cols + c]);
            most = e <= most ? most : e; /* NaN counts */
            size = fmax(size, fabs(want[t * cols + c]));
        }
    }
    return most / fmax(size, 1.0);
}

static void check_against_reference(const struct problem *p)
{
    const struct shape *s = &p->s;
    uint64_t kv, hd = widths(s, &kv);
    struct reference r = { doubles(s->rows * hd), doubles(s->rows * s->heads), doubles(s->rows * hd),
                           doubles(s->rows * kv), doubles(s->rows * kv), doubles(s->rows), doubles(s->rows) };
    for (uint64_t h = 0; h < s->heads; h++) {
        for (uint64_t t = 0; t < s->rows; t++) {
            reference_row(p, &r, h, t);
        }
    }
    double e[] = { worst(p->o, p->ldo, r.o, s->rows, hd), worst(p->lse, s->rows, r.lse, s->heads, s->rows),
                   worst(p->dq, p->ldq, r.dq, s->rows, hd), worst(p->dk, p->ldk, r.dk, s->rows, kv),
                   worst(p->dv, p->ldk, r.dv, s->rows, kv) };
    for (int i = 0; i < 5; i++) {
        if (!(e[i] <= 1e-5)) {
            fail_msg("T %lu H %lu G %lu D %lu W %lu cap %g: result %d (o lse dq dk dv) is off by %g", s->rows, s->heads,
                     s->kv_heads, s->dim, s->window, (double)s->cap, i, e[i]);
        }
    }
    double *all[] = { r.o, r.lse, r.dq, r.dk, r.dv, r.w, r.slope };
    for (int i = 0; i < 7; i++) {
        free(all[i]);
    }
}

/* The gaps around a result of `rows` rows of `cols` must hold the guard still. */
static void check_gaps(const float *x, uint64_t ld, uint64_t rows, uint64_t cols)
{
    for (uint64_t i = 1; i <= 5; i++) {
        assert_true(x[-(int64_t)i] == GUARD && x[rows * ld + i - 1] == GUARD);
    }
    for (uint64_t t = 0; t < rows; t++) {
        for (uint64_t c = cols; c < ld; c++) {
            assert_true(x[t * ld + c] == GUARD);
        }
    }
}

static void check_guards(const struct problem *p)
{
    uint64_t kv, hd = widths(&p->s, &kv);
    check_gaps(p->o, p->ldo, p->s.rows, hd);
    check_gaps(p->dq, p->ldq, p->s.rows, hd);
    check_gaps(p->dk, p->ldk, p->s.rows, kv);
    check_gaps(p->dv, p->ldk, p->s.rows, kv);
    check_gaps(p->lse, p->s.rows, p->s.heads, p->s.rows);
    check_gaps(p->row_dot, p->s.rows, p->s.heads, p->s.rows);
}

/* Windows of one key, inside a block, of a block, over blocks, just into the next one, and not shorter than the
 * sequence; caps that bend scores and caps that hardly do. */
static const struct shape shapes[] = {
    { .rows = 1, .heads = 1, .kv_heads = 1, .dim = 8 },
    { .rows = 3, .heads = 2, .kv_heads = 1, .dim = 16 },
    { .rows = 17, .heads = 3, .kv_heads = 3, .dim = 24 },
    { .rows = 64, .heads = 2, .kv_heads = 2, .dim = 64 },
    { .rows = 65, .heads = 4, .kv_heads = 2, .dim = 32 },
    { .rows = 130, .heads = 3, .kv_heads = 1, .dim = 64 },
    { .rows = 200, .heads = 2, .kv_heads = 2, .dim = 40 },
    { .rows = 129, .heads = 8, .kv_heads = 2, .dim = 16 },
    { .rows = 97, .heads = 2, .kv_heads = 1, .dim = 128 },
    { .rows = 150, .heads = 6, .kv_heads = 2, .dim = 8 },
    { .rows = 70, .heads = 1, .kv_heads = 1, .dim = 256 },
    { .rows = 150, .heads = 2, .kv_heads = 1, .dim = 16, .window = 1 },
    { .rows = 200, .heads = 2, .kv_heads = 2, .dim = 24, .window = 5, .cap = 2.0f },
    { .rows = 300, .heads = 3, .kv_heads = 1, .dim = 32, .window = 64 },
    { .rows = 331, .heads = 2, .kv_heads = 2, .dim = 16, .window = 100 },
    { .rows = 270, .heads = 4, .kv_heads = 2, .dim = 8, .window = 130, .cap = 50.0f },
    { .rows = 90, .heads = 2, .kv_heads = 2, .dim = 40, .window = 90 },
    { .rows = 99, .heads = 4, .kv_heads = 2, .dim = 32, .cap = 1.5f },
    { .rows = 1, .heads = 2, .kv_heads = 2, .dim = 8, .type = NUM_BF16 },
    { .rows = 17, .heads = 3, .kv_heads = 3, .dim = 24, .type = NUM_BF16 },
    { .rows = 65, .heads = 4, .kv_heads = 2, .dim = 32, .type = NUM_BF16 },
    { .rows = 131, .heads = 3, .kv_heads = 1, .dim = 64, .type = NUM_BF16 },
    { .rows = 97, .heads = 2, .kv_heads = 1, .dim = 128, .type = NUM_BF16 },
    { .rows = 70, .heads = 1, .kv_heads = 1, .dim = 256, .type = NUM_BF16 },
    { .rows = 150, .heads = 2, .kv_heads = 1, .dim = 16, .type = NUM_BF16, .window = 1, .cap = 3.0f },
    { .rows = 201, .heads = 3, .kv_heads = 1, .dim = 24, .type = NUM_BF16, .window = 66 },
    { .rows = 331, .heads = 2, .kv_heads = 2, .dim = 16, .type = NUM_BF16, .window = 99 },
    { .rows = 75, .heads = 4, .kv_heads = 2, .dim = 32, .type = NUM_BF16, .cap = 1.5f },
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static enum isa best_isa(void)
{
    enum isa isa = ISA_AVX512;
    while (!kern_isa_supported(isa)) {
        isa = (enum isa)(isa - 1);
    }
    return isa;
}

static void results_match_double_precision(void **state)
{
    (void)state;
    struct instance n;
    instance_init(&n, best_isa(), 2);
    for (uint64_t i = 0; i < SHAPES; i++) {
        if (shapes[i].type != NUM_F32) {
            continue;
        }
        struct problem p;
        problem_init(&p, shapes[i]);
        run(&n, &p);
        check_against_reference(&p);
        check_guards(&p);
        problem_release(&p);
    }
    instance_release(&n);
}

/* All result memory is compared, so guards must agree as well. */
static void check_against_plain(struct shape shape, enum data data)
{
    struct problem want, got;
    problem_init_with(&want, shape, data);
    problem_init_with(&got, shape, data);
    plain_attention(&want);
    plain_nans(&want);
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        for (uint32_t threads = 1; threads <= 3 && kern_isa_supported((enum isa)isa); threads++) {
            struct instance n;
            instance_init(&n, (enum isa)isa, threads);
            clear_results(&got);
            run(&n, &got);
            instance_release(&n);
            plain_nans(&got);
            if (memcmp(want.memory, got.memory, want.floats * sizeof(float)) != 0) {
                fail_msg("%s, %s, %u threads, T %lu H %lu G %lu D %lu W %lu cap %g, %s: other bits than the definition",
                         shape.type == NUM_BF16 ? "bf16" : "fp32", kern_isa_name((enum isa)isa), threads, shape.rows,
                         shape.heads, shape.kv_heads, shape.dim, shape.window, (double)shape.cap, data_names[data]);
            }
        }
    }
    problem_release(&want);
    problem_release(&got);
}

static void every_instruction_set_has_the_bits_of_the_definition(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < SHAPES; i++) {
        check_against_plain(shapes[i], PLAIN);
    }
    check_against_plain((struct shape){ .rows = 203, .heads = 4, .kv_heads = 2, .dim = 24, .window = 37 }, TINY);
    check_against_plain((struct shape){ .rows = 203, .heads = 4, .kv_heads = 2, .dim = 24, .type = NUM_BF16,
                                        .window = 37, .cap = 8.0f }, TINY);
    for (uint32_t data = TINY; data < DATA_COUNT; data++) {
        struct shape shape = { .rows = 83, .heads = 4, .kv_heads = 2, .dim = 24 };
        check_against_plain(shape, (enum data)data);
        shape.type = NUM_BF16;
        check_against_plain(shape, (enum data)data);
    }
}

/* Move [heads][rows] at `piece` to rows [first, first + rows) of `whole`; nothing may lie behind it. */
static void gather(const struct problem *p, float *piece, float *whole, uint64_t first, uint64_t rows)
{
    for (uint64_t h = 0; h < p->s.heads; h++) {
        memcpy(whole + h * p->s.rows + first, piece + h * rows, rows * sizeof(float));
    }
    for (uint64_t i = 0; i < p->s.heads * p->s.rows; i++) {
        assert_true(i < p->s.heads * rows || piece[i] == GUARD);
        piece[i] = GUARD;
    }
}

/* Rows [first, first + rows) alone, into the same places. lse of a piece is [heads][rows]. */
static void run_piece(struct instance *n, struct problem *p, uint64_t first, uint64_t rows)
{
    struct attention a = arguments(p);
    a.first = first;
    a.rows = rows;
    a.q = num_at(a.q, a.type, first * a.ldq);
    a.o = num_at_mut(a.o, a.type, first * a.ldo);
    a.lse = p->row_dot; /* room for it, all guards before and after */
    kern_attention_forward(&n->k, &a);
    gather(p, p->row_dot, p->lse, first, rows);
}

static void any_split_of_rows_equals_the_full_forward(void **state)
{
    (void)state;
    static const uint64_t pieces[] = { 1, 2, 7, 64, 33 };
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (!kern_isa_supported((enum isa)isa)) {
            continue;
        }
        struct instance n;
        instance_init(&n, (enum isa)isa, 2);
        for (uint64_t i = 0; i < SHAPES; i++) {
            struct problem want, got;
            problem_init(&want, shapes[i]);
            problem_init(&got, shapes[i]);
            struct attention a = arguments(&want);
            kern_attention_forward(&n.k, &a);
            for (uint64_t c = 0; c < 5; c++) {
                clear_results(&got);
                for (uint64_t t = 0; t < got.s.rows; t += pieces[c]) {
                    run_piece(&n, &got, t, got.s.rows - t < pieces[c] ? got.s.rows - t : pieces[c]);
                }
                assert_memory_equal(want.memory, got.memory, want.floats * sizeof(float));
            }
            problem_release(&want);
            problem_release(&got);
        }
        instance_release(&n);
    }
}

/* Rows up to `keep` must not notice what lies after them: garbage in q, k, v and d_o of later rows. */
static void the_future_changes_nothing(void **state)
{
    (void)state;
    struct instance n;
    instance_init(&n, best_isa(), 2);
    static const uint64_t keeps[] = { 1, 63, 64, 70, 128 };
    const struct shape s = { .rows = 150, .heads = 4, .kv_heads = 2, .dim = 32 };
    struct problem want, got;
    problem_init(&want, s);
    problem_init(&got, s);
    run(&n, &want);
    for (int c = 0; c < 5; c++) {
        uint64_t keep = keeps[c];
        memcpy(got.memory, want.memory, (got.floats - got.results) * sizeof(float));
        clear_results(&got);
        for (uint64_t t = keep; t < s.rows; t++) {
            for (uint64_t e = 0; e < got.ldk; e++) {
                got.k[t * got.ldk + e] = t % 2 ? -1e18f : 1e18f;
                got.v[t * got.ldk + e] = t % 2 ? 1e30f : -1e30f;
            }
            for (uint64_t e = 0; e < s.heads * s.dim; e++) {
                got.q[t * got.ldq + e] = 3e17f;
            }
        }
        struct attention a = arguments(&got);
        kern_attention_forward(&n.k, &a);
        assert_memory_equal(want.o, got.o, keep * got.ldo * sizeof(float));
        for (uint64_t h = 0; h < s.heads; h++) {
            assert_memory_equal(want.lse + h * s.rows, got.lse + h * s.rows, keep * sizeof(float));
        }
        /* the gradient of a query has no future either */
        run(&n, &got);
        assert_memory_equal(want.dq, got.dq, keep * got.ldq * sizeof(float));
    }
    problem_release(&want);
    problem_release(&got);
    instance_release(&n);
}

/* Keys after the last query are not even read: they may be NaN, also when the last block is not full. */
static void keys_after_the_last_query_are_not_read(void **state)
{
    (void)state;
    struct instance n;
    instance_init(&n, best_isa(), 1);
    struct problem want, got;
    problem_init(&want, (struct shape){ .rows = 130, .heads = 2, .kv_heads = 1, .dim = 16 });
    problem_init(&got, (struct shape){ .rows = 130, .heads = 2, .kv_heads = 1, .dim = 16 });
    run(&n, &want);
    for (uint64_t t = 75; t < 130; t++) {
        for (uint64_t e = 0; e < 16; e++) {
            got.k[t * got.ldk + e] = NAN;
            got.v[t * got.ldk + e] = NAN;
        }
    }
    run_piece(&n, &got, 0, 75);
    assert_memory_equal(want.o, got.o, 75 * got.ldo * sizeof(float));
    problem_release(&want);
    problem_release(&got);
    instance_release(&n);
}

static void scaling_the_output_gradient_by_two_scales_all_gradients(void **state)
{
    (void)state;
    struct instance n;
    instance_init(&n, best_isa(), 1);
    struct problem one, two;
    const struct shape s = { .rows = 100, .heads = 2, .kv_heads = 2, .dim = 16 };
    problem_init(&one, s);
    problem_init(&two, s);
    for (uint64_t e = 0; e < s.rows * two.ldo; e++) {
        two.d_o[e] *= 2.0f;
    }
    run(&n, &one);
    run(&n, &two);
    for (uint64_t t = 0; t < s.rows; t++) {
        for (uint64_t e = 0; e < s.heads * s.dim; e++) {
            assert_true(two.dq[t * two.ldq + e] == 2.0f * one.dq[t * one.ldq + e]);
            assert_true(two.dk[t * two.ldk + e] == 2.0f * one.dk[t * one.ldk + e]);
            assert_true(two.dv[t * two.ldk + e] == 2.0f * one.dv[t * one.ldk + e]);
        }
    }
    problem_release(&one);
    problem_release(&two);
    instance_release(&n);
}

/* ---- parts of the backward pass ---- */

static const struct shape part_shapes[] = {
    { .rows = 1, .heads = 2, .kv_heads = 1, .dim = 8 },
    { .rows = 7, .heads = 2, .kv_heads = 2, .dim = 16 },
    { .rows = 64, .heads = 2, .kv_heads = 1, .dim = 64 },
    { .rows = 65, .heads = 4, .kv_heads = 2, .dim = 32 },
    { .rows = 130, .heads = 2, .kv_heads = 2, .dim = 40 },
    { .rows = 130, .heads = 6, .kv_heads = 2, .dim = 8 },
    { .rows = 300, .heads = 3, .kv_heads = 1, .dim = 32 },
    { .rows = 300, .heads = 1, .kv_heads = 1, .dim = 128 },
    { .rows = 65, .heads = 2, .kv_heads = 2, .dim = 16, .window = 2 },
    { .rows = 300, .heads = 4, .kv_heads = 2, .dim = 8, .window = 64, .cap = 4.0f },
    { .rows = 331, .heads = 2, .kv_heads = 1, .dim = 32, .window = 101 },
    { .rows = 7, .heads = 2, .kv_heads = 2, .dim = 16, .type = NUM_BF16 },
    { .rows = 64, .heads = 2, .kv_heads = 1, .dim = 64, .type = NUM_BF16 },
    { .rows = 65, .heads = 4, .kv_heads = 2, .dim = 32, .type = NUM_BF16 },
    { .rows = 131, .heads = 2, .kv_heads = 2, .dim = 40, .type = NUM_BF16 },
    { .rows = 130, .heads = 6, .kv_heads = 2, .dim = 8, .type = NUM_BF16 },
    { .rows = 201, .heads = 3, .kv_heads = 1, .dim = 32, .type = NUM_BF16 },
    { .rows = 201, .heads = 2, .kv_heads = 1, .dim = 16, .type = NUM_BF16, .window = 20 },
    { .rows = 331, .heads = 2, .kv_heads = 2, .dim = 16, .type = NUM_BF16, .window = 99, .cap = 4.0f },
};
#define PART_SHAPES (sizeof(part_shapes) / sizeof(part_shapes[0]))

#define RANGES 12u
/* Some of 0 <= lo <= hi <= rows: the first ones are the whole and nothing, ends, and steps beside multiples of 8. */
static void some_range(uint64_t i, uint64_t rows, uint64_t *lo, uint64_t *hi)
{
    const uint64_t fixed[][2] = { { 0, rows }, { 0, 0 }, { rows - 1, rows }, { rows, rows }, { rows / 2, rows },
                                  { rows / 8 * 4, rows / 8 * 8 }, { rows / 3, rows - rows / 3 } };
    uint64_t count = sizeof(fixed) / sizeof(fixed[0]), at = (uint64_t)((uniform(2 * i) + 1.0f) * 0x1p20f);
    if (i < count) {
        *lo = fixed[i][0];
        *hi = fixed[i][1];
    } else {
        *lo = at % (rows + 1);
        *hi = *lo + (uint64_t)((uniform(2 * i + 1) + 1.0f) * 0x1p20f) % (rows + 1 - *lo);
    }
}

/* The part alone; `whole` has what the other ranks would send: lse and row_dot of all rows. */
static void run_part(struct instance *n, struct problem *p, const struct problem *whole,
                     const struct attention_part *part)
{
    uint64_t bytes = p->s.heads * p->s.rows * sizeof(float);
    memcpy(p->lse, whole->lse, bytes);
    memcpy(p->row_dot, whole->row_dot, bytes);
    struct attention a = arguments(p);
    a.o = NULL;
    const struct attention_grad g = { p->d_o, p->dq, p->dk, p->dv, p->row_dot };
    kern_attention_backward_part(&n->k, &a, &g, part);
}

/* The gradients of `whole` in the ranges, guards everywhere else. */
static void expect_part(struct problem *p, const struct problem *whole, const struct attention_part *part)
{
    uint64_t bytes = p->s.heads * p->s.rows * sizeof(float);
    uint64_t q = part->q_lo * p->ldq, k = part->k_lo * p->ldk;
    clear_results(p);
    memcpy(p->lse, whole->lse, bytes);
    memcpy(p->row_dot, whole->row_dot, bytes);
    memcpy(p->dq + q, whole->dq + q, (part->q_hi - part->q_lo) * p->ldq * sizeof(float));
    memcpy(p->dk + k, whole->dk + k, (part->k_hi - part->k_lo) * p->ldk * sizeof(float));
    memcpy(p->dv + k, whole->dv + k, (part->k_hi - part->k_lo) * p->ldk * sizeof(float));
}

static void check_parts(enum isa isa, uint32_t threads, struct shape s, enum data data)
{
    struct instance n;
    struct problem whole, want, got;
    problem_init_with(&whole, s, data);
    problem_init_with(&want, s, data);
    problem_init_with(&got, s, data);
    instance_init(&n, isa, threads);
    run(&n, &whole);
    for (uint64_t i = 0; i < RANGES; i++) {
        struct attention_part part;
        some_range(i, s.rows, &part.q_lo, &part.q_hi);
        some_range((5 * i + threads) % RANGES, s.rows, &part.k_lo, &part.k_hi);
        expect_part(&want, &whole, &part);
        clear_results(&got);
        run_part(&n, &got, &whole, &part);
        if (memcmp(want.memory, got.memory, want.floats * sizeof(float)) != 0) {
            fail_msg("%s, %u threads, T %lu H %lu G %lu D %lu, %s: dq of [%lu, %lu), dk and dv of [%lu, %lu) are not "
                     "those of the whole, or more was written", kern_isa_name(isa), threads, s.rows, s.heads,
                     s.kv_heads, s.dim, data_names[data], part.q_lo, part.q_hi, part.k_lo, part.k_hi);
        }
    }
    instance_release(&n);
    problem_release(&whole);
    problem_release(&want);
    problem_release(&got);
}

static void a_part_of_the_backward_pass_has_its_bits_and_writes_nothing_else(void **state)
{
    (void)state;
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        for (uint32_t i = 0; i < GREAT * PART_SHAPES && kern_isa_supported((enum isa)isa); i++) {
            uint32_t shape = i / GREAT, data = i % GREAT; /* great numbers do not show extents */
            if (data == INFINITE && part_shapes[shape].window > 0) {
                continue; /* of a zero only the sign is fixed */
            }
            check_parts((enum isa)isa, 1 + (shape + data + (uint32_t)isa) % 3, part_shapes[shape], (enum data)data);
        }
    }
}

/* What one of `cp` ranks does with chunk `chunk` of 2 cp, in two phases with an exchange of lse and row_dot between. */
static void run_chunk(struct instance *n, struct problem *p, uint64_t cp, uint64_t chunk, bool backward)
{
    uint64_t rows = p->s.rows / (2 * cp), first = chunk * rows;
    struct attention a = arguments(p);
    if (backward) {
        const struct attention_grad g = { p->d_o, p->dq, p->dk, p->dv, p->row_dot };
        const struct attention_part part = { first, first + rows, first, first + rows };
        a.o = NULL;
        kern_attention_backward_part(&n->k, &a, &g, &part);
        return;
    }
    float *piece = p->dq; /* room for lse or row_dot of the chunk, guards before and after */
    a.first = first;
    a.rows = rows;
    a.q = num_at(a.q, a.type, first * a.ldq);
    a.o = num_at_mut(a.o, a.type, first * a.ldo);
    a.lse = piece;
    kern_attention_forward(&n->k, &a);
    gather(p, piece, p->lse, first, rows);
    kern_attention_row_dot(&n->k, &a, p->d_o + first * a.ldo, piece);
    gather(p, piece, p->row_dot, first, rows);
}

static void check_ranks(struct instance *n, struct shape s, uint64_t cp, enum data data)
{
    struct problem want, got;
    problem_init_with(&want, s, data);
    problem_init_with(&got, s, data);
    run(n, &want);
    for (int backward = 0; backward < 2; backward++) {
        for (uint64_t rank = 0; rank < cp; rank++) {
            run_chunk(n, &got, cp, rank, backward == 1);
            run_chunk(n, &got, cp, 2 * cp - 1 - rank, backward == 1);
        }
    }
    if (memcmp(want.memory, got.memory, want.floats * sizeof(float)) != 0) {
        fail_msg("%s, T %lu H %lu G %lu D %lu, %s: %lu ranks have other bits than one", kern_isa_name(n->k.isa), s.rows,
                 s.heads, s.kv_heads, s.dim, data_names[data], cp);
    }
    problem_release(&want);
    problem_release(&got);
}

static void ranks_that_share_a_sequence_have_the_bits_of_one(void **state)
{
    (void)state;
    static const struct shape sequences[] = {
        { .rows = 8, .heads = 2, .kv_heads = 1, .dim = 8 },
        { .rows = 64, .heads = 2, .kv_heads = 2, .dim = 64 },
        { .rows = 72, .heads = 4, .kv_heads = 2, .dim = 40 },
        { .rows = 256, .heads = 3, .kv_heads = 1, .dim = 32 },
        { .rows = 304, .heads = 2, .kv_heads = 1, .dim = 16 },
        { .rows = 512, .heads = 1, .kv_heads = 1, .dim = 64 },
        { .rows = 304, .heads = 2, .kv_heads = 1, .dim = 16, .window = 70, .cap = 5.0f },
        { .rows = 512, .heads = 2, .kv_heads = 2, .dim = 8, .window = 9 },
        { .rows = 72, .heads = 4, .kv_heads = 2, .dim = 40, .type = NUM_BF16 },
        { .rows = 304, .heads = 2, .kv_heads = 1, .dim = 16, .type = NUM_BF16 },
        { .rows = 304, .heads = 2, .kv_heads = 1, .dim = 16, .type = NUM_BF16, .window = 70, .cap = 5.0f },
    };
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (!kern_isa_supported((enum isa)isa)) {
            continue;
        }
        for (uint64_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++) {
            struct instance n;
            instance_init(&n, (enum isa)isa, 1 + (uint32_t)i % 3);
            for (uint64_t cp = 1; cp <= 4; cp *= 2) {
                check_ranks(&n, sequences[i], cp, cp == 2 ? TINY : PLAIN);
            }
            instance_release(&n);
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(results_match_double_precision),
    cmocka_unit_test(every_instruction_set_has_the_bits_of_the_definition),
    cmocka_unit_test(any_split_of_rows_equals_the_full_forward),
    cmocka_unit_test(the_future_changes_nothing),
    cmocka_unit_test(keys_after_the_last_query_are_not_read),
    cmocka_unit_test(scaling_the_output_gradient_by_two_scales_all_gradients),
    cmocka_unit_test(a_part_of_the_backward_pass_has_its_bits_and_writes_nothing_else),
    cmocka_unit_test(ranks_that_share_a_sequence_have_the_bits_of_one),
};
TEST_MAIN(tests)
