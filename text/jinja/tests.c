/* What stands behind `is`. */
#include "text/jinja/render_private.h"

#include <string.h>

static sn_jvalue test_defined(sn_jcall *c) { return sn_jbool(c->self.kind != SN_J_UNDEFINED); }
static sn_jvalue test_undefined(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_UNDEFINED); }
static sn_jvalue test_none(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_NONE); }
static sn_jvalue test_boolean(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_BOOL); }
static sn_jvalue test_true(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_BOOL && c->self.flag); }
static sn_jvalue test_false(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_BOOL && !c->self.flag); }
static sn_jvalue test_integer(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_INT || c->self.kind == SN_J_WIDE); }
static sn_jvalue test_float(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_FLOAT); }
static sn_jvalue test_number(sn_jcall *c) { return sn_jbool(sn_jis_number(c->self) || c->self.kind == SN_J_WIDE); }
static sn_jvalue test_string(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_STRING); }
static sn_jvalue test_mapping(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_DICT); }
static sn_jvalue test_callable(sn_jcall *c) {
    /* In Python even what is undefined has the method that a call looks for. */
    return sn_jbool(c->self.kind == SN_J_FUNCTION || c->self.kind == SN_J_LOOP || c->self.kind == SN_J_UNDEFINED);
}
static sn_jvalue test_escaped(sn_jcall *c) { return sn_jbool(c->self.kind == SN_J_STRING && c->self.string->safe); }

static bool has_items(sn_jvalue v) {
    return v.kind == SN_J_STRING || sn_jis_list(v) || v.kind == SN_J_DICT || v.kind == SN_J_UNDEFINED;
}

static sn_jvalue test_sequence(sn_jcall *c) { return sn_jbool(has_items(c->self)); }
static sn_jvalue test_iterable(sn_jcall *c) {
    return sn_jbool(has_items(c->self) || c->self.kind == SN_J_GENERATOR || c->self.kind == SN_J_LOOP);
}

static sn_jvalue rest_is(sn_jcall *c, int64_t divisor, bool wanted) {
    if (divisor == 0) sn_jcall_fail(c, "a division by zero");
    if (c->self.kind == SN_J_FLOAT) {
        sn_jvalue rest = sn_joperate(c->r, SN_JS_MODULO, c->self, sn_jint(divisor));
        return sn_jbool((rest.real == 0) == wanted && (wanted || rest.real == 1));
    }
    if (!sn_jis_int(c->self)) sn_jcall_fail(c, "a %s is no number", sn_jtype_name(c->self));
    return sn_jbool((divisor == -1 || sn_jas_int(c->self) % divisor == 0) == wanted);
}

static sn_jvalue test_even(sn_jcall *c) { return rest_is(c, 2, true); }
static sn_jvalue test_odd(sn_jcall *c) { return rest_is(c, 2, false); }
static sn_jvalue test_divisibleby(sn_jcall *c) { return rest_is(c, sn_jarg_int(c, 0, 0), true); }

static sn_jvalue test_eq(sn_jcall *c) { return sn_joperate(c->r, SN_JS_EQUAL, c->self, c->arg[0]); }
static sn_jvalue test_ne(sn_jcall *c) { return sn_joperate(c->r, SN_JS_UNEQUAL, c->self, c->arg[0]); }
static sn_jvalue test_lt(sn_jcall *c) { return sn_joperate(c->r, SN_JS_LESS, c->self, c->arg[0]); }
static sn_jvalue test_le(sn_jcall *c) { return sn_joperate(c->r, SN_JS_LESS_EQUAL, c->self, c->arg[0]); }
static sn_jvalue test_gt(sn_jcall *c) { return sn_joperate(c->r, SN_JS_GREATER, c->self, c->arg[0]); }
static sn_jvalue test_ge(sn_jcall *c) { return sn_joperate(c->r, SN_JS_GREATER_EQUAL, c->self, c->arg[0]); }
static sn_jvalue test_in(sn_jcall *c) { return sn_jbool(sn_jcontains(c->r, c->self, c->arg[0])); }

static sn_jvalue test_sameas(sn_jcall *c) {
    sn_jvalue a = c->self, b = c->arg[0];
    if (a.kind == SN_J_LIST || a.kind == SN_J_TUPLE || a.kind == SN_J_DICT)
        return sn_jbool(a.kind == b.kind && a.dict == b.dict);
    return sn_jbool(a.kind == b.kind && sn_jequal(c->r->run, a, b));
}

/* str.islower() and str.isupper(): some letter, and none of the other case. */
static sn_jvalue case_is(sn_jcall *c, const char *wanted, const char *other) {
    const sn_jstring *text = sn_jto_string(c->r->run, c->self);
    bool some = false, all = true;
    sn_jcharge(c->r->run, text->len);
    for (size_t at = 0, len; at < text->len; at += len) {
        uint32_t code = sn_jstring_code(text, at, &len);
        some = some || sn_jhas_class(code, wanted);
        all = all && !sn_jhas_class(code, other);
    }
    return sn_jbool(some && all);
}

static sn_jvalue test_lower(sn_jcall *c) { return case_is(c, "lower", "upper"); }
static sn_jvalue test_upper(sn_jcall *c) { return case_is(c, "upper", "lower"); }

static sn_jvalue known_name(sn_jcall *c, const sn_jbuiltin *const *lists) {
    bool known = false;
    for (; c->self.kind == SN_J_STRING && *lists; lists++) known = known || sn_jfind_builtin(*lists, c->self.string);
    return sn_jbool(known);
}

static sn_jvalue test_filter(sn_jcall *c) {
    return known_name(c, (const sn_jbuiltin *const[]){sn_jtext_filters, sn_jvalue_filters, sn_jlist_filters, NULL});
}
static sn_jvalue test_test(sn_jcall *c) { return known_name(c, (const sn_jbuiltin *const[]){sn_jtests, NULL}); }

const sn_jbuiltin sn_jtests[] = {
    {"defined", "", test_defined},
    {"undefined", "", test_undefined},
    {"none", "", test_none},
    {"boolean", "", test_boolean},
    {"true", "", test_true},
    {"false", "", test_false},
    {"integer", "", test_integer},
    {"float", "", test_float},
    {"number", "", test_number},
    {"string", "", test_string},
    {"mapping", "", test_mapping},
    {"sequence", "", test_sequence},
    {"iterable", "", test_iterable},
    {"callable", "", test_callable},
    {"escaped", "", test_escaped},
    {"even", "", test_even},
    {"odd", "", test_odd},
    {"divisibleby", "num", test_divisibleby},
    {"lower", "", test_lower},
    {"upper", "", test_upper},
    {"sameas", "other", test_sameas},
    {"in", "seq", test_in},
    {"filter", "", test_filter},
    {"test", "", test_test},
    {"eq", "other", test_eq},
    {"equalto", "other", test_eq},
    {"==", "other", test_eq},
    {"ne", "other", test_ne},
    {"!=", "other", test_ne},
    {"lt", "other", test_lt},
    {"lessthan", "other", test_lt},
    {"<", "other", test_lt},
    {"le", "other", test_le},
    {"<=", "other", test_le},
    {"gt", "other", test_gt},
    {"greaterthan", "other", test_gt},
    {">", "other", test_gt},
    {"ge", "other", test_ge},
    {">=", "other", test_ge},
    {NULL, NULL, NULL},
};
