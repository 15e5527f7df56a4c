/* data: text sources and the build. */
#include <signal.h>
#include <sys/resource.h>
#include <zlib.h>
#include <zstd.h>

#include "base/hash.h"
#include "data/inputs.h"
#include "data/reader.h"
#include "data_fixture.h"

/* ---- text sources ---- */

static void inputs_are_expanded_in_one_order(void **state)
{
    (void)state;
    struct inputs in;
    const char *dir = at("in");
    assert_ok(file_make_folder(dir));
    assert_ok(file_make_folder(at("in/sub.txt")));
    static const char *const name[] = { "in/b.txt",     "in/B.jsonl",  "in/a.jsonl.gz",
                                        "in/._a.jsonl", "in/notes.md", "in/c.txt.zst" };
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        put_text(at(name[i]), "x");
    }
    assert_ok(inputs_expand(&in, &dir, 1));
    assert_int_equal(in.count, 4);
    assert_string_equal(in.file[0].path, at("in/B.jsonl"));
    assert_string_equal(in.file[1].path, at("in/a.jsonl.gz"));
    assert_string_equal(in.file[2].path, at("in/b.txt"));
    assert_string_equal(in.file[3].path, at("in/c.txt.zst"));
    assert_true(in.file[1].jsonl && in.file[1].kind == STREAM_GZIP && in.file[3].kind == STREAM_ZSTD);
    inputs_release(&in);
    const char *two[] = { at("in/*.jsonl"), at("in/.*"), at("in/b.txt"), at("in/x*.txt"), at("in/*.md"), at("empty") };
    assert_ok(inputs_expand(&in, two, 1));
    assert_int_equal(in.count, 1);
    inputs_release(&in);
    assert_fails(ERR_USAGE, "dot files only", inputs_expand(&in, two + 1, 1));
    assert_fails(ERR_USAGE, "nothing matches it as a pattern", inputs_expand(&in, two + 3, 1));
    assert_fails(ERR_USAGE, "notes.md: a file of unknown kind | known endings are .txt and .jsonl",
                 inputs_expand(&in, two + 4, 1));
    assert_ok(file_make_folder(at("empty")));
    assert_fails(ERR_USAGE, "no text file in this folder", inputs_expand(&in, two + 5, 1));
    assert_fails(ERR_USAGE, "no input was named", inputs_expand(&in, two, 0));
}

static void refuse_text(const char *name, const void *bytes, size_t count, const char *part)
{
    put(at(name), bytes, count);
    assert_fails(ERR_DATA, part, build_one(at(name), at("refused")));
    assert_no_leftovers(at("refused"));
}

#define REFUSE(name, literal, part) refuse_text(name, literal, sizeof(literal) - 1, part)

static void jsonl_names_each_damage_with_line_and_column(void **state)
{
    (void)state;
    REFUSE("a.jsonl", "{\"text\":\"ok\"}\n{\"text\":\"two objects\"}{\"text\":\"x\"}\n",
           "a.jsonl:2:23: not valid JSON: end of file expected near '{' (two values on one line)");
    REFUSE("a.jsonl", "{\"text\":\"cut off \n", "a.jsonl:1:");
    REFUSE("a.jsonl", "\n\n{\"txt\":\"wrong key\"}\n", "a.jsonl:3:1: no field \"text\", the object has \"txt\"");
    REFUSE("a.jsonl", "{}\n", "a.jsonl:1:1: no field \"text\", the object is empty");
    REFUSE("a.jsonl", "{\"text\":null}\n", "field \"text\" is null, a string was expected");
    REFUSE("a.jsonl", "{\"text\":[\"x\"]}\n", "field \"text\" is an array, a string was expected");
    REFUSE("a.jsonl", "{\"text\":\"lone \\ud83d end\"}\n", "half of a surrogate pair");
    REFUSE("a.jsonl", "{\"text\":\"lone \\udc00 end\"}\n", "half of a surrogate pair");
    REFUSE("a.jsonl", "{\"text\":\"raw \xff\xfe\"}\n", "a.jsonl:1:14: invalid UTF-8 at byte 13 of the line (0xff)");
    REFUSE("a.jsonl", "{\"text\":\"raw \xed\xa0\x80\"}\n", "a.jsonl:1:14: invalid UTF-8 at byte 13 of the line (0xed)");
    REFUSE("a.jsonl", "{\"text\":\"tab\tliteral\"}\n", "a.jsonl:1:");
    REFUSE("a.jsonl", "{\"text\":\"raw\0nul\"}\n", "a.jsonl:1:13: a raw NUL byte");
    REFUSE("a.jsonl", "[\"not\",\"an\",\"object\"]\n", "a.jsonl:1:1: an array, an object with the field \"text\"");
    REFUSE("a.jsonl", "{\"text\":\"a\",\"text\":\"b\"}\n", "duplicate");
    REFUSE("a.jsonl", "{\"text\":\"\xe4\xb8",
           "a.jsonl:1:10: the file ends inside a UTF-8 sequence (byte 9 of the line)");
    REFUSE("a.jsonl", "{\"text\":\"\xe4\xb8\n", "a.jsonl:1:10: invalid UTF-8");
    struct buf deep = { 0 };
    assert_ok(buf_add_string(&deep, "{\"x\":"));
    for (int i = 0; i < 100000; i++) {
        assert_ok(buf_add_string(&deep, "["));
    }
    refuse_text("a.jsonl", deep.data, deep.bytes, "a.jsonl:1:69: brackets nested deeper than 64");
    buf_release(&deep);
}

