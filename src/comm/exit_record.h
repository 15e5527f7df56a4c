/* exit-rank-N.json: how a rank ended, written by itself or by another rank on its behalf; docs/formats.md. */
#ifndef COMM_EXIT_RECORD_H
#define COMM_EXIT_RECORD_H

#include "comm/verdict.h"

#define EXIT_CALLS 8u /* last calls that are told */

struct exit_record {
    const char *folder; /* of ring files and exit records */
    uint32_t rank, size, written_by;
    const char *host;
    const struct rank_view *view;
    int exit_code;       /* below 0: not known */
    const char *message; /* reason, " | " and hint; "" when all went well */
    const struct verdict *verdict; /* whose late ranks are listed; NULL: none are */
};

/* Write it in place of an older one: whole or not at all. Not collective. */
MUST_USE enum err exit_record_write(const struct exit_record *x);
/* FOLDER/exit-rank-N.json and FOLDER/rank-N.ring. */
MUST_USE enum err exit_record_path(struct buf *out, const char *folder, uint32_t rank);
MUST_USE enum err recorder_path(struct buf *out, const char *folder, uint32_t rank);

#endif
