/* Why this exists: a machine's number of cores says nothing about a process: launchers bind it to some of them,
 * containers take cores or time away, and other ranks of the job share what is left. */
#include "base/cores.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/banned.h"
#include "base/cgroup.h"

_Static_assert(sizeof(cpu_set_t) == sizeof(struct cores), "a mask of the system fits");

void cores_mine(struct cores *out)
{
    cpu_set_t set;
    *out = (struct cores){ { 0 } };
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        for (uint32_t c = 0; c < CORES_MAX; c++) {
            if (CPU_ISSET(c, &set)) {
                cores_add(out, c);
            }
        }
        return;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* a machine of more cores than a mask has */
    for (uint32_t c = 0; c < CORES_MAX && (long)c < (online > 0 ? online : 1); c++) {
        cores_add(out, c);
    }
}

uint32_t cores_usable(void)
{
    struct cores mine;
    cores_mine(&mine);
    uint32_t count = cores_count(&mine), quota = cgroup_cores("");
    count = count < quota ? count : quota;
    return count < 1 ? 1 : count;
}

bool cores_bind(const struct cores *c)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t core = 0; core < CORES_MAX; core++) {
        if (cores_has(c, core)) {
            CPU_SET(core, &set);
        }
    }
    return sched_setaffinity(0, sizeof(set), &set) == 0;
}

void cores_add(struct cores *c, uint32_t core)
{
    c->word[core / 64] |= 1ull << (core % 64);
}

bool cores_has(const struct cores *c, uint32_t core)
{
    return (c->word[core / 64] >> (core % 64) & 1) != 0;
}

void cores_join(struct cores *c, const struct cores *more)
{
    for (uint32_t i = 0; i < CORES_MAX / 64; i++) {
        c->word[i] |= more->word[i];
    }
}

uint32_t cores_count(const struct cores *c)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CORES_MAX / 64; i++) {
        count += (uint32_t)__builtin_popcountll(c->word[i]);
    }
    return count;
}

uint32_t cores_share(const struct cores *list, uint32_t count, uint32_t i)
{
    double share = 0;
    for (uint32_t core = 0; core < CORES_MAX; core++) {
        uint32_t users = 0;
        for (uint32_t p = 0; p < count && cores_has(&list[i], core); p++) {
            users += cores_has(&list[p], core);
        }
        share += users > 0 ? 1.0 / users : 0;
    }
    return share < 1 ? 1 : (uint32_t)(share + 1e-6); /* three thirds are a whole */
}

const char *cores_text(const struct cores *c, char out[CORES_TEXT_BYTES])
{
    int used = 0;
    out[0] = '\0';
    for (uint32_t lo = 0, hi; lo < CORES_MAX; lo = hi + 1) {
        hi = lo;
        if (!cores_has(c, lo)) {
            continue;
        }
        while (hi + 1 < CORES_MAX && cores_has(c, hi + 1)) {
            hi++;
        }
        if (used > CORES_TEXT_BYTES - 20) {
            snprintf(out + used, (size_t)(CORES_TEXT_BYTES - used), ", ..");
            break;
        }
        used += snprintf(out + used, (size_t)(CORES_TEXT_BYTES - used), lo == hi ? "%s%u" : "%s%u-%u",
                         used > 0 ? ", " : "", lo, hi);
    }
    return out;
}
