/* Expressions: sn_jeval gives the value of a node. */
#include "text/jinja/render_private.h"

static sn_jvalue lookup(sn_jrender *r, const sn_jstring *name) {
    for (const sn_jscope *scope = r->scope; scope; scope = scope->parent) {
        sn_jcharge(r->run, scope->n >> 3);
        for (size_t i = 0; i < scope->n; i++)
            if (sn_jstring_equal(r->run, scope->at[i].name, name)) return scope->at[i].value;
    }
    const sn_jvalue *variable = sn_jdict_find(r->run, r->variables, sn_jstr(name));
    if (!variable && r->own) variable = sn_jdict_find(r->run, r->own, sn_jstr(name));
    if (variable) return *variable;
    const sn_jbuiltin *function = sn_jfind_builtin(sn_jfunctions, name);
    return function ? sn_jfunction_value(r, function, sn_jundefined(name)) : sn_jundefined(name);
}

static sn_jlist *eval_items(sn_jrender *r, const sn_jnode *node) {
    sn_jlist *list = sn_jlist_new(r->run, node->items.n);
    for (size_t i = 0; i < node->items.n; i++) sn_jlist_add(r->run, list, sn_jeval(r, node->items.at[i]));
    return list;
}

static sn_jvalue eval_dict(sn_jrender *r, const sn_jnode *node) {
    sn_jdict *dict = sn_jdict_new(r->run);
    for (size_t i = 0; i + 1 < node->items.n; i += 2) {
        sn_jvalue key = sn_jeval(r, node->items.at[i]);
        sn_jdict_set(r->run, dict, key, sn_jeval(r, node->items.at[i + 1]));
    }
    return sn_jdict_value(dict);
}

