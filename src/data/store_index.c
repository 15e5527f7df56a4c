/* Why this exists: an index is a claim of another program about a file; each claim is checked once, with its own
 * message, in memory that does not depend on what the index claims. */
#include "data/store_int.h"

static enum err check_magic(const struct store *s, const unsigned char *head)
{
    if (memcmp(head, STORE_MAGIC, STORE_MAGIC_BYTES) == 0) {
        return OK;
    }
    bool old = memcmp(head, "TNTIDX\0\0", 8) == 0;
    return FAIL(ERR_DATA, "%s: not an MMIDIDX index%s | %s", s->idx_path, old ? " but the old TNTIDX format" : "",
                old ? "tokenise the text again" : "the .idx file of a Megatron dataset begins with MMIDIDX");
}

static enum err check_dtype(struct store *s, unsigned code)
{
    static const uint32_t bytes[9] = {
        [STORE_UINT8] = 1, [STORE_INT16] = 2, [STORE_INT32] = 4, [STORE_INT64] = 8, [STORE_UINT16] = 2
    };
    static const char *const refused[9] = { [2] = "int8", [6] = "float64", [7] = "float32" };
    if (code < 9 && bytes[code] > 0) {
        s->dtype = (enum store_dtype)code;
        s->token_bytes = bytes[code];
        return OK;
    }
    if (code < 9 && refused[code] != NULL) {
        return FAIL(ERR_DATA, "%s: type code %u (%s) is not a token type, 1, 3, 4, 5 or 8 was expected", s->idx_path,
                    code, refused[code]);
    }
    return FAIL(ERR_DATA,
                "%s: type code %u is unknown, 1 (uint8), 3 (int16), 4 (int32), 5 (int64) or 8 (uint16) was "
                "expected",
                s->idx_path, code);
}

static enum err read_head(struct store *s)
{
    unsigned char head[STORE_HEAD_BYTES];
    uint64_t version, need, more;
    if (s->idx.bytes < STORE_HEAD_BYTES) {
        return FAIL(ERR_DATA, "%s: ends at byte %llu, the header alone needs %u | the file was cut; copy it again",
                    s->idx_path, (unsigned long long)s->idx.bytes, STORE_HEAD_BYTES);
    }
    TRY(file_map_copy(&s->idx, 0, sizeof(head), head));
    TRY(check_magic(s, head));
    memcpy(&version, head + 9, 8);
    if (version != STORE_VERSION) {
        return FAIL(ERR_DATA, "%s: version %llu, version %u was expected", s->idx_path, (unsigned long long)version,
                    STORE_VERSION);
    }
    TRY(check_dtype(s, head[17]));
    memcpy(&s->sequences, head + 18, 8);
    memcpy(&s->entries, head + 26, 8);
    unsigned long long n = s->sequences, d = s->entries;
    if (n > INT64_MAX || d > INT64_MAX) {
        return FAIL(ERR_DATA, "%s: claims %lld sequences and %lld document entries; a count cannot be negative",
                    s->idx_path, (long long)n, (long long)d);
    }
    if (__builtin_mul_overflow(s->sequences, 12ull, &need) || __builtin_mul_overflow(s->entries, 8ull, &more) ||
        __builtin_add_overflow(need, more, &need) || __builtin_add_overflow(need, STORE_HEAD_BYTES, &need)) {
        return FAIL(ERR_DATA, "%s: claims %llu sequences and %llu document entries, but the file has %llu bytes",
                    s->idx_path, n, d, (unsigned long long)s->idx.bytes);
    }
    if (need != s->idx.bytes) {
        return FAIL(ERR_DATA, "%s: ends at byte %llu, its %llu sequences and %llu document entries need %llu | %s",
                    s->idx_path, (unsigned long long)s->idx.bytes, n, d, (unsigned long long)need,
                    s->idx.bytes < need ? "the file was cut; copy it again" : "bytes follow the index");
    }
    return OK;
}

/* Why a pointer is what it is: faults of known programs. */
static const char *pointer_hint(int64_t found, uint64_t expected, uint64_t sequence_bytes)
{
    if (found == (int64_t)(int32_t)(uint32_t)expected && expected > INT32_MAX) {
        return " | the program that wrote the index kept 32-bit pointers; write it again";
    }
    if (sequence_bytes > 0 && (uint64_t)found == expected + sequence_bytes) {
        return " | the index holds the end of each sequence instead of its start; write it again";
    }
    return " | the index does not belong to its lengths; write it again";
}

