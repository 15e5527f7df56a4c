/* Facts about config.json: what is used, refused and warned about, sizes, writing, and broken texts. */
#include "test.h"

#include "base/file.h"
#include "conf/model_conf.h"

#define GPT2_BODY                                                                                                      \
    "\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 64, \"n_head\": 4, \"n_positions\": 128, \"vocab_size\": "  \
    "500"
#define LLAMA_BODY                                                                                                     \
    "\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "            \
    "\"num_attention_heads\": 4, \"max_position_embeddings\": 128, \"vocab_size\": 500"
#define GPT2 "{" GPT2_BODY "}"
#define LLAMA "{" LLAMA_BODY "}"

static enum err parse(struct model_conf *m, struct findings *f, const char *text)
{
    return model_conf_parse(m, "config.json", text, strlen(text), f);
}

static void says(const char *text, const char *part)
{
    struct model_conf m;
    struct findings f = { 0 };
    enum err err = parse(&m, &f, text);
    if (f.count != 1 || strstr(f.list[0].text, part) == NULL || (err == OK) != (f.errors == 0)) {
        fail_msg("for %s expected one finding with \"%s\", got %zu: %s", text, part, f.count,
                 f.count > 0 ? f.list[0].text : "none");
    }
    findings_release(&f);
}

static struct model_conf accepted(const char *text)
{
    struct model_conf m;
    struct findings f = { 0 };
    if (parse(&m, &f, text) != OK || f.count != 0) {
        fail_msg("for %s expected nothing, got %s", text, f.count > 0 ? f.list[0].text : err_message());
    }
    return m;
}

static void gpt2_fields_and_defaults(void **state)
{
    (void)state;
    struct model_conf m = accepted(GPT2);
    assert_int_equal(m.family, FAMILY_GPT2);
    assert_int_equal(m.layers, 2);
    assert_int_equal(m.ffn, 256);
    assert_int_equal(m.kv_heads, 4);
    assert_int_equal(m.head_dim, 16);
    assert_true(m.tied && m.norm_eps == 1e-5 && m.initializer_range == 0.02 && m.bos_token_id == -1);
    m = accepted(
        "{" GPT2_BODY ", \"n_inner\": 100, \"tie_word_embeddings\": false, \"layer_norm_epsilon\": 1e-6, "
        "\"activation_function\": \"gelu_pytorch_tanh\", \"resid_pdrop\": 0.0, \"eos_token_id\": 7, \"hidden_size\": "
        "64, \"task_specific_params\": {\"a\": [1]}, \"n_ctx\": 128, \"summary_type\": \"x\"}");
    assert_int_equal(m.ffn, 100);
    assert_int_equal(m.eos_token_id, 7);
    assert_true(!m.tied && m.norm_eps == 1e-6);
    m = accepted("{" GPT2_BODY ", \"n_inner\": null}");
    assert_int_equal(m.ffn, 256);
}

static void gpt2_dropout(void **state)
{
    (void)state;
    struct model_conf m = accepted(GPT2);
    assert_true(m.resid_dropout == 0 && m.embd_dropout == 0);
    m = accepted("{" GPT2_BODY ", \"resid_pdrop\": 0.1, \"embd_pdrop\": 0.25, \"attn_pdrop\": 0}");
    assert_true(m.resid_dropout == 0.1 && m.embd_dropout == 0.25);
    m = accepted("{" GPT2_BODY ", \"resid_pdrop\": null, \"embd_pdrop\": 0}");
    assert_true(m.resid_dropout == 0 && m.embd_dropout == 0);
    says("{" GPT2_BODY ", \"resid_pdrop\": 1}", "model.resid_pdrop: expected a number from 0 and below 1, got 1");
    says("{" GPT2_BODY ", \"embd_pdrop\": -0.1}", "model.embd_pdrop: expected a number from 0 and below 1, got -0.1");
    says("{" GPT2_BODY ", \"embd_pdrop\": \"0.1\"}", "got the string \"0.1\" (remove the quotes)");
}

static void llama_fields_and_defaults(void **state)
{
    (void)state;
    struct model_conf m = accepted(LLAMA);
    assert_int_equal(m.family, FAMILY_LLAMA);
    assert_int_equal(m.kv_heads, 4);
    assert_int_equal(m.head_dim, 16);
    assert_true(!m.tied && m.norm_eps == 1e-6 && m.rope.theta == 10000);
    m = accepted("{" LLAMA_BODY ", \"num_key_value_heads\": 2, \"head_dim\": 32, \"rope_theta\": 500000.0, "
                 "\"rope_scaling\": null, \"attention_bias\": false, \"pretraining_tp\": 1, \"hidden_act\": \"silu\"}");
    assert_int_equal(m.kv_heads, 2);
    assert_int_equal(m.head_dim, 32);
    assert_true(m.rope.theta == 500000);
    m = accepted("{" LLAMA_BODY ", \"rope_parameters\": {\"rope_theta\": 20000.0, \"rope_type\": \"default\"}}");
    assert_true(m.rope.theta == 20000);
}

