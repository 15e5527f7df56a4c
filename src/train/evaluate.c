/* Why this exists: one evaluation for validation during training and for `invar eval`; windows in stream order, losses
 * summed exactly, so that the batch size of the evaluation changes nothing. */
#include "train/evaluate.h"

static void fill_empty(uint64_t length, int32_t *input, int32_t *target)
{
    for (uint64_t t = 0; t < length; t++) {
        input[t] = 0;
        target[t] = SAMPLER_NO_TARGET;
    }
}

static void show_progress(const struct evaluate_options *o, uint64_t done, uint64_t windows, double seconds)
{
    char left[32];
    log_progress_line(o->progress, done == windows, "window %llu of %llu  %.0f tokens/s  %s left",
                      (unsigned long long)done, (unsigned long long)windows,
                      (double)(done * o->sampler->seq_length) / (seconds > 1e-9 ? seconds : 1e-9),
                      log_duration(seconds / (double)done * (double)(windows - done), left));
}

static enum err add_windows(struct model *m, const struct evaluate_options *o, uint64_t windows,
                            struct model_loss *loss)
{
    uint64_t length = o->sampler->seq_length;
    double started = log_seconds();
    for (uint64_t w = 0; w < windows; w += o->sequences) {
        for (uint64_t i = 0; i < o->sequences; i++) {
            int32_t *in = o->input + i * length, *to = o->target + i * length;
            if (w + i < windows) {
                TRY(sampler_eval_get(o->sampler, w + i, in, to));
            } else {
                fill_empty(length, in, to);
            }
        }
        model_eval(m, o->sequences, o->input, o->target, loss, NULL);
        if (o->progress != NULL) {
            uint64_t done = w + o->sequences < windows ? w + o->sequences : windows;
            show_progress(o, done, windows, log_seconds() - started);
        }
    }
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
