/* Why this exists: weights go into the model only when every name and shape agrees; a tensor that is missing must never
 * stay random and one that is not known must never be dropped without a word. All disagreements are listed at once. */
#include <inttypes.h>

#include "base/mem.h"
#include "ckpt/ckpt_open.h"
#include "ckpt/kind.h"

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
    struct ckpt *ckpt;
    const struct st_set *set;
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
    for (size_t i = 0; i < m->set->count; i++) {
        const struct st_tensor *t = m->set->list[i].tensor;
        if (looks_renamed(want->name, t->name) && same_shape(want, t) && !is_wanted(m, t->name)) {
            return t->name;
        }
    }
    return NULL;
}

/* The file's table has more rows than there are ids. */
static bool has_padding(const struct ckpt_tensor *want, const struct st_tensor *have)
{
    bool more = want->by_id && want->rank == have->rank && have->shape[0] > want->shape[0];
    for (uint32_t d = 1; more && d < want->rank; d++) {
        more = want->shape[d] == have->shape[d];
    }
    return more;
}

static enum err note_shape(struct match *m, const struct ckpt_tensor *want, const struct st_tensor *have)
{
    bool padding = has_padding(want, have) && !m->ckpt->has_manifest;
    if (padding && m->ckpt->drop_padding) {
        return buf_printf(&m->ckpt->notes, "%s has %" PRIu64 " rows, vocab_size is %" PRIu64 ": %" PRIu64
                          " padding rows, dropped\n", want->name, have->shape[0], want->shape[0],
                          have->shape[0] - want->shape[0]);
    }
    char a[192], b[192];
    st_shape_text(have->rank, have->shape, a);
    st_shape_text(want->rank, want->shape, b);
    return padding ? kind_note(&m->misshaped, "%.120s is %s, expected %s (are the last %" PRIu64 " rows padding? then "
                               "train with drop_vocab_padding: true)", want->name, a, b,
                               have->shape[0] - want->shape[0])
                   : kind_note(&m->misshaped, "%.120s is %s, expected %s", want->name, a, b);
}

static enum err compare_one(struct match *m, const struct ckpt_tensor *want)
{
    const struct st_place *place = st_set_find(m->set, want->name);
    if (place == NULL && want->optional) {
        return OK;
    }
    if (place == NULL) {
        const char *other = m->missing.count < KIND_LISTED_MAX ? probable_name(m, want) : NULL;
        return other != NULL ? kind_note(&m->missing, "%.120s (probably %.120s in the file)", want->name, other)
                             : kind_note(&m->missing, "%.120s", want->name);
    }
    if (!place->tensor->dtype->floats) {
        return kind_note(&m->other_dtype, "%.120s is %s", want->name, place->tensor->dtype->name);
    }
    return same_shape(want, place->tensor) ? OK : note_shape(m, want, place->tensor);
}

/* Tensors that the model has no use for and the file does not have. */
static size_t absent(const struct match *m)
{
    size_t count = 0;
    for (size_t i = 0; i < m->count; i++) {
        count += m->want[i].optional && st_set_find(m->set, m->want[i].name) == NULL;
    }
    return count;
}

static enum err report(const struct match *m)
{
    if (m->missing.count + m->additional.count + m->misshaped.count + m->other_dtype.count == 0) {
        return OK;
    }
    struct buf text = { 0 };
    enum err err;
    TRY_OUT(kind_print(&m->missing, "missing", &text));
    TRY_OUT(kind_print(&m->additional, "not known to the model", &text));
    TRY_OUT(kind_print(&m->misshaped, "of another shape", &text));
    TRY_OUT(kind_print(&m->other_dtype, "not of F32, F16 or BF16", &text));
    err = FAIL(ERR_DATA, "%s: its %zu tensors do not fit the %zu expected%.1700s | the configuration and the weights "
               "must be of one model", m->set->path, m->set->count, m->count - absent(m), text.data);
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
    for (size_t i = 0; i < m->set->count; i++) {
        if (!is_wanted(m, m->set->list[i].tensor->name)) {
            TRY(kind_note(&m->additional, "%.120s", m->set->list[i].tensor->name));
        }
    }
    return report(m);
}

static enum err match_names(struct ckpt *c, const struct st_set *set, const struct ckpt_tensor *tensors, size_t count)
{
    void *sorted;
    TRY(mem_alloc(&sorted, count, sizeof(struct ckpt_tensor *)));
    struct match m = { .ckpt = c, .set = set, .want = tensors, .count = count, .sorted = sorted };
    buf_clear(&c->notes);
    enum err err = compare(&m);
    kind_release(&m.missing);
    kind_release(&m.additional);
    kind_release(&m.misshaped);
    kind_release(&m.other_dtype);
    free(sorted);
    return err;
}

