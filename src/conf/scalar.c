/* Why this exists: most configuration accidents are values of the wrong type that some program reads anyway: "8" for 8,
 * 010 for 8, `no` for false, 1e999 for infinity. Here a text is matched against one grammar per type,
 *   whole  0 | [1-9][0-9]*          real  [-]? whole [. [0-9]*]? [e [+-]? [0-9]+]?   flag  true | false
 * and everything else is refused with the fix. Quotes always make a text. */
#include "conf/scalar.h"

#include "base/utf8.h"

struct quoted scalar_quote(const char *text, size_t bytes)
{
    struct quoted q;
    size_t used = 0, limit = sizeof(q.text) - 12;
    q.text[used++] = '"';
    for (size_t i = 0; i < bytes;) {
        uint32_t code;
        size_t n = utf8_decode(text + i, bytes - i, &code);
        if (used + 4 > limit) {
            memcpy(q.text + used, "...", 3);
            used += 3;
            break;
        }
        if (n == 0 || code < 0x20 || code == 0x7f) {
            snprintf(q.text + used, 5, "\\x%02x", (unsigned)(unsigned char)text[i]);
            used += 4;
            i++;
            continue;
        }
        memcpy(q.text + used, text + i, n);
        used += n;
        i += n;
    }
    q.text[used++] = '"';
    q.text[used] = '\0';
    return q;
}

bool scalar_is_scalar(const struct node *n)
{
    return n->kind == NODE_PLAIN || n->kind == NODE_QUOTED;
}

static bool plain_is(const struct node *n, const char *text)
{
    return n->kind == NODE_PLAIN && strcmp(n->text, text) == 0;
}

bool scalar_is_null(const struct node *n)
{
    return plain_is(n, "") || plain_is(n, "~") || plain_is(n, "null");
}

static size_t digits(const char *p)
{
    return strspn(p, "0123456789");
}

static bool is_whole(const char *p)
{
    size_t n = digits(p);
    return n > 0 && p[n] == '\0' && (p[0] != '0' || n == 1);
}

static bool is_real(const char *p)
{
    p += *p == '-';
    size_t before = digits(p);
    if (before == 0 || (p[0] == '0' && before > 1)) {
        return false;
    }
    p += before;
    if (*p == '.') {
        p += 1 + digits(p + 1);
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '-' || *p == '+';
        size_t exponent = digits(p);
        if (exponent == 0) {
            return false;
        }
        p += exponent;
    }
    return *p == '\0';
}

static bool is_one_of_words(const char *text, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcasecmp(text, *words) == 0) {
            return true;
        }
    }
    return false;
}

static const char *const words_true[] = { "true", "yes", "on", "y", NULL };
static const char *const words_false[] = { "false", "no", "off", "n", NULL };
static const char *const words_not_finite[] = { ".inf", "-.inf", "+.inf",    ".nan",      "inf", "-inf",
                                                "+inf", "nan",   "infinity", "-infinity", NULL };

static struct quoted words(const char *text)
{
    struct quoted q;
    snprintf(q.text, sizeof(q.text), "%.99s", text);
    return q;
}

/* A prefix and a text without quotes, cut to fit. */
static struct quoted named(const char *prefix, const char *text)
{
    struct quoted q;
    snprintf(q.text, sizeof(q.text), "%s %.60s", prefix, text);
    return q;
}

struct quoted scalar_describe(const struct node *n)
{
    if (n->kind == NODE_LIST) {
        return words("a list");
    }
    if (n->kind == NODE_MAP) {
        return words("a mapping");
    }
    struct quoted q, inner = scalar_quote(n->text, n->bytes);
    if (n->kind == NODE_QUOTED) {
        snprintf(q.text, sizeof(q.text), "the string %.88s", inner.text);
        return q;
    }
    if (scalar_is_null(n)) {
        return words("nothing (null)");
    }
    if (is_whole(n->text)) {
        return named("the whole number", n->text);
    }
    if (is_real(n->text)) {
        return named(strpbrk(n->text, ".eE") != NULL ? "the real number" : "the number", n->text);
    }
    if (plain_is(n, "true") || plain_is(n, "false")) {
        return words(n->text);
    }
    snprintf(q.text, sizeof(q.text), "the text %.90s", inner.text);
    return q;
}

struct quoted scalar_show(const struct node *n)
{
    if (!scalar_is_scalar(n) || scalar_is_null(n)) {
        return scalar_describe(n);
    }
    struct quoted q = scalar_quote(n->text, n->bytes);
    if (n->kind == NODE_PLAIN) { /* without the quotes */
        size_t bytes = strlen(q.text);
        memmove(q.text, q.text + 1, bytes - 1);
        q.text[bytes - 2] = '\0';
    }
    return q;
}

static struct scalar_problem problem(const char *expected, const struct node *n, const char *advice)
{
    struct scalar_problem p = { .bad = true };
    snprintf(p.text, sizeof(p.text), "expected %s, got %.99s%s%.80s%s", expected, scalar_describe(n).text,
             advice[0] != '\0' ? " (" : "", advice, advice[0] != '\0' ? ")" : "");
    return p;
}

