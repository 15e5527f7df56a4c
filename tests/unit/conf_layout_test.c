/* Facts about the configuration of parallel layouts: spellings, what is left for dp, the batch over unequal ranks,
 * every refusal with the nearest that can be, and a saved configuration on another number of ranks. */
#include "test.h"

#define FILE_NAME "conf_layout_test.yaml"
#include "conf_fixture.h"

#define LAYERS20                                                                                                       \
    "model: {model_type: gpt2, n_layer: 20, n_embd: 64, n_head: 4, n_positions: 2048, vocab_size: 500}\n"              \
    "data_path: d\nmax_steps: 9\n"
#define LAYERS80                                                                                                       \
    "model: {model_type: llama, num_hidden_layers: 80, hidden_size: 512, num_attention_heads: 8, intermediate_size: "  \
    "2048, max_position_embeddings: 4096, vocab_size: 500}\ndata_path: d\nmax_steps: 9\n"
#define SMALL BASE "max_steps: 9\n"

static struct loaded load_for(uint32_t world, const char *text)
{
    struct loaded l = load_world(text, strlen(text), 0, NULL, world);
    if (l.f.errors != 0) {
        fail_msg("for %u ranks and\n%s\nexpected no error, got\n%s", world, text, l.text.data);
    }
    return l;
}

/* ---- spellings ---- */

static void every_spelling_sets_its_field(void **state)
{
    (void)state;
    static const struct {
        const char *text; /* %s: a value */
        size_t offset;
    } axes[] = {
        { "tp: 2", offsetof(struct conf, tp) },
        { "tensor_model_parallel_size: 2", offsetof(struct conf, tp) },
        { "tensor-model-parallel-size: 2", offsetof(struct conf, tp) },
        { "tp_size: 2", offsetof(struct conf, tp) },
        { "tensor_parallel: {autotp_size: 2}", offsetof(struct conf, tp) },
        { "parallelism_config: {tp_size: 2}", offsetof(struct conf, tp) },
        { "pp: 2", offsetof(struct conf, pp) },
        { "pipeline_model_parallel_size: 2", offsetof(struct conf, pp) },
        { "cp: 2\ngrad_unit: 64", offsetof(struct conf, cp) },
        { "context_parallel_size: 2\ngrad_unit: 64", offsetof(struct conf, cp) },
        { "sequence_parallel_size: 2\ngrad_unit: 64", offsetof(struct conf, cp) },
        { "parallelism_config: {cp_size: 2}\ngrad_unit: 64", offsetof(struct conf, cp) },
        { "parallelism_config: {sp_size: 2}\ngrad_unit: 64", offsetof(struct conf, cp) },
        { "dp: 2", offsetof(struct conf, dp) },
        { "data_parallel_size: 2", offsetof(struct conf, dp) },
        { "world_size: 2", offsetof(struct conf, world_size) },
        { "num_processes: 2", offsetof(struct conf, world_size) },
        { "zero_optimization: {stage: 2}", offsetof(struct conf, zero_stage) },
        { "zero_optimization.stage: 2", offsetof(struct conf, zero_stage) },
        { "zero_stage: 2", offsetof(struct conf, zero_stage) },
        { "data_parallel_sharding_strategy: optim_grads", offsetof(struct conf, zero_stage) },
        { "fsdp: shard_grad_op", offsetof(struct conf, zero_stage) },
        { "fsdp: shard_grad_op auto_wrap\nzero_stage: 2", offsetof(struct conf, zero_stage) },
    };
    for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "%s%s\n", SMALL, axes[i].text);
        struct loaded l = load_for(2, text);
        uint64_t field = *(const uint64_t *)(const void *)((const char *)&l.c + axes[i].offset);
        if (field != 2 || l.f.count != 0) {
            fail_msg("%s: the field is %llu\n%s", axes[i].text, (unsigned long long)field, l.text.data);
        }
        assert_int_equal(l.c.tp * l.c.pp * l.c.cp * l.c.dp, 2);
        release(&l);
    }
}

static void zero_stages_by_their_other_names(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t stage;
    } cases[] = {
        { "use_distributed_optimizer: true", 1 },
        { "use_distributed_optimizer: false", 0 },
        { "use_distributed_optimizer: false\nzero_stage: 3", 3 },
        { "data_parallel_sharding_strategy: no_shard", 0 },
        { "data_parallel_sharding_strategy: optim", 1 },
        { "data_parallel_sharding_strategy: optim_grads_params", 3 },
        { "fsdp: full_shard auto_wrap", 3 },
        { "fsdp: false", 0 },
        { "zero_stage: 3\nfsdp: full_shard", 3 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "%s%s\n", SMALL, cases[i].text);
        struct loaded l = load_for(2, text);
        assert_int_equal(l.c.zero_stage, cases[i].stage);
        release(&l);
    }
    says(SMALL "zero_stage: 4\n", "zero_stage: expected a whole number from 0 to 3, got 4");
    says(SMALL "fsdp: hybrid_shard\n", "fsdp: hybrid_shard is not known here\nhint: known are no_shard, shard_grad_op");
    says(SMALL "use_distributed_optimizer: 1\n", "use_distributed_optimizer: 1 is not known here");
    says(SMALL "use_distributed_optimizer: true\nzero_stage: 2\n", "two values for zero_optimization.stage");
    char *argv[] = { "--use-distributed-optimizer", "--distributed-timeout-minutes", "2" };
    struct loaded l = load_world(SMALL, strlen(SMALL), 3, argv, 2);
    assert_int_equal(l.f.count, 0);
    assert_int_equal(l.c.zero_stage, 1);
    assert_true(l.c.distributed_timeout == 120);
    release(&l);
}

