/* A model in GGUF: the maps of rows are inverses, what is written is read, a description that is not understood is
 * refused, values are narrowed as the format's reference does. */
#include <unistd.h>

#include "ckpt/convert.h"
#include "ckpt/gguf_conf.h"
#include "ckpt/gguf_tokenizer.h"
#include "data/spm_file.h"
#include "gguf_bytes.h"
#include "scratch_path.h"

/* ---- names and rows ---- */

static struct model_conf tiny(enum family family)
{
    return (struct model_conf){
        .family = family, .layers = 8, .hidden = 48, .heads = 6, .kv_heads = family == FAMILY_NEOX ? 6 : 2,
        .head_dim = 8, .ffn = 64, .vocab = 100, .positions = 32, .norm_eps = 1e-5, .rotary_dim = 8,
        .rope = { .theta = 10000, .factor = 1, .attention_factor = 1 }, .attention_scale = 0.35355339059327379,
        .norm = NORM_RMS, .qkv_bias = family == FAMILY_NEOX || family == FAMILY_QWEN2,
    };
}

static void rows_are_permuted_both_ways(void **state)
{
    (void)state;
    for (enum family family = 0; family < FAMILY_COUNT; family++) {
        struct model_conf c = tiny(family);
        struct gguf_map *list;
        size_t count, moved = 0;
        assert_ok(gguf_arch_list(gguf_arch_of(family), &c, &list, &count));
        assert_true(count > c.layers * 6);
        for (size_t i = 0; i < count; i++) {
            for (uint64_t row = 0; list[i].layout != LAYOUT_TRANSPOSED && row < list[i].shape[0]; row++) {
                uint64_t hf = gguf_map_hf_row(&list[i], row);
                assert_true(hf < list[i].shape[0]);
                assert_int_equal(gguf_map_gguf_row(&list[i], hf), row);
                moved += hf != row;
            }
        }
        bool moves = gguf_arch_of(family)->rotates_pairs || family == FAMILY_NEOX;
        assert_int_equal(moved > 0, moves);
        free(list);
    }
}

static void rows_of_a_head_alternate_halves(void **state)
{
    (void)state;
    const struct gguf_map pairs = { .shape = { 16, 1 }, .layout = LAYOUT_PAIRS, .heads = 2 };
    static const uint64_t expected[16] = { 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15 };
    const struct gguf_map fused = { .shape = { 12, 1 }, .layout = LAYOUT_FUSED, .heads = 2 };
    static const uint64_t by_head[12] = { 0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11 };
    for (uint64_t i = 0; i < 16; i++) {
        assert_int_equal(gguf_map_hf_row(&pairs, i), expected[i]);
    }
    for (uint64_t i = 0; i < 12; i++) {
        assert_int_equal(gguf_map_hf_row(&fused, i), by_head[i]);
    }
}

/* ---- values ---- */

/* Write 64 values as `type`, read the bytes back. */
static enum err write_values(const char *type, const float *values, unsigned char *bytes)
{
    struct gguf_out o = { .out = { .fd = -1 } };
    struct gguf_file f = { .fd = -1 };
    const uint64_t shape[2] = { 32, 2 };
    unlink(path);
    enum err err;
    TRY_OUT(gguf_out_u32(&o, "general.alignment", 32));
    TRY_OUT(gguf_out_tensor(&o, "t", gguf_type_named(type), 2, shape));
    TRY_OUT(gguf_out_begin(&o, path));
    TRY_OUT(gguf_out_add(&o, values, 32));
    TRY_OUT(gguf_out_add(&o, values + 32, 32));
    TRY_OUT(gguf_out_finish(&o));
    TRY_OUT(gguf_open(&f, path));
    assert_int_equal(f.tensors_count, 1);
    assert_int_equal(f.tensors[0].begin % 32, 0);
    TRY_OUT(gguf_bytes(&f, f.tensors[0].begin, bytes, f.tensors[0].bytes));
out:
    gguf_out_release(&o);
    gguf_close(&f);
    return err;
}

