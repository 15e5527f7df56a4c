/* Pieces of tensors: where a rank's values lie in the whole, what is read of a file that holds more than is wanted, and
 * how a save asks for tensors that it does not hold. */
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "ckpt/safetensors.h"
#include "test.h"

#define ROWS 300u
#define COLS 700u /* 210,000 elements: a file is read in blocks of 65,536, so blocks end inside rows */
#define BIG (ROWS * COLS)

static char root[64];
static float big[BIG], small[COLS];

static int fresh_folder(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    snprintf(root, sizeof(root), "%s/invar-box-%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
             (int)getpid());
    return file_remove_tree(root) == OK && file_make_folder(root) == OK ? 0 : 1;
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(root) == OK ? 0 : 1;
}

/* Values that fp16 and bf16 hold too, so that one file of each type has the same tensor. */
static void fill(uint64_t seed)
{
    for (uint64_t i = 0; i < BIG; i++) {
        big[i] = (float)(int)(hash_mix(seed << 32 ^ i) >> 57) - 64.0f;
    }
    for (uint64_t i = 0; i < COLS; i++) {
        small[i] = (float)(seed + i);
    }
}

/* ---- boxes ---- */

/* The place in the tensor of element i of the box. */
static uint64_t place(const struct ckpt_box *b, uint64_t row_length, uint64_t i)
{
    return (b->row0 + i / b->cols) * row_length + b->col0 + i % b->cols;
}

#define R 4u
#define L 5u

/* A box against the plain definition: stored into a tensor, and loaded from it in blocks of every size. */
static void try_box(const struct ckpt_box *shape)
{
    float piece[R * L], got[R * L], full[R * L], want[R * L];
    struct ckpt_box b = *shape;
    for (uint64_t i = 0; i < R * L; i++) {
        piece[i] = 100.0f + (float)i;
        full[i] = want[i] = (float)i;
    }
    for (uint64_t i = b.begin; i < b.end; i++) {
        want[place(&b, L, i)] = piece[i - b.begin];
    }
    b.data = piece;
    ckpt_box_store(&b, L, full);
    assert_memory_equal(full, want, sizeof(want));
    for (uint64_t block = 1; block <= R * L; block++) {
        memset(got, 0xff, sizeof(got));
        b.data = got;
        for (uint64_t first = 0; first < R * L; first += block) {
            uint64_t count = R * L - first < block ? R * L - first : block;
            ckpt_box_load(&b, L, first, count, full + first);
        }
        assert_memory_equal(got, piece, (b.end - b.begin) * sizeof(float));
        for (uint64_t i = b.end - b.begin; i < R * L; i++) {
            assert_memory_equal(&got[i], "\xff\xff\xff\xff", 4);
        }
    }
}

static void every_box_of_a_small_tensor_is_stored_and_loaded(void **state)
{
    (void)state;
    size_t tried = 0;
    for (uint64_t r = 0; r < R * R * L * L; r++) {
        struct ckpt_box b = { .row0 = r % R, .rows = r / R % R + 1, .col0 = r / (R * R) % L,
                              .cols = r / (R * R * L) + 1 };
        if (b.row0 + b.rows > R || b.col0 + b.cols > L) {
            continue;
        }
        for (b.begin = 0; b.begin <= b.rows * b.cols; b.begin++) {
            for (b.end = b.begin; b.end <= b.rows * b.cols; b.end++) {
                try_box(&b);
                tried++;
            }
        }
    }
    assert_int_equal(tried, 3825);
}

static void the_whole_box_covers_a_tensor_of_any_rank(void **state)
{
    (void)state;
    const struct ckpt_tensor one = { .name = "a", .rank = 1, .shape = { 7 } };
    const struct ckpt_tensor four = { .name = "a", .rank = 4, .shape = { 2, 3, 4, 5 } };
    struct ckpt_box b = ckpt_box_whole(&one, big);
    assert_int_equal(ckpt_row_length(&one), 1);
    assert_true(b.row0 == 0 && b.rows == 7 && b.col0 == 0 && b.cols == 1 && b.begin == 0 && b.end == 7);
    b = ckpt_box_whole(&four, big);
    assert_int_equal(ckpt_row_length(&four), 60);
    assert_true(b.row0 == 0 && b.rows == 2 && b.col0 == 0 && b.cols == 60 && b.begin == 0 && b.end == 120);
    assert_ptr_equal(b.data, big);
}

