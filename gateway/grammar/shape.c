/* Shapes of schemas. A list of shapes begins as those of the schema's own keywords, one for each type that it allows,
 * and is joined to the lists of all other places that constrain the same value: each shape with each, where their types
 * are equal. Alternatives are the shapes of all of them. */
#include "gateway/grammar/shape_private.h"

#include "base/mem.h"
#include "base/wide_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPE_DEPTH_MAX = 64, COMPARED_DEPTH_MAX = 6 };

static bool failed(const sn_shaper *s) { return sn_grammar_error(s->g, NULL) != SN_OK; }
static bool no_memory(sn_shaper *s) {
    sn_grammar_fail(s->g, SN_STOP, "out of memory for a schema");
    return false;
}

bool sn_shaper_init(sn_shaper *s, sn_grammar *g, const json_t *root) {
    *s = (sn_shaper){.g = g, .root = root, .made = json_array(), .joined = json_array()};
    return (s->made && s->joined) || no_memory(s);
}

void sn_shaper_fini(sn_shaper *s) {
    json_decref(s->made);
    json_decref(s->joined);
}

void sn_json_shapes_fini(sn_json_shapes *shapes) {
    free(shapes->at);
    *shapes = (sn_json_shapes){0};
}

/* Takes a value that lives until the end; NULL: memory was out. */
static json_t *keep(sn_shaper *s, json_t *value) {
    if (value && !json_array_append_new(s->made, value)) return value;
    no_memory(s);
    return NULL;
}

static void add_shape(sn_shaper *s, sn_json_shapes *to, const sn_json_shape *shape) {
    if (!sn_grammar_work(s->g, 1)) return;
    if (sn_grow(&to->at, &to->capacity, to->n + 1, sizeof *to->at, NULL))
        no_memory(s);
    else
        to->at[to->n++] = *shape;
}

/* -- joining schemas -- */

/* Adds the schemas that `schema` was joined from, or itself, where they are new. */
static bool add_parts(sn_shaper *s, json_t *to, const json_t *schema) {
    const json_t *of = NULL;
    bool ok = sn_grammar_work(s->g, json_array_size(s->joined));
    for (size_t i = 0; i < json_array_size(s->joined) && !of; i++)
        if (json_array_get(s->joined, i) == schema) of = json_object_get(schema, "allOf");
    for (size_t i = 0; i < (of ? json_array_size(of) : 1) && ok; i++) {
        json_t *part = of ? json_array_get(of, i) : (json_t *)schema;
        bool known = false;
        for (size_t k = 0; k < json_array_size(to); k++) known |= json_array_get(to, k) == part;
        if (!known && json_array_append(to, part)) ok = no_memory(s);
    }
    return ok;
}

static bool are_same(const json_t *a, const json_t *b) {
    size_t n = json_array_size(a), i = 0;
    if (n != json_array_size(b)) return false;
    while (i < n && json_array_get(a, i) == json_array_get(b, i)) i++;
    return i == n;
}

static bool is_any(const json_t *schema) {
    return !schema || json_is_true(schema) || (json_is_object(schema) && !json_object_size(schema));
}

/* Both schemas; the same ones give the same one, so that what references itself ends. NULL: any value fits, or building
 * has failed. */
static const json_t *join_schemas(sn_shaper *s, const json_t *a, const json_t *b) {
    if (is_any(a)) return b ? b : a;
    if (is_any(b) || a == b || json_is_false(a)) return a;
    if (json_is_false(b)) return b;
    const json_t *found = NULL;
    json_t *parts = json_array();
    if (!parts) no_memory(s);
    if (parts && add_parts(s, parts, a) && add_parts(s, parts, b)) {
        if (json_array_size(parts) == 1) found = a;
        for (size_t i = 0; i < json_array_size(s->joined) && !found; i++)
            if (are_same(json_object_get(json_array_get(s->joined, i), "allOf"), parts))
                found = json_array_get(s->joined, i);
        json_t *one = found ? NULL : json_pack("{s:O}", "allOf", parts);
        if (!found && (!one || json_array_append_new(s->joined, one))) no_memory(s);
        if (!found) found = one;
    }
    json_decref(parts);
    return failed(s) ? NULL : found;
}

