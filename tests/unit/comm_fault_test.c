/* Ranks that fail, leave, or call something else than the others: every rank gets the same error, and nobody waits for
 * ever. */
#include <time.h>

#include "rank_threads.h"

#include "base/file.h"
#include "comm/comm_int.h"
#include "comm_cases.h"

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ 0, ms * 1000000 }, NULL);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* As run_ranks; must take less than a second, in the best of some tries: others may use the machine. */
static void run_in_a_second(uint32_t size, uint64_t seed, rank_fn *fn, void *arg, struct rank_thread *ranks)
{
    double took = 1e9;
    for (int tries = 0; tries < 5 && took > 1; tries++) {
        double start = seconds();
        run_ranks(size, seed, fn, arg, ranks);
        took = seconds() - start;
    }
    assert_true(took < 1);
}

/* All ranks returned `code` and the same message with `part` in it; on the rank that failed it may lack "rank N: ". */
static void assert_all(const struct rank_thread *ranks, uint32_t size, enum err code, const char *part)
{
    for (uint32_t r = 0; r < size; r++) {
        if (ranks[r].err != code || strstr(ranks[r].message, part) == NULL) {
            fail_msg("rank %u of %u: error %d \"%s\", expected %d with \"%s\"", r, size, ranks[r].err,
                     ranks[r].message, code, part);
        }
    }
}

/* ---- one rank fails ---- */

struct failing {
    uint64_t seed;
    uint32_t rank, call;
    bool tells; /* by comm_fail; else comm_close has to */
};

static enum err fail_in_a_program(struct comm_world *w, void *arg)
{
    const struct failing *f = arg;
    struct comm *c = comm_all(w);
    for (uint64_t i = 0; i < 60; i++) {
        uint64_t bits = hash_mix(f->seed * 1000 + i);
        if (comm_rank(c) == f->rank && i == f->call) {
            enum err err = FAIL(ERR_DATA, "shard %u: 3 bytes are missing", f->call);
            return f->tells ? comm_fail(w, err) : err;
        }
        const struct comm_case k = { c, bits, bits % 5 == 0 ? 50000 : bits >> 32 & 0xff };
        TRY(comm_check_run(&k, (bits >> 16) % COMM_CHECKS));
    }
    return FAIL(ERR_RUN, "the program ended without the fault");
}

static void a_failure_reaches_every_rank(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        uint64_t bits = hash_mix(seed + 1);
        uint32_t size = (uint32_t)(2 + bits % 7);
        struct failing f = { seed, (uint32_t)(bits >> 8) % size, (uint32_t)(bits >> 16) % 60, bits >> 32 & 1 };
        struct rank_thread ranks[RANKS_MAX];
        char want[64];
        run_ranks(size, seed % 3, fail_in_a_program, &f, ranks);
        snprintf(want, sizeof(want), "shard %u: 3 bytes are missing", f.call);
        assert_all(ranks, size, ERR_DATA, want);
        snprintf(want, sizeof(want), "rank %u: shard", f.rank);
        for (uint32_t r = 0; r < size; r++) {
            assert_true(r == f.rank || strstr(ranks[r].message, want) == ranks[r].message);
        }
    }
}

static enum err all_fail_at_once(struct comm_world *w, void *arg)
{
    (void)arg;
    TRY(comm_barrier(comm_all(w)));
    comm_fail(w, FAIL(ERR_IO, "disk of rank %u", comm_rank(comm_all(w))));
    return comm_barrier(comm_all(w));
}

static void the_first_failure_wins(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct rank_thread ranks[RANKS_MAX];
        run_ranks(5, seed, all_fail_at_once, NULL, ranks);
        assert_all(ranks, 5, ERR_IO, ranks[0].message);
    }
}

/* An agreed error is everybody's already: leaving with it tells nobody, and what was sent still arrives. */
static enum err agree_and_leave(struct comm_world *w, void *arg)
{
    (void)arg;
    struct comm *c = comm_all(w);
    struct comm_ticket ticket;
    int value = 7;
    if (comm_rank(c) == 0) {
        TRY(comm_send(c, 1, 0, &value, sizeof(value), &ticket));
    }
    enum err err = comm_agree(c, comm_rank(c) == 1 ? FAIL(ERR_RESOURCE, "disk full") : OK);
    if (comm_rank(c) == 1) {
        sleep_ms(20);
        TRY(comm_recv(c, 0, 0, &value, sizeof(value)));
        return value == 7 && err == ERR_RESOURCE ? err : FAIL(ERR_RUN, "received %d", value);
    }
    return err;
}