static void values_are_narrowed(void **state)
{
    (void)state;
    float values[64] = { 127, -127, 0.5f, -0.5f, 1.49f, 2.5f, -2.5f, 0.499f };
    unsigned char bytes[256];
    assert_ok(write_values("Q8_0", values, bytes));
    static const unsigned char expected[10] = { 0x00, 0x3c, 127, 0x81, 1, 0xff, 1, 3, 0xfd, 0 }; /* scale 1 */
    assert_memory_equal(bytes, expected, sizeof(expected));
    for (int i = 34; i < 68; i++) {
        assert_int_equal(bytes[i], 0); /* a block of zeros */
    }
    values[40] = 1.0f / 0.0f;
    assert_fails(ERR_DATA, "t: element 40 is inf", write_values("Q8_0", values, bytes));
    assert_ok(write_values("F16", values, bytes)); /* it can hold that */
    assert_int_equal(bytes[80] | bytes[81] << 8, 0x7c00);
    values[40] = 65520;
    assert_fails(ERR_DATA, "t: element 40 is 65520, which F16 cannot hold", write_values("F16", values, bytes));
    assert_ok(write_values("BF16", values, bytes));
    assert_int_equal(bytes[80] | bytes[81] << 8, 0x4780);
    values[40] = 9e6f;
    assert_fails(ERR_DATA, "cannot hold", write_values("Q8_0", values, bytes)); /* its scale is above 65504 */
    values[40] = 0;
    assert_ok(write_values("F32", values, bytes));
    assert_memory_equal(bytes, values, sizeof(values));
    assert_int_equal(access(path, F_OK), 0);
    struct gguf_out o = { .out = { .fd = -1 } };
    assert_fails(ERR_USAGE, "exists already", gguf_out_begin(&o, path));
    gguf_out_release(&o);
}

/* ---- descriptions ---- */

struct key {
    const char *name;
    enum gguf_kind kind;
    uint32_t value; /* bits; of a string: none */
    const char *text;
};

#define BASE_KEYS                                                                                                      \
    { "general.architecture", GGUF_STRING, 0, "llama" }, { "llama.block_count", GGUF_U32, 1, NULL },                   \
        { "llama.context_length", GGUF_U32, 64, NULL }, { "llama.embedding_length", GGUF_U32, 32, NULL },              \
        { "llama.feed_forward_length", GGUF_U32, 32, NULL }, { "llama.attention.head_count", GGUF_U32, 4, NULL },      \
        { "llama.attention.head_count_kv", GGUF_U32, 2, NULL },                                                        \
    {                                                                                                                  \
        "llama.attention.layer_norm_rms_epsilon", GGUF_F32, 0x3727c5acu, NULL                                          \
    }
#define BASE_COUNT 8u

/* The base with one key put in the place of `replaced` (BASE_COUNT: added; a key without a name: left out). */
static enum err read_with(size_t replaced, struct key extra, struct model_conf *c)
{
    static struct bytes b;
    struct key keys[BASE_COUNT + 1] = { BASE_KEYS };
    keys[replaced] = extra;
    size_t count = 0;
    for (size_t i = 0; i < BASE_COUNT + 1; i++) {
        count += keys[i].name != NULL;
    }
    put_start(&b, 3, 1, count);
    for (size_t i = 0; i < BASE_COUNT + 1; i++) {
        if (keys[i].name != NULL && keys[i].kind == GGUF_STRING) {
            put_text(&b, keys[i].name, keys[i].text);
        } else if (keys[i].name != NULL) {
            put_string(&b, keys[i].name);
            put32(&b, keys[i].kind);
            put(&b, &keys[i].value, keys[i].kind == GGUF_BOOL ? 1 : 4);
        }
    }
    put_tensor(&b, "token_embd.weight", 32, 10, 0, 0);
    put_fill(&b, 32);
    memset(b.data + b.count, 0, 1280);
    b.count += 1280;
    put_file(path, b.data, b.count);
    struct gguf_file f;
    const struct gguf_arch *a;
    enum err err = gguf_open(&f, path);
    if (err == OK) {
        err = gguf_conf_read(&f, &a, c);
        gguf_close(&f);
    }
    return err;
}

static void a_description_is_read(void **state)
{
    (void)state;
    struct model_conf c;
    assert_ok(read_with(BASE_COUNT, (struct key){ "llama.rope.freq_base", GGUF_F32, 0x47c35000u, NULL }, &c));
    assert_int_equal(c.family, FAMILY_LLAMA);
    assert_true(c.layers == 1 && c.hidden == 32 && c.heads == 4 && c.kv_heads == 2 && c.head_dim == 8 && c.ffn == 32);
    assert_true(c.vocab == 10 && c.positions == 64 && c.tied && c.norm_eps == 1e-5 && c.rope.theta == 1e5);
}

