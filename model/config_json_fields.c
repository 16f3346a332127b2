/* Reading single fields of config.json. */
#include "model/config_json_private.h"

#include <stdint.h>
#include <string.h>

const json_t *sn_config_field(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

sn_status sn_config_int(const json_t *object, const char *name, bool required, int *out, sn_err *err) {
    const json_t *value = sn_config_field(object, name);
    if (!value && !required) return SN_OK;
    if (!value) return sn_fail(err, SN_REFUSED, "'%s' is missing", name);
    json_int_t wide = json_integer_value(value);
    if (!json_is_integer(value) || wide < INT32_MIN || wide > INT32_MAX)
        return sn_fail(err, SN_REFUSED, "'%s' must be a whole number", name);
    *out = (int)wide;
    return SN_OK;
}

sn_status sn_config_number(const json_t *object, const char *name, bool required, double *out, sn_err *err) {
    const json_t *value = sn_config_field(object, name);
    if (!value && !required) return SN_OK;
    if (!value) return sn_fail(err, SN_REFUSED, "'%s' is missing", name);
    if (!json_is_number(value)) return sn_fail(err, SN_REFUSED, "'%s' must be a number", name);
    *out = json_number_value(value);
    return SN_OK;
}

sn_status sn_config_bool(const json_t *object, const char *name, bool *out, sn_err *err) {
    const json_t *value = json_object_get(object, name);
    if (!value) return SN_OK;
    if (!json_is_boolean(value) && !json_is_null(value))
        return sn_fail(err, SN_REFUSED, "'%s' must be true or false", name);
    *out = json_is_true(value);
    return SN_OK;
}

sn_status sn_config_text(const json_t *object, const char *name, bool required, const char **out, sn_err *err) {
    const json_t *value = sn_config_field(object, name);
    if (!value && !required) return SN_OK;
    if (!value) return sn_fail(err, SN_REFUSED, "'%s' is missing", name);
    if (!json_is_string(value)) return sn_fail(err, SN_REFUSED, "'%s' must be a text", name);
    *out = json_string_value(value);
    return SN_OK;
}

/* The first of the spellings (NULL-terminated) that is present; the first of all when none is. */
const char *sn_config_spelling(const json_t *config, const char *const *names) {
    for (const char *const *at = names; *at; at++)
        if (sn_config_field(config, *at)) return *at;
    return *names;
}

bool sn_family_reads(const sn_family *family, const char *name) {
    for (const char *const *at = family->config_fields; at && *at; at++)
        if (!strcmp(*at, name)) return true;
    return false;
}

sn_status sn_config_require_text(const json_t *config, const char *field, const char *value, sn_err *err) {
    const char *said = value;
    sn_status status = sn_config_text(config, field, false, &said, err);
    if (status || !strcmp(said, value)) return status;
    return sn_fail(err, SN_REFUSED, "'%s' is '%.64s'; in this family %s is known", field, said, value);
}
sn_status sn_config_require_bool(const json_t *config, const char *field, bool value, sn_err *err) {
    bool said = value;
    sn_status status = sn_config_bool(config, field, &said, err);
    if (status || said == value) return status;
    return sn_fail(err, SN_REFUSED, "'%s' is %s, which is not supported for this family", field,
                   said ? "true" : "false");
}

bool sn_config_lists_blocks(const json_t *config, const json_t *list, int n_blocks) {
    const json_int_t further = json_integer_value(sn_config_field(config, "num_nextn_predict_layers"));
    const size_t n = json_array_size(list), all = (size_t)n_blocks;
    return json_is_array(list) && (n == all || (further > 0 && further < 64 && n == all + (size_t)further));
}

sn_status sn_config_flags(const json_t *config, const char *name, int n_blocks, bool ones, bool *out, sn_err *err) {
    const json_t *list = sn_config_field(config, name);
    if (!list) return SN_OK;
    if (!json_is_array(list) || json_array_size(list) < (size_t)n_blocks)
        return sn_fail(err, SN_REFUSED, "'%s' must list all %d blocks", name, n_blocks);
    for (int i = 0; i < n_blocks; i++) {
        const json_t *flag = json_array_get(list, (size_t)i);
        if (!json_is_integer(flag) || json_integer_value(flag) < 0 || json_integer_value(flag) > 1)
            return sn_fail(err, SN_REFUSED, "'%s' must hold 0 and 1", name);
        out[i] = json_integer_value(flag) == ones;
    }
    return SN_OK;
}
