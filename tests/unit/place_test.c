/* What a process may use of a machine, and where its threads go: control groups of fake roots, machines of hwloc's
 * synthetic descriptions, threads and pages of this one. */
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/topology.h"
#include "test.h"

/* ---- control groups ---- */

struct fake_file {
    const char *name, *text;
};

/* A root with the files of one case; the name of its folder is kept in `out`. */
static const char *fake_root(char out[64], const struct fake_file *files)
{
    snprintf(out, 64, "%s", "/tmp/invar_place_XXXXXX");
    assert_non_null(mkdtemp(out));
    for (; files->name != NULL; files++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s", out, files->name);
        *strrchr(path, '/') = '\0';
        assert_ok(file_make_folder(path));
        path[strlen(path)] = '/';
        assert_ok(file_replace(path, files->text, strlen(files->text)));
    }
    return out;
}

struct group_case {
    const char *what;
    struct fake_file files[9]; /* ended by one without a name */
    uint32_t cores;
    uint64_t memory;
};

#define OWN "proc/self/cgroup"
#define V2 "sys/fs/cgroup/"
static const struct group_case group_cases[] = {
    { "nothing is mounted", { { OWN, "0::/\n" } }, UINT32_MAX, UINT64_MAX },
    { "no limit", { { OWN, "0::/\n" }, { V2 "cpu.max", "max 100000\n" }, { V2 "memory.max", "max\n" } }, UINT32_MAX,
      UINT64_MAX },
    { "the root of a container",
      { { OWN, "0::/\n" }, { V2 "cpu.max", "250000 100000\n" }, { V2 "memory.max", "1000\n" },
        { V2 "memory.current", "400\n" } }, 3, 600 },
    { "less than a core", { { OWN, "0::/\n" }, { V2 "cpu.max", "20000 100000\n" } }, 1, UINT64_MAX },
    { "no quota at all is a thread, too", { { OWN, "0::/\n" }, { V2 "cpu.max", "0 100000\n" } }, 1, UINT64_MAX },
    { "the tightest on the way",
      { { OWN, "0::/a/b\n" }, { V2 "a/b/cpu.max", "800000 100000\n" }, { V2 "a/cpu.max", "400000 100000\n" },
        { V2 "a/b/memory.max", "5000\n" }, { V2 "a/b/memory.current", "1000\n" }, { V2 "a/memory.max", "9000\n" },
        { V2 "a/memory.current", "6000\n" } }, 4, 3000 },
    { "a group beside the way does not count",
      { { OWN, "0::/ab\n" }, { V2 "a/cpu.max", "100000 100000\n" }, { V2 "ab/cpu.max", "700000 100000\n" } }, 7,
      UINT64_MAX },
    { "a path of the host", { { OWN, "0::/docker/0123\n" }, { V2 "cpu.max", "200000 100000\n" } }, 2, UINT64_MAX },
    { "above the high mark everything crawls",
      { { OWN, "0::/\n" }, { V2 "memory.max", "9000\n" }, { V2 "memory.high", "8000\n" },
        { V2 "memory.current", "1000\n" } }, UINT32_MAX, 7000 },
    { "the file cache can be had",
      { { OWN, "0::/\n" }, { V2 "memory.max", "9000\n" }, { V2 "memory.current", "8500\n" },
        { V2 "memory.stat", "anon 1000\nfile 7500\ninactive_file 5000\nactive_file 2000\nfile_mapped 3\n" } },
      UINT32_MAX, 7500 },
    { "more in use than the limit",
      { { OWN, "0::/\n" }, { V2 "memory.max", "1000\n" }, { V2 "memory.current", "1500\n" } }, UINT32_MAX, 0 },
    { "version 1",
      { { OWN, "9:name=systemd:/x\n4:memory:/job/7\n5:mycpu:/y\n2:cpuset,cpu,cpuacct:/job/7\n1:pids:/\n0::/\n" },
        { V2 "cpu/job/7/cpu.cfs_quota_us", "-1\n" }, { V2 "cpu/job/7/cpu.cfs_period_us", "100000\n" },
        { V2 "cpu/job/cpu.cfs_quota_us", "150000\n" }, { V2 "cpu/job/cpu.cfs_period_us", "50000\n" },
        { V2 "memory/job/7/memory.limit_in_bytes", "7000\n" }, { V2 "memory/job/7/memory.usage_in_bytes", "4000\n" },
        { V2 "memory/job/7/memory.stat", "active_file 1\ntotal_inactive_file 500\ntotal_active_file 1500\n" } },
      3, 5000 },
    { "version 1 of memory, version 2 of time",
      { { OWN, "4:memory:/m\n0::/t\n" }, { V2 "unified/t/cpu.max", "500000 100000\n" },
        { V2 "memory/m/memory.limit_in_bytes", "100\n" },
        { V2 "memory/memory.limit_in_bytes", "9223372036854771712\n" },
        { V2 "memory/m/memory.usage_in_bytes", "1\n" } }, 5, 99 },
};

