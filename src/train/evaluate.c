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

enum err evaluate(struct model *m, const struct sampler *s, uint64_t sequences, uint64_t windows, int32_t *input,
                  int32_t *target, struct log_progress *progress, struct evaluation *out)
{
    uint64_t all = sampler_eval_windows(s);
    windows = windows == 0 || windows > all ? all : windows;
    struct model_loss loss = { 0 };
    double started = log_seconds();
    for (uint64_t w = 0; w < windows; w += sequences) {
        for (uint64_t i = 0; i < sequences; i++) {
            int32_t *in = input + i * s->seq_length, *to = target + i * s->seq_length;
            if (w + i < windows) {
                TRY(sampler_eval_get(s, w + i, in, to));
            } else {
                fill_empty(s->seq_length, in, to);
            }
        }
        model_eval(m, sequences, input, target, &loss, NULL);
        if (progress != NULL) {
            uint64_t done = w + sequences < windows ? w + sequences : windows;
            double seconds = log_seconds() - started;
            char left[32];
            log_progress_line(progress, done == windows, "window %llu of %llu  %.0f tokens/s  %s left",
                              (unsigned long long)done, (unsigned long long)windows,
                              (double)(done * s->seq_length) / (seconds > 1e-9 ? seconds : 1e-9),
                              log_duration(seconds / (double)done * (double)(windows - done), left));
        }
    }
    if (progress != NULL) {
        log_progress_end(progress);
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
