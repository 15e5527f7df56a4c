/* What the system says about another process of this machine: alive, stopped, gone, and how it ended. */
#ifndef COMM_PROCESS_H
#define COMM_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct process {
    int32_t pid;
    char state;      /* as in /proc/PID/stat: R S D T t Z; 'X' when it is gone, 0 when the system does not say */
    bool ended;      /* Z or X */
    bool how_known;  /* the next one is the system's word */
    int wait_status; /* as of waitpid, once ended */
};

/* A descriptor that becomes readable when the process ends; -1 where the system has none (Linux before 5.3). */
int process_watch(int32_t pid);
/* Look at a process; fd is process_watch's, or -1. */
void process_look(struct process *p, int32_t pid, int fd);
/* "is stopped", "was killed by signal 9 (Killed)", "exited with 3": follows "process 1234 ". out holds 64 bytes. */
const char *process_text(const struct process *p, char out[64]);
/* Exit code as a shell gives it: status, or 128 + signal; -1 when not known. */
int process_exit_code(const struct process *p);

#endif
