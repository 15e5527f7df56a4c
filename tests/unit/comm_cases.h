/* One check for each call of comm.h: make operands out of (seed, rank, index), call it, and compare every bit with the
 * plain serial definition. Used one by one, and as the steps of random programs. */
#ifndef TESTS_UNIT_COMM_CASES_H
#define TESTS_UNIT_COMM_CASES_H

#include "base/hash.h"
#include "base/mem.h"
#include "comm/comm.h"

/* What a check may use: `length` is the size it should try; the same on all ranks of c. */
struct comm_case {
    struct comm *c;
    uint64_t seed, length;
};

static inline uint64_t case_bits(const struct comm_case *k, uint32_t rank, uint64_t i)
{
    return hash_mix(hash_mix(k->seed * 64 + rank) + i * 0x9e3779b97f4a7c15u);
}

/* Of very different sizes, so that the order of a sum shows in its bits. */
static inline float case_float(const struct comm_case *k, uint32_t rank, uint64_t i)
{
    uint64_t bits = case_bits(k, rank, i);
    float unit = (float)(int32_t)(uint32_t)bits * 0x1p-31f;
    return unit * (float)(1u << (bits >> 40) % 20);
}

/* Ascending bounds of [0, n) for the group: even, one stretch for all, or random with empty ones. */
static inline void case_bounds(const struct comm_case *k, uint64_t n, uint64_t *bounds)
{
    uint32_t size = comm_size(k->c);
    bounds[0] = 0;
    bounds[size] = n;
    for (uint32_t r = 1; r < size; r++) {
        uint64_t even = n / size * r, any = case_bits(k, 63, r) % (n + 1);
        bounds[r] = k->seed % 3 == 0 ? even : k->seed % 3 == 1 ? (r > size / 2 ? n : 0) : any;
        bounds[r] = bounds[r] < bounds[r - 1] ? bounds[r - 1] : bounds[r];
    }
}

static inline enum err case_differs(const struct comm_case *k, const char *what, uint64_t i)
{
    return FAIL(ERR_RUN, "%s of %llu elements, seed %llu, rank %u of %u: element %llu differs", what,
                (unsigned long long)k->length, (unsigned long long)k->seed, comm_rank(k->c), comm_size(k->c),
                (unsigned long long)i);
}

static inline enum err case_i64(const struct comm_case *k, int64_t **out)
{
    void *mem;
    TRY(mem_alloc(&mem, k->length + 1, sizeof(int64_t)));
    *out = mem;
    for (uint64_t i = 0; i < k->length; i++) {
        (*out)[i] = (int64_t)case_bits(k, comm_rank(k->c), i);
    }
    (*out)[k->length] = 0x5a5a; /* nothing may write behind the end */
    return OK;
}

static inline int64_t case_sum(const struct comm_case *k, uint64_t i)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < comm_size(k->c); r++) {
        sum += case_bits(k, r, i);
    }
    return (int64_t)sum;
}

static inline enum err check_sum(const struct comm_case *k)
{
    int64_t *buf;
    TRY(case_i64(k, &buf));
    enum err err = comm_sum_i64(k->c, buf, k->length);
    for (uint64_t i = 0; i < k->length && err == OK; i++) {
        err = buf[i] == case_sum(k, i) ? OK : case_differs(k, "sum", i);
    }
    err = err != OK || buf[k->length] == 0x5a5a ? err : case_differs(k, "sum", k->length);
    free(buf);
    return err;
}

static inline enum err check_reduce_scatter(const struct comm_case *k)
{
    uint64_t bounds[64];
    int64_t *buf;
    case_bounds(k, k->length, bounds);
    TRY(case_i64(k, &buf));
    enum err err = comm_reduce_scatter_i64(k->c, buf, bounds);
    for (uint64_t i = bounds[comm_rank(k->c)]; i < bounds[comm_rank(k->c) + 1] && err == OK; i++) {
        err = buf[i] == case_sum(k, i) ? OK : case_differs(k, "reduce-scatter", i);
    }
    err = err != OK || buf[k->length] == 0x5a5a ? err : case_differs(k, "reduce-scatter", k->length);
    free(buf);
    return err;
}

static inline enum err check_max(const struct comm_case *k)
{
    void *mem;
    TRY(mem_alloc(&mem, k->length + 1, sizeof(float)));
    float *buf = mem;
    for (uint64_t i = 0; i < k->length; i++) {
        buf[i] = case_float(k, comm_rank(k->c), i);
    }
    enum err err = comm_max_f32(k->c, buf, k->length);
    for (uint64_t i = 0; i < k->length && err == OK; i++) {
        float most = case_float(k, 0, i);
        for (uint32_t r = 1; r < comm_size(k->c); r++) {
            most = case_float(k, r, i) > most ? case_float(k, r, i) : most;
        }
        err = memcmp(&buf[i], &most, sizeof(most)) == 0 ? OK : case_differs(k, "max", i);
    }
    free(buf);
    return err;
}

static inline unsigned char case_byte(const struct comm_case *k, uint32_t rank, uint64_t i)
{
    return (unsigned char)case_bits(k, rank, i);
}

