/* Why this exists: the order of the documents decides every token position, so it must not depend on the locale, the
 * file system or the shell; and side files such as "._a.jsonl" that some systems leave beside real ones must not become
 * data. */
#include "data/inputs.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>

#include "base/file.h"
#include "base/mem.h"

#define ENDINGS "known endings are .txt and .jsonl, each also with .gz or .zst"

static bool ends_with(const char *name, size_t bytes, const char *ending)
{
    size_t n = strlen(ending);
    return bytes >= n && memcmp(name + bytes - n, ending, n) == 0;
}

static bool known_ending(const char *name, struct input_file *f)
{
    size_t bytes = strlen(name);
    f->kind = STREAM_PLAIN;
    if (ends_with(name, bytes, ".gz")) {
        f->kind = STREAM_GZIP;
        bytes -= 3;
    } else if (ends_with(name, bytes, ".zst")) {
        f->kind = STREAM_ZSTD;
        bytes -= 4;
    }
    f->jsonl = ends_with(name, bytes, ".jsonl");
    return f->jsonl || ends_with(name, bytes, ".txt");
}

static enum err add_file(struct inputs *in, const char *path)
{
    struct input_file f = { 0 };
    if (!known_ending(path, &f)) {
        return FAIL(ERR_USAGE, "%s: a file of unknown kind | " ENDINGS, path);
    }
    TRY(file_size(path, &f.bytes));
    void *mem = in->file;
    TRY(mem_grow(&mem, &in->capacity, in->count + 1, sizeof(*in->file)));
    in->file = mem;
    TRY(mem_copy_string(&f.path, path, strlen(path)));
    in->file[in->count++] = f;
    return OK;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum err list_folder(const char *folder, char ***names, size_t *count)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return FAIL(ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
    }
    size_t capacity = 0;
    enum err err = OK;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        struct input_file kind;
        if (e->d_name[0] == '.' || !known_ending(e->d_name, &kind)) {
            continue;
        }
        void *mem = *names;
        TRY_OUT(mem_grow(&mem, &capacity, *count + 1, sizeof(char *)));
        *names = mem;
        TRY_OUT(file_join(&(*names)[*count], folder, e->d_name));
        *count += 1;
    }
out:
    closedir(dir);
    return err;
}

static enum err add_folder(struct inputs *in, const char *folder)
{
    char **names = NULL;
    size_t count = 0, before = in->count;
    enum err err;
    TRY_OUT(list_folder(folder, &names, &count));
    if (count > 0) {
        qsort(names, count, sizeof(*names), by_bytes);
    }
    for (size_t i = 0; i < count; i++) {
        if (!file_is_folder(names[i])) {
            TRY_OUT(add_file(in, names[i]));
        }
    }
    if (in->count == before) {
        err = FAIL(ERR_USAGE, "%s: no text file in this folder | " ENDINGS, folder);
    }
out:
    for (size_t i = 0; i < count; i++) {
        free(names[i]);
    }
    free(names);
    return err;
}

static bool is_dot_file(const char *path)
{
    const char *slash = strrchr(path, '/');
    return (slash != NULL ? slash + 1 : path)[0] == '.';
}

static enum err add_glob(struct inputs *in, const char *pattern)
{
    glob_t found;
    int rc = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &found);
    if (rc != 0) {
        globfree(&found);
        return rc == GLOB_NOMATCH
                   ? FAIL(ERR_USAGE, "%s: no such file, and nothing matches it as a pattern | check the path", pattern)
                   : FAIL(ERR_IO, "%s: the folders of this pattern cannot be read", pattern);
    }
    enum err err = OK;
    size_t before = in->count;
    qsort(found.gl_pathv, found.gl_pathc, sizeof(char *), by_bytes);
    for (size_t i = 0; i < found.gl_pathc && err == OK; i++) {
        const char *path = found.gl_pathv[i];
        if (is_dot_file(path)) {
            continue;
        }
        err = file_is_folder(path) ? add_folder(in, path) : add_file(in, path);
    }
    globfree(&found);
    if (err == OK && in->count == before) {
        err = FAIL(ERR_USAGE, "%s: matches dot files only, which are never read", pattern);
    }
    return err;
}

enum err inputs_expand(struct inputs *out, const char *const *names, size_t count)
{
    *out = (struct inputs){ 0 };
    if (count == 0) {
        return FAIL(ERR_USAGE, "no input was named | name files, folders or patterns; " ENDINGS);
    }
    for (size_t i = 0; i < count; i++) {
        enum err err = file_is_folder(names[i]) ? add_folder(out, names[i])
                       : file_exists(names[i])  ? add_file(out, names[i])
                                                : add_glob(out, names[i]);
        if (err != OK) {
            inputs_release(out);
            return err;
        }
    }
    return OK;
}

void inputs_release(struct inputs *in)
{
    for (size_t i = 0; i < in->count; i++) {
        free(in->file[i].path);
    }
    free(in->file);
    *in = (struct inputs){ 0 };
}
