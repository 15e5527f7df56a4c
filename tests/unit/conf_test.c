/* Facts about the configuration: types, spellings, nearest names, origins, rules, saving and the digest. */
#include "test.h"

#include "base/file.h"
#include "conf/nearest.h"

#define FILE_NAME "conf_test.yaml"
#include "conf_fixture.h"

static void distance_counts_swapped_neighbours_once(void **state)
{
    (void)state;
    assert_int_equal(nearest_distance("weigth", 6, "weight", 6), 1);
    assert_int_equal(nearest_distance("clipp1ng", 8, "clipping", 8), 1);
    assert_int_equal(nearest_distance("", 0, "abc", 3), 3);
    assert_int_equal(nearest_distance("ca", 2, "abc", 3), 3);
    assert_int_equal(nearest_distance("kitten", 6, "sitting", 7), 3);
}

static void defaults_are_printed_with_their_origin(void **state)
{
    (void)state;
    struct loaded l = load_text(BASE "max_steps: 100\nlearning_rate: 1e-4\n");
    struct buf out = { 0 };
    assert_ok(conf_print(&l.c, &out));
    assert_non_null(strstr(out.data, "learning_rate: 0.0001                             # conf_test.yaml:4\n"));
    assert_non_null(strstr(out.data, "adam_beta2: 0.95                                  # default\n"));
    assert_non_null(strstr(out.data, "lr_decay_steps: 100                               # derived from max_steps\n"));
    assert_non_null(strstr(out.data, "data_seed: 42                                     # derived from seed\n"));
    assert_non_null(strstr(out.data, "output_dir: runs/conf_test                        # derived from run_name\n"));
    buf_release(&out);
    release(&l);
}

static void every_default_is_in_range_and_every_name_is_there_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < conf_key_count; i++) {
        assert_non_null(conf_keys[i].help);
        assert_true(conf_keys[i].fallback != NULL || conf_keys[i].none != NULL);
    }
    /* Each name occurs once among keys, aliases and foreign keys. */
    struct buf all = { 0 };
    for (size_t i = 0; i < conf_key_count; i++) {
        assert_ok(
            buf_printf(&all, " %s %s", conf_keys[i].name, conf_keys[i].aliases != NULL ? conf_keys[i].aliases : ""));
    }
    for (size_t i = 0; i < conf_foreign_count; i++) {
        assert_ok(buf_printf(&all, " %s", conf_foreign[i].names));
    }
    assert_ok(buf_add_string(&all, " "));
    for (const char *p = all.data; *p != '\0';) {
        p += strspn(p, " ");
        size_t n = strcspn(p, " ");
        char word[128];
        snprintf(word, sizeof(word), " %.*s ", (int)n, p);
        if (n > 0 && strstr(p - 1 + n, word) != NULL) {
            fail_msg("%s is there twice", word);
        }
        p += n;
    }
    buf_release(&all);
}