/* -- what a schema says itself -- */

static const char *const type_names[SN_SHAPE_TYPES] = {"object", "array", "string", "number", "boolean", "null"};

static bool init_numbers(sn_shaper *s, const json_t *schema, bool integer, sn_number_range *out) {
    static const struct {
        const char *name;
        bool lower, excluded;
    } limits[] = {{"minimum", true, false},
                  {"exclusiveMinimum", true, true},
                  {"maximum", false, false},
                  {"exclusiveMaximum", false, true}};
    const json_t *multiple = json_object_get(schema, "multipleOf");
    *out = (sn_number_range){.integer = integer || multiple};
    if (multiple && json_number_value(multiple) != 1) return sn_schema_refuse(s->g, "multipleOf"), false;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const json_t *value = json_object_get(schema, limits[i].name);
        sn_number_range one = {.integer = false};
        if (!value) continue;
        if (!sn_limit_init(limits[i].lower ? &one.low : &one.high, value, limits[i].lower, limits[i].excluded)) {
            sn_grammar_fail(s->g, SN_REFUSED, "the schema's \"%s\" has too many digits: shorten it", limits[i].name);
            return false;
        }
        sn_number_range_join(out, &one);
    }
    return true;
}

static int get_count(const json_t *schema, const char *keyword, int otherwise) {
    const json_t *value = json_object_get(schema, keyword);
    return value ? (int)json_integer_value(value) : otherwise;
}

static void add_type(sn_shaper *s, const json_t *schema, sn_json_shape_type type, bool integer, sn_json_shapes *to) {
    sn_json_shape x = {.type = type, .most = -1};
    const json_t *required = json_object_get(schema, "required");
    json_t *keys;
    switch (type) {
    case SN_SHAPE_OBJECT:
        x.properties = json_object_get(schema, "properties");
        x.additional = json_object_get(schema, "additionalProperties");
        x.required = keys = required ? keep(s, json_object()) : NULL;
        for (size_t i = 0; keys && i < json_array_size(required); i++)
            if (json_object_set_new(keys, json_string_value(json_array_get(required, i)), json_true())) no_memory(s);
        break;
    case SN_SHAPE_ARRAY:
        if (json_is_true(json_object_get(schema, "uniqueItems"))) sn_schema_refuse(s->g, "uniqueItems");
        x.prefix = json_object_get(schema, "prefixItems");
        x.items = json_object_get(schema, "items");
        x.least = get_count(schema, "minItems", 0);
        x.most = get_count(schema, "maxItems", -1);
        break;
    case SN_SHAPE_STRING:
        x.pattern = json_string_value(json_object_get(schema, "pattern"));
        x.format = json_string_value(json_object_get(schema, "format"));
        x.least = get_count(schema, "minLength", 0);
        x.most = get_count(schema, "maxLength", -1);
        break;
    case SN_SHAPE_NUMBER:
        if (!init_numbers(s, schema, integer, &x.numbers)) return;
        break;
    default:
        break;
    }
    add_shape(s, to, &x);
}

/* The types that the schema may be; when it names none, all of them, for which its other keywords count or not. */
static void add_types(sn_shaper *s, const json_t *schema, sn_json_shapes *to) {
    const json_t *type = json_object_get(schema, "type");
    size_t n = json_is_array(type) ? json_array_size(type) : 1;
    for (int t = 0; t < SN_SHAPE_TYPES && !type; t++) add_type(s, schema, (sn_json_shape_type)t, false, to);
    for (size_t i = 0; type && i < n; i++) {
        const char *name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
        bool integer = !strcmp(name, "integer");
        int t = integer ? SN_SHAPE_NUMBER : 0;
        while (!integer && t < SN_SHAPE_TYPES && strcmp(name, type_names[t])) t++;
        if (t == SN_SHAPE_TYPES)
            sn_grammar_fail(s->g, SN_REFUSED, "the schema has a type \"%.40s\", which JSON does not", name);
        else
            add_type(s, schema, (sn_json_shape_type)t, integer, to);
    }
}

/* -- constants -- */

