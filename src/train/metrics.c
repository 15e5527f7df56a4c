/* Why this exists: a run is judged, compared and continued from its log, so the log must hold every number to the last
 * bit, each line whole, and no line of work that a resumed run does again. A line goes to the system in one write as
 * soon as it is known: killing the process loses none; only a loss of power may cut the end, and a cut line is dropped
 * at the next start. */
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/events.h"

#define NAME "metrics.jsonl"

struct metrics {
    char *path;
    int fd;
    struct buf line; /* kept between lines */
    bool tensorboard;
    struct events events;
};

/* Whether a line is whole and of a step up to `last`. */
static bool keeps(const char *path, const char *line, size_t bytes, uint64_t last)
{
    json_t *root;
    if (json_parse(&root, path, line, bytes) != OK) {
        log_warning("%s: a line that is not JSON is dropped", path);
        return false;
    }
    json_t *step = json_object_get(root, "step");
    bool good = json_is_integer(step) && json_integer_value(step) >= 0 && (uint64_t)json_integer_value(step) <= last;
    json_decref(root);
    return good;
}

/* Drop what does not belong to the first `last` steps; the file is replaced only when that changes it. */
static enum err drop_later(const char *path, uint64_t last)
{
    if (!file_exists(path)) {
        return OK;
    }
    struct buf text = { 0 }, kept = { 0 };
    enum err err;
    TRY_OUT(file_read(path, BUF_BYTES_MAX - 1, &text));
    for (size_t at = 0; at < text.bytes;) {
        const char *end = memchr(text.data + at, '\n', text.bytes - at);
        if (end == NULL) {
            break; /* cut in the middle of a line */
        }
        size_t bytes = (size_t)(end - (text.data + at));
        if (keeps(path, text.data + at, bytes, last)) {
            TRY_OUT(buf_add(&kept, text.data + at, bytes + 1));
        }
        at += bytes + 1;
    }
    if (kept.bytes != text.bytes) {
        TRY_OUT(file_replace(path, kept.bytes > 0 ? kept.data : "", kept.bytes));
    }
out:
    buf_release(&text);
    buf_release(&kept);
    return err;
}

enum err metrics_open(struct metrics **out, const char *run_folder, bool tensorboard, uint64_t resumed_step)
{
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(struct metrics)));
    struct metrics *m = block;
    m->fd = -1;
    m->events.fd = -1;
    enum err err;
    TRY_OUT(file_make_folder(run_folder));
    TRY_OUT(file_join(&m->path, run_folder, NAME));
    TRY_OUT(drop_later(m->path, resumed_step));
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->fd < 0) {
        err = FAIL(ERR_IO, "%s: cannot be written: %s", m->path, strerror(errno));
        goto out;
    }
    if (tensorboard) {
        TRY_OUT(events_open(&m->events, run_folder, resumed_step > 0 ? resumed_step + 1 : 0));
        m->tensorboard = true;
    }
    *out = m;
    return OK;
out:
    metrics_close(m);
    return err;
}

void metrics_close(struct metrics *m)
{
    if (m == NULL) {
        return;
    }
    if (m->fd >= 0) {
        close(m->fd);
    }
    events_close(&m->events);
    buf_release(&m->line);
    free(m->path);
    free(m);
}

/* The shortest of 15 to 17 digits that reads back to the same bits (compared as bits: the arithmetic mode takes
 * denormals for zero). */
static enum err add_number(struct buf *line, double value)
{
    if (!isfinite(value)) {
        return buf_add_string(line, "null");
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        double back = strtod(text, NULL);
        if (memcmp(&back, &value, sizeof(value)) == 0) {
            break;
        }
    }
    return buf_add_string(line, text);
}

static enum err make_line(struct buf *line, const char *group, uint64_t step, uint64_t state_hash,
                          const struct metric *list, size_t count)
{
    buf_clear(line);
    TRY(buf_add_string(line, "{\"group\":"));
    TRY(buf_add_json_string(line, group, strlen(group)));
    TRY(buf_printf(line, ",\"step\":%" PRIu64, step));
    if (state_hash != 0) {
        TRY(buf_printf(line, ",\"state_hash\":\"%016" PRIx64 "\"", state_hash));
    }
    for (size_t i = 0; i < count; i++) {
        TRY(buf_add_string(line, ","));
        TRY(buf_add_json_string(line, list[i].name, strlen(list[i].name)));
        TRY(buf_add_string(line, ":"));
        TRY(add_number(line, list[i].value));
    }
    return buf_add_string(line, "}\n");
}

enum err metrics_write(struct metrics *m, const char *group, uint64_t step, uint64_t state_hash,
                       const struct metric *list, size_t count)
{
    TRY(make_line(&m->line, group, step, state_hash, list, count));
    TRY(file_write(m->fd, m->path, m->line.data, m->line.bytes));
    return m->tensorboard ? events_write(&m->events, group, step, list, count) : OK;
}

/* ---- reading ---- */

struct reading {
    uint64_t first, count, last;
    struct past_step *steps;
};

static enum err read_line(void *arg, const json_t *line)
{
    struct reading *r = arg;
    const char *group = json_string_value(json_object_get(line, "group"));
    const json_t *step = json_object_get(line, "step"), *loss = json_object_get(line, "loss");
    if (group == NULL || strcmp(group, "train") != 0 || !json_is_integer(step) || json_integer_value(step) < 1) {
        return OK;
    }
    uint64_t number = (uint64_t)json_integer_value(step);
    r->last = number > r->last ? number : r->last;
    if (number >= r->first && number - r->first < r->count) {
        struct past_step *s = &r->steps[number - r->first];
        *s = (struct past_step){ .found = true, .loss = json_is_number(loss) ? json_number_value(loss) : NAN };
        s->state_hash = json_hex64(line, "state_hash", &s->state_hash) ? s->state_hash : 0;
    }
    return OK;
}

enum err metrics_read(const char *run_folder, uint64_t first, uint64_t count, struct past_step *steps, uint64_t *last)
{
    char *path;
    struct reading r = { .first = first, .count = count, .steps = steps };
    TRY(file_join(&path, run_folder, NAME));
    enum err err = file_exists(path) ? json_each_line(path, BUF_BYTES_MAX - 1, read_line, &r)
                                     : FAIL(ERR_USAGE, "%s: there is no such file", path);
    *last = r.last;
    free(path);
    return err;
}
