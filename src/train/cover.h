/* Whether parts of a tensor are all of it, each element once. Pure. */
#ifndef TRAIN_COVER_H
#define TRAIN_COVER_H

#include <stdbool.h>
#include <stdint.h>

#include "part/order.h"

/* Elements [begin, end) of a box of a tensor, row after row. */
struct cover_part {
    uint64_t row0, rows, col0, cols, begin, end;
};

/* Boxes of a tensor that differ: of one rank, and of the tensor-parallel ranks. */
#define COVER_RANK_BOXES_MAX 3u
#define COVER_BOXES_MAX (COVER_RANK_BOXES_MAX * ORDER_SEGMENTS_MAX)

struct cover {
    uint64_t rows, cols; /* of the tensor */
    uint64_t elements;   /* of all parts so far */
    bool bad;            /* a part lies outside, or was there before */
    struct cover_part box[COVER_BOXES_MAX]; /* end: how far the parts of this box reach */
    uint32_t count;
};

void cover_init(struct cover *c, uint64_t rows, uint64_t cols);
/* Parts of one box come in ascending order. */
void cover_add(struct cover *c, const struct cover_part *p);
bool cover_whole(const struct cover *c);

#endif
