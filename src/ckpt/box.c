/* Why this exists: a rank holds a piece of a tensor and a file holds all of it, so values move between the two: into
 * the whole when pieces are gathered for a save, out of it, block after block, when a file is read.
 *
 * A piece is a row of runs: elements that are neighbours in the tensor and in the piece. Invariant: the runs of a box
 * are disjoint, ascending in both, and hold exactly its elements [begin, end). A box of full width is one run. */
#include "base/mem.h"
#include "ckpt/ckpt.h"

static uint64_t below_first(const struct ckpt_tensor *t)
{
    uint64_t length = 1;
    for (uint32_t d = 1; d < t->rank; d++) {
        length = mem_mul(length, t->shape[d]);
    }
    return length;
}

uint64_t ckpt_row_length(const struct ckpt_tensor *t)
{
    return t->row_length > 0 ? t->row_length : below_first(t);
}

uint64_t ckpt_rows(const struct ckpt_tensor *t)
{
    uint64_t length = ckpt_row_length(t);
    return length > 0 ? mem_mul(t->shape[0], below_first(t)) / length : t->shape[0];
}

struct ckpt_box ckpt_box_whole(const struct ckpt_tensor *t, float *data)
{
    uint64_t rows = ckpt_rows(t), cols = ckpt_row_length(t);
    return (struct ckpt_box){ .rows = rows, .cols = cols, .end = mem_mul(rows, cols), .data = data };
}

/* Going through the runs of a box that lie in elements [first, end) of the tensor. */
struct walk {
    struct ckpt_box box; /* with one long row when its rows are neighbours in the tensor */
    uint64_t row_length, first, end;
    uint64_t row, rows_end; /* of the box */
};

struct run {
    uint64_t in_tensor, in_data, count;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static struct walk walk_begin(const struct ckpt_box *b, uint64_t row_length, uint64_t first, uint64_t end)
{
    BUG_IF(b->col0 > row_length || b->cols > row_length - b->col0 || b->begin > b->end || b->end > b->rows * b->cols);
    struct walk w = { .box = *b, .row_length = row_length, .first = first, .end = end };
    if (b->begin == b->end || first >= end) {
        return w;
    }
    if (b->cols == row_length) {
        w.box.col0 = b->row0 * row_length;
        w.box.cols = b->rows * row_length;
        w.box.row0 = 0;
        w.rows_end = 1;
        return w;
    }
    uint64_t top = first / row_length, bottom = (end - 1) / row_length + 1; /* rows of the tensor that are looked at */
    w.row = most(b->begin / b->cols, top > b->row0 ? top - b->row0 : 0);
    w.rows_end = least((b->end - 1) / b->cols + 1, bottom > b->row0 ? bottom - b->row0 : 0);
    return w;
}

static bool walk_next(struct walk *w, struct run *r)
{
    const struct ckpt_box *b = &w->box;
    for (; w->row < w->rows_end; w->row++) {
        uint64_t before = w->row * b->cols; /* elements of the box before this row */
        uint64_t at = (b->row0 + w->row) * w->row_length + b->col0;
        uint64_t from = most(most(b->begin, before) - before + at, w->first);
        uint64_t to = least(least(b->end - before, b->cols) + at, w->end);
        if (from < to) {
            *r = (struct run){ from, before + (from - at) - b->begin, to - from };
            w->row++;
            return true;
        }
    }
    return false;
}

void ckpt_box_store(const struct ckpt_box *b, uint64_t row_length, float *full)
{
    struct run r;
    for (struct walk w = walk_begin(b, row_length, 0, UINT64_MAX); walk_next(&w, &r);) {
        memcpy(full + r.in_tensor, b->data + r.in_data, r.count * sizeof(float));
    }
}

void ckpt_box_load(const struct ckpt_box *b, uint64_t row_length, uint64_t first, uint64_t count, const float *values)
{
    struct run r;
    for (struct walk w = walk_begin(b, row_length, first, first + count); walk_next(&w, &r);) {
        memcpy(b->data + r.in_data, values + (r.in_tensor - first), r.count * sizeof(float));
    }
}
