/* Why this exists: the rest of the system holds one handle on arithmetic: which instruction set, which threads, and
 * the packing buffers, all fixed when a run starts so that nothing is allocated later.
 *
 * Invariant: the tables of one instance are all of the same instruction set. */
#include "kern/kern_int.h"

#include "base/log.h"
#include "base/mem.h"
#include "kern/gemm_leaf.h"

#define PEAK_TRIES 5
#define PEAK_ROUNDS 200000u /* some milliseconds of one thread with vector registers */
#define PEAK_ROUNDS_SCALAR 20000u

enum err kern_new(struct kern **out, enum isa isa, struct pool *pool)
{
    *out = NULL;
    BUG_IF((unsigned)isa >= ISA_COUNT || !kern_isa_supported(isa));
    enum err err = OK;
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct kern)));
    struct kern *k = mem;
    *k = (struct kern){ .isa = isa,
                        .pool = pool,
                        .gemm = gemm_leaves_of[isa],
                        .blocking = gemm_blocking_here(),
                        .attention = attention_leaves_of[isa],
                        .row = row_leaves_of[isa],
                        .param = param_leaves_of[isa] };
    TRY_OUT(mem_big_alloc_by(&k->gemm_workspace, gemm_workspace_bytes(pool_threads(pool)), pool));
    TRY_OUT(mem_big_alloc_by(&k->attention_workspace, attention_workspace_bytes(pool_threads(pool)), pool));
    *out = k;
    k = NULL;
out:
    kern_free(k);
    return err;
}

void kern_free(struct kern *k)
{
    if (k == NULL) {
        return;
    }
    uint32_t threads = pool_threads(k->pool);
    mem_big_free(k->gemm_workspace, gemm_workspace_bytes(threads));
    mem_big_free(k->attention_workspace, attention_workspace_bytes(threads));
    free(k);
}

struct pool *kern_pool(const struct kern *k)
{
    return k->pool;
}

enum isa kern_isa(const struct kern *k)
{
    return k->isa;
}

uint64_t kern_workspace_bytes(uint32_t threads)
{
    return mem_big_bytes(gemm_workspace_bytes(threads)) + mem_big_bytes(attention_workspace_bytes(threads));
}

struct peak_run {
    double (*loop)(uint64_t rounds);
    uint64_t rounds;
    double flops[POOL_THREADS_MAX];
};

static void peak_task(void *arg, uint64_t task, uint32_t worker)
{
    (void)task;
    struct peak_run *run = arg;
    run->flops[worker] = run->loop(run->rounds);
}

static double peak_gflops(struct kern *k, double (*loop)(uint64_t rounds))
{
    struct peak_run run = { .loop = loop, .rounds = k->isa == ISA_SCALAR ? PEAK_ROUNDS_SCALAR : PEAK_ROUNDS };
    double best = 0;
    for (int i = 0; i < PEAK_TRIES; i++) {
        double start = log_seconds();
        pool_run_each(k->pool, peak_task, &run);
        double seconds = log_seconds() - start;
        double flops = 0;
        for (uint32_t w = 0; w < pool_threads(k->pool); w++) {
            flops += run.flops[w];
        }
        double gflops = seconds > 0 ? flops / seconds / 1e9 : 0;
        best = gflops > best ? gflops : best;
    }
    return best;
}

double kern_peak_gflops(struct kern *k)
{
    return peak_gflops(k, k->gemm->f32.peak_loop);
}

double kern_peak_bf16_gflops(struct kern *k)
{
    return peak_gflops(k, k->gemm->bf16.peak_loop);
}
