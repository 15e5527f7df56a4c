/* Saving and opening checkpoints: what is saved is read back, whatever is damaged is found, and nothing old goes before
 * the new one is whole. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "ckpt/manifest.h"
#include "ckpt/steps.h"
#include "test.h"

static char root[64]; /* a folder of this test alone */

static float model_a[6], model_b[4], moment[6];

/* A tensor of which the whole is wanted when it is read. */
#define WHOLE(name, rank, rows, cols, data)                                                                            \
    { name, rank, { rows, cols }, &(const struct ckpt_box){ 0, rows, 0, cols, 0, (rows) * (cols), data }, 1, false, \
      NULL, false, 0 }

static const struct ckpt_tensor model_tensors[] = {
    { .name = "layer.weight", .rank = 2, .shape = { 2, 3 } },
    { .name = "bias", .rank = 1, .shape = { 4 } },
};
static const struct ckpt_tensor moment_tensors[] = { { .name = "exp_avg.layer.weight", .rank = 2, .shape = { 2, 3 } } };
static const struct ckpt_file files[] = {
    { "model.safetensors", model_tensors, 2 },
    { "optimizer.safetensors", moment_tensors, 1 },
};
static const struct ckpt_text texts[] = { { "config.json", "{}\n" }, { "trainer_state.json", "{\"step\": 1}\n" } };

static int fresh_folder(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "%s/invar-ckpt-%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
             (int)getpid());
    return file_remove_tree(root) == OK && file_make_folder(root) == OK ? 0 : 1;
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(root) == OK ? 0 : 1;
}

static void fill(uint64_t seed)
{
    for (int i = 0; i < 6; i++) {
        model_a[i] = (float)(hash_mix(seed * 100 + (uint64_t)i) >> 40) * 0x1p-20f;
        moment[i] = -model_a[i];
    }
    for (int i = 0; i < 4; i++) {
        model_b[i] = (float)(hash_mix(seed * 100 + 50 + (uint64_t)i) >> 40) * 0x1p-20f;
    }
}

static uint64_t element_sum(const float *values, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        sum += hash_element(i, bits);
    }
    return sum;
}

static uint64_t state_hash(void)
{
    return hash_tensor("layer.weight", element_sum(model_a, 6)) + hash_tensor("bias", element_sum(model_b, 4));
}

static enum err put_text(const char *folder, const char *name, const char *text)
{
    char *path;
    enum err err = file_join(&path, folder, name);
    if (err == OK) {
        err = file_replace(path, text, strlen(text));
    }
    free(path);
    return err;
}

static enum err add_tokenizer(void *arg, const char *folder)
{
    enum err err = put_text(folder, "vocab.txt", "a\nb\n");
    return err == OK && arg != NULL ? put_text(folder, "merges.txt", arg) : err;
}

static enum err fetch(void *arg, size_t file, size_t tensor, const float **values)
{
    (void)arg;
    *values = file == 1 ? moment : tensor == 1 ? model_b : model_a;
    return OK;
}

static struct ckpt_content content(uint64_t step)
{
    fill(step);
    return (struct ckpt_content){ .step = step, .files = files, .files_count = 2, .source = { fetch, NULL },
                                  .texts = texts, .texts_count = 2, .extra = add_tokenizer,
                                  .state_hash = state_hash() };
}

static enum err save(uint64_t step, uint64_t limit)
{
    struct ckpt_content c = content(step);
    return ckpt_save(root, &c, limit);
}

/* "root/step-N/name", in one of a few static buffers. */
static const char *at(const char *folder, const char *name)
{
    static char paths[4][200];
    static int next;
    char *p = paths[next++ % 4];
    snprintf(p, 200, "%s/%s%s%s", root, folder, name[0] != '\0' ? "/" : "", name);
    return p;
}

static bool has(const char *folder)
{
    return file_exists(at(folder, ""));
}

