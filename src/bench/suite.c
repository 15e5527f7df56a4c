/* Why this exists: peaks, kernels and steps explain each other only when they were measured on the same machine within
 * the same minute; this is the order in which they are, and what share of the time each part gets. */
#include "bench/suite.h"

#include "base/mem.h"
#include "train/crew.h"

/* Shares of the time; the disk's is the most that it may take. */
#define SHARE_MACHINE 0.15
#define SHARE_DISK 0.1
#define SHARE_KERNELS 0.35
#define SHARE_STEP 0.4
#define STEPS_LEAST 2u
#define DISK_BYTES ((uint64_t)256 << 20)
#define DISK_SMALL_BYTES ((uint64_t)16 << 20) /* when a run shall take less than SMALL_S */
#define SMALL_S 10.0

double bench_limit_s(const struct bench_report *r, uint32_t i)
{
    const struct op *op = &r->op[i];
    double rate = op->stream ? r->machine.update.all : machine_copy_rate(&r->machine, (uint64_t)op->bytes);
    const struct rate *peak = op->bf16 ? &r->machine.bf16 : &r->machine.fma;
    return op->flops > 0 ? op->flops / peak->all : op->bytes / rate;
}

double bench_group_s(const struct bench_report *r, enum ops_group g, bool limit)
{
    double sum = 0;
    for (uint32_t i = 0; i < r->ops; i++) {
        if (r->op[i].group == g) {
            sum += r->op[i].calls * (limit ? bench_limit_s(r, i) : r->time[i].best_s);
        }
    }
    return sum;
}

double bench_bound_s(const struct bench_report *r)
{
    double sum = 0;
    for (uint32_t i = 0; i < r->ops; i++) {
        sum += r->op[i].group == OPS_PRODUCT ? (r->op[i].calls - r->op[i].again) * bench_limit_s(r, i) : 0;
    }
    return sum;
}

static enum err measure_machine(struct bench_report *r, const struct conf *c, struct comm_world *w, struct kern *k,
                                uint32_t threads, double seconds)
{
    struct comm *all = comm_all(w);
    TRY(comm_agree(all, machine_measure(&r->machine, k, threads, SHARE_MACHINE * seconds)));
    enum err err = OK;
    if (comm_rank(all) == 0) {
        err = disk_measure(&r->disk, c->output_dir, seconds < SMALL_S ? DISK_SMALL_BYTES : DISK_BYTES,
                           SHARE_DISK * seconds);
    }
    TRY(comm_agree(all, err));
    return links_measure(&r->links, w);
}

/* What is to be measured. A model whose weights, gradients and moments alone have no room is refused here and not when
 * everything else was measured. */
static enum err list_kernels(struct bench_report *r, const struct conf *c, struct comm_world *w)
{
    TRY(ops_shape(&r->shape, c, comm_rank(comm_all(w))));
    r->ops = ops_list(&r->shape, r->op);
    uint64_t part = r->shape.parameters, whole = mem_mul(part, c->zero_stage > 0 ? c->dp * c->cp : 1);
    uint64_t weights = c->zero_stage > 2 ? part : whole, gradients = 2 * (c->zero_stage > 1 ? part : whole);
    return mem_room(mem_mul(weights + gradients + 2 * part, sizeof(float) * comm_node_size(w)));
}

static enum err measure_kernels(struct bench_report *r, struct comm_world *w, struct kern *k, double seconds)
{
    struct ops_memory *memory = NULL;
    struct comm *all = comm_all(w);
    enum err err = comm_agree(all, ops_memory_new(&memory, &r->shape, r->op, r->ops, k));
    if (err == OK) {
        measure(r->ops, ops_run, memory, SHARE_KERNELS * seconds, r->time);
    }
    ops_memory_free(memory);
    return err == OK ? comm_barrier(all) : err;
}

static void tell(const struct bench_report *r, const struct conf *c, struct comm_world *w,
                 const struct bench_options *o, enum bench_part part)
{
    if (comm_rank(comm_all(w)) == 0) {
        o->done(r, c, part);
    }
}

/* What needs kernels, but no trainer. */
static enum err measure_parts(struct bench_report *r, const struct conf *c, struct comm_world *w,
                              const struct bench_options *o)
{
    struct crew crew;
    struct pool *pool = NULL;
    struct kern *k = NULL;
    enum isa isa;
    enum err err;
    TRY_OUT(crew_open(&crew, w, c));
    err = kern_choose_isa(&isa);
    err = err == OK ? crew_pool(&crew, &pool) : err;
    err = err == OK ? kern_new(&k, isa, pool) : err;
    TRY_OUT(comm_agree(comm_all(w), err));
    TRY_OUT(measure_machine(r, c, w, k, crew.threads, o->seconds));
    tell(r, c, w, o, BENCH_MACHINE);
    TRY_OUT(measure_kernels(r, w, k, o->seconds));
    tell(r, c, w, o, BENCH_KERNELS);
out:
    kern_free(k);
    pool_free(pool);
    crew_close(&crew);
    return err;
}

/* A step of the run may be many micro-batches long: one for each stage that works at the same time will do. */
static void cut_batch(struct conf *c)
{
    uint64_t most = c->micro_batch_size * c->dp * c->pp;
    c->global_batch_size = c->global_batch_size < most ? c->global_batch_size : most;
    uint64_t share = (c->global_batch_size + c->dp - 1) / c->dp;
    c->micro_batch_size = c->micro_batch_size < share ? c->micro_batch_size : share;
    c->gradient_accumulation_steps = (share + c->micro_batch_size - 1) / c->micro_batch_size;
}

/* What a run would read before its first step. */
static void forget_inputs(struct conf *c)
{
    char **const paths[] = { &c->model_path, &c->tokenizer, &c->eval_data_path, &c->resume_from_checkpoint };
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        free(*paths[i]);
        *paths[i] = NULL;
    }
}

enum err bench_run(struct bench_report *r, struct conf *c, struct comm_world *w, const struct bench_options *o)
{
    struct noise noise;
    *r = (struct bench_report){ .ops = 0 };
    cut_batch(c);
    forget_inputs(c);
    TRY(comm_agree(comm_all(w), list_kernels(r, c, w)));
    noise_begin(&noise);
    TRY(measure_parts(r, c, w, o));
    TRY(whole_measure(&r->whole, c, w, STEPS_LEAST, SHARE_STEP * o->seconds));
    r->noise = noise_end(&noise, comm_node_size(w));
    tell(r, c, w, o, BENCH_STEP);
    if (o->scaling) {
        TRY(bench_scaling(r, c, o->seconds));
        tell(r, c, w, o, BENCH_SCALING);
    }
    return OK;
}
