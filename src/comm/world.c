/* Why this exists: how worlds and groups come to be and go: slots, members, shared memory, engines.
 *
 * Invariants: a group has an engine that fits where its ranks are: solo for one rank, shm on one node, the transport's
 * far engine else. Making a group ends with an agreement of the parent, so either all ranks have it or none. */
#include "comm/comm_int.h"
#include "comm/recorder.h"

#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"

/* What a rank lays on the table in a split. */
struct split_card {
    uint32_t color;
    uint32_t rank; /* in the world */
    uint32_t slot; /* call slot for the new group; COMM_GROUPS_MAX: none left */
    uint32_t pad;
};

struct comm *comm_all(struct comm_world *w)
{
    return w->all;
}

uint32_t comm_node_size(const struct comm_world *w)
{
    return w->node_size;
}

uint32_t comm_node(const struct comm_world *w)
{
    return w->node;
}

uint32_t comm_nodes(const struct comm_world *w)
{
    return w->nodes;
}

uint64_t comm_memory_bytes(const struct comm_world *w)
{
    return atomic_load(&w->memory_bytes);
}

static void end_phase(struct comm_world *w)
{
    if (w->phase_begin != 0) {
        profile_add(w->profile, w->phase_begin, "phase", comm_phase_name((enum comm_phase)w->phase),
                    (const uint64_t[3]){ w->layer, 0, 0 });
        w->phase_begin = 0;
    }
}

void comm_phase(struct comm_world *w, enum comm_phase phase, uint64_t step, uint32_t layer)
{
    atomic_store_explicit(&w->slot->phase, (uint32_t)phase, memory_order_relaxed);
    atomic_store_explicit(&w->slot->layer, layer, memory_order_relaxed);
    atomic_store_explicit(&w->slot->step, step, memory_order_relaxed);
    const struct comm_watch_ops *watch = atomic_load_explicit(&w->watch, memory_order_acquire);
    if (watch != NULL) {
        watch->phase(w, phase, step, layer);
    }
    end_phase(w);
    w->phase_begin = profile_now(w->profile);
    w->phase = (uint32_t)phase;
    w->layer = layer;
}

void comm_set_profile(struct comm_world *w, struct profile *profile)
{
    end_phase(w);
    w->profile = profile;
}

enum err comm_fail(struct comm_world *w, enum err err)
{
    node_fail(w, w->rank, err, err_message());
    return err;
}

void comm_close(struct comm_world *w, enum err err)
{
    if (w == NULL) {
        return;
    }
    if (err != OK && atomic_load(&w->agreed) != error_hash(err)) {
        node_fail(w, w->rank, err, err_message());
    }
    const struct comm_watch_ops *watch = atomic_load_explicit(&w->watch, memory_order_acquire);
    if (watch != NULL) {
        watch->close(w, err);
    }
    atomic_store_explicit(&w->slot->presence, RANK_LEFT, memory_order_release);
    w->transport->close(w, err);
}

/* ---- shared regions ---- */

enum err region_share(struct comm *via, uint32_t maker, uint64_t bytes, struct comm_region *out)
{
    struct comm_world *w = via->world;
    *out = (struct comm_region){ .bytes = bytes };
    void *mem;
    enum err err = mem_alloc(&mem, via->size, sizeof(struct comm_handle));
    if (err != OK) {
        return comm_fail(w, err); /* the others do not wait for this rank's card */
    }
    struct comm_handle *handles = mem;
    bool makes = via->rank == maker && bytes > 0;
    enum err made = makes ? w->transport->region_new(w, bytes, out) : OK;
    TRY_OUT(via->engine->gather(via, &out->handle, sizeof(out->handle), handles));
    if (!makes && bytes > 0 && handles[maker].word[0] != 0) { /* 0: the maker tells why below */
        out->handle = handles[maker];
        made = w->transport->region_map(w, out);
    }
    TRY_OUT(via->engine->agree(via, made));
    if (makes) {
        w->transport->region_found(w, out);
    }
out:
    if (err != OK && out->base != NULL) {
        w->transport->region_free(w, out);
        *out = (struct comm_region){ .base = NULL };
    }
    free(handles);
    return err;
}

