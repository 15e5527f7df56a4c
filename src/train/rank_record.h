/* What each rank records of itself, RUN/recorder/rank-N.jsonl: where it started and under which layout, and what it
 * gave to the sums of each step. Enough to compute the step of that rank again, anywhere. docs/formats.md. Not
 * collective. */
#ifndef TRAIN_RANK_RECORD_H
#define TRAIN_RANK_RECORD_H

#include "base/json.h"
#include "conf/conf.h"

/* A rank's part of a step, before ranks are added up. */
struct contribution {
    int64_t loss;      /* units of 2^-28 nat; 0 on all but the last stage of a pipeline */
    uint64_t tokens;   /* that it counted */
    bool hashed;       /* there is a .. */
    uint64_t gradient; /* .. checksum of its gradients: kern_checksum_i64 over its flat storage */
};
bool contribution_equal(const struct contribution *a, const struct contribution *b);

/* ---- writing ---- */

struct rank_record; /* an open file */

/* A process joined the run. */
struct rank_start {
    uint32_t rank, world;
    uint64_t step;    /* done before */
    const char *from; /* the checkpoint it went on from; NULL: none */
};
/* Append to FOLDER/rank-N.jsonl; writes the start. */
MUST_USE enum err rank_record_open(struct rank_record **out, const char *folder, const struct rank_start *start,
                                   const struct conf *c);
void rank_record_close(struct rank_record *r);
/* One line, in one write. */
MUST_USE enum err rank_record_step(struct rank_record *r, uint64_t step, const struct contribution *given);

/* ---- reading ---- */

/* A start as it was recorded. */
struct past_start {
    uint32_t world;
    uint64_t step;
    char *from;      /* heap; NULL: none */
    char digest[33]; /* of the configuration */
    json_t *keys;    /* { "tp": "2", .. }: how the job was split, and all that decides results but for the model; values
                      * as --key takes them */
};
struct rank_past {
    struct past_start *starts; /* heap, in the order in which they happened */
    size_t count, capacity;
    bool found;                /* the step that was asked for; the last time counts: */
    size_t at;                 /* under which start */
    struct contribution given;
    uint64_t last;             /* the highest step that is recorded; 0: none */
};
/* Read FOLDER/rank-N.jsonl for a step. ERR_USAGE: there is no such file. Release in any case. */
MUST_USE enum err rank_past_read(struct rank_past *p, const char *folder, uint32_t rank, uint64_t step);
void rank_past_release(struct rank_past *p);

#endif
