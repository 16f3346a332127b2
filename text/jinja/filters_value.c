/* Filters that turn one value into another: default, length, int, float, round, tojson, ... */
#include "text/jinja/render_private.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sn_jvalue filter_default(sn_jcall *c) {
    bool missing = c->self.kind == SN_J_UNDEFINED || (sn_jarg_flag(c, 1, false) && !sn_jtruth(c->self));
    if (!missing) return c->self;
    return c->has[0] ? c->arg[0] : sn_jword(c->r->run, "");
}

static sn_jvalue filter_length(sn_jcall *c) { return sn_jint((int64_t)sn_jlength(c->r->run, "'length'", c->self)); }

static sn_jvalue filter_string(sn_jcall *c) { return sn_jstr(sn_jto_string(c->r->run, c->self)); }

static sn_jvalue filter_safe(sn_jcall *c) {
    return sn_jstr(sn_jstring_safe(c->r->run, sn_jto_string(c->r->run, c->self)));
}

static sn_jvalue filter_abs(sn_jcall *c) {
    if (!sn_jis_number(c->self)) sn_jcall_fail(c, "a %s is no number", sn_jtype_name(c->self));
    if (c->self.kind == SN_J_FLOAT) return sn_jreal(fabs(c->self.real));
    int64_t value = sn_jas_int(c->self);
    if (value == INT64_MIN) sn_jcall_fail(c, "the result has more than 64 bits");
    return sn_jint(value < 0 ? -value : value);
}

/* A text without white space around it, in `out`; false: it is longer than any number. */
static bool number_text(const sn_jstring *text, char out[400]) {
    size_t from = 0, to = text->len, n = 0;
    while (from < to && sn_jis_space((uint8_t)text->text[from])) from++;
    while (to > from && sn_jis_space((uint8_t)text->text[to - 1])) to--;
    if (to - from >= 400 || to == from) return false;
    for (size_t i = from; i < to; i++) {
        bool digits = i > from && i + 1 < to && text->text[i - 1] >= '0' && text->text[i - 1] <= '9' &&
                      text->text[i + 1] >= '0' && text->text[i + 1] <= '9';
        if (text->text[i] == '_' && digits) continue; /* 1_000 */
        if (!text->text[i]) return false;
        out[n++] = text->text[i];
    }
    out[n] = 0;
    return true;
}

static bool parse_real(const sn_jstring *text, double *out) {
    char number[400], *end;
    if (!number_text(text, number) || strpbrk(number, "xXpP(_")) return false;
    *out = strtod(number, &end);
    return !*end;
}

static bool parse_integer(sn_jcall *c, const sn_jstring *text, int base, int64_t *out) {
    static const struct {
        char letter;
        int base;
    } prefixes[] = {{'x', 16}, {'o', 8}, {'b', 2}};
    char number[400], *end;
    if (!number_text(text, number)) return false;
    char *digits = number + (*number == '-' || *number == '+');
    for (size_t i = 0; i < 3; i++)
        if (digits[0] == '0' && (digits[1] | 0x20) == prefixes[i].letter && (base == 0 || base == prefixes[i].base)) {
            memmove(digits, digits + 2, strlen(digits + 2) + 1);
            base = prefixes[i].base;
            break;
        }
    if (!isalnum((uint8_t)*digits)) return false;
    errno = 0;
    long long value = strtoll(number, &end, base ? base : 10);
    if (*end) return false;
    if (errno) sn_jcall_fail(c, "the number has more than 64 bits");
    *out = value;
    return true;
}

static sn_jvalue real_to_int(sn_jcall *c, double real, sn_jvalue otherwise) {
    if (isnan(real) || isinf(real)) return otherwise;
    if (fabs(real) >= 9223372036854775808.0) sn_jcall_fail(c, "the number has more than 64 bits");
    return sn_jint((int64_t)real);
}

static sn_jvalue filter_int(sn_jcall *c) {
    sn_jvalue otherwise = c->has[0] ? c->arg[0] : sn_jint(0);
    int64_t integer, base = sn_jarg_int(c, 1, 10);
    double real;
    if (base != 0 && (base < 2 || base > 36)) return otherwise;
    if (sn_jis_int(c->self)) return sn_jint(sn_jas_int(c->self));
    if (c->self.kind == SN_J_WIDE) return c->self;
    if (c->self.kind == SN_J_FLOAT) return real_to_int(c, c->self.real, otherwise);
    if (c->self.kind == SN_J_UNDEFINED) sn_jcall_fail(c, "the value is undefined");
    if (c->self.kind != SN_J_STRING) return otherwise;
    sn_jcharge(c->r->run, c->self.string->len >> 4);
    if (parse_integer(c, c->self.string, (int)base, &integer)) return sn_jint(integer);
    return parse_real(c->self.string, &real) ? real_to_int(c, real, otherwise) : otherwise;
}

static sn_jvalue filter_float(sn_jcall *c) {
    double real;
    if (sn_jis_number(c->self)) return sn_jreal(sn_jas_real(c->self));
    if (c->self.kind == SN_J_UNDEFINED) sn_jcall_fail(c, "the value is undefined");
    if (c->self.kind == SN_J_STRING) sn_jcharge(c->r->run, c->self.string->len >> 4);
    if (c->self.kind == SN_J_STRING && parse_real(c->self.string, &real)) return sn_jreal(real);
    return c->has[0] ? c->arg[0] : sn_jreal(0);
}

