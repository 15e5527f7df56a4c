/* Arithmetic on plain arrays: the whole surface of kern/. Everything that touches an element of a tensor is behind
 * one of these functions.
 *
 * Shape letters: T tokens (rows), C hidden size, F feed-forward width, V vocabulary (padded), H query heads, G
 * key/value heads, D head size. Matrices are row-major; `ld` is the distance between rows in elements. All
 * pointers must be 4-byte aligned at least (big buffers come from arenas and are aligned to 64); no function keeps
 * a pointer. Results are the same bits for every instruction set, thread count and split of T unless the comment
 * says otherwise; the order of each sum is in the comment and in docs/numerics.md. Nothing here allocates after
 * kern_new. Not collective. */
#ifndef KERN_KERN_H
#define KERN_KERN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/fixed.h"
#include "base/pool.h"

/* The slowest first. */
enum isa { ISA_SCALAR, ISA_VECTOR, ISA_AVX2, ISA_AVX512, ISA_AVX512BF16, ISA_COUNT };

/* How the elements of an array are stored. bf16 is the upper half of an fp32 number: reading is exact, writing rounds
 * to nearest even, and what is denormal is zero (docs/numerics.md 14). Arithmetic between is fp32 throughout. */
enum num { NUM_F32, NUM_BF16 };
static inline uint64_t num_bytes(enum num type)
{
    return type == NUM_BF16 ? 2 : 4;
}
/* Element i of an array. */
static inline const void *num_at(const void *p, enum num type, uint64_t i)
{
    return (const char *)p + i * num_bytes(type);
}
static inline void *num_at_mut(void *p, enum num type, uint64_t i)
{
    return (char *)p + i * num_bytes(type);
}

struct kern; /* one table of leaf kernels, the pool that divides outputs, and packing buffers */

/* The best instruction set of this CPU, or the one named by INVAR_ISA (scalar, vector, avx2, avx512, avx512bf16).
 * ERR_USAGE for an unknown name or one the CPU lacks. */
MUST_USE enum err kern_choose_isa(enum isa *out);
bool kern_isa_supported(enum isa isa);
const char *kern_isa_name(enum isa isa);
/* `pool` must outlive the result. */
MUST_USE enum err kern_new(struct kern **out, enum isa isa, struct pool *pool);
struct pool *kern_pool(const struct kern *k);
void kern_free(struct kern *k);
enum isa kern_isa(const struct kern *k);
/* Bytes of packing buffers kern_new allocates for `threads` threads: part of the memory plan. */
uint64_t kern_workspace_bytes(uint32_t threads);
/* GFLOP/s of independent fp32 fused multiply-adds, all threads, best of a few runs of some milliseconds. */
double kern_peak_gflops(struct kern *k);
/* The same of multiply-adds of bf16 numbers: of the CPU's instruction for pairs where the set has it (avx512bf16), else
 * that of fp32, through which widened numbers go. */
double kern_peak_bf16_gflops(struct kern *k);

/* ---- matrix products ---- */

/* Element (i, k) of an operand: trans ? p[k * ld + i] : p[i * ld + k]. For the left operand i is a row of C, for
 * the right one i is a column of C: C[i][j] = sum over k of a(i, k) b(j, k). */
struct gemm_mat {
    const void *p;
    uint64_t ld;
    bool trans;
    enum num type;
};

/* A stretch of the summed dimension with its own operand pointers. Pieces are chained in order (fp32 accumulator
 * from +0, fused multiply-add, k ascending); `ends_segment` closes a segment. The segments' sums - their number is
 * a power of two - are combined by the balanced tree ((0+1)+(2+3))+... left + right. The last piece must end a
 * segment. */
struct gemm_piece {
    struct gemm_mat a, b;
    uint64_t k;
    bool ends_segment;
};

#define GEMM_PIECES_MAX 32u

struct rope; /* below, with the functions for rows */

