/* The watchdog on ranks that are threads: who is late is named, in time, by every rank's error and by the exit records;
 * who is only slow is not. */
#include "rank_threads.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "comm/recorder.h"
#include "comm/watchdog.h"

#define LIMIT_S 0.3
#define LATE_S 1.2 /* how long a rank stays away that is to be found */

static char folder[64];

struct scene {
    double began_s[RANKS_MAX], ended_s[RANKS_MAX]; /* of the wait that is to be ended */
    struct comm *a[RANKS_MAX], *b[RANKS_MAX];
};

static void away(double seconds)
{
    struct timespec t = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

/* What all programs begin with: groups a and b of all ranks, and the watchdog. */
static enum err begin(struct comm_world *w, struct scene *s)
{
    uint32_t r = comm_rank(comm_all(w));
    TRY(comm_split(comm_all(w), 0, "a", &s->a[r]));
    TRY(comm_split(comm_all(w), 0, "b", &s->b[r]));
    TRY(comm_watch(w, folder, LIMIT_S));
    comm_phase(w, PHASE_FORWARD, 17, 5 + r);
    TRY(comm_barrier(comm_all(w)));
    s->began_s[r] = log_seconds();
    return OK;
}

static enum err done(struct comm_world *w, struct scene *s, enum err err)
{
    s->ended_s[comm_rank(comm_all(w))] = log_seconds();
    return err;
}

/* The exit record of a rank; fails the test when there is none or it is no JSON. */
static json_t *record_of(uint32_t rank)
{
    char path[128];
    json_t *json;
    snprintf(path, sizeof(path), "%s/exit-rank-%u.json", folder, rank);
    assert_ok(json_read_file(&json, path, 1 << 20));
    assert_int_equal(json_integer_value(json_object_get(json, "rank")), rank);
    assert_true(json_is_array(json_object_get(json, "last_calls")));
    return json;
}

static void assert_reason(uint32_t rank, int code, const char *part)
{
    json_t *json = record_of(rank);
    const char *reason = json_string_value(json_object_get(json, "reason"));
    if (reason == NULL || strstr(reason, part) == NULL) {
        fail_msg("exit-rank-%u.json: reason \"%s\", expected \"%s\"", rank, reason != NULL ? reason : "", part);
    }
    assert_int_equal(json_integer_value(json_object_get(json, "exit_code")), code);
    json_decref(json);
}

/* Every exit record has one late rank of this number, phase forward, step 17. */
static void assert_late(uint32_t size, uint32_t late)
{
    for (uint32_t r = 0; r < size; r++) {
        json_t *json = record_of(r), *list = json_object_get(json, "late"), *entry = json_array_get(list, 0);
        assert_int_equal(json_array_size(list), 1);
        assert_int_equal(json_integer_value(json_object_get(entry, "rank")), late);
        assert_string_equal(json_string_value(json_object_get(entry, "phase")), "forward");
        assert_int_equal(json_integer_value(json_object_get(entry, "step")), 17);
        assert_int_equal(json_integer_value(json_object_get(entry, "layer")), 5 + late);
        json_decref(json);
    }
}

/* How much longer than asked a thread of this process sleeps while others use the machine: the longest seen. */
struct noise {
    _Atomic bool stop;
    double most_s;
};

static void *measure_noise(void *arg)
{
    struct noise *n = arg;
    while (!atomic_load(&n->stop)) {
        double begin = log_seconds();
        away(0.01);
        double late = log_seconds() - begin - 0.01;
        n->most_s = late > n->most_s ? late : n->most_s;
    }
    return NULL;
}

/* Run a program whose ranks fail with a message that has `part`; those of `waits` within the limit and 0.5 s, and what
 * the machine added meanwhile to each of the up to three sleeps on the way. */
static void expect_report(uint32_t size, rank_fn *fn, uint32_t waits, const char *part)
{
    struct scene s = { .began_s = { 0 } };
    struct rank_thread ranks[RANKS_MAX];
    struct noise noise = { .most_s = 0 };
    pthread_t id;
    assert_int_equal(pthread_create(&id, NULL, measure_noise, &noise), 0);
    run_ranks(size, 0, fn, &s, ranks);
    atomic_store(&noise.stop, true);
    pthread_join(id, NULL);
    for (uint32_t r = 0; r < size; r++) {
        if (ranks[r].err != ERR_PEER || strstr(ranks[r].message, part) == NULL) {
            fail_msg("rank %u: error %d \"%s\", expected \"%s\"", r, ranks[r].err, ranks[r].message, part);
        }
        double took = s.ended_s[r] - s.began_s[r], most = LIMIT_S + 0.5 + 3 * noise.most_s;
        if ((waits >> r & 1) && (took < LIMIT_S || took > most)) {
            fail_msg("rank %u: named after %.3f s, at least %.3f s and at most %.3f s are allowed", r, took, LIMIT_S,
                     most);
        }
    }
}

/* ---- who is late ---- */

static enum err computes(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    TRY(begin(w, s));
    if (comm_rank(comm_all(w)) == 2) {
        away(LATE_S);
    }
    return done(w, s, comm_barrier(comm_all(w)));
}

static void computing_rank_is_named(void **state)
{
    (void)state;
    expect_report(4, computes, 0xb, "rank 2 is late: in forward of layer 7, step 17, its last call #");
    assert_late(4, 2);
    assert_reason(0, 5, "; ranks 0-1, 3 have waited 0.");
    assert_reason(2, 5, " barrier (watchdog_test.c:");
}

static enum err chain(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    struct comm *pair, *other;
    TRY(comm_split(comm_all(w), r < 2, "left", &pair));
    TRY(comm_split(comm_all(w), r > 0, "right", &other));
    TRY(begin(w, s));
    if (r == 2) {
        away(LATE_S);
    }
    if (r == 1) {
        away(0.5 * LIMIT_S); /* rank 0 is the first to wait, so the first whose limit runs out */
    }
    if (r > 0) {
        TRY(comm_barrier(other)); /* 1 waits for 2 .. */
    }
    return done(w, s, r < 2 ? comm_barrier(pair) : comm_barrier(comm_all(w))); /* .. and 0 for 1 */
}

static void blame_follows_the_waits(void **state)
{
    (void)state;
    expect_report(3, chain, 1, "rank 2 is late: in forward of layer 7, step 17");
    assert_late(3, 2);
}

static enum err message_waits(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    char byte = 1;
    TRY(begin(w, s));
    if (r == 0) {
        return done(w, s, comm_recv(s->a[r], 1, 7, &byte, 1));
    }
    away(LATE_S); /* also rank 2, for whom nobody waits */
    return done(w, s, comm_barrier(s->b[r]));
}

static void silent_sender_is_named(void **state)
{
    (void)state;
    expect_report(3, message_waits, 1, "rank 1 is late: in forward of layer 6, step 17");
    assert_late(3, 1);
    assert_reason(1, 5, "#1 recv byte x 1 from 1 tag 7 (watchdog_test.c:");
}

static enum err skips(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    TRY(begin(w, s));
    if (r != 1) {
        TRY(done(w, s, comm_barrier(s->a[r]))); /* rank 1 forgets this one */
    }
    return done(w, s, comm_barrier(s->b[r]));
}

static void rank_that_skipped_a_call_is_named(void **state)
{
    (void)state;
    expect_report(4, skips, 0xf, "rank 1 is late: in forward of layer 6, step 17, in #1 barrier (watchdog_test.c:");
    assert_late(4, 1);
    assert_reason(3, 5, "; ranks 0, 2-3 have waited 0.");
}

static enum err swaps(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    TRY(begin(w, s));
    enum err err = comm_barrier(r == 0 ? s->a[r] : s->b[r]);
    return done(w, s, err != OK ? err : comm_barrier(r == 0 ? s->b[r] : s->a[r]));
}

static void swapped_groups_name_both_calls(void **state)
{
    (void)state;
    expect_report(2, swaps, 3, "ranks wait for each other: rank 0 is late: in forward of layer 5, step 17, in #1 barr");
    assert_reason(0, 5, "of group a; rank 1 is late: in forward of layer 6, step 17, in #1 barrier");
    json_t *json = record_of(1);
    assert_int_equal(json_array_size(json_object_get(json, "late")), 2);
    assert_non_null(strstr(json_string_value(json_object_get(json, "hint")), "in the same order"));
    json_decref(json);
}

/* A second thread of rank 1 waits in b for rank 0, which waits in a for rank 1: its main thread is the late one. */
static void *wait_in_b(void *arg)
{
    enum err err = comm_barrier((struct comm *)arg);
    (void)err;
    return NULL;
}

static enum err two_threads(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    pthread_t helper;
    TRY(begin(w, s));
    if (r == 0) {
        return done(w, s, comm_barrier(s->a[r]));
    }
    if (pthread_create(&helper, NULL, wait_in_b, s->b[r]) != 0) {
        return FAIL(ERR_RESOURCE, "no thread");
    }
    away(LATE_S);
    pthread_join(helper, NULL);
    return done(w, s, comm_barrier(s->a[r]));
}

static void busy_main_thread_is_named(void **state)
{
    (void)state;
    expect_report(2, two_threads, 1, "rank 1 is late: in forward of layer 6, step 17, in #1 barrier");
    assert_late(2, 1);
}

/* ---- ends that need no watchdog, but an exit record ---- */

static enum err wrong_call(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    char in = 1, out[RANKS_MAX];
    TRY(begin(w, s));
    return done(w, s, r == 1 ? comm_gather(s->a[r], &in, 1, out) : comm_barrier(s->a[r]));
}

static void wrong_call_is_told_at_once(void **state)
{
    (void)state;
    struct scene s = { .began_s = { 0 } };
    struct rank_thread ranks[RANKS_MAX];
    run_ranks(3, 0, wrong_call, &s, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].err, ERR_PEER);
        assert_reason(r, 5, "rank 1 is at #1 gather byte x 1 (watchdog_test.c:");
    }
}

