/* Calls: arguments are bound to the parameters of functions in C (sn_jbuiltin) and of macros. */
#include "text/jinja/render_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

sn_jvalue sn_jfunction_value(sn_jrender *r, const sn_jbuiltin *builtin, sn_jvalue self) {
    sn_jfunction *function = sn_jalloc(r->run, 1, sizeof *function);
    *function = (sn_jfunction){.builtin = builtin, .self = self};
    return (sn_jvalue){.kind = SN_J_FUNCTION, .function = function};
}

sn_jvalue sn_jmacro_value(sn_jrender *r, const sn_jnode *macro) {
    sn_jfunction *function = sn_jalloc(r->run, 1, sizeof *function);
    *function = (sn_jfunction){.macro = macro, .scope = r->scope};
    return (sn_jvalue){.kind = SN_J_FUNCTION, .function = function};
}

const sn_jbuiltin *sn_jfind_builtin(const sn_jbuiltin *list, const sn_jstring *name) {
    for (; list->name; list++)
        if (sn_jstring_is(name, list->name)) return list;
    return NULL;
}

void sn_jcall_fail(sn_jcall *call, const char *format, ...) {
    char sentence[300], construct[100];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    snprintf(construct, sizeof construct, "'%s'", call->name);
    sn_jfail(call->r->run, construct, "%s", sentence);
}

/* ---- functions in C ---- */

/* The number of the parameter with this name, or -1. */
static int parameter_number(const char *parameters, const sn_jstring *name) {
    int number = 0;
    for (const char *at = parameters; *at; number++) {
        if (*at == '/') {
            at += 1 + (at[1] == ' ');
            number--;
            continue;
        }
        size_t len = strcspn(at, " ");
        if (len == name->len && !memcmp(at, name->text, len)) return number;
        at += len + (at[len] == ' ');
    }
    return -1;
}

static void count_parameters(const char *parameters, size_t *needed, size_t *all) {
    *needed = SIZE_MAX;
    *all = 0;
    for (const char *at = parameters; *at;) {
        size_t len = strcspn(at, " ");
        if (*at == '/')
            *needed = *all;
        else
            ++*all;
        at += len + (at[len] == ' ');
    }
    if (*needed == SIZE_MAX) *needed = *all;
}

static void bind_parameters(sn_jcall *call, const char *parameters) {
    size_t needed, all;
    count_parameters(parameters, &needed, &all);
    if (call->given->n > all) sn_jcall_fail(call, "it takes %zu arguments at most, not %zu", all, call->given->n);
    for (size_t i = 0; i < call->given->n; i++) {
        call->arg[i] = call->given->at[i];
        call->has[i] = true;
    }
    for (size_t i = 0; i < call->named->n; i++) {
        const sn_jstring *name = call->named->at[i].key.string;
        int number = parameter_number(parameters, name);
        if (number < 0) sn_jcall_fail(call, "it has no parameter '%.*s'", (int)sn_min_size(name->len, 80), name->text);
        if (call->has[number])
            sn_jcall_fail(call, "the parameter '%.*s' is given twice", (int)sn_min_size(name->len, 80), name->text);
        call->arg[number] = call->named->at[i].value;
        call->has[number] = true;
    }
    for (size_t i = 0; i < needed; i++)
        if (!call->has[i]) sn_jcall_fail(call, "it needs %zu arguments (%s)", needed, parameters);
}

static sn_jvalue call_builtin(sn_jcall *call, const sn_jbuiltin *builtin) {
    call->name = builtin->name;
    sn_jcharge(call->r->run, 1);
    if (*builtin->parameters != '*') bind_parameters(call, builtin->parameters);
    return builtin->call(call);
}

int64_t sn_jarg_int(sn_jcall *call, size_t i, int64_t otherwise) {
    if (!call->has[i] || call->arg[i].kind == SN_J_NONE) return otherwise;
    if (!sn_jis_int(call->arg[i])) sn_jcall_fail(call, "expected an integer, not a %s", sn_jtype_name(call->arg[i]));
    return sn_jas_int(call->arg[i]);
}

int64_t sn_jarg_size(sn_jcall *call, size_t i, int64_t otherwise) {
    static const int64_t MOST = (int64_t)1 << 48;
    int64_t n = sn_jarg_int(call, i, otherwise);
    return n > MOST ? MOST : n < -MOST ? -MOST : n;
}

bool sn_jarg_flag(sn_jcall *call, size_t i, bool otherwise) {
    return call->has[i] ? sn_jtruth(call->arg[i]) : otherwise;
}

const sn_jstring *sn_jarg_string(sn_jcall *call, size_t i, const char *otherwise) {
    if (!call->has[i] || (call->arg[i].kind == SN_J_NONE && !otherwise))
        return otherwise ? sn_jstring_new(call->r->run, otherwise, strlen(otherwise), 0) : NULL;
    if (call->arg[i].kind != SN_J_STRING)
        sn_jcall_fail(call, "expected a string, not a %s", sn_jtype_name(call->arg[i]));
    return call->arg[i].string;
}

/* ---- macros ---- */

