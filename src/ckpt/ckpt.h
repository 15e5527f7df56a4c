/* Checkpoints: RUN/checkpoints/step-N/ with config.json, model.safetensors, tokenizer files (a Hugging Face model
 * folder), optimizer.safetensors, trainer_state.json and manifest.json with sizes and hashes, written last. Sees named
 * tensors, no layers. Written aside (step-N.tmp), fsynced, renamed, parent fsynced; then `latest` likewise.
 * docs/formats.md. */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include "base/buf.h"
#include "base/err.h"

/* A piece of a tensor that this rank holds. The tensor is seen as a matrix with rows of ckpt_row_length elements; the
 * piece is the elements [begin, end), in row-major order inside the box, of rows [row0, row0 + rows) and columns
 * [col0, col0 + cols). */
struct ckpt_box {
    uint64_t row0, rows, col0, cols;
    uint64_t begin, end;
    float *data; /* fp32; points at element `begin` */
};

struct ckpt_tensor {
    const char *name;
    uint32_t rank; /* number of dimensions, 1..4 */
    uint64_t shape[4];
    /* What this rank wants of it when reading; no box: the tensor is known, but not wanted here. Not used when saving:
     * ckpt_source gives the values. */
    const struct ckpt_box *boxes;
    size_t boxes_count;
    bool optional; /* a file may lack it (lm_head.weight of a tied model); then it has no boxes */
    /* The tensor whose values it must have where a file has both: the embedding of a tied model. NULL: none. */
    const char *same_as;
    bool by_id; /* a row for each id of the vocabulary: padding rows may follow (ckpt_drop_padding) */
    uint64_t row_length; /* of the matrix as which boxes see the tensor; 0: shape[1] x shape[2] x ... */
};

struct ckpt_file {
    const char *name; /* "model.safetensors" */
    const struct ckpt_tensor *tensors;
    size_t count;
};

struct ckpt_text {
    const char *name; /* "config.json" */
    const char *text;
};

/* Where the values of tensors that are being saved come from. fetch sets *values to all elements, in row-major order,
 * of tensor number `tensor` of file number `file`; they must stay until the next call. It is called once for each
 * tensor, file after file, in each in the order of ckpt_order: so ranks that hold pieces know which tensor is gathered
 * next. Its error ends the save; after any other error of the save it is not called again. */
struct ckpt_source {
    enum err (*fetch)(void *arg, size_t file, size_t tensor, const float **values);
    void *arg;
};

struct ckpt_content {
    uint64_t step;
    const struct ckpt_file *files;
    size_t files_count;
    struct ckpt_source source;
    const struct ckpt_text *texts;
    size_t texts_count;
    /* Called with the folder being written, to add files (the tokenizer); may be NULL. */
    enum err (*extra)(void *arg, const char *folder);
    void *extra_arg;
    uint64_t state_hash; /* recorded in the manifest */
};

/* order[i]: the number of the tensor that is i-th in a file: ascending name. Pure; the same on every rank. */
void ckpt_order(const struct ckpt_tensor *tensors, size_t count, size_t *order);
/* Save to `checkpoints`/step-N, read back and verified (also the state hash, from the tensors of model.safetensors,
 * which must be among the files). An existing step-N is replaced only after the new one is complete. Afterwards deletes
 * the oldest complete checkpoints beyond total_limit (0: keep all); checkpoints of later steps are neither counted nor
 * deleted, but named in a warning. On error the previous checkpoints are as before. The process must ignore SIGXFSZ, so
 * that a limit on file sizes is an error and not a signal. */
MUST_USE enum err ckpt_save(const char *checkpoints, const struct ckpt_content *c, uint64_t total_limit);

struct ckpt; /* an open checkpoint: verified manifest, mapped tensor files */

/* `path`: a step folder, or a run folder or its checkpoints folder (the newest complete step: `latest` is a hint that
 * is never trusted alone). A folder without manifest.json but with model.safetensors or its index (a model from
 * elsewhere) opens too, without hashes; pickles are refused. Reports what is wrong with file and numbers (ERR_DATA). */
