/* Why this exists: a rank that waits must tell one that computes from one that is stopped, and one that was killed from
 * one that exited, although it is not the other's parent. */
#include "comm/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"

/* How a process that is gone ended (Linux 6.15): the first 64 bytes of struct pidfd_info. */
struct ended_info {
    uint64_t mask, cgroup;
    uint32_t pid, tgid, ppid, ids[8];
    int32_t wait_status;
};
_Static_assert(sizeof(struct ended_info) == 64, "the first version of struct pidfd_info");
#define ENDED_INFO _IOWR(0xff, 11, struct ended_info)
#define ENDED_INFO_EXIT 8u

int process_watch(int32_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* State and wait status from /proc/PID/stat, whose second field may hold any character but whose last ')' ends it. */
static bool look_in_proc(struct process *p)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", p->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    text[got > 0 ? got : 0] = '\0';
    const char *name_end = strrchr(text, ')');
    const char *last = strrchr(text, ' ');
    if (name_end == NULL || name_end[1] != ' ' || name_end[2] == '\0') {
        return false;
    }
    p->state = name_end[2];
    p->ended = p->state == 'Z' || p->state == 'X';
    if (p->ended && last > name_end) {
        p->wait_status = (int)strtol(last + 1, NULL, 10);
        p->how_known = true;
    }
    return true;
}

void process_look(struct process *p, int32_t pid, int fd)
{
    *p = (struct process){ .pid = pid };
    if (look_in_proc(p)) {
        return;
    }
    if (kill(pid, 0) == 0 || errno != ESRCH) {
        return; /* alive, and /proc does not say how */
    }
    p->state = 'X';
    p->ended = true;
    /* A process leaves /proc a moment before the system tells how it ended. */
    for (int tries = 0; fd >= 0 && !p->how_known && tries < 20; tries++) {
        struct ended_info info = { .mask = ENDED_INFO_EXIT };
        if (ioctl(fd, ENDED_INFO, &info) != 0) {
            return; /* the system does not */
        }
        p->how_known = (info.mask & ENDED_INFO_EXIT) != 0;
        p->wait_status = info.wait_status;
        if (!p->how_known) {
            nanosleep(&(struct timespec){ 0, 500000 }, NULL);
        }
    }
}

const char *process_text(const struct process *p, char out[64])
{
    if (p->ended && p->how_known && WIFSIGNALED(p->wait_status)) {
        int number = WTERMSIG(p->wait_status);
        const char *name = sigdescr_np(number);
        snprintf(out, 64, "was killed by signal %d (%s)", number, name != NULL ? name : "?");
    } else if (p->ended && p->how_known) {
        snprintf(out, 64, "exited with %d", WEXITSTATUS(p->wait_status));
    } else {
        snprintf(out, 64, "%s",
                 p->ended                             ? "is gone"
                 : p->state == 'T'                    ? "is stopped"
                 : p->state == 't'                    ? "is stopped by a debugger"
                 : p->state == 'R'                    ? "computes"
                 : p->state == 'S'                    ? "sleeps"
                 : p->state == 'D'                    ? "waits for a disk or a network file system"
                                                      : "is alive");
    }
    return out;
}

int process_exit_code(const struct process *p)
{
    return !p->ended || !p->how_known    ? -1
           : WIFSIGNALED(p->wait_status) ? 128 + WTERMSIG(p->wait_status)
                                         : WEXITSTATUS(p->wait_status);
}
