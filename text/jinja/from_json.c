#include "text/jinja/value_private.h"

#include "base/wide_json.h"

#include <string.h>

static sn_jvalue object_value(sn_jrun *run, const json_t *object, bool (*is_own)(const char *key, const char *text),
                              uint8_t mark) {
    sn_jdict *dict = sn_jdict_new(run);
    json_t *mutable_object = (json_t *)object; /* jansson's iterators take no const; nothing is changed */
    for (void *at = json_object_iter(mutable_object); at; at = json_object_iter_next(mutable_object, at)) {
        const char *key = json_object_iter_key(at);
        const json_t *item = json_object_iter_value(at);
        const char *text = json_string_value(item);
        bool whole = text && strlen(text) == json_string_length(item); /* is_own sees the text up to its first NUL */
        bool own = whole && is_own && is_own(key, text);
        sn_jvalue name = sn_jstr(sn_jstring_new(run, key, strlen(key), mark));
        sn_jdict_set(run, dict, name, sn_jfrom_json(run, item, is_own, own ? 0 : mark));
    }
    return sn_jdict_value(dict);
}

sn_jvalue sn_jfrom_json(sn_jrun *run, const json_t *json, bool (*is_own)(const char *key, const char *text),
                        uint8_t mark) {
    sn_jvalue out = sn_jnone();
    const char *digits = sn_wide_digits(json);
    if (digits) {
        out = sn_jstr(sn_jstring_new(run, digits, strlen(digits), mark));
        out.kind = SN_J_WIDE;
        return out;
    }
    sn_jenter(run);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        out = object_value(run, json, is_own, mark);
        break;
    case JSON_ARRAY:
        out = sn_jlist_value(sn_jlist_new(run, json_array_size(json)));
        for (size_t i = 0; i < json_array_size(json); i++)
            sn_jlist_add(run, out.list, sn_jfrom_json(run, json_array_get(json, i), is_own, mark));
        break;
    case JSON_STRING:
        out = sn_jstr(sn_jstring_new(run, json_string_value(json), json_string_length(json), mark));
        break;
    case JSON_INTEGER:
        out = sn_jint(json_integer_value(json));
        break;
    case JSON_REAL:
        out = sn_jreal(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        out = sn_jbool(json_is_true(json));
        break;
    default:
        break;
    }
    sn_jleave(run);
    return out;
}
