/* Expressions, from the weakest binding to the strongest: a if b else c; or; and; not; comparisons; + -; ~; * / // %;
 * **; signs; then attributes, items, calls, filters and tests behind an operand. The grammar is Jinja2's. */
#include "text/jinja/syntax_private.h"

#include <stdio.h>
#include <string.h>

/* ---- tokens ---- */

sn_jnode *sn_jnode_new(sn_jparser *p, sn_jnode_kind kind) {
    sn_jnode *node = sn_jalloc(p->run, 1, sizeof *node);
    node->kind = kind;
    node->line = p->run->line = p->at->line;
    return node;
}

void sn_jnodes_add(sn_jparser *p, sn_jnodes *nodes, sn_jnode *node) {
    if (nodes->n == nodes->capacity) {
        size_t capacity = 2 * nodes->capacity + 4;
        sn_jnode **at = sn_jalloc(p->run, capacity, sizeof *at);
        if (nodes->n) memcpy(at, nodes->at, nodes->n * sizeof *at);
        nodes->at = at;
        nodes->capacity = capacity;
    }
    nodes->at[nodes->n++] = node;
}

static bool token_is(const sn_jtoken *token, sn_jtoken_kind kind, const char *word) {
    return token->kind == kind && sn_jstring_is(token->value.string, word);
}

bool sn_jat_name(const sn_jparser *p, const char *name) { return token_is(p->at, SN_JT_NAME, name); }
bool sn_jat_sign(const sn_jparser *p, const char *sign) { return token_is(p->at, SN_JT_SIGN, sign); }

bool sn_jskip_name(sn_jparser *p, const char *name) {
    bool there = sn_jat_name(p, name);
    p->at += there;
    return there;
}

bool sn_jskip_sign(sn_jparser *p, const char *sign) {
    bool there = sn_jat_sign(p, sign);
    p->at += there;
    return there;
}

void sn_junexpected(sn_jparser *p, const char *expected) {
    const sn_jtoken *t = p->at;
    char found[80] = "a text";
    p->run->line = t->line;
    if (t->kind == SN_JT_NAME || t->kind == SN_JT_SIGN)
        snprintf(found, sizeof found, "'%.*s'", (int)sn_min_size(t->value.string->len, 60), t->value.string->text);
    else if (t->kind == SN_JT_LITERAL)
        snprintf(found, sizeof found, "a %s", sn_jtype_name(t->value));
    else if (t->kind != SN_JT_TEXT)
        snprintf(found, sizeof found, "%s", t->kind == SN_JT_END ? "the end of the template" : "the end of the tag");
    sn_jfail(p->run, "", "expected %s, found %s", expected, found);
}

void sn_jexpect_sign(sn_jparser *p, const char *sign) {
    char expected[8];
    snprintf(expected, sizeof expected, "'%s'", sign);
    if (!sn_jskip_sign(p, sign)) sn_junexpected(p, expected);
}

const sn_jstring *sn_jexpect_name(sn_jparser *p, const char *what) {
    if (p->at->kind != SN_JT_NAME) sn_junexpected(p, what);
    return p->at++->value.string;
}

/* ---- operands ---- */

static sn_jnode *node_with(sn_jparser *p, sn_jnode_kind kind, sn_jnode *a, sn_jnode *b) {
    sn_jnode *node = sn_jnode_new(p, kind);
    node->a = a;
    node->b = b;
    if (a) node->line = a->line;
    return node;
}

static sn_jnode *constant(sn_jparser *p, sn_jvalue value) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_CONST);
    node->value = value;
    p->at++;
    return node;
}

static sn_jnode *parse_name(sn_jparser *p) {
    if (sn_jat_name(p, "true") || sn_jat_name(p, "True")) return constant(p, sn_jbool(true));
    if (sn_jat_name(p, "false") || sn_jat_name(p, "False")) return constant(p, sn_jbool(false));
    if (sn_jat_name(p, "none") || sn_jat_name(p, "None")) return constant(p, sn_jnone());
    sn_jnode *node = sn_jnode_new(p, SN_JN_NAME);
    node->name = p->at++->value.string;
    return node;
}

/* Texts that stand side by side are one. */
static sn_jnode *parse_literal(sn_jparser *p) {
    sn_jnode *node = constant(p, p->at->value);
    if (node->value.kind != SN_J_STRING || p->at->kind != SN_JT_LITERAL || p->at->value.kind != SN_J_STRING)
        return node;
    sn_jtext text = sn_jtext_new(p->run);
    sn_jtext_string(&text, node->value.string);
    for (; p->at->kind == SN_JT_LITERAL && p->at->value.kind == SN_J_STRING; p->at++)
        sn_jtext_string(&text, p->at->value.string);
    node->value = sn_jstr(sn_jtext_end(&text));
    return node;
}

