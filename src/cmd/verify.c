/* invar verify: the same steps under many layouts, compared bit by bit. */
#include "cmd/cmd.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/same_bits.h"

#define DEFAULT_STEPS 3u

static const char usage[] =
    "usage: invar verify [CONFIG.yaml] [--steps N] [--layouts LIST|all] [--key value ...]\n"
    "\n"
    "Run the first steps of a job under many layouts and compare loss, gradient norm and the hash of all weights\n"
    "after each step with those of one rank. Ranks are threads of this process; nothing is written. When a layout\n"
    "differs, the first differing step and operation are named; exit code 1.\n"
    "\n"
    "  --steps N               steps of each run (3)\n"
    "  --layouts LIST          layouts separated by spaces, e.g. \"dp2 tp2,sp pp2,mb1\"; all: every axis alone and in\n"
    "                          pairs (the default). Parts: dpN tpN ppN cpN zeroN sp mbN threadsN gpipe 1f1b vN\n"
    "                          layersA-B-.. selective full (recomputation) seedN (delays and reorderings from a seed)\n"
    "  --key value             any key of the configuration\n";

/* Flags of this command, taken out of the arguments of the configuration. */
struct options {
    uint64_t steps;
    const char *layouts;
    struct verify_job job;
};

static enum err parse(int argc, char **argv, struct options *o)
{
    *o = (struct options){ .steps = DEFAULT_STEPS, .layouts = "all" };
    int first = argc > 1 && strncmp(argv[1], "--", 2) != 0 ? 2 : 1;
    o->job.path = first == 2 ? argv[1] : NULL;
    o->job.argv = argv + first;
    for (int i = first; i < argc; i++) {
        const char *value = cmd_value(argc, argv, &i, "--steps");
        if (value != NULL) {
            TRY(cmd_whole("--steps", value, 1, VERIFY_STEPS_MAX, &o->steps));
            continue;
        }
        value = cmd_value(argc, argv, &i, "--layouts");
        if (value != NULL) {
            o->layouts = value;
            continue;
        }
        o->job.argv[o->job.argc++] = argv[i];
    }
    o->job.steps = (uint32_t)o->steps;
    return OK;
}

static bool same_bits(const struct verify_step *a, const struct verify_step *b)
{
    return a->state_hash == b->state_hash && a->tokens == b->tokens &&
           memcmp(&a->loss, &b->loss, sizeof(a->loss)) == 0 &&
           memcmp(&a->grad_norm, &b->grad_norm, sizeof(a->grad_norm)) == 0;
}

struct tally {
    uint32_t equal, different, failed, refused;
};

/* First line of the findings: why a layout is not possible. */
static void print_refused(const struct verify_layout *l, const struct buf *why)
{
    const char *text = why->data != NULL ? why->data : "";
    const char *from = strstr(text, "error: ");
    from = from != NULL ? from + 7 : text;
    printf("%-18s not possible: %.*s\n", l->name, (int)strcspn(from, "\n"), from);
}

static enum err explain(const struct options *o, const struct verify_layout *serial, const struct verify_layout *l,
                        uint64_t batch, uint32_t step)
{
    char where[256];
    TRY(verify_explain(&o->job, serial, l, batch, step, where));
    printf("%-18s   first difference of step %u: %s\n", "", step, where);
    return OK;
}

