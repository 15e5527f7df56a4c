/* The trace of one step of a run, of all ranks in one file. */
#ifndef TRAIN_PROFILER_H
#define TRAIN_PROFILER_H

#include "base/profile.h"
#include "train/trainer.h"

/* Get ready to record step conf->profile; nothing when it is 0, or done before a resumed run. */
MUST_USE enum err profiler_open(struct trainer *t);
void profiler_close(struct trainer *t);
/* Begin to record when the coming step is the one. Collective over all ranks. */
MUST_USE enum err profiler_before(struct trainer *t);
/* After it: write OUTPUT_DIR/profile-step-N.json on the leading rank. Collective over all ranks. */
MUST_USE enum err profiler_after(struct trainer *t);

#endif
