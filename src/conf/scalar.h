/* Scalars of a configuration, read strictly: a number is a number as everyone writes it, or an error that says what was
 * found. For conf/, and for the flags of commands. */
#ifndef CONF_SCALAR_H
#define CONF_SCALAR_H

#include "conf/yaml.h"

/* A user's text for a message: in quotes, cut to a readable length, without control characters. */
struct quoted {
    char text[100];
};
struct quoted scalar_quote(const char *text, size_t bytes);
/* What a value is, for "expected X, got ...": "the string "8"", "the whole number 8", "a list". */
struct quoted scalar_describe(const struct node *n);

/* The value itself as it stands in the file: 8, "8", true; or "a list". */
struct quoted scalar_show(const struct node *n);

bool scalar_is_scalar(const struct node *n);
/* A plain null, ~ or nothing at all. */
bool scalar_is_null(const struct node *n);

/* Whether a node is read as a type, else what was expected and found, with advice that fits the mistake (quotes, a
 * leading zero, a decimal point, yes for true). */
struct scalar_problem {
    bool bad;
    char text[240]; /* "expected a whole number, got the string "8" (remove the quotes)" */
};
struct scalar_problem scalar_whole(const struct node *n, uint64_t *out);
struct scalar_problem scalar_real(const struct node *n, double *out);
struct scalar_problem scalar_flag(const struct node *n, bool *out);
/* A text: quoted, or plain and neither a number, true, false nor null. */
struct scalar_problem scalar_text(const struct node *n);

/* Is the scalar one of "a|b|c"? Numbers are compared as numbers: 0 is 0.0. "null" in the list accepts a null. */
bool scalar_is_one_of(const struct node *n, const char *list);

/* The shortest decimal text that reads back to the same double. */
struct quoted scalar_write_real(double value);

#endif
