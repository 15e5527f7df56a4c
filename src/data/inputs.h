/* Which files a command reads: names, folders and globs, expanded in one fixed order. */
#ifndef DATA_INPUTS_H
#define DATA_INPUTS_H

#include "base/err.h"
#include "data/stream.h"

struct input_file {
    char *path;
    uint64_t bytes; /* as stored */
    enum stream_kind kind;
    bool jsonl; /* else text */
};

struct inputs {
    struct input_file *file;
    size_t count, capacity;
};

/* Inputs in the given order. A folder gives the files with a known ending directly in it, a glob the names it matches,
 * both sorted bytewise and without dot files. A file with another ending, and an input that gives no file, is
 * ERR_USAGE. */
MUST_USE enum err inputs_expand(struct inputs *out, const char *const *names, size_t count);
void inputs_release(struct inputs *in);

#endif