/* Read the values back into other memory and compare. */
static enum err read_and_compare(const char *path, uint64_t step)
{
    struct ckpt *c;
    TRY(ckpt_open(&c, path));
    float a[6], b[4], m[6];
    const struct ckpt_tensor model[] = { WHOLE("bias", 1, 4, 1, b), WHOLE("layer.weight", 2, 2, 3, a) };
    const struct ckpt_tensor moments[] = { WHOLE("exp_avg.layer.weight", 2, 2, 3, m) };
    enum err err;
    TRY_OUT(ckpt_read(c, "model.safetensors", model, 2));
    TRY_OUT(ckpt_read(c, "optimizer.safetensors", moments, 1));
    fill(step);
    if (ckpt_step(c) != step || memcmp(a, model_a, sizeof(a)) != 0 || memcmp(b, model_b, sizeof(b)) != 0 ||
        memcmp(m, moment, sizeof(m)) != 0 || ckpt_state_hash(c) != state_hash()) {
        err = FAIL(ERR_RUN, "other values than were saved");
    }
out:
    ckpt_close(c);
    return err;
}

static uint64_t opened_step(void)
{
    struct ckpt *c;
    assert_ok(ckpt_open(&c, root));
    uint64_t step = ckpt_step(c);
    ckpt_close(c);
    return step;
}