/* What is done to whole rows of C once they are finished, while they are in the cache: y = gelu(c) of either form, y =
 * silu(gate) c or gelu(gate) c, the rotation of c in place, or y = norm of c. The bits are those of the function for
 * rows (below), called on all of C after the product; arguments are as there. Other rows are still being computed then:
 * y, mean and rstd may not overlap anything else of the job. */
enum gemm_then_kind {
    GEMM_THEN_GELU,
    GEMM_THEN_GELU_ERF,
    GEMM_THEN_SWIGLU,
    GEMM_THEN_GEGLU,
    GEMM_THEN_ROPE,
    GEMM_THEN_LAYERNORM,
    GEMM_THEN_RMSNORM,
};
struct gemm_then {
    enum gemm_then_kind kind;
    void *y;                  /* [m][n], all but ROPE; C is [m][n] without gaps, too */
    enum num y_type;          /* fp32 for activations */
    const void *gate;         /* SWIGLU and GEGLU: [m][n], of C's type */
    const struct rope *rope;  /* ROPE: the first heads * head_dim columns of C */
    const float *gain, *bias; /* norms, of an fp32 C; bias and mean only of LAYERNORM */
    float offset;             /* RMSNORM */
    float eps;
    float *mean, *rstd; /* [m] */
};

/* What happens to a finished element v = tree sum, in this order. */
struct gemm_job {
    uint64_t m, n;
    const struct gemm_piece *pieces;
    uint32_t pieces_count;
    /* A product of bf16 numbers: elements of fp32 operands are rounded to bf16 first, those of bf16 operands are taken
     * as they are; without it both operands must be fp32. The chain is the same: fma(a[k], b[k], acc) in fp32. */
    bool bf16;
    /* Result: c[i * ldc + j] = residual + (v + bias) with absent parts left out. */
    void *c;
    enum num c_type; /* NUM_BF16: rounded once, at the end; residual must then be NULL */
    uint64_t ldc;
    const float *bias;     /* [n] or NULL */
    const float *residual; /* m x n, ldr; may be c itself; or NULL */
    uint64_t ldr;
    const struct gemm_then *then; /* on rows of the result; or NULL */
    /* Gradient result (when grad is not NULL; c, bias, residual, then must be NULL, all segments one): the summed
     * dimension is cut every `unit` elements from its start; each unit's chain v starts at +0 and is added as an
     * integer: grad[i * ldg + j] += round_to_nearest_even(v * grad_scale). |v * grad_scale| >= grad_limit or NaN
     * sets *overflow. */
    int64_t *grad;
    uint64_t ldg;
    uint64_t unit;
    float grad_scale; /* a power of two */
    float grad_limit; /* at most FIXED_UNIT_LIMIT */
    bool *overflow;   /* sticky; set from any thread */
};

void kern_gemm(struct kern *k, const struct gemm_job *job);

/* ---- attention ---- */

/* Causal attention of one sequence: T tokens, H query heads in groups of H / G sharing one of G key/value heads.
 * q[t * ldq + h * D + d], k and v[t * ldk + g * D + d], o[t * ldo + h * D + d]; lse[h * T + t] (log of the softmax sum
 * plus maximum; saved for backward). Scores are scaled by `scale`. Key blocks of 64 from position 0 ascending with an
 * online softmax; row sums in 16 lanes. D is a multiple of 8, at most 256.
 * window: query t sees keys t - window + 1 .. t only, and blocks of keys that nobody sees are skipped; 0, or as long as
 * the sequence: no window. cap: a scaled score s becomes cap tanh(s / cap) before the mask; 0: it does not.
 * For generation: `first` is the position of the first of the `rows` query rows given (q, o start at that row; k, v at
 * position 0). Bits of a row do not depend on first and rows: rows = 1 with a cache equals the full forward. */
struct attention {
    uint64_t heads, kv_heads, head_dim;
    uint64_t first, rows; /* query rows [first, first + rows); keys [0, first + rows) */
    float scale;
    uint64_t window;
    float cap;
    enum num type; /* of q, k, v and o */
    const void *q, *k, *v;
    uint64_t ldq, ldk; /* ldk for k and v */
    void *o;
    uint64_t ldo;
    float *lse; /* [heads][rows] or NULL */
};
void kern_attention_forward(struct kern *k, const struct attention *a);

