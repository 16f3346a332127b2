#include "cli/api.h"

#include "cli/options.h"

#include <stdio.h>
#include <string.h>

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
