/* The flight recorder: what is written is read back, also of a killed process; a damaged file is named, not trusted. */
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "comm/comm_int.h"
#include "comm/process.h"
#include "comm/recorder_int.h"

static char folder[64], ring_path[96];

static struct comm_sig sig_number(uint64_t n)
{
    struct comm_sig sig = { .number = n, .group = 7, .count = 1000 + n, .shape = 3, .line = 88, .kind = KIND_ALL_REDUCE,
                            .type = TYPE_F32, .op = OP_MAX };
    snprintf(sig.file, sizeof(sig.file), "forward.c");
    snprintf(sig.name, sizeof(sig.name), "tp");
    return sig;
}

static void make_calls(struct recorder *r, uint64_t count)
{
    for (uint64_t n = 1; n <= count; n++) {
        const struct comm_sig sig = sig_number(n);
        recorder_end(r, recorder_begin(r, &sig), n % 10 == 0 ? ERR_PEER : OK);
    }
}

/* A ring with `count` calls that returned and one that did not. */
static void make_ring(uint64_t count)
{
    struct recorder *r;
    assert_ok(recorder_new(&r, ring_path, 2, 4));
    make_calls(r, count);
    recorder_phase(r, PHASE_BACKWARD, 17, 5);
    const struct comm_sig open_call = sig_number(count + 1);
    assert_int_equal(recorder_begin(r, &open_call), count + 1);
    recorder_free(r, 5);
}

static void calls_are_read_back(void **state)
{
    (void)state;
    make_ring(12);
    struct recorder_file f;
    assert_ok(recorder_open_file(&f, ring_path));
    assert_int_equal(f.rank, 2);
    assert_int_equal(f.size, 4);
    assert_int_equal(f.pid, getpid());
    assert_int_equal(f.phase, PHASE_BACKWARD);
    assert_int_equal(f.step, 17);
    assert_int_equal(f.layer, 5);
    assert_true(f.ended);
    assert_int_equal(f.exit_code, 5);
    assert_int_equal(f.begun, 13);
    assert_int_equal(f.count, 13);
    for (uint32_t i = 0; i < f.count; i++) {
        const struct record *x = &f.record[i];
        const struct comm_sig sig = sig_number(i + 1);
        assert_int_equal(x->seq, i + 1);
        assert_int_equal(x->number, i + 1);
        assert_int_equal(x->count, sig.count);
        assert_int_equal(x->group, 7);
        assert_int_equal(x->shape, 3);
        assert_true(x->t_in >= f.start_ticks && (i == 12 ? x->t_out == 0 : x->t_out >= x->t_in));
        assert_int_equal(x->result, i == 9 ? ERR_PEER : OK);
        assert_int_equal(x->phase, i == 12 ? PHASE_BACKWARD : PHASE_START);
    }
    struct buf text = { 0 };
    assert_ok(recorder_print(&text, &f, 2));
    char *line = strstr(text.data, "#12 all-reduce max f32 x 1012 (forward.c:88) of group tp, start of layer 0, step ");
    assert_non_null(line);
    line = strchr(line, '\n') + 1;
    assert_non_null(strstr(line, "#13 all-reduce max f32 x 1013 (forward.c:88) of group tp, backward of layer 5, "
                                 "step 17: has not returned\n"));
    assert_null(strstr(text.data, "#11 "));
    buf_release(&text);
    recorder_file_release(&f);
}

static void seconds_are_those_of_the_clock(void **state)
{
    (void)state;
    struct recorder *r;
    assert_ok(recorder_new(&r, ring_path, 0, 1));
    const struct comm_sig sig = sig_number(1);
    double begin = log_seconds();
    uint64_t record = recorder_begin(r, &sig);
    double shortest = log_seconds();
    usleep(50000);
    shortest = log_seconds() - shortest;
    recorder_end(r, record, OK);
    double longest = log_seconds() - begin;
    recorder_free(r, 0);
    struct recorder_file f;
    assert_ok(recorder_open_file(&f, ring_path));
    double seconds = recorder_seconds(&f, f.record[0].t_out) - recorder_seconds(&f, f.record[0].t_in);
    assert_true(seconds > 0.999 * shortest && seconds < 1.001 * longest);
    assert_true(f.beat_s >= seconds);
    recorder_file_release(&f);
}

static void ring_keeps_the_newest(void **state)
{
    (void)state;
    make_ring(3 * RECORDER_RECORDS + 5);
    struct recorder_file f;
    assert_ok(recorder_open_file(&f, ring_path));
    assert_int_equal(f.begun, 3 * RECORDER_RECORDS + 6);
    assert_int_equal(f.count, RECORDER_RECORDS);
    for (uint32_t i = 0; i < f.count; i++) {
        assert_int_equal(f.record[i].seq, 2 * RECORDER_RECORDS + 7 + i);
    }
    recorder_file_release(&f);
}

