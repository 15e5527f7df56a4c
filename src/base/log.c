/* Why this exists: one way to talk to the user, so that output is complete, brief and never half a line. */
#include "base/log.h"

#include <stdarg.h>
#include <time.h>
#include <unistd.h>

static void print_lines(const char *prefix, const char *text)
{
    const char *bar = strstr(text, " | ");
    if (bar == NULL) {
        fprintf(stderr, "%s%s\n", prefix, text);
    } else {
        fprintf(stderr, "%s%.*s\nhint: %s\n", prefix, (int)(bar - text), text, bar + 3);
    }
}

void log_note(const char *fmt, ...)
{
    char text[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fprintf(stderr, "%s\n", text);
}

void log_warning(const char *fmt, ...)
{
    char text[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    print_lines("warning: ", text);
}

double log_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void log_progress_init(struct log_progress *p, double plain_every_s)
{
    *p = (struct log_progress){ .terminal = isatty(STDERR_FILENO) == 1,
                                .plain_every_s = plain_every_s,
                                .last_s = -1e30 };
}

void log_progress_line(struct log_progress *p, bool force, const char *fmt, ...)
{
    double now = log_seconds();
    double every = p->terminal ? 0.1 : p->plain_every_s;
    if (!force && now - p->last_s < every) {
        return;
    }
    p->last_s = now;
    va_list args;
    va_start(args, fmt);
    if (p->terminal) {
        fputs("\r\033[K", stderr);
    }
    vfprintf(stderr, fmt, args);
    va_end(args);
    if (p->terminal) {
        fflush(stderr);
        p->shown = true;
    } else {
        fputc('\n', stderr);
    }
}

void log_progress_end(struct log_progress *p)
{
    if (p->shown) {
        fputc('\n', stderr);
        p->shown = false;
    }
}

const char *log_bytes(uint64_t bytes, char out[32])
{
    static const char *const unit[] = { "B", "kB", "MB", "GB", "TB", "PB" };
    double value = (double)bytes;
    int u = 0;
    while (value >= 1000.0 && u < 5) {
        value /= 1000.0;
        u++;
    }
    snprintf(out, 32, u == 0 ? "%.0f %s" : "%.2f %s", value, unit[u]);
    return out;
}

const char *log_duration(double seconds, char out[32])
{
    long long s = seconds > 0 ? (long long)(seconds + 0.5) : 0;
    if (s >= 3600) {
        snprintf(out, 32, "%lld h %02lld min", s / 3600, s % 3600 / 60);
    } else if (s >= 60) {
        snprintf(out, 32, "%lld min %02lld s", s / 60, s % 60);
    } else {
        snprintf(out, 32, "%lld s", s);
    }
    return out;
}
