/* Why this exists: a job of many ranks is as fragile as the weakest of them, and MPI neither ends a call that another
 * rank does not come to nor says who that is.
 *
 * Each rank's thread looks at its own rank's waits only, so the first rank that began to wait is the first whose limit
 * runs out. It claims the report for the node, looks once more whether the wait still stands, and only then speaks.
 *
 * Time is counted in looks: a look adds the time since the last one, but no more than LOOK_NS_MAX. So a job that is
 * stopped as a whole (a scheduler suspends it, a machine sleeps) is not late when it goes on. */
#include "comm/watchdog_int.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#define LOOK_NS_MAX 250000000u
#define TERM_GRACE_NS 150000000u
#define REPORTED ((uint64_t)1 << 32) /* in the claim's word: the report is made, nobody else may */
#define DOOMED_NS 5000000000u        /* a job whose end was reported is gone within this time */
/* Several nodes: notes are read, and answers are waited for, within the 0.2 s; the late rank's own node goes first. */
#define PERIOD_NODES_MS 20
#define TURN_FIRST_NS 40000000u
#define TURN_NS 20000000u
#define TURNS 3u

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- what the calls tell ---- */

static uint64_t watch_begin(struct comm *c, const struct comm_sig *sig)
{
    struct watchdog *d = c->world->watch_state;
    uint64_t record = recorder_begin(d->recorder, sig);
    uint64_t slot = (uint64_t)(c->own - c->world->slot->call);
    bool message = sig->kind == KIND_SEND || sig->kind == KIND_SENT || sig->kind == KIND_RECV;
    uint64_t place = message ? CALL_MESSAGE - 1 : sig->number % 2 == 0 ? CALL_EVEN - 1 : CALL_ODD - 1;
    atomic_store_explicit(&c->world->slot->watch[WORD_LAST], 1 + slot * 4 + place, memory_order_relaxed);
    if (pthread_equal(pthread_self(), d->main)) {
        atomic_store_explicit(&c->world->slot->watch[WORD_MAIN_CALL], 1, memory_order_relaxed);
    }
    atomic_store_explicit(&d->wait[slot].record, record, memory_order_release);
    return record;
}

static void watch_end(struct comm *c, uint64_t record, enum err err)
{
    struct watchdog *d = c->world->watch_state;
    uint64_t slot = (uint64_t)(c->own - c->world->slot->call);
    atomic_store_explicit(&d->wait[slot].record, 0, memory_order_release);
    if (pthread_equal(pthread_self(), d->main)) {
        atomic_store_explicit(&c->world->slot->watch[WORD_MAIN_CALL], 0, memory_order_relaxed);
    }
    recorder_end(d->recorder, record, err);
}

static void watch_phase(struct comm_world *w, enum comm_phase phase, uint64_t step, uint32_t layer)
{
    struct watchdog *d = w->watch_state;
    recorder_phase(d->recorder, phase, step, layer);
}

/* ---- the report ---- */

static _Atomic uint64_t *claim_word(const struct comm_world *w)
{
    return &w->ctl->slot[0].watch[WORD_CLAIM];
}

bool watch_claim(struct watchdog *d)
{
    uint64_t nobody = 0;
    return atomic_compare_exchange_strong(claim_word(d->world), &nobody, 1 + (uint64_t)d->world->rank);
}

/* From now on the report is this rank's to make: false when one of another node took over. */
static bool confirm(struct watchdog *d)
{
    uint64_t mine = 1 + (uint64_t)d->world->rank;
    return atomic_compare_exchange_strong(claim_word(d->world), &mine, mine | REPORTED);
}

bool watch_take_over(struct watchdog *d, bool over)
{
    uint64_t now = atomic_load(claim_word(d->world));
    while (now == 0 || (over && (now & REPORTED) == 0)) {
        if (atomic_compare_exchange_weak(claim_word(d->world), &now, (1 + (uint64_t)d->world->rank) | REPORTED)) {
            return true;
        }
    }
    return false;
}

static enum err write_record(const struct watchdog *d, const struct verdict *v, uint32_t i, const char *message)
{
    const struct rank_view *r = &v->view[i];
    struct exit_record x = { .folder = d->folder, .rank = r->rank, .size = d->world->size, .host = d->host,
                             .written_by = d->world->rank, .view = r, .message = message, .verdict = v };
    x.exit_code = r->process.ended ? process_exit_code(&r->process) : WATCHDOG_EXIT_CODE;
    return exit_record_write(&x);
}

