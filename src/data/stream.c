/* Why this exists: the convenience readers of zlib and zstd accept a file that was cut, or ignore what follows the
 * data; a training set must not be quietly shorter than its author thinks. Here every end of input is a decision: the
 * last member or frame must be complete, checked, and followed by nothing.
 *
 * Invariants: input[used..filled) are bytes of the file not yet decoded; `consumed` counts the file bytes that
 * were decoded, so it is the offset named in messages; `open_member` is true from the first byte of a gzip member or
 * zstd frame to its verified end. */
#include "data/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/mem.h"

#define INPUT_BYTES ((size_t)256 << 10)
#define WINDOW_LOG_MAX 27 /* 128 MiB */
/* A bomb: more than this many bytes of text for one byte of file, once the text is long enough to matter. */
#define RATIO_MAX 1000u
#define RATIO_FREE_BYTES ((uint64_t)64 << 20)

struct stream {
    const char *path;
    enum stream_kind kind;
    int fd;
    unsigned char *input;
    size_t used, filled;
    uint64_t consumed, produced;
    bool file_end, open_member;
    bool complete; /* one member or frame has ended */
    z_stream gz;
    bool gz_ready;
    ZSTD_DCtx *zs;
};

static enum err fail_system(const struct stream *s, const char *operation)
{
    return FAIL(ERR_IO, "%s: %s: %s", s->path, operation, strerror(errno));
}

static enum err fail_at(const struct stream *s, const char *what, const char *hint)
{
    return FAIL(ERR_DATA, "%s: %s at byte %llu of the compressed file | %s", s->path, what,
                (unsigned long long)s->consumed, hint);
}

static enum err open_file(struct stream *s)
{
    struct stat st;
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0) {
        return fail_system(s, "cannot be opened");
    }
    if (fstat(s->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return FAIL(ERR_DATA, "%s: not a regular file, a text file was expected", s->path);
    }
    (void)posix_fadvise(s->fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* advice only */
    return OK;
}

static enum err open_decoder(struct stream *s)
{
    if (s->kind == STREAM_GZIP) {
        if (inflateInit2(&s->gz, 15 + 16) != Z_OK) {
            return FAIL(ERR_RESOURCE, "%s: no memory for the gzip decoder", s->path);
        }
        s->gz_ready = true;
    } else if (s->kind == STREAM_ZSTD) {
        s->zs = ZSTD_createDCtx();
        if (s->zs == NULL || ZSTD_isError(ZSTD_DCtx_setParameter(s->zs, ZSTD_d_windowLogMax, WINDOW_LOG_MAX))) {
            return FAIL(ERR_RESOURCE, "%s: no memory for the zstd decoder", s->path);
        }
    }
    return OK;
}

enum err stream_open(struct stream **out, const char *path, enum stream_kind kind)
{
    void *mem;
    *out = NULL;
    TRY(mem_alloc(&mem, 1, sizeof(struct stream)));
    struct stream *s = mem;
    s->path = path;
    s->kind = kind;
    s->fd = -1;
    enum err err;
    TRY_OUT(mem_alloc(&mem, 1, INPUT_BYTES));
    s->input = mem;
    TRY_OUT(open_file(s));
    TRY_OUT(open_decoder(s));
    *out = s;
    return OK;
out:
    stream_close(s);
    return err;
}

void stream_close(struct stream *s)
{
    if (s == NULL) {
        return;
    }
    if (s->fd >= 0) {
        close(s->fd);
    }
    if (s->gz_ready) {
        inflateEnd(&s->gz);
    }
    ZSTD_freeDCtx(s->zs);
    free(s->input);
    free(s);
}

/* At most `room` bytes of the file; *got 0 at its end. */
static enum err read_file_bytes(struct stream *s, unsigned char *to, size_t room, size_t *got)
{
    ssize_t n;
    do {
        n = read(s->fd, to, room);
    } while (n < 0 && errno == EINTR);
    *got = 0;
    if (n < 0) {
        return fail_system(s, "cannot be read");
    }
    *got = (size_t)n;
    s->file_end = n == 0;
    return OK;
}

static enum err fill_input(struct stream *s)
{
    s->used = 0;
    return read_file_bytes(s, s->input, INPUT_BYTES, &s->filled);
}

/* taken: bytes of `input` that the decoder has read since `consumed`. */
static enum err fail_gzip(const struct stream *s, int code, size_t taken)
{
    if (code == Z_MEM_ERROR) {
        return FAIL(ERR_RESOURCE, "%s: no memory for the gzip decoder", s->path);
    }
    const char *what = s->gz.msg != NULL ? s->gz.msg : "damaged data";
    if (strcmp(what, "incorrect header check") == 0) {
        return s->complete
                   ? fail_at(s, "bytes that are not gzip follow the gzip data", "cut the file after the gzip data")
                   : fail_at(s, "not a gzip file", "the ending .gz promises one");
    }
    return FAIL(ERR_DATA, "%s: damaged gzip data (%s) before byte %llu of the compressed file | download it again",
                s->path, what, (unsigned long long)s->consumed + taken);
}

/* One step of the decoder on what is in `input`. */
static enum err step_gzip(struct stream *s, unsigned char *to, size_t room, size_t *got)
{
    s->gz.next_in = s->input + s->used;
    s->gz.avail_in = (uInt)(s->filled - s->used);
    s->gz.next_out = to;
    s->gz.avail_out = room > INPUT_BYTES ? (uInt)INPUT_BYTES : (uInt)room;
    uInt room_now = s->gz.avail_out;
    s->open_member = true;
    int code = inflate(&s->gz, Z_NO_FLUSH);
    size_t taken = s->filled - s->used - s->gz.avail_in;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
        return fail_gzip(s, code, taken);
    }
    s->used += taken;
    s->consumed += taken;
    *got = room_now - s->gz.avail_out;
    if (code == Z_STREAM_END) {
        s->open_member = false;
        s->complete = true;
        inflateReset(&s->gz);
    }
    return OK;
}