/* Advice for a plain text that is almost a number. */
static const char *number_advice(const struct node *n)
{
    if (!scalar_is_scalar(n)) {
        return "";
    }
    if (strcmp(n->text, "auto") == 0) {
        return "write the number: only a trainer that calls DeepSpeed fills in auto";
    }
    if (n->kind == NODE_QUOTED) {
        return is_real(n->text) ? "remove the quotes" : "";
    }
    const char *p = n->text + (n->text[0] == '-' || n->text[0] == '+');
    if (n->text[0] == '-' && is_real(n->text)) {
        return "it may not be negative";
    }
    if (is_one_of_words(n->text, words_not_finite)) {
        return "write a finite number";
    }
    if (strpbrk(p, "_,") != NULL && strspn(p, "0123456789_,.") == strlen(p)) {
        return "write the digits without separators";
    }
    if (p[0] == '0' && digits(p) == strlen(p)) {
        return "remove the leading zero";
    }
    if (n->text[0] == '+') {
        return "remove the +";
    }
    if (p[0] == '.' && digits(p + 1) > 0) {
        return "write a digit before the point";
    }
    return "";
}

struct scalar_problem scalar_whole(const struct node *n, uint64_t *out)
{
    *out = 0;
    if (n->kind != NODE_PLAIN || !is_whole(n->text)) {
        char advice[80];
        snprintf(advice, sizeof(advice), "%s", number_advice(n));
        if (n->kind == NODE_PLAIN && is_real(n->text)) {
            double value = strtod(n->text, NULL);
            if (value >= 0 && value < 0x1p53 && value == (double)(uint64_t)value) {
                snprintf(advice, sizeof(advice), "write %llu", (unsigned long long)value);
            }
        }
        return problem("a whole number", n, advice);
    }
    unsigned long long value = strtoull(n->text, NULL, 10); /* the largest one when there are too many digits */
    if (value > INT64_MAX) {
        return problem("a whole number", n, "it has too many digits");
    }
    *out = value;
    return (struct scalar_problem){ 0 };
}

struct scalar_problem scalar_real(const struct node *n, double *out)
{
    *out = 0;
    if (n->kind != NODE_PLAIN || !is_real(n->text)) {
        return problem("a number", n, number_advice(n));
    }
    double value = strtod(n->text, NULL);
    if (!(value >= -1.7976931348623157e308 && value <= 1.7976931348623157e308)) {
        return problem("a number", n, "it is too large for a number of 64 bits");
    }
    *out = value;
    return (struct scalar_problem){ 0 };
}

struct scalar_problem scalar_flag(const struct node *n, bool *out)
{
    *out = plain_is(n, "true");
    if (*out || plain_is(n, "false")) {
        return (struct scalar_problem){ 0 };
    }
    const char *advice = "";
    if (scalar_is_scalar(n) && is_one_of_words(n->text, words_true)) {
        advice = n->kind == NODE_QUOTED && strcmp(n->text, "true") == 0 ? "remove the quotes" : "write true";
    } else if (scalar_is_scalar(n) && is_one_of_words(n->text, words_false)) {
        advice = n->kind == NODE_QUOTED && strcmp(n->text, "false") == 0 ? "remove the quotes" : "write false";
    }
    return problem("true or false", n, advice);
}

struct scalar_problem scalar_text(const struct node *n)
{
    if (n->kind == NODE_QUOTED) {
        return n->bytes > 0 ? (struct scalar_problem){ 0 } : problem("a text", n, "it is empty");
    }
    if (n->kind != NODE_PLAIN || scalar_is_null(n)) {
        return problem("a text", n, "");
    }
    if (is_real(n->text) || plain_is(n, "true") || plain_is(n, "false")) {
        return problem("a text", n, "put it in quotes");
    }
    return (struct scalar_problem){ 0 };
}

bool scalar_is_one_of(const struct node *n, const char *list)
{
    if (!scalar_is_scalar(n)) {
        return false;
    }
    bool number = n->kind == NODE_PLAIN && is_real(n->text);
    bool null = scalar_is_null(n);
    for (const char *p = list; *p != '\0';) {
        size_t bytes = strcspn(p, "|");
        char item[64];
        snprintf(item, sizeof(item), "%.*s", (int)bytes, p);
        if ((null && strcmp(item, "null") == 0) || (!null && strcmp(item, n->text) == 0 && strcmp(item, "null") != 0)) {
            /* A quoted "false" or "0" is a text, not the value. */
            bool literal = is_real(item) || strcmp(item, "true") == 0 || strcmp(item, "false") == 0;
            return !(literal && n->kind == NODE_QUOTED);
        }
        if (number && is_real(item) && strtod(n->text, NULL) == strtod(item, NULL)) {
            return true;
        }
        p += bytes + (p[bytes] == '|');
    }
    return false;
}

struct quoted scalar_write_real(double value)
{
    struct quoted q;
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(q.text, sizeof(q.text), "%.*g", precision, value);
        if (strtod(q.text, NULL) == value) {
            break;
        }
    }
    if (strchr(q.text, 'e') != NULL && value >= 1 && value < 1e15 && value == (double)(uint64_t)value) {
        snprintf(q.text, sizeof(q.text), "%.0f", value); /* 10000, not 1e+04 */
    }
    return q;
}
