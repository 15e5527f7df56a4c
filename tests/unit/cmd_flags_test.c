/* Facts about the flags of a command. */
#include "test.h"

#include "cmd/cmd.h"

struct flags {
    const char *prompt, *tokens;
    bool quiet;
};

static enum err parse(struct flags *f, int argc, char **argv, int *rest)
{
    const struct cmd_flag flags[] = {
        { "--prompt", "TEXT", "the text to continue", &f->prompt, NULL },
        { "--max_new_tokens", "N", "how many tokens", &f->tokens, NULL },
        { "--quiet", NULL, "print less", NULL, &f->quiet },
    };
    bool helped = false;
    *f = (struct flags){ 0 };
    return cmd_parse(argc, argv, "invar x", flags, 3, rest, &helped);
}

static void flags_values_and_arguments_mix(void **state)
{
    (void)state;
    struct flags f;
    int rest = 0;
    char *argv[] = { "x", "a", "--prompt", "--hello", "b", "--quiet", "--max_new_tokens=5", "-", "--", "--c" };
    assert_ok(parse(&f, 10, argv, &rest));
    assert_string_equal(f.prompt, "--hello"); /* what follows a flag is its value, whatever it looks like */
    assert_string_equal(f.tokens, "5");
    assert_true(f.quiet);
    assert_int_equal(rest, 4);
    assert_string_equal(argv[1], "a");
    assert_string_equal(argv[2], "b");
    assert_string_equal(argv[3], "-");
    assert_string_equal(argv[4], "--c");
}

static void wrong_flags_are_usage_errors(void **state)
{
    (void)state;
    struct flags f;
    int rest = 0;
    char *misspelt[] = { "x", "--promt", "a" };
    assert_fails(ERR_USAGE, "unknown flag \"--promt\" | did you mean --prompt?", parse(&f, 3, misspelt, &rest));
    char *missing[] = { "x", "--prompt" };
    assert_fails(ERR_USAGE, "a value was expected after it (TEXT)", parse(&f, 2, missing, &rest));
    char *twice[] = { "x", "--prompt", "a", "--prompt=b" };
    assert_fails(ERR_USAGE, "given twice", parse(&f, 4, twice, &rest));
    char *valued[] = { "x", "--quiet=1" };
    assert_fails(ERR_USAGE, "is a switch", parse(&f, 2, valued, &rest));
    char *dash[] = { "x", "-q" };
    assert_fails(ERR_USAGE, "unknown flag \"-q\"", parse(&f, 2, dash, &rest));
}

static void numbers_of_flags_are_strict(void **state)
{
    (void)state;
    uint64_t whole = 0;
    double real = 0;
    assert_ok(cmd_whole("--n", "12", 1, 12, &whole));
    assert_int_equal(whole, 12);
    assert_fails(ERR_USAGE, "--n: expected a whole number from 1 to 12, got 13", cmd_whole("--n", "13", 1, 12, &whole));
    assert_fails(ERR_USAGE, "expected a whole number, got the text \"12x\"", cmd_whole("--n", "12x", 1, 12, &whole));
    assert_fails(ERR_USAGE, "got nothing", cmd_whole("--n", "", 1, 12, &whole));
    assert_fails(ERR_USAGE, "may not be negative", cmd_whole("--n", "-1", 0, 12, &whole));
    assert_ok(cmd_real("--t", "-1.5e-1", -1, 1, &real));
    assert_true(real == -0.15);
    assert_fails(ERR_USAGE, "expected a number from 0 to 2, got 3", cmd_real("--t", "3", 0, 2, &real));
    assert_fails(ERR_USAGE, "finite", cmd_real("--t", "nan", 0, 2, &real));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(flags_values_and_arguments_mix),
    cmocka_unit_test(wrong_flags_are_usage_errors),
    cmocka_unit_test(numbers_of_flags_are_strict),
};
TEST_MAIN(tests)
