/* Why this exists: a store is complete or absent. The .bin grows as tokens come; the index needs all counts first, so
 * the lengths of the documents wait in a file of their own and memory stays constant for any number of documents.
 *
 * Invariants: `hash` and `tokens` cover exactly the bytes given to `bin`; PREFIX.json is the last file to appear, and
 * an old one is removed before the new pair takes its place, so it never vouches for other tokens. */
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "data/store_int.h"

enum writer_path { PATH_BIN, PATH_BIN_TMP, PATH_IDX, PATH_IDX_TMP, PATH_LENGTHS_TMP, PATH_INFO, PATHS };

struct store_writer {
    char *path[PATHS];
    struct file_out bin, lengths; /* lengths: uint64 tokens of each document */
    struct hash_stream *hash;
    uint32_t token_bytes;
    uint64_t sequence_tokens;
    uint64_t tokens, documents, sequences;
    uint64_t open_tokens; /* of the document that is being written */
};

static enum err set_paths(struct store_writer *w, const char *prefix)
{
    static const char *const ending[PATHS] = {
        [PATH_BIN] = ".bin",         [PATH_BIN_TMP] = ".bin.tmp",         [PATH_IDX] = ".idx",
        [PATH_IDX_TMP] = ".idx.tmp", [PATH_LENGTHS_TMP] = ".lengths.tmp", [PATH_INFO] = ".json",
    };
    for (int i = 0; i < PATHS; i++) {
        struct buf b = { 0 };
        enum err err = buf_printf(&b, "%s%s", prefix, ending[i]);
        w->path[i] = b.data;
        TRY(err);
    }
    return OK;
}

enum err store_writer_open(struct store_writer **out, const struct store_writer_options *o)
{
    void *mem;
    *out = NULL;
    BUG_IF(o->token_bytes != 2 && o->token_bytes != 4);
    TRY(mem_alloc(&mem, 1, sizeof(struct store_writer)));
    struct store_writer *w = mem;
    w->token_bytes = o->token_bytes;
    w->sequence_tokens = o->sequence_tokens > 0 ? o->sequence_tokens : INT32_MAX;
    enum err err;
    TRY_OUT(set_paths(w, o->prefix));
    TRY_OUT(file_out_open(&w->bin, w->path[PATH_BIN_TMP]));
    TRY_OUT(file_out_open(&w->lengths, w->path[PATH_LENGTHS_TMP]));
    w->hash = hash_stream_begin();
    if (w->hash == NULL) {
        err = FAIL(ERR_RESOURCE, "%s: no memory for the hash", w->path[PATH_BIN]);
        goto out;
    }
    *out = w;
    return OK;
out:
    store_writer_abandon(w);
    return err;
}

void store_writer_abandon(struct store_writer *w)
{
    char unused[33];
    if (w == NULL) {
        return;
    }
    file_out_abandon(&w->bin);
    file_out_abandon(&w->lengths);
    if (w->hash != NULL) {
        hash_stream_end(w->hash, unused);
    }
    static const enum writer_path temporary[] = { PATH_BIN_TMP, PATH_IDX_TMP, PATH_LENGTHS_TMP };
    for (size_t i = 0; i < sizeof(temporary) / sizeof(temporary[0]); i++) {
        if (w->path[temporary[i]] != NULL) {
            unlink(w->path[temporary[i]]);
        }
    }
    for (int i = 0; i < PATHS; i++) {
        free(w->path[i]);
    }
    free(w);
}

enum err store_writer_add(struct store_writer *w, const void *tokens, size_t count)
{
    file_out_write(&w->bin, tokens, count * w->token_bytes);
    hash_stream_add(w->hash, tokens, count * w->token_bytes);
    w->tokens += count;
    w->open_tokens += count;
    return w->bin.err;
}

enum err store_writer_end_document(struct store_writer *w, bool *stored)
{
    *stored = w->open_tokens > 0;
    if (*stored) {
        file_out_write(&w->lengths, &w->open_tokens, sizeof(w->open_tokens));
        w->documents++;
        w->sequences += (w->open_tokens - 1) / w->sequence_tokens + 1;
        w->open_tokens = 0;
    }
    return w->lengths.err;
}

uint64_t store_writer_tokens(const struct store_writer *w)
{
    return w->tokens;
}

