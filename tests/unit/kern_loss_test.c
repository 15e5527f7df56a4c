/* Cross entropy: against double and finite differences; divided over the vocabulary, against the whole; and the same
 * bytes for every instruction set and thread count. */
#include "kern_each.h"

#define CE_ROWS 5u
#define CE_PADDED_MAX 2048u
#define LD_EXTRA 3u

struct ce_case {
    uint64_t vocab, padded;
    uint32_t segments;
};
static const struct ce_case ce_cases[] = {
    { 1, 128, 1 },     { 15, 128, 2 },    { 16, 128, 8 },     { 17, 128, 8 },    { 63, 128, 1 },  { 65, 128, 4 },
    { 128, 128, 8 },   { 1000, 1024, 8 }, { 1000, 1024, 1 },  { 77, 128, 1 },    { 2000, 2048, 4 }, { 100, 1024, 8 },
    { 13, 13, 1 },     { 50, 52, 4 },
};
#define CE_CASES (sizeof(ce_cases) / sizeof(ce_cases[0]))
static float in_logits[CE_ROWS * CE_PADDED_MAX];
static int32_t targets[CE_ROWS];

/* option: 0 loss only, 1 backward, +2 the padding holds NaN; cols: index of the case */
static void ce_run(struct kern *k, struct outs *o, const struct shape *s)
{
    const struct ce_case *c = &ce_cases[s->cols];
    uint64_t ld = c->padded + LD_EXTRA;
    float *loss = outs_take(o, CE_ROWS, 4), *logits = outs_take(o, CE_ROWS * ld, 4);
    for (uint64_t t = 0; t < CE_ROWS; t++) {
        for (uint64_t j = 0; j < ld; j++) {
            float padding = s->option & 2 ? NAN : 1e30f;
            logits[t * ld + j] = j < c->vocab ? in_logits[t * CE_PADDED_MAX + j] : j < c->padded ? padding : 9.5f;
        }
    }
    for (uint64_t t = 0; t < CE_ROWS; t += s->step) {
        uint64_t n = CE_ROWS - t < s->step ? CE_ROWS - t : s->step;
        kern_cross_entropy(k, n, c->vocab, c->padded, ld, c->segments, targets + t, logits + t * ld, loss + t,
                           (s->option & 1) != 0);
    }
}

static void ce_inputs(uint64_t vocab)
{
    numbers(in_logits, CE_ROWS * CE_PADDED_MAX, 21, 4.0);
    in_logits[CE_PADDED_MAX] = 90.0f; /* row 1: one column far above the others */
    for (uint64_t t = 0; t < CE_ROWS; t++) {
        targets[t] = t == 3 ? -1 : (int32_t)(t * 7919 % vocab);
    }
    targets[4] = (int32_t)vocab - 1;
}

static double ce_loss(const double *x, uint64_t vocab, uint64_t target)
{
    double max = x[0], sum = 0;
    for (uint64_t j = 0; j < vocab; j++) {
        max = fmax(max, x[j]);
    }
    for (uint64_t j = 0; j < vocab; j++) {
        sum += exp(x[j] - max);
    }
    return log(sum) + max - x[target];
}

/* The gradient of one row against finite differences (at most 40 columns of it) and the sum of the row. */
static void check_ce_row(const struct ce_case *c, uint64_t t, const float *grad)
{
    static double x[CE_PADDED_MAX];
    for (uint64_t j = 0; j < c->vocab; j++) {
        x[j] = (double)in_logits[t * CE_PADDED_MAX + j];
    }
    double sum = 0;
    for (uint64_t j = 0; j < c->vocab; j++) {
        sum += (double)grad[j];
        if (targets[t] < 0) {
            assert_true(grad[j] == 0);
        } else if (j % (c->vocab / 40 + 1) == 0 || j == (uint64_t)targets[t]) {
            const double h = 1e-5;
            double at = x[j];
            x[j] = at + h;
            double up = ce_loss(x, c->vocab, (uint64_t)targets[t]);
            x[j] = at - h;
            double down = ce_loss(x, c->vocab, (uint64_t)targets[t]);
            x[j] = at;
            assert_near("gradient", j, (double)grad[j], (up - down) / (2 * h), 1e-6);
        }
    }
    assert_near("sum of gradients", t, sum, 0, 1e-6);
    for (uint64_t j = c->vocab; j < c->padded + LD_EXTRA; j++) {
        assert_true(grad[j] == (j < c->padded ? 0.0f : 9.5f));
    }
}

