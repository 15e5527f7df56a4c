/* Why this exists: tools of others find a model by file names, an index and an order that Hugging Face chose; and a
 * model that is larger than memory must pass through. Places are computed before the first value: the header stands in
 * front of the data, so nothing is ever patched.
 *
 * Invariants: order[] lists the tensors as they are written; list[i] is tensor order[i]; the tensors of one shard are
 * neighbours in it. `at` and `done` say how far the writing is; the file of shard_of[at] is open while 0 < done or a
 * tensor before in the same shard was written. */
#include "ckpt/export.h"

#include <dirent.h>
#include <inttypes.h>

#include "base/f16.h"
#include "base/file.h"
#include "base/mem.h"
#include "ckpt/st_set.h"

#define BLOCK_ELEMENTS ((size_t)1 << 16) /* narrowed at once: stays in the cache */

struct export {
    char *folder, *temp;
    struct st_tensor *list; /* in the order of writing; begin and end within the shard */
    size_t *order;          /* numbers in the plan */
    uint32_t *shard_of;     /* by place in `list` */
    size_t count, shards;
    uint64_t bytes;
    size_t at;     /* tensor that is being written */
    uint64_t done; /* elements of it */
    struct file_out out; /* of the shard that is being written; fd -1: none */
    uint16_t *narrow;
    bool made, finished;
};

/* ---- values of flags ---- */

const struct st_dtype *export_dtype(const char *text)
{
    static const char *const names[][2] = { { "float32", "F32" }, { "bfloat16", "BF16" }, { "float16", "F16" } };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i][0]) == 0 || strcmp(text, names[i][1]) == 0) {
            return st_dtype_find(names[i][1]);
        }
    }
    return NULL;
}

enum err export_size(const char *key, const char *text, uint64_t *bytes)
{
    static const struct { const char *unit; uint64_t bytes; } units[] = {
        { "", 1 }, { "B", 1 }, { "KB", 1000 }, { "MB", 1000000 }, { "GB", 1000000000 }, { "TB", 1000000000000 },
        { "KiB", 1ull << 10 }, { "MiB", 1ull << 20 }, { "GiB", 1ull << 30 }, { "TiB", 1ull << 40 },
    };
    const char *end = text;
    uint64_t value = 0;
    bool good = true;
    for (; *end >= '0' && *end <= '9'; end++) {
        good = good && !__builtin_mul_overflow(value, 10, &value) &&
               !__builtin_add_overflow(value, (uint64_t)(*end - '0'), &value);
    }
    for (size_t i = 0; good && end > text && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(end, units[i].unit) == 0 && !__builtin_mul_overflow(value, units[i].bytes, bytes) && *bytes > 0) {
            return OK;
        }
    }
    return FAIL(ERR_USAGE, "%s: \"%.60s\", a size was expected | write digits and B, KB, MB, GB, TB or KiB, MiB, GiB, "
                "TiB: 5GB", key, text);
}

/* ---- places ---- */

static enum err check_tensor(const struct st_tensor *t)
{
    uint64_t elements = 1, bytes;
    size_t length = strlen(t->name);
    BUG_IF(t->dtype == NULL || !t->dtype->floats || t->rank > ST_RANK_MAX);
    if (length == 0 || length > ST_NAME_BYTES_MAX || strstr(t->name, "../") != NULL) {
        return FAIL(ERR_DATA, "\"%.200s\": not a name that a safetensors file can have", t->name);
    }
    for (uint32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] > ST_DIM_MAX || __builtin_mul_overflow(elements, t->shape[d], &elements)) {
            return FAIL(ERR_DATA, "%.200s: its shape has more elements than 64 bits can count", t->name);
        }
    }
    if (__builtin_mul_overflow(elements, t->dtype->bits / 8, &bytes) || bytes > (uint64_t)1 << 60) {
        return FAIL(ERR_DATA, "%.200s: %" PRIu64 " elements are more than a file can hold", t->name, elements);
    }
    return OK;
}

static int wide_then_name(const void *a, const void *b)
{
    const struct st_tensor *const *x = a, *const *y = b;
    if ((*x)->dtype->bits != (*y)->dtype->bits) {
        return (*x)->dtype->bits > (*y)->dtype->bits ? -1 : 1;
    }
    return strcmp((*x)->name, (*y)->name);
}

static int only_name(const void *a, const void *b)
{
    const struct st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static uint64_t tensor_bytes(const struct st_tensor *t)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < t->rank; d++) {
        elements *= t->shape[d];
    }
    return elements * (t->dtype->bits / 8);
}

