/* Why this exists: a training set is made of other people's files. Whatever is wrong with one of them must be said
 * before the run, with its place, and never change which texts are read.
 *
 * Invariants: pieces are made in input order, whatever the batch size; batch.bytes holds the text of its pieces and,
 * after them, the `tail` that no piece covers yet, which moves to `carry` between calls; `line` counts every line of
 * the file, also blank and faulty ones. */
#include "data/reader.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "data/inputs.h"
#include "data/stream.h"

#define BLOCK_BYTES_MAX ((size_t)256 << 10)
#define BLOCK_BYTES_MIN ((size_t)4 << 10)
/* A long text is cut into pieces of about this size, so that several threads can work on one file. */
#define PIECE_BYTES ((size_t)256 << 10)

struct reader {
    struct inputs inputs;
    char *field;
    size_t (*split)(const void *arg, const char *text, size_t bytes);
    const void *split_arg;
    uint64_t range_lo, range_bytes; /* of the only file; range_bytes UINT64_MAX: all */
    struct stream *stream;          /* of file `file`; NULL between files */
    uint32_t file;
    uint64_t consumed_before; /* of finished files */
    uint64_t left;            /* bytes of text still to be read from the stream */
    uint64_t line, position;
    size_t split_next; /* do not look for a cut below this size of the tail */
    bool discard;      /* inside a line that is too long */
    struct buf carry;
    struct reader_notes notes;
};

const char *reader_fault_name(enum reader_fault f)
{
    static const char *const names[READER_FAULTS] = {
        [READER_FAULT_NONE] = "no fault",
        [READER_FAULT_JSON] = "not valid JSON",
        [READER_FAULT_EXTRA] = "two values on one line",
        [READER_FAULT_UTF8] = "not UTF-8",
        [READER_FAULT_SURROGATE] = "half of a surrogate pair",
        [READER_FAULT_NUL] = "raw NUL byte",
        [READER_FAULT_DEPTH] = "nested too deeply",
        [READER_FAULT_DUPLICATE] = "duplicate key",
        [READER_FAULT_OBJECT] = "not an object",
        [READER_FAULT_MISSING] = "field missing",
        [READER_FAULT_TYPE] = "field is not a string",
        [READER_FAULT_LONG] = "line too long",
    };
    return names[f];
}

void reader_batch_release(struct reader_batch *b)
{
    buf_release(&b->bytes);
    free(b->piece);
    *b = (struct reader_batch){ 0 };
}

/* ---- opening ---- */

/* The offset that a fraction of the file means: rounded down, then moved to the next character boundary. */
static enum err range_cut(const struct input_file *f, double fraction, uint64_t *out)
{
    *out = fraction >= 1 ? f->bytes : (uint64_t)(fraction * (double)f->bytes);
    if (*out == 0 || *out >= f->bytes) {
        return OK;
    }
    struct stream *s;
    unsigned char next[3];
    size_t got = 0;
    TRY(stream_open(&s, f->path, STREAM_PLAIN));
    enum err err = stream_seek(s, *out);
    if (err == OK) {
        err = stream_read(s, next, sizeof(next), &got);
    }
    stream_close(s);
    for (size_t i = 0; i < got && (next[i] & 0xc0) == 0x80; i++) {
        *out += 1;
    }
    return err;
}

static enum err set_range(struct reader *r, double lo, double hi)
{
    hi = hi == 0 ? 1 : hi;
    r->range_bytes = UINT64_MAX;
    if (lo == 0 && hi == 1) {
        return OK;
    }
    if (!(lo >= 0 && lo < hi && hi <= 1)) {
        return FAIL(ERR_USAGE, "range: %g:%g, 0 <= start < end <= 1 was expected", lo, hi);
    }
    const struct input_file *f = &r->inputs.file[0];
    if (r->inputs.count != 1 || f->jsonl || f->kind != STREAM_PLAIN) {
        return FAIL(ERR_USAGE, "range: a part can be taken of one plain .txt file only, the input is %s%s", f->path,
                    r->inputs.count > 1 ? " and more" : "");
    }
    uint64_t end;
    TRY(range_cut(f, lo, &r->range_lo));
    TRY(range_cut(f, hi, &end));
    r->range_bytes = end - r->range_lo;
    return OK;
}

enum err reader_open(struct reader **out, const struct reader_options *o)
{
    void *mem;
    *out = NULL;
    TRY(mem_alloc(&mem, 1, sizeof(struct reader)));
    struct reader *r = mem;
    const char *field = o->field != NULL ? o->field : "text";
    r->split = o->split;
    r->split_arg = o->split_arg;
    enum err err;
    TRY_OUT(mem_copy_string(&r->field, field, strlen(field)));
    TRY_OUT(inputs_expand(&r->inputs, o->inputs, o->inputs_count));
    TRY_OUT(set_range(r, o->range_lo, o->range_hi));
    *out = r;
    return OK;
out:
    reader_close(r);
    return err;
}

