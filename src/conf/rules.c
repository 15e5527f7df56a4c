/* Why this exists: what must hold between values, as rows: a rule is a name, a severity, the keys it looks at, a
 * function and a sentence of help. A rule is asked only when all its keys are well formed, and reports at the place of
 * the key it blames. A rule reads the configuration and changes nothing. rules_layout.c has the rules about ranks. */
#include "conf/rules_int.h"

bool rule_given(const struct asker *a, const char *key)
{
    const struct conf_value *v = conf_value(a->c, key);
    return v->given && v->has;
}

const struct conf_origin *rule_place(const struct conf *c, const char *key)
{
    const struct conf_value *v = key != NULL ? conf_value(c, key) : NULL;
    return v != NULL && v->given ? &v->at : NULL;
}

/* ---- what a run needs ---- */

static void rule_model(const struct asker *a)
{
    if (!rule_given(a, "model") && !rule_given(a, "resume_from_checkpoint")) {
        REPORT(a, NULL,
               "model: not given | write `model: FOLDER`, or the keys of a Hugging Face config.json under `model:`");
    }
}

static void rule_data(const struct asker *a)
{
    if (!rule_given(a, "data_path")) {
        REPORT(a, NULL,
               "data_path: not given | write `data_path: PREFIX` of the token files that `invar data build` wrote");
    }
}

static void rule_length(const struct asker *a)
{
    bool steps = rule_given(a, "max_steps"), epochs = rule_given(a, "num_train_epochs");
    if (steps && epochs) {
        REPORT(a, "num_train_epochs",
               "num_train_epochs %s and max_steps %llu both say how long to train | keep one of the two",
               scalar_write_real(a->c->num_train_epochs).text, ull(a->c->max_steps));
    } else if (!steps && !epochs) {
        REPORT(a, NULL, "max_steps: not given, so the run has no length | write max_steps or num_train_epochs");
    }
}

/* ---- sequence ---- */

static void rule_seq_positions(const struct asker *a)
{
    const struct model_conf *m = &a->c->model;
    if (a->c->has_model && m->learned_positions && a->c->seq_length > m->positions) {
        REPORT(a, "seq_length",
               "seq_length %llu is above the model's n_positions %llu: later positions have no embedding | write "
               "seq_length %llu or less",
               ull(a->c->seq_length), ull(m->positions), ull(m->positions));
    }
}

static void rule_seq_rope(const struct asker *a)
{
    const struct model_conf *m = &a->c->model;
    if (a->c->has_model && !m->learned_positions && a->c->seq_length > m->positions) {
        REPORT(a, "seq_length",
               "seq_length %llu is above the model's max_position_embeddings %llu | raise max_position_embeddings, so "
               "that others load the trained model with the right length",
               ull(a->c->seq_length), ull(m->positions));
    }
}

/* ---- learning rate ---- */

static void rule_lr_size(const struct asker *a)
{
    if (a->c->learning_rate > 1) {
        REPORT(a, "learning_rate", "learning_rate %s is far above what AdamW can use (about 1e-5 to 1e-2)",
               scalar_write_real(a->c->learning_rate).text);
    } else if (a->c->learning_rate == 0) {
        REPORT(a, "learning_rate", "learning_rate 0: nothing will be learned");
    }
}

static void rule_min_lr(const struct asker *a)
{
    if (a->c->min_lr > a->c->learning_rate) {
        REPORT(a, "min_lr", "min_lr %s is above learning_rate %s | write min_lr %s or less",
               scalar_write_real(a->c->min_lr).text, scalar_write_real(a->c->learning_rate).text,
               scalar_write_real(a->c->learning_rate).text);
    }
}

static void rule_decay_length(const struct asker *a)
{
    if (rule_given(a, "lr_decay_steps") && a->c->lr_decay_steps == 0) {
        REPORT(a, "lr_decay_steps",
               "lr_decay_steps 0: the learning rate would decay over 0 steps | remove it: the decay then ends at "
               "max_steps");
    }
}

static void rule_decay_end(const struct asker *a)
{
    uint64_t end = a->c->lr_decay_steps;
    bool used = rule_given(a, "lr_decay_steps") && conf_schedule_decays(a->c->lr_scheduler_type);
    if (used && a->c->max_steps > 0 && end > a->c->max_steps) {
        REPORT(a, "lr_decay_steps",
               "lr_decay_steps %llu is above max_steps %llu: the run ends before the learning rate reaches min_lr",
               ull(end), ull(a->c->max_steps));
    }
}

