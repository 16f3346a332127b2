/* Statements. parse_body reads text, prints and blocks up to a block that begins with one of the ending names. */
#include "text/jinja/syntax_private.h"

#include <string.h>

static sn_jnodes parse_body(sn_jparser *p, const char *const *ends);

static void end_block(sn_jparser *p) {
    if (p->at->kind != SN_JT_BLOCK_END) sn_junexpected(p, "'%}'");
    p->at++;
}

/* The rest of a block's tag, its body, and the ending name, whose tag is closed. */
static sn_jnodes parse_inside(sn_jparser *p, const char *end) {
    sn_jskip_sign(p, ":");
    end_block(p);
    sn_jnodes body = parse_body(p, (const char *const[]){end, NULL});
    p->at++;
    end_block(p);
    return body;
}

/* What a `for` or `set` writes to: a name, a tuple of names, or for `set` the attribute of a namespace. */
static void check_target(sn_jparser *p, const sn_jnode *target) {
    bool good = target->kind == SN_JN_NAME || target->kind == SN_JN_ATTRIBUTE || target->kind == SN_JN_TUPLE;
    if (target->kind == SN_JN_NAME && sn_jstring_is(target->name, "loop"))
        sn_jfail(p->run, "", "'loop' cannot be assigned to");
    if (!good) sn_jfail(p->run, "", "this cannot be assigned to: a target is a name or names in a row");
    for (size_t i = 0; target->kind == SN_JN_TUPLE && i < target->items.n; i++) check_target(p, target->items.at[i]);
}

static sn_jnode *parse_target(sn_jparser *p, const char *end) {
    sn_jnode *target;
    if (!end && p->at->kind == SN_JT_NAME && p->at[1].kind == SN_JT_SIGN && sn_jstring_is(p->at[1].value.string, ".")) {
        target = sn_jnode_new(p, SN_JN_ATTRIBUTE);
        target->a = sn_jnode_new(p, SN_JN_NAME);
        target->a->name = sn_jexpect_name(p, "a name");
        p->at++;
        target->name = sn_jexpect_name(p, "the name of an attribute");
    } else {
        target = sn_jparse_tuple(p, false, true, end);
    }
    check_target(p, target);
    return target;
}

static sn_jnode *parse_for(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_FOR);
    node->a = parse_target(p, "in");
    if (!sn_jskip_name(p, "in")) sn_junexpected(p, "'in'");
    node->b = sn_jparse_tuple(p, false, false, "recursive");
    if (sn_jskip_name(p, "if")) node->c = sn_jparse_expression(p, true);
    node->flag = sn_jskip_name(p, "recursive");
    sn_jskip_sign(p, ":");
    end_block(p);
    p->loops++;
    node->items = parse_body(p, (const char *const[]){"endfor", "else", NULL});
    p->loops--;
    if (sn_jskip_name(p, "else")) {
        node->more = parse_inside(p, "endfor");
        return node;
    }
    p->at++;
    end_block(p);
    return node;
}

static sn_jnode *parse_if(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_IF);
    for (bool more = true; more;) {
        sn_jnode *branch = sn_jnode_new(p, SN_JN_BRANCH);
        branch->a = sn_jparse_tuple(p, false, false, NULL);
        sn_jskip_sign(p, ":");
        end_block(p);
        branch->items = parse_body(p, (const char *const[]){"elif", "else", "endif", NULL});
        sn_jnodes_add(p, &node->items, branch);
        more = sn_jskip_name(p, "elif");
    }
    if (sn_jskip_name(p, "else")) {
        sn_jnode *branch = sn_jnode_new(p, SN_JN_BRANCH);
        branch->items = parse_inside(p, "endif");
        sn_jnodes_add(p, &node->items, branch);
        return node;
    }
    p->at++;
    end_block(p);
    return node;
}

static sn_jnode *parse_set(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_SET);
    node->a = parse_target(p, NULL);
    if (sn_jskip_sign(p, "=")) {
        node->b = sn_jparse_tuple(p, true, false, NULL);
        end_block(p);
        return node;
    }
    node->kind = SN_JN_SET_BLOCK;
    node->b = sn_jparse_filters(p, sn_jnode_new(p, SN_JN_HOLE), false);
    node->items = parse_inside(p, "endset");
    return node;
}

/* (a, b=1) */
static sn_jnodes parse_parameters(sn_jparser *p) {
    sn_jnodes parameters = {0};
    bool defaults = false;
    sn_jexpect_sign(p, "(");
    while (!sn_jat_sign(p, ")")) {
        if (parameters.n) sn_jexpect_sign(p, ",");
        sn_jnode *parameter = sn_jnode_new(p, SN_JN_KEYWORD);
        parameter->name = sn_jexpect_name(p, "the name of a parameter");
        if (sn_jskip_sign(p, "="))
            parameter->a = sn_jparse_expression(p, true);
        else if (defaults)
            sn_jfail(p->run, "", "a parameter without a default stands behind one with a default");
        defaults = parameter->a;
        sn_jnodes_add(p, &parameters, parameter);
    }
    sn_jexpect_sign(p, ")");
    return parameters;
}

/* A macro is called anywhere: break and continue inside of it have no loop but its own. */
static sn_jnodes parse_macro_body(sn_jparser *p, const char *end) {
    int loops = p->loops;
    p->loops = 0;
    sn_jnodes body = parse_inside(p, end);
    p->loops = loops;
    return body;
}