void reader_close(struct reader *r)
{
    if (r == NULL) {
        return;
    }
    stream_close(r->stream);
    inputs_release(&r->inputs);
    buf_release(&r->carry);
    free(r->field);
    free(r);
}

const char *reader_path(const struct reader *r, uint32_t file)
{
    return r->inputs.file[file].path;
}

struct reader_notes reader_notes(const struct reader *r)
{
    return r->notes;
}

uint64_t reader_consumed(const struct reader *r)
{
    return r->consumed_before + (r->stream != NULL ? stream_consumed(r->stream) : 0);
}

uint64_t reader_total(const struct reader *r)
{
    uint64_t total = 0;
    for (size_t i = 0; i < r->inputs.count; i++) {
        total += r->inputs.file[i].bytes;
    }
    return r->range_bytes < total ? r->range_bytes : total;
}

/* ---- gathering ---- */

static enum err add_piece(struct reader_batch *b, const struct reader_piece *p)
{
    void *mem = b->piece;
    TRY(mem_grow(&mem, &b->capacity, b->count + 1, sizeof(*b->piece)));
    b->piece = mem;
    b->piece[b->count++] = *p;
    return OK;
}

static size_t bom_bytes(struct reader *r, const char *text, size_t bytes)
{
    if (bytes < 3 || memcmp(text, "\xef\xbb\xbf", 3) != 0) {
        return 0;
    }
    r->notes.boms++;
    return 3;
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') {
            return false;
        }
    }
    return true;
}

static enum err add_long_line(const struct reader *r, struct reader_batch *b, size_t offset)
{
    struct reader_piece p = { .offset = offset,
                              .file = r->file,
                              .line = r->line,
                              .document_begins = true,
                              .document_ends = true,
                              .fault = READER_FAULT_LONG };
    return add_piece(b, &p);
}

/* One line at [offset, offset + bytes) of the batch, without its newline. */
static enum err add_line(struct reader *r, struct reader_batch *b, size_t offset, size_t bytes, bool file_ends)
{
    if (r->discard) { /* the rest of a line that has its piece already */
        r->discard = false;
        return OK;
    }
    r->line++;
    if (bytes > READER_LINE_BYTES_MAX) {
        return add_long_line(r, b, offset);
    }
    size_t skip = r->line == 1 ? bom_bytes(r, b->bytes.data + offset, bytes) : 0;
    struct reader_piece p = { .offset = offset + skip,
                              .bytes = bytes - skip,
                              .file = r->file,
                              .line = r->line,
                              .file_ends = file_ends,
                              .document_begins = true,
                              .document_ends = true };
    if (is_blank(b->bytes.data + p.offset, p.bytes)) {
        r->notes.blank_lines++;
        return OK;
    }
    return add_piece(b, &p);
}

/* Make pieces of all whole lines from *tail on. */
static enum err cut_lines(struct reader *r, struct reader_batch *b, size_t *tail, size_t searched)
{
    for (;;) {
        const char *from = b->bytes.data + searched;
        const char *newline = memchr(from, '\n', b->bytes.bytes - searched);
        if (newline == NULL) {
            break;
        }
        size_t end = (size_t)(newline - b->bytes.data);
        TRY(add_line(r, b, *tail, end - *tail, false));
        *tail = searched = end + 1;
    }
    if (b->bytes.bytes - *tail > READER_LINE_BYTES_MAX && !r->discard) {
        r->line++;
        TRY(add_long_line(r, b, *tail));
        r->discard = true;
    }
    if (r->discard) {
        b->bytes.bytes = *tail;
    }
    return OK;
}

static enum err add_text(struct reader *r, struct reader_batch *b, size_t *tail, size_t bytes, bool ends)
{
    size_t skip = r->position == 0 && r->range_lo == 0 ? bom_bytes(r, b->bytes.data + *tail, bytes) : 0;
    struct reader_piece p = { .offset = *tail + skip,
                              .bytes = bytes - skip,
                              .file = r->file,
                              .file_ends = ends,
                              .position = r->range_lo + r->position + skip,
                              .document_begins = r->position == 0,
                              .document_ends = ends };
    TRY(add_piece(b, &p));
    *tail += bytes;
    r->position += bytes;
    r->split_next = 0;
    return OK;
}

/* Cut a long text where that cannot change its tokens. A failed search is repeated only when the tail has doubled, so
 * that the cost stays linear. */
