/* Why this exists: lets an independent judge compare ids. `encode TOKENIZER [special] [post]` reads texts from
 * stdin, each as its length in bytes on a line followed by the bytes, and prints the ids of each on one line, or
 * "error: message"; `encode TOKENIZER back` prints the bytes in hexadecimal that its ids are decoded to.
 * `encode train VOCAB OUTPUT THREADS INPUT...` trains a tokenizer, `encode save TOKENIZER FOLDER` writes one. */
#include "base/log.h"
#include "base/pool.h"
#include "data/build.h"
#include "data/tokenizer.h"

static enum err print_text(const struct tokenizer *t, const struct tokens *ids, struct buf *text)
{
    struct tokenizer_decoding d = { 0 };
    buf_clear(text);
    for (size_t i = 0; i < ids->count; i++) {
        TRY(tokenizer_decode(t, &d, ids->id[i], text));
    }
    for (size_t i = 0; i < text->bytes; i++) {
        printf("%02x", (unsigned char)text->data[i]);
    }
    printf("\n");
    return OK;
}

static enum err encode_all(const struct tokenizer *t, unsigned flags, bool back)
{
    struct tokenizer_scratch *s;
    struct tokens ids = { 0 };
    struct buf text = { 0 };
    size_t bytes;
    enum err err = OK;
    TRY(tokenizer_scratch_new(&s, t));
    while (scanf("%zu", &bytes) == 1 && getchar() == '\n') {
        buf_clear(&text);
        TRY_OUT(buf_reserve(&text, bytes + 1));
        if (fread(text.data, 1, bytes, stdin) != bytes) {
            err = FAIL(ERR_DATA, "stdin: a text is cut");
            goto out;
        }
        ids.count = 0;
        if (tokenizer_encode(t, s, text.data, bytes, flags, &ids) != OK) {
            printf("error: %s\n", err_message());
            continue;
        }
        if (back) {
            TRY_OUT(print_text(t, &ids, &text));
            continue;
        }
        for (size_t i = 0; i < ids.count; i++) {
            printf(i > 0 ? " %d" : "%d", ids.id[i]);
        }
        printf("\n");
    }
out:
    tokenizer_scratch_free(s);
    tokens_release(&ids);
    buf_release(&text);
    return err;
}

static enum err train(int argc, char **argv)
{
    struct train_tokenizer_options o = { .inputs = (const char *const *)argv + 5, .inputs_count = (size_t)argc - 5,
                                         .field = "text", .vocab_size = strtoull(argv[2], NULL, 10),
                                         .output = argv[3] };
    struct pool *pool;
    TRY(pool_new(&pool, (uint32_t)strtoul(argv[4], NULL, 10)));
    enum err err = data_train_tokenizer(&o, pool);
    pool_free(pool);
    return err;
}

static enum err run(int argc, char **argv)
{
    struct tokenizer *t;
    unsigned flags = 0;
    bool back = false;
    bool save = argc == 4 && strcmp(argv[1], "save") == 0;
    if (argc < 2) {
        return FAIL(ERR_USAGE, "encode TOKENIZER [special] [post] [back] | encode train ... | encode save ...");
    }
    if (argc > 5 && strcmp(argv[1], "train") == 0) {
        return train(argc, argv);
    }
    TRY(tokenizer_load(&t, argv[save ? 2 : 1]));
    for (int i = 2; i < argc && !save; i++) {
        back = back || strcmp(argv[i], "back") == 0;
        flags |= strcmp(argv[i], "special") == 0 ? TOKENIZER_SPECIAL : 0;
        flags |= strcmp(argv[i], "post") == 0 ? TOKENIZER_POST : 0;
    }
    enum err err = save ? tokenizer_save(t, argv[3]) : encode_all(t, flags, back);
    tokenizer_free(t);
    return err;
}

int main(int argc, char **argv)
{
    enum err err = run(argc, argv);
    if (err != OK) {
        err_print();
    }
    return err_exit_code(err);
}
