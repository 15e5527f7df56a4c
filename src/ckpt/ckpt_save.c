/* Why this exists: a job may be killed, or the machine may lose power, between any two instructions, and the disk may
 * fill at any byte; still a complete checkpoint must be found afterwards. The order of a save:
 *
 *   1. all files into step-N.tmp, each fsynced, manifest.json last; fsync of step-N.tmp
 *   2. read step-N.tmp back and compare every hash
 *   3. an existing step-N is renamed to step-N.old
 *   4. step-N.tmp is renamed to step-N; fsync of the parent folder      <- from here on the save has happened
 *   5. `latest`, by the same way of writing aside and renaming
 *   6. step-N.old and checkpoints beyond the limit are deleted
 *
 * Invariants: a folder named step-N was complete when it got that name. Nothing is deleted before step 4. A kill
 * between 3 and 4 leaves step-N.old, which the loader takes for step N as long as there is no step-N, and which
 * ckpt_clean (also the first thing a save does) renames back. A folder that is to be deleted is first renamed to
 * step-N.tmp, so a kill while deleting leaves nothing that looks like a checkpoint. A failed fsync is never repeated on
 * the same file: the save fails. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/manifest.h"
#include "ckpt/steps.h"

/* ---- 1: writing ---- */

static enum err write_text(const char *path, const void *text, size_t bytes)
{
    struct file_out f;
    TRY(file_out_open(&f, path));
    file_out_write(&f, text, bytes);
    return file_out_close(&f);
}

static enum err write_tensor_files(const struct ckpt_content *c, const char *folder, struct manifest *m)
{
    enum err err = OK;
    for (size_t i = 0; i < c->files_count && err == OK; i++) {
        char *path;
        struct st_written written = { 0 };
        err = file_join(&path, folder, c->files[i].name);
        if (err == OK) {
            err = st_write(path, &c->files[i], i, &c->source, &written);
        }
        struct manifest_file *f = &m->files[m->count++];
        *f = (struct manifest_file){ .name = c->files[i].name, .bytes = written.bytes, .tensor_file = true,
                                     .tensors = written.tensors, .count = written.count };
        memcpy(f->hash, written.hash, sizeof(f->hash));
        free(path);
    }
    return err;
}

static enum err write_texts(const struct ckpt_content *c, const char *folder, struct manifest *m)
{
    enum err err = OK;
    for (size_t i = 0; i < c->texts_count && err == OK; i++) {
        char *path;
        size_t bytes = strlen(c->texts[i].text);
        err = file_join(&path, folder, c->texts[i].name);
        if (err == OK) {
            err = write_text(path, c->texts[i].text, bytes);
        }
        struct manifest_file *f = &m->files[m->count++];
        *f = (struct manifest_file){ .name = c->texts[i].name, .bytes = bytes };
        hash128_hex(c->texts[i].text, bytes, f->hash);
        free(path);
    }
    return err;
}

/* Names in `folder` that the manifest does not have yet: files of the `extra` callback. They go to m->owned. */
static enum err find_extra(const char *folder, struct manifest *m)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return FAIL(ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
    }
    enum err err = OK;
    size_t capacity = 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || manifest_find(m, e->d_name) != NULL) {
            continue;
        }
        if (!manifest_name_ok(e->d_name)) {
            err = FAIL(ERR_DATA, "%s/%s: not a name for a file of a checkpoint", folder, e->d_name);
            goto out;
        }
        void *list = m->owned;
        TRY_OUT(mem_grow(&list, &capacity, m->owned_count + 1, sizeof(char *)));
        m->owned = list;
        TRY_OUT(mem_copy_string(&m->owned[m->owned_count], e->d_name, strlen(e->d_name)));
        m->owned_count++;
    }
out:
    closedir(dir);
    return err;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum err sync_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fsync(fd) != 0) {
        enum err err = FAIL(ERR_IO, "%s: fsync: %s", path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return err;
    }
    close(fd);
    return OK;
}

