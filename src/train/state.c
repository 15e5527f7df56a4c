/* Why this exists: the bridge between a run and its checkpoints: which tensors, which facts. The tensors are the
 * registry's logical tensors, so a checkpoint knows no layout.
 *
 * A step folder holds config.json, model.safetensors and the tokenizer (a Hugging Face model folder), and
 * optimizer.safetensors (exp_avg.NAME, exp_avg_sq.NAME) with trainer_state.json for resuming. */
#include "base/file.h"
#include "base/json.h"
#include "ckpt/ckpt.h"
#include "part/order.h"
#include "train/trainer.h"

#define STATE_FORMAT "invar-state/1"

/* Checkpoint views of a flat storage: tensor i is registry parameter i, its name behind `prefix`, wanted whole. */
struct views {
    struct ckpt_tensor *list;
    struct ckpt_box *boxes;
    char *names; /* [count][VIEW_NAME_BYTES] */
    size_t count;
};

#define VIEW_NAME_BYTES (REGISTRY_NAME_BYTES + 16)

static void views_release(struct views *v)
{
    free(v->list);
    free(v->boxes);
    free(v->names);
    *v = (struct views){ 0 };
}

static enum err views_reserve(struct views *v, size_t count)
{
    void *mem;
    enum err err;
    *v = (struct views){ 0 };
    TRY_OUT(mem_alloc(&mem, count, sizeof(struct ckpt_tensor)));
    v->list = mem;
    TRY_OUT(mem_alloc(&mem, count, sizeof(struct ckpt_box)));
    v->boxes = mem;
    TRY_OUT(mem_alloc(&mem, count, VIEW_NAME_BYTES));
    v->names = mem;
out:
    if (err != OK) {
        views_release(v);
    }
    return err;
}

static void views_add(struct views *v, const struct registry *r, const char *prefix, float *flat)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct param *p = &r->list[i];
        char *name = v->names + v->count * VIEW_NAME_BYTES;
        snprintf(name, VIEW_NAME_BYTES, "%s%s", prefix, p->name);
        struct ckpt_tensor *t = &v->list[v->count];
        struct ckpt_box *box = &v->boxes[v->count++];
        *t = (struct ckpt_tensor){ name, p->rank, { p->shape[0], p->rank == 2 ? p->shape[1] : 0 }, box, 1, false };
        *box = ckpt_box_whole(t, flat + p->offset);
    }
}

static enum err weight_views(struct views *v, struct model *m)
{
    const struct registry *r = model_registry(m);
    TRY(views_reserve(v, r->count));
    views_add(v, r, "", model_params(m));
    return OK;
}

static enum err moment_views(struct views *v, const struct trainer *t)
{
    const struct registry *r = model_registry(t->model);
    TRY(views_reserve(v, 2 * (size_t)r->count));
    views_add(v, r, "exp_avg.", t->optimizer.m);
    views_add(v, r, "exp_avg_sq.", t->optimizer.v);
    return OK;
}

static enum err write_state(const struct trainer *t, struct buf *out)
{
    const struct conf *c = t->conf;
    char digest[33];
    conf_digest(c, digest);
    return buf_printf(
        out,
        "{\n  \"format\": \"%s\",\n  \"step\": %llu,\n  \"samples\": %llu,\n  \"config_digest\": \"%s\",\n"
        "  \"seed\": %llu,\n  \"tp_grain\": %llu,\n  \"grad_unit\": %llu,\n  \"grad_scale_log2\": %lld,\n"
        "  \"state_hash\": \"%016llx\"\n}\n",
        STATE_FORMAT, (unsigned long long)t->step, (unsigned long long)(t->step * c->global_batch_size), digest,
        (unsigned long long)c->seed, (unsigned long long)c->tp_grain, (unsigned long long)c->grad_unit,
        (long long)c->grad_scale_log2, (unsigned long long)t->state_hash);
}

