/* Why this exists: one place that turns a call on a group into a signature, publishes it for the other ranks, the
 * watchdog and the flight record, and words what differs when ranks make different calls.
 *
 * Invariant: a signature is read by others while its rank goes on, so it is stored as atomic words between changes of
 * `calls`, `messages` and `state`, and a reader takes it only when none of the three moved meanwhile. */
#include "comm/comm_int.h"

#include <stdarg.h>

#include "base/hash.h"

struct kind_name {
    const char *name;
    bool message;
};
static const struct kind_name kind_names[KIND_COUNT] = {
    [KIND_BARRIER] = { "barrier", false },
    [KIND_AGREE] = { "agree", false },
    [KIND_BCAST] = { "bcast", false },
    [KIND_GATHER] = { "gather", false },
    [KIND_ALL_REDUCE] = { "all-reduce", false },
    [KIND_REDUCE_SCATTER] = { "reduce-scatter", false },
    [KIND_ALL_GATHER] = { "all-gather", false },
    [KIND_TREE_SUM] = { "tree-sum", false },
    [KIND_WINDOW] = { "window", false },
    [KIND_SPLIT] = { "split", false },
    [KIND_SEND] = { "send", true },
    [KIND_SENT] = { "sent", true },
    [KIND_RECV] = { "recv", true },
};
static const char *const type_names[TYPE_COUNT] = { "", " byte", " i64", " f32" };
static const char *const op_names[OP_COUNT] = { "", " sum", " max" };

void sig_text(const struct comm_sig *sig, char out[COMM_SIG_TEXT])
{
    BUG_IF(sig->kind >= KIND_COUNT || sig->type >= TYPE_COUNT || sig->op >= OP_COUNT);
    const struct kind_name *kind = &kind_names[sig->kind];
    char size[32] = "", other[48] = "";
    if (sig->type != TYPE_NONE) {
        snprintf(size, sizeof(size), "%s x %llu", type_names[sig->type], (unsigned long long)sig->count);
    }
    if (kind->message) {
        snprintf(other, sizeof(other), " %s %u tag %u", sig->kind == KIND_RECV ? "from" : "to", sig->root, sig->tag);
    } else if (sig->kind == KIND_BCAST || sig->root != 0) {
        snprintf(other, sizeof(other), " root %u", sig->root);
    }
    snprintf(out, COMM_SIG_TEXT, "#%llu %s%s%s%s (%s:%u) of group %s", (unsigned long long)sig->number, kind->name,
             op_names[sig->op], size, other, sig->file, sig->line, sig->name);
}

bool sig_equal(const struct comm_sig *a, const struct comm_sig *b)
{
    return memcmp(a, b, COMM_SIG_EQUAL_BYTES) == 0;
}

bool call_slot_read(const struct comm_call_slot *slot, struct comm_sig *out)
{
    for (int tries = 0; tries < 100; tries++) {
        uint64_t calls = atomic_load_explicit(&slot->calls, memory_order_acquire);
        uint64_t messages = atomic_load_explicit(&slot->messages, memory_order_acquire);
        uint32_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
        if (state == CALL_NONE) {
            return false;
        }
        uint64_t words[COMM_SIG_WORDS];
        for (size_t i = 0; i < COMM_SIG_WORDS; i++) {
            words[i] = atomic_load_explicit(&slot->sig[state - 1][i], memory_order_acquire);
        }
        if (calls == atomic_load_explicit(&slot->calls, memory_order_acquire) &&
            messages == atomic_load_explicit(&slot->messages, memory_order_acquire) &&
            state == atomic_load_explicit(&slot->state, memory_order_acquire)) {
            memcpy(out, words, sizeof(*out));
            return true;
        }
    }
    return false; /* it makes call after call: it is in none of them for long */
}

static void publish(struct comm *c, const struct comm_sig *sig)
{
    struct comm_call_slot *slot = c->own;
    BUG_IF(atomic_load_explicit(&slot->state, memory_order_relaxed) != CALL_NONE); /* two threads in one group */
    uint32_t state = CALL_MESSAGE;
    if (kind_names[sig->kind].message) {
        atomic_store_explicit(&slot->messages, sig->number, memory_order_relaxed);
    } else {
        state = sig->number % 2 == 0 ? CALL_EVEN : CALL_ODD;
        atomic_store_explicit(&slot->calls, sig->number, memory_order_relaxed);
    }
    uint64_t words[COMM_SIG_WORDS];
    memcpy(words, sig, sizeof(words));
    for (size_t i = 0; i < COMM_SIG_WORDS; i++) {
        atomic_store_explicit(&slot->sig[state - 1][i], words[i], memory_order_release);
    }
    atomic_store_explicit(&slot->state, state, memory_order_release);
}

