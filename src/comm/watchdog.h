/* The watchdog: a thread of each rank that names who keeps the job waiting and ends it.
 *
 * comm_watch (comm.h) starts it. When this rank has waited longer than the time limit in a call that others have not
 * reached, or another rank of the node ended without leaving, one rank of the node reports. It prints "error: rank 3
 * is late: in forward of layer 5, step 17 (process 1234 is stopped), ...; ranks 0-2 have waited 30.0 s in #812 ...",
 * writes FOLDER/exit-rank-N.json for every rank of the node, and ends the job with exit code 5; watchdogs of other
 * nodes are asked who is late there, and write the records of their ranks. Ranks that are threads get the message as
 * ERR_PEER from the call they wait in instead.
 *
 * The limit counts from when the first rank of a group began to wait in a call: computing between calls is never late
 * unless somebody waits for it longer than the limit, which must therefore be longer than the longest such stretch (a
 * save or an evaluation on one rank while others wait). Time in which the whole job is stopped does not count. Naming
 * takes at most 0.2 s more than the limit; a rank of the node that ends is named within 0.05 s (one that was ended as
 * politely as a whole job is, by SIGTERM, after 0.15 s). A rank that is alone on its node and ends is named by the
 * launcher, which ends the job before the limit. */
#ifndef COMM_WATCHDOG_H
#define COMM_WATCHDOG_H

#include "comm/comm.h"

#define WATCHDOG_EXIT_CODE 5
#define WATCHDOG_PERIOD_MS 50

#endif