/* Gradients with respect to q, k, v (overwritten) of a full forward (first == 0, lse given, at most 2^22 rows). dq
 * sums over keys ascending; dk and dv over (query head of the group ascending, query ascending). d_o has ldo, dq
 * has ldq, dk and dv have ldk; none may overlap an input. row_dot: scratch [heads][rows] (the sum of d_o * o, 16
 * lanes). */
struct attention_grad {
    const float *d_o;
    float *dq, *dk, *dv;
    float *row_dot;
};
void kern_attention_backward(struct kern *k, const struct attention *a, const struct attention_grad *g);

/* Parts of the backward pass, for ranks that share a sequence. `a` describes the whole sequence (first == 0, rows = T,
 * q, k, v, lse of all positions); g->d_o is of all positions, g->row_dot [heads][T] is given. dq is computed for query
 * rows [q_lo, q_hi) of every head, dk and dv for key rows [k_lo, k_hi), written at their positions in g->dq, dk, dv;
 * nothing else is written. a->o is not read. Bits as of kern_attention_backward. */
struct attention_part {
    uint64_t q_lo, q_hi, k_lo, k_hi;
};
void kern_attention_backward_part(struct kern *k, const struct attention *a, const struct attention_grad *g,
                                  const struct attention_part *part);
/* row_dot[h * rows + t] of a->rows rows: the sum of d_o * o in 16 lanes; a->o, heads, head_dim, ldo, rows are used. */
void kern_attention_row_dot(struct kern *k, const struct attention *a, const float *d_o, float *row_dot);

/* ---- rows: norms, activations, rotary embedding ---- */

/* y = (x - mean) * rstd * gain + bias. mean and rstd [T] are saved. Row sums: 16 lanes, tree. */
void kern_layernorm_forward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain,
                            const float *bias, float eps, void *y, enum num y_type, float *mean, float *rstd);
/* dx += gradient of x (dx holds the residual stream's gradient on entry). */
void kern_layernorm_backward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain,
                             const float *mean, const float *rstd, const float *dy, float *dx);
/* y = x * rstd * (offset + gain), rstd = 1 / sqrt(mean of squares + eps). offset is 0 (nothing is added) or what a
 * stored gain of 0 means, 1 in Gemma; the gain's gradient (kern_norm_grad) does not know of it. */
void kern_rmsnorm_forward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain, float offset,
                          float eps, void *y, enum num y_type, float *rstd);
void kern_rmsnorm_backward(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *gain,
                           float offset, const float *rstd, const float *dy, float *dx);

/* RMS norm of each head: y[t * ldy + h * D + d] = x[t * ldx + h * D + d] * rstd[t * H + h] * (offset + gain[d]), rstd =
 * 1 / sqrt(mean of the squares of the head's D numbers + eps), offset as above. D is a multiple of 8 of any size (one
 * head may be the whole row). y may be x. */
void kern_headnorm_forward(struct kern *k, uint64_t rows, uint64_t heads, uint64_t head_dim, const void *x,
                           enum num x_type, uint64_t ldx, const float *gain, float offset, float eps, void *y,
                           enum num y_type, uint64_t ldy, float *rstd);
/* dx = gradient of x, overwritten; it may be dy. */
void kern_headnorm_backward(struct kern *k, uint64_t rows, uint64_t heads, uint64_t head_dim, const void *x,
                            enum num x_type, uint64_t ldx, const float *gain, float offset, const float *rstd,
                            const float *dy, uint64_t ldy, float *dx, uint64_t lddx);

/* Gradients summed over the rows of each unit in ascending order (one fp32 chain per column and unit, from +0),
 * converted and added like gemm_job.grad. rows is a multiple of the unit, except that the last unit may be
 * shorter. */
