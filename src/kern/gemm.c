/* Why this exists: all matrix products of a model go through one driver that keeps every output element one chain in
 * ascending k (or a fixed tree of chains) however the work is blocked, packed and threaded.
 *
 * Design: C is cut into blocks of `rows` x `cols`; for each chunk of the summed dimension the operands of the block
 * are packed into shared panels by all threads, then tasks of some row panels x some column panels are handed out.
 * Only partial sums that live from one chunk to the next are kept, in a shared array of tiles; a product that fits
 * one chunk never leaves registers and one tile in L1. With few rows (generation) packing is most of the work, so
 * each task packs the columns it multiplies for itself, into its own cache.
 *
 * Invariants: a tile of a chunk is computed by one task; tasks of one phase write disjoint memory; everything lives
 * in the workspace kern_new allocated, whose size does not depend on the job. What follows on whole rows (job->then) is
 * done by the task that ends a block of rows: those of one block are handed out together. */
#include "kern/gemm_leaf.h"

#include <unistd.h>

#include "base/mem.h"
#include "kern/gemm_plan.h"
#include "kern/gemm_then.h"

/* Cache blocking. A chunk's panel of b (`cells` x 48 cells of 4 bytes) plus a task's rows of a (`rows` x `cells`) stay
 * in L2, the packed block of b and the partial tiles in L3. A large L2 takes more rows of shorter chunks, so that b
 * comes from L3 less often. */
static const struct gemm_blocking blocking_usual = { .rows = 96, .cells = 1024 },
                                  blocking_large = { .rows = 480, .cells = 384 };
#define L2_LARGE (2 << 20)
#define A_FLOATS ((uint64_t)2 << 20)
#define B_FLOATS ((uint64_t)2 << 20)
#define PARTIAL_FLOATS ((uint64_t)3 << 20)
#define TASK_COLS 768u
#define TASKS_PER_THREAD 8u
/* Packing tasks: contiguous k is read in groups of rows, contiguous rows in short stretches of cells over many
 * columns. */
#define PACK_CELLS 64u
#define PACK_WIDE 768u
#define PACK_NARROW 96u
/* With at most FEW_ROWS rows of C a task works on its own columns alone. Where b's columns are contiguous, blocks are
 * short in k and wide, to read long stretches, and fp32 products use b as it lies; else a task packs one block of
 * FEW_COLS x FEW_CELLS. */
#define FEW_ROWS 64u
#define FEW_COLS 48u
#define FEW_CELLS 768u
#define ONE_PANEL_COLS 1152u
#define ONE_PANEL_CELLS 16u
#define WIDE_COLS 384u
#define WIDE_CELLS 96u
#define FEW_TASKS_PER_THREAD 2u
#define LEVELS_MAX 5u /* log2 of GEMM_PIECES_MAX */
/* Products below this many steps of chains are not worth waking a thread. */
#define SERIAL_WORK (1u << 20)

/* Per thread: the finished tile, the tree's tiles of a product without carry, and the private block of few rows. */
#define SCRATCH_TILES ((LEVELS_MAX + 2) * (uint64_t)GEMM_TILE_MAX)
#define FEW_B_FLOATS ((uint64_t)FEW_COLS * FEW_CELLS)
#define FEW_PARTIAL_FLOATS ((LEVELS_MAX + 1) * (uint64_t)(FEW_ROWS + GEMM_MR_MAX) * WIDE_COLS)
#define SCRATCH_FLOATS (SCRATCH_TILES + FEW_B_FLOATS + FEW_PARTIAL_FLOATS)
_Static_assert(ONE_PANEL_COLS * GEMM_MR_MAX <= WIDE_COLS * FEW_ROWS &&
                   ONE_PANEL_COLS * ONE_PANEL_CELLS <= FEW_B_FLOATS && WIDE_COLS * WIDE_CELLS <= FEW_B_FLOATS,
               "the private block fits all forms");

