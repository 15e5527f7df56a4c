/* Why this exists: token files come from other programs, other machines and broken copies, and a wrong index trains on
 * the wrong tokens without any sign. So everything that the two files say about each other is checked when they are
 * opened, with bounded memory, and every later access goes through file_map_copy, which survives a file that changes
 * under a run.
 *
 * Invariants after store_open: pointer[i] = token_bytes * sum of length[0..i), so the joined stream is the .bin itself;
 * tokens * token_bytes = bytes of the .bin; document entries rise from 0 to `sequences`. Ids are checked when read. */
#include "data/store.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "data/store_int.h"

static enum err copy_with_ending(char **out, const char *prefix, const char *ending)
{
    struct buf b = { 0 };
    enum err err = buf_printf(&b, "%s%s", prefix, ending);
    *out = b.data;
    return err;
}

/* PREFIX of a name that may be PREFIX, PREFIX.bin or PREFIX.idx. */
static enum err set_paths(struct store *s, const char *name)
{
    size_t bytes = strlen(name);
    TRY(copy_with_ending(&s->idx_path, name, ".idx"));
    bool named = bytes > 4 && (strcmp(name + bytes - 4, ".idx") == 0 || strcmp(name + bytes - 4, ".bin") == 0);
    if (named && !file_exists(s->idx_path)) {
        bytes -= 4;
    }
    free(s->idx_path);
    s->idx_path = NULL;
    TRY(mem_copy_string(&s->prefix, name, bytes));
    TRY(copy_with_ending(&s->idx_path, s->prefix, ".idx"));
    TRY(copy_with_ending(&s->bin_path, s->prefix, ".bin"));
    return copy_with_ending(&s->info_path, s->prefix, ".json");
}

static enum err open_bin(struct store *s)
{
    unsigned long long need = s->tokens * s->token_bytes;
    if (!file_exists(s->bin_path)) {
        return FAIL(ERR_IO, "%s: no such file, the index needs one of %llu bytes | an .idx and its .bin go together",
                    s->bin_path, need);
    }
    TRY(file_map_open(&s->bin, s->bin_path));
    if (s->bin.bytes != need) {
        return FAIL(ERR_DATA, "%s: has %llu bytes, the index needs %llu | %s", s->bin_path,
                    (unsigned long long)s->bin.bytes, need,
                    s->bin.bytes < need ? "the file was cut, or the index is of another dataset"
                                        : "the index is of another dataset");
    }
    return OK;
}

enum err store_open(struct store **out, const char *prefix)
{
    void *mem;
    *out = NULL;
    TRY(mem_alloc(&mem, 1, sizeof(struct store)));
    struct store *s = mem;
    enum err err;
    TRY_OUT(set_paths(s, prefix));
    TRY_OUT(file_map_open(&s->idx, s->idx_path));
    TRY_OUT(store_check_index(s));
    TRY_OUT(open_bin(s));
    *out = s;
    return OK;
out:
    store_close(s);
    return err;
}

void store_close(struct store *s)
{
    if (s == NULL) {
        return;
    }
    file_map_close(&s->bin);
    file_map_close(&s->idx);
    free(s->prefix);
    free(s->bin_path);
    free(s->idx_path);
    free(s->info_path);
    free(s);
}

uint64_t store_tokens(const struct store *s)
{
    return s->tokens;
}

uint64_t store_sequences(const struct store *s)
{
    return s->sequences;
}

uint64_t store_documents(const struct store *s)
{
    return s->entries - 1;
}

uint32_t store_token_bytes(const struct store *s)
{
    return s->token_bytes;
}

enum err store_sequence(const struct store *s, uint64_t i, uint64_t *first, uint64_t *end)
{
    int32_t length;
    int64_t pointer;
    *first = *end = 0;
    BUG_IF(i >= s->sequences);
    TRY(file_map_copy(&s->idx, store_lengths_at(i), 4, &length));
    TRY(file_map_copy(&s->idx, store_pointers_at(s, i), 8, &pointer));
    *first = (uint64_t)pointer / s->token_bytes;
    *end = *first + (uint64_t)length;
    return OK;
}