/* What two ranks may have different does not count; all else does, each key by itself. */
static void ranks_compare_every_key(void **state)
{
    (void)state;
    static const struct {
        const char *text, *key; /* key NULL: may differ */
        const char *described;
    } cases[] = {
        { "learning_rate: 0.5\n", "learning_rate", "learning_rate 0.5 (conf_layout_test.yaml:4)" },
        { "save_steps: 7\n", "save_steps", "save_steps 7 (conf_layout_test.yaml:4)" },
        { "output_dir: o\n", "output_dir", "output_dir o (conf_layout_test.yaml:4)" },
        { "max_grad_norm: 0\n", "max_grad_norm", "max_grad_norm 0 (conf_layout_test.yaml:4)" },
        { "overwrite_output_dir: true\n", "overwrite_output_dir", "overwrite_output_dir true (" },
        { "eod_mask_loss: true\n", "model", "model gpt2, 2 layers, width 64" }, /* which token ends a text counts now */
        { "micro_batch_size: 1\n", "micro_batch_size", "micro_batch_size 1 (" },
        { "seed: 42\n", NULL, NULL }, /* the default, written out */
        { "pp: 2\n", "pp", "pp 2 (conf_layout_test.yaml:4)" },
        { "model: {model_type: gpt2, n_layer: 2, n_embd: 64, n_head: 2, n_positions: 256, vocab_size: 500}\n", "model",
          "2 heads (2 key/value) of 32" },
        { "data_path: elsewhere\n", NULL, NULL },
        { "tokenizer: elsewhere\n", NULL, NULL },
        { "threads: 3\n", NULL, NULL },
    };
    const char *rest = "max_steps: 9\n";
    uint64_t hash[CONF_KEYS_MAX], want[CONF_KEYS_MAX];
    char text[512];
    struct loaded l = load_for(2, BASE "max_steps: 9\n");
    assert_ok(conf_hashes(&l.c, want));
    release(&l);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool model = strncmp(cases[i].text, "model", 5) == 0, data = strncmp(cases[i].text, "data", 4) == 0;
        struct buf out = { 0 };
        snprintf(text, sizeof(text), "%s%s%s%s", model ? "" : MODEL, data ? "" : "data_path: d/tokens\n", rest,
                 cases[i].text);
        l = load_for(2, text);
        assert_ok(conf_hashes(&l.c, hash));
        size_t key = conf_hashes_differ(want, hash);
        assert_int_equal(conf_hashes_differ(hash, want), key);
        if (cases[i].key == NULL) {
            assert_int_equal(key, CONF_KEYS_MAX);
        } else {
            assert_int_equal(key, conf_index(cases[i].key));
            assert_ok(conf_describe(&l.c, key, &out));
            assert_non_null(strstr(out.data, cases[i].described));
        }
        buf_release(&out);
        release(&l);
    }
}

static void the_timeout_is_in_seconds(void **state)
{
    (void)state;
    struct loaded l = load_for(1, SMALL);
    assert_true(l.c.distributed_timeout == 30);
    release(&l);
    l = load_for(1, SMALL "distributed_timeout_minutes: 10\nddp_timeout: 600\n");
    assert_true(l.c.distributed_timeout == 600 && l.f.count == 0);
    release(&l);
    l = load_for(1, SMALL "distributed_timeout: 0.25\n");
    assert_true(l.c.distributed_timeout == 0.25);
    release(&l);
    says(SMALL "distributed_timeout: 0\n", "distributed_timeout: expected a number above 0 and up to 1000000, got 0");
    says(SMALL "distributed_timeout_minutes: 0\n", "distributed_timeout_minutes: expected a number above 0");
    says(SMALL "distributed_timeout_minutes: \"10\"\n", "got the string \"10\" (remove the quotes)");
    says(SMALL "distributed_timeout_minutes: 10\nddp_timeout: 10\n", "two values for distributed_timeout");
}

/* ---- ranks ---- */

static void dp_is_what_the_other_axes_leave(void **state)
{
    (void)state;
    static const struct {
        uint32_t world;
        const char *text;
        uint64_t dp;
    } cases[] = {
        { 1, "", 1 },
        { 7, "", 7 },
        { 8, "tp: 2\npp: 2\n", 2 },
        { 12, "tp: 4\n", 3 },
        { 8, "tp: 2\ndp: 0\n", 4 },
        { 8, "tp: 2\ndp: null\n", 4 },
        { 8, "tp: 2\ndp: 4\nworld_size: 8\n", 4 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "%s%s", SMALL "micro_batch_size: 1\n", cases[i].text);
        struct loaded l = load_for(cases[i].world, text);
        struct layout layout = conf_layout(&l.c);
        assert_int_equal(l.f.count, 0);
        assert_int_equal(l.c.dp, cases[i].dp);
        assert_int_equal(layout_world(&layout), cases[i].world);
        release(&l);
    }
    struct loaded l = load_for(6, SMALL "tp: 2\nmicro_batch_size: 1\n");
    struct buf out = { 0 };
    assert_ok(conf_print(&l.c, &out));
    assert_non_null(
        strstr(out.data, "dp: 3                                             # derived from the number of ranks\n"));
    buf_release(&out);
    release(&l);
}

