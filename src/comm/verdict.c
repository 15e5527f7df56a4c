/* Why this exists: the rank that others wait for is often not the one to blame: it may itself wait for a third one. The
 * waits of a node's ranks are edges of a graph, and the blame goes to where they end.
 *
 * A rank in a collective call waits for the members that have not begun it; when all have, for those that arrived at
 * fewer of its meetings. A rank in a message waits for the other one. Members on other nodes have no slot here: a wait
 * that no member of this node explains goes there. Slots move while they are read: this is asked when ranks stand
 * still, and the watchdog looks again whether they do. */
#include "comm/verdict.h"

#include "base/mem.h"

static bool is_message(const struct comm_sig *sig)
{
    return sig->kind == KIND_SEND || sig->kind == KIND_SENT || sig->kind == KIND_RECV;
}

/* ---- looking ---- */

static void look_at_calls(struct rank_view *r, const struct comm_rank_slot *slot)
{
    for (uint32_t g = 0; g < COMM_GROUPS_MAX && r->calls < VIEW_CALLS; g++) {
        const struct comm_call_slot *s = &slot->call[g];
        struct view_call *c = &r->call[r->calls];
        if (atomic_load(&s->group) != 0 && call_slot_read(s, &c->sig)) {
            c->slot = g;
            c->step = atomic_load(&s->step.value);
            c->group_rank = atomic_load(&s->rank);
            c->group_size = atomic_load(&s->size);
            r->calls++;
        }
    }
    uint64_t last = atomic_load(&slot->watch[WORD_LAST]);
    if (last > 0) {
        uint64_t words[COMM_SIG_WORDS];
        for (size_t i = 0; i < COMM_SIG_WORDS; i++) {
            words[i] = atomic_load(&slot->call[(last - 1) / 4].sig[(last - 1) % 4][i]);
        }
        memcpy(&r->last, words, sizeof(r->last));
        r->has_last = r->last.kind < KIND_COUNT;
    }
}

static void look_at_rank(struct rank_view *r, const struct comm_rank_slot *slot, const int *pidfd)
{
    r->left = atomic_load(&slot->presence) == RANK_LEFT;
    r->phase = (enum comm_phase)atomic_load(&slot->phase);
    r->layer = atomic_load(&slot->layer);
    r->step = atomic_load(&slot->step);
    r->main_waits = atomic_load(&slot->watch[WORD_MAIN_CALL]) != 0;
    look_at_calls(r, slot);
    if (pidfd != NULL) {
        process_look(&r->process, atomic_load(&slot->pid), *pidfd);
    }
}

/* ---- who waits for whom ---- */

/* The slot of rank i in a group, NULL when it is not in it. */
static const struct comm_call_slot *slot_of(const struct comm_world *w, uint32_t i, uint64_t group)
{
    for (uint32_t g = 0; g < COMM_GROUPS_MAX; g++) {
        const struct comm_call_slot *s = &w->ctl->slot[i].call[g];
        if (atomic_load(&s->group) == group) {
            return s;
        }
    }
    return NULL;
}

enum behind { BEHIND_NOT, BEHIND_INSIDE, BEHIND_OUTSIDE, BEHIND_STRANGER };

static enum behind is_behind(const struct comm_world *w, const struct view_call *c, uint32_t j)
{
    const struct comm_call_slot *s = slot_of(w, j, c->sig.group);
    if (s == NULL) {
        return BEHIND_STRANGER;
    }
    uint64_t calls = atomic_load(&s->calls);
    if (calls != c->sig.number) {
        return calls < c->sig.number ? BEHIND_OUTSIDE : BEHIND_NOT;
    }
    bool fewer = (int32_t)(atomic_load(&s->step.value) - c->step) < 0;
    return fewer && atomic_load(&s->state) != CALL_NONE ? BEHIND_INSIDE : BEHIND_NOT;
}