static void an_agreed_error_is_not_a_failure(void **state)
{
    (void)state;
    struct rank_thread ranks[RANKS_MAX];
    run_ranks(2, 0, agree_and_leave, NULL, ranks);
    assert_all(ranks, 2, ERR_RESOURCE, "disk full");
    assert_string_equal(ranks[0].message, "rank 1: disk full");
    assert_string_equal(ranks[1].message, "disk full");
}

/* What only some ranks can see fails on all, and the group can be used on. */
static enum err too_much(struct comm_world *w, void *arg)
{
    (void)arg;
    struct comm *c = comm_all(w), *more;
    void *window;
    enum err err = comm_window(c, (uint64_t)1 << 50, &window);
    if (err != ERR_RESOURCE || strstr(err_message(), "out of memory") == NULL || window != NULL) {
        return FAIL(ERR_RUN, "a window of 2^50 bytes: error %d", err);
    }
    for (uint32_t i = 1; i < COMM_GROUPS_MAX; i++) {
        TRY(comm_split(c, comm_rank(c) % 2, "half", &more));
    }
    TRY(comm_barrier(c));
    return comm_split(c, 0, "one too many", &more);
}

static void limits_are_errors_on_all_ranks(void **state)
{
    (void)state;
    struct rank_thread ranks[RANKS_MAX];
    run_ranks(3, 0, too_much, NULL, ranks);
    assert_all(ranks, 3, ERR_RESOURCE, "groups: rank 0 is in 32");
}

/* ---- different calls ---- */

enum fault { FAULT_KIND, FAULT_OP, FAULT_TYPE, FAULT_COUNT, FAULT_ROOT, FAULT_SKIP, FAULT_EXTRA, FAULT_GROUP, FAULTS };
enum base { BASE_SUM, BASE_ALL_GATHER, BASE_BCAST, BASES };
static const char *const base_names[BASES] = { "all-reduce sum i64 x ", "all-gather byte x ", "bcast byte x " };

struct mismatch {
    enum fault fault;
    enum base base;
    uint64_t n;
    uint32_t rank;      /* that does something else */
    const char *folder; /* of the watchdog */
};

/* The call as its public function makes it, but for a signature changed by the fault. */
static enum err make_call(struct comm *c, const struct mismatch *m, bool wrong)
{
    uint64_t n = m->n + (wrong && m->fault == FAULT_COUNT), bounds[RANKS_MAX + 1];
    static int64_t numbers[RANKS_MAX][300001];
    int64_t *buf = numbers[comm_rank(c)];
    for (uint32_t r = 0; r <= comm_size(c); r++) {
        bounds[r] = n * r / comm_size(c);
    }
    static const struct comm_sig sigs[BASES] = {
        { .kind = KIND_ALL_REDUCE, .type = TYPE_I64, .op = OP_SUM },
        { .kind = KIND_ALL_GATHER, .type = TYPE_BYTE },
        { .kind = KIND_BCAST, .type = TYPE_BYTE },
    };
    struct comm_sig sig = sigs[m->base];
    sig.count = n;
    sig.op = wrong && m->fault == FAULT_OP ? OP_MAX : sig.op;
    sig.type = wrong && m->fault == FAULT_TYPE ? TYPE_F32 : sig.type;
    sig.root = wrong && m->fault == FAULT_ROOT ? 1 : 0;
    TRY(call_begin(c, &sig, COMM_HERE));
    enum err err = m->base == BASE_SUM          ? c->engine->sum_i64(c, buf, n)
                   : m->base == BASE_ALL_GATHER ? c->engine->all_gather(c, buf, 1, bounds)
                                                : c->engine->bcast(c, sig.root, buf, n);
    return call_end(c, err);
}

/* Two groups of the same ranks in swapped order: nothing but a time limit can see that. */
static enum err swapped(struct comm_world *w, const struct mismatch *m)
{
    struct comm *twin, *c = comm_all(w);
    bool wrong = comm_rank(c) == m->rank;
    TRY(comm_watch(w, m->folder, 0.2));
    TRY(comm_split(c, 0, "twin", &twin));
    TRY(make_call(wrong ? twin : c, m, false));
    return make_call(wrong ? c : twin, m, false);
}