/* The end of a call that the ring has left behind must not touch the record that took its place. */
static void late_end_touches_nothing(void **state)
{
    (void)state;
    struct recorder *r;
    assert_ok(recorder_new(&r, ring_path, 0, 1));
    const struct comm_sig sig = sig_number(1);
    uint64_t early = recorder_begin(r, &sig);
    for (uint32_t i = 0; i < RECORDER_RECORDS; i++) {
        (void)recorder_begin(r, &sig);
    }
    recorder_end(r, early, ERR_PEER);
    recorder_free(r, 0);
    struct recorder_file f;
    assert_ok(recorder_open_file(&f, ring_path));
    for (uint32_t i = 0; i < f.count; i++) {
        assert_int_equal(f.record[i].t_out, 0);
    }
    recorder_file_release(&f);
}

static void ring_survives_a_kill(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct recorder *r;
        if (recorder_new(&r, ring_path, 1, 4) != OK) {
            _exit(1);
        }
        make_calls(r, 5000);
        recorder_phase(r, PHASE_SAVE, 99, 0);
        const struct comm_sig sig = sig_number(5001);
        (void)recorder_begin(r, &sig);
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    struct recorder_file f;
    assert_ok(recorder_open_file(&f, ring_path));
    assert_int_equal(f.pid, child);
    assert_int_equal(f.begun, 5001);
    assert_int_equal(f.count, RECORDER_RECORDS);
    assert_int_equal(f.record[f.count - 1].number, 5001);
    assert_int_equal(f.record[f.count - 1].t_out, 0);
    assert_int_equal(f.record[f.count - 1].phase, PHASE_SAVE);
    assert_int_equal(f.step, 99);
    assert_false(f.ended);
    recorder_file_release(&f);
}

static void *call_often(void *arg)
{
    make_calls(arg, 400);
    return NULL;
}

static void threads_share_a_ring(void **state)
{
    (void)state;
    struct recorder *r;
    pthread_t id[4];
    assert_ok(recorder_new(&r, ring_path, 0, 2));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&id[i], NULL, call_often, r), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
    }
    recorder_free(r, 0);
    struct recorder_file f;
    assert_ok(recorder_open_file(&f, ring_path));
    assert_int_equal(f.count, 1600);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < f.count; i++) {
        assert_int_equal(f.record[i].seq, i + 1);
        assert_true(f.record[i].t_out != 0);
        sum += f.record[i].number;
    }
    assert_int_equal(sum, 4 * 400 * 401 / 2);
    recorder_file_release(&f);
}

/* ---- damage ---- */

static enum err open_and_release(void)
{
    struct recorder_file f;
    enum err err = recorder_open_file(&f, ring_path);
    if (err == OK) {
        struct buf text = { 0 };
        err = recorder_print(&text, &f, UINT32_MAX);
        buf_release(&text);
    }
    recorder_file_release(&f);
    return err;
}

static void cut_files_are_refused(void **state)
{
    (void)state;
    make_ring(100);
    for (off_t bytes = (off_t)RING_BYTES - 1; bytes >= 0; bytes -= bytes > 5000 ? 997 : 13) {
        assert_int_equal(truncate(ring_path, bytes), 0);
        assert_fails(ERR_DATA, ring_path, open_and_release());
    }
    assert_int_equal(truncate(ring_path, 0), 0);
    assert_fails(ERR_DATA, "0 bytes without the head", open_and_release());
    make_ring(100);
    assert_int_equal(truncate(ring_path, (off_t)RING_BYTES + 1), 0);
    assert_fails(ERR_DATA, "the file was cut or added to", open_and_release());
}

static void foreign_files_are_refused(void **state)
{
    (void)state;
    static char noise[RING_BYTES];
    for (size_t i = 0; i < sizeof(noise); i++) {
        noise[i] = (char)hash_mix(i);
    }
    assert_ok(file_replace(ring_path, noise, sizeof(noise)));
    assert_fails(ERR_DATA, "which begins with INVARREC", open_and_release());
    memcpy(noise, RING_MAGIC, 8);
    assert_ok(file_replace(ring_path, noise, sizeof(noise)));
    assert_fails(ERR_DATA, "this program reads 1", open_and_release());
    uint32_t version = RING_VERSION;
    memcpy(noise + 8, &version, sizeof(version));
    assert_ok(file_replace(ring_path, noise, sizeof(noise)));
    assert_fails(ERR_DATA, "the head of the flight record is damaged", open_and_release());
}