/* Without fsync: thousands of files are tried. */
static void put_raw(const char *path, const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

static void flip(const char *path, uint64_t bit)
{
    struct buf text = { 0 };
    assert_ok(file_read(path, 1 << 20, &text));
    assert_true(bit / 8 < text.bytes);
    text.data[bit / 8] = (char)(text.data[bit / 8] ^ (char)(1u << bit % 8));
    put_raw(path, text.data, text.bytes);
    buf_release(&text);
}

/* ---- round trip ---- */

static void what_is_saved_is_read_back(void **state)
{
    (void)state;
    struct ckpt *c;
    struct buf text = { 0 };
    uint64_t hash;
    assert_ok(save(7, 0));
    assert_ok(read_and_compare(root, 7));
    assert_ok(read_and_compare(at("step-7", ""), 7));
    assert_ok(ckpt_verify(root, true));
    assert_ok(ckpt_compute_hash(root, &hash));
    assert_int_equal(hash, state_hash());
    assert_ok(ckpt_open(&c, at("step-7/", "")));
    assert_true(ckpt_has_manifest(c));
    assert_true(ckpt_has_file(c, "vocab.txt"));
    assert_false(ckpt_has_file(c, "merges.txt"));
    assert_ok(ckpt_read_text(c, "trainer_state.json", &text));
    assert_string_equal(text.data, "{\"step\": 1}\n");
    assert_fails(ERR_DATA, "lists no ../x", ckpt_read_text(c, "../x", &text));
    ckpt_close(c);
    buf_release(&text);
}

static void a_run_folder_stands_for_its_checkpoints(void **state)
{
    (void)state;
    struct ckpt_content c = content(3);
    assert_ok(ckpt_save(at("checkpoints", ""), &c, 0));
    assert_ok(read_and_compare(root, 3));
    assert_ok(ckpt_verify(root, true));
}

static void the_tensor_file_is_byte_for_byte_in_the_reference_form(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"bias\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
        "\"layer.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[16,40]}}";
    struct buf text = { 0 };
    assert_ok(save(1, 0));
    assert_ok(file_read(at("step-1", "model.safetensors"), 1000, &text));
    uint64_t length;
    memcpy(&length, text.data, 8);
    assert_int_equal(length % 8, 0);
    assert_memory_equal(text.data + 8, header, sizeof(header) - 1);
    for (size_t i = 8 + sizeof(header) - 1; i < 8 + length; i++) {
        assert_int_equal(text.data[i], ' ');
    }
    assert_memory_equal(text.data + 8 + length, model_b, 16);
    assert_memory_equal(text.data + 8 + length + 16, model_a, 24);
    assert_int_equal(text.bytes, 8 + length + 40);
    buf_release(&text);
}

static void a_wrong_state_hash_stops_the_save(void **state)
{
    (void)state;
    struct ckpt_content c = content(2);
    c.state_hash ^= 1;
    assert_fails(ERR_DATA, "are not those of the run", ckpt_save(root, &c, 0));
    assert_false(has("step-2"));
    assert_false(has("step-2.tmp"));
}

static void names_and_shapes_that_do_not_fit_are_all_listed(void **state)
{
    (void)state;
    struct ckpt *c;
    float values[8];
    const struct ckpt_tensor other[] = {
        WHOLE("layer.weights", 2, 2, 3, values), WHOLE("bias", 1, 5, 1, values), WHOLE("head", 1, 1, 1, values),
    };
    const struct ckpt_tensor optional[] = {
        WHOLE("layer.weight", 2, 2, 3, values),
        { .name = "bias", .rank = 1, .shape = { 4 } },
        { .name = "head", .rank = 1, .shape = { 1 }, .optional = true },
    };
    assert_ok(save(1, 0));
    assert_ok(ckpt_open(&c, root));
    assert_int_equal(ckpt_read(c, "model.safetensors", other, 3), ERR_DATA);
    assert_non_null(strstr(err_message(), "2 missing: layer.weights (probably layer.weight in the file), head"));
    assert_non_null(strstr(err_message(), "1 not known to the model: layer.weight"));
    assert_non_null(strstr(err_message(), "1 of another shape: bias is [4], expected [5]"));
    assert_ok(ckpt_read(c, "model.safetensors", optional, 3));
    ckpt_close(c);
}

static void a_model_without_manifest_opens_without_hashes(void **state)
{
    (void)state;
    struct ckpt *c;
    float values[6];
    const struct ckpt_tensor want[] = { WHOLE("layer.weight", 2, 2, 3, values), model_tensors[1] };
    assert_ok(save(1, 0));
    assert_int_equal(unlink(at("step-1", "manifest.json")), 0);
    assert_fails(ERR_DATA, "this checkpoint is not complete", ckpt_open(&c, at("step-1", "")));
    assert_int_equal(rename(at("step-1", ""), at("model", "")), 0);
    assert_ok(ckpt_open(&c, at("model", "")));
    assert_false(ckpt_has_manifest(c));
    assert_int_equal(ckpt_step(c), 0);
    assert_ok(ckpt_read(c, "model.safetensors", want, 2));
    assert_memory_equal(values, model_a, sizeof(values));
    ckpt_close(c);
    assert_ok(ckpt_verify(at("model", ""), true));
}

static void models_of_other_forms_are_refused_with_the_way_out(void **state)
{
    (void)state;
    struct ckpt *c;
    assert_ok(file_make_folder(at("m", "")));
    assert_fails(ERR_DATA, "neither a checkpoint", ckpt_open(&c, at("m", "")));
    assert_ok(put_text(at("m", ""), "pytorch_model.bin", "x"));
    assert_fails(ERR_DATA, "pickle", ckpt_open(&c, at("m", "")));
    assert_ok(put_text(at("m", ""), "model.safetensors.index.json", "{}"));
    assert_ok(ckpt_open(&c, at("m", "")));
    assert_fails(ERR_DATA, "weight_map: an object", ckpt_read(c, "model.safetensors", NULL, 0));
    ckpt_close(c);
    assert_fails(ERR_DATA, "no such folder", ckpt_open(&c, at("nothing", "")));
    assert_fails(ERR_DATA, "not a folder", ckpt_open(&c, at("m", "pytorch_model.bin")));
}

/* ---- damage ---- */

static void every_bit_of_every_file_is_covered_by_verify(void **state)
{
    (void)state;
    static const char *const names[] = { "model.safetensors", "optimizer.safetensors", "config.json", "vocab.txt",
                                         "manifest.json" };
    assert_ok(save(1, 0));
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        uint64_t bytes;
        const char *path = at("step-1", names[n]);
        char kept[200];
        snprintf(kept, sizeof(kept), "%s", path);
        assert_ok(file_size(kept, &bytes));
        for (uint64_t bit = 0; bit < bytes * 8; bit += n == 4 ? 7 : 1) {
            flip(kept, bit);
            if (ckpt_verify(at("step-1", ""), true) != ERR_DATA) {
                fail_msg("%s: bit %d changed and not found", names[n], (int)bit);
            }
            flip(kept, bit);
        }
    }
    assert_ok(ckpt_verify(root, true));
}

