/* What every unit test includes: cmocka, and a main that runs one group, or only the tests whose name contains
 * argv[1]. */
#ifndef TESTS_UNIT_TEST_H
#define TESTS_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"

/* Limits the run to tests whose name contains argv[1]; returns how many there are: none is a mistyped name. */
static inline size_t tests_chosen(const struct CMUnitTest *tests, size_t count, int argc, char **argv)
{
    static char pattern[256];
    if (argc < 2) {
        return count;
    }
    snprintf(pattern, sizeof(pattern), "*%s*", argv[1]);
    cmocka_set_test_filter(pattern);
    size_t chosen = 0;
    for (size_t i = 0; i < count; i++) {
        chosen += strstr(tests[i].name, argv[1]) != NULL;
    }
    if (chosen == 0) {
        fprintf(stderr, "no test has \"%s\" in its name; there are:\n", argv[1]);
        for (size_t i = 0; i < count; i++) {
            fprintf(stderr, "  %s\n", tests[i].name);
        }
    }
    return chosen;
}

#define TEST_GROUP(tests, setup, teardown)                                                         \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        if (tests_chosen(tests, sizeof(tests) / sizeof((tests)[0]), argc, argv) == 0) {            \
            return 2;                                                                              \
        }                                                                                          \
        return cmocka_run_group_tests(tests, setup, teardown);                                     \
    }

#define TEST_MAIN(tests) TEST_GROUP(tests, NULL, NULL)

/* Fails with the recorded message when the call did not succeed. */
#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        enum err assert_ok_err_ = (expr);                                                          \
        if (assert_ok_err_ != OK) {                                                                \
            fail_msg("%s: %s", #expr, err_message());                                              \
        }                                                                                          \
    } while (0)
/* The call must fail with `code` and a message that contains `part`. */
#define assert_fails(code, part, expr)                                                             \
    do {                                                                                           \
        enum err assert_fails_err_ = (expr);                                                       \
        if (assert_fails_err_ != (code) || strstr(err_message(), (part)) == NULL) {                \
            fail_msg("%s: got error %d \"%s\", expected %d with \"%s\"", #expr, assert_fails_err_, \
                     err_message(), (code), (part));                                               \
        }                                                                                          \
    } while (0)

#endif
