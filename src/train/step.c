/* Why this exists: the step itself: batch -> model -> loss, gradients -> new weights. Everything before the division by
 * the counted tokens is an exact integer, so neither micro-batches nor ranks can change a bit. */
#include <math.h>

#include "base/fixed.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/trainer.h"

/* Micro-batch k of this rank. Sample i of step s (from 1) is number (s - 1) * global_batch + i of the run. */
static enum err load(void *arg, uint32_t k, struct micro *b)
{
    struct trainer *t = arg;
    const struct conf *c = t->conf;
    struct order_range own = ranks_micro(&t->ranks, c, k);
    uint64_t local = model_local_length(t->model), first = t->step * c->global_batch_size + own.lo;
    *b = (struct micro){ .sequences = own.hi - own.lo, .token = t->input, .target = t->target, .first_sample = first,
                         .step = t->step + 1 };
    if (t->loaded == first && b->sequences > 0) {
        return OK;
    }
    comm_phase(t->ranks.world, PHASE_DATA, b->step, 0);
    for (uint64_t i = 0; i < b->sequences; i++) {
        TRY(sampler_get(&t->sampler, first + i, t->sequence, t->sequence + c->seq_length));
        model_local_tokens(t->model, t->sequence, t->input + i * local);
        model_local_tokens(t->model, t->sequence + c->seq_length, t->target + i * local);
    }
    t->loaded = b->sequences > 0 ? first : t->loaded;
    return OK;
}

/* What all ranks need to know of each other before the update: losses and counted tokens (of one tensor-parallel rank,
 * as all of a group compute them), the parts of the squared gradient norm, whether anybody left a range or is asked to
 * stop. Collective over all ranks. */
static enum err sum_over_ranks(struct trainer *t, struct model_loss *loss, struct fixed_wide *squares)
{
    int64_t count = t->ranks.at.tp == 0 ? 1 : 0;
    int64_t all[6 + FIXED_WIDE_LIMBS] = { count * (int64_t)loss->tokens, loss->bad, loss->undefined,
                                          t->stop != NULL && *t->stop != 0 };
    fixed_split(count * loss->sum, all + 4);
    memcpy(all + 6, squares->limb, sizeof(squares->limb));
    TRY(comm_sum_i64(t->ranks.all, all, 6 + FIXED_WIDE_LIMBS));
    *loss = (struct model_loss){ .tokens = (uint64_t)all[0], .bad = all[1] != 0, .undefined = all[2] != 0 };
    t->stopping = all[3] != 0;
    loss->sum = fixed_join(all + 4, &loss->undefined);
    loss->bad = loss->bad || loss->undefined;
    memcpy(squares->limb, all + 6, sizeof(squares->limb));
    fixed_wide_carry(squares);
    return OK;
}

/* The step is rejected in the same way on every layout: the weights stay as they are. */
static void reject(struct trainer *t, struct step_report *r, const struct model_loss *loss)
{
    r->rejected = true;
    r->state_hash = t->state_hash;
    r->loss = loss->undefined ? NAN : r->loss; /* what is left of the sums would look like a loss and a norm */
    r->grad_norm = NAN;
    holdings_zero_gradients(&t->holdings);
    t->rejected_in_a_row++;
}

static enum err update(struct trainer *t, struct step_report *r)
{
    const struct optimizer_update u = { .step = r->step, .tokens = r->tokens, .lr = r->lr, .grad_norm = r->grad_norm };
    struct holdings *h = &t->holdings;
    comm_phase(t->ranks.world, PHASE_UPDATE, r->step, 0);
    TRY(holdings_spread_gradients(h));
    optimizer_step(h, t->conf, &u, t->truth.box);
    if (h->stage == 1) {
        holdings_zero_gradients(h); /* the update has zeroed the slice */
    }
    TRY(holdings_spread_parameters(h));
    TRY(truth_state(&t->truth, h, r->step, &r->state_hash));
    t->rejected_in_a_row = 0;
    return OK;
}

/* Forward and backward over this rank's samples; then its slices hold the sums over all ranks. */
static enum err accumulate(struct trainer *t, struct model_loss *loss, struct contribution *given)
{
    struct holdings *h = &t->holdings;
    h->given = 0;
    TRY(pipeline_run(&t->pipeline, h, load, t, loss));
    comm_phase(t->ranks.world, PHASE_REDUCE, t->step + 1, 0);
    TRY(holdings_finish(h));
    *given = (struct contribution){ loss->sum, loss->tokens, h->hashing, h->given };
    return OK;
}

enum err trainer_contribution(struct trainer *t, uint32_t parts, uint32_t part, struct contribution *out)
{
    struct model_loss loss = { 0 };
    ranks_take_part(&t->ranks, t->conf, parts, part);
    t->loaded = UINT64_MAX; /* a micro-batch of other parts may begin with the same sample and be shorter */
    TRY(accumulate(t, &loss, out));
    holdings_zero_gradients(&t->holdings);
    return OK;
}

enum err trainer_step(struct trainer *t, struct step_report *r)
{
    const struct conf *c = t->conf;
    double started = log_seconds();
    struct model_loss loss = { 0 };
    struct contribution given;
    struct fixed_wide squares;
    *r = (struct step_report){ .step = t->step + 1, .lr = schedule_lr(c, t->step + 1) };

    TRY(accumulate(t, &loss, &given));
    if (t->record != NULL) { /* before anything is compared: a step that ends the run is recorded, too */
        TRY(rank_record_step(t->record, r->step, &given));
    }
    optimizer_squares(&t->holdings, &squares, &loss.bad);
    if (t->trace != NULL) {
        trace_gradients(t->trace, &t->holdings);
    }
    TRY(sum_over_ranks(t, &loss, &squares));
    if (loss.tokens == 0) {
        return FAIL(ERR_DATA, "step %llu: no token of the batch counts towards the loss", (unsigned long long)r->step);
    }
    r->tokens = loss.tokens;
    r->loss = fixed_to_loss(loss.sum) / (double)loss.tokens;
    r->grad_norm = optimizer_norm(&squares, (int32_t)c->grad_scale_log2, loss.tokens);
    if (loss.bad) {
        reject(t, r, &loss);
    } else {
        TRY(update(t, r));
    }
    if (t->trace != NULL) { /* also of a rejected step, whose weights are those of before */
        TRY(trace_finish(t->trace, &t->holdings, t->truth.sums));
    }
    t->state_hash = r->state_hash;
    t->step = r->step;
    r->seconds = log_seconds() - started;
    return OK;
}
