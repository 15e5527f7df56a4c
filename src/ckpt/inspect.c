/* Why this exists: what people ask of a checkpoint: is it whole, what is in it, which bits are its weights, and where
 * do two of them differ. Differences are counted on fp32 bits, so -0 and +0 differ and two equal NaNs do not. */
#include <inttypes.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/ckpt_open.h"
#include "ckpt/export.h"
#include "ckpt/steps.h"

#define CONFIG_BYTES_MAX ((size_t)16 << 20)

/* ---- verify ---- */

static void say_verified(const char *path, const struct manifest *m, const struct manifest_sums *s)
{
    char bytes[32];
    log_note("%s: step %" PRIu64 ", %" PRIu64 " files, %" PRIu64 " tensors, %s: every hash is right, state hash "
             "%016" PRIx64, path, m->step, s->files, s->tensors, log_bytes(s->bytes, bytes), s->state_hash);
    if (s->not_finite > 0) {
        log_warning("%s: %" PRIu64 " values are NaN or infinite", path, s->not_finite);
    }
}

/* Warn when config.json states another type than tensors have: a tool that believes it rounds, or doubles the size. */
static enum err compare_dtype(const struct ckpt *c, const struct st_set *set)
{
    if (!ckpt_has_file(c, "config.json")) {
        return OK;
    }
    char *path;
    json_t *root = NULL;
    TRY(file_join(&path, c->folder, "config.json"));
    enum err err = json_read_file(&root, path, CONFIG_BYTES_MAX);
    const json_t *value = json_object_get(root, "dtype");
    const char *text = json_string_value(value != NULL ? value : json_object_get(root, "torch_dtype"));
    const struct st_dtype *stated = text != NULL ? export_dtype(text) : NULL;
    const struct st_tensor *first = NULL;
    size_t others = 0;
    for (size_t i = 0; stated != NULL && i < set->count; i++) {
        bool differs = set->list[i].tensor->dtype != stated;
        first = differs && first == NULL ? set->list[i].tensor : first;
        others += differs;
    }
    if (first != NULL) {
        log_warning("%s says %s, %zu of %zu tensors are not: %s is %s", path, text, others, set->count, first->name,
                    first->dtype->name);
    }
    json_decref(root);
    free(path);
    return err;
}

/* A model from elsewhere, scanned. */
static void say_foreign(const struct st_set *set, bool quiet)
{
    uint64_t not_finite = 0;
    for (size_t i = 0; i < set->count; i++) {
        not_finite += set->list[i].tensor->not_finite;
    }
    if (!quiet) {
        log_note("%s: %zu tensors, every rule is kept; no manifest, so no hash to compare with", set->path, set->count);
    }
    if (not_finite > 0) {
        log_warning("%s: %" PRIu64 " values are NaN or infinite", set->path, not_finite);
    }
}

static enum err verify_opened(const struct ckpt *c, bool quiet)
{
    if (c->has_manifest) {
        struct manifest_sums sums;
        TRY(manifest_verify(&c->manifest, c->folder, &sums));
        if (!quiet) {
            say_verified(c->folder, &c->manifest, &sums);
        }
        return OK;
    }
    struct st_set set;
    TRY(load_tensors(c, MODEL_NAME, &set));
    enum err err = OK;
    for (size_t i = 0; err == OK && i < set.files_count; i++) {
        err = st_scan(&set.files[i]);
    }
    if (err == OK) {
        say_foreign(&set, quiet);
        err = compare_dtype(c, &set);
    }
    st_set_close(&set);
    return err;
}

static enum err verify_path(const char *path, bool quiet)
{
    struct ckpt *c;
    TRY(ckpt_open(&c, path));
    enum err err = verify_opened(c, quiet);
    ckpt_close(c);
    return err;
}

/* Every checkpoint of a folder; all that is wrong is named, the first error is returned. */
static enum err verify_all(const struct step_list *steps, const char *folder, bool quiet)
{
    size_t damaged = 0;
    for (size_t i = 0; i < steps->count; i++) {
        if (steps->list[i].kind == STEP_PLAIN && verify_path(steps->list[i].path, quiet) != OK) {
            log_warning("%s", err_message());
            damaged++;
        }
    }
    if (damaged > 0) {
        return FAIL(ERR_DATA, "%s: %zu of its checkpoints are damaged | the warnings above say how", folder, damaged);
    }
    return OK;
}

enum err ckpt_verify(const char *path, bool quiet)
{
    char *inside = NULL;
    struct step_list steps = { 0 };
    enum err err;
    TRY_OUT(file_join(&inside, path, "checkpoints"));
    const char *folder = file_is_folder(inside) ? inside : path;
    if (file_is_folder(folder)) {
        TRY_OUT(steps_list(&steps, folder));
    }
    err = steps.count > 0 ? verify_all(&steps, folder, quiet) : verify_path(path, quiet);
out:
    steps_release(&steps);
    free(inside);
    return err;
}