static void groups_limit_time_and_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(group_cases) / sizeof(group_cases[0]); i++) {
        const struct group_case *c = &group_cases[i];
        char root[64];
        fake_root(root, c->files);
        uint32_t cores = cgroup_cores(root);
        uint64_t memory = cgroup_memory(root);
        assert_ok(file_remove_tree(root));
        if (cores != c->cores || memory != c->memory) {
            fail_msg("%s: %u cores and %llu bytes, expected %u and %llu", c->what, cores, (unsigned long long)memory,
                     c->cores, (unsigned long long)c->memory);
        }
    }
}

static void pages_are_given_unless_the_system_says_never(void **state)
{
    (void)state;
#define MODES "sys/kernel/mm/transparent_hugepage/enabled"
    static const struct {
        struct fake_file files[2];
        bool given;
    } cases[] = { { { { MODES, "always [madvise] never\n" } }, true },
                  { { { MODES, "[always] madvise never\n" } }, true },
                  { { { MODES, "always madvise [never]\n" } }, false },
                  { { { "sys/none", "" } }, false } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char root[64];
        bool given = mem_huge_given(fake_root(root, cases[i].files));
        assert_ok(file_remove_tree(root));
        assert_int_equal(given, cases[i].given);
    }
}

/* ---- machines ---- */

/* "0-3, 8" */
static struct cores set(const char *text)
{
    struct cores c = { { 0 } };
    while (*text != '\0') {
        char *end;
        unsigned long lo = strtoul(text, &end, 10), hi = *end == '-' ? strtoul(end + 1, &end, 10) : lo;
        for (; lo <= hi; lo++) {
            cores_add(&c, (uint32_t)lo);
        }
        text = end + strspn(end, ", ");
    }
    return c;
}

#define TWO_BY_FOUR "package:2 numa:1 core:4 pu:2" /* core c has hardware threads 2c and 2c + 1 */
#define HALVES_APART "package:2 [numa] core:4 pu:2(indexes=0,8,1,9,2,10,3,11,4,12,5,13,6,14,7,15)" /* c and c + 8 */