void watch_write_records(struct watchdog *d, const struct verdict *v, const char *message)
{
    for (int late = 1; late >= 0; late--) {
        for (uint32_t i = 0; i < v->count; i++) {
            if (v->late[i] == (late == 1) && !v->view[i].left && write_record(d, v, i, message) != OK) {
                err_print();
            }
        }
    }
}

/* Say it, write it, end the job. */
static void report(struct watchdog *d, const struct verdict *v, double waited_s)
{
    struct comm_world *w = d->world;
    struct buf text = { 0 };
    if (verdict_text(&text, v, waited_s) != OK) {
        err_print();
    }
    const char *message = text.data != NULL ? text.data : "a rank is late";
    if (w->nodes > 1) {
        notes_tell(d, v, message, waited_s >= 0); /* an end is seen by its own node only */
    }
    if (!confirm(d)) {
        d->doomed_ns = d->clock_ns;
    } else if (w->transport->end_job == NULL) {
        watch_write_records(d, v, message);
        node_fail(w, COMM_NOBODY, ERR_PEER, message);
    } else {
        err_set_message(message);
        err_print();
        watch_write_records(d, v, message);
        if (w->nodes > 1) {
            notes_wait(d);
        }
        w->transport->end_job(w, WATCHDOG_EXIT_CODE);
    }
    buf_release(&text);
}

/* ---- looking ---- */

static void count_time(struct watchdog *d)
{
    uint64_t now = now_ns(), passed = now - d->looked_ns;
    d->clock_ns += passed < LOOK_NS_MAX ? passed : LOOK_NS_MAX;
    d->looked_ns = now;
}

/* How long this rank has been in its open call of a group; 0 when it is in none. */
static uint64_t waited_ns(struct watchdog *d, uint32_t slot)
{
    struct wait *x = &d->wait[slot];
    uint64_t record = atomic_load_explicit(&x->record, memory_order_acquire);
    if (record != x->seen) {
        x->seen = record;
        x->since_ns = d->clock_ns;
    }
    return record != 0 ? d->clock_ns - x->since_ns : 0;
}

/* Look at the ranks of the node, and blame from this one; no memory is said once. */
static bool judge(struct watchdog *d, struct verdict *v)
{
    if (verdict_take(v, d->world, d->threads ? NULL : d->pidfd, WATCH_ANSWERS) != OK) {
        err_print();
        return false;
    }
    verdict_blame(v, d->world->node_rank);
    return true;
}

/* Before the limit of a wait that leads to other nodes runs out. */
static void ask_early(struct watchdog *d, uint32_t slot, uint64_t waited)
{
    static const uint64_t before_ns[WATCH_ROUNDS] = { 1000000000u, 200000000u };
    const struct inquiry *q = &d->asked;
    struct verdict v;
    uint32_t round = q->record != d->wait[slot].seen ? 0 : q->round + 1;
    bool due = round < WATCH_ROUNDS && waited >= d->limit_ns / 2 && waited + before_ns[round] > d->limit_ns;
    if (!due || !judge(d, &v)) {
        return;
    }
    if (v.far_late) {
        notes_ask(d, slot, round, &v);
    }
    verdict_release(&v);
}

/* The limit of a wait has run out. False: it is not for this rank to report, or not yet. */
static bool report_wait(struct watchdog *d, uint32_t slot, uint64_t waited)
{
    struct verdict v;
    uint32_t turn = d->world->node < TURNS ? d->world->node : TURNS;
    if (!watch_claim(d)) {
        return false;
    }
    if (!judge(d, &v)) {
        return true; /* the claim stays: without memory there is no better report */
    }
    /* Nobody is late: all have come just now, or the transfer itself takes long, which may take as long again. */
    uint64_t more = v.far_late ? TURN_FIRST_NS + turn * TURN_NS : verdict_blames(&v) ? 0 : d->limit_ns;
    bool mine = waited > d->limit_ns + more;
    bool stands = atomic_load_explicit(&d->wait[slot].record, memory_order_acquire) == d->wait[slot].seen;
    if (mine && stands) {
        if (v.far_late) {
            notes_conclude(d, &v);
        }
        report(d, &v, 1e-9 * (double)waited);
    } else {
        atomic_store(claim_word(d->world), 0);
    }
    verdict_release(&v);
    return mine && stands;
}

static void look_at_waits(struct watchdog *d)
{
    for (uint32_t g = 0; g < COMM_GROUPS_MAX; g++) {
        uint64_t waited = waited_ns(d, g);
        if (waited > 0 && d->world->nodes > 1) {
            ask_early(d, g, waited);
        }
        if (waited > d->limit_ns && report_wait(d, g, waited)) {
            return;
        }
    }
}

