/* Which keywords a schema may have with which values, and where its references lead. */
#include "gateway/grammar/shape_private.h"

#include "base/wide_json.h"

#include <stdlib.h>
#include <string.h>

int sn_schema_refuse(sn_grammar *g, const char *keyword) {
    return sn_grammar_fail(g, SN_REFUSED, "the schema's \"%.60s\" is not supported as it stands: leave it out",
                           keyword);
}

/* What a keyword's value must be. */
typedef enum value_kind {
    ANYTHING,
    TEXT,
    FLAG,
    NUMBER,
    COUNT,
    TYPES,
    NAMES,
    VALUES,
    SCHEMA,
    SCHEMAS,
    MEMBERS
} value_kind;
static const struct {
    const char *name;
    value_kind kind;
    bool describes; /* it constrains nothing */
} keywords[] = {
    {"title", ANYTHING, true},
    {"description", ANYTHING, true},
    {"default", ANYTHING, true},
    {"examples", ANYTHING, true},
    {"$schema", ANYTHING, true},
    {"$id", ANYTHING, true},
    {"$comment", ANYTHING, true},
    {"deprecated", ANYTHING, true},
    {"readOnly", ANYTHING, true},
    {"writeOnly", ANYTHING, true},
    {"$defs", ANYTHING, true},
    {"definitions", ANYTHING, true},
    {"contentMediaType", ANYTHING, true},
    {"discriminator", ANYTHING, true},
    {"$ref", TEXT, false},
    {"type", TYPES, false},
    {"enum", VALUES, false},
    {"const", ANYTHING, false},
    {"anyOf", SCHEMAS, false},
    {"oneOf", SCHEMAS, false},
    {"allOf", SCHEMAS, false},
    {"properties", MEMBERS, false},
    {"required", NAMES, false},
    {"additionalProperties", SCHEMA, false},
    {"items", SCHEMA, false},
    {"prefixItems", SCHEMAS, false},
    {"minItems", COUNT, false},
    {"maxItems", COUNT, false},
    {"uniqueItems", FLAG, false},
    {"minLength", COUNT, false},
    {"maxLength", COUNT, false},
    {"pattern", TEXT, false},
    {"format", TEXT, false},
    {"minimum", NUMBER, false},
    {"maximum", NUMBER, false},
    {"exclusiveMinimum", NUMBER, false},
    {"exclusiveMaximum", NUMBER, false},
    {"multipleOf", NUMBER, false},
};

static bool is_schema(const json_t *value) { return json_is_object(value) || json_is_boolean(value); }

static bool all_are(const json_t *array, value_kind kind) {
    size_t i;
    json_t *value;
    if (!json_is_array(array)) return false;
    json_array_foreach((json_t *)array, i, value) {
        if (kind == SCHEMA ? !is_schema(value) : !json_is_string(value)) return false;
    }
    return true;
}

static bool fits_kind(const json_t *value, value_kind kind) {
    const char *key;
    json_t *inner;
    switch (kind) {
    case ANYTHING:
        return true;
    case TEXT:
        return json_is_string(value);
    case FLAG:
        return json_is_boolean(value);
    case NUMBER:
        return json_is_number(value) || sn_wide_digits(value);
    case COUNT:
        return json_is_integer(value) && json_integer_value(value) >= 0;
    case TYPES:
        return json_is_string(value) || (json_array_size(value) && all_are(value, TEXT));
    case NAMES:
        return all_are(value, TEXT);
    case VALUES:
        return json_is_array(value);
    case SCHEMA:
        return is_schema(value);
    case SCHEMAS:
        return json_array_size(value) && all_are(value, SCHEMA);
    case MEMBERS:
        json_object_foreach((json_t *)value, key, inner) {
            if (!is_schema(inner)) return false;
        }
        return json_is_object(value);
    }
    return false;
}

const char *sn_schema_check(sn_shaper *s, const json_t *schema, size_t *n) {
    const char *key, *only = NULL;
    json_t *value;
    *n = 0;
    json_object_foreach((json_t *)schema, key, value) {
        size_t i = 0;
        while (i < sizeof keywords / sizeof *keywords && strcmp(key, keywords[i].name)) i++;
        /* "$id" would change what references inside mean. */
        if (i == sizeof keywords / sizeof *keywords || (!strcmp(key, "$id") && schema != s->root)) {
            sn_schema_refuse(s->g, key);
            return NULL;
        }
        if (!fits_kind(value, keywords[i].kind)) {
            sn_grammar_fail(s->g, SN_REFUSED, "the schema's \"%s\" has a value that it cannot have: see JSON Schema",
                            key);
            return NULL;
        }
        if (keywords[i].kind == COUNT && json_integer_value(value) > SN_COUNT_MAX) {
            sn_grammar_fail(s->g, SN_REFUSED,
                            "the schema's \"%s\" is above %d, which is the most: lower it, or leave it out", key,
                            SN_COUNT_MAX);
            return NULL;
        }
        if (keywords[i].describes) continue;
        only = key;
        ++*n;
    }
    return *n == 1 ? only : NULL;
}

/* -- references -- */

/* "#/$defs/name" in the root schema; NULL: there is no such place. */
static const json_t *find_pointer(const json_t *root, const char *pointer) {
    const json_t *at = root;
    if (*pointer++ != '#') return NULL;
    while (*pointer == '/' && at) {
        char part[256];
        size_t n = 0;
        for (pointer++; *pointer && *pointer != '/' && n < sizeof part - 1; pointer++) {
            bool escape = *pointer == '~' && (pointer[1] == '0' || pointer[1] == '1');
            part[n++] = (char)(!escape ? *pointer : *++pointer == '0' ? '~' : '/');
        }
        part[n] = 0;
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(part, NULL, 10)) : json_object_get(at, part);
    }
    return *pointer ? NULL : at;
}

const json_t *sn_schema_target(sn_shaper *s, const json_t *schema) {
    const char *pointer = json_string_value(json_object_get(schema, "$ref"));
    if (!sn_grammar_work(s->g, 1 + strlen(pointer) / 16)) return NULL;
    const json_t *target = find_pointer(s->root, pointer);
    if (!target) sn_grammar_fail(s->g, SN_REFUSED, "the schema's \"$ref\" %.80s leads nowhere", pointer);
    return target;
}