static void jsonl_accepts_bom_crlf_blank_lines_and_a_missing_newline(void **state)
{
    (void)state;
    struct build_run r = { .input = { at("b.jsonl") } };
    put_text(at("b.jsonl"),
             "\xef\xbb\xbf{\"text\":\"one\"}\r\n\r\n  \n{\"id\":1,\"text\":\"t\\u00e9\"}\n{\"text\":\"\"}\n"
             "{\"text\":\"three\"}");
    assert_ok(run_build(&r, at("accepted")));
    assert_int_equal(r.result.documents, 3);
    assert_int_equal(r.result.empty, 1);
    assert_int_equal(r.result.text_bytes, 3 + 3 + 5);
    assert_int_equal(r.result.tokens, 3 + 3 + 5 + 3);
    assert_text(at("accepted"), "one|t\xc3\xa9|three|");
    r.no_eot = true;
    assert_ok(run_build(&r, at("accepted")));
    assert_text(at("accepted"), "onet\xc3\xa9three");
    r.field = "id";
    assert_fails(ERR_DATA, "b.jsonl:1:1: no field \"id\"", run_build(&r, at("accepted")));
    assert_text(at("accepted"), "onet\xc3\xa9three"); /* the old files are still there */
}

static void skipping_counts_each_damaged_line(void **state)
{
    (void)state;
    struct build_run r = { .input = { at("c.jsonl") }, .on_error = BUILD_SKIP };
    const char text[] =
        "{\"text\":\"ok one\"}\n{\"text\":\"two\"}{\"text\":\"x\"}\n{\"text\":\"cut\n\n{\"txt\":1}\n{\"text\":null}\n"
        "{\"text\":\"\\ud83d\"}\n{\"text\":\"\xff\"}\n{\"text\":\"N\\u0000L\"}\r\n{\"text\":\"\t\"}\n[1]\n{\"text\":"
        "\"\"}\n"
        "{\"text\":\"last\"}";
    put(at("c.jsonl"), text, sizeof(text) - 1);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        r.threads = threads;
        assert_ok(run_build(&r, at("skip")));
        assert_int_equal(r.result.skipped, 8);
        assert_int_equal(r.result.documents, 3);
        assert_int_equal(r.result.empty, 1);
        assert_int_equal(r.result.tokens, 6 + 3 + 4 + 3);
    }
    r.on_error = BUILD_STOP;
    assert_fails(ERR_DATA, "c.jsonl:2:15", run_build(&r, at("stop")));
    assert_no_leftovers(at("stop"));
    put_text(at("c.jsonl"), "[1]\n");
    r.on_error = BUILD_SKIP;
    assert_fails(ERR_DATA, "c.jsonl: no text found", run_build(&r, at("stop")));
    assert_no_leftovers(at("stop"));
}

