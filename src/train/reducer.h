/* A thread that reduces the gradients of buckets over ranks while the computation goes on. */
#ifndef TRAIN_REDUCER_H
#define TRAIN_REDUCER_H

#include "train/holdings.h"

/* `h` must outlive it. */
MUST_USE enum err reducer_new(struct reducer **out, struct holdings *h);
/* Ends the thread after the job it is in. */
void reducer_free(struct reducer *q);
/* Hand over a bucket whose gradients lie in buf (all of the bucket); every rank must do so in the same order. The
 * buffer is the reducer's until reducer_wait_for says otherwise. */
void reducer_post(struct reducer *q, uint32_t bucket, int64_t *buf);
/* Wait until no job uses buf; NULL: until there is none at all. Returns the first error of any job so far. */
MUST_USE enum err reducer_wait_for(struct reducer *q, const int64_t *buf);

#endif