static enum err leaves_early(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    TRY(begin(w, s));
    return r == 1 ? OK : comm_barrier(s->a[r]);
}

static void rank_that_left_is_told_at_once(void **state)
{
    (void)state;
    struct scene s = { .began_s = { 0 } };
    struct rank_thread ranks[RANKS_MAX];
    run_ranks(3, 0, leaves_early, &s, ranks);
    assert_int_equal(ranks[0].err, ERR_PEER);
    assert_int_equal(ranks[1].err, OK);
    assert_reason(0, 5, "for rank 1, which has made 0 calls in this group and ended");
    json_t *json = record_of(1);
    assert_int_equal(json_integer_value(json_object_get(json, "exit_code")), 0);
    assert_null(json_object_get(json, "reason"));
    json_decref(json);
}

static enum err fails(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    TRY(begin(w, s));
    return r == 1 ? FAIL(ERR_DATA, "shard 7: bad magic | build the store again") : comm_barrier(s->a[r]);
}

static void own_error_is_in_every_record(void **state)
{
    (void)state;
    struct scene s = { .began_s = { 0 } };
    struct rank_thread ranks[RANKS_MAX];
    run_ranks(3, 0, fails, &s, ranks);
    assert_reason(0, 3, "rank 1: shard 7: bad magic");
    assert_reason(1, 3, "shard 7: bad magic");
    assert_reason(2, 3, "rank 1: shard 7: bad magic");
    json_t *json = record_of(1);
    assert_string_equal(json_string_value(json_object_get(json, "hint")), "build the store again");
    assert_string_equal(json_string_value(json_object_get(json, "phase")), "forward");
    json_decref(json);
}