static void a_number_of_ranks_that_does_not_fit_is_refused_with_the_nearest(void **state)
{
    (void)state;
    says_world(
        6, SMALL "tp: 2\npp: 2\n",
        "conf_layout_test.yaml:4:5: error: tp 2 x pp 2 x cp 1 needs a multiple of 4 ranks, but 6 ranks are running\n"
        "hint: start 8 (mpirun -n 8), or nearest for 6 ranks: tp 2 pp 1 cp 1 dp 3, or tp 1 pp 2 cp 1 dp 3");
    says_world(
        2, SMALL "tp: 2\npp: 2\ndp: 2\n",
        "conf_layout_test.yaml:6:5: error: tp 2 x pp 2 x cp 1 x dp 2 needs 8 ranks, but 2 ranks are running\n"
        "hint: start 8 (mpirun -n 8), or nearest for 2 ranks: tp 2 pp 1 cp 1 dp 1, or tp 1 pp 2 cp 1 dp 1, or tp 1 "
        "pp 1 cp 1 dp 2");
    says(SMALL "pp: 2\n", "pp 2 x cp 1 needs a multiple of 2 ranks, but 1 rank is running\n"
                          "hint: start 2 (mpirun -n 2), or nearest for 1 rank: tp 1 pp 1 cp 1 dp 1");
    says_world(4, SMALL "dp: 3\n",
               "hint: start 3 (mpirun -n 3), or nearest for 4 ranks: tp 1 pp 1 cp 1 dp 4, or tp 2 pp 1 "
               "cp 1 dp 2, or tp 1 pp 2 cp 1 dp 2");
    says_world(2, SMALL "world_size: 4\n",
               "world_size 4, but 2 ranks are running\nhint: start 4 (mpirun -n 4), or remove world_size");
    says_world(8, SMALL "world_size: 4\nmicro_batch_size: 1\n", "world_size 4, but 8 ranks are running");
    says(SMALL "tp: 0\n", "tp: expected a whole number from 1 to 32768, got 0");
    says(SMALL "cp: \"2\"\n", "(remove the quotes)");
}

/* Every layout that is proposed is accepted when it is asked for. */
static void nearest_layouts_are_accepted(void **state)
{
    (void)state;
    static const char *const texts[] = {
        LAYERS80 "tp: 8\npp: 16\nmicro_batch_size: 1\n",
        LAYERS80 "tp: 2\npp: 3\ncp: 5\nmicro_batch_size: 1\ngrad_unit: 64\n",
        LAYERS80 "pp: 7\nvirtual_pipeline_size: 3\nmicro_batch_size: 1\n",
        LAYERS80 "pp: 5\nnum_layers_per_virtual_pipeline_stage: 2\nmicro_batch_size: 1\n",
        LAYERS80 "pp: 4\npipeline_layers: 20,20,20,20\nmicro_batch_size: 1\n",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        for (uint32_t world = 1; world <= 24; world++) {
            struct loaded l = load_world(texts[i], strlen(texts[i]), 0, NULL, world);
            struct layout near[3];
            size_t count = conf_layouts_near(&l.c, world, near, 3);
            assert_true(count > 0 || i >= 2); /* pp 1 has nothing to interleave */
            for (size_t j = 0; j < count; j++) {
                char tp[12], pp[12], cp[12], dp[12];
                char *argv[] = { "--tp", tp, "--pp", pp, "--cp", cp, "--dp", dp };
                snprintf(tp, sizeof(tp), "%u", near[j].tp);
                snprintf(pp, sizeof(pp), "%u", near[j].pp);
                snprintf(cp, sizeof(cp), "%u", near[j].cp);
                snprintf(dp, sizeof(dp), "%u", near[j].dp);
                struct loaded again = load_world(texts[i], strlen(texts[i]), 8, argv, world);
                if (again.f.errors != 0) {
                    fail_msg("%s for %u ranks: tp %s pp %s cp %s dp %s: %s", texts[i], world, tp, pp, cp, dp,
                             again.text.data);
                }
                release(&again);
            }
            release(&l);
        }
    }
}

/* ---- tp and cp ---- */

static void tp_divides_tp_grain(void **state)
{
    (void)state;
    accepts_world(4, SMALL "tp: 4\nmicro_batch_size: 1\n");
    says_world(3, SMALL "tp: 3\n",
               "tp 3: expected 1, 2, 4 or 8, the parts a sum is cut into\n"
               "hint: nearest for 3 ranks: tp 1 pp 1 cp 1 dp 3");
    says_world(16, LAYERS80 "tp: 16\n",
               "tp 16: expected 1, 2, 4 or 8, the parts a sum is cut into\n"
               "hint: nearest for 16 ranks: tp 8 pp 1 cp 1 dp 2");
    says_world(8, SMALL "tp: 8\n",
               "tp 8 does not divide tp_grain 4, the largest for 4 key/value heads and MLP width 256\n"
               "hint: nearest for 8 ranks: tp 4 pp 1 cp 1 dp 2");
    says_world(
        4, SMALL "tp: 4\ntp_grain: 2\n",
        "tp 4 does not divide tp_grain 2\nhint: nearest for 4 ranks: tp 2 pp 1 cp 1 dp 2, or tp 1 pp 1 cp 1 dp 4, or "
        "tp 2 pp 2 cp 1 dp 1, or tp_grain 4, which belongs to the run's identity");
    says(SMALL "tp_grain: 3\n", "tp_grain 3 is no power of two");
}

