/* Why this exists: when ranks are added up, what each of them gave is gone; if one computed wrong, all go on with the
 * same wrong sum and nothing differs any more. So each rank keeps its part of every step, and how the job was split.
 *
 * Invariants: a line is one write, so it is whole or the last; a step belongs to the start before it in the file. */
#include "train/rank_record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* The keys that say how a job is split over ranks and micro-batches; written before those that decide results. */
static const char *const layout_keys[] = {
    "tp", "pp", "cp", "dp", "sequence_parallel", "zero_optimization.stage", "pipeline_schedule",
    "virtual_pipeline_size", "pipeline_layers", "micro_batch_size",
};
#define LAYOUT_KEYS (sizeof(layout_keys) / sizeof(layout_keys[0]))

bool contribution_equal(const struct contribution *a, const struct contribution *b)
{
    return a->loss == b->loss && a->tokens == b->tokens && (!a->hashed || !b->hashed || a->gradient == b->gradient);
}

static enum err make_path(char **out, const char *folder, uint32_t rank)
{
    char name[40];
    snprintf(name, sizeof(name), "rank-%u.jsonl", rank);
    return file_join(out, folder, name);
}

/* ---- writing ---- */

struct rank_record {
    char *path;
    int fd;
    struct buf line; /* kept between lines */
};

/* A key and its value, which is a number or a word, and a comma. */
static enum err write_key(struct buf *line, const struct conf *c, const char *key)
{
    TRY(buf_printf(line, "\"%s\":\"", key));
    TRY(conf_write_key(c, key, line));
    return buf_add_string(line, "\",");
}

static enum err write_start(struct rank_record *r, const struct rank_start *s, const struct conf *c)
{
    struct buf *line = &r->line;
    char digest[33];
    conf_digest(c, digest);
    TRY(buf_printf(line, "{\"start\":%" PRIu64 ",\"rank\":%u,\"world\":%u,\"from\":", s->step, s->rank, s->world));
    TRY(s->from != NULL ? buf_add_json_string(line, s->from, strlen(s->from)) : buf_add_string(line, "null"));
    TRY(buf_printf(line, ",\"config\":\"%s\",\"keys\":{", digest));
    for (size_t i = 0; i < LAYOUT_KEYS; i++) {
        TRY(write_key(line, c, layout_keys[i]));
    }
    for (size_t i = 0; conf_identity_key(i) != NULL; i++) {
        TRY(write_key(line, c, conf_identity_key(i)));
    }
    line->data[line->bytes - 1] = '}'; /* the last comma */
    TRY(buf_add_string(line, "}\n"));
    return file_write(r->fd, r->path, line->data, line->bytes);
}

/* Whether the file ends in the middle of a line, which must not go on with the next one. */
static bool is_cut(int fd)
{
    char last;
    off_t bytes = lseek(fd, 0, SEEK_END);
    return bytes > 0 && pread(fd, &last, 1, bytes - 1) == 1 && last != '\n';
}

