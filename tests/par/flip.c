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
static unsigned passes; /* of bucket 0 in it */

enum err __wrap_pipeline_run(struct pipeline *p, struct holdings *h, load_micro *load, void *arg,
                             struct model_loss *loss)
{
    step++;
    passes = 0;
    return __real_pipeline_run(p, h, load, arg, loss);
}

/* The gradients are complete, and not yet summed over ranks. */
void __wrap_holdings_hash(struct holdings *h, uint32_t bucket, const int64_t *g)
{
    unsigned rank, when;
    const char *flip = getenv("INVAR_FLIP");
    bool wrong = flip != NULL && sscanf(flip, "%u@%u", &rank, &when) == 2 && rank == comm_rank(h->ranks->all);
    if (wrong && step == when && bucket == 0 && passes++ == 0) {
        ((int64_t *)(uintptr_t)g)[17] ^= (int64_t)1 << 40;
    }
    __real_holdings_hash(h, bucket, g);
}
