/* Why this exists: a misspelt key must be an error that names the key that was meant. The measure is the restricted
 * Damerau-Levenshtein distance: swapped neighbours count once, as they do in typing. */
#include "conf/nearest.h"

#include "base/err.h"

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t nearest_distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    BUG_IF(a_bytes > NEAREST_NAME_MAX || b_bytes > NEAREST_NAME_MAX);
    size_t row[3][NEAREST_NAME_MAX + 1]; /* rows i-2, i-1 and i of the table, used in turn */
    for (size_t j = 0; j <= b_bytes; j++) {
        row[0][j] = j;
    }
    for (size_t i = 1; i <= a_bytes; i++) {
        size_t *now = row[i % 3], *before = row[(i + 2) % 3], *two_before = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= b_bytes; j++) {
            size_t change = before[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = least(change, least(before[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                now[j] = least(now[j], two_before[j - 2] + 1);
            }
        }
    }
    return row[a_bytes % 3][b_bytes];
}

void nearest_init(struct nearest *n, const char *wanted)
{
    const char *dot = strrchr(wanted, '.');
    size_t last = strlen(dot != NULL ? dot + 1 : wanted);
    *n = (struct nearest){ .wanted = wanted, .limit = 1 + last / 3, .best = SIZE_MAX };
}

void nearest_try(struct nearest *n, const char *candidate, size_t bytes)
{
    size_t wanted_bytes = strlen(n->wanted);
    if (wanted_bytes > NEAREST_NAME_MAX || bytes >= NEAREST_NAME_MAX) {
        return;
    }
    size_t apart = wanted_bytes > bytes ? wanted_bytes - bytes : bytes - wanted_bytes;
    if (apart > n->limit || (apart + 1) / 2 >= n->best) {
        return; /* the distance is at least the difference of the lengths */
    }
    size_t distance = nearest_distance(n->wanted, wanted_bytes, candidate, bytes);
    /* A name with a part left out or added (warmup_steps for warmup_num_steps) is nearer than one with parts changed.
     */
    size_t weight = distance == apart ? (distance + 1) / 2 : distance;
    if (distance <= n->limit && weight < n->best && distance < bytes) {
        n->best = weight;
        memcpy(n->name, candidate, bytes);
        n->name[bytes] = '\0';
    }
}

const char *nearest_found(const struct nearest *n)
{
    return n->best != SIZE_MAX ? n->name : NULL;
}