const struct gemm_leaves *const gemm_leaves_of[ISA_COUNT] = KERN_TABLES(gemm_leaves);

/* A rectangle of C in progress, with the packed operands of one chunk. */
struct block {
    const struct gemm_plan *plan;
    const struct gemm_leaves *leaf;
    const struct gemm_product *product;
    struct gemm_chunk chunk;
    uint64_t i0, rows, j0, cols;
    uint64_t row_panels, col_panels;
    bool a_whole;   /* a holds the panels of all chunks, one chunk after another */
    bool b_direct;  /* only a panel narrower than nr is packed */
    float *a, *b;   /* packed panels: cells of 4 bytes */
    float *partial; /* with carry: levels + 1 tiles for each tile of the block */
};

/* What the tasks of a phase share. */
struct phase {
    struct kern *k;
    struct block *block;
    bool serial;
    /* packing: the first a_tasks tasks are of the left operand */
    uint64_t a_tasks, b_tasks;
    /* multiplying: panels of one task, and tasks across one row of tasks */
    uint64_t task_row_panels, task_col_panels, tasks_across;
    struct gemm_then_work *then;
    bool finishes; /* rows of C that something follows */
};

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* n cut into equal parts of at most `limit`, each (but the last) a multiple of `width`. */
static uint64_t even_block(uint64_t n, uint64_t limit, uint64_t width)
{
    uint64_t panels = div_up(n, width), most = limit / width > 0 ? limit / width : 1;
    return div_up(panels, div_up(panels, most)) * width;
}

static const struct gemm_product *product_of(const struct kern *k, const struct gemm_job *job)
{
    return job->bf16 ? &k->gemm->bf16 : &k->gemm->f32;
}

const struct gemm_blocking *gemm_blocking_here(void)
{
    return sysconf(_SC_LEVEL2_CACHE_SIZE) >= L2_LARGE ? &blocking_large : &blocking_usual;
}

uint64_t gemm_workspace_bytes(uint32_t threads)
{
    return (A_FLOATS + B_FLOATS + PARTIAL_FLOATS + threads * SCRATCH_FLOATS) * sizeof(float);
}

static float *workspace_a(const struct kern *k)
{
    return k->gemm_workspace;
}

static float *workspace_b(const struct kern *k)
{
    return workspace_a(k) + A_FLOATS;
}

static float *workspace_partial(const struct kern *k)
{
    return workspace_b(k) + B_FLOATS;
}

static float *workspace_scratch(const struct kern *k, uint32_t worker)
{
    return workspace_partial(k) + PARTIAL_FLOATS + worker * SCRATCH_FLOATS;
}

/* ---- packing ---- */

static float *packed_a(const struct block *b)
{
    return b->a + (b->a_whole ? b->chunk.base * b->row_panels * b->leaf->mr : 0);
}

/* A range of panels and of the chunk's cells, of one operand. */
struct range {
    bool left;
    uint64_t panel, panels, lo, hi;
};

static void pack_range(const struct block *b, const struct range *r)
{
    uint64_t width = r->left ? b->leaf->mr : b->leaf->nr;
    uint64_t stride = b->chunk.cells * width, k_step = b->product->k_step;
    uint64_t first = r->panel * width;
    uint64_t count = min_u64(r->panels * width, (r->left ? b->rows : b->cols) - first);
    float *dst = (r->left ? packed_a(b) : b->b) + r->panel * stride;
    for (uint32_t i = 0; i < b->chunk.steps; i++) {
        const struct gemm_step *s = &b->chunk.step[i];
        uint64_t lo = s->at > r->lo ? s->at : r->lo, hi = min_u64(s->at + s->cells, r->hi);
        if (lo >= hi) {
            continue;
        }
        uint64_t k0 = (lo - s->at) * k_step;
        struct gemm_pack p = { .mat = r->left ? &s->piece->a : &s->piece->b,
                               .i0 = (r->left ? b->i0 : b->j0) + first,
                               .count = count,
                               .k0 = s->k0 + k0,
                               .k = min_u64((hi - lo) * k_step, s->k - k0),
                               .dst = dst + lo * width,
                               .panel_stride = stride };
        (r->left ? b->product->pack_a : b->product->pack_b)(&p);
    }
}

