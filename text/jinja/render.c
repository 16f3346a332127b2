/* Statements. A body is run in a scope; `for` makes one for each iteration, so that what an iteration sets is gone
 * after it, as Jinja2 has it. `break` and `continue` are handed up as a sn_flow.
 *
 * A loop looks at its next item only when it has to (loop.last, loop.nextitem, the next iteration): the condition of
 * `for ... if` may depend on what the body changes in a namespace. */
#include "text/jinja/render_private.h"

#include <string.h>

typedef enum sn_flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } sn_flow;

static sn_flow run_nodes(sn_jrender *r, const sn_jnodes *body);

/* ---- scopes ---- */

sn_jscope *sn_jscope_new(sn_jrender *r, sn_jscope *parent) {
    sn_jscope *scope = sn_jalloc(r->run, 1, sizeof *scope);
    scope->parent = parent;
    return scope;
}

void sn_jassign(sn_jrender *r, const sn_jstring *name, sn_jvalue value) {
    sn_jscope *scope = r->scope;
    for (size_t i = 0; i < scope->n; i++)
        if (sn_jstring_equal(r->run, scope->at[i].name, name)) {
            scope->at[i].value = value;
            return;
        }
    sn_jcharge(r->run, scope->n >> 4);
    if (scope->n == scope->capacity) {
        size_t capacity = 2 * scope->capacity + 4;
        sn_jbinding *at = sn_jalloc(r->run, capacity, sizeof *at);
        if (scope->n) memcpy(at, scope->at, scope->n * sizeof *at);
        scope->at = at;
        scope->capacity = capacity;
    }
    scope->at[scope->n++] = (sn_jbinding){name, value};
}

static void assign_target(sn_jrender *r, const sn_jnode *target, sn_jvalue value) {
    if (target->kind == SN_JN_NAME) {
        sn_jassign(r, target->name, value);
    } else if (target->kind == SN_JN_ATTRIBUTE) {
        sn_jvalue on = sn_jeval(r, target->a);
        if (on.kind != SN_J_NAMESPACE)
            sn_jfail(r->run, "{% set %}", "only a namespace has attributes that can be set, not a %s",
                     sn_jtype_name(on));
        if (target->name->len && target->name->text[0] == '_')
            sn_jfail(r->run, "{% set %}", "an attribute of a namespace cannot begin with an underscore");
        sn_jdict_set(r->run, on.dict, sn_jstr(target->name), value);
    } else {
        const sn_jlist *parts = sn_jiterate(r->run, "names in a row", value);
        if (parts->n != target->items.n)
            sn_jfail(r->run, "names in a row", "%zu values for %zu names", parts->n, target->items.n);
        for (size_t i = 0; i < parts->n; i++) assign_target(r, target->items.at[i], parts->at[i]);
    }
}

/* ---- captured text ---- */

const sn_jstring *sn_jcapture(sn_jrender *r, sn_jscope *scope, const sn_jnodes *body) {
    sn_jtext text = sn_jtext_new(r->run), *out = r->out;
    sn_jscope *before = r->scope;
    r->out = &text;
    r->scope = scope;
    run_nodes(r, body);
    r->out = out;
    r->scope = before;
    return sn_jtext_end(&text);
}

static const sn_jstring *capture_filtered(sn_jrender *r, const sn_jnodes *body, const sn_jnode *filters) {
    sn_jvalue before = r->hole;
    const sn_jstring *text = sn_jcapture(r, sn_jscope_new(r, r->scope), body);
    r->hole = sn_jstr(text);
    text = sn_jto_string(r->run, sn_jeval(r, filters));
    r->hole = before;
    return text;
}

/* ---- loops ---- */

static bool passes_condition(sn_jrender *r, sn_jloop *loop, sn_jvalue item) {
    if (!loop->node->c) return true;
    sn_jscope *before = r->scope;
    r->scope = sn_jscope_new(r, loop->scope);
    assign_target(r, loop->node->a, item);
    bool passes = sn_jtruth(sn_jeval(r, loop->node->c));
    r->scope = before;
    return passes;
}

/* Makes sure that loop->following is the next item, if there is one. */
static bool look_ahead(sn_jrender *r, sn_jloop *loop) {
    while (!loop->has_following && loop->next < loop->list->n) {
        sn_jcharge(r->run, 1);
        loop->following = loop->list->at[loop->next++];
        loop->has_following = passes_condition(r, loop, loop->following);
    }
    return loop->has_following;
}

