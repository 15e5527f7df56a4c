/* Why this exists: SentencePiece's own model file says everything: pieces, scores, normalization. From a BPE model the
 * merges follow (two neighbours merge when the text of both is a piece, best score first), so it becomes the same
 * model that a tokenizer.json of its kind gives; a Unigram model is its scores.
 *
 * SentencePiece reads control pieces (<s>) in a text as characters; only TOKENIZER_SPECIAL finds them there. */
#include "base/log.h"
#include "base/mem.h"
#include "data/spm_file.h"
#include "data/tokenizer_int.h"

#define SPACE_SYMBOL "\xe2\x96\x81" /* U+2581 */
#define PIECES_MAX ((size_t)1 << 23)

/* ---- tokens ---- */

static enum err add_pieces(struct tokenizer *t, const char *where, const struct spm_file *m)
{
    if (m->count > PIECES_MAX) {
        return FAIL(ERR_DATA, "%s: %zu pieces, at most %zu", where, m->count, PIECES_MAX);
    }
    t->bpe.chars = true;
    t->bpe.late_fallback = true;
    t->bpe.byte_fallback = m->byte_fallback;
    t->bpe.fuse_unk = true;
    t->bpe.unk = -1;
    for (size_t i = 0; i < m->count; i++) {
        const struct spm_piece *p = &m->piece[i];
        if (p->type == SPM_UNUSED && m->kind == SPM_BPE) {
            return FAIL(ERR_DATA, "%s: piece %zu has type UNUSED, which is not supported in a BPE model", where, i);
        }
        if (p->type == SPM_UNKNOWN && t->bpe.unk >= 0) {
            return FAIL(ERR_DATA, "%s: pieces %d and %zu have type UNKNOWN, expected one", where, t->bpe.unk, i);
        }
        TRY(bpe_add_token(&t->bpe, where, p->text, p->bytes, (int64_t)i, false));
        t->bpe.token[i].aside = p->type != SPM_NORMAL;
        t->bpe.unk = p->type == SPM_UNKNOWN ? (int32_t)i : t->bpe.unk;
    }
    TRY(bpe_seal(&t->bpe, where));
    if (t->bpe.unk < 0) {
        return FAIL(ERR_DATA, "%s: no piece has type UNKNOWN, expected one", where);
    }
    if (m->byte_fallback && t->bpe.missing > 0) {
        return FAIL(ERR_DATA, "%s: trainer_spec.byte_fallback: needs the pieces <0x00> to <0xFF>, %d are missing",
                    where, t->bpe.missing);
    }
    return OK;
}

/* Control pieces for TOKENIZER_SPECIAL, user-defined ones for every text. */
static enum err add_special(struct tokenizer *t, const char *where, const struct spm_file *m)
{
    for (size_t i = 0; i < m->count; i++) {
        const struct spm_piece *p = &m->piece[i];
        struct added_token token = { .bytes = p->bytes, .id = (int32_t)i, .special = true };
        if (p->type == SPM_USER) {
            TRY(symbol_trie_add(&t->user, p->text, p->bytes, (int32_t)i));
        }
        if (p->type == SPM_CONTROL) {
            TRY(mem_copy_string(&token.text, p->text, p->bytes));
            enum err err = tokenizer_add(t, where, &token);
            free(token.text);
            TRY(err);
        }
    }
    return OK;
}

/* ---- models ---- */

