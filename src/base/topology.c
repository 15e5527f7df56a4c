/* Why this exists: two threads on the two halves of one core, or two ranks on the same cores while others are idle,
 * make a job half as fast and say nothing; and a system that moves threads about moves them away from their memory.
 * What hwloc finds is copied to a plain table, so that who takes what is a pure function of tables and masks. */
#include "base/topology.h"

#include <hwloc.h>

static void plain(struct topology *t)
{
    struct cores mine;
    cores_mine(&mine);
    for (uint32_t c = 0; c < CORES_MAX; c++) {
        if (cores_has(&mine, c)) {
            t->slot[t->count++] = (struct topology_slot){ (uint16_t)c, (uint16_t)c, 0 };
        }
    }
}

static void read_slots(struct topology *t, hwloc_topology_t from)
{
    hwloc_obj_t pu = NULL, last = NULL;
    uint16_t cores = 0;
    while (t->count < CORES_MAX && (pu = hwloc_get_next_obj_by_type(from, HWLOC_OBJ_PU, pu)) != NULL) {
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(from, HWLOC_OBJ_CORE, pu);
        core = core != NULL ? core : pu;
        int node = hwloc_bitmap_first(pu->nodeset); /* of several the first: where memory is by default */
        if (pu->os_index < CORES_MAX) {
            cores = (uint16_t)(cores + (core != last));
            last = core;
            t->slot[t->count++] = (struct topology_slot){ .number = (uint16_t)pu->os_index,
                                                          .core = (uint16_t)(cores - 1),
                                                          .node = (uint16_t)(node > 0 ? node : 0) };
        }
    }
}

void topology_load(struct topology *t, const char *synthetic)
{
    hwloc_topology_t from;
    t->count = 0;
    if (hwloc_topology_init(&from) == 0) {
        /* Everything but caches: without the levels that nodes belong to, they would belong to the whole machine. */
        bool good = (synthetic == NULL || hwloc_topology_set_synthetic(from, synthetic) == 0) &&
                    hwloc_topology_set_cache_types_filter(from, HWLOC_TYPE_FILTER_KEEP_NONE) == 0 &&
                    hwloc_topology_load(from) == 0;
        if (good) {
            read_slots(t, from);
        }
        hwloc_topology_destroy(from);
    }
    if (t->count == 0) {
        plain(t);
    }
}

void topology_cores(const struct topology *t, const struct cores *mask, struct cores *out)
{
    *out = (struct cores){ { 0 } };
    for (uint32_t lo = 0, hi; lo < t->count; lo = hi) {
        uint32_t lowest = CORES_MAX;
        bool touched = false;
        for (hi = lo; hi < t->count && t->slot[hi].core == t->slot[lo].core; hi++) {
            lowest = t->slot[hi].number < lowest ? t->slot[hi].number : lowest;
            touched = touched || cores_has(mask, t->slot[hi].number);
        }
        if (touched) {
            cores_add(out, lowest);
        }
    }
}

uint64_t topology_nodes(const struct topology *t, const struct cores *set)
{
    uint64_t nodes = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (cores_has(set, t->slot[i].number) && t->slot[i].node < 64) {
            nodes |= 1ull << t->slot[i].node;
        }
    }
    return nodes;
}

/* ---- who takes what ---- */

#define ANY_NODE UINT32_MAX

/* Take what `w` wants of `node`, all or nothing: a hardware thread of each of so many cores that are not `taken`. */
static bool take(const struct topology *t, struct topology_wish *w, uint32_t node, struct cores *taken)
{
    struct cores now = *taken, got = { { 0 } };
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->count && count < w->threads; i++) {
        const struct topology_slot *s = &t->slot[i];
        bool fits = cores_has(&w->mask, s->number) && (node == ANY_NODE || node == s->node);
        if (fits && !cores_has(&now, s->core)) {
            cores_add(&got, s->number);
            cores_add(&now, s->core);
            count++;
        }
    }
    if (count < w->threads) {
        return false;
    }
    w->got = got;
    *taken = now;
    return true;
}

static void serve(const struct topology *t, struct topology_wish *w, struct cores *taken)
{
    for (uint32_t i = 0; i < t->count; i++) { /* a node once: where its first slot is */
        bool first = i == 0 || t->slot[i].node != t->slot[i - 1].node;
        if (first && take(t, w, t->slot[i].node, taken)) {
            return;
        }
    }
    take(t, w, ANY_NODE, taken);
}

void topology_assign(const struct topology *t, struct topology_wish *list, uint32_t count)
{
    struct cores taken = { { 0 } }; /* by their place in the table */
    for (uint32_t i = 0; i < count; i++) {
        list[i].got = (struct cores){ { 0 } };
    }
    for (uint32_t size = 1, next; size <= CORES_MAX; size = next) {
        next = CORES_MAX + 1;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t own = cores_count(&list[i].mask);
            next = own > size && own < next ? own : next;
            if (own == size) {
                serve(t, &list[i], &taken);
            }
        }
    }
}