/* ---- lengths ---- */

/* Sequences no longer than `limit`. */
static enum err count_up_to(const struct store *s, int32_t limit, uint64_t *out)
{
    int32_t length[STORE_WALK_ITEMS];
    *out = 0;
    for (uint64_t at = 0; at < s->sequences; at += STORE_WALK_ITEMS) {
        uint64_t count = s->sequences - at < STORE_WALK_ITEMS ? s->sequences - at : STORE_WALK_ITEMS;
        TRY(file_map_copy(&s->idx, store_lengths_at(at), 4 * count, length));
        for (uint64_t i = 0; i < count; i++) {
            *out += length[i] <= limit;
        }
    }
    return OK;
}

/* The length of rank `rank` (from 0) in ascending order: by halving the range of values, which needs no memory. */
static enum err length_of_rank(const struct store *s, uint64_t rank, uint64_t *out)
{
    int32_t lo = 0, hi = INT32_MAX;
    while (lo < hi) {
        int32_t middle = lo + (hi - lo) / 2;
        uint64_t below;
        TRY(count_up_to(s, middle, &below));
        if (below > rank) {
            hi = middle;
        } else {
            lo = middle + 1;
        }
    }
    *out = (uint64_t)lo;
    return OK;
}

enum err store_lengths(const struct store *s, struct store_lengths *out)
{
    *out = (struct store_lengths){ 0 };
    TRY(length_of_rank(s, 0, &out->least));
    TRY(length_of_rank(s, (s->sequences - 1) / 2, &out->median));
    TRY(length_of_rank(s, s->sequences - 1, &out->most));
    uint64_t before = 0;
    for (int k = 0; k < 33; k++) {
        uint64_t upto = s->sequences;
        if (k < 32) {
            TRY(count_up_to(s, (int32_t)(((uint32_t)1 << k) - 1), &upto));
        }
        out->bucket[k] = upto - before;
        before = upto;
    }
    return OK;
}

/* ---- tokens ---- */

/* The sequence that holds a position: the last one that does not begin after it. */
static enum err find_sequence(const struct store *s, uint64_t position, uint64_t *sequence, uint64_t *first)
{
    uint64_t lo = 0, hi = s->sequences - 1, end;
    while (lo < hi) {
        uint64_t middle = lo + (hi - lo + 1) / 2;
        TRY(store_sequence(s, middle, first, &end));
        if (*first <= position) {
            lo = middle;
        } else {
            hi = middle - 1;
        }
    }
    *sequence = lo;
    return store_sequence(s, lo, first, &end);
}

static enum err fail_id(const struct store *s, uint64_t position, int64_t id, uint64_t vocab)
{
    uint64_t sequence, first;
    TRY(find_sequence(s, position, &sequence, &first));
    unsigned long long i = sequence, in = position - first, flat = position;
    if (vocab == 0 || id < 0) {
        return FAIL(ERR_DATA,
                    "%s: sequence %llu, position %llu: token id %lld is no token id (position %llu of the stream)",
                    s->bin_path, i, in, (long long)id, flat);
    }
    return FAIL(ERR_DATA,
                "%s: sequence %llu, position %llu: token id %lld is not below the vocabulary %llu (position %llu "
                "of the stream) | the data were made with another tokenizer",
                s->bin_path, i, in, (long long)id, (unsigned long long)vocab, flat);
}

