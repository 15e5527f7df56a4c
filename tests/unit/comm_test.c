/* Collectives and messages of threads as ranks against plain serial definitions, bit by bit, with ranks that are late
 * in every order a seed can make. */
#include "rank_threads.h"

#include "comm_cases.h"
#include "part/layout.h"

static const uint32_t sizes[] = { 1, 2, 3, 4, 5, 8 };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* ---- one call at a time: kinds x sizes x lengths x seeds ---- */

struct grid {
    uint64_t check, seeds;
};

static enum err every_length(struct comm_world *w, void *arg)
{
    const struct grid *g = arg;
    static const uint64_t lengths[] = { 0, 1, 5, 64, 1000, 32768, 70001 }; /* a half holds 32768 integers */
    for (uint64_t seed = 0; seed < g->seeds; seed++) {
        for (size_t i = 0; i < (seed < 3 ? 7 : 5); i++) { /* bounds and shapes differ by the seed */
            const struct comm_case k = { comm_all(w), seed, lengths[i] };
            TRY(comm_check_run(&k, g->check));
        }
    }
    return OK;
}

static void calls_match_their_definitions(void **state)
{
    (void)state;
    for (uint64_t check = 0; check < COMM_CHECKS; check++) {
        for (size_t s = 0; s < SIZES; s++) {
            run_ranks_ok(sizes[s], 0, every_length, &(struct grid){ check, 12 });
            run_ranks_ok(sizes[s], check * 10 + s + 1, every_length, &(struct grid){ check, 4 });
        }
    }
}

/* ---- long arrays: more stages than halves, and stretches of very unequal length ---- */

static enum err long_arrays(struct comm_world *w, void *arg)
{
    (void)arg;
    for (uint64_t seed = 0; seed < 3; seed++) {
        const struct comm_case k = { comm_all(w), seed, 1000003 };
        TRY(check_sum(&k));
        TRY(check_reduce_scatter(&k));
        TRY(check_all_gather(&k));
    }
    return OK;
}

static void long_arrays_match(void **state)
{
    (void)state;
    run_ranks_ok(2, 0, long_arrays, NULL);
    run_ranks_ok(3, 5, long_arrays, NULL);
}

/* ---- groups ---- */

/* All groups of a layout's axes, and the products that ZeRO uses; checks rank and members. */
static enum err axis_groups(struct comm_world *w, const struct layout *l, struct comm *out[5])
{
    struct coord c = layout_coord(l, comm_rank(comm_all(w)));
    const uint32_t colors[4] = { c.dp * 100 + c.cp * 10 + c.tp, c.pp * 100 + c.cp * 10 + c.tp,
                                 c.pp * 100 + c.dp * 10 + c.tp, c.pp * 100 + c.dp * 10 + c.cp };
    static const char *const names[4] = { "pp", "dp", "cp", "tp" };
    const uint32_t ranks[4] = { c.pp, c.dp, c.cp, c.tp }, axis_sizes[4] = { l->pp, l->dp, l->cp, l->tp };
    for (int axis = 0; axis < 4; axis++) {
        TRY(comm_split(comm_all(w), colors[axis], names[axis], &out[axis]));
        if (comm_rank(out[axis]) != ranks[axis] || comm_size(out[axis]) != axis_sizes[axis] ||
            strcmp(comm_name(out[axis]), names[axis]) != 0) {
            return FAIL(ERR_RUN, "group %s: rank %u of %u, expected %u of %u", names[axis], comm_rank(out[axis]),
                        comm_size(out[axis]), ranks[axis], axis_sizes[axis]);
        }
    }
    struct comm *stage;
    TRY(comm_split(comm_all(w), c.pp, "stage", &stage));
    TRY(comm_split(stage, c.tp, "dp x cp", &out[4])); /* a group of a group */
    return comm_size(out[4]) == l->dp * l->cp ? OK : FAIL(ERR_RUN, "dp x cp has %u ranks", comm_size(out[4]));
}

static enum err layout_groups(struct comm_world *w, void *arg)
{
    struct comm *groups[5];
    TRY(axis_groups(w, arg, groups));
    for (uint64_t round = 0; round < 10; round++) {
        for (uint64_t g = 0; g < 5; g++) {
            for (uint64_t check = 0; check < COMM_CHECKS; check++) {
                const struct comm_case k = { groups[g], round * 100 + check, 20 + round * 17 };
                TRY(comm_check_run(&k, check));
            }
        }
    }
    return OK;
}

static void groups_of_layouts_work(void **state)
{
    (void)state;
    static const struct layout layouts[] = { { 2, 1, 2, 2 }, { 1, 2, 2, 2 }, { 2, 3, 1, 1 }, { 1, 1, 1, 8 },
                                             { 1, 3, 1, 2 }, { 4, 1, 1, 2 }, { 1, 1, 4, 1 } };
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        struct layout l = layouts[i];
        run_ranks_ok(layout_world(&l), i % 2 ? i : 0, layout_groups, &l);
    }
}