static enum err check_names(const struct st_tensor **sorted, size_t count)
{
    if (count > 0) {
        qsort(sorted, count, sizeof(sorted[0]), only_name);
    }
    for (size_t i = 1; i < count; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            return FAIL(ERR_DATA, "%.200s: two tensors of one name", sorted[i]->name);
        }
    }
    return OK;
}

/* Shard `number`: the tensors [first, end) of the plan, in the order of writing. */
static void lay_out_shard(struct export *e, const struct export_plan *plan, const struct st_tensor **some, size_t first,
                          size_t end)
{
    uint64_t at = 0;
    for (size_t i = first; i < end; i++) {
        some[i] = &plan->tensors[i];
    }
    qsort(some + first, end - first, sizeof(some[0]), wide_then_name);
    for (size_t i = first; i < end; i++) {
        struct st_tensor *t = &e->list[i];
        *t = *some[i];
        e->order[i] = (size_t)(some[i] - plan->tensors);
        e->shard_of[i] = (uint32_t)e->shards;
        t->begin = at;
        t->end = at + tensor_bytes(t);
        t->elements = (t->end - t->begin) / (t->dtype->bits / 8);
        at = t->end;
    }
    e->bytes += at;
    e->shards++;
}

/* As Hugging Face divides: a new file when the next tensor would make this one too large. */
static enum err lay_out(struct export *e, const struct export_plan *plan, const struct st_tensor **some)
{
    uint64_t total = 0, size = 0;
    for (size_t i = 0; i < plan->count; i++) {
        TRY(check_tensor(&plan->tensors[i]));
        total += tensor_bytes(&plan->tensors[i]);
        if (total > (uint64_t)1 << 60) {
            return FAIL(ERR_DATA, "%s: the tensors have more bytes than files can hold", plan->folder);
        }
        some[i] = &plan->tensors[i];
    }
    TRY(check_names(some, plan->count));
    size_t first = 0;
    for (size_t i = 0; i < plan->count; i++) {
        uint64_t bytes = tensor_bytes(&plan->tensors[i]);
        if (plan->shard_bytes > 0 && i > first && size + bytes > plan->shard_bytes) {
            lay_out_shard(e, plan, some, first, i);
            first = i;
            size = 0;
        }
        size += bytes;
    }
    lay_out_shard(e, plan, some, first, plan->count);
    return OK;
}

static enum err alloc_lists(struct export *e, size_t count, void **some)
{
    void *mem;
    e->count = count;
    TRY(mem_alloc(&mem, count, sizeof(struct st_tensor)));
    e->list = mem;
    TRY(mem_alloc(&mem, count, sizeof(size_t)));
    e->order = mem;
    TRY(mem_alloc(&mem, count, sizeof(uint32_t)));
    e->shard_of = mem;
    TRY(mem_alloc(&mem, BLOCK_ELEMENTS, sizeof(uint16_t)));
    e->narrow = mem;
    return mem_alloc(some, count, sizeof(struct st_tensor *));
}

/* ---- folders ---- */

