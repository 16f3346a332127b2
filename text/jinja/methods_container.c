/* Methods of lists and dictionaries. */
#include "text/jinja/render_private.h"

#include <string.h>

/* ---- dictionaries ---- */

static sn_jvalue dict_list(sn_jcall *c, bool keys, bool values) {
    sn_jrun *run = c->r->run;
    const sn_jdict *dict = c->self.dict;
    sn_jlist *list = sn_jlist_new(run, dict->n);
    for (size_t i = 0; i < dict->n; i++) {
        sn_jvalue v = keys ? dict->at[i].key : dict->at[i].value;
        if (keys && values) {
            sn_jlist *pair = sn_jlist_new(run, 2);
            sn_jlist_add(run, pair, dict->at[i].key);
            sn_jlist_add(run, pair, dict->at[i].value);
            v = sn_jtuple_value(pair);
        }
        sn_jlist_add(run, list, v);
    }
    return sn_jlist_value(list);
}

static sn_jvalue dict_items(sn_jcall *c) { return dict_list(c, true, true); }
static sn_jvalue dict_keys(sn_jcall *c) { return dict_list(c, true, false); }
static sn_jvalue dict_values(sn_jcall *c) { return dict_list(c, false, true); }

static const sn_jvalue *dict_entry(sn_jcall *c) {
    if (!sn_jis_hashable(c->r->run, c->arg[0])) sn_jcall_fail(c, "a %s cannot be a key", sn_jtype_name(c->arg[0]));
    return sn_jdict_find(c->r->run, c->self.dict, c->arg[0]);
}

static sn_jvalue dict_get(sn_jcall *c) {
    const sn_jvalue *found = dict_entry(c);
    return found ? *found : c->has[1] ? c->arg[1] : sn_jnone();
}

static sn_jvalue dict_pop(sn_jcall *c) {
    const sn_jvalue *found = dict_entry(c);
    if (!found && !c->has[1]) sn_jcall_fail(c, "the key is not there");
    sn_jvalue value = found ? *found : c->arg[1];
    if (found) sn_jdict_remove(c->r->run, c->self.dict, c->arg[0]);
    return value;
}

static sn_jvalue dict_setdefault(sn_jcall *c) {
    const sn_jvalue *found = dict_entry(c);
    if (found) return *found;
    sn_jvalue value = c->has[1] ? c->arg[1] : sn_jnone();
    sn_jdict_set(c->r->run, c->self.dict, c->arg[0], value);
    return value;
}

static void dict_take(sn_jcall *c, const sn_jdict *from) {
    for (size_t i = 0; i < from->n; i++) sn_jdict_set(c->r->run, c->self.dict, from->at[i].key, from->at[i].value);
}

static sn_jvalue dict_update(sn_jcall *c) {
    if (c->given->n > 1 || (c->given->n && c->given->at[0].kind != SN_J_DICT))
        sn_jcall_fail(c, "it takes a dictionary");
    if (c->given->n) dict_take(c, c->given->at[0].dict);
    dict_take(c, c->named);
    return sn_jnone();
}

static sn_jvalue dict_copy(sn_jcall *c) {
    sn_jdict *copy = sn_jdict_new(c->r->run);
    for (size_t i = 0; i < c->self.dict->n; i++)
        sn_jdict_set(c->r->run, copy, c->self.dict->at[i].key, c->self.dict->at[i].value);
    return sn_jdict_value(copy);
}

const sn_jbuiltin sn_jdict_methods[] = {
    {"items", "", dict_items},
    {"keys", "", dict_keys},
    {"values", "", dict_values},
    {"get", "key / default", dict_get},
    {"pop", "key / default", dict_pop},
    {"setdefault", "key / default", dict_setdefault},
    {"update", "*", dict_update},
    {"copy", "", dict_copy},
    {NULL, NULL, NULL},
};

/* ---- lists ---- */

static sn_jlist *changeable(sn_jcall *c) {
    if (c->self.kind == SN_J_TUPLE) sn_jcall_fail(c, "a tuple cannot be changed");
    return c->self.list;
}

static sn_jvalue list_append(sn_jcall *c) {
    sn_jlist_add(c->r->run, changeable(c), c->arg[0]);
    return sn_jnone();
}

static sn_jvalue list_extend(sn_jcall *c) {
    const sn_jlist *more = sn_jlist_copy(c->r->run, sn_jiterate(c->r->run, "'extend'", c->arg[0]));
    for (size_t i = 0; i < more->n; i++) sn_jlist_add(c->r->run, changeable(c), more->at[i]);
    return sn_jnone();
}

static sn_jvalue list_insert(sn_jcall *c) {
    sn_jlist *list = changeable(c);
    int64_t n = (int64_t)list->n, at = sn_jarg_int(c, 0, 0);
    at = at < -n ? 0 : at < 0 ? at + n : at > n ? n : at;
    sn_jlist_add(c->r->run, list, c->arg[1]);
    memmove(list->at + at + 1, list->at + at, (size_t)(n - at) * sizeof *list->at);
    list->at[at] = c->arg[1];
    sn_jcharge(c->r->run, list->n >> 6);
    return sn_jnone();
}

static sn_jvalue list_pop(sn_jcall *c) {
    sn_jlist *list = changeable(c);
    int64_t n = (int64_t)list->n, at = sn_jarg_int(c, 0, -1);
    if (at < 0) at += n;
    if (at < 0 || at >= n) sn_jcall_fail(c, "there is no item %lld of %lld", (long long)at, (long long)n);
    sn_jvalue value = list->at[at];
    memmove(list->at + at, list->at + at + 1, (size_t)(n - at - 1) * sizeof *list->at);
    list->n--;
    sn_jcharge(c->r->run, list->n >> 6);
    return value;
}

static sn_jvalue list_index(sn_jcall *c) {
    sn_jcharge(c->r->run, c->self.list->n >> 2);
    for (size_t i = 0; i < c->self.list->n; i++)
        if (sn_jequal(c->r->run, c->self.list->at[i], c->arg[0])) return sn_jint((int64_t)i);
    sn_jcall_fail(c, "the value is not in the list");
}

static sn_jvalue list_count(sn_jcall *c) {
    int64_t n = 0;
    sn_jcharge(c->r->run, c->self.list->n >> 2);
    for (size_t i = 0; i < c->self.list->n; i++) n += sn_jequal(c->r->run, c->self.list->at[i], c->arg[0]);
    return sn_jint(n);
}

static sn_jvalue list_copy(sn_jcall *c) { return sn_jlist_value(sn_jlist_copy(c->r->run, c->self.list)); }

const sn_jbuiltin sn_jlist_methods[] = {
    {"append", "item", list_append},
    {"extend", "iterable", list_extend},
    {"insert", "index item", list_insert},
    {"pop", "/ index", list_pop},
    {"index", "value", list_index},
    {"count", "value", list_count},
    {"copy", "", list_copy},
    {NULL, NULL, NULL},
};
