/* Why this exists: ranks that read another file of settings, or other data under the same name because a path is not
 * shared, would train a model that nobody asked for, or wait for each other for ever, and no loss would show it. */
#include "train/same.h"

#include "base/hash.h"
#include "base/mem.h"

#define STRETCHES 64u  /* of the data that are looked at, from its first to its last token */
#define STRETCH_TOKENS 4096u
#define TEXT_BYTES 400u

/* ---- configuration ---- */

/* The text of `key` on rank `from`, everywhere. */
static enum err tell(struct comm *all, const struct conf *c, uint32_t from, size_t key, char out[TEXT_BYTES])
{
    struct buf text = { 0 };
    enum err mine = comm_rank(all) == from ? conf_describe(c, key, &text) : OK;
    snprintf(out, TEXT_BYTES, "%s", text.data != NULL ? text.data : "");
    buf_release(&text);
    TRY(comm_agree(all, mine));
    return comm_bcast(all, from, out, TEXT_BYTES);
}

static enum err differs(struct comm *all, const struct conf *c, uint32_t rank, size_t key)
{
    char here[TEXT_BYTES], there[TEXT_BYTES];
    TRY(tell(all, c, 0, key, here));
    TRY(tell(all, c, rank, key, there));
    return FAIL(ERR_USAGE, "rank %u has %s, rank 0 has %s | start all ranks with the same configuration", rank, there,
                here);
}

static enum err same_conf(struct comm *all, const struct conf *c)
{
    uint64_t mine[CONF_KEYS_MAX];
    void *mem;
    uint32_t size = comm_size(all), rank = 0;
    size_t key = CONF_KEYS_MAX;
    TRY(comm_agree(all, conf_hashes(c, mine)));
    TRY(mem_alloc(&mem, size, sizeof(mine)));
    uint64_t(*of)[CONF_KEYS_MAX] = mem;
    enum err err = comm_gather(all, mine, sizeof(mine), of);
    while (err == OK && key == CONF_KEYS_MAX && ++rank < size) {
        key = conf_hashes_differ(of[0], of[rank]);
    }
    free(mem);
    TRY(err);
    return key < CONF_KEYS_MAX ? differs(all, c, rank, key) : OK;
}

/* ---- data ---- */

struct data_card {
    uint64_t tokens, sequences, documents, some;
    char content[40]; /* recorded when it was built, or "" */
};

/* A hash of stretches at even distances. */
static enum err hash_some(const struct store *s, uint64_t *hash)
{
    int32_t token[STRETCH_TOKENS];
    uint64_t tokens = store_tokens(s), count = tokens < STRETCH_TOKENS ? tokens : STRETCH_TOKENS;
    uint64_t last = tokens - count, step = last / (STRETCHES - 1);
    *hash = 0;
    for (uint64_t i = 0; i < STRETCHES && count > 0; i++) {
        TRY(store_read(s, i + 1 < STRETCHES ? i * step : last, count, 0, token));
        *hash = hash64(token, count * sizeof(token[0]), *hash);
    }
    return OK;
}

static enum err describe_data(const struct store *s, struct data_card *out)
{
    struct store_info info;
    *out = (struct data_card){ store_tokens(s), store_sequences(s), store_documents(s), 0, "" };
    TRY(store_info(s, &info));
    snprintf(out->content, sizeof(out->content), "%s", info.content);
    return hash_some(s, &out->some);
}

static enum err compare_data(const char *key, const struct data_card *all, uint32_t rank)
{
    const struct data_card *there = &all[rank], *here = &all[0];
    bool recorded = there->content[0] != '\0' && here->content[0] != '\0';
    const char *hint = "give every rank the same files: is the path shared by all nodes?";
    if (there->tokens != here->tokens) {
        return FAIL(ERR_USAGE, "%s: rank %u has %llu tokens, rank 0 has %llu | %s", key, rank,
                    (unsigned long long)there->tokens, (unsigned long long)here->tokens, hint);
    }
    bool tokens = there->some != here->some || (recorded && strcmp(there->content, here->content) != 0);
    if (tokens || there->sequences != here->sequences || there->documents != here->documents) {
        return FAIL(ERR_USAGE, "%s: rank %u has as many tokens as rank 0, but not the same %s | %s", key, rank,
                    tokens ? "ones" : "documents", hint);
    }
    return OK;
}

static enum err same_data(struct comm *all, const char *key, const struct store *s)
{
    struct data_card mine;
    void *mem;
    uint32_t size = comm_size(all);
    TRY(comm_agree(all, describe_data(s, &mine)));
    TRY(mem_alloc(&mem, size, sizeof(mine)));
    enum err err = comm_gather(all, &mine, sizeof(mine), mem);
    for (uint32_t r = 1; r < size && err == OK; r++) {
        err = compare_data(key, mem, r);
    }
    free(mem);
    return err;
}

enum err same_everywhere(struct comm *all, const struct conf *c, const struct store *data, const struct store *eval)
{
    if (comm_size(all) == 1) {
        return OK;
    }
    TRY(same_conf(all, c));
    TRY(same_data(all, "data_path", data));
    return eval != NULL ? same_data(all, "eval_data_path", eval) : OK;
}
