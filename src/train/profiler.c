/* Why this exists: the spans that pool, kernels and groups record are of one rank each; a picture of a step needs those
 * of all, on one clock, in the format that Chrome's trace viewer and Perfetto read ("Trace Event Format": complete
 * events, ph X, times in microseconds, a process for each rank, a thread for each row).
 *
 * The ranks' clocks are set by a barrier: they leave it within microseconds of each other, on any node. */
#include "train/profiler.h"

#include <unistd.h>

#include "base/file.h"

#define EVENTS_MAX ((uint64_t)1 << 16)
#define ROWS_MAX 512u /* threads, groups and the row of phases */

/* Rows of one rank in the order in which they were met, which is the number they get. */
struct rows_met {
    char name[ROWS_MAX][PROFILE_TEXT];
    uint32_t count;
};

enum err profiler_open(struct trainer *t)
{
    const struct conf *c = t->conf;
    if (c->profile == 0) {
        return OK;
    }
    if (c->profile <= t->step) { /* a job that is started again with the same configuration goes on */
        if (t->leads) {
            log_note("profile: step %llu was done before this start, nothing is recorded",
                     (unsigned long long)c->profile);
        }
        return OK;
    }
    TRY(profile_new(&t->profile, EVENTS_MAX));
    t->profile_bytes = profile_bytes(EVENTS_MAX);
    return OK;
}

void profiler_close(struct trainer *t)
{
    profile_free(t->profile);
    t->profile = NULL;
}

static void record_in(struct trainer *t, struct profile *p)
{
    pool_set_profile(t->pool, p);
    comm_set_profile(t->ranks.world, p);
}

enum err profiler_before(struct trainer *t)
{
    if (t->profile == NULL || t->step + 1 != t->conf->profile) {
        return OK;
    }
    TRY(comm_barrier(t->ranks.all));
    record_in(t, t->profile);
    profile_start(t->profile);
    return OK;
}

/* ---- writing ---- */

static enum err write_name(struct buf *out, const char *what, uint32_t rank, uint32_t row, const char *name)
{
    return buf_printf(out, "{\"ph\": \"M\", \"name\": \"%s\", \"pid\": %u, \"tid\": %u, "
                           "\"args\": {\"name\": \"%s\"}},\n", what, rank, row, name);
}

/* The number of a row, which is named in the file when it is met first. */
static enum err row_of(struct buf *out, struct rows_met *met, uint32_t rank, const char *name, uint32_t *row)
{
    for (*row = 0; *row < met->count; (*row)++) {
        if (strcmp(met->name[*row], name) == 0) {
            return OK;
        }
    }
    if (met->count == ROWS_MAX) {
        *row = ROWS_MAX - 1;
        return OK;
    }
    memcpy(met->name[met->count++], name, PROFILE_TEXT);
    return write_name(out, "thread_name", rank, *row, name);
}

static enum err write_event(struct buf *out, struct rows_met *met, uint32_t rank, const struct profile_event *e)
{
    uint32_t row;
    TRY(row_of(out, met, rank, e->row, &row));
    TRY(buf_printf(out, "{\"ph\": \"X\", \"name\": \"%s\", \"pid\": %u, \"tid\": %u, \"ts\": %.3f, \"dur\": %.3f",
                   e->name, rank, row, (double)e->begin * 1e-3, (double)(e->end - e->begin) * 1e-3));
    if (e->size[0] + e->size[1] + e->size[2] > 0) {
        TRY(buf_printf(out, ", \"args\": {\"size\": [%llu, %llu, %llu]}", (unsigned long long)e->size[0],
                       (unsigned long long)e->size[1], (unsigned long long)e->size[2]));
    }
    return buf_add_string(out, "},\n");
}

static enum err write_rank(struct buf *out, uint32_t rank, const struct profile_event *list, uint64_t count)
{
    char name[32];
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct rows_met)));
    snprintf(name, sizeof(name), "rank %u", rank);
    enum err err = write_name(out, "process_name", rank, 0, name);
    for (uint64_t i = 0; i < count && err == OK; i++) {
        err = write_event(out, mem, rank, &list[i]);
    }
    free(mem);
    return err;
}

