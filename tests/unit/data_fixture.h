/* What the tests of data share: a folder of their own, fixtures of the shared assets, and builds with the bytes
 * tokenizer. Files of other programs come from the shared assets when they are present (INVAR_SHARED, else ../shared);
 * a test that needs them says so when they are not. */
#ifndef TESTS_UNIT_DATA_FIXTURE_H
#define TESTS_UNIT_DATA_FIXTURE_H

#include "test.h"

#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/pool.h"
#include "data/build.h"
#include "data/store.h"
#include "data/tokenizer.h"

static char folder[1024];
static struct tokenizer *bytes_tokenizer; /* ids 0..255 and end-of-text 256 */

static inline int make_folder(void **state)
{
    (void)state;
    /* in memory where there is such a file system: the tests sync hundreds of small files */
    const char *base = getenv("TMPDIR");
    base = base != NULL ? base : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof(folder), "%s/invar_data_XXXXXX", base);
    return mkdtemp(folder) == NULL || tokenizer_load(&bytes_tokenizer, "bytes") != OK;
}

static inline int remove_folder(void **state)
{
    (void)state;
    tokenizer_free(bytes_tokenizer);
    return file_remove_tree(folder) != OK;
}

/* Paths in the test's folder, valid to the end of the program: each name is kept once. */
static inline const char *at(const char *name)
{
    static struct {
        char name[64], path[sizeof(folder) + 64];
    } known[128];
    size_t i = 0;
    while (known[i].name[0] != '\0' && strcmp(known[i].name, name) != 0) {
        i++;
        assert_true(i < sizeof(known) / sizeof(known[0]) && strlen(name) < sizeof(known[0].name));
    }
    snprintf(known[i].name, sizeof(known[i].name), "%s", name);
    snprintf(known[i].path, sizeof(known[i].path), "%s/%s", folder, name);
    return known[i].path;
}

static inline void put(const char *path, const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

static inline void put_text(const char *path, const char *text)
{
    put(path, text, strlen(text));
}

static inline void get(const char *path, struct buf *out)
{
    buf_clear(out);
    assert_ok(file_read(path, (size_t)1 << 30, out));
}

static inline const char *shared(const char *name)
{
    static char path[2][1024];
    static unsigned next;
    char *p = path[next++ % 2];
    const char *root = getenv("INVAR_SHARED");
    snprintf(p, 1024, "%s/%s", root != NULL ? root : "../shared", name);
    return p;
}

/* Skip a test that needs the shared assets where there are none. */
static inline void need_shared(const char *name)
{
    if (!file_exists(shared(name))) {
        print_message("%s is absent: skipped\n", shared(name));
        skip();
    }
}

struct build_run {
    const char *input[3];
    uint32_t threads;
    uint64_t memory;
    enum build_on_error on_error;
    bool no_eot;
    double lo, hi;
    const char *field;
    struct build_result result;
};

static inline enum err run_build(struct build_run *r, const char *prefix)
{
    struct pool *pool;
    assert_ok(pool_new(&pool, r->threads > 0 ? r->threads : 1));
    size_t count = 0;
    while (count < 3 && r->input[count] != NULL) {
        count++;
    }
    struct build_options o = { .inputs = r->input,
                               .inputs_count = count,
                               .prefix = prefix,
                               .field = r->field,
                               .append_eot = !r->no_eot,
                               .on_error = r->on_error,
                               .memory_bytes = r->memory,
                               .range_lo = r->lo,
                               .range_hi = r->hi,
                               .quiet = true };
    enum err err = data_build(&o, bytes_tokenizer, pool, &r->result);
    pool_free(pool);
    return err;
}

static inline enum err build_one(const char *input, const char *prefix)
{
    struct build_run r = { .input = { input } };
    return run_build(&r, prefix);
}

/* All tokens of a store of the bytes tokenizer as text, end-of-text as '|'. */
static inline void read_back(const char *prefix, struct buf *out)
{
    struct store *s;
    assert_ok(store_open(&s, prefix));
    buf_clear(out);
    for (uint64_t i = 0; i < store_tokens(s); i++) {
        int32_t id;
        assert_ok(store_read(s, i, 1, 0, &id));
        char c = id == 256 ? '|' : (char)id;
        assert_ok(buf_add(out, &c, 1));
    }
    store_close(s);
}

static inline void assert_text(const char *prefix, const char *expected)
{
    struct buf b = { 0 };
    read_back(prefix, &b);
    assert_string_equal(b.data, expected);
    buf_release(&b);
}

static inline void assert_no_leftovers(const char *prefix)
{
    static const char *const ending[] = {
        ".bin", ".idx", ".json", ".bin.tmp", ".idx.tmp", ".lengths.tmp", ".json.tmp"
    };
    for (size_t i = 0; i < sizeof(ending) / sizeof(ending[0]); i++) {
        char path[1200];
        snprintf(path, sizeof(path), "%s%s", prefix, ending[i]);
        if (file_exists(path)) {
            fail_msg("%s was left behind", path);
        }
    }
}

#endif