static void rule_warmup(const struct asker *a)
{
    double steps = a->c->warmup_steps;
    if (steps > 1 && steps != (double)(uint64_t)steps) {
        REPORT(a, "warmup_steps",
               "warmup_steps %s is neither a whole number nor below 1 | write %llu, or a fraction of max_steps",
               scalar_write_real(steps).text, ull((uint64_t)steps));
        return;
    }
    uint64_t warm = conf_warmup_steps(a->c);
    uint64_t end = conf_schedule_decays(a->c->lr_scheduler_type) ? a->c->lr_decay_steps : 0;
    if (a->c->max_steps > 0 && warm > a->c->max_steps) {
        REPORT(a, "warmup_steps",
               "warmup_steps %llu is above max_steps %llu: the learning rate would never reach its height | write "
               "fewer, or a fraction below 1 of max_steps",
               ull(warm), ull(a->c->max_steps));
    } else if (end > 0 && warm > end) {
        REPORT(a, "warmup_steps", "warmup_steps %llu is above lr_decay_steps %llu | write fewer warm-up steps",
               ull(warm), ull(end));
    }
}

static void rule_wsd(const struct asker *a)
{
    uint64_t end = a->c->lr_decay_steps, warm = conf_warmup_steps(a->c);
    if (a->c->lr_scheduler_type != SCHEDULE_WSD || end == 0 || a->c->wsd_decay_steps == 0) {
        return;
    }
    if (a->c->wsd_decay_steps > end) {
        REPORT(a, "wsd_decay_steps",
               "wsd_decay_steps %llu is above the length of the schedule, %llu steps | write %llu or less",
               ull(a->c->wsd_decay_steps), ull(end), ull(end));
    } else if (rule_given(a, "wsd_decay_steps") && warm <= end && warm + a->c->wsd_decay_steps > end) {
        REPORT(a, "wsd_decay_steps",
               "warmup_steps %llu and wsd_decay_steps %llu overlap in %llu steps | write wsd_decay_steps %llu or less",
               ull(warm), ull(a->c->wsd_decay_steps), ull(end), ull(end - warm));
    }
}

static void rule_unused_schedule(const struct asker *a)
{
    enum schedule s = a->c->lr_scheduler_type;
    if (rule_given(a, "wsd_decay_steps") && s != SCHEDULE_WSD) {
        REPORT(a, "wsd_decay_steps",
               "wsd_decay_steps has no effect with this lr_scheduler_type | remove it, or write lr_scheduler_type: "
               "wsd");
    }
    if (rule_given(a, "lr_decay_steps") && !conf_schedule_decays(s)) {
        REPORT(a, "lr_decay_steps",
               "lr_decay_steps has no effect with this lr_scheduler_type | remove it, or write lr_scheduler_type: "
               "linear, cosine or wsd");
    }
    if (rule_given(a, "min_lr") && a->c->min_lr > 0 && s == SCHEDULE_CONSTANT) {
        REPORT(a, "min_lr",
               "min_lr has no effect with a constant learning rate | remove it, or choose another lr_scheduler_type");
    }
}

/* ---- evaluation, saving, identity ---- */

static void rule_eval(const struct asker *a)
{
    if (a->c->eval_steps > 0 && !rule_given(a, "eval_data_path")) {
        REPORT(a, "eval_steps", "eval_steps %llu, but there is nothing to evaluate on | write eval_data_path: PREFIX",
               ull(a->c->eval_steps));
    } else if (a->c->eval_steps == 0 && rule_given(a, "eval_data_path")) {
        REPORT(a, "eval_data_path",
               "eval_data_path is never used: eval_steps is 0 | write eval_steps, or remove the path");
    } else if (a->c->eval_steps == 0 && rule_given(a, "eval_iters") && a->c->eval_iters > 0) {
        REPORT(a, "eval_iters", "eval_iters is never used: eval_steps is 0 | write eval_steps, or remove eval_iters");
    }
}

static void rule_resume_overwrite(const struct asker *a)
{
    if (rule_given(a, "resume_from_checkpoint") && a->c->overwrite_output_dir) {
        REPORT(a, "overwrite_output_dir",
               "overwrite_output_dir would delete the run that resume_from_checkpoint goes on with | keep one of the "
               "two");
    }
}

static void rule_tp_grain(const struct asker *a)
{
    uint64_t grain = a->c->tp_grain;
    if ((grain & (grain - 1)) != 0) {
        REPORT(a, "tp_grain", "tp_grain %llu is no power of two | write 1, 2, 4 or 8, or 0 for the largest that fits",
               ull(grain));
    } else if (grain > 0 && a->c->has_model && (a->c->model.kv_heads % grain != 0 || a->c->model.ffn % grain != 0)) {
        REPORT(a, "tp_grain",
               "tp_grain %llu must divide the model's %llu key/value heads and its MLP width %llu | write 0 for the "
               "largest that fits",
               ull(grain), ull(a->c->model.kv_heads), ull(a->c->model.ffn));
    }
}