static void descriptions_are_judged(void **state)
{
    (void)state;
    static const struct { size_t place; struct key key; const char *rule; } cases[] = {
        { 0, { NULL, GGUF_U32, 0, NULL }, "general.architecture is missing" },
        { 0, { "general.architecture", GGUF_U32, 0, NULL }, "general.architecture is missing or no string" },
        { 0, { "general.architecture", GGUF_STRING, 0, "mamba" }, "\"mamba\" is not in this version" },
        { 0, { "general.architecture", GGUF_STRING, 0, "lla" }, "\"lla\" is not in this version" },
        { 1, { NULL, GGUF_U32, 0, NULL }, "llama.block_count is missing" },
        { 1, { "llama.block_count", GGUF_F32, 0, NULL }, "llama.block_count is float32, a whole number" },
        { 1, { "llama.block_count", GGUF_I32, UINT32_MAX, NULL }, "llama.block_count is int32" },
        { 1, { "llama.block_count", GGUF_U32, 0, NULL }, "num_hidden_layers" },
        { 1, { "llama.block_count", GGUF_U32, UINT32_MAX, NULL }, "num_hidden_layers" },
        { 2, { "llama.context_length", GGUF_STRING, 0, "64" }, "llama.context_length is string" },
        { 3, { "llama.embedding_length", GGUF_U32, 0, NULL }, "head_count 4, 1 to 0 were expected" },
        { 3, { "llama.embedding_length", GGUF_U32, UINT32_MAX, NULL }, "hidden_size" },
        { 4, { "llama.feed_forward_length", GGUF_U32, 0, NULL }, "intermediate_size" },
        { 5, { "llama.attention.head_count", GGUF_U32, 0, NULL }, "head_count 0" },
        { 5, { "llama.attention.head_count", GGUF_BOOL, 1, NULL }, "head_count is bool" },
        { 5, { "llama.attention.head_count", GGUF_U32, 3, NULL }, "heads" },
        { 6, { "llama.attention.head_count_kv", GGUF_U32, 3, NULL }, "not a multiple of 3" },
        { 7, { "llama.attention.layer_norm_rms_epsilon", GGUF_F32, 0x7fc00000u, NULL }, "a number was expected" },
        { 7, { "llama.attention.layer_norm_rms_epsilon", GGUF_F32, 0, NULL }, "rms_norm_eps" },
        { 8, { "llama.expert_count", GGUF_U32, 8, NULL }, "llama.expert_count is not understood" },
        { 8, { "llama.attention.sliding_window", GGUF_U32, 8, NULL }, "windows of this architecture" },
        { 8, { "llama.attention.key_length", GGUF_U32, 16, NULL }, "16 numbers for keys and 8 for values" },
        { 8, { "llama.rope.dimension_count", GGUF_U32, 4, NULL }, "rope.dimension_count 4" },
        { 8, { "llama.rope.scaling.type", GGUF_STRING, 0, "ntk" }, "none, linear, yarn or longrope was expected" },
        { 8, { "llama.rope.freq_base", GGUF_F32, 0xbf800000u, NULL }, "rope_theta" },
        { 8, { "split.count", GGUF_U32, 2, NULL }, "one of 2 files of a model" },
    };
    struct model_conf c;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum err err = read_with(cases[i].place, cases[i].key, &c);
        if (err != ERR_DATA || strstr(err_message(), cases[i].rule) == NULL) {
            fail_msg("case %zu: expected \"%s\", got %d \"%s\"", i, cases[i].rule, err, err == OK ? "" : err_message());
        }
    }
    const struct convert_options o = { 0 };
    assert_ok(read_with(BASE_COUNT, (struct key){ 0 }, &c));
    assert_fails(ERR_DATA, "blk.0.attn_norm.weight is missing; blk.0.attn_q.weight is missing",
                 convert_model(path, "/nonexistent/folder", &o));
}

/* ---- tokenizers ---- */

struct vocabulary {
    const char *model, *pre; /* NULL: not given */
    const char *tokens[4];
    size_t scores, types; /* how many */
    uint32_t type;        /* of the last token */
    uint32_t bos;
};

static enum err read_tokenizer(const struct vocabulary *v, struct gguf_tokenizer_texts *out)
{
    static struct bytes b;
    put_start(&b, 3, 0, 6 + (v->pre != NULL));
    put_text(&b, "tokenizer.ggml.model", v->model);
    if (v->pre != NULL) {
        put_text(&b, "tokenizer.ggml.pre", v->pre);
    }
    put_string(&b, "tokenizer.ggml.tokens");
    put32(&b, GGUF_ARRAY);
    put32(&b, GGUF_STRING);
    put64(&b, 4);
    for (int i = 0; i < 4; i++) {
        put_string(&b, v->tokens[i]);
    }
    put_string(&b, "tokenizer.ggml.scores");
    put32(&b, GGUF_ARRAY);
    put32(&b, GGUF_F32);
    put64(&b, v->scores);
    for (size_t i = 0; i < v->scores; i++) {
        float score = -1.5f * (float)i;
        put(&b, &score, 4);
    }
    put_string(&b, "tokenizer.ggml.token_type");
    put32(&b, GGUF_ARRAY);
    put32(&b, GGUF_I32);
    put64(&b, v->types);
    for (size_t i = 0; i < v->types; i++) {
        put32(&b, i == 0 ? 2 : i + 1 == v->types ? v->type : 1);
    }
    put_string(&b, "tokenizer.ggml.merges");
    put32(&b, GGUF_ARRAY);
    put32(&b, GGUF_STRING);
    put64(&b, 1);
    put_string(&b, "a b");
    put_u32(&b, "tokenizer.ggml.bos_token_id", v->bos);
    put_file(path, b.data, b.count);
    struct gguf_file f;
    enum err err = gguf_open(&f, path);
    if (err == OK) {
        err = gguf_tokenizer_read(&f, out);
        gguf_close(&f);
    }
    return err;
}

