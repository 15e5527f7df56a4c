/* Why this exists: commands have a few flags beside the configuration keys, and all read them the same way: --name
 * VALUE,
 * --name=VALUE or a switch; a misspelt flag is an error that names the right one. */
#include "cmd/cmd.h"

#include "conf/nearest.h"
#include "conf/scalar.h"

static enum err print_help(const char *usage, const struct cmd_flag *flags, size_t count)
{
    printf("%s\n", usage);
    for (size_t i = 0; i < count; i++) {
        int used = printf("  %s%s%s", flags[i].name, flags[i].value != NULL ? " " : "",
                          flags[i].value != NULL ? flags[i].value : "");
        printf("%*s  %s\n", used < 28 ? 28 - used : 0, "", flags[i].help);
    }
    printf("  %-26s  %s\n", "--help", "print this");
    return OK;
}

static enum err unknown_flag(const char *name, size_t bytes, const struct cmd_flag *flags, size_t count)
{
    char wanted[NEAREST_NAME_MAX];
    snprintf(wanted, sizeof(wanted), "%.*s", (int)(bytes < sizeof(wanted) ? bytes : sizeof(wanted) - 1), name);
    struct nearest near;
    nearest_init(&near, wanted);
    for (size_t i = 0; i < count; i++) {
        nearest_try(&near, flags[i].name, strlen(flags[i].name));
    }
    if (nearest_found(&near) != NULL) {
        return FAIL(ERR_USAGE, "unknown flag %s | did you mean %s?", scalar_quote(name, bytes).text,
                    nearest_found(&near));
    }
    return FAIL(ERR_USAGE, "unknown flag %s | --help lists the flags", scalar_quote(name, bytes).text);
}

static const struct cmd_flag *find_flag(const char *name, size_t bytes, const struct cmd_flag *flags, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strlen(flags[i].name) == bytes && memcmp(flags[i].name, name, bytes) == 0) {
            return &flags[i];
        }
    }
    return NULL;
}

/* Take the flag at argv[*i]; *i is moved to its last argument. Bit f of *seen: flag f was given before (*text may
 * hold a default, so it cannot tell). */
static enum err take_flag(int argc, char **argv, int *i, const struct cmd_flag *flags, size_t count, uint64_t *seen)
{
    const char *name = argv[*i], *equals = strchr(name, '=');
    size_t bytes = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const struct cmd_flag *flag = find_flag(name, bytes, flags, count);
    if (flag == NULL) {
        return unknown_flag(name, bytes, flags, count);
    }
    if (flag->value == NULL) {
        if (equals != NULL) {
            return FAIL(ERR_USAGE, "%s is a switch and takes no value, got %s", flag->name,
                        scalar_quote(equals + 1, strlen(equals + 1)).text);
        }
        *flag->on = true;
        return OK;
    }
    uint64_t bit = (uint64_t)1 << (flag - flags);
    if ((*seen & bit) != 0) {
        return FAIL(ERR_USAGE, "%s is given twice | keep one of the two", flag->name);
    }
    *seen |= bit;
    if (equals != NULL) {
        *flag->text = equals + 1;
        return OK;
    }
    if (*i + 1 >= argc) {
        return FAIL(ERR_USAGE, "%s: a value was expected after it (%s)", flag->name, flag->value);
    }
    *flag->text = argv[++*i];
    return OK;
}

enum err cmd_parse(int argc, char **argv, const char *usage, const struct cmd_flag *flags, size_t count, int *rest,
                   bool *helped)
{
    uint64_t seen = 0;
    BUG_IF(count > 64);
    *rest = 0;
    *helped = false;
    bool only_rest = false; /* after a lone "--" everything is an argument */
    for (int i = 1; i < argc; i++) {
        if (only_rest || argv[i][0] != '-' || argv[i][1] == '\0') {
            argv[1 + (*rest)++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            only_rest = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *helped = true;
            return print_help(usage, flags, count);
        } else {
            TRY(take_flag(argc, argv, &i, flags, count, &seen));
        }
    }
    return OK;
}

const char *cmd_value(int argc, char **argv, int *i, const char *name)
{
    size_t bytes = strlen(name);
    if (strncmp(argv[*i], name, bytes) != 0 || (argv[*i][bytes] != '\0' && argv[*i][bytes] != '=')) {
        return NULL;
    }
    if (argv[*i][bytes] == '=') {
        return argv[*i] + bytes + 1;
    }
    return *i + 1 < argc ? argv[++*i] : "";
}

static struct node argument_node(const char *text)
{
    return (struct node){ .kind = NODE_PLAIN, .text = (char *)(uintptr_t)text, .bytes = strlen(text) };
}

enum err cmd_whole(const char *flag, const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    struct node n = argument_node(text);
    struct scalar_problem p = scalar_whole(&n, out);
    if (p.bad) {
        return FAIL(ERR_USAGE, "%s: %s", flag, p.text);
    }
    if (*out < least || *out > most) {
        return FAIL(ERR_USAGE, "%s: expected a whole number from %llu to %llu, got %s", flag, (unsigned long long)least,
                    (unsigned long long)most, text);
    }
    return OK;
}

enum err cmd_real(const char *flag, const char *text, double least, double most, double *out)
{
    struct node n = argument_node(text);
    struct scalar_problem p = scalar_real(&n, out);
    if (p.bad) {
        return FAIL(ERR_USAGE, "%s: %s", flag, p.text);
    }
    if (!(*out >= least && *out <= most)) {
        return FAIL(ERR_USAGE, "%s: expected a number from %s to %s, got %.60s", flag, scalar_write_real(least).text,
                    scalar_write_real(most).text, text);
    }
    return OK;
}
