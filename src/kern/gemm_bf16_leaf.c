/* Why this exists: products of bf16 numbers take operands of either type and must pack them about as fast as fp32
 * products copy theirs; and results may be stored as bf16.
 *
 * Design: a small block of the operand becomes cells (gemm_leaf.h) that lie as the operand does, in the first-level
 * cache: rounded, widened or paired there. The packing of fp32 products then moves these 4-byte cells into panels; it
 * never looks at their bits.
 *
 * Invariant: nothing outside the elements asked for is read. */
#include "kern/gemm_leaf.h"
#include "kern/simd_pairs.h"

/* Blocks of whole panels. Contiguous rows of a panel: long stretches of a few rows of cells; contiguous k: the rows of
 * some panels, or of one wide one. */
#define STAGE_CELLS 4096u
#define ACROSS_COUNT 256u
#define ACROSS_DEPTH 16u
#define ALONG_COUNT 48u
#define ALONG_DEPTH 64u
#define LINE_BYTES 64u

_Static_assert(ALONG_COUNT >= GEMM_NR_MAX && ALONG_COUNT * ALONG_DEPTH <= STAGE_CELLS, "a panel fits");
_Static_assert(ACROSS_COUNT >= GEMM_NR_MAX && ACROSS_COUNT * ACROSS_DEPTH <= STAGE_CELLS, "a panel fits");
_Static_assert(ALONG_DEPTH % V16_LANES == 0 && ACROSS_COUNT % V16_LANES == 0, "cells are stored sixteen at a time");

static inline uint32_t lanes_of(uint64_t left)
{
    return left < V16_LANES ? (uint32_t)left : V16_LANES;
}

/* The first n of sixteen elements; the others are 0. */
static inline struct v16 load_some(const void *p, enum num type, uint32_t n)
{
    if (type == NUM_BF16) {
        return n == V16_LANES ? v16_load_bf16(p) : v16_load_bf16_n(p, n);
    }
    return n == V16_LANES ? v16_load(p) : v16_load_n(p, n);
}

#if GEMM_PAIRS
#define K_STEP 2u

/* Elements [i, i + count) of the `k` (1 or 2) rows from k0 on; `pad` is a row that is missing. */
static void stage_across(const struct gemm_mat *m, uint64_t i, uint64_t count, uint64_t k0, uint64_t k, float pad,
                         float *cells)
{
    const void *row = num_at(m->p, m->type, k0 * m->ld + i);
    for (uint64_t x = 0; x < count; x += V16_LANES) {
        uint32_t n = lanes_of(count - x);
        struct v16 upper = load_some(num_at(row, m->type, x), m->type, n), lower = v16_set1(pad);
        lower = k > 1 ? load_some(num_at(row, m->type, m->ld + x), m->type, n) : lower;
        v16_store(cells + x, v16_pair(upper, lower));
    }
}

/* Row i, elements [k0, k0 + k); `pad` beside the last one where it is alone. */
static void stage_along(const struct gemm_mat *m, uint64_t i, uint64_t k0, uint64_t k, float pad, float *cells)
{
    const void *row = num_at(m->p, m->type, i * m->ld + k0);
    for (uint64_t x = 0; x < k; x += 2 * V16_LANES) {
        uint32_t n = lanes_of(k - x), more = k - x > V16_LANES ? lanes_of(k - x - V16_LANES) : 0;
        struct v16 first = load_some(num_at(row, m->type, x), m->type, n), second = v16_zero();
        second = more > 0 ? load_some(num_at(row, m->type, x + V16_LANES), m->type, more) : second;
        v16_store_pairs(cells + x / 2, first);
        v16_store_pairs(cells + x / 2 + V16_LANES / 2, second);
    }
    if (k % 2 != 0) {
        uint32_t cell, beside;
        memcpy(&cell, &cells[k / 2], sizeof(cell));
        memcpy(&beside, &pad, sizeof(beside));
        cell |= beside >> 16;
        memcpy(&cells[k / 2], &cell, sizeof(cell));
    }
}

#else
#define K_STEP 1u

static inline void stage_row(const void *row, enum num type, uint64_t count, float *cells)
{
    for (uint64_t x = 0; x < count; x += V16_LANES) {
        struct v16 v = load_some(num_at(row, type, x), type, lanes_of(count - x));
        v16_store(cells + x, type == NUM_BF16 ? v : v16_round_bf16(v));
    }
}

static void stage_across(const struct gemm_mat *m, uint64_t i, uint64_t count, uint64_t k0, uint64_t k, float pad,
                         float *cells)
{
    (void)k, (void)pad; /* a row of cells is one row of elements */
    stage_row(num_at(m->p, m->type, k0 * m->ld + i), m->type, count, cells);
}

