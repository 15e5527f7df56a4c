/* Why this exists: one place that keeps, traces and prints errors, so that no module invents its own. The message
 * lives in thread-local storage because ranks may be threads of one process. */
#include "base/err.h"

#include <stdarg.h>
#include <unistd.h>

struct err_state {
    char message[ERR_MESSAGE_BYTES];
    char trace[1024];
};

static _Thread_local struct err_state state;

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

enum err err_fail(enum err code, const char *file, int line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char text[ERR_MESSAGE_BYTES]; /* the arguments may point into the old message */
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    memcpy(state.message, text, sizeof(text));
    snprintf(state.trace, sizeof(state.trace), "  at %s:%d\n", base_name(file), line);
    return code;
}

void err_trace(const char *file, int line)
{
    size_t used = strlen(state.trace);
    snprintf(state.trace + used, sizeof(state.trace) - used, "  at %s:%d\n", base_name(file), line);
}

_Noreturn void err_bug(const char *file, int line, const char *what)
{
    fprintf(stderr,
            "bug: %s:%d: this must not be true: %s\n"
            "hint: this is a fault of invar, not of your input; please report it with the command "
            "and this line\n",
            base_name(file), line, what);
    fflush(NULL);
    _exit(70);
}

const char *err_message(void)
{
    return state.message;
}

void err_set_message(const char *message)
{
    snprintf(state.message, sizeof(state.message), "%s", message);
    state.trace[0] = '\0';
}

/* A message that starts with "file:line:col: " keeps that in front of "error:", as compilers do. */
static size_t position_prefix(const char *message)
{
    for (const char *p = strchr(message, ':'); p != NULL; p = strchr(p + 1, ':')) {
        int line = 0, col = 0, used = 0;
        if (sscanf(p, ":%d:%d: %n", &line, &col, &used) == 2 && used > 0) {
            return (size_t)(p - message) + (size_t)used;
        }
        if (p[1] == ' ') {
            return 0;
        }
    }
    return 0;
}

void err_print(void)
{
    size_t prefix = position_prefix(state.message);
    const char *body = state.message + prefix;
    const char *bar = strstr(body, " | ");
    int body_len = bar != NULL ? (int)(bar - body) : (int)strlen(body);
    fprintf(stderr, "%.*serror: %.*s\n", (int)prefix, state.message, body_len, body);
    if (bar != NULL) {
        fprintf(stderr, "hint: %s\n", bar + 3);
    }
    if (getenv("INVAR_TRACE") != NULL) {
        fprintf(stderr, "%s", state.trace);
    }
}

int err_exit_code(enum err code)
{
    static const int codes[] = {
        [OK] = 0,           [ERR_RUN] = 1,  [ERR_USAGE] = 2,     [ERR_DATA] = 3, [ERR_IO] = 3,
        [ERR_RESOURCE] = 4, [ERR_PEER] = 5, [ERR_INTERRUPT] = 6,
    };
    return codes[code];
}
