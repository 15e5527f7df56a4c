/* Why this exists: a job of many ranks can be run on one machine to be looked at, as far as its memory goes. How ranks
 * become threads, fail and are waited for is the same whatever is looked at. */
#include "train/thread_ranks.h"

#include "base/file.h"

#include <pthread.h>
#include <unistd.h>

/* Many ranks on few cores are slow: the least time limit of one. */
#define WATCH_LEAST_S 300.0

/* ---- arguments ---- */

void arguments_release(struct arguments *a)
{
    for (int i = 0; i < a->count; i++) {
        free(a->list[i]);
    }
    free(a->list);
    *a = (struct arguments){ 0 };
}

static enum err add_word(struct arguments *a, const char *prefix, const char *word)
{
    void *list = a->list;
    struct buf text = { 0 };
    TRY(mem_grow(&list, &a->capacity, (size_t)a->count + 1, sizeof(char *)));
    a->list = list;
    enum err err = buf_printf(&text, "%s%s", prefix, word);
    if (err != OK) {
        buf_release(&text);
        return err;
    }
    a->list[a->count++] = text.data;
    return OK;
}

enum err arguments_copy(struct arguments *a, int argc, char *const *argv)
{
    for (int i = 0; i < argc; i++) {
        TRY(add_word(a, "", argv[i]));
    }
    return OK;
}

/* Words of --key VALUE (2) or --key=VALUE (1); 0: it is another argument. */
static int words_of(const char *argument, const char *key)
{
    size_t bytes = strlen(key);
    bool is_key = strncmp(argument, "--", 2) == 0 && strncmp(argument + 2, key, bytes) == 0;
    return !is_key ? 0 : argument[2 + bytes] == '=' ? 1 : argument[2 + bytes] == '\0' ? 2 : 0;
}

bool arguments_have(const struct arguments *a, const char *key)
{
    for (int i = 0; i < a->count; i++) {
        if (words_of(a->list[i], key) > 0) {
            return true;
        }
    }
    return false;
}

static void drop(struct arguments *a, const char *key)
{
    int kept = 0;
    for (int i = 0; i < a->count; i++) {
        int words = words_of(a->list[i], key);
        if (words == 0) {
            a->list[kept++] = a->list[i];
            continue;
        }
        free(a->list[i]);
        if (words == 2 && i + 1 < a->count) {
            free(a->list[++i]);
        }
    }
    a->count = kept;
}

enum err arguments_set(struct arguments *a, const char *key, const char *value)
{
    drop(a, key);
    TRY(add_word(a, "--", key));
    return add_word(a, "", value);
}

enum err arguments_free_ranks(struct arguments *a, uint64_t global_batch)
{
    char batch[32];
    TRY(arguments_set(a, "world_size", "null"));
    TRY(arguments_set(a, "num_layers_per_virtual_pipeline_stage", "null"));
    if (global_batch == 0) {
        return OK;
    }
    TRY(arguments_set(a, "gradient_accumulation_steps", "null"));
    snprintf(batch, sizeof(batch), "%llu", (unsigned long long)global_batch);
    return arguments_set(a, "global_batch_size", batch);
}

/* ---- ranks ---- */

struct rank_thread {
    const struct thread_job *job;
    struct comm_world *world;
    const char *folder; /* a temporary one, for flight records */
    uint32_t rank;
    pthread_t thread;
    bool started;
    enum err err;
    char message[ERR_MESSAGE_BYTES];
};

static enum err load(const struct rank_thread *r, struct conf *conf)
{
    const struct thread_job *j = r->job;
    struct findings f = { 0 };
    enum err err = conf_load(conf, j->path, j->arguments->count, j->arguments->list, j->world, &f);
    for (size_t i = 0; i < f.count && r->rank == 0 && err != OK; i++) {
        if (f.list[i].level == FINDING_ERROR && buf_printf(j->why, "%s\n", f.list[i].text) != OK) {
            break;
        }
    }
    findings_release(&f);
    return err;
}

/* A rank that keeps the others waiting is named, as in a run. The folder for that is gone once all ranks have their
 * files open, so nothing is left of it, however this process ends. Collective. */
static enum err watch(const struct rank_thread *r, double limit_s)
{
    if (r->job->world == 1) {
        return OK;
    }
    limit_s = limit_s > WATCH_LEAST_S ? limit_s : WATCH_LEAST_S;
    TRY(comm_agree(comm_all(r->world), comm_watch(r->world, r->folder, limit_s)));
    return comm_agree(comm_all(r->world), r->rank == 0 ? file_remove_tree(r->folder) : OK);
}

static enum err run_rank(const struct rank_thread *r)
{
    struct conf conf = { 0 };
    struct trainer t;
    const struct thread_job *j = r->job;
    enum err err = comm_agree(comm_all(r->world), load(r, &conf));
    err = err == OK ? watch(r, conf.distributed_timeout) : err;
    if (err == OK) {
        const struct trainer_use use = { .world = r->world, .trace = j->traces != NULL ? &j->traces[r->rank] : NULL };
        err = trainer_open(&t, &conf, &use);
        if (err == OK) {
            err = j->work(j->arg, &t);
            if (err != OK) {
                comm_fail(r->world, err); /* before the trainer waits for its thread, which may wait for others */
            }
            trainer_close(&t);
        }
    }
    conf_release(&conf);
    comm_close(r->world, err);
    return err;
}

static void *rank_main(void *arg)
{
    struct rank_thread *r = arg;
    r->err = run_rank(r);
    snprintf(r->message, sizeof(r->message), "%s", err_message());
    return NULL;
}

static void start(struct rank_thread *r)
{
    r->started = pthread_create(&r->thread, NULL, rank_main, r) == 0;
    if (!r->started) { /* its rank fails for it, so that the others do not wait */
        r->err = FAIL(ERR_RESOURCE, "a thread for rank %u cannot be started | check the limit on processes", r->rank);
        snprintf(r->message, sizeof(r->message), "%s", err_message());
        comm_close(r->world, r->err);
    }
}

/* Start all ranks and wait for them: the error of the lowest that failed. */
static enum err run_all(const struct thread_job *j, struct comm_threads *threads, struct rank_thread *ranks,
                        const char *folder)
{
    for (uint32_t i = 0; i < j->world; i++) {
        ranks[i] = (struct rank_thread){ .job = j, .rank = i, .folder = folder };
        ranks[i].world = comm_threads_world(threads, i);
        start(&ranks[i]);
    }
    for (uint32_t i = 0; i < j->world; i++) {
        if (ranks[i].started) {
            pthread_join(ranks[i].thread, NULL);
        }
    }
    for (uint32_t i = 0; i < j->world; i++) {
        if (ranks[i].err != OK) {
            err_set_message(ranks[i].message);
            return ranks[i].err;
        }
    }
    return OK;
}

enum err thread_ranks_run(const struct thread_job *j)
{
    struct comm_threads *threads = NULL;
    char folder[256] = "";
    void *mem;
    enum err err;
    TRY(mem_alloc(&mem, j->world, sizeof(struct rank_thread)));
    struct rank_thread *ranks = mem;
    TRY_OUT(file_temporary_folder(folder, sizeof(folder), "invar-ranks"));
    TRY_OUT(comm_threads_new(&threads, j->world, j->seed));
    err = run_all(j, threads, ranks, folder);
    comm_threads_free(threads);
out:
    rmdir(folder); /* when no rank came as far as to be watched it is still there, and empty */
    free(ranks);
    return err;
}