enum err call_begin(struct comm *c, const struct comm_sig *what, struct comm_site site)
{
    TRY(node_failure(c->world));
    if (c->size == 1) {
        return OK;
    }
    struct comm_sig *sig = &c->sig;
    *sig = *what;
    bool message = kind_names[what->kind].message;
    sig->number = message ? ++c->messages : ++c->calls;
    sig->group = c->id;
    const char *slash = strrchr(site.file, '/');
    snprintf(sig->file, sizeof(sig->file), "%s", slash != NULL ? slash + 1 : site.file);
    snprintf(sig->name, sizeof(sig->name), "%s", c->name);
    sig->line = (uint32_t)site.line;
    sig->place = hash64(sig->file, strlen(sig->file), sig->line);
    c->fresh = !message;
    if (atomic_load_explicit(&c->world->agreed, memory_order_relaxed) != 0) { /* the job went on */
        atomic_store(&c->world->agreed, 0);
    }
    const struct comm_watch_ops *watch = atomic_load_explicit(&c->world->watch, memory_order_acquire);
    if (watch != NULL) {
        c->record = watch->begin(c, sig);
    }
    c->recorded = watch != NULL;
    publish(c, sig);
    c->begin = profile_now(c->world->profile);
    return OK;
}

uint64_t error_hash(enum err err)
{
    return hash64(err_message(), strlen(err_message()), err) | 1;
}

enum err call_end(struct comm *c, enum err err)
{
    if (c->size == 1) {
        return err;
    }
    atomic_store_explicit(&c->own->state, CALL_NONE, memory_order_release);
    if (c->begin != 0) {
        char row[PROFILE_TEXT];
        snprintf(row, sizeof(row), "group %.16s", c->name);
        profile_add(c->world->profile, c->begin, row, kind_names[c->sig.kind].name,
                    (const uint64_t[3]){ c->sig.count, c->size, 0 });
        c->begin = 0;
    }
    if (c->recorded) {
        atomic_load_explicit(&c->world->watch, memory_order_acquire)->end(c, c->record, err);
    }
    return err;
}

/* ---- what differs, in words ---- */

struct text {
    char data[ERR_MESSAGE_BYTES - 64]; /* room for what a message gets in front */
    size_t used;
};

static void PRINTF_LIKE(2, 3) text_add(struct text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(t->data + t->used, sizeof(t->data) - t->used, fmt, args);
    va_end(args);
    size_t room = sizeof(t->data) - t->used - 1;
    t->used += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room;
}

/* "rank 0", "ranks 1-3, 5": the world ranks of the members from `first` on that make the same call as it. */
static void add_ranks(struct text *t, const struct comm *c, const struct comm_sig *sigs, uint32_t first)
{
    uint32_t last = first, count = 0;
    for (uint32_t i = first; i < c->size; i++) {
        count += sig_equal(&sigs[i], &sigs[first]);
    }
    text_add(t, "%s ", count > 1 ? "ranks" : "rank");
    for (uint32_t i = first; i < c->size; i = last + 1) {
        last = i;
        if (!sig_equal(&sigs[i], &sigs[first])) {
            continue;
        }
        while (last + 1 < c->size && sig_equal(&sigs[last + 1], &sigs[first]) &&
               c->member[last + 1] == c->member[last] + 1) {
            last++;
        }
        text_add(t, last > i ? "%s%u-%u" : "%s%u", i > first ? ", " : "", c->member[i], c->member[last]);
    }
    text_add(t, count > 1 ? " are at " : " is at ");
}

enum err call_mismatch(struct comm *c, const struct comm_sig *sigs)
{
    struct text t = { .used = 0 };
    bool shapes = false; /* differ */
    for (uint32_t i = 1; i < c->size; i++) {
        shapes |= sigs[i].shape != sigs[0].shape && sigs[i].kind == sigs[0].kind;
    }
    for (uint32_t i = 0; i < c->size; i++) {
        bool told = false;
        for (uint32_t j = 0; j < i && !told; j++) {
            told = sig_equal(&sigs[i], &sigs[j]);
        }
        if (told) {
            continue;
        }
        char call[COMM_SIG_TEXT];
        sig_text(&sigs[i], call);
        text_add(&t, "%s", i > 0 ? "; " : "");
        add_ranks(&t, c, sigs, i);
        text_add(&t, "%s", call);
        if (shapes) {
            text_add(&t, " with bounds or sizes of hash %04llx", (unsigned long long)(sigs[i].shape & 0xffff));
        }
    }
    text_add(&t, " | all ranks of a group make the same calls in the same order: compare these places");
    return node_fail_too(c->world, COMM_NOBODY, ERR_PEER, t.data);
}