static void strict_scalars(void **state)
{
    (void)state;
    accepts(BASE "max_steps: 100\nlearning_rate: 1e-4\nadam_epsilon: 1E-08\nmax_grad_norm: 1\n");
    says(BASE "max_steps: \"8\"\n",
         "conf_test.yaml:3:12: error: max_steps: expected a whole number, got the string \"8\" (remove the quotes)");
    says(BASE "max_steps: 4.0\n", "got the real number 4.0 (write 4)");
    says(BASE "max_steps: 1e3\n", "got the real number 1e3 (write 1000)");
    says(BASE "max_steps: 010\n", "(remove the leading zero)");
    says(BASE "max_steps: 1_000\n", "(write the digits without separators)");
    says(BASE "max_steps: -1\n", "got the number -1 (it may not be negative)");
    says(BASE "max_steps: 0\n", "expected a whole number from 1 to 1099511627776, got 0");
    says(BASE "max_steps: 99999999999999999999999\n", "it has too many digits");
    says(BASE "max_steps: auto\n", "only a trainer that calls DeepSpeed fills in auto");
    says(BASE "max_steps: [1]\n", "expected a whole number, got a list");
    says(BASE "max_steps: 9\nlearning_rate: 1e999\n", "it is too large");
    says(BASE "max_steps: 9\nlearning_rate: .nan\n", "write a finite number");
    says(BASE "max_steps: 9\nlearning_rate: .inf\n", "write a finite number");
    says(BASE "max_steps: 9\nadam_beta1: 1\n", "expected a number from 0 and up to 0.9999999, got 1");
    says(BASE "max_steps: 9\nadam_epsilon: 0\n", "expected a number from 1e-37 and up to 1, got 0");
    says(BASE "max_steps: 9\noverwrite_output_dir: yes\n", "expected true or false, got the text \"yes\" (write true)");
    says(BASE "max_steps: 9\noverwrite_output_dir: \"true\"\n", "(remove the quotes)");
    says(BASE "max_steps: 9\noverwrite_output_dir: True\n", "(write true)");
    says(BASE "max_steps: 9\nrun_name: 8\n", "expected a text, got the whole number 8 (put it in quotes)");
    says(BASE "max_steps: 9\nseed: null\n", "expected a whole number, got nothing (null)");
    says(BASE "max_steps: 9\noutput_dir: a/../b\n", "may not hold \"..\"");
    says(BASE "max_steps: 9\noutput_dir: $HOME/b\n", "not expanded");
    says(BASE "max_steps: 9\nreport_to: [wandb]\n", "expected none or tensorboard, got the text \"wandb\"");
    says(BASE "max_steps: 9\nlr_scheduler_type: polynomial\n",
         "expected constant, linear, cosine, wsd or inverse_sqrt");
}

static void yaml_is_read_strictly(void **state)
{
    (void)state;
    says(BASE "max_steps: 1\nmax_steps: 2\n",
         "conf_test.yaml:4:1: error: duplicate key \"max_steps\", first given at line 3");
    says(BASE "max_steps: 1\nbf16: false\nbf16: {x: {y: 1}}\n", "duplicate key \"bf16\"");
    says(BASE "max_steps: &x 1\n", "an anchor (&x)");
    says(BASE "max_steps: !!int 1\n", "a tag (tag:yaml.org,2002:int)");
    says("a: *x\n", "an alias (*x)");
    says("a: 1\n---\nb: 2\n", "a second document");
    says("a:\n\tb: 1\n", "conf_test.yaml:2:1: error: a tab indents this line");
    says("\xef\xbb\xbfkey: 1\n", "byte order mark");
    says("\xff\xfe\n", "UTF-16");
    says("a: \xc0\xaf\n", "conf_test.yaml:1:4: error: byte 0xc0 is not UTF-8");
    says("a: \"\\0\"\n", "a NUL character");
    says("a: [1\n", "not valid YAML");
    says("", "the file is empty");
    says("# nothing\n", "the file is empty");
    struct loaded l = load_bytes("a: 1\0\n", 6, 0, NULL);
    assert_non_null(strstr(l.text.data, "conf_test.yaml:1:5: error: a NUL byte"));
    release(&l);
    struct buf deep = { 0 };
    for (int i = 0; i < 40; i++) {
        assert_ok(buf_add_string(&deep, "["));
    }
    says(deep.data, "nested deeper than 32 levels");
    buf_release(&deep);
}

static void large_values_and_many_nodes_are_refused(void **state)
{
    (void)state;
    struct buf text = { 0 };
    assert_ok(buf_add_string(&text, "a: "));
    for (size_t i = 0; i <= YAML_VALUE_BYTES_MAX / 64; i++) {
        assert_ok(buf_add_string(&text, "0123456789012345678901234567890123456789012345678901234567890123"));
    }
    says(text.data, "at most 1048576 are read");
    buf_clear(&text);
    for (int i = 0; i < 15000; i++) {
        assert_ok(buf_printf(&text, "k%d: 1\n", i));
    }
    says(text.data, "this is not a configuration");
    buf_clear(&text);
    for (int i = 0; i < 9000; i++) {
        assert_ok(buf_printf(&text, "learning_rat%d: 1\n", i));
    }
    struct loaded l = load_text(text.data);
    assert_true(l.f.errors >= 9000 && l.f.count == 200);
    release(&l);
    buf_release(&text);
}

