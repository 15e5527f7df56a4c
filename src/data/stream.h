/* Bytes of a text file, plain or compressed: one strict reader for all of them. */
#ifndef DATA_STREAM_H
#define DATA_STREAM_H

#include "base/err.h"

enum stream_kind { STREAM_PLAIN, STREAM_GZIP, STREAM_ZSTD };

struct stream;

/* ERR_IO or ERR_DATA (not a regular file). The path is not copied and must outlive the stream. */
MUST_USE enum err stream_open(struct stream **out, const char *path, enum stream_kind kind);
void stream_close(struct stream *s);
/* Up to `room` > 0 bytes; *got 0 only at the end. A compressed stream that is cut, damaged, followed by other bytes,
 * needs a window above 128 MiB or expands more than 1000 times is ERR_DATA with the offset in the compressed file.
 * Several gzip members or zstd frames in a row (skippable ones too) are one text. */
MUST_USE enum err stream_read(struct stream *s, unsigned char *to, size_t room, size_t *got);
/* Skip to a byte offset: plain files only. */
MUST_USE enum err stream_seek(struct stream *s, uint64_t offset);
/* Bytes of the file itself that were read so far: for progress. */
uint64_t stream_consumed(const struct stream *s);

#endif
