/* Pickled weights: found by their names, never opened. Not collective. */
#ifndef CKPT_PICKLE_H
#define CKPT_PICKLE_H

#include "base/err.h"

/* The first name (ascending) in `folder` that a pickle of weights has, as a heap string; NULL: none. */
MUST_USE enum err pickle_find(const char *folder, char **name);
/* ERR_DATA, with the command that converts it, when the folder has one. */
MUST_USE enum err pickle_refuse(const char *folder);

#endif