/* The model of a checkpoint is known later: the rules are asked again. */
static void rules_are_asked_again_when_the_model_is_known(void **state)
{
    (void)state;
    const char *text =
        "data_path: d\nmax_steps: 9\nresume_from_checkpoint: latest\ntp: 4\npp: 3\ncp: 2\nseq_length: 256\n"
        "grad_unit: 64\nmicro_batch_size: 1\n";
    struct loaded l = load_for(24, text);
    assert_int_equal(l.f.count, 0);
    assert_int_equal(l.c.tp_grain, 0);
    struct model_conf m = { .family = FAMILY_GPT2,
                            .layers = 2,
                            .hidden = 64,
                            .heads = 2,
                            .kv_heads = 2,
                            .head_dim = 32,
                            .ffn = 256,
                            .vocab = 500,
                            .positions = 256,
                            .tied = true };
    assert_ok(conf_derive_model(&l.c, &m, "the checkpoint"));
    assert_int_equal(l.c.tp_grain, 2);
    assert_int_equal(conf_check(&l.c, &l.f), ERR_USAGE);
    assert_int_equal(l.f.errors, 2);
    assert_non_null(strstr(l.f.list[0].text, "tp 4 does not divide tp_grain 2"));
    assert_non_null(strstr(l.f.list[1].text, "pp 3 x virtual_pipeline_size 1 = 3 stages, but the model has 2 layers"));
    release(&l);
}

static void cp_splits_whole_units(void **state)
{
    (void)state;
    says_world(
        2, LAYERS20 "cp: 2\nseq_length: 1024\n",
        "cp 2 x grad_unit 1024 = 2048 does not divide seq_length 1024: ranks share whole units\n"
        "hint: write grad_unit 256, which belongs to the run's identity: its bits are not those of grad_unit 1024, or "
        "nearest for 2 ranks: tp 1 pp 1 cp 1 dp 2");
    accepts_world(2, LAYERS20 "cp: 2\nseq_length: 1024\ngrad_unit: 256\n");
    accepts_world(2, LAYERS20 "cp: 2\nseq_length: 2048\n");
    accepts_world(4, LAYERS20 "cp: 4\nseq_length: 64\ngrad_unit: 16\n");
    says_world(4, LAYERS20 "cp: 4\nseq_length: 64\ngrad_unit: 32\n", "hint: write grad_unit 8, which");
    says_world(3, LAYERS20 "cp: 3\nseq_length: 1024\n",
               "cp 3 does not divide seq_length 1024\nhint: nearest for 3 ranks: "
               "tp 1 pp 1 cp 1 dp 3");
    says_world(
        2, LAYERS20 "cp: 2\nseq_length: 1536\ngrad_unit: 384\n",
        "cp 2 needs a grad_unit that is a multiple of 256 when above it, got 384\nhint: write grad_unit 192, which");
    says_world(2, LAYERS20 "cp: 2\nseq_length: 64\ngrad_unit: 128\n", "grad_unit 128 is above seq_length 64");
}

/* What is automatic belongs to the identity: it must not follow the layout. */
static void automatic_constants_do_not_follow_the_layout(void **state)
{
    (void)state;
    struct loaded one = load_for(1, LAYERS80), many = load_for(16, LAYERS80 "tp: 2\npp: 2\ncp: 4\nseq_length: 4096\n");
    char a[33], b[33];
    assert_int_equal(one.c.tp_grain, 8);
    assert_int_equal(one.c.grad_unit, 1024);
    assert_int_equal(one.c.grad_scale_log2, 34);
    assert_int_equal(many.c.tp_grain, 8);
    assert_int_equal(many.c.grad_unit, 1024);
    assert_int_equal(many.c.grad_scale_log2, 32);
    release(&one);
    one = load_for(1, LAYERS80 "seq_length: 4096\n");
    conf_digest(&one.c, a);
    conf_digest(&many.c, b);
    assert_string_equal(a, b);
    release(&one);
    release(&many);
}

/* ---- pipeline ---- */

static void layers_are_dealt_as_evenly_as_can_be(void **state)
{
    (void)state;
    struct loaded l = load_for(4, "model: {model_type: gpt2, n_layer: 30, n_embd: 64, n_head: 4, n_positions: 256, "
                                  "vocab_size: 500}\ndata_path: d\nmax_steps: 9\npp: 4\n");
    struct pipe p = conf_pipe(&l.c);
    uint64_t sum = 0;
    assert_int_equal(p.schedule, PIPE_1F1B);
    assert_true(p.counts == NULL && pipe_fits(&p));
    for (uint32_t i = 0; i < 4; i++) {
        struct order_range r = pipe_layers(&p, i, 0);
        assert_int_equal(r.hi - r.lo, i < 2 ? 8 : 7);
        sum += r.hi - r.lo;
    }
    assert_int_equal(sum, 30);
    release(&l);
}

static void stages_without_a_layer_are_refused(void **state)
{
    (void)state;
    says_world(4, SMALL "pp: 4\n",
               "pp 4 x virtual_pipeline_size 1 = 4 stages, but the model has 2 layers: some stages would "
               "be empty\nhint: nearest for 4 ranks: tp 1 pp 2 cp 1 dp 2");
    says_world(4, LAYERS20 "pp: 4\nvirtual_pipeline_size: 6\n",
               "pp 4 x virtual_pipeline_size 6 = 24 stages, but the model has 20 layers: some stages would be empty\n"
               "hint: write virtual_pipeline_size 5 or less, or nearest for 4 ranks: tp 1 pp 2 cp 1 dp 2");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: 10,0,10\nvirtual_pipeline_size: 2\n",
               "pipeline_layers has 3 stages");
    accepts_world(3, LAYERS20 "pp: 3\npipeline_layers: 10,0,10\n");
}