static void a_damaged_tensor_is_named_with_its_bytes(void **state)
{
    (void)state;
    struct ckpt *c;
    float values[6];
    const struct ckpt_tensor want[] = { WHOLE("layer.weight", 2, 2, 3, values), model_tensors[1] };
    uint64_t bytes;
    assert_ok(save(1, 0));
    assert_ok(file_size(at("step-1", "model.safetensors"), &bytes));
    flip(at("step-1", "model.safetensors"), bytes * 8 - 1);
    assert_fails(ERR_DATA, "layer.weight (bytes", ckpt_verify(at("step-1", ""), true));
    assert_ok(ckpt_open(&c, at("step-1", "")));
    assert_fails(ERR_DATA, "layer.weight (bytes", ckpt_read(c, "model.safetensors", want, 2));
    ckpt_close(c);
}

static void every_file_cut_at_every_byte_is_found_on_opening(void **state)
{
    (void)state;
    static const char *const names[] = { "model.safetensors", "trainer_state.json", "manifest.json" };
    assert_ok(save(1, 0));
    for (size_t n = 0; n < 3; n++) {
        struct buf text = { 0 };
        char path[200];
        snprintf(path, sizeof(path), "%s", at("step-1", names[n]));
        assert_ok(file_read(path, 1 << 20, &text));
        for (size_t cut = 0; cut < text.bytes; cut += n == 2 ? 3 : 1) {
            struct ckpt *c;
            put_raw(path, text.data, cut);
            assert_int_equal(ckpt_open(&c, at("step-1", "")), ERR_DATA);
        }
        put_raw(path, text.data, text.bytes);
        buf_release(&text);
    }
    assert_ok(read_and_compare(root, 1));
}

/* Put `text` as a manifest whose own hash is right. */
static void put_manifest(const char *body)
{
    char hash[33], text[4096];
    hash128_hex(body, strlen(body), hash);
    snprintf(text, sizeof(text), "%s  \"hash\": \"%s\"\n}\n", body, hash);
    assert_ok(put_text(at("step-1", ""), "manifest.json", text));
}

#define HEAD "{\n  \"format\": \"invar-ckpt/1\",\n  \"numerics\": \"invar-num/1\",\n  \"step\": 1,\n" \
             "  \"state_hash\": \"0000000000000000\",\n"
#define H32 "\"hash128\": \"00000000000000000000000000000000\""
#define MODEL "{\"name\": \"model.safetensors\", \"bytes\": 1, " H32 ", \"tensors\": []}"

static void manifests_that_break_a_rule_are_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "{\n  \"format\": \"invar-ckpt/2\",\n", "this version reads" },
        { "{\n  \"format\": \"invar-ckpt/1\",\n  \"numerics\": \"invar-num/9\",\n", "this version computes" },
        { "{\n", "\"format\": a string" },
        { "[\n", "not valid JSON" },
        { HEAD "  \"step\": 2,\n", "not valid JSON" },
        { HEAD, "\"files\": a list" },
        { HEAD "  \"files\": [3],\n", "\"name\": a string" },
        { HEAD "  \"files\": [],\n", "does not list the tensors" },
        { HEAD "  \"files\": [{\"name\": \"../x\", \"bytes\": 1, " H32 "}],\n", "not a plain file name" },
        { HEAD "  \"files\": [{\"name\": \"/etc/passwd\", \"bytes\": 1, " H32 "}],\n", "not a plain file name" },
        { HEAD "  \"files\": [{\"name\": \"manifest.json\", \"bytes\": 1, " H32 "}],\n", "not a plain file name" },
        { HEAD "  \"files\": [{\"name\": \"a\\u0000b\", \"bytes\": 1, " H32 "}],\n", "\"name\": a string" },
        { HEAD "  \"files\": [{\"name\": \"x\", \"bytes\": -1, " H32 "}],\n", "\"bytes\": a whole number" },
        { HEAD "  \"files\": [{\"name\": \"x\", \"bytes\": 1.5, " H32 "}],\n", "\"bytes\": a whole number" },
        { HEAD "  \"files\": [{\"name\": \"x\", \"bytes\": 1, \"hash128\": \"0\"}],\n", "32 hexadecimal" },
        { HEAD "  \"files\": [" MODEL ", " MODEL "],\n", "listed twice" },
        { HEAD "  \"files\": [" MODEL ", {\"name\": \"gone\", \"bytes\": 1, " H32 "}],\n", "model.safetensors" },
    };
    assert_ok(save(1, 0));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ckpt *c;
        put_manifest(cases[i][0]);
        enum err err = ckpt_open(&c, at("step-1", ""));
        if (err != ERR_DATA || strstr(err_message(), cases[i][1]) == NULL) {
            fail_msg("%s: error %d \"%s\", expected \"%s\"", cases[i][0], err, err_message(), cases[i][1]);
        }
    }
}