/* Elements of 1 to 12 bytes in unequal stretches. */
static inline enum err check_all_gather(const struct comm_case *k)
{
    uint64_t bounds[64], size = k->seed % 12 + 1, bytes = k->length * size;
    case_bounds(k, k->length, bounds);
    void *mem;
    TRY(mem_alloc(&mem, bytes + 1, 1));
    unsigned char *buf = mem;
    for (uint64_t i = bounds[comm_rank(k->c)] * size; i < bounds[comm_rank(k->c) + 1] * size; i++) {
        buf[i] = case_byte(k, comm_rank(k->c), i);
    }
    enum err err = comm_all_gather(k->c, buf, size, bounds);
    for (uint32_t r = 0; r < comm_size(k->c); r++) {
        for (uint64_t i = bounds[r] * size; i < bounds[r + 1] * size && err == OK; i++) {
            err = buf[i] == case_byte(k, r, i) ? OK : case_differs(k, "all-gather", i);
        }
    }
    err = err != OK || buf[bytes] == 0 ? err : case_differs(k, "all-gather", bytes);
    free(buf);
    return err;
}

static inline enum err check_gather(const struct comm_case *k)
{
    uint64_t n = k->length;
    void *mem;
    TRY(mem_alloc(&mem, n * comm_size(k->c) + n + 1, 1));
    unsigned char *out = mem, *in = k->seed % 2 ? out + comm_rank(k->c) * n : out + comm_size(k->c) * n;
    for (uint64_t i = 0; i < n; i++) {
        in[i] = case_byte(k, comm_rank(k->c), i);
    }
    enum err err = comm_gather(k->c, in, n, out);
    for (uint64_t i = 0; i < n * comm_size(k->c) && err == OK; i++) {
        err = out[i] == case_byte(k, (uint32_t)(i / n), i % n) ? OK : case_differs(k, "gather", i);
    }
    free(out);
    return err;
}

static inline enum err check_bcast(const struct comm_case *k)
{
    uint32_t root = (uint32_t)(case_bits(k, 62, 0) % comm_size(k->c));
    void *mem;
    TRY(mem_alloc(&mem, k->length + 1, 1));
    unsigned char *buf = mem;
    for (uint64_t i = 0; i < k->length && comm_rank(k->c) == root; i++) {
        buf[i] = case_byte(k, root, i);
    }
    enum err err = comm_bcast(k->c, root, buf, k->length);
    for (uint64_t i = 0; i < k->length && err == OK; i++) {
        err = buf[i] == case_byte(k, root, i) ? OK : case_differs(k, "bcast", i);
    }
    err = err != OK || buf[k->length] == 0 ? err : case_differs(k, "bcast", k->length);
    free(buf);
    return err;
}

/* ---- tree sum ---- */

/* The definition, element by element: the sum over ranks [lo, lo + n) of element i. */
static inline float case_tree(const struct comm_case *k, uint32_t lo, uint32_t n, uint64_t i)
{
    return n == 1 ? case_float(k, lo, i) : case_tree(k, lo, n / 2, i) + case_tree(k, lo + n / 2, n / 2, i);
}

struct tree_case {
    uint64_t rows, cols, ldo, lo, hi;
    bool has_bias, has_residual, in_place;
    float *bias, *residual, *out;
};

static inline enum err tree_compare(const struct comm_case *k, const struct tree_case *t)
{
    for (uint64_t i = t->lo; i < t->hi; i++) {
        for (uint64_t j = 0; j < t->ldo; j++) {
            uint64_t at = (i - t->lo) * t->ldo + j;
            float want = case_float(k, 60, at); /* what was there, and is the residual */
            if (j < t->cols) {
                float sum = case_tree(k, 0, comm_size(k->c), i * t->cols + j);
                float biased = t->has_bias ? sum + t->bias[j] : sum;
                want = t->has_residual ? want + biased : biased;
            }
            if (memcmp(&t->out[at], &want, sizeof(want)) != 0) {
                return case_differs(k, "tree sum", i * t->cols + j);
            }
        }
    }
    return OK;
}

static inline enum err tree_run(const struct comm_case *k, struct tree_case *t, float *window, const uint64_t *bounds)
{
    for (uint64_t i = 0; i < t->rows * t->cols; i++) {
        window[i] = case_float(k, comm_rank(k->c), i);
    }
    for (uint64_t i = 0; i < (t->hi - t->lo) * t->ldo; i++) {
        t->out[i] = case_float(k, 60, i);
        t->residual[i] = t->out[i];
    }
    for (uint64_t j = 0; j < t->cols; j++) {
        t->bias[j] = case_float(k, 61, j);
    }
    const struct comm_tree sum = { .rows = t->rows, .cols = t->cols, .bounds = bounds, .ldo = t->ldo, .out = t->out,
                                   .bias = t->has_bias ? t->bias : NULL,
                                   .residual = !t->has_residual ? NULL : t->in_place ? t->out : t->residual };
    TRY(comm_tree_sum(k->c, &sum));
    memset(window, 0xff, t->rows * t->cols * sizeof(float)); /* it is this rank's again */
    return tree_compare(k, t);
}