static void stage_along(const struct gemm_mat *m, uint64_t i, uint64_t k0, uint64_t k, float pad, float *cells)
{
    (void)pad;
    stage_row(num_at(m->p, m->type, i * m->ld + k0), m->type, k, cells);
}

#endif

/* Elements [first, first + count) of `row` will be read soon. */
static inline void fetch(const struct gemm_mat *m, uint64_t row, uint64_t first, uint64_t count)
{
    const char *p = num_at(m->p, m->type, row * m->ld + first);
    for (uint64_t x = 0; x < count * num_bytes(m->type); x += LINE_BYTES) {
        v16_prefetch((const float *)(const void *)(p + x));
    }
}

struct stage {
    void (*pack)(const struct gemm_pack *p); /* of fp32 products */
    uint64_t width;
    float pad; /* the half of a last pair that is missing */
};

/* Elements [i, i + count) x [k, k + depth) of the range become cells, and these go to their panels. */
static void pack_block(const struct stage *s, const struct gemm_pack *p, uint64_t i, uint64_t count, uint64_t k,
                       uint64_t depth)
{
    _Alignas(LINE_BYTES) float cells[STAGE_CELLS];
    const struct gemm_mat *m = p->mat;
    const uint64_t left = p->k - k - depth, next = left < depth ? left : depth; /* of the block that follows */
    const uint64_t i0 = p->i0 + i, k0 = p->k0 + k;
    if (m->trans) {
        for (uint64_t x = 0; x < depth; x += K_STEP) {
            for (uint64_t row = x; row < x + K_STEP && row < next; row++) {
                fetch(m, k0 + depth + row, i0, count);
            }
            stage_across(m, i0, count, k0 + x, depth - x, s->pad, cells + x / K_STEP * ACROSS_COUNT);
        }
    } else {
        for (uint64_t x = 0; x < count; x++) {
            fetch(m, i0 + x, k0 + depth, next);
            stage_along(m, i0 + x, k0, depth, s->pad, cells + x * ALONG_DEPTH);
        }
    }
    struct gemm_mat staged = { cells, m->trans ? ACROSS_COUNT : ALONG_DEPTH, m->trans, NUM_F32 };
    s->pack(&(struct gemm_pack){ .mat = &staged,
                                 .count = count,
                                 .k = (depth + K_STEP - 1) / K_STEP,
                                 .dst = p->dst + i / s->width * p->panel_stride + k / K_STEP * s->width,
                                 .panel_stride = p->panel_stride });
}

static void pack(const struct stage *s, const struct gemm_pack *p)
{
    const uint64_t count = (p->mat->trans ? ACROSS_COUNT : ALONG_COUNT) / s->width * s->width;
    const uint64_t depth = (p->mat->trans ? ACROSS_DEPTH : ALONG_DEPTH) * K_STEP;
    for (uint64_t i = 0; i < p->count; i += count) {
        for (uint64_t k = 0; k < p->k; k += depth) {
            pack_block(s, p, i, p->count - i < count ? p->count - i : count, k, p->k - k < depth ? p->k - k : depth);
        }
    }
}

void KERN_NAME(gemm_pack_bf16_a)(const struct gemm_pack *p)
{
    const struct gemm_leaves *leaf = &KERN_NAME(gemm_leaves);
    pack(&(struct stage){ leaf->f32.pack_a, leaf->mr, -0.0f }, p);
}

void KERN_NAME(gemm_pack_bf16_b)(const struct gemm_pack *p)
{
    const struct gemm_leaves *leaf = &KERN_NAME(gemm_leaves);
    pack(&(struct stage){ leaf->f32.pack_b, leaf->nr, 0.0f }, p);
}

void KERN_NAME(gemm_store_bf16)(const float *tile, const struct gemm_job *job, uint64_t i, uint64_t j, uint32_t rows,
                                uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++, tile += KERN_NAME(gemm_leaves).nr) {
        uint16_t *c = num_at_mut(job->c, NUM_BF16, (i + r) * job->ldc + j);
        for (uint32_t x = 0; x < cols; x += V16_LANES) {
            uint32_t n = lanes_of(cols - x);
            struct v16 v = load_some(tile + x, NUM_F32, n);
            v = job->bias != NULL ? v16_add(v, load_some(job->bias + j + x, NUM_F32, n)) : v;
            if (n == V16_LANES) {
                v16_store_bf16(c + x, v);
            } else {
                v16_store_bf16_n(c + x, v, n);
            }
        }
    }
}
