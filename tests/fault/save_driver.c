/* Saves and checks small checkpoints for tests that kill, starve or compare a save from outside.
 *
 *   save_driver save FOLDER STEP SEED LIMIT [K]
 *                                              save values made from SEED as step STEP; the K-th tensor (from 1) cannot
 *                                              be had
 *   save_driver check FOLDER STEP SEED [STEP SEED ...]
 *                                              open FOLDER; it must hold one of these, bit for bit; prints which */
#include <signal.h>

#include "base/file.h"
#include "base/hash.h"
#include "ckpt/ckpt.h"

#define COLS 700u

struct values {
    float weight[3 * COLS], bias[5], moment[3 * COLS];
};

static void fill(struct values *v, uint64_t seed)
{
    for (uint64_t i = 0; i < 3 * COLS; i++) {
        v->weight[i] = (float)(int64_t)(hash_mix(seed << 32 ^ i) >> 40) * 0x1p-20f - 8.0f;
        v->moment[i] = -v->weight[i];
    }
    for (uint64_t i = 0; i < 5; i++) {
        v->bias[i] = (float)(seed + i);
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

static enum err add_vocabulary(void *arg, const char *folder)
{
    char *path;
    (void)arg;
    enum err err = file_join(&path, folder, "vocab.txt");
    if (err == OK) {
        err = file_replace(path, "a\nb\n", 4);
    }
    free(path);
    return err;
}

static const struct ckpt_tensor model_tensors[] = { { .name = "layer.weight", .rank = 2, .shape = { 3, COLS } },
                                                    { .name = "bias", .rank = 1, .shape = { 5 } } };
static const struct ckpt_tensor moment_tensors[] = { { .name = "exp_avg.layer.weight", .rank = 2,
                                                       .shape = { 3, COLS } } };

struct source {
    struct values values;
    uint64_t calls, fail_at;
};

static enum err fetch(void *arg, size_t file, size_t tensor, const float **values)
{
    struct source *s = arg;
    const struct values *v = &s->values;
    if (++s->calls == s->fail_at) {
        return FAIL(ERR_PEER, "tensor %zu of file %zu: the rank that holds it is gone", tensor, file);
    }
    *values = file == 1 ? v->moment : tensor == 1 ? v->bias : v->weight;
    return OK;
}

static enum err save(char **argv, uint64_t fail_at)
{
    struct source s = { .fail_at = fail_at };
    struct values *v = &s.values;
    fill(v, strtoull(argv[2], NULL, 10));
    const struct ckpt_file files[] = { { "model.safetensors", model_tensors, 2 },
                                       { "optimizer.safetensors", moment_tensors, 1 } };
    const struct ckpt_text texts[] = { { "config.json", "{}\n" } };
    const struct ckpt_content c = {
        .step = strtoull(argv[1], NULL, 10), .files = files, .files_count = 2, .source = { fetch, &s },
        .texts = texts, .texts_count = 1, .extra = add_vocabulary,
        .state_hash = hash_tensor("layer.weight", element_sum(v->weight, 3 * COLS)) +
                      hash_tensor("bias", element_sum(v->bias, 5)),
    };
    return ckpt_save(argv[0], &c, strtoull(argv[3], NULL, 10));
}

static enum err check(const char *folder, int pairs, char **argv)
{
    struct ckpt *c;
    struct values got, want;
    TRY(ckpt_open(&c, folder));
    float *const data[] = { got.weight, got.bias, got.moment };
    struct ckpt_tensor tensors[] = { model_tensors[0], model_tensors[1], moment_tensors[0] };
    struct ckpt_box boxes[3];
    for (size_t i = 0; i < 3; i++) {
        boxes[i] = ckpt_box_whole(&tensors[i], data[i]);
        tensors[i].boxes = &boxes[i];
        tensors[i].boxes_count = 1;
    }
    enum err err;
    TRY_OUT(ckpt_read(c, "model.safetensors", tensors, 2));
    TRY_OUT(ckpt_read(c, "optimizer.safetensors", tensors + 2, 1));
    for (int i = 0; i < pairs; i++) {
        uint64_t step = strtoull(argv[2 * i], NULL, 10), seed = strtoull(argv[2 * i + 1], NULL, 10);
        fill(&want, seed);
        if (ckpt_step(c) == step && memcmp(&got, &want, sizeof(got)) == 0) {
            printf("step %s seed %s\n", argv[2 * i], argv[2 * i + 1]);
            goto out;
        }
    }
    err = FAIL(ERR_RUN, "%s: step %llu, whole, but with values of none of the saves", folder,
               (unsigned long long)ckpt_step(c));
out:
    ckpt_close(c);
    return err;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN);
    enum err err;
    if ((argc == 6 || argc == 7) && strcmp(argv[1], "save") == 0) {
        err = save(argv + 2, argc == 7 ? strtoull(argv[6], NULL, 10) : 0);
    } else if (argc >= 5 && argc % 2 == 1 && strcmp(argv[1], "check") == 0) {
        err = check(argv[2], (argc - 3) / 2, argv + 3);
    } else {
        err = FAIL(ERR_USAGE, "see the first lines of save_driver.c");
    }
    if (err != OK) {
        err_print();
    }
    return err_exit_code(err);
}