static void parse_macro_inside(sn_jparser *p, sn_jnode *node, const char *end) {
    const sn_jtoken *from = p->at;
    node->more = parse_macro_body(p, end);
    for (const sn_jtoken *t = from; t < p->at; t++) {
        if (t->kind != SN_JT_NAME) continue;
        if (sn_jstring_is(t->value.string, "varargs")) node->uses |= SN_JUSES_VARARGS;
        if (sn_jstring_is(t->value.string, "kwargs")) node->uses |= SN_JUSES_KWARGS;
        if (sn_jstring_is(t->value.string, "caller")) node->uses |= SN_JUSES_CALLER;
    }
}

static sn_jnode *parse_macro(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_MACRO);
    node->name = sn_jexpect_name(p, "the name of the macro");
    node->items = parse_parameters(p);
    parse_macro_inside(p, node, "endmacro");
    return node;
}

static sn_jnode *parse_call_block(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_CALL_BLOCK);
    if (sn_jat_sign(p, "(")) node->items = parse_parameters(p);
    node->a = sn_jparse_expression(p, true);
    if (node->a->kind != SN_JN_CALL) sn_jfail(p->run, "{% call %}", "expected a call of a macro");
    node->name = sn_jstring_new(p->run, "caller", 6, 0);
    parse_macro_inside(p, node, "endcall");
    return node;
}

static sn_jnode *parse_filtered(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_FILTERED);
    node->a = sn_jparse_filters(p, sn_jnode_new(p, SN_JN_HOLE), true);
    node->items = parse_inside(p, "endfilter");
    return node;
}

static sn_jnode *parse_with(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_WITH);
    while (p->at->kind != SN_JT_BLOCK_END) {
        if (node->items.n) sn_jexpect_sign(p, ",");
        sn_jnode *set = sn_jnode_new(p, SN_JN_SET);
        set->a = sn_jnode_new(p, SN_JN_NAME);
        set->a->name = sn_jexpect_name(p, "the name of a variable");
        sn_jexpect_sign(p, "=");
        set->b = sn_jparse_expression(p, true);
        sn_jnodes_add(p, &node->items, set);
    }
    node->more = parse_inside(p, "endwith");
    return node;
}

static sn_jnode *parse_loop_control(sn_jparser *p, sn_jnode_kind kind) {
    sn_jnode *node = sn_jnode_new(p, kind);
    if (!p->loops) sn_jfail(p->run, kind == SN_JN_BREAK ? "{% break %}" : "{% continue %}", "it stands in no loop");
    end_block(p);
    return node;
}

static sn_jnode *parse_generation(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_GENERATION);
    node->items = parse_macro_body(p, "endgeneration");
    return node;
}

static sn_jnode *parse_print(sn_jparser *p) {
    sn_jnode *node = sn_jnode_new(p, SN_JN_PRINT);
    node->a = sn_jparse_tuple(p, true, false, NULL);
    return node;
}

static sn_jnode *parse_block(sn_jparser *p) {
    const sn_jstring *name = sn_jexpect_name(p, "the name of a block");
    p->run->line = p->at[-1].line;
    if (sn_jstring_is(name, "for")) return parse_for(p);
    if (sn_jstring_is(name, "if")) return parse_if(p);
    if (sn_jstring_is(name, "set")) return parse_set(p);
    if (sn_jstring_is(name, "macro")) return parse_macro(p);
    if (sn_jstring_is(name, "call")) return parse_call_block(p);
    if (sn_jstring_is(name, "filter")) return parse_filtered(p);
    if (sn_jstring_is(name, "with")) return parse_with(p);
    if (sn_jstring_is(name, "break")) return parse_loop_control(p, SN_JN_BREAK);
    if (sn_jstring_is(name, "continue")) return parse_loop_control(p, SN_JN_CONTINUE);
    if (sn_jstring_is(name, "generation")) return parse_generation(p);
    if (sn_jstring_is(name, "print")) { /* its values one behind the other */
        sn_jnode *node = parse_print(p);
        if (node->a->kind == SN_JN_TUPLE) node->a->kind = SN_JN_JOIN;
        end_block(p);
        return node;
    }
    int shown = (int)sn_min_size(name->len, 40);
    if (sn_jstring_is(name, "do") || (name->len > 3 && !memcmp(name->text, "end", 3)) || sn_jstring_is(name, "else") ||
        sn_jstring_is(name, "elif"))
        sn_jfail(p->run, "", "unexpected {%% %.*s %%}", shown, name->text);
    sn_jfail(p->run, "", "{%% %.*s %%} is not known: chat templates have no such block", shown, name->text);
}

static sn_jnodes parse_body(sn_jparser *p, const char *const *ends) {
    sn_jnodes body = {0};
    sn_jenter(p->run);
    for (; p->at->kind != SN_JT_END;) {
        if (p->at->kind == SN_JT_TEXT) {
            sn_jnode *node = sn_jnode_new(p, SN_JN_TEXT);
            node->value = p->at++->value;
            sn_jnodes_add(p, &body, node);
        } else if (p->at->kind == SN_JT_PRINT_BEGIN) {
            p->at++;
            sn_jnodes_add(p, &body, parse_print(p));
            if (p->at->kind != SN_JT_PRINT_END) sn_junexpected(p, "'}}'");
            p->at++;
        } else {
            p->at++; /* {% */
            for (size_t i = 0; ends[i]; i++)
                if (sn_jat_name(p, ends[i])) {
                    sn_jleave(p->run);
                    return body;
                }
            sn_jnodes_add(p, &body, parse_block(p));
        }
    }
    if (ends[0]) sn_jfail(p->run, "", "{%% %s %%} is missing at the end of the template", ends[0]);
    sn_jleave(p->run);
    return body;
}

sn_jnodes sn_jparse(sn_jparser *p) { return parse_body(p, (const char *const[]){NULL}); }
