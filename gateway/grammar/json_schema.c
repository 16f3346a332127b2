/* JSON schemas (draft 2020-12) as grammars. Each keyword is kept exactly, only describes, or is refused: a grammar
 * never accepts JSON that the schema does not. It may accept less: members come in the order of "properties", white
 * space is short, and keys besides those of "properties" are written without escapes. */
#include "gateway/grammar/grammar_private.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCHEMA_DEPTH_MAX = 64, REFS_MAX = 512, TEMPORARIES_MAX = 1024, NUMBER_TEXT = 400 };
enum { SCHEMA_SIZE_MAX = 1 << 15, TEXT_OF_VALUE = 64 }; /* values; a longer text counts as more of them */

typedef struct compiler {
    sn_grammar *g;
    const json_t *root;
    struct {
        const char *pointer;
        int rule;
    } refs[REFS_MAX];
    json_t *temporaries[TEMPORARIES_MAX]; /* schemas that were merged from others */
    int n_refs, n_temporaries, depth;
    int space, character, string, value; /* rules */
} compiler;

static int add_schema(compiler *c, const json_t *schema, int next);

static int refuse_keyword(compiler *c, const char *keyword) {
    return sn_grammar_fail(c->g, SN_REFUSED, "the schema's \"%.60s\" is not supported as it stands: leave it out",
                           keyword);
}
static bool failed(const compiler *c) { return sn_grammar_error(c->g, NULL) != SN_OK; }
static int add_text(compiler *c, const char *text, int next) { return sn_add_literal(c->g, text, strlen(text), next); }

/* A JSON value as it stands, compact. */
static int add_value(compiler *c, const json_t *value, int next) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return sn_grammar_fail(c->g, SN_STOP, "out of memory for a schema");
    next = add_text(c, text, next);
    free(text);
    return next;
}

/* -- strings -- */

/* Fewer dates than there are, but none that is not one: no 29 February, four digits of a year. */
#define DATE                                                                                                           \
    "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2["  \
    "0-8]))"
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration",
     "^P([1-9][0-9]{0,8}W|([1-9][0-9]{0,8}D|[1-9][0-9]{0,8}M([1-9][0-9]{0,8}D)?|[1-9][0-9]{0,8}Y([1-9][0-9]{0,8}M)?)"
     "(T[1-9][0-9]{0,8}[HMS])?|T[1-9][0-9]{0,8}[HMS])$"},
    {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^" BYTE "(\\." BYTE "){3}$"},
    {"ipv6", "^[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){7}$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,8}$"},
    {"email", "^[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+){0,8}@" LABEL "(\\." LABEL "){1,8}$"},
};

/* A limit that counts something: -1 when it is missing. */
static int get_count(compiler *c, const json_t *schema, const char *keyword) {
    const json_t *value = json_object_get(schema, keyword);
    if (!value) return -1;
    if (json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) < SN_GRAMMAR_NODES_MAX)
        return (int)json_integer_value(value);
    sn_grammar_fail(c->g, SN_REFUSED, "the schema's \"%s\" is no usable number", keyword);
    return -1;
}

static int add_string(compiler *c, const json_t *schema, int next) {
    int least = get_count(c, schema, "minLength"), most = get_count(c, schema, "maxLength");
    const char *pattern = json_string_value(json_object_get(schema, "pattern"));
    const char *format = json_string_value(json_object_get(schema, "format"));
    bool counted = least > 0 || most >= 0;
    if ((pattern || format) && (counted || (pattern && format)))
        return sn_grammar_fail(c->g, SN_REFUSED,
                               "the schema has two of \"pattern\", \"format\" and limits of the length for one string: "
                               "leave out all but one");
    next = add_text(c, "\"", next);
    for (size_t i = 0; format && !pattern && i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(format, formats[i].name)) pattern = formats[i].pattern;
    if (format && !pattern) return sn_grammar_fail(c->g, SN_REFUSED, "the format \"%.40s\" is not supported", format);
    if (most >= 0 && least > most) return sn_add_fail(c->g);
    if (pattern)
        next = sn_add_pattern(c->g, pattern, next);
    else
        next = sn_add_repeat(c->g, c->character, -1, least > 0 ? least : 0, most, next);
    return add_text(c, "\"", next);
}