/* Ended by a signal that asks: when the whole job is asked to end, this rank goes the same way within a moment, and
 * nobody is to blame. */
static bool asked_just_now(const struct watchdog *d, uint32_t i, const struct process *p)
{
    int number = p->how_known && WIFSIGNALED(p->wait_status) ? WTERMSIG(p->wait_status) : 0;
    bool asked = number == SIGTERM || number == SIGINT || number == SIGHUP;
    return asked && d->clock_ns - d->ended_ns[i] < TERM_GRACE_NS;
}

/* A rank of the node that ended without leaving. */
static void look_at_death(struct watchdog *d, uint32_t i)
{
    struct verdict v;
    if (atomic_load(&d->world->ctl->slot[i].presence) != RANK_IN || atomic_load(claim_word(d->world)) != 0) {
        return;
    }
    if (verdict_take(&v, d->world, d->pidfd, 0) != OK) {
        err_print();
        return;
    }
    if (!asked_just_now(d, i, &v.view[i].process) && watch_claim(d)) {
        verdict_blame_one(&v, i);
        report(d, &v, -1);
    }
    verdict_release(&v);
}

static void look_at_processes(struct watchdog *d)
{
    struct comm_world *w = d->world;
    for (uint32_t i = 0; i < w->node_size; i++) {
        struct pollfd *p = &d->poll[1 + i];
        int32_t pid = atomic_load(&w->ctl->slot[i].pid);
        if (i == w->node_rank || atomic_load(&w->ctl->slot[i].presence) != RANK_IN) {
            p->fd = -1; /* left out by poll */
            continue;
        }
        struct process now = { .ended = d->ended_ns[i] != 0 || (p->revents & POLLIN) != 0 };
        if (d->pidfd[i] < 0) {
            d->pidfd[i] = process_watch(pid);
            process_look(&now, pid, d->pidfd[i]);
        }
        p->fd = now.ended ? -1 : d->pidfd[i]; /* it stays readable: poll would not sleep again */
        if (now.ended) {
            d->ended_ns[i] = d->ended_ns[i] != 0 ? d->ended_ns[i] : d->clock_ns;
            look_at_death(d, i);
        }
    }
}

/* A failure was told of long ago, or a report, and this rank, busy or stuck outside of all calls, keeps the job. */
static void look_at_doom(struct watchdog *d)
{
    struct comm_world *w = d->world;
    bool failed = node_failed(w);
    if (failed && d->doomed_ns == 0) {
        d->doomed_ns = d->clock_ns;
    }
    uint64_t most = failed ? d->limit_ns : DOOMED_NS;
    if (d->clock_ns - d->doomed_ns > most && w->transport->end_job != NULL) {
        enum err err = node_failure(w);
        if (err != OK) {
            err_print();
        }
        w->transport->end_job(w, err != OK ? err_exit_code(err) : WATCHDOG_EXIT_CODE);
    }
}

static void *watch_thread(void *arg)
{
    struct watchdog *d = arg;
    nfds_t count = d->threads ? 1 : 1 + d->world->node_size;
    d->looked_ns = now_ns();
    while (true) {
        int ready = poll(d->poll, count, d->world->nodes > 1 ? PERIOD_NODES_MS : WATCHDOG_PERIOD_MS);
        if (d->poll[0].revents != 0) {
            return NULL;
        }
        count_time(d);
        recorder_beat(d->recorder);
        if (d->world->nodes > 1) {
            notes_read(d);
        }
        if (node_failed(d->world) || d->doomed_ns != 0) {
            look_at_doom(d);
        } else if (ready >= 0) {
            if (!d->threads) {
                look_at_processes(d);
            }
            look_at_waits(d);
        }
    }
}

/* ---- begin and end ---- */

static void watchdog_free(struct watchdog *d, int exit_code)
{
    for (uint32_t i = 0; d->pidfd != NULL && i < d->world->node_size; i++) {
        if (d->pidfd[i] >= 0) {
            close(d->pidfd[i]);
        }
    }
    if (d->stop >= 0) {
        close(d->stop);
    }
    recorder_free(d->recorder, exit_code);
    free(d->pidfd);
    free(d->ended_ns);
    free(d->asked.said);
    free(d->asked.passed_on_ns);
    free(d->poll);
    free(d->folder);
    free(d);
}