/* Task t of the grid over one operand's panels and cells; returns the number of tasks. *out is set when t is one. */
static uint64_t pack_grid(const struct block *b, bool left, uint64_t t, struct range *out)
{
    const struct gemm_piece *piece = b->chunk.step[0].piece;
    bool trans = left ? piece->a.trans : piece->b.trans;
    uint64_t width = left ? b->leaf->mr : b->leaf->nr;
    uint64_t panels = left ? b->row_panels : b->col_panels;
    uint64_t group = (trans ? PACK_WIDE : PACK_NARROW) / width;
    uint64_t depth = trans ? PACK_CELLS : b->chunk.cells;
    uint64_t across = div_up(panels, group), tasks = depth > 0 ? across * div_up(b->chunk.cells, depth) : 0;
    if (t < tasks) {
        uint64_t panel = t % across * group, lo = t / across * depth;
        *out = (struct range){ .left = left,
                               .panel = panel,
                               .panels = min_u64(group, panels - panel),
                               .lo = lo,
                               .hi = min_u64(lo + depth, b->chunk.cells) };
    }
    return tasks;
}

static void pack_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    const struct phase *ph = arg;
    bool left = task < ph->a_tasks;
    struct range r;
    uint64_t t = left ? task : task - ph->a_tasks;
    BUG_IF(t >= pack_grid(ph->block, left, t, &r));
    pack_range(ph->block, &r);
}

/* ---- multiplying ---- */

/* Where a finished tile goes. */
static struct gemm_ahead result_ahead(const struct gemm_job *job, uint64_t i, uint64_t j, uint64_t rows, uint64_t cols)
{
    if (job->grad != NULL) {
        return (struct gemm_ahead){ job->grad + i * job->ldg + j, rows, cols * sizeof(int64_t),
                                    job->ldg * sizeof(int64_t) };
    }
    uint64_t bytes = num_bytes(job->c_type);
    return (struct gemm_ahead){ num_at(job->c, job->c_type, i * job->ldc + j), rows, cols * bytes, job->ldc * bytes };
}

/* `count` tiles that lie together. */
static struct gemm_ahead tiles_ahead(const struct gemm_leaves *leaf, const float *first, uint64_t count)
{
    uint64_t bytes = count * leaf->nr * sizeof(float);
    return (struct gemm_ahead){ first, count > 0 ? leaf->mr : 0, bytes, bytes };
}

static void finish_tile(const struct block *b, const float *done, uint64_t i, uint64_t j, uint32_t rows, uint32_t cols)
{
    const struct gemm_job *job = b->plan->job;
    if (job->grad == NULL) {
        b->leaf->store[job->c_type](done, job, i, j, rows, cols);
    } else if (b->leaf->store_grad(done, job, i, j, rows, cols)) {
        __atomic_store_n(job->overflow, true, __ATOMIC_RELAXED);
    }
}

/* All steps of the chunk for one tile. Slot l of the tile's `levels` + 1 keeps the finished subtree of 2^l segments,
 * the last slot the open chain. */
