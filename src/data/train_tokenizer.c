/* Why this exists: a model trained from nothing wants a tokenizer of its own text.
 *
 * Words are counted on all threads, each into a table of its own; sums of counts do not depend on who counted, and
 * the merges (bpe_train) depend on the counts only, so the files are the same bytes for every number of threads. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/bpe.h"
#include "data/bpe_train.h"
#include "data/build.h"
#include "data/pretoken.h"
#include "data/reader.h"

#define EOT "<|endoftext|>"
#define BATCH_BYTES ((size_t)32 << 20)

struct count {
    struct reader *reader;
    struct reader_batch batch;
    struct char_table table;
    struct bpe_words *words; /* one for each thread */
    enum err *err;           /* of each piece of the batch */
    char **message;
    size_t results;
    uint32_t threads;
    bool quiet;
};

static enum err count_text(const struct count *c, struct bpe_words *words, const char *text, size_t bytes)
{
    pretoken_next_fn *next = pretoken_scan(SCANNER_GPT2);
    for (const char *p = text, *end = text + bytes; p < end;) {
        const char *q = next(&c->table, p, end);
        uint32_t index;
        TRY(bpe_words_add(words, p, (size_t)(q - p), 1, &index));
        p = q;
    }
    return OK;
}

static void count_piece(void *arg, uint64_t task, uint32_t worker)
{
    struct count *c = arg;
    struct reader_text text;
    enum reader_fault fault;
    enum err err = reader_text(c->reader, &c->batch, (size_t)task, &text, &fault);
    if (err == OK) {
        err = count_text(c, &c->words[worker], text.text, text.bytes);
        reader_text_release(&text);
    }
    c->err[task] = err;
    if (err != OK) {
        /* A copy that fails leaves the piece's error without its text, which is reported as out of memory. */
        enum err copied = mem_copy_string(&c->message[task], err_message(), strlen(err_message()));
        c->err[task] = copied != OK ? copied : err;
    }
}

static size_t cut(const void *table, const char *text, size_t bytes)
{
    return pretoken_cut(table, text, bytes);
}

static void release_results(struct count *c)
{
    for (size_t i = 0; i < c->results; i++) {
        free(c->message[i]);
    }
    free(c->err);
    free(c->message);
    c->err = NULL;
    c->message = NULL;
    c->results = 0;
}

/* The first fault in the order of the text. */
static enum err first_fault(const struct count *c)
{
    for (size_t i = 0; i < c->results; i++) {
        if (c->err[i] != OK) {
            if (c->message[i] != NULL) {
                err_set_message(c->message[i]);
            }
            return c->err[i];
        }
    }
    return OK;
}

static enum err count_batches(struct count *c, struct pool *pool)
{
    struct log_progress progress;
    enum err err = OK;
    log_progress_init(&progress, 10);
    for (;;) {
        TRY_OUT(reader_fill(c->reader, &c->batch, BATCH_BYTES));
        if (c->batch.count == 0) {
            break;
        }
        void *errs, *messages;
        release_results(c);
        TRY_OUT(mem_alloc(&errs, c->batch.count, sizeof(enum err)));
        c->err = errs;
        TRY_OUT(mem_alloc(&messages, c->batch.count, sizeof(char *)));
        c->message = messages;
        c->results = c->batch.count;
        pool_run(pool, c->batch.count, count_piece, c);
        TRY_OUT(first_fault(c));
        if (!c->quiet) {
            char done[32], all[32];
            log_progress_line(&progress, false, "counting words: %s of %s", log_bytes(reader_consumed(c->reader), done),
                              log_bytes(reader_total(c->reader), all));
        }
    }
out:
    log_progress_end(&progress);
    return err;
}

static enum err join_words(struct count *c)
{
    for (uint32_t i = 1; i < c->threads; i++) {
        struct bpe_words *from = &c->words[i];
        for (size_t w = 0; w < from->count; w++) {
            uint32_t index;
            TRY(bpe_words_add(&c->words[0], from->text.data + from->word[w].offset, from->word[w].bytes,
                              from->word[w].count, &index));
        }
        bpe_words_release(from);
    }
    return OK;
}

static enum err count_words(const struct train_tokenizer_options *o, struct pool *pool, struct bpe_words *out)
{
    struct count c = { .threads = pool_threads(pool), .quiet = o->quiet };
    void *block = NULL;
    enum err err = OK;
    TRY_OUT(char_table_init(&c.table));
    struct reader_options options = { .inputs = o->inputs, .inputs_count = o->inputs_count, .field = o->field,
                                      .split = cut, .split_arg = &c.table };
    TRY_OUT(reader_open(&c.reader, &options));
    TRY_OUT(mem_alloc(&block, c.threads, sizeof(struct bpe_words)));
    c.words = block;
    TRY_OUT(count_batches(&c, pool));
    TRY_OUT(join_words(&c));
    *out = c.words[0];
    c.words[0] = (struct bpe_words){ 0 };
out:
    for (uint32_t i = 0; c.words != NULL && i < c.threads; i++) {
        bpe_words_release(&c.words[i]);
    }
    free(c.words);
    release_results(&c);
    reader_batch_release(&c.batch);
    reader_close(c.reader);
    char_table_release(&c.table);
    return err;
}

