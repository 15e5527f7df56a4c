/* Why this exists: the tables of `invar bench`: one line a fact, units in the head, shares at the right. */
#include "cmd/bench_report.h"

#include "base/log.h"
#include "model/model.h"

/* What counts as a machine that is not ours: cores of others, time of the hypervisor, spread of the peak. */
#define OTHERS_MOST 0.1
#define STEAL_MOST 0.02
#define SPREAD_MOST 0.05

#define GIGA 1e-9

void bench_print_job(const struct conf *c)
{
    const struct model_conf *m = &c->model;
    printf("model: %s of %.1f million parameters: %llu layers, hidden %llu, %llu heads (%llu of keys) of %llu, "
           "feed-forward %llu, vocabulary %llu\n",
           model_family_name(m->family), 1e-6 * (double)model_conf_parameters(m),
           (unsigned long long)m->layers, (unsigned long long)m->hidden, (unsigned long long)m->heads,
           (unsigned long long)m->kv_heads, (unsigned long long)m->head_dim, (unsigned long long)m->ffn,
           (unsigned long long)m->vocab);
    fflush(stdout);
}

static void print_rate(const char *name, struct rate rate)
{
    printf("%-34s %10.2f %10.2f\n", name, GIGA * rate.one, GIGA * rate.all);
}

static void print_disk(const struct disk *d)
{
    char name[340];
    if (d->skipped[0] != '\0') {
        printf("disk of %s: left out, %s\n", d->folder, d->skipped);
        return;
    }
    snprintf(name, sizeof(name), "disk of %s", d->folder);
    printf("\n%-34s %10s %10s\n%-34s %10.3f %10.3f\n", "", "write", "read", name, GIGA * d->write, GIGA * d->read);
}

static void print_links(const struct links *l)
{
    if (l->ranks == 1) {
        printf("%-34s %10s\n", "ranks", "one");
        return;
    }
    printf("\n%u ranks on %u node%s\n", l->ranks, l->nodes, l->nodes == 1 ? "" : "s");
    printf("%-34s %10.2f\n", "  message of 8 bytes, us", 1e6 * l->latency_s);
    printf("%-34s %10.2f\n", "  sum of one integer, us", 1e6 * l->sum_s);
    printf("%-34s %10.2f\n", "  message of 16 MiB, GB/s", GIGA * l->message);
    printf("%-34s %10.2f\n", "  all-gather to 16 MiB, GB/s", GIGA * l->all_gather);
    printf("%-34s %10.2f\n", "  reduce-scatter of 16 MiB, GB/s", GIGA * l->reduce_scatter);
}

static void print_machine(const struct bench_report *r, const struct conf *c)
{
    const struct machine *m = &r->machine;
    char threads[32], name[64], size[32];
    snprintf(threads, sizeof(threads), "%u thread%s", m->threads, m->threads == 1 ? "" : "s");
    printf("step: %llu x %llu tokens in micro-batches of %llu, %s; %s%s\n\n",
           (unsigned long long)c->global_batch_size, (unsigned long long)c->seq_length,
           (unsigned long long)c->micro_batch_size, c->bf16 ? "bf16" : "fp32", kern_isa_name(m->isa),
           r->links.ranks > 1 ? "; all that follows is of rank 0, while the others do the same" : "");
    printf("%-34s %10s %10s\n", "machine", "1 thread", threads);
    print_rate("multiply-add fp32, GFLOP/s", m->fma);
    print_rate("multiply-add bf16, GFLOP/s", m->bf16);
    print_rate("memory read, GB/s", m->read);
    print_rate("memory copied, GB/s", m->copy);
    print_rate("memory updated in place, GB/s", m->update);
    for (uint32_t i = 0; i < m->levels; i++) {
        snprintf(name, sizeof(name), "copy within %s, GB/s", log_bytes(m->level[i].bytes, size));
        print_rate(name, m->level[i].copy);
    }
    print_disk(&r->disk);
    print_links(&r->links);
}

static void print_op(const struct bench_report *r, uint32_t i)
{
    const struct op *op = &r->op[i];
    double s = r->time[i].best_s;
    char shape[48];
    int used = snprintf(shape, sizeof(shape), "%llu x %llu", (unsigned long long)op->rows,
                        (unsigned long long)op->cols);
    if (op->group == OPS_PRODUCT) {
        snprintf(shape + used, sizeof(shape) - (size_t)used, " x %llu", (unsigned long long)op->sum);
    }
    printf("%-30s %20s %8.4g %10.3f %10.2f", op->name, shape, op->calls, 1e3 * s, 1e3 * s * op->calls);
    if (op->flops > 0) {
        printf(" %9.1f %9s", GIGA * op->flops / s, "");
    } else {
        printf(" %9s %9.1f", "", GIGA * op->bytes / s);
    }
    printf(" %6.2f\n", bench_limit_s(r, i) / s);
}

