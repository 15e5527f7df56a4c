/* Why this exists: a model of many gigabytes comes in many files with an index, and an index is outside data: it names
 * files. Invariant: a name of the index reaches the system only when it is a plain name, and then relative to the
 * folder that was opened, without following a link; so nothing outside the folder is ever opened.
 *
 * After st_set_open_index: every tensor of every shard is listed once in weight_map, with the shard that has it. */
#include "ckpt/st_set.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "ckpt/kind.h"

#define INDEX_HINT " | the index and its shards must be of one model: fetch the folder again"

static int by_name(const void *a, const void *b)
{
    const struct st_place *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

/* All tensors of all files in one list. */
static enum err list_places(struct st_set *s)
{
    size_t count = 0;
    void *mem;
    for (size_t i = 0; i < s->files_count; i++) {
        count += s->files[i].count;
        s->bytes += s->files[i].bytes;
    }
    TRY(mem_alloc(&mem, count, sizeof(struct st_place)));
    s->list = mem;
    for (size_t i = 0; i < s->files_count; i++) {
        for (size_t t = 0; t < s->files[i].count; t++) {
            s->list[s->count++] = (struct st_place){ &s->files[i], &s->files[i].tensors[t] };
        }
    }
    if (count > 0) {
        qsort(s->list, count, sizeof(s->list[0]), by_name);
    }
    return OK;
}

static enum err alloc_files(struct st_set *s, size_t count)
{
    void *mem;
    TRY(mem_alloc(&mem, count, sizeof(struct st_file)));
    s->files = mem;
    for (size_t i = 0; i < count; i++) {
        s->files[i].fd = -1;
    }
    s->files_count = count;
    return OK;
}

enum err st_set_open(struct st_set *s, const char *path, bool links)
{
    enum err err;
    *s = (struct st_set){ 0 };
    TRY_OUT(mem_copy_string(&s->path, path, strlen(path)));
    TRY_OUT(alloc_files(s, 1));
    TRY_OUT(st_open(&s->files[0], path, links));
    TRY_OUT(list_places(s));
out:
    if (err != OK) {
        st_set_close(s);
    }
    return err;
}

void st_set_close(struct st_set *s)
{
    for (size_t i = 0; i < s->files_count; i++) {
        st_close(&s->files[i]);
    }
    free(s->files);
    free(s->list);
    free(s->path);
    *s = (struct st_set){ 0 };
}

const struct st_place *st_set_find(const struct st_set *s, const char *name)
{
    size_t lo = 0, hi = s->count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, s->list[mid].tensor->name);
        if (c == 0) {
            return &s->list[mid];
        }
        if (c < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

/* ---- the index ---- */

struct index {
    struct st_set *set;
    const char *folder, *path;
    json_t *root, *map;
    const char **shards; /* names, ascending, each once */
    size_t shards_count;
    struct kind lacking, twice, elsewhere, unlisted;
};

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

/* A value of weight_map: a plain name of a safetensors file. */
static enum err check_shard(const struct index *x, const char *tensor, const json_t *value)
{
    const char *name = json_string_value(value);
    if (name == NULL) {
        return FAIL(ERR_DATA, "%s: weight_map: %.200s: the name of a file was expected" INDEX_HINT, x->path, tensor);
    }
    if (strlen(name) != json_string_length(value) || !manifest_name_ok(name)) {
        return FAIL(ERR_DATA, "%s: weight_map: %.200s is in \"%.200s\", a plain file name was expected | nothing "
                    "outside the model's folder is read, and no folder in it", x->path, tensor, name);
    }
    if (!ends_with(name, ".safetensors")) {
        return FAIL(ERR_DATA, "%s: weight_map: %.200s is in \"%.200s\", a file .safetensors was expected" INDEX_HINT,
                    x->path, tensor, name);
    }
    return OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum err list_shards(struct index *x)
{
    void *mem;
    size_t count = 0, kept = 0;
    const char *key;
    json_t *value;
    TRY(mem_alloc(&mem, json_object_size(x->map), sizeof(char *)));
    x->shards = mem;
    json_object_foreach(x->map, key, value) {
        TRY(check_shard(x, key, value));
        x->shards[count++] = json_string_value(value);
    }
    qsort(x->shards, count, sizeof(x->shards[0]), by_text);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || strcmp(x->shards[kept - 1], x->shards[i]) != 0) {
            x->shards[kept++] = x->shards[i];
        }
    }
    x->shards_count = kept;
    if (kept > INDEX_SHARDS_MAX) {
        return FAIL(ERR_DATA, "%s: weight_map names %zu files, at most %u are read", x->path, kept, INDEX_SHARDS_MAX);
    }
    return OK;
}

static enum err open_shards(const struct index *x)
{
    int folder = open(x->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        return FAIL(ERR_IO, "%s: cannot be opened: %s", x->folder, strerror(errno));
    }
    enum err err;
    TRY_OUT(alloc_files(x->set, x->shards_count));
    for (size_t i = 0; i < x->shards_count; i++) {
        char *path;
        TRY_OUT(file_join(&path, x->folder, x->shards[i]));
        err = st_open_at(&x->set->files[i], folder, x->shards[i], path);
        free(path);
        if (err != OK) {
            goto out;
        }
    }
out:
    close(folder);
    return err;
}

static const char *plain_name(const struct st_file *f)
{
    const char *slash = strrchr(f->path, '/');
    return slash != NULL ? slash + 1 : f->path;
}

static enum err compare_places(struct index *x)
{
    const struct st_set *s = x->set;
    for (size_t i = 0; i < s->count; i++) {
        const struct st_place *p = &s->list[i];
        const char *name = p->tensor->name, *listed = json_string_value(json_object_get(x->map, name));
        if (i > 0 && strcmp(s->list[i - 1].tensor->name, name) == 0) {
            TRY(kind_note(&x->twice, "%.120s (%.80s and %.80s)", name, plain_name(s->list[i - 1].file),
                          plain_name(p->file)));
        } else if (listed == NULL) {
            TRY(kind_note(&x->unlisted, "%.120s (%.80s)", name, plain_name(p->file)));
        }
    }
    const char *key;
    json_t *value;
    json_object_foreach(x->map, key, value) {
        const struct st_place *p = st_set_find(s, key);
        const char *file = json_string_value(value);
        if (p == NULL) {
            TRY(kind_note(&x->lacking, "%.120s (%.80s)", key, file));
        } else if (strcmp(plain_name(p->file), file) != 0) {
            TRY(kind_note(&x->elsewhere, "%.120s (%.80s, not %.80s)", key, plain_name(p->file), file));
        }
    }
    return OK;
}

static enum err report(const struct index *x)
{
    struct buf text = { 0 };
    enum err err;
    TRY_OUT(kind_print(&x->lacking, "listed, but not in the shard", &text));
    TRY_OUT(kind_print(&x->unlisted, "in a shard, but not listed", &text));
    TRY_OUT(kind_print(&x->twice, "in two shards", &text));
    TRY_OUT(kind_print(&x->elsewhere, "in another shard than the index says", &text));
    if (text.bytes > 0) {
        err = FAIL(ERR_DATA, "%s: %zu tensors in %zu shards do not agree with it%.1600s" INDEX_HINT, x->path,
                   x->set->count, x->shards_count, text.data);
    }
out:
    buf_release(&text);
    return err;
}

/* Older writers put a real number there. */
static enum err check_total(const struct index *x)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < x->set->count; i++) {
        sum += x->set->list[i].tensor->end - x->set->list[i].tensor->begin;
    }
    const json_t *metadata = json_object_get(x->root, "metadata"), *total = json_object_get(metadata, "total_size");
    if (metadata != NULL && !json_is_object(metadata)) {
        return FAIL(ERR_DATA, "%s: metadata: an object was expected" INDEX_HINT, x->path);
    }
    if (total == NULL) {
        return OK;
    }
    double value = json_number_value(total);
    if (!json_is_number(total) || !(value >= 0) || value > 0x1p62) {
        return FAIL(ERR_DATA, "%s: metadata.total_size: a number of bytes was expected" INDEX_HINT, x->path);
    }
    bool same = json_is_integer(total) ? (uint64_t)json_integer_value(total) == sum : value == (double)sum;
    if (!same) {
        return FAIL(ERR_DATA, "%s: metadata.total_size is %.0f, the tensors have %" PRIu64 " bytes" INDEX_HINT
                    ", or correct total_size", x->path, value, sum);
    }
    return OK;
}

