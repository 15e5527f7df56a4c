/* Why this exists: which checkpoint a path means. The newest folder may be damaged and `latest` may be old, empty or
 * garbage, so neither name is trusted: of a run, the newest checkpoint is taken whose every byte agrees with its
 * manifest, and each one passed over is named with the reason. A checkpoint that is named outright is never replaced by
 * another. Invariant: an open checkpoint with a manifest has had its manifest and all sizes checked; contents are
 * checked when they are read. */
#include <inttypes.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/ckpt_open.h"
#include "ckpt/gguf.h"
#include "ckpt/pickle.h"
#include "ckpt/steps.h"

/* The last part of a path without trailing slashes is step-N (of any kind). */
static bool is_step_path(const char *path, uint64_t *step, enum step_kind *kind)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') {
        start--;
    }
    char name[64];
    if (end - start >= sizeof(name)) {
        return false;
    }
    memcpy(name, path + start, end - start);
    name[end - start] = '\0';
    return steps_parse(name, step, kind);
}

static enum err has_file(const char *folder, const char *name, bool *has)
{
    char *path;
    enum err err = file_join(&path, folder, name);
    *has = err == OK && file_exists(path);
    free(path);
    return err;
}

static enum err fail_incomplete(const char *folder)
{
    return FAIL(ERR_DATA, "%s: no " MANIFEST_NAME ": this checkpoint is not complete | use another checkpoint", folder);
}

/* Read the manifest of `folder`; deep: read and compare everything it lists. */
static enum err open_step(struct ckpt *c, const char *folder, bool deep)
{
    uint64_t step;
    enum step_kind kind;
    struct manifest_sums sums;
    bool has;
    TRY(has_file(folder, MANIFEST_NAME, &has));
    if (!has) {
        return fail_incomplete(folder);
    }
    TRY(manifest_read(&c->manifest, folder));
    if (is_step_path(folder, &step, &kind) && step != c->manifest.step) {
        return FAIL(ERR_DATA, "%s: its manifest is of step %" PRIu64 " | files of two checkpoints were mixed, or the "
                    "folder was renamed: name it step-%" PRIu64, folder, c->manifest.step, c->manifest.step);
    }
    TRY(deep ? manifest_verify(&c->manifest, folder, &sums) : manifest_check_sizes(&c->manifest, folder));
    c->has_manifest = true;
    return mem_copy_string(&c->folder, folder, strlen(folder));
}

static void warn_about_latest(const char *checkpoints, uint64_t taken)
{
    uint64_t latest;
    if (!steps_get_latest(checkpoints, &latest)) {
        log_warning("%s/latest is missing or damaged; step-%" PRIu64 " is the newest complete checkpoint and is taken",
                    checkpoints, taken);
    } else if (latest != taken) {
        log_warning("%s/latest names step-%" PRIu64 "; step-%" PRIu64 " is the newest complete checkpoint and is taken",
                    checkpoints, latest, taken);
    }
}

/* The newest complete checkpoint; *found stays false when there is no folder of a step at all. */
static enum err open_newest(struct ckpt *c, const char *checkpoints, bool *found)
{
    struct step_list steps;
    TRY(steps_list(&steps, checkpoints));
    size_t tried = 0;
    enum err err = OK;
    for (size_t i = 0; i < steps.count && c->folder == NULL; i++) {
        if (steps.list[i].kind == STEP_TEMP) {
            continue;
        }
        tried++;
        if (open_step(c, steps.list[i].path, true) != OK) {
            log_warning("%s is passed over: %s", steps.list[i].path, err_message());
            manifest_release(&c->manifest);
            c->has_manifest = false;
        }
    }
    *found = tried > 0;
    if (c->folder != NULL) {
        warn_about_latest(checkpoints, c->manifest.step);
    } else if (tried > 0) {
        err = FAIL(ERR_DATA, "%s: none of %zu checkpoints is complete and undamaged | the warnings above say why",
                   checkpoints, tried);
    }
    steps_release(&steps);
    return err;
}

/* A model folder without a manifest: from elsewhere. */
static enum err open_foreign(struct ckpt *c, const char *folder)
{
    uint64_t step;
    enum step_kind kind;
    bool has, has_index;
    TRY(has_file(folder, MODEL_NAME, &has));
    if (has && is_step_path(folder, &step, &kind)) {
        return fail_incomplete(folder);
    }
    TRY(has_file(folder, INDEX_NAME, &has_index));
    if (has || has_index) {
        return mem_copy_string(&c->folder, folder, strlen(folder));
    }
    TRY(pickle_refuse(folder));
    return FAIL(ERR_DATA, "%s: neither a checkpoint (" MANIFEST_NAME "), nor a run with checkpoints, nor a model ("
                MODEL_NAME ") | check the path", folder);
}

/* The folder of checkpoints that `path` stands for: path/checkpoints or path itself. */
static enum err find_checkpoints(const char *path, char **out)
{
    TRY(file_join(out, path, "checkpoints"));
    if (!file_is_folder(*out)) {
        free(*out);
        *out = NULL;
        TRY(mem_copy_string(out, path, strlen(path)));
    }
    return OK;
}

