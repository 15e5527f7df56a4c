/* Why this exists: ranks do not see each other's threads. Where each takes all the cores it may use, the ranks of a
 * node fight for them and all are many times slower; nothing fails, so somebody has to look. */
#include "train/crew.h"

#include "base/cgroup.h"
#include "base/cores.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"

#define LINES_MAX 16u /* for ranks that are not alike */

struct crew_member {
    struct cores mine;
    uint32_t node, quota, given, threads;
};

/* The share of a rank among those of its node, whose masks are collected in `masks`. */
static uint32_t fair_share(const struct crew *c, const struct crew_member *own, struct cores *masks)
{
    uint32_t count = 0;
    masks[count++] = own->mine;
    for (uint32_t r = 0; r < c->ranks; r++) {
        if (c->list[r].node == own->node && &c->list[r] != own) {
            masks[count++] = c->list[r].mine;
        }
    }
    uint32_t share = cores_share(masks, count, 0), quota = own->quota / count;
    share = share < quota ? share : quota;
    return share < 1 ? 1 : share > POOL_THREADS_MAX ? POOL_THREADS_MAX : share;
}

enum err crew_open(struct crew *c, struct comm_world *w, uint64_t given)
{
    struct comm *all = comm_all(w);
    struct crew_member mine = { .node = comm_node(w), .quota = cgroup_cores(""), .given = (uint32_t)given };
    void *mem;
    *c = (struct crew){ .ranks = comm_size(all) };
    TRY(mem_alloc(&mem, c->ranks, sizeof(struct crew_member)));
    c->list = mem;
    TRY(mem_alloc(&mem, c->ranks, sizeof(struct cores)));
    cores_mine(&mine.mine);
    enum err err = comm_gather(all, &mine, sizeof(mine), c->list);
    if (err == OK) {
        mine.threads = given > 0 ? (uint32_t)given : fair_share(c, &c->list[comm_rank(all)], mem);
        err = comm_gather(all, &mine, sizeof(mine), c->list);
    }
    c->threads = mine.threads;
    free(mem);
    return err;
}

void crew_close(struct crew *c)
{
    free(c->list);
    *c = (struct crew){ 0 };
}

static bool alike(const struct crew_member *a, const struct crew_member *b)
{
    return a->threads == b->threads && a->node == b->node && memcmp(&a->mine, &b->mine, sizeof(a->mine)) == 0;
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
        TRY(nodes > 1 ? buf_printf(out, " of node %u\n", m->node) : buf_add_string(out, "\n"));
    }
    return OK;
}

/* What the ranks of one node have together. */
struct node_use {
    uint32_t ranks, threads, cores;
    bool given; /* some number of threads was */
};

static struct node_use use_of(const struct crew *c, uint32_t node)
{
    struct node_use u = { 0 };
    struct cores mine = { { 0 } };
    uint32_t quota = UINT32_MAX;
    for (uint32_t r = 0; r < c->ranks; r++) {
        const struct crew_member *m = &c->list[r];
        if (m->node == node) {
            u.ranks++;
            u.threads += m->threads;
            u.given = u.given || m->given > 0;
            quota = m->quota < quota ? m->quota : quota;
            cores_join(&mine, &m->mine);
        }
    }
    u.cores = cores_count(&mine);
    u.cores = u.cores < quota ? u.cores : quota;
    return u;
}

void crew_warn(const struct crew *c)
{
    for (uint32_t r = 0; r < c->ranks; r++) {
        uint32_t node = c->list[r].node;
        if (r > 0 && node == c->list[r - 1].node) {
            continue;
        }
        struct node_use u = use_of(c, node);
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
