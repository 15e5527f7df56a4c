/* Why this exists: the loop around the step: what is reported, evaluated and saved, and when. */
#include "base/file.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "train/balance.h"
#include "train/optimizer.h"
#include "train/output.h"
#include "train/profiler.h"

#define HUGE_SHARE_MIN 0.9
#define REJECTED_MAX 5u /* steps in a row that may be rejected before the run gives up */

/* A pipeline that waits for one stage says so, with a better division when there is one. */
static enum err describe_balance(const struct trainer *t, struct buf *out)
{
    struct balance b;
    const struct pipe *p = &t->ranks.pipe;
    if (p->stages < 2) {
        return OK;
    }
    TRY(buf_printf(out, "pipeline: %u micro-batches, at best %.1f %% of the time idle\n", t->ranks.micros,
                   100.0 * pipe_bubble(p, t->ranks.micros)));
    if (!balance_pipe(p, &t->conf->model, t->conf->seq_length, &b) || b.worst < 1.05 * b.best_worst) {
        return OK;
    }
    TRY(buf_printf(out, "pipeline: the busiest stage has %.2f times the mean work (the head counts as %.1f layers); "
                        "%.2f with --pipeline_layers ", b.worst,
                   model_head_flops(&t->conf->model) / model_layer_flops(&t->conf->model, t->conf->seq_length),
                   b.best_worst));
    for (uint32_t s = 0; s < p->stages; s++) {
        TRY(buf_printf(out, "%s%llu", s > 0 ? "," : "", (unsigned long long)b.counts[s]));
    }
    return buf_add_string(out, "\n");
}

/* On pages of 4 KB every pass over the weights costs more, and nothing says why. */
static enum err describe_pages(const struct trainer *t, struct buf *out)
{
    double share = mem_huge_share(t->arena.base, t->arena.capacity);
    TRY(buf_printf(out, "memory: %.0f %% on 2-MB pages\n", 100.0 * share));
    if (share >= HUGE_SHARE_MIN) {
        return OK;
    }
    return buf_printf(out, "memory: hint: as root, echo %s\n",
                      mem_huge_given("") ? "1 > /proc/sys/vm/compact_memory: what is free is in pieces"
                                         : "madvise > /sys/kernel/mm/transparent_hugepage/enabled: there are none");
}

static enum err print_start(struct trainer *t)
{
    const struct conf *c = t->conf;
    struct buf text = { 0 };
    char memory[32], model_bytes[32], work_bytes[32];
    uint32_t ranks = comm_size(t->ranks.all);
    const struct registry *r = model_registry(t->model);
    enum err err;
    TRY_OUT(conf_print(c, &text));
    TRY_OUT(buf_printf(&text, "\nmodel: %llu parameters in %u tensors\n", (unsigned long long)r->elements, r->count));
    TRY_OUT(optimizer_describe(r, c, &text));
    uint64_t work, kept = holdings_bytes(&t->holdings, &work);
    TRY_OUT(buf_printf(&text, "memory%s: %s planned (weights, moments and gradients %s%s%s)\n",
                       ranks > 1 ? " of rank 0" : "", log_bytes(trainer_planned_bytes(t), memory),
                       log_bytes(kept, model_bytes),
                       work > 0 ? ", work buffers of them " : "", work > 0 ? log_bytes(work, work_bytes) : ""));
    TRY_OUT(describe_pages(t, &text));
    t->peak_gflops = kern_peak_gflops(t->kern);
    TRY_OUT(buf_printf(&text, "machine: %s, %.0f GFLOP/s measured peak%s (fp32)\n", kern_isa_name(kern_isa(t->kern)),
                       t->peak_gflops, ranks > 1 ? " of rank 0" : ""));
    TRY_OUT(crew_describe(&t->crew, &text));
    TRY_OUT(describe_balance(t, &text));
    TRY_OUT(buf_printf(&text, "data: %llu tokens, %llu samples of %llu tokens; %llu steps are %.2f epochs\n\n",
                       (unsigned long long)store_tokens(t->data), (unsigned long long)t->sampler.samples,
                       (unsigned long long)c->seq_length, (unsigned long long)c->max_steps,
                       (double)c->max_steps * (double)c->global_batch_size / (double)t->sampler.samples));
    fputs(text.data, stdout);
    fflush(stdout);
    crew_warn(&t->crew);
out:
    buf_release(&text);
    return err;
}

