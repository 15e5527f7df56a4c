/* Facts about config.json of every family: what transformers writes means here what it means there (sizes, rotary
 * frequencies), what is written is read back, and what stands in a family's way. tests/golden/configs/ */
#include <dirent.h>
#include <math.h>

#include "test.h"

#include "base/file.h"
#include "conf/conf.h"
#include "conf/tokens.h"

static const char *const names[] = {
    "llama",           "llama_bias",     "llama_linear", "llama_dynamic", "llama_llama3", "llama_yarn",
    "llama_yarn_more", "llama_longrope", "mistral",      "mistral_none",  "qwen2",        "qwen2_window",
    "qwen3",           "gemma2",         "gemma3",       "phi3",          "phi3_long",    "phi3_part",
    "olmo2",           "smollm3",        "starcoder2",   "neox",          "neox_serial",
};
#define NAMES (sizeof(names) / sizeof(names[0]))

static void path_of(char path[256], const char *name, const char *end)
{
    snprintf(path, 256, GOLDEN_FOLDER "/configs/%s%s", name, end);
}

static struct model_conf config(const char *name)
{
    struct model_conf m;
    struct findings f = { 0 };
    struct buf text = { 0 };
    char path[256];
    path_of(path, name, ".json");
    assert_ok(file_read(path, (size_t)1 << 20, &text));
    if (model_conf_parse(&m, path, text.data, text.bytes, &f) != OK || f.count != 0) {
        fail_msg("%s: %s", path, f.count > 0 ? f.list[0].text : err_message());
    }
    buf_release(&text);
    return m;
}

static char *lines_of(const char *name)
{
    struct buf text = { 0 };
    char path[256];
    path_of(path, name, "");
    assert_ok(file_read(path, (size_t)1 << 20, &text));
    return text.data;
}

static void parameters_are_those_of_transformers(void **state)
{
    (void)state;
    char *text = lines_of("facts.txt"), *at = text, name[64];
    unsigned long long count;
    size_t seen = 0;
    for (int used; sscanf(at, "%63s %llu\n%n", name, &count, &used) == 2; at += used) {
        const struct model_conf m = config(name);
        assert_int_equal(model_conf_parameters(&m), count);
        seen++;
    }
    assert_int_equal(seen, NAMES);
    free(text);
}

static void frequencies_are_those_of_transformers(void **state)
{
    (void)state;
    char *text = lines_of("frequencies.txt"), *at = text, name[64];
    double want, scale, got[MODEL_HEAD_DIM_MAX / 2];
    unsigned long long length;
    size_t seen = 0;
    for (int used; sscanf(at, "%63s %llu %lf%n", name, &length, &want, &used) == 3;) {
        const struct model_conf m = config(name);
        model_conf_frequencies(&m, &m.rope, length, got, &scale);
        assert_true(fabs(scale - want) <= 1e-12 * want);
        at += used;
        for (uint64_t i = 0; i < m.rotary_dim / 2; i++) {
            assert_int_equal(sscanf(at, "%lf%n", &want, &used), 1);
            if (!(fabs(got[i] - want) <= 1e-11 * want)) {
                fail_msg("%s, %llu tokens, pair %llu: %.17g, transformers has %.17g", name, length,
                         (unsigned long long)i, got[i], want);
            }
            at += used;
        }
        seen++;
    }
    assert_int_equal(seen, 7 * 3);
    free(text);
}