static void run_tile(const struct block *b, uint64_t ip, uint64_t jp, float *scratch)
{
    const struct gemm_leaves *leaf = b->leaf;
    const uint64_t tile_floats = (uint64_t)leaf->mr * leaf->nr;
    const uint32_t levels = b->plan->levels;
    float *done = scratch, *slots = scratch + tile_floats;
    if (b->plan->carry) {
        slots = b->partial + (jp * b->row_panels + ip) * (levels + 1) * tile_floats;
    }
    const float *a = packed_a(b) + ip * b->chunk.cells * leaf->mr;
    const float *right = b->b + (b->b_direct ? 0 : jp) * b->chunk.cells * leaf->nr;
    uint64_t i = ip * leaf->mr, j = jp * leaf->nr;
    uint32_t rows = (uint32_t)min_u64(leaf->mr, b->rows - i), cols = (uint32_t)min_u64(leaf->nr, b->cols - j);
    float *chain = slots + levels * tile_floats;
    for (uint32_t n = 0; n < b->chunk.steps; n++) {
        const struct gemm_step *s = &b->chunk.step[n];
        const struct gemm_mat *mat = &s->piece->b;
        bool direct = b->b_direct && cols == leaf->nr;
        struct gemm_tile t = { .a = a + s->at * leaf->mr,
                               .b = direct ? (const float *)mat->p + s->k0 * mat->ld + b->j0 + j
                                           : right + s->at * leaf->nr,
                               .b_ld = direct ? mat->ld : leaf->nr,
                               .cells = s->cells,
                               .in = s->starts ? NULL : chain,
                               .fold = slots,
                               .folds = s->folds,
                               .rows = rows,
                               .out = s->final ? done : s->ends ? slots + s->folds * tile_floats : chain };
        if (s->final) {
            t.ahead[0] = result_ahead(b->plan->job, b->i0 + i, b->j0 + j, rows, cols);
        } else if (b->plan->carry || leaf->fetch_scratch) {
            t.ahead[0] = tiles_ahead(leaf, t.out, 1);
        }
        if (b->plan->carry) {
            t.ahead[1] = tiles_ahead(leaf, slots, s->folds);
            if (n + 1 == b->chunk.steps && !b->chunk.step[0].starts) {
                t.ahead[2] = tiles_ahead(leaf, chain + (levels + 1) * tile_floats, 1); /* the next tile's chain */
            }
        }
        b->product->tile(&t);
        if (s->final) {
            finish_tile(b, done, b->i0 + i, b->j0 + j, rows, cols);
        }
    }
}

static void multiply_task(void *arg, uint64_t task, uint32_t worker)
{
    const struct phase *ph = arg;
    const struct block *b = ph->block;
    uint64_t ip0 = task / ph->tasks_across * ph->task_row_panels, jp0 = task % ph->tasks_across * ph->task_col_panels;
    uint64_t ip1 = min_u64(ip0 + ph->task_row_panels, b->row_panels);
    uint64_t jp1 = min_u64(jp0 + ph->task_col_panels, b->col_panels);
    float *scratch = workspace_scratch(ph->k, worker);
    for (uint64_t jp = jp0; jp < jp1; jp++) {
        for (uint64_t ip = ip0; ip < ip1; ip++) {
            run_tile(b, ip, jp, scratch);
        }
    }
    if (ph->finishes) {
        gemm_then_task(ph->then, task / ph->tasks_across, ph->tasks_across, b->i0 + ip0 * b->leaf->mr,
                       b->i0 + min_u64(ip1 * b->leaf->mr, b->rows));
    }
}

/* ---- many rows: packing shared by all threads ---- */

static void run_phase(struct phase *ph, uint64_t tasks, pool_fn *fn)
{
    if (!ph->serial) {
        pool_run(ph->k->pool, tasks, fn, ph);
        return;
    }
    for (uint64_t t = 0; t < tasks; t++) {
        fn(ph, t, 0);
    }
}

static void pack_chunk(struct phase *ph, bool left, bool right)
{
    struct range unused;
    ph->a_tasks = left ? pack_grid(ph->block, true, UINT64_MAX, &unused) : 0;
    ph->b_tasks = right ? pack_grid(ph->block, false, UINT64_MAX, &unused) : 0;
    run_phase(ph, ph->a_tasks + ph->b_tasks, pack_task);
}