static enum err ends_well(struct comm_world *w, void *arg)
{
    return begin(w, arg);
}

static void good_end_is_recorded(void **state)
{
    (void)state;
    struct scene s = { .began_s = { 0 } };
    for (uint32_t size = 1; size <= 2; size++) {
        run_ranks_ok(size, 0, ends_well, &s);
        char path[128];
        struct recorder_file f;
        snprintf(path, sizeof(path), "%s/rank-0.ring", folder);
        assert_ok(recorder_open_file(&f, path));
        assert_true(f.ended);
        assert_int_equal(f.exit_code, 0);
        assert_int_equal(f.size, size);
        assert_int_equal(f.phase, PHASE_FORWARD);
        assert_int_equal(f.begun, size - 1); /* a group of one makes no calls */
        recorder_file_release(&f);
        json_t *json = record_of(0);
        assert_int_equal(json_integer_value(json_object_get(json, "exit_code")), 0);
        json_decref(json);
    }
}

/* ---- no false alarm ---- */

#define TINY_CALLS 100000u
#define TINY_LIMIT_S 2.0 /* more than a busy machine keeps a thread waiting */

static enum err tiny_calls(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    TRY(comm_split(comm_all(w), 0, "a", &s->a[r]));
    TRY(comm_split(comm_all(w), 0, "b", &s->b[r]));
    TRY(comm_watch(w, folder, TINY_LIMIT_S));
    for (uint64_t i = 0; i < TINY_CALLS; i++) {
        uint64_t draw = hash_mix(i * 3 + r);
        comm_phase(w, (enum comm_phase)(draw % PHASE_COUNT), i, 0);
        if (draw >> 8 & 1) {
            for (volatile uint64_t k = 0; k < (draw >> 16) % 200; k++) {
            }
        }
        if (i % 50000 == 1000 * r) {
            away(0.2 * TINY_LIMIT_S);
        }
        int64_t one = 1;
        TRY(comm_sum_i64(i % 3 == 0 ? s->a[r] : s->b[r], &one, 1));
        if (one != comm_size(s->b[r])) {
            return FAIL(ERR_RUN, "a sum of ones is %lld", (long long)one);
        }
    }
    return OK;
}

