/* Why this exists: text becomes tokens once, before the run, so that every fault of the text is found before a machine
 * is rented, and no training step waits for a tokenizer.
 *
 * Design: gather a batch of pieces in order (reader), encode chunks of pieces on all threads, write the results in
 * order. Batches and chunks only decide who works on what; a piece's tokens depend on the piece alone, so neither the
 * number of threads nor the memory bound changes a byte. The first fault in input order is the one that is reported. */
#include "data/build.h"

#include <sys/statvfs.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/reader.h"
#include "data/store_int.h"

#define MEMORY_DEFAULT ((uint64_t)256 << 20)
/* Of the memory bound, the text of a batch takes an eighth: its tokens need up to 4 bytes for each byte of text,
 * doubled while an array grows. */
#define MEMORY_SHARE 8u
#define BATCH_BYTES_MIN ((uint64_t)4 << 10)
#define BATCH_BYTES_MAX ((uint64_t)1 << 30)
#define CHUNK_BYTES ((size_t)64 << 10)
#define UINT16_IDS 65536u

struct piece_result {
    uint64_t tokens, text_bytes;
    enum err err;
    enum reader_fault fault;
    char *message; /* of err */
    bool nul;
};

/* Consecutive pieces for one task. */
struct chunk {
    size_t first, end;
    struct tokens tokens; /* kept from batch to batch; narrowed in place when the task is done */
};

struct build {
    const struct build_options *o;
    const struct tokenizer *tokenizer;
    struct pool *pool;
    struct reader *reader;
    struct reader_batch batch;
    struct tokenizer_scratch **scratch; /* one for each thread */
    struct store_writer *writer;
    struct chunk *chunk;
    size_t chunks, chunk_capacity;
    size_t chunks_made; /* elements whose tokens are initialised */
    struct piece_result *piece;
    size_t piece_capacity;
    uint32_t token_bytes;
    uint64_t vocab;
    int32_t eot;
    uint64_t faults[READER_FAULTS];
    bool replaces; /* an earlier build of the same prefix */
    uint64_t nul_documents;
    struct build_result result;
    struct log_progress progress;
    double started_s;
    bool space_checked;
};

/* ---- encoding, on all threads ---- */

static enum err add_token(struct tokens *t, int32_t id)
{
    void *mem = t->id;
    TRY(mem_grow(&mem, &t->capacity, t->count + 1, sizeof(*t->id)));
    t->id = mem;
    t->id[t->count++] = id;
    return OK;
}

static enum err encode_piece(const struct build *b, size_t i, uint32_t worker, struct tokens *out)
{
    const struct reader_piece *p = &b->batch.piece[i];
    struct piece_result *result = &b->piece[i];
    struct reader_text text;
    size_t before = out->count;
    TRY(reader_text(b->reader, &b->batch, i, &text, &result->fault));
    enum err err = tokenizer_encode(b->tokenizer, b->scratch[worker], text.text, text.bytes, 0, out);
    bool empty = p->document_begins && text.bytes == 0;
    if (err == OK && b->o->append_eot && p->document_ends && !empty) {
        err = add_token(out, b->eot);
    }
    result->text_bytes = text.bytes;
    result->nul = text.nul;
    result->tokens = out->count - before;
    reader_text_release(&text);
    return err;
}

/* A damaged line of a .jsonl file can be left out; everything else ends the build. */
static bool can_skip(const struct build *b, size_t i)
{
    return b->o->on_error == BUILD_SKIP && b->piece[i].fault != READER_FAULT_NONE && b->batch.piece[i].line > 0;
}

/* int32 to uint16 in the same memory: element i is read before anything at or after it is written. */
static void narrow(struct tokens *t, uint64_t vocab, uint32_t token_bytes)
{
    unsigned char *to = (unsigned char *)t->id;
    uint32_t most = 0;
    for (size_t i = 0; i < t->count; i++) {
        uint32_t id = (uint32_t)t->id[i];
        most = id > most ? id : most;
        if (token_bytes == 2) {
            uint16_t small = (uint16_t)id;
            memcpy(to + 2 * i, &small, 2);
        }
    }
    BUG_IF(t->count > 0 && most >= vocab);
}