static void all_errors_come_at_once_and_sorted(void **state)
{
    (void)state;
    struct loaded l = load_text("max_steps: no\nseed: x\nlearning_rat: 1\n" BASE);
    assert_int_equal(l.f.errors, 3);
    assert_non_null(strstr(l.text.data, ":1:12: error: max_steps"));
    assert_non_null(strstr(l.text.data, ":2:7: error: seed"));
    assert_non_null(strstr(l.text.data, ":3:1: error: unknown key learning_rat\nhint: did you mean learning_rate?"));
    release(&l);
}

static void unknown_keys_name_the_nearest_at_every_depth(void **state)
{
    (void)state;
    says(BASE "max_steps: 9\ngradient_clipp1ng: 1.0\n",
         "unknown key gradient_clipp1ng\nhint: did you mean gradient_clipping?");
    says(BASE "max_steps: 9\nzero_optimization: {stage: 0, overlap_com: true}\n",
         "did you mean zero_optimization.overlap_comm?");
    says(BASE "max_steps: 9\nbf16: {enable: true}\n", "did you mean bf16.enabled?");
    says(BASE "max_steps: 9\noptimizer: {params: {weigth_decay: 0.1}}\n",
         "did you mean optimizer.params.weight_decay?");
    says(BASE "max_steps: 9\nscheduler: {params: {warmup_steps: 1}}\n",
         "did you mean scheduler.params.warmup_num_steps?");
    says(BASE "max_steps: 9\noptimizer: {params: {betas: [0.9, 0.95, 1]}}\n", "unknown key optimizer.params.betas[2]");
    says(BASE "max_steps: 9\nwholly_other_thing: 1\n", "docs/configuration.md lists the keys");
    says(BASE "max_steps: 9\n<<: {seed: 1}\n", "unknown key <<");
}

static void aliases_mean_the_same_key(void **state)
{
    (void)state;
    struct loaded l =
        load_text(BASE "train-iters: 9\n"
                       "per_device_train_batch_size: 3\n"
                       "train_batch_size: 12\n"
                       "clip_grad: 2\n"
                       "optimizer: {type: AdamW, params: {lr: 0.01, betas: [0.5, 0.25], eps: 1e-6, weight_decay: 0}}\n"
                       "scheduler: {params: {warmup_num_steps: 4}}\n"
                       "save: out\n"
                       "zero_optimization: {stage: 0}\n"
                       "bf16: {enabled: false}\n"
                       "tp: 1\n"
                       "lora_dropout: 0.0\n");
    assert_int_equal(l.f.count, 0);
    assert_int_equal(l.c.max_steps, 9);
    assert_int_equal(l.c.micro_batch_size, 3);
    assert_int_equal(l.c.global_batch_size, 12);
    assert_int_equal(l.c.gradient_accumulation_steps, 4);
    assert_true(l.c.max_grad_norm == 2 && l.c.learning_rate == 0.01 && l.c.adam_beta1 == 0.5 && l.c.adam_beta2 == 0.25);
    assert_true(l.c.adam_epsilon == 1e-6 && l.c.weight_decay == 0 && l.c.warmup_steps == 4);
    assert_string_equal(l.c.output_dir, "out");
    release(&l);
}

static void two_spellings_with_different_values_name_both_places(void **state)
{
    (void)state;
    accepts(BASE "max_steps: 9\ntrain_iters: 9\n");
    says(BASE "max_steps: 9\ntrain_iters: 10\n", "conf_test.yaml:4:14: error: train_iters is 10 here, but max_steps is "
                                                 "9 at conf_test.yaml:3:12: two values for max_steps");
    says(BASE "max_steps: 9\nlr: 0.1\nlearning-rate: 0.2\n", "two values for learning_rate");
    char *argv[] = { "--max_steps", "5", "--train-iters=6" };
    struct loaded l = load_bytes(BASE, strlen(BASE), 3, argv);
    assert_non_null(strstr(l.text.data, "command line: error: --train_iters 6 here, but --max_steps 5 before it"));
    release(&l);
}