static int64_t loop_length(sn_jrender *r, sn_jloop *loop) {
    int64_t n = loop->index0 + 1 + (look_ahead(r, loop) ? 1 : 0);
    if (!loop->node->c) return n + (int64_t)(loop->list->n - loop->next);
    for (size_t i = loop->next; i < loop->list->n; i++) n += passes_condition(r, loop, loop->list->at[i]);
    return n;
}

sn_jvalue sn_jloop_attribute(sn_jrender *r, sn_jloop *loop, const sn_jstring *name) {
    if (sn_jstring_is(name, "index")) return sn_jint(loop->index0 + 1);
    if (sn_jstring_is(name, "index0")) return sn_jint(loop->index0);
    if (sn_jstring_is(name, "first")) return sn_jbool(loop->index0 == 0);
    if (sn_jstring_is(name, "last")) return sn_jbool(!look_ahead(r, loop));
    if (sn_jstring_is(name, "length")) return sn_jint(loop_length(r, loop));
    if (sn_jstring_is(name, "revindex")) return sn_jint(loop_length(r, loop) - loop->index0);
    if (sn_jstring_is(name, "revindex0")) return sn_jint(loop_length(r, loop) - loop->index0 - 1);
    if (sn_jstring_is(name, "depth")) return sn_jint(loop->depth0 + 1);
    if (sn_jstring_is(name, "depth0")) return sn_jint(loop->depth0);
    if (sn_jstring_is(name, "previtem")) return loop->has_previous ? loop->previous : sn_jundefined(name);
    if (sn_jstring_is(name, "nextitem")) return look_ahead(r, loop) ? loop->following : sn_jundefined(name);
    const sn_jbuiltin *method = sn_jfind_builtin(sn_jloop_methods, name);
    sn_jvalue self = {.kind = SN_J_LOOP, .loop = loop};
    return method ? sn_jfunction_value(r, method, self) : sn_jundefined(name);
}

static sn_flow run_loop(sn_jrender *r, const sn_jnode *node, sn_jvalue over, int depth0) {
    static const char construct[] = "{% for %}";
    sn_jscope *outside = r->scope;
    sn_jloop *loop = sn_jalloc(r->run, 1, sizeof *loop);
    const sn_jstring *name = sn_jstring_new(r->run, "loop", 4, 0);
    *loop = (sn_jloop){.node = node, .scope = outside, .depth0 = depth0, .index0 = -1};
    loop->list = sn_jiterate(r->run, construct, over);
    bool completed = false;
    sn_flow flow = FLOW_ON;
    while (flow != FLOW_BREAK && look_ahead(r, loop)) {
        loop->has_previous = loop->index0 >= 0;
        loop->previous = loop->current;
        loop->current = loop->following;
        loop->has_following = false;
        loop->index0++;
        sn_jcharge(r->run, 1);
        r->scope = sn_jscope_new(r, outside);
        sn_jassign(r, name, (sn_jvalue){.kind = SN_J_LOOP, .loop = loop});
        assign_target(r, node->a, loop->current);
        flow = run_nodes(r, &node->items);
        completed = completed || flow == FLOW_ON;
        r->scope = outside;
    }
    /* As in Jinja2, `else` asks whether the end of the body was ever reached. */
    if (!completed && node->more.n) {
        r->scope = sn_jscope_new(r, outside);
        flow = run_nodes(r, &node->more);
        r->scope = outside;
        return flow;
    }
    return FLOW_ON;
}

sn_jvalue sn_jloop_recurse(sn_jrender *r, sn_jloop *loop, sn_jvalue over) {
    sn_jtext text = sn_jtext_new(r->run), *out = r->out;
    sn_jscope *before = r->scope;
    if (!loop->node->flag) sn_jfail(r->run, "loop(...)", "the loop is not marked as recursive");
    sn_jenter(r->run);
    r->out = &text;
    r->scope = loop->scope;
    run_loop(r, loop->node, over, loop->depth0 + 1);
    r->out = out;
    r->scope = before;
    sn_jleave(r->run);
    return sn_jstr(sn_jtext_end(&text));
}

/* ---- statements ---- */

static void write_value(sn_jrender *r, sn_jvalue value) {
    sn_jwrite(r->out, value);
    if (r->out->len > r->run->limits.output)
        sn_jfail(r->run, "", "the template writes more than %zu bytes", r->run->limits.output);
}