static void cross_entropy_matches_double(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    for (size_t i = 0; i < CE_CASES; i++) {
        const struct ce_case *c = &ce_cases[i];
        ce_inputs(c->vocab);
        struct shape s = { CE_ROWS, i, CE_ROWS, 1 };
        const struct outs *o = each_run_split(&e, ce_run, s);
        float *loss = outs_part(o, 0), *grad = outs_part(o, 1);
        static double x[CE_PADDED_MAX];
        for (uint64_t t = 0; t < CE_ROWS; t++) {
            for (uint64_t j = 0; j < c->vocab; j++) {
                x[j] = (double)in_logits[t * CE_PADDED_MAX + j];
            }
            double want = targets[t] < 0 ? 0 : ce_loss(x, c->vocab, (uint64_t)targets[t]);
            assert_near("loss", t, (double)loss[t], want, 1e-6 * (1 + want));
            check_ce_row(c, t, grad + t * (c->padded + LD_EXTRA));
        }
        memcpy(e.whole.bytes, o->bytes, o->used);
        s.option = 3;
        s.step = CE_ROWS;
        each_run(&e, ce_run, &s); /* NaN in the padding changes nothing */
        assert_memory_equal(e.whole.bytes, o->bytes, o->used);
        float kept[CE_ROWS];
        memcpy(kept, loss, sizeof(kept));
        s.option = 0;
        each_run(&e, ce_run, &s); /* without backward: the same loss, logits untouched */
        assert_memory_equal(kept, loss, sizeof(kept));
        for (uint64_t t = 0; t < CE_ROWS; t++) {
            assert_memory_equal(grad + t * (c->padded + LD_EXTRA), in_logits + t * CE_PADDED_MAX, c->vocab * 4);
        }
    }
    each_close(&e);
}

static void cross_entropy_of_bad_logits_is_not_a_number(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    const float bad[] = { NAN, INFINITY, -NAN };
    for (size_t b = 0; b < 3; b++) {
        for (uint64_t column = 0; column < 1000; column += 333) {
            ce_inputs(1000);
            in_logits[column] = bad[b];
            struct shape s = { CE_ROWS, 7, CE_ROWS, 1 };
            const float *loss = outs_part(each_run(&e, ce_run, &s), 0);
            assert_true(loss[0] != loss[0] && loss[1] == loss[1]);
        }
    }
    each_close(&e);
}

/* ---- parts of the vocabulary ---- */

#define PARTS_MAX 8u
static uint32_t parts; /* of the test that runs */

static uint64_t part_width(const struct ce_case *c)
{
    return c->padded / parts;
}

/* Columns of part r with rows of its own; padding holds what no result may show. */
static void part_load(const struct ce_case *c, uint32_t r, float *logits)
{
    uint64_t width = part_width(c), ld = width + LD_EXTRA;
    for (uint64_t t = 0; t < CE_ROWS; t++) {
        for (uint64_t j = 0; j < ld; j++) {
            uint64_t column = r * width + j;
            float real = in_logits[t * CE_PADDED_MAX + (column < c->vocab ? column : 0)];
            logits[t * ld + j] = j >= width ? 9.5f : column < c->vocab ? real : NAN;
        }
    }
}

static struct ce_part part_of(const struct ce_case *c, uint32_t r, uint64_t first_row, uint64_t rows, float *logits)
{
    uint64_t width = part_width(c), first = r * width, ld = width + LD_EXTRA;
    return (struct ce_part){
        .rows = rows, .ld = ld, .first = first,
        .real = c->vocab < first ? 0 : c->vocab - first < width ? c->vocab - first : width,
        .padded = width, .segments = c->segments / parts, .target = targets + first_row,
        .logits = logits + first_row * ld,
    };
}

/* The largest over ranks, into the first. */
static void exchange_max(float all[PARTS_MAX][CE_ROWS])
{
    for (uint32_t r = 1; r < parts; r++) {
        for (uint64_t t = 0; t < CE_ROWS; t++) {
            all[0][t] = all[r][t] > all[0][t] ? all[r][t] : all[0][t];
        }
    }
}

/* The balanced tree over ranks, into the first. */
static void exchange_sum(float all[PARTS_MAX][CE_ROWS])
{
    for (uint32_t left = parts / 2; left > 0; left /= 2) {
        for (uint32_t r = 0; r < left; r++) {
            for (uint64_t t = 0; t < CE_ROWS; t++) {
                all[r][t] = all[2 * r][t] + all[2 * r + 1][t];
            }
        }
    }
}