static void encode_chunk(void *arg, uint64_t task, uint32_t worker)
{
    struct build *b = arg;
    struct chunk *c = &b->chunk[task];
    c->tokens.count = 0;
    for (size_t i = c->first; i < c->end; i++) {
        struct piece_result *result = &b->piece[i];
        size_t before = c->tokens.count;
        *result = (struct piece_result){ 0 };
        result->err = encode_piece(b, i, worker, &c->tokens);
        if (result->err == OK) {
            continue;
        }
        c->tokens.count = before;
        result->tokens = result->text_bytes = 0;
        if (mem_copy_string(&result->message, err_message(), strlen(err_message())) != OK) {
            result->message = NULL; /* the error itself is kept */
        }
        if (!can_skip(b, i)) {
            break; /* the writer stops at this piece */
        }
    }
    narrow(&c->tokens, b->vocab, b->token_bytes);
}

static enum err make_chunks(struct build *b)
{
    void *mem = b->piece;
    TRY(mem_grow(&mem, &b->piece_capacity, b->batch.count, sizeof(*b->piece)));
    b->piece = mem;
    b->chunks = 0;
    for (size_t i = 0; i < b->batch.count;) {
        size_t bytes = 0, first = i;
        do {
            bytes += b->batch.piece[i++].bytes;
        } while (i < b->batch.count && bytes < CHUNK_BYTES);
        mem = b->chunk;
        TRY(mem_grow(&mem, &b->chunk_capacity, b->chunks + 1, sizeof(*b->chunk)));
        b->chunk = mem;
        if (b->chunks == b->chunks_made) {
            b->chunk[b->chunks_made++].tokens = (struct tokens){ 0 };
        }
        b->chunk[b->chunks].first = first;
        b->chunk[b->chunks++].end = i;
    }
    return OK;
}

/* ---- writing, in order ---- */

static enum err take_fault(struct build *b, size_t i)
{
    const struct piece_result *r = &b->piece[i];
    if (!can_skip(b, i)) {
        if (r->message != NULL) {
            err_set_message(r->message);
        }
        return r->err;
    }
    if (b->faults[r->fault]++ == 0) {
        log_progress_end(&b->progress);
        log_warning("line skipped: %s", r->message != NULL ? r->message : reader_fault_name(r->fault));
    }
    b->result.skipped++;
    return OK;
}

static enum err write_piece(struct build *b, size_t i, const unsigned char *tokens)
{
    const struct piece_result *r = &b->piece[i];
    if (r->err != OK) {
        return take_fault(b, i);
    }
    TRY(store_writer_add(b->writer, tokens, r->tokens));
    b->result.text_bytes += r->text_bytes;
    b->nul_documents += r->nul;
    if (b->batch.piece[i].document_ends) {
        bool stored;
        TRY(store_writer_end_document(b->writer, &stored));
        b->result.empty += !stored;
    }
    return OK;
}

static enum err write_chunks(struct build *b)
{
    for (size_t c = 0; c < b->chunks; c++) {
        const unsigned char *at = (const unsigned char *)b->chunk[c].tokens.id;
        for (size_t i = b->chunk[c].first; i < b->chunk[c].end; i++) {
            TRY(write_piece(b, i, at));
            at += b->piece[i].tokens * b->token_bytes;
        }
    }
    return OK;
}

static void free_messages(struct build *b)
{
    for (size_t i = 0; i < b->batch.count; i++) {
        free(b->piece[i].message);
        b->piece[i].message = NULL;
    }
}

/* ---- the whole ---- */

/* From the first batch, how much the rest will need. Refuses what cannot fit even at half the estimate. */
static enum err check_space(struct build *b)
{
    struct statvfs fs;
    char need_text[32], free_text[32];
    uint64_t consumed = reader_consumed(b->reader), total = reader_total(b->reader);
    struct buf path = { 0 };
    TRY(buf_printf(&path, "%s.bin.tmp", b->o->prefix));
    int rc = statvfs(path.data, &fs);
    buf_release(&path);
    b->space_checked = true;
    if (rc != 0 || consumed == 0 || consumed >= total) {
        return OK;
    }
    double written = (double)store_writer_tokens(b->writer) * b->token_bytes;
    double need = written / (double)consumed * (double)(total - consumed);
    uint64_t space = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need > (double)space) {
        log_bytes((uint64_t)need, need_text);
        log_bytes(space, free_text);
        if (need > 2 * (double)space) {
            return FAIL(ERR_RESOURCE,
                        "%s.bin: needs about %s more, %s are free | free space on this disk or choose another "
                        "output",
                        b->o->prefix, need_text, free_text);
        }
        log_warning("%s.bin: may need about %s more, %s are free", b->o->prefix, need_text, free_text);
    }
    return OK;
}

