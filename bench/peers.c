/* Why this exists: a ratio means something only when both sides ran at their best on the same machine at the same time.
 * Peers are found when the program runs, so that it builds and says what is missing where one is not installed.
 *
 * OpenBLAS chooses its kernels for the processor when no variable holds it to others (the caller takes such variables
 * out of the environment); of the installed builds the one for OpenMP is taken, which shares its threads with oneDNN.
 * PyTorch lives in a process of its own (pytorch_gemm.py, run by the Python that INVAR_PYTHON names), which is asked
 * for one product at a time. */
#include "peers.h"

#include <dlfcn.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- libraries ---- */

/* The first library that one of the patterns finds; NULL: none. */
static void *open_library(struct peer *p, const char *const *patterns, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        glob_t found = { 0 };
        bool any = glob(patterns[i], 0, NULL, &found) == 0 && found.gl_pathc > 0;
        void *library = dlopen(any ? found.gl_pathv[0] : patterns[i], RTLD_NOW | RTLD_LOCAL);
        globfree(&found);
        if (library != NULL) {
            return library;
        }
    }
    snprintf(p->absent, sizeof(p->absent), "no %s is installed", patterns[count - 1]);
    return NULL;
}

/* A function of a library, in the place `function`. */
static bool find(struct peer *p, void *library, const char *name, void *function)
{
    void *at = dlsym(library, name);
    memcpy(function, &at, sizeof(at)); /* ISO C has no conversion from objects to functions */
    if (at == NULL) {
        snprintf(p->absent, sizeof(p->absent), "its library has no %s", name);
    }
    return at != NULL;
}

/* ---- oneDNN ---- */

