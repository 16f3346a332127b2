/* Arithmetic and comparisons as Python has them. Integers have 64 bits: an overflow is an error. */
#include "text/jinja/render_private.h"

#include <math.h>
#include <string.h>

static const char *const sign_names[] = {[SN_JS_ADD] = "+",
                                         [SN_JS_SUBTRACT] = "-",
                                         [SN_JS_MULTIPLY] = "*",
                                         [SN_JS_DIVIDE] = "/",
                                         [SN_JS_FLOOR_DIVIDE] = "//",
                                         [SN_JS_MODULO] = "%",
                                         [SN_JS_POWER] = "**",
                                         [SN_JS_EQUAL] = "==",
                                         [SN_JS_UNEQUAL] = "!=",
                                         [SN_JS_LESS] = "<",
                                         [SN_JS_LESS_EQUAL] = "<=",
                                         [SN_JS_GREATER] = ">",
                                         [SN_JS_GREATER_EQUAL] = ">=",
                                         [SN_JS_IN] = "in",
                                         [SN_JS_NOT_IN] = "not in"};

static _Noreturn void refuse_operands(sn_jrender *r, sn_jsign sign, sn_jvalue a, sn_jvalue b) {
    const sn_jvalue *undefined = a.kind == SN_J_UNDEFINED ? &a : &b;
    if (undefined->kind == SN_J_UNDEFINED && undefined->string)
        sn_jfail(r->run, sign_names[sign], "'%.*s' is undefined", (int)sn_min_size(undefined->string->len, 80),
                 undefined->string->text);
    sn_jfail(r->run, sign_names[sign], "a %s and a %s do not go together", sn_jtype_name(a), sn_jtype_name(b));
}

static _Noreturn void refuse_number(sn_jrender *r, sn_jsign sign, const char *why) {
    sn_jfail(r->run, sign_names[sign], "%s", why);
}

static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0)); }

static int64_t integer_power(sn_jrender *r, int64_t base, int64_t exponent) {
    int64_t result = 1;
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            refuse_number(r, SN_JS_POWER, "the result has more than 64 bits");
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            refuse_number(r, SN_JS_POWER, "the result has more than 64 bits");
    }
    return result;
}

static sn_jvalue operate_integers(sn_jrender *r, sn_jsign sign, int64_t a, int64_t b) {
    int64_t out = 0;
    bool overflow = false;
    if (b == 0 && (sign == SN_JS_DIVIDE || sign == SN_JS_FLOOR_DIVIDE || sign == SN_JS_MODULO))
        refuse_number(r, sign, "a division by zero");
    switch (sign) {
    case SN_JS_ADD:
        overflow = __builtin_add_overflow(a, b, &out);
        break;
    case SN_JS_SUBTRACT:
        overflow = __builtin_sub_overflow(a, b, &out);
        break;
    case SN_JS_MULTIPLY:
        overflow = __builtin_mul_overflow(a, b, &out);
        break;
    case SN_JS_DIVIDE:
        return sn_jreal((double)a / (double)b);
    case SN_JS_POWER:
        if (b < 0 && a == 0) refuse_number(r, sign, "a division by zero");
        if (b < 0) return sn_jreal(pow((double)a, (double)b));
        return sn_jint(integer_power(r, a, b));
    default:
        overflow = b == -1 && a == INT64_MIN;
        if (!overflow) out = sign == SN_JS_MODULO ? (b == -1 ? 0 : a - floor_divide(a, b) * b) : floor_divide(a, b);
    }
    if (overflow) refuse_number(r, sign, "the result has more than 64 bits");
    return sn_jint(out);
}

static sn_jvalue operate_reals(sn_jrender *r, sn_jsign sign, double a, double b) {
    if (b == 0 && (sign == SN_JS_DIVIDE || sign == SN_JS_FLOOR_DIVIDE || sign == SN_JS_MODULO))
        refuse_number(r, sign, "a division by zero");
    double rest = 0;
    switch (sign) {
    case SN_JS_ADD:
        return sn_jreal(a + b);
    case SN_JS_SUBTRACT:
        return sn_jreal(a - b);
    case SN_JS_MULTIPLY:
        return sn_jreal(a * b);
    case SN_JS_DIVIDE:
        return sn_jreal(a / b);
    case SN_JS_POWER:
        if (a < 0 && b != floor(b)) refuse_number(r, sign, "the result is a complex number");
        if (a == 0 && b < 0) refuse_number(r, sign, "a division by zero");
        return sn_jreal(pow(a, b));
    default:
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
        if (sign == SN_JS_MODULO) return sn_jreal(rest != 0 ? rest : copysign(0.0, b));
        return sn_jreal(floor((a - rest) / b + 0.5));
    }
}