static void print_kernels(const struct bench_report *r)
{
    printf("\n%-30s %20s %8s %10s %10s %9s %9s %6s\n", "kernel", "shape", "calls", "ms each", "ms a step", "GFLOP/s",
           "GB/s", "share");
    for (uint32_t i = 0; i < r->ops; i++) {
        print_op(r, i);
    }
    printf("calls: of a step; share: of the peak, or of what the memory or cache that holds it copies\n");
}

static void print_step(const struct bench_report *r, const struct conf *c)
{
    const struct whole *w = &r->whole;
    double sum = 0, limits = 0, tokens_s = (double)w->tokens / w->best_s, bound = bench_bound_s(r);
    char planned[32], peak[32];
    printf("\n%-30s %10s %10s %10s\n", "step", "ms", "of step", "share");
    for (int g = 0; g < OPS_GROUPS; g++) {
        double s = bench_group_s(r, (enum ops_group)g, false), limit = bench_group_s(r, (enum ops_group)g, true);
        sum += s;
        limits += limit;
        printf("%-30s %10.1f %10.3f %10.2f\n", ops_group_name((enum ops_group)g), 1e3 * s, s / w->best_s, limit / s);
    }
    printf("%-30s %10.1f %10.3f %10.2f\n", "sum of the kernels", 1e3 * sum, sum / w->best_s, limits / sum);
    printf("%-30s %10.1f %10s %10.2f   fastest of %u, mean %.1f\n", "measured", 1e3 * w->best_s, "1",
           limits / w->best_s, w->steps, 1e3 * w->mean_s);
    printf("\n%.1f tokens/s, %.1f GFLOP/s; products alone at the measured peak: %.1f ms, %.3f of the step\n", tokens_s,
           GIGA * tokens_s * model_train_flops(&c->model, c->seq_length), 1e3 * bound, bound / w->best_s);
    printf("memory: %s planned, %s measured\n", log_bytes(w->planned_bytes, planned), log_bytes(w->peak_bytes, peak));
}

static void print_scaling(const struct bench_report *r)
{
    const char *axis = "";
    printf("\n%-10s %6s %6s %7s %7s %10s %10s %6s  %s\n", "scaling", "batch", "length", "hidden", "layers",
           "us a token", "GFLOP/s", "line", "why");
    for (uint32_t i = 0; i < r->case_count; i++) {
        const struct bench_case *b = &r->cases[i];
        double tokens = (double)(b->sequences * b->length);
        printf("%-10s %6llu %6llu %7llu %7llu", strcmp(axis, b->axis) != 0 ? b->axis : "",
               (unsigned long long)b->sequences, (unsigned long long)b->length, (unsigned long long)b->hidden,
               (unsigned long long)b->layers);
        axis = b->axis;
        if (b->best_s > 0) {
            printf(" %10.1f %10.1f %6.2f", 1e6 * b->best_s / tokens, GIGA * b->flops * tokens / b->best_s, b->line);
        } else {
            printf(" %10s %10s %6s", "", "", "");
        }
        printf("  %s\n", b->why);
    }
    printf("line: time of a token beside the operations of a token, both against the first row of the axis\n");
}

void bench_print(const struct bench_report *r, const struct conf *c, enum bench_part part)
{
    switch (part) {
    case BENCH_MACHINE:
        print_machine(r, c);
        break;
    case BENCH_KERNELS:
        print_kernels(r);
        break;
    case BENCH_STEP:
        print_step(r, c);
        bench_warn(r);
        break;
    case BENCH_SCALING:
        print_scaling(r);
        break;
    }
    fflush(stdout);
}

void bench_warn(const struct bench_report *r)
{
    const struct noise_found *n = &r->noise;
    if (n->others > OTHERS_MOST || n->steal > STEAL_MOST || r->machine.spread > SPREAD_MOST) {
        log_warning("the machine was not quiet: others used %.1f cores, the hypervisor took %.1f %% of the time, half "
                    "of the peak's samples were %.0f %% or more below the best | end other work and run it again: "
                    "ratios of figures taken at different moments mean little", n->others, 100 * n->steal,
                    100 * r->machine.spread);
    }
}