/* Raw tokens to int32, ids that int32 cannot hold to -1. */
static void widen(enum store_dtype dtype, const void *raw, uint64_t count, int32_t *out)
{
    switch (dtype) {
    case STORE_UINT8:
        for (uint64_t i = 0; i < count; i++) {
            out[i] = ((const uint8_t *)raw)[i];
        }
        break;
    case STORE_UINT16:
        for (uint64_t i = 0; i < count; i++) {
            out[i] = ((const uint16_t *)raw)[i];
        }
        break;
    case STORE_INT16:
        for (uint64_t i = 0; i < count; i++) {
            out[i] = ((const int16_t *)raw)[i];
        }
        break;
    case STORE_INT32:
        memcpy(out, raw, 4 * count);
        break;
    case STORE_INT64:
        for (uint64_t i = 0; i < count; i++) {
            int64_t id = ((const int64_t *)raw)[i];
            out[i] = id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
        }
        break;
    }
}

/* The id as stored, for the message about it. */
static int64_t stored_id(enum store_dtype dtype, const void *raw, uint64_t i, int32_t id)
{
    return dtype == STORE_INT64 ? ((const int64_t *)raw)[i] : id;
}

/* Tokens [first, first + count), count <= STORE_WALK_ITEMS: the stored bytes to `raw`, the checked ids to `out`. */
static enum err read_block(const struct store *s, uint64_t first, uint64_t count, uint64_t vocab, void *raw,
                           int32_t *out)
{
    uint32_t limit = vocab > 0 && vocab <= INT32_MAX ? (uint32_t)vocab : (uint32_t)INT32_MAX + 1;
    TRY(file_map_copy(&s->bin, first * s->token_bytes, count * s->token_bytes, raw));
    widen(s->dtype, raw, count, out);
    for (uint64_t i = 0; i < count; i++) {
        if ((uint32_t)out[i] >= limit) { /* also negative ids */
            return fail_id(s, first + i, stored_id(s->dtype, raw, i, out[i]), vocab);
        }
    }
    return OK;
}

enum err store_read(const struct store *s, uint64_t first, uint64_t count, uint64_t vocab, int32_t *out)
{
    int64_t raw[STORE_WALK_ITEMS];
    if (first > s->tokens || count > s->tokens - first) {
        return FAIL(ERR_DATA, "%s: tokens %llu to %llu were asked for, there are %llu", s->bin_path,
                    (unsigned long long)first, (unsigned long long)(first + count), (unsigned long long)s->tokens);
    }
    while (count > 0) {
        uint64_t block = count < STORE_WALK_ITEMS ? count : STORE_WALK_ITEMS;
        TRY(read_block(s, first, block, vocab, raw, out));
        first += block;
        count -= block;
        out += block;
    }
    return OK;
}

enum err store_scan(const struct store *s, uint64_t vocab, char content[33], int32_t *most)
{
    int64_t raw[STORE_WALK_ITEMS];
    int32_t id[STORE_WALK_ITEMS];
    struct hash_stream *hash = hash_stream_begin();
    *most = 0;
    if (hash == NULL) {
        return FAIL(ERR_RESOURCE, "%s: no memory for the hash", s->bin_path);
    }
    enum err err = OK;
    for (uint64_t at = 0; at < s->tokens && err == OK; at += STORE_WALK_ITEMS) {
        uint64_t count = s->tokens - at < STORE_WALK_ITEMS ? s->tokens - at : STORE_WALK_ITEMS;
        err = read_block(s, at, count, vocab, raw, id);
        if (err == OK) {
            hash_stream_add(hash, raw, count * s->token_bytes);
            for (uint64_t i = 0; i < count; i++) {
                *most = id[i] > *most ? id[i] : *most;
            }
        }
    }
    hash_stream_end(hash, content);
    return err;
}

/* Ids a stored width can hold, as far as int32 can hold them too. */
static const struct {
    const char *name;
    uint64_t ids;
} width[9] = { [STORE_UINT8] = { "uint8", 1u << 8 },
               [STORE_INT16] = { "int16", 1u << 15 },
               [STORE_INT32] = { "int32", 1u << 31 },
               [STORE_INT64] = { "int64", 1u << 31 },
               [STORE_UINT16] = { "uint16", 1u << 16 } };