/* What an earlier run left that this one replaces. */
static enum err remove_run(const struct trainer *t)
{
    static const char *const names[] = { "checkpoints", "metrics.jsonl" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char *path;
        TRY(file_join(&path, t->conf->output_dir, names[i]));
        enum err err = file_remove_tree(path);
        free(path);
        TRY(err);
    }
    return OK;
}

/* Make the folder, drop what a replaced run left, record the configuration, open the metrics. */
static enum err prepare_folder(struct trainer *t)
{
    const struct conf *c = t->conf;
    char *path = NULL;
    struct buf yaml = { 0 };
    enum err err;
    if (comm_size(t->ranks.all) == 1) { /* of several ranks it was made when they began to be watched */
        TRY_OUT(output_recorder(c, &t->lock));
    }
    TRY_OUT(output_check(c, t->checkpoints));
    if (c->overwrite_output_dir && c->resume_from_checkpoint == NULL) {
        TRY_OUT(remove_run(t));
    }
    TRY_OUT(file_make_folder(t->checkpoints));
    TRY_OUT(ckpt_clean(t->checkpoints));
    TRY_OUT(file_join(&path, c->output_dir, "config.yaml"));
    TRY_OUT(conf_save(c, &yaml));
    TRY_OUT(file_replace(path, yaml.data, yaml.bytes));
    TRY_OUT(metrics_open(&t->metrics, c->output_dir, c->report_tensorboard, t->step));
out:
    free(path);
    buf_release(&yaml);
    return err;
}

/* From here on what this rank gives is recorded. */
static enum err record(struct trainer *t)
{
    char *folder;
    const uint32_t rank = comm_rank(t->ranks.all), world = comm_size(t->ranks.all);
    const struct rank_start start = { .rank = rank, .world = world, .step = t->step, .from = t->from };
    TRY(file_join(&folder, t->conf->output_dir, OUTPUT_RECORDER));
    enum err err = rank_record_open(&t->record, folder, &start, t->conf);
    free(folder);
    return err;
}

static enum err report_step(struct trainer *t, const struct step_report *r, struct log_progress *p, double eta_s)
{
    const struct conf *c = t->conf;
    if (!t->leads) {
        return OK;
    }
    double tokens_s = (double)(c->global_batch_size * c->seq_length) / r->seconds;
    double gflops = tokens_s * model_train_flops(&c->model, c->seq_length) * 1e-9;
    bool last = r->step == c->max_steps;
    char memory[32], left[32];
    log_progress_line(
        p, last || r->rejected,
        "step %llu/%llu  loss %.4f  lr %.3g  |grad| %.3f%s  %.0f tokens/s  %.0f GFLOP/s (%.0f %% of peak)  "
        "%s  %s left",
        (unsigned long long)r->step, (unsigned long long)c->max_steps, r->loss, r->lr, r->grad_norm,
        r->rejected ? " REJECTED" : "", tokens_s, gflops, 100.0 * gflops / (t->peak_gflops * comm_size(t->ranks.all)),
        log_bytes(mem_peak_bytes(), memory), log_duration(eta_s, left));
    const struct metric list[] = {
        { "loss", r->loss },         { "learning_rate", r->lr },   { "grad_norm", r->grad_norm },
        { "tokens", (double)r->tokens }, { "tokens_per_second", tokens_s }, { "gflops", gflops },
        { "memory_bytes", (double)mem_peak_bytes() }, { "rejected", r->rejected ? 1.0 : 0.0 },
    };
    /* Loss and state hash of every step; the rest every logging_steps. */
    bool full = c->logging_steps > 0 && (r->step % c->logging_steps == 0 || last || r->rejected);
    size_t count = full ? sizeof(list) / sizeof(list[0]) : 1;
    return metrics_write(t->metrics, "train", r->step, r->state_hash, list, count);
}

