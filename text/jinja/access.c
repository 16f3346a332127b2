/* What stands behind a dot or in brackets. As in Jinja2, a.b looks for an attribute (a method) first and for an item
 * then, a["b"] the other way round, and what is not there is undefined. */
#include "text/jinja/render_private.h"

#include <stdio.h>

static sn_jvalue method_of(sn_jrender *r, sn_jvalue on, const sn_jstring *name) {
    const sn_jbuiltin *method = NULL;
    if (on.kind == SN_J_STRING) {
        method = sn_jfind_builtin(sn_jstring_methods, name);
        if (!method) method = sn_jfind_builtin(sn_jstring_searches, name);
    } else if (sn_jis_list(on)) {
        method = sn_jfind_builtin(sn_jlist_methods, name);
    } else if (on.kind == SN_J_DICT) {
        method = sn_jfind_builtin(sn_jdict_methods, name);
    } else if (on.kind == SN_J_LOOP) {
        return sn_jloop_attribute(r, on.loop, name);
    } else if (on.kind == SN_J_NAMESPACE) {
        const sn_jvalue *value = sn_jdict_find(r->run, on.dict, sn_jstr(name));
        return value ? *value : sn_jundefined(name);
    } else if (on.kind == SN_J_FUNCTION && on.function->macro && sn_jstring_is(name, "name")) {
        return sn_jstr(on.function->macro->name);
    }
    return method ? sn_jfunction_value(r, method, on) : sn_jundefined(name);
}

static void refuse_undefined(sn_jrender *r, sn_jvalue on, const char *construct) {
    if (on.kind != SN_J_UNDEFINED) return;
    if (on.string)
        sn_jfail(r->run, construct, "'%.*s' is undefined", (int)sn_min_size(on.string->len, 80), on.string->text);
    sn_jfail(r->run, construct, "what stands before it is undefined");
}

sn_jvalue sn_jattribute(sn_jrender *r, sn_jvalue on, const sn_jstring *name) {
    char construct[100];
    if (on.kind == SN_J_UNDEFINED) {
        snprintf(construct, sizeof construct, "'.%.*s'", (int)sn_min_size(name->len, 80), name->text);
        refuse_undefined(r, on, construct);
    }
    sn_jvalue method = method_of(r, on, name);
    if (method.kind != SN_J_UNDEFINED || on.kind != SN_J_DICT) return method;
    const sn_jvalue *item = sn_jdict_find(r->run, on.dict, sn_jstr(name));
    return item ? *item : sn_jundefined(name);
}

static sn_jvalue element(sn_jrender *r, sn_jvalue on, int64_t index) {
    int64_t n = (int64_t)(on.kind == SN_J_STRING ? on.string->n_chars : on.list->n);
    if (index < 0) index += n;
    if (index < 0 || index >= n) return sn_jundefined(NULL);
    if (on.kind != SN_J_STRING) return on.list->at[index];
    size_t from = sn_jstring_offset(r->run, on.string, (size_t)index), len;
    sn_jstring_code(on.string, from, &len);
    return sn_jstr(sn_jstring_part(r->run, on.string, from, from + len));
}

sn_jvalue sn_jitem(sn_jrender *r, sn_jvalue on, sn_jvalue index) {
    refuse_undefined(r, on, "[...]");
    if (on.kind == SN_J_DICT && sn_jis_hashable(r->run, index)) {
        const sn_jvalue *item = sn_jdict_find(r->run, on.dict, index);
        if (item) return *item;
    }
    if ((on.kind == SN_J_STRING || sn_jis_list(on)) && sn_jis_int(index)) return element(r, on, sn_jas_int(index));
    if (index.kind != SN_J_STRING) return sn_jundefined(NULL);
    return method_of(r, on, index.string);
}

/* ---- slices ---- */

static bool slice_bound(sn_jrender *r, sn_jvalue v, int64_t *out) {
    if (v.kind == SN_J_NONE) return false;
    if (!sn_jis_int(v)) sn_jfail(r->run, "[:]", "the bounds of a slice are integers, not a %s", sn_jtype_name(v));
    *out = sn_jas_int(v);
    return true;
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high) {
    if (i < 0) i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

/* Characters [start, stop) by step. */
static sn_jvalue slice_string(sn_jrender *r, const sn_jstring *text, int64_t start, int64_t stop, int64_t step) {
    if (step == 1) {
        size_t from = sn_jstring_offset(r->run, text, (size_t)start);
        return sn_jstr(
            sn_jstring_part(r->run, text, from, start < stop ? sn_jstring_offset(r->run, text, (size_t)stop) : from));
    }
    const sn_jlist *all = sn_jiterate(r->run, "[:]", sn_jstr(text));
    sn_jtext out = sn_jtext_new(r->run);
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) sn_jtext_string(&out, all->at[i].string);
    return sn_jstr(sn_jtext_end(&out));
}

sn_jvalue sn_jslice(sn_jrender *r, sn_jvalue on, const sn_jvalue bound[3]) {
    refuse_undefined(r, on, "[:]");
    if (on.kind != SN_J_STRING && !sn_jis_list(on)) sn_jfail(r->run, "[:]", "a %s cannot be sliced", sn_jtype_name(on));
    int64_t n = (int64_t)sn_jlength(r->run, "[:]", on), step = 1;
    if (slice_bound(r, bound[2], &step) && step == 0) sn_jfail(r->run, "[:]", "the step of a slice is 0");
    if (step > n + 1) step = n + 1; /* beyond the end either way, and sums cannot overflow */
    if (step < -n - 1) step = -n - 1;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t start = step > 0 ? low : high, stop = step > 0 ? high : low;
    if (slice_bound(r, bound[0], &start)) start = clamp(start, n, low, high);
    if (slice_bound(r, bound[1], &stop)) stop = clamp(stop, n, low, high);
    sn_jcharge(r->run, (size_t)n >> 3);
    if (on.kind == SN_J_STRING) return slice_string(r, on.string, start, stop, step);
    sn_jlist *list = sn_jlist_new(r->run, 0);
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) sn_jlist_add(r->run, list, on.list->at[i]);
    return (sn_jvalue){.kind = on.kind, .list = list};
}

sn_jvalue sn_jpath(sn_jrender *r, sn_jvalue on, sn_jvalue path) {
    if (path.kind != SN_J_STRING) return sn_jitem(r, on, path);
    const sn_jstring *text = path.string;
    for (size_t from = 0, to; from <= text->len; from = to + 1) {
        int64_t number = 0;
        bool digits = true;
        sn_jcharge(r->run, 1);
        for (to = from; to < text->len && text->text[to] != '.'; to++) {
            digits = digits && text->text[to] >= '0' && text->text[to] <= '9' && number < (int64_t)1 << 32;
            if (digits) number = 10 * number + (text->text[to] - '0');
        }
        sn_jcharge(r->run, (to - from) >> 4);
        sn_jvalue part = sn_jstr(sn_jstring_part(r->run, text, from, to));
        on = sn_jitem(r, on, digits && to > from ? sn_jint(number) : part);
    }
    return on;
}