/* Three calls; in the second, one rank makes another, none, or one more. */
static enum err mismatched(struct comm_world *w, void *arg)
{
    const struct mismatch *m = arg;
    if (m->fault == FAULT_GROUP) {
        return swapped(w, m);
    }
    struct comm *c = comm_all(w);
    bool wrong = comm_rank(c) == m->rank;
    TRY(make_call(c, m, false));
    if (wrong && m->fault == FAULT_KIND) {
        TRY(comm_barrier(c));
    } else if (!wrong || m->fault != FAULT_SKIP) {
        TRY(make_call(c, m, wrong));
    }
    if (wrong && m->fault == FAULT_EXTRA) {
        TRY(make_call(c, m, false));
    }
    return comm_agree(c, OK);
}

/* What the message says of the others and of the odd one. */
static void expected(const struct mismatch *m, char others[COMM_SIG_TEXT], char odd[COMM_SIG_TEXT])
{
    static const char *const odd_calls[FAULTS] = {
        [FAULT_KIND] = "is at #2 barrier", [FAULT_OP] = " max ",      [FAULT_TYPE] = " f32 x ",
        [FAULT_COUNT] = "is at #2",        [FAULT_ROOT] = " root 1 ", [FAULT_SKIP] = "is at #2 agree",
        [FAULT_EXTRA] = "is at #3 ",       [FAULT_GROUP] = " of group twin",
    };
    const char *base = base_names[m->base];
    snprintf(odd, COMM_SIG_TEXT, "%s", odd_calls[m->fault]);
    if (m->fault == FAULT_COUNT) {
        snprintf(odd, COMM_SIG_TEXT, "is at #2 %s%llu", base, (unsigned long long)m->n + 1);
    }
    snprintf(others, COMM_SIG_TEXT, m->fault == FAULT_GROUP ? " s in #2 %s" : "are at #2 %s", base);
    if (m->fault == FAULT_EXTRA) {
        snprintf(others, COMM_SIG_TEXT, "are at #3 agree");
    }
}

static void run_mismatch(const struct mismatch *m, uint64_t seed)
{
    struct mismatch arg = *m;
    struct rank_thread ranks[RANKS_MAX];
    char others[COMM_SIG_TEXT], odd[COMM_SIG_TEXT], rank[32];
    run_in_a_second(4, seed, mismatched, &arg, ranks);
    expected(m, others, odd);
    snprintf(rank, sizeof(rank), m->fault == FAULT_GROUP ? "rank %u is late" : "rank %u is at ", m->rank);
    const char *const parts[] = { ranks[0].message, others, odd, rank, "(comm_fault_test.c:", "of group world" };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        assert_all(ranks, 4, ERR_PEER, parts[i]);
    }
}

/* 96 cases: what differs x which call x how long. */
static void different_calls_are_named(void **state)
{
    (void)state;
    static const uint64_t lengths[] = { 1, 16, 4096, 300000 };
    char folder[] = "/tmp/invar_comm_XXXXXX";
    assert_non_null(mkdtemp(folder));
    uint32_t cases = 0;
    for (int fault = 0; fault < FAULTS; fault++) {
        for (int base = 0; base < BASES; base++) {
            for (int i = 0; i < 4; i++, cases++) {
                run_mismatch(&(struct mismatch){ (enum fault)fault, (enum base)base, lengths[i], cases % 4, folder },
                             cases % 2);
            }
        }
    }
    assert_int_equal(cases, 96);
    assert_ok(file_remove_tree(folder));
}

/* Equal calls from different places are different calls: what a skipped iteration looks like. */
static enum err two_places(struct comm_world *w, void *arg)
{
    (void)arg;
    int64_t x = 1;
    if (comm_rank(comm_all(w)) == 0) {
        TRY(comm_sum_i64(comm_all(w), &x, 1));
    }
    TRY(comm_sum_i64(comm_all(w), &x, 1));
    return comm_sum_i64(comm_all(w), &x, 1);
}

static enum err other_bounds(struct comm_world *w, void *arg)
{
    (void)arg;
    int64_t x[4] = { 0 };
    const uint64_t bounds[3] = { 0, 1 + comm_rank(comm_all(w)), 4 };
    return comm_reduce_scatter_i64(comm_all(w), x, bounds);
}

