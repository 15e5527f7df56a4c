/* Why this exists: when a result is doubted, the question is which step went wrong, and on which rank. A layout changes
 * no bit, so both can be answered later and elsewhere: the steps are computed again on one machine and compared with
 * the states that the run logged, and with what each rank recorded of its own part.
 *
 * A rank's part is computed by the ranks of its data-parallel index alone: the same pieces of the model and of the
 * positions, so the same flat storage and the same sums, whatever the ZeRO stage was. */
#include "train/replay_run.h"

#include <math.h>

#include "base/file.h"
#include "base/pool.h"
#include "train/thread_ranks.h"

struct replay {
    const struct replay_job *job;
    const struct replay_watch *watch;
    char *config, *checkpoints, *recorder; /* paths in the folder of the run */
    struct rank_past leading;              /* of rank 0 */
    struct rank_past one;                  /* of the rank asked for */
    const struct past_start *start;        /* in force in the step: how the job was split */
    struct layout layout;                  /* the job's */
    uint64_t from_step;                    /* steps done before the first */
    char *from;                            /* a checkpoint; NULL: fresh */
    struct past_step *past;                /* heap, of steps from_step to job->step */
    struct replay_rank *ranks;             /* heap, [world]; each is written by one thread */
};

static void replay_release(struct replay *r)
{
    rank_past_release(&r->leading);
    rank_past_release(&r->one);
    free(r->config);
    free(r->checkpoints);
    free(r->recorder);
    free(r->from);
    free(r->past);
    free(r->ranks);
    *r = (struct replay){ 0 };
}

bool replay_step_equal(const struct past_step *now, const struct past_step *past)
{
    bool undefined = now->loss != now->loss && past->loss != past->loss;
    return now->state_hash == past->state_hash &&
           (undefined || memcmp(&now->loss, &past->loss, sizeof(now->loss)) == 0);
}

/* ---- what the run recorded ---- */

static enum err open_run(struct replay *r)
{
    const char *run = r->job->run;
    TRY(file_join(&r->config, run, "config.yaml"));
    TRY(file_join(&r->checkpoints, run, "checkpoints"));
    TRY(file_join(&r->recorder, run, "recorder"));
    if (!file_exists(r->config)) {
        return FAIL(ERR_USAGE, "%s: there is no run in it (no config.yaml) | give the output_dir of a run", run);
    }
    TRY(rank_past_read(&r->leading, r->recorder, 0, r->job->step));
    if (r->leading.count == 0) {
        return FAIL(ERR_DATA, "%s/rank-0.jsonl: no start of the run is recorded", r->recorder);
    }
    r->start = &r->leading.starts[r->leading.found ? r->leading.at : r->leading.count - 1];
    return OK;
}

/* The latest state before the step that is still there: a checkpoint of the run, what it went on from, or its fresh
 * start. */
static enum err choose_start(struct replay *r)
{
    const struct past_start *best = NULL;
    TRY(ckpt_newest_step(r->checkpoints, r->job->step - 1, &r->from_step));
    for (size_t i = 0; i < r->leading.count; i++) {
        const struct past_start *s = &r->leading.starts[i];
        bool there = s->step == 0 || (s->from != NULL && file_is_folder(s->from));
        bool later = best != NULL ? s->step > best->step : r->from_step == 0 || s->step > r->from_step;
        best = there && later && s->step < r->job->step ? s : best;
    }
    if (best != NULL) {
        r->from_step = best->step;
        return best->from != NULL ? mem_copy_string(&r->from, best->from, strlen(best->from)) : OK;
    }
    if (r->from_step > 0) {
        char name[40];
        snprintf(name, sizeof(name), "step-%llu", (unsigned long long)r->from_step);
        return file_join(&r->from, r->checkpoints, name);
    }
    const struct past_start *first = &r->leading.starts[0];
    return FAIL(ERR_USAGE,
                "step %llu: %s has no checkpoint before it, and the one that the run went on from, %s of step %llu, is "
                "%s | put it there again, or choose a later step",
                (unsigned long long)r->job->step, r->checkpoints, first->from != NULL ? first->from : "(unknown)",
                (unsigned long long)first->step, first->step < r->job->step ? "gone" : "later");
}

