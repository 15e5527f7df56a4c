/* Why this exists: the bridge between a run and its checkpoints: which tensors, which facts. The tensors are the
 * registry's logical tensors, so a checkpoint knows no layout.
 *
 * A step folder holds config.json, model.safetensors and the tokenizer (a Hugging Face model folder), and
 * optimizer.safetensors (exp_avg.NAME, exp_avg_sq.NAME) with trainer_state.json for resuming. */
#include "base/file.h"
#include "base/json.h"
#include "ckpt/ckpt.h"
#include "part/order.h"
#include "train/optimizer.h"
#include "train/trainer.h"

#define STATE_FORMAT "invar-state/1"

/* The files of a checkpoint that hold tensors, as this rank sees them. */
struct tensor_files {
    struct views weights, moments;
    struct kept *p, *m, *v; /* [buckets] of one block */
};

static void files_release(struct tensor_files *f)
{
    views_release(&f->weights);
    views_release(&f->moments);
    free(f->p);
    *f = (struct tensor_files){ 0 };
}

static void list_kept(struct tensor_files *f, const struct holdings *h)
{
    for (uint32_t b = 0; b < h->reg->bucket_count; b++) {
        const struct holding *own = &h->of[b];
        f->p[b] = (struct kept){ own->p, own->p_at };
        f->m[b] = (struct kept){ own->m, own->m_at };
        f->v[b] = (struct kept){ own->v, own->m_at };
    }
}

/* Of what is kept on several ranks, the one rank that gives it: with stage 0 the first data rank, else the slice of
 * each. */
static void keep_own(struct tensor_files *f, const struct holdings *h)
{
    bool first = comm_rank(h->ranks->data) == 0;
    for (uint32_t b = 0; b < h->reg->bucket_count; b++) {
        const struct holding *own = &h->of[b];
        struct order_range give = h->stage > 0 ? own->slice : first ? own->p_at : (struct order_range){ 0, 0 };
        f->p[b] = (struct kept){ own->p + (give.lo - own->p_at.lo), give };
        if (h->stage == 0) {
            f->m[b].at = f->v[b].at = give;
        }
    }
}

/* For reading all boxes that are kept; for saving those that this rank gives. */
static enum err files_init(struct tensor_files *f, const struct holdings *h, bool saving)
{
    void *mem;
    uint32_t buckets = h->reg->bucket_count;
    bool (*counts)(const struct holdings *h, const struct shard *s) = saving ? optimizer_counts : NULL;
    *f = (struct tensor_files){ 0 };
    TRY(mem_alloc(&mem, 3 * (size_t)buckets, sizeof(struct kept)));
    f->p = mem;
    f->m = f->p + buckets;
    f->v = f->m + buckets;
    list_kept(f, h);
    if (saving) {
        keep_own(f, h);
    }
    enum err err = views_init(&f->weights, h->reg, 1);
    if (err == OK) {
        err = views_init(&f->moments, h->reg, 2);
    }
    if (err != OK) {
        files_release(f);
        return err;
    }
    views_add(&f->weights, h->reg, "", f->p, counts, h);
    views_add(&f->moments, h->reg, "exp_avg.", f->m, counts, h);
    views_add(&f->moments, h->reg, "exp_avg_sq.", f->v, counts, h);
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
        "  \"bf16\": %s,\n"
        "  \"state_hash\": \"%016llx\"\n}\n",
        STATE_FORMAT, (unsigned long long)t->step, (unsigned long long)(t->step * c->global_batch_size), digest,
        (unsigned long long)c->seed, (unsigned long long)c->tp_grain, (unsigned long long)c->grad_unit,
        (long long)c->grad_scale_log2, c->bf16 ? "true" : "false",
        (unsigned long long)t->state_hash);
}

static enum err save_tokenizer(void *arg, const char *folder)
{
    const struct trainer *t = arg;
    return t->tokenizer != NULL ? tokenizer_save(t->tokenizer, folder) : OK;
}

/* Tensor files in the order in which they are written. */
struct source {
    struct trainer *t;
    struct ckpt_file files[2];
};

static enum err fetch(void *arg, size_t file, size_t tensor, const float **values)
{
    const struct source *s = arg;
    comm_phase(s->t->ranks.world, PHASE_SAVE, s->t->step, (uint32_t)tensor);
    return gather_tensor(&s->t->gather, &s->files[file].tensors[tensor], values);
}

/* The rank that writes. Its error reaches the others wherever they wait. */
static enum err save_leading(struct source *s)
{
    struct trainer *t = s->t;
    struct buf config = { 0 }, state = { 0 };
    enum err err;
    TRY_OUT(model_conf_write(&t->conf->model, &config));
    TRY_OUT(write_state(t, &state));
    const struct ckpt_text texts[] = { { "config.json", config.data }, { "trainer_state.json", state.data } };
    const struct ckpt_content content = {
        .step = t->step, .files = s->files, .files_count = 2, .source = { fetch, s }, .texts = texts, .texts_count = 2,
        .extra = save_tokenizer, .extra_arg = t, .state_hash = t->state_hash,
    };
    TRY_OUT(ckpt_save(t->checkpoints, &content, t->conf->save_total_limit));
out:
    buf_release(&config);
    buf_release(&state);
    return err == OK ? OK : comm_fail(t->ranks.world, err);
}