static sn_jvalue eval_join(sn_jrender *r, const sn_jnode *node) {
    const sn_jlist *parts = eval_items(r, node);
    sn_jtext out = sn_jtext_new(r->run);
    r->run->line = node->line;
    for (size_t i = 0; i < parts->n; i++) sn_jwrite(&out, parts->at[i]);
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue eval_compare(sn_jrender *r, const sn_jnode *node) {
    sn_jvalue left = sn_jeval(r, node->a), result = sn_jbool(true);
    for (size_t i = 0; i < node->items.n && sn_jtruth(result); i++) {
        sn_jvalue right = sn_jeval(r, node->items.at[i]->b);
        r->run->line = node->line;
        result = sn_joperate(r, node->items.at[i]->sign, left, right);
        left = right;
    }
    return result;
}

static sn_jvalue eval_unary(sn_jrender *r, const sn_jnode *node) {
    sn_jvalue v = sn_jeval(r, node->a);
    r->run->line = node->line;
    bool minus = node->sign == SN_JS_SUBTRACT;
    if (!sn_jis_number(v)) sn_jfail(r->run, minus ? "-" : "+", "a %s is no number", sn_jtype_name(v));
    if (v.kind == SN_J_FLOAT) return sn_jreal(minus ? -v.real : v.real);
    return minus ? sn_joperate(r, SN_JS_SUBTRACT, sn_jint(0), v) : sn_jint(sn_jas_int(v));
}

static sn_jvalue eval_slice(sn_jrender *r, const sn_jnode *node) {
    sn_jvalue on = sn_jeval(r, node->a), bound[3];
    for (size_t i = 0; i < 3; i++) bound[i] = node->items.at[i] ? sn_jeval(r, node->items.at[i]) : sn_jnone();
    r->run->line = node->line;
    return sn_jslice(r, on, bound);
}

static void eval_spread(sn_jrender *r, const sn_jnode *argument, sn_jlist *given, sn_jdict *named) {
    sn_jvalue value = sn_jeval(r, argument->a);
    if (!argument->flag) {
        const sn_jlist *list = sn_jiterate(r->run, "*", value);
        for (size_t i = 0; i < list->n; i++) sn_jlist_add(r->run, given, list->at[i]);
        return;
    }
    if (value.kind != SN_J_DICT) sn_jfail(r->run, "**", "a %s is no dictionary", sn_jtype_name(value));
    for (size_t i = 0; i < value.dict->n; i++) {
        if (value.dict->at[i].key.kind != SN_J_STRING) sn_jfail(r->run, "**", "the keys must be texts");
        sn_jdict_set(r->run, named, value.dict->at[i].key, value.dict->at[i].value);
    }
}

/* The arguments of a call, filter or test. */
static void eval_arguments(sn_jrender *r, const sn_jnode *node, sn_jlist **given, sn_jdict **named) {
    *given = sn_jlist_new(r->run, node->items.n);
    *named = sn_jdict_new(r->run);
    for (size_t i = 0; i < node->items.n; i++) {
        const sn_jnode *argument = node->items.at[i];
        if (argument->kind == SN_JN_SPREAD)
            eval_spread(r, argument, *given, *named);
        else if (argument->kind == SN_JN_KEYWORD)
            sn_jdict_set(r->run, *named, sn_jstr(argument->name), sn_jeval(r, argument->a));
        else
            sn_jlist_add(r->run, *given, sn_jeval(r, argument));
    }
    r->run->line = node->line;
}

static sn_jvalue eval_call(sn_jrender *r, const sn_jnode *node) {
    sn_jlist *given;
    sn_jdict *named;
    sn_jvalue on = sn_jeval(r, node->a);
    eval_arguments(r, node, &given, &named);
    if (node->kind == SN_JN_FILTER) return sn_japply_filter(r, node->name, on, given, named);
    if (node->kind == SN_JN_TEST) return sn_jbool(sn_japply_test(r, node->name, on, given, named) != node->flag);
    if (on.kind == SN_J_UNDEFINED) {
        const sn_jstring *name = on.string ? on.string : node->a->name;
        sn_jfail(r->run, "call", "'%.*s' is undefined", name ? (int)sn_min_size(name->len, 80) : 1,
                 name ? name->text : "?");
    }
    return sn_jcall_value(r, on, given, named);
}

static sn_jvalue eval_node(sn_jrender *r, const sn_jnode *node) {
    sn_jvalue v;
    switch (node->kind) {
    case SN_JN_CONST:
        return node->value;
    case SN_JN_NAME:
        return lookup(r, node->name);
    case SN_JN_LIST:
        return sn_jlist_value(eval_items(r, node));
    case SN_JN_TUPLE:
        return sn_jtuple_value(eval_items(r, node));
    case SN_JN_DICT:
        return eval_dict(r, node);
    case SN_JN_IF_ELSE:
        if (sn_jtruth(sn_jeval(r, node->b))) return sn_jeval(r, node->a);
        return node->c ? sn_jeval(r, node->c) : sn_jundefined(NULL);
    case SN_JN_AND:
        v = sn_jeval(r, node->a);
        return sn_jtruth(v) ? sn_jeval(r, node->b) : v;
    case SN_JN_OR:
        v = sn_jeval(r, node->a);
        return sn_jtruth(v) ? v : sn_jeval(r, node->b);
    case SN_JN_NOT:
        return sn_jbool(!sn_jtruth(sn_jeval(r, node->a)));
    case SN_JN_BINARY: {
        v = sn_jeval(r, node->a);
        sn_jvalue right = sn_jeval(r, node->b);
        r->run->line = node->line;
        return sn_joperate(r, node->sign, v, right);
    }
    case SN_JN_UNARY:
        return eval_unary(r, node);
    case SN_JN_COMPARE:
        return eval_compare(r, node);
    case SN_JN_JOIN:
        return eval_join(r, node);
    case SN_JN_ATTRIBUTE:
        v = sn_jeval(r, node->a);
        r->run->line = node->line;
        return sn_jattribute(r, v, node->name);
    case SN_JN_ITEM: {
        v = sn_jeval(r, node->a);
        sn_jvalue index = sn_jeval(r, node->b);
        r->run->line = node->line;
        return sn_jitem(r, v, index);
    }
    case SN_JN_SLICE:
        return eval_slice(r, node);
    case SN_JN_HOLE:
        return r->hole;
    default:
        return eval_call(r, node);
    }
}

sn_jvalue sn_jeval(sn_jrender *r, const sn_jnode *node) {
    sn_jenter(r->run);
    sn_jvalue value = eval_node(r, node);
    sn_jleave(r->run);
    return value;
}
