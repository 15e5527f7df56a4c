/* Why this exists: a flight record is read when something broke, from a file that a killed process, a full disk or a
 * stranger left. Every number in it is judged before it is used, so that the reader names damage and never adds to it.
 *
 * Records are written while a ring is read when its rank is alive: one whose number is 0, or is not among the last
 * RECORDER_RECORDS, is left out. A number at a wrong place, or a wrong hash, is damage. */
#include "comm/recorder.h"

#include "base/file.h"
#include "base/mem.h"
#include "comm/comm_int.h"
#include "comm/recorder_int.h"

_Static_assert(RECORDER_CALL_TEXT == COMM_SIG_TEXT, "a call's text fits");

#define IN_FLIGHT 64u /* calls that may be counted and not yet written: one for each thread that makes calls */

static const char *const phase_names[PHASE_COUNT] = {
    [PHASE_START] = "start",   [PHASE_DATA] = "data",     [PHASE_FORWARD] = "forward",
    [PHASE_BACKWARD] = "backward", [PHASE_REDUCE] = "reduce", [PHASE_UPDATE] = "update",
    [PHASE_EVAL] = "eval",     [PHASE_SAVE] = "save",     [PHASE_LOAD] = "load",
};
static const char *const err_names[] = {
    [OK] = "done",         [ERR_RUN] = "run failed",     [ERR_USAGE] = "usage", [ERR_DATA] = "damaged data",
    [ERR_IO] = "file error", [ERR_RESOURCE] = "no memory or disk", [ERR_PEER] = "peer failed",
    [ERR_INTERRUPT] = "interrupted",
};

const char *comm_phase_name(enum comm_phase phase)
{
    BUG_IF((uint32_t)phase >= PHASE_COUNT);
    return phase_names[phase];
}

void record_call_text(const struct record *r, char out[RECORDER_CALL_TEXT])
{
    struct comm_sig sig = { .number = r->number, .count = r->count, .line = r->line, .root = r->root, .tag = r->tag,
                            .kind = r->kind, .type = r->type, .op = r->op };
    memcpy(sig.file, r->file, sizeof(sig.file));
    memcpy(sig.name, r->name, sizeof(sig.name));
    sig_text(&sig, out);
}

/* Zero-terminated, and nothing but printable ASCII or bytes of UTF-8. */
static bool is_text(const char *text, size_t bytes)
{
    const char *end = memchr(text, '\0', bytes);
    for (const char *c = text; end != NULL && c < end; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) {
            return false;
        }
    }
    return end != NULL;
}

static enum err head_check(const struct ring_head *h, const char *path, size_t bytes)
{
    if (bytes < HEAD_BYTES || memcmp(h->magic, RING_MAGIC, sizeof(h->magic)) != 0) {
        return FAIL(ERR_DATA, "%s: %zu bytes without the head of a flight record, which begins with %s", path, bytes,
                    RING_MAGIC);
    }
    if (h->version != RING_VERSION) {
        return FAIL(ERR_DATA, "%s: flight record of version %u, this program reads %u | use the program that wrote it",
                    path, h->version, RING_VERSION);
    }
    if (h->check != hash64(h, HEAD_CHECKED, 0) || h->head_bytes != HEAD_BYTES ||
        h->record_bytes != sizeof(struct record) || h->records != RECORDER_RECORDS || h->clock >= CLOCK_KIND_COUNT ||
        !is_text(h->host, sizeof(h->host)) || h->rank >= h->size) {
        return FAIL(ERR_DATA, "%s: the head of the flight record is damaged", path);
    }
    if (bytes != RING_BYTES) {
        return FAIL(ERR_DATA, "%s: %zu bytes, a flight record has %zu | the file was cut or added to", path, bytes,
                    RING_BYTES);
    }
    if (atomic_load(&h->phase) >= PHASE_COUNT || atomic_load(&h->rate) == 0 ||
        atomic_load(&h->phase_ticks) < h->start_ticks || atomic_load(&h->beat_ticks) < h->start_ticks) {
        return FAIL(ERR_DATA, "%s: the state in the flight record is damaged: phase %u, rate %llu", path,
                    atomic_load(&h->phase), (unsigned long long)atomic_load(&h->rate));
    }
    return OK;
}

static bool record_good(const struct record *x, const struct ring_head *h)
{
    return x->check == record_check(x) && x->kind < KIND_COUNT && x->type < TYPE_COUNT && x->op < OP_COUNT &&
           x->phase < PHASE_COUNT && x->result <= ERR_INTERRUPT && is_text(x->file, sizeof(x->file)) &&
           is_text(x->name, sizeof(x->name)) && x->t_in >= h->start_ticks && (x->t_out == 0 || x->t_out >= x->t_in);
}

