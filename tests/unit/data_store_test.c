/* data: the token store and the sampler. */
#include "data/sampler.h"
#include "data/store_int.h"
#include "data_fixture.h"

/* An index in memory: filled in by hand so that each field can be wrong. */
struct index_spec {
    const char *magic;
    uint64_t version;
    uint8_t dtype;
    uint64_t sequences, entries;
    int32_t length[8];
    int64_t pointer[8];
    int64_t entry[9];
};

static struct index_spec good_index(void)
{
    return (struct index_spec){ .magic = STORE_MAGIC,
                                .version = 1,
                                .dtype = 8,
                                .sequences = 5,
                                .entries = 6,
                                .length = { 5, 3, 7, 2, 6 },
                                .pointer = { 0, 10, 16, 30, 34 },
                                .entry = { 0, 1, 2, 3, 4, 5 } };
}

/* Writes the index with the first five lengths and pointers and six entries at most, and a .bin of `bin_bytes`. */
static void put_pair(const char *prefix, const struct index_spec *x, size_t bin_bytes)
{
    struct buf b = { 0 };
    char path[1200];
    size_t n = x->sequences < 8 ? (size_t)x->sequences : 5, d = x->entries < 9 ? (size_t)x->entries : 6;
    assert_ok(buf_add(&b, x->magic, 9));
    assert_ok(buf_add(&b, &x->version, 8));
    assert_ok(buf_add(&b, &x->dtype, 1));
    assert_ok(buf_add(&b, &x->sequences, 8));
    assert_ok(buf_add(&b, &x->entries, 8));
    assert_ok(buf_add(&b, x->length, 4 * n));
    assert_ok(buf_add(&b, x->pointer, 8 * n));
    assert_ok(buf_add(&b, x->entry, 8 * d));
    snprintf(path, sizeof(path), "%s.idx", prefix);
    put(path, b.data, b.bytes);
    unsigned char bin[4096];
    for (size_t i = 0; i < bin_bytes; i++) {
        bin[i] = i % 2 == 0 ? (unsigned char)(i / 2) : 0;
    }
    snprintf(path, sizeof(path), "%s.bin", prefix);
    put(path, bin, bin_bytes);
    buf_release(&b);
}

static void refused(const struct index_spec *x, size_t bin_bytes, const char *part)
{
    struct store *s;
    put_pair(at("bad"), x, bin_bytes);
    assert_fails(ERR_DATA, part, store_open(&s, at("bad")));
    assert_null(s);
}

/* ---- the store: damage ---- */

static void store_refuses_each_damage_of_the_header(void **state)
{
    (void)state;
    struct index_spec x = good_index();
    x.magic = "TNTIDX\0\0";
    refused(&x, 46, "not an MMIDIDX index but the old TNTIDX format");
    x.magic = "ABCDEFGHI";
    refused(&x, 46, "not an MMIDIDX index");
    x = good_index();
    x.version = 2;
    refused(&x, 46, "version 2, version 1 was expected");
    x = good_index();
    x.dtype = 42;
    refused(&x, 46, "type code 42 is unknown");
    x.dtype = 7;
    refused(&x, 46, "type code 7 (float32) is not a token type");
    x.dtype = 0;
    refused(&x, 46, "type code 0 is unknown");
    x = good_index();
    x.sequences = (uint64_t)1 << 40;
    refused(&x, 46, "ends at byte 142, its 1099511627776 sequences and 6 document entries need 13194139533394");
    x.sequences = (uint64_t)1 << 62;
    refused(&x, 46, "claims 4611686018427387904 sequences and 6 document entries, but the file has 142 bytes");
    x.sequences = (uint64_t)-1;
    refused(&x, 46, "claims -1 sequences");
    x = good_index();
    x.entries = (uint64_t)1 << 62;
    refused(&x, 46, "claims 5 sequences and 4611686018427387904 document entries");
    x = good_index();
    x.entries = 7;
    refused(&x, 46, "document index falls from 5 to 0 at entry 6"); /* the seventh entry is 0 */
    x = good_index();
    x.sequences = 0;
    x.entries = 1;
    refused(&x, 0, "0 sequences");
}