/* -- numbers -- */

/* The limit of a keyword in decimal notation, or NULL. */
static const char *get_limit(compiler *c, const json_t *schema, const char *keyword, char text[NUMBER_TEXT]) {
    const json_t *value = json_object_get(schema, keyword);
    if (!value) return NULL;
    if (!json_is_number(value)) {
        sn_grammar_fail(c->g, SN_REFUSED, "the schema's \"%s\" is no number", keyword);
        return NULL;
    }
    if (json_is_integer(value)) {
        snprintf(text, NUMBER_TEXT, "%lld", (long long)json_integer_value(value));
    } else {
        snprintf(text, NUMBER_TEXT, "%.15g", json_real_value(value));
        if (strpbrk(text, "eE")) snprintf(text, NUMBER_TEXT, "%.30f", json_real_value(value));
    }
    return text;
}

static int add_number(compiler *c, const json_t *schema, bool integer, int next) {
    char texts[4][NUMBER_TEXT];
    const char *low = get_limit(c, schema, "minimum", texts[0]), *high = get_limit(c, schema, "maximum", texts[1]);
    const char *above = get_limit(c, schema, "exclusiveMinimum", texts[2]);
    const char *below = get_limit(c, schema, "exclusiveMaximum", texts[3]);
    if ((low && above) || (high && below))
        return sn_grammar_fail(c->g, SN_REFUSED, "the schema limits a number on one side twice: leave out one of them");
    const json_t *multiple = json_object_get(schema, "multipleOf");
    if (multiple && !(integer && json_is_integer(multiple) && json_integer_value(multiple) == 1))
        return refuse_keyword(c, "multipleOf");
    sn_number_range range = {.low = low ? low : above,
                             .high = high ? high : below,
                             .low_is_out = above,
                             .high_is_out = below,
                             .integer = integer};
    return failed(c) ? SN_END : sn_add_number(c->g, &range, next);
}

/* -- arrays -- */

/* "," with white space. */
static int add_comma(compiler *c, int next) {
    return sn_add_call(c->g, c->space, add_text(c, ",", sn_add_call(c->g, c->space, next)));
}
static int make_rule(compiler *c, const json_t *schema) {
    int rule = sn_add_rule(c->g);
    sn_set_rule(c->g, rule, add_schema(c, schema, SN_END));
    return rule;
}

static int add_array(compiler *c, const json_t *schema, int next) {
    int least = get_count(c, schema, "minItems"), most = get_count(c, schema, "maxItems");
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems");
    if (json_is_true(json_object_get(schema, "uniqueItems"))) return refuse_keyword(c, "uniqueItems");
    if (items && !json_is_object(items) && !json_is_boolean(items)) return refuse_keyword(c, "items");
    int first = (int)json_array_size(prefix), comma = sn_add_rule(c->g);
    bool more = !json_is_false(items) && (most < 0 || most > first);
    if (least < 0) least = 0;
    if ((most >= 0 && least > most) || (!more && least > first)) return sn_add_fail(c->g);
    if (most >= 0 && most < first) first = most;
    sn_set_rule(c->g, comma, add_comma(c, SN_END));
    int end = sn_add_call(c->g, c->space, add_text(c, "]", next)), at = end;
    if (more) {
        int rule = items ? make_rule(c, items) : c->value;
        int rest = most < 0 ? -1 : most - first, needed = least > first ? least - first : 0;
        at = sn_add_repeat(c->g, rule, comma, needed, rest, end);
        if (first && needed) at = sn_add_call(c->g, comma, at);
        if (first && !needed)
            at = sn_add_split(c->g, end, sn_add_call(c->g, comma, sn_add_repeat(c->g, rule, comma, 1, rest, end)));
    }
    for (int i = first - 1; i >= 0; i--) {
        at = sn_add_call(c->g, make_rule(c, json_array_get(prefix, (size_t)i)), at);
        if (i) at = sn_add_call(c->g, comma, at);
        if (i >= least) at = sn_add_split(c->g, end, at); /* the array may end before this element */
    }
    return add_text(c, "[", sn_add_call(c->g, c->space, at));
}

/* -- objects -- */

typedef struct names {
    const char *at[512]; /* what follows the code points that were read already */
    int n;
} names;

