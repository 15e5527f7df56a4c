/* Text sources: .txt (one document each) and .jsonl (one document per line), each also .gz and .zst. Reading is split
 * in two: reader_fill gathers raw pieces in order (one thread, cheap), reader_text checks and decodes one piece (any
 * thread, the costly part). So the order of documents never depends on threads. */
#ifndef DATA_READER_H
#define DATA_READER_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

#define READER_LINE_BYTES_MAX ((size_t)64 << 20)

/* Kinds of damage of one line, for the report of skipped lines. */
enum reader_fault {
    READER_FAULT_NONE,
    READER_FAULT_JSON,      /* not valid JSON */
    READER_FAULT_EXTRA,     /* a second value on the line */
    READER_FAULT_UTF8,      /* bytes that are not UTF-8 */
    READER_FAULT_SURROGATE, /* half of a surrogate pair */
    READER_FAULT_NUL,       /* a raw NUL byte */
    READER_FAULT_DEPTH,     /* nested too deeply */
    READER_FAULT_DUPLICATE, /* a key twice */
    READER_FAULT_OBJECT,    /* not an object */
    READER_FAULT_MISSING,   /* the field is missing */
    READER_FAULT_TYPE,      /* the field is not a string */
    READER_FAULT_LONG,      /* line above READER_LINE_BYTES_MAX */
    READER_FAULTS,
};
/* "not valid JSON", ... */
const char *reader_fault_name(enum reader_fault f);

struct reader_options {
    const char *const *inputs; /* files, folders (files of known endings in it, bytewise order, no dot files), globs */
    size_t inputs_count;
    const char *field;         /* of a JSON line; NULL: "text" */
    double range_lo, range_hi; /* part of a single plain .txt, as fractions of its bytes; range_hi 0: 1 */
    /* Where a long text may be cut: an offset in (0, bytes) such that both parts on their own give what the whole
     * gives, as late as possible; 0: nowhere. NULL: a .txt is always one piece. */
    size_t (*split)(const void *arg, const char *text, size_t bytes);
    const void *split_arg;
};

/* One line, or a text, or a part of one. */
struct reader_piece {
    size_t offset, bytes;    /* in reader_batch.bytes */
    uint32_t file;           /* index for reader_path */
    uint64_t line;           /* from 1; 0: plain text */
    uint64_t position;       /* plain text: byte offset of the piece in the file's text */
    enum reader_fault fault; /* found while gathering */
    bool file_ends;          /* nothing follows in this file, not even a newline */
    bool document_begins;    /* false: the piece goes on with the document of the one before */
    bool document_ends;      /* false: the next piece goes on with the same document */
};

struct reader_batch {
    struct buf bytes;
    struct reader_piece *piece;
    size_t count, capacity;
};
/* Free its arrays. */
void reader_batch_release(struct reader_batch *b);

/* Things that are accepted, but told. */
struct reader_notes {
    uint64_t boms, blank_lines;
};

struct reader;

/* Expand the inputs. The strings of `o` are copied or read here; split_arg must outlive the reader. */
MUST_USE enum err reader_open(struct reader **out, const struct reader_options *o);
void reader_close(struct reader *r);
/* The name of an input file. */
const char *reader_path(const struct reader *r, uint32_t file);
/* Replace the batch by the next pieces: about `bytes` of text, at least one piece; count 0 at the end of the input. */
MUST_USE enum err reader_fill(struct reader *r, struct reader_batch *b, size_t bytes);
struct reader_notes reader_notes(const struct reader *r);
/* Bytes of input files, as stored: read so far, and in all. */
uint64_t reader_consumed(const struct reader *r);
uint64_t reader_total(const struct reader *r);

/* The text of a piece: valid until reader_text_release and the next reader_fill. */
struct reader_text {
    const char *text;
    size_t bytes;
    bool nul;     /* holds U+0000 (written \u0000 in JSON): kept, worth a note */
    json_t *line; /* owner of the text of a JSON line */
};
/* Checks and decodes one piece. ERR_DATA: message "file:line:column: ..." and *fault names the kind.
 * Thread-safe. */
MUST_USE enum err reader_text(const struct reader *r, const struct reader_batch *b, size_t piece,
                              struct reader_text *out, enum reader_fault *fault);
void reader_text_release(struct reader_text *t);

#endif
