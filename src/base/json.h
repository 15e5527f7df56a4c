/* JSON files through jansson, with the limits outside data need: duplicate keys, depth above 64 and text after the
 * value are refused, and every error names file:line:column. Values are jansson's json_t; json_decref frees them. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>

#include "base/err.h"

#define JSON_DEPTH_MAX 64

/* Parse `text`; `name` stands for the file in messages. */
MUST_USE enum err json_parse(json_t **out, const char *name, const char *text, size_t bytes);
/* As json_parse for a text that begins at line `line` of its file; *code is jansson's kind of fault
 * (json_error_unknown when there is none). */
MUST_USE enum err json_parse_line(json_t **out, const char *name, uint64_t line, const char *text, size_t bytes,
                                  enum json_error_code *code);
/* As json_parse for a file whose integers are not asked for: every number becomes a real, so that one beyond 64 bits
 * (transformers writes 10^30 for "no limit") is no fault. */
MUST_USE enum err json_parse_reals(json_t **out, const char *name, const char *text, size_t bytes);
/* Read and parse a file of at most `limit` bytes. */
MUST_USE enum err json_read_file(json_t **out, const char *path, size_t limit);
/* A field of an object that is a text of 16 lower-case hexadecimal digits; false: there is none. */
bool json_hex64(const json_t *object, const char *key, uint64_t *out);
/* A log of one value a line: `each` gets every one in turn (borrowed); its error ends the reading. What was cut at the
 * end while it was written is no line; a line that is not JSON is left out with a warning. */
typedef enum err json_line_fn(void *arg, const json_t *value);
MUST_USE enum err json_each_line(const char *path, size_t limit, json_line_fn *each, void *arg);

#endif
