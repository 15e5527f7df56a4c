/* A fault at a place that the environment names, for programs that are linked with -Wl,--wrap=comm_phase: the product
 * itself has no trace of it.
 *
 *   INVAR_FAULT=KIND@PHASE[:step=N][:layer=N][:rank=N]      kill@forward:step=3:layer=1:rank=2
 *
 * KIND: kill segv abrt term stop (the signals), exit0 exit3 (without leaving the job), spin, sleep. What is left out
 * matches everything. The fault happens when the rank says that it enters that phase, after it has said so. A line on
 * stderr tells when: "fault: rank 2 at 1785433.250 s" (CLOCK_REALTIME). A value that is not understood ends the
 * program. */
#include <inttypes.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/recorder.h"

void __real_comm_phase(struct comm_world *w, enum comm_phase phase, uint64_t step, uint32_t layer);
void __wrap_comm_phase(struct comm_world *w, enum comm_phase phase, uint64_t step, uint32_t layer);

struct fault {
    char kind[16], phase[16];
    uint64_t step, layer, rank; /* UINT64_MAX: any */
};

static bool parse(struct fault *f, const char *text)
{
    *f = (struct fault){ .step = UINT64_MAX, .layer = UINT64_MAX, .rank = UINT64_MAX };
    int used = 0;
    if (sscanf(text, "%15[a-z0-9]@%15[a-z]%n", f->kind, f->phase, &used) != 2) {
        return false;
    }
    for (text += used; *text != '\0'; text += used) {
        char key[8];
        uint64_t value;
        if (sscanf(text, ":%7[a-z]=%" SCNu64 "%n", key, &value, &used) != 2) {
            return false;
        }
        uint64_t *field = strcmp(key, "step") == 0    ? &f->step
                          : strcmp(key, "layer") == 0 ? &f->layer
                          : strcmp(key, "rank") == 0  ? &f->rank
                                                      : NULL;
        if (field == NULL) {
            return false;
        }
        *field = value;
    }
    return true;
}

/* Does not return, unless the kind is stop and somebody continues the process. */
static bool happen(const char *kind)
{
    static const struct {
        const char *kind;
        int signal;
    } signals[] = { { "kill", SIGKILL }, { "segv", SIGSEGV }, { "abrt", SIGABRT },
                    { "term", SIGTERM }, { "stop", SIGSTOP } };
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        if (strcmp(kind, signals[i].kind) == 0) {
            signal(signals[i].signal, SIG_DFL); /* MPI prints a page of its own */
            kill(getpid(), signals[i].signal);
            return true;
        }
    }
    if (strcmp(kind, "exit0") == 0 || strcmp(kind, "exit3") == 0) {
        _exit(kind[4] - '0');
    }
    if (strcmp(kind, "spin") == 0) {
        for (volatile uint64_t i = 0;; i++) {
        }
    }
    if (strcmp(kind, "sleep") == 0) {
        for (;;) {
            pause();
        }
    }
    return false;
}

void __wrap_comm_phase(struct comm_world *w, enum comm_phase phase, uint64_t step, uint32_t layer)
{
    __real_comm_phase(w, phase, step, layer);
    const char *text = getenv("INVAR_FAULT");
    struct fault f;
    if (text == NULL) {
        return;
    }
    bool known = parse(&f, text);
    if (known && (strcmp(f.phase, comm_phase_name(phase)) != 0 || (f.step != UINT64_MAX && f.step != step) ||
                  (f.layer != UINT64_MAX && f.layer != layer) ||
                  (f.rank != UINT64_MAX && f.rank != comm_rank(comm_all(w))))) {
        return;
    }
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    fprintf(stderr, "fault: rank %u at %lld.%03ld s\n", comm_rank(comm_all(w)), (long long)t.tv_sec,
            t.tv_nsec / 1000000);
    if (!known || !happen(f.kind)) {
        fprintf(stderr, "INVAR_FAULT=%s: expected KIND@PHASE:step=N:layer=N:rank=N\n", text);
        _exit(2);
    }
}
