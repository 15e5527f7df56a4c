/* Why this exists: opening a trained model for use is one sequence, whatever it is used for. */
#include "train/session.h"

#include "base/log.h"
#include "data/tokenizer.h"
#include "part/order.h"
#include "train/trainer.h"

static void layout(struct session *s, const struct model_shape *shape)
{
    model_layout_storage(s->model, &s->arena, &s->lists);
    model_layout(s->model, &s->arena);
    if (shape->mode == MODEL_EVAL) {
        s->input = arena_take(&s->arena, mem_mul(shape->sequences, shape->seq_length), sizeof(int32_t));
        s->target = arena_take(&s->arena, mem_mul(shape->sequences, shape->seq_length), sizeof(int32_t));
    }
}

static enum err read_weights(struct session *s)
{
    void *mem;
    const struct registry *r = model_registry(s->model);
    TRY(mem_alloc(&mem, r->bucket_count, sizeof(struct kept)));
    struct kept *kept = mem;
    for (uint32_t b = 0; b < r->bucket_count; b++) {
        kept[b] = (struct kept){ s->lists.p[b], { 0, r->buckets[b].stored } };
    }
    enum err err = state_read_weights(s->ckpt, r, kept);
    free(kept);
    return err;
}

static enum err open_model(struct session *s, const struct session_options *o,
                            const struct arithmetic *arithmetic)
{
    const struct model_conf *c = &s->conf;
    const struct model_shape shape = {
        .mode = o->mode,
        .sequences = o->sequences,
        .seq_length = o->seq_length > 0 ? o->seq_length : c->positions,
        .grain = (uint32_t)arithmetic->grain,
        .grad_unit = o->seq_length > 0 ? o->seq_length : c->positions,
        .bf16 = arithmetic->bf16,
    };
    if (c->learned_positions && shape.seq_length > c->positions) {
        return FAIL(ERR_USAGE, "%llu positions were asked for, the model has learned %llu | use at most %llu",
                    (unsigned long long)shape.seq_length, (unsigned long long)c->positions,
                    (unsigned long long)c->positions);
    }
    const struct model_place place = model_place_single(c);
    void *mem;
    TRY(model_new(&s->model, c, &shape, &place, s->kern));
    TRY(mem_alloc(&mem, model_registry(s->model)->bucket_count, sizeof(float *)));
    s->lists.p = mem;
    layout(s, &shape);
    TRY(arena_back(&s->arena));
    layout(s, &shape);
    TRY(model_ready(s->model));
    return read_weights(s);
}

enum err session_open(struct session *s, const char *path, const struct session_options *o)
{
    enum isa isa;
    struct arithmetic arithmetic;
    enum err err;
    *s = (struct session){ 0 };
    TRY_OUT(ckpt_open(&s->ckpt, path));
    TRY_OUT(state_read_conf(s->ckpt, &s->conf, &arithmetic));
    if (arithmetic.grain == 0) {
        arithmetic.grain = order_default_grain(s->conf.kv_heads, s->conf.ffn, order_pad_vocab(s->conf.vocab));
    }
    TRY_OUT(kern_choose_isa(&isa));
    TRY_OUT(pool_new(&s->pool, (uint32_t)o->threads));
    TRY_OUT(kern_new(&s->kern, isa, s->pool));
    TRY_OUT(open_model(s, o, &arithmetic));
    return OK;
out:
    session_close(s);
    return err;
}

void session_close(struct session *s)
{
    model_free(s->model);
    free(s->lists.p);
    arena_release(&s->arena);
    kern_free(s->kern);
    pool_free(s->pool);
    ckpt_close(s->ckpt);
    *s = (struct session){ 0 };
}

static enum err compare_tokenizer(const char *folder, const char *recorded, const char *prefix)
{
    struct tokenizer *t = NULL;
    char digest[33];
    if (tokenizer_load(&t, folder) != OK) { /* a model from elsewhere: its tokenizer may be of another kind */
        log_warning("the data cannot be compared with the model's tokenizer: %s", err_message());
        return OK;
    }
    tokenizer_digest(t, digest);
    tokenizer_free(t);
    if (strcmp(digest, recorded) != 0) {
        return FAIL(ERR_USAGE,
                    "%s was built with another tokenizer (%s) than %s has (%s) | build the data with --tokenizer %s; "
                    "the files of a tokenizer count byte for byte", prefix, recorded, folder, digest, folder);
    }
    return OK;
}

enum err session_check_tokenizer(const struct session *s, const struct store *data, const char *prefix)
{
    struct store_info info;
    const char *folder = ckpt_folder(s->ckpt);
    bool found;
    TRY(store_info(data, &info));
    TRY(tokenizer_is_in(folder, &found));
    return found && info.tokenizer[0] != '\0' ? compare_tokenizer(folder, info.tokenizer, prefix) : OK;
}