/* What is special about each: the parts of struct model_conf that no number of parameters shows. */
static void fields_set_what_they_mean(void **state)
{
    (void)state;
    struct model_conf m = config("llama_bias");
    assert_true(m.qkv_bias && m.out_bias && m.mlp_bias && m.gated && m.norm == NORM_RMS);
    m = config("mistral");
    assert_true(m.window == 16 && model_conf_windowed(&m, 0) && model_conf_windowed(&m, 3));
    assert_true(config("mistral_none").window == 0 && config("qwen2").window == 0);
    m = config("qwen2_window");
    assert_true(m.window == 16 && !model_conf_windowed(&m, 1) && model_conf_windowed(&m, 2));
    assert_true(m.qkv_bias && !m.out_bias && !m.mlp_bias);
    m = config("qwen3");
    assert_true(m.head_dim == 32 && m.qk_norm == QK_NORM_HEAD && !m.qkv_bias && m.attention_scale == 1 / sqrt(32));
    m = config("gemma2");
    assert_true(m.norms == NORMS_BOTH && m.gain_offset && m.embed_scale == 8 && m.activation == ACTIVATION_GELU_TANH);
    assert_true(m.attention_scale == 1 / sqrt(24) && m.attention_cap == 50 && m.final_cap == 30 && m.tied);
    assert_true(m.window == 16 && model_conf_windowed(&m, 0) && !model_conf_windowed(&m, 1));
    m = config("gemma3");
    assert_true(m.has_local_rope && m.local_rope.theta == 1e4 && m.rope.theta == 1e6 && m.rope.kind == ROPE_LINEAR);
    assert_true(m.qk_norm == QK_NORM_HEAD && m.attention_cap == 0 && m.final_cap == 0);
    assert_true(model_conf_windowed(&m, 1) && !model_conf_windowed(&m, 2) && model_conf_windowed(&m, 3));
    m = config("phi3_part");
    assert_true(m.rotary_dim == 12 && m.rope.kind == ROPE_DEFAULT && m.norm_eps == 1e-5);
    m = config("phi3_long");
    assert_true(m.rope.original_positions == 32 && m.rope.factor == 4 && m.window == 64);
    m = config("olmo2");
    assert_true(m.norms == NORMS_AFTER && m.qk_norm == QK_NORM_ALL);
    m = config("smollm3");
    assert_true(model_conf_rotates(&m, 2) && !model_conf_rotates(&m, 3) && m.rope.theta == 2e6 && m.tied);
    m = config("starcoder2");
    assert_true(m.norm == NORM_LAYER && !m.gated && m.mlp_bias && m.window == 16 && model_conf_windowed(&m, 0));
    m = config("neox");
    assert_true(m.parallel_residual && m.rotary_dim == 8 && m.activation == ACTIVATION_GELU && m.kv_heads == 4);
    m = config("neox_serial");
    assert_true(!m.parallel_residual && m.activation == ACTIVATION_GELU_TANH && !m.qkv_bias && m.mlp_bias);
    assert_int_equal(m.rotary_dim, 4);
}

/* Every member that changes the arithmetic is in the digest, all others in the text. */
static void assert_same(const struct model_conf *a, const struct model_conf *b)
{
    static struct conf one, two;
    struct buf first = { 0 }, second = { 0 };
    char hex[2][33];
    one.model = *a;
    two.model = *b;
    conf_digest(&one, hex[0]);
    conf_digest(&two, hex[1]);
    assert_string_equal(hex[0], hex[1]);
    assert_ok(model_conf_write(a, &first));
    assert_ok(model_conf_write(b, &second));
    assert_string_equal(first.data, second.data);
    buf_release(&first);
    buf_release(&second);
}

static void written_models_read_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < NAMES; i++) {
        const struct model_conf m = config(names[i]);
        struct model_conf again;
        struct buf out = { 0 };
        struct findings f = { 0 };
        assert_ok(model_conf_write(&m, &out));
        if (model_conf_parse(&again, names[i], out.data, out.bytes, &f) != OK || f.count > 0) {
            fail_msg("%s: %s\n%s", names[i], f.count > 0 ? f.list[0].text : err_message(), out.data);
        }
        assert_same(&m, &again);
        buf_release(&out);
    }
}

/* Every share of a head that can be rotated is written so that it comes back. */
static void parts_of_heads_survive_writing(void **state)
{
    (void)state;
    for (uint64_t head = 8; head <= MODEL_HEAD_DIM_MAX; head += 8) {
        for (uint64_t rotated = 2; rotated <= head; rotated += 2) {
            struct model_conf m = config("neox"), again;
            struct buf out = { 0 };
            struct findings f = { 0 };
            m.head_dim = head;
            m.hidden = head * m.heads;
            m.attention_scale = 0;
            m.rotary_dim = rotated;
            model_conf_complete(&m);
            assert_ok(model_conf_write(&m, &out));
            assert_ok(model_conf_parse(&again, "neox", out.data, out.bytes, &f));
            assert_int_equal(again.rotary_dim, rotated);
            buf_release(&out);
        }
    }
}

/* The digest of a run names the model: no two of these have the same. */
static void digests_tell_models_apart(void **state)
{
    (void)state;
    char hex[NAMES][33];
    for (size_t i = 0; i < NAMES; i++) {
        struct conf c;
        struct findings f = { 0 };
        char path[256], flag[] = "--model", steps[] = "--max_steps=1", data[] = "--data_path=x",
                        ends[] = "--seq_length=8";
        path_of(path, names[i], ".json");
        char *arguments[] = { flag, path, steps, data, ends };
        if (conf_load(&c, NULL, 5, arguments, 1, &f) != OK) {
            fail_msg("%s: %s", names[i], f.count > 0 ? f.list[0].text : err_message());
        }
        conf_digest(&c, hex[i]);
        conf_release(&c);
        findings_release(&f);
        for (size_t j = 0; j < i; j++) {
            if (strcmp(hex[i], hex[j]) == 0) {
                fail_msg("%s and %s have one digest", names[i], names[j]);
            }
        }
    }
}

