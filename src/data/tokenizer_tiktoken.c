/* Why this exists: tiktoken's files hold nothing but the tokens in base64 with their ranks, one a line: two neighbours
 * merge when the bytes of both are a token, lowest rank first. The pattern of words and the special tokens belong to
 * the name of the encoding, which is the name of the file.
 *
 * Invariant: an encoding that is not known by name is refused; its words would be cut by a guess. */
#include "base/mem.h"
#include "data/charsmap.h"
#include "data/tokenizer_int.h"

#define O200K_TAIL "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define SUFFIX ".tiktoken"

static const char o200k_pattern[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" O200K_TAIL
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" O200K_TAIL
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

#define SPECIALS 5
static const struct encoding {
    const char *name; /* of the file */
    enum pretoken_scanner scanner;
    const char *pattern; /* where there is no scanner */
    struct {
        const char *text;
        int32_t id;
    } special[SPECIALS];
} encodings[] = {
    { "cl100k_base" SUFFIX, SCANNER_CL100K, NULL,
      { { "<|endoftext|>", 100257 }, { "<|fim_prefix|>", 100258 }, { "<|fim_middle|>", 100259 },
        { "<|fim_suffix|>", 100260 }, { "<|endofprompt|>", 100276 } } },
    { "o200k_base" SUFFIX, SCANNER_NONE, o200k_pattern,
      { { "<|endoftext|>", 199999 }, { "<|endofprompt|>", 200018 } } },
    { "p50k_base" SUFFIX, SCANNER_GPT2, NULL, { { "<|endoftext|>", 50256 } } },
    { "r50k_base" SUFFIX, SCANNER_GPT2, NULL, { { "<|endoftext|>", 50256 } } },
};

const char *tokenizer_tiktoken_name(size_t i)
{
    return i < sizeof(encodings) / sizeof(encodings[0]) ? encodings[i].name : NULL;
}

const char *tokenizer_tiktoken_known(const char *name)
{
    for (size_t i = 0; tokenizer_tiktoken_name(i) != NULL; i++) {
        if (strcmp(encodings[i].name, name) == 0) {
            return encodings[i].name;
        }
    }
    return NULL;
}

/* ---- ranks ---- */

static enum err parse_line(struct tokenizer *t, const char *where, size_t number, const char *line, size_t bytes,
                           struct buf work[2])
{
    const char *space = memchr(line, ' ', bytes);
    char quote[96];
    int64_t rank = 0;
    bool whole = false;
    buf_clear(&work[0]);
    buf_clear(&work[1]);
    if (space != NULL && space > line) {
        TRY(base64_decode(line, (size_t)(space - line), &work[0], &whole));
    }
    const char *digit = whole ? space + 1 : NULL, *end = line + bytes;
    whole = whole && digit < end && end - digit <= 9 && work[0].bytes > 0;
    for (; whole && digit < end; digit++) {
        whole = *digit >= '0' && *digit <= '9';
        rank = 10 * rank + (*digit - '0');
    }
    if (!whole) {
        return FAIL(ERR_DATA, "%s:%zu: \"%s\", expected a token in base64, a blank and its rank", where, number,
                    bpe_quote(line, bytes, quote));
    }
    TRY(bytelevel_encode(work[0].data, work[0].bytes, &work[1]));
    return bpe_add_token(&t->bpe, where, work[1].data, work[1].bytes, rank, false);
}

static enum err parse_lines(struct tokenizer *t, const char *where, const struct buf *text)
{
    struct buf work[2] = { { 0 }, { 0 } };
    enum err err = OK;
    size_t number = 0;
    const char *p = text->data, *end = p + text->bytes;
    while (p < end && err == OK) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop != NULL ? stop : end;
        size_t len = (size_t)(stop - p);
        len -= len > 0 && p[len - 1] == '\r';
        number++;
        err = len > 0 ? parse_line(t, where, number, p, len, work) : OK;
        p = stop + 1;
    }
    buf_release(&work[0]);
    buf_release(&work[1]);
    return err;
}

static enum err make_merges(struct tokenizer *t, const char *where)
{
    void *block;
    TRY(bpe_seal(&t->bpe, where));
    for (int i = 0; i < 256; i++) {
        if (t->bpe.byte_id[i] < 0) {
            return FAIL(ERR_DATA, "%s: the byte 0x%02x is no token, expected all 256", where, (unsigned)i);
        }
    }
    TRY(mem_alloc(&block, t->bpe.count, sizeof(uint32_t)));
    uint32_t *order = block;
    for (size_t i = 0; i < t->bpe.count; i++) {
        order[i] = (uint32_t)t->bpe.token[i].id;
    }
    enum err err = bpe_imply_merges(&t->bpe, where, order);
    free(order);
    t->bpe.ignore_merges = true; /* a word that is a token is that token */
    return err;
}

enum err tokenizer_parse_tiktoken(struct tokenizer *t, const char *where, const char *name, const struct buf *text)
{
    const struct encoding *e = encodings;
    while (strcmp(e->name, name) != 0) {
        e++;
    }
    t->model = MODEL_BYTES;
    TRY(parse_lines(t, where, text));
    TRY(make_merges(t, where));
    struct pretoken_step *step = &t->pre.step[t->pre.steps++];
    step->behavior = STEP_ISOLATED;
    step->scanner = e->scanner;
    step->kind = e->pattern == NULL ? STEP_SCAN : STEP_REGEX;
    if (e->pattern != NULL) {
        TRY(regex_new(&step->regex, where, e->pattern, strlen(e->pattern)));
    }
    t->pre.step[t->pre.steps++] = (struct pretoken_step){ .kind = STEP_BYTELEVEL, .scanner = SCANNER_NONE };
    for (int i = 0; i < SPECIALS && e->special[i].text != NULL; i++) {
        struct added_token token = { .text = (char *)e->special[i].text, .bytes = strlen(e->special[i].text),
                                     .id = e->special[i].id, .special = true };
        TRY(tokenizer_add(t, where, &token));
    }
    return tokenizer_seal_added(t, where);
}
