/* Why this exists: people start from a model that exists and give the result to tools that exist. The source knows its
 * tensors under both names and in both layouts (convert_read.h), the targets take values in blocks (export.h,
 * gguf_write.h): here the two are joined, and the texts beside the weights are carried over. */
#include "ckpt/convert.h"

#include <inttypes.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/convert_read.h"
#include "ckpt/export.h"
#include "ckpt/gguf_conf.h"
#include "ckpt/gguf_tokenizer.h"

struct job {
    struct convert_source s;
    const struct convert_options *o;
    uint64_t done, total; /* elements, told as bytes of fp32 */
    struct export *folder;
    struct gguf_out out;
};

static void tell(struct job *j, size_t count)
{
    j->done += count;
    if (j->o->progress != NULL) {
        j->o->progress(j->o->progress_arg, 4 * j->done, 4 * j->total);
    }
}

/* ---- types ---- */

static const char *const dtypes[][3] = { /* the option, safetensors and GGUF, Hugging Face */
    { "f32", "F32", "float32" }, { "f16", "F16", "float16" }, { "bf16", "BF16", "bfloat16" }, { "q8_0", "Q8_0", NULL },
};

#define F16_ROW 1u /* of dtypes */

/* The type of the weights that are asked for, or that of the source: bf16 or f16 when all its matrices are so. */
static enum err find_dtype(const struct job *j, size_t *row)
{
    const char *wanted = j->o->dtype, *common = NULL;
    for (size_t i = 0; i < j->s.count && wanted == NULL; i++) {
        const char *type = convert_type(&j->s, i);
        if (j->s.described && j->s.maps[i].rank == 1) {
            continue;
        }
        common = common == NULL || strcmp(common, type) == 0 ? type : "F32";
    }
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        bool fits = wanted != NULL ? strcmp(wanted, dtypes[i][0]) == 0
                                   : common != NULL && strcmp(common, dtypes[i][1]) == 0;
        if (fits && (j->o->gguf || dtypes[i][2] != NULL)) {
            *row = i;
            return OK;
        }
    }
    *row = 0;
    return wanted == NULL ? OK : FAIL(ERR_USAGE, "save_dtype: \"%.40s\", %s was expected", wanted,
                                      j->o->gguf ? "f32, f16, bf16 or q8_0" : "f32, f16 or bf16 (q8_0 is for GGUF)");
}

/* ---- a folder ---- */

/* Replace the type that a config.json names for its weights. */
static enum err name_dtype(const struct buf *text, const char *dtype, struct buf *out)
{
    static const char *const keys[] = { "\"torch_dtype\"", "\"dtype\"" };
    const char *from = text->data != NULL ? text->data : "", *begin = NULL, *end = NULL;
    for (size_t i = 0; i < 2 && end == NULL; i++) {
        const char *key = strstr(from, keys[i]);
        begin = key != NULL ? key + strlen(keys[i]) : NULL;
        begin = begin != NULL ? begin + strspn(begin, " \t\r\n:") : NULL;
        end = begin != NULL && *begin == '"' ? strchr(begin + 1, '"') : NULL;
    }
    if (end == NULL) {
        return buf_add(out, from, text->bytes);
    }
    TRY(buf_add(out, from, (size_t)(begin - from)));
    TRY(buf_printf(out, "\"%s\"", dtype));
    return buf_add_string(out, end + 1);
}

static enum err put_texts_of_gguf(struct job *j, const char *dtype)
{
    struct buf text = { 0 }, named = { 0 };
    struct gguf_tokenizer_texts t = { 0 };
    enum err err;
    TRY_OUT(model_conf_write(&j->s.conf, &text));
    TRY_OUT(name_dtype(&text, dtype, &named));
    TRY_OUT(export_text(j->folder, "config.json", named.data, named.bytes));
    TRY_OUT(gguf_tokenizer_read(&j->s.gguf, &t));
    const struct { const char *name; const struct buf *text; } files[] = {
        { "tokenizer.json", &t.tokenizer }, { "tokenizer_config.json", &t.config },
        { "tokenizer.model", &t.sentencepiece },
    };
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (files[i].text->bytes > 0) {
            TRY_OUT(export_text(j->folder, files[i].name, files[i].text->data, files[i].text->bytes));
        }
    }
out:
    gguf_tokenizer_release(&t);
    buf_release(&text);
    buf_release(&named);
    return err;
}

/* The files beside the weights that belong to a model; those of training do not. */
static enum err put_texts_of_folder(struct job *j, const char *dtype)
{
    static const char *const names[] = {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja",
    };
    enum err err = OK;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && err == OK; i++) {
        struct buf text = { 0 }, named = { 0 };
        if (!ckpt_has_file(j->s.ckpt, names[i])) {
            continue;
        }
        err = ckpt_read_text(j->s.ckpt, names[i], &text);
        err = err != OK ? err : i == 0 ? name_dtype(&text, dtype, &named) : buf_add(&named, text.data, text.bytes);
        err = err != OK ? err : export_text(j->folder, names[i], named.data, named.bytes);
        buf_release(&text);
        buf_release(&named);
    }
    return err;
}

static enum err to_folder_sink(void *arg, const float *values, size_t count)
{
    struct job *j = arg;
    TRY(export_add(j->folder, values, count));
    tell(j, count);
    return OK;
}

static void plan_tensor(const struct job *j, size_t i, const char *dtype, struct st_tensor *out)
{
    const struct gguf_map *m = &j->s.maps[i];
    if (!j->s.described) {
        *out = *j->s.places[i].st->tensor;
    } else {
        *out = (struct st_tensor){ .name = m->hf, .rank = m->rank, .shape = { m->shape[0], m->shape[1] } };
    }
    out->dtype = st_dtype_find(dtype);
}