static void store_refuses_each_damage_of_the_entries(void **state)
{
    (void)state;
    struct index_spec x = good_index();
    x.length[2] = -7;
    refused(&x, 46, "length of sequence 2 is -7");
    x = good_index();
    x.pointer[3] = -30;
    refused(&x, 46, "pointer 3 is -30, must be 30");
    x = good_index();
    x.pointer[3] = 31;
    refused(&x, 46, "pointer 3 is 31, must be 30");
    x = good_index();
    x.entry[0] = 1;
    refused(&x, 46, "first document boundary 1, must be 0");
    x = good_index();
    x.entry[2] = 4;
    refused(&x, 46, "document index falls from 4 to 3 at entry 3");
    x = good_index();
    x.entry[5] = 4;
    refused(&x, 46, "last document boundary 4, must be 5");
    x = good_index();
    x.entry[5] = 6;
    refused(&x, 46, "document boundary 5 is 6, there are 5 sequences");
    x = good_index();
    x.entries = 8;
    memcpy(x.entry, (int64_t[]){ 0, 1, 1, 2, 3, 4, 4, 5 }, sizeof(int64_t[8]));
    refused(&x, 46, "7 documents, but only 5 sequences");
    x.entries = 0;
    refused(&x, 46, "last document boundary 0, must be 5");
    x = good_index();
    memset(x.length, 0, sizeof(x.length));
    memset(x.pointer, 0, sizeof(x.pointer));
    refused(&x, 0, "5 sequences but 0 tokens");
    x = good_index();
    refused(&x, 24, "has 24 bytes, the index needs 46 | the file was cut");
    refused(&x, 48, "has 48 bytes, the index needs 46 | the index is of another dataset");
}

static void store_refuses_an_index_cut_at_every_byte(void **state)
{
    (void)state;
    struct index_spec x = good_index();
    struct store *s;
    put_pair(at("whole"), &x, 46);
    struct buf idx = { 0 }, bin = { 0 };
    get(at("whole.idx"), &idx);
    get(at("whole.bin"), &bin);
    put(at("cut.bin"), bin.data, bin.bytes);
    for (size_t n = 0; n < idx.bytes; n++) {
        char expected[64];
        snprintf(expected, sizeof(expected), "ends at byte %zu", n);
        put(at("cut.idx"), idx.data, n);
        assert_fails(ERR_DATA, expected, store_open(&s, at("cut")));
    }
    assert_ok(buf_add(&idx, "x", 1));
    put(at("cut.idx"), idx.data, idx.bytes);
    assert_fails(ERR_DATA, "ends at byte 143, its 5 sequences and 6 document entries need 142",
                 store_open(&s, at("cut")));
    unlink(at("whole.bin"));
    assert_fails(ERR_IO, "whole.bin: no such file, the index needs one of 46 bytes", store_open(&s, at("whole")));
    unlink(at("whole.idx"));
    assert_fails(ERR_IO, "whole.idx: cannot be opened", store_open(&s, at("whole")));
    buf_release(&idx);
    buf_release(&bin);
}

/* Whatever bit of the index is wrong, opening and reading end with an answer; run under a sanitizer this is the proof
 * that no count or pointer is believed. */