static enum err compare(const struct options *o, const struct verify_layout *serial, const struct verify_result *want,
                        const struct verify_layout *l, uint64_t batch, struct tally *t)
{
    struct verify_result got;
    struct buf why = { 0 };
    enum err err = verify_run(&o->job, l, batch, &got, &why);
    if (err == ERR_USAGE) {
        if (err_message()[0] != '\0') {
            printf("%-18s not possible: %s\n", l->name, err_message());
        } else {
            print_refused(l, &why);
        }
        t->refused++;
        buf_release(&why);
        return OK;
    }
    buf_release(&why);
    if (err == ERR_RUN || err == ERR_PEER) { /* of this layout: one rank alone has done these steps */
        const char *hint = strstr(err_message(), " | ");
        int bytes = (int)(hint != NULL ? hint - err_message() : (ptrdiff_t)strlen(err_message()));
        printf("%-18s FAILED: %.*s\n", l->name, bytes, err_message());
        fflush(stdout);
        t->failed++;
        return OK;
    }
    TRY(err);
    uint32_t same = 0;
    while (same < o->job.steps && same_bits(&want->step[same], &got.step[same])) {
        same++;
    }
    char memory[32];
    if (same == o->job.steps) {
        t->equal++;
        printf("%-18s equal      %016llx  %2u ranks  %s  %.2f s\n", l->name,
               (unsigned long long)got.step[same - 1].state_hash, l->world, log_bytes(got.planned_bytes, memory),
               got.seconds);
    } else {
        t->different++;
        printf("%-18s DIFFERENT at step %u: %016llx loss %.9g, serial %016llx loss %.9g\n", l->name, same + 1,
               (unsigned long long)got.step[same].state_hash, got.step[same].loss,
               (unsigned long long)want->step[same].state_hash, want->step[same].loss);
        err = explain(o, serial, l, batch, same + 1);
    }
    fflush(stdout);
    verify_result_release(&got);
    return err;
}

/* The next word of a list of layouts; false at its end. */
static bool next_layout(const char **list, char out[128])
{
    *list += strspn(*list, " ");
    size_t bytes = strcspn(*list, " ");
    snprintf(out, 128, "%.*s", (int)(bytes < 127 ? bytes : 127), *list);
    *list += bytes;
    return bytes > 0;
}

static enum err compare_all(const struct options *o, const struct verify_layout *serial,
                            const struct verify_result *want, uint64_t batch, struct tally *t)
{
    struct verify_layout l;
    char name[128];
    bool all = strcmp(o->layouts, "all") == 0;
    for (size_t i = 0; all && i < verify_layouts_count; i++) {
        TRY(verify_layout_parse(&l, verify_layouts[i]));
        TRY(compare(o, serial, want, &l, batch, t));
    }
    for (const char *list = o->layouts; !all && next_layout(&list, name);) {
        TRY(verify_layout_parse(&l, name));
        TRY(compare(o, serial, want, &l, batch, t));
    }
    return OK;
}

/* Every name of the list is looked at before anything runs. */
static enum err check_names(const struct options *o)
{
    struct verify_layout l;
    char name[128];
    for (const char *list = o->layouts; strcmp(o->layouts, "all") != 0 && next_layout(&list, name);) {
        TRY(verify_layout_parse(&l, name));
    }
    return OK;
}

static enum err run(const struct options *o)
{
    struct verify_layout serial;
    struct verify_result want = { 0 };
    struct buf why = { 0 };
    struct tally t = { 0 };
    uint64_t batch;
    enum err err;
    TRY(check_names(o));
    TRY(verify_layout_parse(&serial, "serial"));
    TRY(verify_global_batch(&o->job, &batch));
    TRY_OUT(verify_run(&o->job, &serial, batch, &want, &why));
    printf("%-18s reference  %016llx  %2u ranks  loss %.6f  %.2f s\n", serial.name,
           (unsigned long long)want.step[o->job.steps - 1].state_hash, 1u, want.step[o->job.steps - 1].loss,
           want.seconds);
    fflush(stdout);
    TRY_OUT(compare_all(o, &serial, &want, batch, &t));
    printf("\n%u of %u layouts equal to one rank after each of %llu steps; %u not possible\n", t.equal,
           t.equal + t.different + t.failed, (unsigned long long)o->steps, t.refused);
    if (t.different + t.failed > 0) {
        err = FAIL(ERR_RUN, "%u layouts do not give the bits of one rank | this is a bug of the program or a fault of "
                            "the machine: please report it with the lines above", t.different + t.failed);
    } else if (t.equal == 0) {
        err = FAIL(ERR_USAGE, "no layout could be compared | the lines above say why");
    }
out:
    if (why.bytes > 0) {
        fputs(why.data, stderr);
    }
    verify_result_release(&want);
    buf_release(&why);
    return err;
}

enum err cmd_verify(int argc, char **argv)
{
    struct options o;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return OK;
        }
    }
    TRY(parse(argc, argv, &o));
    return run(&o);
}