/* The schema of an object or array that is constant. */
static json_t *schema_of_constant(const json_t *value) {
    const char *key;
    json_t *inner, *all, *required = json_array();
    size_t i;
    if (json_is_array(value)) {
        all = json_array();
        json_array_foreach((json_t *)value, i, inner) json_array_append_new(all, json_pack("{s:O}", "const", inner));
        json_decref(required);
        return json_pack("{s:s, s:o, s:b, s:I}", "type", "array", "prefixItems", all, "items", 0, "minItems",
                         (json_int_t)json_array_size(value));
    }
    all = json_object();
    json_object_foreach((json_t *)value, key, inner) {
        json_object_set_new(all, key, json_pack("{s:O}", "const", inner));
        json_array_append_new(required, json_string(key));
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", all, "required", required,
                     "additionalProperties", 0);
}

static void add_constant(sn_shaper *s, const json_t *value, sn_json_shapes *to) {
    static const sn_json_shape_type types[] = {
        [JSON_OBJECT] = SN_SHAPE_OBJECT,  [JSON_ARRAY] = SN_SHAPE_ARRAY, [JSON_STRING] = SN_SHAPE_STRING,
        [JSON_INTEGER] = SN_SHAPE_NUMBER, [JSON_REAL] = SN_SHAPE_NUMBER, [JSON_TRUE] = SN_SHAPE_BOOLEAN,
        [JSON_FALSE] = SN_SHAPE_BOOLEAN,  [JSON_NULL] = SN_SHAPE_NULL};
    sn_json_shape x = {.type = types[json_typeof(value)], .most = -1, .constant = json_is_null(value) ? NULL : value};
    if (sn_wide_digits(value)) {
        sn_grammar_fail(s->g, SN_REFUSED,
                        "an integer of more than 64 bits in \"const\" or \"enum\" is not supported: leave it out");
        return;
    }
    if (json_is_object(value) || json_is_array(value)) {
        if (!sn_grammar_work(s->g, 1 + json_object_size(value) + json_array_size(value))) return;
        const json_t *schema = keep(s, schema_of_constant(value));
        if (schema) add_type(s, schema, x.type, false, to);
        return;
    }
    const double real = json_is_real(value) ? json_real_value(value) : 0.5;
    if (real == floor(real) && fabs(real) < 0x1p53) x.constant = keep(s, json_integer((json_int_t)real));
    add_shape(s, to, &x);
}

static void add_constants(sn_shaper *s, const json_t *schema, const char *keyword, sn_json_shapes *to) {
    const json_t *value = json_object_get(schema, keyword);
    if (!strcmp(keyword, "const")) add_constant(s, value, to);
    for (size_t i = 0; strcmp(keyword, "const") && i < json_array_size(value); i++)
        add_constant(s, json_array_get(value, i), to);
}

/* -- joining shapes -- */

typedef enum fitting { FITS, FITS_NOT, MAY_FIT } fitting;

static int characters(const json_t *string) {
    int n = 0;
    const char *at = json_string_value(string);
    for (size_t i = 0; i < json_string_length(string); i++) n += (at[i] & 0xC0) != 0x80;
    return n;
}

static fitting fits(const json_t *constant, const sn_json_shape *x) {
    if (x->constant) return json_equal(constant, x->constant) ? FITS : FITS_NOT;
    if (json_is_string(constant)) {
        int n = characters(constant);
        if (n < x->least || (x->most >= 0 && n > x->most)) return FITS_NOT;
        return x->pattern || x->format ? MAY_FIT : FITS;
    }
    if (!json_is_number(constant)) return FITS;
    sn_number_range range = {.integer = false};
    if (!json_is_integer(constant) && x->numbers.integer) return FITS_NOT;
    if (!sn_limit_init(&range.low, constant, true, false) || !sn_limit_init(&range.high, constant, false, false))
        return MAY_FIT;
    range.low.out = range.high.out = false;
    sn_number_range_join(&range, &x->numbers);
    return sn_number_range_is_empty(&range) ? FITS_NOT : FITS;
}

static void join_strings(sn_shaper *s, sn_json_shape *to, const sn_json_shape *other) {
    if ((to->pattern && other->pattern && strcmp(to->pattern, other->pattern)) ||
        (to->format && other->format && strcmp(to->format, other->format)))
        sn_grammar_fail(s->g, SN_REFUSED,
                        "the schema has two of \"pattern\" or of \"format\" for one string: leave out all but one");
    if (!to->pattern) to->pattern = other->pattern;
    if (!to->format) to->format = other->format;
}