static enum err read_metrics(struct replay *r)
{
    void *mem;
    uint64_t count = r->job->step - r->from_step + 1, last;
    TRY(mem_alloc(&mem, count, sizeof(struct past_step)));
    r->past = mem;
    TRY(metrics_read(r->job->run, r->from_step, count, r->past, &last));
    r->past[0].loss = NAN; /* a checkpoint has none */
    if (r->past[count - 1].found || r->job->of_ranks) {
        return OK;
    }
    return FAIL(ERR_USAGE, "step %llu is not in %s/metrics.jsonl, which ends with step %llu",
                (unsigned long long)r->job->step, r->job->run, (unsigned long long)last);
}

/* ---- ranks: how the job was split, and what they gave ---- */

static bool axis(const struct past_start *s, const char *key, uint32_t *out)
{
    const char *text = json_string_value(json_object_get(s->keys, key));
    bool good = text != NULL && strlen(text) < 6 && text[0] != '\0' && strspn(text, "0123456789") == strlen(text);
    *out = good ? (uint32_t)strtoul(text, NULL, 10) : 0;
    return *out > 0;
}

static enum err find_layout(struct replay *r)
{
    struct layout *l = &r->layout;
    bool good = axis(r->start, "pp", &l->pp) && axis(r->start, "dp", &l->dp) && axis(r->start, "cp", &l->cp) &&
                axis(r->start, "tp", &l->tp);
    if (!good || (uint64_t)l->pp * l->dp * l->cp * l->tp != r->start->world) {
        return FAIL(ERR_DATA, "%s: the recorded layout is not one of %u ranks", r->recorder, r->start->world);
    }
    return OK;
}

static enum err no_such_step(const struct replay *r, uint32_t rank, const struct rank_past *p)
{
    return FAIL(ERR_USAGE, "step %llu is not in %s/rank-%u.jsonl, which ends with step %llu",
                (unsigned long long)r->job->step, r->recorder, rank, (unsigned long long)p->last);
}

static enum err read_one(struct replay *r)
{
    uint32_t rank = r->job->rank;
    if (r->leading.found && rank >= r->start->world) {
        return FAIL(ERR_USAGE, "rank %u: step %llu was computed by ranks 0 to %u | give one of them, or all", rank,
                    (unsigned long long)r->job->step, r->start->world - 1);
    }
    TRY(rank_past_read(&r->one, r->recorder, rank, r->job->step));
    if (!r->one.found) {
        return no_such_step(r, rank, &r->one);
    }
    r->start = &r->one.starts[r->one.at];
    return OK;
}

/* What a rank recorded. Of all ranks, some may have ended before they came to it. */
static enum err read_rank(const struct replay *r, uint32_t rank, struct replay_rank *out)
{
    struct rank_past p;
    enum err err = rank_past_read(&p, r->recorder, rank, r->job->step);
    if (err == OK && p.found) {
        const struct past_start *s = &p.starts[p.at];
        out->found = true;
        out->past = p.given;
        if (s->world != r->start->world || !json_equal(s->keys, r->start->keys)) {
            err = FAIL(ERR_DATA, "%s: ranks 0 and %u recorded step %llu under different layouts | choose one rank",
                       r->recorder, rank, (unsigned long long)r->job->step);
        }
    }
    rank_past_release(&p);
    return err;
}

static enum err read_ranks(struct replay *r)
{
    void *mem;
    if (r->job->rank != REPLAY_RANK_ALL) {
        TRY(read_one(r));
    } else if (!r->leading.found) {
        return no_such_step(r, 0, &r->leading);
    }
    TRY(find_layout(r));
    TRY(mem_alloc(&mem, r->start->world, sizeof(struct replay_rank)));
    r->ranks = mem;
    for (uint32_t i = 0; i < r->start->world; i++) {
        r->ranks[i].rank = i;
        r->ranks[i].at = layout_coord(&r->layout, i);
        if (r->job->rank == REPLAY_RANK_ALL || r->job->rank == i) {
            TRY(read_rank(r, i, &r->ranks[i]));
        }
    }
    return OK;
}

