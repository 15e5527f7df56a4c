/* Why this exists: kernels that are fast one by one may still wait for memory, for each other or for a thread; only
 * the step itself says what training costs. It is the trainer's own step, with everything that belongs to it. */
#include "bench/whole.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/build.h"
#include "train/trainer.h"

#define SAMPLES_MOST 64u /* of random tokens: what comes after takes as long */

/* Make the peak of this process what it holds now, where the system lets it; returns the peak from then on. */
static uint64_t forget_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t wrote = write(fd, "5", 1);
        (void)wrote; /* refused: the peak is that of the whole process, which is more */
        close(fd);
    }
    return mem_peak_bytes();
}

static enum err random_tokens(struct conf *c, const char *folder)
{
    char *prefix;
    uint64_t samples = c->global_batch_size < SAMPLES_MOST ? c->global_batch_size : SAMPLES_MOST;
    TRY(file_join(&prefix, folder, "tokens"));
    free(c->data_path);
    c->data_path = prefix;
    return data_random(prefix, samples * c->seq_length + 1, c->model.vocab, c->seed);
}

/* Open a trainer on random tokens of this rank's own. Collective. */
static enum err open_trainer(struct trainer *t, struct conf *c, struct comm_world *world)
{
    char folder[256];
    enum err err = file_temporary_folder(folder, sizeof(folder), "invar-bench");
    bool made = err == OK;
    err = made ? random_tokens(c, folder) : err;
    err = comm_agree(comm_all(world), err);
    if (err == OK) {
        err = trainer_open(t, c, &(struct trainer_use){ .world = world });
    }
    if (made && file_remove_tree(folder) != OK && err == OK) {
        log_warning("%s", err_message());
    }
    return err;
}

/* Whether all ranks have done enough: the one that took longest decides. Collective. */
static enum err enough(struct comm *all, double started, double seconds, bool *out)
{
    float took = (float)(log_seconds() - started);
    TRY(comm_max_f32(all, &took, 1));
    *out = took >= (float)seconds;
    return OK;
}

static enum err time_steps(struct whole *w, struct trainer *t, uint32_t least, double seconds)
{
    struct step_report r;
    struct comm *all = t->ranks.all;
    bool done = false;
    double started = log_seconds(), sum = 0;
    TRY(trainer_step(t, &r));
    w->best_s = 1e30;
    while (w->steps < least || !done) {
        TRY(trainer_step(t, &r));
        w->best_s = r.seconds < w->best_s ? r.seconds : w->best_s;
        sum += r.seconds;
        w->mean_s = sum / ++w->steps;
        TRY(enough(all, started, seconds, &done));
    }
    return OK;
}

enum err whole_measure(struct whole *w, struct conf *c, struct comm_world *world, uint32_t least, double seconds)
{
    struct trainer t;
    *w = (struct whole){ .tokens = c->global_batch_size * c->seq_length };
    uint64_t before = forget_peak();
    TRY(open_trainer(&t, c, world));
    enum err err = time_steps(w, &t, least, seconds);
    w->planned_bytes = before + trainer_planned_bytes(&t);
    w->peak_bytes = mem_peak_bytes();
    if (err != OK) {
        comm_fail(world, err); /* before the trainer waits for its thread, which may wait for others */
    }
    trainer_close(&t);
    return err;
}