/* ---- random programs on several groups by several threads of each rank ---- */

struct program {
    struct comm *c;
    uint64_t seed;
    enum err err;
    char message[ERR_MESSAGE_BYTES];
    pthread_t id;
};

static void *run_program(void *arg)
{
    struct program *p = arg;
    pool_set_float_mode();
    for (uint64_t i = 0; i < 150 && p->err == OK; i++) {
        uint64_t bits = hash_mix(p->seed + i * 77);
        const struct comm_case k = { p->c, p->seed + i, bits % 7 == 0 ? bits >> 32 & 0xffff : bits >> 32 & 0xff };
        p->err = comm_check_run(&k, (bits >> 16) % COMM_CHECKS);
    }
    snprintf(p->message, sizeof(p->message), "%s", p->err != OK ? err_message() : "");
    return NULL;
}

static enum err programs(struct comm_world *w, void *arg)
{
    const uint64_t *seed = arg;
    struct comm *groups[5];
    const struct layout l = { 2, 1, 2, 2 };
    TRY(axis_groups(w, &l, groups));
    struct program p[3];
    for (uint64_t g = 0; g < 3; g++) {
        p[g] = (struct program){ .c = g == 0 ? comm_all(w) : groups[g + 1], .seed = *seed * 1000 + g * 100000 };
        if (pthread_create(&p[g].id, NULL, run_program, &p[g]) != 0) {
            return FAIL(ERR_RESOURCE, "a thread could not be started");
        }
    }
    enum err err = OK;
    for (uint64_t g = 0; g < 3; g++) {
        pthread_join(p[g].id, NULL);
        if (p[g].err != OK) {
            err_set_message(p[g].message);
            err = p[g].err;
        }
    }
    return err;
}

static void random_programs_on_three_threads(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        run_ranks_ok(8, seed, programs, &seed);
    }
}

/* ---- messages ---- */

/* As many messages both ways as may wait, of one tag, then of many tags in reverse; larger in each round, so that the
 * blocks of the round before do not fit. */
static enum err message_storm(struct comm_world *w, void *arg)
{
    (void)arg;
    struct comm *c = comm_all(w);
    uint32_t other = 1 - comm_rank(c), many = COMM_MESSAGES_MAX, data[3 * 2000 + 1];
    struct comm_ticket ticket;
    for (uint32_t round = 0; round < 3; round++) {
        uint32_t last = round * 2000;
        TRY(comm_barrier(c));
        for (uint32_t i = 0; i < many; i++) {
            data[0] = data[last] = round * 1000 + i;
            TRY(comm_send(c, other, round == 0 ? 5 : i, data, (last + 1) * sizeof(*data), &ticket));
        }
        for (uint32_t i = 0; i < many; i++) {
            uint32_t want = round == 0 ? i : many - 1 - i;
            TRY(comm_recv(c, other, round == 0 ? 5 : want, data, (last + 1) * sizeof(*data)));
            if (data[0] != round * 1000 + want || data[last] != data[0]) {
                return FAIL(ERR_RUN, "message %u of round %u: got %u .. %u", i, round, data[0], data[last]);
            }
        }
    }
    return OK;
}

static void messages_wait_and_keep_their_order(void **state)
{
    (void)state;
    run_ranks_ok(2, 0, message_storm, NULL);
    run_ranks_ok(2, 3, message_storm, NULL);
}

/* Two messages that come while the receiver looks through its entries: the second may not be taken first. The first
 * lies in the first entry, the second in the last, so a receiver that is late on its way from one to the other may
 * meet it alone. */
static enum err pairs_of_messages(struct comm_world *w, void *arg)
{
    struct comm *c = comm_all(w);
    bool sends = comm_rank(c) % 2 == 0;
    uint32_t other = comm_rank(c) ^ 1, last = COMM_MESSAGES_MAX - 1, data[1200] = { 0 };
    struct comm_ticket ticket;
    for (uint32_t i = 0; sends && i <= last; i++) { /* only the last entry's block is large */
        TRY(comm_send(c, other, 4, data, i < last ? sizeof(*data) : sizeof(data), &ticket));
    }
    TRY(comm_barrier(c));
    for (uint32_t i = 0; !sends && i <= last; i++) {
        TRY(comm_recv(c, other, 4, data, i < last ? sizeof(*data) : sizeof(data)));
    }
    for (uint32_t i = 0; i < *(const uint32_t *)arg; i++) {
        for (uint32_t j = 0; j < 2; j++) { /* both have the length of one, so the number tells which it is */
            data[0] = 2 * i + j;
            uint64_t bytes = j == 0 ? sizeof(*data) : sizeof(data);
            TRY(sends ? comm_send(c, other, 4, data, bytes, &ticket) : comm_recv(c, other, 4, data, bytes));
            if (data[0] != 2 * i + j) {
                return FAIL(ERR_RUN, "message %u instead of %u", data[0], 2 * i + j);
            }
        }
        TRY(sends ? comm_recv(c, other, 5, NULL, 0) : comm_send(c, other, 5, NULL, 0, &ticket));
    }
    return OK;
}

