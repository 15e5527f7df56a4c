/* What the fuzz targets share. A target is one function over bytes: libFuzzer calls it (`make fuzz`), and so does
 * fuzz_replay.c, a plain main, with the committed inputs (`make test`). A target may fail in one way only: by a crash,
 * a sanitizer's report, a BUG_IF, a fuzz_need or its time; that a reader refuses an input is right. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stop where the test itself is at fault. */
static inline void fuzz_need(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "fuzz: %s failed\n", what);
        abort();
    }
}

/* A folder of this process, in memory where there is /dev/shm. Its name stays valid. */
static inline const char *fuzz_folder(void)
{
    static char path[96];
    if (path[0] == '\0') {
        snprintf(path, sizeof(path), "%s/invar-fuzz-%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
                 (int)getpid());
        fuzz_need(mkdir(path, 0700) == 0 || access(path, W_OK) == 0, "mkdir");
    }
    return path;
}

/* Write a file of that folder; its path stays valid until the next call. */
static inline const char *fuzz_file(const char *name, const void *bytes, size_t count)
{
    static char path[160];
    snprintf(path, sizeof(path), "%s/%s", fuzz_folder(), name);
    FILE *f = fopen(path, "wb");
    fuzz_need(f != NULL, "fopen");
    fuzz_need(fwrite(bytes, 1, count, f) == count, "fwrite");
    fuzz_need(fclose(f) == 0, "fclose");
    return path;
}

/* Remove the files of the folder and the folder. */
static inline void fuzz_clean(const char *const *names, size_t count)
{
    char path[160];
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/%s", fuzz_folder(), names[i]);
        unlink(path);
    }
    rmdir(fuzz_folder());
}

#define FUZZ_FILES(...)                                                                                                \
    static void fuzz_remove(void)                                                                                      \
    {                                                                                                                  \
        static const char *const names[] = { __VA_ARGS__ };                                                            \
        fuzz_clean(names, sizeof(names) / sizeof(names[0]));                                                           \
    }
/* Once in a process: remove them when it ends. */
#define FUZZ_START()                                                                                                   \
    do {                                                                                                               \
        static int started;                                                                                            \
        if (!started) {                                                                                                \
            started = 1;                                                                                               \
            atexit(fuzz_remove);                                                                                       \
        }                                                                                                              \
    } while (0)

#endif
