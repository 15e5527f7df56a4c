/* Why this exists: tokenizer.model holds pieces and settings as a protocol buffer. The little that is needed of that
 * format is read here: a field is a number with a kind (variable-length integer, 8 or 4 bytes, a length and bytes),
 * and a message is a list of fields, the last of a number counting.
 *
 * Invariant: nothing outside of data[0, bytes) is read, and no piece is kept that would take more memory than the file
 * has given. */
#include "data/spm_file.h"

#include <math.h>

#include "base/mem.h"
#include "base/utf8.h"

struct reader {
    const char *where, *start, *p, *end;
};

struct field {
    uint32_t number, kind;
    uint64_t value;   /* of kind 0; the bits of kinds 1 and 5 */
    const char *data; /* of kind 2 */
    size_t bytes;
};

enum { KIND_INTEGER = 0, KIND_8_BYTES = 1, KIND_BYTES = 2, KIND_4_BYTES = 5 };

static enum err damaged(const struct reader *r, const char *what)
{
    return FAIL(ERR_DATA, "%s: offset %zu: %s | not a SentencePiece model, or a damaged one", r->where,
                (size_t)(r->p - r->start), what);
}

static enum err read_integer(struct reader *r, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->p == r->end) {
            return damaged(r, "the file ends inside of a number");
        }
        unsigned char byte = (unsigned char)*r->p++;
        if (shift == 63 && byte > 1) {
            break;
        }
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return OK;
        }
    }
    return damaged(r, "a number is longer than 64 bits");
}

static enum err read_fixed(struct reader *r, size_t bytes, uint64_t *out)
{
    if ((size_t)(r->end - r->p) < bytes) {
        return damaged(r, "the file ends inside of a number");
    }
    *out = 0;
    for (size_t i = 0; i < bytes; i++) {
        *out |= (uint64_t)(unsigned char)r->p[i] << (8 * i);
    }
    r->p += bytes;
    return OK;
}

static enum err read_field(struct reader *r, struct field *f)
{
    uint64_t key, length;
    TRY(read_integer(r, &key));
    *f = (struct field){ .number = (uint32_t)(key >> 3), .kind = (uint32_t)(key & 7) };
    if (key >> 3 == 0 || key >> 32 != 0) {
        return damaged(r, "a field without a number");
    }
    switch (f->kind) {
    case KIND_INTEGER:
        return read_integer(r, &f->value);
    case KIND_8_BYTES:
        return read_fixed(r, 8, &f->value);
    case KIND_4_BYTES:
        return read_fixed(r, 4, &f->value);
    case KIND_BYTES:
        TRY(read_integer(r, &length));
        if (length > (uint64_t)(r->end - r->p)) {
            return damaged(r, "a field is longer than what is left");
        }
        f->data = r->p;
        f->bytes = (size_t)length;
        r->p += length;
        return OK;
    default:
        return damaged(r, "a field of unknown kind");
    }
}

/* A reader of the message in a field. */
static struct reader inside(const struct reader *r, const struct field *f)
{
    return (struct reader){ r->where, r->start, f->data, f->data + f->bytes };
}

static enum err want(const struct reader *r, const struct field *f, uint32_t kind)
{
    return f->kind == kind ? OK : damaged(r, "a field is of another kind than expected");
}

/* ---- the messages ---- */

static enum err read_piece(const struct reader *outer, const struct field *message, struct spm_piece *p)
{
    struct reader r = inside(outer, message);
    *p = (struct spm_piece){ .text = "", .type = SPM_NORMAL };
    while (r.p < r.end) {
        struct field f;
        TRY(read_field(&r, &f));
        if (f.number == 1) {
            TRY(want(&r, &f, KIND_BYTES));
            p->text = f.data;
            p->bytes = f.bytes;
        } else if (f.number == 2) {
            TRY(want(&r, &f, KIND_4_BYTES));
            uint32_t bits = (uint32_t)f.value;
            memcpy(&p->score, &bits, 4);
        } else if (f.number == 3) {
            TRY(want(&r, &f, KIND_INTEGER));
            if (f.value < SPM_NORMAL || f.value > SPM_BYTE) {
                return damaged(&r, "a piece of unknown type");
            }
            p->type = (enum spm_type)f.value;
        }
    }
    if (p->bytes == 0 || utf8_valid_prefix(p->text, p->bytes) != p->bytes) {
        return damaged(&r, p->bytes == 0 ? "a piece without text" : "a piece that is not UTF-8");
    }
    return isfinite(p->score) ? OK : damaged(&r, "a piece whose score is no number");
}