static void flip(int fd, off_t at, int bit)
{
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (unsigned char)(1 << bit);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void flipped_bits_are_found(void **state)
{
    (void)state;
    make_ring(RECORDER_RECORDS + 100);
    int fd = open(ring_path, O_RDWR);
    assert_true(fd >= 0);
    /* In the head's constant part, every bit; beyond it (times, counts, the page's rest) a flip must do no harm. */
    for (off_t at = 0; at < (off_t)sizeof(struct ring_head); at++) {
        for (int bit = 0; bit < 8; bit++) {
            flip(fd, at, bit);
            enum err err = open_and_release();
            assert_true(err == ERR_DATA || (err == OK && at >= (off_t)(HEAD_CHECKED + 8)));
            flip(fd, at, bit);
        }
    }
    /* In the records, bits drawn from all of them: what `check` covers is found. */
    const uint64_t bytes = RING_BYTES - HEAD_BYTES, covered = offsetof(struct record, layer);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t draw = hash_mix(i), at = draw % bytes;
        flip(fd, (off_t)(HEAD_BYTES + at), (int)(draw >> 60) & 7);
        enum err err = open_and_release();
        assert_true(err == ERR_DATA || (err == OK && at % sizeof(struct record) < covered));
        flip(fd, (off_t)(HEAD_BYTES + at), (int)(draw >> 60) & 7);
    }
    assert_ok(open_and_release());
    /* The count of calls is not covered: one that no record bears out is found. */
    uint64_t many = 2 * RECORDER_RECORDS;
    assert_int_equal(pwrite(fd, &many, sizeof(many), offsetof(struct ring_head, begun)), sizeof(many));
    assert_fails(ERR_DATA, "counts 4096 calls, its newest record is 2149", open_and_release());
    close(fd);
}

/* ---- a ring that cannot be made ---- */

static void refusals_leave_nothing(void **state)
{
    (void)state;
    struct recorder *r;
    assert_fails(ERR_IO, "/no/such/folder/x.ring.tmp", recorder_new(&r, "/no/such/folder/x.ring", 0, 1));
    assert_null(r);
    unlink(ring_path);
    struct rlimit before, small = { 100000, 0 };
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum err err = recorder_new(&r, ring_path, 0, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(err, ERR_RESOURCE);
    assert_null(r);
    assert_int_equal(rmdir(folder), 0); /* neither file is there */
    assert_ok(file_make_folder(folder));
}

/* ---- processes: what a rank learns about another ---- */

static pid_t child_that(int how)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* the test framework's handlers are not the child's */
        signal(SIGABRT, SIG_DFL);
        if (how < 0) {
            raise(-how);
        }
        _exit(how);
    }
    return child;
}

static void ends_of_processes_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        int how, code;
        const char *text;
    } cases[] = {
        { 0, 0, "exited with 0" },
        { 3, 3, "exited with 3" },
        { -SIGKILL, 137, "was killed by signal 9 (Killed)" },
        { -SIGSEGV, 139, "was killed by signal 11 (Segmentation fault)" },
        { -SIGABRT, 134, "was killed by signal 6 (Aborted)" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[64];
        struct process p;
        siginfo_t info;
        pid_t child = child_that(cases[i].how);
        int fd = process_watch(child);
        assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
        process_look(&p, child, fd); /* not waited for: /proc knows */
        assert_true(p.ended && p.state == 'Z');
        assert_string_equal(process_text(&p, text), cases[i].text);
        assert_int_equal(process_exit_code(&p), cases[i].code);
        assert_int_equal(waitpid(child, NULL, 0), child);
        process_look(&p, child, fd); /* gone: a newer system knows, an older one says that it is gone */
        assert_true(p.ended && p.state == 'X');
        assert_string_equal(process_text(&p, text), p.how_known ? cases[i].text : "is gone");
        assert_int_equal(process_exit_code(&p), p.how_known ? cases[i].code : -1);
        if (fd >= 0) {
            close(fd);
        }
    }
}

static void stopped_and_computing_are_told_apart(void **state)
{
    (void)state;
    char text[64];
    struct process p;
    pid_t child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        for (volatile int i = 0;; i++) {
        }
    }
    assert_int_equal(waitpid(child, NULL, WUNTRACED), child);
    process_look(&p, child, -1);
    assert_string_equal(process_text(&p, text), "is stopped");
    assert_false(p.ended);
    kill(child, SIGCONT);
    for (int tries = 0; tries < 1000 && p.state != 'R'; tries++) {
        usleep(1000);
        process_look(&p, child, -1);
    }
    assert_string_equal(process_text(&p, text), "computes");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/invar-recorder-%d", (int)getpid());
    snprintf(ring_path, sizeof(ring_path), "%s/rank-2.ring", folder);
    return file_make_folder(folder) == OK ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(folder) == OK ? 0 : -1;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(calls_are_read_back),
    cmocka_unit_test(seconds_are_those_of_the_clock),
    cmocka_unit_test(ring_keeps_the_newest),
    cmocka_unit_test(late_end_touches_nothing),
    cmocka_unit_test(ring_survives_a_kill),
    cmocka_unit_test(threads_share_a_ring),
    cmocka_unit_test(cut_files_are_refused),
    cmocka_unit_test(foreign_files_are_refused),
    cmocka_unit_test(flipped_bits_are_found),
    cmocka_unit_test(refusals_leave_nothing),
    cmocka_unit_test(ends_of_processes_are_told_apart),
    cmocka_unit_test(stopped_and_computing_are_told_apart),
};
TEST_GROUP(tests, make_folder, remove_folder)