static enum err save_tokenizer(void *arg, const char *folder)
{
    const struct trainer *t = arg;
    return t->tokenizer != NULL ? tokenizer_save(t->tokenizer, folder) : OK;
}

/* arg: the views of each file. */
static enum err fetch_view(void *arg, size_t file, size_t tensor, const float **values)
{
    const struct views *const *views = arg;
    *values = views[file]->boxes[tensor].data;
    return OK;
}

enum err trainer_save(struct trainer *t)
{
    struct views weights = { 0 }, moments = { 0 };
    struct buf config = { 0 }, state = { 0 };
    enum err err;
    TRY_OUT(weight_views(&weights, t->model));
    TRY_OUT(moment_views(&moments, t));
    TRY_OUT(model_conf_write(&t->conf->model, &config));
    TRY_OUT(write_state(t, &state));
    const struct ckpt_file files[] = {
        { "model.safetensors", weights.list, weights.count },
        { "optimizer.safetensors", moments.list, moments.count },
    };
    const struct views *views[] = { &weights, &moments };
    const struct ckpt_text texts[] = { { "config.json", config.data }, { "trainer_state.json", state.data } };
    const struct ckpt_content content = {
        .step = t->step, .files = files, .files_count = 2, .source = { fetch_view, views },
        .texts = texts, .texts_count = 2,
        .extra = save_tokenizer, .extra_arg = t, .state_hash = t->state_hash,
    };
    TRY_OUT(ckpt_save(t->checkpoints, &content, t->conf->save_total_limit));
    t->saved_step = t->step;
out:
    views_release(&weights);
    views_release(&moments);
    buf_release(&config);
    buf_release(&state);
    return err;
}

enum err state_read_weights(struct ckpt *c, struct model *m)
{
    struct views weights = { 0 };
    enum err err = weight_views(&weights, m);
    if (err == OK) {
        err = ckpt_read(c, "model.safetensors", weights.list, weights.count);
    }
    views_release(&weights);
    return err;
}

/* A whole number of trainer_state.json. */
static enum err state_whole(const json_t *root, const char *folder, const char *key, long long *out)
{
    const json_t *value = json_object_get(root, key);
    *out = json_integer_value(value);
    if (!json_is_integer(value)) {
        return FAIL(ERR_DATA, "%s/trainer_state.json: %s: a whole number was expected", folder, key);
    }
    return OK;
}

static enum err read_model_conf(struct ckpt *c, struct model_conf *out)
{
    struct buf text = { 0 }, name = { 0 };
    struct findings f = { 0 };
    enum err err;
    TRY_OUT(ckpt_read_text(c, "config.json", &text));
    TRY_OUT(buf_printf(&name, "%s/config.json", ckpt_folder(c)));
    TRY_OUT(model_conf_parse(out, name.data, text.data, text.bytes, &f));
out:
    findings_print(&f);
    findings_release(&f);
    buf_release(&text);
    buf_release(&name);
    return err;
}

/* The tp_grain a run was trained with: its losses are sums in that many segments. */
static enum err read_grain(struct ckpt *c, uint64_t *grain)
{
    struct buf text = { 0 };
    json_t *root = NULL;
    long long recorded = 0;
    enum err err;
    TRY_OUT(ckpt_read_text(c, "trainer_state.json", &text));
    TRY_OUT(json_parse(&root, "trainer_state.json", text.data, text.bytes));
    TRY_OUT(state_whole(root, ckpt_folder(c), "tp_grain", &recorded));
    if (recorded < 1 || recorded > ORDER_SEGMENTS_MAX || (recorded & (recorded - 1)) != 0) {
        err = FAIL(ERR_DATA, "%s/trainer_state.json: tp_grain %lld, a power of two up to %u was expected",
                   ckpt_folder(c), recorded, ORDER_SEGMENTS_MAX);
    }
    *grain = (uint64_t)recorded;
out:
    json_decref(root);
    buf_release(&text);
    return err;
}

