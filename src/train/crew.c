/* Why this exists: ranks do not see each other's threads. Where each takes all the cores it may use, the ranks of a
 * node fight for them and all are many times slower; nothing fails, so somebody has to look. */
#include "train/crew.h"

#include "base/cgroup.h"
#include "base/log.h"
#include "base/mem.h"

#define LINES_MAX 16u /* for ranks that are not alike */
#define BOUND_MAX 8u  /* ranks of a line whose cores are told */

/* What the ranks of one node have together. */
struct node_use {
    uint32_t ranks, threads;
    uint32_t cores, at_once; /* of their masks: cores, hardware threads */
    uint32_t quota;
    bool given; /* some number of threads was */
    bool bind;  /* all want to be bound */
};

static struct node_use use_of(const struct crew_member *list, uint32_t count, uint32_t node)
{
    struct node_use u = { .quota = UINT32_MAX, .bind = true };
    struct cores whole = { { 0 } }, mine = { { 0 } };
    for (uint32_t r = 0; r < count; r++) {
        const struct crew_member *m = &list[r];
        if (m->node == node) {
            u.ranks++;
            u.threads += m->threads;
            u.given = u.given || m->given > 0;
            u.bind = u.bind && m->bind;
            u.quota = m->quota < u.quota ? m->quota : u.quota;
            cores_join(&whole, &m->whole);
            cores_join(&mine, &m->mine);
        }
    }
    u.cores = cores_count(&whole);
    u.at_once = cores_count(&mine);
    return u;
}

static uint32_t fair_share(const struct cores *whole, uint32_t count, uint32_t i, uint32_t quota)
{
    uint32_t share = cores_share(whole, count, i);
    quota /= count;
    share = share < quota ? share : quota;
    return share < 1 ? 1 : share > POOL_THREADS_MAX ? POOL_THREADS_MAX : share;
}

/* Cores that ranks leave free may be wanted by another job that would bind itself to the same ones. */
static bool have_cores_to_themselves(const struct node_use *u)
{
    return u->bind && u->threads <= u->cores && u->threads + u->ranks > u->cores && u->quota >= u->cores;
}

enum err crew_settle(struct crew_member *list, uint32_t count, const struct topology *t)
{
    void *mem;
    TRY(mem_alloc(&mem, count, sizeof(struct cores)));
    struct cores *whole = mem;
    for (uint32_t i = 0; i < count; i++) {
        whole[i] = list[i].whole;
    }
    for (uint32_t i = 0; i < count; i++) {
        list[i].threads = list[i].given > 0 ? list[i].given : fair_share(whole, count, i, list[i].quota);
    }
    free(whole);
    struct node_use u = use_of(list, count, list[0].node);
    if (!have_cores_to_themselves(&u)) {
        return OK;
    }
    TRY(mem_alloc(&mem, count, sizeof(struct topology_wish)));
    struct topology_wish *wishes = mem;
    for (uint32_t i = 0; i < count; i++) {
        wishes[i] = (struct topology_wish){ .mask = list[i].mine, .threads = list[i].threads };
    }
    topology_assign(t, wishes, count);
    for (uint32_t i = 0; i < count; i++) {
        list[i].got = wishes[i].got;
    }
    free(wishes);
    return OK;
}

/* Settle this rank's node, which is not collective, and keep what this rank takes. */
static enum err settle_own(struct crew *c, struct crew_member *own, const struct topology *t)
{
    void *mem;
    uint32_t count = 0, at = 0;
    TRY(mem_alloc(&mem, c->ranks, sizeof(struct crew_member)));
    struct crew_member *near = mem;
    for (uint32_t r = 0; r < c->ranks; r++) {
        if (c->list[r].node == own->node) {
            at = &c->list[r] == own ? count : at;
            near[count++] = c->list[r];
        }
    }
    enum err err = crew_settle(near, count, t);
    struct node_use u = use_of(near, count, own->node);
    *own = near[at];
    free(near);
    bool bound = cores_count(&own->got) > 0;
    c->threads = own->threads;
    c->place = (struct pool_place){ .cores = own->got, .nodes = topology_nodes(t, bound ? &own->got : &own->mine),
                                    .crowded = u.threads > u.at_once || u.threads > u.quota };
    return err;
}