/* The rest of a key that equals none of the names. */
static int add_other_key(compiler *c, const names *equal, int next) {
    sn_char_class others = {.n = 0};
    bool may_end = true;
    int at = -1, free_rule = sn_add_rule(c->g), depth = ++c->depth;
    for (int i = 0; i < equal->n && !failed(c); i++) {
        const char *rest = equal->at[i];
        if (!*rest) {
            may_end = false;
            continue;
        }
        uint32_t first = sn_next_code_point(&rest);
        bool known = false;
        for (int k = 0; k < others.n; k++) known |= first >= others.ranges[k].lo && first <= others.ranges[k].hi;
        if (known) continue;
        if (!sn_char_class_add(&others, first, first) || depth > SCHEMA_DEPTH_MAX * 4)
            return sn_grammar_fail(c->g, SN_REFUSED, "the names of the schema's properties are too many or too long");
        names *same = NULL;
        sn_err err;
        if (sn_calloc(&same, 1, sizeof *same, &err)) return sn_grammar_fail(c->g, SN_STOP, "%s", err.text);
        for (int k = i; k < equal->n; k++) {
            const char *other = equal->at[k];
            if (*other && sn_next_code_point(&other) == first) same->at[same->n++] = other;
        }
        const sn_char_class one = {.ranges = {{first, first}}, .n = 1};
        int branch = sn_add_plain_char(c->g, &one, add_other_key(c, same, next));
        at = at < 0 ? branch : sn_add_split(c->g, branch, at);
        free(same);
    }
    c->depth--;
    sn_char_class all = {.n = 0};
    sn_char_class_invert(&all);
    sn_set_rule(c->g, free_rule, sn_add_plain_char(c->g, &all, SN_END));
    if (!sn_char_class_invert(&others)) return sn_grammar_fail(c->g, SN_REFUSED, "the schema has too many properties");
    int free_key = sn_add_plain_char(c->g, &others, sn_add_repeat(c->g, free_rule, -1, 0, -1, next));
    at = at < 0 ? free_key : sn_add_split(c->g, free_key, at);
    return may_end ? sn_add_split(c->g, next, at) : at;
}

static int add_colon(compiler *c, int next) { return add_text(c, ":", sn_add_call(c->g, c->space, next)); }

/* A rule for one member: its key and its value. */
static int make_member_rule(compiler *c, const char *key, const json_t *schema) {
    int rule = sn_add_rule(c->g);
    json_t *name = json_string(key);
    int begin = add_colon(c, schema ? add_schema(c, schema, SN_END) : sn_add_call(c->g, c->value, SN_END));
    sn_set_rule(c->g, rule, name ? add_value(c, name, begin) : sn_grammar_fail(c->g, SN_STOP, "out of memory"));
    json_decref(name);
    return rule;
}

/* A rule for a member that "properties" does not name; -1: there may be none. */
static int make_other_member_rule(compiler *c, const json_t *schema, const names *known) {
    const json_t *additional = json_object_get(schema, "additionalProperties");
    if (json_is_false(additional)) return -1;
    int rule = sn_add_rule(c->g);
    int value = json_is_object(additional) ? add_schema(c, additional, SN_END) : sn_add_call(c->g, c->value, SN_END);
    sn_set_rule(c->g, rule, add_text(c, "\"", add_other_key(c, known, add_text(c, "\"", add_colon(c, value)))));
    return rule;
}

static bool array_holds(const json_t *array, const char *word) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        const char *one = json_string_value(json_array_get(array, i));
        if (one && !strcmp(one, word)) return true;
    }
    return false;
}

/* One of a list of members, built backwards: where the text goes on when no member was written before (`none`), and
 * when one was (`some`). */
typedef struct object_tail {
    int none, some;
} object_tail;

static object_tail add_member(compiler *c, int rule, bool required, object_tail tail) {
    int first = sn_add_call(c->g, rule, tail.some), later = add_comma(c, first);
    if (required) return (object_tail){first, later};
    return (object_tail){sn_add_split(c->g, first, tail.none), sn_add_split(c->g, later, tail.some)};
}