/* As ce_run, by `parts` ranks: each writes its loss; logits lie rank after rank. option 0: loss only. */
static void ce_parts_run(struct kern *k, struct outs *o, const struct shape *s)
{
    const struct ce_case *c = &ce_cases[s->cols];
    uint64_t size = CE_ROWS * (part_width(c) + LD_EXTRA);
    float *loss = outs_take(o, parts * CE_ROWS, 4), *logits = outs_take(o, parts * size, 4);
    float max[PARTS_MAX][CE_ROWS], x_target[PARTS_MAX][CE_ROWS], sum[PARTS_MAX][CE_ROWS];
    for (uint32_t r = 0; r < parts; r++) {
        part_load(c, r, logits + r * size);
    }
    for (uint32_t i = 0; i < parts * CE_ROWS; i += (uint32_t)s->step) {
        uint64_t r = i / CE_ROWS, t = i % CE_ROWS;
        struct ce_part part = part_of(c, (uint32_t)r, t, s->step, logits + r * size);
        kern_ce_max(k, &part, max[r] + t, x_target[r] + t);
    }
    exchange_max(max);
    exchange_max(x_target);
    for (uint32_t r = 0; r < parts; r++) {
        struct ce_part part = part_of(c, r, 0, CE_ROWS, logits + r * size);
        kern_ce_exp(k, &part, max[0], sum[r]);
    }
    exchange_sum(sum);
    for (uint32_t r = 0; r < parts; r++) {
        struct ce_part part = part_of(c, r, 0, CE_ROWS, logits + r * size);
        kern_ce_finish(k, &part, max[0], sum[0], x_target[0], loss + r * CE_ROWS, s->option != 0);
    }
}

/* Row t of the gradient of all parts, side by side. */
static void part_row(const struct ce_case *c, const float *logits, uint64_t t, float *row)
{
    uint64_t width = part_width(c), ld = width + LD_EXTRA;
    for (uint32_t r = 0; r < parts; r++) {
        const float *part = logits + (r * CE_ROWS + t) * ld;
        memcpy(row + r * width, part, width * sizeof(*row));
        for (uint64_t j = width; j < ld; j++) {
            assert_true(part[j] == 9.5f);
        }
    }
}

static void check_parts(struct each *e, size_t i, const float *want_loss, const float *want_grad)
{
    const struct ce_case *c = &ce_cases[i];
    static float row[CE_PADDED_MAX];
    for (int option = 0; option < 2; option++) {
        for (uint64_t step = 1; step <= CE_ROWS; step += CE_ROWS - 1) {
            struct shape s = { CE_ROWS, i, step, option };
            const struct outs *o = each_run(e, ce_parts_run, &s);
            const float *loss = outs_part(o, 0), *grad = outs_part(o, 1);
            for (uint32_t r = 0; r < parts; r++) {
                assert_memory_equal(loss + r * CE_ROWS, want_loss, CE_ROWS * sizeof(*loss));
            }
            for (uint64_t t = 0; option == 1 && t < CE_ROWS; t++) {
                part_row(c, grad, t, row);
                assert_memory_equal(row, want_grad + t * (c->padded + LD_EXTRA), c->padded * sizeof(*row));
            }
        }
    }
}

static void parts_of_the_vocabulary_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    uint32_t divided = 0;
    for (size_t i = 0; i < CE_CASES; i++) {
        const struct ce_case *c = &ce_cases[i];
        ce_inputs(c->vocab);
        for (uint64_t j = 0; j < c->vocab / 2; j++) { /* row 2: a rank may have nothing above -infinity */
            in_logits[2 * CE_PADDED_MAX + j] = j == (uint64_t)targets[2] ? in_logits[j] : -INFINITY;
        }
        struct shape s = { CE_ROWS, i, CE_ROWS, 1 };
        const struct outs *o = each_run(&e, ce_run, &s);
        memcpy(e.whole.bytes, o->bytes, o->used);
        const float *loss = (float *)(void *)(e.whole.bytes + o->part[0]);
        const float *grad = (float *)(void *)(e.whole.bytes + o->part[1]);
        for (parts = 1; parts <= PARTS_MAX; parts *= 2) {
            if (c->segments % parts == 0) {
                check_parts(&e, i, loss, grad);
                divided += parts > 1;
            }
        }
    }
    assert_true(divided > CE_CASES);
    each_close(&e);
}

static void a_bad_logit_in_any_part_makes_the_loss_not_a_number(void **state)
{
    (void)state;
    static struct each e;
    each_open(&e);
    const float bad[] = { NAN, INFINITY, -NAN };
    parts = 4;
    for (size_t b = 0; b < 3; b++) {
        for (uint64_t column = 0; column < 1000; column += 333) {
            ce_inputs(1000);
            in_logits[column] = bad[b];
            struct shape s = { CE_ROWS, 7, CE_ROWS, 0 };
            const float *loss = outs_part(each_run(&e, ce_parts_run, &s), 0);
            for (uint32_t r = 0; r < parts; r++) {
                assert_true(loss[r * CE_ROWS] != loss[r * CE_ROWS] && loss[r * CE_ROWS + 1] == loss[r * CE_ROWS + 1]);
            }
        }
    }
    each_close(&e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cross_entropy_matches_double),
    cmocka_unit_test(cross_entropy_of_bad_logits_is_not_a_number),
    cmocka_unit_test(parts_of_the_vocabulary_give_the_bits_of_the_whole),
    cmocka_unit_test(a_bad_logit_in_any_part_makes_the_loss_not_a_number),
};
TEST_MAIN(tests)
