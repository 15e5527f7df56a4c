/* Why this exists: the only file that includes mpi.h. Everything about MPI that could differ between libraries, or that
 * somebody could misuse, is behind the few functions of mpi_link.h. MPI-3 calls only.
 *
 * Threads: MPI_THREAD_MULTIPLE is asked for. All calls but the blocking ones are made under one lock, each for a
 * moment, so MPI_THREAD_SERIALIZED would do for them. What more is asked for is for link_open, which waits for other
 * ranks, and link_abort, which must get through whatever other threads do. With SERIALIZED link_open keeps the lock
 * while it waits; that is right as long as a process opens one link at a time, as setting up a layout does. With less
 * than SERIALIZED nothing here is allowed, and link_start says so. */
#include "comm/mpi_link.h"

#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

#define CANCEL_TRIES 1000

/* This process's MPI; shared by its links, freed with the first one. */
struct mpi {
    pthread_mutex_t lock;
    bool multiple;
    bool exit_ends_job; /* a process that exits without MPI_Finalize takes the others with it */
    uint32_t tag_max;
};

struct link {
    struct mpi *mpi;
    MPI_Comm comm;
};

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request fits struct link_request");

static MPI_Request request_get(const struct link_request *r)
{
    MPI_Request request;
    memcpy(&request, &r->word, sizeof(request));
    return request;
}

/* 0 stands for "none", whatever MPI_REQUEST_NULL is; no library has a request in flight that is all zeros. */
static void request_set(struct link_request *r, MPI_Request request)
{
    r->word = 0;
    if (request != MPI_REQUEST_NULL) {
        memcpy(&r->word, &request, sizeof(request));
        BUG_IF(r->word == 0);
    }
}

static enum err fail_mpi(const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return FAIL(ERR_PEER, "%s: %s | the network or another rank is in trouble: look at what mpirun or srun say",
                call, text);
}

static enum err link_new(struct link **out, struct mpi *mpi, MPI_Comm comm)
{
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct link)));
    *out = mem;
    **out = (struct link){ mpi, comm };
    return OK;
}

/* ---- start and end ---- */

/* "Open MPI v4.1.4" of "Open MPI v4.1.4, package: ...", "MPICH Version: 4.0.2" of a text of many lines. */
static void library_name(char out[64])
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    size_t n = strcspn(text, ",\n");
    size_t used = 0;
    for (size_t i = 0; i < n && used < 63; i++) {
        char c = text[i] == '\t' ? ' ' : text[i];
        if (c != ' ' || (used > 0 && out[used - 1] != ' ')) {
            out[used++] = c;
        }
    }
    out[used] = '\0';
}

static enum err node_leader(MPI_Comm all, int rank, uint32_t *leader)
{
    MPI_Comm node;
    int code = MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    if (code != MPI_SUCCESS) {
        return fail_mpi("MPI_Comm_split_type", code);
    }
    int lowest = rank;
    code = MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, node);
    MPI_Comm_free(&node);
    *leader = (uint32_t)lowest;
    return code == MPI_SUCCESS ? OK : fail_mpi("MPI_Allreduce", code);
}

static enum err start(struct link *all, int level, struct link_job *job)
{
    library_name(job->library);
    if (level < MPI_THREAD_SERIALIZED) {
        return FAIL(ERR_USAGE, "%s: gives one thread the use of MPI, several threads of a rank need it | use a library "
                               "built for MPI_THREAD_MULTIPLE",
                    job->library);
    }
    all->mpi->multiple = level == MPI_THREAD_MULTIPLE;
    all->mpi->exit_ends_job = getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &all->comm);
    if (code != MPI_SUCCESS) {
        return fail_mpi("MPI_Comm_dup", code);
    }
    MPI_Comm_set_errhandler(all->comm, MPI_ERRORS_RETURN);
    int rank, size, *tag_max, found = 0;
    MPI_Comm_rank(all->comm, &rank);
    MPI_Comm_size(all->comm, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&tag_max, &found);
    all->mpi->tag_max = found ? (uint32_t)*tag_max : 32767; /* the least that the standard allows */
    job->rank = (uint32_t)rank;
    job->size = (uint32_t)size;
    return node_leader(all->comm, rank, &job->leader);
}

enum err link_start(struct link **out, struct link_job *job)
{
    *out = NULL;
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct mpi)));
    struct mpi *mpi = mem;
    pthread_mutex_init(&mpi->lock, NULL);
    struct link *all = NULL;
    enum err err = link_new(&all, mpi, MPI_COMM_NULL);
    if (err != OK) {
        free(mpi);
        return err;
    }
    int level = 0;
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level); /* the errors of this one end the process */
    if (code != MPI_SUCCESS) {
        free(all);
        free(mpi);
        return fail_mpi("MPI_Init_thread", code);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    err = start(all, level, job);
    if (err != OK) {
        link_stop(all);
        return err;
    }
    *out = all;
    return OK;
}

void link_stop(struct link *all)
{
    MPI_Finalize();
    pthread_mutex_destroy(&all->mpi->lock);
    free(all->mpi);
    free(all);
}