static int add_object(compiler *c, const json_t *schema, int next) {
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    const json_t *additional = json_object_get(schema, "additionalProperties");
    const char *key;
    json_t *value;
    int rules[512], n = 0;
    bool is_required[512];
    names known = {.n = 0};
    if (json_object_size(properties) + json_array_size(required) > 512)
        return sn_grammar_fail(c->g, SN_REFUSED, "the schema has an object with too many properties");
    json_object_foreach((json_t *)properties, key, value) {
        is_required[n] = array_holds(required, key);
        known.at[known.n++] = key;
        rules[n++] = make_member_rule(c, key, value);
    }
    for (size_t i = 0; i < json_array_size(required); i++) { /* required, and not among the properties */
        key = json_string_value(json_array_get(required, i));
        if (!key) return refuse_keyword(c, "required");
        if (json_object_get(properties, key)) continue;
        if (json_is_false(additional)) return sn_add_fail(c->g);
        is_required[n] = true;
        known.at[known.n++] = key;
        rules[n++] = make_member_rule(c, key, json_is_object(additional) ? additional : NULL);
    }
    int end = sn_add_call(c->g, c->space, add_text(c, "}", next)), other = make_other_member_rule(c, schema, &known);
    object_tail tail = {end, end};
    if (other >= 0) {
        int comma = sn_add_rule(c->g);
        sn_set_rule(c->g, comma, add_comma(c, SN_END));
        tail.none = sn_add_repeat(c->g, other, comma, 0, -1, end);
        tail.some = sn_add_split(c->g, end, sn_add_call(c->g, comma, sn_add_repeat(c->g, other, comma, 1, -1, end)));
    }
    while (n-- > 0 && !failed(c)) tail = add_member(c, rules[n], is_required[n], tail);
    return add_text(c, "{", sn_add_call(c->g, c->space, tail.none));
}

/* -- schemas -- */

static const char *const annotations[] = {"title", "description", "default",          "examples",      "$schema",
                                          "$id",   "$comment",    "deprecated",       "readOnly",      "writeOnly",
                                          "$defs", "definitions", "contentMediaType", "discriminator", NULL};
static const char *const keywords[] = {"$ref",
                                       "type",
                                       "enum",
                                       "const",
                                       "anyOf",
                                       "oneOf",
                                       "allOf",
                                       "properties",
                                       "required",
                                       "additionalProperties",
                                       "items",
                                       "prefixItems",
                                       "minItems",
                                       "maxItems",
                                       "uniqueItems",
                                       "minLength",
                                       "maxLength",
                                       "pattern",
                                       "format",
                                       "minimum",
                                       "maximum",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum",
                                       "multipleOf",
                                       NULL};

static bool is_among(const char *word, const char *const *words) {
    while (*words && strcmp(*words, word)) words++;
    return *words;
}

/* Whether the schema has a keyword that constrains, besides the ones of the list. */
static bool has_others(const json_t *schema, const char *const *besides) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key,
                        value) if (!is_among(key, annotations) && !is_among(key, besides)) return true;
    return false;
}