static void store_gives_an_answer_for_every_flipped_bit(void **state)
{
    (void)state;
    struct index_spec x = good_index();
    struct buf idx = { 0 };
    struct store *s;
    unsigned accepted = 0;
    put_pair(at("flip"), &x, 46);
    get(at("flip.idx"), &idx);
    for (size_t bit = 0; bit < idx.bytes * 8; bit++) {
        idx.data[bit / 8] ^= (char)(1 << bit % 8);
        put(at("flip.idx"), idx.data, idx.bytes);
        enum err err = store_open(&s, at("flip"));
        assert_true(err == OK || err == ERR_DATA);
        if (err == OK) {
            int32_t id[23];
            struct store_lengths l;
            uint64_t n = store_tokens(s);
            assert_true(n <= 23 && store_sequences(s) == 5);
            enum err read = store_read(s, 0, n, 0, id);
            assert_true(read == OK || read == ERR_DATA);
            assert_ok(store_lengths(s, &l));
            accepted++;
        }
        store_close(s);
        idx.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_true(accepted < 16); /* document boundaries that move by one sequence, and uint16 read as int16 */
    buf_release(&idx);
}

static void store_names_32_bit_and_inclusive_pointers(void **state)
{
    (void)state;
    struct index_spec x = good_index();
    memcpy(x.pointer, (int64_t[]){ 10, 16, 30, 34, 46 }, sizeof(int64_t[5]));
    refused(&x, 46, "pointer 0 is 10, must be 0 | the index holds the end");
    x = (struct index_spec){ .magic = STORE_MAGIC,
                             .version = 1,
                             .dtype = 8,
                             .sequences = 3,
                             .entries = 4,
                             .length = { 1100000000, 1100000000, 1100000000 },
                             .pointer = { 0, -2094967296, 105032704 },
                             .entry = { 0, 1, 2, 3 } };
    refused(&x, 0,
            "pointer 1 is -2094967296, must be 2200000000 | the program that wrote the index kept 32-bit pointers");
    memcpy(x.pointer, (int64_t[]){ 0, 2200000000, 4400000000 }, sizeof(int64_t[3]));
    refused(&x, 0, "has 0 bytes, the index needs 6600000000");
    assert_int_equal(truncate(at("bad.bin"), 6600000000), 0); /* sparse */
    struct store *s;
    uint64_t first, end;
    assert_ok(store_open(&s, at("bad")));
    assert_ok(store_sequence(s, 2, &first, &end));
    assert_int_equal(first, 2200000000);
    assert_int_equal(end, 3300000000);
    int32_t id = -1;
    assert_ok(store_read(s, end - 1, 1, 100, &id));
    assert_int_equal(id, 0);
    store_close(s);
    unlink(at("bad.bin"));
}

static void store_reads_the_cases_of_real_faults_as_expected(void **state)
{
    (void)state;
    static const struct {
        const char *prefix, *part;
    } row[] = {
        { "cases/I43/wrapped", "pointer 1 is -2094967296, must be 2200000000" },
        { "cases/I45/inclusive", "pointer 0 is 10, must be 0" },
        { "cases/I45/docs", "document index falls from 3 to 0 at entry 4" },
        { "cases/I45/docend", "last document boundary 4, must be 5" },
        { "cases/I46/empty", "0 sequences" },
        { "cases/I46/half", "has 24 bytes, the index needs 46" },
        { "cases/I46/cut", "ends at byte 60, its 5 sequences and 6 document entries need 142" },
        { "cases/I46/magic", "old TNTIDX format" },
        { "cases/I46/dtype", "type code 42 is unknown" },
        { "cases/I46/huge", "its 1099511627776 sequences" },
    };
    need_shared("cases/I45");
    struct store *s;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        assert_fails(ERR_DATA, row[i].part, store_open(&s, shared(row[i].prefix)));
    }
    assert_ok(store_open(&s, shared("cases/I45/good.idx")));
    assert_int_equal(store_sequences(s), 5);
    assert_int_equal(store_tokens(s), 23);
    assert_int_equal(store_token_bytes(s), 2);
    store_close(s);
    assert_ok(store_open(&s, shared("cases/I47/oob")));
    int32_t id[10];
    assert_ok(store_read(s, 0, 10, 0, id));
    assert_ok(store_read(s, 0, 8, 32000, id));
    assert_fails(ERR_DATA, "sequence 3, position 0: token id 32000 is not below the vocabulary 32000 (position 8",
                 store_read(s, 0, 10, 32000, id));
    assert_fails(ERR_DATA, "uint16, which cannot hold a vocabulary of 128256", store_check_vocab(s, 128256));
    assert_ok(store_check_vocab(s, 65536));
    store_close(s);
    assert_fails(ERR_DATA, "token id 32000 is not below", data_verify(shared("cases/I47/oob"), 32000));
}

