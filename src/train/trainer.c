/* Why this exists: a run is opened in one order - open inputs, resolve what they decide, check that they fit together,
 * lay out all memory, then weights - so that every mistake is reported before anything big is allocated or written. */
#include "train/trainer.h"

#include <unistd.h>

#include "base/file.h"
#include "part/order.h"
#include "train/output.h"

#define MODEL_WEIGHTS "model.safetensors"

_Static_assert(ORDER_VOCAB_MULTIPLE % ORDER_SEGMENTS_MAX == 0, "every tp_grain divides the padded vocabulary");

/* Ask the rules again, now that more is known than when the configuration was read. */
static enum err check_again(const struct conf *c)
{
    struct findings f = { 0 };
    enum err err = conf_check(c, &f);
    findings_print(&f);
    findings_release(&f);
    return err;
}

/* The checkpoint a run goes on from; it also says which model, when the configuration does not. */
static enum err open_start(struct trainer *t, struct conf *c)
{
    const char *path = c->resume_from_checkpoint;
    if (path == NULL) {
        return OK;
    }
    if (strcmp(path, "latest") == 0) {
        bool exists;
        path = t->checkpoints;
        TRY(ckpt_exists(path, &exists));
        if (!exists) {
            return FAIL(ERR_USAGE,
                        "resume_from_checkpoint latest: output_dir %s holds no checkpoint yet | start it without "
                        "resume_from_checkpoint; a run that failed before its first checkpoint is replaced with "
                        "--overwrite_output_dir true",
                        c->output_dir);
        }
    }
    TRY(ckpt_open(&t->start, path));
    if (!c->has_model) {
        struct model_conf model;
        uint64_t grain;
        TRY(state_read_conf(t->start, &model, &grain));
        TRY(conf_derive_model(c, &model, "the checkpoint"));
        TRY(check_again(c));
    }
    return OK;
}

/* A tokenizer that lies with the model is the model's. */
static enum err resolve_tokenizer(const struct trainer *t, struct conf *c)
{
    const char *folder = c->model_path != NULL ? c->model_path : t->start != NULL ? ckpt_folder(t->start) : NULL;
    bool found = false;
    if (c->tokenizer == NULL && folder != NULL) {
        TRY(tokenizer_is_in(folder, &found));
    }
    return found ? conf_derive_text(c, "tokenizer", folder, "the folder of the model") : OK;
}

/* Automatic values of the arithmetic; the rules of conf/ have checked the ones that were given. */
static enum err resolve_arithmetic(struct conf *c)
{
    const struct model_conf *m = &c->model;
    if (c->tp_grain == 0) {
        uint64_t grain = order_default_grain(m->kv_heads, m->ffn, order_pad_vocab(m->vocab));
        TRY(conf_derive(c, "tp_grain", grain, "the model"));
    }
    if (c->grad_unit == 0) {
        uint64_t unit = c->seq_length < ORDER_UNIT_MAX ? c->seq_length : ORDER_UNIT_MAX;
        TRY(conf_derive(c, "grad_unit", unit, "seq_length"));
    }
    if (c->grad_scale_log2 == 0) {
        uint64_t scale = (uint64_t)order_default_grad_scale_log2(c->seq_length);
        TRY(conf_derive(c, "grad_scale_log2", scale, "seq_length"));
    }
    return OK;
}

static enum err open_inputs(struct trainer *t)
{
    const struct conf *c = t->conf;
    if (c->tokenizer != NULL) {
        TRY(tokenizer_load(&t->tokenizer, c->tokenizer));
        if (tokenizer_vocab(t->tokenizer) > c->model.vocab) {
            return FAIL(ERR_USAGE,
                        "tokenizer %s has %llu ids, the model's vocab_size is %llu | set vocab_size to at least "
                        "%llu",
                        c->tokenizer, (unsigned long long)tokenizer_vocab(t->tokenizer),
                        (unsigned long long)c->model.vocab, (unsigned long long)tokenizer_vocab(t->tokenizer));
        }
    }
    TRY(store_open(&t->data, c->data_path));
    TRY(store_check_vocab(t->data, c->model.vocab));
    TRY(sampler_init(&t->sampler, t->data, c->seq_length, c->model.vocab, c->data_seed));
    if (c->eval_data_path != NULL) {
        TRY(store_open(&t->eval_data, c->eval_data_path));
        TRY(store_check_vocab(t->eval_data, c->model.vocab));
        TRY(sampler_init(&t->eval_sampler, t->eval_data, c->seq_length, c->model.vocab, c->data_seed));
    }
    return OK;
}

/* The data was made by the tokenizer that will be saved with the model, as far as both are known. */
static enum err check_tokenizer_of(const struct trainer *t, const struct store *s, const char *prefix)
{
    struct store_info info;
    char digest[33];
    TRY(store_info(s, &info));
    if (t->tokenizer == NULL || info.tokenizer[0] == '\0') {
        return OK;
    }
    tokenizer_digest(t->tokenizer, digest);
    if (strcmp(digest, info.tokenizer) != 0) {
        return FAIL(ERR_USAGE,
                    "%s was built with another tokenizer (%s) than %s (%s) | build the data again, or give the "
                    "tokenizer it was built with",
                    prefix, info.tokenizer, t->conf->tokenizer, digest);
    }
    return OK;
}