static bool inside(const struct ckpt_box *b, const struct ckpt_tensor *t)
{
    uint64_t rows = ckpt_rows(t), cols = ckpt_row_length(t);
    return b->row0 <= rows && b->rows <= rows - b->row0 && b->col0 <= cols && b->cols <= cols - b->col0;
}

/* Read one tensor of the file into the boxes of `want`. listed: the file's entry in the manifest, or NULL. */
static enum err read_one(const struct st_set *set, const struct ckpt_tensor *want, const struct manifest_file *listed)
{
    const struct st_place *place = st_set_find(set, want->name);
    BUG_IF(want->optional && want->boxes_count > 0);
    for (size_t i = 0; i < want->boxes_count; i++) {
        BUG_IF(!inside(&want->boxes[i], want));
    }
    if (place == NULL || (want->boxes_count == 0 && listed == NULL)) {
        return OK;
    }
    const struct st_file *f = place->file;
    struct st_tensor *t = place->tensor;
    TRY(st_load(f, t, listed != NULL, want));
    const char *saved = listed != NULL ? listed->tensors[t - f->tensors].hash : NULL;
    if (saved != NULL && strcmp(t->hash, saved) != 0) {
        return FAIL(ERR_DATA, "%s: %.200s (bytes %" PRIu64 " to %" PRIu64 "): hash %s, the manifest says %s | the file "
                    "was damaged after it was saved: use another checkpoint", f->path, t->name,
                    f->data_start + t->begin, f->data_start + t->end, t->hash, saved);
    }
    return OK;
}

/* Room for one block of two tensors. */
struct twin_blocks {
    unsigned char raw[ST_BLOCK_BYTES];
    float a[ST_BLOCK_BYTES / 4], b[ST_BLOCK_BYTES / 4];
};

/* The first element at which the first `elements` of two tensors differ in their fp32 bits; `elements`: none. */
static enum err first_difference(const struct st_place *a, const struct st_place *b, uint64_t elements, uint64_t *at)
{
    void *block;
    TRY(mem_alloc(&block, 1, sizeof(struct twin_blocks)));
    struct twin_blocks *k = block;
    enum err err = OK;
    size_t step = ST_BLOCK_BYTES / 4;
    for (*at = 0; *at < elements; *at += step) {
        size_t count = elements - *at < step ? (size_t)(elements - *at) : step, i = 0;
        TRY_OUT(st_floats(a->file, a->tensor, *at, count, k->raw, k->a));
        TRY_OUT(st_floats(b->file, b->tensor, *at, count, k->raw, k->b));
        while (i < count && memcmp(&k->a[i], &k->b[i], sizeof(float)) == 0) {
            i++;
        }
        if (i < count) {
            *at += i;
            goto out;
        }
    }
    *at = elements;
out:
    free(block);
    return err;
}

/* A tensor that the model takes from another one must not say anything else. */
static enum err check_twin(const struct st_set *set, const struct ckpt_tensor *want)
{
    if (want->same_as == NULL) {
        return OK;
    }
    const struct st_place *a = st_set_find(set, want->name), *b = st_set_find(set, want->same_as);
    if (a == NULL || b == NULL) {
        return OK;
    }
    uint64_t elements = mem_mul(want->shape[0], ckpt_row_length(want)), at;
    TRY(first_difference(a, b, elements, &at));
    if (at < elements) {
        return FAIL(ERR_DATA, "%s: %.200s and %.200s differ (first at element %" PRIu64 "), but config.json says "
                    "tie_word_embeddings: true, one tensor for both | if the model has a head of its own, set "
                    "tie_word_embeddings to false", set->path, want->same_as, want->name, at);
    }
    return OK;
}

enum err ckpt_read(struct ckpt *c, const char *file, const struct ckpt_tensor *tensors, size_t count)
{
    struct st_set set;
    enum err err;
    TRY_OUT(load_tensors(c, file, &set));
    TRY_OUT(match_names(c, &set, tensors, count));
    const struct manifest_file *listed = c->has_manifest ? manifest_find(&c->manifest, file) : NULL;
    for (size_t i = 0; i < count; i++) {
        TRY_OUT(check_twin(&set, &tensors[i]));
    }
    for (size_t i = 0; i < count; i++) {
        TRY_OUT(read_one(&set, &tensors[i], listed));
    }
out:
    st_set_close(&set);
    return err;
}
