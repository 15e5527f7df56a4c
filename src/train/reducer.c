/* Why this exists: the sums over ranks are as large as the gradients; done at the end they would be added to every
 * step. Here they run beside the backward pass, bucket by bucket in the order in which it completes them - the same on
 * every rank, so the threads of all ranks meet. Integers are added, so when a bucket is reduced changes no bit.
 *
 * Invariants: jobs are done first in, first out; jobs [done, posted) are waiting or running; a failed job stops the
 * queue, and everybody who waits gets its error. */
#include "train/reducer.h"

#include <pthread.h>

struct job {
    uint32_t bucket;
    int64_t *buf;
};

struct reducer {
    struct holdings *h;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *ring;
    uint64_t capacity, posted, done;
    bool closing;
    enum err err;
    char message[ERR_MESSAGE_BYTES];
};

static enum err reduce(struct holdings *h, const struct job *j)
{
    const struct bucket *b = &h->reg->buckets[j->bucket];
    const struct holding *own = &h->of[j->bucket];
    const struct ranks *r = h->ranks;
    if (h->hashing) {
        holdings_hash(h, j->bucket, j->buf);
    }
    if (comm_size(r->tp_grad) > 1 && b->replicated > 0) {
        TRY(comm_sum_i64(r->tp_grad, j->buf, b->replicated));
    }
    if (comm_size(r->data_grad) > 1) {
        TRY(comm_reduce_scatter_i64(r->data_grad, j->buf, own->bounds));
    }
    if (h->stage >= 2) {
        kern_add_i64(own->slice.hi - own->slice.lo, j->buf + own->slice.lo, own->g);
    }
    return OK;
}

static void *work(void *arg)
{
    struct reducer *q = arg;
    pool_leave(kern_pool(q->h->kern)); /* not beside one of its threads while another waits */
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->done == q->posted && !q->closing) {
            pthread_cond_wait(&q->changed, &q->lock);
        }
        if (q->closing) {
            break;
        }
        const struct job j = q->ring[q->done % q->capacity];
        pthread_mutex_unlock(&q->lock);
        enum err err = q->err == OK ? reduce(q->h, &j) : OK;
        pthread_mutex_lock(&q->lock);
        if (err != OK) {
            q->err = err;
            snprintf(q->message, sizeof(q->message), "%s", err_message());
        }
        q->done++;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

enum err reducer_new(struct reducer **out, struct holdings *h)
{
    void *mem;
    *out = NULL;
    TRY(mem_alloc(&mem, 1, sizeof(struct reducer)));
    struct reducer *q = mem;
    q->h = h;
    q->capacity = h->reg->bucket_count + 8; /* all buckets once, or all work buffers */
    enum err err = mem_alloc(&mem, q->capacity, sizeof(struct job));
    if (err != OK) {
        free(q);
        return err;
    }
    q->ring = mem;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    if (pthread_create(&q->thread, NULL, work, q) != 0) {
        pthread_cond_destroy(&q->changed);
        pthread_mutex_destroy(&q->lock);
        free(q->ring);
        free(q);
        return FAIL(ERR_RESOURCE, "the thread that reduces gradients cannot be started | check the limit on processes");
    }
    *out = q;
    return OK;
}

void reducer_free(struct reducer *q)
{
    if (q == NULL) {
        return;
    }
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q->ring);
    free(q);
}

void reducer_post(struct reducer *q, uint32_t bucket, int64_t *buf)
{
    pthread_mutex_lock(&q->lock);
    BUG_IF(q->posted - q->done == q->capacity);
    q->ring[q->posted++ % q->capacity] = (struct job){ bucket, buf };
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

static bool in_use(const struct reducer *q, const int64_t *buf)
{
    for (uint64_t i = q->done; i < q->posted; i++) {
        if (buf == NULL || q->ring[i % q->capacity].buf == buf) {
            return true;
        }
    }
    return false;
}

enum err reducer_wait_for(struct reducer *q, const int64_t *buf)
{
    pthread_mutex_lock(&q->lock);
    while (in_use(q, buf)) {
        pthread_cond_wait(&q->changed, &q->lock);
    }
    enum err err = q->err;
    if (err != OK) {
        err_set_message(q->message);
    }
    pthread_mutex_unlock(&q->lock);
    return err;
}
