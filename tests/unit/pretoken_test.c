/* Scanners against the patterns they stand for, and the regular-expression path: what it rewrites, refuses and
 * bounds. */
#include "data_fixture.h"

#include <dirent.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "data/pretoken.h"

static struct char_table table;

static int make_table(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/invar_pretoken_XXXXXX", base != NULL ? base : "/tmp");
    return mkdtemp(folder) == NULL || char_table_init(&table) != OK;
}

static int free_table(void **state)
{
    (void)state;
    char_table_release(&table);
    return file_remove_tree(folder) != OK;
}

static struct regex *compile(const char *pattern)
{
    struct regex *r;
    assert_ok(regex_new(&r, "test", pattern, strlen(pattern)));
    return r;
}

/* Every word of the scanner is the match of its pattern at that place. */
static void same_words(enum pretoken_scanner s, const struct regex *r, struct regex_work *w, const char *text,
                       size_t bytes)
{
    pretoken_next_fn *next = pretoken_scan(s);
    regex_work_begin(w, bytes);
    for (size_t i = 0; i < bytes;) {
        size_t start, end;
        bool found;
        assert_ok(regex_next(r, w, text, bytes, i, &found, &start, &end));
        size_t mine = (size_t)(next(&table, text + i, text + bytes) - text);
        if (!found || start != i || end != mine) {
            fail_msg("scanner %d at byte %zu: ends at %zu, the pattern at %zu: \"%.*s\"", s, i, mine, end,
                     (int)(bytes - i < 60 ? bytes - i : 60), text + i);
        }
        i = mine;
    }
}

static void each_scanner(void (*fn)(enum pretoken_scanner, const struct regex *, struct regex_work *))
{
    for (int s = SCANNER_GPT2; s <= SCANNER_QWEN2; s++) {
        struct regex *r = compile(pretoken_pattern((enum pretoken_scanner)s));
        struct regex_work w = { 0 };
        fn((enum pretoken_scanner)s, r, &w);
        regex_work_release(&w);
        regex_free(r);
    }
}

/* PCRE2 and utf8proc may know different versions of Unicode; a character that one of them lacks proves nothing. */
static bool both_know(uint32_t code)
{
    static struct regex *class[4];
    static const char *const pattern[4] = { "[^\\p{L}\\p{N}\\s]", "\\p{L}", "\\p{N}", "\\s" };
    static struct regex_work w[4];
    char text[4];
    size_t bytes = utf8_encode(code, text), start, end;
    int which = char_class(&table, code) & CHAR_CLASS;
    bool found;
    if (class[which] == NULL) {
        class[which] = compile(pattern[which]);
    }
    regex_work_begin(&w[which], bytes);
    assert_ok(regex_next(class[which], &w[which], text, bytes, 0, &found, &start, &end));
    return found;
}

static void classes_are_those_of_pcre2(void **state)
{
    (void)state;
    struct regex *unassigned = compile("\\p{Cn}");
    struct regex_work w = { 0 };
    int unknown = 0;
    for (uint32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 7) {
        if ((code >= 0xd800 && code < 0xe000) || both_know(code)) {
            continue;
        }
        char text[4];
        size_t bytes = utf8_encode(code, text), start, end;
        bool found;
        regex_work_begin(&w, bytes);
        assert_ok(regex_next(unassigned, &w, text, bytes, 0, &found, &start, &end));
        if (!found) {
            fail_msg("U+%04X has class %d here and another in PCRE2", code, char_class(&table, code) & CHAR_CLASS);
        }
        unknown++;
    }
    print_message("%d of the tried characters are newer than PCRE2's Unicode\n", unknown);
    regex_work_release(&w);
    regex_free(unassigned);
}

static uint32_t random_below(uint64_t *at, uint32_t n)
{
    struct rng_block b = rng_at(11, RNG_TEST, *at, 0);
    (*at)++;
    return (uint32_t)((uint64_t)b.word[0] * n >> 32);
}