static void pieces_become_a_sentencepiece_model(void **state)
{
    (void)state;
    const struct vocabulary v = { "llama", NULL, { "<unk>", "a", "\xe2\x96\x81", "b" }, 4, 4, 4, 1 };
    struct gguf_tokenizer_texts t;
    struct spm_file m = { 0 };
    assert_ok(read_tokenizer(&v, &t));
    assert_int_equal(t.tokenizer.bytes, 0);
    assert_ok(spm_file_parse(&m, "made", t.sentencepiece.data, t.sentencepiece.bytes));
    assert_true(m.count == 4 && m.kind == SPM_BPE && !m.byte_fallback && m.rules.dummy_prefix && m.rules.escape);
    assert_true(m.piece[0].type == SPM_UNKNOWN && m.piece[2].type == SPM_NORMAL && m.piece[3].type == SPM_USER);
    assert_true(m.piece[2].bytes == 3 && m.piece[2].score == -3.0f);
    assert_non_null(strstr(t.config.data, "\"bos_token\": \"a\""));
    spm_file_release(&m);
    gguf_tokenizer_release(&t);
}

static void bytes_become_a_tokenizer_json(void **state)
{
    (void)state;
    const struct vocabulary v = { "gpt2", "smollm", { "<x>", "a", "b", "ab" }, 0, 4, 1, 0 };
    struct gguf_tokenizer_texts t;
    assert_ok(read_tokenizer(&v, &t));
    assert_non_null(strstr(t.tokenizer.data, "{\"id\": 0, \"content\": \"<x>\""));
    assert_non_null(strstr(t.tokenizer.data, "\"individual_digits\": true"));
    assert_non_null(strstr(t.tokenizer.data, "\"ab\": 3"));
    assert_int_equal(t.sentencepiece.bytes, 0);
    gguf_tokenizer_release(&t);
}

static void tokenizers_are_judged(void **state)
{
    (void)state;
    static const struct { struct vocabulary v; const char *rule; } cases[] = {
        { { "t5", NULL, { "a", "b", "c", "d" }, 4, 4, 1, 0 }, "\"t5\" is not in this version" },
        { { "gpt2", NULL, { "a", "b", "c", "d" }, 4, 4, 1, 0 }, "tokenizer.ggml.pre is missing" },
        { { "gpt2", "viking", { "a", "b", "c", "d" }, 4, 4, 1, 0 }, "\"viking\" is not in this version" },
        { { "gpt2", "gpt-2", { "a", "\xff", "c", "d" }, 4, 4, 1, 0 }, "token 1 is not UTF-8" },
        { { "gpt2", "gpt-2", { "a", "b", "c", "d" }, 4, 3, 1, 0 }, "token_type: a number for each token" },
        { { "gpt2", "gpt-2", { "a", "b", "c", "d" }, 4, 4, 7, 0 }, "token_type: 1 to 6" },
        { { "gpt2", "gpt-2", { "a", "b", "c", "d" }, 4, 4, 0, 0 }, "token_type: 1 to 6" },
        { { "gpt2", "gpt-2", { "a", "b", "c", "d" }, 4, 4, 1, 4 }, "bos_token_id: an id of the vocabulary" },
        { { "llama", NULL, { "a", "b", "c", "d" }, 3, 4, 1, 0 }, "scores: a number for each token" },
        { { "llama", NULL, { "a", "b", "c", "d" }, 4, 4, 1, 9 }, "bos_token_id: an id of the vocabulary" },
    };
    struct gguf_tokenizer_texts t;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_fails(ERR_DATA, cases[i].rule, read_tokenizer(&cases[i].v, &t));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_permuted_both_ways), cmocka_unit_test(rows_of_a_head_alternate_halves),
        cmocka_unit_test(values_are_narrowed),         cmocka_unit_test(a_description_is_read),
        cmocka_unit_test(descriptions_are_judged),
        cmocka_unit_test(pieces_become_a_sentencepiece_model),
        cmocka_unit_test(bytes_become_a_tokenizer_json),
        cmocka_unit_test(tokenizers_are_judged),
    };
    if (tests_chosen(tests, sizeof(tests) / sizeof(tests[0]), argc, argv) == 0) {
        return 2;
    }
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