static void the_command_line_goes_before_the_file(void **state)
{
    (void)state;
    char *argv[] = { "--max-steps",     "7",   "--lr=2e-4",  "--overwrite_output_dir",
                     "--model.n_layer", "3",   "--run_name", "8",
                     "--report_to",     "none" };
    const char *text = BASE "max_steps: 9\nlearning_rate: 0.1\n";
    struct loaded l = load_bytes(text, strlen(text), 10, argv);
    if (l.f.count != 0) {
        fail_msg("%s", l.text.data);
    }
    assert_int_equal(l.c.max_steps, 7);
    assert_true(l.c.learning_rate == 2e-4 && l.c.overwrite_output_dir && !l.c.report_tensorboard);
    assert_int_equal(l.c.model.layers, 3);
    assert_string_equal(l.c.run_name, "8");
    struct buf out = { 0 };
    assert_ok(conf_print(&l.c, &out));
    assert_non_null(strstr(out.data, "max_steps: 7                                      # command line\n"));
    buf_release(&out);
    release(&l);
}

static void a_command_line_is_enough(void **state)
{
    (void)state;
    char *argv[] = { "--model.model_type",
                     "gpt2",
                     "--model.n_layer=1",
                     "--model.n_embd=8",
                     "--model.n_head=1",
                     "--model.n_positions=16",
                     "--model.vocab_size=32",
                     "--data_path",
                     "d",
                     "--max_steps",
                     "1" };
    struct conf c;
    struct findings f = { 0 };
    assert_ok(conf_load(&c, NULL, 11, argv, 1, &f));
    assert_int_equal(c.seq_length, 16);
    assert_string_equal(c.output_dir, "runs/run");
    conf_release(&c);
    char *bad[] = { "file.yaml", "--max_steps", "--no_such_key", "3", "-x" };
    assert_int_equal(conf_load(&c, NULL, 5, bad, 1, &f), ERR_USAGE);
    assert_int_equal(f.errors,
                     6); /* two stray words, no value, unknown key, no model, no data; the length is bad, not missing */
    conf_release(&c);
    findings_release(&f);
}

static void keys_of_other_systems_are_refused_unless_neutral(void **state)
{
    (void)state;
    says(BASE "max_steps: 9\nep: 2\n", "ep 2: this version has no experts\nhint: remove it or set it to 1");
    says(BASE "max_steps: 9\nfp16: true\n",
         "fp16 true: this version computes in fp32 or, with bf16: true, in bf16\nhint: remove it or set it to false");
    says(BASE "max_steps: 9\nfp16: \"false\"\n", "fp16 \"false\"");
    says(BASE "max_steps: 9\nzero_optimization: {overlap_comm: true}\n",
         "zero_optimization.overlap_comm true: there is");
    says(BASE "max_steps: 9\nnum_machines: 4\n", "write world_size: the number of all ranks");
    says(BASE "max_steps: 9\noptimizer: sgd\n", "this version has AdamW only");
    says(BASE "max_steps: 9\nhidden_dropout: 0.1\n", "write resid_pdrop and embd_pdrop under model");
    says(BASE "max_steps: 9\nattention_dropout: 0.1\n",
         "attention dropout is not supported\nhint: remove it or set it to 0");
    says(BASE "max_steps: 9\nhidden_size: 64\n", "this belongs into the model block");
    says(BASE "max_steps: 9\nfull_determinism: false\n", "always on");
}

