/* Reading an object by a table of its fields. */
#include "gateway/openai/request_private.h"

#include "base/wide_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *sn_path(char out[SN_PATH_MAX], const char *path, const char *name, size_t index) {
    if (name)
        snprintf(out, SN_PATH_MAX, "%s%s%s", path, *path ? "." : "", name);
    else
        snprintf(out, SN_PATH_MAX, "%s[%zu]", path, index);
    return out;
}

bool sn_is_word(const char *words, const char *word) {
    size_t len = strlen(word);
    for (const char *at = words; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (len == strcspn(at, "|") && !strncmp(at, word, len)) return true;
    return false;
}

static bool asks_for_nothing(const sn_request_field *f, const json_t *value) {
    return json_is_false(value) || (json_is_true(value) && f->low == 1) ||
           (json_is_string(value) && !json_string_length(value)) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value)) ||
           (json_is_number(value) && (json_number_value(value) == 0 || json_number_value(value) == f->low));
}

static bool wrong_type(const char *path, const char *type, sn_openai_error *error) {
    return sn_openai_fail(error, 400, NULL, path, "'%s' must be %s", path, type);
}

static bool out_of_range(const sn_request_field *f, const char *path, sn_openai_error *error) {
    return sn_openai_fail(error, 400, NULL, path, "'%s' must be from %.15g to %.15g", path, f->low, f->high);
}

/* Of an integer beyond 64 bits that may be of any size, as a seed, the lowest ones count. */
static bool read_number(const sn_request_field *f, const char *path, const json_t *value, void *at,
                        sn_openai_error *error) {
    const char *wide = sn_wide_digits(value);
    const bool any = f->kind == SN_FIELD_INT && f->low == -HUGE_VAL;
    double number = wide ? strtod(wide, NULL) : json_number_value(value);
    if (f->kind == SN_FIELD_INT && !wide && !json_is_integer(value)) return wrong_type(path, "an integer", error);
    if (!wide && !json_is_number(value)) return wrong_type(path, "a number", error);
    if (!any && !(number >= f->low && number <= f->high)) return out_of_range(f, path, error);
    if (f->kind == SN_FIELD_INT) {
        const int64_t whole = wide ? sn_wide_low_bits(wide) : json_integer_value(value);
        *(int64_t *)at = any ? whole & INT64_MAX : whole; /* no number is SN_UNSET */
    } else {
        *(double *)at = number;
    }
    return true;
}

static bool read_field(const sn_request_field *f, const char *path, const json_t *value, void *at,
                       sn_openai_error *error) {
    switch (f->kind) {
    case SN_FIELD_FLAG:
        if (!json_is_boolean(value)) return wrong_type(path, "true or false", error);
        *(bool *)at = json_is_true(value);
        return true;
    case SN_FIELD_INT:
    case SN_FIELD_NUMBER:
        return read_number(f, path, value, at, error);
    case SN_FIELD_TEXT:
        if (!json_is_string(value)) return wrong_type(path, "a string", error);
        *(const char **)at = json_string_value(value);
        return true;
    case SN_FIELD_OBJECT:
        if (!json_is_object(value) || sn_wide_digits(value)) return wrong_type(path, "an object", error);
        break;
    case SN_FIELD_LIST:
        if (!json_is_array(value)) return wrong_type(path, "a list", error);
        break;
    case SN_FIELD_ANY:
        break;
    case SN_FIELD_IGNORED:
        return true;
    case SN_FIELD_ONLY:
        return (json_is_string(value) && sn_is_word(f->words, json_string_value(value))) ||
               sn_openai_fail(error, 400, NULL, path, "'%s' must be one of: %s", path, f->words);
    case SN_FIELD_REFUSED:
        return asks_for_nothing(f, value) ||
               sn_openai_fail(error, 400, "unsupported_parameter", path, "'%s' is not supported: %s", path, f->words);
    }
    *(const json_t **)at = value;
    return true;
}

void sn_note_ignored(sn_parse *p, const char *name) {
    sn_request *r = p->r;
    for (size_t i = 0; i < r->n_ignored; i++)
        if (!strcmp(r->ignored[i], name)) return;
    if (r->n_ignored < SN_REQUEST_IGNORED_MAX) r->ignored[r->n_ignored++] = name;
}

bool sn_read_fields(sn_parse *p, const json_t *object, const char *path, const sn_request_field *fields, void *into) {
    const char *name;
    json_t *value;
    char here[SN_PATH_MAX];
    if (!json_is_object(object) || sn_wide_digits(object))
        return wrong_type(*path ? path : "body", "an object", p->error);
    json_object_foreach((json_t *)(uintptr_t)object, name, value) {
        const sn_request_field *f = fields;
        while (f->name && strcmp(f->name, name)) f++;
        if (json_is_null(value) && f->name) continue;
        sn_path(here, path, name, 0);
        if (f->kind == SN_FIELD_IGNORED) {
            if (!asks_for_nothing(f, value)) sn_note_ignored(p, name);
        } else if (!f->name) {
            return sn_openai_fail(p->error, 400, "unknown_parameter", here, "the field '%s' is not known here", here);
        } else if (!read_field(f, here, value, (char *)into + f->offset, p->error)) {
            return false;
        }
    }
    return true;
}