enum err crew_open(struct crew *c, struct comm_world *w, const struct conf *conf)
{
    struct comm *all = comm_all(w);
    struct crew_member mine = { .node = comm_node(w), .quota = cgroup_cores(""), .given = (uint32_t)conf->threads,
                                .bind = conf->bind_threads == BIND_AUTO };
    struct topology t;
    void *mem;
    *c = (struct crew){ .ranks = comm_size(all) };
    TRY(mem_alloc(&mem, c->ranks, sizeof(struct crew_member)));
    c->list = mem;
    topology_load(&t, NULL);
    cores_mine(&mine.mine);
    topology_cores(&t, &mine.mine, &mine.whole);
    TRY(comm_gather(all, &mine, sizeof(mine), c->list));
    TRY(comm_agree(all, settle_own(c, &c->list[comm_rank(all)], &t)));
    mine = c->list[comm_rank(all)];
    return comm_gather(all, &mine, sizeof(mine), c->list);
}

void crew_close(struct crew *c)
{
    free(c->list);
    *c = (struct crew){ 0 };
}

enum err crew_pool(const struct crew *c, struct pool **out)
{
    TRY(pool_new(out, c->threads));
    if (!pool_settle(*out, &c->place)) {
        log_warning("bind_threads: the system refused to keep threads on their cores | bind_threads: none");
    }
    return OK;
}

static bool is_bound(const struct crew_member *m)
{
    return cores_count(&m->got) > 0;
}

static bool alike(const struct crew_member *a, const struct crew_member *b)
{
    return a->threads == b->threads && a->node == b->node && is_bound(a) == is_bound(b) &&
           memcmp(&a->mine, &b->mine, sizeof(a->mine)) == 0;
}

/* ", bound to 0-1; 2-3": the cores of each of `count` ranks. */
static enum err describe_bound(const struct crew_member *list, uint32_t count, struct buf *out)
{
    char cores[CORES_TEXT_BYTES];
    for (uint32_t i = 0; i < count && is_bound(&list[i]); i++) {
        if (i == BOUND_MAX) {
            return buf_add_string(out, "; ..");
        }
        TRY(buf_printf(out, "%s%s", i == 0 ? ", bound to " : "; ", cores_text(&list[i].got, cores)));
    }
    return OK;
}

enum err crew_describe(const struct crew *c, struct buf *out)
{
    char cores[CORES_TEXT_BYTES];
    uint32_t lines = 0, nodes = 1;
    for (uint32_t r = 0; r < c->ranks; r++) {
        nodes = c->list[r].node + 1 > nodes ? c->list[r].node + 1 : nodes;
    }
    for (uint32_t lo = 0, hi; lo < c->ranks; lo = hi) {
        const struct crew_member *m = &c->list[lo];
        for (hi = lo + 1; hi < c->ranks && alike(m, &c->list[hi]); hi++) {
        }
        if (++lines > LINES_MAX) {
            return buf_printf(out, "machine: and %u more ranks\n", c->ranks - lo);
        }
        TRY(buf_add_string(out, "machine: "));
        if (c->ranks > 1) {
            TRY(buf_printf(out, hi - lo > 1 ? "ranks %u-%u: " : "rank %u: ", lo, hi - 1));
        }
        TRY(buf_printf(out, "%u thread%s%s on core%s %s", m->threads, m->threads == 1 ? "" : "s",
                       hi - lo > 1 ? " each" : "", cores_count(&m->mine) == 1 ? "" : "s",
                       cores_text(&m->mine, cores)));
        TRY(nodes > 1 ? buf_printf(out, " of node %u", m->node) : OK);
        TRY(describe_bound(m, hi - lo, out));
        TRY(buf_add_string(out, "\n"));
    }
    return OK;
}

void crew_warn(const struct crew *c)
{
    for (uint32_t r = 0; r < c->ranks; r++) {
        uint32_t node = c->list[r].node;
        if (r > 0 && node == c->list[r - 1].node) {
            continue;
        }
        struct node_use u = use_of(c->list, c->ranks, node);
        u.cores = u.cores < u.quota ? u.cores : u.quota;
        if (u.threads > u.cores) {
            log_warning("node %u: %u rank%s with %u threads, but only %u core%s that they may use: they wait for each "
                        "other | %s", node, u.ranks, u.ranks == 1 ? "" : "s", u.threads, u.cores,
                        u.cores == 1 ? "" : "s",
                        u.given ? "leave threads at 0: each rank then takes its share of the cores"
                                : "start fewer ranks on a node, or give them more cores");
            return;
        }
    }
}
