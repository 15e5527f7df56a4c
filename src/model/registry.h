/* The registry of logical tensors: every parameter with its Hugging Face name, full shape, initialisation, decay
 * group and place in the flat storage. Initialisation, optimizer, checkpoints and hashes all work on this list, so
 * none of them knows a family. Not collective. */
#ifndef MODEL_REGISTRY_H
#define MODEL_REGISTRY_H

#include "base/err.h"
#include "conf/model_conf.h"

#define REGISTRY_NAME_BYTES 96

enum init_rule {
    INIT_NORMAL,   /* mean 0, standard deviation initializer_range */
    INIT_RESIDUAL, /* the same, divided by sqrt(2 layers): projections that write to the residual stream, as GPT-2
                    * does; here in every family (transformers leaves Llama's undivided) */
    INIT_ONES,
    INIT_ZEROS,
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
    SLOT_Q, /* with a fused projection, Q, K and V name columns of one tensor */
    SLOT_K,
    SLOT_V,
    SLOT_Q_BIAS,
    SLOT_K_BIAS,
    SLOT_V_BIAS,
    SLOT_OUT,
    SLOT_OUT_BIAS,
    SLOT_NORM2_GAIN,
    SLOT_NORM2_BIAS,
    SLOT_GATE,
    SLOT_UP,
    SLOT_UP_BIAS,
    SLOT_DOWN,
    SLOT_DOWN_BIAS,
    SLOT_COUNT,
};

struct param {
    char name[REGISTRY_NAME_BYTES];
    uint32_t rank;
    uint64_t shape[2];  /* as Hugging Face stores it; shape[1] is 1 for vectors */
    uint64_t elements;  /* shape[0] * shape[1] */
    uint64_t offset;    /* first element in the flat storage; a multiple of 16 */
    uint64_t stored;    /* elements reserved there: vocabulary rows are padded with zeros */
    enum init_rule init;
    bool decay; /* weight decay applies: tensors of two dimensions */
};

struct registry {
    struct param *list;
    uint32_t count;
    uint64_t elements; /* logical parameters */
    uint64_t stored;   /* length of the flat storage */
    uint32_t *slot_of; /* [layers][SLOT_COUNT], index into list or UINT32_MAX; layer 0 also holds the global slots */
};

MUST_USE enum err registry_init(struct registry *r, const struct model_conf *c);
void registry_release(struct registry *r);
/* The tensor in a slot, NULL when the family has none. layer is ignored for global slots. */
const struct param *registry_find(const struct registry *r, uint64_t layer, enum slot slot);

/* How the families differ: the whole description of each. */
struct family_desc {
    bool layer_norm;      /* LayerNorm with bias; else RMSNorm */
    bool learned_positions; /* else rotary */
    bool gated;           /* SwiGLU; else GELU (tanh form) */
    bool in_out;          /* weights are stored [in][out] (GPT-2's Conv1D); else [out][in] */
};
const struct family_desc *family_desc(enum family family);

#endif