static enum err cut_text(struct reader *r, struct reader_batch *b, size_t *tail, size_t piece_bytes)
{
    size_t bytes = b->bytes.bytes - *tail;
    size_t least = r->split_next > piece_bytes ? r->split_next : piece_bytes;
    if (r->split == NULL || bytes < least) {
        return OK;
    }
    size_t cut = r->split(r->split_arg, b->bytes.data + *tail, bytes);
    BUG_IF(cut >= bytes);
    if (cut <= 3) { /* the byte-order mark alone is no piece */
        r->split_next = bytes * 2;
        return OK;
    }
    return add_text(r, b, tail, cut, false);
}

static enum err open_next(struct reader *r)
{
    const struct input_file *f = &r->inputs.file[r->file];
    TRY(stream_open(&r->stream, f->path, f->kind));
    r->line = r->position = 0;
    r->left = r->range_bytes;
    r->discard = false;
    r->split_next = 0;
    return r->range_lo > 0 ? stream_seek(r->stream, r->range_lo) : OK;
}

static enum err finish_file(struct reader *r, struct reader_batch *b, size_t *tail)
{
    size_t bytes = b->bytes.bytes - *tail;
    if (r->inputs.file[r->file].jsonl) {
        if (bytes > 0 || r->discard) {
            TRY(add_line(r, b, *tail, bytes, true));
        }
        *tail = b->bytes.bytes;
    } else if (bytes > 0 || r->position > 0) {
        TRY(add_text(r, b, tail, bytes, true));
    }
    r->consumed_before += stream_consumed(r->stream);
    stream_close(r->stream);
    r->stream = NULL;
    r->file++;
    return OK;
}

/* Read one block of the open file into the batch and cut pieces from it. */
static enum err read_block(struct reader *r, struct reader_batch *b, size_t *tail, size_t block)
{
    block = r->left < block ? (size_t)r->left : block;
    size_t got = 0, searched = b->bytes.bytes;
    if (block > 0) {
        TRY(buf_reserve(&b->bytes, block));
        TRY(stream_read(r->stream, (unsigned char *)b->bytes.data + b->bytes.bytes, block, &got));
    }
    if (got == 0) {
        return finish_file(r, b, tail);
    }
    b->bytes.bytes += got;
    b->bytes.data[b->bytes.bytes] = '\0';
    r->left -= got;
    if (r->inputs.file[r->file].jsonl) {
        return cut_lines(r, b, tail, searched);
    }
    return cut_text(r, b, tail, block < PIECE_BYTES ? block : PIECE_BYTES);
}

enum err reader_fill(struct reader *r, struct reader_batch *b, size_t bytes)
{
    size_t block = bytes < BLOCK_BYTES_MIN ? BLOCK_BYTES_MIN : bytes > BLOCK_BYTES_MAX ? BLOCK_BYTES_MAX : bytes;
    size_t tail = 0;
    buf_clear(&b->bytes);
    b->count = 0;
    if (r->carry.bytes > 0) {
        TRY(buf_add(&b->bytes, r->carry.data, r->carry.bytes));
        buf_clear(&r->carry);
    }
    while ((b->count == 0 || b->bytes.bytes < bytes) && r->file < r->inputs.count) {
        if (r->stream == NULL) {
            TRY(open_next(r));
        }
        TRY(read_block(r, b, &tail, block));
    }
    if (b->bytes.bytes > tail) {
        TRY(buf_add(&r->carry, b->bytes.data + tail, b->bytes.bytes - tail));
    }
    return OK;
}

/* ---- checking and decoding ---- */

static enum err fail_utf8(const char *path, const struct reader_piece *p, const char *text, size_t at)
{
    unsigned char first = (unsigned char)text[at];
    size_t need = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    bool cut = p->file_ends && first >= 0xc2 && first <= 0xf4 && p->bytes - at < need;
    for (size_t i = at + 1; i < p->bytes && cut; i++) {
        cut = ((unsigned char)text[i] & 0xc0) == 0x80;
    }
    const char *hint =
        cut ? "the file seems to be cut; download it again" : "convert the file to UTF-8, for example with iconv";
    if (p->line > 0) {
        return cut ? FAIL(ERR_DATA, "%s:%llu:%zu: the file ends inside a UTF-8 sequence (byte %zu of the line) | %s",
                          path, (unsigned long long)p->line, at + 1, at, hint)
                   : FAIL(ERR_DATA, "%s:%llu:%zu: invalid UTF-8 at byte %zu of the line (0x%02x) | %s", path,
                          (unsigned long long)p->line, at + 1, at, first, hint);
    }
    unsigned long long offset = p->position + at;
    return cut ? FAIL(ERR_DATA, "%s: the file ends inside a UTF-8 sequence at byte %llu | %s", path, offset, hint)
               : FAIL(ERR_DATA, "%s: invalid UTF-8 at byte %llu (0x%02x) | %s", path, offset, first, hint);
}

