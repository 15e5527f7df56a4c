/* Why this exists: a run is opened in one order - open inputs, resolve what they decide, check that they fit together,
 * lay out all memory, then weights - so that every mistake is reported before anything big is allocated or written. */
#include "train/trainer.h"

#include <inttypes.h>
#include <unistd.h>

#include "part/order.h"
#include "train/optimizer.h"
#include "train/output.h"
#include "train/profiler.h"
#include "train/same.h"

_Static_assert(ORDER_VOCAB_MULTIPLE % ORDER_SEGMENTS_MAX == 0, "every tp_grain divides the padded vocabulary");

/* Ask the rules again, now that more is known than when the configuration was read. */
static enum err check_again(const struct conf *c, bool leads)
{
    struct findings f = { 0 };
    enum err err = conf_check(c, &f);
    if (leads) {
        findings_print(&f);
    } else {
        findings_to_message(&f);
    }
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
    t->from = realpath(ckpt_folder(t->start), NULL);
    if (!c->has_model) {
        struct model_conf model;
        struct arithmetic arithmetic;
        TRY(state_read_conf(t->start, &model, &arithmetic));
        TRY(conf_derive_model(c, &model, "the checkpoint"));
        TRY(check_again(c, t->leads));
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

/* What follows an end-of-text token does not count, when the user wants it so. */
static enum err mask_ends(struct trainer *t, const struct conf *c)
{
    if (!c->eod_mask_loss) {
        return OK;
    }
    if (c->model.eos_token_id < 0) {
        return FAIL(ERR_USAGE, "eod_mask_loss: neither the model nor a tokenizer says which token ends a text | give "
                               "eos_token_id in the model, or a tokenizer");
    }
    t->sampler.end_of_text = c->model.eos_token_id;
    t->eval_sampler.end_of_text = c->model.eos_token_id;
    return OK;
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
    return check_again(c, t->leads);
}

/* Everything that can be wrong with the inputs of this rank. The leading one also looks at the output folder. */
static enum err open_local(struct trainer *t, struct conf *c)
{
    TRY(file_join(&t->checkpoints, c->output_dir, "checkpoints"));
    if (t->leads && t->writes) {
        TRY(output_lock(c, &t->lock));
        TRY(output_check(c, t->checkpoints));
    }
    TRY(open_start(t, c));
    if (t->start != NULL && t->leads && t->writes) {
        TRY(output_check_later(c, t->checkpoints, ckpt_folder(t->start), ckpt_step(t->start)));
    }
    TRY(resolve_tokenizer(t, c));
    TRY(open_inputs(t));
    TRY(check_tokenizer_of(t, t->data, c->data_path));
    if (t->eval_data != NULL) {
        TRY(check_tokenizer_of(t, t->eval_data, c->eval_data_path));
    }
    TRY(resolve_length(t, c));
    resolve_tokens(t, c);
    return mask_ends(t, c);
}

/* ---- memory ---- */

static void layout(struct trainer *t)
{
    const struct conf *c = t->conf;
    uint64_t local = mem_mul(c->micro_batch_size, model_local_length(t->model));
    holdings_layout(&t->holdings, &t->arena);
    model_layout(t->model, &t->arena);
    gather_layout(&t->gather, model_registry(t->model), &t->ranks, &t->arena);
    t->sequence = arena_take(&t->arena, mem_mul(2, c->seq_length), sizeof(int32_t));
    t->input = arena_take(&t->arena, local, sizeof(int32_t));
    t->target = arena_take(&t->arena, local, sizeof(int32_t));
}

/* This rank's part of the model in memory; nothing of it is filled. */
static enum err open_model(struct trainer *t)
{
    const struct conf *c = t->conf;
    const struct model_shape shape = {
        .mode = MODEL_TRAIN, .sequences = c->micro_batch_size, .batch = c->global_batch_size,
        .seq_length = c->seq_length,
        .grain = (uint32_t)c->tp_grain, .grad_unit = c->grad_unit, .grad_scale_log2 = (int32_t)c->grad_scale_log2,
        .seed = c->seed, .bf16 = c->bf16, .recompute = c->recompute,
    };
    struct model_place place = ranks_place(&t->ranks, c);
    enum isa isa;
    if (t->trace != NULL) {
        TRY(trace_open(t->trace, &c->model));
        place.trace = t->trace->layer;
    }
    TRY(kern_choose_isa(&isa));
    TRY(crew_pool(&t->crew, &t->pool));
    TRY(kern_new(&t->kern, isa, t->pool));
    TRY(model_new(&t->model, &c->model, &shape, &place, t->kern));
    TRY(holdings_open(&t->holdings, &t->ranks, model_registry(t->model), t->kern, c));
    TRY(pipeline_open(&t->pipeline, &t->ranks, t->model));
    TRY(truth_open(&t->truth, &t->holdings));
    layout(t);
    TRY(arena_back_by(&t->arena, t->pool));
    layout(t);
    return OK;
}

/* ---- weights ---- */

/* What was left out of the weights, and how many there are. */
static void say_weights(const struct trainer *t, const struct ckpt *c, const char *folder)
{
    const struct registry *r = model_registry(t->model);
    for (const char *line = ckpt_notes(c), *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        log_note("%s: %.*s", folder, (int)(end - line), line);
    }
    log_note("weights from %s: %" PRIu32 " tensors, %" PRIu64 " parameters, none missing, none unused", folder,
             r->count, r->elements);
}

static enum err load_weights(struct trainer *t, const char *folder)
{
    struct ckpt *c;
    TRY(ckpt_open(&c, folder));
    if (t->conf->drop_vocab_padding) {
        ckpt_drop_padding(c);
    }
    enum err err = trainer_read_weights(t, c);
    if (err == OK && t->leads) {
        say_weights(t, c, folder);
    }
    ckpt_close(c);
    return err;
}

static void fresh_weights(struct trainer *t)
{
    const struct registry *r = model_registry(t->model);
    for (uint32_t b = 0; b < r->bucket_count; b++) {
        const struct holding *own = &t->holdings.of[b];
        model_init_weights(t->model, b, own->p_at.lo, own->p_at.hi, own->p, t->conf->seed);
    }
}

/* *fresh: where no file says what the weights are, the seed does. A folder that has none on one node only is told by
 * truth_start. */
static enum err start_weights(struct trainer *t, bool *fresh)
{
    const struct conf *c = t->conf;
    *fresh = false;
    if (t->start != NULL) {
        return trainer_resume(t, t->start);
    }
    bool has = false;
    if (c->model_path != NULL) {
        TRY(ckpt_has_weights(c->model_path, &has));
    }
    if (has) {
        return load_weights(t, c->model_path);
    }
    *fresh = true;
    fresh_weights(t);
    return OK;
}

/* The state hash of what was started with; what ranks hold twice is compared. */
static enum err check_start(struct trainer *t)
{
    optimizer_hash(&t->holdings, t->truth.box);
    TRY(truth_state(&t->truth, &t->holdings, t->step, &t->state_hash));
    if (t->start != NULL) {
        TRY(trainer_check_resumed(t, t->start));
        ckpt_close(t->start);
        t->start = NULL;
    }
    return OK;
}

/* From here on what ranks call is recorded, and one that is late is named. Collective. */
static enum err watch(struct trainer *t, struct comm_world *w)
{
    char *folder;
    if (!t->writes || comm_size(comm_all(w)) == 1) {
        return OK;
    }
    TRY(comm_agree(comm_all(w), t->leads ? output_recorder(t->conf, &t->lock) : OK));
    TRY(file_join(&folder, t->conf->output_dir, OUTPUT_RECORDER));
    enum err err = comm_watch(w, folder, t->conf->distributed_timeout);
    free(folder);
    return comm_agree(comm_all(w), err);
}

enum err trainer_open(struct trainer *t, struct conf *conf, const struct trainer_use *use)
{
    struct comm_world *w = use->world;
    *t = (struct trainer){ .conf = conf, .lock = -1, .saved_step = UINT64_MAX, .loaded = UINT64_MAX,
                           .leads = comm_rank(comm_all(w)) == 0, .writes = use->writes, .trace = use->trace };
    enum err err;
    bool fresh;
    TRY_OUT(comm_agree(comm_all(w), open_local(t, conf)));
    TRY_OUT(comm_agree(comm_all(w), same_everywhere(comm_all(w), conf, t->data, t->eval_data)));
    TRY_OUT(watch(t, w));
    TRY_OUT(crew_open(&t->crew, w, conf));
    t->program_bytes = use->writes ? mem_peak_bytes() : 0;
    TRY_OUT(ranks_open(&t->ranks, w, conf));
    TRY_OUT(comm_agree(comm_all(w), open_model(t)));
    comm_phase(w, PHASE_LOAD, 0, 0);
    TRY_OUT(comm_agree(comm_all(w), model_ready(t->model)));
    TRY_OUT(comm_agree(comm_all(w), holdings_start(&t->holdings, t->model)));
    TRY_OUT(comm_agree(comm_all(w), start_weights(t, &fresh)));
    TRY_OUT(comm_agree(comm_all(w), truth_start(&t->ranks, model_registry(t->model), t->step, fresh)));
    TRY_OUT(check_start(t));
    return OK;
out:
    trainer_close(t);
    return err;
}

uint64_t trainer_planned_bytes(const struct trainer *t)
{
    return t->program_bytes + mem_big_bytes(t->arena.used) + kern_workspace_bytes(pool_threads(t->pool)) +
           comm_memory_bytes(t->ranks.world) + t->profile_bytes;
}

void trainer_close(struct trainer *t)
{
    metrics_close(t->metrics);
    rank_record_close(t->record);
    profiler_close(t);
    ckpt_close(t->start);
    truth_close(&t->truth);
    pipeline_close(&t->pipeline);
    holdings_close(&t->holdings);
    model_free(t->model);
    arena_release(&t->arena);
    kern_free(t->kern);
    pool_free(t->pool);
    crew_close(&t->crew);
    store_close(t->data);
    store_close(t->eval_data);
    tokenizer_free(t->tokenizer);
    free(t->checkpoints);
    free(t->from);
    if (t->lock >= 0) {
        close(t->lock);
    }
    *t = (struct trainer){ .lock = -1 };
}
