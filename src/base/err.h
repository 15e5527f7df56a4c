/* Errors: three kinds of trouble, never mixed.
 *   BUG_IF   our own fault: always compiled in, prints where and why, exits 70.
 *   enum err the world's fault: returned; the message is kept per thread by FAIL.
 *   finding  a rule's verdict on a configuration (conf/finding.h): collected, all reported at once.
 * A message reads "which thing: what was found, what was expected | what to do"; the part after " | " is printed
 * as a `hint:` line. Not collective. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/banned.h"

enum err {
    OK = 0,
    ERR_RUN,       /* the run failed (loss not finite, gradient overflow, ...) */
    ERR_USAGE,     /* command line or configuration */
    ERR_DATA,      /* an input or a checkpoint is damaged or of the wrong kind */
    ERR_IO,        /* the system refused a file operation */
    ERR_RESOURCE,  /* memory or disk */
    ERR_PEER,      /* another rank failed or hung */
    ERR_INTERRUPT, /* interrupted; state saved */
};

#define ERR_MESSAGE_BYTES 2048

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Record a message for this thread and return `code`. */
#define FAIL(code, ...) err_fail((code), __FILE__, __LINE__, __VA_ARGS__)
/* Return the error of `expr`, adding this place to the trace shown with INVAR_TRACE=1. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        enum err try_err_ = (expr);                                                                \
        if (try_err_ != OK) {                                                                      \
            err_trace(__FILE__, __LINE__);                                                         \
            return try_err_;                                                                       \
        }                                                                                          \
    } while (0)
/* As TRY, for functions with an `out:` label; sets the variable `err` first. */
#define TRY_OUT(expr)                                                                              \
    do {                                                                                           \
        err = (expr);                                                                              \
        if (err != OK) {                                                                           \
            err_trace(__FILE__, __LINE__);                                                         \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)
#define BUG_IF(cond)                                                                               \
    do {                                                                                           \
        if (__builtin_expect(!!(cond), 0)) {                                                       \
            err_bug(__FILE__, __LINE__, #cond);                                                    \
        }                                                                                          \
    } while (0)

/* What the macros above call; not for direct use. */
enum err err_fail(enum err code, const char *file, int line, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
void err_trace(const char *file, int line);
_Noreturn void err_bug(const char *file, int line, const char *what);

/* The last message of this thread ("" when none), owned by the thread, valid until its next FAIL. */
const char *err_message(void);
/* Copy a message made on another thread to this one. */
void err_set_message(const char *message);
/* Print the last message as "error: ..." and "hint: ..." on stderr. */
void err_print(void);
/* Exit code of an error: 1 run, 2 usage, 3 data and files, 4 memory and disk, 5 peer, 6 interrupted. */
int err_exit_code(enum err code);

#endif