static void multiply_chunk(struct phase *ph)
{
    const struct block *b = ph->block;
    uint64_t threads = ph->serial ? 1 : pool_threads(ph->k->pool);
    ph->task_row_panels = even_block(b->rows, ph->k->blocking->rows, b->leaf->mr) / b->leaf->mr;
    ph->task_col_panels = threads > 1 ? TASK_COLS / b->leaf->nr : b->col_panels;
    uint64_t down = div_up(b->row_panels, ph->task_row_panels);
    while (threads > 1 && ph->task_col_panels > 2 &&
           down * div_up(b->col_panels, ph->task_col_panels) < threads * TASKS_PER_THREAD) {
        ph->task_col_panels /= 2;
    }
    ph->tasks_across = div_up(b->col_panels, ph->task_col_panels);
    ph->finishes = ph->then->leaf != NULL && b->chunk.step[b->chunk.steps - 1].final &&
                   b->j0 + b->cols == b->plan->job->n;
    if (ph->finishes) {
        gemm_then_begin(ph->then);
    }
    run_phase(ph, down * ph->tasks_across, multiply_task);
}

static void gemm_many_rows(struct kern *k, const struct gemm_plan *plan, struct gemm_then_work *then, bool serial)
{
    const struct gemm_job *job = plan->job;
    struct block b = { .plan = plan,
                       .leaf = k->gemm,
                       .product = product_of(k, job),
                       .a = workspace_a(k),
                       .b = workspace_b(k),
                       .partial = workspace_partial(k) };
    struct phase ph = { .k = k, .block = &b, .serial = serial, .then = then };
    uint64_t mr = b.leaf->mr, nr = b.leaf->nr, depth = plan->cells_chunk > 0 ? plan->cells_chunk : 1;
    uint64_t cols = even_block(job->n, B_FLOATS / depth, nr);
    uint64_t rows_limit = A_FLOATS / depth;
    if (plan->carry) {
        rows_limit = min_u64(rows_limit, PARTIAL_FLOATS / (cols * (plan->levels + 1)));
    }
    if (then->leaf != NULL) {
        rows_limit = min_u64(rows_limit, GEMM_THEN_BLOCKS * (k->blocking->rows / mr * mr));
    }
    uint64_t rows = even_block(job->m, rows_limit, mr);
    b.a_whole = rows * plan->cells_total <= A_FLOATS;
    bool b_stays = plan->chunks == 1 && cols >= job->n;
    for (b.i0 = 0; b.i0 < job->m; b.i0 += rows) {
        b.rows = min_u64(rows, job->m - b.i0);
        b.row_panels = div_up(b.rows, mr);
        for (b.j0 = 0; b.j0 < job->n; b.j0 += cols) {
            b.cols = min_u64(cols, job->n - b.j0);
            b.col_panels = div_up(b.cols, nr);
            struct gemm_cursor cursor = { 0 };
            while (gemm_plan_next(plan, &cursor, &b.chunk)) {
                pack_chunk(&ph, b.j0 == 0 || !b.a_whole, b.i0 == 0 || !b_stays);
                multiply_chunk(&ph);
            }
        }
    }
}

static bool is_small(const struct gemm_job *job, uint64_t depth)
{
    uint64_t work;
    return !__builtin_mul_overflow(job->m, job->n, &work) && !__builtin_mul_overflow(work, depth, &work) &&
           work < SERIAL_WORK;
}

/* ---- few rows: tasks share nothing but the packed a ---- */

static void few_pack_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    const struct phase *ph = arg;
    struct block b = *ph->block;
    struct gemm_cursor cursor = { 0 };
    while (gemm_plan_next(b.plan, &cursor, &b.chunk)) {
        pack_range(&b, &(struct range){ .left = true, .panel = task, .panels = 1, .hi = b.chunk.cells });
    }
}

/* The columns of b that cannot be used where they lie. */
static void pack_columns(const struct block *b)
{
    uint64_t nr = b->leaf->nr;
    if (!b->b_direct) {
        pack_range(b, &(struct range){ .panels = b->col_panels, .hi = b->chunk.cells });
    } else if (b->cols % nr != 0) {
        struct block narrow = *b;
        narrow.j0 += b->cols / nr * nr;
        narrow.cols = b->cols % nr;
        pack_range(&narrow, &(struct range){ .panels = 1, .hi = b->chunk.cells });
    }
}

