#include "model/config_private.h"

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