static void schedules_that_cannot_be_are_errors(void **state)
{
    (void)state;
    says(BASE "max_steps: 9\nlr_decay_steps: 0\n", "the learning rate would decay over 0 steps");
    says(BASE "max_steps: 9\nwarmup_steps: 10\n", "warmup_steps 10 is above max_steps 9");
    says(BASE "max_steps: 9\nwarmup_steps: 1.5\n", "neither a whole number nor below 1");
    says(BASE "max_steps: 9\nmin_lr: 1\n", "min_lr 1 is above learning_rate 0.0003");
    says(BASE "max_steps: 9\nwsd_decay_steps: 3\n", "wsd_decay_steps has no effect");
    says(BASE "max_steps: 9\nlr_scheduler_type: wsd\nwsd_decay_steps: 10\n",
         "above the length of the schedule, 9 steps");
    says(BASE "max_steps: 9\nlr_scheduler_type: wsd\nwarmup_steps: 5\nwsd_decay_steps: 5\n", "overlap in 9 steps");
    says(BASE "max_steps: 9\nlr_scheduler_type: constant\nmin_lr: 1e-5\n", "no effect with a constant");
    says(BASE "max_steps: 9\nlr_scheduler_type: constant\nlr_decay_steps: 9\n", "lr_decay_steps has no effect");
    says(BASE "max_steps: 9\nlr_decay_steps: 20\n", "warning: lr_decay_steps 20 is above max_steps 9");
    says(BASE "max_steps: 9\nlearning_rate: 3\n", "warning: learning_rate 3 is far above");
    says(BASE "max_steps: 9\nnum_train_epochs: 1\n", "both say how long to train");
    says(BASE, "max_steps: not given");
    struct loaded l = load_text(BASE "max_steps: 100\nlr_scheduler_type: wsd\nwarmup_steps: 0.07\n");
    assert_int_equal(l.c.wsd_decay_steps, 10);
    assert_int_equal(conf_warmup_steps(&l.c), 7);
    release(&l);
}

static void other_rules(void **state)
{
    (void)state;
    says(BASE "max_steps: 9\nseq_length: 257\n", "above the model's n_positions 256");
    says(BASE "max_steps: 9\neval_steps: 5\n", "nothing to evaluate on");
    says(BASE "max_steps: 9\neval_data_path: e\n", "never used");
    says(BASE "max_steps: 9\ntp_grain: 3\n", "no power of two");
    says(BASE "max_steps: 9\ntp_grain: 8\n", "must divide");
    says(BASE "max_steps: 9\ngrad_unit: 512\n", "grad_unit 512 is above seq_length 256");
    says(BASE "max_steps: 9\nresume_from_checkpoint: latest\noverwrite_output_dir: true\n", "would delete the run");
    says(MODEL "max_steps: 9\n", "data_path: not given");
    says("data_path: d\nmax_steps: 9\n", "model: not given");
    accepts("data_path: d\nmax_steps: 9\nresume_from_checkpoint: latest\n");
}

static void a_rule_is_not_asked_about_a_bad_value(void **state)
{
    (void)state;
    says(BASE "max_steps: \"8\"\nwarmup_steps: 100\n", "remove the quotes");
}

static void length_in_epochs_is_resolved_later(void **state)
{
    (void)state;
    struct loaded l = load_text(BASE "num_train_epochs: 2\nwarmup_steps: 50\n");
    assert_int_equal(l.f.count, 0);
    assert_int_equal(l.c.max_steps, 0);
    assert_ok(conf_derive(&l.c, "max_steps", 80, "num_train_epochs"));
    assert_int_equal(l.c.lr_decay_steps, 80);
    assert_ok(conf_check(&l.c, &l.f));
    struct buf out = { 0 };
    assert_ok(conf_print(&l.c, &out));
    assert_non_null(strstr(out.data, "# derived from num_train_epochs"));
    buf_clear(&out);
    assert_ok(conf_save(&l.c, &out)); /* the length that was asked for, not both */
    struct loaded again = load_text(out.data);
    assert_int_equal(again.f.errors, 0);
    assert_true(again.c.num_train_epochs == 2 && again.c.max_steps == 0);
    release(&again);
    buf_release(&out);
    assert_ok(conf_derive(&l.c, "max_steps", 40, "num_train_epochs"));
    assert_int_equal(conf_check(&l.c, &l.f), ERR_USAGE);
    release(&l);
}

