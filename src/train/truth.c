/* Why this exists: replicas that drift apart are the fault nobody sees: each rank goes on with its own weights and the
 * loss looks plausible. Every step compares what is held more than once, by hashes of whole boxes, and names the tensor
 * where it first differs.
 *
 * Sums of hash_element are integers over boxes, so the state hash is the same for every layout. */
#include "train/truth.h"

#include "base/hash.h"
#include "train/optimizer.h"

enum err truth_open(struct truth *t, const struct holdings *h)
{
    void *mem;
    const struct ranks *r = h->ranks;
    uint32_t widest = comm_size(r->data) > comm_size(r->tp) ? comm_size(r->data) : comm_size(r->tp);
    widest = widest > comm_size(r->embed) ? widest : comm_size(r->embed);
    *t = (struct truth){ 0 };
    enum err err;
    TRY_OUT(mem_alloc(&mem, h->reg->shard_count, sizeof(uint64_t)));
    t->box = mem;
    TRY_OUT(mem_alloc(&mem, h->reg->shard_count, sizeof(uint64_t)));
    t->whole = mem;
    TRY_OUT(mem_alloc(&mem, h->reg->count, sizeof(uint64_t)));
    t->sums = mem;
    TRY_OUT(mem_alloc(&mem, h->reg->shard_count, widest * sizeof(uint64_t)));
    t->gathered = mem;
    return OK;
out:
    truth_close(t);
    return err;
}

void truth_close(struct truth *t)
{
    free(t->box);
    free(t->whole);
    free(t->sums);
    free(t->gathered);
    *t = (struct truth){ 0 };
}

/* ---- at the start ---- */

/* What each rank states about itself, and what it is called when it differs. */
struct statement {
    uint64_t program, registry, step, fresh;
};

static uint64_t registry_hash(const struct registry *reg)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < reg->count; i++) {
        const struct param *p = &reg->list[i];
        const uint64_t facts[] = { p->shape[0], p->shape[1], p->init, p->decay };
        hash = hash64(p->name, strlen(p->name), hash);
        hash = hash64(facts, sizeof(facts), hash);
    }
    return hash;
}

enum err truth_start(const struct ranks *r, const struct registry *reg, uint64_t step, bool fresh)
{
    void *mem;
    uint32_t size = comm_size(r->all);
    const struct statement mine = { hash64(INVAR_VERSION, sizeof(INVAR_VERSION), 0), registry_hash(reg), step,
                                    fresh };
    TRY(mem_alloc(&mem, size, sizeof(struct statement)));
    struct statement *all = mem;
    enum err err = comm_gather(r->all, &mine, sizeof(mine), all);
    for (uint32_t i = 1; i < size && err == OK; i++) {
        const char *what = all[i].program != all[0].program     ? "another version of the program"
                           : all[i].registry != all[0].registry ? "another list of parameters"
                           : all[i].step != all[0].step         ? "another step to start from"
                           : all[i].fresh > all[0].fresh        ? "no weights to start from, other"
                           : all[i].fresh < all[0].fresh        ? "weights to start from, other"
                                                                : NULL;
        if (what != NULL) {
            err = FAIL(ERR_USAGE, "rank %u has %s than rank 0 | start all ranks with the same program and files", i,
                       what);
        }
    }
    free(all);
    return err;
}

/* ---- every step ---- */

/* A group whose ranks hold shards in common: which ones, and who member m is. */
struct holders {
    struct comm *group;
    bool (*common)(const struct shard *s);
    struct coord (*member)(const struct ranks *r, uint32_t m);
};

static bool every_shard(const struct shard *s)
{
    (void)s;
    return true;
}

static bool replicated_shard(const struct shard *s)
{
    return s->replicated;
}

static struct coord data_member(const struct ranks *r, uint32_t m)
{
    return (struct coord){ r->at.pp, m / r->layout.cp, m % r->layout.cp, r->at.tp };
}

static struct coord tp_member(const struct ranks *r, uint32_t m)
{
    return (struct coord){ r->at.pp, r->at.dp, r->at.cp, m };
}