/* The file as it grows, on the leading rank: the text of one rank at a time. Its first error waits in `err`, so that
 * all ranks go through the same calls. */
struct trace_file {
    struct file_out out;
    struct buf temporary, text;
    uint64_t spans, dropped;
    enum err err;
};

static enum err begin_file(struct trace_file *f, const char *path)
{
    TRY(buf_printf(&f->temporary, "%s.tmp", path));
    TRY(file_out_open(&f->out, f->temporary.data));
    return buf_add_string(&f->text, "{\"traceEvents\": [\n");
}

static void add_rank(struct trace_file *f, uint32_t rank, const struct profile_event *list,
                     const uint64_t counts[2])
{
    f->err = f->err == OK ? write_rank(&f->text, rank, list, counts[0]) : f->err;
    if (f->err == OK) {
        file_out_write(&f->out, f->text.data, f->text.bytes);
        buf_clear(&f->text);
        f->spans += counts[0];
        f->dropped += counts[1];
    }
}

static enum err end_file(struct trace_file *f, const char *path, uint64_t step)
{
    TRY(buf_printf(&f->text, "{\"ph\": \"M\", \"name\": \"process_labels\", \"pid\": 0, \"args\": "
                             "{\"labels\": \"step %llu\"}}\n], \"displayTimeUnit\": \"ms\"}\n",
                   (unsigned long long)step));
    file_out_write(&f->out, f->text.data, f->text.bytes);
    enum err err = file_out_close(&f->out);
    err = err == OK ? file_rename(f->temporary.data, path) : err;
    if (err != OK) {
        unlink(f->temporary.data);
        return err;
    }
    log_note("step %llu: %llu spans of its work in %s | open it in ui.perfetto.dev or chrome://tracing",
             (unsigned long long)step, (unsigned long long)f->spans, path);
    if (f->dropped > 0) {
        log_warning("profile: %llu more spans found no room", (unsigned long long)f->dropped);
    }
    return OK;
}

/* Every rank's events, one rank after another, to the leading one, which writes them. */
static enum err collect(struct trainer *t, struct profile_event *list, struct trace_file *f)
{
    struct comm *all = t->ranks.all;
    uint64_t mine[2];
    const struct profile_event *own = profile_events(t->profile, &mine[0], &mine[1]);
    for (uint32_t rank = 0; rank < comm_size(all); rank++) {
        uint64_t counts[2] = { mine[0], mine[1] };
        memcpy(list, own, mine[0] * sizeof(*own));
        TRY(comm_bcast(all, rank, counts, sizeof(counts)));
        TRY(comm_bcast(all, rank, list, counts[0] * sizeof(*own)));
        if (t->leads) {
            add_rank(f, rank, list, counts);
        }
    }
    return OK;
}

static enum err write_trace(struct trainer *t, const char *path)
{
    struct trace_file f = { .out = { .fd = -1 } };
    void *list = NULL;
    enum err err;
    f.err = t->leads ? begin_file(&f, path) : OK;
    err = f.err == OK ? mem_alloc(&list, EVENTS_MAX, sizeof(struct profile_event)) : f.err;
    TRY_OUT(comm_agree(t->ranks.all, err));
    TRY_OUT(collect(t, list, &f));
    err = t->leads && f.err == OK ? end_file(&f, path, t->step) : f.err;
out:
    file_out_abandon(&f.out);
    buf_release(&f.temporary);
    buf_release(&f.text);
    free(list);
    return err;
}

enum err profiler_after(struct trainer *t)
{
    char name[64];
    char *path = NULL;
    if (t->profile == NULL || t->step != t->conf->profile) {
        return OK;
    }
    record_in(t, NULL);
    profile_stop(t->profile);
    snprintf(name, sizeof(name), "profile-step-%llu.json", (unsigned long long)t->step);
    enum err err = comm_agree(t->ranks.all, file_join(&path, t->conf->output_dir, name));
    if (err == OK) {
        err = comm_agree(t->ranks.all, write_trace(t, path));
    }
    free(path);
    profiler_close(t);
    return err;
}
