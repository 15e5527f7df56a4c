/* Tensors of a checkpoint as this rank sees them: for every logical tensor the boxes that it keeps. */
#ifndef TRAIN_VIEWS_H
#define TRAIN_VIEWS_H

#include "ckpt/ckpt.h"
#include "train/holdings.h"

/* What a rank keeps of a bucket in one array: elements `at`, data being the first of them. */
struct kept {
    float *data;
    struct order_range at;
};

struct views {
    struct ckpt_tensor *list; /* tensor i of a prefix is parameter i of the registry */
    struct ckpt_box *boxes;
    char *names;
    size_t count, boxes_count;
};

/* Add the head that a file of a tied model may hold beside the embedding, with the same values; else nothing. For
 * reading only. */
void views_add_tied_head(struct views *v, const struct registry *r);
/* Room for `prefixes` times all tensors of the registry and one more. views_release frees it in any case. */
MUST_USE enum err views_init(struct views *v, const struct registry *r, size_t prefixes);
void views_release(struct views *v);
/* Add all tensors, their names behind `prefix`, and the boxes that kept[bucket] holds. Of shards that `counts` (NULL:
 * all) refuses there is no box. */
void views_add(struct views *v, const struct registry *r, const char *prefix, const struct kept *kept,
               bool (*counts)(const struct holdings *h, const struct shard *s), const struct holdings *h);

#endif