static void null_is_as_if_nothing_was_given(void **state)
{
    (void)state;
    struct loaded l = load_text(BASE "num_train_epochs: 2\nmax_steps: null\nlr_decay_steps: null\n");
    assert_int_equal(l.f.count, 0);
    assert_ok(conf_derive(&l.c, "max_steps", 80, "num_train_epochs"));
    assert_ok(conf_check(&l.c, &l.f)); /* one length was given, not two */
    assert_int_equal(l.c.lr_decay_steps, 80);
    assert_ok(conf_derive(&l.c, "max_steps", 40, "num_train_epochs"));
    assert_int_equal(l.c.lr_decay_steps, 40);
    release(&l);
    char *argv[] = { "--eval_data_path", "null", "--eval_steps=0", "--lr_decay_steps", "null", "--seq_length=null" };
    const char *text = BASE "max_steps: 9\neval_data_path: e\neval_steps: 3\nlr_decay_steps: 7\nseq_length: 32\n";
    l = load_bytes(text, strlen(text), 6, argv); /* also where the file gives something */
    assert_int_equal(l.f.count, 0);
    assert_null(l.c.eval_data_path);
    assert_int_equal(l.c.lr_decay_steps, 9);
    assert_int_equal(l.c.seq_length, 256);
    release(&l);
}

/* Every printed value but origins. */
static void print_values(const struct conf *c, struct buf *out)
{
    for (size_t i = 1; i < conf_key_count; i++) {
        assert_ok(buf_printf(out, "%s: ", conf_keys[i].name));
        assert_ok(conf_write_value(c, &conf_keys[i], out));
        assert_ok(buf_add_string(out, "\n"));
    }
}

static void saved_configurations_load_to_the_same_values(void **state)
{
    (void)state;
    static const char *const texts[] = {
        BASE "max_steps: 100\n",
        BASE "num_train_epochs: 0.5\n"
             "lr_scheduler_type: wsd\n"
             "learning_rate: 0.1234567890123456789\n"
             "run_name: \"8 \\\"x\\\" #: \xc3\xa4\"\n",
        BASE "max_steps: 7\n"
             "lr_scheduler_type: constant\n"
             "report_to: none\n"
             "seed: 9223372036854775807\n"
             "threads: 3\n"
             "tokenizer: \"true\"\n"
             "eval_data_path: e\n"
             "eval_steps: 2\n"
             "micro_batch_size: 3\n"
             "tp_grain: 2\n"
             "grad_unit: 17\n",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct loaded first = load_text(texts[i]);
        struct buf saved = { 0 }, a = { 0 }, b = { 0 };
        char digest[33], again[33];
        assert_int_equal(first.f.count, 0);
        assert_ok(conf_save(&first.c, &saved));
        struct loaded second = load_text(saved.data);
        if (second.f.count != 0) {
            fail_msg("%s\n%s", saved.data, second.text.data);
        }
        print_values(&first.c, &a);
        print_values(&second.c, &b);
        assert_string_equal(a.data, b.data);
        assert_memory_equal(&first.c.model, &second.c.model, sizeof(first.c.model));
        conf_digest(&first.c, digest);
        conf_digest(&second.c, again);
        assert_string_equal(digest, again);
        buf_release(&saved);
        buf_release(&a);
        buf_release(&b);
        release(&first);
        release(&second);
    }
}

