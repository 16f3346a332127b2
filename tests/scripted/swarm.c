/* include/swarm.h without a model: its answers follow a script, so that tests of the terminal know each byte of them.
 *
 * The last message of the user is the script; it ends with the message:
 *   say TEXT      answers TEXT; "\n" in it is a line break, "<|...|>" is a special token
 *   bytes         answers how many bytes the message has, and the sum of them
 *   turns         answers with the contents of all messages
 *   endless       answers words until it is stopped
 *   prefill N     takes N steps of 20 ms before it answers, with progress
 *   wait PATH     answers when the file is there
 *   stuck         never answers, and hears nothing but the cancel flag
 *   noise TEXT    writes log lines while it answers TEXT
 *   fail          fails as a swarm without nodes does
 *   sampling      answers the options of the generation
 * A token is a byte of text, or 256 and more, a special token. */
#include "base/log.h"
#include "include/swarm.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPECIALS_MAX = 64, STEP_US = 20000 };

struct swarm_error {
    swarm_code code;
    char text[256];
};
struct swarm_cancel {
    atomic_int set;
};
struct swarm_options {
    char text[4096];
};
struct swarm_model {
    int unused;
};
struct swarm_event {
    swarm_event_kind kind;
    const char *text;
    size_t length, done, total, reused;
    int32_t id;
};
struct swarm_session {
    swarm_cancel *cancel;
    swarm_event_callback callback;
    void *context;
    size_t tokens, reused; /* of the prompt */
    char *sampling;        /* options of the generation */
};

static char specials[SPECIALS_MAX][32];
static size_t n_specials;
static json_t *messages; /* that were rendered last */

static swarm_code fail(swarm_code code, swarm_error **error, const char *text) {
    swarm_error *e = calloc(1, sizeof *e);
    if (e) e->code = code, snprintf(e->text, sizeof e->text, "%s", text);
    if (error)
        *error = e;
    else
        free(e);
    return code;
}

static swarm_code give(const char *text, char **out, size_t *length) {
    if (out) *out = strdup(text);
    if (length) *length = strlen(text);
    return SWARM_OK;
}

void swarm_free(void *memory) { free(memory); }
swarm_code swarm_error_code(const swarm_error *e) { return e ? e->code : SWARM_OK; }
const char *swarm_error_text(const swarm_error *e) { return e ? e->text : ""; }
void swarm_error_free(swarm_error *e) { free(e); }

swarm_options *swarm_options_new(void) { return calloc(1, sizeof(swarm_options)); }
void swarm_options_free(swarm_options *options) { free(options); }
swarm_code swarm_options_set(swarm_options *o, const char *key, const char *value, swarm_error **error) {
    size_t n = strlen(o->text);
    (void)error;
    snprintf(o->text + n, sizeof o->text - n, "%s=%s ", key, value);
    return SWARM_OK;
}
swarm_code swarm_options_describe(const char *of, char **json, size_t *length, swarm_error **error) {
    (void)error;
    return give(strcmp(of, "generation") ? "[]"
                                         : "[{\"key\": \"temperature\"}, {\"key\": \"top-p\"}, {\"key\": \"top-k\"}, "
                                           "{\"key\": \"max-tokens\"}]",
                json, length);
}

swarm_cancel *swarm_cancel_new(void) { return calloc(1, sizeof(swarm_cancel)); }
void swarm_cancel_set(swarm_cancel *cancel) { atomic_store(&cancel->set, 1); }
void swarm_cancel_clear(swarm_cancel *cancel) { atomic_store(&cancel->set, 0); }
void swarm_cancel_free(swarm_cancel *cancel) { free(cancel); }

swarm_code swarm_connect(const swarm_options *options, swarm_cancel *cancel, swarm_connection **connection,
                         swarm_error **error) {
    (void)options, (void)cancel, (void)connection;
    return fail(SWARM_RETRY, error, "no node answered");
}
void swarm_disconnect(swarm_connection *connection) { (void)connection; }

