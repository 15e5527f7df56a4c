/* Why this exists: one function decides whether the bytes on the disk are those that were saved. Saving uses it before
 * anything old is deleted, opening a run uses it to choose a checkpoint, `invar ckpt verify` uses it for people. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ckpt/manifest.h"

#define HINT " | the file was damaged after it was saved: use another checkpoint"

enum err manifest_hash_file(const char *path, uint64_t *bytes, char hash[33])
{
    struct hash_stream *h = NULL;
    void *block = NULL;
    enum err err = OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    *bytes = 0;
    if (fd < 0) {
        return FAIL(errno == ELOOP ? ERR_DATA : ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    TRY_OUT(mem_alloc(&block, 1, ST_BLOCK_BYTES));
    h = hash_stream_begin();
    if (h == NULL) {
        err = FAIL(ERR_RESOURCE, "out of memory for a hash");
        goto out;
    }
    for (;;) {
        ssize_t got = read(fd, block, ST_BLOCK_BYTES);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            err = FAIL(ERR_IO, "%s: cannot be read at byte %" PRIu64 ": %s", path, *bytes, strerror(errno));
            goto out;
        }
        if (got == 0) {
            break;
        }
        hash_stream_add(h, block, (size_t)got);
        *bytes += (uint64_t)got;
    }
out:
    if (h != NULL) {
        hash_stream_end(h, hash);
    }
    free(block);
    close(fd);
    return err;
}

static enum err check_size(const struct manifest_file *f, const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0) {
        return FAIL(ERR_DATA, "%s: %s, the manifest lists it with %" PRIu64 " bytes" HINT, path,
                    errno == ENOENT ? "is missing" : strerror(errno), f->bytes);
    }
    if (!S_ISREG(st.st_mode)) {
        return FAIL(ERR_DATA, "%s: not a regular file, as every file of a checkpoint is" HINT, path);
    }
    if ((uint64_t)st.st_size != f->bytes) {
        return FAIL(ERR_DATA, "%s: %" PRIu64 " bytes, the manifest says %" PRIu64 HINT, path, (uint64_t)st.st_size,
                    f->bytes);
    }
    return OK;
}

enum err manifest_check_sizes(const struct manifest *m, const char *folder)
{
    enum err err = OK;
    for (size_t i = 0; i < m->count && err == OK; i++) {
        char *path;
        err = file_join(&path, folder, m->files[i].name);
        if (err == OK) {
            err = check_size(&m->files[i], path);
        }
        free(path);
    }
    return err;
}

static bool same_place(const struct st_tensor *a, const struct st_tensor *b)
{
    bool same = strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank && a->begin == b->begin;
    for (uint32_t d = 0; same && d < a->rank; d++) {
        same = a->shape[d] == b->shape[d];
    }
    return same;
}

enum err manifest_match(const struct manifest_file *f, const struct st_file *file)
{
    for (size_t i = 0; i < f->count && i < file->count; i++) {
        if (!same_place(&f->tensors[i], &file->tensors[i])) {
            return FAIL(ERR_DATA, "%s: tensor %zu of the header is %.200s, the manifest has %.200s with another name, "
                        "dtype, shape or offset" HINT, file->path, i, file->tensors[i].name, f->tensors[i].name);
        }
    }
    if (f->count != file->count) {
        return FAIL(ERR_DATA, "%s: %zu tensors, the manifest has %zu" HINT, file->path, file->count, f->count);
    }
    return OK;
}

enum err manifest_state_hash(const struct st_file *f, uint64_t *hash)
{
    *hash = 0;
    for (size_t i = 0; i < f->count; i++) {
        const struct st_tensor *t = &f->tensors[i];
        if (!t->dtype->floats) {
            return FAIL(ERR_DATA, "%s: %.200s: dtype %s; a state hash is defined for F32, F16 and BF16", f->path,
                        t->name, t->dtype->name);
        }
        *hash += hash_tensor(t->name, t->sum);
    }
    return OK;
}

/* Header, tensors and whole of one tensor file. */
static enum err verify_tensors(const struct manifest_file *f, const char *path, struct manifest_sums *sums)
{
    struct st_file file;
    TRY(st_open(&file, path, false));
    enum err err;
    TRY_OUT(manifest_match(f, &file));
    TRY_OUT(st_scan(&file));
    for (size_t i = 0; i < f->count; i++) {
        const struct st_tensor *t = &file.tensors[i];
        if (strcmp(t->hash, f->tensors[i].hash) != 0) {
            err = FAIL(ERR_DATA, "%s: %.200s (bytes %" PRIu64 " to %" PRIu64 "): hash %s, the manifest says %s" HINT,
                       path, t->name, file.data_start + t->begin, file.data_start + t->end, t->hash,
                       f->tensors[i].hash);
            goto out;
        }
        sums->not_finite += t->not_finite;
    }
    if (strcmp(file.hash, f->hash) != 0) {
        err = FAIL(ERR_DATA, "%s: hash %s, the manifest says %s; all tensors are as saved, so the damage is in the "
                   "header (bytes 0 to %" PRIu64 ")" HINT, path, file.hash, f->hash, file.data_start);
        goto out;
    }
    sums->tensors += f->count;
    if (strcmp(f->name, MODEL_NAME) == 0) {
        TRY_OUT(manifest_state_hash(&file, &sums->state_hash));
    }
out:
    st_close(&file);
    return err;
}

static enum err verify_file(const struct manifest_file *f, const char *path, struct manifest_sums *sums)
{
    sums->files++;
    sums->bytes += f->bytes;
    if (f->tensor_file) {
        return verify_tensors(f, path, sums);
    }
    uint64_t bytes;
    char hash[33];
    TRY(manifest_hash_file(path, &bytes, hash));
    if (bytes != f->bytes || strcmp(hash, f->hash) != 0) {
        return FAIL(ERR_DATA, "%s: %" PRIu64 " bytes with hash %s, the manifest says %" PRIu64 " and %s" HINT, path,
                    bytes, hash, f->bytes, f->hash);
    }
    return OK;
}

enum err manifest_verify(const struct manifest *m, const char *folder, struct manifest_sums *sums)
{
    *sums = (struct manifest_sums){ 0 };
    TRY(manifest_check_sizes(m, folder));
    enum err err = OK;
    for (size_t i = 0; i < m->count && err == OK; i++) {
        char *path;
        err = file_join(&path, folder, m->files[i].name);
        if (err == OK) {
            err = verify_file(&m->files[i], path, sums);
        }
        free(path);
    }
    if (err == OK && sums->state_hash != m->state_hash) {
        err = FAIL(ERR_DATA, "%s: the tensors of " MODEL_NAME " have state hash %016" PRIx64 ", %016" PRIx64
                   " was recorded | the weights that were saved are not those of the run", folder, sums->state_hash,
                   m->state_hash);
    }
    return err;
}