enum err rank_record_open(struct rank_record **out, const char *folder, const struct rank_start *start,
                          const struct conf *c)
{
    void *mem;
    *out = NULL;
    TRY(mem_alloc(&mem, 1, sizeof(struct rank_record)));
    struct rank_record *r = mem;
    r->fd = -1;
    enum err err;
    TRY_OUT(make_path(&r->path, folder, start->rank));
    r->fd = open(r->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (r->fd < 0) {
        err = FAIL(ERR_IO, "%s: cannot be written: %s", r->path, strerror(errno));
        goto out;
    }
    TRY_OUT(is_cut(r->fd) ? buf_add_string(&r->line, "\n") : OK);
    TRY_OUT(write_start(r, start, c));
    *out = r;
    return OK;
out:
    rank_record_close(r);
    return err;
}

void rank_record_close(struct rank_record *r)
{
    if (r == NULL) {
        return;
    }
    if (r->fd >= 0) {
        close(r->fd);
    }
    buf_release(&r->line);
    free(r->path);
    free(r);
}

enum err rank_record_step(struct rank_record *r, uint64_t step, const struct contribution *given)
{
    struct buf *line = &r->line;
    buf_clear(line);
    TRY(buf_printf(line, "{\"step\":%" PRIu64 ",\"loss_sum\":%" PRId64 ",\"tokens\":%" PRIu64, step, given->loss,
                   given->tokens));
    if (given->hashed) {
        TRY(buf_printf(line, ",\"gradient\":\"%016" PRIx64 "\"", given->gradient));
    }
    TRY(buf_add_string(line, "}\n"));
    return file_write(r->fd, r->path, line->data, line->bytes);
}

/* ---- reading ---- */

struct reading {
    const char *path;
    uint64_t step;
    struct rank_past *past;
};

/* A whole number that is not negative. */
static bool whole(const json_t *object, const char *key, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);
    *out = (uint64_t)json_integer_value(value);
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static bool texts_only(json_t *object)
{
    const char *key;
    json_t *value;
    bool good = json_is_object(object);
    json_object_foreach(object, key, value) {
        good = good && json_is_string(value);
    }
    return good;
}

static enum err read_start(const struct reading *r, const json_t *line)
{
    struct rank_past *p = r->past;
    struct past_start s = { .keys = json_object_get(line, "keys") };
    const json_t *from = json_object_get(line, "from");
    const char *digest = json_string_value(json_object_get(line, "config"));
    uint64_t world;
    if (!whole(line, "start", &s.step) || !whole(line, "world", &world) || world == 0 || world > UINT32_MAX ||
        !texts_only(s.keys) || digest == NULL || strlen(digest) != 32 ||
        !(json_is_string(from) || json_is_null(from))) {
        return FAIL(ERR_DATA, "%s: start %zu of the rank is not written as docs/formats.md says", r->path,
                    p->count + 1);
    }
    void *list = p->starts;
    TRY(mem_grow(&list, &p->capacity, p->count + 1, sizeof(s)));
    p->starts = list;
    if (json_is_string(from)) {
        TRY(mem_copy_string(&s.from, json_string_value(from), json_string_length(from)));
    }
    s.world = (uint32_t)world;
    memcpy(s.digest, digest, sizeof(s.digest));
    json_incref(s.keys);
    p->starts[p->count++] = s;
    return OK;
}

static enum err read_step(const struct reading *r, const json_t *line)
{
    struct rank_past *p = r->past;
    uint64_t step;
    struct contribution given = { .loss = json_integer_value(json_object_get(line, "loss_sum")) };
    given.hashed = json_object_get(line, "gradient") != NULL;
    bool good = whole(line, "step", &step) && whole(line, "tokens", &given.tokens) && p->count > 0 &&
                json_is_integer(json_object_get(line, "loss_sum")) &&
                (!given.hashed || json_hex64(line, "gradient", &given.gradient));
    if (!good) {
        return FAIL(ERR_DATA, "%s: a line after step %llu is not written as docs/formats.md says", r->path,
                    (unsigned long long)p->last);
    }
    p->last = step > p->last ? step : p->last;
    if (step == r->step) {
        p->found = true;
        p->at = p->count - 1;
        p->given = given;
    }
    return OK;
}

static enum err read_line(void *arg, const json_t *line)
{
    const struct reading *r = arg;
    return json_object_get(line, "start") != NULL ? read_start(r, line) : read_step(r, line);
}

enum err rank_past_read(struct rank_past *p, const char *folder, uint32_t rank, uint64_t step)
{
    char *path;
    *p = (struct rank_past){ 0 };
    TRY(make_path(&path, folder, rank));
    struct reading r = { path, step, p };
    enum err err = file_exists(path) ? json_each_line(path, BUF_BYTES_MAX - 1, read_line, &r)
                                     : FAIL(ERR_USAGE, "%s: there is no record of rank %u", path, rank);
    free(path);
    return err;
}

void rank_past_release(struct rank_past *p)
{
    for (size_t i = 0; i < p->count; i++) {
        free(p->starts[i].from);
        json_decref(p->starts[i].keys);
    }
    free(p->starts);
    *p = (struct rank_past){ 0 };
}
