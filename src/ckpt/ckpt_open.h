/* An open checkpoint, shared by the files of this module. Not collective. */
#ifndef CKPT_CKPT_OPEN_H
#define CKPT_CKPT_OPEN_H

#include "ckpt/manifest.h"

struct ckpt {
    char *folder;
    bool has_manifest; /* false: a model from elsewhere */
    struct manifest manifest;
};

/* Open a tensor file of the checkpoint; with a manifest its header must agree with it. Close with st_close. */
MUST_USE enum err load_tensor_file(const struct ckpt *c, const char *file, struct st_file *out);

#endif