static enum err validate(struct trainer *t, struct log_progress *p)
{
    struct evaluation e;
    const struct conf *c = t->conf;
    const struct evaluate_options o = {
        .sampler = &t->eval_sampler, .pipeline = &t->pipeline, .sequences = c->micro_batch_size, .input = t->input,
        .target = t->target, .sequence = t->sequence, .windows = c->eval_iters * c->global_batch_size,
    };
    comm_phase(t->ranks.world, PHASE_EVAL, t->step, 0);
    t->loaded = UINT64_MAX; /* the scratch of micro-batches is used */
    TRY(evaluate(t->model, &o, &e));
    if (!t->leads) {
        return OK;
    }
    log_progress_end(p);
    log_note("step %llu: validation loss %.4f over %llu tokens", (unsigned long long)t->step, e.loss,
             (unsigned long long)e.tokens);
    const struct metric list[] = { { "loss", e.loss }, { "tokens", (double)e.tokens } };
    return metrics_write(t->metrics, "eval", t->step, t->state_hash, list, 2);
}

static bool due(uint64_t step, uint64_t every, uint64_t last)
{
    return every > 0 && (step % every == 0 || step == last);
}

static enum err save(struct trainer *t, struct log_progress *p)
{
    if (t->saved_step == t->step) {
        return OK;
    }
    comm_phase(t->ranks.world, PHASE_SAVE, t->step, 0);
    TRY(trainer_save(t));
    if (!t->leads) {
        return OK;
    }
    log_progress_end(p);
    log_note("step %llu: saved %s/step-%llu, state %016llx", (unsigned long long)t->step, t->checkpoints,
             (unsigned long long)t->step, (unsigned long long)t->state_hash);
    return OK;
}

/* A run that only rejects steps learns nothing: it ends, after the last of them is in the log. */
static enum err check_rejected(const struct trainer *t)
{
    if (t->rejected_in_a_row < REJECTED_MAX) {
        return OK;
    }
    return FAIL(ERR_RUN,
                "step %llu: %u steps in a row had a loss or gradient that is not finite or leaves the range of "
                "grad_scale_log2 %lld | lower learning_rate, or start again from an earlier checkpoint",
                (unsigned long long)t->step, t->rejected_in_a_row, (long long)t->conf->grad_scale_log2);
}

static enum err loop(struct trainer *t, struct log_progress *p)
{
    const struct conf *c = t->conf;
    double started = log_seconds();
    uint64_t first = t->step;
    while (t->step < c->max_steps) {
        struct step_report r;
        TRY(profiler_before(t));
        TRY(trainer_step(t, &r));
        double per_step = (log_seconds() - started) / (double)(t->step - first);
        TRY(report_step(t, &r, p, per_step * (double)(c->max_steps - t->step)));
        TRY(profiler_after(t));
        TRY(check_rejected(t));
        if (t->eval_data != NULL && due(t->step, c->eval_steps, c->max_steps)) {
            TRY(validate(t, p));
        }
        if (t->step == c->max_steps || due(t->step, c->save_steps, c->max_steps)) {
            TRY(save(t, p));
        }
        if (t->stopping && t->step < c->max_steps) { /* else it is done, and saved */
            TRY(save(t, p));
            return FAIL(ERR_INTERRUPT, "interrupted after step %llu; the state is saved | continue with "
                                       "--resume_from_checkpoint latest",
                        (unsigned long long)t->step);
        }
    }
    return OK;
}

/* What only the leading rank does before the first step. */
static enum err prepare(struct trainer *t)
{
    if (!t->leads) {
        return OK;
    }
    TRY(print_start(t));
    return prepare_folder(t);
}

enum err trainer_run(struct trainer *t, const volatile sig_atomic_t *stop)
{
    struct log_progress p;
    char peak[32], planned[32], seconds[32];
    log_progress_init(&p, 5.0);
    t->stop = stop;
    TRY(comm_agree(t->ranks.all, profiler_open(t)));
    TRY(comm_agree(t->ranks.all, prepare(t)));
    TRY(comm_agree(t->ranks.all, record(t)));
    double started = log_seconds();
    enum err err = loop(t, &p);
    log_progress_end(&p);
    if (err == OK && t->leads) {
        log_note("done: %llu steps in %s, peak memory %s (%s planned), state %016llx", (unsigned long long)t->step,
                 log_duration(log_seconds() - started, seconds), log_bytes(mem_peak_bytes(), peak),
                 log_bytes(trainer_planned_bytes(t), planned), (unsigned long long)t->state_hash);
    }
    /* Interrupted: all ranks were, after the same step. Else the others must not wait for this one. */
    return err == OK || err == ERR_INTERRUPT ? err : comm_fail(t->ranks.world, err);
}