/* Shapes, absent parts, bounds and places by the bits of the seed. */
static inline enum err check_tree(const struct comm_case *k)
{
    uint64_t bounds[64], bits = case_bits(k, 59, 0);
    struct tree_case t = { .cols = 1 + bits % 3 * 700 + bits % 5, .has_bias = bits >> 8 & 1,
                           .has_residual = bits >> 9 & 1, .in_place = bits >> 10 & 1 };
    t.rows = k->length / t.cols;
    t.ldo = t.cols + (bits >> 11 & 1) * 3;
    case_bounds(k, t.rows, bounds);
    bool divided = bits >> 12 & 1;
    t.lo = divided ? bounds[comm_rank(k->c)] : 0;
    t.hi = divided ? bounds[comm_rank(k->c) + 1] : t.rows;
    void *window, *mem;
    TRY(comm_window(k->c, t.rows * t.cols * sizeof(float), &window));
    uint64_t n = (t.hi - t.lo) * t.ldo;
    TRY(mem_alloc(&mem, 2 * n + t.cols, sizeof(float)));
    t.out = mem;
    t.residual = t.out + n;
    t.bias = t.residual + n;
    enum err err = tree_run(k, &t, window, divided ? bounds : NULL);
    free(mem);
    return err;
}

/* ---- messages ---- */

/* Every rank sends three messages of different length to every other, two of them with one tag, and asks for them in
 * another order. */
static inline enum err check_messages(const struct comm_case *k)
{
    uint32_t size = comm_size(k->c), rank = comm_rank(k->c);
    uint64_t n = k->length;
    const uint64_t lengths[3] = { n, n / 3 + 1, n / 2 };
    const uint32_t tags[3] = { 7, 1, 7 };
    static const int order[3] = { 1, 0, 2 };
    void *mem;
    TRY(mem_alloc(&mem, n + 2, 1));
    unsigned char *buf = mem;
    enum err err = OK;
    for (uint32_t to = 0; to < size && err == OK; to++) {
        for (uint64_t m = 0; m < 3 && to != rank && err == OK; m++) {
            struct comm_ticket ticket;
            for (uint64_t i = 0; i < lengths[m]; i++) {
                buf[i] = case_byte(k, rank, (to * 3 + m) * n + i);
            }
            err = comm_send(k->c, to, tags[m], buf, lengths[m], &ticket);
            err = err != OK ? err : comm_sent(k->c, &ticket);
        }
    }
    for (uint32_t from = 0; from < size && err == OK; from++) {
        for (uint64_t j = 0; j < 3 && from != rank && err == OK; j++) {
            uint64_t m = (uint64_t)order[j];
            err = comm_recv(k->c, from, tags[m], buf, lengths[m]);
            for (uint64_t i = 0; i < lengths[m] && err == OK; i++) {
                err = buf[i] == case_byte(k, from, (rank * 3 + m) * n + i) ? OK : case_differs(k, "message", i);
            }
        }
    }
    free(buf);
    return err;
}

/* The rank and message of the lowest failing rank. Half the seeds: nobody fails. */
static inline enum err check_agree(const struct comm_case *k)
{
    uint64_t fails = k->seed % 2 ? case_bits(k, 58, 0) : 0; /* bit r: rank r */
    bool mine = fails >> comm_rank(k->c) & 1;
    enum err err = comm_agree(k->c, mine ? FAIL(ERR_DATA, "rank %u has a fault", comm_rank(k->c)) : OK);
    for (uint32_t r = 0; r < comm_size(k->c); r++) {
        if (fails >> r & 1) {
            char want[64];
            snprintf(want, sizeof(want), "rank %u has a fault", r);
            bool right = err == ERR_DATA && strstr(err_message(), want) != NULL;
            return right ? OK : FAIL(ERR_RUN, "agree: \"%s\", expected \"%s\"", err_message(), want);
        }
    }
    return err;
}

static inline enum err check_barrier(const struct comm_case *k)
{
    return comm_barrier(k->c);
}

struct comm_check {
    const char *name;
    enum err (*fn)(const struct comm_case *k);
};
static const struct comm_check comm_checks[] = {
    { "barrier", check_barrier },
    { "agree", check_agree },
    { "bcast", check_bcast },
    { "gather", check_gather },
    { "sum", check_sum },
    { "max", check_max },
    { "reduce-scatter", check_reduce_scatter },
    { "all-gather", check_all_gather },
    { "messages", check_messages },
    { "tree sum", check_tree }, /* the last: for sizes that are a power of two */
};
#define COMM_CHECKS (sizeof(comm_checks) / sizeof(comm_checks[0]))

static inline enum err comm_check_run(const struct comm_case *k, uint64_t check)
{
    uint32_t size = comm_size(k->c);
    if (check + 1 == COMM_CHECKS && (size & (size - 1)) != 0) {
        return comm_checks[0].fn(k);
    }
    return comm_checks[check].fn(k);
}

#endif
