/* Why this exists: a job of processes that mpirun or srun started becomes a world: who is on which node is found out,
 * the ranks of a node get a control block in common, and at the end the job leaves with the exit code that its error
 * has.
 *
 * Invariants: what goes wrong in the opening on one rank is agreed upon by all before anybody returns. Ranks are on one
 * node when MPI says so and each can open memory that the lowest of them made; nodes are numbered by their lowest rank.
 * A job is finalized when all ranks came to its end, in peace or with an error they agreed upon; else it is aborted. */
#include <time.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/mpi_int.h"
#include "comm/mpi_launch.h"

#define FAREWELL_S 60.0 /* ranks of a job that went well leave within this time of each other */
#define GRACE_S 5.0     /* ranks of a node that hear of a failure come to comm_close within this time, or are ended */
#define RECORDS_S 0.3   /* for other nodes to write what they know */
#define PROBE_BYTES 4096u

/* ---- the end ---- */

static void sleep_s(double seconds)
{
    nanosleep(&(struct timespec){ (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) }, NULL);
}

static bool has_left(const struct comm_world *w, uint32_t node_rank)
{
    return atomic_load_explicit(&w->ctl->slot[node_rank].presence, memory_order_acquire) == RANK_LEFT;
}

static uint32_t count_left(const struct comm_world *w)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < w->node_size; i++) {
        count += has_left(w, i);
    }
    return count;
}

static void mpi_end_job(struct comm_world *w, int code)
{
    link_abort(mpi_of(w)->all, code);
}

/* A rank failed and some ranks are inside calls that will never end, so MPI cannot be finalized: the job is ended.
 * First others get the time to come out of their calls, print and write their records; rank 0's node decides when. */
static _Noreturn void leave_failed(struct comm_world *w)
{
    fflush(NULL);
    bool decides = w->node_of[0] == w->node;
    double until = log_seconds() + (decides ? GRACE_S : 2 * GRACE_S);
    while (log_seconds() < until && !(decides && count_left(w) == w->node_size)) {
        sleep_s(0.002);
    }
    if (w->nodes > 1) {
        sleep_s(RECORDS_S);
    }
    for (uint32_t i = 0; i < w->node_rank; i++) {
        if (has_left(w, i)) { /* it does the rest */
            sleep_s(GRACE_S);
            break;
        }
    }
    enum err err = node_failure(w);
    if (!decides || !has_left(w, w->node_rank_of[0])) {
        err_print(); /* rank 0, which speaks for all, is not in a state to */
    }
    link_abort(mpi_of(w)->all, err_exit_code(err));
}

static void mpi_world_free(struct mpi_world *m)
{
    if (m->region.base != NULL) {
        mpi_region_free(NULL, &m->region);
    }
    free(m->node_of);
    free(m->node_rank_of);
    free(m->tell);
    free(m);
}

static void mpi_close(struct comm_world *w, enum err err)
{
    struct mpi_world *m = mpi_of(w);
    bool agreed = err == OK || atomic_load(&w->agreed);
    if (node_failed(w) || !agreed || !mpi_farewell(w, FAREWELL_S)) {
        char text[128];
        snprintf(text, sizeof(text), "ended, but other ranks did not come to the end of the job within %.0f s",
                 FAREWELL_S);
        node_fail(w, w->rank, ERR_PEER, text); /* is ignored when a failure is known */
        leave_failed(w);
    }
    mpi_pump_stop(m);
    world_free(w);
    mpi_control_stop(m);
    link_close(m->control);
    link_stop(m->all);
    mpi_world_free(m);
}

static const struct comm_transport one_node = {
    .name = "MPI, one node",
    .region_new = mpi_region_new,
    .region_map = mpi_region_map,
    .region_found = mpi_region_found,
    .region_free = mpi_region_free,
    .end_job = mpi_end_job,
    .close = mpi_close,
};
static const struct comm_transport some_nodes = {
    .name = "MPI",
    .region_new = mpi_region_new,
    .region_map = mpi_region_map,
    .region_found = mpi_region_found,
    .region_free = mpi_region_free,
    .far = &mpi_far_engine,
    .failed = mpi_failed,
    .end_job = mpi_end_job,
    .note_put = mpi_note_put,
    .note_take = mpi_note_take,
    .close = mpi_close,
};

/* ---- the opening ---- */

/* What a rank lays on the table, again and again. */
struct card {
    char version[32];
    uint64_t seam;   /* stands for the layout of what ranks share */
    uint32_t leader; /* lowest rank of its node */
    uint32_t apart;  /* cannot open memory of its leader: a node of its own */
    uint64_t token;  /* in the leader's probe */
    struct comm_handle handle;
    uint32_t err;
    char message[512];
};