static enum err open_index(struct index *x)
{
    TRY(json_read_file(&x->root, x->path, INDEX_BYTES_MAX));
    x->map = json_object_get(x->root, "weight_map");
    if (!json_is_object(x->map) || json_object_size(x->map) == 0) {
        return FAIL(ERR_DATA, "%s: weight_map: an object of tensors and the files they are in was expected" INDEX_HINT,
                    x->path);
    }
    TRY(list_shards(x));
    TRY(open_shards(x));
    TRY(list_places(x->set));
    TRY(compare_places(x));
    TRY(report(x));
    return check_total(x);
}

enum err st_set_open_index(struct st_set *s, const char *folder)
{
    *s = (struct st_set){ 0 };
    TRY(file_join(&s->path, folder, INDEX_NAME));
    struct index x = { .set = s, .folder = folder, .path = s->path };
    enum err err = open_index(&x);
    kind_release(&x.lacking);
    kind_release(&x.twice);
    kind_release(&x.elsewhere);
    kind_release(&x.unlisted);
    free(x.shards);
    json_decref(x.root);
    if (err != OK) {
        st_set_close(s);
    }
    return err;
}

enum err st_set_open_model(struct st_set *s, const char *folder)
{
    *s = (struct st_set){ 0 };
    char *single = NULL, *index = NULL;
    enum err err;
    TRY_OUT(file_join(&single, folder, MODEL_NAME));
    TRY_OUT(file_join(&index, folder, INDEX_NAME));
    bool has_index = file_exists(index);
    if (has_index && file_exists(single)) {
        err = FAIL(ERR_DATA, "%s: both " MODEL_NAME " and " INDEX_NAME " are there, which of them is the model is not "
                   "certain | remove one", folder);
        goto out;
    }
    TRY_OUT(has_index ? st_set_open_index(s, folder) : st_set_open(s, single, true));
out:
    free(single);
    free(index);
    return err;
}
