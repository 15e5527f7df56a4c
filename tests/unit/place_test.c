/* What a process may use of a machine, and where its threads go: control groups of fake roots, machines of hwloc's
 * synthetic descriptions. */
#include "base/cgroup.h"
#include "base/file.h"
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
        { V2 "memory/m/memory.limit_in_bytes", "100\n" }, { V2 "memory/memory.limit_in_bytes", "9223372036854771712\n" },
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

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(groups_limit_time_and_memory),
};
TEST_MAIN(tests)
