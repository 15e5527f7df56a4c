/* Memory in common between processes of a node, found through its maker's process: it is shared, it is what the maker
 * made or nothing, and no name of it is anywhere. */
#include "test.h"

#include <sys/wait.h>
#include <unistd.h>

#include "comm/mpi_int.h"

#define BYTES 100000u

/* Runs fn in a child process; its exit status. */
static int in_child(int (*fn)(const struct comm_region *), const struct comm_region *r)
{
    pid_t child = fork();
    if (child == 0) {
        _exit(fn(r));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* As another rank: only the handle and the bytes are known. */
static int write_there(const struct comm_region *r)
{
    struct comm_region mine = { .bytes = r->bytes, .handle = r->handle };
    if (mpi_region_map(NULL, &mine) != OK || mine.base[BYTES - 1] != 7) {
        return 1;
    }
    mine.base[0] = 9;
    mpi_region_free(NULL, &mine);
    return 0;
}

static int map_fails(const struct comm_region *r)
{
    struct comm_region mine = { .bytes = r->bytes, .handle = r->handle };
    return mpi_region_map(NULL, &mine) == ERR_RESOURCE && mine.base == NULL ? 0 : 1;
}

static void other_processes_share_it(void **state)
{
    (void)state;
    struct comm_region r;
    assert_ok(mpi_region_new(NULL, BYTES, &r));
    for (uint32_t i = 0; i < BYTES; i++) {
        assert_int_equal(r.base[i], 0);
    }
    r.base[BYTES - 1] = 7;
    assert_int_equal(in_child(write_there, &r), 0);
    assert_int_equal(r.base[0], 9);
    mpi_region_free(NULL, &r);
    assert_null(r.base);
}

static void another_file_of_that_number_is_refused(void **state)
{
    (void)state;
    struct comm_region r, other;
    assert_ok(mpi_region_new(NULL, BYTES, &r));
    assert_ok(mpi_region_new(NULL, BYTES, &other));
    struct comm_region wrong = { .bytes = BYTES, .handle = r.handle };
    wrong.handle.word[1] = other.handle.word[1];
    assert_fails(ERR_RESOURCE, "it is not the memory that rank made", mpi_region_map(NULL, &wrong));
    assert_null(wrong.base);
    wrong = (struct comm_region){ .bytes = BYTES - 1, .handle = r.handle };
    assert_fails(ERR_RESOURCE, "it is not the memory that rank made", mpi_region_map(NULL, &wrong));
    mpi_region_free(NULL, &r);
    mpi_region_free(NULL, &other);
}

/* Once all have found it, its descriptor is gone, and with the maker's the last trace. */
static void it_cannot_be_found_afterwards(void **state)
{
    (void)state;
    struct comm_region r;
    assert_ok(mpi_region_new(NULL, BYTES, &r));
    struct comm_region before = r;
    mpi_region_found(NULL, &r);
    assert_int_equal(in_child(map_fails, &before), 0);
    r.base[0] = 1; /* still mapped */
    int fd = dup(0);
    assert_int_equal(fd, (int)before.handle.word[1]);
    mpi_region_free(NULL, &r);
    assert_int_equal(close(fd), 0); /* a descriptor that is somebody else's by now is not closed */
}

static void too_much_is_refused(void **state)
{
    (void)state;
    struct comm_region r;
    assert_fails(ERR_RESOURCE, "shared memory: 4611686018427387904 bytes were refused",
                 mpi_region_new(NULL, (uint64_t)1 << 62, &r));
    assert_null(r.base);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(other_processes_share_it),
    cmocka_unit_test(another_file_of_that_number_is_refused),
    cmocka_unit_test(it_cannot_be_found_afterwards),
    cmocka_unit_test(too_much_is_refused),
};
TEST_MAIN(tests)