static void pipeline_layers_account_for_every_layer(void **state)
{
    (void)state;
    static const char *const same[] = { "pipeline_layers: 3,5,12", "pipeline_layers: [3, 5, 12]",
                                        "pipeline_layers: \"3, 5,12\"", "pipeline_layout: 3,5,12",
                                        "pipeline_model_parallel_layout: [3,5,12]" };
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "%s%s\npipeline_layers: [3,5,12]\n", LAYERS20 "pp: 3\n", i > 2 ? same[i] : "");
        struct loaded l =
            load_for(3, i > 2 ? text : (snprintf(text, sizeof(text), "%s%s\n", LAYERS20 "pp: 3\n", same[i]), text));
        struct pipe p = conf_pipe(&l.c);
        assert_int_equal(l.c.pipe_counts_count, 3);
        assert_true(pipe_fits(&p) && pipe_layers(&p, 1, 0).lo == 3 && pipe_layers(&p, 1, 0).hi == 8);
        release(&l);
    }
    says(LAYERS20 "pipeline_layers: 1\n",
         "pipeline_layers adds up to 1, but the model has 20 layers: 19 would be lost\n"
         "hint: as even as can be: pipeline_layers 20");
    says_world(
        3, LAYERS20 "pp: 3\npipeline_layers: 8,8,8\n",
        "adds up to 24, but the model has 20 layers: 4 are too many\nhint: as even as can be: pipeline_layers 7,7,6");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: 10,10\n",
               "pipeline_layers has 2 stages, pp 3 x virtual_pipeline_size 1 = 3 were expected\nhint: as even");
    says_world(2, LAYERS20 "pp: 2\npipeline_layers: 10,5,5\n", "pipeline_layers has 3 stages, pp 2 x");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: 9223372036854775807,9223372036854775807,22\n", "are too many");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: 10,x,10\n",
               "expected the layers of each stage, as in 3,5,4 or [3, 5, 4], got the text \"10,x,10\"");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: 10,,10\n", "got the text \"10,,10\"");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: [10, \"0\", 10]\n", "got the string \"0\" in it");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: []\n", "got a list");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: {a: 1}\n", "got a mapping");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: Et|tt|tL\n", "got the text \"Et|tt|tL\"");
    says_world(2, LAYERS20 "pp: 2\npipeline_layers: 99999999999999999,20\n", "are too many");
    says_world(3, LAYERS20 "pp: 3\npipeline_layers: 3,5,12\npipeline_layout: 5,3,12\n",
               "two values for pipeline_layers");
    struct buf many = { 0 };
    assert_ok(buf_add_string(&many, LAYERS20 "pipeline_layers: 20"));
    for (int i = 0; i < 1024; i++) {
        assert_ok(buf_add_string(&many, ",0"));
    }
    says(many.data, "pipeline_layers: more than 1024 stages");
    buf_release(&many);
    says(LAYERS20 "decoder_last_pipeline_num_layers: 1\npp: 1\n",
         "decoder_last_pipeline_num_layers 1: stages are given as a list here\nhint: write pipeline_layers");
}

static void chunks_make_an_interleaved_pipeline(void **state)
{
    (void)state;
    static const char *const same[] = { "virtual_pipeline_size: 5", "virtual_pipeline_model_parallel_size: 5",
                                        "num_virtual_stages_per_pipeline_rank: 5",
                                        "num_layers_per_virtual_pipeline_stage: 2",
                                        "virtual_pipeline_size: 5\npipeline_schedule: interleaved" };
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "%s%s\n", LAYERS20 "pp: 2\n", same[i]);
        struct loaded l = load_for(2, text);
        struct pipe p = conf_pipe(&l.c);
        assert_int_equal(p.schedule, PIPE_INTERLEAVED);
        assert_int_equal(p.chunks, 5);
        assert_true(pipe_fits(&p));
        release(&l);
    }
    says_world(2, LAYERS20 "pp: 2\npipeline_schedule: zigzag\n",
               "expected gpipe, 1f1b or interleaved, got the text \"zigzag\"");
    says_world(2, LAYERS20 "pp: 2\npipeline_schedule: interleaved\n",
               "pipeline_schedule interleaved needs virtual_pipeline_size 2 or more, got 1");
    says_world(2, LAYERS20 "pp: 2\npipeline_schedule: gpipe\nvirtual_pipeline_size: 2\n",
               "virtual_pipeline_size 2 needs pipeline_schedule interleaved");
    says_world(
        2, LAYERS20 "virtual_pipeline_size: 2\n",
        "an interleaved pipeline needs pp 2 or more: with pp 1 there is nothing to interleave\n"
        "hint: write virtual_pipeline_size 1 and pipeline_schedule 1f1b, or nearest for 2 ranks: tp 1 pp 2 cp 1 dp 1");
    says_world(
        16, LAYERS80 "pp: 16\nnum_layers_per_virtual_pipeline_stage: 2\n",
        "80 layers / (pp 16 x num_layers_per_virtual_pipeline_stage 2) is no whole number of chunks: 16 layers would "
        "be lost\nhint: write virtual_pipeline_size 3 instead: stages need not be equal, or nearest for 16 ranks: tp 1 "
        "pp 8 cp 1 dp 2");
    says_world(2, LAYERS20 "pp: 2\nvirtual_pipeline_size: 5\nnum_layers_per_virtual_pipeline_stage: 2\n",
               "says again what virtual_pipeline_size or pipeline_layers says");
}