struct grad_sink {
    int64_t *grad; /* [cols] */
    uint64_t unit; /* rows of one unit */
    float scale;   /* a power of two */
    float limit;   /* at most FIXED_UNIT_LIMIT */
    bool *overflow;
};
/* gain gradient: sum of dy * (x - mean) * rstd (mean NULL: 0). bias gradient when bias_sink is not NULL: sum of dy. x
 * and dy are [rows][ld], of which `cols` columns are used: a slice of the columns has the bits of the whole. */
void kern_norm_grad(struct kern *k, uint64_t rows, uint64_t cols, uint64_t ld, const float *x, const float *mean,
                    const float *rstd, const float *dy, const struct grad_sink *gain_sink,
                    const struct grad_sink *bias_sink);
/* gain gradient of kern_headnorm_forward, [head_dim]: each head adds one sum for each unit, of dy * x * rstd over its
 * rows, so that heads may be divided over ranks. */
void kern_headnorm_grad(struct kern *k, uint64_t rows, uint64_t heads, uint64_t head_dim, const void *x,
                        enum num x_type, uint64_t ldx, const float *rstd, const float *dy, uint64_t ldy,
                        const struct grad_sink *sink);
/* bias gradient of a linear layer: sum of dy over rows. */
void kern_bias_grad(struct kern *k, uint64_t rows, uint64_t cols, const float *dy, uint64_t ldy,
                    const struct grad_sink *sink);

/* GELU, tanh form (GPT-2's gelu_new), elementwise over n. */
void kern_gelu_forward(struct kern *k, uint64_t n, const void *x, enum num x_type, float *y);
/* dx = dy * gelu'(x); dx may be dy. */
void kern_gelu_backward(struct kern *k, uint64_t n, const void *x, enum num x_type, const float *dy, float *dx);
/* GELU, exact form: x times the normal distribution function, by erf. */
void kern_gelu_erf_forward(struct kern *k, uint64_t n, const void *x, enum num x_type, float *y);
void kern_gelu_erf_backward(struct kern *k, uint64_t n, const void *x, enum num x_type, const float *dy, float *dx);
/* y = silu(gate) * up. */
void kern_swiglu_forward(struct kern *k, uint64_t n, const void *gate, const void *up, enum num type, float *y);
/* d_gate and d_up are overwritten; where the type is fp32, d_gate may be gate and d_up may be up; y (recomputed
 * output, may be dy's own memory or NULL) is written last when not NULL, so that the down projection's weight
 * gradient can use it. */
void kern_swiglu_backward(struct kern *k, uint64_t n, const void *gate, const void *up, enum num type, const float *dy,
                          float *d_gate, float *d_up, float *y);

/* y = gelu(gate) * up, tanh form; the arguments of the backward pass are those of SwiGLU. */
void kern_geglu_forward(struct kern *k, uint64_t n, const void *gate, const void *up, enum num type, float *y);
void kern_geglu_backward(struct kern *k, uint64_t n, const void *gate, const void *up, enum num type, const float *dy,
                         float *d_gate, float *d_up, float *y);

/* x = cap * tanh(x / cap) in place, and dy = dy * (1 - (y / cap)^2) in place, y being the capped numbers. cap > 0. */
void kern_softcap_forward(struct kern *k, uint64_t n, float cap, float *x);
void kern_softcap_backward(struct kern *k, uint64_t n, float cap, const float *y, float *dy);
/* x = x * factor in place. */
void kern_scale(struct kern *k, uint64_t n, float *x, float factor);

/* Rotary embedding in place on `heads` heads of x[t * ld + h * D + d]: the first R = `rotary` numbers of each head
 * (even, 0 < R <= D) in pairs (d, d + R/2) as Hugging Face's Llama does; the others stay as they are. cos_table and
 * sin_table: [positions][R/2]; row t has position first + (t mod period): several sequences of `period` tokens lie
 * under each other. inverse: rotate back (the backward pass). */
struct rope {
    const float *cos_table, *sin_table;
    uint64_t heads, head_dim, rotary, first, period;
    bool inverse;
};
void kern_rope(struct kern *k, uint64_t rows, void *x, enum num type, uint64_t ld, const struct rope *r);