const char *store_token_type(const struct store *s)
{
    return width[s->dtype].name;
}

enum err store_check_width(const struct store *s, uint64_t vocab)
{
    if (vocab > width[s->dtype].ids) {
        return FAIL(ERR_DATA,
                    "%s: tokens are %s, which cannot hold a vocabulary of %llu (at most %llu) | the data were made "
                    "with another tokenizer; tokenise the text again",
                    s->bin_path, width[s->dtype].name, (unsigned long long)vocab,
                    (unsigned long long)width[s->dtype].ids);
    }
    return OK;
}

/* ---- PREFIX.json ---- */

static enum err info_number(const struct store *s, const json_t *root, const char *name, uint64_t *out)
{
    const json_t *v = json_object_get(root, name);
    if (!json_is_integer(v) || json_integer_value(v) < 0) {
        return FAIL(ERR_DATA, "%s: field \"%s\": a whole number was expected | build the data again", s->info_path,
                    name);
    }
    *out = (uint64_t)json_integer_value(v);
    return OK;
}

static enum err info_hash(const struct store *s, const json_t *root, const char *name, char out[33])
{
    const json_t *v = json_object_get(root, name);
    size_t bytes = json_is_string(v) ? json_string_length(v) : 0;
    if (bytes != 32 || strspn(json_string_value(v), "0123456789abcdef") != 32) {
        return FAIL(ERR_DATA, "%s: field \"%s\": 32 hexadecimal digits were expected | build the data again",
                    s->info_path, name);
    }
    memcpy(out, json_string_value(v), 33);
    return OK;
}

static enum err check_info_format(const struct store *s, const json_t *root)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    uint64_t version = 0;
    if (format == NULL || strcmp(format, INFO_FORMAT) != 0) {
        return FAIL(ERR_DATA, "%s: not what `invar data build` writes beside a store (\"format\": \"" INFO_FORMAT
                    "\") | move it away: a store needs no .json", s->info_path);
    }
    TRY(info_number(s, root, "version", &version));
    if (version != INFO_VERSION) {
        return FAIL(ERR_DATA, "%s: version %llu, version %d was expected | another invar wrote it: build the data anew",
                    s->info_path, (unsigned long long)version, INFO_VERSION);
    }
    return OK;
}

enum err store_info(const struct store *s, struct store_info *out)
{
    *out = (struct store_info){ 0 };
    if (!file_exists(s->info_path)) {
        return OK;
    }
    json_t *root;
    uint64_t tokens = 0;
    TRY(json_read_file(&root, s->info_path, INFO_BYTES_MAX));
    enum err err;
    TRY_OUT(check_info_format(s, root));
    TRY_OUT(info_number(s, root, "tokens", &tokens));
    if (tokens != s->tokens) {
        err = FAIL(ERR_DATA, "%s: is about %llu tokens, the .bin has %llu | the files are of different builds",
                   s->info_path, (unsigned long long)tokens, (unsigned long long)s->tokens);
        goto out;
    }
    TRY_OUT(info_number(s, root, "text_bytes", &out->text_bytes));
    TRY_OUT(info_number(s, root, "vocab", &out->vocab));
    TRY_OUT(info_hash(s, root, "tokenizer", out->tokenizer));
    TRY_OUT(info_hash(s, root, "content", out->content));
out:
    json_decref(root);
    return err;
}

enum err store_check_vocab(const struct store *s, uint64_t vocab)
{
    struct store_info info;
    TRY(store_check_width(s, vocab));
    TRY(store_info(s, &info));
    if (info.vocab > vocab) {
        return FAIL(ERR_DATA, "%s: the tokens are of a vocabulary of %llu ids, the model has %llu | the data were made "
                              "with another tokenizer; tokenise the text again", s->info_path,
                    (unsigned long long)info.vocab, (unsigned long long)vocab);
    }
    return OK;
}