swarm_code swarm_model_open(const char *path, const swarm_options *options, swarm_model **model, swarm_error **error) {
    (void)path, (void)options, (void)error;
    *model = calloc(1, sizeof **model);
    return SWARM_OK;
}
void swarm_model_close(swarm_model *model) { free(model); }
swarm_code swarm_model_describe(const swarm_model *model, char **json, size_t *length, swarm_error **error) {
    (void)model, (void)error;
#define SAMPLED(first) "\"answer_sampling\": {" first ", \"top_p\": 0.95, \"min_p\": 0.0, \"repeat_penalty\": 1.0}"
    return give(getenv("SCRIPT_SAMPLING") ? "{\"name\": \"Script\", " SAMPLED("\"temperature\": 0.3, \"top_k\": 20") "}"
                                          : "{\"name\": \"Script\", \"family\": \"script\", " SAMPLED(
                                                "\"temperature\": 0.7, \"top_k\": 0") "}",
                json, length);
}
int32_t swarm_model_blocks(const swarm_model *model) { return model ? 1 : 0; }
int32_t swarm_model_width(const swarm_model *model) { return model ? 8 : 0; }
int32_t swarm_model_context(const swarm_model *model) { return model ? 1 << 24 : 0; }

swarm_code swarm_model_detokenize(const swarm_model *model, const int32_t *ids, size_t n, int flags, char **text,
                                  size_t *length, swarm_error **error) {
    (void)model, (void)error;
    char one[2] = {0};
    if (n && *ids < 256) one[0] = (char)*ids;
    return give(n && *ids >= 256 && (flags & SWARM_TEXT_SPECIAL) ? specials[*ids - 256] : one, text, length);
}

swarm_code swarm_model_render_chat(const swarm_model *model, const char *request, size_t request_length, char **text,
                                   size_t *length, int32_t **ids, size_t *n, swarm_error **error) {
    (void)model, (void)error;
    json_t *whole = json_loadb(request, request_length, JSON_ALLOW_NUL, NULL);
    json_decref(messages);
    messages = json_incref(json_object_get(whole, "messages"));
    json_decref(whole);
    give("<prompt>", text, length);
    if (ids) *ids = calloc(1, request_length * sizeof **ids);
    if (n) *n = request_length;
    return SWARM_OK;
}

int swarm_model_prompt_thinks(const swarm_model *model, const char *prompt, size_t length) {
    return model && length > 7 && !strcmp(prompt + length - 7, "<think>");
}

swarm_code swarm_model_read_answer(const swarm_model *model, const char *tools, size_t tools_length, int flags,
                                   const int32_t *ids, size_t n, char **json, size_t *length, swarm_error **error) {
    char *text = calloc(1, n + 1);
    (void)model, (void)tools, (void)tools_length, (void)flags, (void)error;
    size_t used = 0;
    for (size_t i = 0; text && i < n; i++)
        if (ids[i] < 256) text[used++] = (char)ids[i];
    json_t *message = json_pack("{s:s, s:s%}", "role", "assistant", "content", text ? text : "", used);
    *json = json_dumps(message, 0);
    *length = strlen(*json);
    json_decref(message);
    free(text);
    return SWARM_OK;
}

swarm_code swarm_adapter_open(const swarm_model *model, swarm_connection *connection, const char *name,
                              swarm_adapter **adapter, swarm_error **error) {
    (void)model, (void)connection, (void)name, (void)adapter;
    return fail(SWARM_REFUSED, error, "the script has no adapters");
}
void swarm_adapter_close(swarm_adapter *adapter) { (void)adapter; }

swarm_event_kind swarm_event_get_kind(const swarm_event *event) { return event->kind; }
const char *swarm_event_text(const swarm_event *event, size_t *length) {
    if (length) *length = event->length;
    return event->text;
}
double swarm_event_number(const swarm_event *event, const char *name) {
    if (!strcmp(name, "id")) return event->id;
    if (!strcmp(name, "reused")) return (double)event->reused;
    return (double)(!strcmp(name, "done") ? event->done : event->total);
}

