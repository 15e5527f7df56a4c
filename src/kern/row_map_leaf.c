/* Why this exists: what is done to each element or pair by itself - activations, rotary embedding, embedding look-up
 * - once per instruction set.
 *
 * Definitions (docs/numerics.md quotes them), all fp32; exp, erf and tanh are those of kern/vmath.h; where an array is
 * bf16 its numbers are widened first and rounded once, last:
 *   GELU     0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3); with q = x x:
 *            y = x / (1 + exp(-(x fma(q, K3, K1)))),  K1 = 2 sqrt(2/pi), K3 = 0.044715 K1
 *            backward: s = 1 / (1 + exp(..)), w = fma(min(q, 10^6), 3 K3, K1), dx = dy fma(x w, fma(-s, s, s), s)
 *            (the minimum only keeps w finite where s is exactly 0 or 1)
 *   SwiGLU   s = 1 / (1 + exp(-gate)), a = gate s, y = a up
 *            backward: d_up = dy a;  d_gate = (dy up) fma(gate, fma(-s, s, s), s);  y = a up
 *   GELU, exact form  h = 0.5 x, e = erf(x S), S = 1 / sqrt(2); y = fma(h, e, h)
 *            backward: f = exp(-(h x)) N, N = 1 / sqrt(2 pi);  dx = dy fma(x, f, fma(0.5, e, 0.5))
 *   GeGLU    s = 1 / (1 + exp(..)) of GELU, a = gate s, y = a up
 *            backward: d_up = dy a;  d_gate = (dy up) slope, slope as in the backward pass of GELU;  y = a up
 *   soft cap r = 1 / cap;  y = cap tanh(x r);  backward: z = y r, dy = dy fma(-z, z, 1)
 *   rotary   low = fma(low, cos, -(high sin)), high = fma(high, cos, low sin); inverse: sin with the other sign
 *   look-up  y = (table + (+0)) + position; a table row that lies elsewhere is +0 */
#include "kern/row_leaf.h"

#include "kern/vmath.h"

#define GELU_K1 1.5957691216057308f
#define GELU_K3 0.0713548162726009f
#define ROOT_HALF 0.70710678118654752f
#define NORMAL_PEAK 0.39894228040143268f /* 1 / sqrt(2 pi) */

/* ---- activations ---- */

/* 1 + e^-2u for GELU; *square = x x. */
V16_INLINE struct v16 gelu_denominator(struct v16 x, struct v16 *square)
{
    *square = v16_mul(x, x);
    struct v16 z = v16_mul(x, v16_fma(*square, v16_set1(GELU_K3), v16_set1(GELU_K1)));
    return v16_add(v16_set1(1.0f), v16_exp(v16_neg(z)));
}

V16_INLINE void gelu_forward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    struct v16 x = v16_load_num(j->x, i, n, type), square;
    struct v16 denominator = gelu_denominator(x, &square);
    v16_store_part(j->y + i, v16_div(x, denominator), n);
}

/* The derivative of GELU; *part = s: GELU is x s. */
V16_INLINE struct v16 gelu_slope(struct v16 x, struct v16 *part)
{
    struct v16 square, s = v16_div(v16_set1(1.0f), gelu_denominator(x, &square));
    struct v16 w = v16_fma(v16_min(square, v16_set1(1e6f)), v16_set1(3.0f * GELU_K3), v16_set1(GELU_K1));
    *part = s;
    return v16_fma(v16_mul(x, w), v16_fnma(s, s, s), s);
}

V16_INLINE void gelu_backward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    struct v16 s, slope = gelu_slope(v16_load_num(j->x, i, n, type), &s);
    v16_store_part(j->dx + i, v16_mul(v16_load_part(j->dy + i, n), slope), n);
}

V16_INLINE void gelu_erf_forward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    struct v16 x = v16_load_num(j->x, i, n, type), half = v16_mul(x, v16_set1(0.5f));
    struct v16 e = v16_erf(v16_mul(x, v16_set1(ROOT_HALF)));
    v16_store_part(j->y + i, v16_fma(half, e, half), n);
}