static enum err add_extra(const char *folder, struct manifest *m)
{
    TRY(find_extra(folder, m));
    if (m->owned_count == 0) {
        return OK;
    }
    qsort(m->owned, m->owned_count, sizeof(char *), by_text); /* the same manifest whatever the disk's order is */
    size_t capacity = m->count;
    void *files = m->files;
    TRY(mem_grow(&files, &capacity, m->count + m->owned_count, sizeof(struct manifest_file)));
    m->files = files;
    enum err err = OK;
    for (size_t i = 0; i < m->owned_count && err == OK; i++) {
        struct manifest_file *f = &m->files[m->count++];
        *f = (struct manifest_file){ .name = m->owned[i] };
        char *path;
        err = file_join(&path, folder, f->name);
        if (err == OK) {
            err = sync_file(path);
        }
        if (err == OK) {
            err = manifest_hash_file(path, &f->bytes, f->hash);
        }
        free(path);
    }
    return err;
}

static enum err write_manifest(const char *folder, const struct manifest *m)
{
    struct buf text = { 0 };
    char *path = NULL;
    enum err err;
    TRY_OUT(manifest_print(m, &text));
    TRY_OUT(file_join(&path, folder, MANIFEST_NAME));
    TRY_OUT(write_text(path, text.data, text.bytes));
    TRY_OUT(file_sync_folder(folder));
out:
    buf_release(&text);
    free(path);
    return err;
}

static enum err write_folder(const struct ckpt_content *c, const char *folder)
{
    struct manifest m = { .step = c->step, .state_hash = c->state_hash };
    void *files;
    TRY(mem_alloc(&files, c->files_count + c->texts_count, sizeof(struct manifest_file)));
    m.files = files;
    enum err err;
    TRY_OUT(write_tensor_files(c, folder, &m));
    TRY_OUT(write_texts(c, folder, &m));
    if (c->extra != NULL) {
        TRY_OUT(c->extra(c->extra_arg, folder));
    }
    TRY_OUT(add_extra(folder, &m));
    TRY_OUT(write_manifest(folder, &m));
out:
    manifest_release(&m);
    return err;
}

/* ---- 2: reading back ---- */

static enum err read_back(const char *folder)
{
    struct manifest m;
    struct manifest_sums sums;
    TRY(manifest_read(&m, folder));
    enum err err = manifest_verify(&m, folder, &sums);
    manifest_release(&m);
    return err;
}

/* ---- 3 to 6 ---- */

static enum err commit(const char *temp, const char *final, const char *old)
{
    bool replaces = file_exists(final);
    if (replaces) {
        TRY(file_remove_tree(old));
        TRY(file_rename(final, old));
    }
    enum err err = file_rename(temp, final);
    if (err != OK && replaces && !file_exists(final) && rename(old, final) != 0) {
        log_warning("%s: cannot be renamed back to %s: %s", old, final, strerror(errno));
    }
    return err;
}

/* Delete a folder that may look like a checkpoint. What cannot be deleted is no reason to fail a save that happened. */
static void delete_step(const char *checkpoints, const struct step_entry *e)
{
    char *temp;
    enum err err = steps_path(&temp, checkpoints, e->step, STEP_TEMP);
    if (err == OK) {
        err = file_remove_tree(temp);
    }
    if (err == OK && rename(e->path, temp) != 0) {
        err = FAIL(ERR_IO, "%s: cannot be renamed: %s", e->path, strerror(errno));
    }
    if (err == OK) {
        err = file_remove_tree(temp);
    }
    if (err != OK) {
        log_warning("an old checkpoint stays: %s", err_message());
    }
    free(temp);
}

static bool is_complete(const struct step_entry *e)
{
    struct manifest m;
    bool good = manifest_read(&m, e->path) == OK && m.step == e->step && manifest_check_sizes(&m, e->path) == OK;
    manifest_release(&m);
    return good;
}

enum err ckpt_newest_step(const char *checkpoints, uint64_t last, uint64_t *step)
{
    struct step_list steps;
    *step = 0;
    if (!file_is_folder(checkpoints)) {
        return OK;
    }
    TRY(steps_list(&steps, checkpoints));
    for (size_t i = 0; i < steps.count && *step == 0; i++) { /* newest first */
        const struct step_entry *e = &steps.list[i];
        *step = e->kind == STEP_PLAIN && e->step <= last && is_complete(e) ? e->step : 0;
    }
    steps_release(&steps);
    return OK;
}

/* Keep the `limit` newest complete checkpoints up to `step`, which was just saved. Checkpoints of later steps belong to
 * other work: they are not counted, not deleted, and named. */
