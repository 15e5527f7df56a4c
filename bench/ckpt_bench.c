/* Loading and saving tensor files beside what the system copies: read() and write() of the same bytes in the page
 * cache, in blocks of 1 MiB. One thread, processor time; the fastest of five rounds, all sides in turns.
 *
 *   bench_ckpt [FOLDER]      /dev/shm; needs four times 256 MiB there */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/export.h"

#define TENSORS 16u
#define ROWS ((uint64_t)2048)
#define COLS ((uint64_t)2048)
#define ROUNDS 5
#define BLOCK ((size_t)1 << 20)

enum side { READ, WRITE, LOAD_F32, LOAD_BF16, LOAD_CHECKED, EXPORT_F32, EXPORT_BF16, SAVE, SIDES };
static const char *const side_names[SIDES] = {
    "read() of the file", "write() of the file", "load F32, a model without manifest", "load BF16, likewise",
    "load F32, hashes compared", "export F32", "export BF16", "save a checkpoint (hashed, read back)",
};

static const uint64_t elements = ROWS * COLS, bytes = TENSORS * ROWS * COLS * sizeof(float);
static char names[TENSORS][32], base[200], path[SIDES][256];
static float *values; /* of all tensors */

/* Time of this process, in it and in the system for it: ratios survive a busy machine. */
static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(enum err err)
{
    if (err != OK) {
        err_print();
        exit(1);
    }
}

static void need_system(bool good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static void export_model(const char *folder, const char *dtype)
{
    struct st_tensor list[TENSORS];
    struct export *e;
    size_t number;
    for (uint32_t i = 0; i < TENSORS; i++) {
        list[i] = (struct st_tensor){ .name = names[i], .dtype = st_dtype_find(dtype), .rank = 2,
                                      .shape = { ROWS, COLS } };
    }
    need(file_remove_tree(folder));
    const struct export_plan plan = { folder, list, TENSORS, 0 };
    need(export_open(&e, &plan));
    while (export_next(e, &number)) {
        need(export_add(e, values + number * elements, elements));
    }
    need(export_finish(e));
    export_close(e);
}

static void describe(struct ckpt_tensor list[TENSORS], struct ckpt_box boxes[TENSORS])
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        list[i] = (struct ckpt_tensor){ .name = names[i], .rank = 2, .shape = { ROWS, COLS } };
        boxes[i] = ckpt_box_whole(&list[i], values + i * elements);
        list[i].boxes = &boxes[i];
        list[i].boxes_count = 1;
    }
}

static void load(const char *folder)
{
    struct ckpt_tensor list[TENSORS];
    struct ckpt_box boxes[TENSORS];
    struct ckpt *c;
    describe(list, boxes);
    need(ckpt_open(&c, folder));
    need(ckpt_read(c, "model.safetensors", list, TENSORS));
    ckpt_close(c);
}

static enum err fetch(void *arg, size_t file, size_t tensor, const float **out)
{
    (void)arg;
    (void)file;
    *out = values + tensor * elements;
    return OK;
}

static void save(const char *folder, uint64_t hash)
{
    struct ckpt_tensor list[TENSORS];
    struct ckpt_box boxes[TENSORS];
    describe(list, boxes);
    const struct ckpt_file file = { "model.safetensors", list, TENSORS };
    const struct ckpt_content content = { .step = 1, .files = &file, .files_count = 1, .source = { fetch, NULL },
                                          .state_hash = hash };
    need(ckpt_save(folder, &content, 0));
}

static void plain_read(const char *file)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    need_system(fd >= 0, file);
    for (uint64_t at = 0; at < bytes; at += BLOCK) {
        need_system(read(fd, (char *)values + at, BLOCK) == (ssize_t)BLOCK, file);
    }
    close(fd);
}

static void plain_write(const char *file)
{
    unlink(file);
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    need_system(fd >= 0, file);
    for (uint64_t at = 0; at < bytes; at += BLOCK) {
        need_system(write(fd, (const char *)values + at, BLOCK) == (ssize_t)BLOCK, file);
    }
    close(fd);
}

static void once(enum side s, uint64_t hash)
{
    switch (s) {
    case READ: plain_read(path[WRITE]); break;
    case WRITE: plain_write(path[WRITE]); break;
    case LOAD_F32: load(path[EXPORT_F32]); break;
    case LOAD_BF16: load(path[EXPORT_BF16]); break;
    case LOAD_CHECKED: load(path[LOAD_CHECKED]); break;
    case EXPORT_F32: export_model(path[EXPORT_F32], "F32"); break;
    case EXPORT_BF16: export_model(path[EXPORT_BF16], "BF16"); break;
    case SAVE: save(path[SAVE], hash); break;
    case SIDES: break;
    }
}

int main(int argc, char **argv)
{
    void *mem;
    uint64_t hash;
    double best[SIDES] = { 0 };
    snprintf(base, sizeof(base), "%s/invar-bench-ckpt-%d", argc > 1 ? argv[1] : "/dev/shm", (int)getpid());
    need(file_make_folder(base));
    for (int s = 0; s < SIDES; s++) {
        snprintf(path[s], sizeof(path[s]), "%s/%d", base, s);
    }
    snprintf(path[LOAD_CHECKED], sizeof(path[LOAD_CHECKED]), "%s/%d/step-1", base, SAVE);
    need(mem_alloc(&mem, TENSORS * elements, sizeof(float)));
    values = mem;
    for (uint32_t i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof(names[i]), "model.layers.%02u.weight", i);
        for (uint64_t k = 0; k < elements; k++) {
            values[i * elements + k] = (float)(k % 251) * 0.5f;
        }
    }
    export_model(path[EXPORT_F32], "F32");
    need(ckpt_compute_hash(path[EXPORT_F32], &hash));
    for (int round = 0; round <= ROUNDS; round++) { /* the first only makes the files and touches the pages */
        for (int k = 0; k < SIDES; k++) {
            enum side s = (enum side)((k + WRITE) % SIDES);
            s = round == 0 ? (enum side)(SIDES - 1 - k) : s;
            double start = processor_seconds();
            once(s, hash);
            double rate = (double)bytes / (processor_seconds() - start) / 1e9;
            best[s] = round > 0 && rate > best[s] ? rate : best[s];
        }
    }
    for (int s = 0; s < SIDES; s++) {
        printf("%-40s %6.2f GB/s of fp32  %.2f\n", side_names[s], best[s],
               best[s] / best[s == LOAD_F32 || s == LOAD_BF16 || s == LOAD_CHECKED ? READ : WRITE]);
    }
    need(file_remove_tree(base));
    return 0;
}