/* ---- show ---- */

/* One file of a set. listed: its entry in the manifest, or NULL. */
static enum err show_one(const struct st_file *f, const char *name, const struct manifest_file *listed, struct buf *out)
{
    uint64_t elements = 0;
    char bytes[32], shape[192];
    TRY(buf_printf(out, "%s\n", name));
    for (size_t i = 0; i < f->count; i++) {
        const struct st_tensor *t = &f->tensors[i];
        TRY(buf_printf(out, "  %-50s %-18s %-5s %s\n", t->name, st_shape_text(t->rank, t->shape, shape),
                       t->dtype->name, listed != NULL ? listed->tensors[i].hash : "-"));
        elements += t->elements;
    }
    return buf_printf(out, "  %zu tensors, %" PRIu64 " elements, %s\n", f->count, elements,
                      log_bytes(f->bytes, bytes));
}

static enum err show_file(const struct ckpt *c, const char *name, struct buf *out)
{
    struct st_set set;
    TRY(load_tensors(c, name, &set));
    const struct manifest_file *listed = c->has_manifest ? manifest_find(&c->manifest, name) : NULL;
    enum err err = OK;
    for (size_t i = 0; i < set.files_count && err == OK; i++) {
        const char *slash = strrchr(set.files[i].path, '/');
        err = show_one(&set.files[i], slash != NULL ? slash + 1 : set.files[i].path, listed, out);
    }
    st_set_close(&set);
    return err;
}

static enum err show_opened(const struct ckpt *c, struct buf *out)
{
    if (!c->has_manifest) {
        TRY(buf_printf(out, "%s: a model without manifest\n", c->folder));
        return show_file(c, MODEL_NAME, out);
    }
    const struct manifest *m = &c->manifest;
    TRY(buf_printf(out, "%s: step %" PRIu64 ", state hash %016" PRIx64 "\n", c->folder, m->step, m->state_hash));
    for (size_t i = 0; i < m->count; i++) {
        if (m->files[i].tensor_file) {
            TRY(show_file(c, m->files[i].name, out));
        }
    }
    for (size_t i = 0; i < m->count; i++) {
        if (!m->files[i].tensor_file) {
            TRY(buf_printf(out, "%-52s %" PRIu64 " bytes %s\n", m->files[i].name, m->files[i].bytes, m->files[i].hash));
        }
    }
    return OK;
}

enum err ckpt_show(const char *path, struct buf *out)
{
    struct ckpt *c;
    TRY(ckpt_open(&c, path));
    enum err err = show_opened(c, out);
    ckpt_close(c);
    return err;
}

/* ---- hash ---- */

enum err ckpt_compute_hash(const char *path, uint64_t *hash)
{
    struct ckpt *c;
    struct st_set set = { 0 };
    *hash = 0;
    TRY(ckpt_open(&c, path));
    enum err err;
    TRY_OUT(load_tensors(c, MODEL_NAME, &set));
    for (size_t i = 0; i < set.files_count; i++) {
        uint64_t part;
        TRY_OUT(st_scan(&set.files[i]));
        TRY_OUT(manifest_state_hash(&set.files[i], &part));
        *hash += part; /* a sum over tensors, whatever file they are in */
    }
out:
    st_set_close(&set);
    ckpt_close(c);
    return err;
}

/* ---- diff ---- */

struct difference {
    uint64_t elements, first;
    double largest;
    bool nan; /* a differing element is NaN on one side, so there is no largest difference of all */
};

/* Room for one block of both sides. */
struct diff_blocks {
    unsigned char raw[ST_BLOCK_BYTES];
    float a[ST_BLOCK_BYTES / 4], b[ST_BLOCK_BYTES / 4];
};

static void count_block(struct difference *d, uint64_t first, const struct diff_blocks *k, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&k->a[i], &k->b[i], 4) == 0) {
            continue;
        }
        if (d->elements++ == 0) {
            d->first = first + i;
        }
        double gap = (double)k->a[i] - (double)k->b[i];
        gap = gap < 0 ? -gap : gap;
        d->nan = d->nan || gap != gap;
        d->largest = gap > d->largest ? gap : d->largest;
    }
}

static enum err diff_values(const struct st_place *pa, const struct st_place *pb, struct difference *d)
{
    const struct st_tensor *a = pa->tensor, *b = pb->tensor;
    void *block;
    *d = (struct difference){ 0 };
    TRY(mem_alloc(&block, 1, sizeof(struct diff_blocks)));
    struct diff_blocks *k = block;
    enum err err = OK;
    size_t step = ST_BLOCK_BYTES / 4;
    for (uint64_t at = 0; at < a->elements; at += step) {
        size_t count = a->elements - at < step ? (size_t)(a->elements - at) : step;
        TRY_OUT(st_floats(pa->file, a, at, count, k->raw, k->a));
        TRY_OUT(st_floats(pb->file, b, at, count, k->raw, k->b));
        count_block(d, at, k, count);
    }
out:
    free(block);
    return err;
}

