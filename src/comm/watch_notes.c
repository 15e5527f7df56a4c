/* Why this exists: the late rank may be on another node, whose control block cannot be read from here. Its watchdog, or
 * that of a rank beside it when it is stopped, says what it does; when it waits itself, the question goes on to those
 * it waits for. One node reports; the others hear what, and write the exit records of their ranks.
 *
 * Notes may be lost: who does not answer in time is said to be silent, never to be innocent. A question is passed on a
 * few times at most, so that waits in a circle over several nodes end.
 *
 * Two nodes may want to report at once: who wants to says so, waits for as long as a note takes, and gives way to
 * a node of a lower number. */
#include "comm/watchdog_int.h"

#include <time.h>

#include "base/log.h"

#define HOPS 4u
#define GIVE_WAY_S 0.04
#define TOLD_S 1.0             /* for other nodes to write their records */
#define PASS_ON_NS 150000000u /* a rank passes on one question of each other rank in this time */

enum note_kind { NOTE_ASK, NOTE_NOT_ME, NOTE_LATE, NOTE_REPORT, NOTE_WRITTEN, NOTE_KINDS };

struct note {
    uint32_t kind, hops, round;
    uint32_t origin; /* who asks */
    uint32_t about;  /* who was asked about */
    bool message;    /* ASK: about a message, not a collective .. */
    uint64_t group, number;
    bool has_late;
    struct rank_view late; /* LATE, REPORT */
    char text[ERR_MESSAGE_BYTES];
};
_Static_assert(sizeof(struct note) <= COMM_NOTE_BYTES, "a note fits");

static void put(struct watchdog *d, uint32_t to, const struct note *n)
{
    d->world->transport->note_put(d->world, to, n, sizeof(*n));
}

/* The lowest rank of a node that is not `but`; the world's size when there is none. */
static uint32_t lowest_of(const struct comm_world *w, uint32_t node, uint32_t but)
{
    uint32_t r = 0;
    while (r < w->size && (w->node_of[r] != node || r == but)) {
        r++;
    }
    return r;
}

/* ---- asking ---- */

/* Ask a rank, and one beside it, which answers when it is stopped. */
static void ask(struct watchdog *d, struct note *n, uint32_t about)
{
    struct comm_world *w = d->world;
    n->about = about;
    put(d, about, n);
    uint32_t beside = lowest_of(w, w->node_of[about], about);
    if (beside < w->size && w->node_of[about] != w->node) {
        put(d, beside, n);
    }
}

/* Ask whom this rank waits for on other nodes in its call on the group of `slot`. */
static void ask_members(struct watchdog *d, struct note *n, const struct view_call *call, unsigned char *said)
{
    struct comm_world *w = d->world;
    const struct comm *c = atomic_load(&w->groups);
    while (c != NULL && c->own != &w->slot->call[call->slot]) {
        c = atomic_load(&c->next);
    }
    if (c == NULL || call->sig.kind == KIND_SENT) {
        return; /* sent does not say whom it waits for */
    }
    n->message = call->sig.kind == KIND_SEND || call->sig.kind == KIND_RECV;
    n->group = call->sig.group;
    n->number = call->sig.number;
    for (uint32_t m = 0; m < c->size; m++) {
        if (w->node_of[c->member[m]] != w->node && (!n->message || m == call->sig.root)) {
            ask(d, n, c->member[m]);
            if (said != NULL && said[c->member[m]] == SAID_NOT_ASKED) {
                said[c->member[m]] = SAID_NOTHING;
            }
        }
    }
}

/* Ask for all waits of this rank that lead away, and let ranks of this node ask for theirs when this rank waits for
 * them: only they know who is in their groups. */
