/* Why this exists: files of models are larger than memory and differ in the order of rows. Values pass through blocks
 * of fixed size; a tensor whose rows are permuted is read row by row, one whose rows are columns in stripes of columns.
 * Invariant: nothing here holds more than BLOCK_ELEMENTS numbers, or one row of 256 numbers of the widest tensor. */
#include "ckpt/convert_read.h"

#include <inttypes.h>
#include <stdarg.h>

#include "base/file.h"
#include "base/mem.h"
#include "ckpt/gguf_conf.h"

#define BLOCK_ELEMENTS ((size_t)1 << 16)
#define STRIPE_ELEMENTS ((uint64_t)1 << 22)
#define HEAD_NAME "lm_head.weight"

/* ---- values ---- */

const char *convert_type(const struct convert_source *s, size_t i)
{
    return s->is_gguf ? s->places[i].gguf->type->name : s->places[i].st->tensor->dtype->name;
}

/* At most BLOCK_ELEMENTS elements as they lie in the source, as gains are in the target. */
static enum err floats(const struct convert_source *s, size_t i, bool to_gguf, uint64_t first, size_t count, float *out)
{
    const struct convert_place *p = &s->places[i];
    TRY(s->is_gguf ? gguf_floats(&s->gguf, p->gguf, first, count, s->raw, out)
                   : st_floats(p->st->file, p->st->tensor, first, count, s->raw, out));
    if (s->maps[i].adds_one && s->is_gguf != to_gguf) {
        float more = to_gguf ? 1.0f : -1.0f;
        for (size_t n = 0; n < count; n++) {
            out[n] += more;
        }
    }
    return OK;
}

static enum err pass_same(const struct convert_source *s, size_t i, bool to_gguf, convert_sink *sink, void *arg)
{
    const struct gguf_map *m = &s->maps[i];
    uint64_t elements = m->shape[0] * m->shape[1];
    void *block;
    TRY(mem_alloc(&block, BLOCK_ELEMENTS, sizeof(float)));
    enum err err = OK;
    for (uint64_t at = 0; at < elements && err == OK; at += BLOCK_ELEMENTS) {
        size_t count = elements - at < BLOCK_ELEMENTS ? (size_t)(elements - at) : BLOCK_ELEMENTS;
        err = floats(s, i, to_gguf, at, count, block);
        err = err == OK ? sink(arg, block, count) : err;
    }
    free(block);
    return err;
}

/* Rows in another order; a vector's rows are its numbers, which are read as one row. */
static enum err pass_rows(const struct convert_source *s, size_t i, bool to_gguf, convert_sink *sink, void *arg)
{
    const struct gguf_map *m = &s->maps[i];
    uint64_t width = m->rank == 1 ? m->shape[0] : m->shape[1];
    void *mem;
    TRY(mem_alloc(&mem, 2 * width, sizeof(float)));
    float *row = mem, *turned = row + width;
    enum err err = OK;
    for (uint64_t r = 0; m->rank == 2 && r < m->shape[0] && err == OK; r++) {
        uint64_t from = to_gguf ? gguf_map_hf_row(m, r) : gguf_map_gguf_row(m, r);
        for (uint64_t at = 0; at < width && err == OK; at += BLOCK_ELEMENTS) {
            uint64_t count = width - at < BLOCK_ELEMENTS ? width - at : BLOCK_ELEMENTS;
            err = floats(s, i, to_gguf, from * width + at, count, row + at);
        }
        err = err == OK ? sink(arg, row, width) : err;
    }
    for (uint64_t at = 0; m->rank == 1 && at < width && err == OK; at += BLOCK_ELEMENTS) {
        err = floats(s, i, to_gguf, at, width - at < BLOCK_ELEMENTS ? width - at : BLOCK_ELEMENTS, row + at);
    }
    for (uint64_t r = 0; m->rank == 1 && r < width && err == OK; r++) {
        turned[r] = row[to_gguf ? gguf_map_hf_row(m, r) : gguf_map_gguf_row(m, r)];
    }
    if (m->rank == 1 && err == OK) {
        err = sink(arg, turned, width);
    }
    free(mem);
    return err;
}

