/* Why this exists: pieces, segments, units and cache-sized chunks cut the summed dimension at different places; this
 * file is the one walk over all of them, so that packing and computing cannot disagree. Pure arithmetic, nothing is
 * kept.
 *
 * Invariants: steps are in ascending order and cover every element once; a chain starts once and ends once; segment
 * s, when it ends, is added to as many finished left neighbours as s has trailing one bits (a binary counter), which
 * is the balanced tree. */
#include "kern/gemm_plan.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* `length` elements cut into equal parts of at most `limit` cells, all but the last of whole cells: the first part. */
static uint64_t even_part(uint64_t length, uint64_t limit, uint32_t k_step)
{
    uint64_t cells = div_up(length, k_step), parts = div_up(cells, limit);
    return parts > 0 ? min_u64(div_up(cells, parts) * k_step, length) : 0;
}

static struct gemm_step next_step(const struct gemm_plan *plan, struct gemm_cursor *c)
{
    const struct gemm_job *job = plan->job;
    const struct gemm_piece *piece = &job->pieces[c->piece];
    bool grad = job->grad != NULL;
    uint64_t left = piece->k - c->k;
    if (grad) {
        left = min_u64(left, job->unit - c->chain);
    }
    struct gemm_step s = { .piece = piece, .k0 = c->k, .starts = !c->open };
    s.k = even_part(left, plan->cells_limit, plan->k_step);
    s.cells = div_up(s.k, plan->k_step);
    c->k += s.k;
    c->chain += s.k;
    c->total += s.cells;
    bool piece_done = c->k == piece->k;
    bool last = piece_done && c->piece + 1 == job->pieces_count;
    if (grad) {
        s.ends = c->chain == job->unit || last;
        s.final = s.ends;
    } else {
        s.ends = piece_done && piece->ends_segment;
        s.final = s.ends && last;
        for (uint32_t rest = c->segment; s.ends && (rest & 1) != 0; rest >>= 1) {
            s.folds++;
        }
    }
    c->open = !s.ends;
    if (s.ends) {
        c->chain = 0;
        c->segment++;
    }
    if (piece_done) {
        c->piece++;
        c->k = 0;
    }
    return s;
}

bool gemm_plan_next(const struct gemm_plan *plan, struct gemm_cursor *cursor, struct gemm_chunk *out)
{
    out->steps = 0;
    out->base = cursor->total;
    out->cells = 0;
    while (cursor->piece < plan->job->pieces_count && out->steps < GEMM_CHUNK_STEPS) {
        struct gemm_cursor after = *cursor;
        struct gemm_step s = next_step(plan, &after);
        if (out->steps > 0 && out->cells + s.cells > plan->cells_limit) {
            break;
        }
        s.at = out->cells;
        out->step[out->steps++] = s;
        out->cells += s.cells;
        *cursor = after;
    }
    return out->steps > 0;
}

static void check(const struct gemm_job *job, uint32_t segments)
{
    BUG_IF(job->pieces_count == 0 || job->pieces_count > GEMM_PIECES_MAX);
    BUG_IF(!job->pieces[job->pieces_count - 1].ends_segment);
    BUG_IF((segments & (segments - 1)) != 0);
    for (uint32_t p = 0; p < job->pieces_count && !job->bf16; p++) {
        BUG_IF(job->pieces[p].a.type != NUM_F32 || job->pieces[p].b.type != NUM_F32);
    }
    if (job->grad == NULL) {
        BUG_IF(job->c == NULL || (job->c_type != NUM_F32 && job->residual != NULL));
        return;
    }
    BUG_IF(job->c != NULL || job->bias != NULL || job->residual != NULL);
    BUG_IF(segments != 1 || job->unit == 0 || job->overflow == NULL);
    BUG_IF(!(job->grad_limit > 0.0f && job->grad_limit <= FIXED_UNIT_LIMIT));
}

struct gemm_plan gemm_plan_of(const struct gemm_job *job, uint32_t k_step, uint64_t cells_limit)
{
    struct gemm_plan plan = { .job = job, .k_step = k_step, .cells_limit = cells_limit };
    uint32_t segments = 0;
    for (uint32_t p = 0; p < job->pieces_count && p < GEMM_PIECES_MAX; p++) {
        segments += job->pieces[p].ends_segment;
    }
    check(job, segments);
    while ((1u << plan.levels) < segments) {
        plan.levels++;
    }
    struct gemm_cursor cursor = { 0 };
    struct gemm_chunk chunk;
    bool open = false;
    while (gemm_plan_next(&plan, &cursor, &chunk)) {
        plan.carry |= open;
        open = cursor.open || plan.levels > 0;
        plan.cells_chunk = chunk.cells > plan.cells_chunk ? chunk.cells : plan.cells_chunk;
        plan.chunks++;
    }
    plan.cells_total = cursor.total;
    return plan;
}