/* ---- embedding ---- */

/* A table of which this rank holds rows [first, first + count), table being row `first`; index[t] is the row wanted by
 * t. */
struct lookup {
    const float *table;
    const int32_t *index;
    uint64_t first, count;
};
/* y[t] = (token row + (+0)) + position row; a token row that lies elsewhere is +0; position NULL: no second term (its
 * rows are all here). Adding +0 makes a stored -0 the same on every division of the table. */
void kern_embed_forward(struct kern *k, uint64_t rows, uint64_t cols, const struct lookup *token,
                        const struct lookup *position, float *y);
struct embed_grad {
    uint64_t rows, cols, ld;
    const int32_t *index;
    uint64_t first, count; /* table rows whose gradients are here */
    const float *dy;       /* [rows][ld], of which `cols` columns are used */
    int64_t *grad;         /* [count][ld], likewise */
    float scale;           /* a power of two */
    float limit;           /* at most FIXED_UNIT_LIMIT */
    bool *overflow;        /* set when |dy * scale| >= limit or NaN */
};
/* grad[(index[t] - first) * ld + j] += integer of dy[t * ld + j] * scale for every t whose row is in [first, first +
 * count) and j < cols (each row is a unit of its own; integers: any order). */
void kern_embed_grad(struct kern *k, const struct embed_grad *g);

/* ---- dropout ---- */

/* Which coordinates a row has: row r belongs to sample first_sample + (first_row + r) / period, at position
 * position[(first_row + r) % period]. The mask of (sample, site, position, column) is word column % 4 of the Philox
 * block (RNG_DROPOUT; sample * 2^16 + site, position * 2^32 + column / 4): an element is dropped when the word is below
 * p * 2^32 (rounded down). */
struct dropout {
    uint64_t seed;
    uint32_t site; /* below 2^16 */
    double p;      /* 0 < p < 1 */
    uint64_t first_sample, period, first_row;
    const int32_t *position;
};
/* y = residual + (kept ? x * (1 / (1 - p)) : +0), 1 / (1 - p) rounded once to fp32; residual NULL: without it. y may be
 * x or residual. Backward is the same function on the gradient. */
void kern_dropout(struct kern *k, uint64_t rows, uint64_t cols, const float *x, const float *residual, float *y,
                  const struct dropout *d);

/* out = x + y, elementwise over n; out may be either. */
void kern_add(struct kern *k, uint64_t n, const float *x, const float *y, float *out);

/* ---- cross entropy ---- */

/* Rows of logits [rows][ld], `vocab` real columns of `padded` (the rest is ignored and gets gradient 0). target <
 * 0: the row does not count (loss 0, gradient 0). Row maximum, then the sum of exp(x - max) in `segments` equal
 * segments of the padded row, each 4 x 16 lanes and tree, combined by the balanced tree. loss[t] = log(sum) + max
 * - x[target]. With `backward`, logits are overwritten by softmax - onehot (token-sum gradient, no division by a
 * count). */
void kern_cross_entropy(struct kern *k, uint64_t rows, uint64_t vocab, uint64_t padded, uint64_t ld, uint32_t segments,
                        const int32_t *target, float *logits, float *loss, bool backward);

/* The same for a rank that holds columns [first, first + real) of the vocabulary, padded to `padded` columns that are
 * `segments` whole segments (real may be 0); three steps with an exchange between them give the bits of
 * kern_cross_entropy. Rows that do not count are left alone until the end. */
struct ce_part {
    uint64_t rows, ld, first, real, padded;
    uint32_t segments;
    const int32_t *target; /* columns of the whole vocabulary */
    float *logits;         /* [rows][ld], the columns here */
};
/* max[t] = largest of the real columns here (-infinity: none, or target < 0); x_target[t] = x[target] where it is here,
 * else -infinity. Exchange: the largest over ranks of both. */