/* Rows that are columns of the source: `stripe` of them at a time, a piece of each of the source's rows. */
static enum err pass_columns(const struct convert_source *s, size_t i, bool to_gguf, convert_sink *sink, void *arg)
{
    const struct gguf_map *m = &s->maps[i];
    uint64_t rows = to_gguf ? m->shape[1] : m->shape[0], width = to_gguf ? m->shape[0] : m->shape[1];
    uint64_t stripe = STRIPE_ELEMENTS / width / GGUF_BLOCK_MAX * GGUF_BLOCK_MAX;
    stripe = stripe < GGUF_BLOCK_MAX ? GGUF_BLOCK_MAX : stripe > BLOCK_ELEMENTS ? BLOCK_ELEMENTS : stripe;
    stripe = stripe < rows ? stripe : rows;
    void *mem;
    TRY(mem_alloc(&mem, mem_mul(stripe, width + 1), sizeof(float)));
    float *block = mem, *piece = block + stripe * width;
    enum err err = OK;
    for (uint64_t at = 0; at < rows && err == OK; at += stripe) {
        uint64_t some = rows - at < stripe ? rows - at : stripe;
        for (uint64_t c = 0; c < width && err == OK; c++) {
            err = floats(s, i, to_gguf, c * rows + at, some, piece);
            for (uint64_t r = 0; r < some; r++) {
                block[r * width + c] = piece[r];
            }
        }
        err = err == OK ? sink(arg, block, some * width) : err;
    }
    free(mem);
    return err;
}

enum err convert_values(const struct convert_source *s, size_t i, bool to_gguf, convert_sink *sink, void *arg)
{
    const struct gguf_map *m = &s->maps[i];
    if (s->is_gguf == to_gguf || m->layout == LAYOUT_SAME) {
        return pass_same(s, i, to_gguf, sink, arg);
    }
    return m->layout == LAYOUT_TRANSPOSED ? pass_columns(s, i, to_gguf, sink, arg)
                                          : pass_rows(s, i, to_gguf, sink, arg);
}

/* ---- tensors and their places ---- */

/* Disagreements, collected so that one error says all; the first are written out. */
struct faults {
    struct buf text;
    size_t count;
};

PRINTF_LIKE(2, 3) static enum err note(struct faults *f, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return f->count++ < 6 ? buf_printf(&f->text, "%s%s", f->text.bytes > 0 ? "; " : "", text) : OK;
}

static enum err place_gguf(struct convert_source *s, size_t i, struct faults *f)
{
    const struct gguf_map *m = &s->maps[i];
    const struct gguf_tensor *t = gguf_find_tensor(&s->gguf, m->gguf);
    char text[192];
    if (t == NULL) {
        return note(f, "%s is missing", m->gguf);
    }
    /* The reverse of Hugging Face's shape; of a transposed tensor the same. */
    bool same = m->layout == LAYOUT_TRANSPOSED;
    uint64_t columns = m->rank == 1 || same ? m->shape[0] : m->shape[1], rows = same ? m->shape[1] : m->shape[0];
    uint64_t others = 1;
    for (uint32_t d = 1; d < t->rank; d++) {
        others = mem_mul(others, t->shape[d]);
    }
    s->places[i].gguf = t;
    if (t->shape[0] != columns || others != (m->rank == 1 ? 1 : rows)) {
        return note(f, "%s has shape %s, [%" PRIu64 ", %" PRIu64 "] was expected", t->name,
                    st_shape_text(t->rank, t->shape, text), columns, m->rank == 1 ? 1 : rows);
    }
    if (t->type->widen == NULL || (m->rank == 1 && t->type->elements > 1)) {
        return note(f, "%s is of type %s, which is not read%s", t->name, t->type->name,
                    t->type->widen != NULL ? " for vectors" : "");
    }
    return OK;
}

static enum err place_hf(struct convert_source *s, size_t i, struct faults *f)
{
    const struct gguf_map *m = &s->maps[i];
    const struct st_place *p = st_set_find(&s->weights, m->hf);
    char text[192], wanted[192];
    if (p == NULL) {
        return note(f, "%s is missing", m->hf);
    }
    const struct st_tensor *t = p->tensor;
    s->places[i] = (struct convert_place){ .st = p };
    if (t->rank != m->rank || memcmp(t->shape, m->shape, m->rank * sizeof(m->shape[0])) != 0) {
        return note(f, "%s has shape %s, %s was expected", t->name, st_shape_text(t->rank, t->shape, text),
                    st_shape_text(m->rank, m->shape, wanted));
    }
    if (!t->dtype->floats) {
        return note(f, "%s is of type %s, F32, F16 or BF16 was expected", t->name, t->dtype->name);
    }
    return OK;
}