static void add_collective(struct verdict *v, uint32_t i, const struct view_call *c)
{
    enum behind most = BEHIND_NOT;
    uint32_t members = 0;
    for (uint32_t j = 0; j < v->count; j++) {
        enum behind b = is_behind(v->world, c, j);
        members += b != BEHIND_STRANGER;
        most = b != BEHIND_STRANGER && j != i && b > most ? b : most;
    }
    for (uint32_t j = 0; most != BEHIND_NOT && j < v->count; j++) {
        if (j != i && is_behind(v->world, c, j) == most) {
            v->waits[i * v->count + j] = true;
        }
    }
    v->far[i] = v->far[i] || (most == BEHIND_NOT && members < c->group_size);
}

static void add_message(struct verdict *v, uint32_t i, const struct view_call *c)
{
    bool here = false;
    for (uint32_t j = 0; j < v->count && c->sig.kind != KIND_SENT; j++) { /* sent does not say whom it waits for */
        const struct comm_call_slot *s = slot_of(v->world, j, c->sig.group);
        if (s != NULL && atomic_load(&s->rank) == c->sig.root) {
            v->waits[i * v->count + j] = true;
            here = true;
        }
    }
    v->far[i] = v->far[i] || !here;
}

enum err verdict_take(struct verdict *v, const struct comm_world *w, const int *pidfd, uint32_t remotes)
{
    void *view = NULL, *flags = NULL;
    uint32_t n = w->node_size;
    *v = (struct verdict){ .world = w, .count = n, .room = n + remotes };
    enum err err = mem_alloc(&view, v->room, sizeof(*v->view));
    err = err != OK ? err : mem_alloc(&flags, (size_t)n * n + 2 * n + v->room, sizeof(bool));
    v->view = view;
    v->waits = flags;
    if (err != OK) {
        verdict_release(v);
        return err;
    }
    v->far = v->waits + (size_t)n * n;
    v->reached = v->far + n;
    v->late = v->reached + n;
    for (uint32_t rank = 0; rank < w->size; rank++) {
        if (w->node_of[rank] == w->node) {
            v->view[w->node_rank_of[rank]].rank = rank;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        look_at_rank(&v->view[i], &w->ctl->slot[i], pidfd != NULL ? &pidfd[i] : NULL);
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < v->view[i].calls; k++) {
            const struct view_call *c = &v->view[i].call[k];
            if (is_message(&c->sig)) {
                add_message(v, i, c);
            } else {
                add_collective(v, i, c);
            }
        }
    }
    return OK;
}

void verdict_release(struct verdict *v)
{
    free(v->view);
    free(v->waits);
    *v = (struct verdict){ 0 };
}

/* ---- blame ---- */

/* Set reached[j] for all that `from` waits for, directly or not. */
static void reach(struct verdict *v, uint32_t from)
{
    bool more = true;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < v->count; i++) {
            for (uint32_t j = 0; (i == from || v->reached[i]) && j < v->count; j++) {
                if (v->waits[i * v->count + j] && !v->reached[j]) {
                    v->reached[j] = more = true;
                }
            }
        }
    }
}

static uint32_t waits_for(const struct verdict *v, uint32_t i)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < v->count; j++) {
        n += v->waits[i * v->count + j];
    }
    return n;
}

enum ground { GROUND_BROKEN, GROUND_FREE, GROUND_FAR, GROUND_BUSY, GROUND_VOTES, GROUND_COUNT };

static uint32_t votes(const struct verdict *v, uint32_t j)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->count; i++) {
        n += v->reached[i] && v->waits[i * v->count + j];
    }
    return n;
}

bool view_broken(const struct rank_view *r)
{
    return r->process.ended || r->process.state == 'T' || r->process.state == 't';
}

static bool stands(const struct verdict *v, uint32_t i, enum ground g, uint32_t most)
{
    switch (g) {
    case GROUND_BROKEN:
        return view_broken(&v->view[i]);
    case GROUND_FREE:
        return waits_for(v, i) == 0 && !v->far[i];
    case GROUND_FAR:
        return v->far[i];
    case GROUND_BUSY:
        return !v->view[i].main_waits;
    default:
        return votes(v, i) == most;
    }
}