MUST_USE enum err ckpt_open(struct ckpt **out, const char *path);
void ckpt_close(struct ckpt *c);
/* Whether the folder `checkpoints` holds a step at all, complete or not (left-overs of a failed save do not count). */
MUST_USE enum err ckpt_exists(const char *checkpoints, bool *exists);
/* The highest step up to `last` of which `checkpoints` has a complete one: a manifest, and files of the sizes it lists;
 * 0: none. */
MUST_USE enum err ckpt_newest_step(const char *checkpoints, uint64_t last, uint64_t *step);
const char *ckpt_folder(const struct ckpt *c);
uint64_t ckpt_step(const struct ckpt *c);      /* 0 for a foreign model */
bool ckpt_has_manifest(const struct ckpt *c);
uint64_t ckpt_state_hash(const struct ckpt *c); /* as recorded */
bool ckpt_has_file(const struct ckpt *c, const char *file);
/* Fill the boxes of `tensors` from one tensor file: names and shapes must match exactly, whether they have boxes or
 * not; missing, additional and misshaped tensors are all listed in one error. With a manifest every tensor is read and
 * its hash verified, else only those with boxes are read. BF16 and F16 are widened exactly; other types are refused by
 * name. Not collective: ranks read at the same time, and each verifies all it reads. */
MUST_USE enum err ckpt_read(struct ckpt *c, const char *file, const struct ckpt_tensor *tensors, size_t count);
/* Let ckpt_read take, of tensors that have a row for each id, the first rows where a file without manifest has more. */
void ckpt_drop_padding(struct ckpt *c);
/* What ckpt_read has left out, a sentence a line; "" when nothing. Valid until the next ckpt_read or ckpt_close. */
const char *ckpt_notes(const struct ckpt *c);
/* Whether a model folder has weights, or a pickle that ckpt_open would refuse: fresh weights are not meant then. */
MUST_USE enum err ckpt_has_weights(const char *folder, bool *has);
/* Elements of a row of the tensor as boxes see it, and how many rows it has then. */
uint64_t ckpt_row_length(const struct ckpt_tensor *t);
uint64_t ckpt_rows(const struct ckpt_tensor *t);
/* The box that is all of the tensor. */
struct ckpt_box ckpt_box_whole(const struct ckpt_tensor *t, float *data);
/* Put a piece into the whole tensor `full`, whose rows have row_length elements. */
void ckpt_box_store(const struct ckpt_box *b, uint64_t row_length, float *full);
/* Fill a piece with what `values`, elements [first, first + count) of the tensor, has of it: in one call from the whole
 * tensor, or in several from a tensor that passes by in blocks. */
void ckpt_box_load(const struct ckpt_box *b, uint64_t row_length, uint64_t first, uint64_t count, const float *values);
/* The text of a file of the folder, verified against the manifest. */
MUST_USE enum err ckpt_read_text(struct ckpt *c, const char *name, struct buf *out);
/* Verify everything: sizes, hashes, header rules, state hash. Of a run: each of its checkpoints. Unless quiet, one line
 * (log_note) for each that is right. */
MUST_USE enum err ckpt_verify(const char *path, bool quiet);
/* One line a tensor: name, shape, type, hash; then totals. */
MUST_USE enum err ckpt_show(const char *path, struct buf *out);
/* The state hash computed from the tensors of model.safetensors. */
MUST_USE enum err ckpt_compute_hash(const char *path, uint64_t *hash);
/* How two checkpoints differ. */
struct ckpt_diff {
    uint64_t tensors, different;
    bool suspicious; /* two different steps with equal bits: one of them was written from stale data */
};
/* Compare model.safetensors and every tensor file that both have: one line a tensor (equal, or how many elements
 * differ, the first of them, by number and by place, and the largest difference). */
MUST_USE enum err ckpt_diff(const char *a, const char *b, struct buf *out, struct ckpt_diff *sum);
/* Delete left-over step-N.tmp folders and finish a replacement that was interrupted (step-N.old). */
MUST_USE enum err ckpt_clean(const char *checkpoints);

#endif