#define SIZES                                                                                                          \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "           \
    "\"num_key_value_heads\": 2, \"max_position_embeddings\": 128, \"vocab_size\": 300"
#define OF(family, more) "{\"model_type\": \"" family "\", " SIZES more "}"

static void refused(const char *text, const char *part)
{
    struct model_conf m;
    struct findings f = { 0 };
    enum err err = model_conf_parse(&m, "config.json", text, strlen(text), &f);
    if (err != ERR_USAGE || f.count != 1 || strstr(f.list[0].text, part) == NULL) {
        fail_msg("for %s expected one finding with \"%s\", got %zu: %s", text, part, f.count,
                 f.count > 0 ? f.list[0].text : "none");
    }
    findings_release(&f);
}

static void what_stands_in_the_way_is_named(void **state)
{
    (void)state;
    refused("{\"model_type\": \"mistral\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
            "\"num_attention_heads\": 4, \"max_position_embeddings\": 128, \"vocab_size\": 300}",
            "num_key_value_heads is not given");
    refused(OF("mistral", ", \"attention_bias\": true"), "attention of this family has no biases");
    refused(OF("llama", ", \"sliding_window\": 16"), "attention of this family sees all earlier tokens");
    refused(OF("llama", ", \"partial_rotary_factor\": 0.5"), "this family rotates whole heads");
    refused(OF("qwen2", ", \"use_sliding_window\": 1"), "expected true or false");
    refused(OF("qwen2", ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]"),
            "layers with sliding_attention, but use_sliding_window is not true");
    refused(OF("qwen2", ", \"layer_types\": [\"full_attention\"]"), "1 items for 2 layers");
    refused(OF("qwen3", ", \"layer_types\": [\"full_attention\", \"linear_attention\"]"),
            "\"linear_attention\" is no kind of layer of qwen3 here");
    refused(OF("qwen3", ", \"head_dim\": null"), "head_dim: expected a whole number");
    refused(OF("qwen3", ", \"num_experts\": 8"), "\"num_experts\" is no field of qwen3 here");
    refused(OF("gemma2", ", \"hidden_activation\": \"gelu\""), "this family here has the tanh form of GELU");
    refused(OF("gemma2", ", \"use_bidirectional_attention\": true"), "this version has decoders");
    refused(OF("gemma2", ", \"sliding_window\": null"), "sliding_window: expected a whole number");
    refused(OF("gemma3_text", ", \"attn_logit_softcapping\": 50.0"), "gemma3 does not cap scores");
    refused(OF("gemma3_text", ", \"rope_parameters\": {\"rope_theta\": 1e4}"),
            "a mapping for full_attention and one for sliding_attention were expected");
    refused(OF("phi3", ", \"embd_pdrop\": 0.1"), "dropout of this family is not in this version");
    refused(OF("phi3", ", \"partial_rotary_factor\": 0.7"), "is 11: an even number was expected");
    refused(OF("phi3", ", \"rope_scaling\": {\"type\": \"su\", \"long_factor\": [1, 2], \"short_factor\": [1, 2]}"),
            "2 long and 2 short factors: 8 of each were expected");
    refused(OF("olmo2", ", \"clip_qkv\": 8.0"), "\"clip_qkv\" is no field of olmo2 here");
    refused(OF("smollm3", ", \"no_rope_layers\": [1, 2]"), "expected a whole number from 0 to 1, got 2");
    refused(OF("starcoder2", ", \"norm_type\": \"rms_norm\""), "starcoder2 here has LayerNorm");
    refused(OF("starcoder2", ", \"norm_epsilon\": 1e-5, \"layer_norm_epsilon\": 1e-6"), "keep one of the two");
}

static void rotary_settings_are_checked(void **state)
{
    (void)state;
#define ROPE(text) OF("llama", ", \"rope_scaling\": {" text "}")
    refused(ROPE("\"rope_type\": \"linear\""), "factor is not given, and rope_type linear needs it");
    refused(ROPE("\"rope_type\": \"linear\", \"factor\": 0.5"), "a factor below 1");
    refused(ROPE("\"rope_type\": \"linear\", \"factor\": 2, \"beta_fast\": 32"), "rope_type linear has no such key");
    refused(ROPE("\"rope_type\": \"linear\", \"type\": \"yarn\", \"factor\": 2"), "keep one of the two");
    refused(ROPE("\"rope_type\": \"llama3\", \"factor\": 2, \"low_freq_factor\": 4, \"high_freq_factor\": 1"),
            "high_freq_factor must be above low_freq_factor");
    refused(ROPE("\"rope_type\": \"yarn\", \"factor\": \"4\""), "rope_scaling.factor: expected a number");
    refused(ROPE("\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 1, \"beta_slow\": 2"), "beta_fast");
    refused(ROPE("\"rope_type\": \"longrope\", \"short_factor\": [1]"), "long_factor is not given");
    refused(ROPE("\"rope_type\": \"longrope\", \"short_factor\": 1, \"long_factor\": [1, 1, 1, 1, 1, 1, 1, 1]"),
            "expected a list of numbers");
    refused(OF("llama", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": "
                        "{\"rope_theta\": 1e4}"),
            "says the same");
    refused(OF("llama", ", \"original_max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"llama3\", "
                        "\"factor\": 2, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
                        "\"original_max_position_embeddings\": 32}"),
            "keep one of the two");
}