/* What the file has and the description does not. */
static enum err find_others(const struct convert_source *s, struct faults *f)
{
    size_t count = s->is_gguf ? s->gguf.tensors_count : s->weights.count;
    void *mem;
    TRY(mem_alloc(&mem, count, sizeof(bool)));
    bool *wanted = mem;
    for (size_t i = 0; i < s->count; i++) {
        const struct convert_place *p = &s->places[i];
        if (p->gguf != NULL || p->st != NULL) {
            wanted[s->is_gguf ? p->gguf - s->gguf.tensors : p->st - s->weights.list] = true;
        }
    }
    enum err err = OK;
    for (size_t i = 0; i < count && err == OK; i++) {
        const char *name = s->is_gguf ? s->gguf.tensors[i].name : s->weights.list[i].tensor->name;
        bool known = s->is_gguf ? gguf_conf_is_table(name) : s->conf.tied && strcmp(name, HEAD_NAME) == 0;
        if (!wanted[i] && !known) {
            err = note(f, "%.200s is not of this model", name);
        }
    }
    free(mem);
    return err;
}

static enum err alloc_places(struct convert_source *s)
{
    void *mem;
    TRY(mem_alloc(&mem, s->count, sizeof(struct convert_place)));
    s->places = mem;
    return OK;
}

static enum err find_places(struct convert_source *s, const char *path)
{
    struct faults f = { 0 };
    enum err err;
    s->described = true;
    TRY_OUT(gguf_arch_list(s->arch, &s->conf, &s->maps, &s->count));
    TRY_OUT(alloc_places(s));
    for (size_t i = 0; i < s->count; i++) {
        TRY_OUT(s->is_gguf ? place_gguf(s, i, &f) : place_hf(s, i, &f));
    }
    TRY_OUT(find_others(s, &f));
    if (f.count > 0) {
        err = FAIL(ERR_DATA, "%s: not the tensors of its description (%s, %" PRIu64 " layers): %s%s", path,
                   s->arch->model_type, s->conf.layers, f.text.data, f.count > 6 ? "; and others" : "");
    }
out:
    buf_release(&f.text);
    return err;
}

/* A folder's tensors as they are. */
static enum err take_all(struct convert_source *s)
{
    void *mem;
    s->count = s->weights.count;
    TRY(mem_alloc(&mem, s->count, sizeof(struct gguf_map)));
    s->maps = mem;
    TRY(alloc_places(s));
    for (size_t i = 0; i < s->count; i++) {
        const struct st_tensor *t = s->weights.list[i].tensor;
        if (!t->dtype->floats) {
            return FAIL(ERR_DATA, "%s: %.200s is of type %s, F32, F16 or BF16 was expected", s->weights.path, t->name,
                        t->dtype->name);
        }
        s->maps[i] = (struct gguf_map){ .rank = 1, .shape = { t->elements, 1 } };
        s->places[i] = (struct convert_place){ .st = &s->weights.list[i] };
    }
    return OK;
}

/* ---- opening ---- */

static enum err read_conf(struct convert_source *s)
{
    struct findings findings = { 0 };
    struct buf text = { 0 };
    char *name = NULL;
    enum err err;
    TRY_OUT(ckpt_read_text(s->ckpt, "config.json", &text));
    TRY_OUT(file_join(&name, ckpt_folder(s->ckpt), "config.json"));
    err = model_conf_parse(&s->conf, name, text.data != NULL ? text.data : "", text.bytes, &findings);
    if (err == ERR_USAGE) {
        findings_to_message(&findings);
        err = ERR_DATA;
    }
out:
    findings_release(&findings);
    buf_release(&text);
    free(name);
    return err;
}

static enum err open_any(struct convert_source *s, const char *path, bool describe)
{
    void *mem;
    TRY(mem_alloc(&mem, BLOCK_ELEMENTS, sizeof(float)));
    s->raw = mem;
    s->is_gguf = gguf_is(path);
    if (s->is_gguf) {
        TRY(gguf_open(&s->gguf, path));
        TRY(gguf_conf_read(&s->gguf, &s->arch, &s->conf));
        return find_places(s, path);
    }
    TRY(ckpt_open(&s->ckpt, path));
    TRY(load_tensors(s->ckpt, MODEL_NAME, &s->weights));
    if (!describe) {
        return take_all(s);
    }
    TRY(read_conf(s));
    s->arch = gguf_arch_of(s->conf.family);
    return find_places(s, path);
}

enum err convert_open(struct convert_source *s, const char *path, bool describe)
{
    *s = (struct convert_source){ .gguf = { .fd = -1 } };
    enum err err = open_any(s, path, describe);
    if (err != OK) {
        convert_close(s);
    }
    return err;
}

void convert_close(struct convert_source *s)
{
    gguf_close(&s->gguf);
    st_set_close(&s->weights);
    ckpt_close(s->ckpt);
    free(s->maps);
    free(s->places);
    free(s->raw);
    *s = (struct convert_source){ .gguf = { .fd = -1 } };
}