static void store_reads_datasets_of_megatron(void **state)
{
    (void)state;
    const char *prefix = "assets/tensors/megatron-data/meg-gpt2-openwebtext_text_document";
    char idx[256];
    snprintf(idx, sizeof(idx), "%s.idx", prefix);
    need_shared(idx);
    struct store *s;
    uint64_t first, end;
    assert_ok(store_open(&s, shared(prefix)));
    assert_int_equal(store_sequences(s), 1000);
    assert_int_equal(store_documents(s), 1000);
    assert_int_equal(store_tokens(s), 2723690 / 2);
    assert_ok(store_sequence(s, 1, &first, &end));
    assert_int_equal(first, 1411);
    assert_int_equal(end, 1411 + 918);
    struct store_info info;
    assert_ok(store_info(s, &info));
    assert_int_equal(info.text_bytes, 0);
    assert_string_equal(info.tokenizer, "");
    struct store_lengths lengths;
    assert_ok(store_lengths(s, &lengths));
    assert_true(lengths.least <= lengths.median && lengths.median <= lengths.most);
    uint64_t sum = 0;
    for (int k = 0; k < 33; k++) {
        sum += lengths.bucket[k];
    }
    assert_int_equal(sum, 1000);
    store_close(s);
    assert_ok(data_verify(shared(prefix), 50257));
    assert_fails(ERR_DATA, "is not below the vocabulary 100 ", data_verify(shared(prefix), 100));
}

/* ---- the store: reading ---- */

static void store_reads_every_integer_width_and_refuses_what_is_no_id(void **state)
{
    (void)state;
    static const uint8_t code[] = { 1, 3, 4, 5, 8 };
    static const size_t width[] = { 1, 2, 4, 8, 2 };
    for (size_t k = 0; k < 5; k++) {
        struct index_spec x = good_index();
        x.dtype = code[k];
        for (size_t i = 0, sum = 0; i < 5; i++) {
            x.pointer[i] = (int64_t)(sum * width[k]);
            sum += (size_t)x.length[i];
        }
        put_pair(at("width"), &x, 23 * width[k]);
        unsigned char bin[23 * 8] = { 0 };
        for (size_t i = 0; i < 23; i++) {
            bin[i * width[k]] = (unsigned char)(i + 100);
        }
        put(at("width.bin"), bin, 23 * width[k]);
        struct store *s;
        int32_t id[23];
        assert_ok(store_open(&s, at("width")));
        assert_ok(store_read(s, 0, 23, 123, id));
        for (int32_t i = 0; i < 23; i++) {
            assert_int_equal(id[i], i + 100);
        }
        assert_fails(ERR_DATA, "sequence 4, position 5: token id 122", store_read(s, 0, 23, 122, id));
        assert_fails(ERR_DATA, "tokens 20 to 24 were asked for, there are 23", store_read(s, 20, 4, 0, id));
        assert_fails(ERR_DATA, "were asked for", store_read(s, UINT64_MAX, 2, 0, id));
        assert_ok(store_read(s, 23, 0, 0, id));
        store_close(s);
        if (code[k] == 3 || code[k] == 4 || code[k] == 5) {
            memset(bin + 5 * width[k], 0xff, width[k]);
            put(at("width.bin"), bin, 23 * width[k]);
            assert_ok(store_open(&s, at("width")));
            assert_fails(ERR_DATA, "sequence 1, position 0: token id -1 is no token id", store_read(s, 0, 23, 0, id));
            store_close(s);
        }
        if (code[k] == 5) { /* 2^32 + 105 would be 105 in 32 bits */
            memset(bin + 5 * width[k], 0, width[k]);
            bin[5 * width[k]] = 105;
            bin[5 * width[k] + 4] = 1;
            put(at("width.bin"), bin, 23 * width[k]);
            assert_ok(store_open(&s, at("width")));
            assert_fails(ERR_DATA, "position 0: token id 4294967401 is not below the vocabulary 200",
                         store_read(s, 0, 23, 200, id));
            store_close(s);
        }
    }
}

