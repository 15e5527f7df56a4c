/* The folder of a run: one run at a time writes to it, and what it holds is one history. */
#ifndef TRAIN_OUTPUT_H
#define TRAIN_OUTPUT_H

#include "conf/conf.h"

/* Keep other runs out of output_dir, when it exists, until *lock is closed (-1: nothing was locked yet). ERR_USAGE:
 * another run writes to it. The lock ends with the process, however that ends. */
MUST_USE enum err output_lock(const struct conf *c, int *lock);
#define OUTPUT_RECORDER "recorder" /* folder below output_dir */
/* Make output_dir, lock it, and make its recorder folder: an empty one when the run replaces another. Other files of a
 * run that is replaced stay until this one has its weights. */
MUST_USE enum err output_recorder(const struct conf *c, int *lock);
/* A folder with a run in it is continued or replaced only when the user says so. */
MUST_USE enum err output_check(const struct conf *c, const char *checkpoints);
/* `folder` is the checkpoint the run goes on from, `step` its step. When the user named one of this output_dir, no
 * later one may be there: `latest` would go on from that one, which belongs to work that is done again in another
 * way. */
MUST_USE enum err output_check_later(const struct conf *c, const char *checkpoints, const char *folder, uint64_t step);

#endif