static void missing_files_links_and_mixed_steps_are_refused(void **state)
{
    (void)state;
    struct ckpt *c;
    assert_ok(save(1, 0));
    assert_ok(save(2, 0));
    assert_int_equal(rename(at("step-2", "manifest.json"), at("step-1", "manifest.json")), 0);
    assert_fails(ERR_DATA, "its manifest is of step 2", ckpt_open(&c, at("step-1", "")));
    assert_ok(save(2, 0));
    assert_int_equal(unlink(at("step-2", "optimizer.safetensors")), 0);
    assert_fails(ERR_DATA, "optimizer.safetensors: is missing", ckpt_open(&c, at("step-2", "")));
    assert_int_equal(symlink(at("step-1", "optimizer.safetensors"), at("step-2", "optimizer.safetensors")), 0);
    assert_fails(ERR_DATA, "not a regular file", ckpt_open(&c, at("step-2", "")));
}

static void a_stale_tensor_file_of_the_same_size_is_found(void **state)
{
    (void)state;
    assert_ok(save(1, 0));
    assert_ok(save(2, 0));
    struct buf stale = { 0 };
    assert_ok(file_read(at("step-1", "optimizer.safetensors"), 1 << 20, &stale));
    assert_ok(file_replace(at("step-2", "optimizer.safetensors"), stale.data, stale.bytes));
    buf_release(&stale);
    assert_fails(ERR_DATA, "exp_avg.layer.weight", ckpt_verify(at("step-2", ""), true));
    assert_int_equal(opened_step(), 1);
}

/* ---- which checkpoint ---- */

static void latest_is_a_hint_that_is_not_trusted(void **state)
{
    (void)state;
    static const char *const texts_of_latest[] = { "", "step-1\n", "step-99\n", "step-2", "garbage\n", "step-2.tmp\n",
                                                   "step-02\n", "../../etc\n", "step-99999999999999999999999\n" };
    assert_ok(save(1, 0));
    assert_ok(save(2, 0));
    for (size_t i = 0; i < sizeof(texts_of_latest) / sizeof(texts_of_latest[0]); i++) {
        assert_ok(put_text(root, "latest", texts_of_latest[i]));
        assert_int_equal(opened_step(), 2);
    }
    assert_int_equal(unlink(at("latest", "")), 0);
    assert_int_equal(opened_step(), 2);
    assert_ok(file_make_folder(at("latest", "")));
    assert_int_equal(opened_step(), 2);
}

static void a_damaged_newest_checkpoint_is_passed_over(void **state)
{
    (void)state;
    uint64_t bytes;
    struct ckpt *c;
    assert_ok(save(1, 0));
    assert_ok(save(2, 0));
    assert_ok(save(3, 0));
    assert_int_equal(unlink(at("step-3", "optimizer.safetensors")), 0);
    assert_int_equal(opened_step(), 2);
    assert_ok(file_size(at("step-2", "model.safetensors"), &bytes));
    flip(at("step-2", "model.safetensors"), bytes * 8 - 5);
    assert_int_equal(opened_step(), 1);
    assert_int_equal(truncate(at("step-1", "manifest.json"), 100), 0);
    assert_fails(ERR_DATA, "none of 3 checkpoints is complete", ckpt_open(&c, root));
    assert_fails(ERR_DATA, "3 of its checkpoints are damaged", ckpt_verify(root, true));
}

static void leftovers_are_ignored_and_cleaned(void **state)
{
    (void)state;
    assert_ok(save(1, 0));
    assert_ok(save(5, 0));
    assert_int_equal(rename(at("step-5", ""), at("step-5.tmp", "")), 0);
    assert_ok(file_make_folder(at("step-x", "")));
    assert_ok(file_make_folder(at("step-", "")));
    assert_ok(file_make_folder(at("step-07", "")));
    assert_int_equal(opened_step(), 1);
    assert_ok(ckpt_clean(root));
    assert_false(has("step-5.tmp"));
    assert_true(has("step-x") && has("step-07") && has("step-1"));
    assert_ok(ckpt_clean(at("nothing", "")));
}