static sn_jnode *parse_list(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_LIST);
    sn_jexpect_sign(p, "[");
    while (!sn_jat_sign(p, "]")) {
        if (node->items.n) sn_jexpect_sign(p, ",");
        if (sn_jat_sign(p, "]")) break;
        sn_jnodes_add(p, &node->items, sn_jparse_expression(p, true));
    }
    sn_jexpect_sign(p, "]");
    return node;
}

static sn_jnode *parse_dict(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_DICT);
    sn_jexpect_sign(p, "{");
    while (!sn_jat_sign(p, "}")) {
        if (node->items.n) sn_jexpect_sign(p, ",");
        if (sn_jat_sign(p, "}")) break;
        sn_jnodes_add(p, &node->items, sn_jparse_expression(p, true));
        sn_jexpect_sign(p, ":");
        sn_jnodes_add(p, &node->items, sn_jparse_expression(p, true));
    }
    sn_jexpect_sign(p, "}");
    return node;
}

static sn_jnode *parse_primary(sn_jparser *p) {
    if (p->at->kind == SN_JT_NAME) return parse_name(p);
    if (p->at->kind == SN_JT_LITERAL) return parse_literal(p);
    if (sn_jat_sign(p, "[")) return parse_list(p);
    if (sn_jat_sign(p, "{")) return parse_dict(p);
    if (!sn_jskip_sign(p, "(")) sn_junexpected(p, "an expression");
    sn_jnode *inside = sn_jat_sign(p, ")") ? sn_jnode_new(p, SN_JN_TUPLE) : sn_jparse_tuple(p, true, false, NULL);
    sn_jexpect_sign(p, ")");
    return inside;
}

static bool at_tuple_end(const sn_jparser *p, const char *end) {
    return p->at->kind == SN_JT_PRINT_END || p->at->kind == SN_JT_BLOCK_END || sn_jat_sign(p, ")") ||
           (end && sn_jat_name(p, end));
}

sn_jnode *sn_jparse_tuple(sn_jparser *p, bool with_if, bool simple, const char *end) {
    sn_jnode *tuple = sn_jnode_new(p, SN_JN_TUPLE), *one = NULL;
    bool comma = false;
    do {
        if (one && at_tuple_end(p, end)) break;
        one = simple ? parse_primary(p) : sn_jparse_expression(p, with_if);
        sn_jnodes_add(p, &tuple->items, one);
        comma = comma || sn_jat_sign(p, ",");
    } while (sn_jskip_sign(p, ","));
    return comma ? tuple : one;
}

/* ---- behind an operand ---- */

/* a[b], a[b:c:d], a[b, c] */
static sn_jnode *parse_item(sn_jparser *p, sn_jnode *on) {
    sn_jnode *slice = node_with(p, SN_JN_SLICE, on, NULL), *index = NULL;
    size_t colons = 0;
    sn_jexpect_sign(p, "[");
    for (size_t i = 0; i < 3; i++) {
        bool empty = sn_jat_sign(p, ":") || sn_jat_sign(p, "]");
        sn_jnodes_add(p, &slice->items, empty ? NULL : (index = sn_jparse_expression(p, true)));
        if (i == 2 || !sn_jskip_sign(p, ":")) break;
        colons++;
    }
    while (slice->items.n < 3) sn_jnodes_add(p, &slice->items, NULL);
    if (!colons && sn_jat_sign(p, ",") && index) { /* a tuple as the key */
        sn_jnode *tuple = node_with(p, SN_JN_TUPLE, NULL, NULL);
        sn_jnodes_add(p, &tuple->items, index);
        while (sn_jskip_sign(p, ",")) sn_jnodes_add(p, &tuple->items, sn_jparse_expression(p, true));
        index = tuple;
    }
    sn_jexpect_sign(p, "]");
    if (colons) return slice;
    if (!index) sn_junexpected(p, "an index before ']'");
    return node_with(p, SN_JN_ITEM, on, index);
}

static sn_jnode *parse_attribute(sn_jparser *p, sn_jnode *on) {
    sn_jexpect_sign(p, ".");
    if (p->at->kind == SN_JT_LITERAL && p->at->value.kind == SN_J_INT)
        return node_with(p, SN_JN_ITEM, on, constant(p, p->at->value));
    sn_jnode *node = node_with(p, SN_JN_ATTRIBUTE, on, NULL);
    node->name = sn_jexpect_name(p, "the name of an attribute");
    return node;
}