V16_INLINE void gelu_erf_backward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    const struct v16 half = v16_set1(0.5f);
    struct v16 x = v16_load_num(j->x, i, n, type);
    struct v16 density = v16_exp_low(v16_neg(v16_mul(v16_mul(x, half), x)));
    density = v16_mul(density, v16_set1(NORMAL_PEAK));
    struct v16 below = v16_fma(half, v16_erf(v16_mul(x, v16_set1(ROOT_HALF))), half);
    v16_store_part(j->dx + i, v16_mul(v16_load_part(j->dy + i, n), v16_fma(x, density, below)), n);
}

V16_INLINE void geglu_forward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    struct v16 gate = v16_load_num(j->x, i, n, type), square;
    struct v16 a = v16_mul(gate, v16_div(v16_set1(1.0f), gelu_denominator(gate, &square)));
    v16_store_part(j->y + i, v16_mul(a, v16_load_num(j->up, i, n, type)), n);
}

V16_INLINE void swiglu_forward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    struct v16 gate = v16_load_num(j->x, i, n, type);
    struct v16 a = v16_mul(gate, v16_sigmoid(gate));
    v16_store_part(j->y + i, v16_mul(a, v16_load_num(j->up, i, n, type)), n);
}

/* Of the gate's activation gate s with its slope. Reads everything before it writes: the outputs may be the inputs. */
V16_INLINE void gated_backward(const struct map_job *j, uint64_t i, uint32_t n, struct v16 s, struct v16 slope,
                               const enum num type)
{
    struct v16 gate = v16_load_num(j->x, i, n, type), up = v16_load_num(j->up, i, n, type);
    struct v16 dy = v16_load_part(j->dy + i, n), a = v16_mul(gate, s);
    v16_store_part(j->d_up + i, v16_mul(dy, a), n);
    v16_store_part(j->dx + i, v16_mul(v16_mul(dy, up), slope), n);
    if (j->y != NULL) {
        v16_store_part(j->y + i, v16_mul(a, up), n);
    }
}

V16_INLINE void swiglu_backward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    struct v16 gate = v16_load_num(j->x, i, n, type), s = v16_sigmoid(gate);
    gated_backward(j, i, n, s, v16_fma(gate, v16_fnma(s, s, s), s), type);
}

V16_INLINE void geglu_backward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    struct v16 s, slope = gelu_slope(v16_load_num(j->x, i, n, type), &s);
    gated_backward(j, i, n, s, slope, type);
}

V16_INLINE void softcap_forward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    struct v16 x = v16_mul(v16_load_num(j->x, i, n, type), v16_set1(1.0f / j->factor));
    v16_store_part(j->y + i, v16_mul(v16_set1(j->factor), v16_tanh(x)), n);
}

V16_INLINE void softcap_backward(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    struct v16 z = v16_mul(v16_load_num(j->x, i, n, type), v16_set1(1.0f / j->factor));
    struct v16 slope = v16_fnma(z, z, v16_set1(1.0f));
    v16_store_part(j->dx + i, v16_mul(v16_load_part(j->dy + i, n), slope), n);
}

V16_INLINE void scale(const struct map_job *j, uint64_t i, uint32_t n, const enum num type)
{
    v16_store_part(j->y + i, v16_mul(v16_load_num(j->x, i, n, type), v16_set1(j->factor)), n);
}

/* A leaf that applies `element` to 16 elements at a time and to the rest. */
#define MAP_ALL(element)                                                                           \
    V16_INLINE void element##_all(const struct map_job *j, uint64_t begin, uint64_t end, const enum num type) \
    {                                                                                              \
        for (; begin + V16_LANES <= end; begin += V16_LANES) {                                     \
            element(j, begin, V16_LANES, type);                                                    \
        }                                                                                          \
        if (begin < end) {                                                                         \
            element(j, begin, (uint32_t)(end - begin), type);                                      \
        }                                                                                          \
    }