/* A model that does not name its end-of-text token gets the tokenizer's, so that others know where its texts end. */
static void resolve_tokens(const struct trainer *t, struct conf *c)
{
    if (c->model.eos_token_id < 0 && t->tokenizer != NULL) {
        c->model.eos_token_id = tokenizer_eot(t->tokenizer);
    }
}

static enum err resolve_length(const struct trainer *t, struct conf *c)
{
    if (c->max_steps > 0) {
        return OK;
    }
    uint64_t steps =
        (uint64_t)(c->num_train_epochs * (double)t->sampler.samples / (double)c->global_batch_size);
    if (steps == 0) {
        return FAIL(ERR_USAGE,
                    "num_train_epochs %g of %llu samples is less than one step of global_batch_size %llu | give "
                    "max_steps, a smaller batch or more data",
                    c->num_train_epochs, (unsigned long long)t->sampler.samples,
                    (unsigned long long)c->global_batch_size);
    }
    TRY(conf_derive(c, "max_steps", steps, "num_train_epochs"));
    return check_again(c);
}

static void layout(struct trainer *t)
{
    const struct conf *c = t->conf;
    model_layout(t->model, &t->arena);
    optimizer_layout(&t->optimizer, t->model, &t->arena);
    t->input = arena_take(&t->arena, mem_mul(c->micro_batch_size, c->seq_length), sizeof(int32_t));
    t->target = arena_take(&t->arena, mem_mul(c->micro_batch_size, c->seq_length), sizeof(int32_t));
}

static enum err open_model(struct trainer *t)
{
    const struct conf *c = t->conf;
    const struct model_shape shape = {
        .mode = MODEL_TRAIN, .sequences = c->micro_batch_size, .seq_length = c->seq_length,
        .grain = (uint32_t)c->tp_grain, .grad_unit = c->grad_unit, .grad_scale_log2 = (int32_t)c->grad_scale_log2,
    };
    TRY(model_new(&t->model, &c->model, &shape, t->kern));
    layout(t);
    TRY(arena_back(&t->arena));
    layout(t);
    return model_ready(t->model);
}

static enum err load_weights(struct trainer *t, const char *folder)
{
    struct ckpt *c;
    TRY(ckpt_open(&c, folder));
    enum err err = state_read_weights(c, t->model);
    ckpt_close(c);
    if (err == OK) {
        log_note("weights from %s", folder);
    }
    return err;
}

static enum err start_weights(struct trainer *t)
{
    const struct conf *c = t->conf;
    if (t->start != NULL) {
        TRY(trainer_resume(t, t->start));
        ckpt_close(t->start);
        t->start = NULL;
        return OK;
    }
    char *weights = NULL;
    if (c->model_path != NULL) {
        TRY(file_join(&weights, c->model_path, MODEL_WEIGHTS));
    }
    enum err err = OK;
    if (weights != NULL && file_exists(weights)) {
        err = load_weights(t, c->model_path);
    } else {
        model_init_weights(t->model, c->seed);
    }
    free(weights);
    t->state_hash = err == OK ? optimizer_state_hash(t->model, t->kern) : 0;
    return err;
}

enum err trainer_open(struct trainer *t, struct conf *conf)
{
    *t = (struct trainer){ .conf = conf, .lock = -1, .saved_step = UINT64_MAX };
    enum isa isa;
    enum err err;
    TRY_OUT(file_join(&t->checkpoints, conf->output_dir, "checkpoints"));
    TRY_OUT(output_lock(conf, &t->lock));
    TRY_OUT(output_check(conf, t->checkpoints));
    TRY_OUT(open_start(t, conf));
    if (t->start != NULL) {
        TRY_OUT(output_check_later(conf, t->checkpoints, ckpt_folder(t->start), ckpt_step(t->start)));
    }
    TRY_OUT(resolve_tokenizer(t, conf));
    TRY_OUT(resolve_arithmetic(conf));
    TRY_OUT(open_inputs(t));
    TRY_OUT(check_tokenizer_of(t, t->data, conf->data_path));
    if (t->eval_data != NULL) {
        TRY_OUT(check_tokenizer_of(t, t->eval_data, conf->eval_data_path));
    }
    TRY_OUT(resolve_length(t, conf));
    resolve_tokens(t, conf);
    TRY_OUT(kern_choose_isa(&isa));
    TRY_OUT(pool_new(&t->pool, (uint32_t)conf->threads));
    TRY_OUT(kern_new(&t->kern, isa, t->pool));
    TRY_OUT(open_model(t));
    TRY_OUT(start_weights(t));
    return OK;
out:
    trainer_close(t);
    return err;
}

void trainer_close(struct trainer *t)
{
    metrics_close(t->metrics);
    ckpt_close(t->start);
    model_free(t->model);
    arena_release(&t->arena);
    kern_free(t->kern);
    pool_free(t->pool);
    store_close(t->data);
    store_close(t->eval_data);
    tokenizer_free(t->tokenizer);
    free(t->checkpoints);
    if (t->lock >= 0) {
        close(t->lock);
    }
    *t = (struct trainer){ .lock = -1 };
}
