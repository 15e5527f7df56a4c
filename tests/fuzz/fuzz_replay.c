/* Run a fuzz target on files, or on all files of folders: the committed inputs, without libFuzzer. TAP, a line a folder
 * or file. With --cut N each file also cut at every byte, or at N places when it has more. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>

#include "fuzz.h"

#define FILE_BYTES_MAX ((size_t)16 << 20)
#define SECONDS_MAX 20u /* of one input; more is a hang, and the signal ends the test */

static size_t cuts;
static char current[4096];

static void say_where(int signal_number)
{
    char text[4200];
    int bytes = snprintf(text, sizeof(text), "Bail out! signal %d at %s\n", signal_number, current);
    (void)!write(1, text, (size_t)bytes);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* In memory of exactly its size, so that a sanitizer sees every byte that is read behind it. */
static void run(const unsigned char *bytes, size_t count)
{
    unsigned char *copy = malloc(count > 0 ? count : 1);
    fuzz_need(copy != NULL, "memory");
    memcpy(copy, bytes, count);
    alarm(SECONDS_MAX);
    LLVMFuzzerTestOneInput(copy, count);
    alarm(0);
    free(copy);
}

static size_t run_file(const char *path)
{
    static unsigned char bytes[FILE_BYTES_MAX];
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return 0;
    }
    size_t count = fread(bytes, 1, sizeof(bytes), f), runs = 1;
    fclose(f);
    snprintf(current, sizeof(current), "%s", path);
    run(bytes, count);
    size_t step = cuts > 0 ? (count + cuts - 1) / cuts : count;
    for (size_t at = 0; cuts > 0 && at < count; at += step) {
        run(bytes, at);
        runs++;
    }
    return runs;
}

static size_t run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        return 0;
    }
    if (!S_ISDIR(st.st_mode)) {
        return run_file(path);
    }
    DIR *folder = opendir(path);
    size_t runs = 0;
    for (struct dirent *e = folder != NULL ? readdir(folder) : NULL; e != NULL; e = readdir(folder)) {
        char file[4096];
        snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
        runs += e->d_name[0] != '.' ? run_path(file) : 0;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return runs;
}

int main(int argc, char **argv)
{
    int bad = 0, first = 1, quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (argc > 2 && strcmp(argv[1], "--cut") == 0) {
        cuts = strtoul(argv[2], NULL, 10);
        first = 3;
    }
    if (getenv("FUZZ_MESSAGES") == NULL) {
        dup2(quiet, 2); /* warnings about inputs; a sanitizer reports to where ASAN_OPTIONS=log_path says */
    }
    for (int s = 0; s < 4; s++) {
        signal((const int[]){ SIGSEGV, SIGABRT, SIGALRM, SIGBUS }[s], say_where);
    }
    printf("1..%d\n", argc - first);
    for (int i = first; i < argc; i++) {
        size_t runs = run_path(argv[i]);
        printf("%s %d - %s: %zu inputs\n", runs > 0 ? "ok" : "not ok", i - first + 1, argv[i], runs);
        fflush(stdout);
        bad |= runs == 0;
    }
    return bad;
}
