/* Handles of the C API as the settings say, and its errors as those of the program. What a session needs is opened in
 * the order in which a person learns soonest what is wrong: settings, model, adapter, connection, blocks. */
#include "cli/program.h"

#include "cli/io.h"
#include "cli/options.h"
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

sn_status sn_cli_status(swarm_code code, swarm_error **error, sn_err *err) {
    static const sn_status statuses[] = {
        [SWARM_OK] = SN_OK,           [SWARM_RETRY] = SN_RETRY, [SWARM_REBUILD] = SN_REBUILD,
        [SWARM_REFUSED] = SN_REFUSED, [SWARM_STOP] = SN_STOP,   [SWARM_CANCELLED] = SN_RETRY};
    if (code) (void)sn_fail(err, statuses[code], "%s", swarm_error_text(*error));
    swarm_error_free(*error);
    *error = NULL;
    return statuses[code];
}

/* Sets a key of the settings, whose values stand in the program's. */
static sn_status take_values(swarm_options *options, const sn_option *option, sn_err *err) {
    char text[64];
    const char *value;
    swarm_error *error = NULL;
    sn_status status = SN_OK;
    for (size_t i = 0; !status && (value = sn_option_value(option, i, text, sizeof text)); i++)
        status = sn_cli_status(swarm_options_set(options, option->name, value, &error), &error, err);
    return status;
}

