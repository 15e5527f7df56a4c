/* Why this exists: in a container the machine's cores and memory are not ours; who takes them is slowed down or killed.
 *
 * /proc/self/cgroup has a line "N:CONTROLLERS:PATH" for each hierarchy; N is 0 and CONTROLLERS empty for version 2.
 * Inside a container PATH may be one of the host that does not exist here, and the container's own group the root of
 * what is mounted: so every group on the way counts, and one that is not there has no limit. */
#include "base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/banned.h"

#define PATH_BYTES 4096

/* The path of this process's group where `controller` is one of the hierarchy's ("" for version 2). */
static bool own_path(const char *root, const char *controller, char out[PATH_BYTES])
{
    char name[PATH_BYTES], line[PATH_BYTES], given[PATH_BYTES], wanted[64];
    bool found = false;
    snprintf(wanted, sizeof(wanted), ",%s,", controller);
    snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "r");
    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        char *list = strchr(line, ':'), *path = list != NULL ? strchr(list + 1, ':') : NULL;
        if (path == NULL) {
            continue;
        }
        line[strcspn(line, "\n")] = '\0';
        *path++ = '\0';
        snprintf(given, sizeof(given), ",%s,", list + 1);
        found = strstr(given, wanted) != NULL;
        snprintf(out, PATH_BYTES, "%s", strcmp(path, "/") == 0 ? "" : path);
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

/* A group: its folder, and the version of its interface. */
struct group {
    char folder[2 * PATH_BYTES];
    bool first_version;
};

/* Up to two numbers of a file of the group, the first after the word `key` ("" for the first of the file); how many. */
static int read_numbers(const struct group *g, const char *file, const char *key, unsigned long long out[2])
{
    char name[2 * PATH_BYTES + 64], line[256];
    int got = 0;
    snprintf(name, sizeof(name), "%s/%s", g->folder, file);
    FILE *f = fopen(name, "r");
    while (f != NULL && got < 1 && fgets(line, sizeof(line), f) != NULL) {
        size_t length = strlen(key);
        if (strncmp(line, key, length) == 0 && (length == 0 || line[length] == ' ')) {
            got = sscanf(line + length, "%llu %llu", &out[0], &out[1]);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return got;
}

static uint64_t number(const struct group *g, const char *file, const char *key, uint64_t fallback)
{
    unsigned long long value[2];
    return read_numbers(g, file, key, value) >= 1 ? value[0] : fallback;
}

typedef uint64_t limit_fn(const struct group *g);

static uint64_t cores_of(const struct group *g)
{
    unsigned long long n[2];
    if (g->first_version) { /* a quota of -1 is none; it reads as 2^64 - 1 */
        n[0] = number(g, "cpu.cfs_quota_us", "", UINT64_MAX);
        n[1] = number(g, "cpu.cfs_period_us", "", 0);
    } else if (read_numbers(g, "cpu.max", "", n) != 2) { /* "max PERIOD" */
        return UINT64_MAX;
    }
    bool limited = n[1] > 0 && n[0] <= INT64_MAX;
    return !limited ? UINT64_MAX : n[0] <= n[1] ? 1 : (n[0] + n[1] - 1) / n[1];
}

static uint64_t memory_of(const struct group *g)
{
    bool old = g->first_version;
    uint64_t limit = number(g, old ? "memory.limit_in_bytes" : "memory.max", "", UINT64_MAX);
    uint64_t high = old ? UINT64_MAX : number(g, "memory.high", "", UINT64_MAX); /* above it everything crawls */
    uint64_t used = number(g, old ? "memory.usage_in_bytes" : "memory.current", "", 0);
    uint64_t cache = number(g, "memory.stat", old ? "total_active_file" : "active_file", 0) +
                     number(g, "memory.stat", old ? "total_inactive_file" : "inactive_file", 0);
    limit = high < limit ? high : limit;
    used -= cache < used ? cache : used;
    return limit == UINT64_MAX ? limit : limit > used ? limit - used : 0;
}

/* The least of what `limit_of` says for the groups from `path` up to the root of root/sys/fs/MOUNT. */
static uint64_t along(const char *root, const char *mount, const char *path, bool first_version, limit_fn *limit_of)
{
    uint64_t least = UINT64_MAX;
    struct group g = { .first_version = first_version };
    for (size_t length = strlen(path) + 1; length-- > 0;) {
        if (length == 0 || path[length] == '/' || path[length] == '\0') {
            snprintf(g.folder, sizeof(g.folder), "%s/sys/fs/%s%.*s", root, mount, (int)length, path);
            uint64_t limit = limit_of(&g);
            least = limit < least ? limit : least;
        }
    }
    return least;
}

static uint64_t tightest(const char *root, const char *controller, limit_fn *limit_of)
{
    char path[PATH_BYTES] = "", mount[64];
    if (own_path(root, controller, path)) {
        snprintf(mount, sizeof(mount), "cgroup/%s", controller);
        return along(root, mount, path, true, limit_of);
    }
    if (!own_path(root, "", path)) {
        path[0] = '\0';
    }
    uint64_t alone = along(root, "cgroup", path, false, limit_of);
    uint64_t beside = along(root, "cgroup/unified", path, false, limit_of); /* where version 1 has other controllers */
    return alone < beside ? alone : beside;
}

uint32_t cgroup_cores(const char *root)
{
    uint64_t cores = tightest(root, "cpu", cores_of);
    return cores < UINT32_MAX ? (uint32_t)cores : UINT32_MAX;
}

uint64_t cgroup_memory(const char *root)
{
    return tightest(root, "memory", memory_of);
}