static void cases_of_damaged_jsonl_give_what_they_should(void **state)
{
    (void)state;
    need_shared("cases/I49/bad.jsonl");
    struct build_run r = { .input = { shared("cases/I49/bad.jsonl") }, .on_error = BUILD_SKIP };
    assert_ok(run_build(&r, at("i49")));
    assert_int_equal(r.result.documents, 3); /* lines 1, 9 and 13 */
    assert_int_equal(r.result.skipped, 8);
    assert_int_equal(r.result.empty, 1);
    r.on_error = BUILD_STOP;
    assert_fails(ERR_DATA, "bad.jsonl:2:23", run_build(&r, at("i49")));
    assert_fails(ERR_DATA, "c.jsonl:1:10: invalid UTF-8 at byte 9", build_one(shared("cases/I50"), at("i50")));
    assert_fails(ERR_DATA, "ends inside a UTF-8 sequence", build_one(shared("cases/I50/e.jsonl"), at("i50")));
    assert_ok(build_one(shared("cases/I50/d.jsonl"), at("i50")));
    assert_text(at("i50"), "bom|");
    assert_ok(build_one(shared("cases/I50/a.json?"), at("i50")));
    assert_text(at("i50"), "good|");
}

static void plain_text_is_one_document_and_must_be_utf8(void **state)
{
    (void)state;
    struct build_run r = { .input = { at("b.txt"), at("a.txt") } };
    put_text(at("a.txt"), "\xef\xbb\xbfline\r\n\n");
    put_text(at("b.txt"), "b");
    assert_ok(run_build(&r, at("text")));
    assert_text(at("text"), "b|line\r\n\n|");
    assert_int_equal(r.result.documents, 2);
    REFUSE("a.txt", "ab\xff", "a.txt: invalid UTF-8 at byte 2 (0xff)");
    REFUSE("a.txt", "ab\xe4\xb8", "a.txt: the file ends inside a UTF-8 sequence at byte 2");
    REFUSE("a.txt", "ab\0", "a.txt: a NUL byte at byte 2");
    REFUSE("a.txt", "", "a.txt: no text found");
    REFUSE("a.txt", "\xef\xbb\xbf", "a.txt: no text found");
    r.on_error = BUILD_SKIP; /* is for lines: a damaged text still stops */
    put_text(at("a.txt"), "ab\xff");
    assert_fails(ERR_DATA, "invalid UTF-8", run_build(&r, at("refused")));
    assert_no_leftovers(at("refused"));
}

/* One line of exactly `line` bytes between two short ones. */
static void put_long_line(size_t line)
{
    static const char open[] = "{\"text\":\"a\"}\n{\"text\":\"long\",\"rest\":\"", close[] = "\"}\n{\"text\":\"b\"}\n";
    struct buf b = { 0 };
    size_t fill = line - strlen(strchr(open, '\n') + 1) - 2;
    assert_ok(buf_add_string(&b, open));
    assert_ok(buf_reserve(&b, fill + sizeof(close)));
    memset(b.data + b.bytes, 'x', fill);
    b.bytes += fill;
    assert_ok(buf_add_string(&b, close));
    put(at("long.jsonl"), b.data, b.bytes);
    buf_release(&b);
}

static void lines_above_the_limit_are_refused(void **state)
{
    (void)state;
    struct build_run r = { .input = { at("long.jsonl") }, .on_error = BUILD_SKIP };
    static const size_t above[] = { 1, 1 << 20 }; /* the line's end in the last block that is kept, and far behind it */
    for (size_t i = 0; i < 2; i++) {
        put_long_line(READER_LINE_BYTES_MAX + above[i]);
        assert_ok(run_build(&r, at("lines")));
        assert_int_equal(r.result.skipped, 1);
        assert_text(at("lines"), "a|b|");
    }
    r.on_error = BUILD_STOP;
    assert_fails(ERR_DATA, "long.jsonl:2:1: line of more than 67108864 bytes", run_build(&r, at("lines")));
    put_long_line(READER_LINE_BYTES_MAX);
    assert_ok(run_build(&r, at("lines")));
    assert_text(at("lines"), "a|long|b|");
    unlink(at("long.jsonl"));
}

/* ---- compressed sources ---- */

static void gzip_bytes(const char *text, size_t bytes, struct buf *out)
{
    z_stream z = { 0 };
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t room = deflateBound(&z, bytes) + 64;
    assert_ok(buf_reserve(out, room));
    z.next_in = (unsigned char *)(uintptr_t)text;
    z.avail_in = (uInt)bytes;
    z.next_out = (unsigned char *)out->data + out->bytes;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out->bytes += room - z.avail_out;
    deflateEnd(&z);
}

