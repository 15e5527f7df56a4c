/* Why this exists: two runs that write to one folder destroy each other's checkpoints, and a folder with steps of two
 * histories goes on from the wrong one without anybody noticing. Both are refused before the start.
 *
 * Invariant: whoever writes below output_dir holds the lock of that folder. */
#include "train/output.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "ckpt/ckpt.h"

enum err output_lock(const struct conf *c, int *lock)
{
    if (*lock >= 0 || !file_is_folder(c->output_dir)) {
        return OK;
    }
    *lock = open(c->output_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0) {
        return FAIL(ERR_IO, "%s: cannot be opened: %s | check the permissions", c->output_dir, strerror(errno));
    }
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0) {
        return OK;
    }
    if (errno == EWOULDBLOCK) {
        return FAIL(ERR_USAGE, "output_dir %s: another run is writing to it | wait until it has ended, or choose "
                               "another folder", c->output_dir);
    }
    log_warning("output_dir %s cannot be locked (%s): a second run that writes to it would not be noticed",
                c->output_dir, strerror(errno)); /* some network file systems */
    return OK;
}

enum err output_recorder(const struct conf *c, int *lock)
{
    char *path;
    TRY(file_make_folder(c->output_dir));
    TRY(output_lock(c, lock)); /* it is new, or was locked before it was looked at */
    TRY(file_join(&path, c->output_dir, OUTPUT_RECORDER));
    enum err err = c->overwrite_output_dir && c->resume_from_checkpoint == NULL ? file_remove_tree(path) : OK;
    err = err == OK ? file_make_folder(path) : err;
    free(path);
    return err;
}

/* Whether `path` is the folder output_dir or lies in it. */
static bool is_inside(const char *path, const char *output_dir)
{
    char *inner = realpath(path, NULL), *outer = realpath(output_dir, NULL);
    size_t bytes = outer != NULL ? strlen(outer) : 0;
    bool inside = inner != NULL && outer != NULL && strncmp(inner, outer, bytes) == 0 &&
                  (inner[bytes] == '/' || inner[bytes] == '\0' || bytes == 1);
    free(inner);
    free(outer);
    return inside;
}

static bool names_latest(const struct conf *c)
{
    return strcmp(c->resume_from_checkpoint, "latest") == 0;
}

enum err output_check(const struct conf *c, const char *checkpoints)
{
    char *metrics;
    TRY(file_join(&metrics, c->output_dir, "metrics.jsonl"));
    bool used = file_exists(metrics) || file_exists(checkpoints);
    free(metrics);
    if (!used || c->overwrite_output_dir) {
        return OK;
    }
    if (c->resume_from_checkpoint == NULL) {
        return FAIL(ERR_USAGE,
                    "output_dir %s already holds a run | continue it with --resume_from_checkpoint latest, replace it "
                    "with --overwrite_output_dir true, or choose another folder",
                    c->output_dir);
    }
    if (!names_latest(c) && !is_inside(c->resume_from_checkpoint, c->output_dir)) {
        return FAIL(ERR_USAGE,
                    "output_dir %s already holds a run, and %s is a checkpoint of another one | continue the run in "
                    "output_dir with --resume_from_checkpoint latest, or choose another folder",
                    c->output_dir, c->resume_from_checkpoint);
    }
    return OK;
}

enum err output_check_later(const struct conf *c, const char *checkpoints, const char *folder, uint64_t step)
{
    uint64_t newest;
    if (names_latest(c) || strcmp(folder, c->resume_from_checkpoint) != 0 || !is_inside(folder, c->output_dir)) {
        return OK; /* the newest one that is undamaged, or one from elsewhere */
    }
    TRY(ckpt_newest_step(checkpoints, UINT64_MAX, &newest));
    if (newest > step) {
        return FAIL(ERR_USAGE,
                    "output_dir %s holds step-%llu, later than step %llu that this run would go on from: `latest` "
                    "would take that one | choose another output_dir, move the later steps away, or resume from latest",
                    c->output_dir, (unsigned long long)newest, (unsigned long long)step);
    }
    return OK;
}