static sn_flow run_if(sn_jrender *r, const sn_jnode *node) {
    for (size_t i = 0; i < node->items.n; i++) {
        const sn_jnode *branch = node->items.at[i];
        if (!branch->a || sn_jtruth(sn_jeval(r, branch->a))) return run_nodes(r, &branch->items);
    }
    return FLOW_ON;
}

static void run_call_block(sn_jrender *r, const sn_jnode *node) {
    sn_jvalue callee = sn_jeval(r, node->a->a), caller = sn_jmacro_value(r, node);
    sn_jlist *given = sn_jlist_new(r->run, 0);
    sn_jdict *named = sn_jdict_new(r->run);
    for (size_t i = 0; i < node->a->items.n; i++) {
        const sn_jnode *argument = node->a->items.at[i];
        if (argument->kind == SN_JN_SPREAD) sn_jfail(r->run, "{% call %}", "* is not taken here");
        sn_jvalue value = sn_jeval(r, argument->kind == SN_JN_KEYWORD ? argument->a : argument);
        if (argument->kind == SN_JN_KEYWORD)
            sn_jdict_set(r->run, named, sn_jstr(argument->name), value);
        else
            sn_jlist_add(r->run, given, value);
    }
    sn_jdict_set(r->run, named, sn_jword(r->run, "caller"), caller);
    write_value(r, sn_jcall_value(r, callee, given, named));
}

static sn_flow run_with(sn_jrender *r, const sn_jnode *node) {
    sn_jscope *outside = r->scope, *inside = sn_jscope_new(r, outside);
    for (size_t i = 0; i < node->items.n; i++) {
        sn_jvalue value = sn_jeval(r, node->items.at[i]->b);
        r->scope = inside;
        assign_target(r, node->items.at[i]->a, value);
        r->scope = outside;
    }
    r->scope = inside;
    sn_flow flow = run_nodes(r, &node->more);
    r->scope = outside;
    return flow;
}

static void run_generation(sn_jrender *r, const sn_jnode *node) {
    const sn_jstring *text = sn_jcapture(r, sn_jscope_new(r, r->scope), &node->items);
    size_t from = r->out->len;
    write_value(r, sn_jstr(text));
    for (size_t i = from; i < r->out->len; i++) r->out->marks[i] |= SN_JINJA_GENERATION;
}

static sn_flow run_node(sn_jrender *r, const sn_jnode *node) {
    switch (node->kind) {
    case SN_JN_TEXT:
        write_value(r, node->value);
        return FLOW_ON;
    case SN_JN_PRINT: {
        sn_jvalue value = sn_jeval(r, node->a);
        r->run->line = node->line;
        write_value(r, value);
        return FLOW_ON;
    }
    case SN_JN_IF:
        return run_if(r, node);
    case SN_JN_FOR: {
        sn_jvalue over = sn_jeval(r, node->b);
        r->run->line = node->line;
        return run_loop(r, node, over, 0);
    }
    case SN_JN_SET: {
        sn_jvalue value = sn_jeval(r, node->b);
        r->run->line = node->line;
        assign_target(r, node->a, value);
        return FLOW_ON;
    }
    case SN_JN_SET_BLOCK:
        assign_target(r, node->a, sn_jstr(capture_filtered(r, &node->items, node->b)));
        return FLOW_ON;
    case SN_JN_FILTERED:
        write_value(r, sn_jstr(capture_filtered(r, &node->items, node->a)));
        return FLOW_ON;
    case SN_JN_MACRO:
        sn_jassign(r, node->name, sn_jmacro_value(r, node));
        return FLOW_ON;
    case SN_JN_CALL_BLOCK:
        run_call_block(r, node);
        return FLOW_ON;
    case SN_JN_WITH:
        return run_with(r, node);
    case SN_JN_GENERATION:
        run_generation(r, node);
        return FLOW_ON;
    default:
        return node->kind == SN_JN_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    }
}

static sn_flow run_nodes(sn_jrender *r, const sn_jnodes *body) {
    sn_flow flow = FLOW_ON;
    sn_jenter(r->run);
    for (size_t i = 0; flow == FLOW_ON && i < body->n; i++) {
        r->run->line = body->at[i]->line;
        sn_jcharge(r->run, 1);
        flow = run_node(r, body->at[i]);
    }
    sn_jleave(r->run);
    return flow;
}

void sn_jrun_body(sn_jrender *r, const sn_jnodes *body) { run_nodes(r, body); }