static void what_would_change_the_arithmetic_is_refused(void **state)
{
    (void)state;
    says("{" GPT2_BODY ", \"attn_pdrop\": 0.1}",
         "model.attn_pdrop 0.1: attention dropout is not supported\nhint: set it to 0.0");
    says("{" GPT2_BODY ", \"activation_function\": \"relu\"}", "gpt2 here has GELU");
    says("{" GPT2_BODY ", \"scale_attn_weights\": false}", "model.scale_attn_weights false");
    says("{" GPT2_BODY ", \"reorder_and_upcast_attn\": true}", "model.reorder_and_upcast_attn true");
    says("{" GPT2_BODY ", \"hidden_size\": 128}",
         "hidden_size: the whole number 128 here, but n_embd is the whole number 64");
    says("{" LLAMA_BODY ", \"hidden_act\": \"gelu\"}", "this family here has SiLU");
    says("{" LLAMA_BODY ", \"attention_dropout\": 0.1}", "attention dropout is not supported");
    says("{" LLAMA_BODY ", \"resid_pdrop\": 0.1}", "\"resid_pdrop\" is no field of llama here");
    says("{" LLAMA_BODY ", \"rope_scaling\": {\"factor\": 2.0, \"type\": \"ntk\"}}",
         "rope_type \"ntk\": this version has");
    says("{" LLAMA_BODY ", \"rope_scaling\": 42}", "expected a mapping or null, got the whole number 42");
    says("{" LLAMA_BODY ", \"rope_scaling\": {\"factor\": 2.0}}",
         "rope_scaling.\"factor\": rope_type default has no such key");
    says("{" LLAMA_BODY ", \"rope_theta\": 1.0, \"rope_parameters\": {\"rope_theta\": 2.0}}", "keep one of the two");
    says("{" LLAMA_BODY ", \"rope_theta\": 0}", "expected a number above 0");
    says("{" LLAMA_BODY ", \"rope_theta\": 1e400}", "too large");
    says("{" LLAMA_BODY ", \"rms_norm_eps\": \"1e-6\"}", "remove the quotes");
    says("{" LLAMA_BODY ", \"quantization\": {\"bits\": 4}}", "quantised");
    says("{" LLAMA_BODY ", \"num_kv_heads\": 2}", "is no field of llama here");
    says("{" LLAMA_BODY ", \"rms_norm_epz\": 1}", "did you mean rms_norm_eps?");
    says("{" LLAMA_BODY ", \"vocab_size\": 3}", "duplicate key");
}

static void sizes_are_checked(void **state)
{
    (void)state;
#define SIZED(hidden, heads, more)                                                                                     \
    "{\"model_type\": \"llama\", \"hidden_size\": " hidden ", \"intermediate_size\": 96, \"num_hidden_layers\": 3, "   \
    "\"num_attention_heads\": " heads ", \"max_position_embeddings\": 128, \"vocab_size\": 500" more "}"
    says(SIZED("64", "3", ""), "the width 64 is not a multiple of the 3 heads");
    says(SIZED("64", "4", ", \"num_key_value_heads\": 3"), "4 heads are not a multiple of 3 key/value heads");
    says(SIZED("64", "4", ", \"num_key_value_heads\": 0"), "expected a whole number from 1");
    says(SIZED("64", "16", ""), "heads of 4 numbers");
    says(SIZED("512", "1", ""), "heads of 512 numbers");
    says(SIZED("64", "4", ", \"head_dim\": 12"), "heads of 12 numbers");
    says(SIZED("-64", "4", ""), "it may not be negative");
    says(SIZED("0", "4", ""), "expected a whole number from 1");
    says(SIZED("18446744073709551615", "4", ""), "too many digits");
    says(SIZED("131072", "131072", ", \"head_dim\": 8"), "at most 131072 in all");
    says("{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 64, \"n_head\": 4, \"n_positions\": 128}",
         "model: vocab_size is not given");
    says("{\"model_type\": \"gpt2\", \"n_layer\": 4096, \"n_embd\": 131072, \"n_head\": 1024, \"n_positions\": 128, "
         "\"vocab_size\": 500, \"n_inner\": 1048576}",
         "at most 2^48");
}

static void code_in_a_config_is_a_warning_and_never_run(void **state)
{
    (void)state;
    says("{" LLAMA_BODY ", \"auto_map\": {\"AutoModel\": \"x.Y\"}}", "warning: model.auto_map is not acted upon");
    says("{" LLAMA_BODY ", \"_attn_implementation_internal\": \"evil/repo\"}", "warning: ");
    says("{" LLAMA_BODY ", \"trust_remote_code\": true}", "warning: ");
}