static void cores_count_once_whatever_their_halves(void **state)
{
    (void)state;
    static const struct {
        const char *machine, *mask, *cores;
        uint64_t nodes;
    } cases[] = {
        { TWO_BY_FOUR, "0-15", "0, 2, 4, 6, 8, 10, 12, 14", 3 },
        { TWO_BY_FOUR, "1, 3, 4-5", "0, 2, 4", 1 }, /* also where a launcher gave the second half only */
        { TWO_BY_FOUR, "8-15", "8, 10, 12, 14", 2 },
        { HALVES_APART, "0-15", "0-7", 3 },
        { HALVES_APART, "4, 8, 12", "0, 4", 3 },
        { "package:1 numa:4 core:2 pu:1", "2-7", "2-7", 14 },
        { "core:3 pu:1", "0-2", "0-2", 1 },
        { "core:3 pu:1", "", "", 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct topology t;
        struct cores mask = set(cases[i].mask), whole;
        char text[CORES_TEXT_BYTES];
        topology_load(&t, cases[i].machine);
        topology_cores(&t, &mask, &whole);
        assert_string_equal(cores_text(&whole, text), cases[i].cores);
        assert_int_equal(topology_nodes(&t, &mask), cases[i].nodes);
    }
}

static void cores_are_assigned_apart_and_close_together(void **state)
{
    (void)state;
    static const struct {
        const char *machine;
        struct {
            const char *mask;
            uint32_t threads;
            const char *got;
        } rank[4];
    } cases[] = {
        { TWO_BY_FOUR, { { "0-15", 8, "0, 2, 4, 6, 8, 10, 12, 14" } } },
        { TWO_BY_FOUR, { { "0-15", 4, "0, 2, 4, 6" }, { "0-15", 4, "8, 10, 12, 14" } } },
        { TWO_BY_FOUR, { { "0-15", 3, "0, 2, 4" }, { "0-15", 3, "8, 10, 12" } } }, /* not across nodes if need not be */
        { TWO_BY_FOUR, { { "0-15", 3, "0, 2, 4" }, { "0-15", 3, "8, 10, 12" }, { "0-15", 2, "6, 14" } } },
        { TWO_BY_FOUR, { { "0-15", 9, "" }, { "0-15", 1, "0" } } },       /* not more than there are */
        { TWO_BY_FOUR, { { "4-15", 6, "4, 6, 8, 10, 12, 14" }, { "0-3", 2, "0, 2" } } },
        { TWO_BY_FOUR, { { "0-15", 7, "2, 4, 6, 8, 10, 12, 14" }, { "1", 1, "1" } } }, /* the bound one first */
        { TWO_BY_FOUR, { { "0", 1, "0" }, { "1", 1, "" } } },             /* two halves are one core */
        { HALVES_APART, { { "0-15", 2, "0-1" }, { "0-15", 2, "2-3" }, { "0-15", 2, "4-5" }, { "0-15", 2, "6-7" } } },
        { HALVES_APART, { { "8-15", 4, "8-11" }, { "8-15", 4, "12-15" } } },
        { "core:2 pu:1", { { "0-1", 1, "0" }, { "0-1", 1, "1" }, { "0-1", 1, "" } } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct topology t;
        struct topology_wish list[4] = { { .threads = 0 } };
        char text[CORES_TEXT_BYTES];
        uint32_t count = 0;
        for (; count < 4 && cases[i].rank[count].mask != NULL; count++) {
            struct cores mask = set(cases[i].rank[count].mask);
            list[count] = (struct topology_wish){ mask, cases[i].rank[count].threads, mask };
        }
        topology_load(&t, cases[i].machine);
        topology_assign(&t, list, count);
        for (uint32_t r = 0; r < count; r++) {
            if (strcmp(cores_text(&list[r].got, text), cases[i].rank[r].got) != 0) {
                fail_msg("case %zu: rank %u got %s, expected %s", i, r, text, cases[i].rank[r].got);
            }
        }
    }
}

/* ---- threads and pages of this machine ---- */

static void note_cores(void *arg, uint64_t task, uint32_t worker)
{
    (void)worker;
    cores_mine((struct cores *)arg + task);
}

static void threads_stay_on_their_cores(void **state)
{
    (void)state;
    struct cores before, after, at[2];
    struct pool_place place = { .cores = { { 0 } } };
    struct pool *p;
    cores_mine(&before);
    for (uint32_t c = 0; c < CORES_MAX && cores_count(&place.cores) < 2; c++) {
        if (cores_has(&before, c)) {
            cores_add(&place.cores, c);
        }
    }
    uint32_t threads = cores_count(&place.cores);
    assert_ok(pool_new(&p, threads));
    assert_true(pool_settle(p, &place));
    pool_run_each(p, note_cores, at);
    for (uint32_t w = 0; w < threads; w++) {
        assert_int_equal(cores_count(&at[w]), 1);
        cores_join(&at[0], &at[w]);
    }
    assert_memory_equal(&at[0], &place.cores, sizeof(at[0])); /* no two on one */
    pool_leave(p);
    cores_mine(&after);
    assert_memory_equal(&after, &before, sizeof(after));
    assert_true(pool_settle(p, &place));
    pool_free(p);
    cores_mine(&after);
    assert_memory_equal(&after, &before, sizeof(after));
}

static void blocks_are_zero_and_there_whoever_touches_them(void **state)
{
    (void)state;
    const size_t bytes = ((size_t)70 << 20) + 5;
    for (uint32_t threads = 0; threads <= 3; threads++) {
        struct pool *p = NULL;
        void *block;
        struct pool_place place = { .nodes = 3 }; /* the system leaves out the one that is not there */
        if (threads > 0) {
            assert_ok(pool_new(&p, threads));
            assert_true(pool_settle(p, &place));
        }
        assert_ok(mem_big_alloc_by(&block, bytes, p));
        unsigned char there[(72 << 20) / 4096];
        assert_int_equal(mincore(block, (size_t)72 << 20, there), 0);
        for (size_t i = 0; i < sizeof(there); i++) {
            assert_true((there[i] & 1) != 0);
        }
        for (size_t i = 0; i < bytes; i++) {
            assert_int_equal(((const unsigned char *)block)[i], 0);
        }
        int mode = 0; /* kernels without memory nodes, and containers, may refuse */
        bool told = syscall(SYS_get_mempolicy, &mode, NULL, 0, block, MPOL_F_ADDR) == 0;
        assert_true(!told || mode == (threads > 0 ? MPOL_INTERLEAVE : MPOL_DEFAULT));
        double share = mem_huge_share(block, bytes);
        assert_true(share >= 0 && share <= 1);
        mem_big_free(block, bytes);
        pool_free(p);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(groups_limit_time_and_memory),
    cmocka_unit_test(pages_are_given_unless_the_system_says_never),
    cmocka_unit_test(cores_count_once_whatever_their_halves),
    cmocka_unit_test(cores_are_assigned_apart_and_close_together),
    cmocka_unit_test(threads_stay_on_their_cores),
    cmocka_unit_test(blocks_are_zero_and_there_whoever_touches_them),
};
TEST_MAIN(tests)