static bool has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *at = words; at && (at = strstr(at, word)); at += n)
        if ((at == words || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return true;
    return false;
}

swarm_options *sn_cli_options(const char *of, const char *except, sn_err *err) {
    char key[64];
    swarm_options *options = swarm_options_new();
    sn_status status = options ? SN_OK : sn_fail(err, SN_STOP, "out of memory for the options");
    const char *keys = sn_settings_keys(of);
    for (size_t len; *keys && !status; keys += len + (keys[len] == ' ')) {
        len = strcspn(keys, " ");
        snprintf(key, sizeof key, "%.*s", (int)len, keys);
        if (!has_word(except, key)) status = take_values(options, sn_settings_find(of, key), err);
    }
    if (!status) return options;
    swarm_options_free(options);
    return NULL;
}

/* What a name stands for was fetched before (cli/fetch_model.c): the model is a path. */
sn_status sn_cli_open_model(swarm_model **out, sn_err *err) {
    swarm_error *error = NULL;
    swarm_options *options = sn_cli_options("model", "cache cache-max manifest", err);
    if (!options) return err->status;
    swarm_code code = swarm_model_open(sn_program_settings.common.model, options, out, &error);
    swarm_options_free(options);
    return sn_cli_status(code, &error, err);
}

sn_status sn_cli_open_tokenizer(const char *path, swarm_model **out, sn_err *err) {
    swarm_error *error = NULL;
    swarm_options *options = swarm_options_new();
    if (!options) return sn_fail(err, SN_STOP, "out of memory for the options");
    swarm_code code = swarm_options_set(options, "parts", "tokenizer", &error);
    if (!code) code = swarm_model_open(path, options, out, &error);
    swarm_options_free(options);
    return sn_cli_status(code, &error, err);
}

sn_status sn_cli_json(char *text, json_t **out, sn_err *err) {
    *out = json_loads(text, JSON_ALLOW_NUL, NULL);
    swarm_free(text);
    return *out ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a JSON text");
}

sn_status sn_cli_describe_model(const swarm_model *model, json_t **out, sn_err *err) {
    swarm_error *error = NULL;
    char *text = NULL;
    sn_status status = sn_cli_status(swarm_model_describe(model, &text, NULL, &error), &error, err);
    return status ? status : sn_cli_json(text, out, err);
}

/* -- sessions -- */

static const char *session_key(void) {
    const sn_settings *s = &sn_program_settings;
    return s->session.key ? s->session.key : s->common.identity;
}

static sn_status check_settings(sn_err *err) {
    const sn_settings *s = &sn_program_settings;
    bool file = s->session.save || s->session.load;
    if (!sn_settings_has_swarm(s) && !s->common.local.given)
        return sn_fail(err, SN_REFUSED,
                       "no node is given to compute the model: give --join HOST:PORT of a node, or --local all to "
                       "compute the whole model in this process");
    if (s->session.key && !file)
        return sn_fail(err, SN_REFUSED,
                       "--session-key is for the file that --save writes or --load reads: give one of them");
    if (file && !session_key())
        return sn_fail(err, SN_REFUSED,
                       "a saved session is encrypted: give --session-key FILE (made by: head -c 32 /dev/urandom > "
                       "FILE; chmod 600 FILE), or --identity");
    if (s->session.load && s->audit.share > 0)
        return sn_fail(err, SN_REFUSED,
                       "--audit cannot check a KV cache that comes from a file: leave out --load or --audit");
    return SN_OK;
}

/* -- opening -- */

sn_status sn_cli_session_begin(sn_cli_session *s, int presses, void (*restore)(void), sn_err *err) {
    *s = (sn_cli_session){.cancel = swarm_cancel_new()};
    if (!s->cancel) return sn_fail(err, SN_STOP, "out of memory for a session");
    sn_status status = check_settings(err);
    if (status) return status;
    sn_catch_interrupts_with(s->cancel, presses, restore);
    return sn_cli_open_model(&s->model, err);
}

static sn_status open_connection(sn_cli_session *s, sn_err *err) {
    swarm_error *error = NULL;
    swarm_options *options = sn_cli_options("connection", NULL, err);
    if (!options) return err->status;
    sn_status status = sn_cli_status(swarm_connect(options, s->cancel, &s->connection, &error), &error, err);
    swarm_options_free(options);
    return status;
}

/* published: nodes hold the adapter, so a connection is there already; a folder is read before. */
static sn_status open_adapter(sn_cli_session *s, bool published, sn_err *err) {
    const char *name = sn_program_settings.common.adapter;
    swarm_error *error = NULL;
    if (!name || published != !strncmp(name, "name:", strlen("name:"))) return SN_OK;
    sn_status status =
        sn_cli_status(swarm_adapter_open(s->model, s->connection, name, &s->adapter, &error), &error, err);
    const char *warning = status ? NULL : swarm_adapter_warning(s->adapter);
    if (warning) fprintf(stderr, "swarm: %s\n", warning);
    return status;
}

/* Text goes into a pipe or file only when it was checked. */
static bool holds_text(void) { return sn_program_settings.audit.share > 0 && !isatty(STDOUT_FILENO); }

static sn_status open_session(sn_cli_session *s, int64_t timeline, sn_err *err) {
    char number[32];
    swarm_error *error = NULL;
    swarm_options *options = sn_cli_options("session", NULL, err);
    if (!options) return err->status;
    snprintf(number, sizeof number, "%lld", (long long)timeline);
    swarm_code code = swarm_options_set(options, "timeline", number, &error);
    if (!code && session_key()) code = swarm_options_set(options, "session-key", session_key(), &error);
    if (!code && holds_text()) code = swarm_options_set(options, "audit-hold", "true", &error);
    if (!code) code = swarm_session_open(s->model, s->connection, options, s->adapter, s->cancel, &s->session, &error);
    swarm_options_free(options);
    return sn_cli_status(code, &error, err);
}

sn_status sn_cli_session_open(sn_cli_session *s, int64_t timeline, sn_err *err) {
    bool swarm = sn_settings_has_swarm(&sn_program_settings);
    sn_status status = open_adapter(s, false, err);
    sn_progress_bar *bar = status ? NULL : sn_progress_bar_begin(swarm ? "opening the session" : "loading the blocks");
    if (!status && swarm) status = open_connection(s, err);
    if (!status) status = open_adapter(s, true, err);
    if (!status) status = open_session(s, timeline, err);
    sn_progress_bar_end(&bar);
    return status;
}

sn_status sn_cli_session_save(const sn_cli_session *s, const char *extra, sn_err *err) {
    const char *path = sn_program_settings.session.save;
    swarm_error *error = NULL;
    if (!path) return SN_OK;
    sn_progress_bar *bar = sn_progress_bar_begin("saving the session");
    swarm_code code = swarm_session_save(s->session, path, NULL, extra, extra ? strlen(extra) : 0, &error);
    sn_progress_bar_end(&bar);
    return sn_cli_status(code, &error, err);
}

void sn_cli_session_close(sn_cli_session *s) {
    swarm_session_close(s->session);
    swarm_adapter_close(s->adapter);
    swarm_model_close(s->model);
    swarm_disconnect(s->connection);
    sn_release_interrupts(); /* the handler uses the flag */
    swarm_cancel_free(s->cancel);
    *s = (sn_cli_session){0};
}

/* -- the audit -- */

/* What the checks have shown, and no more than that. */
static const char *audit_result(const json_t *audit) {
    if (json_integer_value(json_object_get(audit, "nodes_banned"))) return "wrong results found";
    if (json_is_string(json_object_get(audit, "verdict"))) return "results differ";
    return json_integer_value(json_object_get(audit, "unchecked")) ? "none of them wrong" : "all results correct";
}

void sn_cli_audit_print(const json_t *audit, const char *open, const char *close) {
    const char *verdict = json_string_value(json_object_get(audit, "verdict")),
               *evidence = json_string_value(json_object_get(audit, "evidence"));
    long long failed = json_integer_value(json_object_get(audit, "unchecked_failed")),
              others = json_integer_value(json_object_get(audit, "unchecked")) - failed;
    if (!audit) return;
    fprintf(stderr, "%saudit: %lld of %lld steps of nodes checked, %s (audit seed %lld)%s\n", open,
            (long long)json_integer_value(json_object_get(audit, "checked")),
            (long long)json_integer_value(json_object_get(audit, "steps")), audit_result(audit),
            (long long)json_integer_value(json_object_get(audit, "seed")), close);
    if (failed)
        fprintf(stderr, "%saudit: %lld steps are unchecked: the nodes that were to check them failed%s\n", open, failed,
                close);
    if (others)
        fprintf(stderr,
                "%saudit: %lld steps are unchecked: no other node serves their blocks, or their KV cache came from one "
                "that left%s\n",
                open, others, close);
    if (verdict) fprintf(stderr, "%saudit: %s%s\n", open, verdict, close);
    if (evidence) fprintf(stderr, "%saudit: evidence is in %s; see 'swarm verify'%s\n", open, evidence, close);
}
