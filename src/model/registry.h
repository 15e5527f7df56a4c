/* The registry of logical tensors: every parameter with its Hugging Face name, full shape, initialisation, decay
 * group and partition rule; and of the boxes of them that this rank holds. Initialisation, optimizer, checkpoints and
 * hashes all work on boxes of logical tensors, so none of them knows a family or a layout. Not collective. */
#ifndef MODEL_REGISTRY_H
#define MODEL_REGISTRY_H

#include "base/err.h"
#include "conf/model_conf.h"
#include "kern/kern.h"
#include "part/layout.h"

#define REGISTRY_NAME_BYTES 96
#define REGISTRY_NONE UINT32_MAX
/* Model chunks of one pipeline stage, at most. */
#define REGISTRY_CHUNKS_MAX 64u

enum init_rule {
    INIT_NORMAL,   /* mean 0, standard deviation initializer_range */
    INIT_RESIDUAL, /* the same, divided by sqrt(2 layers): projections that write to the residual stream, as GPT-2
                    * does; here in every family (transformers leaves Llama's undivided) */
    INIT_ONES,
    INIT_ZEROS,
};

/* How tensor parallelism divides a tensor. */
enum split_rule {
    SPLIT_NONE, /* every rank has all of it */
    SPLIT_ROWS,
    SPLIT_COLS,
};

/* What a tensor is to the decoder. Slots from SLOT_LAYER_FIRST on exist once per layer. */
enum slot {
    SLOT_EMBED,
    SLOT_POSITIONS,
    SLOT_FINAL_GAIN,
    SLOT_FINAL_BIAS,
    SLOT_HEAD,
    SLOT_LAYER_FIRST,
    SLOT_NORM1_GAIN = SLOT_LAYER_FIRST,
    SLOT_NORM1_BIAS,
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_Q_BIAS,
    SLOT_K_BIAS,
    SLOT_V_BIAS,
    SLOT_Q_GAIN, /* of the norms of queries and keys */
    SLOT_K_GAIN,
    SLOT_OUT,
    SLOT_OUT_BIAS,
    SLOT_AFTER1_GAIN, /* of the norm behind attention (NORMS_AFTER, NORMS_BOTH) */
    SLOT_NORM2_GAIN,
    SLOT_NORM2_BIAS,
    SLOT_GATE,
    SLOT_UP,
    SLOT_GATE_BIAS,
    SLOT_UP_BIAS,
    SLOT_DOWN,
    SLOT_DOWN_BIAS,
    SLOT_AFTER2_GAIN, /* of the norm behind the feed-forward layer */
    SLOT_COUNT,
};

/* A logical tensor. Every rank lists all of them, in the same order; the index is part of a fresh weight's
 * coordinates. */
struct param {
    char name[REGISTRY_NAME_BYTES];
    uint32_t rank;
    uint64_t shape[2]; /* as Hugging Face stores it; shape[1] is 1 for vectors */
    uint64_t elements; /* shape[0] * shape[1] */
    uint64_t view_cols; /* row length of the matrix in which boxes are rectangles: shape[1]; or 3 head_dim shape[1] of
                         * GPT-NeoX's fused projection, whose rows are queries, keys and values of one head after
                         * another */
    enum init_rule init;
    enum split_rule split;
    enum slot slot; /* the first of them for a tensor that fills several */
    bool decay; /* weight decay applies: tensors of two dimensions */
};

/* A box of a logical tensor that this rank holds, row-major and contiguous in its bucket. The parts of a fused
 * projection (queries, keys, values; gate, up) are boxes of their own; their rows (in GPT-2 columns) are numbered as if
 * one part stood behind the other, also where the file has them head by head: see registry_box. */
struct shard {
    uint32_t param, bucket;
    uint64_t row0, rows, col0, cols; /* real elements: padding rows of a vocabulary are stored after them */
    uint64_t offset;                 /* first element in the bucket; a multiple of 16 */
    uint64_t stored;                 /* elements reserved there */
    bool replicated; /* every rank of the tensor-parallel group holds this box */
    bool copy;       /* the last stage's copy of the embedding, which the first stage owns */
};

enum bucket_kind { BUCKET_VOCAB, BUCKET_POSITIONS, BUCKET_LAYER, BUCKET_FINAL, BUCKET_KINDS };

/* Shards that are reduced, gathered and divided over the data-parallel ranks together: a layer, or a global tensor. The
 * replicated shards come first. */
struct bucket {
    enum bucket_kind kind;   /* two of one kind are never in use at the same time */
    uint64_t offset, stored; /* place and length in the rank's flat storage */
    uint64_t replicated;     /* elements of its first part, whose gradients are summed over the tensor-parallel ranks */
    uint32_t first_shard, shards;
};

/* Which part of the model a rank holds. */
struct share {
    uint32_t tp, tp_rank;
    struct pipe pipe;
    uint32_t stage;
};

struct registry {
    struct param *list;
    uint32_t count;
    uint64_t elements; /* logical parameters */
    const char *tied_head; /* the head's name in files, of a model that takes the embedding for it; else NULL */
    struct shard *shards;
    uint32_t shard_count;
    struct bucket *buckets;
    uint32_t bucket_count;
    uint64_t stored;   /* length of the rank's flat storage */
    uint32_t *slot_of; /* [layers][SLOT_COUNT], index into shards or REGISTRY_NONE; layer 0 also holds the global
                        * slots */
    uint32_t embed_bucket; /* of the embedding or its copy, when it is tied and another stage has the other one; else
                            * REGISTRY_NONE */
};

MUST_USE enum err registry_init(struct registry *r, const struct model_conf *c, const struct share *share);
void registry_release(struct registry *r);
/* The shard in a slot, NULL when the family or this rank has none. layer is ignored for global slots. */
const struct shard *registry_find(const struct registry *r, uint64_t layer, enum slot slot);
/* A shard's place in the view of its tensor with rows of view_cols elements. */
struct view_box {
    uint64_t row0, rows, col0, cols;
};
struct view_box registry_box(const struct registry *r, const struct shard *s);
/* Where the elements of a shard lie in its logical tensor. */
struct box_map registry_map(const struct registry *r, const struct shard *s);
/* Whether this rank's first virtual stage is the model's first, its last one the last. */
bool share_is_first(const struct share *s);
bool share_is_last(const struct share *s);
/* The whole model on one rank. */
struct share share_all(uint64_t layers);

/* How a family stores what others have, too; what it is made of, struct model_conf says. */
struct family_desc {
    bool in_out; /* weights are stored [in][out] (GPT-2's Conv1D); else [out][in] */
};
const struct family_desc *family_desc(enum family family);

#endif