static enum err other_shape(struct comm_world *w, void *arg)
{
    (void)arg;
    void *window;
    float out[12];
    TRY(comm_window(comm_all(w), 48, &window));
    memset(window, 0, 48);
    uint64_t cols = 3 + comm_rank(comm_all(w));
    return comm_tree_sum(comm_all(w), &(struct comm_tree){ .rows = 12 / cols, .cols = cols, .out = out, .ldo = cols });
}

static void what_else_must_agree(void **state)
{
    (void)state;
    struct rank_thread ranks[RANKS_MAX];
    run_ranks(2, 0, two_places, NULL, ranks);
    assert_all(ranks, 2, ERR_PEER, "rank 0 is at #1 all-reduce sum i64 x 1 (comm_fault_test.c:");
    run_ranks(2, 0, other_bounds, NULL, ranks);
    assert_all(ranks, 2, ERR_PEER, "with bounds or sizes of hash");
    run_ranks(2, 0, other_shape, NULL, ranks);
    assert_all(ranks, 2, ERR_PEER, "rank 1 is at #2 tree-sum sum f32 x 12");
}

/* ---- ranks that leave ---- */

static enum err leave_early(struct comm_world *w, void *arg)
{
    (void)arg;
    TRY(comm_barrier(comm_all(w)));
    return comm_rank(comm_all(w)) == 2 ? OK : comm_barrier(comm_all(w));
}

static enum err never_sends(struct comm_world *w, void *arg)
{
    (void)arg;
    int x;
    return comm_rank(comm_all(w)) == 2 ? OK : comm_recv(comm_all(w), 2, 5, &x, sizeof(x));
}

static void a_rank_that_left_is_not_waited_for(void **state)
{
    (void)state;
    rank_fn *const programs[2] = { leave_early, never_sends };
    static const char *const calls[2] = { "waits at #2 barrier (comm_fault_test.c:",
                                          "waits at #1 recv byte x 4 from 2 tag 5 (comm_fault_test.c:" };
    for (int i = 0; i < 2; i++) {
        struct rank_thread ranks[RANKS_MAX];
        run_in_a_second(3, 0, programs[i], NULL, ranks);
        assert_int_equal(ranks[2].err, OK);
        assert_all(ranks, 2, ERR_PEER, calls[i]);
        assert_all(ranks, 2, ERR_PEER, "for rank 2, which has made");
    }
}

/* ---- messages ---- */

static enum err other_bytes(struct comm_world *w, void *arg)
{
    (void)arg;
    struct comm *c = comm_all(w);
    char buf[100] = "";
    struct comm_ticket ticket;
    if (comm_rank(c) == 0) {
        TRY(comm_send(c, 1, 3, buf, 64, &ticket));
    } else {
        TRY(comm_recv(c, 0, 3, buf, 100));
    }
    return comm_barrier(c);
}

static enum err never_received(struct comm_world *w, void *arg)
{
    (void)arg;
    struct comm *c = comm_all(w);
    struct comm_ticket ticket;
    for (int i = 0; i < 300 && comm_rank(c) == 0; i++) {
        TRY(comm_send(c, 1, 0, &i, sizeof(i), &ticket));
    }
    return OK;
}

static void messages_that_do_not_fit(void **state)
{
    (void)state;
    struct rank_thread ranks[RANKS_MAX];
    run_ranks(2, 0, other_bytes, NULL, ranks);
    assert_all(ranks, 2, ERR_PEER, "rank 1 is at #1 recv byte x 100 from 0 tag 3 (comm_fault_test.c:");
    assert_all(ranks, 2, ERR_PEER, "rank 0 made #1 send byte x 64 to 1 tag 3 (comm_fault_test.c:");
    run_ranks(2, 0, never_received, NULL, ranks);
    assert_all(ranks, 1, ERR_PEER, "rank 0: waits at #65 send byte x 4 to 1 tag 0 (comm_fault_test.c:");
    assert_int_equal(ranks[1].err, OK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_failure_reaches_every_rank),
    cmocka_unit_test(the_first_failure_wins),
    cmocka_unit_test(an_agreed_error_is_not_a_failure),
    cmocka_unit_test(limits_are_errors_on_all_ranks),
    cmocka_unit_test(different_calls_are_named),
    cmocka_unit_test(what_else_must_agree),
    cmocka_unit_test(a_rank_that_left_is_not_waited_for),
    cmocka_unit_test(messages_that_do_not_fit),
};
TEST_MAIN(tests)
