/* Why this exists: with one stage a step is forward, backward, forward, backward; with more, each stage follows its
 * timetable and hands activations forwards, gradients backwards. Sends never block; a buffer is written again only when
 * its message has gone. The sums of gradients are on integers, so no timetable changes a bit.
 *
 * Tags: 2 x (chunk of the receiver) for activations, and one more for gradients. */
#include "train/pipeline.h"

static uint32_t tag_of(uint32_t chunk, bool gradient)
{
    return 2 * chunk + (gradient ? 1 : 0);
}

enum err pipeline_open(struct pipeline *p, const struct ranks *r, struct model *m)
{
    void *mem;
    uint32_t sets = 0;
    *p = (struct pipeline){ .ranks = r, .model = m };
    TRY(mem_alloc(&mem, r->pipe.chunks + 1, sizeof(uint32_t)));
    p->first_set = mem;
    for (uint32_t i = 0; i < r->pipe.chunks; i++) {
        sets += pipe_sets(&r->pipe, r->at.pp, i, r->micros);
        p->first_set[i + 1] = sets;
    }
    enum err err = mem_alloc(&mem, sets, sizeof(struct comm_ticket));
    p->sent = err == OK ? mem : NULL;
    if (err != OK) {
        pipeline_close(p);
    }
    return err;
}

void pipeline_close(struct pipeline *p)
{
    free(p->sent);
    free(p->first_set);
    *p = (struct pipeline){ 0 };
}

/* Virtual stage chunk * stages + stage, its neighbours, and whether it is at an end. */
struct place {
    bool first, last;
    uint32_t before, after;             /* stages */
    uint32_t chunk_before, chunk_after; /* chunks there */
};

static struct place place_of(const struct pipeline *p, uint32_t chunk)
{
    uint32_t stages = p->ranks->pipe.stages, stage = p->ranks->at.pp;
    return (struct place){
        .first = chunk == 0 && stage == 0,
        .last = chunk + 1 == p->ranks->pipe.chunks && stage + 1 == stages,
        .before = (stage + stages - 1) % stages,
        .after = (stage + 1) % stages,
        .chunk_before = stage == 0 ? chunk - 1 : chunk,
        .chunk_after = stage + 1 == stages ? chunk + 1 : chunk,
    };
}

static enum err forward(struct pipeline *p, uint32_t chunk, uint32_t set, const struct micro *b)
{
    struct place at = place_of(p, chunk);
    struct comm_ticket *ticket = &p->sent[p->first_set[chunk] + set];
    uint64_t bytes = model_boundary(p->model, b->sequences) * sizeof(float);
    struct comm *stages = p->ranks->stages;
    TRY(comm_sent(stages, ticket));
    if (!at.first && bytes > 0) {
        TRY(comm_recv(stages, at.before, tag_of(chunk, false), model_input(p->model, chunk, set), bytes));
    }
    TRY(model_forward_op(p->model, chunk, set, b));
    if (!at.last && bytes > 0) {
        TRY(comm_send(stages, at.after, tag_of(at.chunk_after, false), model_output(p->model, chunk, set), bytes,
                      ticket));
    }
    return OK;
}

static enum err backward(struct pipeline *p, uint32_t chunk, uint32_t set, const struct micro *b,
                         struct model_loss *loss)
{
    struct place at = place_of(p, chunk);
    struct comm_ticket *ticket = &p->gradient[p->turn];
    uint64_t bytes = model_boundary(p->model, b->sequences) * sizeof(float);
    struct comm *stages = p->ranks->stages;
    TRY(comm_sent(stages, ticket));
    if (!at.last && bytes > 0) {
        TRY(comm_recv(stages, at.after, tag_of(chunk, true), model_gradient(p->model), bytes));
    }
    TRY(model_backward_op(p->model, chunk, set, b, loss));
    if (!at.first && bytes > 0) {
        TRY(comm_send(stages, at.before, tag_of(at.chunk_before, true), model_gradient(p->model), bytes, ticket));
    }
    p->turn = 1 - p->turn;
    model_turn(p->model);
    return OK;
}

/* Wait for every message of this step, so that the next may write the buffers. */
static enum err settle(struct pipeline *p)
{
    for (uint32_t i = 0; i < p->first_set[p->ranks->pipe.chunks]; i++) {
        TRY(comm_sent(p->ranks->stages, &p->sent[i]));
    }
    TRY(comm_sent(p->ranks->stages, &p->gradient[0]));
    return comm_sent(p->ranks->stages, &p->gradient[1]);
}

enum err pipeline_run(struct pipeline *p, struct holdings *h, load_micro *load, void *arg, struct model_loss *loss)
{
    const struct ranks *r = p->ranks;
    uint64_t ops = pipe_ops(&r->pipe, r->micros);
    for (uint64_t i = 0; i < ops; i++) {
        struct pipe_op op = pipe_op(&r->pipe, r->at.pp, r->micros, i);
        uint32_t set = op.micro % (p->first_set[op.chunk + 1] - p->first_set[op.chunk]);
        struct micro b;
        TRY(load(arg, op.micro, &b));
        if (op.forward) {
            TRY(forward(p, op.chunk, set, &b));
        } else {
            holdings_expect(h, op.micro + 1 == r->micros);
            TRY(backward(p, op.chunk, set, &b, loss));
        }
    }
    return settle(p);
}

enum err pipeline_eval(struct pipeline *p, const struct micro *b, struct model_loss *loss)
{
    enum err err = OK;
    model_set_dropout(p->model, false);
    for (uint32_t chunk = 0; chunk < p->ranks->pipe.chunks && err == OK; chunk++) {
        err = forward(p, chunk, 0, b);
        if (err == OK && place_of(p, chunk).last) {
            err = model_eval_op(p->model, chunk, 0, b, loss, NULL);
        }
    }
    model_set_dropout(p->model, true);
    return err == OK ? settle(p) : err;
}
