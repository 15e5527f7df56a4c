/* An open checkpoint, shared by the files of this module. Not collective. */
#ifndef CKPT_CKPT_OPEN_H
#define CKPT_CKPT_OPEN_H

#include "ckpt/st_set.h"

struct ckpt {
    char *folder;
    bool has_manifest; /* false: a model from elsewhere */
    struct manifest manifest;
    bool drop_padding; /* see ckpt_drop_padding */
    struct buf notes;
};

/* Open the tensors of a file of the checkpoint; with a manifest its header must agree with it. model.safetensors of a
 * model from elsewhere may be shards with an index. Close with st_set_close. */
MUST_USE enum err load_tensors(const struct ckpt *c, const char *file, struct st_set *out);

#endif