static void few_rows_task(void *arg, uint64_t task, uint32_t worker)
{
    const struct phase *ph = arg;
    struct block b = *ph->block;
    const struct gemm_job *job = b.plan->job;
    float *scratch = workspace_scratch(ph->k, worker);
    b.b = scratch + SCRATCH_TILES;
    b.partial = b.b + FEW_B_FLOATS;
    b.j0 = task * b.cols;
    b.cols = min_u64(b.cols, job->n - b.j0);
    b.col_panels = div_up(b.cols, b.leaf->nr);
    struct gemm_cursor cursor = { 0 };
    while (gemm_plan_next(b.plan, &cursor, &b.chunk)) {
        pack_columns(&b);
        for (uint64_t jp = 0; jp < b.col_panels; jp++) {
            for (uint64_t ip = 0; ip < b.row_panels; ip++) {
                run_tile(&b, ip, jp, scratch);
            }
        }
    }
}

static void gemm_few_rows(struct kern *k, const struct gemm_plan *plan, bool wide, bool serial)
{
    const struct gemm_job *job = plan->job;
    uint64_t limit = !wide ? FEW_COLS : job->m <= k->gemm->mr ? ONE_PANEL_COLS : WIDE_COLS;
    uint64_t share = div_up(job->n, (uint64_t)pool_threads(k->pool) * FEW_TASKS_PER_THREAD);
    struct block b = { .plan = plan,
                       .leaf = k->gemm,
                       .product = product_of(k, job),
                       .rows = job->m,
                       .row_panels = div_up(job->m, k->gemm->mr),
                       .cols = even_block(job->n, min_u64(limit, share), k->gemm->nr),
                       .a_whole = true,
                       .b_direct = wide && !job->bf16,
                       .a = workspace_a(k) };
    struct phase ph = { .k = k, .block = &b, .serial = serial };
    run_phase(&ph, b.row_panels, few_pack_task);
    run_phase(&ph, div_up(job->n, b.cols), few_rows_task);
}

/* True when it was few rows, and done. */
static bool try_few_rows(struct kern *k, const struct gemm_job *job)
{
    if (job->m > FEW_ROWS) {
        return false;
    }
    bool wide = true;
    for (uint32_t p = 0; p < job->pieces_count; p++) {
        wide = wide && job->pieces[p].b.trans;
    }
    uint64_t limit = !wide ? FEW_CELLS : job->m <= k->gemm->mr ? ONE_PANEL_CELLS : WIDE_CELLS;
    struct gemm_plan plan = gemm_plan_of(job, product_of(k, job)->k_step, limit);
    if (plan.cells_total > A_FLOATS / (FEW_ROWS + GEMM_MR_MAX)) {
        return false;
    }
    gemm_few_rows(k, &plan, wide, is_small(job, plan.cells_total));
    return true;
}

/* ---- */

static uint64_t depth_of(const struct gemm_job *job)
{
    uint64_t depth = 0;
    for (uint32_t p = 0; p < job->pieces_count; p++) {
        depth += job->pieces[p].k;
    }
    return depth;
}

void kern_gemm(struct kern *k, const struct gemm_job *job)
{
    POOL_SPAN(k->pool, job->grad != NULL ? "gradient product" : "product", job->m, job->n, depth_of(job));
    if (job->m == 0 || job->n == 0) {
        return;
    }
    struct gemm_then_work then;
    gemm_then_prepare(&then, k, job);
    if (try_few_rows(k, job)) {
        gemm_then_all(k, &then, job->m);
        return;
    }
    struct gemm_plan plan = gemm_plan_of(job, product_of(k, job)->k_step, k->blocking->cells);
    gemm_many_rows(k, &plan, &then, is_small(job, plan.cells_total));
}