static void retain(const char *checkpoints, uint64_t step, uint64_t limit)
{
    struct step_list steps;
    if (steps_list(&steps, checkpoints) != OK) {
        log_warning("old checkpoints stay: %s", err_message());
        return;
    }
    uint64_t kept = 0;
    for (size_t i = 0; i < steps.count; i++) {
        const struct step_entry *e = &steps.list[i];
        if (e->kind != STEP_PLAIN) {
            continue;
        }
        if (e->step > step) {
            log_warning("%s is later than the step just saved (%" PRIu64
                        ") and stays | a run that is resumed from this "
                        "folder would go on from there: move it away if it belongs to another run",
                        e->path, step);
        } else if (is_complete(e) && ++kept > limit) {
            delete_step(checkpoints, e);
        }
    }
    steps_release(&steps);
}

/* Finish a replacement that was interrupted: step-N.old goes when step-N is there, else it becomes step-N again. */
static enum err settle_old(const struct step_list *steps, const char *checkpoints)
{
    enum err err = OK;
    for (size_t i = 0; i < steps->count && err == OK; i++) {
        const struct step_entry *e = &steps->list[i];
        if (e->kind != STEP_OLD) {
            continue;
        }
        char *final;
        err = steps_path(&final, checkpoints, e->step, STEP_PLAIN);
        if (err == OK) {
            err = file_exists(final) ? file_remove_tree(e->path) : file_rename(e->path, final);
        }
        free(final);
    }
    return err;
}

enum err ckpt_clean(const char *checkpoints)
{
    if (!file_is_folder(checkpoints)) {
        return OK;
    }
    struct step_list steps;
    TRY(steps_list(&steps, checkpoints));
    enum err err = settle_old(&steps, checkpoints);
    for (size_t i = 0; i < steps.count && err == OK; i++) {
        if (steps.list[i].kind == STEP_TEMP) {
            err = file_remove_tree(steps.list[i].path);
        }
    }
    steps_release(&steps);
    return err;
}

/* Refuse before the first byte is written what cannot end well. */
static enum err check_space(const char *checkpoints, const struct ckpt_content *c)
{
    uint64_t need = 65536;
    for (size_t i = 0; i < c->files_count; i++) {
        need += st_write_bytes(&c->files[i]);
    }
    for (size_t i = 0; i < c->texts_count; i++) {
        need += strlen(c->texts[i].text);
    }
    return file_check_space(checkpoints, need, "a checkpoint");
}

static void check_content(const struct ckpt_content *c)
{
    bool model = false;
    for (size_t i = 0; i < c->files_count; i++) {
        BUG_IF(!manifest_name_ok(c->files[i].name));
        model = model || strcmp(c->files[i].name, MODEL_NAME) == 0;
    }
    for (size_t i = 0; i < c->texts_count; i++) {
        BUG_IF(!manifest_name_ok(c->texts[i].name));
    }
    BUG_IF(!model);
}

enum err ckpt_save(const char *checkpoints, const struct ckpt_content *c, uint64_t total_limit)
{
    check_content(c);
    char *temp = NULL, *final = NULL, *old = NULL;
    enum err err;
    TRY_OUT(file_make_folder(checkpoints));
    TRY_OUT(ckpt_clean(checkpoints)); /* one process writes to a folder: every left-over is of a save that died */
    TRY_OUT(steps_path(&temp, checkpoints, c->step, STEP_TEMP));
    TRY_OUT(steps_path(&final, checkpoints, c->step, STEP_PLAIN));
    TRY_OUT(steps_path(&old, checkpoints, c->step, STEP_OLD));
    TRY_OUT(check_space(checkpoints, c));
    TRY_OUT(file_make_folder(temp));
    TRY_OUT(write_folder(c, temp));
    TRY_OUT(read_back(temp));
    TRY_OUT(commit(temp, final, old));
    if (steps_set_latest(checkpoints, c->step) != OK) {
        log_warning("%s is saved, but not named in `latest`: %s", final, err_message());
    }
    if (file_remove_tree(old) != OK) {
        log_warning("the checkpoint that was replaced stays: %s", err_message());
    }
    if (total_limit > 0) {
        retain(checkpoints, c->step, total_limit);
    }
out:
    if (err != OK && temp != NULL) {
        char *message = NULL; /* deleting may fail too, and must not hide why the save failed */
        enum err copied = mem_copy_string(&message, err_message(), strlen(err_message()));
        if (file_remove_tree(temp) != OK && copied == OK) {
            log_warning("left-over of a failed save: %s", err_message());
        }
        if (copied == OK) {
            err_set_message(message);
        }
        free(message);
    }
    free(temp);
    free(final);
    free(old);
    return err;
}