/* ---- the computation ---- */

/* What is not as it was recorded, so that nothing but the bits is the same: NULL stands for the record. */
static const struct {
    const char *key, *serial, *rank;
} split_keys[] = {
    { "tp", "1", NULL },
    { "pp", "1", NULL },
    { "cp", "1", NULL },
    { "dp", "1", "1" },
    { "sequence_parallel", "false", NULL },
    { "zero_optimization.stage", "0", NULL },
    { "pipeline_schedule", "null", NULL },
    { "virtual_pipeline_size", "1", NULL },
    { "pipeline_layers", "null", NULL },
};
#define SPLIT_KEYS (sizeof(split_keys) / sizeof(split_keys[0]))

/* What the configuration may say otherwise: the length is recorded in steps, no file is written, nothing evaluated. */
static const char *const fixed_keys[][2] = {
    { "num_train_epochs", "null" }, { "world_size", "null" }, { "gradient_accumulation_steps", "null" },
    { "num_layers_per_virtual_pipeline_stage", "null" }, { "overwrite_output_dir", "false" },
    { "eval_data_path", "null" }, { "eval_steps", "0" },
};
#define FIXED_KEYS (sizeof(fixed_keys) / sizeof(fixed_keys[0]))

/* The user has no say in it. */
static enum err take(struct arguments *a, const char *key, const char *value)
{
    if (arguments_have(a, key)) {
        return FAIL(ERR_USAGE, "--%s: a replay takes it from the record of the run | leave it out", key);
    }
    return arguments_set(a, key, value);
}

static enum err take_keys(const struct replay *r, struct arguments *a)
{
    const char *key;
    json_t *recorded;
    json_object_foreach(r->start->keys, key, recorded) {
        const char *value = json_string_value(recorded);
        for (size_t i = 0; i < SPLIT_KEYS; i++) {
            const char *other = r->job->of_ranks ? split_keys[i].rank : split_keys[i].serial;
            value = strcmp(key, split_keys[i].key) == 0 && other != NULL ? other : value;
        }
        if (strcmp(value, "gpipe") == 0) {
            value = "1f1b"; /* the bits of gpipe, which would keep the micro-batches of all ranks of the job at once */
        }
        TRY(take(a, key, value));
    }
    for (size_t i = 0; i < FIXED_KEYS; i++) {
        TRY(take(a, fixed_keys[i][0], fixed_keys[i][1]));
    }
    return OK;
}

static uint32_t thread_count(const struct replay *r)
{
    return r->job->of_ranks ? r->layout.pp * r->layout.cp * r->layout.tp : 1;
}

static enum err make_arguments(const struct replay *r, struct arguments *a)
{
    char threads[32];
    bool hashed = false;
    uint64_t share = pool_cores() / thread_count(r);
    for (uint32_t i = 0; r->ranks != NULL && i < r->start->world; i++) {
        hashed = hashed || r->ranks[i].past.hashed;
    }
    snprintf(threads, sizeof(threads), "%llu",
             (unsigned long long)(r->job->threads > 0 ? r->job->threads : share > 0 ? share : 1));
    TRY(arguments_copy(a, r->job->argc, r->job->argv));
    TRY(take_keys(r, a));
    TRY(take(a, "resume_from_checkpoint", r->from != NULL ? r->from : "null"));
    TRY(take(a, "gradient_hashes", hashed ? "true" : "false"));
    return take(a, "threads", threads);
}

/* Every rank comes to the same answer. */
static enum err check_digest(const struct replay *r, const struct trainer *t)
{
    char digest[33];
    conf_digest(t->conf, digest);
    if (strcmp(digest, r->start->digest) == 0) {
        return OK;
    }
    return FAIL(ERR_USAGE,
                "step %llu was computed with another configuration (%s) than this one (%s) | the model was changed "
                "later: give it as it was, --model PATH",
                (unsigned long long)r->job->step, r->start->digest, digest);
}