static void join_arrays(sn_shaper *s, sn_json_shape *to, const sn_json_shape *other) {
    const sn_json_shape mine = *to;
    const size_t n_mine = json_array_size(mine.prefix), n_other = json_array_size(other->prefix);
    const size_t n = n_mine > n_other ? n_mine : n_other;
    json_t *prefix = n ? keep(s, json_array()) : NULL;
    if (!sn_grammar_work(s->g, n)) return;
    for (size_t i = 0; i < n && prefix && !failed(s); i++) {
        const json_t *one = join_schemas(s, i < n_mine ? json_array_get(mine.prefix, i) : mine.items,
                                         i < n_other ? json_array_get(other->prefix, i) : other->items);
        if (json_array_append(prefix, one ? (json_t *)one : json_true())) no_memory(s);
    }
    to->prefix = prefix;
    to->items = join_schemas(s, mine.items, other->items);
}

/* The schema of a member; NULL: any value fits. */
static const json_t *member_schema(const sn_json_shape *object, const char *key) {
    const json_t *schema = json_object_get(object->properties, key);
    return schema ? schema : object->additional;
}

static void join_objects(sn_shaper *s, sn_json_shape *to, const sn_json_shape *other) {
    const sn_json_shape mine = *to, *both[] = {&mine, other};
    const char *key;
    json_t *value, *properties = NULL, *required;
    if (!sn_grammar_work(s->g, json_object_size(mine.properties) + json_object_size(other->properties) +
                                   json_object_size(mine.required) + json_object_size(other->required)))
        return;
    if (mine.properties || other->properties) properties = keep(s, json_object());
    for (int i = 0; i < 2 && properties; i++) {
        json_object_foreach((json_t *)both[i]->properties, key, value) {
            if (json_object_get(properties, key)) continue;
            const json_t *one = join_schemas(s, member_schema(&mine, key), member_schema(other, key));
            if (failed(s)) return;
            if (json_object_set(properties, key, one ? (json_t *)one : json_true())) no_memory(s);
        }
    }
    to->properties = properties;
    to->additional = join_schemas(s, mine.additional, other->additional);
    if (!mine.required || !other->required) {
        to->required = mine.required ? mine.required : other->required;
        return;
    }
    to->required = required = keep(s, json_copy((json_t *)mine.required));
    if (required && json_object_update(required, (json_t *)other->required)) no_memory(s);
}

/* Adds what fits both. */
static void join_shapes(sn_shaper *s, const sn_json_shape *a, const sn_json_shape *b, sn_json_shapes *to) {
    sn_json_shape x = *a;
    if (!sn_grammar_work(s->g, 1) || a->type != b->type) return;
    if (a->constant || b->constant) {
        fitting f = a->constant ? fits(a->constant, b) : fits(b->constant, a);
        if (f == MAY_FIT)
            sn_schema_refuse(s->g, json_is_string(a->constant ? a->constant : b->constant) ? "pattern" : "enum");
        if (f == FITS) add_shape(s, to, a->constant ? a : b);
        return;
    }
    if (b->least > x.least) x.least = b->least;
    if (b->most >= 0 && (x.most < 0 || b->most < x.most)) x.most = b->most;
    sn_number_range_join(&x.numbers, &b->numbers);
    if (a->type == SN_SHAPE_STRING) join_strings(s, &x, b);
    if (a->type == SN_SHAPE_ARRAY) join_arrays(s, &x, b);
    if (a->type == SN_SHAPE_OBJECT) join_objects(s, &x, b);
    add_shape(s, to, &x);
}

/* Adds what fits both lists to a third. */
static void join_lists(sn_shaper *s, const sn_json_shapes *a, const sn_json_shapes *b, sn_json_shapes *to) {
    if (a->any || b->any) {
        const sn_json_shapes *other = a->any ? b : a;
        to->any |= other->any;
        for (size_t i = 0; i < other->n; i++) add_shape(s, to, &other->at[i]);
        return;
    }
    for (size_t i = 0; i < a->n && !failed(s); i++)
        for (size_t k = 0; k < b->n && !failed(s); k++) join_shapes(s, &a->at[i], &b->at[k], to);
}

