/* The known name nearest to a misspelt one. */
#ifndef CONF_NEAREST_H
#define CONF_NEAREST_H

#include <stddef.h>

#define NEAREST_NAME_MAX 96u

struct nearest {
    const char *wanted;
    size_t limit; /* more edits than this are another word, not a misspelling */
    size_t best;
    char name[NEAREST_NAME_MAX];
};

void nearest_init(struct nearest *n, const char *wanted);
/* Offer one candidate; the first of the nearest wins. */
void nearest_try(struct nearest *n, const char *candidate, size_t bytes);
/* The nearest candidate, or NULL when none is near. */
const char *nearest_found(const struct nearest *n);
/* Edits (insert, delete, replace, swap two neighbours) between two texts of at most NEAREST_NAME_MAX bytes. */
size_t nearest_distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

#endif