static void what_has_no_effect_is_said(void **state)
{
    (void)state;
    says(SMALL "sequence_parallel: true\n", "warning: sequence_parallel has no effect with tp 1");
    says(SMALL "pipeline_schedule: gpipe\n", "warning: pipeline_schedule gpipe is of no use with pp 1");
    accepts_world(2, SMALL "sequence_parallel: true\ntp: 2\n");
    accepts_world(2, SMALL "pipeline_schedule: gpipe\npp: 2\n");
    says_world(3, SMALL "global_batch_size: 2\n",
               "warning: dp 3 is above global_batch_size 2: 1 of 3 groups of ranks hold no sequence");
    says_world(4, SMALL "global_batch_size: 8\nmicro_batch_size: 4\n",
               "warning: micro_batch_size 4 is above the 2 sequences that a rank holds (global_batch_size 8 / dp 4)");
}

/* ---- batch ---- */

static void one_or_two_batch_numbers_give_the_rest(void **state)
{
    (void)state;
    static const struct {
        uint32_t dp;
        const char *text;
        uint64_t global, micro, steps;
    } cases[] = {
        { 1, "", 8, 8, 1 },
        { 1, "global_batch_size: 12\n", 12, 6, 2 },
        { 1, "global_batch_size: 13\n", 13, 7, 2 },
        { 1, "micro_batch_size: 4\n", 4, 4, 1 },
        { 1, "gradient_accumulation_steps: 4\n", 4, 1, 4 },
        { 1, "micro_batch_size: 4\ngradient_accumulation_steps: 3\n", 12, 4, 3 },
        { 1, "global_batch_size: 12\ngradient_accumulation_steps: 3\n", 12, 4, 3 },
        { 1, "global_batch_size: 12\nmicro_batch_size: 2\n", 12, 2, 6 },
        { 1, "global_batch_size: 10\nmicro_batch_size: 4\n", 10, 4, 3 },
        { 1, "global_batch_size: 10\ngradient_accumulation_steps: 3\n", 10, 4, 3 },
        { 4, "", 8, 2, 1 },
        { 3, "global_batch_size: 8\n", 8, 3, 1 },
        { 4, "global_batch_size: 8\nmicro_batch_size: 2\ngradient_accumulation_steps: 1\n", 8, 2, 1 },
        { 7, "global_batch_size: 256\nmicro_batch_size: 2\n", 256, 2, 19 },
        { 7, "global_batch_size: 256\ngradient_accumulation_steps: 19\n", 256, 2, 19 },
        { 5, "micro_batch_size: 4\n", 20, 4, 1 },
        { 5, "micro_batch_size: 4\ngradient_accumulation_steps: 3\n", 60, 4, 3 },
        { 5, "gradient_accumulation_steps: 3\n", 15, 1, 3 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "%s%s", SMALL, cases[i].text);
        struct loaded l = load_for(cases[i].dp, text);
        if (l.c.global_batch_size != cases[i].global || l.c.micro_batch_size != cases[i].micro ||
            l.c.gradient_accumulation_steps != cases[i].steps || l.f.count != 0) {
            fail_msg("dp %u %s: %llu %llu %llu %s", cases[i].dp, cases[i].text,
                     (unsigned long long)l.c.global_batch_size, (unsigned long long)l.c.micro_batch_size,
                     (unsigned long long)l.c.gradient_accumulation_steps, l.text.data);
        }
        release(&l);
    }
}

static void three_batch_numbers_must_agree(void **state)
{
    (void)state;
    const char *i01 = SMALL "train_batch_size: 8\ntrain_micro_batch_size_per_gpu: 2\ngradient_accumulation_steps: 1\n";
    accepts_world(4, i01);
    says(i01, "global_batch_size 8 != micro_batch_size 2 x gradient_accumulation_steps 1 x dp 1 (= 2), where dp is 1 "
              "rank / (tp "
              "1 x pp 1 x cp 1)\nhint: write gradient_accumulation_steps 4, or global_batch_size 2, or "
              "micro_batch_size 8, or "
              "start 4 ranks (mpirun -n 4) for dp 4 with gradient_accumulation_steps 1");
    says_world(
        7, SMALL "global_batch_size: 256\nmicro_batch_size: 2\ngradient_accumulation_steps: 18\n",
        "global_batch_size 256 != micro_batch_size 2 x gradient_accumulation_steps 18 x dp 7 (= 252), where dp is 7 "
        "ranks "
        "/ (tp 1 x pp 1 x cp 1)\nhint: remove gradient_accumulation_steps (it is then 19: ranks need not hold equal "
        "numbers), or write global_batch_size 252 with gradient_accumulation_steps 18, or 266 with 19, or start 4 "
        "ranks (mpirun -n 4) for dp 4 with gradient_accumulation_steps 32, or start 8 ranks (mpirun -n 8) for dp 8 "
        "with "
        "gradient_accumulation_steps 16");
    says_world(
        4, SMALL "tp: 2\nglobal_batch_size: 8\nmicro_batch_size: 2\ngradient_accumulation_steps: 1\n",
        "x dp 2 (= 4), where dp is 4 ranks / (tp 2 x pp 1 x cp 1)\nhint: write gradient_accumulation_steps 2, or "
        "global_batch_size 4, or micro_batch_size 4, or start 8 ranks");
    says(SMALL "global_batch_size: 5\nmicro_batch_size: 8\ngradient_accumulation_steps: 1\n",
         "hint: remove gradient_accumulation_steps (it is then 1: ranks need not hold equal numbers), or 8 with 1");
}