static sn_jvalue add_sequences(sn_jrender *r, sn_jvalue a, sn_jvalue b) {
    if (a.kind == SN_J_STRING) {
        sn_jtext out = sn_jtext_new(r->run);
        bool safe = a.string->safe || b.string->safe;
        sn_jtext_string(&out, safe && !a.string->safe ? sn_jstring_escape(r->run, a.string) : a.string);
        sn_jtext_string(&out, safe && !b.string->safe ? sn_jstring_escape(r->run, b.string) : b.string);
        const sn_jstring *sum = sn_jtext_end(&out);
        return sn_jstr(safe ? sn_jstring_safe(r->run, sum) : sum);
    }
    sn_jlist *list = sn_jlist_copy(r->run, a.list);
    for (size_t i = 0; i < b.list->n; i++) sn_jlist_add(r->run, list, b.list->at[i]);
    return (sn_jvalue){.kind = a.kind, .list = list};
}

/* "ab" * 3, [1] * 2 */
static sn_jvalue repeat(sn_jrender *r, sn_jvalue a, int64_t times) {
    if (a.kind == SN_J_STRING) {
        sn_jtext out = sn_jtext_new(r->run);
        for (int64_t i = 0; i < times && a.string->len; i++) {
            sn_jcharge(r->run, 1);
            sn_jtext_string(&out, a.string);
        }
        return sn_jstr(sn_jtext_end(&out));
    }
    sn_jlist *list = sn_jlist_new(r->run, 0);
    for (int64_t i = 0; i < times && a.list->n; i++) {
        sn_jcharge(r->run, 1);
        for (size_t k = 0; k < a.list->n; k++) sn_jlist_add(r->run, list, a.list->at[k]);
    }
    return (sn_jvalue){.kind = a.kind, .list = list};
}

static bool is_sequence(sn_jvalue v) { return v.kind == SN_J_STRING || sn_jis_list(v); }

static sn_jvalue operate(sn_jrender *r, sn_jsign sign, sn_jvalue a, sn_jvalue b) {
    if (sn_jis_int(a) && sn_jis_int(b)) return operate_integers(r, sign, sn_jas_int(a), sn_jas_int(b));
    if (sn_jis_number(a) && sn_jis_number(b)) return operate_reals(r, sign, sn_jas_real(a), sn_jas_real(b));
    if (sign == SN_JS_ADD && is_sequence(a) && a.kind == b.kind) return add_sequences(r, a, b);
    if (sign == SN_JS_MULTIPLY && is_sequence(a) && sn_jis_int(b)) return repeat(r, a, sn_jas_int(b));
    if (sign == SN_JS_MULTIPLY && is_sequence(b) && sn_jis_int(a)) return repeat(r, b, sn_jas_int(a));
    if (sign == SN_JS_MODULO && a.kind == SN_J_STRING)
        return sn_jstr(sn_jpercent_format(&(sn_jcall){.r = r, .name = "%"}, a.string, b));
    refuse_operands(r, sign, a, b);
}

bool sn_jcontains(sn_jrender *r, sn_jvalue item, sn_jvalue in) {
    if (in.kind == SN_J_STRING) {
        if (item.kind != SN_J_STRING) refuse_operands(r, SN_JS_IN, item, in);
        return sn_jstring_find(r->run, in.string, item.string, 0, in.string->len) != SIZE_MAX;
    }
    if (in.kind == SN_J_DICT) {
        if (!sn_jis_hashable(r->run, item)) refuse_operands(r, SN_JS_IN, item, in);
        return sn_jdict_find(r->run, in.dict, item);
    }
    if (!sn_jis_list(in) && in.kind != SN_J_UNDEFINED && in.kind != SN_J_GENERATOR)
        refuse_operands(r, SN_JS_IN, item, in);
    const sn_jlist *list = sn_jiterate(r->run, "in", in);
    sn_jcharge(r->run, list->n >> 2);
    for (size_t i = 0; i < list->n; i++)
        if (sn_jequal(r->run, list->at[i], item)) return true;
    return false;
}

sn_jvalue sn_joperate(sn_jrender *r, sn_jsign sign, sn_jvalue a, sn_jvalue b) {
    switch (sign) {
    case SN_JS_EQUAL:
        return sn_jbool(sn_jequal(r->run, a, b));
    case SN_JS_UNEQUAL:
        return sn_jbool(!sn_jequal(r->run, a, b));
    case SN_JS_IN:
        return sn_jbool(sn_jcontains(r, a, b));
    case SN_JS_NOT_IN:
        return sn_jbool(!sn_jcontains(r, a, b));
    default:
        break;
    }
    if (sign < SN_JS_EQUAL) return operate(r, sign, a, b);
    bool ordered = (sn_jis_number(a) && sn_jis_number(b)) || (is_sequence(a) && a.kind == b.kind);
    if (!ordered) refuse_operands(r, sign, a, b);
    if ((a.kind == SN_J_FLOAT && isnan(a.real)) || (b.kind == SN_J_FLOAT && isnan(b.real))) return sn_jbool(false);
    int order = sn_jcompare(r->run, a, b);
    return sn_jbool(sign == SN_JS_LESS         ? order < 0
                    : sign == SN_JS_LESS_EQUAL ? order <= 0
                    : sign == SN_JS_GREATER    ? order > 0
                                               : order >= 0);
}