static enum err fail_zstd(const struct stream *s, size_t code, size_t taken)
{
    switch (ZSTD_getErrorCode(code)) {
    case ZSTD_error_prefix_unknown:
        return s->complete
                   ? fail_at(s, "bytes that are not zstd follow the zstd data", "cut the file after the zstd data")
                   : fail_at(s, "not a zstd file", "the ending .zst promises one");
    case ZSTD_error_frameParameter_windowTooLarge:
        return fail_at(s, "the zstd frame needs a window above 128 MiB", "compress it again without --ultra --long");
    case ZSTD_error_dictionary_wrong:
    case ZSTD_error_dictionary_corrupted:
        return fail_at(s, "the zstd frame needs a dictionary", "compress it again without a dictionary");
    case ZSTD_error_checksum_wrong:
        return FAIL(ERR_DATA,
                    "%s: the checksum of the zstd frame read from byte %llu of the file on is wrong | download again",
                    s->path, (unsigned long long)s->consumed);
    case ZSTD_error_memory_allocation:
        return FAIL(ERR_RESOURCE, "%s: no memory for the zstd decoder", s->path);
    default:
        return FAIL(ERR_DATA,
                    "%s: damaged zstd data (%s) from byte %llu of the compressed file on | download it again", s->path,
                    ZSTD_getErrorName(code), (unsigned long long)s->consumed + taken);
    }
}

static enum err step_zstd(struct stream *s, unsigned char *to, size_t room, size_t *got)
{
    ZSTD_inBuffer in = { s->input + s->used, s->filled - s->used, 0 };
    ZSTD_outBuffer out = { to, room, 0 };
    size_t code = ZSTD_decompressStream(s->zs, &out, &in);
    if (ZSTD_isError(code)) {
        return fail_zstd(s, code, in.pos);
    }
    s->used += in.pos;
    s->consumed += in.pos;
    s->open_member = code != 0; /* 0: the frame is complete and all of it is out */
    s->complete = s->complete || code == 0;
    *got = out.pos;
    return OK;
}

static enum err check_ratio(struct stream *s, size_t got)
{
    s->produced += got;
    if (s->produced > RATIO_FREE_BYTES && s->produced / RATIO_MAX > s->consumed) {
        return FAIL(ERR_DATA,
                    "%s: %llu bytes expand to more than %llu, at most %u times is accepted | this looks like a "
                    "decompression bomb; use the plain text if it is not",
                    s->path, (unsigned long long)s->consumed, (unsigned long long)s->produced, RATIO_MAX);
    }
    return OK;
}

enum err stream_read(struct stream *s, unsigned char *to, size_t room, size_t *got)
{
    *got = 0;
    if (s->kind == STREAM_PLAIN) {
        TRY(read_file_bytes(s, to, room, got));
        s->consumed += *got;
        return OK;
    }
    while (*got == 0) {
        if (s->used == s->filled && !s->file_end) {
            TRY(fill_input(s));
        }
        if (s->used == s->filled && !s->open_member) {
            return s->consumed > 0 ? OK : fail_at(s, "an empty file", "a compressed file has at least a header");
        }
        uint64_t before = s->consumed;
        TRY(s->kind == STREAM_GZIP ? step_gzip(s, to, room, got) : step_zstd(s, to, room, got));
        if (s->file_end && *got == 0 && s->consumed == before && s->open_member) {
            return fail_at(s, "the compressed data end early (file cut)", "download it again");
        }
    }
    return check_ratio(s, *got);
}

enum err stream_seek(struct stream *s, uint64_t offset)
{
    BUG_IF(s->kind != STREAM_PLAIN);
    if (lseek(s->fd, (off_t)offset, SEEK_SET) < 0) {
        return fail_system(s, "cannot be positioned");
    }
    return OK;
}

uint64_t stream_consumed(const struct stream *s)
{
    return s->consumed;
}