static void impossible_batches_are_refused(void **state)
{
    (void)state;
    says_world(2, SMALL "global_batch_size: 10\ngradient_accumulation_steps: 4\n",
               "gradient_accumulation_steps 4: a rank's 5 sequences (global_batch_size 10 / dp 2) cannot be 4 "
               "micro-batches of "
               "one size with a last one that is smaller or equal\nhint: write gradient_accumulation_steps 3, or 5");
    says(SMALL "global_batch_size: 3\ngradient_accumulation_steps: 4\n", "hint: write gradient_accumulation_steps 3");
    says(SMALL "micro_batch_size: 4294967296\ngradient_accumulation_steps: 4294967296\n", "is above 2^32 sequences");
    says_world(2, SMALL "micro_batch_size: 4294967296\n", "x dp 2 is above 2^32 sequences");
    says(SMALL "micro_batch_size: 2.0\nglobal_batch_size: 9\ngradient_accumulation_steps: 4\n", "(write 2)");
}

/* ---- any of it at once ---- */

static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 33) % below;
}

/* Random keys with random values: each is refused, or means a layout that can be. */
static void what_is_accepted_can_be(void **state)
{
    (void)state;
    static const char *const keys[] = { "tp",
                                        "pp",
                                        "cp",
                                        "dp",
                                        "virtual_pipeline_size",
                                        "num_layers_per_virtual_pipeline_stage",
                                        "global_batch_size",
                                        "micro_batch_size",
                                        "gradient_accumulation_steps",
                                        "grad_unit",
                                        "seq_length",
                                        "tp_grain",
                                        "world_size",
                                        "zero_stage" };
    static const char *const values[] = { "0", "1", "1",  "1",  "2",  "2",   "2",          "3",    "4",
                                          "5", "8", "12", "16", "64", "128", "4294967296", "null", "x" };
    static const char *const layers[] = { "null", "2", "1,1", "6,6", "12", "3,3,3,3", "12,0", "5,7,0" };
    static const char *const schedules[] = { "null", "gpipe", "1f1b", "interleaved" };
    uint64_t seed = 1;
    int accepted = 0;
    for (int i = 0; i < 20000; i++) {
        char *argv[64] = { "--model.model_type",  "gpt2", "--model.n_layer",    draw(&seed, 2) == 0 ? "2" : "12",
                           "--model.n_embd",      "64",   "--model.n_head",     draw(&seed, 2) == 0 ? "4" : "8",
                           "--model.n_positions", "256",  "--model.vocab_size", "500",
                           "--data_path",         "d",    "--max_steps",        "9" };
        char names[8][64];
        int argc = 16;
        uint64_t picked = 0, count = draw(&seed, 6);
        for (uint64_t k = 0; k < count; k++) {
            uint64_t key = draw(&seed, sizeof(keys) / sizeof(keys[0]));
            if ((picked >> key & 1) == 0) {
                snprintf(names[k], sizeof(names[k]), "--%s=%s", keys[key],
                         values[draw(&seed, sizeof(values) / sizeof(values[0]))]);
                argv[argc++] = names[k];
            }
            picked |= (uint64_t)1 << key;
        }
        snprintf(names[6], sizeof(names[6]), "--pipeline_layers=%s", layers[draw(&seed, 4) == 0 ? draw(&seed, 8) : 0]);
        snprintf(names[7], sizeof(names[7]), "--pipeline_schedule=%s", schedules[draw(&seed, 4)]);
        argv[argc++] = names[6];
        argv[argc++] = names[7];
        struct conf c;
        struct findings f = { 0 };
        uint32_t world = (uint32_t)(1 + draw(&seed, 16));
        enum err err = conf_load(&c, NULL, argc, argv, world, &f);
        if (err == OK) {
            struct layout l = conf_layout(&c);
            struct pipe p = conf_pipe(&c);
            uint64_t share = (c.global_batch_size + c.dp - 1) / c.dp;
            accepted++;
            assert_int_equal(layout_world(&l), world);
            assert_true(pipe_fits(&p));
            assert_true(context_fits(c.seq_length, c.grad_unit, l.cp));
            assert_true(c.tp_grain % c.tp == 0);
            assert_true(c.pipe_chunk_layers == 0 || c.pp * c.pipe_chunks * c.pipe_chunk_layers == c.model.layers);
            assert_int_equal((share + c.micro_batch_size - 1) / c.micro_batch_size, c.gradient_accumulation_steps);
        } else {
            assert_int_equal(err, ERR_USAGE);
            assert_true(f.errors > 0);
        }
        conf_release(&c);
        findings_release(&f);
    }
    assert_in_range(accepted, 500, 19000); /* both verdicts were seen often */
}

/* ---- saving ---- */