/* (a, *b, c=d, **e) into node->items. */
static void parse_arguments(sn_jparser *p, sn_jnode *node) {
    bool named = false, comma = true;
    sn_jexpect_sign(p, "(");
    while (!sn_jat_sign(p, ")")) {
        if (!comma) sn_jexpect_sign(p, ",");
        if (sn_jat_sign(p, ")")) break;
        bool two = sn_jskip_sign(p, "**"), one = !two && sn_jskip_sign(p, "*");
        sn_jnode *argument;
        if (one || two) {
            argument = node_with(p, SN_JN_SPREAD, sn_jparse_expression(p, true), NULL);
            argument->flag = two;
        } else if (p->at->kind == SN_JT_NAME && token_is(p->at + 1, SN_JT_SIGN, "=")) {
            argument = sn_jnode_new(p, SN_JN_KEYWORD);
            argument->name = sn_jexpect_name(p, "a name");
            sn_jexpect_sign(p, "=");
            argument->a = sn_jparse_expression(p, true);
        } else {
            if (named) sn_junexpected(p, "a named argument behind a named argument");
            argument = sn_jparse_expression(p, true);
        }
        named = named || two || argument->kind == SN_JN_KEYWORD;
        sn_jnodes_add(p, &node->items, argument);
        comma = false;
    }
    sn_jexpect_sign(p, ")");
}

static sn_jnode *parse_call(sn_jparser *p, sn_jnode *on) {
    sn_jnode *node = node_with(p, SN_JN_CALL, on, NULL);
    parse_arguments(p, node);
    return node;
}

static sn_jnode *parse_postfix(sn_jparser *p, sn_jnode *node) {
    for (;;) {
        if (sn_jat_sign(p, "."))
            node = parse_attribute(p, node);
        else if (sn_jat_sign(p, "["))
            node = parse_item(p, node);
        else if (sn_jat_sign(p, "("))
            node = parse_call(p, node);
        else
            return node;
    }
}

static sn_jnode *parse_test(sn_jparser *p, sn_jnode *on) {
    sn_jnode *node = node_with(p, SN_JN_TEST, on, NULL);
    p->at++; /* is */
    node->flag = sn_jskip_name(p, "not");
    node->name = sn_jexpect_name(p, "the name of a test");
    bool operand =
        p->at->kind == SN_JT_NAME || p->at->kind == SN_JT_LITERAL || sn_jat_sign(p, "[") || sn_jat_sign(p, "{");
    bool word = sn_jat_name(p, "else") || sn_jat_name(p, "or") || sn_jat_name(p, "and");
    if (sn_jat_sign(p, "("))
        parse_arguments(p, node);
    else if (sn_jat_name(p, "is"))
        sn_junexpected(p, "'and' between two tests");
    else if (operand && !word)
        sn_jnodes_add(p, &node->items, parse_postfix(p, parse_primary(p)));
    return node;
}

sn_jnode *sn_jparse_filters(sn_jparser *p, sn_jnode *on, bool first_is_named) {
    while (first_is_named || sn_jat_sign(p, "|")) {
        if (!first_is_named) p->at++;
        first_is_named = false;
        sn_jnode *node = node_with(p, SN_JN_FILTER, on, NULL);
        node->line = p->at->line;
        node->name = sn_jexpect_name(p, "the name of a filter");
        if (sn_jat_sign(p, "(")) parse_arguments(p, node);
        on = node;
    }
    return on;
}

static sn_jnode *parse_filters_and_tests(sn_jparser *p, sn_jnode *node) {
    for (;;) {
        if (sn_jat_sign(p, "|"))
            node = sn_jparse_filters(p, node, false);
        else if (sn_jat_name(p, "is"))
            node = parse_test(p, node);
        else if (sn_jat_sign(p, "("))
            node = parse_call(p, node);
        else
            return node;
    }
}

/* ---- operators ---- */

