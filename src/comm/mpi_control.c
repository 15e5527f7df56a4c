/* Why this exists: what ranks tell each other beside their collectives: that one failed, what watchdogs want to know,
 * and goodbye. A failure must reach ranks of other nodes while they wait for something that will not come.
 *
 * Invariants: every rank listens for one failure from the start, and the first is all that matters; who fails tells all
 * ranks of all other nodes, so nobody passes on what it heard. A node whose ranks wait for each other hears it too:
 * one of them computes and will wait for another node, or already does, and listens. */
#include <time.h>

#include "base/log.h"
#include "base/pool.h"
#include "comm/mpi_int.h"

enum { TAG_FAILURE, TAG_NOTE, TAG_FAREWELL }; /* and one more for each round of the farewell */

#define TELL_S 1.0 /* how long a failing rank tries to tell others */
#define SLEEP_NS_MORE 1000 /* each sleep is so much longer than the last */
#define SLEEP_NS_MOST 300000

void mpi_pause(const struct comm_world *w, struct mpi_pause *p)
{
    if (p->rounds++ < w->spins) {
        pool_relax();
    } else {
        long ns = (long)(p->rounds - w->spins) * SLEEP_NS_MORE;
        nanosleep(&(struct timespec){ 0, ns < SLEEP_NS_MOST ? ns : SLEEP_NS_MOST }, NULL);
    }
}

enum err mpi_control_start(struct mpi_world *m)
{
    pthread_mutex_init(&m->hearing, NULL);
    TRY(link_recv(m->control, LINK_ANY, TAG_FAILURE, &m->heard_failure, sizeof(m->heard_failure), &m->hear));
    return link_recv(m->control, LINK_ANY, TAG_NOTE, m->note_in_bytes, COMM_NOTE_BYTES, &m->note_in);
}

void mpi_control_stop(struct mpi_world *m)
{
    link_cancel(m->control, &m->hear);
    link_cancel(m->control, &m->note_in);
    pthread_mutex_destroy(&m->hearing);
}

void mpi_hear(struct comm_world *w)
{
    struct mpi_world *m = mpi_of(w);
    if (pthread_mutex_trylock(&m->hearing) != 0) {
        return; /* another thread looks just now */
    }
    bool came = false;
    if (m->hear.word != 0 && link_test(m->control, &m->hear, &came, NULL) == OK && came) {
        const struct mpi_failure *f = &m->heard_failure;
        atomic_store(&m->heard, true);
        node_fail(w, f->rank, (enum err)f->err, f->message);
    }
    pthread_mutex_unlock(&m->hearing);
}

void mpi_failed(struct comm_world *w)
{
    struct mpi_world *m = mpi_of(w);
    if (atomic_load(&m->heard)) {
        return;
    }
    struct mpi_failure *f = &m->told_failure;
    f->rank = w->ctl->rank;
    f->err = w->ctl->err;
    memcpy(f->message, w->ctl->message, sizeof(f->message));
    for (uint32_t r = 0; r < w->size; r++) {
        if (w->node_of[r] != w->node && link_send(m->control, r, TAG_FAILURE, f, sizeof(*f), &m->tell[r]) != OK) {
            m->tell[r].word = 0; /* that rank cannot be told */
        }
    }
    /* They leave while MPI is called: stay for a moment, but no longer. */
    double until = log_seconds() + TELL_S;
    struct mpi_pause pause = { 0 };
    for (bool all = false; !all && log_seconds() < until; mpi_pause(w, &pause)) {
        all = true;
        for (uint32_t r = 0; r < w->size; r++) {
            bool done;
            all &= link_test(m->control, &m->tell[r], &done, NULL) != OK || done;
        }
    }
}

void mpi_note_put(struct comm_world *w, uint32_t to, const void *note, uint32_t bytes)
{
    BUG_IF(bytes > COMM_NOTE_BYTES);
    struct mpi_world *m = mpi_of(w);
    for (uint32_t i = 0; i < MPI_NOTES && !node_failed(w); i++) {
        bool done;
        if (link_test(m->control, &m->note_out[i], &done, NULL) == OK && done) {
            memcpy(m->note_out_bytes[i], note, bytes);
            if (link_send(m->control, to, TAG_NOTE, m->note_out_bytes[i], bytes, &m->note_out[i]) != OK) {
                m->note_out[i].word = 0;
            }
            return;
        }
    }
}

bool mpi_note_take(struct comm_world *w, uint32_t *from, void *note, uint32_t *bytes)
{
    struct mpi_world *m = mpi_of(w);
    struct link_arrival a;
    bool came;
    if (node_failed(w) || m->note_in.word == 0 || link_test(m->control, &m->note_in, &came, &a) != OK || !came) {
        return false;
    }
    *from = a.from;
    *bytes = (uint32_t)a.bytes;
    memcpy(note, m->note_in_bytes, a.bytes);
    if (link_recv(m->control, LINK_ANY, TAG_NOTE, m->note_in_bytes, COMM_NOTE_BYTES, &m->note_in) != OK) {
        m->note_in.word = 0; /* deaf from now on: the others' watchdogs go without this rank's word */
    }
    return true;
}

/* Whether it is done before the time is up and nobody failed. */
static bool finished(struct comm_world *w, struct link_request *r, double until)
{
    struct mpi_pause pause = { 0 };
    for (bool done = false;; mpi_pause(w, &pause)) {
        if (link_test(mpi_of(w)->control, r, &done, NULL) != OK || node_failed(w) || log_seconds() > until) {
            return false;
        }
        if (done) {
            return true;
        }
        mpi_hear(w);
    }
}

bool mpi_farewell(struct comm_world *w, double limit_s)
{
    struct mpi_world *m = mpi_of(w);
    double until = log_seconds() + limit_s;
    uint32_t tag = TAG_FAREWELL;
    /* After the round of distance d a rank has heard, through others, of the 2 d ranks below it. */
    for (uint32_t d = 1; d < w->size; d *= 2, tag++) {
        struct link_request in = { 0 }, out = { 0 };
        uint32_t from = (w->rank + w->size - d) % w->size, to = (w->rank + d) % w->size;
        if (link_recv(m->control, from, tag, NULL, 0, &in) != OK ||
            link_send(m->control, to, tag, NULL, 0, &out) != OK || !finished(w, &in, until) ||
            !finished(w, &out, until)) {
            return false;
        }
    }
    /* Notes sent before the farewell have an owner who still listens; wait until they are gone. */
    for (uint32_t i = 0; i < MPI_NOTES; i++) {
        if (!finished(w, &m->note_out[i], until)) {
            return false;
        }
    }
    return true;
}