static void token_ids(void **state)
{
    (void)state;
    says("{" LLAMA_BODY ", \"eos_token_id\": [7, 8]}",
         "warning: model.eos_token_id: of 2 tokens the first, 7, is kept");
    says("{" LLAMA_BODY ", \"eos_token_id\": 50256}", "warning: model.eos_token_id 50256 is not in the vocabulary");
    assert_int_equal(accepted("{" LLAMA_BODY ", \"eos_token_id\": null}").eos_token_id, -1);
    assert_int_equal(accepted("{" LLAMA_BODY ", \"eos_token_id\": [499]}").eos_token_id, 499);
}

static void other_architectures_are_refused_by_name(void **state)
{
    (void)state;
    says("{\"model_type\": \"qwen3_moe\", \"anything\": 1}",
         "model.model_type \"qwen3_moe\": this version has gpt2, llama");
    says("{\"model_type\": \"gemma3\", \"text_config\": {}}", "take text_config as the whole");
    says("{\"model_type\": 42}", "model.model_type 42");
    says("{}", "model_type is not given");
    says("[1, 2]", "expected a mapping of fields, got a list");
    says("", "expected a mapping of fields, got nothing");
    says("{", "not valid YAML");
}

static void parameters_are_counted_as_others_count_them(void **state)
{
    (void)state;
    struct model_conf gpt2 = accepted("{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_embd\": 768, \"n_head\": 12, "
                                      "\"n_positions\": 1024, \"vocab_size\": 50257}");
    assert_int_equal(model_conf_parameters(&gpt2), 124439808);
    struct model_conf llama = accepted(
        "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 16, "
        "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"max_position_embeddings\": 131072, \"vocab_size\": "
        "128256, \"tie_word_embeddings\": true}");
    assert_int_equal(model_conf_parameters(&llama), 1235814400);
}

static void written_models_read_back(void **state)
{
    (void)state;
    static const char *const texts[] = { GPT2, LLAMA, "{" GPT2_BODY ", \"resid_pdrop\": 0.125, \"embd_pdrop\": 0.1}",
                                         "{" LLAMA_BODY ", \"rope_theta\": 123456.75, \"rms_norm_eps\": 1e-7, "
                                         "\"num_key_value_heads\": 1, \"head_dim\": 8, \"eos_token_id\": 2}" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct model_conf m = accepted(texts[i]);
        struct buf out = { 0 };
        assert_ok(model_conf_write(&m, &out));
        struct model_conf again = accepted(out.data);
        assert_memory_equal(&m, &again, sizeof(m));
        buf_release(&out);
    }
}

/* Every text cut at every byte, and with every byte changed, gets a verdict and no crash. */
static void broken_texts_get_a_verdict(void **state)
{
    (void)state;
    char text[] = "{" LLAMA_BODY
                  ", \"rope_parameters\": {\"rope_theta\": 1e4, \"rope_type\": \"default\"}, \"eos_token_id\": [1, 2]}";
    static const char bytes[] = "\0\t\n\"{}[]:,&*!#-x9\x80\xff";
    for (size_t i = 0; i < sizeof(text); i++) {
        struct model_conf m;
        struct findings f = { 0 };
        enum err err = model_conf_parse(&m, "cut", text, i, &f);
        assert_true(err == OK || (err == ERR_USAGE && f.errors > 0));
        findings_release(&f);
        for (size_t b = 0; b < sizeof(bytes) && i + 1 < sizeof(text); b++) {
            char kept = text[i];
            text[i] = bytes[b];
            err = model_conf_parse(&m, "changed", text, sizeof(text) - 1, &f);
            assert_true(err == OK || (err == ERR_USAGE && f.errors > 0));
            findings_release(&f);
            text[i] = kept;
        }
    }
}

static void a_folder_without_config_is_an_error(void **state)
{
    (void)state;
    struct model_conf m;
    struct findings f = { 0 };
    assert_fails(ERR_IO, "no/such/folder/config.json", model_conf_read(&m, "no/such/folder", &f));
    findings_release(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gpt2_fields_and_defaults),
    cmocka_unit_test(gpt2_dropout),
    cmocka_unit_test(llama_fields_and_defaults),
    cmocka_unit_test(what_would_change_the_arithmetic_is_refused),
    cmocka_unit_test(sizes_are_checked),
    cmocka_unit_test(code_in_a_config_is_a_warning_and_never_run),
    cmocka_unit_test(token_ids),
    cmocka_unit_test(other_architectures_are_refused_by_name),
    cmocka_unit_test(parameters_are_counted_as_others_count_them),
    cmocka_unit_test(written_models_read_back),
    cmocka_unit_test(broken_texts_get_a_verdict),
    cmocka_unit_test(a_folder_without_config_is_an_error),
};
TEST_MAIN(tests)