static enum err write_folder(struct job *j, const char *to, const char *const *dtype)
{
    void *list;
    size_t number;
    TRY(mem_alloc(&list, j->s.count, sizeof(struct st_tensor)));
    for (size_t i = 0; i < j->s.count; i++) {
        plan_tensor(j, i, dtype[1], (struct st_tensor *)list + i);
    }
    const struct export_plan plan = { to, list, j->s.count, j->o->shard_bytes };
    enum err err;
    TRY_OUT(export_open(&j->folder, &plan));
    while (export_next(j->folder, &number)) {
        TRY_OUT(convert_values(&j->s, number, false, to_folder_sink, j));
    }
    TRY_OUT(j->s.is_gguf ? put_texts_of_gguf(j, dtype[2]) : put_texts_of_folder(j, dtype[2]));
    TRY_OUT(export_finish(j->folder));
out:
    free(list);
    return err;
}

/* ---- a GGUF file ---- */

/* Matrices have the type that is asked for, but for those llama.cpp wants in F32; rows that are not whole blocks are
 * F16, as its converter does. */
static const struct gguf_type *type_of(const struct gguf_map *m, const uint64_t *shape, const char *dtype)
{
    const struct gguf_type *type = gguf_type_named(dtype);
    if (m->rank == 1 || strcmp(m->gguf, "position_embd.weight") == 0) {
        return gguf_type_named("F32");
    }
    return shape[0] % type->elements == 0 ? type : gguf_type_named("F16");
}

static void shape_of(const struct gguf_map *m, uint64_t shape[2])
{
    bool same = m->rank == 1 || m->layout == LAYOUT_TRANSPOSED;
    shape[0] = same ? m->shape[0] : m->shape[1];
    shape[1] = same ? m->shape[1] : m->shape[0];
}

static enum err announce(struct job *j, const char *from, size_t dtype)
{
    static const uint32_t file_types[] = { 0, 1, 32, 7 }; /* in the order of dtypes */
    const struct gguf_arch *a = j->s.arch;
    size_t end = strlen(from), begin;
    while (end > 1 && from[end - 1] == '/') {
        end--;
    }
    for (begin = end; begin > 0 && from[begin - 1] != '/'; begin--) {
    }
    TRY(gguf_out_string(&j->out, "general.architecture", a->name, strlen(a->name)));
    TRY(gguf_out_string(&j->out, "general.type", "model", 5));
    TRY(gguf_out_string(&j->out, "general.name", from + begin, end - begin));
    TRY(gguf_out_u32(&j->out, "general.file_type", file_types[dtype]));
    TRY(gguf_out_u32(&j->out, "general.quantization_version", 2));
    TRY(gguf_conf_put(&j->out, a, &j->s.conf, from));
    TRY(gguf_tokenizer_put(&j->out, ckpt_folder(j->s.ckpt), &j->s.conf));
    size_t others = 0;
    for (size_t i = 0; i < j->s.count; i++) {
        const struct gguf_map *m = &j->s.maps[i];
        uint64_t shape[2];
        shape_of(m, shape);
        const struct gguf_type *type = type_of(m, shape, dtypes[dtype][1]);
        others += dtype != F16_ROW && strcmp(type->name, "F16") == 0;
        TRY(gguf_out_tensor(&j->out, m->gguf, type, m->rank, shape));
    }
    if (others > 0) {
        log_warning("%zu matrices have rows that are not whole blocks of %s: they are written as F16", others,
                    dtypes[dtype][1]);
    }
    struct gguf_rope_table tables[2];
    gguf_conf_tables(&j->s.conf, tables);
    const uint64_t half = j->s.conf.rotary_dim / 2;
    for (int i = 0; i < 2 && tables[i].name != NULL; i++) {
        TRY(gguf_out_tensor(&j->out, tables[i].name, gguf_type_named("F32"), 1, &half));
    }
    return OK;
}

static enum err to_gguf_sink(void *arg, const float *values, size_t count)
{
    struct job *j = arg;
    TRY(gguf_out_add(&j->out, values, count));
    tell(j, count);
    return OK;
}

static enum err write_gguf(struct job *j, const char *from, const char *to, size_t dtype)
{
    TRY(announce(j, from, dtype));
    TRY(gguf_out_begin(&j->out, to));
    for (size_t i = 0; i < j->s.count; i++) {
        TRY(convert_values(&j->s, i, true, to_gguf_sink, j));
    }
    struct gguf_rope_table tables[2];
    gguf_conf_tables(&j->s.conf, tables);
    for (int i = 0; i < 2 && tables[i].name != NULL; i++) {
        TRY(gguf_out_add(&j->out, tables[i].values, j->s.conf.rotary_dim / 2));
    }
    return gguf_out_finish(&j->out);
}

enum err convert_model(const char *from, const char *to, const struct convert_options *o)
{
    struct job j = { .o = o, .out = { .out = { .fd = -1 } } };
    size_t dtype;
    bool gguf = gguf_is(from);
    if (gguf && o->gguf) {
        return FAIL(ERR_USAGE, "%s and %s are both GGUF files | convert to a folder first", from, to);
    }
    TRY(convert_open(&j.s, from, gguf || o->gguf));
    enum err err;
    TRY_OUT(find_dtype(&j, &dtype));
    for (size_t i = 0; i < j.s.count; i++) {
        j.total += j.s.maps[i].shape[0] * j.s.maps[i].shape[1];
    }
    TRY_OUT(o->gguf ? write_gguf(&j, from, to, dtype) : write_folder(&j, to, dtypes[dtype]));
out:
    export_close(j.folder);
    gguf_out_release(&j.out);
    convert_close(&j.s);
    return err;
}