static void a_saved_configuration_is_good_for_other_numbers_of_ranks(void **state)
{
    (void)state;
    static const struct {
        uint32_t world;
        const char *text;
        const char *there; /* a line of the saved file */
    } cases[] = {
        { 4, SMALL, "\n# dp: 4  # derived\n" },
        { 4, SMALL "global_batch_size: 12\n", "\n# micro_batch_size: 3  # derived\n" },
        { 4, SMALL "micro_batch_size: 2\ngradient_accumulation_steps: 3\n", "\nglobal_batch_size: 24  # derived\n" },
        { 4, SMALL "gradient_accumulation_steps: 3\n", "\n# gradient_accumulation_steps: 3\n" },
        { 4, SMALL "global_batch_size: 10\ngradient_accumulation_steps: 3\n", "\nmicro_batch_size: 1  # derived\n" },
        { 2, LAYERS20 "pp: 2\nvirtual_pipeline_size: 5\nglobal_batch_size: 7\n", "\n# pipeline_schedule: interleaved" },
        { 2, LAYERS20 "pp: 2\nnum_layers_per_virtual_pipeline_stage: 5\n",
          "\n# virtual_pipeline_size: 2  # derived\n" },
        { 2, LAYERS20 "pp: 2\npipeline_layers: [7, 13]\nzero_stage: 3\ndistributed_timeout: 2.5\n",
          "\npipeline_layers: 7,13\n" },
        { 4, LAYERS20 "pp: 2\ntp: 2\nsequence_parallel: true\npipeline_schedule: gpipe\n",
          "\npipeline_schedule: gpipe\n" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct loaded first = load_for(cases[i].world, cases[i].text);
        struct buf saved = { 0 };
        char digest[33], again[33];
        assert_ok(conf_save(&first.c, &saved));
        if (strstr(saved.data, cases[i].there) == NULL) {
            fail_msg("no \"%s\" in\n%s", cases[i].there, saved.data);
        }
        struct loaded second = load_for(cases[i].world, saved.data);
        char *argv[] = { "--tp",
                         "1",
                         "--pp",
                         "1",
                         "--virtual_pipeline_size",
                         "1",
                         "--num_layers_per_virtual_pipeline_stage",
                         "null",
                         "--pipeline_layers",
                         "null" };
        struct loaded other = load_world(saved.data, saved.bytes, 10, argv, 3);
        if (other.f.errors != 0) {
            fail_msg("%s\n%s", saved.data, other.text.data);
        }
        for (size_t k = 0; k < conf_key_count; k++) {
            struct buf a = { 0 }, b = { 0 };
            if (conf_keys[k].type != KEY_MODEL) {
                assert_ok(conf_write_value(&first.c, &conf_keys[k], &a));
                assert_ok(conf_write_value(&second.c, &conf_keys[k], &b));
                assert_string_equal(a.data, b.data);
            }
            buf_release(&a);
            buf_release(&b);
        }
        conf_digest(&first.c, digest);
        conf_digest(&second.c, again);
        assert_string_equal(digest, again);
        conf_digest(&other.c, again);
        assert_string_equal(digest, again);
        assert_int_equal(other.c.dp, 3);
        assert_int_equal(other.c.global_batch_size, first.c.global_batch_size);
        buf_release(&saved);
        release(&first);
        release(&second);
        release(&other);
    }
}

static void no_key_of_the_layout_is_in_the_digest(void **state)
{
    (void)state;
    static const struct {
        uint32_t world;
        const char *text;
    } same[] = {
        { 8, "tp: 2\npp: 2\n" },
        { 2, "cp: 1\nzero_stage: 2\n" },
        { 5, "micro_batch_size: 1\n" },
        { 2, "pp: 2\npipeline_layers: 10,10\npipeline_schedule: gpipe\n" },
        { 2, "pp: 2\nvirtual_pipeline_size: 2\ndistributed_timeout: 3\nthreads: 2\n" },
        { 2, "tp: 2\nsequence_parallel: true\nworld_size: 2\ndp: 1\n" },
    };
    struct loaded l = load_for(1, LAYERS20 "global_batch_size: 8\n");
    char base[33], hex[33];
    conf_digest(&l.c, base);
    release(&l);
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "%s%s", LAYERS20 "global_batch_size: 8\n", same[i].text);
        l = load_for(same[i].world, text);
        conf_digest(&l.c, hex);
        assert_string_equal(base, hex);
        release(&l);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_spelling_sets_its_field),
    cmocka_unit_test(zero_stages_by_their_other_names),
    cmocka_unit_test(ranks_compare_every_key),
    cmocka_unit_test(the_timeout_is_in_seconds),
    cmocka_unit_test(dp_is_what_the_other_axes_leave),
    cmocka_unit_test(a_number_of_ranks_that_does_not_fit_is_refused_with_the_nearest),
    cmocka_unit_test(nearest_layouts_are_accepted),
    cmocka_unit_test(tp_divides_tp_grain),
    cmocka_unit_test(rules_are_asked_again_when_the_model_is_known),
    cmocka_unit_test(cp_splits_whole_units),
    cmocka_unit_test(automatic_constants_do_not_follow_the_layout),
    cmocka_unit_test(layers_are_dealt_as_evenly_as_can_be),
    cmocka_unit_test(stages_without_a_layer_are_refused),
    cmocka_unit_test(pipeline_layers_account_for_every_layer),
    cmocka_unit_test(chunks_make_an_interleaved_pipeline),
    cmocka_unit_test(what_has_no_effect_is_said),
    cmocka_unit_test(one_or_two_batch_numbers_give_the_rest),
    cmocka_unit_test(three_batch_numbers_must_agree),
    cmocka_unit_test(impossible_batches_are_refused),
    cmocka_unit_test(what_is_accepted_can_be),
    cmocka_unit_test(a_saved_configuration_is_good_for_other_numbers_of_ranks),
    cmocka_unit_test(no_key_of_the_layout_is_in_the_digest),
};
TEST_MAIN(tests)