/* The state after t->step against the record. */
static enum err check_state(const struct replay *r, const struct trainer *t, double loss)
{
    const struct past_step *past = &r->past[t->step - r->from_step];
    const struct past_step now = { true, t->state_hash, loss };
    if (t->leads) {
        r->watch->step(r->watch->arg, t->step, &now, past);
    }
    if (!past->found || replay_step_equal(&now, past)) {
        return OK;
    }
    return FAIL(ERR_RUN,
                "step %llu is the first that differs from the record: %s | a machine computed wrong in that step, or "
                "the record was changed; `invar replay %s --step %llu --rank all` compares what ranks gave to it",
                (unsigned long long)t->step, now.state_hash != past->state_hash ? "other weights" : "another loss",
                r->job->run, (unsigned long long)t->step);
}

static enum err contributions(const struct replay *r, struct trainer *t)
{
    bool all = r->job->rank == REPLAY_RANK_ALL;
    uint32_t only = all ? 0 : layout_coord(&r->layout, r->job->rank).dp;
    for (uint32_t part = all ? 0 : only; part < (all ? r->layout.dp : only + 1); part++) {
        const struct coord at = { t->ranks.at.pp, part, t->ranks.at.cp, t->ranks.at.tp };
        TRY(trainer_contribution(t, r->layout.dp, part, &r->ranks[layout_rank(&r->layout, &at)].now));
    }
    return OK;
}

static enum err work(void *arg, struct trainer *t)
{
    const struct replay *r = arg;
    uint64_t last = r->job->of_ranks ? r->job->step - 1 : r->job->step;
    TRY(check_digest(r, t));
    if (r->past[0].found) { /* else it is the fresh start, or was no step of this run */
        TRY(check_state(r, t, NAN));
    }
    while (t->step < last) {
        struct step_report s;
        TRY(trainer_step(t, &s));
        TRY(check_state(r, t, s.loss));
    }
    return r->job->of_ranks ? contributions(r, t) : OK;
}

static enum err compute(struct replay *r, struct buf *why)
{
    struct arguments a = { 0 };
    const struct thread_job ranks = { .path = r->config, .arguments = &a, .world = thread_count(r), .work = work,
                                      .arg = r, .why = why };
    enum err err = make_arguments(r, &a);
    if (err == OK) {
        r->watch->begin(r->watch->arg, r->from, r->from_step, ranks.world);
        err = thread_ranks_run(&ranks);
    }
    arguments_release(&a);
    return err;
}

static enum err compare_ranks(const struct replay *r)
{
    uint32_t different = 0, first = 0;
    for (uint32_t i = 0; i < r->start->world; i++) {
        const struct replay_rank *k = &r->ranks[i];
        if (r->job->rank != REPLAY_RANK_ALL && r->job->rank != i) {
            continue;
        }
        r->watch->rank(r->watch->arg, k);
        if (k->found && !contribution_equal(&k->now, &k->past)) {
            first = different++ == 0 ? i : first;
        }
    }
    if (different == 0) {
        return OK;
    }
    return FAIL(ERR_RUN, "step %llu: %u %s gave something else than computed now, the first is rank %u | its machine "
                         "computed wrong in that step, or its record was changed",
                (unsigned long long)r->job->step, different, different == 1 ? "rank" : "ranks", first);
}

enum err replay_run(const struct replay_job *job, const struct replay_watch *watch, struct buf *why)
{
    struct replay r = { .job = job, .watch = watch };
    enum err err;
    TRY_OUT(open_run(&r));
    TRY_OUT(choose_start(&r));
    TRY_OUT(read_metrics(&r));
    TRY_OUT(job->of_ranks ? read_ranks(&r) : OK);
    TRY_OUT(compute(&r, why));
    TRY_OUT(job->of_ranks ? compare_ranks(&r) : OK);
out:
    replay_release(&r);
    return err;
}