static bool is_empty_folder(const char *path)
{
    size_t entries = 0;
    DIR *dir = opendir(path);
    for (struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        entries++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return dir != NULL && entries == 2; /* . and .. */
}

static enum err make_folder(struct export *e, const char *folder)
{
    struct buf temp = { 0 };
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    TRY(mem_copy_string(&e->folder, folder, length));
    if (file_exists(e->folder) && !is_empty_folder(e->folder)) {
        return FAIL(ERR_USAGE, "%s: exists already, nothing there is replaced | choose a new folder, or move this one",
                    e->folder);
    }
    TRY(buf_printf(&temp, "%s.tmp", e->folder));
    e->temp = temp.data;
    if (file_exists(e->temp) && !is_empty_folder(e->temp)) {
        return FAIL(ERR_USAGE, "%s: exists already: left over by an export that was stopped, or somebody else's | "
                    "remove it, or choose another folder", e->temp);
    }
    TRY(file_make_folder(e->temp));
    e->made = true;
    return file_check_space(e->temp, e->bytes + 65536 + 512 * (uint64_t)e->count, "this model");
}

enum err export_open(struct export **out, const struct export_plan *plan)
{
    void *mem, *some = NULL;
    *out = NULL;
    TRY(mem_alloc(&mem, 1, sizeof(struct export)));
    struct export *e = mem;
    e->out.fd = -1;
    enum err err;
    TRY_OUT(alloc_lists(e, plan->count, &some));
    TRY_OUT(lay_out(e, plan, some));
    TRY_OUT(make_folder(e, plan->folder));
    *out = e;
out:
    free(some);
    if (err != OK) {
        export_close(e);
    }
    return err;
}

/* ---- values ---- */

bool export_next(const struct export *e, size_t *number)
{
    size_t at = e->at;
    while (at < e->count && e->list[at].elements == 0) { /* nothing is to be added to it */
        at++;
    }
    if (at == e->count) {
        return false;
    }
    *number = e->order[at];
    return true;
}

static void shard_name(const struct export *e, uint32_t shard, char out[64])
{
    if (e->shards == 1) {
        snprintf(out, 64, "%s", MODEL_NAME);
    } else {
        snprintf(out, 64, "model-%05u-of-%05zu.safetensors", shard + 1, e->shards);
    }
}

/* Open the file of the shard that begins at list[first] and write its header. */
static enum err begin_shard(struct export *e, size_t first)
{
    char name[64], *path = NULL;
    struct buf header = { 0 };
    size_t end = first;
    uint32_t shard = e->count > 0 ? e->shard_of[first] : 0;
    while (end < e->count && e->shard_of[end] == shard) {
        end++;
    }
    shard_name(e, shard, name);
    enum err err;
    TRY_OUT(file_join(&path, e->temp, name));
    TRY_OUT(st_header_text(e->list + first, end - first, &header));
    TRY_OUT(file_out_open(&e->out, path));
    uint64_t length = header.bytes;
    file_out_write(&e->out, &length, sizeof(length));
    file_out_write(&e->out, header.data, header.bytes);
out:
    free(path);
    buf_release(&header);
    return err;
}

/* Before a tensor: its file is open. */
static enum err reach(struct export *e, size_t at)
{
    bool first = at == 0 || e->shard_of[at] != e->shard_of[at - 1];
    if (!first || e->out.fd >= 0) {
        return OK;
    }
    return begin_shard(e, at);
}

/* After a tensor: the last of a shard closes its file. */
static enum err leave(struct export *e)
{
    size_t at = e->at++;
    e->done = 0;
    bool last = e->at == e->count || e->shard_of[e->at] != e->shard_of[at];
    return last ? file_out_close(&e->out) : OK;
}

/* Tensors without elements need no values. */
static enum err pass_empty(struct export *e)
{
    while (e->at < e->count && e->list[e->at].elements == 0) {
        TRY(reach(e, e->at));
        TRY(leave(e));
    }
    return OK;
}

static enum err fail_range(const struct export *e, uint64_t element, float value)
{
    const struct st_tensor *t = &e->list[e->at];
    return FAIL(ERR_DATA, "%.200s: element %" PRIu64 " is %g, more than %s can hold | choose another save_dtype",
                t->name, element, (double)value, t->dtype->name);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* Whether a finite value became infinite on the way: 1, else 0; without branches, so that loops are of vectors. */
static uint32_t became_infinite(uint32_t narrow, uint32_t bits, uint32_t infinite)
{
    return (uint32_t)((narrow & 0x7fffu) == infinite) & (uint32_t)((bits & 0x7fffffffu) != 0x7f800000u);
}

static uint32_t narrow_f16(const float *values, size_t count, uint16_t *out)
{
    uint32_t beyond = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(values[i]);
        out[i] = f16_narrow(bits);
        beyond |= became_infinite(out[i], bits, 0x7c00u);
    }
    return beyond;
}

static uint32_t narrow_bf16(const float *restrict values, size_t count, uint16_t *restrict out)
{
    uint32_t beyond = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(values[i]), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        uint32_t nan = 0u - (uint32_t)((bits & 0x7fffffffu) > 0x7f800000u);
        uint32_t narrow = (rounded & ~nan) | ((bits >> 16 | 0x40u) & nan); /* bf16_narrow */
        out[i] = (uint16_t)narrow;
        beyond |= became_infinite(narrow, bits, 0x7f80u);
    }
    return beyond;
}

