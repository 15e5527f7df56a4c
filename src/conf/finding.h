/* Findings: the verdicts of rules on a configuration, collected so that all are reported at once, like a compiler's. */
#ifndef CONF_FINDING_H
#define CONF_FINDING_H

#include "base/buf.h"
#include "base/err.h"

enum finding_level { FINDING_ERROR, FINDING_WARNING };

struct finding {
    enum finding_level level;
    char *text; /* "file:line:col: error: ..." with the hint on a second line */
    char *file; /* the place again, for sorting; NULL: the command line */
    int line, col;
};

struct findings {
    struct finding *list;
    size_t count, capacity;
    size_t errors;   /* all, also those not kept */
    size_t not_kept; /* above the limit of 200 or out of memory: counted only */
};

/* Where a value came from. file NULL: the command line (line = argument number) or a default. */
struct conf_origin {
    const char *file;
    int line, col;
};

/* Add "ORIGIN: error: message"; the part of the message after " | " becomes the hint line. */
void findings_add(struct findings *f, enum finding_level level, const struct conf_origin *at, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Print all on stderr in the order of (file, line, col), then "N errors". */
void findings_print(const struct findings *f);
/* The first error as err_message(), for a rank that prints nothing itself; nothing when there is none. */
void findings_to_message(const struct findings *f);
void findings_release(struct findings *f);

#endif