void verdict_blame(struct verdict *v, uint32_t from)
{
    reach(v, from);
    uint32_t most = 0;
    for (uint32_t i = 0; i < v->count; i++) {
        uint32_t n = v->reached[i] ? votes(v, i) : 0;
        most = n > most ? n : most;
    }
    for (enum ground g = GROUND_BROKEN; g < GROUND_COUNT; g++) {
        bool found = g == GROUND_FAR && v->far[from];
        for (uint32_t i = 0; i < v->count; i++) {
            bool holds = v->reached[i] && stands(v, i, g, most);
            v->late[i] = holds && g != GROUND_FAR;
            found |= holds;
        }
        if (found) {
            v->far_late = g == GROUND_FAR;
            v->cycle = g == GROUND_VOTES;
            return;
        }
    }
}

bool verdict_blames(const struct verdict *v)
{
    return memchr(v->late, true, v->room * sizeof(*v->late)) != NULL;
}

void verdict_blame_one(struct verdict *v, uint32_t place)
{
    v->late[place] = true;
}

void verdict_blame_remote(struct verdict *v, const struct rank_view *r)
{
    uint32_t place = v->count + v->remotes;
    if (place < v->room) {
        v->view[place] = *r;
        v->view[place].remote = true;
        v->late[place] = true;
        v->remotes++;
    }
}

bool verdict_has_begun(const struct verdict *v, uint32_t i, uint64_t group, uint64_t number)
{
    const struct comm_call_slot *s = slot_of(v->world, i, group);
    return s != NULL && atomic_load(&s->calls) >= number;
}

/* ---- words ---- */

enum err view_text(struct buf *out, const struct rank_view *r)
{
    TRY(buf_printf(out, "in %s", comm_phase_name(r->phase)));
    if (r->phase == PHASE_FORWARD || r->phase == PHASE_BACKWARD) {
        TRY(buf_printf(out, " of layer %u", r->layer));
    }
    return buf_printf(out, ", step %llu", (unsigned long long)r->step);
}

/* "rank 3" or "ranks 0-2, 5": those of the node that `take` says. */
static enum err add_ranks(struct buf *out, const struct verdict *v, const bool *take)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < v->count; i++) {
        taken += take[i];
    }
    TRY(buf_add_string(out, taken > 1 ? "ranks " : "rank "));
    bool first = true;
    for (uint32_t i = 0, last; i < v->count; i = last + 1) {
        last = i;
        if (!take[i]) {
            continue;
        }
        while (last + 1 < v->count && take[last + 1] && v->view[last + 1].rank == v->view[last].rank + 1) {
            last++;
        }
        TRY(buf_printf(out, last > i ? "%s%u-%u" : "%s%u", first ? "" : ", ", v->view[i].rank, v->view[last].rank));
        first = false;
    }
    return OK;
}

/* "; ranks 0-2 have waited 30.0 s in #812 ...; rank 4 waits in ..." */
static enum err add_waiting(struct buf *out, const struct verdict *v, double waited_s)
{
    void *mem;
    TRY(mem_alloc(&mem, 2 * (size_t)v->count, sizeof(bool)));
    bool *told = mem, *same = told + v->count;
    enum err err = OK;
    for (uint32_t i = 0, lines = 0; i < v->count && lines < 4; i++) {
        if (told[i] || v->late[i] || v->view[i].calls == 0) {
            continue;
        }
        uint32_t others = 0;
        char call[COMM_SIG_TEXT], other[COMM_SIG_TEXT];
        sig_text(&v->view[i].call[0].sig, call);
        for (uint32_t j = 0; j < v->count; j++) {
            same[j] = false;
            if (!v->late[j] && v->view[j].calls > 0) {
                sig_text(&v->view[j].call[0].sig, other);
                same[j] = strcmp(call, other) == 0;
            }
            told[j] = told[j] || same[j];
            others += same[j] && j != i;
        }
        TRY_OUT(buf_add_string(out, "; "));
        TRY_OUT(add_ranks(out, v, same));
        if (waited_s >= 0 && lines == 0) {
            TRY_OUT(buf_printf(out, " %s waited %.1f s in %s", others > 0 ? "have" : "has", waited_s, call));
        } else {
            TRY_OUT(buf_printf(out, " %s in %s", others > 0 ? "wait" : "waits", call));
        }
        lines++;
    }
out:
    free(mem);
    return err;
}