static int by_score(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* order[i]: how many different scores are better than that of piece i. */
static enum err order_pieces(const struct spm_file *m, uint32_t *order)
{
    void *block;
    TRY(mem_alloc(&block, m->count, sizeof(float)));
    float *score = block;
    size_t n = 0;
    for (size_t i = 0; i < m->count; i++) {
        score[i] = m->piece[i].score;
    }
    qsort(score, m->count, sizeof(float), by_score);
    for (size_t i = 0; i < m->count; i++) {
        if (n == 0 || score[i] < score[n - 1]) {
            score[n++] = score[i];
        }
    }
    for (size_t i = 0; i < m->count; i++) {
        size_t lo = 0, hi = n - 1;
        while (lo < hi) { /* the first that is not above it */
            size_t mid = lo + (hi - lo) / 2;
            if (score[mid] > m->piece[i].score) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        order[i] = (uint32_t)lo;
    }
    free(score);
    return OK;
}

static enum err make_bpe(struct tokenizer *t, const char *where, const struct spm_file *m)
{
    void *block;
    TRY(mem_alloc(&block, m->count, sizeof(uint32_t)));
    uint32_t *order = block;
    enum err err = OK;
    t->model = MODEL_CHARS;
    TRY_OUT(order_pieces(m, order));
    TRY_OUT(bpe_index_chars(&t->bpe));
    TRY_OUT(bpe_imply_merges(&t->bpe, where, order));
    err = bpe_index_joints(&t->bpe);
out:
    free(order);
    return err;
}

static enum err make_unigram(struct tokenizer *t, const struct spm_file *m)
{
    void *block;
    double least = 3.4e38, most = -3.4e38;
    size_t n = 0;
    TRY(mem_alloc(&block, m->count, sizeof(struct unigram_token)));
    struct unigram_token *list = block;
    for (size_t i = 0; i < m->count; i++) {
        const struct spm_piece *p = &m->piece[i];
        double score = (double)p->score;
        if (p->type == SPM_NORMAL) {
            least = score < least ? score : least;
            most = score > most ? score : most;
        }
        if (p->type == SPM_NORMAL || p->type == SPM_USER) {
            list[n++] = (struct unigram_token){ p->text, (uint32_t)p->bytes, (int32_t)i, score, p->type == SPM_USER };
        }
    }
    t->model = MODEL_UNIGRAM;
    t->unigram.unk = t->bpe.unk;
    t->unigram.single = true;
    enum err err = unigram_new(&t->unigram, list, n, least, most);
    free(list);
    return err;
}

/* ---- normalization and decoding ---- */

static enum err make_normal(struct tokenizer *t, const char *where, const struct spm_file *m)
{
    struct normal_step *s = &t->normal.step[t->normal.steps++];
    char field[TOKENIZER_MESSAGE_PATH + 96];
    s->kind = NORMAL_SPM;
    s->spm = (struct normal_spm){ m->rules.dummy_prefix, m->rules.remove_extra, m->rules.escape,
                                  t->user.count > 0 ? &t->user : NULL };
    snprintf(field, sizeof(field), "%s: normalizer_spec.precompiled_charsmap", where);
    return m->rules.map_bytes > 0 ? charsmap_new(&s->map, field, m->rules.map, m->rules.map_bytes) : OK;
}

static enum err make_decode(struct tokenizer *t, const struct spm_file *m)
{
    struct decode_chain *c = &t->decode;
    c->step[c->steps++].kind = DECODE_BYTES;
    if (m->rules.dummy_prefix || m->rules.remove_extra) {
        struct decode_step *s = &c->step[c->steps++];
        *s = (struct decode_step){ .kind = DECODE_STRIP, .start = 1, .whole = true, .each = m->rules.remove_extra };
        TRY(buf_add_string(&s->what, SPACE_SYMBOL));
    }
    struct decode_step *s = &c->step[c->steps++];
    s->kind = DECODE_REPLACE;
    TRY(buf_add_string(&s->what, SPACE_SYMBOL));
    TRY(buf_add_string(&s->with, " "));
    c->unknown = t->bpe.unk;
    return buf_add(&c->unknown_text, m->unk_surface, m->unk_surface_bytes);
}

static enum err check(const char *where, const struct spm_file *m)
{
    if (m->kind == SPM_WORD || m->kind == SPM_CHAR) {
        return FAIL(ERR_DATA, "%s: trainer_spec.model_type: %s is not supported, expected BPE or UNIGRAM", where,
                    m->kind == SPM_WORD ? "WORD" : "CHAR");
    }
    if (m->suffix || m->back.map_bytes > 0) {
        return FAIL(ERR_DATA, "%s: %s is set, which is not supported", where,
                    m->suffix ? "trainer_spec.treat_whitespace_as_suffix" :
                    "denormalizer_spec.precompiled_charsmap");
    }
    return OK;
}

static enum err make(struct tokenizer *t, const char *where, const struct spm_file *m)
{
    TRY(check(where, m));
    TRY(add_pieces(t, where, m));
    TRY(add_special(t, where, m));
    TRY(make_normal(t, where, m));
    TRY(make_decode(t, m));
    if (m->eos >= 0 && (uint64_t)m->eos < m->count && m->piece[m->eos].type == SPM_CONTROL) {
        t->eot = m->eos;
    }
    return m->kind == SPM_BPE ? make_bpe(t, where, m) : make_unigram(t, m);
}

enum err tokenizer_parse_spm(struct tokenizer *t, const char *where, const struct buf *text)
{
    struct spm_file m;
    enum err err = spm_file_parse(&m, where, text->data != NULL ? text->data : "", text->bytes);
    err = err != OK ? err : make(t, where, &m);
    if (err == OK && (m.rules.remove_extra || m.rules.map_bytes > 0)) {
        log_note("%s: the model's normalization changes texts%s%s: decoded tokens are not always the text", where,
                 m.rules.remove_extra ? ", removes white space at the ends and in rows" : "",
                 m.rules.map_bytes > 0 ? ", maps characters" : "");
    }
    spm_file_release(&m);
    return err;
}