static void store_finds_the_sequence_of_a_bad_id_across_empty_sequences(void **state)
{
    (void)state;
    struct index_spec x = good_index();
    x.sequences = 6;
    x.entries = 7;
    memcpy(x.length, (int32_t[]){ 0, 3, 0, 0, 2, 0 }, sizeof(int32_t[6]));
    memcpy(x.pointer, (int64_t[]){ 0, 0, 6, 6, 6, 10 }, sizeof(int64_t[6]));
    x.entry[6] = 6;
    put_pair(at("empty"), &x, 10);
    struct store *s;
    int32_t id[5];
    assert_ok(store_open(&s, at("empty")));
    assert_fails(ERR_DATA, "sequence 1, position 1", store_read(s, 0, 5, 1, id));
    assert_fails(ERR_DATA, "sequence 4, position 0", store_read(s, 0, 5, 3, id));
    assert_fails(ERR_DATA, "sequence 4, position 1", store_read(s, 0, 5, 4, id));
    store_close(s);
}

static void a_build_that_cannot_be_renamed_leaves_the_earlier_pair(void **state)
{
    (void)state;
    struct store_writer_options o = { .prefix = at("held"), .token_bytes = 2 };
    struct store_writer *w;
    struct buf info = { 0 };
    const uint16_t token = 7;
    char content[33];
    bool stored;
    assert_ok(file_make_folder(at("held.bin"))); /* a folder cannot be replaced by a file */
    put_text(at("held.idx"), "earlier");
    assert_ok(store_writer_open(&w, &o));
    assert_ok(store_writer_add(w, &token, 1));
    assert_ok(store_writer_end_document(w, &stored));
    assert_ok(store_writer_finish(w, content));
    assert_int_not_equal(store_writer_publish(w, &info), OK);
    assert_true(file_exists(at("held.idx")) && !file_exists(at("held.bin.tmp")) && !file_exists(at("held.idx.tmp")));
    assert_int_equal(rmdir(at("held.bin")), 0);
}

static void store_survives_a_file_cut_under_the_run(void **state)
{
    (void)state;
    enum { TOKENS = 100000 };
    struct store_writer_options o = { .prefix = at("run"), .token_bytes = 2 };
    struct store_writer *w;
    struct buf info = { 0 };
    char content[33];
    bool stored;
    assert_ok(store_writer_open(&w, &o));
    for (uint16_t i = 0; i < 1000; i++) {
        uint16_t token[TOKENS / 1000];
        for (size_t k = 0; k < TOKENS / 1000; k++) {
            token[k] = i;
        }
        assert_ok(store_writer_add(w, token, TOKENS / 1000));
        assert_ok(store_writer_end_document(w, &stored));
    }
    assert_ok(store_writer_finish(w, content));
    assert_ok(buf_add_string(&info, "{}"));
    assert_ok(store_writer_publish(w, &info));
    buf_release(&info);
    struct store *s;
    static int32_t id[TOKENS];
    assert_ok(store_open(&s, at("run")));
    assert_ok(store_read(s, 0, TOKENS, 0, id));
    assert_int_equal(truncate(at("run.bin"), 8192), 0);
    assert_ok(store_read(s, 0, 4096, 0, id));
    assert_fails(ERR_DATA, "run.bin: the file was cut", store_read(s, 0, TOKENS, 0, id));
    uint64_t first, end;
    assert_int_equal(truncate(at("run.idx"), 40), 0);
    assert_fails(ERR_DATA, "run.idx: the file was cut", store_sequence(s, 999, &first, &end));
    store_close(s);
    assert_fails(ERR_DATA, "has 8192 bytes",
                 (put_pair(at("run2"),
                           &(struct index_spec){ .magic = STORE_MAGIC,
                                                 .version = 1,
                                                 .dtype = 8,
                                                 .sequences = 1,
                                                 .entries = 2,
                                                 .length = { TOKENS },
                                                 .entry = { 0, 1 } },
                           0),
                  truncate(at("run2.bin"), 8192), store_open(&s, at("run2"))));
}

