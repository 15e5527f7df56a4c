/* The folders of a checkpoints folder: step-N (complete), step-N.tmp (being written), step-N.old (being replaced), and
 * the hint `latest`. Used inside ckpt only. Not collective. */
#ifndef CKPT_STEPS_H
#define CKPT_STEPS_H

#include "base/err.h"

enum step_kind { STEP_PLAIN, STEP_OLD, STEP_TEMP };

struct step_entry {
    uint64_t step;
    enum step_kind kind;
    char *path;
};

struct step_list {
    struct step_entry *list; /* highest step first; of one step: plain, old, temp */
    size_t count, capacity;
};

/* Whether `name` is exactly step-N, step-N.old or step-N.tmp, N without leading zeros. */
bool steps_parse(const char *name, uint64_t *step, enum step_kind *kind);
/* All such folders of `checkpoints`. */
MUST_USE enum err steps_list(struct step_list *out, const char *checkpoints);
void steps_release(struct step_list *s);
/* CHECKPOINTS/step-N with a suffix, as a heap string. */
MUST_USE enum err steps_path(char **out, const char *checkpoints, uint64_t step, enum step_kind kind);
/* Write `latest`. */
MUST_USE enum err steps_set_latest(const char *checkpoints, uint64_t step);
/* What `latest` says: false when it is missing or not of the form it is written in. */
bool steps_get_latest(const char *checkpoints, uint64_t *step);

#endif