/* *list becomes what fits it and `other`, which is freed. */
static void restrict_to(sn_shaper *s, sn_json_shapes *list, sn_json_shapes *other) {
    sn_json_shapes out = {0};
    join_lists(s, list, other, &out);
    sn_json_shapes_fini(list);
    sn_json_shapes_fini(other);
    *list = out;
}

/* -- comparing shapes -- */

static bool compare_lists(sn_shaper *s, const sn_json_shapes *a, const sn_json_shapes *b);

/* Whether no value fits both schemas, as far as it is seen. */
static bool compare_schemas(sn_shaper *s, const json_t *a, const json_t *b) {
    sn_json_shapes x = {0}, y = {0};
    if (json_is_false(a) || json_is_false(b)) return true;
    if (is_any(a) || is_any(b) || s->depth > COMPARED_DEPTH_MAX) return false;
    s->depth++;
    bool disjoint = sn_json_shapes_init(s, a, &x) && sn_json_shapes_init(s, b, &y) && compare_lists(s, &x, &y);
    s->depth--;
    sn_json_shapes_fini(&x);
    sn_json_shapes_fini(&y);
    return disjoint;
}

/* By a member that both must have, or that one must and the other may not. */
static bool compare_objects(sn_shaper *s, const sn_json_shape *a, const sn_json_shape *b) {
    const sn_json_shape *both[] = {a, b};
    const char *key;
    json_t *value;
    for (int i = 0; i < 2; i++) {
        const sn_json_shape *other = both[1 - i];
        json_object_foreach((json_t *)both[i]->required, key, value) {
            if (!sn_grammar_work(s->g, 1)) return true;
            const json_t *theirs = member_schema(other, key);
            if (json_is_false(theirs)) return true;
            if (!i && json_object_get(other->required, key) && compare_schemas(s, member_schema(a, key), theirs))
                return true;
        }
    }
    return false;
}

/* By an element that both must have. */
static bool compare_arrays(sn_shaper *s, const sn_json_shape *a, const sn_json_shape *b) {
    size_t n = json_array_size(a->prefix) > json_array_size(b->prefix) ? json_array_size(a->prefix)
                                                                       : json_array_size(b->prefix);
    for (size_t i = 0; i <= n && (int)i < a->least && (int)i < b->least; i++) {
        const json_t *x = json_array_get(a->prefix, i), *y = json_array_get(b->prefix, i);
        if (!sn_grammar_work(s->g, 1) || compare_schemas(s, x ? x : a->items, y ? y : b->items)) return true;
    }
    return false;
}

static bool compare_shapes(sn_shaper *s, const sn_json_shape *a, const sn_json_shape *b) {
    if (a->type != b->type) return true;
    if (a->constant || b->constant) return (a->constant ? fits(a->constant, b) : fits(b->constant, a)) == FITS_NOT;
    if ((a->most >= 0 && b->least > a->most) || (b->most >= 0 && a->least > b->most)) return true;
    sn_number_range numbers = a->numbers;
    sn_number_range_join(&numbers, &b->numbers);
    if (sn_number_range_is_empty(&numbers)) return true;
    return a->type == SN_SHAPE_OBJECT  ? compare_objects(s, a, b)
           : a->type == SN_SHAPE_ARRAY ? compare_arrays(s, a, b)
                                       : false;
}

static bool compare_lists(sn_shaper *s, const sn_json_shapes *a, const sn_json_shapes *b) {
    if (!sn_grammar_work(s->g, 1 + a->n * b->n)) return false;
    if ((a->any && (b->any || b->n)) || (b->any && a->n)) return false;
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n && !failed(s); k++)
            if (!compare_shapes(s, &a->at[i], &b->at[k])) return false;
    return true;
}

/* -- alternatives -- */

/* The shapes of each alternative within `list`; freed with free_alternatives. NULL: building has failed. */
static sn_json_shapes *make_alternatives(sn_shaper *s, const sn_json_shapes *list, const json_t *parts) {
    sn_json_shapes *each = NULL;
    if (sn_calloc(&each, json_array_size(parts) + 1, sizeof *each, NULL)) no_memory(s);
    for (size_t i = 0; each && i < json_array_size(parts) && !failed(s); i++) {
        sn_json_shapes part = {0};
        if (sn_json_shapes_init(s, json_array_get(parts, i), &part)) join_lists(s, list, &part, &each[i]);
        sn_json_shapes_fini(&part);
    }
    return each;
}

