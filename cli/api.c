#include "cli/api.h"

#include "cli/options.h"

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

swarm_options *sn_cli_api_options(const sn_options *given, const char *of, sn_err *err) {
    swarm_options *options = swarm_options_new();
    swarm_error *error = NULL;
    sn_status status = options ? SN_OK : sn_fail(err, SN_STOP, "out of memory for the options");
    for (size_t i = 0; i < given->n_given && !status; i++) {
        const sn_option *option = given->given[i].option, *known = sn_settings_find(of, option->name);
        if (known && known->target == option->target) /* a command may have a help text of its own for it */
            status = sn_cli_status(swarm_options_set(options, option->name, given->given[i].text, &error), &error, err);
    }
    const char *cache = sn_program_settings.common.cache, *evidence = sn_program_settings.audit.evidence;
    if (!status && cache && !strcmp(of, "connection")) /* the program has found folders where none are given */
        status = sn_cli_status(swarm_options_set(options, "cache", cache, &error), &error, err);
    if (!status && evidence && !strcmp(of, "session"))
        status = sn_cli_status(swarm_options_set(options, "evidence", evidence, &error), &error, err);
    if (!status) return options;
    swarm_options_free(options);
    return NULL;
}

swarm_options *sn_cli_group_options(const sn_option_group *group, const char *of, sn_err *err) {
    char text[64];
    const char *value;
    swarm_options *options = swarm_options_new();
    swarm_error *error = NULL;
    sn_status status = options ? SN_OK : sn_fail(err, SN_STOP, "out of memory for the options");
    for (size_t i = 0; i < group->n; i++) {
        const sn_option *option = &group->options[i];
        if (!sn_settings_find(of, option->name)) continue;
        for (size_t k = 0; !status && (value = sn_option_value(option, k, text, sizeof text)); k++)
            status = sn_cli_status(swarm_options_set(options, option->name, value, &error), &error, err);
    }
    const char *cache = sn_program_settings.common.cache, *evidence = sn_program_settings.audit.evidence;
    if (!status && cache && !strcmp(of, "connection")) /* the program has found folders where none are given */
        status = sn_cli_status(swarm_options_set(options, "cache", cache, &error), &error, err);
    if (!status && evidence && !strcmp(of, "session"))
        status = sn_cli_status(swarm_options_set(options, "evidence", evidence, &error), &error, err);
    if (!status) return options;
    swarm_options_free(options);
    return NULL;
}

sn_status sn_cli_open_model(const sn_options *given, swarm_model **out, sn_err *err) {
    swarm_error *error = NULL;
    swarm_options *options = sn_cli_api_options(given, "model", err);
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