struct opening {
    struct link *all;
    struct link_job job;
    struct card mine, *cards; /* cards: of all ranks */
    struct mpi_world *m;
    uint32_t neighbours; /* ranks that MPI says are on this node, this one too */
};

/* Does not return when MPI fails: the ranks could not agree on that. */
static void show_cards(struct opening *o)
{
    enum err err = link_all_gather(o->all, &o->mine, sizeof(o->mine), o->cards);
    if (err != OK) {
        err_print();
        link_abort(o->all, err_exit_code(err));
    }
}

/* comm_agree before there is a world. */
static enum err agree(struct opening *o, enum err mine)
{
    o->mine.err = mine;
    snprintf(o->mine.message, sizeof(o->mine.message), "%.511s", mine != OK ? err_message() : "");
    show_cards(o);
    for (uint32_t r = 0; r < o->job.size; r++) {
        const struct card *card = &o->cards[r];
        if (card->err != OK) {
            return r == o->job.rank ? mine : FAIL((enum err)card->err, "rank %u: %s", r, card->message);
        }
    }
    return OK;
}

static enum err check_versions(const struct opening *o)
{
    const struct card *first = &o->cards[0];
    for (uint32_t r = 1; r < o->job.size; r++) {
        const struct card *card = &o->cards[r];
        if (strcmp(card->version, first->version) != 0 || card->seam != first->seam) {
            return FAIL(ERR_USAGE, "rank 0 runs invar %s, rank %u another build, %s | install the same build on all "
                                   "nodes",
                        first->version, r, card->version);
        }
    }
    return OK;
}

/* INVAR_TRANSPORT=mpi:N: of the ranks that MPI says are on a node, N neighbours are taken for one. */
static uint32_t forced_leader(const struct opening *o, uint32_t node_ranks)
{
    uint32_t r = o->job.rank / node_ranks * node_ranks;
    while (o->cards[r].leader != o->job.leader) {
        r++;
    }
    return r;
}

/* Whether this rank can open memory that its leader made. Collective. */
static enum err probe(struct opening *o)
{
    struct comm_region own = { .base = NULL };
    struct card *mine = &o->mine;
    bool leads = mine->leader == o->job.rank;
    enum err err = leads ? mpi_region_new(NULL, PROBE_BYTES, &own) : OK;
    if (leads && err == OK) {
        mine->handle = own.handle;
        mine->token = hash_mix((uint64_t)(uintptr_t)own.base + (uint64_t)(log_seconds() * 1e9));
        memcpy(own.base, &mine->token, sizeof(mine->token));
    }
    TRY_OUT(agree(o, err));
    const struct card *leader = &o->cards[mine->leader];
    if (!leads) {
        struct comm_region theirs = { .bytes = PROBE_BYTES, .handle = leader->handle };
        mine->apart = mpi_region_map(NULL, &theirs) != OK;
        if (!mine->apart) {
            mine->apart = memcmp(theirs.base, &leader->token, sizeof(leader->token)) != 0;
            mpi_region_free(NULL, &theirs);
        }
        snprintf(mine->message, sizeof(mine->message), "%.511s", mine->apart ? err_message() : "");
        mine->leader = mine->apart ? o->job.rank : mine->leader;
    }
    show_cards(o);
out:
    if (own.base != NULL) {
        mpi_region_free(NULL, &own);
    }
    return err;
}

static void note_apart(const struct opening *o)
{
    uint32_t count = 0, first = 0;
    for (uint32_t r = o->job.size; r-- > 0;) {
        count += o->cards[r].apart;
        first = o->cards[r].apart ? r : first;
    }
    if (count > 0 && o->job.rank == 0) {
        log_note("note: %u of %u ranks use MPI with ranks of their own machine, which is slower; rank %u: %s", count,
                 o->job.size, first, o->cards[first].message);
    }
}

/* Open MPI binds each rank to one core when it starts one or two, and a rank has threads for the cores it may use. */
static void warn_of_binding(const struct comm_world *w, uint32_t neighbours)
{
    uint64_t cores = cores_usable();
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (w->rank == 0 && getenv("OMPI_MCA_orte_bound_at_launch") != NULL && neighbours <= 2 && cores <= 2 &&
        online > 0 && cores * neighbours < (uint64_t)online) {
        log_warning("mpirun bound each rank to %llu of %ld cores, with %u ranks on this machine | mpirun --bind-to "
                    "none, or --map-by slot:PE=%ld",
                    (unsigned long long)cores, online, neighbours, online / (long)neighbours);
    }
}

