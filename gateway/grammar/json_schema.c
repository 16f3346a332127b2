/* JSON schemas (draft 2020-12) as grammars. Each keyword is kept exactly, only describes, or is refused: a grammar
 * never accepts JSON that the schema does not. It may accept less: members come in the order of "properties", others
 * only where "additionalProperties" asks for them or no member is named, and keys of those are written without escapes;
 * white space is short, and so are numbers.
 *
 * A schema becomes its shapes (shape_private.h), and each shape the nodes of its type. A schema inside of a value is a
 * rule, made once, so that schemas may contain themselves. */
#include "gateway/grammar/shape_private.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCHEMA_DEPTH_MAX = 64, RULES_SIZE = 1 << 15, INDENT_MAX = 20, MEMBERS_MAX = 512 };
enum { SCHEMA_SIZE_MAX = 1 << 15, TEXT_OF_VALUE = 64 }; /* values; a longer text counts as more of them */

typedef struct compiler {
    sn_grammar *g;
    sn_shaper shaper;
    struct {
        const json_t *schema;
        int rule;
    } rules[RULES_SIZE]; /* by a hash of the pointer */
    size_t n_rules;
    int depth;
    int space, character, value; /* rules */
} compiler;

static int add_schema(compiler *c, const json_t *schema, int next);

static bool failed(const compiler *c) { return sn_grammar_error(c->g, NULL) != SN_OK; }
static int add_text(compiler *c, const char *text, int next) { return sn_add_literal(c->g, text, strlen(text), next); }
static int no_memory(compiler *c) { return sn_grammar_fail(c->g, SN_STOP, "out of memory for a schema"); }

/* A string, number or boolean as it stands, numbers with the fewest digits that tell them apart from others. */
static int add_value(compiler *c, const json_t *value, int next) {
    char *text = NULL;
    for (size_t digits = 15; digits <= 17; digits++) {
        free(text);
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        if (!text) return no_memory(c);
        if (!json_is_real(value) || strtod(text, NULL) == json_real_value(value)) break;
    }
    next = add_text(c, text, next);
    free(text);
    return next;
}