/* Real configurations and crafted ones: each gets a verdict, and these parameters where it can be trained. */
static void real_configurations_get_a_verdict(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t parameters;
    } good[] = {
        { "ipex-gptneox.json", 324057088 },
        { "ipex-llama3.json", 1268789248 },
        { "ipex-mistral.json", 231741440 },
        { "ipex-qwen2.json", 1323056128 },
        { "ipex-qwen3.json", 171314432 },
        { "llama-3.2-1b.json", 1235814400 },
        { "llama-3.2-3b.json", 3212749824 },
        { "llama2-70b-habana.json", 68976648192 },
        { "phi-3-medium-4k.json", 13960238080 },
        { "phi-3-mini-128k.json", 3821079552 },
        { "phi-3-mini-4k.json", 3821079552 },
        { "qwen2-0_5b.json", 463987712 },
        { "qwen2-7b.json", 7615616512 },
        { "qwen3-0.6b.json", 596049920 },
        { "qwen3-4b.json", 4022468096 },
        { "gemma-2-9b.json", 9241705984 },
        { "smollm2-135m.json", 134515008 },
        { "tinyllama-1.1b.json", 1100048384 },
        { "qwen2.json", 630167424 },
    };
    static const char *const folders[] = { "hf", "hf-composed", "hf-edge" };
    size_t seen = 0, trainable = 0;
    for (size_t i = 0; i < 3; i++) {
        char folder[256], path[600];
        snprintf(folder, sizeof(folder), "../shared/assets/configs/%s", folders[i]);
        DIR *d = opendir(folder);
        if (d == NULL) {
            print_message("%s is not here: skipped\n", folder);
            skip();
        }
        for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
            struct model_conf m;
            struct findings f = { 0 };
            struct buf text = { 0 };
            if (e->d_name[0] == '.') {
                continue;
            }
            snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
            assert_ok(file_read(path, (size_t)8 << 20, &text));
            enum err err = model_conf_parse(&m, path, text.data, text.bytes, &f);
            assert_true(err == OK || (err == ERR_USAGE && f.errors > 0));
            size_t known = 0;
            while (known < sizeof(good) / sizeof(good[0]) && strcmp(good[known].name, e->d_name) != 0) {
                known++;
            }
            if ((known < sizeof(good) / sizeof(good[0])) != (err == OK)) {
                fail_msg("%s: %s", path, err == OK ? "can be trained" : f.list[0].text);
            }
            if (err == OK) {
                assert_int_equal(model_conf_parameters(&m), good[known].parameters);
                trainable++;
            }
            seen++;
            buf_release(&text);
            findings_release(&f);
        }
        closedir(d);
    }
    assert_true(seen > 90);
    assert_int_equal(trainable, sizeof(good) / sizeof(good[0]));
}

static void a_folder_whose_files_disagree_is_refused(void **state)
{
    (void)state;
    struct findings f = { 0 };
    struct buf table = { 0 };
    if (!file_exists("../shared/cases/I53/config.json")) {
        print_message("../shared/cases/I53 is not here: skipped\n");
        skip();
    }
    assert_ok(tokens_check("../shared/cases/I53", &f, &table));
    assert_int_equal(f.errors, 3); /* bos; eos; an end that is not below vocab_size */
    assert_non_null(strstr(table.data, "[2, 301]"));
    assert_non_null(strstr(table.data, "tokenizer 6 entries, config 300 rows: 294 rows are padding"));
    buf_release(&table);
    findings_release(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(real_configurations_get_a_verdict),
    cmocka_unit_test(a_folder_whose_files_disagree_is_refused),
    cmocka_unit_test(parameters_are_those_of_transformers),
    cmocka_unit_test(frequencies_are_those_of_transformers),
    cmocka_unit_test(fields_set_what_they_mean),
    cmocka_unit_test(written_models_read_back),
    cmocka_unit_test(parts_of_heads_survive_writing),
    cmocka_unit_test(digests_tell_models_apart),
    cmocka_unit_test(what_stands_in_the_way_is_named),
    cmocka_unit_test(rotary_settings_are_checked),
};
TEST_MAIN(tests)