#define MAP_LEAF(element)                                                                          \
    MAP_ALL(element)                                                                               \
    void KERN_NAME(row_##element)(const void *job, uint64_t begin, uint64_t end)                   \
    {                                                                                              \
        const struct map_job *j = job;                                                             \
        if (j->type == NUM_F32) {                                                                  \
            element##_all(j, begin, end, NUM_F32);                                                 \
        } else {                                                                                   \
            element##_all(j, begin, end, NUM_BF16);                                                \
        }                                                                                          \
    }

/* The same of fp32 numbers only. */
#define MAP_LEAF_F32(element)                                                                      \
    MAP_ALL(element)                                                                               \
    void KERN_NAME(row_##element)(const void *job, uint64_t begin, uint64_t end)                   \
    {                                                                                              \
        element##_all(job, begin, end, NUM_F32);                                                   \
    }

MAP_LEAF(gelu_forward)
MAP_LEAF(gelu_backward)
MAP_LEAF(swiglu_forward)
MAP_LEAF(swiglu_backward)
MAP_LEAF(gelu_erf_forward)
MAP_LEAF(gelu_erf_backward)
MAP_LEAF(geglu_forward)
MAP_LEAF(geglu_backward)
MAP_LEAF_F32(softcap_forward)
MAP_LEAF_F32(softcap_backward)
MAP_LEAF_F32(scale)

/* ---- rotary embedding ---- */

V16_INLINE void rotate(void *low_at, void *high_at, const float *cosine, const float *sine, bool inverse, uint32_t n,
                       const enum num type)
{
    struct v16 low = v16_load_num(low_at, 0, n, type), high = v16_load_num(high_at, 0, n, type);
    struct v16 c = v16_load_part(cosine, n), s = v16_load_part(sine, n);
    s = inverse ? v16_neg(s) : s;
    v16_store_num(low_at, 0, v16_fma(low, c, v16_neg(v16_mul(high, s))), n, type);
    v16_store_num(high_at, 0, v16_fma(high, c, v16_mul(low, s)), n, type);
}

V16_INLINE void rotate_row(const struct rope_job *j, uint64_t t, const enum num type)
{
    const struct rope *rope = j->rope;
    const bool inverse = rope->inverse;
    uint64_t half = rope->rotary / 2, heads = rope->heads, position = rope->first + t % rope->period;
    const float *cosine = rope->cos_table + position * half, *sine = rope->sin_table + position * half;
    for (uint64_t h = 0; h < heads; h++) {
        void *low = num_at_mut(j->x, type, t * j->ld + h * rope->head_dim), *high = num_at_mut(low, type, half);
        uint64_t d = 0;
        for (; d + V16_LANES <= half; d += V16_LANES) {
            rotate(num_at_mut(low, type, d), num_at_mut(high, type, d), cosine + d, sine + d, inverse, V16_LANES, type);
        }
        if (d < half) {
            rotate(num_at_mut(low, type, d), num_at_mut(high, type, d), cosine + d, sine + d, inverse,
                   (uint32_t)(half - d), type);
        }
    }
}

void KERN_NAME(row_rope)(const void *job, uint64_t begin, uint64_t end)
{
    const struct rope_job *j = job;
    for (uint64_t t = begin; t < end; t++) {
        if (j->type == NUM_F32) {
            rotate_row(j, t, NUM_F32);
        } else {
            rotate_row(j, t, NUM_BF16);
        }
    }
}

/* ---- embedding ---- */

/* NULL: the row lies elsewhere. An index below `first` wraps to a large number. */
static const float *looked_up(const struct lookup *l, uint64_t t, uint64_t cols)
{
    uint64_t row = (uint64_t)l->index[t] - l->first;
    return row < l->count ? l->table + row * cols : NULL;
}

void KERN_NAME(row_embed_forward)(const void *job, uint64_t begin, uint64_t end)
{
    const struct embed_job *j = job;
    for (uint64_t t = begin; t < end; t++) {
        const float *row = looked_up(j->token, t, j->cols);
        const float *position = j->position != NULL ? looked_up(j->position, t, j->cols) : NULL;
        float *y = j->y + t * j->cols;
        for (uint64_t c = 0; c < j->cols; c += V16_LANES) {
            uint32_t n = j->cols - c < V16_LANES ? (uint32_t)(j->cols - c) : V16_LANES;
            struct v16 v = row != NULL ? v16_load_part(row + c, n) : v16_zero();
            v = v16_add(v, v16_zero());
            v = position != NULL ? v16_add(v, v16_load_part(position + c, n)) : v;
            v16_store_part(y + c, v, n);
        }
    }
}