/* A rule for a schema; NULL: any value. The same one for the same schema, also while it is made. */
static int rule_of(compiler *c, const json_t *schema) {
    if (!schema) return c->value;
    size_t at = ((uintptr_t)schema >> 4) * 0x9E3779B97F4A7C15u >> 40 & (RULES_SIZE - 1);
    for (; c->rules[at].schema; at = (at + 1) & (RULES_SIZE - 1))
        if (c->rules[at].schema == schema) return c->rules[at].rule;
    if (++c->n_rules > RULES_SIZE / 2)
        return sn_grammar_fail(c->g, SN_REFUSED, "the schema is too complex: make it smaller");
    const int rule = sn_add_rule(c->g);
    c->rules[at].schema = schema;
    c->rules[at].rule = rule;
    sn_set_rule(c->g, rule, add_schema(c, schema, SN_END));
    return rule;
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

static int add_string(compiler *c, const sn_json_shape *x, int next) {
    const char *pattern = x->pattern, *format = x->format;
    const bool counted = x->least > 0 || x->most >= 0;
    if ((pattern || format) && (counted || (pattern && format)))
        return sn_grammar_fail(c->g, SN_REFUSED,
                               "the schema has two of \"pattern\", \"format\" and limits of the length for one string: "
                               "leave out all but one");
    next = add_text(c, "\"", next);
    for (size_t i = 0; format && !pattern && i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(format, formats[i].name)) pattern = formats[i].pattern;
    if (format && !pattern) return sn_grammar_fail(c->g, SN_REFUSED, "the format \"%.40s\" is not supported", format);
    if (x->most >= 0 && x->least > x->most) return sn_add_fail(c->g);
    next = pattern ? sn_add_pattern(c->g, pattern, next) : sn_add_repeat(c->g, c->character, x->least, x->most, next);
    return add_text(c, "\"", next);
}

/* -- arrays -- */

static int add_space(compiler *c, int next) { return sn_add_call(c->g, c->space, next); }
static int add_comma(compiler *c, int next) { return add_text(c, ",", add_space(c, next)); }

/* The first elements one by one, the rest as a repeat. */
static int add_array(compiler *c, const sn_json_shape *x, int next) {
    const int n_prefix = (int)json_array_size(x->prefix), most = x->most;
    const int close = add_text(c, "]", next), end = add_space(c, close);
    int head = n_prefix > 1 ? n_prefix : 1;
    if (most >= 0 && most < head) head = most;
    if (most >= 0 && x->least > most) return sn_add_fail(c->g);
    int at = head ? end : close;
    if (most < 0 || most > head) {
        const int element = sn_add_rule(c->g);
        sn_set_rule(c->g, element, add_comma(c, sn_add_call(c->g, rule_of(c, x->items), SN_END)));
        at = sn_add_repeat(c->g, element, x->least > head ? x->least - head : 0, most < 0 ? -1 : most - head, end);
    }
    for (int i = head - 1; i >= 0 && !failed(c); i--) {
        at = sn_add_call(c->g, rule_of(c, i < n_prefix ? json_array_get(x->prefix, (size_t)i) : x->items), at);
        at = i ? add_comma(c, at) : add_space(c, at);
        if (i >= x->least) at = sn_add_split(c->g, i ? end : close, at); /* it may end before this element */
    }
    return add_text(c, "[", at);
}

/* -- objects -- */

typedef struct key_names {
    const char *at[512]; /* what follows the code points that were read already */
    int n;
} key_names;

/* The rest of a key that equals none of the key_names. */
static int add_other_key(compiler *c, const key_names *equal, int next) {
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
        key_names *same = NULL;
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
    int free_key = sn_add_plain_char(c->g, &others, sn_add_repeat(c->g, free_rule, 0, -1, next));
    at = at < 0 ? free_key : sn_add_split(c->g, free_key, at);
    return may_end ? sn_add_split(c->g, next, at) : at;
}

static int add_colon(compiler *c, int next) {
    return add_text(c, ":", sn_add_split(c->g, next, add_text(c, " ", next)));
}

/* A rule for one member: its key and its value. */
static int make_member_rule(compiler *c, const char *key, const json_t *schema) {
    const int value = sn_add_call(c->g, rule_of(c, schema), SN_END), rule = sn_add_rule(c->g);
    json_t *name = json_string(key);
    sn_set_rule(c->g, rule, name ? add_value(c, name, add_colon(c, value)) : no_memory(c));
    json_decref(name);
    return rule;
}

/* The members that an object names: those of "properties", then others that it requires. */
typedef struct members {
    int rules[MEMBERS_MAX];
    bool required[MEMBERS_MAX];
    key_names names;
    int n;
} members;

static void add_name(compiler *c, const sn_json_shape *x, const char *key, members *to) {
    const json_t *schema = json_object_get(x->properties, key);
    if (to->n == MEMBERS_MAX) {
        sn_grammar_fail(c->g, SN_REFUSED, "the schema has an object with more than %d properties", MEMBERS_MAX);
        return;
    }
    to->names.at[to->names.n++] = key;
    to->required[to->n] = json_object_get(x->required, key);
    to->rules[to->n++] = make_member_rule(c, key, schema ? schema : x->additional);
}

static void name_members(compiler *c, const sn_json_shape *x, members *out) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)x->properties, key, value) {
        if (failed(c)) return;
        add_name(c, x, key, out);
    }
    json_object_foreach((json_t *)x->required, key, value) {
        if (failed(c)) return;
        if (!json_object_get(x->properties, key)) add_name(c, x, key, out);
    }
}

/* A rule for a member that has no name; -1: there may be none. */
static int make_other_rule(compiler *c, const sn_json_shape *x, const members *named) {
    if (json_is_false(x->additional) || (!x->additional && named->n)) return -1;
    const int value = sn_add_call(c->g, rule_of(c, x->additional), SN_END), rule = sn_add_rule(c->g);
    const int key = add_other_key(c, &named->names, add_text(c, "\"", add_colon(c, value)));
    sn_set_rule(c->g, rule, add_text(c, "\"", key));
    return rule;
}

/* Where the text goes on when no member was written before (`none`), and when one was (`some`). */
typedef struct object_tail {
    int none, some;
} object_tail;

static object_tail add_member(compiler *c, int rule, bool required, object_tail tail) {
    int first = add_space(c, sn_add_call(c->g, rule, tail.some));
    int later = add_comma(c, sn_add_call(c->g, rule, tail.some));
    if (required) return (object_tail){first, later};
    return (object_tail){sn_add_split(c->g, first, tail.none), sn_add_split(c->g, later, tail.some)};
}

/* Built from its end: others, and before them each named member. */
static int add_object(compiler *c, const sn_json_shape *x, int next) {
    members *named = NULL;
    if (sn_calloc(&named, 1, sizeof *named, NULL)) return no_memory(c);
    name_members(c, x, named);
    const int close = add_text(c, "}", next), end = add_space(c, close), other = make_other_rule(c, x, named);
    object_tail tail = {close, end};
    if (other >= 0) {
        const int another = sn_add_rule(c->g);
        sn_set_rule(c->g, another, add_comma(c, sn_add_call(c->g, other, SN_END)));
        tail.some = sn_add_repeat(c->g, another, 0, -1, end);
        tail.none = sn_add_split(c->g, add_space(c, sn_add_call(c->g, other, tail.some)), close);
    }
    for (int i = named->n - 1; i >= 0 && !failed(c); i--)
        tail = add_member(c, named->rules[i], named->required[i], tail);
    free(named);
    return add_text(c, "{", tail.none);
}