static void zstd_bytes(const char *text, size_t bytes, int window_log, struct buf *out)
{
    ZSTD_CCtx *z = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_setParameter(z, ZSTD_c_windowLog, window_log);
    ZSTD_CCtx_setParameter(z, ZSTD_c_contentSizeFlag, 0);
    size_t room = ZSTD_compressBound(bytes);
    assert_ok(buf_reserve(out, room));
    ZSTD_outBuffer to = { out->data + out->bytes, room, 0 };
    ZSTD_inBuffer from = { text, bytes / 2, 0 }; /* in two parts: the size is not known at the start */
    assert_false(ZSTD_isError(ZSTD_compressStream2(z, &to, &from, ZSTD_e_continue)));
    from.size = bytes;
    assert_int_equal(ZSTD_compressStream2(z, &to, &from, ZSTD_e_end), 0);
    out->bytes += to.pos;
    ZSTD_freeCCtx(z);
}

static const char two_lines[] = "{\"text\":\"first document\"}\n{\"text\":\"second document\"}\n";

/* Every cut of a compressed file is an error, even when all lines were there. */
static void refuse_cuts(const char *name, const struct buf *whole)
{
    struct build_run r = { .input = { at(name) } };
    for (size_t n = 0; n < whole->bytes; n++) {
        put(at(name), whole->data, n);
        enum err err = run_build(&r, at("cut_build"));
        if (err != ERR_DATA ||
            strstr(err_message(), n == 0 ? "an empty file" : "the compressed data end early") == NULL) {
            fail_msg("%s cut at byte %zu: %d %s", name, n, err, err_message());
        }
    }
    assert_no_leftovers(at("cut_build"));
}

static void gzip_is_read_strictly(void **state)
{
    (void)state;
    struct buf z = { 0 };
    gzip_bytes(two_lines, sizeof(two_lines) - 1, &z);
    put(at("g.jsonl.gz"), z.data, z.bytes);
    assert_ok(build_one(at("g.jsonl.gz"), at("gz")));
    assert_text(at("gz"), "first document|second document|");
    refuse_cuts("g.jsonl.gz", &z);
    for (size_t i = z.bytes - 8; i < z.bytes; i++) { /* checksum and length */
        z.data[i] ^= 1;
        put(at("g.jsonl.gz"), z.data, z.bytes);
        assert_fails(ERR_DATA, "damaged gzip data (incorrect ", build_one(at("g.jsonl.gz"), at("gz")));
        z.data[i] ^= 1;
    }
    size_t one = z.bytes;
    gzip_bytes("{\"text\":\"more\"}", 15, &z); /* a second member */
    put(at("g.jsonl.gz"), z.data, z.bytes);
    assert_ok(build_one(at("g.jsonl.gz"), at("gz")));
    assert_text(at("gz"), "first document|second document|more|");
    memcpy(z.data + one, "trailing junk", 13);
    put(at("g.jsonl.gz"), z.data, one + 13);
    assert_fails(ERR_DATA, "bytes that are not gzip follow the gzip data", build_one(at("g.jsonl.gz"), at("gz")));
    put_text(at("g.jsonl.gz"), two_lines);
    assert_fails(ERR_DATA, "not a gzip file at byte 0", build_one(at("g.jsonl.gz"), at("gz")));
    buf_release(&z);
}

