/* Why this exists: names of folders carry the state of a save, so they are made and read in one place. */
#include "ckpt/steps.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>

#include "base/file.h"
#include "base/mem.h"

#define LATEST "latest"

static const char *const suffixes[] = { [STEP_PLAIN] = "", [STEP_OLD] = ".old", [STEP_TEMP] = ".tmp" };

bool steps_parse(const char *name, uint64_t *step, enum step_kind *kind)
{
    if (strncmp(name, "step-", 5) != 0) {
        return false;
    }
    const char *p = name + 5;
    *step = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (__builtin_mul_overflow(*step, 10, step) || __builtin_add_overflow(*step, (uint64_t)(*p - '0'), step)) {
            return false;
        }
    }
    if (p == name + 5 || (name[5] == '0' && p != name + 6)) {
        return false;
    }
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        if (strcmp(p, suffixes[i]) == 0) {
            *kind = (enum step_kind)i;
            return true;
        }
    }
    return false;
}

static int newest_first(const void *a, const void *b)
{
    const struct step_entry *x = a, *y = b;
    if (x->step != y->step) {
        return x->step > y->step ? -1 : 1;
    }
    return (int)x->kind - (int)y->kind;
}

enum err steps_list(struct step_list *out, const char *checkpoints)
{
    *out = (struct step_list){ 0 };
    DIR *dir = opendir(checkpoints);
    if (dir == NULL) {
        return FAIL(ERR_IO, "%s: cannot be listed: %s", checkpoints, strerror(errno));
    }
    enum err err = OK;
    for (struct dirent *e = readdir(dir); e != NULL && err == OK; e = readdir(dir)) {
        struct step_entry entry = { 0 };
        if (!steps_parse(e->d_name, &entry.step, &entry.kind)) {
            continue;
        }
        void *list = out->list;
        TRY_OUT(mem_grow(&list, &out->capacity, out->count + 1, sizeof(entry)));
        out->list = list;
        TRY_OUT(file_join(&entry.path, checkpoints, e->d_name));
        out->list[out->count++] = entry;
    }
    if (out->count > 0) {
        qsort(out->list, out->count, sizeof(struct step_entry), newest_first);
    }
out:
    closedir(dir);
    if (err != OK) {
        steps_release(out);
    }
    return err;
}

void steps_release(struct step_list *s)
{
    for (size_t i = 0; i < s->count; i++) {
        free(s->list[i].path);
    }
    free(s->list);
    *s = (struct step_list){ 0 };
}

enum err steps_path(char **out, const char *checkpoints, uint64_t step, enum step_kind kind)
{
    char name[64];
    snprintf(name, sizeof(name), "step-%" PRIu64 "%s", step, suffixes[kind]);
    return file_join(out, checkpoints, name);
}

enum err steps_set_latest(const char *checkpoints, uint64_t step)
{
    char text[64], *path;
    int bytes = snprintf(text, sizeof(text), "step-%" PRIu64 "\n", step);
    enum err err = file_join(&path, checkpoints, LATEST);
    if (err == OK) {
        err = file_replace(path, text, (size_t)bytes);
    }
    free(path);
    return err;
}

bool steps_get_latest(const char *checkpoints, uint64_t *step)
{
    char *path = NULL;
    struct buf text = { 0 };
    enum step_kind kind;
    enum err err = file_join(&path, checkpoints, LATEST);
    bool good = false;
    if (err == OK && file_read(path, 63, &text) == OK && text.bytes > 0 && text.data[text.bytes - 1] == '\n') {
        text.data[text.bytes - 1] = '\0';
        good = strlen(text.data) == text.bytes - 1 && steps_parse(text.data, step, &kind) && kind == STEP_PLAIN;
    }
    buf_release(&text);
    free(path);
    return good;
}
