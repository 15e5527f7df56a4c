/* Why this exists: speed of encoding on one core. `tokenizer_bench TOKENIZER whole|lines FILE...` prints for each
 * file the bytes, the ids and the best processor time of several runs in seconds. bench/tokenizer_bench.py sets it
 * beside Hugging Face. */
#include <time.h>

#include "base/file.h"
#include "data/tokenizer.h"

#define RUNS 7

/* Seconds of this process, so that other work on the machine does not count. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static enum err encode_once(const struct tokenizer *t, struct tokenizer_scratch *s, const struct buf *text, bool lines,
                            struct tokens *ids)
{
    const char *p = text->data, *end = p + text->bytes;
    ids->count = 0;
    while (p < end) {
        const char *stop = lines ? memchr(p, '\n', (size_t)(end - p)) : NULL;
        stop = stop != NULL ? stop : end;
        TRY(tokenizer_encode(t, s, p, (size_t)(stop - p), TOKENIZER_SPECIAL, ids));
        p = stop + 1;
    }
    return OK;
}

static enum err bench_file(const struct tokenizer *t, const char *path, bool lines)
{
    struct buf text = { 0 };
    struct tokens ids = { 0 };
    double best = 1e9;
    enum err err = OK;
    TRY_OUT(file_read(path, (size_t)1 << 30, &text));
    for (int run = 0; run < RUNS; run++) {
        struct tokenizer_scratch *s; /* a new one: the cache starts empty each time */
        TRY_OUT(tokenizer_scratch_new(&s, t));
        double start = cpu_seconds();
        err = encode_once(t, s, &text, lines, &ids);
        double took = cpu_seconds() - start;
        best = took < best ? took : best;
        tokenizer_scratch_free(s);
        TRY_OUT(err);
    }
    printf("%s %zu %zu %.6f\n", path, text.bytes, ids.count, best);
out:
    buf_release(&text);
    tokens_release(&ids);
    return err;
}

int main(int argc, char **argv)
{
    struct tokenizer *t;
    enum err err = argc < 4 ? FAIL(ERR_USAGE, "tokenizer_bench TOKENIZER whole|lines FILE...") : OK;
    if (err == OK) {
        err = tokenizer_load(&t, argv[1]);
    }
    for (int i = 3; i < argc && err == OK; i++) {
        err = bench_file(t, argv[i], strcmp(argv[2], "lines") == 0);
    }
    if (err != OK) {
        err_print();
    }
    return err_exit_code(err);
}
