/* Why this exists: what a launcher reports as the exit of a job is no diagnosis, and a rank that was killed reports
 * nothing; one file for each rank says in the same form how it ended and who was to blame. */
#include "comm/exit_record.h"

#include <time.h>

#include "base/file.h"

enum err exit_record_path(struct buf *out, const char *folder, uint32_t rank)
{
    return buf_printf(out, "%s/exit-rank-%u.json", folder, rank);
}

enum err recorder_path(struct buf *out, const char *folder, uint32_t rank)
{
    return buf_printf(out, "%s/rank-%u.ring", folder, rank);
}

static enum err add_text(struct buf *out, const char *key, const char *text, size_t bytes)
{
    TRY(buf_printf(out, ",\n  \"%s\": ", key));
    return buf_add_json_string(out, text, bytes);
}

/* The members all descriptions of a rank have: process, phase and call. */
static enum err add_state(struct buf *out, const struct rank_view *r)
{
    char text[COMM_SIG_TEXT];
    if (r->silent) {
        return buf_add_string(out, ", \"process\": \"gives no answer\"");
    }
    if (r->remote) {
        TRY(buf_add_string(out, ", \"host\": "));
        TRY(buf_add_json_string(out, r->host, strlen(r->host)));
    }
    if (r->process.pid != 0) {
        TRY(buf_printf(out, ", \"pid\": %d", r->process.pid));
    }
    if (r->process.state != 0) {
        TRY(buf_printf(out, ", \"process\": \"%s\"", process_text(&r->process, text)));
    }
    TRY(buf_printf(out, ", \"phase\": \"%s\", \"step\": %llu, \"layer\": %u", comm_phase_name(r->phase),
                   (unsigned long long)r->step, r->layer));
    if (r->calls > 0 || r->has_last) {
        sig_text(r->calls > 0 ? &r->call[0].sig : &r->last, text);
        TRY(buf_printf(out, ", \"%s\": ", r->calls > 0 ? "call" : "last_call"));
        TRY(buf_add_json_string(out, text, strlen(text)));
    }
    return OK;
}

/* Ranks that are to blame, or those that wait. */
static enum err add_ranks(struct buf *out, const char *key, const struct verdict *v, bool late)
{
    const char *before = "";
    TRY(buf_printf(out, ",\n  \"%s\": [", key));
    for (uint32_t i = 0; i < v->count + v->remotes; i++) {
        const struct rank_view *r = &v->view[i];
        if (late ? v->late[i] : !v->late[i] && r->calls > 0) {
            TRY(buf_printf(out, "%s\n    {\"rank\": %u", before, r->rank));
            TRY(add_state(out, r));
            TRY(buf_add_string(out, "}"));
            before = ",";
        }
    }
    return buf_add_string(out, before[0] != '\0' ? "\n  ]" : "]");
}

/* The rank's last calls, from its ring: a line each. A ring that cannot be read is said, not passed over. */
static enum err add_calls(struct buf *out, const struct exit_record *x)
{
    struct buf path = { 0 }, lines = { 0 };
    struct recorder_file ring = { 0 };
    enum err err;
    TRY_OUT(recorder_path(&path, x->folder, x->rank));
    if (recorder_open_file(&ring, path.data) != OK) {
        TRY_OUT(add_text(out, "last_calls_missing", err_message(), strlen(err_message())));
        goto out;
    }
    TRY_OUT(recorder_print(&lines, &ring, EXIT_CALLS));
    TRY_OUT(buf_add_string(out, ",\n  \"last_calls\": ["));
    const char *before = "";
    for (const char *line = lines.data, *end; line != NULL && *line != '\0'; line = end + 1) {
        end = strchr(line, '\n');
        TRY_OUT(buf_printf(out, "%s\n    ", before));
        TRY_OUT(buf_add_json_string(out, line, (size_t)(end - line)));
        before = ",";
    }
    TRY_OUT(buf_add_string(out, before[0] != '\0' ? "\n  ]" : "]"));
out:
    recorder_file_release(&ring);
    buf_release(&lines);
    buf_release(&path);
    return err;
}

static enum err add_all(struct buf *out, const struct exit_record *x)
{
    char when[32];
    time_t now = time(NULL);
    struct tm parts;
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    TRY(buf_printf(out, "{\n  \"rank\": %u, \"size\": %u", x->rank, x->size));
    TRY(add_state(out, x->view));
    TRY(add_text(out, "host", x->host, strlen(x->host)));
    TRY(buf_printf(out, ",\n  \"time\": \"%s\", \"written_by\": %u,\n  \"exit_code\": ", when, x->written_by));
    TRY(x->exit_code < 0 ? buf_add_string(out, "null") : buf_printf(out, "%d", x->exit_code));
    if (x->message[0] != '\0') {
        const char *bar = strstr(x->message, " | ");
        TRY(add_text(out, "reason", x->message, bar != NULL ? (size_t)(bar - x->message) : strlen(x->message)));
        if (bar != NULL) {
            TRY(add_text(out, "hint", bar + 3, strlen(bar + 3)));
        }
    }
    if (x->verdict != NULL) {
        TRY(add_ranks(out, "late", x->verdict, true));
        TRY(add_ranks(out, "waiting", x->verdict, false));
    }
    TRY(add_calls(out, x));
    return buf_add_string(out, "\n}\n");
}

enum err exit_record_write(const struct exit_record *x)
{
    struct buf text = { 0 }, path = { 0 };
    enum err err;
    if (!file_is_folder(x->folder)) {
        return OK; /* it was taken away: nobody will read there (ranks that are threads) */
    }
    TRY_OUT(exit_record_path(&path, x->folder, x->rank));
    TRY_OUT(add_all(&text, x));
    TRY_OUT(file_replace(path.data, text.data, text.bytes));
out:
    buf_release(&text);
    buf_release(&path);
    return err;
}