/* ---- output ---- */

/* Append token `id` in the byte alphabet as part of a JSON string. */
static enum err spell(const struct bpe_learnt *l, int32_t id, struct buf *out)
{
    size_t offset = l->offset[id];
    return bytelevel_encode(l->text.data + offset, l->offset[id + 1] - offset, out);
}

static enum err add_spelt(struct buf *text, struct buf *spelt, const struct bpe_learnt *l, int32_t left, int32_t right)
{
    buf_clear(spelt);
    TRY(spell(l, left, spelt));
    if (right >= 0) {
        TRY(buf_add(spelt, " ", 1));
        TRY(spell(l, right, spelt));
    }
    return buf_add_json_string(text, spelt->data, spelt->bytes);
}

static enum err make_json(const struct bpe_learnt *l, struct buf *text)
{
    struct buf spelt = { 0 };
    enum err err = OK;
    TRY_OUT(buf_printf(text, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                             "  \"added_tokens\": [\n    {\"id\": %zu, \"content\": \"" EOT "\", "
                             "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                             "\"special\": true}\n  ],\n  \"normalizer\": null,\n",
                       l->tokens));
    TRY_OUT(buf_add_string(text, "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                 "\"trim_offsets\": true, \"use_regex\": true},\n  \"post_processor\": null,\n"
                                 "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                 "\"trim_offsets\": true, \"use_regex\": true},\n  \"model\": {\n"
                                 "    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
                                 "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
                                 "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n"
                                 "    \"ignore_merges\": false,\n    \"vocab\": {"));
    for (size_t i = 0; i < l->tokens; i++) {
        TRY_OUT(buf_add_string(text, i > 0 ? ",\n      " : "\n      "));
        TRY_OUT(add_spelt(text, &spelt, l, (int32_t)i, -1));
        TRY_OUT(buf_printf(text, ": %zu", i));
    }
    TRY_OUT(buf_printf(text, ",\n      \"" EOT "\": %zu\n    },\n    \"merges\": [", l->tokens));
    for (size_t i = 0; i < l->merges; i++) {
        TRY_OUT(buf_add_string(text, i > 0 ? ",\n      " : "\n      "));
        TRY_OUT(add_spelt(text, &spelt, l, l->merge[i].left, l->merge[i].right));
    }
    TRY_OUT(buf_add_string(text, "\n    ]\n  }\n}\n"));
out:
    buf_release(&spelt);
    return err;
}

static enum err write_file(const char *folder, const char *name, const char *text, size_t bytes)
{
    char *path;
    TRY(file_join(&path, folder, name));
    enum err err = file_replace(path, text, bytes);
    free(path);
    return err;
}

static enum err write_output(const struct bpe_learnt *l, const char *folder)
{
    static const char config[] =
        "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"bos_token\": \"" EOT "\",\n  \"eos_token\": \"" EOT
        "\",\n  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": 1000000000000000019884624838656\n}\n";
    struct buf text = { 0 };
    enum err err = OK;
    TRY_OUT(make_json(l, &text));
    TRY_OUT(file_make_folder(folder));
    TRY_OUT(write_file(folder, "tokenizer_config.json", config, sizeof(config) - 1));
    TRY_OUT(write_file(folder, "tokenizer.json", text.data, text.bytes));
out:
    buf_release(&text);
    return err;
}

enum err data_train_tokenizer(const struct train_tokenizer_options *o, struct pool *pool)
{
    struct bpe_words words = { 0 };
    struct bpe_learnt learnt = { 0 };
    enum err err = OK;
    double started = log_seconds();
    if (o->vocab_size < 257 || o->vocab_size > BPE_ID_MAX) {
        return FAIL(ERR_USAGE, "vocab_size: %llu, expected 257 (bytes and " EOT ") to %lld",
                    (unsigned long long)o->vocab_size, (long long)BPE_ID_MAX);
    }
    TRY_OUT(count_words(o, pool, &words));
    if (words.count == 0) {
        err = FAIL(ERR_DATA, "train-tokenizer: the inputs hold no text");
        goto out;
    }
    TRY_OUT(bpe_train(&words, (size_t)o->vocab_size - 1, &learnt));
    TRY_OUT(write_output(&learnt, o->output));
    if (learnt.tokens + 1 < o->vocab_size) {
        log_warning("vocab_size: only %zu of %llu tokens: no further pair of the text occurs %u times | use more "
                    "text, or set vocab_size of the model to %zu",
                    learnt.tokens + 1, (unsigned long long)o->vocab_size, BPE_TRAIN_COUNT_MIN, learnt.tokens + 1);
    }
    if (!o->quiet) {
        char took[32];
        log_note("%s: %zu tokens from %zu distinct words in %s", o->output, learnt.tokens + 1, words.count,
                 log_duration(log_seconds() - started, took));
    }
out:
    bpe_words_release(&words);
    bpe_learnt_release(&learnt);
    return err;
}
