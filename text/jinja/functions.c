/* The functions that every template finds: range, namespace, dict, joiner, raise_exception, strftime_now. */
#include "text/jinja/render_private.h"

#include <string.h>

enum { RANGE_MAX = 100000, DATE_BYTES = 1024 };

static sn_jvalue function_range(sn_jcall *call) {
    int64_t start = sn_jarg_int(call, 0, 0), stop = start, step = sn_jarg_int(call, 2, 1);
    if (call->has[1])
        stop = sn_jarg_int(call, 1, 0);
    else
        start = 0;
    if (step == 0) sn_jcall_fail(call, "the step is 0");
    sn_jlist *list = sn_jlist_new(call->r->run, 0);
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (list->n == RANGE_MAX) sn_jcall_fail(call, "the range has more than %d numbers", RANGE_MAX);
        sn_jlist_add(call->r->run, list, sn_jint(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    sn_jcharge(call->r->run, list->n >> 2);
    return sn_jlist_value(list);
}

/* A new dictionary of a mapping, or pairs, and of named values. */
static sn_jdict *collect(sn_jcall *call) {
    sn_jrun *run = call->r->run;
    sn_jdict *dict = sn_jdict_new(run);
    if (call->given->n > 1) sn_jcall_fail(call, "it takes one argument without a name at most");
    if (call->given->n && call->given->at[0].kind == SN_J_DICT) {
        const sn_jdict *from = call->given->at[0].dict;
        for (size_t i = 0; i < from->n; i++) sn_jdict_set(run, dict, from->at[i].key, from->at[i].value);
    } else if (call->given->n) {
        const sn_jlist *pairs = sn_jiterate(run, call->name, call->given->at[0]);
        for (size_t i = 0; i < pairs->n; i++) {
            const sn_jlist *pair = sn_jiterate(run, call->name, pairs->at[i]);
            if (pair->n != 2) sn_jcall_fail(call, "expected pairs of a key and a value");
            sn_jdict_set(run, dict, pair->at[0], pair->at[1]);
        }
    }
    for (size_t i = 0; i < call->named->n; i++)
        sn_jdict_set(run, dict, call->named->at[i].key, call->named->at[i].value);
    return dict;
}

static sn_jvalue function_dict(sn_jcall *call) { return sn_jdict_value(collect(call)); }

static sn_jvalue function_namespace(sn_jcall *call) {
    sn_jdict *dict = collect(call);
    for (size_t i = 0; i < dict->n; i++)
        if (dict->at[i].key.kind == SN_J_STRING && dict->at[i].key.string->len &&
            dict->at[i].key.string->text[0] == '_')
            sn_jcall_fail(call, "a name in a namespace cannot begin with an underscore");
    return (sn_jvalue){.kind = SN_J_NAMESPACE, .dict = dict};
}

static sn_jvalue function_raise_exception(sn_jcall *call) {
    const sn_jstring *message = sn_jto_string(call->r->run, call->arg[0]);
    sn_jfail(call->r->run, "", "the template refuses this conversation: %.*s", (int)sn_min_size(message->len, 300),
             message->text);
}

static sn_jvalue function_strftime_now(sn_jcall *call) {
    char format[256], date[DATE_BYTES];
    struct tm local;
    time_t seconds = time(NULL);
    const sn_jstring *given = sn_jarg_string(call, 0, "");
    if (given->len >= sizeof format) sn_jcall_fail(call, "the format has more than %zu bytes", sizeof format - 1);
    memcpy(format, given->text, given->len);
    format[given->len] = 0;
    size_t n = strftime(date, sizeof date, format, call->r->now ? call->r->now : localtime_r(&seconds, &local));
    return sn_jstr(sn_jstring_new(call->r->run, date, n, 0));
}

/* joiner(", ") gives "" the first time that it is called, and then the separator. */
static sn_jvalue function_joiner(sn_jcall *call) {
    sn_jlist *state = sn_jlist_new(call->r->run, 2);
    sn_jlist_add(call->r->run, state, sn_jstr(sn_jarg_string(call, 0, ", ")));
    return sn_jfunction_value(call->r, sn_jjoiner_methods, sn_jlist_value(state));
}

static sn_jvalue joiner_next(sn_jcall *call) {
    sn_jlist *state = call->self.list;
    if (state->n > 1) return state->at[0];
    sn_jlist_add(call->r->run, state, sn_jbool(true));
    return sn_jword(call->r->run, "");
}

const sn_jbuiltin sn_jfunctions[] = {
    {"range", "start / stop step", function_range},
    {"namespace", "*", function_namespace},
    {"dict", "*", function_dict},
    {"joiner", "/ sep", function_joiner},
    {"raise_exception", "message", function_raise_exception},
    {"strftime_now", "format", function_strftime_now},
    {NULL, NULL, NULL},
};

const sn_jbuiltin sn_jjoiner_methods[] = {{"joiner", "", joiner_next}, {NULL, NULL, NULL}};

/* ---- loop ---- */

static sn_jvalue loop_cycle(sn_jcall *call) {
    if (!call->given->n) sn_jcall_fail(call, "it needs values to choose from");
    return call->given->at[call->self.loop->index0 % (int64_t)call->given->n];
}

static sn_jvalue loop_changed(sn_jcall *call) {
    sn_jvalue now = sn_jtuple_value(sn_jlist_copy(call->r->run, call->given));
    bool changed = !sn_jequal(call->r->run, now, call->self.loop->changed);
    call->self.loop->changed = now;
    return sn_jbool(changed);
}

const sn_jbuiltin sn_jloop_methods[] = {{"cycle", "*", loop_cycle}, {"changed", "*", loop_changed}, {NULL, NULL, NULL}};