enum err state_read_conf(struct ckpt *c, struct model_conf *out, uint64_t *grain)
{
    *grain = 0;
    TRY(read_model_conf(c, out));
    return ckpt_has_file(c, "trainer_state.json") ? read_grain(c, grain) : OK;
}

/* The arithmetic recorded with the run must be this run's; a changed configuration is said. */
static enum err check_state(const struct trainer *t, const struct ckpt *c, const json_t *root, uint64_t *step)
{
    const char *folder = ckpt_folder(c);
    const struct { const char *key; long long now; } fixed[] = {
        { "tp_grain", (long long)t->conf->tp_grain },
        { "grad_unit", (long long)t->conf->grad_unit },
        { "grad_scale_log2", (long long)t->conf->grad_scale_log2 },
    };
    const char *format = json_string_value(json_object_get(root, "format"));
    if (format == NULL || strcmp(format, STATE_FORMAT) != 0) {
        return FAIL(ERR_DATA, "%s/trainer_state.json: format is \"%s\", \"%s\" was expected", folder,
                    format != NULL ? format : "", STATE_FORMAT);
    }
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
        long long then;
        TRY(state_whole(root, folder, fixed[i].key, &then));
        if (then != fixed[i].now) {
            return FAIL(ERR_USAGE, "%s: the checkpoint was made with %s %lld, this run has %lld | give --%s %lld",
                        folder, fixed[i].key, then, fixed[i].now, fixed[i].key, then);
        }
    }
    long long recorded;
    TRY(state_whole(root, folder, "step", &recorded));
    if (recorded < 0 || (uint64_t)recorded != ckpt_step(c)) {
        return FAIL(ERR_DATA, "%s/trainer_state.json: step %lld, the manifest says %llu", folder, recorded,
                    (unsigned long long)ckpt_step(c));
    }
    *step = (uint64_t)recorded;
    char digest[33];
    conf_digest(t->conf, digest);
    const char *then = json_string_value(json_object_get(root, "config_digest"));
    if (then == NULL || strcmp(then, digest) != 0) {
        log_warning(
            "%s: the configuration differs from the one this checkpoint was trained with; the result is not that "
            "of one uninterrupted run | compare config.yaml of the run with this configuration",
            folder);
    }
    return OK;
}

enum err trainer_resume(struct trainer *t, struct ckpt *c)
{
    struct views moments = { 0 };
    struct buf text = { 0 };
    json_t *root = NULL;
    enum err err;
    if (!ckpt_has_manifest(c) || !ckpt_has_file(c, "optimizer.safetensors")) {
        return FAIL(ERR_DATA,
                    "%s: no optimizer state to resume from | start from these weights with `model: %s` instead",
                    ckpt_folder(c), ckpt_folder(c));
    }
    TRY_OUT(ckpt_read_text(c, "trainer_state.json", &text));
    TRY_OUT(json_parse(&root, "trainer_state.json", text.data, text.bytes));
    TRY_OUT(check_state(t, c, root, &t->step));
    TRY_OUT(state_read_weights(c, t->model));
    TRY_OUT(moment_views(&moments, t));
    TRY_OUT(ckpt_read(c, "optimizer.safetensors", moments.list, moments.count));
    t->state_hash = optimizer_state_hash(t->model, t->kern);
    if (t->state_hash != ckpt_state_hash(c)) {
        err = FAIL(ERR_DATA, "%s: the weights have state hash %016llx, the manifest records %016llx", ckpt_folder(c),
                   (unsigned long long)t->state_hash, (unsigned long long)ckpt_state_hash(c));
        goto out;
    }
    t->saved_step = t->step;
    log_note("resumed from %s: step %llu, state %016llx", ckpt_folder(c), (unsigned long long)t->step,
             (unsigned long long)t->state_hash);
out:
    views_release(&moments);
    buf_release(&text);
    json_decref(root);
    return err;
}