static enum err open_any(struct ckpt *c, const char *path)
{
    if (gguf_is(path)) {
        return FAIL(ERR_DATA, "%s: a GGUF file, a folder was expected | convert it first: invar ckpt convert %s FOLDER",
                    path, path);
    }
    if (!file_is_folder(path)) {
        return FAIL(ERR_DATA, "%s: %s | give the folder of a checkpoint, a run or a model", path,
                    file_exists(path) ? "not a folder" : "no such folder");
    }
    bool has, found = false;
    TRY(has_file(path, MANIFEST_NAME, &has));
    if (has) {
        return open_step(c, path, false);
    }
    char *checkpoints = NULL;
    enum err err;
    TRY_OUT(find_checkpoints(path, &checkpoints));
    TRY_OUT(open_newest(c, checkpoints, &found));
    if (!found) {
        TRY_OUT(open_foreign(c, path));
    }
out:
    free(checkpoints);
    return err;
}

enum err ckpt_open(struct ckpt **out, const char *path)
{
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(struct ckpt)));
    struct ckpt *c = block;
    enum err err = open_any(c, path);
    if (err != OK) {
        ckpt_close(c);
        return err;
    }
    *out = c;
    return OK;
}

enum err ckpt_exists(const char *checkpoints, bool *exists)
{
    struct step_list steps;
    *exists = false;
    if (!file_is_folder(checkpoints)) {
        return OK;
    }
    TRY(steps_list(&steps, checkpoints));
    for (size_t i = 0; i < steps.count; i++) {
        *exists = *exists || steps.list[i].kind != STEP_TEMP;
    }
    steps_release(&steps);
    return OK;
}

void ckpt_close(struct ckpt *c)
{
    if (c == NULL) {
        return;
    }
    manifest_release(&c->manifest);
    buf_release(&c->notes);
    free(c->folder);
    free(c);
}

const char *ckpt_folder(const struct ckpt *c)
{
    return c->folder;
}

uint64_t ckpt_step(const struct ckpt *c)
{
    return c->has_manifest ? c->manifest.step : 0;
}

bool ckpt_has_manifest(const struct ckpt *c)
{
    return c->has_manifest;
}

uint64_t ckpt_state_hash(const struct ckpt *c)
{
    return c->has_manifest ? c->manifest.state_hash : 0;
}

void ckpt_drop_padding(struct ckpt *c)
{
    c->drop_padding = true;
}

const char *ckpt_notes(const struct ckpt *c)
{
    return c->notes.data != NULL ? c->notes.data : "";
}

enum err ckpt_has_weights(const char *folder, bool *has)
{
    char *pickle = NULL;
    bool single, index;
    TRY(has_file(folder, MODEL_NAME, &single));
    TRY(has_file(folder, INDEX_NAME, &index));
    TRY(pickle_find(folder, &pickle));
    *has = single || index || pickle != NULL;
    free(pickle);
    return OK;
}

bool ckpt_has_file(const struct ckpt *c, const char *file)
{
    bool has;
    if (c->has_manifest) {
        return manifest_find(&c->manifest, file) != NULL;
    }
    return has_file(c->folder, file, &has) == OK && has;
}

enum err load_tensors(const struct ckpt *c, const char *file, struct st_set *out)
{
    *out = (struct st_set){ 0 };
    const struct manifest_file *listed = c->has_manifest ? manifest_find(&c->manifest, file) : NULL;
    if (!manifest_name_ok(file) || (c->has_manifest && (listed == NULL || !listed->tensor_file))) {
        return FAIL(ERR_DATA, "%s: its manifest lists no tensor file %s", c->folder, file);
    }
    if (!c->has_manifest && strcmp(file, MODEL_NAME) == 0) {
        return st_set_open_model(out, c->folder);
    }
    char *path;
    TRY(file_join(&path, c->folder, file));
    enum err err = st_set_open(out, path, !c->has_manifest);
    free(path);
    if (err == OK && listed != NULL) {
        err = manifest_match(listed, &out->files[0]);
    }
    return err;
}

enum err ckpt_read_text(struct ckpt *c, const char *name, struct buf *out)
{
    const struct manifest_file *listed = c->has_manifest ? manifest_find(&c->manifest, name) : NULL;
    if (!manifest_name_ok(name) || (c->has_manifest && listed == NULL)) {
        return FAIL(ERR_DATA, "%s: its manifest lists no %s", c->folder, name);
    }
    char *path, hash[33];
    TRY(file_join(&path, c->folder, name));
    size_t before = out->bytes;
    enum err err = file_read(path, (size_t)1 << 30, out);
    if (err == OK && listed != NULL) {
        hash128_hex(out->data + before, out->bytes - before, hash);
        if (strcmp(hash, listed->hash) != 0) {
            err =
                FAIL(ERR_DATA, "%s: hash %s, the manifest says %s | the file was damaged or edited after it was saved",
                     path, hash, listed->hash);
        }
    }
    free(path);
    return err;
}