/* The others give their parts, in the order in which the tensors are written. */
static enum err save_following(struct source *s)
{
    void *mem;
    const float *none;
    for (size_t f = 0; f < 2; f++) {
        TRY(mem_alloc(&mem, s->files[f].count, sizeof(size_t)));
        size_t *order = mem;
        ckpt_order(s->files[f].tensors, s->files[f].count, order);
        enum err err = OK;
        for (size_t i = 0; i < s->files[f].count && err == OK; i++) {
            err = fetch(s, f, order[i], &none);
        }
        free(order);
        TRY(err);
    }
    return OK;
}

enum err trainer_save(struct trainer *t)
{
    struct tensor_files f;
    enum err err = files_init(&f, &t->holdings, true);
    if (err == OK) {
        struct source s = { t, { { "model.safetensors", f.weights.list, f.weights.count },
                                 { "optimizer.safetensors", f.moments.list, f.moments.count } } };
        err = ranks_leads(&t->ranks) ? save_leading(&s) : save_following(&s);
    }
    files_release(&f);
    TRY(err);
    TRY(comm_agree(t->ranks.all, OK)); /* nobody goes on before the files are complete */
    t->saved_step = t->step;
    return OK;
}

enum err state_read_weights(struct ckpt *c, const struct registry *r, const struct kept *kept)
{
    struct views weights;
    enum err err = views_init(&weights, r, 1);
    if (err == OK) {
        views_add(&weights, r, "", kept, NULL, NULL);
        views_add_tied_head(&weights, r);
        err = ckpt_read(c, "model.safetensors", weights.list, weights.count);
    }
    views_release(&weights);
    return err;
}

enum err trainer_read_weights(struct trainer *t, struct ckpt *c)
{
    struct tensor_files f;
    TRY(files_init(&f, &t->holdings, false));
    views_add_tied_head(&f.weights, t->holdings.reg);
    enum err err = ckpt_read(c, "model.safetensors", f.weights.list, f.weights.count);
    files_release(&f);
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

/* Whether it was trained with bf16; absent in the first checkpoints: false. */
static enum err state_bf16(const json_t *root, const char *folder, bool *out)
{
    const json_t *value = json_object_get(root, "bf16");
    *out = json_is_true(value);
    if (value != NULL && !json_is_boolean(value)) {
        return FAIL(ERR_DATA, "%s/trainer_state.json: bf16: true or false was expected", folder);
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

/* The arithmetic a run was trained with. */
static enum err read_arithmetic(struct ckpt *c, struct arithmetic *out)
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
        goto out;
    }
    out->grain = (uint64_t)recorded;
    TRY_OUT(state_bf16(root, ckpt_folder(c), &out->bf16));
out:
    json_decref(root);
    buf_release(&text);
    return err;
}

enum err state_read_conf(struct ckpt *c, struct model_conf *out, struct arithmetic *arithmetic)
{
    *arithmetic = (struct arithmetic){ 0 };
    TRY(read_model_conf(c, out));
    return ckpt_has_file(c, "trainer_state.json") ? read_arithmetic(c, arithmetic) : OK;
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
    bool bf16;
    TRY(state_bf16(root, folder, &bf16));
    if (bf16 != t->conf->bf16) {
        return FAIL(ERR_USAGE, "%s: the checkpoint was made with bf16 %s, this run has %s | give --bf16 %s", folder,
                    bf16 ? "true" : "false", bf16 ? "false" : "true", bf16 ? "true" : "false");
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
    if ((then == NULL || strcmp(then, digest) != 0) && ranks_leads(&t->ranks)) {
        log_warning(
            "%s: the configuration differs from the one this checkpoint was trained with; the result is not that "
            "of one uninterrupted run | compare config.yaml of the run with this configuration",
            folder);
    }
    return OK;
}

enum err trainer_resume(struct trainer *t, struct ckpt *c)
{
    struct tensor_files f = { 0 };
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
    TRY_OUT(files_init(&f, &t->holdings, false));
    TRY_OUT(ckpt_read(c, "model.safetensors", f.weights.list, f.weights.count));
    TRY_OUT(ckpt_read(c, "optimizer.safetensors", f.moments.list, f.moments.count));
    t->saved_step = t->step;
out:
    files_release(&f);
    buf_release(&text);
    json_decref(root);
    return err;
}

enum err trainer_check_resumed(const struct trainer *t, const struct ckpt *c)
{
    if (t->state_hash != ckpt_state_hash(c)) {
        return FAIL(ERR_DATA, "%s: the weights have state hash %016llx, the manifest records %016llx", ckpt_folder(c),
                    (unsigned long long)t->state_hash, (unsigned long long)ckpt_state_hash(c));
    }
    if (ranks_leads(&t->ranks)) {
        log_note("resumed from %s: step %llu, state %016llx", ckpt_folder(c), (unsigned long long)t->step,
                 (unsigned long long)t->state_hash);
    }
    return OK;
}
