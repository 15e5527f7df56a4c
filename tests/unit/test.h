/* What every unit test includes: cmocka, and a main that runs one group, or only the tests whose name contains
 * argv[1]. */
#ifndef TESTS_UNIT_TEST_H
#define TESTS_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"

#define TEST_MAIN(tests)                                                                           \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        char pattern[256];                                                                         \
        if (argc > 1) {                                                                            \
            snprintf(pattern, sizeof(pattern), "*%s*", argv[1]);                                   \
            cmocka_set_test_filter(pattern);                                                       \
        }                                                                                          \
        return cmocka_run_group_tests(tests, NULL, NULL);                                          \
    }

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
