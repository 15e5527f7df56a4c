/* Why this exists: figures are compared by programs. The JSON holds what the tables show, in seconds, bytes and
 * operations a second, with nothing rounded. */
#include "cmd/bench_report.h"

#include <stdio.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"

#define FORMAT "invar-bench/1"

static json_t *rate_json(struct rate r)
{
    return json_pack("{s:f, s:f}", "one_thread", r.one, "all_threads", r.all);
}

static json_t *machine_json(const struct machine *m)
{
    json_t *levels = json_array();
    for (uint32_t i = 0; i < m->levels; i++) {
        json_array_append_new(levels, json_pack("{s:I, s:o}", "bytes", (json_int_t)m->level[i].bytes, "copy",
                                                rate_json(m->level[i].copy)));
    }
    return json_pack("{s:s, s:I, s:o, s:o, s:f, s:I, s:o, s:o, s:o, s:o}", "isa", kern_isa_name(m->isa), "threads",
                     (json_int_t)m->threads, "fma_fp32_flops", rate_json(m->fma), "bf16_flops",
                     rate_json(m->bf16), "spread", m->spread, "memory_bytes",
                     (json_int_t)m->memory_bytes, "read_bytes_s", rate_json(m->read), "copy_bytes_s",
                     rate_json(m->copy), "update_bytes_s", rate_json(m->update), "levels", levels);
}

static json_t *disk_json(const struct disk *d)
{
    if (d->skipped[0] != '\0') {
        return json_pack("{s:s, s:s}", "folder", d->folder, "skipped", d->skipped);
    }
    return json_pack("{s:s, s:I, s:f, s:f}", "folder", d->folder, "bytes", (json_int_t)d->bytes, "write_bytes_s",
                     d->write, "read_bytes_s", d->read);
}

static json_t *links_json(const struct links *l)
{
    if (l->ranks == 1) {
        return json_pack("{s:I}", "ranks", (json_int_t)1);
    }
    return json_pack("{s:I, s:I, s:f, s:f, s:I, s:f, s:f, s:f}", "ranks", (json_int_t)l->ranks, "nodes",
                     (json_int_t)l->nodes, "latency_s", l->latency_s, "sum_s", l->sum_s, "bytes",
                     (json_int_t)LINKS_BYTES, "message_bytes_s", l->message, "all_gather_bytes_s", l->all_gather,
                     "reduce_scatter_bytes_s", l->reduce_scatter);
}

static json_t *kernels_json(const struct bench_report *r)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->ops; i++) {
        const struct op *op = &r->op[i];
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "name", op->name, "group",
                            ops_group_name(op->group), "rows", (json_int_t)op->rows, "columns", (json_int_t)op->cols,
                            "sum", (json_int_t)op->sum, "calls", op->calls, "flops", op->flops, "bytes", op->bytes,
                            "seconds", r->time[i].best_s, "mean_seconds", r->time[i].sum_s / r->time[i].samples,
                            "share", bench_limit_s(r, i) / r->time[i].best_s, "samples",
                            (json_int_t)r->time[i].samples));
    }
    return list;
}

static json_t *step_json(const struct bench_report *r, const struct conf *c)
{
    const struct whole *w = &r->whole;
    json_t *groups = json_object();
    for (int g = 0; g < OPS_GROUPS; g++) {
        json_object_set_new(groups, ops_group_name((enum ops_group)g),
                            json_real(bench_group_s(r, (enum ops_group)g, false)));
    }
    return json_pack("{s:b, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:o, s:I, s:I}", "bf16", c->bf16, "sequences",
                     (json_int_t)c->global_batch_size, "seq_length", (json_int_t)c->seq_length, "micro_batch_size",
                     (json_int_t)c->micro_batch_size, "steps", (json_int_t)w->steps, "seconds", w->best_s,
                     "mean_seconds", w->mean_s, "tokens_per_second", (double)w->tokens / w->best_s,
                     "products_at_peak_share", bench_bound_s(r) / w->best_s, "kernel_seconds", groups,
                     "planned_bytes", (json_int_t)w->planned_bytes, "peak_bytes", (json_int_t)w->peak_bytes);
}

static json_t *scaling_json(const struct bench_report *r)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->case_count; i++) {
        const struct bench_case *b = &r->cases[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:s}", "axis", b->axis,
                                              "sequences", (json_int_t)b->sequences, "seq_length",
                                              (json_int_t)b->length, "hidden", (json_int_t)b->hidden, "layers",
                                              (json_int_t)b->layers, "token_flops", b->flops, "seconds", b->best_s,
                                              "line", b->line, "why", b->why));
    }
    return list;
}

static json_t *report_json(const struct bench_report *r, const struct conf *c)
{
    const struct model_conf *m = &c->model;
    json_t *model = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "family",
                              model_family_name(m->family), "parameters",
                              (json_int_t)model_conf_parameters(m), "layers", (json_int_t)m->layers, "hidden",
                              (json_int_t)m->hidden, "heads", (json_int_t)m->heads, "kv_heads",
                              (json_int_t)m->kv_heads, "head_dim", (json_int_t)m->head_dim, "ffn", (json_int_t)m->ffn,
                              "vocab", (json_int_t)m->vocab);
    json_t *noise = json_pack("{s:f, s:f}", "other_cores", r->noise.others, "steal", r->noise.steal);
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "format", FORMAT, "invar", INVAR_VERSION,
                     "model", model, "machine", machine_json(&r->machine), "disk", disk_json(&r->disk), "ranks",
                     links_json(&r->links), "kernels", kernels_json(r), "step", step_json(r, c), "noise", noise,
                     "scaling", scaling_json(r));
}

/* Whether a file begins as one that bench_write_json wrote. */
static bool is_report(const char *path)
{
    char head[64] = "";
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return false;
    }
    head[fread(head, 1, sizeof(head) - 1, f)] = '\0';
    fclose(f);
    return strstr(head, FORMAT) != NULL;
}

enum err bench_check_output(const char *path)
{
    struct stat st;
    struct buf temporary = { 0 };
    struct file_out f;
    if (stat(path, &st) == 0 && (!S_ISREG(st.st_mode) || !is_report(path))) {
        return FAIL(ERR_USAGE, "--output %s: it exists, and is not what an earlier invar bench wrote | choose another "
                               "name, or remove it", path);
    }
    TRY(buf_printf(&temporary, "%s.tmp", path)); /* as file_replace will */
    enum err err = file_out_open(&f, temporary.data);
    if (err == OK) {
        file_out_abandon(&f);
    }
    buf_release(&temporary);
    return err;
}

enum err bench_write_json(const struct bench_report *r, const struct conf *c, const char *path)
{
    json_t *root = report_json(r, c);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    enum err err = text != NULL ? file_replace(path, text, strlen(text))
                                : FAIL(ERR_RESOURCE, "%s: no memory for the text", path);
    free(text);
    json_decref(root);
    return err;
}