static size_t random_text(uint64_t *at, char *out)
{
    static const char *const pieces[] = { "'s", "'S", "'ll", "'RE", "'\xc5\xbf", "'", "''", " ", "  ", "\n", "\r\n",
                                          "\t", "a",
                                          "Z", "xyz", "1", "12345", ".", "?!", " '", " 's", "\xc2\xa0", "\xe3\x80\x80",
                                          "\xe1\xa0\x8e", "\xc2\x85", "\xc2\xbd", "\xe4\xb8\xad", "\xcc\x81" };
    size_t bytes = 0;
    for (uint32_t n = 1 + random_below(at, 24); n > 0; n--) {
        if (random_below(at, 4) > 0) {
            const char *p = pieces[random_below(at, sizeof(pieces) / sizeof(pieces[0]))];
            memcpy(out + bytes, p, strlen(p));
            bytes += strlen(p);
            continue;
        }
        static const uint32_t most[] = { 0x80, 0x800, 0x3100, 0x10000, 0x20000, 0x110000 };
        uint32_t code = random_below(at, most[random_below(at, 6)]);
        if ((code < 0xd800 || code >= 0xe000) && both_know(code)) {
            bytes += utf8_encode(code, out + bytes);
        }
    }
    return bytes;
}

/* A cut text has the words of the whole: one ends at the cut, and those before it do not change. */
static void same_when_cut(enum pretoken_scanner s, const char *text, size_t bytes)
{
    pretoken_next_fn *next = pretoken_scan(s);
    size_t cut = pretoken_cut(&table, text, bytes), i = 0;
    assert_true(cut < bytes || bytes == 0);
    while (i < cut) {
        size_t whole = (size_t)(next(&table, text + i, text + bytes) - text);
        assert_int_equal(next(&table, text + i, text + cut) - text, whole);
        i = whole;
    }
    assert_int_equal(i, cut);
}

static void random_scanner(enum pretoken_scanner s, const struct regex *r, struct regex_work *w)
{
    char text[256];
    uint64_t at = 0;
    for (int i = 0; i < 40000; i++) {
        size_t bytes = random_text(&at, text);
        same_words(s, r, w, text, bytes);
        same_when_cut(s, text, bytes);
    }
}

static void scanners_equal_their_patterns_on_random_text(void **state)
{
    (void)state;
    each_scanner(random_scanner);
}

static size_t texts_seen;

static void scan_folder(enum pretoken_scanner s, const struct regex *r, struct regex_work *w)
{
    static const char *const folders[] = { "en", "other", "udhr", "unicode", "code" };
    struct buf text = { 0 };
    for (size_t f = 0; f < sizeof(folders) / sizeof(folders[0]); f++) {
        char path[1024];
        snprintf(path, sizeof(path), "%s/%s", shared("assets/text"), folders[f]);
        DIR *d = opendir(path);
        for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
            char file[2048];
            snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
            if (strstr(e->d_name, ".txt") != NULL || strstr(e->d_name, ".jsonl") != NULL) {
                get(file, &text);
                same_words(s, r, w, text.data, utf8_valid_prefix(text.data, text.bytes));
                texts_seen++;
            }
        }
        if (d != NULL) {
            closedir(d);
        }
    }
    buf_release(&text);
}

static void scanners_equal_their_patterns_on_all_shared_texts(void **state)
{
    (void)state;
    need_shared("assets/text/en/botchan.txt");
    texts_seen = 0;
    each_scanner(scan_folder);
    print_message("%zu texts\n", texts_seen);
    assert_true(texts_seen > 100);
}

static void known_patterns_are_recognised_by_their_exact_text(void **state)
{
    (void)state;
    for (int s = SCANNER_GPT2; s <= SCANNER_QWEN2; s++) {
        const char *p = pretoken_pattern((enum pretoken_scanner)s);
        assert_int_equal(pretoken_scanner_of(p, strlen(p)), s);
        assert_int_equal(pretoken_scanner_of(p, strlen(p) - 1), SCANNER_NONE);
    }
}

static void constructs_that_read_differently_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const refused[][2] = {
        { "\\h+", "an escape that is not understood" },
        { "\\w", "an escape that is not understood" },
        { "(a)\\1", "an escape that is not understood" },
        { "a{2}+", "a quantifier after a quantifier in braces" },
        { "a{2}?", "a quantifier after a quantifier in braces" },
        { "[[:alpha:]]", "a class inside a class" },
        { "[a&&b]", "an intersection of classes" },
        { "[]", "an empty class" },
        { "[abc", "the class is not closed" },
        { "(?<n>a)", "a kind of group that is not understood" },
        { "a(?i)b", "a kind of group that is not understood" },
        { "(?m:a)", "a kind of group that is not understood" },
        { "(a", "groups that are not closed" },
        { "a)", "a group is closed that was not opened" },
        { "(?i:'ss)", "also match a ligature" },
        { "\\p{L", "a property name is not understood" },
        { "\\p{Klingon}", "does not compile" },
        { "\\xff", "not a code point" },
        { "\\", "nothing after the backslash" },
        { "|*", "nothing to repeat" },
        { "a\xff", "expected UTF-8" },
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct regex *r;
        assert_fails(ERR_DATA, refused[i][1], regex_new(&r, "test", refused[i][0], strlen(refused[i][0])));
        assert_null(r);
    }
}