static void ask_from(struct watchdog *d, struct note *n, const struct verdict *v, unsigned char *said)
{
    const struct comm_world *w = d->world;
    for (uint32_t i = 0; i < v->count; i++) {
        const struct rank_view *r = &v->view[i];
        if (i != w->node_rank && v->reached[i] && v->far[i]) {
            n->message = true; /* whatever it has begun: it waits */
            ask(d, n, r->rank);
        }
    }
    for (uint32_t k = 0; v->far[w->node_rank] && k < v->view[w->node_rank].calls; k++) {
        ask_members(d, n, &v->view[w->node_rank].call[k], said);
    }
}

void notes_ask(struct watchdog *d, uint32_t slot, uint32_t round, const struct verdict *v)
{
    struct inquiry *q = &d->asked;
    if (q->record != d->wait[slot].seen) {
        memset(q->said, SAID_NOT_ASKED, d->world->size);
        memset(q->lates, 0, sizeof(q->lates));
    }
    q->record = d->wait[slot].seen;
    q->round = round;
    struct note n = { .kind = NOTE_ASK, .round = round, .hops = HOPS, .origin = d->world->rank };
    ask_from(d, &n, v, q->said);
}

/* ---- answering ---- */

static void answer(struct watchdog *d, struct note *n, enum note_kind kind, const struct rank_view *late)
{
    n->kind = kind;
    n->has_late = late != NULL;
    if (late != NULL) {
        n->late = *late;
        memcpy(n->late.host, d->host, sizeof(n->late.host));
    }
    put(d, n->origin, n);
}

/* Who, of those this node knows, keeps the one who asks waiting for n->about. */
static void answer_ask(struct watchdog *d, struct note *n)
{
    struct comm_world *w = d->world;
    struct verdict v;
    if (w->node_of[n->about] != w->node || n->hops == 0) {
        return;
    }
    if (verdict_take(&v, w, d->pidfd, 0) != OK) {
        err_print();
        return;
    }
    uint32_t i = w->node_rank_of[n->about];
    bool begun = !n->message && verdict_has_begun(&v, i, n->group, n->number);
    verdict_blame(&v, i);
    uint32_t told = 0;
    for (uint32_t j = 0; !begun && j < v.count; j++) {
        if (v.late[j] && told++ < WATCH_ANSWERS) {
            answer(d, n, NOTE_LATE, &v.view[j]);
        }
    }
    if (view_broken(&v.view[i]) || (!begun && told == 0 && !v.far_late)) {
        answer(d, n, NOTE_LATE, &v.view[i]);
    } else if (told == 0) {
        struct note on = { .kind = NOTE_ASK, .round = n->round, .hops = n->hops - 1, .origin = n->origin };
        answer(d, n, NOTE_NOT_ME, NULL);
        uint64_t *last = &d->asked.passed_on_ns[n->origin];
        if (!begun && n->about == w->rank && (*last == 0 || d->clock_ns - *last > PASS_ON_NS)) {
            *last = d->clock_ns;
            ask_from(d, &on, &v, NULL);
        }
    }
    verdict_release(&v);
}

static void take_answer(struct watchdog *d, struct note *n)
{
    struct inquiry *q = &d->asked;
    uint32_t *lates = &q->lates[n->round];
    q->said[n->about] = SAID_SOMETHING;
    bool known = !n->has_late;
    for (uint32_t i = 0; i < *lates; i++) {
        known |= q->late[n->round][i].rank == n->late.rank;
    }
    if (!known && *lates < WATCH_ANSWERS) {
        q->late[n->round][(*lates)++] = n->late;
    }
}

static void blame(const struct watchdog *d, struct verdict *v, const struct rank_view *r)
{
    const struct comm_world *w = d->world;
    if (w->node_of[r->rank] == w->node) {
        verdict_blame_one(v, w->node_rank_of[r->rank]);
    } else {
        verdict_blame_remote(v, r);
    }
}

