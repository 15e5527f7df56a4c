/* A rank whose machine computes one bit of one gradient wrong, for a program that is linked with the product's objects
 * and -Wl,--wrap=pipeline_run,--wrap=holdings_hash; the product itself has no trace of it.
 *
 *   INVAR_FLIP=RANK@STEP      the step counts from the start of the process; ranks are processes, data parallel */
#include "train/pipeline.h"

enum err __real_pipeline_run(struct pipeline *p, struct holdings *h, load_micro *load, void *arg,
                             struct model_loss *loss);
enum err __wrap_pipeline_run(struct pipeline *p, struct holdings *h, load_micro *load, void *arg,
                             struct model_loss *loss);
void __real_holdings_hash(struct holdings *h, uint32_t bucket, const int64_t *g);
void __wrap_holdings_hash(struct holdings *h, uint32_t bucket, const int64_t *g);

static unsigned step;   /* begun */
static unsigned passes; /* of layers in it */

enum err __wrap_pipeline_run(struct pipeline *p, struct holdings *h, load_micro *load, void *arg,
                             struct model_loss *loss)
{
    step++;
    passes = 0;
    return __real_pipeline_run(p, h, load, arg, loss);
}

/* The last gradient of the first layer that is complete, before ranks are summed. */
void __wrap_holdings_hash(struct holdings *h, uint32_t bucket, const int64_t *g)
{
    unsigned rank, when;
    const char *flip = getenv("INVAR_FLIP");
    const struct bucket *b = &h->reg->buckets[bucket];
    bool wrong = flip != NULL && sscanf(flip, "%u@%u", &rank, &when) == 2 && rank == comm_rank(h->ranks->all);
    if (wrong && step == when && b->kind == BUCKET_LAYER && passes++ == 0) {
        const struct shard *last = &h->reg->shards[b->first_shard + b->shards - 1];
        ((int64_t *)(uintptr_t)g)[last->offset + last->rows * last->cols - 1] ^= (int64_t)1 << 40;
    }
    __real_holdings_hash(h, bucket, g);
}