static void show_progress(struct build *b)
{
    char done[32], total[32], left[32];
    double seconds = log_seconds() - b->started_s;
    uint64_t consumed = reader_consumed(b->reader), all = reader_total(b->reader);
    double rest = consumed > 0 && all > consumed ? seconds * (double)(all - consumed) / (double)consumed : 0;
    if (!b->o->quiet && consumed < all) { /* the summary follows the last batch */
        log_progress_line(&b->progress, false, "%s of %s, %.1f MB/s, %.2f M tokens, %s left", log_bytes(consumed, done),
                          log_bytes(all, total), seconds > 0 ? (double)consumed / 1e6 / seconds : 0.0,
                          (double)store_writer_tokens(b->writer) / 1e6, log_duration(rest, left));
    }
}

static enum err encode_all(struct build *b)
{
    uint64_t memory = b->o->memory_bytes > 0 ? b->o->memory_bytes : MEMORY_DEFAULT;
    uint64_t bytes = memory / MEMORY_SHARE;
    bytes = bytes < BATCH_BYTES_MIN ? BATCH_BYTES_MIN : bytes > BATCH_BYTES_MAX ? BATCH_BYTES_MAX : bytes;
    for (;;) {
        TRY(reader_fill(b->reader, &b->batch, bytes));
        if (b->batch.count == 0) {
            return OK;
        }
        enum err err = make_chunks(b);
        if (err == OK) {
            memset(b->piece, 0, b->batch.count * sizeof(*b->piece));
            pool_run(b->pool, b->chunks, encode_chunk, b);
            err = write_chunks(b);
            free_messages(b);
        }
        TRY(err);
        if (!b->space_checked) {
            TRY(check_space(b));
        }
        show_progress(b);
    }
}

static enum err write_info(const struct build *b, const char *content, struct buf *out)
{
    char digest[33];
    tokenizer_digest(b->tokenizer, digest);
    TRY(buf_printf(out,
                   "{\n  \"format\": \"" INFO_FORMAT "\",\n  \"version\": %d,\n  \"invar\": \"%s\",\n"
                   "  \"documents\": %llu,\n  \"tokens\": %llu,\n  \"text_bytes\": %llu,\n  \"vocab\": %llu,\n",
                   INFO_VERSION, INVAR_VERSION, (unsigned long long)b->result.documents,
                   (unsigned long long)b->result.tokens, (unsigned long long)b->result.text_bytes,
                   (unsigned long long)b->vocab));
    TRY(buf_printf(out, "  \"tokenizer\": \"%s\",\n  \"special_tokens\": \"as plain text\",\n", digest));
    if (b->o->append_eot) {
        TRY(buf_printf(out, "  \"end_of_text\": %d,\n", b->eot));
    } else {
        TRY(buf_add_string(out, "  \"end_of_text\": null,\n"));
    }
    return buf_printf(out, "  \"content\": \"%s\"\n}\n", content);
}

static enum err finish(struct build *b)
{
    char content[33];
    struct buf info = { 0 };
    b->result.tokens = store_writer_tokens(b->writer);
    b->result.documents = store_writer_documents(b->writer);
    if (b->result.tokens == 0) {
        return FAIL(ERR_DATA, "%s%s: no text found, nothing was written", b->o->inputs[0],
                    b->o->inputs_count > 1 ? " and the other inputs" : "");
    }
    enum err err;
    TRY_OUT(store_writer_finish(b->writer, content));
    TRY_OUT(write_info(b, content, &info));
    struct store_writer *w = b->writer;
    b->writer = NULL;
    TRY_OUT(store_writer_publish(w, &info));
out:
    buf_release(&info);
    return err;
}

/* What was accepted but deserves a word, and what was left out. */
static void report(const struct build *b)
{
    struct reader_notes notes = reader_notes(b->reader);
    const struct {
        uint64_t count;
        const char *text;
    } row[] = {
        { notes.boms, "files begin with a byte-order mark: left out" },
        { notes.blank_lines, "blank lines: left out" },
        { b->result.empty, "documents without text: left out" },
        { b->replaces, "earlier build under this name: replaced" },
        { b->nul_documents, "documents hold the character U+0000: kept" },
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]) && !b->o->quiet; i++) {
        if (row[i].count > 0) {
            log_note("note: %llu %s", (unsigned long long)row[i].count, row[i].text);
        }
    }
    for (enum reader_fault f = READER_FAULT_NONE + 1; f < READER_FAULTS; f++) {
        if (b->faults[f] > 0) {
            log_warning("%llu lines skipped: %s", (unsigned long long)b->faults[f], reader_fault_name(f));
        }
    }
    if (!b->o->quiet) {
        char text[32], time[32];
        log_note("%s: %llu documents, %llu tokens of %u bytes, %s of text (%.2f bytes per token), %s, %.1f MB/s",
                 b->o->prefix, (unsigned long long)b->result.documents, (unsigned long long)b->result.tokens,
                 b->token_bytes, log_bytes(b->result.text_bytes, text),
                 (double)b->result.text_bytes / (double)b->result.tokens, log_duration(b->result.seconds, time),
                 b->result.seconds > 0 ? (double)b->result.text_bytes / 1e6 / b->result.seconds : 0.0);
    }
}