_Noreturn void link_abort(struct link *all, int code)
{
    if (all->mpi->exit_ends_job) {
        /* mpirun of Open MPI 4.1.4 damages its memory when it passes on what MPI_Abort has to say, and may crash, with
         * an exit code of its own. A process that just goes is the same to it, with the right code. */
        _exit(code);
    }
    /* Give a thread that is inside a call the moment it needs; one that never comes out must not save the job. */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    (void)pthread_mutex_timedlock(&all->mpi->lock, &until);
    MPI_Abort(MPI_COMM_WORLD, code);
    for (;;) {
        kill(getpid(), SIGKILL); /* MPI_Abort came back */
    }
}

/* ---- links ---- */

enum err link_open(struct link *base, const struct link_members *members, struct link **out)
{
    *out = NULL;
    void *mem;
    TRY(mem_alloc(&mem, members->size, sizeof(int)));
    int *rank = mem;
    for (uint32_t i = 0; i < members->size; i++) {
        rank[i] = (int)members->rank[i];
    }
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    struct mpi *mpi = base->mpi;
    pthread_mutex_lock(&mpi->lock);
    int code = MPI_Comm_group(base->comm, &all);
    code = code != MPI_SUCCESS ? code : MPI_Group_incl(all, (int)members->size, rank, &some);
    if (mpi->multiple) {
        pthread_mutex_unlock(&mpi->lock);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_create_group(base->comm, some, (int)(members->salt % (mpi->tag_max + 1ull)), &comm);
    }
    if (mpi->multiple) {
        pthread_mutex_lock(&mpi->lock);
    }
    if (code == MPI_SUCCESS) {
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    if (some != MPI_GROUP_NULL) {
        MPI_Group_free(&some);
    }
    if (all != MPI_GROUP_NULL) {
        MPI_Group_free(&all);
    }
    pthread_mutex_unlock(&mpi->lock);
    free(rank);
    return code == MPI_SUCCESS ? link_new(out, mpi, comm) : fail_mpi("MPI_Comm_create_group", code);
}

void link_close(struct link *l)
{
    free(l);
}

enum err link_all_gather(struct link *l, const void *in, size_t bytes, void *out)
{
    BUG_IF(bytes > LINK_BYTES_MAX);
    int code = MPI_Allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, l->comm);
    return code == MPI_SUCCESS ? OK : fail_mpi("MPI_Allgather", code);
}

/* ---- messages ---- */

uint32_t link_tag_max(const struct link *l)
{
    return l->mpi->tag_max;
}

enum err link_send(struct link *l, uint32_t to, uint32_t tag, const void *buf, size_t bytes, struct link_request *out)
{
    BUG_IF(bytes > LINK_BYTES_MAX || tag > l->mpi->tag_max);
    MPI_Request request = MPI_REQUEST_NULL;
    pthread_mutex_lock(&l->mpi->lock);
    int code = MPI_Isend(buf, (int)bytes, MPI_BYTE, (int)to, (int)tag, l->comm, &request);
    pthread_mutex_unlock(&l->mpi->lock);
    request_set(out, request);
    return code == MPI_SUCCESS ? OK : fail_mpi("MPI_Isend", code);
}

enum err link_recv(struct link *l, uint32_t from, uint32_t tag, void *buf, size_t bytes, struct link_request *out)
{
    BUG_IF(bytes > LINK_BYTES_MAX || tag > l->mpi->tag_max);
    MPI_Request request = MPI_REQUEST_NULL;
    int source = from == LINK_ANY ? MPI_ANY_SOURCE : (int)from;
    pthread_mutex_lock(&l->mpi->lock);
    int code = MPI_Irecv(buf, (int)bytes, MPI_BYTE, source, (int)tag, l->comm, &request);
    pthread_mutex_unlock(&l->mpi->lock);
    request_set(out, request);
    return code == MPI_SUCCESS ? OK : fail_mpi("MPI_Irecv", code);
}

enum err link_test(struct link *l, struct link_request *r, bool *done, struct link_arrival *arrival)
{
    *done = true;
    if (r->word == 0) {
        return OK;
    }
    MPI_Request request = request_get(r);
    MPI_Status status;
    int flag = 0, count = 0;
    pthread_mutex_lock(&l->mpi->lock);
    int code = MPI_Test(&request, &flag, &status);
    if (code == MPI_SUCCESS && flag && arrival != NULL) {
        MPI_Get_count(&status, MPI_BYTE, &count);
        *arrival = (struct link_arrival){ (uint32_t)status.MPI_SOURCE, (size_t)count };
    }
    pthread_mutex_unlock(&l->mpi->lock);
    request_set(r, request);
    *done = flag != 0;
    return code == MPI_SUCCESS ? OK : fail_mpi("MPI_Test", code);
}

void link_cancel(struct link *l, struct link_request *r)
{
    if (r->word == 0) {
        return;
    }
    MPI_Request request = request_get(r);
    pthread_mutex_lock(&l->mpi->lock);
    MPI_Cancel(&request);
    pthread_mutex_unlock(&l->mpi->lock);
    bool done = false;
    for (int tries = 0; !done && tries < CANCEL_TRIES; tries++) { /* one whose message is half here may never end */
        done = link_test(l, r, &done, NULL) != OK || done;
    }
    r->word = 0;
}
