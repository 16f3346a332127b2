#include "cli/bench/stream.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

void sn_bench_stream_init(sn_bench_stream *s) {
    *s = (sn_bench_stream){.prompt_tokens = -1, .answer_tokens = -1};
    sn_buf_init(&s->line, SN_STREAM_LINE_MAX);
}

void sn_bench_stream_fini(sn_bench_stream *s) { sn_buf_fini(&s->line); }

static bool has_text(const json_t *value) { return json_string_length(value) > 0; }

/* Whether a choice adds something to the answer. */
static bool choice_has_text(const json_t *choice) {
    const json_t *delta = json_object_get(choice, "delta");
    return has_text(json_object_get(choice, "text")) || has_text(json_object_get(delta, "content")) ||
           has_text(json_object_get(delta, "reasoning_content")) || json_object_get(delta, "tool_calls");
}

static void read_count(const json_t *usage, const char *name, int64_t *out) {
    const json_t *value = json_object_get(usage, name);
    if (json_is_integer(value) && json_integer_value(value) >= 0) *out = json_integer_value(value);
}

/* {"error": {"message": ...}}, or the message itself. */
static const char *error_message(const json_t *o) {
    const json_t *error = json_object_get(o, "error"), *message = json_object_get(error, "message");
    return json_is_string(error) ? json_string_value(error) : json_string_value(message);
}

void sn_bench_stream_error(const char *body, size_t n, char *out, size_t size) {
    json_t *o = n ? json_loadb(body, n, 0, NULL) : NULL;
    const char *message = error_message(o);
    snprintf(out, size, "%.*s", message ? (int)strlen(message) : (int)n, message ? message : n ? body : "");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    json_decref(o);
}

static sn_status take_event(sn_bench_stream *s, const char *data, size_t n, int64_t now_us, sn_err *err) {
    json_t *o = json_loadb(data, n, 0, NULL);
    if (!json_is_object(o)) {
        json_decref(o);
        return sn_fail(err, SN_REFUSED, "the server's stream holds an event that is no JSON object");
    }
    if (json_object_get(o, "error")) {
        char text[256];
        sn_bench_stream_error(data, n, text, sizeof text);
        json_decref(o);
        return sn_fail(err, SN_RETRY, "the server ended a stream with an error: %s", text);
    }
    const json_t *usage = json_object_get(o, "usage");
    read_count(usage, "prompt_tokens", &s->prompt_tokens);
    read_count(usage, "completion_tokens", &s->answer_tokens);
    if (choice_has_text(json_array_get(json_object_get(o, "choices"), 0))) {
        if (!s->chunks++) s->first_us = now_us;
        s->last_us = now_us;
    }
    json_decref(o);
    return SN_OK;
}

static sn_status take_line(sn_bench_stream *s, const char *line, size_t n, int64_t now_us, sn_err *err) {
    static const char field[] = "data:";
    const size_t name = sizeof field - 1;
    if (n && line[n - 1] == '\r') n--;
    if (n < name || memcmp(line, field, name) || s->done) return SN_OK; /* comments, other fields */
    const size_t skip = name + (n > name && line[name] == ' ');
    line += skip, n -= skip;
    s->done = n == 6 && !memcmp(line, "[DONE]", 6);
    return s->done || !n ? SN_OK : take_event(s, line, n, now_us, err);
}

sn_status sn_bench_stream_feed(sn_bench_stream *s, const char *bytes, size_t n, int64_t now_us, sn_err *err) {
    sn_status status = SN_OK;
    for (const char *end; n && !status; bytes = end) {
        const char *newline = memchr(bytes, '\n', n);
        end = newline ? newline + 1 : bytes + n;
        const size_t part = (size_t)(end - bytes);
        n -= part;
        if (part > SN_STREAM_LINE_MAX - s->line.len)
            return sn_fail(err, SN_REFUSED, "a line of the server's stream has more than %d bytes", SN_STREAM_LINE_MAX);
        status = sn_buf_append(&s->line, bytes, part, err);
        if (status || !newline) continue;
        status = take_line(s, (const char *)s->line.data, s->line.len - 1, now_us, err);
        s->line.len = 0;
    }
    return status;
}