/* ---- groups ---- */

static void comm_free(struct comm *c)
{
    if (c->opened) {
        c->engine->close(c);
    }
    if (c->region.bytes > 0) {
        c->world->transport->region_free(c->world, &c->region);
    }
    free(c->member);
    free(c->peer);
    free(c->window);
    free(c);
}

static enum err comm_alloc(struct comm **out, struct comm_world *w, uint32_t size)
{
    *out = NULL;
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct comm)));
    struct comm *c = mem;
    c->world = w;
    c->size = size;
    void *member = NULL, *peer = NULL, *window = NULL;
    enum err err = mem_alloc(&member, size, sizeof(*c->member));
    err = err != OK ? err : mem_alloc(&peer, size, sizeof(struct comm_call_slot *));
    err = err != OK ? err : mem_alloc(&window, size, sizeof(*c->window));
    c->member = member;
    c->peer = peer;
    c->window = window;
    if (err != OK) {
        comm_free(c);
        return err;
    }
    *out = c;
    return OK;
}

static bool on_one_node(const struct comm *c)
{
    for (uint32_t i = 0; i < c->size; i++) {
        if (c->world->node_of[c->member[i]] != c->world->node) {
            return false;
        }
    }
    return true;
}

static void use_slot(struct comm *c, uint32_t member, uint32_t slot)
{
    const struct comm_world *w = c->world;
    uint32_t rank = c->member[member];
    c->peer[member] = w->node_of[rank] == w->node ? &w->ctl->slot[w->node_rank_of[rank]].call[slot] : NULL;
}

/* Members, ids and engine are known: open it and let the watchdog see it. */
static enum err comm_start(struct comm *c, struct comm *parent)
{
    struct comm_world *w = c->world;
    c->own = c->peer[c->rank];
    if (c->engine->open != NULL) {
        TRY(c->engine->open(c, parent));
    }
    c->opened = true;
    atomic_store(&c->own->rank, c->rank);
    atomic_store(&c->own->size, c->size);
    atomic_store(&c->own->rank, c->rank);
    atomic_store(&c->own->size, c->size);
    atomic_store(&c->own->group, c->id);
    struct comm *head = atomic_load(&w->groups);
    do {
        atomic_store(&c->next, head);
    } while (!atomic_compare_exchange_weak(&w->groups, &head, c));
    return OK;
}

/* The new group as the cards tell it, without memory in common yet. */
static enum err comm_deal(struct comm **out, struct comm *parent, const struct split_card *cards, uint32_t *leader)
{
    uint32_t color = cards[parent->rank].color, size = 0;
    for (uint32_t i = 0; i < parent->size; i++) {
        size += cards[i].color == color;
        if (cards[i].slot == COMM_GROUPS_MAX) {
            *out = NULL;
            return FAIL(ERR_RESOURCE, "groups: rank %u is in %u of them, the most there can be", cards[i].rank,
                        COMM_GROUPS_MAX);
        }
    }
    TRY(comm_alloc(out, parent->world, size));
    struct comm *c = *out;
    for (uint32_t i = 0, n = 0; i < parent->size; i++) {
        if (cards[i].color != color) {
            continue;
        }
        *leader = n == 0 ? i : *leader;
        c->rank = i == parent->rank ? n : c->rank;
        c->member[n] = cards[i].rank;
        use_slot(c, n++, cards[i].slot);
    }
    uint64_t id = hash_mix(hash_mix(parent->id + parent->splits) + color);
    c->id = id != 0 ? id : 1;
    c->engine = size == 1 ? &solo_engine : on_one_node(c) ? &shm_engine : parent->world->transport->far;
    return OK;
}