/* ---- reading ---- */

static const struct ckpt_tensor model_tensors[] = {
    { .name = "small", .rank = 1, .shape = { COLS } },
    { .name = "big", .rank = 3, .shape = { ROWS, COLS / 10, 10 } },
    { .name = "other", .rank = 2, .shape = { ROWS, COLS } },
};
static const struct ckpt_tensor moment_tensors[] = { { .name = "exp_avg.small", .rank = 1, .shape = { COLS } } };
static const struct ckpt_file files[] = {
    { "model.safetensors", model_tensors, 3 },
    { "optimizer.safetensors", moment_tensors, 1 },
};
#define TENSORS 4u

/* What a save asked for, and the call that fails. */
struct asked {
    size_t file[TENSORS], tensor[TENSORS], count, fail_at;
};

static enum err fetch(void *arg, size_t file, size_t tensor, const float **values)
{
    struct asked *asked = arg;
    if (asked->count == asked->fail_at) {
        return FAIL(ERR_PEER, "rank 3 is gone");
    }
    assert_in_range(asked->count, 0, TENSORS - 1);
    asked->file[asked->count] = file;
    asked->tensor[asked->count++] = tensor;
    *values = files[file].tensors[tensor].rank == 1 ? small : big;
    return OK;
}

static uint64_t hash_of(const char *name, const float *values, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        sum += hash_element(i, bits);
    }
    return hash_tensor(name, sum);
}

static enum err save(uint64_t step, uint64_t limit, struct asked *asked)
{
    fill(step);
    const struct ckpt_content c = {
        .step = step, .files = files, .files_count = 2, .source = { fetch, asked },
        .state_hash = hash_of("small", small, COLS) + hash_of("big", big, BIG) + hash_of("other", big, BIG),
    };
    return ckpt_save(root, &c, limit);
}

/* "root/name", valid until the next call. */
static const char *at(const char *name)
{
    static char path[200];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    return path;
}

static bool has(const char *name)
{
    return file_exists(at(name));
}

static void flip_last_byte(const char *path)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    assert_int_equal(fputc(c ^ 1, f), c ^ 1);
    assert_int_equal(fclose(f), 0);
}

/* The pieces of ranks that divide columns by `parts` and then each box by `slices`, one pair after the other. Unequal
 * parts and slices that end inside rows. */
static uint64_t divide(struct ckpt_box *boxes, uint64_t parts, uint64_t slices, float *data)
{
    uint64_t at_element = 0;
    for (uint64_t p = 0; p < parts; p++) {
        uint64_t col0 = COLS * p / parts, cols = COLS * (p + 1) / parts - col0;
        for (uint64_t s = 0; s < slices; s++) {
            struct ckpt_box *b = &boxes[p * slices + s];
            *b = (struct ckpt_box){ 0, ROWS, col0, cols, ROWS * cols * s / slices, ROWS * cols * (s + 1) / slices,
                                    data + at_element };
            at_element += b->end - b->begin;
        }
    }
    return at_element;
}

/* Read "big" in pieces and put them together again: the values of `fill`. */
static void read_divided(struct ckpt *c, const struct ckpt_tensor *known, size_t count, uint64_t parts, uint64_t slices)
{
    static float pieces[BIG], full[BIG];
    struct ckpt_box boxes[64];
    struct ckpt_tensor want[3];
    memcpy(want, known, count * sizeof(known[0]));
    assert_true(parts * slices <= 64 && divide(boxes, parts, slices, pieces) == BIG);
    memset(pieces, 0xff, sizeof(pieces));
    memset(full, 0xff, sizeof(full));
    for (size_t i = 0; i < count; i++) {
        if (strcmp(want[i].name, "big") == 0) {
            want[i].boxes = boxes;
            want[i].boxes_count = parts * slices;
        }
    }
    assert_ok(ckpt_read(c, "model.safetensors", want, count));
    for (size_t i = 0; i < parts * slices; i++) {
        ckpt_box_store(&boxes[i], COLS, full);
    }
    assert_memory_equal(full, big, sizeof(big));
}

