#include "client/api/api_private.h"

#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 4096, VALUE_MAX = 1 << 20 };

static sn_status options_add(swarm_options *options, const char *key, const char *value, sn_err *err) {
    size_t key_size = strlen(key) + 1, value_size = strlen(value) + 1;
    if (options->n == OPTIONS_MAX) return sn_fail(err, SN_REFUSED, "more than %d options are set", (int)OPTIONS_MAX);
    if (value_size > VALUE_MAX)
        return sn_fail(err, SN_REFUSED, "%s: a value has at most %d bytes", key, (int)VALUE_MAX);
    struct sn_key_value *grown = realloc(options->given, (options->n + 1) * sizeof *grown);
    char *copy = malloc(key_size + value_size);
    if (grown) options->given = grown;
    if (!grown || !copy) {
        free(copy);
        return sn_fail(err, SN_STOP, "out of memory for the options");
    }
    memcpy(copy, key, key_size);
    memcpy(copy + key_size, value, value_size);
    options->given[options->n++] = (struct sn_key_value){copy, copy + key_size};
    return SN_OK;
}

static void options_clear(swarm_options *options) {
    for (size_t i = 0; i < options->n; i++) free(options->given[i].key);
    free(options->given);
    *options = (swarm_options){0};
}

swarm_options *swarm_options_new(void) { return calloc(1, sizeof(swarm_options)); }

swarm_code swarm_options_set(swarm_options *options, const char *key, const char *value, swarm_error **error) {
    sn_err err;
    sn_status status =
        sn_settings_find(NULL, key)
            ? options_add(options, key, value, &err)
            : sn_fail(&err, SN_REFUSED, "there is no option '%.60s': swarm_options_describe lists them", key);
    return sn_api_end(status, &err, NULL, error);
}

void swarm_options_free(swarm_options *options) {
    if (options) options_clear(options);
    free(options);
}

static json_t *option_json(sn_settings *settings, const sn_option *option) {
    char text[256];
    const sn_option own = sn_settings_option(settings, option);
    json_t *o = json_object();
    json_object_set_new(o, "key", json_string(option->name));
    bool flag = option->kind == SN_OPTION_FLAG;
    json_object_set_new(o, "value", json_string(flag ? "true|false" : sn_option_value_name(&own, text, sizeof text)));
    sn_option_format(&own, text, sizeof text);
    json_object_set_new(o, "default", flag ? json_string("false") : *text ? json_string(text) : json_null());
    json_object_set_new(o, "repeatable", json_boolean(option->repeatable));
    json_object_set_new(o, "help", json_string(option->help));
    return o;
}

swarm_code swarm_options_describe(const char *of, char **json, size_t *length, swarm_error **error) {
    const char *keys = sn_settings_keys(of);
    sn_err err;
    sn_settings settings;
    char key[64];
    if (!keys) return sn_api_fail(SWARM_REFUSED, error, "there are no options of a '%.60s'", of);
    sn_settings_init(&settings);
    json_t *list = json_array();
    for (size_t len; *keys; keys += len + (keys[len] == ' ')) {
        len = strcspn(keys, " ");
        snprintf(key, sizeof key, "%.*s", (int)len, keys);
        const sn_option *option = sn_settings_find(of, key);
        if (option->help) json_array_append_new(list, option_json(&settings, option));
    }
    return sn_api_end(sn_api_json(list, json, length, &err), &err, NULL, error);
}

sn_status sn_api_options_init(sn_api_options *out, const swarm_options *given, const char *of, const sn_settings *like,
                              sn_err *err) {
    sn_status status = SN_OK;
    *out = (sn_api_options){0};
    sn_settings_init(&out->settings);
    if (like) {
        out->settings.common.device = like->common.device;
        out->settings.common.isa = like->common.isa;
        out->settings.common.threads = like->common.threads;
        out->settings.common.kv_dtype = like->common.kv_dtype;
    }
    for (size_t i = 0; given && i < given->n && !status; i++) {
        status = options_add(&out->copy, given->given[i].key, given->given[i].value, err);
        const struct sn_key_value *own = out->copy.given + i;
        if (!status) status = sn_settings_set(&out->settings, of, own->key, own->value, err);
    }
    return status;
}

void sn_api_options_fini(sn_api_options *options) {
    sn_settings_fini(&options->settings);
    options_clear(&options->copy);
}