static void free_alternatives(sn_json_shapes *each, size_t n) {
    for (size_t i = 0; each && i < n; i++) sn_json_shapes_fini(&each[i]);
    free(each);
}

static bool all_are_disjoint(sn_shaper *s, const sn_json_shapes *each, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (!compare_lists(s, &each[i], &each[k])) return false;
    return true;
}

bool sn_schemas_are_disjoint(sn_shaper *s, const json_t *schemas, bool *disjoint) {
    const sn_json_shapes any = {.any = true};
    const size_t n = json_array_size(schemas);
    sn_json_shapes *each = make_alternatives(s, &any, schemas);
    *disjoint = each && !failed(s) && all_are_disjoint(s, each, n);
    free_alternatives(each, n);
    return !failed(s);
}

/* *list becomes what fits it and an alternative. */
static void choose(sn_shaper *s, const json_t *schema, const char *keyword, sn_json_shapes *list) {
    const json_t *parts = json_object_get(schema, keyword);
    const size_t n = json_array_size(parts);
    if (!n || failed(s)) return;
    sn_json_shapes *each = make_alternatives(s, list, parts), out = {0};
    if (!strcmp(keyword, "oneOf") && each && !failed(s) && !all_are_disjoint(s, each, n))
        sn_grammar_fail(s->g, SN_REFUSED,
                        "the schema's \"oneOf\" has alternatives that one value may fit both: use \"anyOf\"");
    for (size_t i = 0; each && i < n; i++) {
        out.any |= each[i].any;
        for (size_t k = 0; k < each[i].n; k++) add_shape(s, &out, &each[i].at[k]);
    }
    free_alternatives(each, n);
    sn_json_shapes_fini(list);
    *list = out;
}

/* -- schemas -- */

static void restrict_to_schema(sn_shaper *s, sn_json_shapes *list, const json_t *schema) {
    sn_json_shapes other = {0};
    if (schema && sn_json_shapes_init(s, schema, &other)) restrict_to(s, list, &other);
    sn_json_shapes_fini(&other);
}

static void make_shapes(sn_shaper *s, const json_t *schema, sn_json_shapes *out) {
    static const char *const elsewhere[] = {"enum", "const", "$ref", "allOf", "anyOf", "oneOf"};
    size_t n = 0, n_elsewhere = 0;
    sn_schema_check(s, schema, &n);
    if (failed(s)) return;
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        n_elsewhere += json_object_get(schema, elsewhere[i]) != NULL;
    out->any = n == n_elsewhere;
    if (!out->any) add_types(s, schema, out);
    for (int i = 0; i < 2; i++) {
        sn_json_shapes constants = {0};
        if (!json_object_get(schema, elsewhere[i])) continue;
        add_constants(s, schema, elsewhere[i], &constants);
        restrict_to(s, out, &constants);
    }
    if (json_object_get(schema, "$ref")) restrict_to_schema(s, out, sn_schema_target(s, schema));
    const json_t *all = json_object_get(schema, "allOf");
    for (size_t i = 0; i < json_array_size(all); i++) restrict_to_schema(s, out, json_array_get(all, i));
    choose(s, schema, "anyOf", out);
    choose(s, schema, "oneOf", out);
}

bool sn_json_shapes_init(sn_shaper *s, const json_t *schema, sn_json_shapes *out) {
    *out = (sn_json_shapes){.any = json_is_true(schema)};
    if (failed(s) || json_is_boolean(schema)) return !failed(s);
    if (!json_is_object(schema)) {
        sn_grammar_fail(s->g, SN_REFUSED, "a schema is a JSON object, true or false");
    } else if (s->depth >= SHAPE_DEPTH_MAX) {
        sn_grammar_fail(s->g, SN_REFUSED, "the schema nests too deep");
    } else {
        s->depth++;
        make_shapes(s, schema, out);
        s->depth--;
    }
    if (failed(s)) sn_json_shapes_fini(out);
    return !failed(s);
}