static void a_tensor_is_read_in_the_pieces_of_any_layout(void **state)
{
    (void)state;
    struct ckpt *c;
    struct asked asked = { .fail_at = SIZE_MAX };
    assert_ok(save(1, 0, &asked));
    assert_ok(ckpt_open(&c, root));
    static const uint64_t layouts[][2] = { { 1, 1 }, { 1, 7 }, { 2, 1 }, { 2, 3 }, { 3, 5 }, { 8, 8 } };
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        read_divided(c, model_tensors, 3, layouts[i][0], layouts[i][1]);
    }
    ckpt_close(c);
}

/* A model from elsewhere with "big" in 16 bits. */
static void put_half_model(const char *dtype)
{
    static uint16_t stored[BIG];
    char header[200], path[200];
    bool bf16 = strcmp(dtype, "BF16") == 0;
    for (size_t i = 0; i < BIG; i++) {
        uint32_t bits;
        memcpy(&bits, &big[i], 4);
        uint32_t e = bits >> 23 & 255u, half = big[i] == 0.0f ? 0 : (e - 112) << 10 | (bits >> 13 & 1023u);
        stored[i] = (uint16_t)(bf16 ? bits >> 16 : (bits >> 16 & 0x8000u) | half);
    }
    int length = snprintf(header, sizeof(header),
                          "{\"big\":{\"dtype\":\"%s\",\"shape\":[%u,%u,10],\"data_offsets\":[0,%zu]}}", dtype, ROWS,
                          COLS / 10, sizeof(stored));
    uint64_t header_bytes = (uint64_t)length;
    assert_ok(file_make_folder(at(dtype)));
    snprintf(path, sizeof(path), "%s/%s/model.safetensors", root, dtype);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fwrite(&header_bytes, 8, 1, f) == 1 && fwrite(header, header_bytes, 1, f) == 1 &&
                fwrite(stored, sizeof(stored), 1, f) == 1);
    assert_int_equal(fclose(f), 0);
}

static void pieces_of_16_bit_files_are_widened(void **state)
{
    (void)state;
    static const char *const dtypes[] = { "F16", "BF16" };
    fill(3);
    for (size_t i = 0; i < 2; i++) {
        struct ckpt *c;
        put_half_model(dtypes[i]);
        assert_ok(ckpt_open(&c, at(dtypes[i])));
        read_divided(c, &model_tensors[1], 1, 1, 1);
        read_divided(c, &model_tensors[1], 1, 3, 5);
        ckpt_close(c);
    }
}

static void tensors_that_are_not_wanted_are_compared_all_the_same(void **state)
{
    (void)state;
    struct ckpt *c;
    struct asked asked = { .fail_at = SIZE_MAX };
    struct ckpt_tensor want[4];
    memcpy(want, model_tensors, sizeof(model_tensors));
    assert_ok(save(1, 0, &asked));
    assert_ok(ckpt_open(&c, root));
    want[3] = (struct ckpt_tensor){ .name = "head", .rank = 1, .shape = { 3 }, .optional = true };
    assert_ok(ckpt_read(c, "model.safetensors", want, 4)); /* nothing wanted, one that may be missing is */
    want[3].optional = false;
    want[0].shape[0] = 5;
    want[1].name = "bigger";
    assert_int_equal(ckpt_read(c, "model.safetensors", want, 4), ERR_DATA);
    assert_non_null(strstr(err_message(), "2 missing: bigger (probably big in the file), head"));
    assert_non_null(strstr(err_message(), "1 not known to the model: big"));
    assert_non_null(strstr(err_message(), "1 of another shape: small is [700], expected [5]"));
    want[0].optional = true; /* it may be missing, but not be another one */
    assert_fails(ERR_DATA, "small is [700], expected [5]", ckpt_read(c, "model.safetensors", want, 4));
    ckpt_close(c);
}