swarm_code swarm_session_open(const swarm_model *model, swarm_connection *connection, const swarm_options *options,
                              const swarm_adapter *adapter, swarm_cancel *cancel, swarm_session **session,
                              swarm_error **error) {
    (void)model, (void)connection, (void)options, (void)adapter, (void)error;
    *session = calloc(1, sizeof **session);
    if (*session) (*session)->cancel = cancel;
    return SWARM_OK;
}
void swarm_session_close(swarm_session *s) {
    if (s) free(s->sampling);
    free(s);
    json_decref(messages);
    messages = NULL;
}
void swarm_session_on_event(swarm_session *s, swarm_event_callback callback, void *context) {
    s->callback = callback;
    s->context = context;
}
const int32_t *swarm_session_tokens(const swarm_session *s, size_t *n) {
    *n = s->tokens;
    return NULL;
}
swarm_code swarm_session_describe(const swarm_session *s, char **json, size_t *length, swarm_error **error) {
    (void)s, (void)error;
    return give(
        "{\"context\": 8192, \"hops\": [{\"node\": \"local\", \"blocks\": \"0:1\", \"compute_ms_per_step\": 1.5}]}",
        json, length);
}
swarm_code swarm_session_poll(swarm_session *s, swarm_error **error) {
    static int polls;
    (void)s, (void)error;
    if (getenv("SCRIPT_NOISE") && ++polls == 5) sn_log(SN_LOG_WARN, "idle", "n=1");
    return SWARM_OK;
}
swarm_code swarm_session_save(swarm_session *s, const char *path, const char *key_path, const char *extra,
                              size_t length, swarm_error **error) {
    (void)s, (void)path, (void)key_path, (void)extra, (void)length;
    return fail(SWARM_REFUSED, error, "the script saves nothing");
}
swarm_code swarm_session_load(swarm_session *s, const char *path, const char *key_path, swarm_error **error) {
    (void)s, (void)path, (void)key_path;
    return fail(SWARM_REFUSED, error, "the script loads nothing");
}
const char *swarm_session_extra(const swarm_session *s, size_t *length) {
    (void)s;
    *length = 0;
    return NULL;
}

/* -- generating -- */

/* SWARM_OK: go on. */
static swarm_code step(swarm_session *s, const swarm_event *event, bool *stopped) {
    if (atomic_load(&s->cancel->set)) return SWARM_CANCELLED;
    if (event && event->kind == SWARM_EVENT_PROGRESS) s->reused = event->reused;
    if (event && s->callback && s->callback(s->context, event)) *stopped = true;
    return SWARM_OK;
}

static int32_t special_id(const char *text, size_t n) {
    for (size_t i = 0; i < n_specials; i++)
        if (strlen(specials[i]) == n && !memcmp(specials[i], text, n)) return (int32_t)(256 + i);
    if (n_specials == SPECIALS_MAX || n >= sizeof *specials) return '?';
    memcpy(specials[n_specials], text, n);
    return (int32_t)(256 + n_specials++);
}

/* Answers a text token by token. */
static swarm_code say(swarm_session *s, const char *text, size_t n, int delay_us, bool *stopped) {
    swarm_code code = SWARM_OK;
    for (size_t i = 0; i < n && !code && !*stopped;) {
        swarm_event token = {.kind = SWARM_EVENT_TOKEN, .text = ""}, piece = {.kind = SWARM_EVENT_TEXT};
        const char *end = text[i] == '<' && i + 1 < n && text[i + 1] == '|' ? memmem(text + i, n - i, "|>", 2) : NULL;
        char c = text[i];
        size_t used = end ? (size_t)(end - (text + i)) + 2 : 1;
        if (c == '\\' && i + 1 < n && text[i + 1] == 'n') c = '\n', used = 2;
        if (c == '\\' && i + 1 < n && text[i + 1] == 'e') c = '\033', used = 2;
        if (c == '\\' && i + 1 < n && text[i + 1] == '0') c = '\0', used = 2;
        token.id = end ? special_id(text + i, used) : (unsigned char)c;
        piece.text = &c;
        piece.length = 1;
        i += used;
        s->tokens++;
        code = step(s, &token, stopped);
        if (!code && !end && !*stopped) code = step(s, &piece, stopped);
        if (delay_us) usleep((useconds_t)delay_us);
    }
    return code;
}