/* "#/$defs/name" in the root schema; NULL: there is no such place. */
static const json_t *find_pointer(const compiler *c, const char *pointer) {
    const json_t *at = c->root;
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

static const json_t *resolve(compiler *c, const json_t *schema) {
    for (int hops = 0; json_is_object(schema) && json_object_get(schema, "$ref") && hops < 16; hops++) {
        const char *pointer = json_string_value(json_object_get(schema, "$ref"));
        if (!pointer || !sn_grammar_work(c->g, strlen(pointer) / 16)) return NULL;
        schema = find_pointer(c, pointer);
    }
    return schema;
}

static int add_reference(compiler *c, const json_t *schema, int next) {
    const char *pointer = json_string_value(json_object_get(schema, "$ref"));
    static const char *const alone[] = {"$ref", NULL};
    const json_t *target = pointer ? find_pointer(c, pointer) : NULL;
    if (!target)
        return sn_grammar_fail(c->g, SN_REFUSED, "the schema's \"$ref\" %.80s leads nowhere", pointer ? pointer : "");
    if (has_others(schema, alone)) return refuse_keyword(c, "$ref");
    for (int i = 0; i < c->n_refs; i++)
        if (!strcmp(c->refs[i].pointer, pointer)) return sn_add_call(c->g, c->refs[i].rule, next);
    if (c->n_refs == REFS_MAX) return sn_grammar_fail(c->g, SN_REFUSED, "the schema has too many references");
    int rule = sn_add_rule(c->g);
    c->refs[c->n_refs].pointer = pointer;
    c->refs[c->n_refs++].rule = rule;
    sn_set_rule(c->g, rule, add_schema(c, target, SN_END));
    return sn_add_call(c->g, rule, next);
}

/* Elements that are copied when a schema is joined to another one. */
static size_t size_of_merged(const json_t *schema) {
    return json_object_size(schema) + json_object_size(json_object_get(schema, "properties")) +
           json_array_size(json_object_get(schema, "required"));
}

/* Both schemas at once; NULL, and the compiler has failed, when they cannot be joined by joining their keywords. */
static const json_t *merge(compiler *c, const json_t *a, const json_t *b) {
    const char *key, *name;
    json_t *value, *inner, *out = json_copy((json_t *)a);
    if (!out || c->n_temporaries == TEMPORARIES_MAX) {
        json_decref(out);
        sn_grammar_fail(c->g, out ? SN_REFUSED : SN_STOP, "the schema joins too many others");
        return NULL;
    }
    c->temporaries[c->n_temporaries++] = out;
    if (!sn_grammar_work(c->g, size_of_merged(a) + size_of_merged(b))) return NULL;
    json_object_foreach((json_t *)b, key, value) {
        json_t *present = json_object_get(out, key);
        if (is_among(key, annotations) || (present && json_equal(present, value))) continue;
        if (!present) {
            json_object_set(out, key, value);
        } else if (!strcmp(key, "required")) {
            json_t *all = json_copy(present);
            json_array_extend(all, value);
            json_object_set_new(out, key, all);
        } else if (!strcmp(key, "properties")) {
            json_t *all = json_copy(present);
            json_object_foreach(value, name, inner) {
                const json_t *other = json_object_get(all, name);
                if (other && !json_equal(other, inner)) refuse_keyword(c, "allOf");
                json_object_set(all, name, inner);
            }
            json_object_set_new(out, key, all);
        } else {
            refuse_keyword(c, key);
        }
    }
    bool closed = json_is_false(json_object_get(a, "additionalProperties")) !=
                  json_is_false(json_object_get(b, "additionalProperties"));
    if (closed && json_object_get(a, "properties") && json_object_get(b, "properties"))
        refuse_keyword(c, "additionalProperties");
    return failed(c) ? NULL : out;
}

/* The schema without one keyword and without what only describes. */
static const json_t *without(compiler *c, const json_t *schema, const char *keyword) {
    json_t *empty = json_object();
    const json_t *copy = merge(c, empty, schema);
    json_decref(empty);
    if (copy) json_object_del((json_t *)copy, keyword);
    return copy;
}

static int add_all_of(compiler *c, const json_t *schema, int next) {
    const json_t *all = without(c, schema, "allOf"), *parts = json_object_get(schema, "allOf");
    for (size_t i = 0; all && i < json_array_size(parts); i++) {
        const json_t *part = resolve(c, json_array_get(parts, i));
        if (json_is_true(part)) continue;
        if (!json_is_object(part)) return refuse_keyword(c, "allOf");
        all = merge(c, all, part);
    }
    return all ? add_schema(c, all, next) : SN_END;
}

/* Whether no JSON fits both: other types, or a required property with other constants. */
static bool are_disjoint(compiler *c, const json_t *a, const json_t *b) {
    a = resolve(c, a), b = resolve(c, b);
    const char *type_a = json_string_value(json_object_get(a, "type")),
               *type_b = json_string_value(json_object_get(b, "type"));
    const json_t *const_a = json_object_get(a, "const"), *const_b = json_object_get(b, "const");
    if (const_a && const_b) return !json_equal(const_a, const_b);
    if (type_a && type_b && strcmp(type_a, type_b))
        return !(strchr("in", *type_a) && strchr("in", *type_b) && strcmp(type_a, "null") && strcmp(type_b, "null"));
    const json_t *required_a = json_object_get(a, "required"), *required_b = json_object_get(b, "required");
    const size_t n = json_object_size(json_object_get(a, "properties"));
    if (!sn_grammar_work(c->g, n * (1 + json_array_size(required_a) + json_array_size(required_b)))) return true;
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(a, "properties"), key, value) {
        const json_t *other = json_object_get(json_object_get(b, "properties"), key);
        if (!other || !array_holds(required_a, key) || !array_holds(required_b, key)) continue;
        const json_t *x = json_object_get(value, "const"), *y = json_object_get(other, "const");
        if (x && y && !json_equal(x, y)) return true;
    }
    return false;
}