static enum err fail_nul(const char *path, const struct reader_piece *p, size_t at)
{
    const char *hint = "is it UTF-16 or binary?";
    if (p->line > 0) {
        return FAIL(ERR_DATA, "%s:%llu:%zu: a raw NUL byte, text was expected | %s", path, (unsigned long long)p->line,
                    at + 1, hint);
    }
    return FAIL(ERR_DATA, "%s: a NUL byte at byte %llu, text was expected | %s", path,
                (unsigned long long)(p->position + at), hint);
}

static enum err check_bytes(const char *path, const struct reader_piece *p, const char *text, enum reader_fault *fault)
{
    size_t valid = utf8_valid_prefix(text, p->bytes);
    if (valid < p->bytes) {
        *fault = READER_FAULT_UTF8;
        return fail_utf8(path, p, text, valid);
    }
    const char *nul = memchr(text, '\0', p->bytes);
    if (nul != NULL) {
        *fault = READER_FAULT_NUL;
        return fail_nul(path, p, (size_t)(nul - text));
    }
    return OK;
}

/* Which kind of fault jansson's refusal is; the message gets the plain words where jansson's own are obscure. */
static enum err explain_json(enum json_error_code code, enum reader_fault *fault)
{
    char message[ERR_MESSAGE_BYTES];
    snprintf(message, sizeof(message), "%s", err_message());
    *fault = code == json_error_end_of_input_expected       ? READER_FAULT_EXTRA
             : code == json_error_stack_overflow            ? READER_FAULT_DEPTH
             : code == json_error_duplicate_key             ? READER_FAULT_DUPLICATE
             : strstr(message, "invalid Unicode '") != NULL ? READER_FAULT_SURROGATE
                                                            : READER_FAULT_JSON;
    if (*fault == READER_FAULT_EXTRA || *fault == READER_FAULT_SURROGATE) {
        return FAIL(ERR_DATA, "%s (%s)", message, reader_fault_name(*fault));
    }
    return ERR_DATA;
}

static const char *json_kind(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string", [JSON_INTEGER] = "a number",
        [JSON_REAL] = "a number",    [JSON_TRUE] = "true",      [JSON_FALSE] = "false",     [JSON_NULL] = "null",
    };
    return names[json_typeof(v)];
}

/* The field of a parsed line. */
static enum err take_field(const struct reader *r, const struct reader_piece *p, struct reader_text *out,
                           enum reader_fault *fault)
{
    const char *path = reader_path(r, p->file);
    unsigned long long line = p->line;
    if (!json_is_object(out->line)) {
        *fault = READER_FAULT_OBJECT;
        return FAIL(ERR_DATA, "%s:%llu:1: %s, an object with the field \"%s\" was expected", path, line,
                    json_kind(out->line), r->field);
    }
    json_t *value = json_object_get(out->line, r->field);
    if (value == NULL) {
        void *first = json_object_iter(out->line);
        *fault = READER_FAULT_MISSING;
        return FAIL(ERR_DATA, "%s:%llu:1: no field \"%s\"%s%.64s%s | --field names the field to read", path, line,
                    r->field, first != NULL ? ", the object has \"" : ", the object is empty",
                    first != NULL ? json_object_iter_key(first) : "", first != NULL ? "\"" : "");
    }
    if (!json_is_string(value)) {
        *fault = READER_FAULT_TYPE;
        return FAIL(ERR_DATA, "%s:%llu:1: field \"%s\" is %s, a string was expected", path, line, r->field,
                    json_kind(value));
    }
    out->text = json_string_value(value);
    out->bytes = json_string_length(value);
    out->nul = memchr(out->text, '\0', out->bytes) != NULL;
    return OK;
}

enum err reader_text(const struct reader *r, const struct reader_batch *b, size_t piece, struct reader_text *out,
                     enum reader_fault *fault)
{
    const struct reader_piece *p = &b->piece[piece];
    const char *path = reader_path(r, p->file);
    const char *text = b->bytes.data + p->offset;
    *out = (struct reader_text){ 0 };
    *fault = p->fault;
    if (p->fault == READER_FAULT_LONG) {
        return FAIL(ERR_DATA, "%s:%llu:1: line of more than %zu bytes, documents up to that size are read", path,
                    (unsigned long long)p->line, READER_LINE_BYTES_MAX);
    }
    TRY(check_bytes(path, p, text, fault));
    if (p->line == 0) {
        out->text = text;
        out->bytes = p->bytes;
        return OK;
    }
    enum json_error_code code;
    if (json_parse_line(&out->line, path, p->line, text, p->bytes, &code) != OK) {
        return explain_json(code, fault);
    }
    enum err err = take_field(r, p, out, fault);
    if (err != OK) {
        reader_text_release(out);
    }
    return err;
}

void reader_text_release(struct reader_text *t)
{
    json_decref(t->line);
    *t = (struct reader_text){ 0 };
}
