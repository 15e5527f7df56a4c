/* Why this exists: weights go into the model only when every name and shape agrees; a tensor that is missing must never
 * stay random and one that is not known must never be dropped without a word. All disagreements are listed at once. */
#include <inttypes.h>
#include <stdarg.h>

#include "base/mem.h"
#include "ckpt/ckpt_open.h"

#define LISTED_MAX 6u /* of each kind in one message */

/* One kind of disagreement: the first few are written out, the others counted. */
struct kind {
    struct buf text;
    size_t count;
};

PRINTF_LIKE(2, 3) static enum err note(struct kind *k, const char *fmt, ...)
{
    char text[400];
    if (++k->count > LISTED_MAX) {
        return OK;
    }
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return buf_printf(&k->text, "%s%s", k->count > 1 ? ", " : "", text);
}

static enum err print_kind(const struct kind *k, const char *what, struct buf *out)
{
    if (k->count == 0) {
        return OK;
    }
    TRY(buf_printf(out, "; %zu %s: %s", k->count, what, k->text.data));
    return k->count > LISTED_MAX ? buf_printf(out, " and %zu more", k->count - LISTED_MAX) : OK;
}

/* One name is the other with something put in or left out in one place: a prefix, an underscore. */
static bool looks_renamed(const char *a, const char *b)
{
    size_t la = strlen(a), lb = strlen(b), least = la < lb ? la : lb, head = 0, tail = 0;
    while (head < least && a[head] == b[head]) {
        head++;
    }
    while (tail < least && a[la - 1 - tail] == b[lb - 1 - tail]) {
        tail++;
    }
    return la != lb && head + tail >= least;
}

static bool same_shape(const struct ckpt_tensor *want, const struct st_tensor *have)
{
    bool same = want->rank == have->rank;
    for (uint32_t d = 0; same && d < want->rank; d++) {
        same = want->shape[d] == have->shape[d];
    }
    return same;
}