static void zstd_is_read_strictly(void **state)
{
    (void)state;
    struct buf z = { 0 };
    zstd_bytes(two_lines, sizeof(two_lines) - 1, 17, &z);
    put(at("z.jsonl.zst"), z.data, z.bytes);
    assert_ok(build_one(at("z.jsonl.zst"), at("zst")));
    assert_text(at("zst"), "first document|second document|");
    refuse_cuts("z.jsonl.zst", &z);
    size_t one = z.bytes;
    z.data[one - 1] ^= 1;
    put(at("z.jsonl.zst"), z.data, one);
    assert_fails(ERR_DATA, "the checksum of the zstd frame", build_one(at("z.jsonl.zst"), at("zst")));
    z.data[one - 1] ^= 1;
    assert_ok(buf_add(&z, "\x5a\x2a\x4d\x18\x03\0\0\0abc", 11)); /* a skippable frame */
    zstd_bytes("{\"text\":\"more\"}", 15, 17, &z);
    put(at("z.jsonl.zst"), z.data, z.bytes);
    assert_ok(build_one(at("z.jsonl.zst"), at("zst")));
    assert_text(at("zst"), "first document|second document|more|");
    memcpy(z.data + one, "trailing junk", 13);
    put(at("z.jsonl.zst"), z.data, one + 13);
    assert_fails(ERR_DATA, "bytes that are not zstd follow the zstd data", build_one(at("z.jsonl.zst"), at("zst")));
    put_text(at("z.jsonl.zst"), two_lines);
    assert_fails(ERR_DATA, "not a zstd file at byte 0", build_one(at("z.jsonl.zst"), at("zst")));
    /* a frame header that asks for a window of 2^28 bytes: descriptor 0, window byte (28 - 10) << 3 */
    put(at("z.jsonl.zst"), "\x28\xb5\x2f\xfd\x00\x90\x01\x00\x00", 9);
    assert_fails(ERR_DATA, "window above 128 MiB", build_one(at("z.jsonl.zst"), at("zst")));
    /* a frame that names a dictionary: descriptor 1 (one byte of dictionary id), window, id 7, an empty last block */
    put(at("z.jsonl.zst"), "\x28\xb5\x2f\xfd\x01\x38\x07\x01\x00\x00", 10);
    assert_fails(ERR_DATA, "needs a dictionary", build_one(at("z.jsonl.zst"), at("zst")));
    buf_release(&z);
}

static void decompression_bombs_are_refused(void **state)
{
    (void)state;
    struct buf text = { 0 }, z = { 0 };
    size_t bytes = (size_t)80 << 20;
    assert_ok(buf_reserve(&text, bytes));
    memset(text.data, ' ', bytes); /* blank lines only: nothing else would complain */
    for (size_t i = 1 << 20; i < bytes; i += 1 << 20) {
        text.data[i] = '\n';
    }
    zstd_bytes(text.data, bytes, 24, &z);
    put(at("bomb.jsonl.zst"), z.data, z.bytes);
    assert_fails(ERR_DATA, "at most 1000 times is accepted", build_one(at("bomb.jsonl.zst"), at("bomb")));
    assert_no_leftovers(at("bomb"));
    buf_release(&text);
    buf_release(&z);
}

/* ---- the build ---- */

/* Lines, texts and characters of several bytes, long and short, so that every boundary falls somewhere. */
static void put_corpus(void)
{
    struct buf lines = { 0 }, text = { 0 };
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t words = hash_mix(i) % 80;
        assert_ok(buf_add_string(&lines, "{\"text\":\""));
        for (uint64_t k = 0; k < words; k++) {
            assert_ok(buf_printf(&lines, "w%llu \xc3\xa9 ", (unsigned long long)(hash_mix(i * 100 + k) % 1000)));
            assert_ok(buf_printf(&text, "\xe4\xb8\xad w%llu%s", (unsigned long long)k, k % 7 == 0 ? "\n" : " "));
        }
        assert_ok(buf_add_string(&lines, "\"}\n"));
    }
    put(at("corpus.jsonl"), lines.data, lines.bytes);
    put(at("corpus.txt"), text.data, text.bytes);
    buf_clear(&text);
    gzip_bytes(lines.data, lines.bytes, &text);
    put(at("corpus.jsonl.gz"), text.data, text.bytes);
    buf_release(&lines);
    buf_release(&text);
}

static void build_gives_the_same_bytes_for_any_threads_and_memory(void **state)
{
    (void)state;
    static const uint64_t memory[] = { 0, 1, 100000, 3000000 };
    static const char *const ending[] = { ".bin", ".idx", ".json" };
    char expected[3][33] = { 0 }, found[33], path[1200];
    struct buf b = { 0 };
    put_corpus();
    struct build_run r = { .input = { at("corpus.jsonl"), at("corpus.txt"), at("corpus.jsonl.gz") } };
    for (uint32_t threads = 1; threads <= 3; threads++) {
        for (size_t m = 0; m < sizeof(memory) / sizeof(memory[0]); m++) {
            r.threads = threads;
            r.memory = memory[m];
            assert_ok(run_build(&r, at("same")));
            for (size_t e = 0; e < 3; e++) {
                snprintf(path, sizeof(path), "%s%s", at("same"), ending[e]);
                get(path, &b);
                hash128_hex(b.data, b.bytes, found);
                if (expected[e][0] == '\0') {
                    memcpy(expected[e], found, 33);
                }
                assert_string_equal(found, expected[e]);
            }
        }
    }
    assert_int_equal(r.result.empty + r.result.documents, 6001);
    assert_ok(data_verify(at("same"), 0));
    buf_release(&b);
}