static void writer_divides_documents_too_long_for_one_sequence(void **state)
{
    (void)state;
    struct store_writer_options o = { .prefix = at("long"), .token_bytes = 4, .sequence_tokens = 4 };
    static const size_t lengths[] = { 3, 4, 0, 5, 9 }; /* the empty one is not stored */
    struct store_writer *w;
    struct buf info = { 0 };
    char content[33];
    bool stored;
    int32_t next = 0;
    assert_ok(store_writer_open(&w, &o));
    for (size_t i = 0; i < 5; i++) {
        for (size_t k = 0; k < lengths[i]; k++, next++) {
            assert_ok(store_writer_add(w, &next, 1));
        }
        assert_ok(store_writer_end_document(w, &stored));
        assert_int_equal(stored, lengths[i] > 0);
    }
    assert_int_equal(store_writer_tokens(w), 21);
    assert_int_equal(store_writer_documents(w), 4);
    assert_ok(store_writer_finish(w, content));
    assert_ok(buf_add_string(&info, "{}"));
    assert_ok(store_writer_publish(w, &info));
    buf_release(&info);
    struct store *s;
    int32_t id[21];
    assert_ok(store_open(&s, at("long")));
    assert_int_equal(store_documents(s), 4);
    assert_int_equal(store_sequences(s), 7); /* 3 | 4 | 4 1 | 4 4 1 */
    assert_ok(store_read(s, 0, 21, 21, id));
    for (int32_t i = 0; i < 21; i++) {
        assert_int_equal(id[i], i);
    }
    struct store_lengths l;
    assert_ok(store_lengths(s, &l));
    assert_int_equal(l.least, 1);
    assert_int_equal(l.median, 4);
    assert_int_equal(l.most, 4);
    assert_int_equal(l.bucket[1], 2); /* 1 */
    assert_int_equal(l.bucket[2], 1); /* 2..3 */
    assert_int_equal(l.bucket[3], 4); /* 4..7 */
    store_close(s);
    assert_fails(ERR_DATA, "long.json: not what `invar data build` writes", data_verify(at("long"), 0));
}

static void put_info(int version, const char *tokens)
{
    char json[512];
    snprintf(json, sizeof(json), "{\"format\":\"invar tokens\",\"version\":%d,\"tokens\":%s}", version, tokens);
    put_text(at("info.json"), json);
}

