/* What every rank must have the same before a job is divided: its configuration and its data. */
#ifndef TRAIN_SAME_H
#define TRAIN_SAME_H

#include "comm/comm.h"
#include "conf/conf.h"
#include "data/store.h"

/* ERR_USAGE on every rank names the first rank that differs from rank 0, and in what: the first key with both values
 * and where they come from; or the file of tokens (`eval` NULL: none), of which counts, the recorded hash and some
 * tokens are compared, of a small file all. Collective. */
MUST_USE enum err same_everywhere(struct comm *all, const struct conf *c, const struct store *data,
                                  const struct store *eval);

#endif