void notes_conclude(struct watchdog *d, struct verdict *v)
{
    const struct inquiry *q = &d->asked;
    uint32_t round = WATCH_ROUNDS - 1;
    while (round > 0 && q->lates[round] == 0) {
        round--;
    }
    for (uint32_t i = 0; i < q->lates[round]; i++) {
        blame(d, v, &q->late[round][i]);
    }
    for (uint32_t r = 0; q->lates[round] == 0 && r < d->world->size; r++) {
        if (q->said[r] == SAID_NOTHING) {
            blame(d, v, &(struct rank_view){ .rank = r, .silent = true });
        }
    }
}

/* ---- reports ---- */

static void tell(struct watchdog *d, const struct verdict *v, const char *message)
{
    struct comm_world *w = d->world;
    struct note n = { .kind = NOTE_REPORT, .origin = w->rank };
    snprintf(n.text, sizeof(n.text), "%s", message);
    for (uint32_t i = 0; i < v->count + v->remotes && !n.has_late; i++) {
        n.has_late = v->late[i];
        n.late = v->view[i];
    }
    if (!n.late.remote) {
        memcpy(n.late.host, d->host, sizeof(n.late.host));
    }
    for (uint32_t node = 0; node < w->nodes; node++) {
        uint32_t first = lowest_of(w, node, w->size);
        if (node == w->node) {
            continue;
        }
        put(d, first, &n);
        uint32_t second = lowest_of(w, node, first); /* the first may be stopped */
        if (second < w->size) {
            put(d, second, &n);
        }
    }
}

static void hear_report(struct watchdog *d, struct note *n)
{
    const struct comm_world *w = d->world;
    struct verdict v;
    if (!watch_take_over(d, w->node_of[n->origin] < w->node)) {
        return;
    }
    d->doomed_ns = d->clock_ns;
    if (verdict_take(&v, w, d->pidfd, 1) != OK) {
        err_print();
        return;
    }
    if (n->has_late) {
        blame(d, &v, &n->late);
    }
    watch_write_records(d, &v, n->text);
    verdict_release(&v);
    const struct note written = { .kind = NOTE_WRITTEN, .about = w->rank };
    put(d, n->origin, &written);
}

static void hear_written(struct watchdog *d, struct note *n)
{
    (void)n;
    d->nodes_written++;
}

/* The next note that makes sense; false when there is none. */
static bool take(struct watchdog *d, struct note *n)
{
    struct comm_world *w = d->world;
    unsigned char bytes[COMM_NOTE_BYTES];
    uint32_t from, count;
    while (w->transport->note_take(w, &from, bytes, &count)) {
        memcpy(n, bytes, sizeof(*n));
        if (count == sizeof(*n) && n->kind < NOTE_KINDS && n->origin < w->size && n->about < w->size &&
            n->late.rank < w->size && n->round < WATCH_ROUNDS) {
            n->text[sizeof(n->text) - 1] = '\0';
            n->late.host[sizeof(n->late.host) - 1] = '\0';
            return true;
        }
    }
    return false;
}

void notes_read(struct watchdog *d)
{
    static void (*const handle[NOTE_KINDS])(struct watchdog *, struct note *) = {
        [NOTE_ASK] = answer_ask,     [NOTE_NOT_ME] = take_answer,    [NOTE_LATE] = take_answer,
        [NOTE_REPORT] = hear_report, [NOTE_WRITTEN] = hear_written,
    };
    struct note n;
    while (take(d, &n)) {
        handle[n.kind](d, &n);
    }
}

/* Read notes until enough nodes wrote their records, for some time at most. */
static void read_for(struct watchdog *d, double seconds, uint32_t nodes_written)
{
    double until = log_seconds() + seconds;
    while (log_seconds() < until && d->nodes_written < nodes_written) {
        notes_read(d);
        nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
    }
}

void notes_tell(struct watchdog *d, const struct verdict *v, const char *message, bool give_way)
{
    tell(d, v, message);
    if (give_way) {
        read_for(d, GIVE_WAY_S, UINT32_MAX);
    }
}

void notes_wait(struct watchdog *d)
{
    read_for(d, TOLD_S, d->world->nodes - 1);
}