/* Folder of the output, made when it is missing. */
static enum err make_parent(const char *prefix)
{
    const char *slash = strrchr(prefix, '/');
    if (slash == NULL || slash == prefix) {
        return OK;
    }
    char *parent;
    TRY(mem_copy_string(&parent, prefix, (size_t)(slash - prefix)));
    enum err err = file_make_folder(parent);
    free(parent);
    return err;
}

/* PREFIX.json is replaced by a later build, but never a file of another kind (config.json, tokenizer.json). */
static enum err check_output(struct build *b)
{
    const char *prefix = b->o->prefix;
    size_t bytes = strlen(prefix);
    if (bytes == 0 || prefix[bytes - 1] == '/') {
        return FAIL(ERR_USAGE, "--output: \"%s\" names no file, a prefix was expected | for example %strain", prefix,
                    prefix);
    }
    struct buf path = { 0 };
    json_t *root = NULL;
    enum err err;
    TRY_OUT(buf_printf(&path, "%s.json", prefix));
    b->replaces = file_exists(path.data);
    if (b->replaces) {
        bool read = json_read_file(&root, path.data, INFO_BYTES_MAX) == OK;
        const char *format = read ? json_string_value(json_object_get(root, "format")) : NULL;
        if (format == NULL || strcmp(format, INFO_FORMAT) != 0) {
            err = FAIL(ERR_USAGE, "%s: was not written by `invar data build` and would be replaced | choose another "
                                  "--output, or move this file away", path.data);
        }
    }
out:
    json_decref(root);
    buf_release(&path);
    return err;
}

static enum err open_all(struct build *b)
{
    const struct build_options *o = b->o;
    int64_t eot = tokenizer_eot(b->tokenizer);
    if (o->append_eot && eot < 0) {
        return FAIL(ERR_USAGE,
                    "the tokenizer has no end-of-text token to put between documents | --no-eot leaves it out");
    }
    b->eot = (int32_t)eot;
    b->vocab = tokenizer_vocab(b->tokenizer);
    b->token_bytes = b->vocab <= UINT16_IDS ? 2 : 4;
    struct reader_options reader = { .inputs = o->inputs,
                                     .inputs_count = o->inputs_count,
                                     .field = o->field,
                                     .range_lo = o->range_lo,
                                     .range_hi = o->range_hi,
                                     .split = tokenizer_split,
                                     .split_arg = b->tokenizer };
    TRY(reader_open(&b->reader, &reader));
    void *mem;
    TRY(mem_alloc(&mem, pool_threads(b->pool), sizeof(*b->scratch)));
    b->scratch = mem;
    for (uint32_t i = 0; i < pool_threads(b->pool); i++) {
        TRY(tokenizer_scratch_new(&b->scratch[i], b->tokenizer));
    }
    TRY(check_output(b));
    TRY(make_parent(o->prefix));
    struct store_writer_options writer = { .prefix = o->prefix, .token_bytes = b->token_bytes };
    return store_writer_open(&b->writer, &writer);
}

static void release(struct build *b)
{
    store_writer_abandon(b->writer);
    reader_close(b->reader);
    reader_batch_release(&b->batch);
    for (uint32_t i = 0; b->scratch != NULL && i < pool_threads(b->pool); i++) {
        tokenizer_scratch_free(b->scratch[i]);
    }
    free(b->scratch);
    for (size_t i = 0; i < b->chunks_made; i++) {
        tokens_release(&b->chunk[i].tokens);
    }
    free(b->chunk);
    free(b->piece);
}

enum err data_build(const struct build_options *o, const struct tokenizer *t, struct pool *pool,
                    struct build_result *out)
{
    struct build b = { .o = o, .tokenizer = t, .pool = pool, .started_s = log_seconds() };
    *out = (struct build_result){ 0 };
    log_progress_init(&b.progress, 10);
    enum err err;
    TRY_OUT(open_all(&b));
    TRY_OUT(encode_all(&b));
    TRY_OUT(finish(&b));
out:
    log_progress_end(&b.progress);
    b.result.seconds = log_seconds() - b.started_s;
    if (err == OK) {
        report(&b);
    }
    *out = b.result;
    release(&b);
    return err;
}
