/* What a rank keeps of the parameters, gradients and moments of its part of the model, and how that is shared over the
 * ranks that have the same part ("data" ranks: data- and context-parallel): ZeRO (Rajbhandari et al., "ZeRO: memory
 * optimizations toward training trillion parameter models", 2020).
 *
 *   stage            0         1              2              3
 *   parameters       all       all            all            slice
 *   gradients        all       all            slice          slice
 *   moments          all       slice          slice          slice
 *
 * Each bucket of the registry is cut into one slice for each data rank. What is not kept is in work buffers while it is
 * used: two for the gradients of layers, so that one is reduced while the next is computed, else one of each kind. */
#ifndef TRAIN_HOLDINGS_H
#define TRAIN_HOLDINGS_H

#include "model/model.h"
#include "train/ranks.h"

struct reducer; /* the thread that reduces gradients beside the computation */

/* One bucket. Pointers are at element lo of the range they belong to. */
struct holding {
    struct order_range slice; /* this rank's part */
    struct order_range p_at, g_at, m_at; /* ranges of the bucket that p, g and m, v hold */
    float *p, *m, *v;
    int64_t *g;
    uint64_t *bounds; /* [data ranks + 1] slices of all */
};

struct holdings {
    const struct ranks *ranks;
    const struct registry *reg;
    struct kern *kern;
    uint32_t stage;     /* 0 when there is one data rank */
    struct holding *of; /* heap, [buckets] */
    uint64_t *bounds;   /* heap: of all buckets */
    float **p;          /* [buckets]: what the model uses now; NULL: not here */
    int64_t **g;
    float *work_p[BUCKET_KINDS];
    int64_t *work_g[BUCKET_KINDS][2];
    uint32_t turn;      /* of the two buffers of layers */
    struct reducer *reducer; /* NULL: nothing to reduce */
    bool last_micro;    /* gradients of the chunk in progress are complete after it */
    bool tied_here;     /* the embedding is used by the head, too: its gradient is complete at its second use */
    uint32_t embed_uses;
    bool hashing;       /* keep the checksum of what this rank gives: */
    uint64_t given;     /* set to 0 before a step; complete after holdings_finish */
};

/* Decide who keeps what. Not collective. */
MUST_USE enum err holdings_open(struct holdings *h, const struct ranks *r, const struct registry *reg, struct kern *k,
                                const struct conf *c);
void holdings_close(struct holdings *h);
/* Take memory from the arena (measure, then back). */
void holdings_layout(struct holdings *h, struct arena *a);
/* Start the reducer; give the model its storage. After the backed layout. */
MUST_USE enum err holdings_start(struct holdings *h, struct model *m);
/* Bytes kept of parameters, gradients and moments, without work buffers; and the work buffers. */
uint64_t holdings_bytes(const struct holdings *h, uint64_t *work);

/* Before each backward operation: whether the chunk's gradients are complete after it. */
void holdings_expect(struct holdings *h, bool last_micro);
/* Add a bucket's gradients, as this rank alone computed them, to `given`. */
void holdings_hash(struct holdings *h, uint32_t bucket, const int64_t *g);
/* Wait until all gradients are reduced: then each slice (of a tied embedding on both stages) holds the sum over all
 * ranks. Collective. */
MUST_USE enum err holdings_finish(struct holdings *h);
/* Stage 0: the sums of all slices on every rank. Collective over the data ranks. */
MUST_USE enum err holdings_spread_gradients(struct holdings *h);
/* Stages 1, 2: the new parameters of all slices on every rank. Collective likewise. */
MUST_USE enum err holdings_spread_parameters(struct holdings *h);
/* Forget all gradients. */
void holdings_zero_gradients(struct holdings *h);

/* A stretch of a shard that lies in elements `at` of its bucket. */
struct piece {
    uint64_t begin, end; /* elements of the shard's box */
};
/* The part of shard s that lies in `at`; begin == end: none. */
struct piece holdings_piece(const struct shard *s, struct order_range at);

#endif