static void an_interrupted_replacement_keeps_the_old_checkpoint(void **state)
{
    (void)state;
    assert_ok(save(4, 0));
    assert_int_equal(rename(at("step-4", ""), at("step-4.old", "")), 0);
    assert_int_equal(opened_step(), 4);
    assert_ok(read_and_compare(root, 4));
    assert_ok(ckpt_clean(root));
    assert_true(has("step-4") && !has("step-4.old"));
    assert_ok(file_make_folder(at("step-4.old", "")));
    assert_ok(ckpt_clean(root));
    assert_true(has("step-4") && !has("step-4.old"));
}

/* ---- replacing, limits, failures ---- */

static void an_existing_step_is_replaced(void **state)
{
    (void)state;
    struct ckpt_content c = content(1);
    assert_ok(ckpt_save(root, &c, 0));
    c = content(2);
    c.step = 1;
    c.extra_arg = (void *)(uintptr_t)"a b\n";
    assert_ok(ckpt_save(root, &c, 0));
    struct ckpt *opened;
    assert_ok(ckpt_open(&opened, root));
    assert_int_equal(ckpt_step(opened), 1);
    assert_int_equal(ckpt_state_hash(opened), c.state_hash);
    assert_true(ckpt_has_file(opened, "merges.txt"));
    ckpt_close(opened);
    assert_ok(ckpt_verify(root, true));
    assert_false(has("step-1.old"));
}

static void the_oldest_complete_ones_beyond_the_limit_go(void **state)
{
    (void)state;
    assert_ok(save(1, 0));
    assert_ok(save(2, 0));
    assert_ok(save(3, 0));
    assert_int_equal(unlink(at("step-2", "manifest.json")), 0);
    assert_ok(save(10, 2));
    assert_false(has("step-1"));
    assert_true(has("step-2") && has("step-3") && has("step-10")); /* the damaged one is not counted and not touched */
    assert_ok(save(11, 1));
    assert_true(has("step-11") && !has("step-10") && !has("step-3"));
    assert_false(has("step-3.tmp"));
}

static void later_checkpoints_of_other_work_are_not_deleted(void **state)
{
    (void)state;
    assert_ok(save(1000, 0));
    assert_ok(save(10, 1));
    assert_true(has("step-1000") && has("step-10"));
    assert_ok(save(20, 1));
    assert_true(has("step-1000") && has("step-20") && !has("step-10"));
}

/* Saving with files limited to fewer and fewer bytes: an error each time, and the old checkpoint as before. */
static void a_full_disk_leaves_the_previous_checkpoint(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_ok(save(1, 0));
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    int refused = 0;
    for (rlim_t limit = 0; limit < 3000; limit += 37) {
        small.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        enum err err = save(2, 1);
        setrlimit(RLIMIT_FSIZE, &old);
        if (err == OK) {
            break;
        }
        refused++;
        assert_int_equal(err, ERR_RESOURCE);
        assert_non_null(strstr(err_message(), "step-2.tmp/"));
        assert_false(has("step-2.tmp"));
        assert_ok(read_and_compare(root, 1));
    }
    assert_true(refused > 10);
    assert_ok(read_and_compare(root, 2));
    assert_false(has("step-1"));
}

static void a_folder_that_cannot_be_written_is_an_error(void **state)
{
    (void)state;
    struct ckpt_content c = content(1);
    assert_ok(put_text(root, "file", "x"));
    assert_int_equal(ckpt_save(at("file", ""), &c, 0), ERR_USAGE);
    assert_ok(file_make_folder(at("step-1", "")));
    assert_ok(put_text(root, "step-1.old", "a file in the way"));
    assert_ok(ckpt_save(root, &c, 0));
    assert_ok(read_and_compare(root, 1));
}

static enum err failing_extra(void *arg, const char *folder)
{
    (void)arg;
    return FAIL(ERR_RUN, "%s: no tokenizer today", folder);
}