static swarm_code prefill(swarm_session *s, size_t steps, bool *stopped) {
    swarm_code code = SWARM_OK;
    for (size_t i = 1; i <= steps && !code && !*stopped; i++) {
        swarm_event progress = {.kind = SWARM_EVENT_PROGRESS, .text = "", .done = 100 * i, .total = 100 * steps};
        code = step(s, &progress, stopped);
        usleep(STEP_US);
    }
    return code;
}

static swarm_code follow(swarm_session *s, const char *script, size_t n, bool *stopped, swarm_error **error) {
    char text[256];
    if (!strncmp(script, "say ", 4)) return say(s, script + 4, n - 4, 0, stopped);
    if (!strcmp(script, "fail")) return fail(SWARM_RETRY, error, "no node serves blocks 0:1 of the script");
    if (!strcmp(script, "sampling")) return say(s, s->sampling, strlen(s->sampling), 0, stopped);
    if (!strcmp(script, "stuck")) {
        while (!atomic_load(&s->cancel->set)) usleep(STEP_US);
        return SWARM_CANCELLED;
    }
    if (!strncmp(script, "wait ", 5)) {
        while (access(script + 5, F_OK) && !atomic_load(&s->cancel->set)) usleep(STEP_US);
        return atomic_load(&s->cancel->set) ? SWARM_CANCELLED : say(s, "ready", 5, 0, stopped);
    }
    if (!strcmp(script, "endless")) {
        swarm_event progress = {.kind = SWARM_EVENT_PROGRESS, .text = "", .done = 7, .total = 7, .reused = 4};
        swarm_code code = step(s, &progress, stopped);
        while (!code && !*stopped) code = say(s, "word ", 5, STEP_US / 4, stopped);
        return code;
    }
    if (!strncmp(script, "noise ", 6)) {
        swarm_code code = SWARM_OK;
        for (size_t i = 6; i < n && !code; i++) {
            sn_log(SN_LOG_WARN, "noise", "n=%zu", i);
            code = say(s, script + i, 1, 0, stopped);
        }
        return code;
    }
    if (!strncmp(script, "prefill ", 8)) {
        swarm_code code = prefill(s, strtoul(script + 8, NULL, 10), stopped);
        return code || *stopped ? code : say(s, "ready", 5, 0, stopped);
    }
    if (!strcmp(script, "turns")) {
        swarm_code code = SWARM_OK;
        for (size_t i = 0; i < json_array_size(messages) && !code; i++) {
            const json_t *content = json_object_get(json_array_get(messages, i), "content");
            code = say(s, i ? "|" : "", i > 0, 0, stopped);
            if (!code) code = say(s, json_string_value(content), json_string_length(content), 0, stopped);
        }
        return code;
    }
    unsigned long sum = 0;
    for (size_t i = 0; i < n; i++) sum += (unsigned char)script[i];
    snprintf(text, sizeof text, "%zu bytes, sum %lu", n, sum);
    return say(s, text, strlen(text), 0, stopped);
}

swarm_code swarm_session_generate(swarm_session *s, const int32_t *prompt, size_t n, const swarm_options *options,
                                  char **json, size_t *length, swarm_error **error) {
    const json_t *content = json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content");
    bool stopped = false;
    (void)prompt;
    s->tokens = n;
    s->reused = 0;
    free(s->sampling);
    s->sampling = strdup(options->text);
    swarm_code code = follow(s, json_string_value(content), json_string_length(content), &stopped, error);
    if (code == SWARM_CANCELLED) return fail(code, error, "the call was cancelled");
    if (code) return code;
    char text[128];
    snprintf(text, sizeof text, "{\"finish_reason\": \"%s\", \"timings\": {\"reused_tokens\": %zu}}",
             stopped ? "interrupted" : "stop", s->reused);
    return give(text, json, length);
}