static void messages_do_not_overtake(void **state)
{
    (void)state;
    uint32_t pairs = 2000;
    run_ranks_ok(2, 3, pairs_of_messages, &pairs);
}

/* A sender that could run far ahead takes no more memory than what may wait. */
static enum err one_way(struct comm_world *w, void *arg)
{
    (void)arg;
    struct comm *c = comm_all(w);
    static const char data[8192];
    char in[sizeof(data)];
    uint64_t before = comm_memory_bytes(w);
    for (uint32_t i = 0; i < 1000; i++) {
        struct comm_ticket ticket;
        TRY(comm_rank(c) == 0 ? comm_send(c, 1, i % 3, data, sizeof(data), &ticket)
                              : comm_recv(c, 0, i % 3, in, sizeof(in)));
    }
    uint64_t grown = comm_memory_bytes(w) - before;
    return grown <= COMM_MESSAGES_MAX * sizeof(data) ? OK : FAIL(ERR_RUN, "%llu bytes", (unsigned long long)grown);
}

static void a_sender_far_ahead_waits(void **state)
{
    (void)state;
    run_ranks_ok(2, 0, one_way, NULL);
    run_ranks_ok(2, 7, one_way, NULL);
}

/* In its stride a pipeline makes no new blocks. */
static enum err steady_messages(struct comm_world *w, void *arg)
{
    (void)arg;
    struct comm *c = comm_all(w);
    static const char data[100000];
    char in[sizeof(data)];
    uint64_t before = 0;
    for (int i = 0; i < 50; i++) {
        struct comm_ticket ticket;
        TRY(comm_send(c, 1 - comm_rank(c), 0, data, sizeof(data), &ticket));
        TRY(comm_recv(c, 1 - comm_rank(c), 0, in, sizeof(in)));
        TRY(comm_barrier(c));
        before = i == 0 ? comm_memory_bytes(w) : before;
    }
    bool grew = comm_memory_bytes(w) != before;
    return grew ? FAIL(ERR_RUN, "memory grew from %llu to %llu", (unsigned long long)before,
                       (unsigned long long)comm_memory_bytes(w))
                : OK;
}

static void steady_messages_take_no_memory(void **state)
{
    (void)state;
    run_ranks_ok(2, 0, steady_messages, NULL);
}

/* ---- windows ---- */

static enum err windows(struct comm_world *w, void *arg)
{
    (void)arg;
    struct comm *c = comm_all(w);
    uint64_t start = comm_memory_bytes(w);
    void *first, *again, *larger;
    TRY(comm_window(c, 10000, &first));
    TRY(comm_window(c, 5000, &again));
    TRY(comm_window(c, 3000000, &larger));
    memset(larger, 1, 3000000);
    uint64_t grown = comm_memory_bytes(w) - start;
    bool right = first == again && (uintptr_t)first % 64 == 0 && (uintptr_t)larger % 64 == 0 && grown >= 3000000 &&
                 grown < 3100000;
    return right ? OK : FAIL(ERR_RUN, "windows %p %p %p take %llu bytes", first, again, larger,
                             (unsigned long long)grown);
}

static void windows_grow_and_stay(void **state)
{
    (void)state;
    for (size_t s = 0; s < SIZES; s++) {
        run_ranks_ok(sizes[s], 0, windows, NULL);
    }
}

/* ---- a world of one ---- */

static void one_rank_needs_nobody(void **state)
{
    (void)state;
    struct comm_world *w;
    assert_ok(comm_open(&w));
    assert_int_equal(comm_size(comm_all(w)), 1);
    assert_int_equal(comm_nodes(w), 1);
    assert_int_equal(comm_node_size(w), 1);
    struct comm *part;
    assert_ok(comm_split(comm_all(w), 3, "part", &part));
    for (uint64_t check = 0; check < COMM_CHECKS; check++) {
        assert_ok(every_length(w, &(struct grid){ check, 12 }));
        const struct comm_case k = { part, check, 100 };
        assert_ok(comm_check_run(&k, check));
    }
    comm_phase(w, PHASE_FORWARD, 1, 2);
    comm_close(w, OK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(calls_match_their_definitions),
    cmocka_unit_test(long_arrays_match),
    cmocka_unit_test(groups_of_layouts_work),
    cmocka_unit_test(random_programs_on_three_threads),
    cmocka_unit_test(messages_wait_and_keep_their_order),
    cmocka_unit_test(messages_do_not_overtake),
    cmocka_unit_test(a_sender_far_ahead_waits),
    cmocka_unit_test(steady_messages_take_no_memory),
    cmocka_unit_test(windows_grow_and_stay),
    cmocka_unit_test(one_rank_needs_nobody),
};
TEST_MAIN(tests)