static enum err add_piece(struct spm_file *m, const struct reader *r, const struct field *f)
{
    struct spm_piece piece;
    TRY(want(r, f, KIND_BYTES));
    TRY(read_piece(r, f, &piece));
    void *array = m->piece;
    TRY(mem_grow(&array, &m->capacity, m->count + 1, sizeof(struct spm_piece)));
    m->piece = array;
    m->piece[m->count++] = piece;
    return OK;
}

static enum err read_trainer(struct spm_file *m, const struct reader *outer, const struct field *message)
{
    TRY(want(outer, message, KIND_BYTES));
    struct reader r = inside(outer, message);
    while (r.p < r.end) {
        struct field f;
        TRY(read_field(&r, &f));
        switch (f.number) {
        case 3:
            TRY(want(&r, &f, KIND_INTEGER));
            if (f.value < SPM_UNIGRAM || f.value > SPM_CHAR) {
                return damaged(&r, "trainer_spec.model_type is not known");
            }
            m->kind = (enum spm_kind)f.value;
            break;
        case 24:
            m->suffix = f.value != 0;
            break;
        case 35:
            m->byte_fallback = f.value != 0;
            break;
        case 42:
            m->eos = (int64_t)f.value;
            break;
        case 44:
            TRY(want(&r, &f, KIND_BYTES));
            m->unk_surface = f.data;
            m->unk_surface_bytes = f.bytes;
            break;
        default:
            break;
        }
    }
    return OK;
}

static enum err read_rules(struct spm_rules *rules, const struct reader *outer, const struct field *message)
{
    TRY(want(outer, message, KIND_BYTES));
    struct reader r = inside(outer, message);
    while (r.p < r.end) {
        struct field f;
        TRY(read_field(&r, &f));
        if (f.number == 2) {
            TRY(want(&r, &f, KIND_BYTES));
            rules->map = f.data;
            rules->map_bytes = f.bytes;
        } else if (f.number >= 3 && f.number <= 5) {
            TRY(want(&r, &f, KIND_INTEGER));
            bool *flag[] = { &rules->dummy_prefix, &rules->remove_extra, &rules->escape };
            *flag[f.number - 3] = f.value != 0;
        }
    }
    return OK;
}

enum err spm_file_parse(struct spm_file *m, const char *where, const char *data, size_t bytes)
{
    static const char unk_surface[] = " \xe2\x81\x87 ";
    struct reader r = { where, data, data, data + bytes };
    *m = (struct spm_file){ .kind = SPM_UNIGRAM, .eos = 2, .unk_surface = unk_surface, .unk_surface_bytes = 5,
                            .rules = { .dummy_prefix = true, .remove_extra = true, .escape = true } };
    while (r.p < r.end) {
        struct field f;
        TRY(read_field(&r, &f));
        if (f.number == 1) {
            TRY(add_piece(m, &r, &f));
        } else if (f.number == 2) {
            TRY(read_trainer(m, &r, &f));
        } else if (f.number == 3) {
            TRY(read_rules(&m->rules, &r, &f));
        } else if (f.number == 5) {
            TRY(read_rules(&m->back, &r, &f));
        }
    }
    return m->count > 0 ? OK : damaged(&r, "there are no pieces");
}

void spm_file_release(struct spm_file *m)
{
    free(m->piece);
    *m = (struct spm_file){ 0 };
}