static void watch_close(struct comm_world *w, enum err err)
{
    struct watchdog *d = w->watch_state;
    if (d->started) {
        uint64_t one = 1;
        BUG_IF(write(d->stop, &one, sizeof(one)) != sizeof(one));
        pthread_join(d->thread, NULL);
    }
    atomic_store(&w->watch, NULL);
    struct rank_view own = { .rank = w->rank, .phase = (enum comm_phase)atomic_load(&w->slot->phase),
                             .layer = atomic_load(&w->slot->layer), .step = atomic_load(&w->slot->step) };
    own.process = (struct process){ .pid = d->threads ? 0 : (int32_t)getpid() };
    struct exit_record x = { .folder = d->folder, .rank = w->rank, .size = w->size, .written_by = w->rank,
                             .host = d->host, .view = &own, .exit_code = err_exit_code(err),
                             .message = err != OK ? err_message() : "" };
    /* A report tells more than this rank knows: it stays. */
    if ((atomic_load(claim_word(w)) & REPORTED) == 0 && exit_record_write(&x) != OK) {
        err_print();
    }
    watchdog_free(d, err_exit_code(err));
    w->watch_state = NULL;
}

static const struct comm_watch_ops watch_ops = { watch_begin, watch_end, watch_phase, watch_close };

static enum err start_thread(struct watchdog *d)
{
    struct comm_world *w = d->world;
    void *mem;
    TRY(mem_alloc(&mem, w->node_size, sizeof(*d->pidfd)));
    d->pidfd = mem;
    TRY(mem_alloc(&mem, w->node_size, sizeof(*d->ended_ns)));
    d->ended_ns = mem;
    TRY(mem_alloc(&mem, w->size, 1));
    d->asked.said = mem;
    TRY(mem_alloc(&mem, w->size, sizeof(*d->asked.passed_on_ns)));
    d->asked.passed_on_ns = mem;
    TRY(mem_alloc(&mem, 1 + w->node_size, sizeof(*d->poll)));
    d->poll = mem;
    d->stop = eventfd(0, EFD_CLOEXEC);
    if (d->stop < 0) {
        return FAIL(ERR_RESOURCE, "watchdog: eventfd: %s | raise the limit of open files (ulimit -n)", strerror(errno));
    }
    d->poll[0] = (struct pollfd){ .fd = d->stop, .events = POLLIN };
    for (uint32_t i = 0; i < w->node_size; i++) {
        bool other = !d->threads && i != w->node_rank && atomic_load(&w->ctl->slot[i].presence) == RANK_IN;
        d->pidfd[i] = other ? process_watch(atomic_load(&w->ctl->slot[i].pid)) : -1;
        d->poll[1 + i] = (struct pollfd){ .fd = d->pidfd[i], .events = POLLIN };
    }
    /* Signals are for the rank's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int code = pthread_create(&d->thread, NULL, watch_thread, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        return FAIL(ERR_RESOURCE, "watchdog: thread: %s", strerror(code));
    }
    d->started = true;
    return OK;
}

enum err comm_watch(struct comm_world *w, const char *folder, double timeout_s)
{
    BUG_IF(w->watch_state != NULL || !(timeout_s > 0 && timeout_s < 1e9));
    struct buf path = { 0 };
    void *mem;
    enum err err;
    TRY(mem_alloc(&mem, 1, sizeof(struct watchdog)));
    struct watchdog *d = mem;
    d->world = w;
    d->stop = -1;
    d->limit_ns = (uint64_t)(timeout_s * 1e9);
    d->main = pthread_self();
    d->threads = w->transport->end_job == NULL;
    if (gethostname(d->host, sizeof(d->host) - 1) != 0) {
        d->host[0] = '\0';
    }
    TRY_OUT(mem_copy_string(&d->folder, folder, strlen(folder)));
    TRY_OUT(file_make_folder(folder));
    TRY_OUT(exit_record_path(&path, folder, w->rank));
    if (unlink(path.data) != 0 && errno != ENOENT) { /* of an earlier run */
        err = FAIL(ERR_IO, "%s: cannot be removed: %s | check the permissions", path.data, strerror(errno));
        goto out;
    }
    buf_clear(&path);
    TRY_OUT(recorder_path(&path, folder, w->rank));
    TRY_OUT(recorder_new(&d->recorder, path.data, w->rank, w->size));
    recorder_phase(d->recorder, (enum comm_phase)atomic_load(&w->slot->phase), atomic_load(&w->slot->step),
                   atomic_load(&w->slot->layer));
    if (w->size > 1) {
        TRY_OUT(start_thread(d));
    }
    w->watch_state = d;
    atomic_store_explicit(&w->watch, &watch_ops, memory_order_release);
out:
    buf_release(&path);
    if (err != OK) {
        watchdog_free(d, err_exit_code(err));
    }
    return err;
}
