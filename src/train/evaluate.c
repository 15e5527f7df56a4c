/* Why this exists: one evaluation for validation during training and for `invar eval`; windows in stream order, losses
 * summed exactly, so that the batch size of the evaluation changes nothing. */
#include "train/evaluate.h"

static void show_progress(const struct evaluate_options *o, uint64_t done, uint64_t windows, double seconds)
{
    char left[32];
    log_progress_line(o->progress, done == windows, "window %llu of %llu  %.0f tokens/s  %s left",
                      (unsigned long long)done, (unsigned long long)windows,
                      (double)(done * o->sampler->seq_length) / (seconds > 1e-9 ? seconds : 1e-9),
                      log_duration(seconds / (double)done * (double)(windows - done), left));
}

/* Windows [lo, hi), at most o->sequences, as this rank sees them. */
static enum err load_windows(struct model *m, const struct evaluate_options *o, uint64_t lo, uint64_t hi)
{
    uint64_t length = o->sampler->seq_length, local = model_local_length(m);
    for (uint64_t w = lo; w < hi; w++) {
        int32_t *in = o->input + (w - lo) * local, *to = o->target + (w - lo) * local;
        if (o->pipeline == NULL) {
            TRY(sampler_eval_get(o->sampler, w, in, to));
            continue;
        }
        TRY(sampler_eval_get(o->sampler, w, o->sequence, o->sequence + length));
        model_local_tokens(m, o->sequence, in);
        model_local_tokens(m, o->sequence + length, to);
    }
    return OK;
}

/* Round after round, each data-parallel index takes its windows of the round; some may get none at the end. Collective
 * with a pipeline. */
static enum err add_windows(struct model *m, const struct evaluate_options *o, uint64_t windows,
                            struct model_loss *loss)
{
    const struct ranks *r = o->pipeline != NULL ? o->pipeline->ranks : NULL;
    uint64_t dp = r != NULL ? r->layout.dp : 1, at = r != NULL ? r->at.dp : 0, round = dp * o->sequences;
    double started = log_seconds();
    for (uint64_t first = 0; first < windows; first += round) {
        uint64_t lo = first + at * o->sequences, hi = lo + o->sequences;
        lo = lo < windows ? lo : windows;
        hi = hi < windows ? hi : windows;
        TRY(load_windows(m, o, lo, hi));
        const struct micro b = { .sequences = hi - lo, .token = o->input, .target = o->target };
        TRY(o->pipeline != NULL ? pipeline_eval(o->pipeline, &b, loss) : model_eval(m, &b, loss, NULL));
        if (o->progress != NULL) {
            show_progress(o, first + round < windows ? first + round : windows, windows, log_seconds() - started);
        }
    }
    return OK;
}

/* Over all ranks; those of a tensor-parallel group have the same losses, of which one counts. Collective. */
static enum err sum_losses(const struct ranks *r, struct model_loss *loss)
{
    int64_t count = r->at.tp == 0 ? 1 : 0;
    int64_t all[4] = { count * (int64_t)loss->tokens, loss->bad };
    fixed_split(count * loss->sum, all + 2);
    TRY(comm_sum_i64(r->all, all, 4));
    *loss = (struct model_loss){ .tokens = (uint64_t)all[0], .bad = all[1] != 0 };
    loss->sum = fixed_join(all + 2, &loss->bad);
    return OK;
}

enum err evaluate(struct model *m, const struct evaluate_options *o, struct evaluation *out)
{
    uint64_t all = sampler_eval_windows(o->sampler);
    uint64_t windows = o->windows == 0 || o->windows > all ? all : o->windows;
    struct model_loss loss = { 0 };
    enum err err = add_windows(m, o, windows, &loss);
    if (o->progress != NULL) {
        log_progress_end(o->progress); /* also before an error: a message starts its own line */
    }
    TRY(err);
    if (o->pipeline != NULL) {
        TRY(sum_losses(o->pipeline->ranks, &loss));
    }
    if (loss.bad || loss.tokens == 0) {
        return FAIL(ERR_RUN,
                    "evaluation: a loss is not finite (%llu tokens counted) | check the checkpoint with `invar "
                    "ckpt verify`",
                    (unsigned long long)loss.tokens);
    }
    out->total_nats = fixed_to_loss(loss.sum);
    out->tokens = loss.tokens;
    out->windows = windows;
    out->loss = out->total_nats / (double)loss.tokens;
    return OK;
}