static void digest_follows_identity_only(void **state)
{
    (void)state;
    static const char *const same[] = { "threads: 2\n", "micro_batch_size: 2\nglobal_batch_size: 8\n",
                                        "output_dir: x\n", "logging_steps: 7\n", "seed: 42\n",
                                        "eod_mask_loss: false\n",
                                        "world_size: 1\n", "zero_stage: 3\n", "distributed_timeout: 5\n",
                                        "pipeline_layers: 2\n", "dp: 1\n" };
    static const char *const other[] = { "seed: 43\n",
                                         "learning_rate: 3.0000000000000003e-4\n",
                                         "global_batch_size: 9\n",
                                         "lr_scheduler_type: linear\n",
                                         "grad_scale_log2: 30\n",
                                         "eod_mask_loss: true\n",
                                         "seq_length: 255\n" };
    char base[33], hex[33], text[512];
    struct loaded l = load_text(BASE "max_steps: 9\n");
    conf_digest(&l.c, base);
    release(&l);
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        snprintf(text, sizeof(text), "%s%s", BASE "max_steps: 9\n", same[i]);
        l = load_text(text);
        conf_digest(&l.c, hex);
        assert_string_equal(base, hex);
        release(&l);
    }
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        snprintf(text, sizeof(text), "%s%s", BASE "max_steps: 9\n", other[i]);
        l = load_text(text);
        conf_digest(&l.c, hex);
        assert_string_not_equal(base, hex);
        release(&l);
    }
    char *dropout[] = { "--model.resid_pdrop", "0.1", "--model.resid_pdrop", "0.2", "--model.embd_pdrop", "0.1" };
    char seen[4][33];
    memcpy(seen[0], base, sizeof(base));
    for (int i = 1; i < 4; i++) {
        l = load_bytes(BASE "max_steps: 9\n", strlen(BASE "max_steps: 9\n"), 2, dropout + 2 * (i - 1));
        conf_digest(&l.c, seen[i]);
        release(&l);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(seen[j], seen[i]);
        }
    }
}

/* The page lies at docs/ beside tests/, found from this file's own name; INVAR_ACCEPT=1 writes it. */
static void reference_page_is_not_stale(void **state)
{
    (void)state;
    struct buf made = { 0 }, page = { 0 };
    char path[512];
    const char *end = strstr(__FILE__, "tests/unit/conf_test.c");
    assert_non_null(end);
    snprintf(path, sizeof(path), "%.*sdocs/configuration.md", (int)(end - __FILE__), __FILE__);
    if (!file_exists(path)) { /* started in the top folder, not in the build folder */
        snprintf(path, sizeof(path), "docs/configuration.md");
    }
    assert_ok(conf_help(&made, true));
    if (getenv("INVAR_ACCEPT") != NULL) {
        assert_ok(file_replace(path, made.data, made.bytes));
    }
    assert_ok(file_read(path, (size_t)1 << 20, &page));
    if (strcmp(made.data, page.data) != 0) {
        fail_msg("%s is stale | INVAR_ACCEPT=1 build/unit_conf reference_page", path);
    }
    buf_release(&made);
    buf_release(&page);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(distance_counts_swapped_neighbours_once),
    cmocka_unit_test(defaults_are_printed_with_their_origin),
    cmocka_unit_test(every_default_is_in_range_and_every_name_is_there_once),
    cmocka_unit_test(strict_scalars),
    cmocka_unit_test(yaml_is_read_strictly),
    cmocka_unit_test(large_values_and_many_nodes_are_refused),
    cmocka_unit_test(all_errors_come_at_once_and_sorted),
    cmocka_unit_test(unknown_keys_name_the_nearest_at_every_depth),
    cmocka_unit_test(aliases_mean_the_same_key),
    cmocka_unit_test(two_spellings_with_different_values_name_both_places),
    cmocka_unit_test(the_command_line_goes_before_the_file),
    cmocka_unit_test(a_command_line_is_enough),
    cmocka_unit_test(keys_of_other_systems_are_refused_unless_neutral),
    cmocka_unit_test(schedules_that_cannot_be_are_errors),
    cmocka_unit_test(other_rules),
    cmocka_unit_test(a_rule_is_not_asked_about_a_bad_value),
    cmocka_unit_test(length_in_epochs_is_resolved_later),
    cmocka_unit_test(null_is_as_if_nothing_was_given),
    cmocka_unit_test(saved_configurations_load_to_the_same_values),
    cmocka_unit_test(digest_follows_identity_only),
    cmocka_unit_test(reference_page_is_not_stale),
};
TEST_MAIN(tests)