/* "0, 2, 5": ranks of the world whose hash of shard i equals (or not) that of the group's first. */
static void list_ranks(const struct truth *t, const struct holdings *h, const struct holders *who, uint32_t i,
                       bool equal, char out[96])
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t m = 0; m < comm_size(who->group) && used < 80; m++) {
        bool same = t->gathered[(uint64_t)m * h->reg->shard_count + i] == t->gathered[i];
        if (same == equal) {
            const struct coord at = who->member(h->ranks, m);
            used += (size_t)snprintf(out + used, 96 - used, "%s%u", used > 0 ? ", " : "",
                                     layout_rank(&h->ranks->layout, &at));
        }
    }
}

/* Compare hash[shard] over a group. Collective over it. */
static enum err compare(const struct truth *t, const struct holdings *h, const struct holders *who,
                        const uint64_t *hash, uint64_t step)
{
    uint32_t size = comm_size(who->group);
    uint64_t shards = h->reg->shard_count;
    if (size == 1) {
        return OK;
    }
    TRY(comm_gather(who->group, hash, shards * sizeof(uint64_t), t->gathered));
    for (uint32_t i = 0; i < shards; i++) {
        for (uint32_t m = 1; m < size; m++) {
            if (who->common(&h->reg->shards[i]) && t->gathered[m * shards + i] != t->gathered[i]) {
                char same[96], other[96];
                list_ranks(t, h, who, i, true, same);
                list_ranks(t, h, who, i, false, other);
                return FAIL(ERR_RUN,
                            "step %llu: %s is not the same on all ranks that hold it: ranks %s have other bits than "
                            "ranks %s | a fault of the machine or a bug: `invar replay` repeats the step",
                            (unsigned long long)step, h->reg->list[h->reg->shards[i].param].name, other, same);
            }
        }
    }
    return OK;
}

/* The tied embedding, which first and last stage list at other places: one number each. */
static enum err compare_embedding(const struct truth *t, const struct holdings *h, uint64_t step)
{
    const struct shard *s = registry_find(h->reg, 0, SLOT_EMBED);
    if (h->reg->embed_bucket == REGISTRY_NONE) {
        return OK;
    }
    uint64_t pair[2], mine = t->box[s - h->reg->shards];
    TRY(comm_gather(h->ranks->embed, &mine, sizeof(mine), pair));
    if (pair[0] != pair[1]) {
        return FAIL(ERR_RUN, "step %llu: %s of the first pipeline stage and its copy on the last one are not the same",
                    (unsigned long long)step, h->reg->list[s->param].name);
    }
    return OK;
}

/* Hashes of whole boxes: the optimizer's where it updated all of them. */
static void hash_whole(struct truth *t, const struct holdings *h)
{
    for (uint32_t i = 0; i < h->reg->shard_count; i++) {
        const struct shard *s = &h->reg->shards[i];
        const struct box_map map = registry_map(h->reg, s);
        t->whole[i] = h->stage == 0 ? t->box[i]
                                    : kern_hash(h->kern, s->rows * s->cols, h->of[s->bucket].p + s->offset, &map, 0);
    }
}

enum err truth_state(struct truth *t, const struct holdings *h, uint64_t step, uint64_t *state_hash)
{
    const struct ranks *r = h->ranks;
    bool all_here = h->stage < 3;
    if (all_here) {
        hash_whole(t, h);
        TRY(compare(t, h, &(struct holders){ r->data, every_shard, data_member }, t->whole, step));
    }
    TRY(compare(t, h, &(struct holders){ r->tp, replicated_shard, tp_member }, t->box, step));
    TRY(compare_embedding(t, h, step));

    memset(t->sums, 0, h->reg->count * sizeof(uint64_t));
    for (uint32_t i = 0; i < h->reg->shard_count; i++) {
        const struct shard *s = &h->reg->shards[i];
        if (optimizer_counts(h, s) && (h->stage > 0 || comm_rank(r->data) == 0)) {
            t->sums[s->param] += t->box[i];
        }
    }
    TRY(comm_sum_i64(r->all, (int64_t *)t->sums, h->reg->count));
    *state_hash = 0;
    for (uint32_t i = 0; i < h->reg->count; i++) {
        *state_hash += hash_tensor(h->reg->list[i].name, t->sums[i]);
    }
    return OK;
}