static void store_info_refuses_a_file_of_other_tokens(void **state)
{
    (void)state;
    put_text(at("doc.txt"), "some text");
    assert_ok(build_one(at("doc.txt"), at("info")));
    struct store *s;
    struct store_info info;
    assert_ok(store_open(&s, at("info")));
    assert_ok(store_info(s, &info));
    assert_int_equal(info.text_bytes, 9);
    assert_int_equal(info.vocab, 257);
    assert_int_equal(strlen(info.tokenizer), 32);
    assert_int_equal(strlen(info.content), 32);
    const char *zero = "00000000000000000000000000000000";
    char rest[256];
    snprintf(rest, sizeof(rest), "10,\"text_bytes\":9,\"vocab\":257,\"tokenizer\":\"%s\",\"content\":\"%s\"", zero,
             zero);
    put_info(1, rest);
    assert_ok(store_info(s, &info));
    assert_fails(ERR_DATA, "content hash", data_verify(at("info"), 0));
    put_info(2, rest);
    assert_fails(ERR_DATA, "version 2, version 1 was expected", store_info(s, &info));
    rest[1] = '7';
    put_info(1, rest);
    assert_fails(ERR_DATA, "about 17 tokens, the .bin has 10", store_info(s, &info));
    put_info(1, "10,\"text_bytes\":-9");
    assert_fails(ERR_DATA, "\"text_bytes\": a whole number", store_info(s, &info));
    put_info(1, "10,\"text_bytes\":9,\"vocab\":2,\"tokenizer\":\"xyz\"");
    assert_fails(ERR_DATA, "32 hexadecimal digits", store_info(s, &info));
    put_text(at("info.json"), "{\"model_type\":\"gpt2\"}");
    assert_fails(ERR_DATA, "not what `invar data build` writes", store_info(s, &info));
    put_text(at("info.json"), "[");
    assert_fails(ERR_DATA, "not valid JSON", store_info(s, &info));
    unlink(at("info.json"));
    assert_ok(store_info(s, &info));
    assert_int_equal(info.vocab, 0);
    store_close(s);
}

static void verify_finds_one_changed_bit(void **state)
{
    (void)state;
    struct buf b = { 0 };
    put_text(at("doc.txt"), "some text");
    assert_ok(build_one(at("doc.txt"), at("bit")));
    assert_ok(data_verify(at("bit"), 0));
    get(at("bit.bin"), &b);
    b.data[4] ^= 1;
    put(at("bit.bin"), b.data, b.bytes);
    assert_fails(ERR_DATA, "bit.bin: content hash", data_verify(at("bit"), 0));
    b.data[5] ^= 2;
    put(at("bit.bin"), b.data, b.bytes);
    assert_fails(ERR_DATA, "sequence 0, position 2: token id 620 is not below the vocabulary 257",
                 data_verify(at("bit"), 0));
    buf_release(&b);
}

/* ---- the sampler ---- */

static void make_counting_store(const char *prefix, int32_t tokens)
{
    struct store_writer_options o = { .prefix = prefix, .token_bytes = 2 };
    struct store_writer *w;
    struct buf info = { 0 };
    char content[33], path[1200];
    bool stored;
    assert_ok(store_writer_open(&w, &o));
    for (uint16_t i = 0; i < tokens; i++) {
        assert_ok(store_writer_add(w, &i, 1));
        if (i % 7 == 6 || i == tokens - 1) { /* windows cross documents */
            assert_ok(store_writer_end_document(w, &stored));
        }
    }
    assert_ok(store_writer_finish(w, content));
    assert_ok(buf_add_string(&info, "{}"));
    assert_ok(store_writer_publish(w, &info));
    buf_release(&info);
    snprintf(path, sizeof(path), "%s.json", prefix);
    unlink(path);
}