static enum err split(struct comm *parent, uint32_t color, const char *name, struct comm **out)
{
    struct comm_world *w = parent->world;
    void *mem;
    enum err err = mem_alloc(&mem, parent->size, sizeof(struct split_card));
    if (err != OK) {
        return comm_fail(w, err);
    }
    struct split_card *cards = mem;
    struct comm *c = NULL;
    struct split_card mine = { .color = color, .rank = w->rank };
    uint32_t used = atomic_load(&w->group_count);
    while (used < COMM_GROUPS_MAX && !atomic_compare_exchange_weak(&w->group_count, &used, used + 1)) {
    }
    mine.slot = used;
    parent->splits++;
    TRY_OUT(parent->engine->gather(parent, &mine, sizeof(mine), cards));
    uint32_t leader = parent->rank;
    TRY_OUT(parent->engine->agree(parent, comm_deal(&c, parent, cards, &leader)));
    c->name = name;
    TRY_OUT(region_share(parent, leader, c->engine == &shm_engine ? shm_group_bytes(c->size) : 0, &c->region));
    atomic_fetch_add(&w->memory_bytes, c->region.bytes / c->size);
    TRY_OUT(parent->engine->agree(parent, comm_start(c, parent)));
    *out = c;
out:
    if (err != OK && c != NULL && !c->opened) { /* an opened one is the world's to free */
        comm_free(c);
    }
    free(cards);
    return err;
}

enum err comm_split_at(struct comm *parent, uint32_t color, const char *name, struct comm **out,
                       struct comm_site site)
{
    *out = NULL;
    TRY(call_begin(parent, &(struct comm_sig){ .kind = KIND_SPLIT }, site));
    return call_end(parent, split(parent, color, name, out));
}

/* ---- worlds ---- */

static uint64_t control_bytes(uint32_t node_size)
{
    return sizeof(struct comm_node) + node_size * sizeof(struct comm_rank_slot);
}

uint64_t world_region_bytes(uint32_t node_size, uint32_t nodes)
{
    return control_bytes(node_size) + (nodes == 1 && node_size > 1 ? shm_group_bytes(node_size) : 0);
}

static enum err open_all(struct comm_world *w)
{
    TRY(comm_alloc(&w->all, w, w->size));
    struct comm *c = w->all;
    c->name = "world";
    c->id = 1;
    c->rank = w->rank;
    for (uint32_t i = 0; i < w->size; i++) {
        c->member[i] = i;
        use_slot(c, i, 0);
    }
    atomic_store(&w->group_count, 1);
    if (w->nodes == 1) {
        c->region.base = (unsigned char *)w->ctl + control_bytes(w->node_size); /* not freed: a part of the world's */
    }
    c->engine = w->size == 1 ? &solo_engine : w->nodes == 1 ? &shm_engine : w->transport->far;
    return comm_start(c, NULL);
}

enum err world_new(struct comm_world **out, const struct comm_world *def)
{
    *out = NULL;
    void *mem;
    TRY(mem_alloc(&mem, 1, sizeof(struct comm_world)));
    struct comm_world *w = mem;
    memcpy(w, def, sizeof(*w));
    w->slot = &w->ctl->slot[w->node_rank];
    w->spins = node_spins(w->node_size);
    atomic_store(&w->slot->pid, (int32_t)getpid());
    atomic_store(&w->slot->presence, RANK_IN);
    atomic_store(&w->memory_bytes, world_region_bytes(w->node_size, w->nodes) / w->node_size);
    enum err err = open_all(w);
    if (err != OK) {
        world_free(w);
        return err;
    }
    *out = w;
    return OK;
}

void world_free(struct comm_world *w)
{
    if (w == NULL) {
        return;
    }
    for (struct comm *c = atomic_load(&w->groups), *next; c != NULL; c = next) {
        next = atomic_load(&c->next);
        w->all = c == w->all ? NULL : w->all;
        comm_free(c);
    }
    if (w->all != NULL) { /* never opened */
        comm_free(w->all);
    }
    free(w);
}
