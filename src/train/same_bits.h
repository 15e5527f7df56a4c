/* The same steps under many layouts, compared bit by bit. Ranks are threads of this process. */
#ifndef TRAIN_SAME_BITS_H
#define TRAIN_SAME_BITS_H

#include "base/buf.h"
#include "conf/conf.h"

#define VERIFY_STEPS_MAX 1000u
#define VERIFY_RANKS_MAX 64u

/* A job: configuration file (NULL: none) and --key value arguments. */
struct verify_job {
    const char *path;
    int argc;
    char **argv;
    uint32_t steps;
};

/* What each step gave. */
struct verify_step {
    uint64_t state_hash, tokens;
    double loss, grad_norm;
};

struct verify_result {
    struct verify_step *step; /* heap, [steps] */
    uint32_t steps;
    uint64_t planned_bytes;   /* of all ranks */
    double seconds;
};
void verify_result_release(struct verify_result *r);

/* A layout as people write it: tokens joined by commas, each at most once.
 *   dpN tpN ppN cpN zeroN sp        axes; sp: sequence parallelism
 *   selective full                  gradient_checkpointing
 *   mbN threadsN                    micro-batch, threads of each rank
 *   gpipe 1f1b vN layersA-B-...     pipeline: schedule, chunks of a stage (interleaved), layers of each stage
 *   seedN                           delays and reorderings of the ranks
 * "serial" is one rank. ERR_USAGE names a token that is none of them. */
struct verify_layout {
    char name[128];
    uint32_t world;
    uint64_t seed;
    char words[48][64]; /* keys and values in turn */
    int count;
};
MUST_USE enum err verify_layout_parse(struct verify_layout *l, const char *text);

/* Run the job's first steps under a layout; global_batch (0: what the job says) keeps the batch from following the
 * number of ranks. Errors are those of the job; ERR_USAGE with an empty message: the configuration refuses the layout
 * (findings are in `why`). */
MUST_USE enum err verify_run(const struct verify_job *job, const struct verify_layout *l, uint64_t global_batch,
                             struct verify_result *out, struct buf *why);
/* The global batch of the job on one rank. */
MUST_USE enum err verify_global_batch(const struct verify_job *job, uint64_t *global_batch);
/* The layouts that `all` stands for: every axis alone and in pairs. */
extern const char *const verify_layouts[];
extern const size_t verify_layouts_count;
/* Find what differs first in step `step` (from 1): runs both again with fine hashes. */
MUST_USE enum err verify_explain(const struct verify_job *job, const struct verify_layout *a,
                                 const struct verify_layout *b, uint64_t global_batch, uint32_t step, char where[256]);

#endif
