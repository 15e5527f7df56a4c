/* Loads a configuration text for a number of ranks and compares what is said about it. */
#ifndef TESTS_UNIT_CONF_FIXTURE_H
#define TESTS_UNIT_CONF_FIXTURE_H

#include <unistd.h>

#include "conf/conf_int.h"
#include "test.h"

#define MODEL "model: {model_type: gpt2, n_layer: 2, n_embd: 64, n_head: 4, n_positions: 256, vocab_size: 500}\n"
#define BASE MODEL "data_path: d/tokens\n"
/* FILE_NAME: the file it is loaded from, defined by the test, for tests run beside each other in one folder. */

/* Everything that one load said, as findings_print would order it not: in the order of adding. */
struct loaded {
    struct conf c;
    struct findings f;
    struct buf text;
    enum err err;
};

static inline struct loaded load_world(const char *text, size_t bytes, int argc, char **argv, uint32_t world)
{
    struct loaded l = { 0 };
    FILE *out = fopen(FILE_NAME, "wb"); /* not file_replace: this happens often, and need not be durable */
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, bytes, out), bytes);
    assert_int_equal(fclose(out), 0);
    l.err = conf_load(&l.c, FILE_NAME, argc, argv, world, &l.f);
    unlink(FILE_NAME);
    for (size_t i = 0; i < l.f.count; i++) {
        assert_ok(buf_printf(&l.text, "%s\n", l.f.list[i].text));
    }
    assert_int_equal(l.err, l.f.errors > 0 ? ERR_USAGE : OK);
    return l;
}

static inline struct loaded load_bytes(const char *text, size_t bytes, int argc, char **argv)
{
    return load_world(text, bytes, argc, argv, 1);
}

static inline struct loaded load_text(const char *text)
{
    return load_bytes(text, strlen(text), 0, NULL);
}

static inline void release(struct loaded *l)
{
    conf_release(&l->c);
    findings_release(&l->f);
    buf_release(&l->text);
}

/* Loading `text` for `world` ranks gives exactly one finding, and it holds `part`. */
static inline void says_world(uint32_t world, const char *text, const char *part)
{
    struct loaded l = load_world(text, strlen(text), 0, NULL, world);
    if (l.f.count != 1 || strstr(l.text.data, part) == NULL) {
        fail_msg("for %u ranks and\n%s\nexpected one finding with \"%s\", got\n%s", world, text, part,
                 l.text.data != NULL ? l.text.data : "none");
    }
    release(&l);
}

static inline void says(const char *text, const char *part)
{
    says_world(1, text, part);
}

static inline void accepts_world(uint32_t world, const char *text)
{
    struct loaded l = load_world(text, strlen(text), 0, NULL, world);
    if (l.f.count != 0) {
        fail_msg("for %u ranks and\n%s\nexpected nothing, got\n%s", world, text, l.text.data);
    }
    release(&l);
}

static inline void accepts(const char *text)
{
    accepts_world(1, text);
}

#endif