static void sampler_takes_each_window_once_an_epoch_in_another_order(void **state)
{
    (void)state;
    enum { T = 4, TOKENS = 107, SAMPLES = (TOKENS - 1) / T };
    struct store *store;
    struct sampler s, other;
    int32_t input[T], target[T];
    make_counting_store(at("sample"), TOKENS);
    assert_ok(store_open(&store, at("sample")));
    assert_ok(sampler_init(&s, store, T, TOKENS, 5));
    assert_ok(sampler_init(&other, store, T, TOKENS, 6));
    assert_int_equal(s.samples, SAMPLES);
    unsigned same_epoch = 0, same_seed = 0;
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        unsigned seen[SAMPLES] = { 0 };
        for (uint64_t i = 0; i < SAMPLES; i++) {
            uint64_t index = epoch * SAMPLES + i, w = sampler_window(&s, index);
            assert_true(w < SAMPLES);
            seen[w]++;
            same_epoch += epoch > 0 && w == sampler_window(&s, i);
            same_seed += w == sampler_window(&other, index);
            assert_ok(sampler_get(&s, index, input, target));
            for (int32_t t = 0; t < T; t++) {
                assert_int_equal(input[t], (int32_t)w * T + t);
                assert_int_equal(target[t], input[t] + 1);
            }
        }
        for (int w = 0; w < SAMPLES; w++) {
            assert_int_equal(seen[w], 1);
        }
    }
    assert_true(same_epoch < SAMPLES && same_seed < SAMPLES);
    assert_ok(sampler_init(&other, store, TOKENS - 1, TOKENS, 6));
    assert_int_equal(other.samples, 1);
    assert_fails(ERR_DATA, "the data have 107 tokens, one sample of sequence length 107 needs 108",
                 sampler_init(&other, store, TOKENS, TOKENS, 6));
    assert_fails(ERR_DATA, "cannot hold a vocabulary", sampler_init(&other, store, T, 65537, 6));
    assert_ok(sampler_init(&other, store, T, 50, 6));
    enum err err = OK;
    for (uint64_t i = 0; i < SAMPLES && err == OK; i++) {
        err = sampler_get(&other, i, input, target);
    }
    assert_int_equal(err, ERR_DATA);
    store_close(store);
}

static void evaluation_counts_each_token_once(void **state)
{
    (void)state;
    enum { TOKENS = 107 };
    struct store *store;
    make_counting_store(at("eval"), TOKENS);
    assert_ok(store_open(&store, at("eval")));
    for (uint64_t T = 1; T <= TOKENS - 1; T++) {
        struct sampler s;
        int32_t input[TOKENS], target[TOKENS], next = 1;
        assert_ok(sampler_init(&s, store, T, TOKENS, 0));
        uint64_t windows = sampler_eval_windows(&s);
        assert_int_equal(windows, (TOKENS - 1 + T - 1) / T);
        for (uint64_t w = 0; w < windows; w++) {
            assert_ok(sampler_eval_get(&s, w, input, target));
            for (uint64_t t = 0; t < T; t++) {
                if (target[t] == SAMPLER_NO_TARGET) {
                    assert_int_equal(next, TOKENS);
                    assert_int_equal(input[t], 0);
                    continue;
                }
                assert_int_equal(target[t], next);
                assert_int_equal(input[t], next - 1);
                next++;
            }
        }
        assert_int_equal(next, TOKENS);
    }
    store_close(store);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(store_refuses_each_damage_of_the_header),
    cmocka_unit_test(store_refuses_each_damage_of_the_entries),
    cmocka_unit_test(store_refuses_an_index_cut_at_every_byte),
    cmocka_unit_test(store_gives_an_answer_for_every_flipped_bit),
    cmocka_unit_test(store_names_32_bit_and_inclusive_pointers),
    cmocka_unit_test(store_reads_the_cases_of_real_faults_as_expected),
    cmocka_unit_test(store_reads_datasets_of_megatron),
    cmocka_unit_test(store_reads_every_integer_width_and_refuses_what_is_no_id),
    cmocka_unit_test(store_finds_the_sequence_of_a_bad_id_across_empty_sequences),
    cmocka_unit_test(a_build_that_cannot_be_renamed_leaves_the_earlier_pair),
    cmocka_unit_test(store_survives_a_file_cut_under_the_run),
    cmocka_unit_test(writer_divides_documents_too_long_for_one_sequence),
    cmocka_unit_test(store_info_refuses_a_file_of_other_tokens),
    cmocka_unit_test(verify_finds_one_changed_bit),
    cmocka_unit_test(sampler_takes_each_window_once_an_epoch_in_another_order),
    cmocka_unit_test(evaluation_counts_each_token_once),
};

TEST_GROUP(tests, make_folder, remove_folder)