static enum err folder_as_extra(void *arg, const char *folder)
{
    char *path;
    (void)arg;
    enum err err = file_join(&path, folder, "sub");
    if (err == OK) {
        err = file_make_folder(path);
    }
    free(path);
    return err;
}

static void additional_files_that_fail_stop_the_save(void **state)
{
    (void)state;
    struct ckpt_content c = content(1);
    c.extra = failing_extra;
    assert_fails(ERR_RUN, "no tokenizer today", ckpt_save(root, &c, 0));
    c.extra = folder_as_extra;
    assert_fails(ERR_IO, "sub", ckpt_save(root, &c, 0));
    assert_false(has("step-1") || has("step-1.tmp"));
}

/* ---- show and diff ---- */

static void show_lists_every_tensor_with_its_hash(void **state)
{
    (void)state;
    struct buf out = { 0 };
    assert_ok(save(1, 0));
    assert_ok(ckpt_show(root, &out));
    assert_non_null(strstr(out.data, "step 1, state hash"));
    assert_non_null(strstr(out.data, "layer.weight"));
    assert_non_null(strstr(out.data, "[2, 3]"));
    assert_non_null(strstr(out.data, "2 tensors, 10 elements"));
    assert_non_null(strstr(out.data, "vocab.txt"));
    buf_release(&out);
}

static void diff_counts_elements_that_differ(void **state)
{
    (void)state;
    struct buf out = { 0 };
    struct ckpt_diff sum;
    struct ckpt_content c = content(1);
    assert_ok(ckpt_save(root, &c, 0));
    model_a[2] += 0.5f;
    model_a[4] = -model_a[4];
    c.step = 2;
    c.state_hash = state_hash();
    assert_ok(ckpt_save(root, &c, 0));
    assert_ok(ckpt_diff(at("step-1", ""), at("step-2", ""), &out, &sum));
    assert_int_equal(sum.tensors, 3);
    assert_int_equal(sum.different, 1);
    assert_false(sum.suspicious);
    assert_non_null(strstr(out.data, "2 of 6 differ, first at 2 [0, 2], largest difference"));
    buf_clear(&out);
    c.step = 3;
    assert_ok(ckpt_save(root, &c, 0));
    assert_ok(ckpt_diff(at("step-2", ""), at("step-3", ""), &out, &sum));
    assert_int_equal(sum.different, 0);
    assert_true(sum.suspicious);
    buf_release(&out);
}

#define T(name) cmocka_unit_test_setup_teardown(name, fresh_folder, remove_folder)
static const struct CMUnitTest tests[] = {
    T(what_is_saved_is_read_back),
    T(a_run_folder_stands_for_its_checkpoints),
    T(the_tensor_file_is_byte_for_byte_in_the_reference_form),
    T(a_wrong_state_hash_stops_the_save),
    T(names_and_shapes_that_do_not_fit_are_all_listed),
    T(a_model_without_manifest_opens_without_hashes),
    T(models_of_other_forms_are_refused_with_the_way_out),
    T(every_bit_of_every_file_is_covered_by_verify),
    T(a_damaged_tensor_is_named_with_its_bytes),
    T(every_file_cut_at_every_byte_is_found_on_opening),
    T(manifests_that_break_a_rule_are_refused),
    T(missing_files_links_and_mixed_steps_are_refused),
    T(a_stale_tensor_file_of_the_same_size_is_found),
    T(latest_is_a_hint_that_is_not_trusted),
    T(a_damaged_newest_checkpoint_is_passed_over),
    T(leftovers_are_ignored_and_cleaned),
    T(an_interrupted_replacement_keeps_the_old_checkpoint),
    T(an_existing_step_is_replaced),
    T(the_oldest_complete_ones_beyond_the_limit_go),
    T(later_checkpoints_of_other_work_are_not_deleted),
    T(a_full_disk_leaves_the_previous_checkpoint),
    T(a_folder_that_cannot_be_written_is_an_error),
    T(additional_files_that_fail_stop_the_save),
    T(show_lists_every_tensor_with_its_hash),
    T(diff_counts_elements_that_differ),
};
TEST_MAIN(tests)
