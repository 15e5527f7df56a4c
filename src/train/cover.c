/* Why this exists: a checkpoint whose tensors are put together from the parts of many ranks looks the same when a part
 * is missing or lies on another one: what stood in the buffer is saved, and found by whoever goes on from it.
 *
 * Proof: the boxes do not overlap and lie within the tensor, the parts of each box follow each other without a gap, and
 * they have as many elements as the tensor. */
#include "train/cover.h"

#include <stddef.h>

void cover_init(struct cover *c, uint64_t rows, uint64_t cols)
{
    *c = (struct cover){ .rows = rows, .cols = cols };
}

static bool overlap(const struct cover_part *a, const struct cover_part *b)
{
    return a->row0 < b->row0 + b->rows && b->row0 < a->row0 + a->rows && a->col0 < b->col0 + b->cols &&
           b->col0 < a->col0 + a->cols;
}

static bool same_box(const struct cover_part *a, const struct cover_part *b)
{
    return a->row0 == b->row0 && a->rows == b->rows && a->col0 == b->col0 && a->cols == b->cols;
}

/* The box of a part; a new one when there is none. */
static struct cover_part *find_box(struct cover *c, const struct cover_part *p)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (same_box(&c->box[i], p)) {
            return &c->box[i];
        }
        c->bad = c->bad || overlap(&c->box[i], p);
    }
    if (c->count == COVER_BOXES_MAX) {
        return NULL;
    }
    c->bad = c->bad || p->row0 + p->rows > c->rows || p->col0 + p->cols > c->cols;
    c->box[c->count] = *p;
    c->box[c->count].end = 0;
    return &c->box[c->count++];
}

void cover_add(struct cover *c, const struct cover_part *p)
{
    struct cover_part *box = find_box(c, p);
    if (box == NULL || p->begin != box->end || p->end > p->rows * p->cols) {
        c->bad = true;
        return;
    }
    box->end = p->end;
    c->elements += p->end - p->begin;
}

bool cover_whole(const struct cover *c)
{
    return !c->bad && c->elements == c->rows * c->cols;
}