uint64_t store_writer_documents(const struct store_writer *w)
{
    return w->documents;
}

/* ---- the index ---- */

enum index_part { INDEX_LENGTHS, INDEX_POINTERS, INDEX_DOCUMENTS };

struct index_state {
    uint64_t sequence, byte;
};

/* What one document adds to one part of the index. */
static void write_document(const struct store_writer *w, struct file_out *f, enum index_part part, uint64_t tokens,
                           struct index_state *at)
{
    for (uint64_t left = tokens; left > 0;) {
        uint64_t count = left < w->sequence_tokens ? left : w->sequence_tokens;
        int32_t length = (int32_t)count;
        if (part == INDEX_LENGTHS) {
            file_out_write(f, &length, sizeof(length));
        } else if (part == INDEX_POINTERS) {
            file_out_write(f, &at->byte, sizeof(at->byte));
        }
        at->byte += count * w->token_bytes;
        at->sequence++;
        left -= count;
    }
    if (part == INDEX_DOCUMENTS) {
        file_out_write(f, &at->sequence, sizeof(at->sequence));
    }
}

static enum err write_part(const struct store_writer *w, const struct file_map *lengths, struct file_out *f,
                           enum index_part part)
{
    uint64_t tokens[STORE_WALK_ITEMS];
    struct index_state at = { 0 };
    if (part == INDEX_DOCUMENTS) {
        file_out_write(f, &at.sequence, sizeof(at.sequence));
    }
    for (uint64_t i = 0; i < w->documents; i += STORE_WALK_ITEMS) {
        uint64_t count = w->documents - i < STORE_WALK_ITEMS ? w->documents - i : STORE_WALK_ITEMS;
        TRY(file_map_copy(lengths, 8 * i, 8 * count, tokens));
        for (uint64_t k = 0; k < count; k++) {
            write_document(w, f, part, tokens[k], &at);
        }
    }
    return f->err;
}

static enum err write_index(const struct store_writer *w)
{
    struct file_map lengths = { 0 };
    struct file_out f = { .fd = -1 };
    uint64_t version = STORE_VERSION, entries = w->documents + 1;
    unsigned char dtype = w->token_bytes == 2 ? STORE_UINT16 : STORE_INT32;
    enum err err;
    TRY_OUT(file_map_open(&lengths, w->path[PATH_LENGTHS_TMP]));
    TRY_OUT(file_out_open(&f, w->path[PATH_IDX_TMP]));
    file_out_write(&f, STORE_MAGIC, STORE_MAGIC_BYTES);
    file_out_write(&f, &version, sizeof(version));
    file_out_write(&f, &dtype, sizeof(dtype));
    file_out_write(&f, &w->sequences, sizeof(w->sequences));
    file_out_write(&f, &entries, sizeof(entries));
    TRY_OUT(write_part(w, &lengths, &f, INDEX_LENGTHS));
    TRY_OUT(write_part(w, &lengths, &f, INDEX_POINTERS));
    TRY_OUT(write_part(w, &lengths, &f, INDEX_DOCUMENTS));
    TRY_OUT(file_out_close(&f));
out:
    file_out_abandon(&f);
    file_map_close(&lengths);
    return err;
}

enum err store_writer_finish(struct store_writer *w, char content[33])
{
    BUG_IF(w->open_tokens > 0);
    hash_stream_end(w->hash, content);
    w->hash = NULL;
    TRY(file_out_close(&w->bin));
    TRY(file_out_close(&w->lengths));
    return write_index(w);
}

enum err store_writer_publish(struct store_writer *w, const struct buf *info)
{
    enum err err;
    unlink(w->path[PATH_INFO]);
    TRY_OUT(file_rename(w->path[PATH_BIN_TMP], w->path[PATH_BIN]));
    TRY_OUT(file_rename(w->path[PATH_IDX_TMP], w->path[PATH_IDX]));
    TRY_OUT(file_replace(w->path[PATH_INFO], info->data, info->bytes));
out:
    if (err != OK && !file_exists(w->path[PATH_BIN_TMP])) { /* else the pair that was there is untouched */
        unlink(w->path[PATH_BIN]);
        unlink(w->path[PATH_IDX]);
    }
    store_writer_abandon(w);
    return err;
}