/* Python rounds the decimal digits of the number half to even; printf does the same. */
static double round_digits(double real, int64_t precision) {
    char number[400];
    if (precision < 0) {
        double scale = pow(10, (double)-precision);
        return rint(real / scale) * scale;
    }
    snprintf(number, sizeof number, "%.*f", (int)(precision > 30 ? 30 : precision), real);
    return strtod(number, NULL);
}

static sn_jvalue filter_round(sn_jcall *c) {
    int64_t precision = sn_jarg_int(c, 0, 0);
    const sn_jstring *method = sn_jarg_string(c, 1, "common");
    if (!sn_jis_number(c->self)) sn_jcall_fail(c, "a %s is no number", sn_jtype_name(c->self));
    if (precision < -300 || precision > 300) sn_jcall_fail(c, "the precision is out of range");
    if (sn_jstring_is(method, "common")) {
        if (sn_jis_int(c->self) && precision >= 0) return sn_jint(sn_jas_int(c->self));
        double rounded = round_digits(sn_jas_real(c->self), precision);
        return sn_jis_int(c->self) ? real_to_int(c, rounded, sn_jint(0)) : sn_jreal(rounded);
    }
    double scale = pow(10, (double)precision), scaled = sn_jas_real(c->self) * scale;
    if (sn_jstring_is(method, "ceil")) return sn_jreal(ceil(scaled) / scale);
    if (sn_jstring_is(method, "floor")) return sn_jreal(floor(scaled) / scale);
    sn_jcall_fail(c, "the method is common, ceil or floor");
}

static const sn_jstring *json_indent(sn_jcall *c, sn_jvalue indent) {
    if (indent.kind == SN_J_NONE || indent.kind == SN_J_UNDEFINED) return NULL;
    if (indent.kind == SN_J_STRING) return indent.string;
    if (!sn_jis_int(indent)) sn_jcall_fail(c, "'indent' is an integer or a string");
    sn_jtext out = sn_jtext_new(c->r->run);
    if (sn_jas_int(indent) > 1000) sn_jcall_fail(c, "'indent' is larger than 1000");
    for (int64_t i = 0; i < sn_jas_int(indent); i++) sn_jtext_word(&out, " ", 0);
    return sn_jtext_end(&out);
}

static sn_jvalue filter_tojson(sn_jcall *c) {
    sn_jrun *run = c->r->run;
    sn_jjson how = {.ensure_ascii = sn_jarg_flag(c, 0, false),
                    .indent = json_indent(c, c->has[1] ? c->arg[1] : sn_jnone()),
                    .sort_keys = sn_jarg_flag(c, 3, false)};
    how.item_separator = sn_jstring_new(run, ", ", how.indent ? 1 : 2, SN_JINJA_DATA);
    how.key_separator = sn_jstring_new(run, ": ", 2, SN_JINJA_DATA);
    if (c->has[2] && c->arg[2].kind != SN_J_NONE) {
        const sn_jlist *pair = sn_jiterate(run, "'tojson'", c->arg[2]);
        if (pair->n != 2 || pair->at[0].kind != SN_J_STRING || pair->at[1].kind != SN_J_STRING)
            sn_jcall_fail(c, "'separators' is a pair of strings");
        how.item_separator = pair->at[0].string;
        how.key_separator = pair->at[1].string;
    }
    sn_jtext out = sn_jtext_new(run);
    sn_jwrite_json(&out, c->self, &how);
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue filter_from_json(sn_jcall *c) {
    json_error_t why;
    if (c->self.kind != SN_J_STRING) sn_jcall_fail(c, "expected a string, not a %s", sn_jtype_name(c->self));
    size_t len = c->self.string->len;
    sn_jcharge(c->r->run, len >> 2);
    if (len > c->r->run->limits.memory / 64) sn_jcall_fail(c, "the text is too long");
    json_t *json = json_loadb(c->self.string->text, len, JSON_DECODE_ANY, &why);
    if (!json) sn_jcall_fail(c, "the text is not JSON: %.100s", why.text);
    c->r->run->json = json;
    sn_jvalue value = sn_jfrom_json(c->r->run, json, NULL, SN_JINJA_DATA);
    json_decref(json);
    c->r->run->json = NULL;
    return value;
}

static sn_jvalue filter_attr(sn_jcall *c) {
    const sn_jstring *name = sn_jarg_string(c, 0, "");
    /* An attribute only: the items of a dictionary are none. */
    return c->self.kind == SN_J_DICT ? sn_jattribute(c->r, sn_jdict_value(sn_jdict_new(c->r->run)), name)
                                     : sn_jattribute(c->r, c->self, name);
}

const sn_jbuiltin sn_jvalue_filters[] = {
    {"default", "/ default_value boolean", filter_default},
    {"d", "/ default_value boolean", filter_default},
    {"length", "", filter_length},
    {"count", "", filter_length},
    {"string", "", filter_string},
    {"safe", "", filter_safe},
    {"abs", "", filter_abs},
    {"int", "/ default base", filter_int},
    {"float", "/ default", filter_float},
    {"round", "/ precision method", filter_round},
    {"tojson", "/ ensure_ascii indent separators sort_keys", filter_tojson},
    {"from_json", "", filter_from_json},
    {"attr", "name", filter_attr},
    {NULL, NULL, NULL},
};