static void rule_grad_unit(const struct asker *a)
{
    if (a->c->grad_unit > a->c->seq_length) {
        REPORT(a, "grad_unit",
               "grad_unit %llu is above seq_length %llu: a unit lies inside one sequence | write %llu or less",
               ull(a->c->grad_unit), ull(a->c->seq_length), ull(a->c->seq_length));
    }
}

static void rule_profile(const struct asker *a)
{
    if (a->c->max_steps > 0 && a->c->profile > a->c->max_steps) {
        REPORT(a, "profile", "profile %llu is above max_steps %llu: the run never comes to that step",
               ull(a->c->profile), ull(a->c->max_steps));
    }
}

static const struct rule rules[] = {
    { "model-given", FINDING_ERROR, "model resume_from_checkpoint", rule_model,
      "A run has a model, or goes on from a checkpoint that has one." },
    { "data-given", FINDING_ERROR, "data_path", rule_data, "A run has data." },
    { "run-length", FINDING_ERROR, "max_steps num_train_epochs", rule_length,
      "Exactly one of max_steps and num_train_epochs is given." },
    { "seq-positions", FINDING_ERROR, "seq_length model", rule_seq_positions,
      "seq_length is at most n_positions of a model with learned positions (gpt2)." },
    { "seq-rope", FINDING_WARNING, "seq_length model", rule_seq_rope,
      "seq_length is at most max_position_embeddings of a model with rotary positions (llama)." },
    { "lr-size", FINDING_WARNING, "learning_rate", rule_lr_size, "learning_rate is above 0 and at most 1." },
    { "lr-min", FINDING_ERROR, "learning_rate min_lr", rule_min_lr, "min_lr is at most learning_rate." },
    { "decay-length", FINDING_ERROR, "lr_decay_steps", rule_decay_length,
      "The learning rate decays over at least one step." },
    { "decay-end", FINDING_WARNING, "lr_decay_steps max_steps lr_scheduler_type", rule_decay_end,
      "The decay ends within the run." },
    { "warmup-length", FINDING_ERROR, "warmup_steps max_steps num_train_epochs lr_decay_steps lr_scheduler_type",
      rule_warmup,
      "The warm-up is a whole number of steps, or a fraction below 1, and ends within the run and before the decay "
      "ends." },
    { "wsd-length", FINDING_ERROR, "wsd_decay_steps warmup_steps max_steps lr_decay_steps lr_scheduler_type", rule_wsd,
      "The decay of a wsd schedule fits between the warm-up and the end." },
    { "schedule-unused", FINDING_ERROR, "lr_scheduler_type min_lr lr_decay_steps wsd_decay_steps", rule_unused_schedule,
      "Options of a schedule are given only with a schedule that uses them." },
    { "eval-given", FINDING_ERROR, "eval_steps eval_data_path eval_iters", rule_eval,
      "eval_steps and eval_data_path are given together." },
    { "resume-overwrite", FINDING_ERROR, "resume_from_checkpoint overwrite_output_dir", rule_resume_overwrite,
      "A run that is resumed is not overwritten." },
    { "profile-step", FINDING_ERROR, "profile max_steps num_train_epochs", rule_profile,
      "The step that profile names is one of the run." },
    { "tp-grain", FINDING_ERROR, "tp_grain model", rule_tp_grain,
      "tp_grain is a power of two that divides the key/value heads and the MLP width." },
    { "grad-unit", FINDING_ERROR, "grad_unit seq_length", rule_grad_unit, "grad_unit is at most seq_length." },
};
#define RULES (sizeof(rules) / sizeof(rules[0]))

static bool keys_are_fit(const struct conf *c, const char *keys)
{
    for (size_t i = 0; i < conf_key_count; i++) {
        if (c->values->list[i].bad && conf_names_hold(keys, conf_keys[i].name)) {
            return false;
        }
    }
    return true;
}

/* Rule i of both tables, NULL behind the last. */
static const struct rule *rule_at(size_t i)
{
    return i < RULES ? &rules[i] : i < RULES + rules_layout_count ? &rules_layout[i - RULES] : NULL;
}

void conf_ask_rules(const struct conf *c, struct findings *f)
{
    for (size_t i = 0; rule_at(i) != NULL; i++) {
        struct asker a = { c, rule_at(i), f };
        if (keys_are_fit(c, a.rule->keys)) {
            a.rule->ask(&a);
        }
    }
}

enum err conf_rules_help(struct buf *out)
{
    TRY(buf_add_string(out, "| rule | verdict | what must hold |\n|---|---|---|\n"));
    for (size_t i = 0; rule_at(i) != NULL; i++) {
        const struct rule *r = rule_at(i);
        TRY(buf_printf(out, "| %s | %s | %s |\n", r->id, r->level == FINDING_ERROR ? "error" : "warning", r->help));
    }
    return OK;
}