static void damage_to_a_tensor_that_is_not_wanted_is_found(void **state)
{
    (void)state;
    struct ckpt *c;
    struct asked asked = { .fail_at = SIZE_MAX };
    assert_ok(save(1, 0, &asked));
    assert_ok(ckpt_open(&c, root));
    assert_ok(ckpt_read(c, "optimizer.safetensors", moment_tensors, 1));
    flip_last_byte(at("step-1/optimizer.safetensors"));
    assert_fails(ERR_DATA, "exp_avg.small (bytes", ckpt_read(c, "optimizer.safetensors", moment_tensors, 1));
    ckpt_close(c);
}

/* ---- saving ---- */

static void a_save_asks_for_each_tensor_once_in_the_order_of_the_files(void **state)
{
    (void)state;
    static const size_t file[] = { 0, 0, 0, 1 }, tensor[] = { 1, 2, 0, 0 }; /* big, other, small; exp_avg.small */
    size_t order[3];
    struct asked asked = { .fail_at = SIZE_MAX };
    assert_ok(save(1, 0, &asked));
    assert_int_equal(asked.count, TENSORS);
    assert_memory_equal(asked.file, file, sizeof(file));
    assert_memory_equal(asked.tensor, tensor, sizeof(tensor));
    ckpt_order(model_tensors, 3, order);
    assert_memory_equal(order, tensor, sizeof(order));
}

static void a_source_that_fails_leaves_the_previous_checkpoints(void **state)
{
    (void)state;
    struct asked asked = { .fail_at = SIZE_MAX };
    assert_ok(save(1, 0, &asked));
    assert_ok(save(2, 0, &(struct asked){ .fail_at = SIZE_MAX }));
    for (size_t k = 0; k < TENSORS; k++) {
        for (uint64_t step = 2; step <= 3; step++) { /* one that is there, a new one */
            asked = (struct asked){ .fail_at = k };
            assert_fails(ERR_PEER, "rank 3 is gone", save(step, 1, &asked));
            assert_int_equal(asked.count, k);
            assert_true(has("step-1") && has("step-2") && !has("step-3"));
            assert_false(has("step-2.tmp") || has("step-3.tmp") || has("step-2.old"));
            assert_ok(ckpt_verify(root, true));
        }
    }
    assert_ok(save(3, 1, &(struct asked){ .fail_at = TENSORS }));
    assert_true(has("step-3") && !has("step-1"));
}

static void a_full_disk_ends_the_questions(void **state)
{
    (void)state;
    struct rlimit old, limited;
    struct asked asked = { .fail_at = SIZE_MAX };
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limited = old;
    limited.rlim_cur = 4096; /* the first tensor stays in the writer's buffer of 1 MB, the second does not */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limited), 0);
    enum err err = save(1, 0, &asked);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(err, ERR_RESOURCE);
    assert_int_equal(asked.count, 2);
    assert_false(has("step-1") || has("step-1.tmp"));
}

#define T(name) cmocka_unit_test_setup_teardown(name, fresh_folder, remove_folder)
static const struct CMUnitTest tests[] = {
    T(every_box_of_a_small_tensor_is_stored_and_loaded),
    T(the_whole_box_covers_a_tensor_of_any_rank),
    T(a_tensor_is_read_in_the_pieces_of_any_layout),
    T(pieces_of_16_bit_files_are_widened),
    T(tensors_that_are_not_wanted_are_compared_all_the_same),
    T(damage_to_a_tensor_that_is_not_wanted_is_found),
    T(a_save_asks_for_each_tensor_once_in_the_order_of_the_files),
    T(a_source_that_fails_leaves_the_previous_checkpoints),
    T(a_full_disk_ends_the_questions),
};
TEST_MAIN(tests)
