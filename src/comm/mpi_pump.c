/* Why this exists: MPI moves a large message only while both its ends call it. A rank that has sent and computes on
 * would let the receiver wait until it is done: a pipeline over nodes would lose what it is there for. So each rank of
 * a job on several nodes has a thread that calls MPI while something it sent is on its way, and now and then to hear
 * whether another node has failed.
 *
 * Invariant: it looks at nothing but sends, under their group's lock, and makes no MPI call once a failure is known. */
#include <signal.h>
#include <time.h>

#include "comm/mpi_far.h"

#define FLYING_NS 100000  /* between two looks while something is on its way */
#define IDLE_NS 20000000

static bool sends_fly(struct comm_world *w)
{
    bool any = false;
    for (struct comm *c = atomic_load(&w->groups); c != NULL; c = atomic_load(&c->next)) {
        any |= c->engine == &mpi_far_engine && far_sends_fly(c);
    }
    return any;
}

/* Wait until there may be something to do; false: the thread shall end. */
static bool wait_for_work(struct mpi_pump *p, bool flying)
{
    pthread_mutex_lock(&p->lock);
    if (!flying && !p->woken && !p->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += IDLE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&p->wake, &p->lock, &until);
    }
    p->woken = false;
    bool stop = p->stop;
    pthread_mutex_unlock(&p->lock);
    if (!stop && flying) {
        nanosleep(&(struct timespec){ 0, FLYING_NS }, NULL);
    }
    return !stop;
}

static void *run(void *arg)
{
    struct comm_world *w = arg;
    bool flying = false;
    while (wait_for_work(&mpi_of(w)->pump, flying)) {
        flying = false;
        if (!node_failed(w)) {
            mpi_hear(w);
        }
        if (!node_failed(w)) {
            flying = sends_fly(w);
        }
    }
    return NULL;
}

enum err mpi_pump_start(struct comm_world *w)
{
    struct mpi_pump *p = &mpi_of(w)->pump;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->wake, &attr);
    pthread_condattr_destroy(&attr);
    sigset_t all, before; /* signals of the process go to the threads that expect them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&p->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    p->runs = code == 0;
    return code == 0 ? OK : FAIL(ERR_RESOURCE, "a thread could not be started: %s", strerror(code));
}

void mpi_pump_wake(struct comm_world *w)
{
    struct mpi_pump *p = &mpi_of(w)->pump;
    pthread_mutex_lock(&p->lock);
    p->woken = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void mpi_pump_stop(struct mpi_world *m)
{
    struct mpi_pump *p = &m->pump;
    if (!p->runs) {
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    p->runs = false;
}
