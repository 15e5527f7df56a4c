/* What a user sees on the terminal: notes and warnings on stderr, and one progress line that is rewritten in place on a
 * terminal and printed now and then elsewhere. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

void log_note(const char *fmt, ...) PRINTF_LIKE(1, 2);    /* "text" */
void log_warning(const char *fmt, ...) PRINTF_LIKE(1, 2); /* "warning: text"; " | " starts a hint line */

/* Rewritten in place when stderr is a terminal; else printed at most once in `plain_every_s` seconds. */
struct log_progress {
    bool terminal;
    bool shown;
    double plain_every_s;
    double last_s;
};
void log_progress_init(struct log_progress *p, double plain_every_s);
/* force: print even if the last line was just now (the final state). */
void log_progress_line(struct log_progress *p, bool force, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* End the line so that other text starts on its own. */
void log_progress_end(struct log_progress *p);

/* Seconds of a monotonic clock: for reports only, never for a result. */
double log_seconds(void);
/* "1.5 GB", "12.3 MB": decimal units; out holds 32 bytes. */
const char *log_bytes(uint64_t bytes, char out[32]);
/* "1 h 02 min", "3 min 20 s", "12 s"; out holds 32 bytes. */
const char *log_duration(double seconds, char out[32]);

#endif