/* Cuts before the last space. */
static size_t cut_at_space(const void *arg, const char *text, size_t bytes)
{
    (void)arg;
    const char *space = memrchr(text, ' ', bytes - 1);
    return space != NULL ? (size_t)(space - text) : 0;
}

static void long_texts_are_read_in_pieces_without_loss(void **state)
{
    (void)state;
    static const size_t batch_bytes[] = { 1, 5000, 100000, 100000000 };
    struct buf whole = { 0 }, found = { 0 };
    put_corpus();
    get(at("corpus.txt"), &whole);
    const char *inputs[] = { at("corpus.txt"), at("corpus.txt") };
    struct reader_options o = { .inputs = inputs, .inputs_count = 2, .split = cut_at_space };
    for (size_t i = 0; i < sizeof(batch_bytes) / sizeof(batch_bytes[0]); i++) {
        struct reader *r;
        struct reader_batch b = { 0 };
        unsigned documents = 0, pieces = 0;
        bool begins = true;
        assert_ok(reader_open(&r, &o));
        buf_clear(&found);
        do {
            assert_ok(reader_fill(r, &b, batch_bytes[i]));
            for (size_t k = 0; k < b.count; k++, pieces++) {
                struct reader_text text;
                enum reader_fault fault;
                assert_ok(reader_text(r, &b, k, &text, &fault));
                assert_int_equal(b.piece[k].document_begins, begins);
                assert_int_equal(b.piece[k].file, documents);
                assert_ok(buf_add(&found, text.text, text.bytes));
                reader_text_release(&text);
                begins = b.piece[k].document_ends;
                documents += begins;
            }
        } while (b.count > 0);
        assert_int_equal(documents, 2);
        assert_true(pieces >= 6);
        assert_int_equal(found.bytes, 2 * whole.bytes);
        assert_memory_equal(found.data, whole.data, whole.bytes);
        assert_memory_equal(found.data + whole.bytes, whole.data, whole.bytes);
        reader_batch_release(&b);
        reader_close(r);
    }
    buf_release(&whole);
    buf_release(&found);
}

static void a_text_in_pieces_has_the_tokens_of_the_whole(void **state)
{
    (void)state;
    static const uint64_t memory[] = { 0, 1, 1000000 };
    need_shared("assets/tokenizers/gpt2/tokenizer.json");
    const char *input = shared("assets/text/en/tinyshakespeare.txt");
    struct tokenizer *t;
    struct tokenizer_scratch *scratch;
    struct tokens expected = { 0 };
    struct buf text = { 0 };
    assert_ok(tokenizer_load(&t, shared("assets/tokenizers/gpt2")));
    assert_ok(tokenizer_scratch_new(&scratch, t));
    get(input, &text);
    assert_ok(tokenizer_encode(t, scratch, text.data, text.bytes, 0, &expected));
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        struct build_options o = { .inputs = &input,
                                   .inputs_count = 1,
                                   .prefix = at("pieces"),
                                   .append_eot = true,
                                   .memory_bytes = memory[i],
                                   .quiet = true };
        struct build_result result;
        struct pool *pool;
        struct store *s;
        assert_ok(pool_new(&pool, 2));
        assert_ok(data_build(&o, t, pool, &result));
        pool_free(pool);
        assert_int_equal(result.tokens, expected.count + 1);
        assert_int_equal(result.documents, 1);
        assert_int_equal(result.text_bytes, text.bytes);
        int32_t *found = calloc(result.tokens, sizeof(*found));
        assert_non_null(found);
        assert_ok(store_open(&s, at("pieces")));
        assert_ok(store_read(s, 0, result.tokens, 50257, found));
        assert_memory_equal(found, expected.id, expected.count * sizeof(*found));
        assert_int_equal(found[expected.count], 50256);
        store_close(s);
        free(found);
    }
    tokens_release(&expected);
    buf_release(&text);
    tokenizer_scratch_free(scratch);
    tokenizer_free(t);
}