/* Judge all records, then take the last RECORDER_RECORDS calls, oldest first. */
static enum err take_records(struct recorder_file *f, const struct ring_head *h, const struct record *ring,
                             const char *path)
{
    uint64_t newest = 0;
    for (uint64_t place = 0; place < RECORDER_RECORDS; place++) {
        const struct record *x = &ring[place];
        if (x->seq != 0 && ((x->seq - 1) % RECORDER_RECORDS != place || !record_good(x, h))) {
            return FAIL(ERR_DATA, "%s: the record at place %llu of the flight record is damaged", path,
                        (unsigned long long)place);
        }
        newest = x->seq > newest ? x->seq : newest;
    }
    if (f->begun > newest + IN_FLIGHT) {
        return FAIL(ERR_DATA, "%s: the flight record counts %llu calls, its newest record is %llu: it is damaged", path,
                    (unsigned long long)f->begun, (unsigned long long)newest);
    }
    f->begun = newest > f->begun ? newest : f->begun;
    void *block;
    TRY(mem_alloc(&block, RECORDER_RECORDS, sizeof(struct record)));
    f->record = block;
    for (uint64_t i = 0; i < RECORDER_RECORDS; i++) {
        const struct record *x = &ring[(f->begun + i) % RECORDER_RECORDS]; /* behind the newest stands the oldest */
        if (x->seq != 0 && f->begun - x->seq < RECORDER_RECORDS) {
            f->record[f->count++] = *x;
        }
    }
    return OK;
}

enum err recorder_open_file(struct recorder_file *out, const char *path)
{
    struct buf bytes = { 0 };
    struct ring_head h = { .version = 0 };
    *out = (struct recorder_file){ 0 };
    enum err err;
    TRY_OUT(file_read(path, 2 * RING_BYTES, &bytes));
    memcpy(&h, bytes.data, bytes.bytes < sizeof(h) ? bytes.bytes : sizeof(h));
    TRY_OUT(head_check(&h, path, bytes.bytes));
    out->rank = h.rank;
    out->size = h.size;
    out->pid = h.pid;
    memcpy(out->host, h.host, sizeof(out->host));
    out->start_unix_s = 1e-9 * (double)h.start_unix_ns;
    out->start_ticks = h.start_ticks;
    out->rate = atomic_load(&h.rate);
    out->phase = (enum comm_phase)atomic_load(&h.phase);
    out->step = atomic_load(&h.step);
    out->layer = atomic_load(&h.layer);
    out->phase_s = recorder_seconds(out, atomic_load(&h.phase_ticks));
    out->beat_s = recorder_seconds(out, atomic_load(&h.beat_ticks));
    out->begun = atomic_load(&h.begun);
    out->ended = atomic_load(&h.ended) != 0;
    out->exit_code = out->ended ? (int)(atomic_load(&h.ended) - 1) : 0;
    TRY_OUT(take_records(out, &h, (const struct record *)(bytes.data + HEAD_BYTES), path));
out:
    buf_release(&bytes);
    return err;
}

void recorder_file_release(struct recorder_file *f)
{
    free(f->record);
    *f = (struct recorder_file){ 0 };
}

double recorder_seconds(const struct recorder_file *f, uint64_t ticks)
{
    return (double)(ticks - f->start_ticks) * ((double)f->rate / (double)RATE_ONE) * 1e-9;
}

enum err recorder_print(struct buf *out, const struct recorder_file *f, uint32_t n)
{
    for (uint32_t i = n < f->count ? f->count - n : 0; i < f->count; i++) {
        const struct record *x = &f->record[i];
        char call[RECORDER_CALL_TEXT];
        record_call_text(x, call);
        double begin = recorder_seconds(f, x->t_in);
        TRY(buf_printf(out, "%.6f s  %s, %s of layer %u, step %llu: ", begin, call, comm_phase_name(x->phase),
                       x->layer, (unsigned long long)x->step));
        if (x->t_out == 0) {
            TRY(buf_printf(out, "has not returned\n"));
        } else if (x->result != OK) {
            TRY(buf_printf(out, "%s after %.6f s\n", err_names[x->result], recorder_seconds(f, x->t_out) - begin));
        } else {
            TRY(buf_printf(out, "%.6f s\n", recorder_seconds(f, x->t_out) - begin));
        }
    }
    return OK;
}