void kern_ce_max(struct kern *k, const struct ce_part *c, float *max, float *x_target);
/* Logits become exp(x - max), 0 in padding; sum[t] = the balanced tree of the segments here (0 when target < 0).
 * Exchange: the balanced tree over ranks. */
void kern_ce_exp(struct kern *k, const struct ce_part *c, const float *max, float *sum);
/* loss[t] = log(sum) + max - x_target (0 when target < 0), the same on every rank; with `backward` logits become
 * softmax - onehot (0 in rows that do not count, and in padding). */
void kern_ce_finish(struct kern *k, const struct ce_part *c, const float *max, const float *sum, const float *x_target,
                    float *loss, bool backward);

/* ---- optimizer, exact sums, hashes, initialisation ---- */

/* Exact sum of squares of float(grad[i]) (fp64 conversion of the integer, rounded to nearest even, then to fp32), in
 * units of the integer's square, in canonical form. Also: any |grad| >= 2^62 sets *overflow. */
void kern_grad_square_sum(struct kern *k, uint64_t n, const int64_t *grad, struct fixed_wide *sum, bool *overflow);

/* Where the elements of a box lie in their logical tensor: element i of the box has index first + (i / cols) * ld + i %
 * cols; 0 < cols <= ld. cols == ld: a contiguous stretch. */
struct box_map {
    uint64_t first, cols, ld;
};

/* AdamW with decoupled decay (Loshchilov and Hutter, 2019), elementwise:
 *   g = float(grad) * grad_factor;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g g
 *   p = p - lr * decay * p;  p = p - step_size * m / (sqrt(v) * rsqrt_correction2 + eps) as fused multiply-adds in
 * the order docs/numerics.md gives. Zeroes grad. Returns through *hash the sum of hash_element (base/hash.h) over
 * the new parameters. The pointers are those of elements [begin, begin + n) of the box. */
struct adamw {
    double grad_factor; /* 2^-grad_scale_log2 / counted tokens * clip */
    float lr, beta1, beta2, eps, weight_decay;
    float step_size;       /* lr / (1 - beta1^step) */
    float rsqrt_correction2; /* 1 / sqrt(1 - beta2^step) */
};
void kern_adamw(struct kern *k, uint64_t n, const struct adamw *a, float *p, float *m, float *v, int64_t *grad,
                const struct box_map *map, uint64_t begin, uint64_t *hash);
/* The same sum without an update. */
uint64_t kern_hash(struct kern *k, uint64_t n, const float *p, const struct box_map *map, uint64_t begin);
/* Sum of hash_element_i64 (base/hash.h) over integers: to compare gradients. */
uint64_t kern_hash_i64(struct kern *k, uint64_t n, const int64_t *p, const struct box_map *map, uint64_t begin);
/* to[i] += from[i], mod 2^64. On the calling thread alone: it may run beside any other function. */
void kern_add_i64(uint64_t n, const int64_t *from, int64_t *to);
/* Sum over i, mod 2^64, of p[i] times an odd number that first + i decides. Linear: the checksum of a sum of arrays is
 * the sum of their checksums, that of an array the sum over its pieces; and one changed bit always changes it. On the
 * calling thread alone, too. */
uint64_t kern_checksum_i64(uint64_t n, const int64_t *p, uint64_t first);

/* p[i] = mean-0 normal * deviation for elements [begin, begin + n) of a box: the element of index e from the Philox
 * block (seed, RNG_INIT, tensor_id, e / 4), word pair by Box-Muller (base/rng.h), rounded to fp32 once. Boxes that
 * begin and end at multiples of 4 compute no block twice. */
void kern_init_normal(struct kern *k, uint64_t n, float *p, uint64_t seed, uint64_t tensor_id,
                      const struct box_map *map, uint64_t begin, double deviation);
void kern_fill(struct kern *k, uint64_t n, float *p, float value);
/* y = float(grad) * factor: gradients as numbers, for tests, replay and diagnosis. */
void kern_grad_to_float(struct kern *k, uint64_t n, const int64_t *grad, double factor, float *y);

#endif