/* -- schemas -- */

static int add_shape(compiler *c, const sn_json_shape *x, int next) {
    if (x->constant) return add_value(c, x->constant, next);
    switch (x->type) {
    case SN_SHAPE_OBJECT:
        return add_object(c, x, next);
    case SN_SHAPE_ARRAY:
        return add_array(c, x, next);
    case SN_SHAPE_STRING:
        return add_string(c, x, next);
    case SN_SHAPE_NUMBER:
        return sn_add_number(c->g, &x->numbers, next);
    case SN_SHAPE_BOOLEAN:
        return sn_add_split(c->g, add_text(c, "true", next), add_text(c, "false", next));
    default:
        return add_text(c, "null", next);
    }
}

static int add_shapes(compiler *c, const json_t *schema, int next) {
    sn_json_shapes shapes;
    if (!sn_json_shapes_init(&c->shaper, schema, &shapes)) return SN_END;
    int at = shapes.any ? sn_add_call(c->g, c->value, next) : sn_add_fail(c->g);
    for (size_t i = shapes.n; i-- > 0 && !shapes.any && !failed(c);)
        at = sn_add_split(c->g, add_shape(c, &shapes.at[i], next), at);
    sn_json_shapes_fini(&shapes);
    return at;
}

static int add_alternatives(compiler *c, const json_t *parts, int next) {
    int at = sn_add_fail(c->g);
    for (size_t i = json_array_size(parts); i-- > 0 && !failed(c);)
        at = sn_add_split(c->g, add_schema(c, json_array_get(parts, i), next), at);
    return at;
}

/* A schema that is but a reference, or a list of alternatives, has no need of shapes: rules are shared. */
static int add_checked_schema(compiler *c, const json_t *schema, int next) {
    size_t n = 0;
    if (!json_is_object(schema)) return add_shapes(c, schema, next);
    const char *only = sn_schema_check(&c->shaper, schema, &n);
    if (failed(c)) return SN_END;
    const json_t *parts = only ? json_object_get(schema, only) : NULL;
    if (!n) return sn_add_call(c->g, c->value, next);
    if (only && !strcmp(only, "$ref")) {
        const json_t *target = sn_schema_target(&c->shaper, schema);
        return target ? sn_add_call(c->g, rule_of(c, target), next) : SN_END;
    }
    if (only && !strcmp(only, "allOf") && json_array_size(parts) == 1)
        return add_schema(c, json_array_get(parts, 0), next);
    if (only && !strcmp(only, "anyOf")) return add_alternatives(c, parts, next);
    if (only && !strcmp(only, "oneOf")) {
        bool disjoint;
        if (!sn_schemas_are_disjoint(&c->shaper, parts, &disjoint)) return SN_END;
        if (disjoint) return add_alternatives(c, parts, next); /* else add_shapes says why not */
    }
    return add_shapes(c, schema, next);
}

static int add_schema(compiler *c, const json_t *schema, int next) {
    if (failed(c)) return SN_END;
    if (c->depth >= SCHEMA_DEPTH_MAX) return sn_grammar_fail(c->g, SN_REFUSED, "the schema nests too deep");
    c->depth++;
    int at = add_checked_schema(c, schema, next);
    c->depth--;
    return at;
}

/* Rules that every schema uses: white space, a string's character, any JSON value. */
static void make_rules(compiler *c) {
    sn_grammar *g = c->g;
    int indent = sn_add_rule(g);
    sn_set_rule(g, indent, sn_add_split(g, sn_add_literal(g, " ", 1, SN_END), sn_add_literal(g, "\t", 1, SN_END)));
    int line = sn_add_literal(g, "\n", 1, sn_add_repeat(g, indent, 0, INDENT_MAX, SN_END));
    c->space = sn_add_rule(g);
    sn_set_rule(g, c->space, sn_add_split(g, SN_END, sn_add_split(g, sn_add_literal(g, " ", 1, SN_END), line)));
    c->character = sn_add_char_rule(g);
    c->value = sn_add_rule(g);
    int any = sn_add_fail(g);
    for (int type = 0; type < SN_SHAPE_TYPES; type++) {
        const sn_json_shape shape = {.type = (sn_json_shape_type)type, .most = -1};
        any = sn_add_split(g, any, add_shape(c, &shape, SN_END));
    }
    sn_set_rule(g, c->value, any);
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
    int at = SN_END;
    if (sn_shaper_init(&c->shaper, g, schema)) {
        make_rules(c);
        at = add_schema(c, schema, next);
    }
    sn_shaper_fini(&c->shaper);
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
