/* Why this exists: jansson parses well but its recursion depth is its own (2048); outside data get a lower bound and
 * messages in this project's form. */
#include "base/json.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"

/* Line and column (in bytes, from 1) of the first bracket nested deeper than JSON_DEPTH_MAX; false when there is
 * none. */
static bool too_deep(const char *text, size_t bytes, int *line, int *col)
{
    int depth = 0;
    bool in_string = false;
    *line = 1;
    *col = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        *col += 1;
        if (c == '\n') {
            *line += 1;
            *col = 0;
        } else if (in_string) {
            if (c == '\\') {
                i++;
                *col += 1;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if ((c == '{' || c == '[') && ++depth > JSON_DEPTH_MAX) {
            return true;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return false;
}

static enum err parse(json_t **out, const char *name, uint64_t line, const char *text, size_t bytes, size_t flags,
                      enum json_error_code *code)
{
    int deep_line, col;
    *out = NULL;
    *code = json_error_unknown;
    if (bytes == 0) {
        return FAIL(ERR_DATA, "%s: empty, JSON was expected", name);
    }
    if (too_deep(text, bytes, &deep_line, &col)) {
        *code = json_error_stack_overflow;
        return FAIL(ERR_DATA, "%s:%llu:%d: brackets nested deeper than %d, which no file of this kind needs", name,
                    (unsigned long long)line + (unsigned long long)deep_line - 1, col, JSON_DEPTH_MAX);
    }
    json_error_t error;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY | flags, &error);
    if (*out == NULL) {
        *code = json_error_code(&error);
        for (char *c = error.text; *c != '\0'; c++) { /* jansson quotes the input: no control codes on a terminal */
            *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
        }
        unsigned long long at = error.line > 0 ? (unsigned long long)error.line - 1 : 0;
        return FAIL(ERR_DATA, "%s:%llu:%d: not valid JSON: %s", name, (unsigned long long)line + at,
                    error.column > 0 ? error.column : 1, error.text);
    }
    return OK;
}

enum err json_parse_line(json_t **out, const char *name, uint64_t line, const char *text, size_t bytes,
                         enum json_error_code *code)
{
    return parse(out, name, line, text, bytes, 0, code);
}

enum err json_parse_reals(json_t **out, const char *name, const char *text, size_t bytes)
{
    enum json_error_code code;
    return parse(out, name, 1, text, bytes, JSON_DECODE_INT_AS_REAL, &code);
}

enum err json_parse(json_t **out, const char *name, const char *text, size_t bytes)
{
    enum json_error_code code;
    return json_parse_line(out, name, 1, text, bytes, &code);
}

enum err json_read_file(json_t **out, const char *path, size_t limit)
{
    struct buf text = { 0 };
    *out = NULL;
    enum err err = file_read(path, limit, &text);
    if (err == OK) {
        err = json_parse(out, path, text.data != NULL ? text.data : "", text.bytes);
    }
    buf_release(&text);
    return err;
}

static enum err take_line(const char *path, uint64_t line, const char *text, size_t bytes, json_line_fn *each,
                          void *arg)
{
    json_t *value;
    enum json_error_code code;
    if (json_parse_line(&value, path, line, text, bytes, &code) != OK) {
        log_warning("%s; the line is left out", err_message());
        return OK;
    }
    enum err err = each(arg, value);
    json_decref(value);
    return err;
}

enum err json_each_line(const char *path, size_t limit, json_line_fn *each, void *arg)
{
    struct buf text = { 0 };
    enum err err = file_read(path, limit, &text);
    size_t at = 0;
    for (uint64_t line = 1; err == OK && at < text.bytes; line++) {
        const char *start = text.data + at, *stop = memchr(start, '\n', text.bytes - at);
        if (stop == NULL) {
            break;
        }
        size_t bytes = (size_t)(stop - start);
        err = bytes > 0 ? take_line(path, line, start, bytes, each, arg) : OK;
        at += bytes + 1;
    }
    buf_release(&text);
    return err;
}

bool json_hex64(const json_t *object, const char *key, uint64_t *out)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        return false;
    }
    *out = strtoull(text, NULL, 16);
    return true;
}