static void number_nodes(const struct opening *o, struct comm_world *def)
{
    uint32_t *node_of = o->m->node_of, *node_rank_of = o->m->node_rank_of;
    for (uint32_t r = 0; r < o->job.size; r++) {
        uint32_t leader = o->cards[r].leader; /* r or lower */
        node_of[r] = leader == r ? def->nodes++ : node_of[leader];
        node_rank_of[r] = 0;
        for (uint32_t i = leader; i < r; i++) {
            node_rank_of[r] += node_of[i] == node_of[r];
        }
    }
    def->node = node_of[o->job.rank];
    def->node_rank = node_rank_of[o->job.rank];
    for (uint32_t r = 0; r < o->job.size; r++) {
        def->node_size += node_of[r] == def->node;
    }
    def->node_of = node_of;
    def->node_rank_of = node_rank_of;
}

/* The control block of the node, made by its leader. Collective. */
static enum err share_control(struct opening *o, struct comm_world *def)
{
    uint64_t bytes = world_region_bytes(def->node_size, def->nodes);
    struct comm_region *region = &o->m->region;
    bool leads = def->node_rank == 0;
    enum err err = leads ? mpi_region_new(NULL, bytes, region) : OK;
    o->mine.handle = region->handle;
    TRY(agree(o, err));
    if (!leads) {
        *region = (struct comm_region){ .bytes = bytes, .handle = o->cards[o->mine.leader].handle };
        err = mpi_region_map(NULL, region);
    }
    TRY(agree(o, err));
    mpi_region_found(NULL, region);
    def->ctl = (struct comm_node *)region->base;
    return OK;
}

static enum err alloc_tables(struct opening *o)
{
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct mpi_world)));
    o->m = mem;
    o->m->all = o->all;
    TRY(mem_alloc(&mem, o->job.size, sizeof(*o->m->node_of)));
    o->m->node_of = mem;
    TRY(mem_alloc(&mem, o->job.size, sizeof(*o->m->node_rank_of)));
    o->m->node_rank_of = mem;
    TRY(mem_alloc(&mem, o->job.size, sizeof(*o->m->tell)));
    o->m->tell = mem;
    TRY(mem_alloc(&mem, o->job.size, sizeof(*o->cards)));
    o->cards = mem;
    return OK;
}

/* All ranks, in this order, on a link of their own. */
static enum err open_control(struct opening *o)
{
    void *mem;
    TRY(mem_alloc(&mem, o->job.size, sizeof(uint32_t)));
    uint32_t *rank = mem;
    for (uint32_t r = 0; r < o->job.size; r++) {
        rank[r] = r;
    }
    enum err err = link_open(o->all, &(struct link_members){ rank, o->job.size, 0 }, &o->m->control);
    free(rank);
    TRY(err);
    return mpi_control_start(o->m);
}

static enum err open_world(struct opening *o, struct comm_world **out)
{
    struct comm_world def = { .rank = o->job.rank, .size = o->job.size, .transport_state = o->m };
    snprintf(o->mine.version, sizeof(o->mine.version), "%s", INVAR_VERSION);
    o->mine.seam = sizeof(struct comm_sig) * 1000000 + sizeof(struct comm_rank_slot);
    o->mine.leader = o->job.leader;
    uint32_t node_ranks;
    TRY(agree(o, launch_node_ranks(&node_ranks)));
    TRY(check_versions(o));
    for (uint32_t r = 0; r < o->job.size; r++) {
        o->neighbours += o->cards[r].leader == o->job.leader;
    }
    if (node_ranks > 0) {
        o->mine.leader = forced_leader(o, node_ranks);
    }
    TRY(probe(o));
    note_apart(o);
    number_nodes(o, &def);
    def.transport = def.nodes == 1 ? &one_node : &some_nodes;
    TRY(share_control(o, &def));
    TRY(agree(o, open_control(o)));
    enum err err = world_new(out, &def);
    if (err == OK) {
        (*out)->spins = node_spins(o->neighbours); /* they share the cores, also as nodes of their own */
        err = def.nodes > 1 ? mpi_pump_start(*out) : OK;
    }
    TRY(agree(o, err));
    warn_of_binding(*out, o->neighbours);
    return OK;
}

/* All ranks have the error. */
static void opening_undo(struct opening *o, struct comm_world **out)
{
    mpi_pump_stop(o->m);
    world_free(*out);
    *out = NULL;
    if (o->m->control != NULL) {
        mpi_control_stop(o->m);
        link_close(o->m->control);
    }
    link_stop(o->all);
    mpi_world_free(o->m);
}

enum err mpi_world_open(struct comm_world **out, const struct launch *launch)
{
    *out = NULL;
    struct opening o = { .all = NULL };
    TRY(link_start(&o.all, &o.job));
    enum err err = launch_check(launch, o.job.library, o.job.size);
    if (err != OK) {
        link_stop(o.all);
        return err;
    }
    err = alloc_tables(&o);
    if (err != OK) { /* on this rank only */
        err_print();
        link_abort(o.all, err_exit_code(err));
    }
    err = open_world(&o, out);
    if (err != OK) {
        opening_undo(&o, out);
    }
    free(o.cards);
    return err;
}