static int add_any_of(compiler *c, const json_t *schema, const char *keyword, int next) {
    const json_t *parts = json_object_get(schema, keyword);
    const char *const alone[] = {keyword, NULL};
    const json_t *siblings = has_others(schema, alone) ? without(c, schema, keyword) : NULL;
    if (!json_array_size(parts)) return refuse_keyword(c, keyword);
    for (size_t i = 0; i < json_array_size(parts) && !strcmp(keyword, "oneOf"); i++)
        for (size_t k = 0; k < i && sn_grammar_work(c->g, 1); k++)
            if (!are_disjoint(c, json_array_get(parts, k), json_array_get(parts, i)))
                return sn_grammar_fail(
                    c->g, SN_REFUSED,
                    "the schema's \"oneOf\" has alternatives that one value may fit both: use \"anyOf\"");
    int at = sn_add_fail(c->g);
    for (size_t i = json_array_size(parts); i-- > 0 && !failed(c);) {
        const json_t *part = json_array_get(parts, i);
        if (siblings) part = merge(c, siblings, resolve(c, part));
        if (part) at = sn_add_split(c->g, add_schema(c, part, next), at);
    }
    return at;
}

static bool fits_type(const json_t *value, const char *type) {
    if (!strcmp(type, "integer")) return json_is_integer(value);
    if (!strcmp(type, "number")) return json_is_number(value);
    if (!strcmp(type, "boolean")) return json_is_boolean(value);
    return !strcmp(type, json_is_string(value)   ? "string"
                         : json_is_object(value) ? "object"
                         : json_is_array(value)  ? "array"
                         : json_is_null(value)   ? "null"
                                                 : "");
}

static int add_constants(compiler *c, const json_t *schema, int next) {
    static const char *const beside[] = {"enum", "const", "type", NULL};
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    const json_t *type = json_object_get(schema, "type");
    if (has_others(schema, beside) || (list && one)) return refuse_keyword(c, list ? "enum" : "const");
    int at = sn_add_fail(c->g);
    for (size_t i = list ? json_array_size(list) : 1; i-- > 0 && !failed(c);) {
        const json_t *value = list ? json_array_get(list, i) : one;
        bool fits = !type || (json_is_string(type) && fits_type(value, json_string_value(type)));
        for (size_t k = 0; k < json_array_size(type) && !fits; k++)
            fits = fits_type(value,
                             json_is_string(json_array_get(type, k)) ? json_string_value(json_array_get(type, k)) : "");
        if (fits) at = sn_add_split(c->g, add_value(c, value, next), at);
    }
    return at;
}

static int add_type(compiler *c, const json_t *schema, const char *type, int next) {
    if (!strcmp(type, "object")) return add_object(c, schema, next);
    if (!strcmp(type, "array")) return add_array(c, schema, next);
    if (!strcmp(type, "string")) return add_string(c, schema, next);
    if (!strcmp(type, "integer")) return add_number(c, schema, true, next);
    if (!strcmp(type, "number")) return add_number(c, schema, false, next);
    if (!strcmp(type, "null")) return add_text(c, "null", next);
    if (!strcmp(type, "boolean")) return sn_add_split(c->g, add_text(c, "true", next), add_text(c, "false", next));
    return sn_grammar_fail(c->g, SN_REFUSED, "the schema has a type \"%.40s\", which JSON does not", type);
}

/* The types that the schema may be; when it names none, all of them, for which its other keywords count or not. */
static int add_types(compiler *c, const json_t *schema, int next) {
    static const char *const all[] = {"object", "array", "string", "number", "boolean", "null"};
    const json_t *type = json_object_get(schema, "type");
    if (json_is_string(type)) return add_type(c, schema, json_string_value(type), next);
    if (type && !json_array_size(type)) return refuse_keyword(c, "type");
    int at = sn_add_fail(c->g);
    for (size_t i = 0; i < (type ? json_array_size(type) : sizeof all / sizeof *all) && !failed(c); i++) {
        const char *one = type ? json_string_value(json_array_get(type, i)) : all[i];
        at = sn_add_split(c->g, one ? add_type(c, schema, one, next) : refuse_keyword(c, "type"), at);
    }
    return at;
}

