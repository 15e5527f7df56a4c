/* Why this exists: what the ranks of a node have in common whatever they talk about: the one failure that ends all
 * their waits, and the one way to wait for another rank.
 *
 * Invariants: the failure is written once, by the rank that moved it from 0 to 1, and read only at 2. A wait looks at
 * the failure at least every COMM_WAIT_NS, so nobody has to be woken for it. */
#include "comm/comm_int.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/pool.h"

/* Yields are few: each may give a whole time slice to a stranger, where a sleeper is woken at once. */
#define SPINS_ALONE 1000 /* on a core of its own: some 50 us */
#define SPINS_SHARED 50
#define YIELDS 3

uint32_t node_spins(uint32_t node_size)
{
    uint64_t cores = cores_usable();
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    /* It may use all cores, or is bound to some of its own. */
    bool alone = cores >= node_size || (online > 0 && cores * node_size <= (uint64_t)online);
    return alone ? SPINS_ALONE : SPINS_SHARED;
}

bool node_fail(struct comm_world *w, uint32_t rank, enum err err, const char *message)
{
    BUG_IF(err == OK);
    struct comm_node *ctl = w->ctl;
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&ctl->failure, &none, 1)) {
        return false;
    }
    ctl->rank = rank;
    ctl->err = err;
    snprintf(ctl->message, sizeof(ctl->message), "%s", message);
    atomic_store_explicit(&ctl->failure, 2, memory_order_release);
    if (w->transport->failed != NULL) {
        w->transport->failed(w);
    }
    return true;
}

enum err node_fail_too(struct comm_world *w, uint32_t rank, enum err err, const char *message)
{
    node_fail(w, rank, err, message);
    for (int i = 0; i < 10000 && !node_failed(w); i++) { /* another rank is writing; or died while it did */
        sched_yield();
    }
    enum err first = node_failure(w);
    return first != OK ? first : FAIL(err, "%s", message);
}

bool node_failed(const struct comm_world *w)
{
    return atomic_load_explicit(&w->ctl->failure, memory_order_acquire) == 2;
}

enum err node_failure(const struct comm_world *w)
{
    if (!node_failed(w)) {
        return OK;
    }
    const struct comm_node *ctl = w->ctl;
    if (ctl->rank == COMM_NOBODY) {
        return FAIL((enum err)ctl->err, "%s", ctl->message);
    }
    return FAIL((enum err)ctl->err, "rank %u: %s", ctl->rank, ctl->message);
}

void futex_post(struct comm_futex *f)
{
    /* Ordered against the sleepers' count and then look: no wake is lost between the two. */
    atomic_fetch_add(&f->value, 1);
    if (atomic_load(&f->sleepers) > 0) {
        syscall(SYS_futex, &f->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

static bool reached(struct comm_futex *f, uint32_t target)
{
    return (int32_t)(atomic_load_explicit(&f->value, memory_order_acquire) - target) >= 0;
}

static void sleep_on(struct comm_futex *f, uint32_t target)
{
    const struct timespec longest = { 0, COMM_WAIT_NS };
    atomic_fetch_add(&f->sleepers, 1);
    uint32_t seen = atomic_load(&f->value);
    if ((int32_t)(seen - target) < 0) {
        syscall(SYS_futex, &f->value, FUTEX_WAIT, seen, &longest, NULL, 0);
    }
    atomic_fetch_sub(&f->sleepers, 1);
}

/* The member waited for has closed its world: it will never come. */
static enum err fail_left(struct comm *c, uint32_t whom)
{
    char call[COMM_SIG_TEXT], text[COMM_SIG_TEXT + 128];
    sig_text(&c->sig, call);
    uint64_t calls = atomic_load(&c->peer[whom]->calls) + atomic_load(&c->peer[whom]->messages);
    snprintf(text, sizeof(text), "waits at %s for rank %u, which has made %llu calls in this group and ended", call,
             c->member[whom], (unsigned long long)calls);
    return node_fail_too(c->world, c->world->rank, ERR_PEER, text);
}

enum err futex_wait(struct comm *c, struct comm_futex *f, uint32_t target, uint32_t whom)
{
    const struct comm_world *w = c->world;
    struct comm_rank_slot *other = &w->ctl->slot[w->node_rank_of[c->member[whom]]];
    for (uint32_t round = 0; !reached(f, target); round++) {
        if (node_failed(w)) {
            return node_failure(w);
        }
        /* What it posted before it left is seen by the second look. */
        if (atomic_load_explicit(&other->presence, memory_order_acquire) == RANK_LEFT && !reached(f, target)) {
            return fail_left(c, whom);
        }
        if (round < w->spins) {
            pool_relax();
        } else if (round < w->spins + YIELDS) {
            sched_yield();
        } else {
            sleep_on(f, target);
        }
    }
    return OK;
}