/* "[1, 0]": the place of an element given by its number in row-major order; out holds 192 bytes. */
static const char *place_text(const struct st_tensor *t, uint64_t element, char out[192])
{
    uint64_t place[ST_RANK_MAX];
    for (uint32_t d = t->rank; d-- > 0;) {
        place[d] = element % t->shape[d];
        element /= t->shape[d];
    }
    return st_shape_text(t->rank, place, out);
}

static enum err diff_tensor(const struct st_set *left, const struct st_set *right, const char *name, struct buf *out,
                            struct ckpt_diff *sum)
{
    const struct st_place *pa = st_set_find(left, name), *pb = st_set_find(right, name);
    char sa[192], sb[192];
    sum->tensors++;
    sum->different++;
    if (pa == NULL || pb == NULL) {
        return buf_printf(out, "%-50s only in %s\n", name, pa != NULL ? left->path : right->path);
    }
    const struct st_tensor *a = pa->tensor, *b = pb->tensor;
    st_shape_text(a->rank, a->shape, sa);
    st_shape_text(b->rank, b->shape, sb);
    if (strcmp(sa, sb) != 0) {
        return buf_printf(out, "%-50s shape %s and %s\n", name, sa, sb);
    }
    if (!a->dtype->floats || !b->dtype->floats) {
        return buf_printf(out, "%-50s not compared: dtypes %s and %s\n", name, a->dtype->name, b->dtype->name);
    }
    struct difference d;
    TRY(diff_values(pa, pb, &d));
    if (d.elements == 0) {
        sum->different--;
        return buf_printf(out, "%-50s equal\n", name);
    }
    return buf_printf(out, "%-50s %" PRIu64 " of %" PRIu64 " differ, first at %" PRIu64 " %s, largest difference "
                      "%.9g%s\n", name, d.elements, a->elements, d.first, place_text(a, d.first, sa), d.largest,
                      d.nan ? " (and NaN)" : "");
}

/* The names of both files, each once, in order of name. */
static enum err diff_files(const struct st_set *fa, const struct st_set *fb, struct buf *out, struct ckpt_diff *sum)
{
    size_t i = 0, j = 0;
    while (i < fa->count || j < fb->count) {
        const char *a = i < fa->count ? fa->list[i].tensor->name : NULL;
        const char *b = j < fb->count ? fb->list[j].tensor->name : NULL;
        int c = a == NULL ? 1 : b == NULL ? -1 : strcmp(a, b);
        TRY(diff_tensor(fa, fb, c <= 0 ? a : b, out, sum));
        i += c <= 0;
        j += c >= 0;
    }
    return OK;
}

static enum err diff_named(const struct ckpt *a, const struct ckpt *b, const char *name, struct buf *out,
                           struct ckpt_diff *sum)
{
    struct st_set fa = { 0 }, fb = { 0 };
    enum err err;
    TRY_OUT(load_tensors(a, name, &fa));
    TRY_OUT(load_tensors(b, name, &fb));
    TRY_OUT(diff_files(&fa, &fb, out, sum));
out:
    st_set_close(&fa);
    st_set_close(&fb);
    return err;
}

/* The model, then every other tensor file that both have. */
static enum err diff_opened(const struct ckpt *a, const struct ckpt *b, struct buf *out, struct ckpt_diff *sum)
{
    TRY(diff_named(a, b, MODEL_NAME, out, sum));
    for (size_t i = 0; a->has_manifest && b->has_manifest && i < a->manifest.count; i++) {
        const struct manifest_file *f = &a->manifest.files[i];
        const struct manifest_file *g = manifest_find(&b->manifest, f->name);
        if (f->tensor_file && g != NULL && g->tensor_file && strcmp(f->name, MODEL_NAME) != 0) {
            TRY(buf_printf(out, "%s\n", f->name));
            TRY(diff_named(a, b, f->name, out, sum));
        }
    }
    sum->suspicious = sum->different == 0 && a->has_manifest && b->has_manifest && a->manifest.step != b->manifest.step;
    return OK;
}

enum err ckpt_diff(const char *a, const char *b, struct buf *out, struct ckpt_diff *sum)
{
    struct ckpt *ca = NULL, *cb = NULL;
    *sum = (struct ckpt_diff){ 0 };
    enum err err;
    TRY_OUT(ckpt_open(&ca, a));
    TRY_OUT(ckpt_open(&cb, b));
    TRY_OUT(diff_opened(ca, cb, out, sum));
out:
    ckpt_close(ca);
    ckpt_close(cb);
    return err;
}