static void no_alarm_in_a_hundred_thousand_calls(void **state)
{
    (void)state;
    struct scene s = { .began_s = { 0 } };
    run_ranks_ok(2, 0, tiny_calls, &s);
}

/* A job that is stopped as a whole for longer than the limit goes on as if nothing had been: rank 1 waits at that
 * moment, and rank 0 still has to compute when it goes on. */
#define SUSPEND_LIMIT_S 1.5

static enum err long_enough(struct comm_world *w, void *arg)
{
    struct scene *s = arg;
    uint32_t r = comm_rank(comm_all(w));
    TRY(comm_watch(w, folder, SUSPEND_LIMIT_S));
    for (int i = 0; i < 3; i++) {
        for (int part = 0; r == 0 && part < 10; part++) {
            away(0.02);
        }
        TRY(comm_barrier(comm_all(w)));
    }
    return done(w, s, OK);
}

static void suspended_job_goes_on(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct scene s = { .began_s = { 0 } };
        struct rank_thread ranks[RANKS_MAX];
        run_ranks(2, 0, long_enough, &s, ranks);
        _exit(ranks[0].err != OK || ranks[1].err != OK ? 1 : 0);
    }
    int status = 0;
    away(0.1); /* in the first of the computations */
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    away(1.5 * SUSPEND_LIMIT_S);
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/invar-watchdog-%d", (int)getpid());
    return file_make_folder(folder) == OK ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(folder) == OK ? 0 : -1;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(computing_rank_is_named),
    cmocka_unit_test(blame_follows_the_waits),
    cmocka_unit_test(silent_sender_is_named),
    cmocka_unit_test(rank_that_skipped_a_call_is_named),
    cmocka_unit_test(swapped_groups_name_both_calls),
    cmocka_unit_test(busy_main_thread_is_named),
    cmocka_unit_test(wrong_call_is_told_at_once),
    cmocka_unit_test(rank_that_left_is_told_at_once),
    cmocka_unit_test(own_error_is_in_every_record),
    cmocka_unit_test(good_end_is_recorded),
    cmocka_unit_test(no_alarm_in_a_hundred_thousand_calls),
    cmocka_unit_test(suspended_job_goes_on),
};
TEST_GROUP(tests, make_folder, remove_folder)
