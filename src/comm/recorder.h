/* The flight recorder: what a rank did last, in a file that survives the rank.
 *
 * Each rank writes a ring of records, one for each call on a group, and the phase it is in, into a mapping of
 * FOLDER/rank-N.ring that the system keeps when the rank is killed. docs/formats.md describes the bytes. Writing makes
 * no call to the system and takes no lock; reading is for after an end, or for a rank that stands still. */
#ifndef COMM_RECORDER_H
#define COMM_RECORDER_H

#include "base/buf.h"
#include "comm/comm.h"

#define RECORDER_RECORDS 2048u
#define RECORDER_HOST_BYTES 64u
#define RECORDER_CALL_TEXT 160

/* One call, as it stands in the file. */
struct record {
    uint64_t seq;    /* 1 for the rank's first call; 0: being written */
    uint64_t t_out;  /* ticks; 0: it has not returned */
    uint32_t result; /* enum err, once t_out is set */
    uint32_t layer;
    uint64_t t_in, step;
    uint64_t number, group; /* of the call in its group, id of the group */
    uint64_t count, shape;  /* elements of `type`; hash of what else the ranks must agree on */
    uint32_t line, root, tag;
    uint8_t kind, type, op;  /* of comm_int.h: names by record_call_text */
    uint8_t phase;           /* enum comm_phase */
    char file[32], name[16]; /* source file, group; zero-terminated */
    uint64_t check;          /* hash of layer to name */
};

const char *comm_phase_name(enum comm_phase phase);
/* "#41 all-gather f32 x 1000 (state.c:210) of group tp". */
void record_call_text(const struct record *r, char out[RECORDER_CALL_TEXT]);

/* ---- writing: one rank, any of its threads ---- */

struct recorder;
struct comm_sig;

/* Make `path` (a file of that name is replaced) for this rank of a world of `size`. Not collective. */
MUST_USE enum err recorder_new(struct recorder **out, const char *path, uint32_t rank, uint32_t size);
/* Mark the ring as ended with this exit code and unmap it. The file stays. NULL is allowed. */
void recorder_free(struct recorder *r, int exit_code);

/* Returns the record's number, for recorder_end. */
uint64_t recorder_begin(struct recorder *r, const struct comm_sig *sig);
/* No effect when the ring has gone once round since. */
void recorder_end(struct recorder *r, uint64_t seq, enum err err);
void recorder_phase(struct recorder *r, enum comm_phase phase, uint64_t step, uint32_t layer);
/* A sign of life, and a better measure of the clock's rate: now and then, by the watchdog. */
void recorder_beat(struct recorder *r);

/* ---- reading ---- */

/* A ring as it was when it was read. */
struct recorder_file {
    uint32_t rank, size;
    int32_t pid;
    char host[RECORDER_HOST_BYTES];
    double start_unix_s;
    double beat_s; /* of the last sign of life: these times are seconds since the start */
    enum comm_phase phase;
    uint64_t step;
    uint32_t layer;
    double phase_s; /* when the phase began */
    bool ended;     /* left by comm_close, with .. */
    int exit_code;
    uint64_t begun;        /* calls ever begun */
    struct record *record; /* the last ones, oldest first; what was half written is left out */
    uint32_t count;
    uint64_t start_ticks, rate;
};

/* Read the ring at `path`. ERR_DATA names what is wrong with a file that is no ring, of another version, cut or
 * damaged. Release in either case. Not collective. */
MUST_USE enum err recorder_open_file(struct recorder_file *out, const char *path);
void recorder_file_release(struct recorder_file *f);
/* Seconds since the ring's start. */
double recorder_seconds(const struct recorder_file *f, uint64_t ticks);
/* The last n calls, oldest first, one a line: "12.345678 s  #7 barrier (x.c:9) of group tp, forward of layer 3, step 5:
 * 0.000012 s", or "has not returned", or the kind of error. */
MUST_USE enum err recorder_print(struct buf *out, const struct recorder_file *f, uint32_t n);

#endif