static int add_checked_schema(compiler *c, const json_t *schema, int next) {
    static const char *const none[] = {NULL};
    const char *key;
    json_t *value;
    if (json_is_true(schema)) return sn_add_call(c->g, c->value, next);
    if (json_is_false(schema)) return sn_add_fail(c->g);
    if (!json_is_object(schema)) return sn_grammar_fail(c->g, SN_REFUSED, "a schema is a JSON object, true or false");
    json_object_foreach((json_t *)schema, key, value) {
        if (!is_among(key, annotations) && !is_among(key, keywords)) return refuse_keyword(c, key);
    }
    if (!has_others(schema, none)) return sn_add_call(c->g, c->value, next);
    if (json_object_get(schema, "$ref")) return add_reference(c, schema, next);
    if (json_object_get(schema, "allOf")) return add_all_of(c, schema, next);
    if (json_object_get(schema, "anyOf")) return add_any_of(c, schema, "anyOf", next);
    if (json_object_get(schema, "oneOf")) return add_any_of(c, schema, "oneOf", next);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const")) return add_constants(c, schema, next);
    return add_types(c, schema, next);
}

static int add_schema(compiler *c, const json_t *schema, int next) {
    if (failed(c)) return SN_END;
    if (c->depth >= SCHEMA_DEPTH_MAX) return sn_grammar_fail(c->g, SN_REFUSED, "the schema nests too deep");
    c->depth++;
    int at = add_checked_schema(c, schema, next);
    c->depth--;
    return at;
}

/* Rules that every schema uses: white space, a string's character, a string, any JSON value. */
static void make_rules(compiler *c) {
    sn_grammar *g = c->g;
    int indent = sn_add_rule(g);
    sn_set_rule(g, indent, sn_add_split(g, sn_add_literal(g, " ", 1, SN_END), sn_add_literal(g, "\t", 1, SN_END)));
    int line = sn_add_literal(g, "\n", 1, sn_add_repeat(g, indent, -1, 0, 40, SN_END));
    c->space = sn_add_rule(g);
    sn_set_rule(g, c->space, sn_add_split(g, SN_END, sn_add_split(g, sn_add_literal(g, " ", 1, SN_END), line)));
    c->character = sn_add_char_rule(g);
    c->value = sn_add_rule(g);
    json_t *anything = json_object();
    sn_set_rule(g, c->value, anything ? add_types(c, anything, SN_END) : sn_grammar_fail(g, SN_STOP, "out of memory"));
    json_decref(anything);
}

/* Values in a schema. */
static size_t size_of_schema(const json_t *schema) {
    const char *key;
    size_t i, n = 1 + json_string_length(schema) / TEXT_OF_VALUE;
    json_t *value;
    json_array_foreach((json_t *)schema, i, value) n += size_of_schema(value);
    json_object_foreach((json_t *)schema, key, value) n += size_of_schema(value) + strlen(key) / TEXT_OF_VALUE;
    return n;
}

int sn_add_schema(sn_grammar *g, const json_t *schema, int next) {
    if (size_of_schema(schema) > SCHEMA_SIZE_MAX)
        return sn_grammar_fail(g, SN_REFUSED, "the schema is too large: make it smaller");
    compiler *c = calloc(1, sizeof *c);
    if (!c) return sn_grammar_fail(g, SN_STOP, "out of memory for a schema");
    c->g = g;
    c->root = schema;
    make_rules(c);
    int at = add_schema(c, schema, next);
    for (int i = 0; i < c->n_temporaries; i++) json_decref(c->temporaries[i]);
    free(c);
    return at;
}

sn_status sn_grammar_from_schema(const json_t *schema, sn_grammar **out, sn_err *err) {
    sn_status status = sn_grammar_new(out, err);
    if (status) return status;
    sn_set_begin(*out, sn_add_schema(*out, schema, SN_END));
    status = sn_grammar_finish(*out, err);
    if (status) sn_grammar_free(out);
    return status;
}