static enum err check_sequence(struct store *s, uint64_t i, int32_t length, int64_t pointer)
{
    uint64_t expected, bytes;
    if (length < 0) {
        return FAIL(ERR_DATA, "%s: length of sequence %llu is %d, it cannot be negative", s->idx_path,
                    (unsigned long long)i, length);
    }
    bytes = (uint64_t)length * s->token_bytes;
    if (__builtin_mul_overflow(s->tokens, (uint64_t)s->token_bytes, &expected) || expected + bytes > INT64_MAX) {
        return FAIL(ERR_DATA, "%s: the lengths up to sequence %llu exceed 2^63 bytes", s->idx_path,
                    (unsigned long long)i);
    }
    if (pointer != (int64_t)expected) {
        return FAIL(ERR_DATA, "%s: pointer %llu is %lld, must be %llu%s", s->idx_path, (unsigned long long)i,
                    (long long)pointer, (unsigned long long)expected, pointer_hint(pointer, expected, bytes));
    }
    s->tokens += (uint64_t)length;
    return OK;
}

static enum err check_sequences(struct store *s)
{
    int32_t length[STORE_WALK_ITEMS];
    int64_t pointer[STORE_WALK_ITEMS];
    for (uint64_t at = 0; at < s->sequences; at += STORE_WALK_ITEMS) {
        uint64_t count = s->sequences - at < STORE_WALK_ITEMS ? s->sequences - at : STORE_WALK_ITEMS;
        TRY(file_map_copy(&s->idx, store_lengths_at(at), 4 * count, length));
        TRY(file_map_copy(&s->idx, store_pointers_at(s, at), 8 * count, pointer));
        for (uint64_t i = 0; i < count; i++) {
            TRY(check_sequence(s, at + i, length[i], pointer[i]));
        }
    }
    return OK;
}

static enum err check_entry(const struct store *s, uint64_t i, int64_t entry, int64_t before)
{
    if (i == 0 && entry != 0) {
        return FAIL(ERR_DATA, "%s: first document boundary %lld, must be 0", s->idx_path, (long long)entry);
    }
    if (i > 0 && entry < before) {
        return FAIL(ERR_DATA,
                    "%s: document index falls from %lld to %lld at entry %llu | files were merged without "
                    "shifting it; write the index again",
                    s->idx_path, (long long)before, (long long)entry, (unsigned long long)i);
    }
    if (entry > (int64_t)s->sequences) {
        return FAIL(ERR_DATA, "%s: document boundary %llu is %lld, there are %llu sequences", s->idx_path,
                    (unsigned long long)i, (long long)entry, (unsigned long long)s->sequences);
    }
    return OK;
}

static enum err check_documents(const struct store *s)
{
    int64_t entry[STORE_WALK_ITEMS], before = 0;
    for (uint64_t at = 0; at < s->entries; at += STORE_WALK_ITEMS) {
        uint64_t count = s->entries - at < STORE_WALK_ITEMS ? s->entries - at : STORE_WALK_ITEMS;
        TRY(file_map_copy(&s->idx, store_entries_at(s, at), 8 * count, entry));
        for (uint64_t i = 0; i < count; i++) {
            TRY(check_entry(s, at + i, entry[i], before));
            before = entry[i];
        }
    }
    if (s->entries == 0 || before != (int64_t)s->sequences) {
        return FAIL(ERR_DATA, "%s: last document boundary %lld, must be %llu", s->idx_path, (long long)before,
                    (unsigned long long)s->sequences);
    }
    if (s->entries - 1 > s->sequences) {
        return FAIL(ERR_DATA, "%s: %llu documents, but only %llu sequences", s->idx_path,
                    (unsigned long long)(s->entries - 1), (unsigned long long)s->sequences);
    }
    return OK;
}

enum err store_check_index(struct store *s)
{
    TRY(read_head(s));
    if (s->sequences == 0) {
        return FAIL(ERR_DATA, "%s: 0 sequences, there is nothing to train on | was the input text empty?", s->idx_path);
    }
    TRY(check_sequences(s));
    TRY(check_documents(s));
    if (s->tokens == 0) {
        return FAIL(ERR_DATA, "%s: %llu sequences but 0 tokens | was the input text empty?", s->idx_path,
                    (unsigned long long)s->sequences);
    }
    return OK;
}