static int by_name(const void *a, const void *b)
{
    const struct ckpt_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int name_against(const void *name, const void *element)
{
    const struct ckpt_tensor *const *t = element;
    return strcmp(name, (*t)->name);
}

/* What was asked for, sorted by name, and the file. */
struct match {
    const struct st_file *file;
    const struct ckpt_tensor *want;
    size_t count;
    const struct ckpt_tensor **sorted;
    struct kind missing, additional, misshaped, other_dtype;
};

static bool is_wanted(const struct match *m, const char *name)
{
    return m->count > 0 && bsearch(name, m->sorted, m->count, sizeof(m->sorted[0]), name_against) != NULL;
}

/* A tensor of the file that nobody asked for and that could be `want` under another name. */
static const char *probable_name(const struct match *m, const struct ckpt_tensor *want)
{
    for (size_t i = 0; i < m->file->count; i++) {
        const struct st_tensor *t = &m->file->tensors[i];
        if (looks_renamed(want->name, t->name) && same_shape(want, t) && !is_wanted(m, t->name)) {
            return t->name;
        }
    }
    return NULL;
}

static enum err compare_one(struct match *m, const struct ckpt_tensor *want)
{
    const struct st_tensor *have = st_find(m->file, want->name);
    if (have == NULL && want->optional) {
        return OK;
    }
    if (have == NULL) {
        const char *other = m->missing.count < LISTED_MAX ? probable_name(m, want) : NULL;
        return other != NULL ? note(&m->missing, "%.120s (probably %.120s in the file)", want->name, other)
                             : note(&m->missing, "%.120s", want->name);
    }
    if (!same_shape(want, have)) {
        char a[192], b[192];
        return note(&m->misshaped, "%.120s is %s, expected %s", want->name, st_shape_text(have->rank, have->shape, a),
                    st_shape_text(want->rank, want->shape, b));
    }
    if (!have->dtype->floats) {
        return note(&m->other_dtype, "%.120s is %s", want->name, have->dtype->name);
    }
    return OK;
}

static enum err report(const struct match *m)
{
    if (m->missing.count + m->additional.count + m->misshaped.count + m->other_dtype.count == 0) {
        return OK;
    }
    struct buf text = { 0 };
    enum err err;
    TRY_OUT(print_kind(&m->missing, "missing", &text));
    TRY_OUT(print_kind(&m->additional, "not known to the model", &text));
    TRY_OUT(print_kind(&m->misshaped, "of another shape", &text));
    TRY_OUT(print_kind(&m->other_dtype, "not of F32, F16 or BF16", &text));
    err = FAIL(ERR_DATA, "%s: its %zu tensors do not fit the %zu expected%.1700s | the configuration and the weights "
               "must be of one model", m->file->path, m->file->count, m->count, text.data);
out:
    buf_release(&text);
    return err;
}

static enum err compare(struct match *m)
{
    for (size_t i = 0; i < m->count; i++) {
        m->sorted[i] = &m->want[i];
    }
    if (m->count > 0) {
        qsort(m->sorted, m->count, sizeof(m->sorted[0]), by_name);
    }
    for (size_t i = 0; i < m->count; i++) {
        TRY(compare_one(m, &m->want[i]));
    }
    for (size_t i = 0; i < m->file->count; i++) {
        if (!is_wanted(m, m->file->tensors[i].name)) {
            TRY(note(&m->additional, "%.120s", m->file->tensors[i].name));
        }
    }
    return report(m);
}

static enum err match_names(const struct st_file *file, const struct ckpt_tensor *tensors, size_t count)
{
    void *sorted;
    TRY(mem_alloc(&sorted, count, sizeof(struct ckpt_tensor *)));
    struct match m = { .file = file, .want = tensors, .count = count, .sorted = sorted };
    enum err err = compare(&m);
    buf_release(&m.missing.text);
    buf_release(&m.additional.text);
    buf_release(&m.misshaped.text);
    buf_release(&m.other_dtype.text);
    free(sorted);
    return err;
}

static bool inside(const struct ckpt_box *b, const struct ckpt_tensor *t)
{
    uint64_t rows = t->shape[0], cols = ckpt_row_length(t);
    return b->row0 <= rows && b->rows <= rows - b->row0 && b->col0 <= cols && b->cols <= cols - b->col0;
}

/* Read one tensor of the file into the boxes of `want`. listed: the file's entry in the manifest, or NULL. */
static enum err read_one(const struct st_file *f, const struct ckpt_tensor *want, const struct manifest_file *listed)
{
    struct st_tensor *t = st_find(f, want->name);
    BUG_IF(want->optional && want->boxes_count > 0);
    for (size_t i = 0; i < want->boxes_count; i++) {
        BUG_IF(!inside(&want->boxes[i], want));
    }
    if (t == NULL || (want->boxes_count == 0 && listed == NULL)) {
        return OK;
    }
    TRY(st_load(f, t, want->boxes, want->boxes_count));
    const char *saved = listed != NULL ? listed->tensors[t - f->tensors].hash : t->hash;
    if (strcmp(t->hash, saved) != 0) {
        return FAIL(ERR_DATA, "%s: %.200s (bytes %" PRIu64 " to %" PRIu64 "): hash %s, the manifest says %s | the file "
                    "was damaged after it was saved: use another checkpoint", f->path, t->name,
                    f->data_start + t->begin, f->data_start + t->end, t->hash, saved);
    }
    return OK;
}

enum err ckpt_read(struct ckpt *c, const char *file, const struct ckpt_tensor *tensors, size_t count)
{
    struct st_file f;
    enum err err;
    TRY_OUT(load_tensor_file(c, file, &f));
    TRY_OUT(match_names(&f, tensors, count));
    const struct manifest_file *listed = c->has_manifest ? manifest_find(&c->manifest, file) : NULL;
    for (size_t i = 0; i < count; i++) {
        TRY_OUT(read_one(&f, &tensors[i], listed));
    }
out:
    st_close(&f);
    return err;
}
