/* Why this exists: parameter gradients that are sums over rows - norm gains, biases, embeddings - once per instruction
 * set.
 *
 * Order (docs/numerics.md quotes it): for each column and each unit of rows one fp32 chain from +0 over the rows
 * ascending; gain: chain = fma(dy, (x - mean) rstd, chain); bias: chain = chain + dy. At the end of the unit chain
 * scale is rounded to the nearest even integer and added. Of several heads each has its chains. In the embedding
 * gradient each row is a unit: dy scale is rounded and added.
 *
 * Rows are taken eight at a time for each 16 columns, so that memory is read in long stretches of a few rows while
 * the chains wait in a small buffer: storing and loading an fp32 chain changes nothing. */
#include "kern/row_leaf.h"

#define CHUNK 1024u       /* columns whose chains are in the buffers */
#define ROWS_TOGETHER 8u

struct chains {
    float gain[CHUNK], bias[CHUNK];
};

/* grad[l] += integer of v for the first n lanes. */
V16_INLINE uint32_t sink_add(int64_t *grad, struct v16 v, float limit, uint32_t n)
{
    if (n == V16_LANES) {
        return v16_add_fixed(grad, v, limit);
    }
    int64_t part[V16_LANES] = { 0 };
    memcpy(part, grad, n * sizeof(part[0]));
    uint32_t bad = v16_add_fixed(part, v, limit); /* lanes beyond n are 0 */
    memcpy(grad, part, n * sizeof(part[0]));
    return bad;
}

static void report(bool *overflow, uint32_t bad)
{
    if (bad != 0) {
        __atomic_store_n(overflow, true, __ATOMIC_RELAXED);
    }
}

/* Rows [t, t + rows) of 16 columns (n of them real) on to their chains. */
V16_INLINE void chain_rows(const struct column_job *j, float *gain_at, float *bias_at, uint64_t t, uint64_t rows,
                           uint64_t c, uint32_t n, const enum num type)
{
    struct v16 gain = v16_load(gain_at), bias = v16_load(bias_at);
    for (uint64_t r = t; r < t + rows; r++) {
        struct v16 dy = v16_load_part(j->dy + r * j->ldy + c, n);
        bias = v16_add(bias, dy);
        if (j->x != NULL) {
            struct v16 x = v16_load_num(j->x, r * j->ldx + c, n, type);
            x = j->mean != NULL ? v16_sub(x, v16_set1(j->mean[r])) : x;
            gain = v16_fma(dy, v16_mul(x, v16_set1(j->rstd[r * j->heads])), gain);
        }
    }
    v16_store(gain_at, gain);
    v16_store(bias_at, bias);
}

static void sink_chunk(const struct grad_sink *sink, const float *chain, uint64_t begin, uint64_t end)
{
    if (sink == NULL) {
        return;
    }
    struct v16 scale = v16_set1(sink->scale);
    uint32_t bad = 0;
    for (uint64_t c = begin; c < end; c += V16_LANES) {
        uint32_t n = end - c < V16_LANES ? (uint32_t)(end - c) : V16_LANES;
        bad |= sink_add(sink->grad + c, v16_mul(v16_load_part(chain + (c - begin), n), scale), sink->limit, n);
    }
    report(sink->overflow, bad);
}

V16_INLINE void sum_chunk(const struct column_job *j, struct chains *chains, uint64_t begin, uint64_t end,
                          const enum num type)
{
    uint64_t unit = j->gain_sink != NULL ? j->gain_sink->unit : j->bias_sink->unit;
    for (uint64_t first = 0; first < j->rows; first += unit) {
        uint64_t last = j->rows - first < unit ? j->rows : first + unit;
        memset(chains, 0, sizeof(*chains));
        for (uint64_t t = first; t < last; t += ROWS_TOGETHER) {
            uint64_t rows = last - t < ROWS_TOGETHER ? last - t : ROWS_TOGETHER;
            uint64_t c = begin;
            for (; c + V16_LANES <= end; c += V16_LANES) {
                chain_rows(j, chains->gain + (c - begin), chains->bias + (c - begin), t, rows, c, V16_LANES, type);
            }
            if (c < end) {
                chain_rows(j, chains->gain + (c - begin), chains->bias + (c - begin), t, rows, c, (uint32_t)(end - c),
                           type);
            }
        }
        sink_chunk(j->gain_sink, chains->gain, begin, end);
        sink_chunk(j->bias_sink, chains->bias, begin, end);
    }
}

static void sum_columns(const struct column_job *j, uint64_t begin, uint64_t end)
{
    struct chains chains;
    for (uint64_t last; begin < end; begin = last) {
        last = end - begin < CHUNK ? end : begin + CHUNK;
        if (j->x_type == NUM_F32) {
            sum_chunk(j, &chains, begin, last, NUM_F32);
        } else {
            sum_chunk(j, &chains, begin, last, NUM_BF16);
        }
    }
}

void KERN_NAME(row_column_sums)(const void *job, uint64_t begin, uint64_t end)
{
    struct column_job j = *(const struct column_job *)job;
    for (uint64_t h = 0; h < j.heads; h++) {
        sum_columns(&j, begin, end);
        if (h + 1 < j.heads) { /* x and rstd may be NULL where there is one */
            j.x = num_at(j.x, j.x_type, j.head_dim);
            j.rstd++;
            j.dy += j.head_dim;
        }
    }
}

void KERN_NAME(row_embed_grad)(const void *job, uint64_t begin, uint64_t end)
{
    const struct embed_grad *j = job;
    struct v16 scale = v16_set1(j->scale);
    uint32_t bad = 0;
    for (uint64_t t = 0; t < j->rows; t++) {
        uint64_t row = (uint64_t)j->index[t] - j->first; /* below first: wraps to a large number */
        if (row >= j->count) {
            continue;
        }
        for (uint64_t c = begin; c < end; c += V16_LANES) {
            uint32_t n = end - c < V16_LANES ? (uint32_t)(end - c) : V16_LANES;
            struct v16 dy = v16_load_part(j->dy + t * j->ld + c, n);
            bad |= sink_add(j->grad + row * j->ld + c, v16_mul(dy, scale), j->limit, n);
        }
    }
    report(j->overflow, bad);
}