static void the_first_fault_in_input_order_is_reported(void **state)
{
    (void)state;
    struct buf b = { 0 };
    for (int i = 1; i <= 20000; i++) {
        assert_ok(buf_add_string(&b, i == 7001 || i == 7500 || i == 19999 ? "{\"tex\":\"x\"}\n"
                                                                          : "{\"text\":\"some words\"}\n"));
    }
    put(at("order.jsonl"), b.data, b.bytes);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct build_run r = { .input = { at("order.jsonl") }, .threads = threads };
        assert_fails(ERR_DATA, "order.jsonl:7001:1", run_build(&r, at("order")));
        assert_no_leftovers(at("order"));
    }
    buf_release(&b);
}

static void ranges_divide_a_text_at_characters(void **state)
{
    (void)state;
    put_text(at("range.txt"), "abc\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80z"); /* 13 bytes */
    for (int cut = 1; cut < 52; cut++) {
        struct build_run lo = { .input = { at("range.txt") }, .hi = cut / 52.0, .no_eot = true };
        struct build_run hi = { .input = { at("range.txt") }, .lo = cut / 52.0, .hi = 1, .no_eot = true };
        uint64_t bytes = 0;
        enum err err = run_build(&lo, at("lo"));
        assert_true(err == OK || (cut < 4 && err == ERR_DATA)); /* less than one byte: no text */
        bytes += err == OK ? lo.result.text_bytes : 0;
        err = run_build(&hi, at("hi"));
        assert_true(err == OK || bytes == 13);
        bytes += err == OK ? hi.result.text_bytes : 0;
        assert_int_equal(bytes, 13);
    }
    struct build_run r = { .input = { at("range.txt") }, .lo = 0.5, .hi = 0.4 };
    assert_fails(ERR_USAGE, "range: 0.5:0.4", run_build(&r, at("range")));
    r = (struct build_run){ .input = { at("range.txt"), at("range.txt") }, .lo = 0.5, .hi = 1 };
    assert_fails(ERR_USAGE, "one plain .txt file only", run_build(&r, at("range")));
}

static void build_fails_cleanly_when_the_disk_is_full(void **state)
{
    (void)state;
    put_corpus();
    struct rlimit before, small = { 65536, RLIM_INFINITY };
    struct build_run r = { .input = { at("corpus.jsonl") } };
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum err err = run_build(&r, at("full"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(err, ERR_RESOURCE);
    assert_non_null(strstr(err_message(), "full.bin.tmp: write"));
    assert_no_leftovers(at("full"));
    struct build_run folder_missing = { .input = { at("corpus.jsonl") } };
    assert_ok(run_build(&folder_missing, at("new/folder/out")));
    assert_true(file_exists(at("new/folder/out.json")));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(inputs_are_expanded_in_one_order),
    cmocka_unit_test(jsonl_names_each_damage_with_line_and_column),
    cmocka_unit_test(jsonl_accepts_bom_crlf_blank_lines_and_a_missing_newline),
    cmocka_unit_test(skipping_counts_each_damaged_line),
    cmocka_unit_test(cases_of_damaged_jsonl_give_what_they_should),
    cmocka_unit_test(plain_text_is_one_document_and_must_be_utf8),
    cmocka_unit_test(lines_above_the_limit_are_refused),
    cmocka_unit_test(gzip_is_read_strictly),
    cmocka_unit_test(zstd_is_read_strictly),
    cmocka_unit_test(decompression_bombs_are_refused),
    cmocka_unit_test(build_gives_the_same_bytes_for_any_threads_and_memory),
    cmocka_unit_test(long_texts_are_read_in_pieces_without_loss),
    cmocka_unit_test(a_text_in_pieces_has_the_tokens_of_the_whole),
    cmocka_unit_test(the_first_fault_in_input_order_is_reported),
    cmocka_unit_test(ranges_divide_a_text_at_characters),
    cmocka_unit_test(build_fails_cleanly_when_the_disk_is_full),
};

TEST_GROUP(tests, make_folder, remove_folder)