/* Length of the first match at 0, -1 when there is none. */
static int match_length(const char *pattern, const char *text)
{
    struct regex *r = compile(pattern);
    struct regex_work w = { 0 };
    size_t start = 0, end = 0;
    bool found;
    regex_work_begin(&w, strlen(text));
    assert_ok(regex_next(r, &w, text, strlen(text), 0, &found, &start, &end));
    regex_work_release(&w);
    regex_free(r);
    return found && start == 0 ? (int)end : -1;
}

static void rewritten_constructs_keep_their_meaning(void **state)
{
    (void)state;
    assert_int_equal(match_length("\\s+", " \xc2\x85\xe1\xa0\x8e"), 3); /* U+180E is no white space */
    assert_int_equal(match_length("\\v", "\n"), -1);
    assert_int_equal(match_length("\\v", "\x0b"), 1);
    assert_int_equal(match_length("^b|a\n", "a\n"), 2);
    assert_int_equal(match_length("a{,2}", "aaa"), 2);
    assert_int_equal(match_length("x{", "x{"), 2);
    assert_int_equal(match_length("a#b", "a#b"), 3);
    assert_int_equal(match_length("(?i:'s)", "'\xc5\xbf"), 3);
    assert_int_equal(match_length("\\u4e2d", "\xe4\xb8\xad"), 3);
    assert_int_equal(match_length("\\p{^L}", "1"), 1);
    assert_int_equal(match_length("a$", "a\nb"), 1);
    assert_int_equal(match_length("a\\z", "a\nb"), -1);
}

static enum err match_all(const char *pattern, const char *text, size_t bytes, size_t *matches)
{
    struct regex *r = compile(pattern);
    struct regex_work w = { 0 };
    enum err err = OK;
    *matches = 0;
    regex_work_begin(&w, bytes);
    for (size_t i = 0; i < bytes && err == OK;) {
        size_t start, end;
        bool found;
        err = regex_next(r, &w, text, bytes, i, &found, &start, &end);
        if (err == OK && !found) {
            break;
        }
        i = end > i ? end : i + 1;
        (*matches)++;
    }
    regex_work_release(&w);
    regex_free(r);
    return err;
}

static void no_pattern_can_hang(void **state)
{
    (void)state;
    size_t bytes = 200000, matches;
    char *text = test_malloc(bytes);
    memset(text, 'a', bytes);
    /* exponential in one match */
    assert_fails(ERR_DATA, "too many steps", match_all("(a+)+[bc]", text, bytes, &matches));
    assert_fails(ERR_DATA, "too many steps", match_all("(a|aa)+[bc]|d", text, bytes, &matches));
    /* each short match looks through the whole rest */
    assert_fails(ERR_DATA, "too many steps", match_all("[^x]*+x|a", text, bytes, &matches));
    /* one long match is no crime */
    assert_ok(match_all("a+", text, bytes, &matches));
    assert_int_equal(matches, 1);
    assert_ok(match_all("a+(?!\\S)|a", text, bytes, &matches));
    assert_int_equal(matches, 1);
    test_free(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_those_of_pcre2),
        cmocka_unit_test(scanners_equal_their_patterns_on_random_text),
        cmocka_unit_test(scanners_equal_their_patterns_on_all_shared_texts),
        cmocka_unit_test(known_patterns_are_recognised_by_their_exact_text),
        cmocka_unit_test(constructs_that_read_differently_are_refused_by_name),
        cmocka_unit_test(rewritten_constructs_keep_their_meaning),
        cmocka_unit_test(no_pattern_can_hang),
    };
    if (argc > 1) {
        char pattern[256];
        snprintf(pattern, sizeof(pattern), "*%s*", argv[1]);
        cmocka_set_test_filter(pattern);
    }
    return cmocka_run_group_tests(tests, make_table, free_table);
}