static enum err add_narrow(struct export *e, const float *values, size_t count)
{
    bool half = strcmp(e->list[e->at].dtype->name, "F16") == 0;
    uint32_t beyond = half ? narrow_f16(values, count, e->narrow) : narrow_bf16(values, count, e->narrow);
    for (size_t i = 0; beyond != 0; i++) {
        if (became_infinite(e->narrow[i], bits_of(values[i]), half ? 0x7c00u : 0x7f80u) != 0) {
            return fail_range(e, e->done + i, values[i]);
        }
    }
    file_out_write(&e->out, e->narrow, count * sizeof(uint16_t));
    return e->out.err;
}

enum err export_add(struct export *e, const float *values, size_t count)
{
    TRY(pass_empty(e));
    BUG_IF(e->at == e->count || count > e->list[e->at].elements - e->done);
    TRY(reach(e, e->at));
    bool narrow = e->list[e->at].dtype->bits == 16;
    while (count > 0) {
        size_t some = narrow && count > BLOCK_ELEMENTS ? BLOCK_ELEMENTS : count;
        if (narrow) {
            TRY(add_narrow(e, values, some));
        } else {
            file_out_write(&e->out, values, some * sizeof(float));
            TRY(e->out.err);
        }
        e->done += some;
        values += some;
        count -= some;
    }
    return e->done == e->list[e->at].elements ? leave(e) : OK;
}

/* ---- the rest of the folder ---- */

enum err export_text(struct export *e, const char *name, const void *bytes, size_t count)
{
    BUG_IF(!manifest_name_ok(name));
    char *path;
    TRY(file_join(&path, e->temp, name));
    struct file_out f;
    enum err err = file_out_open(&f, path);
    free(path);
    TRY(err);
    file_out_write(&f, bytes, count);
    return file_out_close(&f);
}

/* As Hugging Face prints it: indented by 2, keys sorted. */
static enum err print_index(const struct export *e, const struct st_tensor **sorted, struct buf *out)
{
    uint64_t elements = 0;
    char name[64];
    for (size_t i = 0; i < e->count; i++) {
        sorted[i] = &e->list[i];
        elements += e->list[i].elements;
    }
    qsort(sorted, e->count, sizeof(sorted[0]), only_name);
    TRY(buf_printf(out, "{\n  \"metadata\": {\n    \"total_parameters\": %" PRIu64 ",\n    \"total_size\": %" PRIu64
                   "\n  },\n  \"weight_map\": {\n", elements, e->bytes));
    for (size_t i = 0; i < e->count; i++) {
        shard_name(e, e->shard_of[sorted[i] - e->list], name);
        TRY(buf_add_string(out, "    "));
        TRY(buf_add_json_string(out, sorted[i]->name, strlen(sorted[i]->name)));
        TRY(buf_printf(out, ": \"%s\"%s\n", name, i + 1 < e->count ? "," : ""));
    }
    return buf_add_string(out, "  }\n}\n");
}

static enum err write_index(struct export *e)
{
    void *sorted = NULL;
    struct buf text = { 0 };
    enum err err;
    TRY_OUT(mem_alloc(&sorted, e->count, sizeof(struct st_tensor *)));
    TRY_OUT(print_index(e, sorted, &text));
    TRY_OUT(export_text(e, INDEX_NAME, text.data, text.bytes));
out:
    free(sorted);
    buf_release(&text);
    return err;
}

enum err export_finish(struct export *e)
{
    if (e->count == 0 && e->out.fd < 0) {
        TRY(begin_shard(e, 0)); /* a file without tensors is a file */
        TRY(file_out_close(&e->out));
    }
    TRY(pass_empty(e));
    BUG_IF(e->at != e->count);
    if (e->shards > 1) {
        TRY(write_index(e));
    }
    TRY(file_sync_folder(e->temp));
    TRY(file_rename(e->temp, e->folder));
    e->finished = true;
    return OK;
}

const char *export_folder(const struct export *e)
{
    return e->temp;
}

size_t export_shards(const struct export *e)
{
    return e->shards;
}

uint64_t export_bytes(const struct export *e)
{
    return e->bytes;
}

void export_close(struct export *e)
{
    if (e == NULL) {
        return;
    }
    file_out_abandon(&e->out);
    if (e->made && !e->finished) {
        char *message = NULL; /* deleting may fail too, and must not hide why the export failed */
        enum err copied = mem_copy_string(&message, err_message(), strlen(err_message()));
        if (file_remove_tree(e->temp) != OK && copied == OK) {
            err_set_message(message);
        }
        free(message);
    }
    free(e->folder);
    free(e->temp);
    free(e->list);
    free(e->order);
    free(e->shard_of);
    free(e->narrow);
    free(e);
}