/* Binds the arguments in the macro's new scope, which is the current one. */
static void bind_macro(sn_jrender *r, const sn_jnode *macro, const sn_jlist *given, const sn_jdict *named) {
    sn_jrun *run = r->run;
    char construct[100];
    snprintf(construct, sizeof construct, "macro '%.*s'", (int)sn_min_size(macro->name->len, 80), macro->name->text);
    sn_jdict *rest = sn_jdict_new(run);
    for (size_t i = 0; i < named->n; i++) sn_jdict_set(run, rest, named->at[i].key, named->at[i].value);
    for (size_t i = 0; i < macro->items.n; i++) {
        const sn_jnode *parameter = macro->items.at[i];
        sn_jvalue value = sn_jundefined(parameter->name);
        const sn_jvalue *by_name = sn_jdict_find(run, rest, sn_jstr(parameter->name));
        if (by_name && i < given->n) sn_jfail(run, construct, "parameter %zu is given twice", i + 1);
        if (i < given->n)
            value = given->at[i];
        else if (by_name)
            value = *by_name;
        else if (parameter->a)
            value = sn_jeval(r, parameter->a);
        if (by_name) sn_jdict_remove(run, rest, sn_jstr(parameter->name));
        sn_jassign(r, parameter->name, value);
    }
    const sn_jvalue *caller = sn_jdict_find_word(run, rest, "caller");
    if (macro->uses & SN_JUSES_CALLER && macro->kind == SN_JN_MACRO) {
        sn_jassign(r, sn_jstring_new(run, "caller", 6, 0), caller ? *caller : sn_jundefined(NULL));
        sn_jdict_remove(run, rest, sn_jword(run, "caller"));
    }
    if (macro->uses & SN_JUSES_KWARGS) {
        sn_jassign(r, sn_jstring_new(run, "kwargs", 6, 0), sn_jdict_value(rest));
    } else if (rest->n) {
        const sn_jstring *name = rest->at[0].key.string;
        sn_jfail(run, construct, "it has no parameter '%.*s'", (int)sn_min_size(name->len, 80), name->text);
    }
    if (macro->uses & SN_JUSES_VARARGS) {
        sn_jlist *more = sn_jlist_new(run, 0);
        for (size_t i = macro->items.n; i < given->n; i++) sn_jlist_add(run, more, given->at[i]);
        sn_jassign(r, sn_jstring_new(run, "varargs", 7, 0), sn_jtuple_value(more));
    } else if (given->n > macro->items.n) {
        sn_jfail(run, construct, "it takes %zu arguments at most, not %zu", macro->items.n, given->n);
    }
}

static sn_jvalue call_macro(sn_jrender *r, const sn_jfunction *function, const sn_jlist *given, const sn_jdict *named) {
    sn_jscope *before = r->scope, *scope = sn_jscope_new(r, function->scope);
    int line = r->run->line;
    sn_jenter(r->run);
    r->scope = scope;
    bind_macro(r, function->macro, given, named);
    r->scope = before;
    sn_jvalue text = sn_jstr(sn_jcapture(r, scope, &function->macro->more));
    r->run->line = line;
    sn_jleave(r->run);
    return text;
}

sn_jvalue sn_jcall_value(sn_jrender *r, sn_jvalue callee, const sn_jlist *given, const sn_jdict *named) {
    if (callee.kind == SN_J_LOOP) {
        if (given->n != 1) sn_jfail(r->run, "loop(...)", "it takes one argument");
        return sn_jloop_recurse(r, callee.loop, given->at[0]);
    }
    if (callee.kind != SN_J_FUNCTION) sn_jfail(r->run, "call", "a %s cannot be called", sn_jtype_name(callee));
    if (callee.function->macro) return call_macro(r, callee.function, given, named);
    sn_jcall call = {.r = r, .self = callee.function->self, .given = given, .named = named};
    return call_builtin(&call, callee.function->builtin);
}

/* ---- filters and tests by name ---- */

static _Noreturn void refuse_name(sn_jrender *r, const char *kind, const sn_jstring *name) {
    char construct[100];
    snprintf(construct, sizeof construct, "%s '%.*s'", kind, (int)sn_min_size(name->len, 60), name->text);
    sn_jfail(r->run, construct, "there is no %s of this name", kind);
}

sn_jvalue sn_japply_filter(sn_jrender *r, const sn_jstring *name, sn_jvalue on, const sn_jlist *given,
                           const sn_jdict *named) {
    const sn_jbuiltin *filter = sn_jfind_builtin(sn_jtext_filters, name);
    if (!filter) filter = sn_jfind_builtin(sn_jvalue_filters, name);
    if (!filter) filter = sn_jfind_builtin(sn_jlist_filters, name);
    if (!filter) refuse_name(r, "filter", name);
    sn_jcall call = {.r = r, .self = on, .given = given, .named = named};
    return call_builtin(&call, filter);
}

bool sn_japply_test(sn_jrender *r, const sn_jstring *name, sn_jvalue on, const sn_jlist *given, const sn_jdict *named) {
    const sn_jbuiltin *test = sn_jfind_builtin(sn_jtests, name);
    if (!test) refuse_name(r, "test", name);
    sn_jcall call = {.r = r, .self = on, .given = given, .named = named};
    return sn_jtruth(call_builtin(&call, test));
}