static sn_jnode *parse_unary(sn_jparser *p, bool with_filters) {
    sn_jnode *node;
    sn_jenter(p->run);
    bool minus = sn_jat_sign(p, "-");
    if (minus || sn_jat_sign(p, "+")) {
        node = sn_jnode_new(p, SN_JN_UNARY);
        node->sign = minus ? SN_JS_SUBTRACT : SN_JS_ADD;
        p->at++;
        node->a = parse_unary(p, false);
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    sn_jleave(p->run);
    return with_filters ? parse_filters_and_tests(p, node) : node;
}

typedef struct operator_sign {
    const char *text;
    sn_jsign sign;
    int level;
} operator_sign;

enum { LEVEL_COMPARE, LEVEL_ADD, LEVEL_JOIN, LEVEL_MULTIPLY, LEVEL_POWER, LEVEL_UNARY };

static const operator_sign operators[] = {
    {"+", SN_JS_ADD, LEVEL_ADD},
    {"-", SN_JS_SUBTRACT, LEVEL_ADD},
    {"*", SN_JS_MULTIPLY, LEVEL_MULTIPLY},
    {"/", SN_JS_DIVIDE, LEVEL_MULTIPLY},
    {"//", SN_JS_FLOOR_DIVIDE, LEVEL_MULTIPLY},
    {"%", SN_JS_MODULO, LEVEL_MULTIPLY},
    {"**", SN_JS_POWER, LEVEL_POWER},
    {"==", SN_JS_EQUAL, LEVEL_COMPARE},
    {"!=", SN_JS_UNEQUAL, LEVEL_COMPARE},
    {"<", SN_JS_LESS, LEVEL_COMPARE},
    {"<=", SN_JS_LESS_EQUAL, LEVEL_COMPARE},
    {">", SN_JS_GREATER, LEVEL_COMPARE},
    {">=", SN_JS_GREATER_EQUAL, LEVEL_COMPARE},
};

static bool skip_operator(sn_jparser *p, int level, sn_jsign *sign) {
    for (size_t i = 0; p->at->kind == SN_JT_SIGN && i < sizeof operators / sizeof *operators; i++)
        if (operators[i].level == level && sn_jskip_sign(p, operators[i].text)) {
            *sign = operators[i].sign;
            return true;
        }
    if (level != LEVEL_COMPARE) return false;
    *sign = SN_JS_IN;
    if (sn_jskip_name(p, "in")) return true;
    *sign = SN_JS_NOT_IN;
    if (!sn_jat_name(p, "not") || !token_is(p->at + 1, SN_JT_NAME, "in")) return false;
    p->at += 2;
    return true;
}

static sn_jnode *parse_operators(sn_jparser *p, int level) {
    if (level == LEVEL_UNARY) return parse_unary(p, true);
    sn_jnode *left = parse_operators(p, level + 1), *joined = NULL;
    if (level == LEVEL_JOIN) {
        while (sn_jskip_sign(p, "~")) {
            if (!joined) {
                joined = node_with(p, SN_JN_JOIN, NULL, NULL);
                joined->line = left->line;
                sn_jnodes_add(p, &joined->items, left);
            }
            sn_jnodes_add(p, &joined->items, parse_operators(p, level + 1));
        }
        return joined ? joined : left;
    }
    for (sn_jsign sign; skip_operator(p, level, &sign);) {
        sn_jnode *right = parse_operators(p, level + 1);
        sn_jnode *node = node_with(p, SN_JN_BINARY, level == LEVEL_COMPARE ? NULL : left, right);
        node->sign = sign;
        if (level == LEVEL_COMPARE) { /* a < b < c */
            if (!joined) joined = node_with(p, SN_JN_COMPARE, left, NULL);
            node->line = left->line;
            sn_jnodes_add(p, &joined->items, node);
        } else {
            left = node;
        }
    }
    return joined ? joined : left;
}

static sn_jnode *parse_not(sn_jparser *p) {
    if (!sn_jat_name(p, "not")) return parse_operators(p, LEVEL_COMPARE);
    sn_jenter(p->run);
    sn_jnode *node = sn_jnode_new(p, SN_JN_NOT);
    p->at++;
    node->a = parse_not(p);
    sn_jleave(p->run);
    return node;
}

static sn_jnode *parse_and(sn_jparser *p) {
    sn_jnode *left = parse_not(p);
    while (sn_jskip_name(p, "and")) left = node_with(p, SN_JN_AND, left, parse_not(p));
    return left;
}

static sn_jnode *parse_or(sn_jparser *p) {
    sn_jnode *left = parse_and(p);
    while (sn_jskip_name(p, "or")) left = node_with(p, SN_JN_OR, left, parse_and(p));
    return left;
}

sn_jnode *sn_jparse_expression(sn_jparser *p, bool with_if) {
    sn_jenter(p->run);
    sn_jnode *node = parse_or(p);
    while (with_if && sn_jskip_name(p, "if")) {
        node = node_with(p, SN_JN_IF_ELSE, node, parse_or(p));
        if (sn_jskip_name(p, "else")) node->c = sn_jparse_expression(p, true);
    }
    sn_jleave(p->run);
    return node;
}