static enum err add_late(struct buf *out, const struct verdict *v, uint32_t i)
{
    const struct rank_view *r = &v->view[i];
    char how[64], call[COMM_SIG_TEXT];
    const struct process *p = &r->process;
    const char *on = r->remote ? " on " : "";
    if (r->silent) {
        return buf_printf(out, "rank %u is late: it is on another node and gives no answer", r->rank);
    }
    if (p->ended) {
        TRY(buf_printf(out, "rank %u is lost: process %d%s%s %s ", r->rank, p->pid, on, r->host, process_text(p, how)));
    } else {
        TRY(buf_printf(out, "rank %u is late: ", r->rank));
    }
    TRY(view_text(out, r));
    if (!p->ended && p->pid != 0) {
        TRY(buf_printf(out, " (process %d%s%s %s)", p->pid, on, r->host, process_text(p, how)));
    }
    if (r->calls > 0 || r->has_last) {
        sig_text(r->calls > 0 ? &r->call[0].sig : &r->last, call);
        TRY(buf_printf(out, r->calls > 0 ? ", in %s" : ", its last call %s", call));
    }
    return OK;
}

static enum err add_hint(struct buf *out, const struct verdict *v, const struct rank_view *r)
{
    const struct process *p = r != NULL ? &r->process : NULL;
    if (v->cycle || (r == NULL && v->far_late)) {
        return buf_printf(out, " | all ranks of a group make the same calls in the same order: compare %s",
                          v->cycle ? "these places" : "the exit records of the nodes");
    }
    if (r == NULL) {
        return buf_add_string(out, " | raise distributed_timeout if this transfer may take longer");
    }
    if (r->silent) {
        return buf_add_string(out, " | its node may be down, cut off, or stopped as a whole");
    }
    if (p->ended && process_exit_code(p) == 128 + 9) {
        return buf_add_string(out, " | signal 9 comes from a scheduler, a user or a system out of memory: read dmesg");
    }
    if (p->ended) {
        return buf_add_string(out, " | it ended without leaving the job: read what it printed before");
    }
    if (p->state == 'T' || p->state == 't') {
        return buf_printf(out, " | somebody stopped it: kill -CONT %d continues it", p->pid);
    }
    if (p->pid == 0) {
        return buf_add_string(out, " | raise distributed_timeout if this may take longer");
    }
    return buf_printf(out, " | gdb -p %d shows where it is; raise distributed_timeout if this may take longer", p->pid);
}

enum err verdict_text(struct buf *out, const struct verdict *v, double waited_s)
{
    const struct rank_view *first = NULL;
    uint32_t lines = 0;
    for (uint32_t i = 0; i < v->count + v->remotes; i++) {
        if (!v->late[i]) {
            continue;
        }
        first = first != NULL ? first : &v->view[i];
        if (lines++ < 4) {
            TRY(buf_add_string(out, lines > 1 ? "; " : v->cycle ? "ranks wait for each other: " : ""));
            TRY(add_late(out, v, i));
        }
    }
    if (lines > 4) {
        TRY(buf_printf(out, "; and %u others", lines - 4));
    } else if (lines == 0) {
        TRY(buf_add_string(out, v->far_late ? "ranks of several nodes wait for each other"
                                            : "no rank is late, but a call takes longer than the limit"));
    }
    TRY(add_waiting(out, v, waited_s));
    return add_hint(out, v, first);
}