typedef int dnnl_sgemm_fn(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                          int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

struct dnnl {
    void *library;
    dnnl_sgemm_fn *sgemm;
};

/* Its thread count is OpenMP's: that of OMP_NUM_THREADS. */
static bool dnnl_open(struct peer *p, uint32_t threads)
{
    static const char *const names[] = { "libdnnl.so.3", "libdnnl.so.2" };
    static struct dnnl self;
    (void)threads;
    self.library = open_library(p, names, sizeof(names) / sizeof(names[0]));
    p->state = &self;
    return self.library != NULL && find(p, self.library, "dnnl_sgemm", &self.sgemm);
}

static double dnnl_run(const struct peer *p, const struct product *x, const struct operands *o)
{
    const struct dnnl *self = p->state;
    int64_t m = (int64_t)x->m, n = (int64_t)x->n, k = (int64_t)x->k;
    /* row-major; our right operand is the transpose of theirs */
    self->sgemm(x->a_trans ? 'T' : 'N', x->b_trans ? 'N' : 'T', m, n, k, 1.0f, o->a, x->a_trans ? m : k, o->b,
                x->b_trans ? n : k, 0.0f, o->c, n);
    return 0;
}

static void no_close(struct peer *p)
{
    (void)p;
}

/* ---- OpenBLAS ---- */

enum { CBLAS_ROWS = 101, CBLAS_PLAIN = 111, CBLAS_TRANS = 112 };

typedef void cblas_sgemm_fn(int order, int transa, int transb, int m, int n, int k, float alpha, const float *a,
                            int lda, const float *b, int ldb, float beta, float *c, int ldc);

struct openblas {
    cblas_sgemm_fn *sgemm;
    void (*set_threads)(int threads);
    char *(*core)(void);
    char name[48];
};

static bool openblas_open(struct peer *p, uint32_t threads)
{
    static const char *const names[] = { "/usr/lib/*/openblas-openmp/libopenblas.so.0",
                                         "/usr/lib/*/openblas-pthread/libopenblas.so.0", "libopenblas.so.0" };
    static struct openblas self;
    void *library = open_library(p, names, sizeof(names) / sizeof(names[0]));
    if (library == NULL || !find(p, library, "cblas_sgemm", &self.sgemm) ||
        !find(p, library, "openblas_set_num_threads", &self.set_threads) ||
        !find(p, library, "openblas_get_corename", &self.core)) {
        return false;
    }
    self.set_threads((int)threads);
    snprintf(self.name, sizeof(self.name), "OpenBLAS (%s)", self.core());
    p->name = self.name;
    p->state = &self;
    return true;
}

static double openblas_run(const struct peer *p, const struct product *x, const struct operands *o)
{
    const struct openblas *self = p->state;
    int m = (int)x->m, n = (int)x->n, k = (int)x->k;
    self->sgemm(CBLAS_ROWS, x->a_trans ? CBLAS_TRANS : CBLAS_PLAIN, x->b_trans ? CBLAS_PLAIN : CBLAS_TRANS, m, n, k,
                1.0f, o->a, x->a_trans ? m : k, o->b, x->b_trans ? n : k, 0.0f, o->c, n);
    return 0;
}

/* ---- PyTorch ---- */

struct pytorch {
    pid_t child;
    FILE *ask, *answer;
};

/* The script beside this program's source. */
static void pytorch_child(int in, int out, uint32_t threads, bool bf16)
{
    char count[16], script[512];
    snprintf(count, sizeof(count), "%u", threads);
    snprintf(script, sizeof(script), "%s/pytorch_gemm.py", BENCH_FOLDER);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    setenv("OMP_NUM_THREADS", count, 1);
    const char *python = getenv("INVAR_PYTHON"); /* also by its own name: an environment finds its packages by that */
    execlp(python, python, script, count, bf16 ? "bf16" : "fp32", (char *)NULL);
    _exit(127);
}

/* Whether an instruction multiplies bf16 numbers: without one PyTorch needs minutes for what takes milliseconds. */
static bool cpu_has_bf16(void)
{
    char line[4096];
    bool has = false;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f != NULL && !has && fgets(line, sizeof(line), f) != NULL) {
        has = strstr(line, " avx512_bf16") != NULL || strstr(line, " amx_bf16") != NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return has;
}

static bool pytorch_open(struct peer *p, uint32_t threads)
{
    static struct pytorch both[2];
    struct pytorch *self = &both[p->bf16];
    int ask[2], answer[2];
    char ready[64] = "";
    if (getenv("INVAR_PYTHON") == NULL) {
        snprintf(p->absent, sizeof(p->absent), "INVAR_PYTHON names no Python that has torch");
        return false;
    }
    if (p->bf16 && !cpu_has_bf16()) {
        snprintf(p->absent, sizeof(p->absent), "this processor has no instruction for bf16");
        return false;
    }
    signal(SIGPIPE, SIG_IGN); /* a child that is gone answers nothing, which is seen */
    if (pipe(ask) != 0 || pipe(answer) != 0 || (self->child = fork()) < 0) {
        snprintf(p->absent, sizeof(p->absent), "no process for it can be started");
        return false;
    }
    if (self->child == 0) {
        close(ask[1]);
        close(answer[0]);
        pytorch_child(ask[0], answer[1], threads, p->bf16);
    }
    close(ask[0]);
    close(answer[1]);
    self->ask = fdopen(ask[1], "w");
    self->answer = fdopen(answer[0], "r");
    p->state = self;
    if (self->ask == NULL || self->answer == NULL || fgets(ready, sizeof(ready), self->answer) == NULL) {
        snprintf(p->absent, sizeof(p->absent), "%s has no torch that works", getenv("INVAR_PYTHON"));
        p->close(p);
        return false;
    }
    return true;
}

static double pytorch_run(const struct peer *p, const struct product *x, const struct operands *o)
{
    const struct pytorch *self = p->state;
    char line[64] = "";
    (void)o; /* it has its own */
    fprintf(self->ask, "%llu %llu %llu %d %d\n", (unsigned long long)x->m, (unsigned long long)x->n,
            (unsigned long long)x->k, x->a_trans, x->b_trans);
    fflush(self->ask);
    double seconds = fgets(line, sizeof(line), self->answer) != NULL ? strtod(line, NULL) : 0;
    return seconds > 0 ? seconds : 1e30; /* it died: slower than everything */
}

static void pytorch_close(struct peer *p)
{
    struct pytorch *self = p->state;
    if (self->ask != NULL) {
        fclose(self->ask); /* it ends at the end of its input */
    }
    if (self->answer != NULL) {
        fclose(self->answer);
    }
    waitpid(self->child, NULL, 0);
}

const struct peer peers[PEERS] = {
    { .name = "oneDNN", .open = dnnl_open, .run = dnnl_run, .close = no_close },
    { .name = "OpenBLAS", .open = openblas_open, .run = openblas_run, .close = no_close },
    { .name = "PyTorch", .open = pytorch_open, .run = pytorch_run, .close = pytorch_close },
    { .name = "Torch bf16", .bf16 = true, .open = pytorch_open, .run = pytorch_run, .close = pytorch_close },
};
