/* A path for the one file that a test program writes again and again: in memory where the system has such a folder. */
#ifndef TESTS_SCRATCH_PATH_H
#define TESTS_SCRATCH_PATH_H

#include <errno.h>

#include "test.h"

static char path[96];

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "%s/invar-%s-%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
             program_invocation_short_name, (int)getpid());
    return 0;
}

static int remove_path(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

#endif
