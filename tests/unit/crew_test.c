/* Ranks of one node: how many threads each has, and whether they are bound. */
#include "test.h"
#include "train/crew.h"

#define CORES_8 "package:2 numa:1 core:4 pu:2"

/* `given` threads for each of `ranks` ranks that may use the hardware threads [lo, hi] of a machine; hop moves the mask
 * of each rank beyond that of the one before. */
struct crew_case {
    const char *machine;
    uint32_t ranks, lo, hi, hop, given, quota;
    bool bind;
    uint32_t threads; /* expected of each */
    const char *first, *last; /* cores of the first and the last rank, "" unbound */
};

static const struct crew_case crew_cases[] = {
    { CORES_8, 1, 0, 15, 0, 0, UINT32_MAX, true, 8, "0, 2, 4, 6, 8, 10, 12, 14", "0, 2, 4, 6, 8, 10, 12, 14" },
    { CORES_8, 1, 0, 15, 0, 0, UINT32_MAX, false, 8, "", "" },
    { CORES_8, 2, 0, 15, 0, 0, UINT32_MAX, true, 4, "0, 2, 4, 6", "8, 10, 12, 14" },
    { CORES_8, 3, 0, 15, 0, 0, UINT32_MAX, true, 2, "0, 2", "8, 10" }, /* two are left: less than a core a rank */
    { CORES_8, 1, 0, 15, 0, 7, UINT32_MAX, true, 7, "", "" },          /* others may want the core that is left */
    { CORES_8, 2, 0, 15, 0, 3, UINT32_MAX, true, 3, "", "" },
    { CORES_8, 1, 0, 15, 0, 16, UINT32_MAX, true, 16, "", "" },        /* more than cores */
    { CORES_8, 2, 0, 15, 0, 8, UINT32_MAX, true, 8, "", "" },
    { CORES_8, 9, 0, 15, 0, 0, UINT32_MAX, true, 1, "", "" },
    { CORES_8, 1, 0, 15, 0, 0, 3, true, 3, "", "" }, /* time of 3 cores, on any of 8 */
    { CORES_8, 1, 0, 15, 0, 8, 3, true, 8, "", "" },
    { CORES_8, 2, 0, 15, 0, 0, 3, true, 1, "", "" },
    { CORES_8, 2, 0, 15, 0, 0, 1, true, 1, "", "" }, /* less than a core for each */
    { CORES_8, 1, 0, 15, 0, 0, 8, true, 8, "0, 2, 4, 6, 8, 10, 12, 14", "0, 2, 4, 6, 8, 10, 12, 14" },
    { CORES_8, 2, 0, 7, 8, 0, UINT32_MAX, true, 4, "0, 2, 4, 6", "8, 10, 12, 14" }, /* bound to a socket each */
    { CORES_8, 8, 0, 1, 2, 0, UINT32_MAX, true, 1, "0", "14" },                     /* to a core */
    { CORES_8, 2, 0, 0, 1, 0, UINT32_MAX, true, 1, "", "" },                        /* to halves of one core */
    { "core:2 pu:1", 1, 0, 0, 0, 2, UINT32_MAX, true, 2, "", "" },
};

static void ranks_take_their_share_and_are_bound_when_it_is_theirs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(crew_cases) / sizeof(crew_cases[0]); i++) {
        const struct crew_case *k = &crew_cases[i];
        struct crew_member list[16] = { { .node = 3 } };
        struct topology t;
        char first[CORES_TEXT_BYTES], last[CORES_TEXT_BYTES];
        topology_load(&t, k->machine);
        for (uint32_t r = 0; r < k->ranks; r++) {
            list[r] = (struct crew_member){ .node = 3, .quota = k->quota, .given = k->given, .bind = k->bind };
            for (uint32_t c = k->lo + r * k->hop; c <= k->hi + r * k->hop; c++) {
                cores_add(&list[r].mine, c);
            }
            topology_cores(&t, &list[r].mine, &list[r].whole);
        }
        assert_ok(crew_settle(list, k->ranks, &t));
        for (uint32_t r = 0; r < k->ranks; r++) {
            if (list[r].threads != k->threads) {
                fail_msg("case %zu: rank %u has %u threads, expected %u", i, r, list[r].threads, k->threads);
            }
        }
        cores_text(&list[0].got, first);
        cores_text(&list[k->ranks - 1].got, last);
        if (strcmp(first, k->first) != 0 || strcmp(last, k->last) != 0) {
            fail_msg("case %zu: bound to %s .. %s, expected %s .. %s", i, first, last, k->first, k->last);
        }
    }
}

static void bound_cores_are_told_at_the_start(void **state)
{
    (void)state;
    struct crew_member list[11];
    struct crew c = { .list = list, .ranks = 3 };
    struct buf text = { 0 };
    for (uint32_t r = 0; r < 11; r++) {
        list[r] = (struct crew_member){ .threads = 1, .mine = { { 0x7ff } } };
        cores_add(&list[r].got, r);
    }
    list[2].got = (struct cores){ { 0 } };
    assert_ok(crew_describe(&c, &text));
    assert_string_equal(text.data, "machine: ranks 0-1: 1 thread each on cores 0-10, bound to 0; 1\n"
                                   "machine: rank 2: 1 thread on cores 0-10\n");
    buf_clear(&text);
    list[2].got = list[1].got;
    c.ranks = 11;
    assert_ok(crew_describe(&c, &text));
    assert_string_equal(text.data, "machine: ranks 0-10: 1 thread each on cores 0-10, "
                                   "bound to 0; 1; 1; 3; 4; 5; 6; 7; ..\n");
    buf_release(&text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ranks_take_their_share_and_are_bound_when_it_is_theirs),
    cmocka_unit_test(bound_cores_are_told_at_the_start),
};
TEST_MAIN(tests)
